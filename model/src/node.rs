//! What the cluster has agreed about one node.

use crate::conformance::Conformance;
use crate::ids::{AllocationId, Boot, Epoch, Incarnation, NodeId, Revision};
use crate::resources::Resources;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where a node stands. Holds stand beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum NodeState {
    /// Being booted; nothing is heard of it until it registers under another boot id.
    Booting,
    /// Takes work.
    Ready,
    /// Silent for longer than the heartbeat window, or unwell and under no drain: keeps its work, gets no more.
    Degraded,
    /// Silent for longer than the grace as well, or disabled.
    Down,
    /// Under a drain, with work on it that goes on.
    Draining,
    /// Under a drain, and empty.
    Drained,
    /// Not back in time from a boot.
    Failed,
}

impl NodeState {
    /// Every state.
    pub const ALL: [Self; 7] = [Self::Booting, Self::Ready, Self::Degraded, Self::Down, Self::Draining, Self::Drained, Self::Failed];

    /// The state of this name, in any case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.to_string().eq_ignore_ascii_case(name))
    }

    /// Whether nobody waits for a word of it: it is Down, or is being booted, or did not come back from that.
    pub fn is_away(self) -> bool {
        match self {
            Self::Down | Self::Booting | Self::Failed => true,
            Self::Ready | Self::Degraded | Self::Draining | Self::Drained => false,
        }
    }
}

impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Booting => "Booting",
            Self::Ready => "Ready",
            Self::Degraded => "Degraded",
            Self::Down => "Down",
            Self::Draining => "Draining",
            Self::Drained => "Drained",
            Self::Failed => "Failed",
        })
    }
}

/// What keeps new work off a node, beside its state.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Hold {
    /// Which.
    pub kind: HoldKind,
    /// Who set it.
    pub by: String,
    /// Why, as who set it said last.
    pub reason: String,
    /// Others who set it as well, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<HoldReason>,
    /// When it was set first.
    pub since: Timestamp,
    /// When it ends by itself; `None`: when it is lifted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Of a drain: when the work that is still there is ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
}

/// The reason of a hold for which none was given.
pub const NO_REASON: &str = "no reason was given";

/// Why somebody wants a hold that another one set before.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HoldReason {
    /// Who.
    pub by: String,
    /// Why.
    pub reason: String,
}

impl Hold {
    /// One that nobody else set as well.
    pub fn new(kind: HoldKind, by: &str, reason: &str, since: Timestamp) -> Self {
        let (by, reason) = (by.to_owned(), reason.to_owned());
        Self { kind, by, reason, also: Vec::new(), since, until: None, deadline: None }
    }

    /// All reasons in one text, that of who set it first.
    pub fn reasons(&self) -> String {
        let mut all = vec![self.reason.as_str()];
        for other in &self.also {
            if !all.contains(&other.reason.as_str()) {
                all.push(&other.reason);
            }
        }
        all.join("; ")
    }

    /// Takes another reason: a person's replaces what that person said before, a daemon's is added to what it said before. What
    /// somebody said already is not said again, and [`NO_REASON`] replaces none.
    pub fn restate(&mut self, by: &str, reason: &str) {
        if reason == NO_REASON {
            return;
        }
        let is_daemon = by == "quorum" || by.starts_with("node:");
        let is_known = self.reasons().split("; ").any(|known| known == reason);
        let said = if self.by == by {
            &mut self.reason
        } else if let Some(other) = self.also.iter_mut().find(|other| other.by == by) {
            &mut other.reason
        } else {
            if !is_known {
                self.also.push(HoldReason { by: by.to_owned(), reason: reason.to_owned() });
            }
            return;
        };
        if !is_daemon {
            reason.clone_into(said);
        } else if !is_known {
            *said = format!("{said}; {reason}");
        }
    }
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {} since {}", self.kind, self.by, self.since)?;
        if let Some(until) = self.until {
            write!(f, " until {until}")?;
        }
        if let Some(deadline) = self.deadline {
            write!(f, ", work ends at {deadline}")?;
        }
        write!(f, ": {}", self.reasons())
    }
}

/// The kinds of [`Hold`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum HoldKind {
    /// No new work.
    Cordon,
    /// As a cordon, for a node that is not trusted or is broken.
    Quarantine,
    /// As a cordon, for planned work on the node.
    Maintenance,
    /// As a cordon, and the node is Drained when what runs there has ended.
    Drain,
    /// Out of service at once: the node is Down, and what ran there is ended.
    Disable,
    /// Its hardware failed, as a check or somebody outside says: Down at once. Work there is that of a node that is Down.
    Failure,
    /// As a cordon, until the site's hook on the node confirms that nothing of its former work is left there.
    Wipe,
}

impl HoldKind {
    /// Every kind.
    pub const ALL: [Self; 7] = [Self::Cordon, Self::Quarantine, Self::Maintenance, Self::Drain, Self::Disable, Self::Failure, Self::Wipe];

    /// The kind of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.to_string() == name)
    }

    /// The command that lifts it.
    pub fn exit(self) -> &'static str {
        match self {
            Self::Cordon => "lattice node uncordon",
            Self::Quarantine => "lattice node release",
            Self::Maintenance => "lattice node uncordon --maintenance",
            Self::Drain => "lattice node undrain",
            Self::Disable => "lattice node enable",
            Self::Failure => "lattice node repaired",
            // Where it failed; otherwise it ends by itself.
            Self::Wipe => "lattice node wipe --force",
        }
    }

    /// Whether it may end by itself. A drain does not: that the time is over does not say that the work on the node is done. What
    /// is broken or switched off is so until somebody has looked, and what is to be wiped until that is confirmed.
    pub fn may_end(self) -> bool {
        match self {
            Self::Cordon | Self::Maintenance => true,
            Self::Quarantine | Self::Drain | Self::Disable | Self::Failure | Self::Wipe => false,
        }
    }
}

impl fmt::Display for HoldKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Cordon => "cordon",
            Self::Quarantine => "quarantine",
            Self::Maintenance => "maintenance",
            Self::Drain => "drain",
            Self::Disable => "disable",
            Self::Failure => "failure",
            Self::Wipe => "wipe",
        })
    }
}

/// A moment, by the clock of who carries it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum When {
    /// This one.
    At(Timestamp),
    /// So many milliseconds from then.
    AfterMs(u64),
}

impl When {
    /// The moment, said at `now`.
    pub fn from(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(at) => at,
            Self::AfterMs(ms) => Timestamp(now.0.saturating_add(ms)),
        }
    }
}

/// Where a node's agent is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAddresses {
    /// The mesh (QUIC), `host:port`.
    pub mesh: String,
    /// Gossip (UDP), `host:port`.
    pub gossip: String,
}

/// A share of an allocation's earlier epoch that its node has not yet released.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaving {
    /// Whose it was.
    pub allocation: AllocationId,
    /// Under which epoch.
    pub epoch: Epoch,
    /// How much of the node.
    pub resources: Resources,
    /// Whether it was taken from the node while that was not heard: until it says that nothing is left, it gets nothing new.
    pub fenced: bool,
}

/// How far the wipe of a node is, beside its hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wipe {
    /// Which it is: each is carried out once, and told by this number.
    pub order: u64,
    /// What went wrong with it: it is not tried again by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// What [`Node::state_reason`] begins with where a node is heard and its agent says that it is not well: Degraded, or under a drain.
pub const UNWELL: &str = "not well: ";

/// What [`Node::state_reason`] begins with where a node is silent and other nodes hear it.
pub const CUT_OFF: &str = "its way to the quorum is lost: ";

/// One node as the quorum holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// Its registered size, committed: shares never exceed it.
    pub size: Resources,
    /// Where its agent is reached.
    pub addresses: NodeAddresses,
    /// Whether it takes work at all (a login node does not).
    pub schedulable: bool,
    /// The boot it registered under.
    pub boot: Boot,
    /// Its agent's present incarnation.
    pub incarnation: Incarnation,
    /// Where it stands.
    pub state: NodeState,
    /// Why it stands there, for people; empty when Ready.
    pub state_reason: String,
    /// Since when it stands there.
    pub state_since: Timestamp,
    /// What its kernel cannot limit for work (`memory`, `pids`, …), as the agent registered it.
    pub unlimited: Vec<String>,
    /// What it has that work may ask for (`nvme_scratch`, `gpu`, …), as the agent registered it: see [`crate::constraint`].
    pub features: Vec<String>,
    /// What keeps new work off it.
    pub holds: Vec<Hold>,
    /// Work that lost its claim or was requeued and that the agent has not yet reported as taken away: it still counts.
    pub leaving: Vec<Leaving>,
    /// Who carries its session, where it reaches no member itself; as it last registered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<NodeId>,
    /// The vCluster that has it as its own; empty: none, and it is [`crate::DEFAULT_VCLUSTER`]'s.
    pub home: String,
    /// What its software and firmware are, as it told last; `None`: it has told nothing of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conformance: Option<Conformance>,
    /// Whether its agent has the site's hook that wipes it.
    pub wipes: bool,
    /// The wipe that is asked for, while its hold stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wipe: Option<Wipe>,
    /// The last request of its own checks to be drained that was granted, by the time that it has (its agent's).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_asked: Option<Timestamp>,
    /// The revision at which its holds or state last changed: claims are conditional on it.
    pub hold_revision: Revision,
    /// The sequence number of its agent's last acknowledged report, within the incarnation.
    pub report_seq: u64,
    /// The ledger's revision at its last change.
    pub revision: Revision,
}

impl Node {
    /// Whether it is heard, and its agent says that it is not well: Degraded because of that, or under a drain.
    pub fn is_unwell(&self) -> bool {
        let heard = match self.state {
            NodeState::Degraded | NodeState::Draining | NodeState::Drained => true,
            NodeState::Ready | NodeState::Down | NodeState::Booting | NodeState::Failed => false,
        };
        heard && self.state_reason.starts_with(UNWELL)
    }

    /// Whether it is Degraded because nothing comes of it to the quorum, while other nodes hear it.
    pub fn is_cut_off(&self) -> bool {
        self.state == NodeState::Degraded && self.state_reason.starts_with(CUT_OFF)
    }

    /// The hold of this kind, where it stands.
    pub fn hold(&self, kind: HoldKind) -> Option<&Hold> {
        self.holds.iter().find(|h| h.kind == kind)
    }

    /// The hold that keeps it Down, whatever is heard of it.
    pub fn out_of_service(&self) -> Option<&Hold> {
        self.hold(HoldKind::Disable).or_else(|| self.hold(HoldKind::Failure))
    }

    /// Why no new work may be placed here, as far as the quorum knows.
    pub fn unclaimable(&self) -> Option<String> {
        if !self.schedulable {
            return Some("takes no work (schedulable: false)".to_owned());
        }
        if let Some(hold) = self.holds.first() {
            return Some(format!("is under {hold}"));
        }
        match self.state {
            NodeState::Ready => self.leaving.iter().find(|l| l.fenced).map(|l| {
                format!(
                    "has not said yet that nothing is left of allocation {}, which was taken from it while it was silent",
                    l.allocation.short()
                )
            }),
            NodeState::Booting | NodeState::Degraded | NodeState::Down | NodeState::Draining | NodeState::Drained | NodeState::Failed => {
                let reason = if self.state_reason.is_empty() { String::new() } else { format!(": {}", self.state_reason) };
                Some(format!("is {}{reason}", self.state))
            }
        }
    }
}
