//! What a user sees of others' allocations if the site sets `private: true`: which nodes they hold,
//! from when and until when, but neither their owner nor their purpose. Operators see everything. A caller
//! within an allocation sees everything only of its owner's allocations, even if the owner is root.

use super::caller::{Caller, is_operator};
use lattice_api::v1;
use lattice_model::Principal;

/// A caller who reads others' allocations.
#[derive(Clone, Copy, Debug)]
pub(super) struct Viewer {
    uid: u32,
    sees_all: bool,
}

impl Viewer {
    pub(super) fn of(caller: &Caller) -> Self {
        let is_operator = caller.within.is_none() && is_operator(&caller.principal);
        Self { uid: caller.principal.uid, sees_all: !caller.private || is_operator }
    }

    /// Whether this viewer sees names and owners of all allocations.
    pub(super) fn sees_all(&self) -> bool {
        self.sees_all
    }

    /// Whether this viewer sees names and owners of this user's allocations.
    pub(super) fn sees(&self, owner_uid: u32) -> bool {
        self.sees_all || owner_uid == self.uid
    }

    /// An allocation as this viewer may see it.
    pub(super) fn allocation(&self, owner: &Principal, full: v1::Allocation) -> v1::Allocation {
        if self.sees(owner.uid) {
            return full;
        }
        v1::Allocation {
            id: full.id,
            state: full.state,
            nodes: full.nodes,
            nodes_requested: full.nodes_requested,
            nodes_requested_max: full.nodes_requested_max,
            share: full.share,
            epoch: full.epoch,
            vcluster: full.vcluster,
            // The ids of a group and its lanes, or of a service and its replicas, differ only in their beginnings.
            lane_of: full.lane_of,
            lane_number: full.lane_number,
            replica_of: full.replica_of,
            replica_number: full.replica_number,
            queue_position: full.queue_position,
            held: full.held,
            walltime_seconds: full.walltime_seconds,
            submitted_at_ms: full.submitted_at_ms,
            claimed_at_ms: full.claimed_at_ms,
            started_at_ms: full.started_at_ms,
            ended_at_ms: full.ended_at_ms,
            expected_start_ms: full.expected_start_ms,
            ..Default::default()
        }
    }

    /// An allocation of this node as this viewer may see it.
    pub(super) fn local(&self, owner: &Principal, full: v1::LocalAllocation) -> v1::LocalAllocation {
        if self.sees(owner.uid) {
            return full;
        }
        v1::LocalAllocation { name: String::new(), owner: String::new(), detail: String::new(), ..full }
    }

    /// A share that a drain waits for, as this viewer may see it.
    pub(super) fn wait(&self, owner: &Principal, full: v1::NodeWait) -> v1::NodeWait {
        if self.sees(owner.uid) {
            return full;
        }
        v1::NodeWait { name: String::new(), owner: String::new(), detail: String::new(), ..full }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_agent_common::config::work::WorkMay;
    use lattice_model::AllocationId;

    fn principal(uid: u32) -> Principal {
        Principal { name: format!("u{uid}"), uid, gid: uid, groups: vec![] }
    }

    fn viewer(uid: u32, within: Option<AllocationId>, private: bool) -> Viewer {
        Viewer::of(&Caller { principal: principal(uid), within, work_may: WorkMay::AsOwner, private })
    }

    #[test]
    fn where_the_site_hides_names_operators_and_owners_alone_see_them() {
        let work = Some(AllocationId(uuid::Uuid::from_u128(1)));
        assert!(viewer(7, None, false).sees(8) && viewer(7, None, true).sees(7) && viewer(0, None, true).sees(8));
        assert!(!viewer(7, None, true).sees(8));
        assert!(!viewer(0, work, true).sees(8), "work of root is no operator");
    }

    #[test]
    fn nothing_of_a_hidden_allocation_names_a_person_or_a_purpose() {
        let full = v1::Allocation {
            id: "id".into(),
            name: "merger".into(),
            state: "Failed".into(),
            reason: "cancelled by u8".into(),
            owner: "u8".into(),
            nodes: vec!["n1".into()],
            tenant: "physics".into(),
            uenv: "/home/u8/env.sqfs".into(),
            telemetry: "by u8".into(),
            status_message: "waits for u9".into(),
            lane_of: "group".into(),
            lane_number: 3,
            replica_of: "service".into(),
            replica_number: 4,
            scaling: Some(v1::Scaling { replicas_max: 4, ..Default::default() }),
            scaling_state: Some(v1::ScalingState { wanted: 3, ..Default::default() }),
            submitted_at_ms: 5,
            expected_start_ms: Some(9),
            ..Default::default()
        };
        let hidden = viewer(7, None, true).allocation(&principal(8), full.clone());
        let wanted = v1::Allocation {
            id: "id".into(),
            state: "Failed".into(),
            nodes: vec!["n1".into()],
            lane_of: "group".into(),
            lane_number: 3,
            replica_of: "service".into(),
            replica_number: 4,
            submitted_at_ms: 5,
            expected_start_ms: Some(9),
            ..Default::default()
        };
        assert_eq!(hidden, wanted);
        assert_eq!(viewer(8, None, true).allocation(&principal(8), full.clone()), full);
    }
}
