//! Agents' sessions: the messages in both directions.

use lattice_ledger::{HeldShare, Keyring, NodeHealth};
use lattice_model::conformance::Components;
use lattice_model::{
    AllocationId, Boot, DesiredList, Epoch, Generation, Incarnation, Locality, NodeAddresses, NodeId, NodeReport, ReportItem, Resources,
    Timestamp,
};
use serde::{Deserialize, Serialize};

/// Messages from an agent to a member.
#[expect(clippy::large_enum_variant, reason = "a session has one registration, and its other messages are few")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Up {
    /// Opens the session. The answer is [`Down::Registered`].
    Register {
        node: NodeId,
        boot: Boot,
        size: Resources,
        addresses: NodeAddresses,
        schedulable: bool,
        /// Its previous incarnation, 0 at the first start: the quorum issues a higher one.
        incarnation: Incarnation,
        /// Whether the agent has been restarted (a reconnection without a restart keeps the
        /// incarnation).
        new_life: bool,
        /// The node's incarnation in the ledger, as far as the agent knows; `None`: unknown. If the registration takes
        /// work from the node's last life and the ledger has another incarnation, the answer is [`Down::RegisterAgain`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        replaces: Option<Incarnation>,
        /// The resources that its kernel cannot limit; see [`lattice_model::Node::unenforced_limits`].
        unenforced_limits: Vec<String>,
        /// The features that work may request; see [`lattice_model::Node::features`].
        features: Vec<String>,
        /// The part of the network that the node is in; see [`lattice_model::Node::topology_group`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        topology_group: Option<String>,
        /// A summary of the node's wiring; see [`lattice_model::Node::locality`].
        #[serde(default, skip_serializing_if = "Locality::is_unknown")]
        locality: Locality,
        /// From an agent that lost its state or never had one: the work that it found on the node.
        /// All other shares recorded by the quorum are lost.
        found: Option<Vec<(AllocationId, Epoch)>>,
        /// The gossip keys that it has.
        keys: HeldKeys,
        /// The agent that relays this session, if no member can be reached directly.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        relay_node: Option<NodeId>,
        /// Whether the agent is configured with the site's wipe hook.
        has_wipe_hook: bool,
        /// The agent's assessment of its node: an unwell node does not become Ready.
        health: NodeHealth,
        /// The node's software and firmware, if already examined: so whoever sees the node Ready
        /// also sees these.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        conformance: Option<Components>,
    },
    /// All shares of the node and its pending reports: a quorum recovered from a backup does not know
    /// them. Sent once, before anything else, if the quorum's generation is higher than that of the
    /// agent's last list. The agent stops no work until it has a list of the new generation.
    Holds { incarnation: Incarnation, held: Vec<HeldShare>, unreported: Vec<ReportItem> },
    /// A heartbeat. Sent about every `heartbeat_ms`, and at once when the gossip keys change.
    Heartbeat {
        incarnation: Incarnation,
        seq: u64,
        /// The gossip keys that it has.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        keys: Option<HeldKeys>,
        /// The agent's assessment of its node.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        health: Option<NodeHealth>,
        /// The node's software and firmware: at the beginning of a session, and when they change.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        conformance: Option<Components>,
        /// Whether the agent has been unable to examine software and firmware for too long.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        stale: bool,
        /// Number of shares on the node, in any phase; `None` while it has reports that the ledger
        /// has not received.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        running: Option<u32>,
    },
    /// The wipe of [`DesiredList::wipe`] has ended; `failed`: what went wrong. Repeated until the
    /// list contains it no longer.
    Wiped {
        order: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failed: Option<String>,
    },
    /// A report to be committed; repeated until acknowledged.
    Report(NodeReport),
    /// The answer to a [`Down::QueryGossip`]: the nodes that are alive in this agent's gossip.
    AliveInGossip { alive: Vec<NodeId> },
}

/// Messages from a member to an agent in its session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Down {
    /// The registration is committed.
    Registered {
        incarnation: Incarnation,
        generation: Generation,
        cluster: String,
        heartbeat_ms: u64,
        /// The last acknowledged report of this incarnation.
        report_seq: u64,
        /// The members, for the next connection.
        members: MemberList,
    },
    /// The ledger has this incarnation of the node, and the registration would have taken its work without naming it.
    /// The session ends; a live agent registers again, and names this incarnation. So a registration that was delayed,
    /// for example in a stopped member, takes nothing from a later life of its node.
    RegisterAgain { incarnation: Incarnation },
    /// The members changed.
    Members(MemberList),
    /// The complete list for the node. Sent after registration and after each change that concerns
    /// the node.
    Desired(DesiredList),
    /// Reports up to `seq` of this incarnation are committed. `superseded`: claims in those reports
    /// that are no longer current ([`super::Refusal::StaleEpoch`]): the node must stop their work.
    Acked { incarnation: Incarnation, seq: u64, superseded: Vec<(AllocationId, Epoch)> },
    /// The leader has received this heartbeat.
    HeartbeatAck { seq: u64 },
    /// The session ends; connect to another member.
    Close { why: String },
    /// The node was removed, for this reason: every member refuses it until an operator has
    /// admitted it again. The session ends.
    Removed { why: String },
    /// This member has become the leader, and leaves sessions to the others: connect to the next
    /// one.
    Move,
    /// The gossip keys, after [`Down::Registered`] and at each change; not sent while agents use
    /// the key of their configuration. The newest keyring (by generation, then by revision) is
    /// valid, whoever sent it last.
    Keyring { generation: Generation, ring: Keyring },
    /// Revoked names, each with the time before which their certificates were issued: all of them
    /// after [`Down::Registered`], later only new ones.
    Revoked { names: Vec<(String, Timestamp)> },
    /// The quorum receives nothing from these nodes: which of them are alive in the agent's gossip?
    QueryGossip { nodes: Vec<NodeId> },
}

/// The voting members. The newest list is valid, whoever sent it last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberList {
    /// The quorum's generation: lists of a recovered quorum are newer than all earlier ones.
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

/// The gossip keys that an agent has on its disk and in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldKeys {
    /// The ids of the keys with which it decrypts.
    pub opens: Vec<u32>,
    /// The id of the key with which it encrypts.
    pub seals: u32,
}

impl HeldKeys {
    /// Largest number of ids to accept: an agent cannot have more.
    const IDS_MAX: usize = 8;

    /// These ids, cut to the limit.
    pub fn bounded(mut self) -> Self {
        self.opens.truncate(Self::IDS_MAX);
        self
    }
}

/// When a session may be moved to another member, as stated by the agent that opened the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MayMove {
    /// Later: no other member accepted it a moment ago.
    Later,
    Now,
}

impl MayMove {
    /// Parses a request's header.
    pub fn read(header: Option<&str>) -> Option<Self> {
        [Self::Later, Self::Now].into_iter().find(|may_move| header == Some(may_move.header()))
    }

    /// The value for a request's header.
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

    /// Ten thousand agents send a heartbeat every ten seconds.
    #[test]
    fn a_heartbeat_takes_about_two_hundred_bytes() {
        let keys = HeldKeys { opens: (0..HeldKeys::IDS_MAX as u32).map(|n| u32::MAX - n).collect(), seals: u32::MAX };
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
    fn a_header_is_read_as_it_was_written() {
        for may_move in [MayMove::Later, MayMove::Now] {
            assert_eq!(MayMove::read(Some(may_move.header())), Some(may_move));
        }
        assert_eq!((MayMove::read(None), MayMove::read(Some("soon"))), (None, None));
    }
}
