//! Network domains, and an index of the idle ones by the end of their grace period. The index is not
//! part of the replicated state: it is derived from the domains when a snapshot is read, and then
//! updated with each changed domain.

use imbl::OrdSet;
use lattice_model::{AllocationId, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Tenant and name: two tenants may use one name for two domains.
pub type DomainKey = (String, String);

/// A network domain that has a VNI.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Domain {
    /// Its VNI.
    pub vni: u32,
    /// Its allocations that have nodes.
    pub members: BTreeSet<AllocationId>,
    /// When the last member lost its nodes.
    pub idle_since: Option<Timestamp>,
    /// How long it then keeps its VNI, if an operator has set it; otherwise the pool's value
    /// applies.
    pub grace_ms: Option<u64>,
}

/// The idle domains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DomainIndex {
    /// Domains with the pool's grace period, with the time when they became idle.
    pub idle_since: OrdSet<(Timestamp, DomainKey)>,
    /// Domains with a grace period of their own, with the time when it ends.
    pub grace_ends: OrdSet<(Timestamp, DomainKey)>,
}

impl DomainIndex {
    /// Adds a domain.
    pub fn add(&mut self, key: &DomainKey, domain: &Domain) {
        if let Some((set, time)) = self.entry(domain) {
            set.insert((time, key.clone()));
        }
    }

    /// Removes a domain; `domain` is the record with which it was added.
    pub fn remove(&mut self, key: &DomainKey, domain: &Domain) {
        if let Some((set, time)) = self.entry(domain) {
            set.remove(&(time, key.clone()));
        }
    }

    fn entry(&mut self, domain: &Domain) -> Option<(&mut OrdSet<(Timestamp, DomainKey)>, Timestamp)> {
        let since = domain.idle_since.filter(|_| domain.members.is_empty())?;
        Some(match domain.grace_ms {
            None => (&mut self.idle_since, since),
            Some(grace_ms) => (&mut self.grace_ends, Timestamp(since.0.saturating_add(grace_ms))),
        })
    }
}
