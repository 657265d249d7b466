//! How a node's state changes: the one machine, without a clock. The ledger asks it for every change.
//!
//! ```text
//!                 registered                            drain set, shares there          last share gone
//!   (not known) ────────────▶ Ready ◀──────────────┐ ─────────────────────▶ Draining ─────────────────▶ Drained
//!                              ▲ │                 └──────────────────── drain lifted ──────────────────┘ │
//!                heard again,  │ │ silent                                                        boot begun
//!                registered    │ ▼                                                                        ▼
//!                            Degraded ──grace over──▶ Down ──────────────boot begun──────────────────▶ Booting
//!                                                    ▲  └─ heard again, registered ─▶ Ready               │ boot over
//!                    disabled, hardware failed: from anywhere                                              ▼
//!                                             registered under another boot ─▶ Ready ◀──────────────── Failed
//! ```
//!
//! Where the figure says Ready, a node whose drain still stands becomes Draining, or Drained when nothing is left on it: a
//! drain is lifted by `undrain` alone, and never by a recovery. Draining and Drained nodes fall silent as Ready ones do. One that is
//! heard and not well gets nothing under a drain anyway: it stays Draining and becomes Drained, so that its drain comes to an end.
//!
//! | event | who says it | from | precondition | to |
//! |---|---|---|---|---|
//! | registered | the node's agent | any; Booting and Failed under another boot alone | in service | at work; Degraded instead of Ready where the agent says that it is not well |
//! | heard again | the leader's clock; of one that is not well, when a drain is set | Degraded, Down | in service | at work |
//! | silent | the leader's clock, after `node_degraded_after_ms` | Ready, Draining, Drained | | Degraded |
//! | not well (as silent) | the leader's clock, at once where the agent says so | Ready | no drain | Degraded |
//! | grace over | the leader's clock, after `node_down_after_ms` more, and `node_cut_off_ms` where other nodes hear it (each time by what it is used for) | Degraded | | Down |
//! | drain set | an operator, or a check of the node's own, once for what it found | any | | Ready: Draining or Drained; the others stay, with the hold beside them |
//! | last share gone | the node's agent | Draining | nothing is left | Drained |
//! | share found | the node's agent, after a recovery of the quorum | Drained | something is there | Draining |
//! | drain lifted | an operator | any | | Draining, Drained: Ready; the others stay, without the hold |
//! | disabled | an operator | any | | Down, and what runs there is ended |
//! | hardware failed | an operator, a program outside, or a check of the node's own | any | | Down |
//! | enabled | an operator, of one that was disabled, or is repaired | Down | | Down, until it is heard again |
//! | boot begun | an operator, or what provisions nodes | Down, Drained, Failed | in service | Booting |
//! | boot over time | the leader's clock, after `node_boot_ms` | Booting | | Failed |
//! | confirmed dead | an operator, or the site's fencing hook | Degraded, Down, Booting, Failed | not heard | Down, and what runs there is lost |
//! | quorum recovered | who recovers it from a backup | any | | Degraded: nobody knows what became of it since the backup |
//!
//! In service is a node that is neither disabled nor under a failure of its hardware. "At work" is Ready, or Draining or Drained where the
//! drain hold stands. What is said twice changes nothing.
//!
//! There is no state Unknown: a node's record begins with its registration, so no event would lead
//! to it. `lattice node status` answers Unknown for a node that only gossip knows. After a recovery
//! a node that has not reported yet is Degraded, because its earlier work may still run.
//!
//! A boot that fails is not counted: nobody reports it, and a second `boot` of a node that is
//! Booting may be a command that was sent again. The time of a boot counts from the first.

use crate::node::NodeState;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What happens to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// Its agent opened a session.
    Registered {
        /// Whether under another boot id than before.
        rebooted: bool,
    },
    /// The leader hears it.
    Heard,
    /// The leader has not heard it for too long.
    Silent,
    /// Nor for the grace behind that.
    GraceOver,
    /// A drain hold stands from now on.
    DrainSet,
    /// Nothing is left on it.
    LastShareGone,
    /// After a recovery of the quorum it said what it has.
    ShareFound,
    /// The drain is over.
    DrainLifted,
    /// Taken out of service at once.
    Disabled,
    /// Its hardware failed.
    HardwareFailed,
    /// Either is over.
    Enabled,
    /// It is being booted.
    BootBegun,
    /// It did not come back in time.
    BootOver,
    /// Somebody vouches that nothing runs there any more.
    ConfirmedDead,
    /// The quorum goes on from a backup.
    QuorumRecovered,
}

impl Event {
    /// One of each kind.
    pub const ALL: &'static [Self] = &[
        Self::Registered { rebooted: false },
        Self::Registered { rebooted: true },
        Self::Heard,
        Self::Silent,
        Self::GraceOver,
        Self::DrainSet,
        Self::LastShareGone,
        Self::ShareFound,
        Self::DrainLifted,
        Self::Disabled,
        Self::HardwareFailed,
        Self::Enabled,
        Self::BootBegun,
        Self::BootOver,
        Self::ConfirmedDead,
        Self::QuorumRecovered,
    ];
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Registered { rebooted: false } => "registering",
            Self::Registered { rebooted: true } => "registering under another boot",
            Self::Heard => "being heard again",
            Self::Silent => "falling silent",
            Self::GraceOver => "being silent beyond the grace",
            Self::DrainSet => "draining",
            Self::LastShareGone => "the end of its last share",
            Self::ShareFound => "finding a share",
            Self::DrainLifted => "undraining",
            Self::Disabled => "disabling",
            Self::HardwareFailed => "a failure of its hardware",
            Self::Enabled => "taking back into service",
            Self::BootBegun => "booting",
            Self::BootOver => "the end of a boot's time",
            Self::ConfirmedDead => "being confirmed dead",
            Self::QuorumRecovered => "a recovery of the quorum",
        })
    }
}

/// What stands beside the state when something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Whether a drain hold stands, behind the event.
    pub draining: bool,
    /// Whether no share of anything is left there, live or leaving.
    pub empty: bool,
    /// Whether it is disabled, or under a failure of its hardware.
    pub disabled: bool,
}

impl Facts {
    /// The state of a node that is heard, and neither booted nor disabled.
    pub fn at_work(self) -> NodeState {
        match (self.draining, self.empty) {
            (false, _) => NodeState::Ready,
            (true, false) => NodeState::Draining,
            (true, true) => NodeState::Drained,
        }
    }
}

/// This cannot happen to a node in this state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Illegal {
    /// Where it stands.
    pub state: NodeState,
    /// What was to happen.
    pub event: Event,
}

impl fmt::Display for Illegal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not for a node that is {}{}", self.event, self.state, needs(self.event))
    }
}

impl std::error::Error for Illegal {}

/// From where it may happen, where that is one state or two.
fn needs(event: Event) -> &'static str {
    match event {
        Event::BootBegun => ": it is for one that is Drained, Failed, or Down and in service",
        Event::Enabled => ": it is for one that is Down",
        Event::ConfirmedDead => ": it is for one that is not heard",
        Event::Registered { .. }
        | Event::Heard
        | Event::Silent
        | Event::GraceOver
        | Event::DrainSet
        | Event::DrainLifted
        | Event::LastShareGone
        | Event::ShareFound
        | Event::Disabled
        | Event::HardwareFailed
        | Event::BootOver
        | Event::QuorumRecovered => "",
    }
}

/// Where the node stands after the event: see the head of this file.
///
/// # Errors
/// [`Illegal`], and nothing changes.
pub fn next(state: NodeState, event: Event, facts: Facts) -> Result<NodeState, Illegal> {
    use NodeState::{Booting, Degraded, Down, Drained, Draining, Failed, Ready};
    let illegal = Err(Illegal { state, event });
    match event {
        Event::Registered { .. } if facts.disabled => Ok(Down),
        Event::Registered { rebooted: false } if matches!(state, Booting | Failed) => Ok(state),
        Event::Registered { .. } => Ok(facts.at_work()),
        Event::Heard => match state {
            Degraded | Down if facts.disabled => Ok(Down),
            Degraded | Down => Ok(facts.at_work()),
            // Until it reboots, the agent of before is what is heard.
            Ready | Draining | Drained | Booting | Failed => Ok(state),
        },
        Event::Silent => match state {
            Ready | Draining | Drained => Ok(Degraded),
            Degraded | Down | Booting | Failed => Ok(state),
        },
        Event::GraceOver => match state {
            Degraded | Down => Ok(Down),
            Ready | Draining | Drained | Booting | Failed => illegal,
        },
        Event::DrainSet => match state {
            Ready | Draining | Drained => Ok(facts.at_work()),
            Degraded | Down | Booting | Failed => Ok(state),
        },
        Event::LastShareGone => match state {
            Draining if facts.empty => Ok(Drained),
            Draining => illegal,
            Ready | Drained | Degraded | Down | Booting | Failed => Ok(state),
        },
        Event::ShareFound => match state {
            Drained if !facts.empty => Ok(Draining),
            Drained => illegal,
            Ready | Draining | Degraded | Down | Booting | Failed => Ok(state),
        },
        // A mistaken drain is called off while it is under way.
        Event::DrainLifted => match state {
            Draining | Drained => Ok(Ready),
            Ready | Degraded | Down | Booting | Failed => Ok(state),
        },
        Event::Disabled | Event::HardwareFailed => Ok(Down),
        Event::Enabled => match state {
            Down => Ok(Down),
            Ready | Draining | Drained | Degraded | Booting | Failed => illegal,
        },
        Event::BootBegun => match state {
            Down if facts.disabled => illegal,
            Down | Drained | Failed | Booting => Ok(Booting),
            Ready | Draining | Degraded => illegal,
        },
        Event::ConfirmedDead => match state {
            Degraded | Down | Booting | Failed => Ok(Down),
            Ready | Draining | Drained => illegal,
        },
        Event::QuorumRecovered => Ok(Degraded),
        Event::BootOver => match state {
            Booting | Failed => Ok(Failed),
            Ready | Draining | Drained | Degraded | Down => illegal,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use NodeState::{Booting, Degraded, Down, Drained, Draining, Failed, Ready};

    const STATES: [NodeState; 7] = [Ready, Degraded, Down, Draining, Drained, Booting, Failed];

    fn facts(draining: bool, empty: bool, disabled: bool) -> Facts {
        Facts { draining, empty, disabled }
    }

    /// Written from the documents: a line for each event, a column for each of [`STATES`]; `-` is illegal, `=` stays.
    fn table(text: &str, facts: Facts) {
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        assert_eq!(lines.len(), Event::ALL.len());
        for (event, line) in Event::ALL.iter().zip(lines) {
            let (_, columns) = line.split_once(':').unwrap();
            let columns: Vec<&str> = columns.split_whitespace().collect();
            assert_eq!(columns.len(), STATES.len(), "{line}");
            for (state, wanted) in STATES.into_iter().zip(columns) {
                let wanted = match wanted {
                    "-" => Err(Illegal { state, event: *event }),
                    "=" => Ok(state),
                    name => Ok(STATES.into_iter().find(|s| s.to_string() == name).unwrap()),
                };
                assert_eq!(next(state, *event, facts), wanted, "{state}, {event:?}, {facts:?}");
            }
        }
    }

    #[test]
    fn a_node_without_a_drain() {
        // An empty node, in order of the columns: Ready Degraded Down Draining Drained Booting Failed. The two that drain cannot
        // be without the hold; what they would do is that of the others.
        table(
            "registered:       =        Ready  Ready   Ready  Ready  =       =
             rebooted:         =        Ready  Ready   Ready  Ready  Ready   Ready
             heard:            =        Ready  Ready   =      =      =       =
             silent:           Degraded =      =       Degraded Degraded =   =
             grace over:       -        Down   =       -      -      -       -
             drain set:        =        =      =       Ready  Ready  =       =
             last share gone:  =        =      =       Drained =     =       =
             share found:      =        =      =       =      -      =       =
             drain lifted:     =        =      =       Ready  Ready  =       =
             disabled:         Down     Down   =       Down   Down   Down    Down
             hardware failed:  Down     Down   =       Down   Down   Down    Down
             enabled:          -        -      =       -      -      -       -
             boot begun:       -        -      Booting -      Booting =      Booting
             boot over:        -        -      -       -      -      Failed  =
             confirmed dead:   -        Down   =       -      -      Down    Down
             recovered:        Degraded =      Degraded Degraded Degraded Degraded Degraded",
            facts(false, true, false),
        );
    }

    #[test]
    fn a_drain_stands_over_silence_recovery_and_registration() {
        table(
            "registered:       Draining Draining Draining =  Draining =     =
             rebooted:         Draining Draining Draining =  Draining Draining Draining
             heard:            =        Draining Draining =  =      =       =
             silent:           Degraded =      =       Degraded Degraded =   =
             grace over:       -        Down   =       -      -      -       -
             drain set:        Draining =      =       =      Draining =     =
             last share gone:  =        =      =       -      =      =       =
             share found:      =        =      =       =      Draining =     =
             drain lifted:     =        =      =       Ready  Ready  =       =
             disabled:         Down     Down   =       Down   Down   Down    Down
             hardware failed:  Down     Down   =       Down   Down   Down    Down
             enabled:          -        -      =       -      -      -       -
             boot begun:       -        -      Booting -      Booting =      Booting
             boot over:        -        -      -       -      -      Failed  =
             confirmed dead:   -        Down   =       -      -      Down    Down
             recovered:        Degraded =      Degraded Degraded Degraded Degraded Degraded",
            facts(true, false, false),
        );
        table(
            "registered:       Drained  Drained Drained Drained =   =       =
             rebooted:         Drained  Drained Drained Drained =   Drained Drained
             heard:            =        Drained Drained =     =      =       =
             silent:           Degraded =      =       Degraded Degraded =   =
             grace over:       -        Down   =       -      -      -       -
             drain set:        Drained  =      =       Drained =     =       =
             last share gone:  =        =      =       Drained =     =       =
             share found:      =        =      =       =      -      =       =
             drain lifted:     =        =      =       Ready  Ready  =       =
             disabled:         Down     Down   =       Down   Down   Down    Down
             hardware failed:  Down     Down   =       Down   Down   Down    Down
             enabled:          -        -      =       -      -      -       -
             boot begun:       -        -      Booting -      Booting =      Booting
             boot over:        -        -      -       -      -      Failed  =
             confirmed dead:   -        Down   =       -      -      Down    Down
             recovered:        Degraded =      Degraded Degraded Degraded Degraded Degraded",
            facts(true, true, false),
        );
    }

    #[test]
    fn a_disabled_node_in_every_state() {
        // Only Down, and Degraded behind a recovery of the quorum, are states of a disabled node; what the others would do is that of
        // a node without a drain, but that registering ends Down.
        table(
            "registered:       Down     Down   =       Down   Down   Down    Down
             rebooted:         Down     Down   =       Down   Down   Down    Down
             heard:            =        Down   =       =      =      =       =
             silent:           Degraded =      =       Degraded Degraded =   =
             grace over:       -        Down   =       -      -      -       -
             drain set:        =        =      =       Ready  Ready  =       =
             last share gone:  =        =      =       Drained =     =       =
             share found:      =        =      =       =      -      =       =
             drain lifted:     =        =      =       Ready  Ready  =       =
             disabled:         Down     Down   =       Down   Down   Down    Down
             hardware failed:  Down     Down   =       Down   Down   Down    Down
             enabled:          -        -      =       -      -      -       -
             boot begun:       -        -      -       -      Booting =      Booting
             boot over:        -        -      -       -      -      Failed  =
             confirmed dead:   -        Down   =       -      -      Down    Down
             recovered:        Degraded =      Degraded Degraded Degraded Degraded Degraded",
            facts(false, true, true),
        );
    }

    /// Whatever happens to it, one at a time, and whatever stands beside it.
    #[test]
    fn nothing_but_enabling_takes_a_disabled_node_back() {
        for (draining, empty) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut reached = vec![Down];
            let mut at = 0;
            while let Some(state) = reached.get(at).copied() {
                for event in Event::ALL {
                    reached.extend(next(state, *event, facts(draining, empty, true)).ok().filter(|next| !reached.contains(next)));
                }
                at += 1;
            }
            assert_eq!(reached, [Down, Degraded], "{draining}, {empty}");
        }
    }

    #[test]
    fn a_disabled_node_stays_down_whatever_is_heard_of_it() {
        for event in [
            Event::Registered { rebooted: false },
            Event::Registered { rebooted: true },
            Event::Heard,
            Event::Silent,
            Event::HardwareFailed,
            Event::Enabled,
        ] {
            for draining in [false, true] {
                assert_eq!(next(Down, event, facts(draining, true, true)), Ok(Down), "{event:?}");
            }
        }
        let refused = next(Down, Event::BootBegun, facts(false, true, true)).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "booting is not for a node that is Down: it is for one that is Drained, Failed, or Down and in service"
        );
    }
}
