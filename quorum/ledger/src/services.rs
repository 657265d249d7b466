//! Services: the ports that allocations offer while they run.
//!
//! An endpoint is no state of its own. It follows from the allocation and from its nodes' addresses: it is there from the
//! commit that says Running to the one that says anything else.

use super::Ledger;
use lattice_model::{Allocation, AllocationId, AllocationState, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A name under which running allocations of a tenant offer something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStanding {
    pub tenant: String,
    pub name: String,
    pub endpoints: u32,
    /// By how many allocations.
    pub allocations: u32,
}

/// Where a service is offered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    pub tenant: String,
    pub allocation: AllocationId,
    pub node: NodeId,
    /// By which other nodes reach that one.
    pub host: String,
    pub port: u16,
    pub protocol: String,
}

impl Ledger {
    /// The allocation runs from now on.
    pub(super) fn open_services(&mut self, id: AllocationId) {
        if self.allocations.get(&id).is_some_and(|a| offers(a)) {
            self.offering.insert(id);
        }
    }

    /// It does not run any more.
    pub(super) fn close_services(&mut self, id: AllocationId) {
        self.offering.remove(&id);
    }

    /// What of these tenants (of all where none is given) runs and offers something, by id.
    fn offered(&self, tenants: Option<&[String]>) -> impl Iterator<Item = &Allocation> {
        let of = move |a: &&Allocation| tenants.is_none_or(|t| t.contains(&a.spec.tenant));
        self.offering.iter().filter_map(|id| self.allocations.get(id)).map(|a| &**a).filter(of)
    }

    /// Names under which something is offered, at most so many, by tenant and name.
    pub fn services(&self, tenants: Option<&[String]>, most: usize) -> Vec<ServiceStanding> {
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
        let standing = |((tenant, name), (endpoints, allocations)): ((&str, &str), (u32, u32))| ServiceStanding {
            tenant: tenant.to_owned(),
            name: name.to_owned(),
            endpoints,
            allocations,
        };
        counts.into_iter().take(most).map(standing).collect()
    }

    /// Where this name is offered, at most so many: by allocation, each one's first node first.
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

    /// Where other nodes reach this one: the host of its mesh address.
    fn host_of(&self, node: &NodeId) -> Option<String> {
        let (host, _port) = self.nodes.get(node)?.addresses.mesh.rsplit_once(':')?;
        Some(host.to_owned())
    }
}

/// Whether it runs and offers something.
pub(super) fn offers(allocation: &Allocation) -> bool {
    allocation.state == AllocationState::Running && !allocation.spec.connectivity.expose.is_empty()
}
