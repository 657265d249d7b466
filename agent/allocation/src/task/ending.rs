//! Ends an allocation: handles the end of its walltime, stops its processes, and removes what was
//! set up for it.

use super::AllocationTask;
use crate::final_usage::final_usage;
use crate::local_launch::LocalLaunch;
use crate::undo::{self, Left, UndoError};
use crate::walltime::{self, Awaited};
use lattice_machine::hooks::Moment;
use lattice_model::{EndReason, millis};
use lattice_node::allocation::{EntryEvent, NotPrepared, TaskAction, TaskEvent};
use lattice_node::walltime::{WalltimeAction, WalltimeEvent, WalltimeFacts};
use lattice_node::{Event, RunLeaseEvent};
use lattice_registry::RunState;
use lattice_runtime::failpoint::{self, Point};
use lattice_runtime::shim::{StopReason, ToShim, boottime_ms};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How long a shim may take to quit before it is killed with its scope.
const QUIT_WAIT: Duration = Duration::from_secs(5);
/// The pause between two tries to remove an allocation.
const UNDO_RETRY_INTERVAL: Duration = Duration::from_secs(1);

impl AllocationTask {
    pub(super) async fn handle_walltime(&mut self, event: WalltimeEvent) {
        let saves = self.share.spec.checkpoint.is_some();
        let facts = WalltimeFacts { saves, is_head: self.is_head(), is_synced: self.line.is_synced() };
        let mut actions = Vec::new();
        self.walltime.handle(event, facts, &mut actions);
        for action in actions {
            match action {
                WalltimeAction::NotifyLaunches => self.launches.values_mut().for_each(LocalLaunch::walltime_over),
                WalltimeAction::FindCheckpoint => self.find_awaited_checkpoint().await,
                WalltimeAction::AwaitHead => {
                    self.context.tasks.spawn(walltime::end_without_head(Arc::clone(&self.context), Arc::clone(&self.share)));
                }
                WalltimeAction::ReportExceeded => self.ended(EndReason::WalltimeExceeded).await,
            }
        }
    }

    async fn find_awaited_checkpoint(&self) {
        let (context, share) = (Arc::clone(&self.context), Arc::clone(&self.share));
        match walltime::awaited(&context, &share, &self.dir).await {
            Some(Awaited::UnderWay(view)) => {
                self.set_detail("its walltime is over; the checkpoint under way must be complete within the grace");
                self.context.tasks.spawn(walltime::end(context, share, view));
            }
            Some(Awaited::Whole(checkpoint)) => {
                self.set_detail("its walltime is over; it saved itself before");
                self.context.tasks.spawn(walltime::end_saved(context, share, checkpoint));
            }
            None => self.ended(EndReason::WalltimeExceeded).await,
        }
    }

    pub(super) async fn stop(&mut self) {
        self.end_checks();
        self.handle_lease(RunLeaseEvent::Stopping).await;
        self.give_up_preparing().await;
        self.handle_phase(TaskEvent::Stop { grace_ms: millis(self.context.setup.grace), kill_ms: millis(undo::KILL_WAIT) }).await;
    }

    pub(super) fn handle_entry(&mut self, event: EntryEvent) {
        if self.phase.handle_entry(event) {
            self.begin_entry();
        }
    }

    pub(super) async fn handle_phase(&mut self, event: TaskEvent) {
        let mut actions = VecDeque::from(self.decide(event));
        while let Some(action) = actions.pop_front() {
            match action {
                TaskAction::ReportPrepared { result } => {
                    self.set_detail(&result.as_ref().err().map_or_else(|| "prepared".to_owned(), NotPrepared::to_string));
                    self.send_event(|allocation, epoch| Event::Prepared { allocation, epoch, result }).await;
                }
                TaskAction::EndProcesses { grace_ms } => {
                    if !self.ask_shim_to_stop(grace_ms).await {
                        actions.push_back(TaskAction::KillScope);
                    }
                }
                TaskAction::KillScope => {
                    self.kill_scope().await;
                    actions.extend(self.decide(TaskEvent::ProcessesGone));
                }
                TaskAction::ReportStopped => self.send_event(|allocation, epoch| Event::Stopped { allocation, epoch }).await,
                TaskAction::Reconnect => self.reconnect().await,
            }
        }
    }

    fn decide(&mut self, event: TaskEvent) -> Vec<TaskAction> {
        let mut actions = Vec::new();
        if let Err(refused) = self.phase.handle(boottime_ms(), event, &mut actions) {
            tracing::debug!(allocation = %self.share.allocation, %refused, "not started");
        }
        actions
    }

    /// Returns `false` if the shim cannot be reached: then the scope must be killed.
    async fn ask_shim_to_stop(&mut self, grace_ms: u64) -> bool {
        self.set_detail("ending its processes");
        self.senders.run_state.send_replace(RunState::Ending);
        self.context.launches.drop_launches(self.share.allocation);
        if !self.line.is_there() {
            let _ = self.find_shim().await;
        }
        if self.line.is_there() {
            self.send(ToShim::Stop { why: StopReason::Requested, grace_ms }).await;
            failpoint::pass(Point::StopSent);
        }
        self.line.is_there()
    }

    /// Publishes why work still has processes, for people who wait for the node. The shim meanwhile
    /// kills the work repeatedly, until its deadline.
    pub(super) async fn publish_what_is_left(&mut self) {
        let (context, allocation) = (Arc::clone(&self.context), self.share.allocation);
        let left = tokio::task::spawn_blocking(move || undo::what_is_left(&context, allocation)).await.unwrap_or(Left::Unknown);
        let is_empty = matches!(left, Left::Nothing);
        if let Left::Processes(what) = left {
            if self.senders.detail.borrow().text != what {
                tracing::warn!(%allocation, %what, "work that was killed does not end");
            }
            self.set_detail(&what);
        }
        self.handle_phase(TaskEvent::Looked { is_empty }).await;
    }

    /// Kills all processes in the scope at once, because there is no shim or it does not end them.
    /// Without cgroups, only the processes below a living shim are known.
    async fn kill_scope(&mut self) {
        if self.line.is_there() {
            tracing::warn!(allocation = %self.share.allocation, "the shim does not end the work: it is killed with its scope");
        }
        self.context.adoption.found(self.share.allocation);
        let (context, share) = (Arc::clone(&self.context), Arc::clone(&self.share));
        let shim = if context.machine.slice.is_none() { self.living_shim().await } else { None };
        let killed = tokio::task::spawn_blocking(move || match shim {
            Some(shim) => undo::kill_tree(shim),
            None => undo::kill_scope(&context, share.allocation),
        });
        if let Ok(Err(why)) = killed.await {
            self.set_detail(&why.to_string());
            tracing::warn!(allocation = %self.share.allocation, %why, "the processes of an allocation could not be ended");
        }
    }

    pub(super) async fn undo(mut self) {
        self.context.adoption.found(self.share.allocation);
        self.end_checks();
        self.give_up_preparing().await;
        self.set_detail("removing what was set up for it");
        self.senders.run_state.send_replace(RunState::Ending);
        self.context.launches.drop_launches(self.share.allocation);
        if !self.line.is_there() {
            let _ = self.find_shim().await;
        }
        if self.line.is_there() {
            self.send(ToShim::Quit).await;
            failpoint::pass(Point::QuitSent);
            let gone = async { while self.line.next().await.is_some() {} };
            if tokio::time::timeout(QUIT_WAIT, gone).await.is_err() {
                tracing::warn!(allocation = %self.share.allocation, "the shim does not quit: it is killed with its scope");
            }
        }
        failpoint::pass(Point::ShimGone);
        let (context, allocation) = (Arc::clone(&self.context), self.share.allocation);
        self.retry_until_done(move || undo::kill_scope(&context, allocation)).await;
        self.forget_late_files();
        let used = {
            let context = Arc::clone(&self.context);
            tokio::task::spawn_blocking(move || final_usage(&context, allocation)).await.ok().flatten()
        };
        self.epilogue().await;
        failpoint::pass(Point::EpilogueOver);
        let (context, share, dir) = (Arc::clone(&self.context), Arc::clone(&self.share), self.dir.clone());
        self.retry_until_done(move || undo::undo(&context, &share, &dir)).await;
        failpoint::pass(Point::Undone);
        self.context.allocations.forget(&self.share);
        // A launch that arrived meanwhile has no task to run it.
        self.context.launches.drop_launches(self.share.allocation);
        self.send_event(|allocation, epoch| Event::Undone { allocation, epoch, usage: used }).await;
        self.context.machine.checks.look_again();
    }

    /// Repeats `act` until it succeeds.
    async fn retry_until_done(&self, act: impl Fn() -> Result<(), UndoError> + Send + Sync + 'static) {
        let act = Arc::new(act);
        loop {
            let act = Arc::clone(&act);
            match tokio::task::spawn_blocking(move || act()).await {
                Ok(Ok(())) => return,
                Ok(Err(why)) => {
                    // For example processes in an uninterruptible call: the share stays held until
                    // they are gone.
                    tracing::warn!(allocation = %self.share.allocation, %why, "an allocation cannot be removed yet");
                    self.set_detail(&why.to_string());
                }
                Err(panic) => tracing::error!(%panic, "the removal of an allocation panicked; it is tried again"),
            }
            tokio::time::sleep(UNDO_RETRY_INTERVAL).await;
        }
    }

    /// Runs the site's epilogue once no process is left. A failure is reported, and does not keep
    /// new work off the node.
    async fn epilogue(&self) {
        let (context, share) = (&self.context, &self.share);
        self.set_detail("running the site's epilogue");
        let data = context.machine.data.environment(share);
        match context
            .machine
            .hooks
            .run(Moment::Epilogue, (&context.setup.me, context.machine.slice.as_ref()), share, &self.dir, &data, &CancellationToken::new())
            .await
        {
            Ok(()) => {
                context.problems.clear("epilogue");
                self.set_detail("removing what was set up for it");
            }
            Err(failure) => {
                tracing::error!(allocation = %share.allocation, %failure, "an epilogue failed: the node is released without it");
                context.problems.set("epilogue", format!("after allocation {}, {failure}", share.allocation));
                self.set_detail(&failure.to_string());
            }
        }
    }
}
