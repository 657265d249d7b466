//! DAGs: their submission, all or nothing, the states of their steps, and their cancellation.
//!
//! ```text
//!   SubmitDag ──every step is admissible──▶ an allocation for each step, and the DAG's record
//!       ╰──one is not──▶ Refusal::DagStep, nothing is submitted
//!   a step ends ──▶ noted in the DAG's record         a step's record is dropped ──▶ one less; with the last, the DAG's is dropped
//!   CancelDag ──▶ `cancelling` ──each command: some steps, the last ones first──▶ all have ended
//! ```
//!
//! The dependencies between the steps are those of their allocations ([`super::dependencies`]). The
//! DAG's record adds that the steps were submitted together, their names, and how those ended whose
//! own records have been dropped.
//!
//! A step that runs could keep the record of a large DAG for long, so the records of all DAGs have a
//! bound, and those of one user a smaller one.

use super::corresponding::{follows_few, may_correspond};
use super::dependencies::{has_output_for, is_group};
use super::timing::admits_times;
use super::views::{CANDIDATES_MAX, id_range};
use super::{ApplyContext, LIVE_MAX, Ledger, Outcome, Subject};
use lattice_ledger_state::record_bytes::dag_bytes;
use lattice_ledger_state::refusal::{DependencyRefusal, Refusal};
use lattice_model::count::counted;
use lattice_model::dag::{DAG_BYTES_MAX, is_dag_name};
use lattice_model::dependency::{DEPENDENCIES_MAX, output_variable};
use lattice_model::{
    Allocation, AllocationId, AllocationSpec, AllocationState, AuditAction, Dag, DagId, DagStep, DagSubmission, Dependency,
    DependencyCondition, EndReason, Principal, Step, StepCounts, StepEnd, StepOf, Timestamp,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Memory of the records of all DAGs, in bytes.
const ALL_BYTES_MAX: u64 = 256 << 20;
/// Memory of the records of one user's DAGs, in bytes.
const USER_BYTES_MAX: u64 = 64 << 20;
/// How many steps one command cancels at most.
const CANCELLED_AT_ONCE_MAX: usize = if cfg!(test) { 8 } else { 1000 };

/// Which DAGs are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DagFilter {
    /// Only DAGs of this user; `None`: of all users.
    pub uid: Option<u32>,
    /// Only DAGs of the user with this name; `None`: of all users.
    pub user: Option<String>,
    /// Only DAGs in one of these states; empty: in any state.
    pub states: Vec<AllocationState>,
}

/// A position in the list of all DAGs, newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DagCursor {
    pub submitted_at: Timestamp,
    pub id: DagId,
}

/// A DAG without its steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DagSummary {
    pub id: DagId,
    pub name: String,
    pub owner: Principal,
    pub submitted_at: Timestamp,
    /// The number of steps by how they ended.
    pub counts: StepCounts,
}

/// A DAG with the states of its steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DagStatus {
    /// Its record.
    pub dag: Dag,
    /// See [`Ledger::dag_tenant`].
    pub tenant: String,
    /// The states of the steps, in the order of the record.
    pub steps: Vec<StepStatus>,
}

/// The state of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepStatus {
    /// The state of its allocation.
    pub state: AllocationState,
    /// Why it ended, or is in the queue again; `None`: neither, or its record was dropped.
    pub reason: Option<EndReason>,
    /// The names of the allocations outside the DAG that it depends on; empty if its record was
    /// dropped.
    pub others: BTreeMap<AllocationId, String>,
}

impl Ledger {
    pub(super) fn submit_dag(
        &mut self,
        context: &mut ApplyContext,
        id: DagId,
        owner: &Principal,
        submission: &DagSubmission,
    ) -> Result<Outcome, Refusal> {
        if let Some(there) = self.dags.get(id) {
            // Compares digests, because the whole specifications may be much larger than the submission.
            let same = there.owner == *owner && there.digest == digest_of(submission)?;
            return if same { Ok(Outcome::Done) } else { Err(Refusal::DagExists { id }) };
        }
        let specs = self.admits_steps(owner, submission, &context.login_tenants)?;
        let record = Arc::new(Dag { digest: digest_of(submission)?, ..record_of(id, owner, submission, context.at) });
        self.admits_record(&record)?;
        self.admits_dag_of_user(context, &specs, owner)?;
        for (number, (step, spec)) in (0..).zip(submission.steps.iter().zip(specs)) {
            // The steps before it exist, and nothing has been dropped yet.
            let (dependencies, awaited) = (self.dependencies_of(&spec, owner, context.at), self.tasks_awaited(&spec));
            let dag = Some(Box::new(StepOf { dag: id, number, name: step.name.clone() }));
            let submitted = Allocation::submitted(step.allocation, spec, owner.clone(), context.at);
            let _number = self.add_submitted(context, Allocation { dependencies, dag, ..submitted }, &awaited);
        }
        let detail = format!("DAG {id} ({}) with {}", record.name, counted(record.steps.len(), "step"));
        self.dags.insert(record);
        self.record(context, &owner.name, AuditAction::DagSubmitted, Subject::default(), detail);
        // All steps follow their parents before one ends: an end may drop other records.
        for step in &submission.steps {
            self.follow_parents(context, step.allocation);
        }
        for step in &submission.steps {
            self.end_unmet(context, step.allocation);
        }
        self.make_room_for_scripts(context, owner.uid);
        Ok(Outcome::Done)
    }

    /// Checks whether the submission would be accepted now. Changes nothing. `login_tenants`: tenants of which the
    /// owner counts as a member by its login.
    ///
    /// # Errors
    /// The refusal that the submission would get.
    pub fn admits_dag(
        &self,
        owner: &Principal,
        submission: &DagSubmission,
        login_tenants: &BTreeSet<String>,
        now: Timestamp,
    ) -> Result<(), Refusal> {
        let specs = self.admits_steps(owner, submission, login_tenants)?;
        let at = now.max(self.time);
        self.admits_record(&record_of(DagId(uuid::Uuid::nil()), owner, submission, at))?;
        self.would_admit_dag_of_user(&specs, owner, at)
    }

    /// The whole specification of each step, if all of them are admissible together.
    fn admits_steps(
        &self,
        owner: &Principal,
        submission: &DagSubmission,
        login_tenants: &BTreeSet<String>,
    ) -> Result<Vec<AllocationSpec>, Refusal> {
        let malformed = |why: String| Err(Refusal::Malformed { why });
        let (steps, most) = (submission.steps.len(), self.limits.dag_size.steps());
        if steps > most as usize {
            return Err(Refusal::DagSize { steps: steps as u64, most });
        }
        let bytes = submission.bytes_about();
        if bytes > DAG_BYTES_MAX {
            return Err(Refusal::TooLarge { what: "the DAG".to_owned(), bytes: bytes as u64, most: DAG_BYTES_MAX as u64 });
        }
        if steps == 0 {
            return malformed("a DAG without steps".to_owned());
        }
        if !is_dag_name(&submission.name) {
            return malformed("the name of a DAG has 1 to 128 bytes without control characters".to_owned());
        }
        if self.allocations.len() - self.ended.len() + steps > LIVE_MAX {
            return Err(Refusal::TooMany { what: "allocations that have not ended".to_owned(), most: LIVE_MAX as u64 });
        }
        let mut names = BTreeSet::new();
        let mut earlier = Earlier::default();
        let tenants = self.own_tenants(owner, login_tenants);
        let mut specs = Vec::with_capacity(steps);
        for step in &submission.steps {
            if !is_dag_name(&step.name) || !names.insert(&step.name) {
                return malformed(format!("a name of a step has 1 to 128 bytes, and no other step has it: {:?}", step.name));
            }
            let refused = |refusal| Refusal::DagStep { step: step.name.clone(), refusal: Box::new(refusal) };
            let mut spec = submission.spec_of(step);
            if let Some(tenant) = tenants.missing(&spec).map_err(refused)? {
                spec.tenant = tenant;
            }
            self.admits_step(owner, step, &spec, &mut earlier).map_err(refused)?;
            specs.push(spec);
        }
        Ok(specs)
    }

    fn admits_step(&self, owner: &Principal, step: &DagStep, spec: &AllocationSpec, earlier: &mut Earlier) -> Result<(), Refusal> {
        let id = step.allocation;
        if self.allocations.contains_key(&id) || earlier.parents.contains_key(&id) {
            return Err(Refusal::AllocationExists { id });
        }
        self.admits_to_queue(spec)?;
        self.admits_to_project(&spec.tenant, &spec.project, owner)?;
        admits_times(spec, self.time)?;
        self.admits_to_reservation(spec, owner, self.time)?;
        follows_few(spec)?;
        for dependency in &spec.depends_on {
            let Dependency { on, condition } = dependency;
            let refused = |why| Refusal::Dependency { on: on.to_string(), why };
            if *on == id {
                return Err(refused(DependencyRefusal::Itself));
            }
            let excludes = *condition == DependencyCondition::Mutex;
            let corresponds = *condition == DependencyCondition::Corresponding;
            let of_same_kind = if corresponds { &mut earlier.following } else { &mut earlier.excluding };
            let more = of_same_kind.get(on).copied().unwrap_or_default();
            if excludes || corresponds {
                *of_same_kind.entry(*on).or_default() += 1;
            }
            match earlier.parents.get(on) {
                Some(parent) if excludes && (is_group(spec) || parent.is_group) => {
                    return Err(refused(DependencyRefusal::Group));
                }
                Some(parent) if excludes && parent.parents + more >= DEPENDENCIES_MAX => {
                    return Err(refused(DependencyRefusal::TooMany));
                }
                Some(parent) if corresponds => may_correspond(spec.tasks.is_some(), parent.is_task_group, more).map_err(refused)?,
                Some(_) => {}
                None => self.admits_dependency(dependency, spec, owner, more)?,
            }
        }
        self.outputs_have_names(owner, spec, earlier)?;
        let (name, parents) = (step.name.clone(), spec.depends_on.len());
        earlier.parents.insert(id, EarlierStep { name, parents, is_task_group: spec.tasks.is_some(), is_group: is_group(spec) });
        Ok(())
    }

    /// Refuses a step that would find the outputs of two others in the same variable.
    fn outputs_have_names(&self, owner: &Principal, spec: &AllocationSpec, earlier: &Earlier) -> Result<(), Refusal> {
        let mut named: BTreeMap<String, &str> = BTreeMap::new();
        for Dependency { on, .. } in spec.depends_on.iter().filter(|on| on.condition != DependencyCondition::Mutex) {
            let other = self.allocations.get(on).filter(|parent| has_output_for(parent, owner)).map(|parent| parent.output_name());
            let Some(name) = earlier.parents.get(on).map(|step| step.name.as_str()).or(other) else { continue };
            let variable = output_variable(name);
            if let Some(first) = named.get(&variable) {
                let why = format!("it depends on {first:?} and {name:?}, and would find the outputs of both in ${variable}: rename one");
                return Err(Refusal::Malformed { why });
            }
            named.insert(variable, name);
        }
        Ok(())
    }

    /// Refuses a DAG for whose record there is no memory.
    fn admits_record(&self, record: &Dag) -> Result<(), Refusal> {
        let (all, own) = self.dags.bytes(record.owner.uid);
        let more = dag_bytes(record) as u64;
        let full = |what: &str, bytes: u64, most: u64| Err(Refusal::DagMemory { what: what.to_owned(), bytes, most });
        if own + more > USER_BYTES_MAX {
            return full(&format!("of {}'s DAGs", record.owner.name), own + more, USER_BYTES_MAX);
        }
        if all + more > ALL_BYTES_MAX {
            return full("of all DAGs", all + more, ALL_BYTES_MAX);
        }
        Ok(())
    }

    /// Records in its DAG how an allocation ended.
    pub(super) fn note_step_end(&mut self, id: AllocationId) {
        let Some(allocation) = self.allocations.get(&id) else { return };
        let Some(StepOf { dag, number, .. }) = allocation.dag.as_deref() else { return };
        let end = match allocation.state {
            AllocationState::Completed => StepEnd::Completed,
            AllocationState::Failed if self.dags.step(*dag, *number).is_some_and(|step| step.is_caught) => StepEnd::Caught,
            AllocationState::Failed => StepEnd::Failed,
            AllocationState::Cancelled if self.is_not_needed(allocation) => StepEnd::NotNeeded,
            AllocationState::Cancelled => StepEnd::Cancelled,
            AllocationState::Pending | AllocationState::Staging | AllocationState::Running | AllocationState::Suspended => return,
        };
        let (dag, number) = (*dag, *number);
        if let Some(step) = self.dags.step_mut(dag, number) {
            step.end = Some(end);
        }
    }

    /// Whether a step that ended unmet was not needed: it waited for a failure and its parent succeeded, or
    /// it depends on a step of its DAG that was not needed or whose failure is caught.
    fn is_not_needed(&self, ended: &Allocation) -> bool {
        let Some(EndReason::DependencyUnmet { on, condition, state, .. }) = &ended.reason else { return false };
        if *condition == DependencyCondition::Failure && *state == AllocationState::Completed {
            return true;
        }
        let place = |allocation: &Allocation| allocation.dag.as_deref().map(|of| (of.dag, of.number));
        let parent = self.allocations.get(on).and_then(|parent| place(parent));
        let in_same = parent.filter(|(dag, _)| place(ended).is_some_and(|(of, _)| of == *dag));
        in_same.is_some_and(|(dag, number)| {
            let end = self.dags.step(dag, number).and_then(|step| step.end);
            matches!(end, Some(StepEnd::NotNeeded | StepEnd::Caught))
        })
    }

    /// Succeeds without a change if all steps have ended or are being cancelled.
    pub(super) fn cancel_dag(&mut self, context: &mut ApplyContext, id: DagId, by: &Principal) -> Result<Outcome, Refusal> {
        let Some(dag) = self.dags.get(id) else {
            return Err(Refusal::NoSuchDag { key: id.to_string() });
        };
        if !self.may("DagService/Cancel", by, &dag.owner, self.dag_tenant(dag)) {
            return Err(Refusal::DagNotYours { id, owner: dag.owner.name.clone() });
        }
        let unended = dag.counts().unended;
        if unended == 0 || self.dags.cancelling.contains_key(&id) {
            return Ok(Outcome::Done);
        }
        let detail = format!("DAG {id} ({}), {} not ended", dag.name, counted(unended, "step"));
        self.record(context, &by.name, AuditAction::DagCancelRequested, Subject::default(), detail);
        self.dags.cancelling.insert(id, by.name.clone());
        Ok(Outcome::Done)
    }

    /// After a command: ends a bounded number of steps of DAGs that are being cancelled. The last steps
    /// end first, so that none begins because another one has ended.
    pub(super) fn cancel_steps(&mut self, context: &mut ApplyContext) {
        let mut left = CANCELLED_AT_ONCE_MAX;
        while left > 0 {
            let Some((id, by)) = self.dags.cancelling.first_key_value().map(|(id, by)| (*id, by.clone())) else { return };
            let unended = self.dags.get(id).into_iter().flat_map(|dag| dag.steps.iter().rev().filter(|step| step.end.is_none()));
            let unended: Vec<AllocationId> = unended.map(|step| step.allocation).take(left).collect();
            if unended.len() < left {
                self.dags.cancelling.remove(&id);
            }
            left -= unended.len().max(1);
            for allocation in unended {
                self.end_for_good(context, allocation, EndReason::Cancelled { by: by.clone() }, &by);
            }
        }
    }

    /// One DAG.
    pub fn dag(&self, id: DagId) -> Option<&Arc<Dag>> {
        self.dags.get(id)
    }

    /// The DAG with this id, or the only one whose id has this prefix of at least 4 hexadecimal digits.
    ///
    /// # Errors
    /// [`Refusal::NoSuchDag`], [`Refusal::AmbiguousDag`], [`Refusal::Malformed`]
    pub fn find_dag(&self, key: &str) -> Result<&Arc<Dag>, Refusal> {
        let none = || Refusal::NoSuchDag { key: key.chars().take(64).collect() };
        let (first, last) = id_range(key)?.ok_or_else(none)?;
        let mut found = self.dags.range(DagId(first)..=DagId(last));
        let dag = found.next().ok_or_else(none)?;
        let others: Vec<String> = found.take(CANDIDATES_MAX - 1).map(|other| other.id.to_string()).collect();
        if others.is_empty() {
            return Ok(dag);
        }
        let candidates = std::iter::once(dag.id.to_string()).chain(others).collect();
        Err(Refusal::AmbiguousDag { key: key.to_owned(), candidates })
    }

    /// The tenant of all steps whose records are kept; empty: the steps have several tenants, none, or a former
    /// one of the same name. The tenant's admins may act on the DAG.
    pub fn dag_tenant(&self, dag: &Dag) -> &str {
        let known = dag.steps.iter().filter_map(|step| self.allocations.get(&step.allocation));
        let mut tenants = known.map(|allocation| self.administered_tenant(allocation));
        let first = tenants.next().unwrap_or_default();
        if tenants.all(|tenant| tenant == first) { first } else { "" }
    }

    /// A DAG with the states of its steps.
    pub fn dag_status(&self, dag: &Dag) -> DagStatus {
        let inner: BTreeSet<AllocationId> = dag.steps.iter().map(|step| step.allocation).collect();
        let status = |step: &Step| match self.allocations.get(&step.allocation) {
            Some(allocation) => {
                let parents = allocation.dependencies.iter().flat_map(|all| &all.parents).filter(|parent| !inner.contains(&parent.on));
                let others = parents.map(|parent| (parent.on, parent.name.clone())).collect();
                StepStatus { state: allocation.shown_state(), reason: allocation.reason.clone(), others }
            }
            None => {
                let state = step.end.map_or(AllocationState::Cancelled, StepEnd::state);
                StepStatus { state, reason: None, others: BTreeMap::new() }
            }
        };
        DagStatus { dag: dag.clone(), tenant: self.dag_tenant(dag).to_owned(), steps: dag.steps.iter().map(status).collect() }
    }

    /// The newest `limit` DAGs that pass the filter, after this position. `None`: from the beginning of
    /// the list.
    pub fn list_dags(&self, filter: &DagFilter, limit: usize, before: Option<DagCursor>) -> Vec<DagSummary> {
        let DagFilter { uid, user, states } = filter;
        let place = |dag: &Dag| DagCursor { submitted_at: dag.submitted_at, id: dag.id };
        let wanted = |dag: &&Arc<Dag>| {
            uid.is_none_or(|uid| dag.owner.uid == uid)
                && user.as_ref().is_none_or(|user| dag.owner.name == *user)
                && before.is_none_or(|before| place(dag) < before)
                && (states.is_empty() || states.contains(&dag.counts().state()))
        };
        let mut found: Vec<&Arc<Dag>> = self.dags.iter().filter(wanted).collect();
        found.sort_unstable_by_key(|dag| Reverse(place(dag)));
        let summary = |dag: &Arc<Dag>| DagSummary {
            id: dag.id,
            name: dag.name.clone(),
            owner: dag.owner.clone(),
            submitted_at: dag.submitted_at,
            counts: dag.counts(),
        };
        found.into_iter().take(limit).map(summary).collect()
    }
}

/// The steps before one, and what they depend on.
#[derive(Default)]
struct Earlier {
    parents: BTreeMap<AllocationId, EarlierStep>,
    /// How many steps exclude an allocation.
    excluding: BTreeMap<AllocationId, usize>,
    /// How many steps have tasks that correspond to those of a task group.
    following: BTreeMap<AllocationId, usize>,
}

struct EarlierStep {
    name: String,
    /// How many allocations it depends on.
    parents: usize,
    is_task_group: bool,
    /// See [`is_group`].
    is_group: bool,
}

fn digest_of(submission: &DagSubmission) -> Result<[u8; 32], Refusal> {
    let bytes = rmp_serde::to_vec_named(submission).map_err(|error| Refusal::Malformed { why: error.to_string() })?;
    Ok(Sha256::digest(bytes).into())
}

/// The record of a DAG that is submitted at this time, without the digest of the submission.
fn record_of(id: DagId, owner: &Principal, submission: &DagSubmission, at: Timestamp) -> Dag {
    let caught = submission.caught();
    let step = |step: &DagStep| Step {
        name: step.name.clone(),
        allocation: step.allocation,
        depends_on: step.spec.depends_on.clone(),
        is_caught: caught.contains(&step.allocation),
        end: None,
    };
    let steps: Vec<Step> = submission.steps.iter().map(step).collect();
    let records = u32::try_from(steps.len()).unwrap_or(u32::MAX);
    Dag { id, name: submission.name.clone(), owner: owner.clone(), submitted_at: at, digest: [0; 32], steps, records }
}
