//! The status of the quorum.

use super::ended::EndedWorkJson;
use super::values::time;
use crate::v1;
use crate::v1::quorum_status_response::{Count, Member, Notified};
use serde::Serialize;
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// The quorum, as one of its members knows it.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = QuorumStatus)]
pub struct QuorumStatusJson {
    cluster: String,
    /// The member that answered.
    answered_by: u64,
    /// Null: none is known.
    leader: Option<u64>,
    term: u64,
    revision: u64,
    generation: u64,
    level: u32,
    /// After a recovery from a backup: the nodes that have not reported yet what they run.
    awaited: Vec<String>,
    audit_records: u64,
    /// The members, with their progress if the leader answered.
    pub members: Vec<MemberJson>,
    /// How many nodes are in each state.
    nodes: BTreeMap<String, u32>,
    /// How many allocations are in each state.
    allocations: BTreeMap<String, u32>,
    ended: EndedWorkJson,
    notified: Vec<NotifiedJson>,
    /// How many nodes fell silent together.
    held_back: u64,
    /// What is wrong with the members' clocks; empty: nothing is known to be.
    clocks: String,
    /// How many calls the member has refused, by the reason.
    refused: BTreeMap<String, u64>,
}

/// A member of the quorum.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = QuorumMember)]
pub struct MemberJson {
    id: u64,
    role: String,
    votes: bool,
    match_index: Option<u64>,
    level: Option<u32>,
    certificate_until: Option<String>,
    /// What its disk lacks; empty: nothing is known to be wrong.
    disk: String,
    service: String,
    raft: String,
}

/// The progress of one channel of notifications.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Notified)]
pub struct NotifiedJson {
    channel: String,
    /// All audit records up to this one were delivered.
    delivered_seq: u64,
    last_error: String,
}

impl From<&Member> for MemberJson {
    fn from(m: &Member) -> Self {
        Self {
            id: m.id,
            role: m.role.clone(),
            votes: m.votes,
            match_index: m.match_index,
            level: m.level,
            certificate_until: time(m.certificate_until_ms),
            disk: m.disk.clone(),
            service: m.service.clone(),
            raft: m.raft.clone(),
        }
    }
}

impl From<&Notified> for NotifiedJson {
    fn from(n: &Notified) -> Self {
        Self { channel: n.channel.clone(), delivered_seq: n.delivered_seq, last_error: n.last_error.clone() }
    }
}

impl From<&v1::QuorumStatusResponse> for QuorumStatusJson {
    fn from(status: &v1::QuorumStatusResponse) -> Self {
        let counts = |counts: &[Count]| counts.iter().map(|c| (c.state.clone(), c.count)).collect();
        Self {
            cluster: status.cluster.clone(),
            answered_by: status.answered_by,
            leader: status.leader,
            term: status.term,
            revision: status.revision,
            generation: status.generation,
            level: status.level,
            awaited: status.awaited.clone(),
            audit_records: status.audit_records,
            members: status.members.iter().map(MemberJson::from).collect(),
            nodes: counts(&status.nodes),
            allocations: counts(&status.allocations),
            ended: EndedWorkJson::from(&status.ended.unwrap_or_default()),
            notified: status.notified.iter().map(NotifiedJson::from).collect(),
            held_back: status.held_back,
            clocks: status.clocks.clone(),
            refused: status.refused.iter().map(|r| (r.kind.clone(), r.count)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_by_state_and_a_certificate_has_a_time() {
        let member = Member { id: 2, role: "leader".into(), votes: true, certificate_until_ms: 1_772_704_812_034, ..Default::default() };
        let status = v1::QuorumStatusResponse {
            cluster: "lattice".into(),
            members: vec![member],
            nodes: vec![Count { state: "Ready".into(), count: 3 }],
            ..Default::default()
        };
        let json = serde_json::to_value(QuorumStatusJson::from(&status)).unwrap();
        assert_eq!((&json["nodes"], &json["leader"]), (&serde_json::json!({ "Ready": 3 }), &serde_json::Value::Null));
        assert_eq!(json["members"][0]["certificate_until"], "2026-03-05T10:00:12.034Z");
        assert_eq!(json["ended"]["count"], 0);
    }
}
