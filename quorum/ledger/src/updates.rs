//! Changes of an allocation after its submission: of its name, project, tags, walltime and preemption class, and of
//! how a scaled service scales.
//!
//! | the allocation | its owner or who has a role for it may set | who proves to be an operator or system admin may set |
//! |---|---|---|
//! | waits for nodes, or is held | any value that a submission may have, no smaller `nice` below 0 | the same, any `nice` |
//! | has nodes | any name, project, tags and comment, a shorter walltime, a lower class | the same, and a longer walltime, a higher class |
//!
//! What its present claim uses counts for the project that it has when the claim ends.
//!
//! A time at which it begins, a deadline and a reservation are for work that has not begun. Work that is in its
//! queue keeps its place there.
//!
//! An allocation with nodes keeps at least a minute of its walltime. If nodes of it are lent, it stays
//! work to which they are lent.
//!
//! A task group or scaled service gets no nodes itself. Its lanes or replicas that have nodes keep what
//! they have, and others take the places of those that wait.
//!
//! The bounds and the metric concern the service, and not its replicas. They hold at once: the same command
//! brings the number of wanted replicas into the new bounds, and has the windows begin anew.
//!
//! The specification contains the current values, which its nodes, the scheduler and its next claims
//! use. The submitted values are stored beside it, so that a repeated submission is still recognised
//! as the same.

use super::timing::admits_times;
use super::{ApplyContext, Ledger, Outcome, Subject};
use lattice_ledger_state::refusal::{Refusal, UpdateRefusal};
use lattice_ledger_state::scaling_change::{NoSuchPolicy, ScalingChange, scaling_details};
use lattice_ledger_state::user_usage::holds_nodes;
use lattice_model::duration::clock_text;
use lattice_model::spec::check_task_walltime;
use lattice_model::{
    Allocation, AllocationId, AllocationSpec, AllocationState, AuditAction, Dependencies, DesiredShare, NodeId, Principal, SubmittedValues,
    Timestamp, Timing,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// An allocation with nodes keeps at least this much of its remaining walltime.
const LEFT_MIN: Duration = Duration::from_secs(60);
/// How many tags an audit record names.
const TAGS_SHOWN_MAX: usize = 8;

/// A change of an allocation; `None`: it keeps its value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocationChange {
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its project; empty: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project: Option<String>,
    /// Its walltime, counted from the beginning of the work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub walltime: Option<Duration>,
    /// Its preemption class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preemption_class: Option<u8>,
    /// The tags that get other values; an empty value removes the tag. The others stay.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tags: BTreeMap<String, String>,
    /// How it scales: of scaled services only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<ScalingChange>,
    /// It is not in its queue before this time; 0: it has no such time any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begin: Option<Timestamp>,
    /// It must have ended by this time; 0: it has no deadline any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// How much later in its queue it is than equal work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nice: Option<i32>,
    /// For people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// The reservation on whose nodes it begins; empty: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<String>,
    /// The change is refused unless the settings have this version ([`Allocation::version`]), or are already so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_version: Option<u64>,
}

impl AllocationChange {
    /// Its approximate size in the log, in bytes.
    pub fn bytes_about(&self) -> usize {
        let tags: usize = self.tags.iter().map(|(name, value)| name.len() + value.len() + 8).sum();
        let texts: usize = [&self.name, &self.project, &self.comment, &self.reservation].into_iter().flatten().map(String::len).sum();
        256 + texts + tags + self.scaling.as_ref().map_or(0, ScalingChange::bytes_about)
    }

    /// The bounds in time from then on. A walltime shorter than the least one is the least one.
    fn timing_of(&self, spec: &AllocationSpec) -> Option<Box<Timing>> {
        let Timing { begin, deadline, walltime_min } = spec.timing.as_deref().cloned().unwrap_or_default();
        let walltime = self.walltime.or(spec.walltime);
        let timing = Timing {
            begin: self.begin.or(begin).filter(|begin| *begin != Timestamp(0)),
            deadline: self.deadline.or(deadline).filter(|deadline| *deadline != Timestamp(0)),
            walltime_min: walltime_min.map(|least| walltime.map_or(least, |walltime| least.min(walltime))),
        };
        timing.unless_empty()
    }

    /// The specification from then on. Refuses the change of what it has no values of.
    fn apply_to(&self, id: AllocationId, spec: &AllocationSpec) -> Result<AllocationSpec, Refusal> {
        Ok(AllocationSpec {
            name: self.name.clone().unwrap_or_else(|| spec.name.clone()),
            project: self.project.clone().unwrap_or_else(|| spec.project.clone()),
            tags: changed_tags(&spec.tags, &self.tags),
            walltime: self.walltime.or(spec.walltime),
            timing: self.timing_of(spec),
            nice: self.nice.unwrap_or(spec.nice),
            comment: self.comment.clone().unwrap_or_else(|| spec.comment.clone()),
            reservation: self.reservation.clone().or_else(|| spec.reservation.clone()).filter(|name| !name.is_empty()),
            preemption_class: self.preemption_class.unwrap_or(spec.preemption_class),
            scaling: match (&spec.scaling, &self.scaling) {
                (Some(scaling), Some(change)) => Some(Box::new(change.apply_to(scaling).map_err(|error| no_policy(id, error))?)),
                (None, Some(_)) => return Err(Refusal::NotScaled { id }),
                (scaling, None) => scaling.clone(),
            },
            ..spec.clone()
        })
    }
}

fn no_policy(id: AllocationId, error: NoSuchPolicy) -> Refusal {
    let why = match error {
        NoSuchPolicy::NoMetric => UpdateRefusal::NoMetric,
        NoSuchPolicy::NoTarget => UpdateRefusal::NoTarget,
    };
    Refusal::Update { id, why }
}

/// Tags after a change; an empty value removes a tag.
pub(super) fn changed_tags(before: &BTreeMap<String, String>, change: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut tags = before.clone();
    for (name, value) in change {
        match value.is_empty() {
            true => drop(tags.remove(name)),
            false => drop(tags.insert(name.clone(), value.clone())),
        }
    }
    tags
}

impl Ledger {
    pub(super) fn update_allocation(
        &mut self,
        context: &mut ApplyContext,
        id: AllocationId,
        by: &Principal,
        change: &AllocationChange,
        as_operator: bool,
    ) -> Result<Outcome, Refusal> {
        let allocation = self.allocations.get(&id).ok_or_else(|| self.no_such_allocation(id))?;
        if !as_operator && !self.may("AllocationService/Update", by, &allocation.owner, &allocation.spec.tenant) {
            return Err(Refusal::NotYours { id, owner: allocation.owner.name.clone() });
        }
        let state = allocation.state;
        if state.is_terminal() {
            return Err(Refusal::Update { id, why: UpdateRefusal::HasEnded { state } });
        }
        Self::not_to_a_part(allocation)?;
        let (before, next) = (Arc::clone(&allocation.spec), change.apply_to(id, &allocation.spec)?);
        // A repetition whose first answer was lost.
        if next == *before {
            return Ok(Outcome::Done);
        }
        let version = allocation.version();
        if let Some(expected) = change.expected_version.filter(|expected| *expected != version) {
            return Err(Refusal::Update { id, why: UpdateRefusal::OtherVersion { expected, version } });
        }
        let task_walltime = next.walltime.filter(|_| allocation.is_task_group());
        next.validate().and_then(|()| check_task_walltime(task_walltime)).map_err(|error| Refusal::Malformed { why: error.to_string() })?;
        if next.project != before.project {
            self.admits_to_project(&next.tenant, &next.project, &allocation.owner)?;
        }
        if next.preemption_class != before.preemption_class {
            self.admits_class(&next)?;
        }
        if next.nice < before.nice.min(0) && !as_operator {
            return Err(Refusal::Update { id, why: UpdateRefusal::SmallerNice });
        }
        let has_other_times = next.timing != before.timing && (change.begin.is_some() || change.deadline.is_some());
        let has_begun = allocation.started_at.is_some() || !state.is_without_nodes();
        if has_begun && (has_other_times || next.reservation != before.reservation) {
            return Err(Refusal::Update { id, why: UpdateRefusal::HasBegun { state: allocation.shown_state() } });
        }
        if next.reservation != before.reservation {
            self.admits_to_reservation(&next, &allocation.owner, context.at)?;
        }
        if has_other_times {
            admits_times(&next, context.at)?;
        } else if next.walltime != before.walltime && state.is_without_nodes() {
            // It would miss its deadline.
            admits_times(&next, context.at)?;
        }
        let fewest = |spec: &AllocationSpec| spec.scaling.as_ref().map_or(0, |scaling| scaling.replicas_min);
        if fewest(&next) > fewest(&before) {
            self.admits_nodes(&next)?;
        }
        if holds_nodes(state) {
            self.admits_with_nodes(allocation, &next, context.at, as_operator).map_err(|why| Refusal::Update { id, why })?;
        }
        // A service gets no nodes itself: of it, this is what people see.
        let shown = if allocation.is_scaled_service() { allocation.shown_state() } else { state };
        for (action, detail) in details(&before, &next, shown) {
            self.record(context, &by.name, action, Subject { allocation: Some(id), node: None }, detail);
        }
        let concerns_parts = AllocationSpec { scaling: before.scaling.clone(), ..next.clone() } != *before;
        self.replace_spec(context, id, next);
        self.after_update(context, id, change);
        if concerns_parts {
            self.outdate_lanes(context, id);
        }
        self.adapt_scaling(context, id, &before, &by.name);
        Ok(Outcome::Done)
    }

    /// What follows from a change that is in the specification.
    fn after_update(&mut self, context: &mut ApplyContext, id: AllocationId, change: &AllocationChange) {
        let now = context.at;
        let Some(allocation) = self.allocation_mut(context, id) else { return };
        if change.walltime.is_some() {
            // Also for its next claims.
            allocation.asked_walltime = None;
        }
        if let Some(begin) = change.begin.filter(|_| allocation.state.is_without_nodes()) {
            // Until now it waited for nothing but nodes.
            let eligible_at = Some(allocation.submitted_at);
            let none = || Box::new(Dependencies { eligible_at, ..Dependencies::default() });
            allocation.dependencies.get_or_insert_with(none).set_begin(Some(begin), now);
        }
        // A longer walltime does not outlast its deadline.
        self.end_by_deadline(context, id);
    }

    /// After a recovery: work on a node may have been granted a longer walltime after the backup.
    /// It is not ended early.
    pub(super) fn adopt_walltime(&mut self, context: &mut ApplyContext, node: &NodeId, share: &DesiredShare) {
        let (id, reported) = (share.allocation, share.spec.walltime);
        let Some(spec) = self.allocations.get(&id).map(|allocation| Arc::clone(&allocation.spec)) else { return };
        let is_longer = spec.walltime.is_some_and(|before| reported.is_none_or(|reported| reported > before));
        if is_longer && self.is_live(id, share.epoch) {
            let detail =
                format!("{} instead of {}; node {node} had it before the recovery", walltime_text(reported), walltime_text(spec.walltime));
            self.record(context, "quorum", AuditAction::WalltimeChanged, Subject { allocation: Some(id), node: None }, detail);
            self.replace_spec(context, id, AllocationSpec { walltime: reported, ..AllocationSpec::clone(&spec) });
            self.end_by_deadline(context, id);
        }
    }

    /// Whether an allocation that has nodes may get this specification.
    fn admits_with_nodes(
        &self,
        allocation: &Allocation,
        next: &AllocationSpec,
        at: Timestamp,
        as_operator: bool,
    ) -> Result<(), UpdateRefusal> {
        let (state, before) = (allocation.state, &allocation.spec);
        let is_longer = before.walltime.is_some() && next.walltime > before.walltime;
        let is_higher = next.preemption_class > before.preemption_class;
        if next.walltime != before.walltime {
            let ran = allocation.started_at.map_or(Duration::ZERO, |started| Duration::from_millis(at.since_ms(started)));
            if before.walltime.is_some_and(|before| before <= ran) {
                return Err(UpdateRefusal::WalltimeIsOver);
            }
            if is_longer && !as_operator {
                return Err(UpdateRefusal::LongerWithNodes { state });
            }
            if !is_longer && next.walltime.is_some_and(|walltime| walltime < ran + LEFT_MIN) {
                return Err(UpdateRefusal::TooShort { ran, least: Duration::from_secs((ran + LEFT_MIN).as_secs() + 1) });
            }
        }
        if is_higher && !as_operator {
            return Err(UpdateRefusal::HigherWithNodes { state });
        }
        if (is_longer || is_higher)
            && let Some(lender) = self.lender_against(allocation, next)
        {
            return Err(UpdateRefusal::NodesAreLent { lender });
        }
        Ok(())
    }

    pub(super) fn replace_spec(&mut self, context: &mut ApplyContext, id: AllocationId, next: AllocationSpec) {
        let Some(allocation) = self.allocation_mut(context, id) else { return };
        let before = std::mem::replace(&mut allocation.spec, Arc::new(next));
        let submitted = allocation.submitted_values.get_or_insert_with(|| Box::new(SubmittedValues::of(&before)));
        submitted.changes = submitted.changes.saturating_add(1);
        if holds_nodes(allocation.state) {
            let nodes: Vec<NodeId> = allocation.nodes().cloned().collect();
            context.changed.desired.extend(nodes);
        }
    }
}

/// The audit records of a change.
fn details(before: &AllocationSpec, next: &AllocationSpec, state: AllocationState) -> Vec<(AuditAction, String)> {
    let mut details = Vec::new();
    if next.walltime != before.walltime {
        let (now, before) = (walltime_text(next.walltime), walltime_text(before.walltime));
        details.push((AuditAction::WalltimeChanged, format!("{now} instead of {before} while {state}")));
    }
    let mut others = Vec::new();
    if next.name != before.name {
        others.push(format!("name {} instead of {}", next.name, before.name));
    }
    if next.project != before.project {
        others.push(format!("project {} instead of {}", project_text(&next.project), project_text(&before.project)));
    }
    if next.preemption_class != before.preemption_class {
        others.push(format!("preemption class {} instead of {}", next.preemption_class, before.preemption_class));
    }
    if next.begin() != before.begin() {
        others.push(format!("begin {} instead of {}", time_text(next.begin()), time_text(before.begin())));
    }
    if next.deadline() != before.deadline() {
        others.push(format!("deadline {} instead of {}", time_text(next.deadline()), time_text(before.deadline())));
    }
    if next.nice != before.nice {
        others.push(format!("nice {} instead of {}", next.nice, before.nice));
    }
    if next.comment != before.comment {
        others.push("another comment".to_owned());
    }
    if next.reservation != before.reservation {
        let name = |spec: &AllocationSpec| spec.reservation.clone().unwrap_or_else(|| "none".to_owned());
        others.push(format!("reservation {} instead of {}", name(next), name(before)));
    }
    if next.tags != before.tags {
        others.push(format!("tags {} instead of {}", tags_text(&next.tags), tags_text(&before.tags)));
    }
    if let (Some(next), Some(before)) = (&next.scaling, &before.scaling) {
        others.extend(scaling_details(before, next));
    }
    if !others.is_empty() {
        details.push((AuditAction::AllocationChanged, format!("{} while {state}", others.join(", "))));
    }
    details
}

/// A project in an audit record.
pub(super) fn project_text(project: &str) -> &str {
    if project.is_empty() { "none" } else { project }
}

/// The first tags, and how many more there are.
pub(super) fn tags_text(tags: &BTreeMap<String, String>) -> String {
    if tags.is_empty() {
        return "none".to_owned();
    }
    let shown: Vec<String> = tags.iter().take(TAGS_SHOWN_MAX).map(|(name, value)| format!("{name}={value}")).collect();
    let more = match tags.len().saturating_sub(shown.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    shown.join(",") + &more
}

fn time_text(time: Option<Timestamp>) -> String {
    time.map_or_else(|| "none".to_owned(), |time| time.to_string())
}

fn walltime_text(walltime: Option<Duration>) -> String {
    walltime.map_or_else(|| "none".to_owned(), clock_text)
}
