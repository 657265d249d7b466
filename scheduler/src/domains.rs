//! Which network domains have a number, and what of a queue waits for one.

use crate::view::View;
use lattice_model::network::NoVni;
use lattice_model::{Allocation, VniPool};
use std::collections::BTreeSet;

/// Domains, and how much of the pool is in use.
pub struct Domains<'a> {
    /// `None`: it is not known, and keeps nobody off.
    pool: Option<VniPool>,
    /// Tenant and name of each.
    known: BTreeSet<(&'a str, &'a str)>,
    used: u32,
}

impl<'a> Domains<'a> {
    pub fn of(view: &'a View) -> Self {
        let known = view.domains.keys().map(|(tenant, name)| (tenant.as_str(), name.as_str())).collect();
        let inside = |vni: &&u32| view.vni_pool.is_some_and(|pool| pool.numbers().contains(*vni));
        let used = u32::try_from(view.domains.values().filter(inside).count()).unwrap_or(u32::MAX);
        Self { pool: view.vni_pool, known, used }
    }

    /// What keeps an allocation off, whatever nodes there are.
    pub fn keeps_off(&self, allocation: &Allocation) -> Option<NoVni> {
        let (tenant, name) = (&allocation.spec.tenant, &allocation.spec.connectivity.network_domain);
        if name.is_empty() || self.known.contains(&(tenant.as_str(), name.as_str())) {
            return None;
        }
        let of_tenant = self.known.iter().filter(|(of, _)| of == tenant).count();
        self.pool?.obstacle(name, self.used, u32::try_from(of_tenant).unwrap_or(u32::MAX))
    }

    /// The allocation has nodes from now on, and its domain a number.
    pub fn take(&mut self, allocation: &'a Allocation) {
        let (tenant, name) = (&allocation.spec.tenant, &allocation.spec.connectivity.network_domain);
        if !name.is_empty() && self.known.insert((tenant, name)) {
            self.used = self.used.saturating_add(1);
        }
    }
}
