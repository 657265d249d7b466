//! What a scheduler keeps from one plan to the next.
//!
//! ```text
//!   View ─▶ State::from ─┐
//!                        ├─▶ plan(&State, now)
//!   newer View ─▶ apply ─┘
//! ```
//!
//! A state is a function of its view alone: one that has followed any history plans the same as one that
//! is made from the last view. [`State::apply`] finds the records that differ by comparing which ones both
//! views share, and takes only these. Where the columns of nodes or the rules change (nodes come or go,
//! are registered otherwise, or a vCluster or reservation changes), or most allocations do, everything is made anew.
//!
//! A state that follows shares records with the views that it was given, and never their maps: while
//! another copy of a map exists, whoever changes the map has to copy it first, and that is the watch, which
//! others wait for.
//!
//! Nothing here depends on the time: what does is counted by each plan (see `draft`).

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
    /// What waits, each with the number of its class.
    pub(crate) waiting: BTreeMap<AllocationId, (Arc<Allocation>, usize)>,
    /// Of what waits and has several forms: the others (see [`crate::forms`]). Of work that is spread over nodes, `waiting`
    /// has the first form that its nodes could ever serve.
    pub(crate) other_forms: BTreeMap<AllocationId, Vec<(Arc<Allocation>, usize)>>,
    /// What has nodes, or had and has not released them all.
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
    /// The view that it plans from.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Follows to a newer view of the cluster, or to any other: afterwards it plans as one that is made from
    /// that view.
    pub fn apply(&mut self, view: View) {
        let nodes = self.view.nodes.changes(&view.nodes);
        let are_rules_equal = self.view.vclusters == view.vclusters && self.view.share_policy == view.share_policy;
        let are_rules_equal = are_rules_equal && self.view.reservations == view.reservations;
        let is_exclusive_node = |(_, node): &Changed<Node>| self.owners.would_tell_users_apart(None, node.as_deref());
        if !are_rules_equal || !nodes.iter().all(stays_alike) || nodes.iter().any(is_exclusive_node) {
            self.make_anew(view);
            return;
        }
        let allocations = self.view.allocations.changes(&view.allocations);
        let is_exclusive = |(_, allocation): &Changed<Allocation>| self.owners.would_tell_users_apart(allocation.as_deref(), None);
        if allocations.iter().any(is_exclusive) || allocations.len() > self.view.allocations.len().max(view.allocations.len()) / 2 {
            self.make_anew(view);
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
            self.number_classes();
        }
    }

    /// Adds an allocation to the view, or puts it in place of the one with its id, until the state follows to another view.
    pub(crate) fn insert(&mut self, allocation: Allocation) {
        if let Some(before) = self.view.allocations.remove(&allocation.id) {
            self.remove(&before);
        }
        let allocation = Arc::new(allocation);
        self.view.allocations.follow(&[(None, Some(Arc::clone(&allocation)))], |allocation| &allocation.id);
        if self.owners.would_tell_users_apart(Some(&allocation), None) {
            let view = std::mem::take(&mut self.view);
            self.make_anew(view);
        } else {
            self.add(&allocation);
        }
    }

    fn make_anew(&mut self, mut view: View) {
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

    /// Forgets the classes of which nothing waits any more.
    fn number_classes(&mut self) {
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
