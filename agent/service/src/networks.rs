//! Network domains and services: which names a caller may see, and where a domain is not enforced.

use super::Api;
use super::api::QUORUM_TIMEOUT;
use super::caller::is_operator;
use super::refusal::{status, unexpected};
use lattice_agent_common::config::work::WorkMay;
use lattice_api::v1;
use lattice_ledger::Action;
use lattice_model::constraint::CXI;
use lattice_model::network::DomainState;
use lattice_model::{Allocation, Node, NodeId, hostlist};
use lattice_quorum_client::wire::{Answer, Request as Ask, VniPoolChange};
use lattice_scheduler::Table;
use std::collections::BTreeSet;
use tonic::{Request, Status};

impl Api {
    /// The tenants whose names the caller may see; `None`: all. If it names one, that one:
    /// membership in tenants is not checked.
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
        if let Some(tenant) = named {
            return Ok(Some(vec![tenant]));
        }
        if is_operator(&user) {
            return Ok(None);
        }
        let cluster = self.cluster.borrow();
        let own = cluster.allocations.values().filter(|a| a.owner.uid == user.uid && !a.state.is_terminal());
        Ok(Some(own.map(|a| a.spec.tenant.clone()).collect::<BTreeSet<_>>().into_iter().collect()))
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
    use lattice_model::{NodeState, Resources, Share, SharePhase, test_builders};

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
