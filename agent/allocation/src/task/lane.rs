//! A lane of a task group, on its head: passes the ends of its tasks to the quorum, and the
//! quorum's leases to the shim.
//!
//! ```text
//!   shim ──TasksEnded──▶ Lane ──one call at a time, in a task of its own──▶ quorum
//!        ◀─LeaseTasks───      ◀──LaneAdvanced──────────────────────────────
//! ```
//!
//! Each report of the shim has all ends that the quorum has not confirmed, so only the newest one
//! waits while a call is under way.

use super::AllocationTask;
use super::lane_state::{Claim, LostLane};
use crate::handles::Shared;
use crate::lane_quorum::NotAdvanced;
use crate::node_environment;
use lattice_model::{
    AllocationId, Backoff, DesiredShare, EndReason, EndedTasks, Epoch, LaneReport, LaneWork, TaskOutcome, TaskSet, millis,
};
use lattice_registry::{Command, LaneAnswer};
use lattice_runtime::shim::{LaneSpec, TASK_LAUNCH_MAX, ToShim, task_launch};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// The shortest and longest pause between two tries to reach the quorum.
const RETRY_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// The pause before a lane that holds nothing asks again.
const IDLE_PAUSE: Duration = Duration::from_secs(1);
/// How long the removal of a lane waits for the quorum to confirm ends of tasks.
const CONFIRM_WAIT: Duration = Duration::from_secs(5);
/// The status text of a lane that pauses, before its reason.
const PAUSED: &str = "running; the lane begins no task: ";
/// The exit code of a lane that the quorum refuses.
const REFUSED_LANE_CODE: i32 = 1;

impl AllocationTask {
    /// Whether the allocation is a lane whose tasks run on this node.
    pub(super) fn is_head_of_lane(&self) -> bool {
        self.share.lane.is_some() && self.is_head()
    }

    /// Whether this launch number belongs to the output of tasks that may still write.
    pub(super) fn is_of_tasks(&self, launch_number: u32) -> bool {
        self.is_head_of_lane() && self.lane.is_open && launch_number <= TASK_LAUNCH_MAX
    }

    /// On the head: asks the shim to open the lane. The shim opens it once, however often it is asked.
    pub(super) async fn open_lane(&mut self, share: &DesiredShare) {
        let Some(tasks) = &share.spec.tasks else {
            tracing::error!(allocation = %share.allocation, "a lane whose group has no tasks: nothing is run");
            return;
        };
        let lane = LaneSpec {
            indices: tasks.indices.clone(),
            program: share.spec.entrypoint.clone(),
            env: node_environment::of_script(share, &self.context),
            working_dir: share.spec.working_dir.clone(),
            walltime_ms: share.spec.walltime_of_tasks().map(millis),
            slurm_number: self.context.setup.slurm.is_on(share).then_some(share.number),
        };
        self.send(ToShim::OpenLane { lane: Box::new(lane) }).await;
    }

    /// The shim has opened the lane, or it was open already. A lane that cannot be opened gets no tasks.
    pub(super) fn lane_opened(&mut self) {
        self.began();
        self.lane.is_open = true;
        // A pause may have ended while the line to the shim was broken. The shim reports a lasting pause after this.
        self.show_lane_pause(None);
        self.ask_for_tasks();
    }

    /// Shows why the lane begins no task; `None`: it begins tasks.
    pub(super) fn show_lane_pause(&self, why: Option<&str>) {
        let is_shown = self.senders.detail.borrow().text.starts_with(PAUSED);
        match why {
            // While work is being ended, the status shows that instead.
            Some(why) if !self.phase.is_stopping() => self.set_detail(&format!("{PAUSED}{why}")),
            None if is_shown => self.set_detail("running"),
            Some(_) | None => {}
        }
    }

    /// Tasks that the lane holds may have been cancelled.
    pub(super) fn change_lane(&mut self, share: &DesiredShare) {
        if self.share.lane != share.lane {
            Arc::make_mut(&mut self.share).lane = share.lane;
        }
        if self.lane.is_open {
            self.ask_for_tasks();
        }
    }

    /// The shim reports ends of tasks.
    pub(super) fn tasks_ended(&mut self, report: LaneReport) {
        self.lane.mean_us = report.mean_us;
        self.lane.next = Some(report);
        self.ask(Duration::ZERO);
    }

    /// Asks what the lane may run. If a report waits, the same call sends it.
    fn ask_for_tasks(&mut self) {
        let mean_us = self.lane.mean_us;
        self.lane.next.get_or_insert_with(|| LaneReport { mean_us, ..LaneReport::default() });
        self.ask(Duration::ZERO);
    }

    /// Sends the waiting report. If a call is under way, its answer causes the sending.
    fn ask(&mut self, after: Duration) {
        if !self.is_head_of_lane() || self.lane.claim == Claim::Refused || self.lane.is_asking {
            return;
        }
        let Some(report) = self.lane.next.take() else { return };
        self.lane.is_asking = true;
        self.lane.is_reporting = !report.ended.is_empty();
        let claim = (self.share.allocation, self.share.epoch);
        self.context.tasks.spawn(advance(Arc::clone(&self.context), self.own.clone(), claim, report, after));
    }

    /// The quorum has answered.
    pub(super) async fn lane_advanced(&mut self, answer: LaneAnswer) {
        (self.lane.is_asking, self.lane.is_reporting) = (false, false);
        let work = match answer {
            LaneAnswer::Work(work) => work,
            LaneAnswer::ClaimOver { report } => return self.claim_over(report).await,
            LaneAnswer::Refused => {
                self.lane.claim = Claim::Refused;
                let reason = self.lane.lost.take().map_or(EndReason::Exited { code: REFUSED_LANE_CODE }, |lost| lost.reason);
                return self.ended(reason).await;
            }
        };
        self.lane.claim = Claim::Live;
        if self.lane.lost.is_some() {
            return self.report_lost_lane(&work).await;
        }
        let is_idle = self.lane.is_open && work.leased.is_empty() && !work.is_last;
        self.send(ToShim::LeaseTasks { work }).await;
        if self.lane.next.is_some() {
            self.ask(Duration::ZERO);
        } else if is_idle {
            self.lane.next = Some(LaneReport { mean_us: self.lane.mean_us, ..LaneReport::default() });
            self.ask(IDLE_PAUSE);
        }
    }

    /// The quorum does not have the claim. Its list of shares says whether the lane ends here; until
    /// then the lane asks again.
    async fn claim_over(&mut self, report: LaneReport) {
        if self.lane.claim != Claim::Over {
            tracing::info!(allocation = %self.share.allocation, "the quorum does not have the claim: the lane gets no tasks now");
        }
        self.lane.claim = Claim::Over;
        if let Some(lost) = self.lane.lost.take() {
            return self.ended(lost.reason).await;
        }
        let next = self.lane.next.get_or_insert(report);
        if self.lane.is_open || !next.ended.is_empty() {
            self.ask(RETRY_PAUSES.1);
        }
    }

    /// Waits until the quorum has confirmed the known ends of tasks, at most for [`CONFIRM_WAIT`]. The
    /// lane is then removed here, with the file that has these ends.
    pub(super) async fn confirm_ends(&mut self, queue: &mut mpsc::Receiver<Command>) {
        let confirmed = async {
            while self.lane.has_unconfirmed_ends() {
                let Some(command) = queue.recv().await else { return };
                // The allocation is over: no other command matters any more.
                if let Command::LaneAdvanced { answer } = command {
                    self.lane_advanced(answer).await;
                }
            }
        };
        if tokio::time::timeout(CONFIRM_WAIT, confirmed).await.is_err() {
            tracing::warn!(allocation = %self.share.allocation, "the quorum did not confirm the ends of tasks: they run again");
        }
    }

    /// The lane has ended in its shim: readers may reach the end of its tasks' output.
    pub(super) fn lane_ended(&mut self) {
        if !self.is_head_of_lane() {
            return;
        }
        self.lane.is_open = false;
        let count = self.share.spec.tasks.as_ref().map_or(0, |tasks| tasks.indices.count());
        if let Some(last) = count.checked_sub(1) {
            (task_launch(0)..=task_launch(last)).for_each(|number| self.mark_over(number));
        }
    }

    /// The shim of the lane is lost. The ends that it recorded are reported before the lane's end,
    /// because after that their tasks may run elsewhere.
    pub(super) async fn lose_lane(&mut self, recorded: BTreeMap<TaskOutcome, TaskSet>, reason: EndReason) {
        match self.lane.claim {
            Claim::Live => {}
            Claim::Over | Claim::Refused => return self.ended(reason).await,
        }
        self.lane.lost = Some(LostLane { recorded, is_reported: false, reason });
        // The answer shows which of the recorded tasks are still leased.
        self.lane.next = None;
        self.ask_for_tasks();
    }

    async fn report_lost_lane(&mut self, work: &LaneWork) {
        let Some(mut lost) = self.lane.lost.take() else { return };
        let leased = lost.recorded.iter().map(|(outcome, tasks)| EndedTasks { outcome: *outcome, tasks: tasks.and(&work.leased) });
        let ended: Vec<EndedTasks> = leased.filter(|ended| !ended.tasks.is_empty()).collect();
        if lost.is_reported || ended.is_empty() {
            return self.ended(lost.reason).await;
        }
        lost.is_reported = true;
        self.lane.lost = Some(lost);
        self.lane.next = Some(LaneReport { ended, mean_us: self.lane.mean_us, returned: None });
        self.ask(Duration::ZERO);
    }
}

/// Calls the quorum until it answers, and passes the answer on. Ends with the lane's task.
async fn advance(
    context: Shared,
    own: mpsc::WeakSender<Command>,
    (lane, epoch): (AllocationId, Epoch),
    report: LaneReport,
    after: Duration,
) {
    if !after.is_zero() {
        tokio::time::sleep(after).await;
        if own.upgrade().is_none_or(|own| own.is_closed()) {
            return;
        }
    }
    let mut pauses = Backoff::new(RETRY_PAUSES.0, RETRY_PAUSES.1);
    loop {
        let answer = context.lanes.advance(lane, epoch, report.clone()).await;
        let Some(own) = own.upgrade().filter(|own| !own.is_closed()) else { return };
        let answer = match answer {
            Ok(work) => LaneAnswer::Work(work),
            Err(NotAdvanced::ClaimOver(why)) => {
                tracing::debug!(allocation = %lane, %why, "the lane gets no tasks now");
                LaneAnswer::ClaimOver { report }
            }
            Err(NotAdvanced::Refused(why)) => {
                tracing::warn!(allocation = %lane, %why, "the quorum refuses the lane, which ends therefore");
                LaneAnswer::Refused
            }
            Err(NotAdvanced::Unavailable(why)) => {
                tracing::debug!(allocation = %lane, %why, "the lane's report was not answered; it is sent again");
                drop(own);
                tokio::time::sleep(pauses.next_pause()).await;
                continue;
            }
        };
        let _ = own.send(Command::LaneAdvanced { answer }).await;
        return;
    }
}
