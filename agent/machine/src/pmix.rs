//! Whether this node can serve PMIx. The program `lattice-pmix` checks that: it loads the machine's
//! library, so that the agent itself need not.

use lattice_agent_common::config::AgentConfig;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use thiserror::Error;

/// The program, in the directory of the shim.
const PROGRAM: &str = "lattice-pmix";
/// Timeout for loading the library from a disk.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of the checks whether the program has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Why PMIx is not served here.
#[derive(Debug, Error)]
pub enum NoPmix {
    #[error("{0}")]
    FindShim(#[source] io::Error),
    #[error("{} does not exist: install it beside lattice-shim", .program.display())]
    NoProgram { program: PathBuf },
    #[error("{}: {source}", .program.display())]
    Run { program: PathBuf, source: io::Error },
    #[error("{} did not load a library within {} s{not_ended}", .program.display(), CHECK_TIMEOUT.as_secs())]
    Timeout { program: PathBuf, not_ended: String },
    #[error("{} ended with {status}", .program.display())]
    Ended { program: PathBuf, status: ExitStatus },
    /// The program's own text.
    #[error("{why}")]
    NoLibrary { why: String },
}

/// The version of the PMIx library, or why PMIx is not served. Determined once per run of the
/// agent.
pub fn library(config: &AgentConfig) -> &'static Result<String, NoPmix> {
    static FOUND: OnceLock<Result<String, NoPmix>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let shim = config.shim_program().map_err(NoPmix::FindShim)?;
        ask(&shim.parent().unwrap_or(Path::new("/")).join(PROGRAM))
    })
}

fn ask(program: &Path) -> Result<String, NoPmix> {
    let failed = |source| NoPmix::Run { program: program.to_owned(), source };
    if !program.is_file() {
        return Err(NoPmix::NoProgram { program: program.to_owned() });
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
            None if began.elapsed() > CHECK_TIMEOUT => {
                let ended = child.kill().and_then(|()| child.wait().map(drop));
                let not_ended = ended.err().map(|error| format!(", and did not end: {error}")).unwrap_or_default();
                return Err(NoPmix::Timeout { program: program.to_owned(), not_ended });
            }
            None => std::thread::sleep(POLL_INTERVAL),
        }
    };
    let mut output = String::new();
    if let Some(out) = child.stdout.take() {
        out.take(4096).read_to_string(&mut output).map_err(failed)?;
    }
    let output = output.trim().to_owned();
    match status.success() && !output.is_empty() {
        true => Ok(output),
        false if output.is_empty() => Err(NoPmix::Ended { program: program.to_owned(), status }),
        false => Err(NoPmix::NoLibrary { why: output }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_answer_of_the_program_is_returned() {
        let folder = std::env::temp_dir().join(format!("lattice-agent-pmix-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let run = |text: &str| {
            let program = folder.join("program");
            std::fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
            ask(&program)
        };
        assert_eq!(run("echo 4.2.2").unwrap(), "4.2.2");
        assert_eq!(run("echo no library; exit 1").unwrap_err().to_string(), "no library");
        assert!(run("exit 3").is_err_and(|why| why.to_string().contains("exit status: 3")));
        assert!(ask(&folder.join("nothing")).is_err_and(|why| why.to_string().contains("install it beside lattice-shim")));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
