//! Claims: committed as a whole or refused, and never for more of a node than is free.

use super::dependencies::only_in_queue;
use super::timing::granted_walltime;
use super::{ApplyContext, Holding, Ledger, Outcome, Subject};
use lattice_ledger_state::refusal::{Conflict, Refusal};
use lattice_model::count::{counted, is_or_are};
use lattice_model::{
    Allocation, AllocationId, AllocationState, AuditAction, Claim, Epoch, Exclusion, Leaving, Node, NodeId, Resources, ShareUser, Shares,
    Topology, WorkOwner, hostlist,
};
use std::collections::BTreeSet;

/// Prefix of the names of leases for the agents' own roles.
pub(super) const ROLE_PREFIX: &str = "scheduler/";
/// The lease for claims of the default vCluster.
pub const SCHEDULER_LEASE: &str = "scheduler/default";
/// Largest number of conflicts in a refusal.
pub(super) const CONFLICTS_MAX: usize = 16;

/// The name of the lease for claims of a vCluster.
pub fn scheduler_lease(vcluster: &str) -> String {
    format!("{ROLE_PREFIX}{vcluster}")
}

impl Ledger {
    pub(super) fn claim(&mut self, context: &mut ApplyContext, claim: &Claim) -> Result<Outcome, Refusal> {
        let id = claim.allocation;
        let known = self.allocations.get(&id).cloned();
        let name = scheduler_lease(self.queue_of(known.as_ref().map_or("", |a| &a.spec.vcluster)));
        let Some(lease) = self.leases.get(&name).filter(|l| l.token == claim.lease_token) else {
            return Err(Refusal::StaleLease { name, token: claim.lease_token });
        };
        let actor = format!("node:{}", claim.by.as_deref().unwrap_or(lease.holder.as_str()));
        let Some(allocation) = known else {
            return Err(self.no_such_allocation(id));
        };
        if allocation.requeue_count != claim.requeue_count {
            return Err(Refusal::StaleRequeueCount { id, seen: claim.requeue_count, now: allocation.requeue_count });
        }
        only_in_queue(&allocation)?;
        self.not_beside_excluded(&allocation)?;
        if let Some(ahead) = claim.after.filter(|ahead| self.allocations.get(ahead).is_some_and(|a| a.waits())) {
            return Err(Refusal::WaitsAhead { id, ahead });
        }
        self.not_before_adoption(id)?;
        self.not_while_it_may_run(&allocation)?;
        let run_lease_ms = self.run_lease_of(&allocation.spec)?;
        self.within_reservation(&allocation, context.at)?;
        well_formed(&allocation, claim)?;
        let form = allocation.spread_over(claim.shares.len());
        let mut conflicts: Vec<Conflict> =
            claim.shares.iter().filter_map(|share| self.conflict(&form, share)).take(CONFLICTS_MAX).collect();
        if conflicts.is_empty() {
            conflicts = self.of_reservations(&allocation, claim, context.at);
        }
        if conflicts.is_empty() {
            conflicts = self.of_other_groups(&allocation, claim);
        }
        if conflicts.is_empty() {
            conflicts.extend(self.of_other_features(&allocation, claim));
        }
        let takes_any_groups = allocation.any_topology_from().is_some_and(|from| from <= context.at);
        if conflicts.is_empty() && !takes_any_groups {
            let groups = self.of_too_many_groups(&allocation, claim);
            conflicts.extend(groups.or_else(|| self.of_scattered_nodes(&allocation, claim)));
        }
        if !conflicts.is_empty() {
            return Err(Refusal::Conflict { conflicts });
        }

        if let Some(excess) = self.excess_of_claim(&allocation, claim) {
            return Err(Refusal::Quota(excess));
        }
        if let Some(excess) = self.excess_of_sensitive(&allocation, claim) {
            return Err(Refusal::Quota(excess));
        }
        self.admits_running(context, &allocation)?;
        if let Some(until) = allocation.waits_until {
            return Err(Refusal::Waits { id, until });
        }
        let granted = granted_walltime(&allocation, claim, context.at)?;
        let vni = self.vni_for(&allocation)?;
        let shares = Shares::claimed(claim.shares.iter().map(|s| (s.node.clone(), s.resources)).collect());
        let shares = shares.map_err(|error| Refusal::MalformedClaim { why: error.to_string() })?;

        let epoch = Epoch(self.epoch.0 + 1);
        self.epoch = epoch;
        for share in &claim.shares {
            let held = Holding { allocation: id, epoch, resources: share.resources, vni, run_lease_ms, fenced: false };
            self.add_holding(context, &share.node, held);
            context.changed.desired.insert(share.node.clone());
        }
        let at = context.at;
        if let Some(allocation) = self.allocation_mut(context, id) {
            allocation.state = AllocationState::Staging;
            (allocation.preemption, allocation.held) = (None, false);
            allocation.epoch = epoch;
            allocation.claimed_at = Some(at);
            allocation.usage = None;
            allocation.mailed_percent = 0;
            allocation.vni = vni;
            allocation.shares = shares;
        }
        self.usage_grows(id);
        if let Some(vni) = vni {
            self.join_domain(context, id, vni);
        }
        let head = claim.shares.first().map(|s| &s.node);
        let detail = format!("epoch {epoch}, {} nodes from {}", claim.shares.len(), head.map_or("", NodeId::as_str));
        self.record(context, &actor, AuditAction::AllocationClaimed, Subject { allocation: Some(id), node: None }, detail);
        if let Some(granted) = granted {
            self.shorten(context, id, granted);
        }
        Ok(Outcome::Claimed { epoch })
    }

    fn conflict(&self, allocation: &Allocation, share: &lattice_model::claim::ClaimShare) -> Option<Conflict> {
        let against = |holder, why| Some(Conflict { node: share.node.clone(), holder, why });
        let Some(node) = self.nodes.get(&share.node) else { return against(None, "is not registered".to_owned()) };
        if self.awaits(&share.node) {
            return against(None, "has not reported yet what it runs since the quorum was recovered".to_owned());
        }
        if let Some(why) = node.unclaimable() {
            return against(None, why);
        }
        let spec = &allocation.spec;
        let lacks = spec.unfenced_by(node).or_else(|| spec.unsaved_by(node)).or_else(|| spec.astray(node));
        if let Some(why) = lacks.or_else(|| spec.constraints.unwanted(node)) {
            return against(None, why);
        }
        if node.hold_revision != share.hold_revision {
            return against(None, format!("changed at revision {}; the claim saw {}", node.hold_revision, share.hold_revision));
        }
        if let Some(why) = self.foreign(node, &allocation.spec.vcluster).filter(|_| !self.lends(node, allocation)) {
            return against(None, why);
        }
        if let Some(Exclusion { why, until: Some(until), .. }) = allocation.exclusion(&share.node) {
            return against(None, format!("is excluded for this allocation until {until}: {why}"));
        }
        let asked = allocation.spec.amount_of(&node.size);
        if share.resources != asked {
            return against(None, format!("is to give {asked}; the claim has {}", share.resources));
        }
        let held = self.held(&share.node);
        // A node that shrank may have given away more than its size: resources that are not
        // requested must not count as missing.
        if !node.size.minus(&held).holds(&share.resources) {
            let holder = self.holdings(&share.node).first();
            let why = match holder {
                Some(h) => {
                    let free = node.size.minus(&held);
                    format!(
                        "allocation {} (epoch {}) and others have {held} of its {}: {}",
                        h.allocation,
                        h.epoch,
                        node.size,
                        asked.short_of(&free)
                    )
                }
                None => format!("{asked} is more than its {}", node.size),
            };
            return against(holder.map(|h| h.allocation), why);
        }
        let apart = self.replica_beside(allocation, &share.node).or_else(|| self.kept_apart(allocation, &share.node));
        let (holder, why) = apart.or_else(|| self.users_apart(allocation, node))?;
        against(Some(holder), why)
    }

    /// A conflict if its nodes together do not have the features that the allocation asks for.
    fn of_other_features(&self, allocation: &Allocation, claim: &Claim) -> Option<Conflict> {
        let together = allocation.spec.constraints.together()?;
        let nodes = claim.shares.iter().filter_map(|share| self.nodes.get(&share.node));
        let why = together.unmet_by(nodes.map(|node| node.features.as_slice()))?;
        Some(Conflict { node: claim.shares.first()?.node.clone(), holder: None, why })
    }

    /// A conflict if its nodes are in more topology groups than the allocation allows.
    fn of_too_many_groups(&self, allocation: &Allocation, claim: &Claim) -> Option<Conflict> {
        let Topology::AtMost(most) = allocation.spec.constraints.topology else { return None };
        let nodes = claim.shares.iter().filter_map(|share| self.nodes.get(&share.node));
        let groups = nodes.map(|node| node.topology_group.as_deref()).collect::<BTreeSet<_>>().len();
        let first = claim.shares.first().filter(|_| groups > most as usize)?;
        let why = format!("and the others are of {}; at most {most} {} asked for", counted(groups, "topology group"), is_or_are(most));
        Some(Conflict { node: first.node.clone(), holder: None, why })
    }

    /// A conflict if the allocation requests nodes with consecutive names, and its nodes do not have them.
    fn of_scattered_nodes(&self, allocation: &Allocation, claim: &Claim) -> Option<Conflict> {
        if allocation.spec.constraints.topology != Topology::Contiguous {
            return None;
        }
        let nodes: BTreeSet<&NodeId> = claim.shares.iter().map(|share| &share.node).collect();
        let first = claim.shares.first().filter(|_| !hostlist::are_in_a_row(self.nodes.keys(), &nodes))?;
        let why = "and the others do not follow each other by their names; contiguous nodes are asked for".to_owned();
        Some(Conflict { node: first.node.clone(), holder: None, why })
    }

    /// The allocation on the node beside which the share policy allows no share of this one, and why.
    /// A leaving holding counts, too: its processes may still be there.
    fn kept_apart(&self, allocation: &Allocation, node: &NodeId) -> Option<(AllocationId, String)> {
        let policy = self.limits.share_policy;
        self.holdings(node).iter().find_map(|held| {
            let holder = self.allocations.get(&held.allocation).map(|holder| policy.owner_of(holder));
            let work = policy.keeps_apart(allocation, holder)?;
            let why = format!("holds {work}, allocation {} (epoch {}): by the share policy {}", held.allocation, held.epoch, policy.rule());
            Some((held.allocation, why))
        })
    }

    /// The allocation on the node beside which `--exclusive=user`, of either, allows no share of this one, and why.
    fn users_apart(&self, allocation: &Allocation, node: &Node) -> Option<(AllocationId, String)> {
        let user = ShareUser::of(allocation);
        self.holdings(&node.id).iter().find_map(|held| {
            let leaving = || node.leaving.iter().find(|leaving| leaving.allocation == held.allocation);
            let of_record = self.allocations.get(&held.allocation).map(|holder| ShareUser::of(holder));
            let work = user.keeps_apart(of_record.or_else(|| ShareUser::of_leaving(leaving()?)))?;
            let why = format!("holds {work}, allocation {} (epoch {}): --exclusive=user keeps the two apart", held.allocation, held.epoch);
            Some((held.allocation, why))
        })
    }

    /// Updates the node's list of leaving shares, which schedulers see.
    pub(super) fn show_leaving(&mut self, context: &mut ApplyContext, id: &NodeId) {
        let leaves = |h: &Holding| {
            let owner = self.allocations.get(&h.allocation).map(|a| WorkOwner::of(a));
            Leaving { allocation: h.allocation, epoch: h.epoch, resources: h.resources, fenced: h.fenced, owner }
        };
        let held = self.holdings(id).iter();
        let leaving: Vec<Leaving> = held.filter(|h| !self.is_live(h.allocation, h.epoch)).map(leaves).collect();
        if self.holdings(id).is_empty() && self.nodes.get(id).is_some_and(|n| n.wipe.is_some()) {
            // The wipe may start.
            context.changed.desired.insert(id.clone());
        }
        if self.nodes.get(id).is_some_and(|n| n.leaving != leaving)
            && let Some(node) = self.node_mut(context, id)
        {
            node.leaving = leaving;
        }
    }

    /// The part of the node that is not free: current claims, and ended ones that it has not yet
    /// reported as released.
    pub fn held(&self, node: &NodeId) -> Resources {
        self.holdings(node).iter().fold(Resources::default(), |sum, h| sum.plus(&h.resources))
    }
}

fn well_formed(allocation: &Allocation, claim: &Claim) -> Result<(), Refusal> {
    let malformed = |why: String| Err(Refusal::MalformedClaim { why });
    if !allocation.spec.may_have(claim.shares.len()) {
        return malformed(format!("{} for an allocation of {}", counted(claim.shares.len(), "share"), allocation.spec.nodes_text()));
    }
    let mut seen = BTreeSet::new();
    for share in &claim.shares {
        if !seen.insert(&share.node) {
            return malformed(format!("node {} is named twice", share.node));
        }
        if share.resources == Resources::default() {
            return malformed(format!("the share of node {} is empty", share.node));
        }
    }
    Ok(())
}
