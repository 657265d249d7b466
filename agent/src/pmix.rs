//! Whether this node can serve PMIx. `lattice-pmix` says it, which loads the machine's library: nothing of that gets into the agent.

use crate::config::AgentConfig;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The program, beside the shim's.
const PROGRAM: &str = "lattice-pmix";
/// How long it may take to load a library from a disk.
const TAKES_MAX: Duration = Duration::from_secs(5);
/// Between two looks at whether it has.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The version of the library that it is served with, or why it is not. Looked for once in the life of an agent.
pub fn library(config: &AgentConfig) -> &'static Result<String, String> {
    static FOUND: OnceLock<Result<String, String>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let shim = config.shim_program().map_err(|error| error.to_string())?;
        ask(&shim.parent().unwrap_or(Path::new("/")).join(PROGRAM))
    })
}

fn ask(program: &Path) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", program.display());
    if !program.is_file() {
        return Err(format!("{} is not there: install it beside lattice-shim", program.display()));
    }
    let mut child = Command::new(program)
        .arg("--check")
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    let began = Instant::now();
    let status = loop {
        match child.try_wait().map_err(failed)? {
            Some(status) => break status,
            None if began.elapsed() > TAKES_MAX => {
                let ended = child.kill().and_then(|()| child.wait().map(drop));
                let ended = ended.err().map(|error| format!(", and did not end: {error}")).unwrap_or_default();
                return Err(format!("{} did not load a library within {} s{ended}", program.display(), TAKES_MAX.as_secs()));
            }
            None => std::thread::sleep(LOOK_EVERY),
        }
    };
    let mut said = String::new();
    if let Some(out) = child.stdout.take() {
        out.take(4096).read_to_string(&mut said).map_err(failed)?;
    }
    let said = said.trim().to_owned();
    match status.success() && !said.is_empty() {
        true => Ok(said),
        false if said.is_empty() => Err(format!("{} ended with {status}", program.display())),
        false => Err(said),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_the_program_says_is_told() {
        let folder = std::env::temp_dir().join(format!("lattice-agent-pmix-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let says = |text: &str| {
            let program = folder.join("program");
            std::fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
            ask(&program)
        };
        assert_eq!(says("echo 4.2.2"), Ok("4.2.2".to_owned()));
        assert_eq!(says("echo no library; exit 1"), Err("no library".to_owned()));
        assert!(says("exit 3").is_err_and(|why| why.contains("exit status: 3")));
        assert!(ask(&folder.join("nothing")).is_err_and(|why| why.contains("install it beside lattice-shim")));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
