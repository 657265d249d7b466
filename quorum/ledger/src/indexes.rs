//! Keeps the indexes of nodes, allocations and domains up to date, so that no command and no clock of
//! the leader scans all of them.
//!
//! ```text
//!   a command changes a record ──note_…──▶ its facts before, in the context ──end of the command──▶ index: facts before out, facts now in
//!   a snapshot is read, or a backup recovered ──build_indexes──▶ all of them, by one scan
//! ```
//!
//! An index shows the state before the command until [`Ledger::update_indexes`]. Holdings, the usage
//! of tenants and the dependents of an allocation are updated at once.

use super::{ApplyContext, DomainKey, Holding, Ledger};
use lattice_ledger_state::allocation_index::{AllocationFacts, AllocationIndex};
use lattice_ledger_state::dependents::Dependents;
use lattice_ledger_state::domains::DomainIndex;
use lattice_ledger_state::job_numbers::JobNumbers;
use lattice_ledger_state::names::Names;
use lattice_ledger_state::node_index::{NodeFacts, NodeIndex};
use lattice_ledger_state::tenant_usage::TenantUsage;
use lattice_ledger_state::usage_records::Consumer;
use lattice_ledger_state::user_usage::{UserUsage, holds_nodes};
use lattice_model::{AllocationId, NodeId};

impl Ledger {
    /// Must be called before a command changes, adds or removes the node, or changes whether a
    /// recovery awaits it.
    pub(super) fn note_node(&self, context: &mut ApplyContext, id: &NodeId) {
        if !context.nodes_before.contains_key(id) {
            context.nodes_before.insert(id.clone(), self.node_facts(id));
        }
    }

    /// Must be called before a command changes, adds or removes the domain.
    pub(super) fn note_domain(&self, context: &mut ApplyContext, key: &DomainKey) {
        if !context.domains_before.contains_key(key) {
            context.domains_before.insert(key.clone(), self.domains.get(key).cloned());
        }
    }

    fn node_facts(&self, id: &NodeId) -> Option<NodeFacts> {
        self.nodes.get(id).map(|node| NodeFacts::of(node, self.awaits(id)))
    }

    /// Updates the indexes with what this command has changed so far.
    pub(super) fn update_indexes(&mut self, context: &mut ApplyContext) {
        for (id, was) in std::mem::take(&mut context.nodes_before) {
            let now = self.node_facts(&id);
            if was != now {
                was.iter().for_each(|was| self.node_index.remove(&id, was));
                now.iter().for_each(|now| self.node_index.add(&id, now));
            }
        }
        for (id, was) in std::mem::take(&mut context.allocations_before) {
            let now = self.allocations.get(&id).map(|allocation| AllocationFacts::of(allocation));
            if was != now {
                self.allocation_index.replace(id, was.as_ref(), now.as_ref());
            }
        }
        for (key, was) in std::mem::take(&mut context.domains_before) {
            was.iter().for_each(|was| self.domain_index.remove(&key, was));
            self.domains.get(&key).iter().for_each(|now| self.domain_index.add(&key, now));
        }
    }

    /// Adds a holding of the node.
    pub(super) fn add_holding(&mut self, context: &mut ApplyContext, node: &NodeId, holding: Holding) {
        self.note_before(context, holding.allocation);
        self.holdings.add(node, holding);
    }

    /// Keeps only the node's holdings that `stays` selects. Returns the others.
    pub(super) fn retain_holdings(&mut self, context: &mut ApplyContext, node: &NodeId, stays: impl Fn(&Holding) -> bool) -> Vec<Holding> {
        for holding in self.holdings(node).iter().filter(|holding| !stays(holding)) {
            self.note_before(context, holding.allocation);
        }
        self.holdings.retain(node, stays)
    }

    /// The allocation has nodes from now on.
    pub(super) fn usage_grows(&mut self, id: AllocationId) {
        if let Some(allocation) = self.allocations.get(&id).filter(|allocation| holds_nodes(allocation.state)) {
            self.usage.add(allocation);
        }
    }

    /// The allocation is about to lose its nodes, if it has any.
    pub(super) fn usage_shrinks(&mut self, context: &mut ApplyContext, id: AllocationId) {
        self.record_usage(context, id);
        if let Some(allocation) = self.allocations.get(&id).filter(|allocation| holds_nodes(allocation.state)) {
            self.usage.remove(allocation);
        }
    }

    /// Derives everything that is not part of the replicated state: after a snapshot was read, and
    /// after a change that no command made.
    pub(super) fn build_indexes(&mut self) {
        self.node_index = NodeIndex::default();
        for (id, node) in &self.nodes {
            self.node_index.add(id, &NodeFacts::of(node, self.recovery.as_ref().is_some_and(|recovery| recovery.awaited.contains(id))));
        }
        (self.allocation_index, self.usage) = (AllocationIndex::default(), TenantUsage::default());
        (self.dependents, self.job_numbers) = (Dependents::default(), JobNumbers::default());
        for (id, allocation) in &self.allocations {
            self.allocation_index.replace(*id, None, Some(&AllocationFacts::of(allocation)));
            self.dependents.add_child(allocation);
            self.job_numbers.add(allocation);
            if holds_nodes(allocation.state) {
                self.usage.add(allocation);
            }
        }
        let places: Vec<_> = self.allocations.keys().filter_map(|id| self.name_place(*id)).collect();
        self.names = Names::default();
        places.into_iter().for_each(|place| self.names.insert(place));
        self.count_waiting_lanes();
        self.domain_index = DomainIndex::default();
        self.holdings.vnis.free_all();
        for (key, domain) in &self.domains {
            self.domain_index.add(key, domain);
            self.holdings.vnis.assign(domain.vni);
        }
        let tenants = &self.tenants;
        self.usage_records.build_index(|consumer| matches!(consumer, Consumer::Tenant(name) if tenants.contains_key(name)));
        self.ends.build_index();
        self.user_usage = UserUsage(Some(self.count_users()));
    }
}
