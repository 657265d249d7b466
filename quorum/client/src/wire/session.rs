//! An agent's session: what goes up it, and what comes down.

use lattice_ledger::{HeldShare, Keyring, NodeHealth};
use lattice_model::conformance::Components;
use lattice_model::{
    AllocationId, Boot, DesiredList, Epoch, Generation, Incarnation, NodeAddresses, NodeId, NodeReport, ReportItem, Resources, Timestamp,
};
use serde::{Deserialize, Serialize};

/// From an agent, up its session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Up {
    /// Opens the session; answered by [`Down::Registered`].
    Register {
        node: NodeId,
        boot: Boot,
        size: Resources,
        addresses: NodeAddresses,
        schedulable: bool,
        /// The incarnation it had before, 0 at the first start: the quorum issues a higher one.
        incarnation: Incarnation,
        /// Whether this is a new life of the agent (a reconnect of the same life keeps its incarnation).
        new_life: bool,
        /// What its kernel cannot limit; see [`lattice_model::Node::unlimited`].
        unlimited: Vec<String>,
        /// What work may ask for of it; see [`lattice_model::Node::features`].
        features: Vec<String>,
        /// Said by an agent that lost its memory, or never had one: what it found of its work on the node. All else that
        /// the quorum believes there is lost.
        found: Option<Vec<(AllocationId, Epoch)>>,
        /// The gossip keys that it has.
        keys: HeldKeys,
        /// The agent that carries this session, where no member was reached without.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        through: Option<NodeId>,
        /// Whether it has the site's hook that wipes the node.
        wipes: bool,
        /// How it finds its node: one that is not well is never Ready.
        health: NodeHealth,
        /// What its software and firmware are, where its agent has looked already: who sees it Ready knows that as well.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        conformance: Option<Components>,
    },
    /// All that the node has and has not reported yet, said once to a quorum of a higher generation than its last list's,
    /// before anything else: a quorum that was recovered from a backup does not know it. It stops nothing until it has a
    /// list of that generation.
    Holds { incarnation: Incarnation, held: Vec<HeldShare>, unreported: Vec<ReportItem> },
    /// I live. About every `heartbeat_ms`, and as soon as the gossip keys are others.
    Heartbeat {
        incarnation: Incarnation,
        seq: u64,
        /// The gossip keys that it has.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        keys: Option<HeldKeys>,
        /// How it finds its node.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        health: Option<NodeHealth>,
        /// What the node's software and firmware are: at the beginning of a session, and when they are others.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        conformance: Option<Components>,
        /// That it could not look at these for too long.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        stale: bool,
        /// How many shares are on the node, in whatever phase; none while it has reports that the ledger does not know.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        running: Option<u32>,
    },
    /// The wipe of [`DesiredList::wipe`] is over; `failed`: what went wrong. Said until the list lacks it.
    Wiped {
        order: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failed: Option<String>,
    },
    /// Something to be committed; sent again until acknowledged.
    Report(NodeReport),
    /// The answer to a [`Down::Hear`]: those of the nodes that this agent's gossip has alive.
    Hears { alive: Vec<NodeId> },
}

/// From a member, down an agent's session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Down {
    /// The registration is committed.
    Registered {
        incarnation: Incarnation,
        generation: Generation,
        cluster: String,
        heartbeat_ms: u64,
        /// The last report of this incarnation that was acknowledged.
        report_seq: u64,
        /// Who the members are, for the next connect.
        members: MemberList,
    },
    /// The members changed.
    Members(MemberList),
    /// All that the node is to do now. Sent after registration and after each change that concerns the node.
    Desired(DesiredList),
    /// Reports up to `seq` of this incarnation are committed. `superseded`: claims that some of them spoke of and that do not
    /// stand any more ([`super::Refusal::StaleEpoch`]): the node stops what it has of them.
    Acked { incarnation: Incarnation, seq: u64, superseded: Vec<(AllocationId, Epoch)> },
    /// A leader-acknowledged heartbeat.
    HeartbeatAck { seq: u64 },
    /// The session is over; connect to another member.
    Close { why: String },
    /// This member leads now, and leaves sessions to the others: the next one takes it.
    Move,
    /// The gossip keys, behind [`Down::Registered`] and at each change; none while agents use their configuration's. The newest ring
    /// (by generation, then by its revision) is the true one, whoever sent it last.
    Keyring { generation: Generation, ring: Keyring },
    /// Names whose certificates count no more, each with the time before which they were issued: all of them behind
    /// [`Down::Registered`], later those that are new.
    Revoked { names: Vec<(String, Timestamp)> },
    /// Nothing comes of these nodes to the quorum: which of them does gossip have alive?
    Hear { nodes: Vec<NodeId> },
}

/// The members that vote, as agents need them. The newest list is the true one, whoever sent it last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberList {
    /// Of the recovery: a recovered quorum's lists are newer than all before.
    pub generation: Generation,
    /// The log index of the membership.
    pub since: u64,
    /// Every member's service address, `host:port`.
    pub services: Vec<String>,
}

impl MemberList {
    /// Whether this list is newer than `other`.
    pub fn is_newer_than(&self, other: &Self) -> bool {
        (self.generation, self.since) > (other.generation, other.since)
    }
}

/// The gossip keys that an agent has, on its disk and in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldKeys {
    /// Their ids.
    pub opens: Vec<u32>,
    /// The id of the one that it seals with.
    pub seals: u32,
}

impl HeldKeys {
    /// More ids than an agent can have are not believed.
    const MAX: usize = 8;

    /// As far as it is believed.
    pub fn bounded(mut self) -> Self {
        self.opens.truncate(Self::MAX);
        self
    }
}

/// When a session may be sent on, as its agent said when it opened it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MayMove {
    /// No other member took it a moment ago.
    Later,
    Now,
}

impl MayMove {
    /// From a request's header.
    pub fn read(header: Option<&str>) -> Option<Self> {
        [Self::Later, Self::Now].into_iter().find(|may_move| header == Some(may_move.header()))
    }

    /// For a request's header.
    pub const fn header(self) -> &'static str {
        match self {
            Self::Later => "later",
            Self::Now => "now",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_api::pack::pack;

    /// Ten thousand agents send one every ten seconds.
    #[test]
    fn a_heartbeat_takes_about_two_hundred_bytes() {
        let keys = HeldKeys { opens: (0..HeldKeys::MAX as u32).map(|n| u32::MAX - n).collect(), seals: u32::MAX };
        let beat = |health| {
            let (incarnation, seq, keys) = (Incarnation(u64::MAX), u64::MAX, Some(keys.clone()));
            pack(&Up::Heartbeat { incarnation, seq, keys, health: Some(health), conformance: None, stale: false, running: Some(u32::MAX) })
                .unwrap()
                .body
                .len()
        };
        assert!(beat(NodeHealth::Well) <= 200, "{} bytes", beat(NodeHealth::Well));
        let unwell = beat(NodeHealth::Unwell { why: "fabric: link 3 is down since 10:00, 4 errors in its window".into(), drain: None });
        assert!(unwell <= 240, "{unwell} bytes");
    }

    #[test]
    fn what_an_agent_says_is_what_a_member_reads() {
        for may_move in [MayMove::Later, MayMove::Now] {
            assert_eq!(MayMove::read(Some(may_move.header())), Some(may_move));
        }
        assert_eq!((MayMove::read(None), MayMove::read(Some("soon"))), (None, None));
    }
}
