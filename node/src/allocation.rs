//! The phases of an allocation's task, between the brain's orders and the shim's reports. Times are
//! milliseconds since boot.
//!
//! ```text
//!   Idle ──shim connected──▶ AwaitingReady ──ready──▶ Idle ──start──▶ Started
//!    │ stop                      │ stop                │ stop            │ stop
//!    ▼      processes gone       ▼                     │                 │
//!   Stopping ───────────────▶ Stopped                  │                 │
//!    ▲                                                 │                 │
//!    ╰─────────────────────────────────────────────────┴─────────────────╯
//! ```
//!
//! If the connection breaks in AwaitingReady, the phase becomes Idle again, and the allocation is
//! reported as not prepared. If the work still runs some time after the shim had to kill it, the
//! shim hangs, and its scope is killed.

use thiserror::Error;

/// How long background processes get between SIGTERM and SIGKILL after the entry point has ended.
const LEFTOVER_GRACE_MS: u64 = 5000;
/// The interval at which the task checks what keeps work from ending.
const CHECK_INTERVAL_MS: u64 = 1000;
/// How much longer than the grace and the killing a shim may take to report that the work has ended.
/// After that it counts as hanging, and its work is ended without it.
const SHIM_MARGIN_MS: u64 = 30_000;

/// The phase of an allocation's task; see the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskPhase {
    /// The task waits for nothing: the allocation is new, prepared, or could not be prepared.
    #[default]
    Idle,
    /// The shim must report that its mounts are ready.
    AwaitingReady,
    /// The brain has started the work. Its run lease may still hold it back.
    Started { entry: Entry },
    /// The work's processes are being ended. `look_at_ms`: when to check next what keeps them.
    /// `shim_until_ms`: when the shim must have ended them.
    Stopping { look_at_ms: u64, shim_until_ms: u64 },
    /// No process of the allocation is left.
    Stopped,
}

/// The phase of an allocation's entry point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// This task has begun no launch of an inline command: it is too early, the entry point is a
    /// script, or another node is the head.
    NotBegun,
    /// The launch of an inline command begins once the shim has reported everything: an earlier
    /// life of the agent may have begun it.
    AwaitingSync,
    /// The launch of an inline command has begun.
    Begun,
    /// The entry point has ended.
    Over,
}

/// An event of an allocation's task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskEvent {
    /// The prologue is done: the connection to the shim is open.
    ShimGreeted,
    /// The shim's mounts are ready, or why they are not.
    Ready { result: Result<(), NotPrepared> },
    /// The brain starts the work.
    Start,
    /// The work must end. It has `grace_ms` between SIGTERM and SIGKILL; killing may take
    /// `kill_ms`.
    Stop { grace_ms: u64, kill_ms: u64 },
    /// The check of what keeps the work from ending is done. `is_empty`: the work's part of the
    /// scope was read, and has no process.
    Looked { is_empty: bool },
    /// No process of the allocation is left.
    ProcessesGone,
    /// The connection to the shim broke.
    LineBroken,
}

/// An event of an allocation's entry point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryEvent {
    /// On the head: its inline command may begin. `is_synced`: the shim has reported everything.
    BeginCommand { is_synced: bool },
    /// The shim has reported everything.
    Synced,
    /// The entry point has ended.
    Over,
}

/// What an allocation's task must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskAction {
    /// Report that the allocation is prepared, or why it is not.
    ReportPrepared { result: Result<(), NotPrepared> },
    /// Have the shim end the work's processes; without a shim, kill the scope. The answer is
    /// [`TaskEvent::ProcessesGone`].
    EndProcesses { grace_ms: u64 },
    /// Kill the scope. The answer is [`TaskEvent::ProcessesGone`].
    KillScope,
    /// Report that no process of the allocation is left.
    ReportStopped,
    /// Look for the shim again.
    Reconnect,
}

/// Why an allocation could not be prepared on this node.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotPrepared {
    /// The prologue failed, for this reason.
    #[error("{0}")]
    Prologue(String),
    /// The shim reported that it cannot start the work's processes, for this reason.
    #[error("{0}")]
    Shim(String),
    #[error("the shim ended before it was ready (its shim.log says why)")]
    ShimEnded,
}

/// Why an allocation cannot be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NotStarted {
    #[error("its shim is not ready yet")]
    NotReady,
    #[error("it is being ended")]
    Ending,
}

impl TaskPhase {
    /// Handles an event and appends the actions to `out`, in order. An event that the phase does
    /// not expect changes nothing.
    ///
    /// # Errors
    /// [`NotStarted`] if the work must start and cannot; nothing changes.
    pub fn handle(&mut self, now_ms: u64, event: TaskEvent, out: &mut Vec<TaskAction>) -> Result<(), NotStarted> {
        match event {
            TaskEvent::ShimGreeted => match self {
                Self::Idle => *self = Self::AwaitingReady,
                Self::AwaitingReady | Self::Started { .. } | Self::Stopping { .. } | Self::Stopped => {}
            },
            TaskEvent::Ready { result } => match self {
                Self::AwaitingReady => {
                    *self = Self::Idle;
                    out.push(TaskAction::ReportPrepared { result });
                }
                Self::Idle | Self::Started { .. } | Self::Stopping { .. } | Self::Stopped => {}
            },
            TaskEvent::Start => match self {
                Self::Idle => *self = Self::Started { entry: Entry::NotBegun },
                Self::Started { .. } => {}
                Self::AwaitingReady => return Err(NotStarted::NotReady),
                Self::Stopping { .. } | Self::Stopped => return Err(NotStarted::Ending),
            },
            TaskEvent::Stop { grace_ms, kill_ms } => self.stop(now_ms, grace_ms, kill_ms, out),
            TaskEvent::Looked { is_empty } => self.looked(now_ms, is_empty, out),
            TaskEvent::ProcessesGone => self.processes_gone(out),
            TaskEvent::LineBroken => match self {
                Self::AwaitingReady => {
                    *self = Self::Idle;
                    out.push(TaskAction::ReportPrepared { result: Err(NotPrepared::ShimEnded) });
                }
                Self::Stopping { .. } => out.push(TaskAction::KillScope),
                Self::Idle | Self::Started { .. } | Self::Stopped => out.push(TaskAction::Reconnect),
            },
        }
        Ok(())
    }

    /// Handles an event of the entry point. Returns whether the launch of the inline command must
    /// begin now.
    #[must_use]
    pub fn handle_entry(&mut self, event: EntryEvent) -> bool {
        let Self::Started { entry } = self else { return false };
        let (next, begins) = match (*entry, event) {
            (_, EntryEvent::Over) | (Entry::Over, EntryEvent::BeginCommand { .. } | EntryEvent::Synced) => (Entry::Over, false),
            (Entry::NotBegun | Entry::AwaitingSync, EntryEvent::BeginCommand { is_synced: false }) => (Entry::AwaitingSync, false),
            (Entry::NotBegun, EntryEvent::Synced) => (Entry::NotBegun, false),
            (Entry::NotBegun, EntryEvent::BeginCommand { is_synced: true })
            | (Entry::AwaitingSync, EntryEvent::BeginCommand { is_synced: true } | EntryEvent::Synced) => (Entry::Begun, true),
            (Entry::Begun, EntryEvent::BeginCommand { .. } | EntryEvent::Synced) => (Entry::Begun, false),
        };
        *entry = next;
        begins
    }

    /// Whether the work's processes are being ended.
    pub fn is_stopping(self) -> bool {
        self.look_at_ms().is_some()
    }

    /// Whether the brain has started the work and nothing has stopped it.
    pub fn is_started(self) -> bool {
        match self {
            Self::Started { .. } => true,
            Self::Idle | Self::AwaitingReady | Self::Stopping { .. } | Self::Stopped => false,
        }
    }

    /// When to check next what keeps the work from ending; `None`: it is not being ended.
    pub fn look_at_ms(self) -> Option<u64> {
        match self {
            Self::Stopping { look_at_ms, .. } => Some(look_at_ms),
            Self::Idle | Self::AwaitingReady | Self::Started { .. } | Self::Stopped => None,
        }
    }

    fn stop(&mut self, now_ms: u64, grace_ms: u64, kill_ms: u64, out: &mut Vec<TaskAction>) {
        let grace_ms = match self {
            // The shim is still mounting and has started nothing; do not wait for a mount that
            // hangs.
            Self::AwaitingReady => {
                *self = Self::Stopped;
                out.push(TaskAction::ReportStopped);
                return;
            }
            Self::Started { entry: Entry::Over } => grace_ms.min(LEFTOVER_GRACE_MS),
            Self::Started { entry: Entry::NotBegun | Entry::AwaitingSync | Entry::Begun } => grace_ms,
            Self::Idle | Self::Stopping { .. } | Self::Stopped => grace_ms,
        };
        let killed_at_ms = now_ms.saturating_add(grace_ms).saturating_add(kill_ms);
        let shim_until_ms = killed_at_ms.saturating_add(SHIM_MARGIN_MS);
        let shim_until_ms = match self {
            // Another order to stop gives a shim that hangs no more time.
            Self::Stopping { shim_until_ms: earlier, .. } => shim_until_ms.min(*earlier),
            Self::Idle | Self::AwaitingReady | Self::Started { .. } | Self::Stopped => shim_until_ms,
        };
        *self = Self::Stopping { look_at_ms: killed_at_ms.min(shim_until_ms), shim_until_ms };
        out.push(TaskAction::EndProcesses { grace_ms });
    }

    fn looked(&mut self, now_ms: u64, is_empty: bool, out: &mut Vec<TaskAction>) {
        let Self::Stopping { look_at_ms, shim_until_ms } = self else { return };
        *look_at_ms = now_ms.saturating_add(CHECK_INTERVAL_MS);
        if now_ms < *shim_until_ms {
            return;
        }
        if is_empty {
            self.processes_gone(out);
        } else {
            out.push(TaskAction::KillScope);
        }
    }

    fn processes_gone(&mut self, out: &mut Vec<TaskAction>) {
        if let Self::Stopping { .. } = self {
            *self = Self::Stopped;
            out.push(TaskAction::ReportStopped);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::TaskAction::{EndProcesses, KillScope, Reconnect, ReportPrepared, ReportStopped};
    use super::*;

    const STOP: TaskEvent = TaskEvent::Stop { grace_ms: 30_000, kill_ms: 3000 };

    fn step(phase: &mut TaskPhase, now_ms: u64, event: TaskEvent) -> Vec<TaskAction> {
        let mut out = Vec::new();
        assert_eq!(phase.handle(now_ms, event, &mut out), Ok(()));
        out
    }

    fn awaiting_ready() -> TaskPhase {
        let mut phase = TaskPhase::default();
        assert_eq!(step(&mut phase, 0, TaskEvent::ShimGreeted), []);
        phase
    }

    fn started() -> TaskPhase {
        let mut phase = awaiting_ready();
        assert_eq!(step(&mut phase, 0, TaskEvent::Ready { result: Ok(()) }), [ReportPrepared { result: Ok(()) }]);
        assert_eq!(step(&mut phase, 0, TaskEvent::Ready { result: Ok(()) }), [], "reported again on a new line");
        assert!(!phase.is_started());
        assert_eq!(step(&mut phase, 0, TaskEvent::Start), []);
        assert!(phase.is_started());
        phase
    }

    #[test]
    fn a_shim_that_ends_before_it_is_ready_fails_the_prologue() {
        let mut phase = awaiting_ready();
        assert_eq!(step(&mut phase, 0, TaskEvent::LineBroken), [ReportPrepared { result: Err(NotPrepared::ShimEnded) }]);
        assert_eq!(step(&mut phase, 0, TaskEvent::LineBroken), [Reconnect]);
    }

    #[test]
    fn an_inline_command_begins_once_and_not_before_the_shim_reported_all() {
        let mut phase = started();
        assert!(!phase.handle_entry(EntryEvent::Synced), "its lease still holds it back");
        assert!(!phase.handle_entry(EntryEvent::BeginCommand { is_synced: false }));
        assert!(phase.handle_entry(EntryEvent::Synced));
        assert!(!phase.handle_entry(EntryEvent::Synced));
        assert!(!phase.handle_entry(EntryEvent::BeginCommand { is_synced: true }));
        assert!(started().handle_entry(EntryEvent::BeginCommand { is_synced: true }));
        // An earlier life began it, and it has ended since.
        let mut phase = started();
        assert!(!phase.handle_entry(EntryEvent::BeginCommand { is_synced: false }));
        assert!(!phase.handle_entry(EntryEvent::Over));
        assert!(!phase.handle_entry(EntryEvent::Synced));
        assert!(!TaskPhase::Idle.handle_entry(EntryEvent::BeginCommand { is_synced: true }), "nobody let it run");
    }

    #[test]
    fn work_stopped_before_its_command_began_does_not_begin_it() {
        let mut phase = started();
        assert!(!phase.handle_entry(EntryEvent::BeginCommand { is_synced: false }));
        assert_eq!(step(&mut phase, 0, STOP), [EndProcesses { grace_ms: 30_000 }]);
        assert!(!phase.handle_entry(EntryEvent::Synced));
        assert!(!phase.handle_entry(EntryEvent::BeginCommand { is_synced: true }));
        assert!(phase.is_stopping());
    }

    #[test]
    fn processes_left_by_an_entry_point_get_five_seconds() {
        let mut phase = started();
        assert!(!phase.handle_entry(EntryEvent::Over));
        assert_eq!(step(&mut phase, 0, TaskEvent::Start), [], "ordered twice");
        assert_eq!(step(&mut phase, 1000, STOP), [EndProcesses { grace_ms: 5000 }]);
        assert_eq!(phase.look_at_ms(), Some(9000));
        let mut phase = started();
        assert!(!phase.handle_entry(EntryEvent::Over));
        let stop = TaskEvent::Stop { grace_ms: 2000, kill_ms: 3000 };
        assert_eq!(step(&mut phase, 0, stop), [EndProcesses { grace_ms: 2000 }]);
    }

    #[test]
    fn work_that_does_not_end_is_checked_each_second_until_it_does() {
        let mut phase = started();
        step(&mut phase, 0, STOP);
        assert_eq!(phase.look_at_ms(), Some(33_000));
        assert_eq!(step(&mut phase, 33_100, TaskEvent::Looked { is_empty: false }), []);
        assert_eq!(phase.look_at_ms(), Some(34_100));
        assert_eq!(step(&mut phase, 34_000, TaskEvent::ProcessesGone), [ReportStopped]);
        assert_eq!((step(&mut phase, 34_000, TaskEvent::ProcessesGone), phase.look_at_ms()), (vec![], None));
        assert_eq!(step(&mut phase, 34_000, TaskEvent::LineBroken), [Reconnect]);
    }

    /// Lets the task look whenever it is due, until that gives an action: when, and which.
    fn look_until_it_acts(phase: &mut TaskPhase, is_empty: bool) -> (u64, Vec<TaskAction>) {
        for _ in 0..100 {
            let now_ms = phase.look_at_ms().expect("it is being ended");
            let actions = step(phase, now_ms, TaskEvent::Looked { is_empty });
            if !actions.is_empty() {
                return (now_ms, actions);
            }
        }
        panic!("nothing ends it: {phase:?}");
    }

    #[test]
    fn the_scope_of_a_shim_that_never_answers_is_killed_after_its_deadline() {
        let mut phase = started();
        assert_eq!(step(&mut phase, 0, STOP), [EndProcesses { grace_ms: 30_000 }]);
        assert_eq!(look_until_it_acts(&mut phase, false), (63_000, vec![KillScope]));
        assert_eq!(step(&mut phase, 63_500, TaskEvent::ProcessesGone), [ReportStopped]);
        assert_eq!(step(&mut phase, 64_000, TaskEvent::Looked { is_empty: false }), [], "the check is late");
    }

    #[test]
    fn a_shim_that_hangs_after_its_work_ended_is_not_waited_for() {
        let mut phase = started();
        step(&mut phase, 0, STOP);
        assert_eq!(look_until_it_acts(&mut phase, true), (63_000, vec![ReportStopped]));
        assert_eq!((phase, step(&mut phase, 63_001, TaskEvent::ProcessesGone)), (TaskPhase::Stopped, vec![]));
    }

    #[test]
    fn a_shim_that_answers_in_time_is_not_killed() {
        let mut phase = started();
        step(&mut phase, 0, STOP);
        for now_ms in (33_000..63_000).step_by(1000) {
            assert_eq!(step(&mut phase, now_ms, TaskEvent::Looked { is_empty: false }), []);
        }
        assert_eq!(step(&mut phase, 62_999, TaskEvent::ProcessesGone), [ReportStopped]);
        assert_eq!(phase.look_at_ms(), None);
    }

    #[test]
    fn another_order_to_stop_does_not_move_the_deadline() {
        let mut phase = started();
        step(&mut phase, 0, STOP);
        assert_eq!(step(&mut phase, 50_000, STOP), [EndProcesses { grace_ms: 30_000 }]);
        assert_eq!(look_until_it_acts(&mut phase, false), (63_000, vec![KillScope]));
    }

    #[test]
    fn if_the_shim_dies_while_it_ends_the_work_its_scope_is_killed() {
        let mut phase = started();
        step(&mut phase, 0, STOP);
        assert_eq!(step(&mut phase, 1, TaskEvent::LineBroken), [KillScope]);
        assert_eq!(step(&mut phase, 2, TaskEvent::ProcessesGone), [ReportStopped]);
    }

    #[test]
    fn a_shim_that_still_mounts_is_not_waited_for() {
        let mut phase = awaiting_ready();
        assert_eq!(step(&mut phase, 0, STOP), [ReportStopped]);
        assert_eq!(step(&mut phase, 0, TaskEvent::Ready { result: Ok(()) }), []);
        assert_eq!(step(&mut phase, 0, TaskEvent::ProcessesGone), []);
    }

    #[test]
    fn work_that_is_not_ready_or_is_being_ended_is_not_started() {
        let refused = |mut phase: TaskPhase| {
            let (before, mut out) = (phase, Vec::new());
            let refused = phase.handle(0, TaskEvent::Start, &mut out);
            assert_eq!((phase, out), (before, vec![]));
            refused
        };
        assert_eq!(refused(awaiting_ready()), Err(NotStarted::NotReady));
        assert_eq!(refused(TaskPhase::Stopping { look_at_ms: 1, shim_until_ms: 2 }), Err(NotStarted::Ending));
        assert_eq!(refused(TaskPhase::Stopped), Err(NotStarted::Ending));
    }

    #[test]
    fn after_a_restart_of_the_agent_work_is_stopped_from_the_beginning() {
        let mut phase = TaskPhase::default();
        assert_eq!(step(&mut phase, 0, STOP), [EndProcesses { grace_ms: 30_000 }]);
        assert!(!phase.handle_entry(EntryEvent::Over));
        assert_eq!(phase.look_at_ms(), Some(33_000));
    }
}
