//! The limit of open files: raised for the agent, original for work.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::sync::OnceLock;

static GIVEN: OnceLock<(u64, u64)> = OnceLock::new();

/// Raises the limit: each connection, shim and launch has descriptors, and the usual soft limit of
/// 1024 is soon reached. Call it once, at the start.
pub fn raise_open_files() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        GIVEN.get_or_init(|| (soft, hard));
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    });
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files cannot be raised to the hard one");
    }
}

/// The original limit (soft, hard) of this process, if it was raised: the limit for work.
pub fn given_open_files() -> Option<(u64, u64)> {
    GIVEN.get().copied()
}
