//! Tasks that the agent ends last: they run as long as any other part may need their messages.

use std::time::Duration;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A group of tasks that end together. Clones share one group.
#[derive(Clone, Debug, Default)]
pub struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl Tasks {
    /// Runs `task` until it is over. If the group ends first, the task is dropped where it waits, as
    /// if the agent had been killed there.
    pub fn spawn<F: Future<Output = ()> + Send + 'static>(&self, task: F) {
        // One token for each task: with a shared token, every poll of every task would take the
        // same lock.
        let stop = self.stop.child_token();
        self.tracker.spawn(async move {
            tokio::select! {
                // `stop` first: a channel of `task` may have closed only because the group ends.
                biased;
                () = stop.cancelled() => {}
                () = task => {}
            }
        });
    }

    /// Runs `work` on a blocking thread. It cannot be ended, and must be short.
    pub fn spawn_blocking<F: FnOnce() + Send + 'static>(&self, work: F) {
        self.tracker.spawn_blocking(work);
    }

    /// Ends all tasks, and waits until none is left, at most for `within`.
    pub async fn end(&self, within: Duration) {
        self.stop.cancel();
        self.tracker.close();
        if tokio::time::timeout(within, self.tracker.wait()).await.is_err() {
            tracing::warn!(left = self.tracker.len(), "tasks did not end in time");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::{mpsc, oneshot};

    #[tokio::test]
    async fn a_task_does_not_notice_that_the_group_ended_another() {
        let tasks = Tasks::default();
        let (held, mut closes) = mpsc::channel::<()>(1);
        let (noticed, notice) = oneshot::channel();
        tasks.spawn(async move {
            std::future::pending::<()>().await;
            drop(held);
        });
        tasks.spawn(async move {
            let _closed = closes.recv().await;
            let _ = noticed.send(());
        });
        tokio::task::yield_now().await;
        tasks.end(Duration::from_secs(5)).await;
        assert!(notice.await.is_err(), "the task noticed the other task's end");
    }

    #[tokio::test]
    async fn a_thread_that_does_not_end_delays_the_end_only_until_the_timeout() {
        let tasks = Tasks::default();
        let (release, wait) = std::sync::mpsc::channel::<()>();
        tasks.spawn_blocking(move || {
            let _released = wait.recv();
        });
        tasks.end(Duration::from_millis(20)).await;
        drop(release);
    }
}
