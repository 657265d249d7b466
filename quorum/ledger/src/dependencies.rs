//! Dependencies between allocations: what a submission may name, and how a change of an allocation
//! reaches those that depend on it.
//!
//! ```text
//!   a command changes a parent ──note_before──▶ its facts before, in the context
//!   end of the command: other facts ──▶ `unsettled` ──▶ record of each child ──▶ in its queue, or ended
//!                                            ▲                                             │
//!                                            ╰──────────── it is a parent, too ◀───────────╯
//! ```
//!
//! One command settles a bounded number of children. The others stay in `unsettled`, which is
//! replicated, until the next command; if there is none, the leader's clock proposes
//! `Action::SettleDependents`.
//!
//! A child's record contains all that it needs to know of its parents, so a parent is forgotten once
//! its children are settled. For a delay after a parent's beginning it contains the time at which the
//! delay ends; the leader's clock ends it ([`super::waits`]).
//!
//! Which tasks of a group wait for tasks of another one: [`super::corresponding`]. What a singleton
//! waits for: [`super::singletons`].
//!
//! `mutex` is recorded in both allocations, because either may be claimed first. A claim is checked
//! against the holdings, because the records may not be settled yet.

use super::corresponding::{NEWS_AT_ONCE_MAX, follows_few, may_correspond};
use super::task_groups::LANES_AT_ONCE_MAX;
use super::{ApplyContext, Ledger};
use lattice_ledger_state::dependents::followed_by;
use lattice_ledger_state::refusal::{DependencyRefusal, Refusal};
use lattice_model::dependency::DEPENDENCIES_MAX;
use lattice_model::{
    Allocation, AllocationId, AllocationSpec, Dependencies, Dependency, DependencyCondition, EndReason, OutputPlace, Parent, ParentFacts,
    ParentOutput, ParentState, Principal, Timestamp,
};

/// How many children one command settles at most: the largest workflow in the requirements has as many
/// parts.
const SETTLED_AT_ONCE_MAX: usize = if cfg!(test) { 8 } else { 1000 };

impl Ledger {
    /// Checks what a submission depends on. It can name only what exists, and no dependency is added
    /// later, except by `mutex`. So there are no cycles.
    pub(super) fn admits_dependencies(&self, spec: &AllocationSpec, owner: &Principal) -> Result<(), Refusal> {
        follows_few(spec)?;
        spec.depends_on.iter().try_for_each(|dependency| self.admits_dependency(dependency, spec, owner, 0))
    }

    /// Checks one dependency of a submission. `more`: how many other allocations of the submission
    /// exclude the same one, or correspond to it.
    pub(super) fn admits_dependency(
        &self,
        dependency: &Dependency,
        spec: &AllocationSpec,
        owner: &Principal,
        more: usize,
    ) -> Result<(), Refusal> {
        let Dependency { on, condition } = dependency;
        let refused = |why| Err(Refusal::Dependency { on: on.to_string(), why });
        let Some(parent) = self.allocations.get(on) else { return refused(DependencyRefusal::Unknown) };
        match condition {
            DependencyCondition::Mutex => {}
            DependencyCondition::Corresponding => {
                if !self.may_affect(owner, parent) {
                    return refused(DependencyRefusal::NotYours);
                }
                let followers = more + self.task_groups.get(on).map_or(0, |tasks| tasks.follower_count());
                return may_correspond(spec.tasks.is_some(), parent.is_task_group(), followers).or_else(refused);
            }
            DependencyCondition::Success
            | DependencyCondition::Failure
            | DependencyCondition::Any
            | DependencyCondition::After
            | DependencyCondition::AfterDelay { .. } => return Ok(()),
        }
        if !self.may_affect(owner, parent) {
            return refused(DependencyRefusal::NotYours);
        }
        // A group or service has no claims and holdings: its lanes or replicas have them.
        if is_group(spec) || parent.is_group() {
            return refused(DependencyRefusal::Group);
        }
        let is_full = more + parent.dependencies.as_ref().map_or(0, |all| all.parents.len()) >= DEPENDENCIES_MAX;
        if is_full && !parent.state.is_terminal() {
            return refused(DependencyRefusal::TooMany);
        }
        Ok(())
    }

    /// Whether this user may submit work that changes what another allocation does: its owner may, and root while it acts
    /// for everybody. Granted roles do not count: the submission may come from work, for which they never count.
    fn may_affect(&self, owner: &Principal, parent: &Allocation) -> bool {
        let acts_for_everybody = owner.is_root() && self.limits.root_may.is_everybody();
        acts_for_everybody || owner.owns(&parent.owner)
    }

    /// The dependencies of an allocation that this user is submitting.
    pub(super) fn dependencies_of(&self, spec: &AllocationSpec, owner: &Principal, now: Timestamp) -> Option<Box<Dependencies>> {
        let parent = |dependency: &Dependency| {
            let Dependency { on, condition } = *dependency;
            let parent = self.allocations.get(&on)?;
            let name = parent.spec.name.clone();
            let output = Some(parent).filter(|parent| condition != DependencyCondition::Mutex && has_output_for(parent, owner));
            let output = output.map(|parent| Box::new(output_place(parent)));
            let state = ParentState::of(condition, self.parent_facts(on)?);
            Some(Parent { on, condition, name, asked_for_it: false, output, state })
        };
        let parents: Vec<Parent> = spec.depends_on.iter().filter_map(parent).collect();
        let begin = spec.begin().filter(|begin| *begin > now);
        let depends = spec.singleton || !parents.is_empty() || begin.is_some();
        depends.then(|| Box::new(Dependencies::of(parents, self.predecessor_of(spec, owner), begin, now)))
    }

    /// Makes an allocation that was just submitted a child of its parents. Call [`Self::end_unmet`] after
    /// that: a parent may have ended in another way than the child needs.
    pub(super) fn follow_parents(&mut self, context: &mut ApplyContext, id: AllocationId) {
        let Some(child) = self.allocations.get(&id).filter(|child| child.dependencies.is_some()).cloned() else { return };
        for parent in followed_by(&child) {
            self.follow(context, parent, id);
            self.follow_tasks(context, parent, id);
        }
        for parent in child.dependencies.iter().flat_map(|all| all.excluded()) {
            self.exclude_mutually(context, parent.on, &child);
        }
    }

    /// Records in an allocation, if it has not ended, that it must not run at the same time as this child,
    /// which asked for that.
    fn exclude_mutually(&mut self, context: &mut ApplyContext, id: AllocationId, child: &Allocation) {
        if self.allocations.get(&id).is_none_or(|allocation| allocation.state.is_terminal()) {
            return;
        }
        let Some(allocation) = self.allocation_mut(context, id) else { return };
        let (condition, state) = (DependencyCondition::Mutex, ParentState::Unended);
        let asking = Parent { on: child.id, condition, name: child.spec.name.clone(), asked_for_it: true, output: None, state };
        // Until now it depended on nothing.
        let eligible_at = Some(allocation.submitted_at);
        let none = || Box::new(Dependencies { eligible_at, ..Dependencies::default() });
        let all = allocation.dependencies.get_or_insert_with(none);
        all.parents.push(asking);
        self.follow(context, child.id, id);
    }

    /// The output directories of what an allocation depends on. A lane has those of its group, and a
    /// replica those of its service.
    pub(super) fn parent_outputs(&self, allocation: &Allocation) -> Vec<ParentOutput> {
        let whole = allocation.lane.map(|lane| lane.group).or(allocation.replica.as_deref().map(|replica| replica.service));
        let dependencies = match whole {
            Some(whole) => self.allocations.get(&whole).and_then(|whole| whole.dependencies.as_deref()),
            None => allocation.dependencies.as_deref(),
        };
        let parents = dependencies.into_iter().flat_map(|all| &all.parents);
        parents.filter_map(|parent| Some(ParentOutput { id: parent.on, place: parent.output.as_deref()?.clone() })).collect()
    }

    fn follow(&mut self, context: &mut ApplyContext, parent: AllocationId, child: AllocationId) {
        self.note_before(context, parent);
        self.dependents.insert(parent, child);
    }

    fn unfollow(&mut self, context: &mut ApplyContext, parent: AllocationId, child: AllocationId) {
        self.note_before(context, parent);
        self.dependents.remove(parent, child);
    }

    /// Removes an allocation that is about to end from the children of its parents.
    pub(super) fn unfollow_parents(&mut self, context: &mut ApplyContext, id: AllocationId) {
        let Some(child) = self.allocations.get(&id).filter(|child| child.dependencies.is_some()).cloned() else { return };
        for parent in followed_by(&child) {
            self.unfollow(context, parent, id);
        }
    }

    /// Removes the unmet dependencies of work that the lost quorum let begin: they were met by then.
    pub(super) fn forget_unmet(&mut self, context: &mut ApplyContext, id: AllocationId) {
        let all = self.allocations.get(&id).and_then(|allocation| allocation.dependencies.as_ref());
        let is_unmet = |parent: &&Parent| parent.condition != DependencyCondition::Mutex && !parent.is_met();
        let unmet: Vec<AllocationId> = all.into_iter().flat_map(|all| &all.parents).filter(is_unmet).map(|parent| parent.on).collect();
        let begin = self.allocations.get(&id).and_then(|allocation| allocation.dependencies.as_ref()).and_then(|all| all.begin);
        if unmet.is_empty() && begin.is_none() {
            return;
        }
        for parent in &unmet {
            self.unfollow(context, *parent, id);
        }
        let now = context.at;
        if let Some(allocation) = self.allocation_mut(context, id)
            && let Some(all) = allocation.dependencies.take()
        {
            let Dependencies { mut parents, predecessor, begin: _, eligible_at } = *all;
            parents.retain(|parent| !unmet.contains(&parent.on));
            let eligible_at = eligible_at.or(Some(now));
            let depends = allocation.spec.singleton || allocation.spec.begin().is_some() || !parents.is_empty();
            allocation.dependencies = depends.then(|| Box::new(Dependencies { parents, predecessor, begin: None, eligible_at }));
        }
    }

    /// The facts about an allocation that its children need; `None`: it does not exist.
    pub(super) fn parent_facts(&self, id: AllocationId) -> Option<ParentFacts> {
        let allocation = self.allocations.get(&id)?;
        let ended = Some(allocation.state).filter(|state| state.is_terminal());
        let may_run = self.holdings.unfenced_of(id) > 0 || self.has_lanes(id);
        let ended_at = allocation.ended_at.filter(|_| ended.is_some());
        Some(ParentFacts { ended, may_run, begun_at: allocation.first_begun_at(), ended_at })
    }

    /// Whether the next command has to continue: the end of an allocation or task has not reached all that
    /// depend on it, lanes or replicas are to be created or ended, or the cancellation of a DAG has not
    /// reached all of its steps.
    pub fn dependents_are_due(&self) -> bool {
        !self.unsettled.is_empty() || !self.unsettled_tasks.is_empty() || self.groups_are_due() || !self.dags.cancelling.is_empty()
    }

    /// Settles a bounded number of effects of this command, and of those that earlier commands left.
    /// Repeats itself, because the end of a group is the end of a parent, and a child may be a group.
    pub(super) fn settle(&mut self, context: &mut ApplyContext) {
        let (mut children, mut news, mut lanes) = (SETTLED_AT_ONCE_MAX, NEWS_AT_ONCE_MAX, LANES_AT_ONCE_MAX);
        loop {
            self.follow_lanes(context);
            self.settle_tasks(context, &mut news);
            self.settle_groups(context, &mut lanes);
            self.settle_children(context, &mut children);
            self.settle_names(context);
            let are_followed = context.lanes.is_empty() && context.replicas.is_empty();
            if are_followed && context.groups.is_empty() && context.names_before.is_empty() {
                return;
            }
        }
    }

    /// Settles at most `left` children of changed parents.
    fn settle_children(&mut self, context: &mut ApplyContext, left: &mut usize) {
        self.find_unsettled(context);
        while *left > 0 {
            let Some((parent, after)) = self.unsettled.first_key_value().map(|(parent, after)| (*parent, *after)) else { return };
            let children: Vec<AllocationId> = self.dependents.of(parent, after).take(*left).collect();
            // If these were the last children, the next turn finds none.
            match children.last() {
                Some(last) if children.len() == *left => self.unsettled.insert(parent, Some(*last)),
                Some(_) | None => self.unsettled.remove(&parent),
            };
            *left -= children.len().max(1);
            for child in children {
                self.settle_child(context, parent, child);
            }
            self.find_unsettled(context);
        }
    }

    /// Marks the parents whose facts this command has changed.
    fn find_unsettled(&mut self, context: &mut ApplyContext) {
        for (id, before) in std::mem::take(&mut context.parents_before) {
            let Some(now) = self.parent_facts(id).filter(|now| *now != before) else { continue };
            let excludes = |allocation: &Allocation| allocation.dependencies.iter().any(|all| all.excluded().next().is_some());
            // Before its end, only children matter that must not run beside it or that wait for its beginning.
            if now.ended.is_some()
                || (now.begun_at.is_some() && before.begun_at.is_none())
                || self.allocations.get(&id).is_some_and(|allocation| excludes(allocation))
            {
                self.unsettled.insert(id, None);
            }
        }
    }

    /// Updates what a child's record contains about this parent.
    fn settle_child(&mut self, context: &mut ApplyContext, parent: AllocationId, child: AllocationId) {
        let (Some(facts), Some(record)) = (self.parent_facts(parent), self.allocations.get(&child)) else { return };
        let Some(known) = record.dependencies.as_ref().and_then(|all| all.get(parent)).filter(|_| !record.state.is_terminal()) else {
            return;
        };
        let state = ParentState::of(known.condition, facts);
        if state == known.state {
            return;
        }
        let now = context.at;
        if let Some(allocation) = self.allocation_mut(context, child)
            && let Some(all) = &mut allocation.dependencies
        {
            all.set_state(parent, state, now);
            if all.parents.is_empty() && !allocation.spec.singleton && allocation.spec.begin().is_none() {
                allocation.dependencies = None;
            }
        }
        if state.is_final() {
            self.unfollow(context, parent, child);
        }
        self.end_unmet(context, child);
    }

    /// Ends an allocation with a dependency that can no longer be met.
    pub(super) fn end_unmet(&mut self, context: &mut ApplyContext, id: AllocationId) {
        if self.may_be_adopted(id) {
            return;
        }
        let Some(allocation) = self.allocations.get(&id).filter(|allocation| allocation.state.is_without_nodes()) else { return };
        let Some(Parent { on, condition, name, state, .. }) = allocation.dependencies.as_ref().and_then(|all| all.impossible()) else {
            return;
        };
        let Some(state) = state.ended() else { return };
        let reason = EndReason::DependencyUnmet { on: *on, name: name.clone(), condition: *condition, state };
        self.end_for_good(context, id, reason, "quorum");
    }

    /// Whether an allocation has a dependency that can no longer be met.
    pub(super) fn waits_in_vain(&self, id: AllocationId) -> bool {
        let allocation = self.allocations.get(&id).filter(|allocation| allocation.state.is_without_nodes());
        allocation.and_then(|allocation| allocation.dependencies.as_ref()).is_some_and(|all| all.impossible().is_some())
    }

    /// Refuses a claim while an allocation that must not run at the same time has nodes.
    pub(super) fn not_beside_excluded(&self, allocation: &Allocation) -> Result<(), Refusal> {
        let mut excluded = allocation.dependencies.iter().flat_map(|all| all.excluded());
        match excluded.find(|other| self.holdings.unfenced_of(other.on) > 0) {
            Some(other) => {
                let what = format!("waits for {} to leave its nodes", other.label());
                Err(Refusal::AwaitsOthers { id: allocation.id, what })
            }
            None => Ok(()),
        }
    }
}

/// Whether an allocation has an output directory that work of this user may read.
pub(super) fn has_output_for(parent: &Allocation, owner: &Principal) -> bool {
    parent.spec.data.defaults && parent.owner.uid == owner.uid
}

fn output_place(parent: &Allocation) -> OutputPlace {
    let (tenant, project) = (parent.spec.tenant.clone(), parent.stored_project().to_owned());
    OutputPlace { name: parent.output_name().to_owned(), tenant, project }
}

/// Whether this submits a task group or a scaled service, which get no nodes themselves.
pub(super) fn is_group(spec: &AllocationSpec) -> bool {
    spec.tasks.is_some() || spec.scaling.is_some()
}

/// Refuses nodes for an allocation that does not wait for any now.
pub(super) fn only_in_queue(allocation: &Allocation) -> Result<(), Refusal> {
    let id = allocation.id;
    match allocation.awaits() {
        Some(what) if !allocation.held => Err(Refusal::AwaitsOthers { id, what }),
        Some(_) | None if allocation.waits() => Ok(()),
        Some(_) | None => Err(Refusal::NotPending { id, state: allocation.state }),
    }
}
