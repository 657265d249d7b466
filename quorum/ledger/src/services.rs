//! Services: the ports that allocations expose while they run.
//!
//! An endpoint exists from the report of its node that the port accepts connections. It ends with the
//! commit that ends the state Running, or by which a replica is asked to leave. Only the port is stored;
//! the rest is derived from the allocation and its node's address.

use super::Ledger;
use super::state::OpenPort;
use lattice_ledger_state::scaled_services::is_asked_to_leave;
use lattice_model::{Allocation, AllocationId, AllocationState, Epoch, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::iter::successors;
use std::ops::Bound;

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
    /// These ports accept connections on this node: lists those that the allocation exposes.
    pub(super) fn list_ports(&mut self, node: &NodeId, id: AllocationId, epoch: Epoch, ports: &[u16]) {
        if !self.takes_part(node, id, epoch) {
            return;
        }
        let Some(allocation) = self.allocations.get(&id).filter(|a| offers(a)) else { return };
        let Some(rank) = allocation.shares.rank_of(node) else { return };
        let exposed = allocation.spec.connectivity.expose.iter().map(|exposed| exposed.port);
        self.open_ports.extend(exposed.filter(|port| ports.contains(port)).map(|port| (id, rank, port)));
    }

    /// Lists all ports that the allocation exposes on this node, if it runs.
    pub(super) fn list_all_ports(&mut self, node: &NodeId, id: AllocationId) {
        let Some(allocation) = self.allocations.get(&id) else { return };
        let epoch = allocation.epoch;
        let ports: Vec<u16> = allocation.spec.connectivity.expose.iter().map(|exposed| exposed.port).collect();
        self.list_ports(node, id, epoch, &ports);
    }

    /// The allocation stops running, or is a replica that must leave.
    pub(super) fn close_services(&mut self, id: AllocationId) {
        let listed: Vec<OpenPort> = self.ports_of(id).copied().collect();
        for port in &listed {
            self.open_ports.remove(port);
        }
    }

    /// The listed ports of an allocation, by rank.
    fn ports_of(&self, id: AllocationId) -> impl Iterator<Item = &OpenPort> {
        self.open_ports.range((id, 0, 0)..=(id, u32::MAX, u16::MAX))
    }

    /// The allocations of these tenants (`None`: of all) that have listed ports, by id.
    fn offered(&self, tenants: Option<&[String]>) -> impl Iterator<Item = &Allocation> {
        let of = move |a: &&Allocation| tenants.is_none_or(|t| t.contains(&a.spec.tenant));
        let first = self.open_ports.get_min().map(|(id, ..)| *id);
        // Skips the further ports of each allocation: wide work has thousands.
        let ids = successors(first, |id| {
            let others = (Bound::Excluded((*id, u32::MAX, u16::MAX)), Bound::Unbounded);
            self.open_ports.range(others).next().map(|(id, ..)| *id)
        });
        ids.filter_map(|id| self.allocations.get(&id)).map(|a| &**a).filter(of)
    }

    /// The exposed service names, at most `most`, by tenant and name.
    pub fn services(&self, tenants: Option<&[String]>, most: usize) -> Vec<ServiceStatus> {
        let mut counts: BTreeMap<(&str, &str), (u32, u32)> = BTreeMap::new();
        for allocation in self.offered(tenants) {
            let mut nodes_of: BTreeMap<u16, u32> = BTreeMap::new();
            for (_, _, port) in self.ports_of(allocation.id) {
                *nodes_of.entry(*port).or_default() += 1;
            }
            let mut seen: Vec<&str> = Vec::new();
            for exposed in &allocation.spec.connectivity.expose {
                let Some(nodes) = nodes_of.get(&exposed.port) else { continue };
                let (endpoints, allocations) = counts.entry((&allocation.spec.tenant, &exposed.name)).or_default();
                *endpoints = endpoints.saturating_add(*nodes);
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
                let listed = self.ports_of(allocation.id).filter(move |(_, _, port)| *port == exposed.port);
                listed.filter_map(move |(_, rank, _)| {
                    let node = allocation.shares.get(*rank)?.node;
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
