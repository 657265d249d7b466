//! Services: the ports that allocations expose while they run.
//!
//! An endpoint is not stored. It is derived from the allocation and its nodes' addresses, and
//! exists from the commit that makes the allocation Running to the commit that ends that state, or by
//! which a replica is asked to leave.

use super::Ledger;
use lattice_ledger_state::scaled_services::is_asked_to_leave;
use lattice_model::{Allocation, AllocationId, AllocationState, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A service name of a tenant, exposed by running allocations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStatus {
    pub tenant: String,
    pub name: String,
    pub endpoints: u32,
    /// Number of allocations that expose it.
    pub allocations: u32,
}

/// An address where a service is reachable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    pub tenant: String,
    pub allocation: AllocationId,
    pub node: NodeId,
    /// The host under which other nodes reach it.
    pub host: String,
    pub port: u16,
    pub protocol: String,
}

impl Ledger {
    /// The allocation starts to run.
    pub(super) fn open_services(&mut self, id: AllocationId) {
        if self.allocations.get(&id).is_some_and(|a| offers(a)) {
            self.offering.insert(id);
        }
    }

    /// The allocation stops to run, or is a replica that must leave.
    pub(super) fn close_services(&mut self, id: AllocationId) {
        self.offering.remove(&id);
    }

    /// The running allocations of these tenants (`None`: of all) that expose services, by id.
    fn offered(&self, tenants: Option<&[String]>) -> impl Iterator<Item = &Allocation> {
        let of = move |a: &&Allocation| tenants.is_none_or(|t| t.contains(&a.spec.tenant));
        self.offering.iter().filter_map(|id| self.allocations.get(id)).map(|a| &**a).filter(of)
    }

    /// The exposed service names, at most `most`, by tenant and name.
    pub fn services(&self, tenants: Option<&[String]>, most: usize) -> Vec<ServiceStatus> {
        let mut counts: BTreeMap<(&str, &str), (u32, u32)> = BTreeMap::new();
        for allocation in self.offered(tenants) {
            let mut seen: Vec<&str> = Vec::new();
            for exposed in &allocation.spec.connectivity.expose {
                let (endpoints, allocations) = counts.entry((&allocation.spec.tenant, &exposed.name)).or_default();
                *endpoints = endpoints.saturating_add(u32::try_from(allocation.shares.len()).unwrap_or(u32::MAX));
                if !seen.contains(&exposed.name.as_str()) {
                    seen.push(&exposed.name);
                    *allocations += 1;
                }
            }
        }
        let status = |((tenant, name), (endpoints, allocations)): ((&str, &str), (u32, u32))| ServiceStatus {
            tenant: tenant.to_owned(),
            name: name.to_owned(),
            endpoints,
            allocations,
        };
        counts.into_iter().take(most).map(status).collect()
    }

    /// The endpoints of this service name, at most `most`: by allocation, its first node first.
    pub fn endpoints(&self, name: &str, tenants: Option<&[String]>, most: usize) -> Vec<Endpoint> {
        let named = |a: &Allocation| a.spec.connectivity.expose.iter().any(|e| e.name == name);
        let each = self.offered(tenants).filter(|a| named(a)).flat_map(|allocation| {
            let exposed = allocation.spec.connectivity.expose.iter().filter(|e| e.name == name);
            exposed.flat_map(move |exposed| {
                allocation.nodes().filter_map(move |node| {
                    Some(Endpoint {
                        tenant: allocation.spec.tenant.clone(),
                        allocation: allocation.id,
                        node: node.clone(),
                        host: self.host_of(node)?,
                        port: exposed.port,
                        protocol: exposed.protocol.clone(),
                    })
                })
            })
        });
        each.take(most).collect()
    }

    /// The host under which other nodes reach this one: from its mesh address.
    fn host_of(&self, node: &NodeId) -> Option<String> {
        let (host, _port) = self.nodes.get(node)?.addresses.mesh.rsplit_once(':')?;
        Some(host.to_owned())
    }
}

/// Whether it runs, exposes services, and is no replica that was asked to leave.
pub(super) fn offers(allocation: &Allocation) -> bool {
    let exposes = !allocation.spec.connectivity.expose.is_empty();
    allocation.state == AllocationState::Running && exposes && !is_asked_to_leave(allocation)
}
