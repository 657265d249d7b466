//! How an allocation begins on its node: the end of its prologue, its start, and its entry point.

use super::AllocationTask;
use crate::node_environment;
use crate::prepare::{Line, PrepareError};
use crate::{open_ports, probing, walltime};
use futures::future::BoxFuture;
use lattice_agent_common::{clock, environment};
use lattice_model::{DesiredShare, EndReason, Entrypoint, LaunchSpec, millis};
use lattice_node::allocation::{EntryEvent, NotPrepared, TaskEvent};
use lattice_node::walltime::WalltimeEvent;
use lattice_node::{Event, LaunchEnd, RunLeaseEvent};
use lattice_registry::Command;
use lattice_runtime::failpoint::{self, Point};
use lattice_runtime::shim::{ToShim, boottime_ms};
use std::sync::Arc;

impl AllocationTask {
    pub(super) async fn prepared(&mut self, result: Result<Line, PrepareError>) {
        let failure = match result {
            Ok(line) => match self.take_link(line).await {
                Ok(()) => {
                    self.begin_log_upload(false);
                    self.handle_phase(TaskEvent::ShimGreeted).await;
                    failpoint::pass(Point::ShimGreeted);
                    None
                }
                Err(error) => Some(PrepareError::ConnectShim(error)),
            },
            Err(error) => Some(error),
        };
        if let Some(error) = failure {
            let why = error.to_string();
            self.context.adoption.lost(self.share.allocation);
            tracing::warn!(allocation = %self.share.allocation, %why, "an allocation could not be prepared");
            self.set_detail(&why);
            self.send_event(|allocation, epoch| Event::Prepared { allocation, epoch, result: Err(NotPrepared::Prologue(why)) }).await;
        }
    }

    /// From now on the allocation's output is sent to the log store.
    pub(super) fn begin_log_upload(&self, adopted: bool) {
        let own = self.own.clone();
        let report = move |files| -> BoxFuture<'static, bool> {
            let own = own.clone();
            Box::pin(async move {
                let Some(own) = own.upgrade() else { return false };
                // The task of the output ends after this one.
                let _ = own.send(Command::LogsFlushed { files }).await;
                true
            })
        };
        self.context.spools.begin(&self.share, &self.context.setup.me, &self.dir, Box::new(report), adopted);
    }

    /// Cancels a running prologue, and returns when it has stopped. If it started a shim, the task
    /// now has the connection to the shim.
    pub(super) async fn give_up_preparing(&mut self) {
        if let Some(preparing) = self.preparing.take()
            && let Some(line) = preparing.give_up().await
            && let Err(error) = self.take_link(line).await
        {
            tracing::warn!(allocation = %self.share.allocation, %error, "the connection to a shim broke");
        }
    }

    pub(super) async fn start(&mut self, mut share: Box<DesiredShare>) {
        if let Err(refused) = self.phase.handle(boottime_ms(), TaskEvent::Start, &mut Vec::new()) {
            tracing::debug!(allocation = %self.share.allocation, %refused, "not started");
            return;
        }
        self.publish_run_state();
        if !self.connect().await {
            return;
        }
        self.take_walltime(&share);
        // Work of one node begins before the quorum has recorded that.
        let started_at = *share.started_at.get_or_insert_with(clock::now);
        Arc::make_mut(&mut self.share).started_at = Some(started_at);
        self.handle_lease(RunLeaseEvent::Start(share)).await;
    }

    /// The run lease no longer holds the work back: begin it.
    pub(super) async fn begin_work(&mut self, share: &DesiredShare) {
        if self.is_head() {
            walltime::begins(&self.share, &self.dir).await;
        }
        self.send_walltime().await;
        failpoint::pass(Point::GoSent);
        self.set_detail("running");
        if self.probing.is_none() {
            self.probing = probing::begin(&self.context, &self.share, self.senders.detail.clone());
        }
        if self.checking_ports.is_none() {
            self.checking_ports = open_ports::begin(&self.context, &self.share, self.senders.detail.clone());
        }
        if !self.is_head() {
            return;
        }
        if self.warning.is_none() {
            self.warning = walltime::warn(&self.context, &self.share, &self.dir);
        }
        if share.lane.is_some() {
            return self.open_lane(share).await;
        }
        match &share.spec.entrypoint {
            Entrypoint::Script { .. } => self.send_script(share).await,
            // An earlier run of the agent may have begun the launch; then the shim has it in its
            // original form.
            Entrypoint::Command { .. } => self.handle_entry(EntryEvent::BeginCommand { is_synced: self.line.is_synced() }),
        }
    }

    /// On the head: asks the shim to start the script, if the work has one. The shim starts it only
    /// once.
    pub(super) async fn send_script(&mut self, share: &DesiredShare) {
        if let Entrypoint::Script { text, args } = &share.spec.entrypoint {
            let env = node_environment::of_script(share, &self.context);
            let working_dir = share.spec.working_dir.clone();
            self.send(ToShim::StartScript { text: text.to_string(), args: args.clone(), env, working_dir }).await;
            failpoint::pass(Point::ScriptAsked);
        }
    }

    fn take_walltime(&mut self, share: &DesiredShare) {
        if self.share.spec.walltime != share.spec.walltime {
            Arc::make_mut(&mut self.share).spec.walltime = share.spec.walltime;
        }
    }

    /// Whether the shim received the message to begin.
    pub(super) fn has_begun(&self) -> bool {
        self.phase.is_started() && self.lease.is_open()
    }

    /// Sends the walltime. The first of these messages begins the work; each sets the walltime
    /// anew.
    pub(super) async fn send_walltime(&mut self) {
        let walltime = self.share.spec.walltime;
        let walltime_ms = walltime.map_or(u64::MAX, millis);
        self.send(ToShim::Go { walltime_ms }).await;
    }

    /// The work gets another walltime. A walltime that is over stays over: the shim ends the
    /// work.
    pub(super) async fn change_walltime(&mut self, share: &DesiredShare) {
        self.take_walltime(share);
        self.handle_lease(RunLeaseEvent::WalltimeChanged(share.spec.walltime)).await;
        if !self.has_begun() {
            return;
        }
        self.send_walltime().await;
        if self.is_head() {
            self.warning = walltime::warn(&self.context, &self.share, &self.dir);
        }
    }

    pub(super) fn begin_entry(&self) {
        let Entrypoint::Command { argv } = &self.share.spec.entrypoint else { return };
        let usual = environment::entry_launch(&self.share, argv.clone(), &self.context.setup.slurm);
        let reported = self.launches.get(&usual.id).map(|launch| launch.spec.clone());
        self.begin_entry_launch(reported.unwrap_or(usual));
    }

    /// Begins the launch of an inline command on this head, unless that is done, and waits for its
    /// end.
    fn begin_entry_launch(&self, launch: LaunchSpec) {
        let Some(own) = self.own.upgrade() else { return };
        let mut end = self.context.launches.begin(&self.share, launch);
        self.context.tasks.spawn(async move {
            let end = end.wait_for(Option::is_some).await.ok().and_then(|e| e.clone());
            if let Some(end) = end {
                let _ = own.send(Command::EntryEnded { end }).await;
            }
        });
    }

    pub(super) async fn entry_launch_over(&mut self, end: LaunchEnd) {
        if self.lease.is_lapsed() {
            return;
        }
        self.handle_entry(EntryEvent::Over);
        failpoint::pass(Point::LaunchOver);
        let reason = match end {
            LaunchEnd { walltime_over: true, .. } => return self.handle_walltime(WalltimeEvent::Over).await,
            LaunchEnd { out_of_memory: Some((node, kill)), .. } => EndReason::OutOfMemory { node, kill },
            LaunchEnd { code, aborted: Some(why), .. } => EndReason::LaunchAborted { code, why },
            LaunchEnd { code, aborted: None, .. } => EndReason::Exited { code },
        };
        self.ended(reason).await;
    }
}
