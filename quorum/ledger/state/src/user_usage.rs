//! The usage of users, derived from the allocations: counted when a snapshot is read, and then
//! updated. Not part of the replicated state.

use crate::ended_place::EndedPlace;
use crate::record_bytes::ended_bytes;
use lattice_model::{Allocation, AllocationState};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
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
    /// Size of the histories of all users, in bytes; see [`User::history_bytes`].
    pub history_bytes: u64,
    /// Ended allocations that nothing refers to, in the order of their end.
    pub droppable: BTreeSet<EndedPlace>,
    /// The users who have droppable allocations, by the size of their history.
    by_history_bytes: BTreeSet<(u64, Reverse<u32>)>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub struct User {
    pub pending: u32,
    /// Number of allocations that hold nodes.
    pub running: u32,
    /// Number of ended allocations.
    pub ended: usize,
    /// Their size without scripts, in bytes.
    ended_bytes: u64,
    /// Ended allocations that nothing refers to, in the order of their end.
    pub droppable: BTreeSet<EndedPlace>,
    /// The scripts, and how many of the user's allocations use each.
    pub scripts: BTreeMap<Arc<str>, Named>,
    pub script_bytes: usize,
    /// Total size of the scripts of allocations that have not ended, in bytes.
    pub live_script_bytes: usize,
    /// Memory of the tasks of groups that have not ended, in bytes.
    pub live_group_bytes: u64,
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
        self.pending == 0 && self.running == 0 && self.ended == 0 && self.scripts.is_empty()
    }

    /// Size of the ended allocations in bytes. Each script that only they use counts once.
    pub fn history_bytes(&self) -> u64 {
        self.ended_bytes + (self.script_bytes - self.live_script_bytes) as u64
    }

    fn add(&mut self, counts: &Counts) {
        self.running += u32::from(counts.holds_nodes);
        self.live_group_bytes += counts.live_group_bytes;
        self.pending += u32::from(counts.pending_in.is_some());
        if let Some(ended) = &counts.ended {
            self.ended += 1;
            self.ended_bytes += ended.bytes;
            if !ended.is_referred_to {
                self.droppable.insert(ended.place);
            }
        }
        if let Some(text) = &counts.script {
            self.names(text, counts.ended.is_none());
        }
    }

    fn remove(&mut self, counts: &Counts) {
        self.running -= u32::from(counts.holds_nodes);
        self.live_group_bytes -= counts.live_group_bytes;
        self.pending -= u32::from(counts.pending_in.is_some());
        if let Some(ended) = &counts.ended {
            self.ended -= 1;
            self.ended_bytes -= ended.bytes;
            self.droppable.remove(&ended.place);
        }
        if let Some(text) = &counts.script {
            self.names_no_longer(text, counts.ended.is_none());
        }
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
    /// Memory of its tasks, if it is a task group that has not ended.
    live_group_bytes: u64,
    /// `None`: it has not ended.
    ended: Option<Ended>,
}

/// The contribution of an ended allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ended {
    place: EndedPlace,
    bytes: u64,
    is_referred_to: bool,
}

impl Counts {
    /// `is_referred_to`: whether something needs the record, so that it must not be dropped.
    /// `tasks_bytes`: the memory of its tasks, if it is a task group.
    pub fn of(allocation: &Allocation, is_referred_to: bool, tasks_bytes: impl FnOnce() -> usize) -> Self {
        let group_bytes = if allocation.is_task_group() { tasks_bytes() as u64 } else { 0 };
        let is_part = allocation.lane.is_some() || allocation.replica.is_some();
        let ended = allocation.state.is_terminal().then(|| Ended {
            place: EndedPlace::of(allocation),
            bytes: ended_bytes(allocation) as u64 + group_bytes,
            is_referred_to,
        });
        Self {
            uid: allocation.owner.uid,
            // A task group or scaled service counts once, from its submission to its end, and its parts do not.
            pending_in: (allocation.state.is_without_nodes() && !is_part).then(|| allocation.spec.tenant.clone()),
            holds_nodes: holds_nodes(allocation.state),
            script: allocation.spec.script().cloned(),
            live_group_bytes: if ended.is_none() { group_bytes } else { 0 },
            ended,
        }
    }
}

impl Counted {
    pub fn add(&mut self, counts: &Counts) {
        self.change_user(counts.uid, |user| user.add(counts));
        if let Some(tenant) = counts.pending_in.as_ref().filter(|tenant| !tenant.is_empty()) {
            *self.tenant_pending.entry(tenant.clone()).or_default() += 1;
        }
        if let Some(ended) = counts.ended.filter(|ended| !ended.is_referred_to) {
            self.droppable.insert(ended.place);
        }
    }

    pub fn remove(&mut self, counts: &Counts) {
        self.change_user(counts.uid, |user| user.remove(counts));
        if let Some(tenant) = &counts.pending_in
            && let Some(pending) = self.tenant_pending.get_mut(tenant)
        {
            *pending -= 1;
            if *pending == 0 {
                self.tenant_pending.remove(tenant);
            }
        }
        if let Some(ended) = &counts.ended {
            self.droppable.remove(&ended.place);
        }
    }

    /// Changes a user's counts, and the totals that follow from them.
    fn change_user(&mut self, uid: u32, change: impl FnOnce(&mut User)) {
        let user = self.users.entry(uid).or_default();
        let before = user.history_bytes();
        self.by_history_bytes.remove(&(before, Reverse(uid)));
        change(user);
        let after = user.history_bytes();
        if !user.droppable.is_empty() {
            self.by_history_bytes.insert((after, Reverse(uid)));
        }
        self.history_bytes = self.history_bytes - before + after;
    }

    /// Of the users with ended allocations that may be dropped, the one with the largest history.
    pub fn longest_history(&self) -> Option<u32> {
        self.by_history_bytes.last().map(|(_, Reverse(uid))| *uid)
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
