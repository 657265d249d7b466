//! What users have here: follows from the allocations, counted once and then kept. Not part of the agreed state.

use super::views::holds_nodes;
use super::{Ledger, Step};
use lattice_model::{Allocation, AllocationId, AllocationSpec, Entrypoint};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct UserUsage(pub(super) Option<Counted>);

/// A copy counts anew when it is asked.
impl Clone for UserUsage {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// What has been counted makes no difference between two ledgers.
impl PartialEq for UserUsage {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for UserUsage {}

#[derive(Debug, Default)]
pub(super) struct Counted {
    pub(super) users: BTreeMap<u32, User>,
    /// Allocations without nodes, of each tenant that has some.
    pub(super) tenant_pending: BTreeMap<String, u32>,
}

#[derive(Debug, Default)]
pub(super) struct User {
    pub(super) pending: u32,
    /// Allocations that hold nodes.
    pub(super) running: u32,
    /// The first to end first.
    pub(super) ended: VecDeque<AllocationId>,
    /// Texts of scripts, and how much of the user's work names them.
    pub(super) scripts: BTreeMap<Arc<str>, Named>,
    pub(super) script_bytes: usize,
    /// Of those that work names which has not ended.
    pub(super) live_script_bytes: usize,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Named {
    by_all: u32,
    pub(super) by_live: u32,
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

    fn has_nothing(&self) -> bool {
        self.pending == 0 && self.running == 0 && self.ended.is_empty() && self.scripts.is_empty()
    }
}

/// What one allocation counts for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    uid: u32,
    /// That of an allocation that waits.
    pending_in: Option<String>,
    holds_nodes: bool,
    script: Option<Arc<str>>,
    live: bool,
}

impl Counts {
    pub(super) fn of(allocation: &Allocation) -> Self {
        Self {
            uid: allocation.owner.uid,
            pending_in: allocation.state.is_without_nodes().then(|| allocation.spec.tenant.clone()),
            holds_nodes: holds_nodes(allocation.state),
            script: script_of(&allocation.spec).cloned(),
            live: !allocation.state.is_terminal(),
        }
    }
}

pub(super) fn script_of(spec: &AllocationSpec) -> Option<&Arc<str>> {
    match &spec.entrypoint {
        Entrypoint::Script { text, .. } => Some(text),
        Entrypoint::Command { .. } => None,
    }
}

impl Counted {
    fn of(ledger: &Ledger) -> Self {
        let mut counted = Self::default();
        for allocation in ledger.allocations.values() {
            counted.add(&Counts::of(allocation));
        }
        for id in &ledger.ended {
            if let Some(allocation) = ledger.allocations.get(id) {
                counted.users.entry(allocation.owner.uid).or_default().ended.push_back(*id);
            }
        }
        counted
    }

    pub(super) fn add(&mut self, counts: &Counts) {
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

    fn remove(&mut self, counts: &Counts) {
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
    pub(super) fn longest_history(&self) -> Option<u32> {
        self.users.iter().max_by_key(|(uid, user)| (user.ended.len(), std::cmp::Reverse(**uid))).map(|(uid, _)| *uid)
    }
}

impl Ledger {
    /// The allocation is to be changed, or is new, in this step.
    pub(super) fn note_before(&self, step: &mut Step, id: AllocationId) {
        if self.user_usage.0.is_some() {
            step.before.entry(id).or_insert_with(|| self.allocations.get(&id).map(|a| Counts::of(a)));
        }
    }

    /// Counts what this step has changed until now.
    pub(super) fn count_changed(&mut self, step: &mut Step) {
        let before = std::mem::take(&mut step.before);
        let Some(counted) = &mut self.user_usage.0 else { return };
        for (id, was) in before {
            let now = self.allocations.get(&id).map(|a| Counts::of(a));
            if was == now {
                continue;
            }
            // The new one first: a text that both name is not dropped between.
            now.iter().for_each(|now| counted.add(now));
            was.iter().for_each(|was| counted.remove(was));
            for uid in was.iter().chain(&now).map(|counts| counts.uid) {
                if counted.users.get(&uid).is_some_and(User::has_nothing) {
                    counted.users.remove(&uid);
                }
            }
        }
    }

    pub(super) fn counted(&mut self, step: &mut Step) -> &mut Counted {
        if self.user_usage.0.is_some() {
            self.count_changed(step);
        } else {
            step.before.clear();
            self.user_usage.0 = Some(Counted::of(self));
        }
        self.user_usage.0.get_or_insert_default()
    }

    /// How many allocations of each user hold nodes, as counted; `None`: nothing has been counted yet.
    #[cfg(test)]
    pub(super) fn running_of_users(&self) -> Option<BTreeMap<u32, u32>> {
        let running = self.user_usage.0.as_ref()?.users.iter().map(|(uid, user)| (*uid, user.running));
        Some(running.filter(|(_, running)| *running > 0).collect())
    }
}
