//! Finding a shim again, and verifying that it is the right one.

use crate::handles::Handles;
use lattice_model::AllocationId;
use lattice_runtime::shim::{Living, NotOurs, ShimDir, connect_shim};
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;

/// Why there is no connection to a shim.
#[derive(Debug)]
pub(super) enum Missing {
    /// No process listens on its socket: it is dead.
    Gone,
    /// The process that listens is not the shim that was started.
    NotOurs(NotOurs),
    /// The shim's state is unknown: this agent lacks descriptors or memory to connect.
    Unreachable(io::Error),
}

/// Connects to the shim of `dir`, once. Blocking.
pub(super) fn find(context: &Handles, allocation: AllocationId, dir: &ShimDir) -> Result<UnixStream, Missing> {
    let stream = connect_shim(dir).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => Missing::Gone,
        _ => Missing::Unreachable(error),
    })?;
    let scope = context.machine.slice.as_ref().map(|slice| slice.scope(allocation));
    Living::check(dir, scope.as_ref().map(|s| s.path()), &stream).map_err(Missing::NotOurs)?;
    Ok(stream)
}
