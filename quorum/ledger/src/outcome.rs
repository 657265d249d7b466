//! What a command did.

use super::refusal::Refusal;
use super::state::DomainKey;
use lattice_model::{AllocationId, AuditRecord, Epoch, Incarnation, NodeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What one command did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The answer.
    pub result: Result<Outcome, Refusal>,
    /// New links of the audit chain; whoever applies writes them to disk.
    pub audit: Vec<AuditRecord>,
    /// What readers should look at again.
    pub changed: Changed,
}

/// What changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// Nodes that changed.
    pub nodes: BTreeSet<NodeId>,
    /// Allocations that changed.
    pub allocations: BTreeSet<AllocationId>,
    /// Nodes whose desired list changed.
    pub desired: BTreeSet<NodeId>,
    /// Tenants that changed, or were deleted.
    pub tenants: BTreeSet<String>,
    /// Leases that were granted, changed or ended.
    pub leases: BTreeSet<String>,
    /// Whether the gossip keys changed.
    pub keyring: bool,
    /// Whether a name was revoked.
    pub revocations: bool,
    /// vClusters that changed, or were deleted.
    pub vclusters: BTreeSet<String>,
    /// Network domains that were given a number, or whose number is free again.
    pub domains: BTreeSet<DomainKey>,
    /// Whether the pool of those numbers is another one now.
    pub vni_pool: bool,
    /// Whether the limits of the cluster and its users are others now.
    pub limits: bool,
}

impl Changed {
    /// Adds what another command changed.
    pub fn merge(&mut self, other: Self) {
        self.nodes.extend(other.nodes);
        self.allocations.extend(other.allocations);
        self.desired.extend(other.desired);
        self.tenants.extend(other.tenants);
        self.leases.extend(other.leases);
        self.keyring |= other.keyring;
        self.revocations |= other.revocations;
        self.vclusters.extend(other.vclusters);
        self.domains.extend(other.domains);
        self.vni_pool |= other.vni_pool;
        self.limits |= other.limits;
    }
}

/// What a granted command did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// It is done, or was already.
    Done,
    /// The claim holds.
    Claimed { epoch: Epoch },
    /// The agent is registered.
    Registered { incarnation: Incarnation, report_seq: u64 },
    /// The lease is held.
    Leased { token: u64 },
    /// The report counts as heard, so that those behind it are; what it says is refused, for this reason.
    Unheeded(Refusal),
    /// This gossip key is brought in.
    KeyAdded { id: u32 },
}
