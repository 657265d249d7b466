//! What a user sees of others' allocations if the site sets `private: true`: which nodes they hold,
//! from when and until when, but neither their owner nor their purpose. Operators and system admins
//! see everything, as does root while it acts for everybody; admins of a tenant see everything of the
//! tenant's work. A caller within an allocation sees everything only of its owner's allocations,
//! whatever the owner's roles are, and even if the owner is root.

use super::Api;
use super::caller::Caller;
use lattice_api::v1;
use lattice_model::access::Roles;
use lattice_model::{Allocation, Principal};
use tonic::Status;

/// A caller who reads others' allocations, with the roles that it had when its call began.
#[derive(Clone, Debug)]
pub(super) struct Viewer {
    uid: u32,
    sees_all: bool,
    /// Only the tenants of which it is an admin matter.
    roles: Roles,
}

impl Api {
    /// What this caller sees of others' allocations. The quorum is asked for the caller's roles only
    /// where they matter. If it does not answer, the caller sees its own allocations alone.
    pub(super) async fn viewer(&self, caller: &Caller) -> Viewer {
        match self.known_viewer(caller).await {
            Ok(viewer) => viewer,
            Err(error) => {
                tracing::debug!(%error, user = caller.principal.name, "a user's roles are not known: others' work stays hidden");
                Viewer::of(caller, Roles::default())
            }
        }
    }

    /// As [`Self::viewer`], for an answer that has others' work only if `has_others`: else the quorum is not asked.
    pub(super) async fn viewer_if(&self, caller: &Caller, has_others: bool) -> Viewer {
        if has_others { self.viewer(caller).await } else { Viewer::of(caller, Roles::default()) }
    }

    /// What this caller sees of others' allocations.
    ///
    /// # Errors
    /// The quorum did not answer, and the caller's roles matter.
    pub(super) async fn known_viewer(&self, caller: &Caller) -> Result<Viewer, Status> {
        if !needs_roles(caller) {
            return Ok(Viewer::of(caller, Roles::default()));
        }
        if self.is_operator_here(caller) {
            return Ok(Viewer::all(caller));
        }
        // The quorum answers for users only to agents that vouch for them.
        if !self.site.vouches {
            return Ok(Viewer::of(caller, Roles::default()));
        }
        Ok(Viewer::of(caller, self.standing(caller).await?.roles))
    }
}

/// Whether what the caller sees depends on its roles.
fn needs_roles(caller: &Caller) -> bool {
    caller.private && caller.within.is_none()
}

/// Whether these roles show everything of everybody.
pub(super) fn sees_all_by_role(roles: &Roles) -> bool {
    roles.operator || roles.system_admin || roles.root
}

impl Viewer {
    /// Work of an allocation has no roles: `roles` are ignored for it.
    pub(super) fn of(caller: &Caller, roles: Roles) -> Self {
        let roles = if caller.within.is_none() { roles } else { Roles::default() };
        let sees_all = !caller.private || sees_all_by_role(&roles);
        Self { uid: caller.principal.uid, sees_all, roles }
    }

    fn all(caller: &Caller) -> Self {
        Self { uid: caller.principal.uid, sees_all: true, roles: Roles::default() }
    }

    /// Whether this viewer sees names and owners of all allocations.
    pub(super) fn sees_all(&self) -> bool {
        self.sees_all
    }

    /// Whether this viewer sees names and owners of all allocations of this tenant.
    pub(super) fn sees_tenant(&self, tenant: &str) -> bool {
        self.sees_all || self.roles.admin_of.contains(tenant)
    }

    /// Whether this viewer sees the name and the owner of this allocation, which may have ended.
    pub(super) fn sees_allocation(&self, allocation: &Allocation) -> bool {
        self.sees(allocation.owner.uid, self.tenant_of(allocation))
    }

    /// The tenant whose admins see the allocation; empty: none.
    pub(super) fn tenant_of<'a>(&self, allocation: &'a Allocation) -> &'a str {
        self.roles.administered(&allocation.spec.tenant, allocation.ended_at)
    }

    /// Whether this viewer sees names and owners of this user's allocations in this tenant (empty: of no
    /// tenant).
    pub(super) fn sees(&self, owner_uid: u32, tenant: &str) -> bool {
        owner_uid == self.uid || self.sees_tenant(tenant)
    }

    /// An allocation as this viewer may see it.
    pub(super) fn allocation(&self, owner: &Principal, tenant: &str, full: v1::Allocation) -> v1::Allocation {
        if self.sees(owner.uid, tenant) {
            return full;
        }
        v1::Allocation {
            id: full.id,
            number: full.number,
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
    pub(super) fn local(&self, owner: &Principal, tenant: &str, full: v1::LocalAllocation) -> v1::LocalAllocation {
        if self.sees(owner.uid, tenant) {
            return full;
        }
        v1::LocalAllocation { name: String::new(), owner: String::new(), detail: String::new(), ..full }
    }

    /// A share that a drain waits for, as this viewer may see it.
    pub(super) fn wait(&self, owner: &Principal, tenant: &str, full: v1::NodeWait) -> v1::NodeWait {
        if self.sees(owner.uid, tenant) {
            return full;
        }
        v1::NodeWait { name: String::new(), owner: String::new(), detail: String::new(), ..full }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_agent_common::config::work::WorkMay;
    use lattice_model::{AllocationId, Timestamp, test_builders};
    use std::collections::BTreeSet;

    fn principal(uid: u32) -> Principal {
        Principal { name: format!("u{uid}"), uid, gid: uid, groups: vec![] }
    }

    fn caller(uid: u32, within: Option<AllocationId>, private: bool) -> Caller {
        let method = "AllocationService/List".to_owned();
        Caller { principal: principal(uid), within, network: None, work_may: WorkMay::AsOwner, private, method }
    }

    fn work() -> Option<AllocationId> {
        Some(AllocationId(uuid::Uuid::from_u128(1)))
    }

    fn admin_of(tenant: &str) -> Roles {
        Roles { admin_of: BTreeSet::from([tenant.to_owned()]), ..Roles::default() }
    }

    #[test]
    fn where_the_site_hides_names_owners_see_their_own_and_roles_show_more() {
        let of = |roles: &Roles| Viewer::of(&caller(7, None, true), roles.clone());
        let (none, operator) = (Roles::default(), Roles { operator: true, ..Roles::default() });
        let (system_admin, root) = (Roles { system_admin: true, ..none.clone() }, Roles { root: true, ..none.clone() });
        assert!(of(&none).sees(7, "physics") && !of(&none).sees(8, "physics") && !of(&none).sees(8, "") && !of(&none).sees_all());
        for roles in [operator, system_admin, root] {
            assert!(of(&roles).sees_all() && of(&roles).sees(8, "") && of(&roles).sees_tenant("physics"), "{roles:?}");
        }
        let admin = of(&admin_of("physics"));
        assert!(admin.sees(8, "physics") && admin.sees(7, "") && admin.sees_tenant("physics"));
        assert!(!admin.sees(8, "chemistry") && !admin.sees(8, "") && !admin.sees_tenant("") && !admin.sees_all());
        assert!(Viewer::of(&caller(7, None, false), none).sees_all(), "the site hides nothing");
    }

    #[test]
    fn an_admin_sees_nothing_of_work_that_ended_before_its_tenant_was_created() {
        let admin_since = [("physics".to_owned(), Timestamp(50))].into();
        let admin = Viewer::of(&caller(7, None, true), Roles { admin_since, ..admin_of("physics") });
        let mut allocation = test_builders::allocation(work().unwrap());
        "physics".clone_into(&mut test_builders::spec_of(&mut allocation).tenant);
        for (ended_at, sees) in [(None, true), (Some(60), true), (Some(40), false)] {
            allocation.ended_at = ended_at.map(Timestamp);
            assert_eq!(admin.sees_allocation(&allocation), sees, "{ended_at:?}");
        }
    }

    #[test]
    fn work_of_an_allocation_sees_no_more_by_its_owners_roles() {
        let roles = Roles { operator: true, system_admin: true, root: true, ..admin_of("physics") };
        for uid in [0, 7] {
            let viewer = Viewer::of(&caller(uid, work(), true), roles.clone());
            assert!(viewer.sees(uid, "") && !viewer.sees(8, "physics") && !viewer.sees_all(), "{uid}");
        }
        assert!(Viewer::of(&caller(7, work(), false), Roles::default()).sees_all(), "the site hides nothing");
    }

    #[test]
    fn roles_matter_only_where_names_are_hidden_and_outside_allocations() {
        assert!(needs_roles(&caller(7, None, true)));
        assert!(!needs_roles(&caller(7, None, false)) && !needs_roles(&caller(7, work(), true)));
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
        let viewer = |uid, roles| Viewer::of(&caller(uid, None, true), roles);
        let hidden = viewer(7, Roles::default()).allocation(&principal(8), "physics", full.clone());
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
        assert_eq!(viewer(8, Roles::default()).allocation(&principal(8), "physics", full.clone()), full);
        assert_eq!(viewer(7, admin_of("physics")).allocation(&principal(8), "physics", full.clone()), full);
    }
}
