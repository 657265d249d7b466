//! Ending work: one launch, all of it, and the shim itself; and the deadlines.

use super::{Ending, Shim, Walltime, now_ms, socket_token};
use crate::launch::{Down, Launch};
use crate::shim_log::log_line;
use crate::user_files::UserFiles;
use anyhow::Context;
use lattice_runtime::exits::ExitRecord;
use lattice_runtime::program_pages;
use lattice_runtime::shim::{FromShim, StopReason};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{Expiration, TimerSetTimeFlags};
use std::time::Duration;

/// Time from SIGTERM to SIGKILL for an aborted launch, in milliseconds.
const ABORT_GRACE_MS: u64 = 2000;
/// How long the shim waits for the head's reaction to an abort here before it ends the ranks, in milliseconds: the
/// head's agent may be down.
const HEAD_AWAITED_MS: u64 = 500;
/// Interval between tries to kill survivors, in milliseconds.
pub(super) const KILL_RETRY_MS: u64 = 100;
/// How long Quit tries to end what is left, in milliseconds: a process in an uninterruptible call cannot be ended.
const QUIT_MS_MAX: u64 = 10_000;
/// How long the report that all work has ended waits for the user's files: less than the agent waits for the report.
const FILES_WAIT_MAX: Duration = Duration::from_secs(25);
/// How long the loop may wait for the user's files even where no grace is left: a file system is often that slow.
const FILES_WAIT_LEAST: Duration = Duration::from_secs(2);
/// The range of the kernel's clock, with a margin.
const TIMER_MS_MAX: u64 = i64::MAX as u64 / 1_000_000 / 2;

impl Shim {
    /// Sends SIGTERM to one launch now and SIGKILL soon. While all work is being ended, SIGKILL comes when all work is
    /// killed: a `lattice launch` in a script that is being ended aborts its ranks, and they must keep their grace.
    pub(super) fn bring_down(&mut self, number: u32) {
        let soon = now_ms() + ABORT_GRACE_MS;
        let kill_at = match self.ending {
            Ending::Terminating { kill_at, .. } => kill_at.max(soon),
            Ending::No | Ending::Killing { .. } | Ending::Quitting { .. } | Ending::Stopped { .. } => soon,
        };
        let Some(launch) = self.launches.get_mut(&number) else { return };
        if matches!(launch.down, Down::No | Down::Reporting { .. }) {
            launch.down = Down::Terminating { kill_at };
            let pids = launch.pids();
            self.work.signal_launch(number, &pids, libc::SIGTERM);
            launch.handle_end_signal();
            // A stopped process reacts to no other signal.
            self.work.signal_launch(number, &pids, libc::SIGCONT);
        }
    }

    /// An abort began here: reports it to the agent. A launch with parts on other nodes is ended when its head knows.
    pub(super) fn abort(&mut self, number: u32) {
        match self.launches.get_mut(&number) {
            Some(launch) if launch.spec.nodes.len() > 1 => launch.down = Down::Reporting { until: now_ms() + HEAD_AWAITED_MS },
            Some(_) | None => self.bring_down(number),
        }
    }

    pub(super) fn stop(&mut self, why: StopReason, grace_ms: u64) {
        let now = now_ms();
        let kill_at = now.saturating_add(grace_ms);
        match &mut self.ending {
            Ending::No => {
                self.settle_task(now);
                self.ending = Ending::Terminating { why, kill_at };
                self.agent.send(&FromShim::Stopping { why });
                self.give_up_waiting();
                self.work.signal_all(libc::SIGTERM);
                self.work.signal_all(libc::SIGCONT);
                self.attached.hang_up();
                self.launches.values_mut().for_each(Launch::handle_end_signal);
            }
            Ending::Terminating { kill_at: earlier, .. } => *earlier = kill_at.min(*earlier),
            Ending::Killing { .. } | Ending::Quitting { .. } => {}
            Ending::Stopped { why } => self.agent.send(&FromShim::Stopped { why: *why }),
        }
        self.check_stopped();
    }

    /// Ends what is left, without grace, and then this shim.
    pub(super) fn quit(&mut self) {
        let now = now_ms();
        self.give_up_waiting();
        self.work.kill_all();
        self.ending = Ending::Quitting { retry_at: now + KILL_RETRY_MS, give_up_at: now + QUIT_MS_MAX };
    }

    fn has_nothing_left(&self) -> bool {
        self.processes.is_empty() && self.work.is_empty()
    }

    pub(super) fn check_stopped(&mut self) {
        let (Ending::Terminating { why, .. } | Ending::Killing { why, .. }) = self.ending else { return };
        if self.has_nothing_left() {
            let wait_max = self.files_wait_max().min(FILES_WAIT_MAX);
            self.end_stopped_lane();
            self.ending = Ending::Stopped { why };
            self.record(&ExitRecord::Stopped { why });
            self.catch_up_all(wait_max);
            self.agent.send(&FromShim::Stopped { why });
        }
    }

    /// How long the loop may wait for the user's files: no longer than what is left of the grace, so that an order to
    /// end the work is read, and the work is killed, in time.
    pub(super) fn files_wait_max(&self) -> Duration {
        let ms = match self.ending {
            Ending::No => self.config.grace_ms,
            Ending::Terminating { kill_at, .. } => kill_at.saturating_sub(now_ms()),
            Ending::Killing { .. } | Ending::Quitting { .. } | Ending::Stopped { .. } => 0,
        };
        Duration::from_millis(ms).max(FILES_WAIT_LEAST)
    }

    pub(super) fn may_exit(&self) -> bool {
        match self.ending {
            Ending::Quitting { give_up_at, .. } => self.has_nothing_left() || now_ms() >= give_up_at,
            Ending::No | Ending::Terminating { .. } | Ending::Killing { .. } | Ending::Stopped { .. } => false,
        }
    }

    pub(super) fn check_deadlines(&mut self) {
        let now = now_ms();
        self.check_run_lease(now);
        if let Walltime::Runs { until, .. } = self.walltime
            && until <= now
        {
            self.walltime = Walltime::Over;
            self.stop(StopReason::Walltime, self.config.grace_ms);
        }
        self.check_warnings(now);
        self.hold_uncopied(now);
        self.log_ring.look(&self.dir, now);
        self.report_file_failures();
        self.report_late_files(now);
        self.leftovers.remove_some(now);
        self.check_hung_up(now);
        self.retry_calls(now);
        self.agent.resume(now, &self.epoll);
        self.launches.iter_mut().for_each(|(number, launch)| launch.resume_ports(now, &self.epoll, |local| socket_token(*number, local)));
        self.check_waiting(now);
        let unanswered = |launch: &Launch| matches!(launch.down, Down::Reporting { until } if until <= now);
        let unanswered: Vec<u32> = self.launches.iter().filter(|(_, launch)| unanswered(launch)).map(|(number, _)| *number).collect();
        unanswered.into_iter().for_each(|number| self.bring_down(number));
        for (number, launch) in &mut self.launches {
            if let Down::Terminating { kill_at } = launch.down
                && kill_at <= now
            {
                self.work.signal_launch(*number, &launch.pids(), libc::SIGKILL);
                launch.down = Down::Killed;
            }
        }
        match &mut self.ending {
            Ending::Terminating { why, kill_at } if *kill_at <= now => {
                self.ending = Ending::Killing { why: *why, retry_at: now + KILL_RETRY_MS };
                self.work.kill_all();
            }
            Ending::Killing { retry_at, .. } | Ending::Quitting { retry_at, .. } if *retry_at <= now => {
                *retry_at = now + KILL_RETRY_MS;
                self.work.kill_all();
            }
            Ending::No | Ending::Terminating { .. } | Ending::Killing { .. } | Ending::Stopped { .. } | Ending::Quitting { .. } => {}
        }
        self.check_lane(now);
        self.check_stopped();
        self.unmap_when_settled(now);
    }

    /// Saves memory: a node has a shim for each allocation, and most shims wait for hours.
    fn unmap_when_settled(&mut self, now: u64) {
        if self.settled_at.is_some_and(|at| at <= now) {
            self.settled_at = None;
            if let Err(error) = program_pages::unmap() {
                log_line(&format!("the pages that only the start needed stay mapped: {error}"));
            }
        }
    }

    fn check_hung_up(&mut self, now: u64) {
        let is_due = |launch: &Launch| launch.hung_up_until().is_some_and(|until| until <= now);
        if !self.launches.values().any(is_due) {
            return;
        }
        // If we are late ourselves, the end of the process may be pending behind the deadline.
        self.handle_signals();
        let due = self.launches.iter_mut().filter(|(_, launch)| is_due(launch));
        let happened = due.map(|(number, launch)| (*number, launch.check_hung_up(now, &self.epoll, |local| socket_token(*number, local))));
        for (number, happenings) in happened.collect::<Vec<_>>() {
            self.handle_happenings(number, happenings);
        }
    }

    /// Repeats unanswered calls to other nodes: an agent may have lost them.
    fn retry_calls(&mut self, now: u64) {
        let asked = self.launches.iter_mut().map(|(number, launch)| (*number, launch.retry_calls(now))).collect::<Vec<_>>();
        asked.into_iter().for_each(|(number, happenings)| self.handle_happenings(number, happenings));
    }

    /// Sets the timer for the next deadline, if there is one.
    pub(super) fn set_timer(&self) -> anyhow::Result<()> {
        let walltime = match self.walltime {
            Walltime::Runs { until, .. } => Some(until),
            Walltime::NotYet | Walltime::Over => None,
        };
        let ending = match self.ending {
            Ending::Terminating { kill_at, .. } => Some(kill_at),
            Ending::Killing { retry_at, .. } | Ending::Quitting { retry_at, .. } => Some(retry_at),
            Ending::No | Ending::Stopped { .. } => None,
        };
        let launches = self.launches.values().filter_map(|launch| match launch.down {
            Down::Reporting { until: at } | Down::Terminating { kill_at: at } => Some(at),
            Down::No | Down::Killed => None,
        });
        let hung_up = self.launches.values().filter_map(Launch::hung_up_until);
        let waiting = self.waiting.values().map(|waiting| waiting.until);
        let lane = match self.ending {
            Ending::No => self.lane.as_ref().and_then(|lane| lane.due_ms()),
            Ending::Terminating { .. } | Ending::Killing { .. } | Ending::Stopped { .. } | Ending::Quitting { .. } => None,
        };
        match walltime
            .into_iter()
            .chain(self.run_lease.ends())
            .chain(self.warning_due())
            .chain(ending)
            .chain(launches)
            .chain(hung_up)
            .chain(self.agent.paused_until())
            .chain(self.launches.values().filter_map(Launch::ports_paused_until))
            .chain(self.launches.values().filter_map(Launch::calls_retried_at))
            .chain(waiting)
            .chain(lane)
            .chain(self.log_ring.due())
            .chain(self.user_files.as_ref().and_then(UserFiles::lateness_due))
            .chain(self.leftovers.due())
            .chain(self.settled_at)
            .min()
        {
            // All zeros would mean "never".
            Some(at) => {
                let at = TimeSpec::from_duration(Duration::from_millis(at.clamp(1, TIMER_MS_MAX)));
                self.timer.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME).context("setting the timer")
            }
            None => self.timer.unset().context("unsetting the timer"),
        }
    }
}
