//! The state machine of a node, without a clock. The ledger uses it for every change of a node's
//! state.
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
//! Where the figure says Ready, a node that still has a drain hold becomes Draining, or Drained if
//! nothing is left on it: only `undrain` lifts a drain, a recovery of the node never does. Draining
//! and Drained nodes become silent in the same way as Ready ones. A node under a drain that reports
//! itself unwell does not become Degraded: it gets no new work anyway, and its drain must be able
//! to complete.
//!
//! | event | source | from | precondition | to |
//! |---|---|---|---|---|
//! | registered | the node's agent | any; Booting and Failed only with a new boot id | in service | at work (1) |
//! | heard again | the leader's clock; if unwell, when a drain is set | Degraded, Down | in service | at work |
//! | silent | the leader's clock, after `node_degraded_after_ms` | Ready, Draining, Drained | | Degraded |
//! | not well (as silent) | the leader's clock, at once when the agent reports it | Ready | no drain | Degraded |
//! | grace over | the leader's clock (2) | Degraded | | Down |
//! | drain set | an operator, or a check on the node (3) | any | | Ready: Draining or Drained; others stay |
//! | last share gone | the node's agent | Draining | no shares | Drained |
//! | share found | the node's agent, after a recovery of the quorum | Drained | shares exist | Draining |
//! | drain lifted | an operator | any | | Draining, Drained: Ready; others stay |
//! | disabled | an operator | any | | Down; its work is ended |
//! | hardware failed | an operator, an external program, or a check on the node | any | | Down |
//! | enabled | an operator, after a disable or a repair | Down | | Down, until heard again |
//! | boot begun | an operator, or the provisioning system | Down, Drained, Failed | in service | Booting |
//! | boot over time | the leader's clock, after `node_boot_ms` | Booting | | Failed |
//! | confirmed dead | an operator or the fencing hook | Degraded, Down, Booting, Failed | silent | Down; work lost |
//! | quorum recovered | the operator who recovers it from a backup | any | | Degraded (4) |
//!
//! 1. Degraded instead of Ready if the agent reports that the node is not well.
//! 2. After another `node_down_after_ms`, and also `node_cut_off_ms` if other nodes still reach it;
//!    both limits depend on what the node is used for.
//! 3. A check does so once for each finding.
//! 4. Nobody knows what happened to the node since the backup.
//!
//! A node is in service if it has neither a disable nor a hardware failure hold. "At work" is
//! Ready, or with a drain hold Draining or Drained. A drain hold is set or lifted even where the
//! state stays. A repeated event changes nothing.
//!
//! There is no state Unknown: a node's record begins with its registration, so no event would lead
//! to it. `lattice node status` shows Unknown for a node that is known only from gossip. After a
//! recovery of the quorum, a node that has not reported yet is Degraded, because its earlier work
//! may still run.
//!
//! Failed boots are not counted: nobody reports them, and a second `boot` command for a Booting
//! node may be a repetition of the first. The boot timeout starts at the first command.

use crate::node::NodeState;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The events in a node's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// Its agent opened a session.
    Registered {
        /// Whether the boot id has changed.
        rebooted: bool,
    },
    /// The leader receives its heartbeats.
    Heard,
    /// The leader has received no heartbeat for too long.
    Silent,
    /// The grace period after that has passed as well.
    GraceOver,
    /// A drain hold was set.
    DrainSet,
    /// The last share on it was released.
    LastShareGone,
    /// After a recovery of the quorum, the node reported shares.
    ShareFound,
    /// The drain hold was lifted.
    DrainLifted,
    /// Taken out of service at once.
    Disabled,
    /// Its hardware failed.
    HardwareFailed,
    /// It was enabled, or its hardware was repaired.
    Enabled,
    /// A boot was started.
    BootBegun,
    /// It did not register in time after a boot.
    BootOver,
    /// Somebody confirmed that nothing runs there any more.
    ConfirmedDead,
    /// The quorum was recovered from a backup.
    QuorumRecovered,
}

impl Event {
    /// One event of each kind.
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
            Self::Heard => "sending heartbeats again",
            Self::Silent => "falling silent",
            Self::GraceOver => "staying silent beyond the grace period",
            Self::DrainSet => "draining",
            Self::LastShareGone => "the end of its last share",
            Self::ShareFound => "finding a share",
            Self::DrainLifted => "undraining",
            Self::Disabled => "disabling",
            Self::HardwareFailed => "a failure of its hardware",
            Self::Enabled => "enabling",
            Self::BootBegun => "booting",
            Self::BootOver => "a boot timeout",
            Self::ConfirmedDead => "confirming it dead",
            Self::QuorumRecovered => "a recovery of the quorum",
        })
    }
}

/// Facts about the node, besides its state, that decide about transitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Whether it has a drain hold after the event.
    pub draining: bool,
    /// Whether it has no shares, neither current nor leaving.
    pub empty: bool,
    /// Whether it has a disable or a hardware failure hold.
    pub disabled: bool,
}

impl Facts {
    /// The state of a node that sends heartbeats and is neither booting nor disabled.
    pub fn at_work(self) -> NodeState {
        match (self.draining, self.empty) {
            (false, _) => NodeState::Ready,
            (true, false) => NodeState::Draining,
            (true, true) => NodeState::Drained,
        }
    }
}

/// The event is not possible in this state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Illegal {
    /// The node's state.
    pub state: NodeState,
    /// The refused event.
    pub event: Event,
}

impl fmt::Display for Illegal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not possible for a node that is {}{}", self.event, self.state, needs(self.event))
    }
}

impl std::error::Error for Illegal {}

/// The states in which the event is possible, if they are one or two.
fn needs(event: Event) -> &'static str {
    match event {
        Event::BootBegun => ": only for one that is Drained, Failed, or Down and in service",
        Event::Enabled => ": only for one that is Down",
        Event::ConfirmedDead => ": only for one that is silent",
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

/// The node's state after the event; see the table in the module documentation.
///
/// # Errors
/// [`Illegal`]: the state stays.
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
            // Until it reboots, these heartbeats come from the agent of the earlier boot.
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
        // A drain that was set by mistake can be lifted while it is in progress.
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

    /// Checks transitions against a table taken from the documents: a line for each event, a column
    /// for each of [`STATES`]; `-` is illegal, `=` stays.
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
        // An empty node; columns: Ready Degraded Down Draining Drained Booting Failed. Draining and
        // Drained cannot occur without the drain hold; their columns are the same as in the other
        // tables.
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
        // A disabled node can only be Down, or Degraded after a recovery of the quorum. The other
        // columns are those of a node without a drain, except that registering leads to Down.
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

    /// Any single event, with any facts.
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
            "booting is not possible for a node that is Down: only for one that is Drained, Failed, or Down and in service"
        );
    }
}
