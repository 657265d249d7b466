//! Waits in tokio for descriptors for which tokio has no type.

use std::io;
use std::os::fd::OwnedFd;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers `fd`, so that the caller can wait until it is readable. Call it within a tokio runtime.
pub fn readable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd is an open descriptor, and remains so until the AsyncFd that owns it is
    // dropped.
    let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
    Ok(registered?)
}
