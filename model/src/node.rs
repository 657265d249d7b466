//! The record of one node that the quorum agrees on.

use crate::conformance::Conformance;
use crate::ids::{AllocationId, Boot, Epoch, Incarnation, NodeId, Revision};
use crate::locality::Locality;
use crate::resources::Resources;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The state of a node. Holds are recorded separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum NodeState {
    /// Being booted; it is silent until it registers with a new boot id.
    Booting,
    /// Accepts work, unless a hold keeps work off it.
    Ready,
    /// Silent for longer than the heartbeat window, unwell without a drain, or not heard yet since
    /// the quorum was recovered from a backup. It keeps its work and gets no new work.
    Degraded,
    /// Silent for longer than the grace period as well, disabled, with failed hardware, or
    /// confirmed dead.
    Down,
    /// Under a drain, while work on it continues.
    Draining,
    /// Under a drain, without work.
    Drained,
    /// Did not return in time from a boot.
    Failed,
}

impl NodeState {
    /// Every state.
    pub const ALL: [Self; 7] = [Self::Booting, Self::Ready, Self::Degraded, Self::Down, Self::Draining, Self::Drained, Self::Failed];

    /// The state with this name, in any case.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.to_string().eq_ignore_ascii_case(name))
    }

    /// Whether no heartbeats are expected from it: it is Down, Booting or Failed.
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

/// A reason, besides its state, that keeps new work off a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Hold {
    /// The kind.
    pub kind: HoldKind,
    /// Who set it first.
    pub by: String,
    /// The latest reason from that person, or all reasons from that daemon ([`Hold::restate`]).
    pub reason: String,
    /// Others who set the same hold, each once.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_reasons: Vec<HoldReason>,
    /// When it was first set.
    pub since: Timestamp,
    /// When it ends by itself; `None`: only when it is lifted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
    /// Only for a drain: when work that is still there is ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
}

/// The reason of a hold that was set without one.
pub const NO_REASON: &str = "no reason was given";

/// The reason of somebody who set a hold that existed already.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct HoldReason {
    /// Who set it.
    pub by: String,
    /// The reason.
    pub reason: String,
}

impl Hold {
    /// A hold set by one person or program.
    pub fn new(kind: HoldKind, by: &str, reason: &str, since: Timestamp) -> Self {
        let (by, reason) = (by.to_owned(), reason.to_owned());
        Self { kind, by, reason, more_reasons: Vec::new(), since, until: None, deadline: None }
    }

    /// All reasons in one text, starting with the first setter's.
    pub fn reasons(&self) -> String {
        let mut all = vec![self.reason.as_str()];
        for other in &self.more_reasons {
            if !all.contains(&other.reason.as_str()) {
                all.push(&other.reason);
            }
        }
        all.join("; ")
    }

    /// Adds a reason. A person's new reason replaces that person's earlier one. A reason of the
    /// quorum or of a node's agent is appended to its earlier ones, unless somebody already gave
    /// it. A new setter is added only with a reason that nobody gave yet. [`NO_REASON`] changes
    /// nothing.
    pub fn restate(&mut self, by: &str, reason: &str) {
        if reason == NO_REASON {
            return;
        }
        let is_daemon = by == "quorum" || by.starts_with("node:");
        let is_known = self.reasons().split("; ").any(|known| known == reason);
        let earlier = if self.by == by {
            &mut self.reason
        } else if let Some(other) = self.more_reasons.iter_mut().find(|other| other.by == by) {
            &mut other.reason
        } else {
            if !is_known {
                self.more_reasons.push(HoldReason { by: by.to_owned(), reason: reason.to_owned() });
            }
            return;
        };
        if !is_daemon {
            reason.clone_into(earlier);
        } else if !is_known {
            *earlier = format!("{earlier}; {reason}");
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
    /// No new work: the node is not trusted or is broken.
    Quarantine,
    /// No new work: maintenance is planned.
    Maintenance,
    /// No new work, and the node becomes Drained when its current work has ended.
    Drain,
    /// Out of service at once: the node becomes Down, and its work is ended.
    Disable,
    /// A check, an operator or an external program reports a hardware failure: the node becomes
    /// Down at once. Work with `--on-isolation=stop` is ended; other work is treated like that of
    /// any other Down node.
    Failure,
    /// No new work until the site's wipe hook confirms that nothing of former work is left on the
    /// node.
    Wipe,
}

impl HoldKind {
    /// Every kind.
    pub const ALL: [Self; 7] = [Self::Cordon, Self::Quarantine, Self::Maintenance, Self::Drain, Self::Disable, Self::Failure, Self::Wipe];

    /// The kind with this name.
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
            // Needed only if the wipe failed; a successful wipe lifts the hold.
            Self::Wipe => "lattice node wipe --force",
        }
    }

    /// Whether a hold of this kind may have an end time. A drain may not: the passing of time does
    /// not show that the work on the node is done. Broken or disabled nodes stay so until somebody
    /// has looked, and a wipe until it is confirmed.
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

/// A time: absolute, or relative to the moment at which the request is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum When {
    /// This time.
    At(Timestamp),
    /// This many milliseconds later.
    AfterMs(u64),
}

impl When {
    /// The absolute time, for a request executed at `now`.
    pub fn from(self, now: Timestamp) -> Timestamp {
        match self {
            Self::At(at) => at,
            Self::AfterMs(ms) => Timestamp(now.0.saturating_add(ms)),
        }
    }
}

/// The addresses of a node's agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAddresses {
    /// The mesh (QUIC), `host:port`.
    pub mesh: String,
    /// Gossip (UDP), `host:port`.
    pub gossip: String,
}

/// The user and the tenant of work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkOwner {
    /// The user's id.
    pub uid: u32,
    /// The tenant's name; empty: none.
    pub tenant: String,
    /// Whether its shares are on a node only with shares of the same user.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_exclusive: bool,
}

/// A share of a claim that has ended, which its node has not reported as released yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaving {
    /// The allocation.
    pub allocation: AllocationId,
    /// The epoch of that claim.
    pub epoch: Epoch,
    /// How much of the node.
    pub resources: Resources,
    /// Whether it was removed while the node was silent. Until the node reports that nothing is
    /// left, it gets no new work.
    pub fenced: bool,
    /// Who owns the allocation, which may have ended and then is in no list of work. `None`:
    /// unknown.
    pub owner: Option<WorkOwner>,
}

/// The progress of a node's wipe; its hold is recorded separately.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wipe {
    /// The number of this wipe: each number is executed once.
    pub order: u64,
    /// What went wrong: the wipe is then not retried automatically.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

/// Prefix of [`Node::state_reason`] when a node sends heartbeats and its agent reports that it is
/// not well: it is Degraded, or under a drain.
pub const UNWELL: &str = "not well: ";

/// Prefix of [`Node::state_reason`] when a node is silent towards the quorum but other nodes still
/// reach it.
pub const CUT_OFF: &str = "its way to the quorum is lost: ";

/// One node as recorded by the quorum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// Its size as last registered. A claim never takes more than is free of it; if the node
    /// shrank, its present shares may exceed it.
    pub size: Resources,
    /// The addresses of its agent.
    pub addresses: NodeAddresses,
    /// Whether it accepts work at all (a login node does not).
    pub schedulable: bool,
    /// The boot id with which it registered.
    pub boot: Boot,
    /// Its agent's current incarnation.
    pub incarnation: Incarnation,
    /// Its state.
    pub state: NodeState,
    /// The reason for the state, for people. Usually empty when Ready; a node whose size grew when
    /// it registered says so here.
    pub state_reason: String,
    /// When it entered this state.
    pub state_since: Timestamp,
    /// The resources that its kernel cannot limit for work (`memory`, `pids`, …), as registered by
    /// the agent.
    pub unenforced_limits: Vec<String>,
    /// The features that work may request (`nvme_scratch`, `gpu`, …), as registered by the agent;
    /// see [`crate::constraint`].
    pub features: Vec<String>,
    /// The part of the network that it is in, as registered by the agent. `None`: the site configures
    /// none. All such nodes count as one group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology_group: Option<String>,
    /// A summary of its wiring, as registered by the agent.
    #[serde(default, skip_serializing_if = "Locality::is_unknown")]
    pub locality: Locality,
    /// Its holds, which keep new work off it.
    pub holds: Vec<Hold>,
    /// Shares of claims that have ended, which the agent has not yet reported as released: they
    /// still count against the node's size.
    pub leaving: Vec<Leaving>,
    /// The node that relays its session if it cannot reach a member itself; as of its latest
    /// registration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relay_node: Option<NodeId>,
    /// The vCluster that owns it. Empty: none, so it serves [`crate::DEFAULT_VCLUSTER`] and every
    /// vCluster without nodes of its own.
    pub home: String,
    /// Its latest conformance report; `None`: there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conformance: Option<Conformance>,
    /// Whether its agent is configured with the site's wipe hook.
    pub has_wipe_hook: bool,
    /// The requested wipe, as long as the wipe hold exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wipe: Option<Wipe>,
    /// The latest drain request of its own checks that was granted, identified by its time (agent's
    /// clock).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_requested_at: Option<Timestamp>,
    /// The revision at which something last changed that a claim depends on: a hold set or lifted,
    /// the state, size, features, topology group, locality, `schedulable` or conformance. A claim is
    /// valid only for this revision.
    pub hold_revision: Revision,
    /// The sequence number of its agent's latest acknowledged report within the incarnation.
    pub report_seq: u64,
    /// The ledger's revision at the latest change of this record.
    pub revision: Revision,
}

impl Node {
    /// Whether it sends heartbeats and its agent reports that it is not well: it is Degraded
    /// because of that, or under a drain.
    pub fn is_unwell(&self) -> bool {
        let sends_heartbeats = match self.state {
            NodeState::Degraded | NodeState::Draining | NodeState::Drained => true,
            NodeState::Ready | NodeState::Down | NodeState::Booting | NodeState::Failed => false,
        };
        sends_heartbeats && self.state_reason.starts_with(UNWELL)
    }

    /// Whether it is Degraded because the quorum receives nothing from it while other nodes still
    /// reach it.
    pub fn is_cut_off(&self) -> bool {
        self.state == NodeState::Degraded && self.state_reason.starts_with(CUT_OFF)
    }

    /// The hold of this kind, if set.
    pub fn hold(&self, kind: HoldKind) -> Option<&Hold> {
        self.holds.iter().find(|h| h.kind == kind)
    }

    /// The hold that keeps it Down even while it sends heartbeats.
    pub fn out_of_service(&self) -> Option<&Hold> {
        self.hold(HoldKind::Disable).or_else(|| self.hold(HoldKind::Failure))
    }

    /// Why no new work may be placed here, as far as the quorum knows; `None`: work may be placed.
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
                    "has not reported yet that nothing is left of allocation {}, which was taken from it while it was silent",
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
