//! Commands of other programs: `dev` and `doctor` belong to the agent; the commands for the certificate authority's key
//! and for backups belong to a member. This process becomes that program.

use lattice_cli_session::failure::Failure;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The programs with commands that `lattice` offers.
pub const AGENT: &str = "lattice-agent";
pub const QUORUM: &str = "lattice-quorum";

/// Becomes `PROGRAM VERB ARGS…`: the program beside this binary, else the one in `PATH`. Returns only if it cannot be
/// executed.
pub fn exec(program: &str, verb: &str, args: &[OsString]) -> Failure {
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(program)).filter(|path| path.is_file());
    let found = beside.as_deref().map_or(OsStr::new(program), |path| path.as_os_str());
    let error = Command::new(found).arg(verb).args(args).exec();
    Failure::other(format!("cannot run {}: {error}", found.to_string_lossy()))
        .hint(format!("{program} is needed for this: install it beside lattice or in PATH"))
}
