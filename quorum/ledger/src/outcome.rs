//! The results of commands.

use super::state::DomainKey;
use lattice_ledger_state::refusal::Refusal;
use lattice_model::{Allocation, AllocationId, AuditRecord, Epoch, Incarnation, LaneWork, NodeId, Revision};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The result of one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The answer.
    pub result: Result<Outcome, Refusal>,
    /// New records of the audit chain; the caller writes them to disk.
    pub audit: Vec<AuditRecord>,
    /// The records that changed.
    pub changed: Changed,
}

/// The identifiers of changed records, and the records that the ledger does not have any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Nodes that changed.
    pub nodes: BTreeSet<NodeId>,
    /// Allocations that changed, except those in `shares`.
    pub allocations: BTreeSet<AllocationId>,
    /// Allocations in whose records only phases of shares, and the usage, changed.
    pub shares: BTreeMap<AllocationId, ChangedShares>,
    /// The last state of allocations that changed and were then dropped.
    pub dropped: BTreeMap<AllocationId, Arc<Allocation>>,
    /// Nodes whose list of desired shares changed.
    pub desired: BTreeSet<NodeId>,
    /// Tenants that changed or were deleted.
    pub tenants: BTreeSet<String>,
    /// Leases that were granted, changed or ended.
    pub leases: BTreeSet<String>,
    /// Whether the gossip keys changed.
    pub keyring: bool,
    /// Whether a name was revoked.
    pub revocations: bool,
    /// vClusters that changed or were deleted.
    pub vclusters: BTreeSet<String>,
    /// Reservations that changed or were deleted.
    pub reservations: BTreeSet<String>,
    /// Network domains that got or released a VNI.
    pub domains: BTreeSet<DomainKey>,
    /// Whether the VNI pool changed.
    pub vni_pool: bool,
    /// Whether the limits of the cluster or its users changed.
    pub limits: bool,
    /// Tenants whose recorded use changed, with the first changed day.
    pub tenant_use: BTreeMap<String, u32>,
}

/// Shares of one allocation whose phases changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedShares {
    /// The revision of the allocation's record before the first of these changes.
    pub previous_revision: Revision,
    /// Their ranks.
    pub ranks: BTreeSet<u32>,
}

impl Changed {
    /// More than phases and usage changed in the record of this allocation.
    pub fn record(&mut self, id: AllocationId) {
        self.shares.remove(&id);
        self.allocations.insert(id);
    }

    /// In the record of this allocation, only the phase of the share of this rank, and the usage, may
    /// have changed. `previous_revision`: the revision of the record before.
    pub fn share(&mut self, id: AllocationId, previous_revision: Revision, rank: u32) {
        self.usage(id, previous_revision);
        if let Some(shares) = self.shares.get_mut(&id) {
            shares.ranks.insert(rank);
        }
    }

    /// In the record of this allocation, only the usage may have changed. `previous_revision`: as for
    /// [`Self::share`].
    pub fn usage(&mut self, id: AllocationId, previous_revision: Revision) {
        if !self.allocations.contains(&id) {
            self.shares.entry(id).or_insert_with(|| ChangedShares { previous_revision, ranks: BTreeSet::new() });
        }
    }

    /// The recorded use of this tenant changed from this day on.
    pub fn use_of(&mut self, tenant: &str, first_day: u32) {
        let first = self.tenant_use.entry(tenant.to_owned()).or_insert(first_day);
        *first = first_day.min(*first);
    }

    /// Adds the changes of another command.
    pub fn merge(&mut self, other: Self) {
        self.nodes.extend(other.nodes);
        other.allocations.into_iter().for_each(|id| self.record(id));
        for (id, ChangedShares { previous_revision, ranks }) in other.shares {
            self.usage(id, previous_revision);
            ranks.into_iter().for_each(|rank| self.share(id, previous_revision, rank));
        }
        self.dropped.extend(other.dropped);
        self.desired.extend(other.desired);
        self.tenants.extend(other.tenants);
        self.leases.extend(other.leases);
        self.keyring |= other.keyring;
        self.revocations |= other.revocations;
        self.vclusters.extend(other.vclusters);
        self.reservations.extend(other.reservations);
        self.domains.extend(other.domains);
        self.vni_pool |= other.vni_pool;
        self.limits |= other.limits;
        other.tenant_use.iter().for_each(|(tenant, first_day)| self.use_of(tenant, *first_day));
    }
}

/// The result of a granted command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Done, or was done before.
    Done,
    /// The allocation is submitted, perhaps by an earlier request, and has this job number.
    Submitted { number: u64 },
    /// The claim was granted.
    Claimed { epoch: Epoch },
    /// The agent is registered.
    Registered { incarnation: Incarnation, report_seq: u64 },
    /// The lease is held.
    Leased { token: u64 },
    /// The report is acknowledged, so that later ones are accepted, but its content is refused for
    /// this reason.
    ContentRefused(Refusal),
    /// What a lane may run.
    LaneWork(LaneWork),
    /// Of the tasks to cancel: how many were cancelled, and how many had ended before.
    TasksCancelled { cancelled: u32, ended: u32 },
    /// This gossip key is being introduced.
    KeyAdded { id: u32 },
}
