//! How an allocation comes to its end: its walltime is over, it is stopped, and what was made for it is taken away.

use super::line::hear;
use super::{AllocationTask, Phase};
use crate::allocation::Standing;
use crate::allocation::final_usage::final_usage;
use crate::allocation::undo::{self, UndoError};
use crate::allocation::walltime::{self, Awaited};
use crate::hooks::Moment;
use lattice_model::EndReason;
use lattice_node::Event;
use lattice_runtime::failpoint::{self, Point};
use lattice_runtime::shim::{StopReason, ToShim};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What background processes get between SIGTERM and SIGKILL once the entry point is over.
const LEFTOVER_GRACE: Duration = Duration::from_secs(5);
/// How long a shim may take to quit before it is killed with its scope.
const QUIT_WAIT: Duration = Duration::from_secs(5);
/// Between two tries to take away what cannot be taken away yet.
const UNDO_AGAIN: Duration = Duration::from_secs(1);

/// Waits until then; for ever where it is never.
pub(super) async fn due(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

impl AllocationTask {
    pub(super) async fn walltime_is_over(&mut self) {
        if !std::mem::replace(&mut self.walltime_over, true) {
            for local in self.launches.values_mut() {
                local.walltime_over();
            }
        }
        self.tell_walltime().await;
    }

    /// Says once what the end of its walltime means: the head knows whether it is being saved, when the shim has told all.
    pub(super) async fn tell_walltime(&mut self) {
        let saves = self.share.spec.checkpoint.is_some();
        if !self.walltime_over || self.walltime_told || (saves && self.is_head() && !self.synced) {
            return;
        }
        self.walltime_told = true;
        let (context, share) = (Arc::clone(&self.context), Arc::clone(&self.share));
        if saves && !self.is_head() {
            tokio::spawn(walltime::end_without_head(context, share));
            return;
        }
        let awaited = if saves { walltime::awaited(&context, &share, &self.dir).await } else { None };
        match awaited {
            Some(Awaited::UnderWay(view)) => {
                self.say("its walltime is over; a checkpoint that is under way has the grace to be whole");
                tokio::spawn(walltime::end(context, share, view));
            }
            Some(Awaited::Whole(checkpoint)) => {
                self.say("its walltime is over; it saved itself before that");
                tokio::spawn(walltime::end_saved(context, share, checkpoint));
            }
            None => self.ended(EndReason::WalltimeExceeded).await,
        }
    }

    pub(super) async fn stop(&mut self) {
        self.probing = None;
        self.entry_waits = false;
        self.lease.waits = None;
        self.give_up_preparing().await;
        if self.phase == Phase::AwaitingReady {
            // It is still mounting, and has started nothing; a mount that hangs must not be waited for here.
            self.phase = Phase::Idle;
            return self.tell(|allocation, epoch| Event::Stopped { allocation, epoch }).await;
        }
        self.say("ending its processes");
        self.says.standing.send_replace(Standing::Ending);
        let grace = if self.entry_over { LEFTOVER_GRACE.min(self.context.grace) } else { self.context.grace };
        self.context.launches.drop_of(self.share.allocation);
        if self.link.is_none() {
            // Without a shim its scope is all there is to end.
            let _ = self.find_shim().await;
        }
        self.phase = Phase::AwaitingStopped;
        self.left_looked_at = Some(Instant::now() + grace + undo::KILL_WAIT);
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        if self.link.is_some() {
            self.send(ToShim::Stop { why: StopReason::Asked, grace_ms }).await;
            failpoint::pass(Point::StopSent);
        } else {
            self.kill_scope().await;
        }
    }

    /// Its shim kills it again and again by now, and waits for as long as it takes: whoever waits for the node is told what for.
    pub(super) async fn say_what_is_left(&mut self) {
        let (context, allocation) = (Arc::clone(&self.context), self.share.allocation);
        if let Ok(Some(what)) = tokio::task::spawn_blocking(move || undo::what_is_left(&context, allocation)).await {
            if self.says.detail.borrow().text != what {
                tracing::warn!(%allocation, %what, "work that was killed does not end");
            }
            self.say(&what);
        }
        self.left_looked_at = Some(Instant::now() + UNDO_AGAIN);
    }

    /// Without a shim only the scope is left: whatever is in it goes at once.
    pub(super) async fn kill_scope(&mut self) {
        self.context.adoption.found(self.share.allocation);
        self.phase = Phase::Idle;
        let (context, share) = (Arc::clone(&self.context), Arc::clone(&self.share));
        let killed = tokio::task::spawn_blocking(move || undo::kill_scope(&context, share.allocation)).await;
        if let Ok(Err(why)) = killed {
            self.say(&why.to_string());
            tracing::warn!(allocation = %self.share.allocation, %why, "processes of an allocation without a shim could not be ended");
        }
        self.tell(|allocation, epoch| Event::Stopped { allocation, epoch }).await;
    }

    pub(super) async fn undo(mut self) {
        self.context.adoption.found(self.share.allocation);
        self.probing = None;
        self.give_up_preparing().await;
        self.say("taking away what was made");
        self.says.standing.send_replace(Standing::Ending);
        self.context.launches.drop_of(self.share.allocation);
        if self.link.is_none() {
            let _ = self.find_shim().await;
        }
        if self.link.is_some() {
            self.send(ToShim::Quit).await;
            failpoint::pass(Point::QuitSent);
            let gone = async { while hear(&mut self.link).await.is_some() {} };
            if tokio::time::timeout(QUIT_WAIT, gone).await.is_err() {
                tracing::warn!(allocation = %self.share.allocation, "the shim does not quit: it is killed with its scope");
            }
        }
        failpoint::pass(Point::ShimGone);
        let (context, allocation) = (Arc::clone(&self.context), self.share.allocation);
        self.insist(move || undo::kill_scope(&context, allocation)).await;
        let used = {
            let context = Arc::clone(&self.context);
            tokio::task::spawn_blocking(move || final_usage(&context, allocation)).await.ok().flatten()
        };
        self.epilogue().await;
        failpoint::pass(Point::EpilogueOver);
        let (context, share, dir) = (Arc::clone(&self.context), Arc::clone(&self.share), self.dir.clone());
        self.insist(move || undo::undo(&context, &share, &dir)).await;
        failpoint::pass(Point::Undone);
        self.context.workers.forget(&self.share);
        // A launch that came in while this was being done has nobody to run it.
        self.context.launches.drop_of(self.share.allocation);
        self.tell(|allocation, epoch| Event::Undone { allocation, epoch, usage: used }).await;
        self.context.checks.again();
    }

    /// Does something until it is done.
    async fn insist(&self, act: impl Fn() -> Result<(), UndoError> + Send + Sync + 'static) {
        let act = Arc::new(act);
        loop {
            let act = Arc::clone(&act);
            match tokio::task::spawn_blocking(move || act()).await {
                Ok(Ok(())) => return,
                Ok(Err(why)) => {
                    // Processes in an uninterruptible call, for one: the share stays ours until they are gone.
                    tracing::warn!(allocation = %self.share.allocation, %why, "an allocation cannot be taken away yet");
                    self.say(&why.to_string());
                }
                Err(panic) => tracing::error!(%panic, "taking an allocation away broke"),
            }
            tokio::time::sleep(UNDO_AGAIN).await;
        }
    }

    /// The site's, once no process is left. A failed one is said, and keeps the node from nobody (decision 0010).
    async fn epilogue(&self) {
        let (context, share) = (&self.context, &self.share);
        self.say("the site's epilogue");
        let data = context.data.environment(share);
        match context
            .hooks
            .run(Moment::Epilogue, (&context.me, context.slice.as_ref()), share, &self.dir, &data, &CancellationToken::new())
            .await
        {
            Ok(()) => {
                context.troubles.over("epilogue");
                self.say("taking away what was made");
            }
            Err(failure) => {
                tracing::error!(allocation = %share.allocation, %failure, "an epilogue failed: the node is given away without it");
                context.troubles.say("epilogue", format!("after allocation {}, {failure}", share.allocation));
                self.say(&failure.to_string());
            }
        }
    }
}
