//! A shell that runs a page's commands one after the other: variables are kept for the next command.

use lattice_lab::process::{self, Finished};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Timeout of one command of a page.
const COMMAND_MAX: Duration = Duration::from_secs(60);
/// How long a command that follows something runs.
const FOLLOWED: Duration = Duration::from_secs(2);

pub struct Shell {
    dir: PathBuf,
    path: String,
    endpoint: String,
}

impl Shell {
    /// In this directory, with these binaries first in `PATH`, connected to the agent at this socket.
    pub fn new(dir: &Path, binaries: &Path, socket: &Path) -> Self {
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{}:{path}", dir.display(), binaries.display());
        Self { dir: dir.to_owned(), path, endpoint: format!("unix:{}", socket.display()) }
    }

    pub fn write_program(&self, name: &str, text: &str) {
        let path = self.dir.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Runs a command; if it succeeds its variables are kept for the next command.
    pub fn run(&self, text: &str, limit: Duration) -> Finished {
        let script = format!("set -aeo pipefail\n[ ! -e .variables ] || . ./.variables\n{text}\nexport -p > .variables\n");
        let seconds = limit.as_secs().to_string();
        // `timeout` ends everything that the command started: leftover processes would hold the pipes open.
        let mut command = Command::new("timeout");
        command.args(["-k", "2", &seconds, "bash", "-c", &script]).current_dir(&self.dir);
        command.env("PATH", &self.path).env("LATTICE_ENDPOINT", &self.endpoint).env("NO_COLOR", "1");
        command.env("XDG_STATE_HOME", self.dir.join("state-home")).env("XDG_CONFIG_HOME", self.dir.join("config-home"));
        process::run(&mut command, limit + Duration::from_secs(10)).unwrap()
    }

    /// Runs a command, which must succeed. Returns its standard output.
    pub fn ok(&self, place: &str, text: &str) -> String {
        let done = self.run(text, COMMAND_MAX);
        assert_eq!(done.code(), 0, "{place}: `{text}` fails\n{}{}", done.out(), done.err());
        done.out()
    }

    /// Runs a command and interrupts it; it must not end before.
    pub fn runs_until_interrupted(&self, place: &str, text: &str) {
        let seconds = FOLLOWED.as_secs();
        let ended = self.run(&format!("code=0; timeout -k 5 -s INT {seconds} {text} || code=$?; [ $code = 124 ] || exit 1"), COMMAND_MAX);
        assert_eq!(ended.code(), 0, "{place}: `{text}` ends by itself\n{}{}", ended.out(), ended.err());
    }
}
