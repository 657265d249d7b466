//! The connection to the shim: finding it, sending on it, and what happens when it breaks.

use super::AllocationTask;
use super::shim_line::ShimLine;
use crate::find::{self, Missing};
use crate::link::Link;
use crate::local_launch::LocalLaunch;
use crate::prepare::{Line, held};
use crate::undo;
use lattice_agent_common::environment;
use lattice_model::{Backoff, EndReason, Entrypoint};
use lattice_node::RunLeaseEvent;
use lattice_node::allocation::TaskEvent;
use lattice_runtime::exits::{self, ExitRecord, Recorded};
use lattice_runtime::failpoint::{self, Point};
use lattice_runtime::shim::{PROTOCOL_MAJOR, REFUSED_CODE, StopReason, ToShim};
use std::sync::Arc;
use std::time::Duration;

/// The pause before another attempt to connect to a shim: after the connection broke, and while
/// this agent lacks descriptors or memory to connect.
const RECONNECT_PAUSE: Duration = Duration::from_millis(200);
/// The shortest and longest pause between two tries to read the ends that a dead shim recorded, and
/// the number of tries.
const EXITS_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
const EXITS_ATTEMPTS: u32 = 8;

impl AllocationTask {
    pub(super) async fn take_link(&mut self, Line { stream, fresh, image }: Line) -> std::io::Result<()> {
        let mut link = Link::new(stream)?;
        link.send(&ToShim::Hello { protocol: PROTOCOL_MAJOR }).await?;
        self.line = ShimLine::Replaying { link, is_fresh: fresh };
        self.renew().await;
        self.image = image;
        self.publish_run_state();
        Ok(())
    }

    /// Tries once to find the shim and to connect to it.
    pub(super) async fn find_shim(&mut self) -> Result<(), Missing> {
        let (context, share, dir) = (Arc::clone(&self.context), Arc::clone(&self.share), self.dir.clone());
        let found = tokio::task::spawn_blocking(move || {
            find::find(&context, share.allocation, &dir).map(|stream| Line { stream, fresh: false, image: held(&context, &share) })
        });
        let line = found.await.map_err(|e| Missing::Unreachable(std::io::Error::other(e)))??;
        failpoint::pass(Point::ShimFound);
        self.take_link(line).await.map_err(Missing::Unreachable)
    }

    /// The process of the shim, if it lives. The present connection does not show it if this agent
    /// started the shim: the agent made that connection before the shim existed.
    pub(super) async fn living_shim(&self) -> Option<i32> {
        let (context, allocation, dir) = (Arc::clone(&self.context), self.share.allocation, self.dir.clone());
        let found = tokio::task::spawn_blocking(move || find::find(&context, allocation, &dir)).await;
        let pid = Link::new(found.ok()?.ok()?).ok()?.pid()?;
        // Until the shim listens on its socket, this agent does.
        (pid.cast_unsigned() != std::process::id()).then_some(pid)
    }

    /// Connects to the shim unless connected. `false`: the shim is gone, and [`Self::shim_lost`]
    /// has handled that.
    pub(super) async fn connect(&mut self) -> bool {
        while !self.line.is_there() {
            match self.find_shim().await {
                // If the connection broke at once, the task learns that next.
                Ok(()) => return true,
                Err(Missing::Gone) => {
                    self.shim_lost("its shim is gone").await;
                    return false;
                }
                Err(Missing::NotOurs(why)) => {
                    let why = format!("its shim is gone, and what listens in its place is not it: {why}");
                    tracing::error!(allocation = %self.share.allocation, socket = %self.dir.socket().display(), %why, "work was not adopted");
                    self.shim_lost(&why).await;
                    return false;
                }
                Err(Missing::Unreachable(error)) => {
                    tracing::warn!(allocation = %self.share.allocation, %error, "a shim cannot be reached now; it is tried again");
                    tokio::time::sleep(RECONNECT_PAUSE).await;
                }
            }
        }
        true
    }

    /// Sends a message if the shim is connected. If that fails, the connection is closed, and the
    /// task learns of its end as of any other.
    pub(super) async fn send(&mut self, message: ToShim) {
        if let Some(link) = self.line.link()
            && let Err(error) = link.send(&message).await
        {
            tracing::warn!(allocation = %self.share.allocation, %error, "the connection to a shim broke");
            self.line = ShimLine::Broken;
            self.signals.lost();
            self.publish_run_state();
        }
    }

    /// The connection ended: the shim is dead, sent invalid data, or accepted no message.
    pub(super) async fn link_ended(&mut self) {
        self.line = ShimLine::Absent;
        self.signals.lost();
        self.publish_run_state();
        self.handle_phase(TaskEvent::LineBroken).await;
    }

    /// Waits, then connects again. Without the pause, a shim that sends invalid data would send it
    /// at once again.
    pub(super) async fn reconnect(&mut self) {
        tokio::time::sleep(RECONNECT_PAUSE).await;
        self.connect().await;
    }

    /// The shim is dead. The ends that it wrote to its file count; everything else is lost, and
    /// none of its processes may live on.
    pub(super) async fn shim_lost(&mut self, why: &str) {
        self.context.adoption.lost(self.share.allocation);
        self.terminals.lost(why);
        self.forget_late_files();
        self.lane.is_open = false;
        let Recorded { tasks, others } = self.recorded_ends().await;
        let entry = match &self.share.spec.entrypoint {
            Entrypoint::Command { argv } if self.phase.is_started() && self.share.lane.is_none() => {
                Some(environment::entry_launch(&self.share, argv.clone(), &self.context.setup.slurm))
            }
            Entrypoint::Command { .. } | Entrypoint::Script { .. } => None,
        };
        if let Some(entry) = &entry {
            self.launches.entry(entry.id).or_insert_with(|| LocalLaunch::new(entry.clone()));
        }
        let mut known = None;
        for record in others {
            match record {
                ExitRecord::OutOfMemory { launch: None, kill } => self.script_kill = Some(kill),
                ExitRecord::OutOfMemory { launch: Some(launch), kill } => self.with_launch(launch, |l| l.out_of_memory(kill)),
                ExitRecord::Script { outcome } if self.is_head() => known = Some(self.script_reason(outcome)),
                ExitRecord::Stopped { why: StopReason::Walltime } => known = Some(EndReason::WalltimeExceeded),
                ExitRecord::RunLeaseLapsed => self.handle_lease(RunLeaseEvent::LapseRecorded).await,
                ExitRecord::Rank { launch, rank, outcome } => self.with_launch(launch, |l| l.rank_ended(rank, outcome)),
                ExitRecord::Aborted { launch, code: REFUSED_CODE, why } => self.refused(launch, &why),
                ExitRecord::Aborted { launch, code, why } => self.with_launch(launch, |l| l.aborted(code, why)),
                ExitRecord::Task { .. } | ExitRecord::Script { .. } | ExitRecord::Stopped { .. } => {}
            }
        }
        let me = self.context.setup.me.clone();
        if self.lease.is_lapsed() {
            // Any later end is a consequence of the lapse.
            known = Some(EndReason::RunLeaseLapsed { node: me.clone() });
        }
        for local in self.launches.values_mut().filter(|l| !self.lease.is_lapsed() && !l.all_ended(&me)) {
            local.lost(why);
        }
        // If all ranks of an inline command here are known to have ended, it ends as its head
        // reports, not as lost.
        let reported_by_head = entry.and_then(|e| self.launches.get(&e.id)).is_some_and(|l| l.all_ended(&me));
        if !reported_by_head || known.is_some() {
            let lost = EndReason::NodeLost { node: me, why: why.to_owned() };
            let reason = known.unwrap_or(lost);
            if self.is_head_of_lane() && !tasks.is_empty() {
                // The quorum may not answer for a while.
                self.kill_what_a_shim_left().await;
                self.lose_lane(tasks, reason).await;
            } else {
                self.ended(reason).await;
            }
        } else if self.is_head() {
            self.begin_entry();
        }
        self.publish_run_state();
    }

    /// The ends that the dead shim wrote to its file. A file that cannot be read is read again for
    /// a while: without it, work that has ended is reported as lost. The processes that the shim
    /// left are killed first: none may live on meanwhile, and nothing records their ends.
    async fn recorded_ends(&self) -> Recorded {
        let mut pauses = Backoff::new(EXITS_PAUSE.0, EXITS_PAUSE.1);
        for attempt in 1.. {
            let dir = self.dir.clone();
            let why = match tokio::task::spawn_blocking(move || exits::read_recorded(&dir)).await {
                Ok(Ok(recorded)) => return recorded,
                Ok(Err(error)) => error.to_string(),
                Err(error) => error.to_string(),
            };
            tracing::warn!(file = %self.dir.exits().display(), attempt, %why, "cannot read the ends of tasks that a dead shim recorded");
            if attempt == EXITS_ATTEMPTS {
                break;
            }
            if attempt == 1 {
                self.kill_what_a_shim_left().await;
            }
            tokio::time::sleep(pauses.next_pause()).await;
        }
        Recorded::default()
    }

    async fn kill_what_a_shim_left(&self) {
        let (context, allocation) = (Arc::clone(&self.context), self.share.allocation);
        if let Ok(Err(why)) = tokio::task::spawn_blocking(move || undo::kill_scope_at_once(&context, allocation)).await {
            tracing::warn!(%allocation, %why, "processes of a dead shim are not killed yet");
        }
    }
}
