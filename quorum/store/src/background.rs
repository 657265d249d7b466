//! Long background work: each piece runs on a thread of its own with low priority.

use std::io;
use tokio::sync::oneshot;

/// The nice value of such a thread; see nice(2).
const NICE: i32 = 10;

/// Runs `work` on a new thread. The kernel shows at most 15 bytes of its name.
///
/// # Errors
/// The thread cannot be started, or ended before the work was done.
pub async fn run<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let (done, ended) = oneshot::channel();
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        lower_priority();
        // If the caller stops, nobody needs the result.
        let _gone = done.send(work());
    })?;
    ended.await.map_err(|_| io::Error::other("the thread ended before it was done"))
}

fn lower_priority() {
    use nix::libc::{PRIO_PROCESS, setpriority};
    // SAFETY: it takes no pointers. On Linux, 0 means the calling thread.
    let done = unsafe { setpriority(PRIO_PROCESS, 0, NICE) };
    if done != 0 {
        tracing::debug!(error = %io::Error::last_os_error(), "a background thread keeps its priority");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_its_own_thread_has_low_priority() {
        let nice = || {
            // SAFETY: it takes no pointers.
            unsafe { nix::libc::getpriority(nix::libc::PRIO_PROCESS, 0) }
        };
        let before = nice();
        assert_eq!(run("test", nice).await.unwrap(), NICE);
        assert_eq!(nice(), before);
        let failed: io::Result<()> = run("test", || panic!("as a test")).await;
        assert!(failed.is_err());
    }
}
