//! The state that a scheduler keeps from one plan to the next.
//!
//! ```text
//!   View ─▶ State::from ─┐
//!                        ├─▶ plan(&State, now)
//!   newer View ─▶ apply ─┘
//! ```
//!
//! A state is a function of its view alone: one that has followed any history plans the same as one that
//! is made from the last view. [`State::apply`] finds the records that the two views do not share, and
//! applies only these. If the columns of nodes or the rules change (nodes come, go or are registered with
//! other values, or a vCluster or reservation changes), or most allocations change, the state is rebuilt.
//!
//! A state shares records with the views that it was given, but never their maps: whoever changes a
//! shared map has to copy it first, and that would be the watch, for which others wait.
//!
//! Nothing here depends on the time: each plan adds everything that does (see `draft`).

use crate::backlog::Backlog;
use crate::classes::Classes;
use crate::columns::{Columns, is_alike};
use crate::forms;
use crate::held::Held;
use crate::owners::Owners;
use crate::table::Changed;
use crate::view::View;
use lattice_model::{Allocation, AllocationId, Node};
use std::collections::BTreeMap;
use std::sync::Arc;

/// See the module documentation.
#[derive(Default)]
pub struct State {
    pub(crate) view: View,
    pub(crate) columns: Columns,
    pub(crate) held: Held,
    pub(crate) owners: Owners,
    pub(crate) classes: Classes,
    pub(crate) backlog: Backlog,
    /// The waiting allocations, each with the number of its class.
    pub(crate) waiting: BTreeMap<AllocationId, (Arc<Allocation>, usize)>,
    /// The other forms of waiting allocations that have several (see [`crate::forms`]). For work that is spread over nodes,
    /// `waiting` has the first form that the nodes could ever serve.
    pub(crate) other_forms: BTreeMap<AllocationId, Vec<(Arc<Allocation>, usize)>>,
    /// The allocations that have nodes, or have not released all of them.
    pub(crate) holders: BTreeMap<AllocationId, Arc<Allocation>>,
}

impl From<View> for State {
    fn from(view: View) -> Self {
        let columns = Columns::of(&view);
        let mut state = Self { held: Held::none(&columns), owners: Owners::of(&view), columns, view, ..Self::default() };
        let all: Vec<Arc<Allocation>> = state.view.allocations.shared().cloned().collect();
        all.iter().for_each(|allocation| state.add(allocation));
        state
    }
}

impl State {
    /// The view from which it plans.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Changes to a newer view of the cluster, or to any other: afterwards the state plans like one that is
    /// made from that view.
    pub fn apply(&mut self, view: View) {
        let nodes = self.view.nodes.changes(&view.nodes);
        let are_rules_equal = self.view.vclusters == view.vclusters && self.view.share_policy == view.share_policy;
        let are_rules_equal = are_rules_equal && self.view.reservations == view.reservations;
        let is_exclusive_node = |(_, node): &Changed<Node>| self.owners.would_tell_users_apart(None, node.as_deref());
        if !are_rules_equal || !nodes.iter().all(stays_alike) || nodes.iter().any(is_exclusive_node) {
            self.rebuild(view);
            return;
        }
        let allocations = self.view.allocations.changes(&view.allocations);
        let is_exclusive = |(_, allocation): &Changed<Allocation>| self.owners.would_tell_users_apart(allocation.as_deref(), None);
        if allocations.iter().any(is_exclusive) || allocations.len() > self.view.allocations.len().max(view.allocations.len()) / 2 {
            self.rebuild(view);
            return;
        }
        let (mut own_nodes, mut own_allocations) = (std::mem::take(&mut self.view.nodes), std::mem::take(&mut self.view.allocations));
        own_nodes.follow(&nodes, |node| &node.id);
        own_allocations.follow(&allocations, |allocation| &allocation.id);
        self.view = View { nodes: own_nodes, allocations: own_allocations, ..view };
        for (_, node) in nodes {
            let Some(node) = node else { continue };
            let Some(at) = self.columns.index.get(&node.id).copied() else { continue };
            self.columns.set_node(at, &node);
        }
        self.columns.set_alive(&self.view);
        for (before, after) in allocations {
            before.iter().for_each(|allocation| self.remove(allocation));
            after.iter().for_each(|allocation| self.add(allocation));
        }
        if self.classes.are_too_many() {
            self.renumber_classes();
        }
    }

    /// Adds an allocation to the view, or replaces the one with its id, until another view is applied.
    pub(crate) fn insert(&mut self, allocation: Allocation) {
        if let Some(before) = self.view.allocations.remove(&allocation.id) {
            self.remove(&before);
        }
        let allocation = Arc::new(allocation);
        self.view.allocations.follow(&[(None, Some(Arc::clone(&allocation)))], |allocation| &allocation.id);
        if self.owners.would_tell_users_apart(Some(&allocation), None) {
            let view = std::mem::take(&mut self.view);
            self.rebuild(view);
        } else {
            self.add(&allocation);
        }
    }

    fn rebuild(&mut self, mut view: View) {
        view.nodes.unshare();
        view.allocations.unshare();
        *self = Self::from(view);
    }

    fn add(&mut self, allocation: &Arc<Allocation>) {
        self.owners.add(allocation);
        self.backlog.add(allocation);
        if allocation.waits() {
            self.add_waiting(allocation);
        }
        if !allocation.state.is_without_nodes() {
            self.held.add(&self.columns, allocation, self.owners.who(allocation));
            self.holders.insert(allocation.id, Arc::clone(allocation));
        }
    }

    fn add_waiting(&mut self, allocation: &Arc<Allocation>) {
        let mut forms = Vec::new();
        for form in forms::of(&self.columns, allocation) {
            let class = self.classes.add(&self.columns, &self.view, &self.owners, &form);
            forms.push((form, class));
        }
        let is_possible = |(form, class): &(Arc<Allocation>, usize)| self.classes.all[*class].possible() >= form.spec.nodes as usize;
        let first = if allocation.spec.spread.is_some() { forms.iter().position(is_possible).unwrap_or(0) } else { 0 };
        self.waiting.insert(allocation.id, forms.remove(first));
        if !forms.is_empty() {
            self.other_forms.insert(allocation.id, forms);
        }
    }

    fn remove(&mut self, allocation: &Allocation) {
        self.backlog.remove(allocation);
        if let Some((_, class)) = self.waiting.remove(&allocation.id) {
            self.classes.remove(class);
        }
        for (_, class) in self.other_forms.remove(&allocation.id).unwrap_or_default() {
            self.classes.remove(class);
        }
        if self.holders.remove(&allocation.id).is_some() {
            self.held.remove(&self.columns, allocation);
        }
    }

    /// Drops the classes of which no work waits any more.
    fn renumber_classes(&mut self) {
        self.classes = Classes::default();
        for (allocation, class) in self.waiting.values_mut().chain(self.other_forms.values_mut().flatten()) {
            *class = self.classes.add(&self.columns, &self.view, &self.owners, allocation);
        }
    }
}

/// Whether the node was registered before, and everything that is in columns is as it was.
fn stays_alike(change: &Changed<Node>) -> bool {
    matches!(change, (Some(before), Some(after)) if is_alike(before, after))
}
