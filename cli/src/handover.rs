//! `dev` and `doctor` are the agent's: this process becomes `lattice-agent`.

use crate::failure::Failure;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::Command;

const AGENT: &str = "lattice-agent";

/// Becomes `lattice-agent VERB ARGS…`: the one beside this binary, else the one in `PATH`. Returns only when there is none.
pub fn exec(verb: &str, args: &[OsString]) -> Failure {
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(AGENT)).filter(|agent| agent.is_file());
    let agent = beside.as_deref().map_or(OsStr::new(AGENT), |path| path.as_os_str());
    let error = Command::new(agent).arg(verb).args(args).exec();
    Failure::other(format!("cannot run {}: {error}", agent.to_string_lossy()))
        .hint("lattice-agent is needed for this: install it beside lattice or in PATH")
}
