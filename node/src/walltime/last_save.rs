//! On the head: the request for a checkpoint before walltime ends, early enough for it to be whole
//! in time.
//!
//! ```text
//!   AwaitingLook ──due──▶ AwaitingCost ──not asked earlier than the next look──▶ AwaitingLook, the last
//!                             │ asked earlier
//!                             ▼
//!                       AwaitingLead ──due──▶ Asking ◀──due── Pausing
//!                                               ╰─no checkpoint──▲
//! ```

use lattice_model::CheckpointId;
use lattice_model::checkpoint::{DEADLINE_MS, walltime_lead_ms};

/// The pause after an attempt to ask work that could not be asked. It doubles after each failed
/// checkpoint.
const PAUSE_MS: u64 = 500;
/// The longest pause before the work is asked again after a failed checkpoint.
const PAUSE_MS_MAX: u64 = 60_000;

/// The last request within one claim's walltime. See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastSave {
    walltime_ms: u64,
    ends_ms: u64,
    grace_ms: u64,
    /// The id of the next request. A request of an earlier life of the agent is repeated with its
    /// id.
    id: CheckpointId,
    phase: Phase,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Waiting until the cost of a checkpoint is looked up.
    AwaitingLook { lead_ms: u64 },
    /// The cost is being looked up.
    AwaitingCost { lead_ms: u64 },
    /// Waiting until the work is asked.
    AwaitingLead,
    /// The work is asked. `noted`: the checkpoint last noted on the disk for the end of walltime.
    Asking { request: Request, noted: Option<CheckpointId> },
    /// Waiting until the work is asked again.
    Pausing { request: Request },
    /// A checkpoint is whole, walltime is over, or the work was refused a checkpoint.
    Over,
}

/// The times of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    /// How long the checkpoint may take.
    length_ms: u64,
    /// How long to wait before the next request.
    pause_ms: u64,
}

/// An event of the last request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LastSaveEvent {
    /// The time of [`LastSaveAction::WaitUntil`] has come.
    Due,
    /// How long the last checkpoint of this work took, if there was one.
    CostKnown { took_ms: Option<u64> },
    /// The work could not be asked now.
    NotAsked,
    /// This checkpoint is under way: the requested one, or another.
    UnderWay { id: CheckpointId },
    /// This checkpoint has ended.
    Ended { id: CheckpointId, is_whole: bool },
    /// The work was refused a checkpoint.
    Refused,
    /// No further reports about the request will come. `next`: an unused id.
    AnswersOver { next: CheckpointId },
}

/// What to do about the last request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LastSaveAction {
    /// Wait until this time since boot, then give [`LastSaveEvent::Due`].
    WaitUntil { at_ms: u64 },
    /// Find out how long a checkpoint of this work takes, then give [`LastSaveEvent::CostKnown`].
    FindCost,
    /// Ask the work for this checkpoint, which may take `length_ms`.
    Ask { id: CheckpointId, length_ms: u64 },
    /// Note on the disk that the end of walltime waits for this checkpoint.
    Note { id: CheckpointId },
}

impl LastSave {
    /// Begins for a claim whose walltime began at `began_ms`. `id`: that of the first request. Also
    /// returns the first action.
    pub fn begin(began_ms: u64, walltime_ms: u64, grace_ms: u64, id: CheckpointId) -> (Self, LastSaveAction) {
        let ends_ms = began_ms.saturating_add(walltime_ms);
        // The work is never asked earlier than this; without an earlier checkpoint, not before the
        // second look.
        let lead_ms = walltime_ms / 2;
        let save = Self { walltime_ms, ends_ms, grace_ms, id, phase: Phase::AwaitingLook { lead_ms } };
        let first = save.wait(lead_ms);
        (save, first)
    }

    /// Handles an event and appends the actions to `out`, in order. If there are none and no answer
    /// is awaited, the last save is over.
    pub fn handle(&mut self, now_ms: u64, event: LastSaveEvent, out: &mut Vec<LastSaveAction>) {
        match (&mut self.phase, event) {
            (Phase::AwaitingLook { lead_ms }, LastSaveEvent::Due) => {
                self.phase = Phase::AwaitingCost { lead_ms: *lead_ms };
                out.push(LastSaveAction::FindCost);
            }
            (Phase::AwaitingCost { lead_ms: looked_ms }, LastSaveEvent::CostKnown { took_ms }) => {
                let (lead_ms, last_ms) = (walltime_lead_ms(self.walltime_ms, took_ms), self.walltime_ms / 10);
                let next_ms = if lead_ms > last_ms || *looked_ms == last_ms {
                    self.phase = Phase::AwaitingLead;
                    lead_ms
                } else {
                    self.phase = Phase::AwaitingLook { lead_ms: last_ms };
                    last_ms
                };
                out.push(self.wait(next_ms));
            }
            (Phase::AwaitingLead, LastSaveEvent::Due) => {
                // A checkpoint still under way in the grace is waited for, so the grace counts.
                let left_ms = self.ends_ms.saturating_sub(now_ms).saturating_add(self.grace_ms);
                self.ask(now_ms, Request { length_ms: left_ms.clamp(DEADLINE_MS.0, DEADLINE_MS.1), pause_ms: PAUSE_MS }, out);
            }
            (Phase::Pausing { request }, LastSaveEvent::Due) => {
                let request = *request;
                self.ask(now_ms, request, out);
            }
            (Phase::Asking { request, .. }, LastSaveEvent::NotAsked) => {
                let request = *request;
                self.pause(now_ms, request, out);
            }
            (Phase::Asking { noted, .. }, LastSaveEvent::UnderWay { id } | LastSaveEvent::Ended { id, is_whole: false }) => {
                if noted.replace(id) != Some(id) {
                    out.push(LastSaveAction::Note { id });
                }
            }
            (Phase::Asking { noted, .. }, LastSaveEvent::Ended { id, is_whole: true }) => {
                if *noted != Some(id) {
                    out.push(LastSaveAction::Note { id });
                }
                self.phase = Phase::Over;
            }
            (Phase::Asking { .. }, LastSaveEvent::Refused) => self.phase = Phase::Over,
            (Phase::Asking { request, .. }, LastSaveEvent::AnswersOver { next }) => {
                // There may be time for another request.
                self.id = next;
                let request = Request { pause_ms: request.pause_ms.saturating_mul(2).min(PAUSE_MS_MAX), ..*request };
                self.pause(now_ms, request, out);
            }
            // Late events of a request that is over.
            (
                Phase::AwaitingLook { .. }
                | Phase::AwaitingCost { .. }
                | Phase::AwaitingLead
                | Phase::Asking { .. }
                | Phase::Pausing { .. }
                | Phase::Over,
                LastSaveEvent::Due
                | LastSaveEvent::CostKnown { .. }
                | LastSaveEvent::NotAsked
                | LastSaveEvent::UnderWay { .. }
                | LastSaveEvent::Ended { .. }
                | LastSaveEvent::Refused
                | LastSaveEvent::AnswersOver { .. },
            ) => {}
        }
    }

    /// Whether no further request will be made.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    fn wait(&self, lead_ms: u64) -> LastSaveAction {
        LastSaveAction::WaitUntil { at_ms: self.ends_ms.saturating_sub(lead_ms) }
    }

    /// Asks, unless walltime is over.
    fn ask(&mut self, now_ms: u64, request: Request, out: &mut Vec<LastSaveAction>) {
        if now_ms < self.ends_ms {
            self.phase = Phase::Asking { request, noted: None };
            out.push(LastSaveAction::Ask { id: self.id, length_ms: request.length_ms });
        } else {
            self.phase = Phase::Over;
        }
    }

    fn pause(&mut self, now_ms: u64, request: Request, out: &mut Vec<LastSaveAction>) {
        self.phase = Phase::Pausing { request };
        out.push(LastSaveAction::WaitUntil { at_ms: now_ms.saturating_add(request.pause_ms) });
    }
}

#[cfg(test)]
mod tests {
    use super::LastSaveAction::{Ask, FindCost, Note, WaitUntil};
    use super::LastSaveEvent::{AnswersOver, CostKnown, Due, Ended, NotAsked, Refused, UnderWay};
    use super::*;

    const WALLTIME_MS: u64 = 1_000_000;
    const GRACE_MS: u64 = 30_000;

    fn id(n: u8) -> CheckpointId {
        format!("00000000-0000-4000-9000-0000000000{n:02x}").parse().unwrap()
    }

    /// The last save of work that began at 0.
    fn begun() -> LastSave {
        let (save, first) = LastSave::begin(0, WALLTIME_MS, GRACE_MS, id(1));
        assert_eq!(first, WaitUntil { at_ms: 500_000 });
        save
    }

    fn step(save: &mut LastSave, now_ms: u64, event: LastSaveEvent) -> Vec<LastSaveAction> {
        let mut out = Vec::new();
        save.handle(now_ms, event, &mut out);
        out
    }

    /// The last save of work that was just asked, 100 s before its end.
    fn asked() -> LastSave {
        let mut save = begun();
        step(&mut save, 500_000, Due);
        step(&mut save, 500_000, CostKnown { took_ms: Some(45_000) });
        assert_eq!(step(&mut save, 900_000, Due), [FindCost]);
        assert_eq!(step(&mut save, 900_000, CostKnown { took_ms: Some(45_000) }), [WaitUntil { at_ms: 900_000 }]);
        assert_eq!(step(&mut save, 900_000, Due), [Ask { id: id(1), length_ms: 130_000 }]);
        save
    }

    #[test]
    fn the_cost_is_looked_up_twice_unless_the_first_look_asks_early() {
        let mut save = begun();
        assert_eq!(step(&mut save, 500_000, Due), [FindCost]);
        // Twice 100 s, plus 10 s.
        assert_eq!(step(&mut save, 500_000, CostKnown { took_ms: Some(100_000) }), [WaitUntil { at_ms: 790_000 }]);
        assert_eq!(step(&mut save, 790_000, Due), [Ask { id: id(1), length_ms: 240_000 }]);
        let mut save = begun();
        assert_eq!(step(&mut save, 500_000, Due), [FindCost]);
        assert_eq!(step(&mut save, 500_000, CostKnown { took_ms: None }), [WaitUntil { at_ms: 900_000 }]);
        assert_eq!(step(&mut save, 900_000, Due), [FindCost]);
        assert_eq!(step(&mut save, 900_000, CostKnown { took_ms: Some(1000) }), [WaitUntil { at_ms: 988_000 }]);
        assert_eq!(step(&mut save, 988_000, Due), [Ask { id: id(1), length_ms: 42_000 }]);
    }

    #[test]
    fn each_checkpoint_is_noted_once_and_a_whole_one_is_the_last() {
        let mut save = asked();
        assert_eq!(step(&mut save, 900_001, UnderWay { id: id(7) }), [Note { id: id(7) }], "another one was under way");
        assert_eq!(step(&mut save, 900_002, UnderWay { id: id(7) }), []);
        assert_eq!(step(&mut save, 900_003, Ended { id: id(7), is_whole: false }), []);
        assert!(!save.is_over());
        assert_eq!(step(&mut save, 900_004, AnswersOver { next: id(2) }), [WaitUntil { at_ms: 901_004 }]);
        assert_eq!(step(&mut save, 901_004, Due), [Ask { id: id(2), length_ms: 130_000 }]);
        assert_eq!(step(&mut save, 901_005, Ended { id: id(2), is_whole: true }), [Note { id: id(2) }]);
        assert!(save.is_over());
        assert_eq!(step(&mut save, 901_006, AnswersOver { next: id(3) }), []);
    }

    #[test]
    fn pauses_double_after_answers_alone_and_end_with_walltime() {
        let mut save = asked();
        let mut now_ms = 900_000;
        for _ in 0..3 {
            assert_eq!(step(&mut save, now_ms, NotAsked), [WaitUntil { at_ms: now_ms + 500 }]);
            now_ms += 500;
            assert_eq!(step(&mut save, now_ms, Due), [Ask { id: id(1), length_ms: 130_000 }]);
        }
        for (n, pause_ms) in (2..).zip([1000, 2000, 4000, 8000, 16_000, 32_000, 60_000]) {
            assert_eq!(step(&mut save, now_ms, AnswersOver { next: id(n) }), [WaitUntil { at_ms: now_ms + pause_ms }]);
            if now_ms + pause_ms >= WALLTIME_MS {
                break;
            }
            now_ms += pause_ms;
            assert_eq!(step(&mut save, now_ms, Due), [Ask { id: id(n), length_ms: 130_000 }]);
        }
        assert_eq!(step(&mut save, WALLTIME_MS, Due), []);
        assert!(save.is_over());
    }

    #[test]
    fn work_that_is_refused_a_checkpoint_is_not_asked_again() {
        let mut save = asked();
        assert_eq!(step(&mut save, 900_001, Refused), []);
        assert!(save.is_over());
    }
}
