//! The usage of users, derived from the allocations: counted when a snapshot is read, and then
//! updated. Not part of the replicated state.

use lattice_model::{Allocation, AllocationId, AllocationSpec, AllocationState, Entrypoint};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// See the module documentation.
#[derive(Debug, Default)]
pub struct UserUsage(pub Option<Counted>);

/// A copy starts without counts, and counts when needed.
impl Clone for UserUsage {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// The counts do not matter when two ledgers are compared.
impl PartialEq for UserUsage {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for UserUsage {}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Counted {
    pub users: BTreeMap<u32, User>,
    /// Number of allocations without nodes, for each tenant that has some.
    pub tenant_pending: BTreeMap<String, u32>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct User {
    pub pending: u32,
    /// Number of allocations that hold nodes.
    pub running: u32,
    /// Ended allocations in the order of their end.
    pub ended: VecDeque<AllocationId>,
    /// The scripts, and how many of the user's allocations use each.
    pub scripts: BTreeMap<Arc<str>, Named>,
    pub script_bytes: usize,
    /// Total size of the scripts of allocations that have not ended, in bytes.
    pub live_script_bytes: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Named {
    by_all: u32,
    pub by_live: u32,
}

impl User {
    fn names(&mut self, text: &Arc<str>, live: bool) {
        let named = self.scripts.entry(Arc::clone(text)).or_default();
        self.script_bytes += if named.by_all == 0 { text.len() } else { 0 };
        named.by_all += 1;
        if live {
            self.live_script_bytes += if named.by_live == 0 { text.len() } else { 0 };
            named.by_live += 1;
        }
    }

    fn names_no_longer(&mut self, text: &Arc<str>, live: bool) {
        let Some(named) = self.scripts.get_mut(text) else { return };
        named.by_all -= 1;
        self.script_bytes -= if named.by_all == 0 { text.len() } else { 0 };
        if live {
            named.by_live -= 1;
            self.live_script_bytes -= if named.by_live == 0 { text.len() } else { 0 };
        }
        if named.by_all == 0 {
            self.scripts.remove(text);
        }
    }

    pub fn has_nothing(&self) -> bool {
        self.pending == 0 && self.running == 0 && self.ended.is_empty() && self.scripts.is_empty()
    }
}

/// The contribution of one allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    pub uid: u32,
    /// The tenant of a waiting allocation.
    pending_in: Option<String>,
    holds_nodes: bool,
    script: Option<Arc<str>>,
    live: bool,
}

impl Counts {
    pub fn of(allocation: &Allocation) -> Self {
        Self {
            uid: allocation.owner.uid,
            pending_in: allocation.state.is_without_nodes().then(|| allocation.spec.tenant.clone()),
            holds_nodes: holds_nodes(allocation.state),
            script: script_of(&allocation.spec).cloned(),
            live: !allocation.state.is_terminal(),
        }
    }
}

pub fn script_of(spec: &AllocationSpec) -> Option<&Arc<str>> {
    match &spec.entrypoint {
        Entrypoint::Script { text, .. } => Some(text),
        Entrypoint::Command { .. } => None,
    }
}

impl Counted {
    pub fn add(&mut self, counts: &Counts) {
        let user = self.users.entry(counts.uid).or_default();
        user.running += u32::from(counts.holds_nodes);
        if let Some(tenant) = &counts.pending_in {
            user.pending += 1;
            if !tenant.is_empty() {
                *self.tenant_pending.entry(tenant.clone()).or_default() += 1;
            }
        }
        if let Some(text) = &counts.script {
            user.names(text, counts.live);
        }
    }

    pub fn remove(&mut self, counts: &Counts) {
        let Some(user) = self.users.get_mut(&counts.uid) else { return };
        user.running -= u32::from(counts.holds_nodes);
        if let Some(tenant) = &counts.pending_in {
            user.pending -= 1;
            if let Some(pending) = self.tenant_pending.get_mut(tenant) {
                *pending -= 1;
                if *pending == 0 {
                    self.tenant_pending.remove(tenant);
                }
            }
        }
        if let Some(text) = &counts.script {
            user.names_no_longer(text, counts.live);
        }
    }

    /// The user with the most ended allocations.
    pub fn longest_history(&self) -> Option<u32> {
        self.users.iter().max_by_key(|(uid, user)| (user.ended.len(), std::cmp::Reverse(**uid))).map(|(uid, _)| *uid)
    }
}

/// Whether an allocation in this state holds nodes.
pub fn holds_nodes(state: AllocationState) -> bool {
    match state {
        AllocationState::Staging | AllocationState::Running => true,
        AllocationState::Pending
        | AllocationState::Completed
        | AllocationState::Failed
        | AllocationState::Cancelled
        | AllocationState::Suspended => false,
    }
}
