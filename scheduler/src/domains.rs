//! Which network domains have a number, and which waiting work lacks one.

use crate::view::View;
use lattice_model::network::NoVni;
use lattice_model::{Allocation, VniPool};
use std::collections::BTreeSet;

/// The known domains, and how many numbers of the pool are in use.
#[derive(Clone)]
pub struct Domains<'a> {
    /// `None`: the pool is not known, and no allocation is kept waiting for it.
    pool: Option<VniPool>,
    /// Tenant and name of each domain.
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

    /// Why an allocation cannot begin on any node, if its domain cannot get a number.
    pub fn keeps_off(&self, allocation: &Allocation) -> Option<NoVni> {
        let (tenant, name) = (&allocation.spec.tenant, &allocation.spec.connectivity.network_domain);
        if name.is_empty() || self.known.contains(&(tenant.as_str(), name.as_str())) {
            return None;
        }
        let of_tenant = self.known.iter().filter(|(of, _)| of == tenant).count();
        self.pool?.obstacle(name, self.used, u32::try_from(of_tenant).unwrap_or(u32::MAX))
    }

    /// Counts a placed allocation: its domain has a number from now on.
    pub fn take(&mut self, allocation: &'a Allocation) {
        let (tenant, name) = (&allocation.spec.tenant, &allocation.spec.connectivity.network_domain);
        if !name.is_empty() && self.known.insert((tenant, name)) {
            self.used = self.used.saturating_add(1);
        }
    }
}
