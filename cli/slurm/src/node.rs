//! Nodes, as Slurm names their states.

use lattice_api::v1;
use lattice_model::{DEFAULT_VCLUSTER, NodeState};

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Use {
    /// It is out of service.
    Down,
    /// It is being booted.
    PoweringUp,
    /// Nothing runs on it.
    Idle,
    /// All of it belongs to work.
    Allocated,
    /// A part of it belongs to work.
    Mixed,
}

/// A node's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct State {
    /// What it does.
    pub use_: Use,
    /// Whether new work is kept off it.
    pub is_draining: bool,
    /// Whether it does not answer.
    pub is_silent: bool,
}

impl State {
    /// The state of a node.
    pub fn of(node: &v1::Node) -> Self {
        let state = NodeState::from_name(&node.state);
        let has_work = !node.allocations.is_empty();
        let use_ = match state {
            Some(NodeState::Down | NodeState::Failed) | None => Use::Down,
            Some(NodeState::Booting) => Use::PoweringUp,
            Some(NodeState::Ready | NodeState::Degraded | NodeState::Draining | NodeState::Drained) => match &node.committed {
                _ if !has_work => Use::Idle,
                Some(committed) if committed.cores < node.cores => Use::Mixed,
                Some(_) | None => Use::Allocated,
            },
        };
        let is_silent = matches!(use_, Use::Idle | Use::Allocated | Use::Mixed) && matches!(node.gossip.as_str(), "suspect" | "down");
        let is_unwell = state == Some(NodeState::Degraded) && !is_silent;
        let is_drained = matches!(state, Some(NodeState::Draining | NodeState::Drained));
        Self { use_, is_draining: is_drained || is_unwell || !node.holds.is_empty(), is_silent }
    }

    /// As sinfo writes it: `idle`, `drng`, `down*`.
    pub fn compact(self) -> String {
        let name = match (self.use_, self.is_draining) {
            (Use::Down, _) => "down",
            (Use::PoweringUp, _) => "pow_up",
            (Use::Idle, true) => "drain",
            (Use::Allocated | Use::Mixed, true) => "drng",
            (Use::Idle, false) => "idle",
            (Use::Allocated, false) => "alloc",
            (Use::Mixed, false) => "mix",
        };
        self.marked(name)
    }

    /// As `sinfo --long` writes it: `allocated`, `draining`.
    pub fn long(self) -> String {
        let name = match (self.use_, self.is_draining) {
            (Use::Down, _) => "down",
            (Use::PoweringUp, _) => "powering_up",
            (Use::Idle, true) => "drained",
            (Use::Allocated | Use::Mixed, true) => "draining",
            (Use::Idle, false) => "idle",
            (Use::Allocated, false) => "allocated",
            (Use::Mixed, false) => "mixed",
        };
        self.marked(name)
    }

    /// As scontrol writes it: `IDLE`, `MIXED+DRAIN`.
    pub fn flags(self) -> String {
        let base = match self.use_ {
            Use::Down => "DOWN",
            Use::PoweringUp => "IDLE+POWERING_UP",
            Use::Idle => "IDLE",
            Use::Allocated => "ALLOCATED",
            Use::Mixed => "MIXED",
        };
        let drain = if self.is_draining { "+DRAIN" } else { "" };
        self.marked(&format!("{base}{drain}"))
    }

    fn marked(self, name: &str) -> String {
        if self.is_silent { format!("{name}*") } else { name.to_owned() }
    }

    /// Whether it is in a state that a user named, such as `idle` or `DRAIN`. `None`: Slurm has no such state.
    pub fn is(self, name: &str) -> Option<bool> {
        let works = matches!(self.use_, Use::Allocated | Use::Mixed);
        let is_free = !self.is_draining;
        Some(match name.to_ascii_lowercase().as_str() {
            "alloc" | "allocated" => self.use_ == Use::Allocated && is_free,
            "mix" | "mixed" => self.use_ == Use::Mixed && is_free,
            "idle" => self.use_ == Use::Idle && is_free,
            "down" => self.use_ == Use::Down,
            "drain" => self.is_draining,
            "drained" => self.is_draining && self.use_ == Use::Idle,
            "draining" | "drng" => self.is_draining && works,
            "no_respond" => self.is_silent,
            "powering_up" | "pow_up" => self.use_ == Use::PoweringUp,
            "cloud" | "comp" | "completing" | "fail" | "failing" | "future" | "futr" | "maint" | "npc" | "perfctrs" | "planned"
            | "plnd" | "power_down" | "powering_down" | "powered_down" | "pow_dn" | "reboot_issued" | "reboot_requested" | "resv"
            | "reserved" | "unk" | "unknown" => false,
            _ => return None,
        })
    }

    /// Whether work may be placed there at any time: it is neither down nor kept from new work.
    pub fn is_usable(self) -> bool {
        !self.is_draining && !matches!(self.use_, Use::Down | Use::PoweringUp)
    }
}

/// The vCluster to which a node belongs.
pub fn vcluster(node: &v1::Node) -> &str {
    if node.vcluster.is_empty() { DEFAULT_VCLUSTER } else { node.vcluster.as_str() }
}

/// Why it is down or drained, in a line; empty: there is no reason.
pub fn reason(node: &v1::Node) -> String {
    if node.holds.is_empty() {
        return node.reason.clone();
    }
    node.holds.iter().map(|hold| hold_parts(hold).1).collect::<Vec<_>>().join("; ")
}

/// Who keeps new work off it; `None`: nobody.
pub fn drained_by(node: &v1::Node) -> Option<&str> {
    node.holds.first().and_then(|hold| hold_parts(hold).0)
}

/// Who set a hold, and why: parts of a text such as `cordon by ada since 2026-03-05T10:00:12.034Z: fan`.
fn hold_parts(hold: &str) -> (Option<&str>, &str) {
    let by = hold.split_once(" by ").map(|(_, rest)| rest.split([' ', ':']).next().unwrap_or(rest));
    let reason = hold.split_once(": ").map_or(hold, |(_, reason)| reason);
    (by, reason)
}

/// Its GPUs, as Slurm writes generic resources: `gpu:4`.
pub fn gres(gpus: u32) -> String {
    if gpus == 0 { crate::units::NULL.to_owned() } else { format!("gpu:{gpus}") }
}

/// The number of a node's sockets; if it is not known, the number of its memory domains.
pub fn sockets(node: &v1::Node) -> u32 {
    let known = if node.sockets > 0 { node.sockets } else { u32::try_from(node.domains.len()).unwrap_or(1) };
    known.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(state: &str, committed: Option<u32>, holds: &[&str], gossip: &str) -> v1::Node {
        v1::Node {
            state: state.into(),
            cores: 64,
            committed: Some(v1::Amount { cores: committed.unwrap_or(0), ..Default::default() }),
            allocations: committed.map(|_| "1f0c9a4e".to_owned()).into_iter().collect(),
            holds: holds.iter().map(|hold| (*hold).to_owned()).collect(),
            gossip: gossip.into(),
            ..Default::default()
        }
    }

    #[test]
    fn states_follow_from_work_holds_and_silence() {
        let hold = ["cordon by ada since 2026-03-05T10:00:12.034Z: fan"];
        for (node, compact, flags) in [
            (node("Ready", None, &[], "alive"), "idle", "IDLE"),
            (node("Ready", Some(64), &[], "alive"), "alloc", "ALLOCATED"),
            (node("Ready", Some(3), &[], "alive"), "mix", "MIXED"),
            (node("Ready", Some(3), &hold, "alive"), "drng", "MIXED+DRAIN"),
            (node("Drained", None, &hold, "alive"), "drain", "IDLE+DRAIN"),
            (node("Degraded", None, &[], "suspect"), "idle*", "IDLE*"),
            (node("Degraded", Some(64), &[], "alive"), "drng", "ALLOCATED+DRAIN"),
            (node("Down", None, &[], "down"), "down", "DOWN"),
            (node("Booting", None, &[], ""), "pow_up", "IDLE+POWERING_UP"),
        ] {
            let state = State::of(&node);
            assert_eq!((state.compact().as_str(), state.flags().as_str()), (compact, flags));
        }
        let drained = node("Drained", None, &hold, "alive");
        assert_eq!((State::of(&drained).is("DRAIN"), State::of(&drained).is("idle")), (Some(true), Some(false)));
        assert_eq!((State::of(&drained).is("sleepy"), State::of(&drained).is("maint")), (None, Some(false)));
        assert_eq!((reason(&drained).as_str(), drained_by(&drained)), ("fan", Some("ada")));
        assert_eq!(State::of(&drained).long(), "drained");
    }
}
