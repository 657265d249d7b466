//! Network domains and services: which names a caller may see, and where a domain is not enforced.
//!
//! A tenant with members is closed to users who are neither members nor admins of it: for them, its services and
//! domains do not exist. A caller that names no tenant sees those of its own work; operators and system admins see all.
//! The quorum is asked only if its answer can matter: not for the own tenant of an allocation's work, not for root or
//! the agent's user, and not if the agent's own watch shows that none of the tenants in question exists. A tenant
//! without a record has no members.

use super::Api;
use super::api::QUORUM_TIMEOUT;
use super::caller::Caller;
use super::privacy::sees_all_by_role;
use super::refusal::{status, unexpected};
use super::rights::without_granted_roles;
use lattice_agent_common::config::work::WorkMay;
use lattice_api::v1;
use lattice_ledger::Action;
use lattice_membership::cluster::Cluster;
use lattice_model::access::Standing;
use lattice_model::constraint::CXI;
use lattice_model::network::DomainState;
use lattice_model::{Allocation, Node, NodeId, hostlist};
use lattice_quorum_client::wire::{Answer, Request as Ask, VniPoolChange};
use lattice_scheduler::Table;
use std::collections::BTreeSet;
use tonic::{Request, Status};

impl Api {
    /// The tenants whose names the caller may see; `None`: all. `named`: only this one, or none if it is closed to the
    /// caller.
    async fn tenants_of<T>(&self, request: &Request<T>, named: Option<String>) -> Result<Option<Vec<String>>, Status> {
        let caller = self.caller(request).await?;
        if let Some(id) = caller.within {
            let missing = || Status::unavailable(format!("allocation {} is not known here yet; try again in a moment", id.short()));
            let own = self.context.work.allocations.get(id).ok_or_else(missing)?.share.spec.tenant.clone();
            match &named {
                Some(tenant) if *tenant != own && caller.work_may == WorkMay::OwnAllocation => {
                    let text =
                        format!("this process is work of allocation {}, of tenant {own:?}, and may see that tenant alone", id.short());
                    return Err(Status::permission_denied(text));
                }
                Some(tenant) if *tenant != own => {}
                Some(_) | None => return Ok(Some(vec![own])),
            }
        }
        let user = self.user(request).await?;
        if self.is_operator_here(&caller) {
            return Ok(named.map(|tenant| vec![tenant]));
        }
        let cluster = self.cluster.borrow().clone();
        let may_see_all = named.is_none() && caller.within.is_none() && may_have_tenants(&cluster);
        let asked = named.map_or_else(|| tenants_with_work_of(user.uid, &cluster), |tenant| vec![tenant]);
        if !may_see_all && !may_be_closed(&asked, &cluster) {
            return Ok(Some(asked));
        }
        let standing = self.standing_about(&caller, asked.iter().cloned().collect()).await?;
        if may_see_all && sees_all_by_role(&standing.roles) {
            return Ok(None);
        }
        Ok(Some(open_tenants(asked, &caller, standing)))
    }

    pub(super) async fn vni_pool(&self) -> Result<v1::VniPool, Status> {
        match self.quorum.call(&Ask::GetVniPool, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
            Answer::VniPool(now) => Ok(v1::VniPool {
                start: now.pool.start,
                end: now.pool.end,
                grace_ms: now.pool.grace_ms,
                used: now.used,
                outside: now.outside,
            }),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) async fn set_vni_pool(&self, request: Request<v1::SetVniPoolRequest>) -> Result<v1::VniPool, Status> {
        let operator = self.operator(&request).await?;
        let v1::SetVniPoolRequest { start, end, grace_ms } = request.into_inner();
        let ask = Action::SetVniPool { change: VniPoolChange { start, end, grace_ms }, by: operator.name.clone() };
        self.done(&operator.asks(ask)).await?;
        self.vni_pool().await
    }

    pub(super) async fn domains(&self, request: Request<v1::ListNetworkDomainsRequest>) -> Result<v1::ListNetworkDomainsResponse, Status> {
        let tenants = self.tenants_of(&request, request.get_ref().tenant.clone()).await?;
        let name = Some(request.into_inner().name).filter(|name| !name.is_empty());
        let found = match self.quorum.call(&Ask::ListDomains { tenants, name }, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
            Answer::Domains(found) => found,
            other => return Err(unexpected(&other)),
        };
        let domains = found.into_iter().map(|d| v1::NetworkDomain {
            tenant: d.tenant,
            name: d.name,
            vni: d.vni,
            grace_ms: d.grace_ms,
            members: d.members.iter().map(ToString::to_string).collect(),
            state: d.state.to_string(),
            left_ms: match d.state {
                DomainState::Grace { left_ms } => Some(left_ms),
                DomainState::Active | DomainState::Leaving => None,
            },
            nodes: d.nodes.iter().map(ToString::to_string).collect(),
        });
        Ok(v1::ListNetworkDomainsResponse { domains: domains.collect() })
    }

    pub(super) async fn services(&self, request: Request<v1::ListServicesRequest>) -> Result<v1::ListServicesResponse, Status> {
        let tenants = self.tenants_of(&request, request.get_ref().tenant.clone()).await?;
        let (services, more) = match self.quorum.call(&Ask::ListServices { tenants }, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
            Answer::Services { services, more } => (services, more),
            other => return Err(unexpected(&other)),
        };
        let services = services.into_iter().map(|s| v1::list_services_response::Service {
            tenant: s.tenant,
            name: s.name,
            endpoints: s.endpoints,
            allocations: s.allocations,
        });
        Ok(v1::ListServicesResponse { services: services.collect(), more })
    }

    pub(super) async fn lookup(&self, request: Request<v1::LookupServiceRequest>) -> Result<v1::LookupServiceResponse, Status> {
        let tenants = self.tenants_of(&request, request.get_ref().tenant.clone()).await?;
        let ask = Ask::LookupService { name: request.into_inner().name, tenants };
        let (endpoints, more) = match self.quorum.call(&ask, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
            Answer::Endpoints { endpoints, more } => (endpoints, more),
            other => return Err(unexpected(&other)),
        };
        let endpoints = endpoints.into_iter().map(|e| v1::lookup_service_response::Endpoint {
            tenant: e.tenant,
            allocation: e.allocation.to_string(),
            node: e.node.to_string(),
            host: e.host,
            port: e.port.into(),
            protocol: e.protocol,
        });
        Ok(v1::LookupServiceResponse { endpoints: endpoints.collect(), more })
    }
}

/// The tenants of a user's work that has not ended.
fn tenants_with_work_of(uid: u32, cluster: &Cluster) -> Vec<String> {
    let own = cluster.allocations.values().filter(|a| a.owner.uid == uid && !a.state.is_terminal());
    own.map(|a| a.spec.tenant.clone()).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Whether there may be any tenant, as far as this agent knows.
fn may_have_tenants(cluster: &Cluster) -> bool {
    !cluster.fresh || !cluster.tenants.is_empty()
}

/// Whether one of these tenants may have members, as far as this agent knows.
fn may_be_closed(tenants: &[String], cluster: &Cluster) -> bool {
    tenants.iter().any(|tenant| !tenant.is_empty() && (!cluster.fresh || cluster.tenants.contains_key(tenant)))
}

/// The tenants that are not closed to the caller. Work of an allocation has no roles, even if its user is an admin.
fn open_tenants(mut tenants: Vec<String>, caller: &Caller, standing: Standing) -> Vec<String> {
    let is_work = caller.within.is_some();
    let Standing { roles, closed_to_it, .. } = if is_work { without_granted_roles(standing) } else { standing };
    let sees_all = !is_work && sees_all_by_role(&roles);
    tenants.retain(|tenant| sees_all || !closed_to_it.contains(tenant));
    tenants
}

/// Where an allocation's network domain is not enforced, and what to do about it; empty if it has
/// no domain or no nodes.
pub(super) fn unenforced(allocation: &Allocation, nodes: &Table<NodeId, Node>) -> String {
    let (name, Some(vni)) = (&allocation.spec.connectivity.network_domain, allocation.vni) else { return String::new() };
    let has_cxi = |id: &&NodeId| nodes.get(*id).is_some_and(|n| n.features.iter().any(|f| f == CXI));
    // Nodes that this agent does not know are left out.
    let (with, without): (Vec<&NodeId>, Vec<&NodeId>) = allocation.nodes().filter(|id| nodes.contains_key(*id)).partition(has_cxi);
    let mut parts = Vec::new();
    if !without.is_empty() {
        let on = hostlist::fold(without);
        parts.push(format!(
            "{on}: no CXI device is known there, so {name:?} is a name and a number (VNI {vni}) and isolates nothing; --constraint {CXI} asks for \
             nodes that have one"
        ));
    }
    if !with.is_empty() {
        let on = hostlist::fold(with);
        parts.push(format!(
            "{on}: VNI {vni} holds where a CXI service was made for it, by the fabric's manager (fabric_manager.url) or by the site's prologue \
             (LATTICE_VNI)"
        ));
    }
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::access::Roles;
    use lattice_model::{AllocationId, AllocationState, NodeState, Principal, Resources, Share, SharePhase, Tenant, test_builders};
    use uuid::Uuid;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn caller(within: Option<AllocationId>) -> Caller {
        let principal = Principal { name: "alice".into(), uid: 7, gid: 7, groups: vec![] };
        let method = "AdminService/ListServices".to_owned();
        Caller { principal, within, network: None, work_may: WorkMay::AsOwner, private: false, method }
    }

    #[test]
    fn a_closed_tenant_is_left_out_unless_a_role_shows_everything_outside_allocations() {
        let closed_to_it = BTreeSet::from(["physics".to_owned()]);
        let standing = |roles: Roles| Standing { roles, closed_to_it: closed_to_it.clone(), ..Standing::default() };
        let open = |caller: &Caller, roles: Roles| open_tenants(names(&["chemistry", "physics"]), caller, standing(roles));
        let (outside, within) = (caller(None), caller(Some(AllocationId(Uuid::from_u128(1)))));
        assert_eq!(open(&outside, Roles::default()), ["chemistry"]);
        for roles in [
            Roles { operator: true, ..Roles::default() },
            Roles { system_admin: true, ..Roles::default() },
            Roles { root: true, ..Roles::default() },
        ] {
            assert_eq!(open(&outside, roles.clone()), ["chemistry", "physics"], "{roles:?}");
            assert_eq!(open(&within, roles.clone()), ["chemistry"], "{roles:?}");
        }
        assert!(open_tenants(names(&["physics"]), &outside, standing(Roles::default())).is_empty(), "as if it did not exist");
    }

    #[test]
    fn work_sees_no_tenant_with_members_because_its_user_is_an_admin_of_it() {
        let tenants = BTreeSet::from(["physics".to_owned()]);
        let roles = Roles { admin_of: tenants.clone(), ..Roles::default() };
        let standing = Standing { roles, member_of: tenants.clone(), by_role: tenants, ..Standing::default() };
        let open = |caller: &Caller| open_tenants(names(&["physics"]), caller, standing.clone());
        assert_eq!(open(&caller(None)), ["physics"]);
        assert!(open(&caller(Some(AllocationId(Uuid::from_u128(1))))).is_empty());
    }

    #[test]
    fn the_quorum_is_asked_only_about_tenants_that_exist() {
        let physics = Tenant { name: "physics".into(), ..Tenant::default() };
        let known = Cluster { fresh: true, tenants: [(physics.name.clone(), physics)].into(), ..Cluster::default() };
        assert!(may_be_closed(&names(&["chemistry", "physics"]), &known));
        assert!(!may_be_closed(&names(&["", "chemistry"]), &known) && !may_be_closed(&[], &known));
        assert!(may_have_tenants(&known) && !may_have_tenants(&Cluster { fresh: true, ..Cluster::default() }));
        let stale = Cluster { fresh: false, ..Cluster::default() };
        assert!(may_be_closed(&names(&["chemistry"]), &stale), "what the agent knows may be old");
        assert!(may_have_tenants(&stale) && !may_be_closed(&names(&[""]), &stale), "work of no tenant");
    }

    #[test]
    fn a_users_tenants_are_those_of_work_that_has_not_ended() {
        let work = |number: u128, tenant: &str, state| {
            let mut allocation = test_builders::allocation(AllocationId(Uuid::from_u128(number)));
            allocation.state = state;
            test_builders::spec_of(&mut allocation).tenant = tenant.to_owned();
            (allocation.id, allocation)
        };
        let all = [
            work(1, "physics", AllocationState::Running),
            work(2, "chemistry", AllocationState::Pending),
            work(3, "physics", AllocationState::Pending),
            work(4, "biology", AllocationState::Completed),
        ];
        let cluster = Cluster { allocations: all.into_iter().collect(), ..Cluster::default() };
        assert_eq!(tenants_with_work_of(test_builders::user().uid, &cluster), ["chemistry", "physics"]);
        assert!(tenants_with_work_of(7, &cluster).is_empty());
    }

    fn node(id: &str, features: &[&str]) -> (NodeId, Node) {
        let features = features.iter().map(|f| (*f).to_owned()).collect();
        let node = Node { features, ..test_builders::node(id, NodeState::Ready) };
        (node.id.clone(), node)
    }

    #[test]
    fn each_node_reports_whether_it_enforces_the_domain() {
        let mut allocation = test_builders::allocation("1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap());
        test_builders::spec_of(&mut allocation).connectivity.network_domain = "ml".into();
        let nodes: Table<_, _> = [node("n1", &["gpu"]), node("n2", &[CXI])].into();
        assert_eq!(unenforced(&allocation, &nodes), "", "it waits");
        allocation.vni = Some(1000);
        let share = |n: &str| Share { node: n.parse().unwrap(), resources: Resources::default(), phase: SharePhase::Claimed };
        // Nothing is known of n3.
        allocation.shares = ["n1", "n2", "n3"].map(share).into();
        let text = unenforced(&allocation, &nodes);
        assert!(text.starts_with("n1: no CXI device") && text.contains("VNI 1000") && text.contains("--constraint cxi"), "{text}");
        assert!(text.contains("; n2: VNI 1000 holds where a CXI service was made"), "{text}");
    }
}
