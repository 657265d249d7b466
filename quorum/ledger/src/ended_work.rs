//! Accounting: every end is given to one store, exactly once.
//!
//! ```text
//!   an allocation ends ──▶ numbered ──▶ waiting ──page──▶ agent with the lease `accounting`
//!                                          ▲                   │ the batch and its last number,
//!                                          │                   ▼ in one transaction
//!                          forgotten up to it ◀──Account── the store
//! ```
//!
//! Before the first `Account`, ends are only numbered, so a cluster without a store needs no memory for
//! them. From then on every end is kept until the store has confirmed it. When the memory for ends (64 MiB)
//! is full, the oldest are dropped and counted, and the audit log says when that began.
//!
//! The record is made when the allocation ends, so the limits of ended allocations (`ended.rs`) do not
//! apply to it: the allocation itself may be dropped before the store has the record.
//!
//! The use in a record is what all claims of the allocation added to the buckets of use (`usage.rs`). The
//! allocation itself keeps only its latest claim, so the sum of the former claims is kept here until it
//! ends.
//!
//! A correction of a record's project and tags is numbered like an end, and the store gets it exactly once, after
//! the record. The audit log has it, too. It does not change the buckets of use. While the ends and corrections that
//! wait fill half of the memory, new corrections are refused: they must not push out ends.
//!
//! After a recovery from a backup the numbers continue far beyond those of the backup: the store may have
//! numbers that the lost quorum assigned, and no number may get a second meaning.

use super::updates::{changed_tags, project_text, tags_text};
use super::{ApplyContext, Ledger, Outcome, Subject};
use lattice_ledger_state::ended_work::{StoreState, UsedSoFar};
use lattice_ledger_state::record_bytes::ended_work_bytes;
use lattice_ledger_state::refusal::Refusal;
use lattice_ledger_state::usage_records::Span;
use lattice_model::ended_work::{AccountedUntil, EndedWork};
use lattice_model::spec::check_project_and_tags;
use lattice_model::{Allocation, AllocationId, AuditAction, NodeId, Principal, hostlist};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

/// Largest size of the ended work that waits, in bytes: about 80,000 records. Tests of this crate fill a
/// smaller one.
pub(super) const ENDED_WORK_BYTES_MAX: usize = if cfg!(test) { 256 * 1024 } else { 64 * 1024 * 1024 };
/// The lease of the agent that writes to the accounting store.
pub const ACCOUNTING_LEASE: &str = "accounting";

/// The progress of accounting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndsStatus {
    /// What the store has confirmed; `None`: there is no store now.
    pub accounted: Option<AccountedUntil>,
    /// The number of the latest end.
    pub ended: u64,
    /// How many ends wait for the store.
    pub waiting: u64,
    /// How many were dropped before a store had them.
    pub dropped: u64,
}

/// A change of the record of ended work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Correction {
    /// The record as the store has it: the ledger may have forgotten the work.
    pub work: EndedWork,
    /// Its project from then on; empty: none. `None`: it keeps its own.
    pub project: Option<String>,
    /// The tags to change; an empty value removes the tag. Other tags stay.
    pub tags: BTreeMap<String, String>,
}

impl Correction {
    /// Its approximate size in the log, in bytes.
    pub fn bytes_about(&self) -> usize {
        let tags: usize = self.tags.iter().map(|(name, value)| name.len() + value.len() + 8).sum();
        256 + ended_work_bytes(&self.work) + self.project.as_ref().map_or(0, String::len) + tags
    }
}

impl Ledger {
    /// Ended work that waits for the store and has a higher number than this, in the order of the ends.
    pub fn ended_work_after(&self, sequence: u64) -> impl Iterator<Item = &Arc<EndedWork>> {
        self.ends.after(sequence)
    }

    /// The progress of accounting.
    pub fn ends_status(&self) -> EndsStatus {
        EndsStatus {
            accounted: self.ends.accounted(),
            ended: self.ends.last,
            waiting: self.ends.waiting_count(),
            dropped: self.ends.dropped_count(),
        }
    }

    /// The allocation is about to lose its claim, if it has one. `span`: what the claim has used.
    pub(super) fn sum_claim(&mut self, allocation: &Allocation, span: Option<Span>) {
        if allocation.claimed_at.is_none() && allocation.started_at.is_none() {
            return;
        }
        let mut sum = self.ends.used_so_far.get(&allocation.id).copied().unwrap_or_default();
        sum.claimed_at = sum.claimed_at.or(allocation.claimed_at);
        sum.started_at = sum.started_at.or(allocation.started_at);
        if let Some(Span { node_use, from, to }) = span {
            let period = self.limits.budget_period.kept();
            let cores: u64 = allocation.shares.iter().map(|share| u64::from(share.resources.cores)).sum();
            sum.used = sum.used.plus(node_use.recorded((from, to), period));
            sum.core_ms = sum.core_ms.saturating_add(period.recorded_ms(from, to).saturating_mul(cores));
        }
        self.ends.used_so_far.insert(allocation.id, sum);
    }

    /// The allocation has ended, and its last claim is summed.
    pub(super) fn number_end(&mut self, context: &mut ApplyContext, id: AllocationId) {
        let sum = self.ends.used_so_far.remove(&id).unwrap_or_default();
        self.ends.last += 1;
        let Some(allocation) = self.allocations.get(&id).filter(|_| self.ends.are_kept()) else { return };
        let work = ended_work(allocation, sum, self.ends.last, context);
        self.push_ended_work(context, work);
    }

    /// Gives the store a correction of a record that it has. While the correction waits, a repetition changes nothing;
    /// later, it is another correction with the same content.
    pub(super) fn correct_ended_work(
        &mut self,
        context: &mut ApplyContext,
        correction: &Correction,
        by: &Principal,
        as_operator: bool,
    ) -> Result<Outcome, Refusal> {
        let Correction { work: before, project, tags } = correction;
        let (owner, tenant) = self.owner_and_tenant(before);
        if !as_operator && !self.may("AllocationService/Update", by, &owner, &tenant) {
            return Err(Refusal::NotYours { id: before.allocation, owner: owner.name });
        }
        let accounted = self.ends.accounted().ok_or(Refusal::NoStore)?;
        if before.corrects.is_some() || before.sequence > accounted.sequence {
            let why = format!("end {} is no record that accounting store {} has", before.sequence, accounted.store);
            return Err(Refusal::Malformed { why });
        }
        // The agent read the record in the store, which may not have the latest correction yet.
        let latest = self.ends.waiting_correction(before.sequence).filter(|latest| latest.allocation == before.allocation).cloned();
        let now = latest.as_deref().unwrap_or(before);
        let next = EndedWork {
            sequence: self.ends.last + 1,
            project: project.clone().unwrap_or_else(|| now.project.clone()),
            tags: changed_tags(&now.tags, tags),
            corrects: Some(before.sequence),
            ..before.clone()
        };
        check_project_and_tags(&next.project, &next.tags).map_err(|error| Refusal::Malformed { why: error.to_string() })?;
        let mut changes = Vec::new();
        if next.project != now.project {
            // An operator may name a project that is no longer registered, or that the owner has left.
            if !as_operator {
                self.admits_to_project(&tenant, &next.project, &owner)?;
            }
            changes.push(format!("project {} instead of {}", project_text(&next.project), project_text(&now.project)));
        }
        if next.tags != now.tags {
            changes.push(format!("tags {} instead of {}", tags_text(&next.tags), tags_text(&now.tags)));
        }
        if changes.is_empty() {
            return Ok(Outcome::Done);
        }
        if !self.ends.takes_correction(&next, ENDED_WORK_BYTES_MAX) {
            return Err(Refusal::StoreTooFarBehind { store: accounted.store, waiting: self.ends.waiting_count() });
        }
        let detail = format!("end {}: {}", before.sequence, changes.join(", "));
        self.record(
            context,
            &by.name,
            AuditAction::EndedWorkCorrected,
            Subject { allocation: Some(before.allocation), node: None },
            detail,
        );
        self.ends.last = next.sequence;
        self.push_ended_work(context, next);
        Ok(Outcome::Done)
    }

    /// The owner of a record's work, and the tenant whose admins may correct it (empty: none). If the ledger still has
    /// the allocation, the allocation decides, and not the record that the agent sent.
    fn owner_and_tenant(&self, work: &EndedWork) -> (Principal, String) {
        if let Some(allocation) = self.allocations.get(&work.allocation) {
            return (allocation.owner.clone(), self.administered_tenant(allocation).to_owned());
        }
        let owner = Principal { name: work.user.clone(), uid: work.uid, gid: work.uid, groups: Vec::new() };
        let is_former = self.tenants.get(&work.tenant).is_some_and(|tenant| work.ended_at <= tenant.since);
        (owner, if is_former { String::new() } else { work.tenant.clone() })
    }

    fn push_ended_work(&mut self, context: &mut ApplyContext, work: EndedWork) {
        if self.ends.push(work, ENDED_WORK_BYTES_MAX) {
            let store = self.ends.accounted().map_or_else(|| "the next store".to_owned(), |until| format!("store {}", until.store));
            let detail = format!("{} ends wait for {store}, and the oldest are dropped from now on", self.ends.waiting_count());
            self.record(context, "quorum", AuditAction::EndedWorkDropped, Subject::default(), detail);
        }
    }

    /// The agent's store has everything up to a number, perhaps the same as before. The first store of
    /// the cluster, or the first after a move, gets all further ends.
    pub(super) fn account(
        &mut self,
        context: &mut ApplyContext,
        until: AccountedUntil,
        node: &NodeId,
        lease_token: u64,
    ) -> Result<Outcome, Refusal> {
        let lease = self.leases.get(ACCOUNTING_LEASE).filter(|lease| lease.token == lease_token && lease.holder == *node);
        if lease.is_none() {
            return Err(Refusal::StaleLease { name: ACCOUNTING_LEASE.to_owned(), token: lease_token });
        }
        let AccountedUntil { store, sequence } = until;
        if sequence > self.ends.last {
            let why = format!(
                "accounting store {store} has ended work up to number {sequence}, but the last number of this cluster is {}: \
                 the store belongs to another cluster",
                self.ends.last
            );
            return Err(Refusal::Malformed { why });
        }
        let sequence = match self.ends.store {
            StoreState::Current(now) if now.store != store => return Err(Refusal::OtherStore { store: now.store }),
            StoreState::Open { former: Some(former) } if former == store => return Err(Refusal::FormerStore { store }),
            // A repetition, or a store that was restored from a copy: forgotten ends cannot be sent again.
            StoreState::Current(now) => now.sequence.max(sequence),
            StoreState::Unseen | StoreState::Open { .. } => {
                let detail = format!("store {store}, which has everything up to number {sequence} of {}", self.ends.last);
                let about = Subject { allocation: None, node: Some(node) };
                self.record(context, &format!("node:{node}"), AuditAction::AccountingStoreSet, about, detail);
                sequence
            }
        };
        self.ends.store = StoreState::Current(AccountedUntil { store, sequence });
        self.ends.forget_until(sequence, ENDED_WORK_BYTES_MAX);
        Ok(Outcome::Done)
    }

    /// The next store that asks gets all waiting and further ends. Without `force`, a move is refused while ends
    /// wait: the present store may have some that it has not confirmed, and then both stores would have them.
    /// With `force` and no present store, the store that accounting was moved away from may continue.
    pub(super) fn move_accounting(&mut self, context: &mut ApplyContext, by: &str, force: bool) -> Result<Outcome, Refusal> {
        let waiting = self.ends.waiting_count();
        let (former, detail) = match self.ends.store {
            StoreState::Unseen => return Err(Refusal::NoStore),
            StoreState::Open { former: Some(former) } if force => (None, format!("store {former} may go on")),
            // A repetition.
            StoreState::Open { .. } => return Ok(Outcome::Done),
            StoreState::Current(AccountedUntil { store, .. }) if waiting > 0 && !force => {
                return Err(Refusal::StoreBehind { store, waiting });
            }
            StoreState::Current(AccountedUntil { store, sequence }) => {
                (Some(store), format!("away from store {store}, which has confirmed number {sequence}; {waiting} ends wait"))
            }
        };
        self.ends.store = StoreState::Open { former };
        self.record(context, by, AuditAction::AccountingMoved, Subject::default(), detail);
        self.drop_lease(context, ACCOUNTING_LEASE, by, AuditAction::LeaseRevoked, "accounting is moved to another store");
        Ok(Outcome::Done)
    }
}

/// The record of an allocation that has ended. `sum`: what all its claims have used.
fn ended_work(allocation: &Allocation, sum: UsedSoFar, sequence: u64, context: &ApplyContext) -> EndedWork {
    let Allocation { id, number, spec, owner, state, reason, submitted_at, shares, requeue_count, preempted_count, .. } = allocation;
    let last_attempt = || {
        let nodes = allocation.attempts.last().map(|attempt| attempt.nodes.clone()).unwrap_or_default();
        let count = hostlist::count(&nodes).unwrap_or(0);
        (nodes, count)
    };
    let (nodes, node_count) = if shares.is_empty() { last_attempt() } else { (hostlist::fold(shares.nodes()), shares.len()) };
    EndedWork {
        sequence,
        allocation: *id,
        job: *number,
        name: spec.name.clone(),
        tenant: spec.tenant.clone(),
        project: spec.project.clone(),
        vcluster: spec.vcluster.clone(),
        user: owner.name.clone(),
        uid: owner.uid,
        tags: spec.tags.clone(),
        state: *state,
        reason: reason.as_ref().map(ToString::to_string).unwrap_or_default(),
        exit_code: reason.as_ref().and_then(|reason| reason.exit_code()),
        nodes,
        node_count: u32::try_from(node_count).unwrap_or(u32::MAX),
        submitted_at: *submitted_at,
        claimed_at: sum.claimed_at,
        started_at: sum.started_at,
        ended_at: allocation.ended_at.unwrap_or(context.at),
        requeue_count: *requeue_count,
        preempted_count: *preempted_count,
        used: sum.used,
        core_ms: sum.core_ms,
        part_of: part_of(allocation),
        corrects: None,
    }
}

/// The task group, scaled service or DAG that it is a part of.
fn part_of(allocation: &Allocation) -> Option<Uuid> {
    let group = allocation.lane.map(|lane| lane.group.0);
    let service = allocation.replica.as_deref().map(|replica| replica.service.0);
    let dag = allocation.dag.as_deref().map(|step| step.dag.0);
    group.or(service).or(dag)
}
