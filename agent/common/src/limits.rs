//! The limit of open files: high for the agent, as it was given for work.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::sync::OnceLock;

static GIVEN: OnceLock<(u64, u64)> = OnceLock::new();

/// Each connection, shim and launch has descriptors: the usual soft limit of 1024 is soon reached. Call once, at the start.
pub fn raise_open_files() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        GIVEN.get_or_init(|| (soft, hard));
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    });
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files cannot be raised to the hard one");
    }
}

/// The limit (soft, hard) that this process was given, where it was raised: what work is to have.
pub fn given_open_files() -> Option<(u64, u64)> {
    GIVEN.get().copied()
}
