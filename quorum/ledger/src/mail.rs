//! Mail about allocations: an event of which the user wants mail becomes an audit record, which the leader gives to the
//! site's mail hook.
//!
//! ```text
//!   begin, end, requeue, a part of the walltime ──wanted?──▶ record MailDue, with all that the hook needs
//! ```
//!
//! With `array_tasks` there is also a record for each task of a group that ran and ends, for at most [`TASK_MAILS_MAX`]
//! tasks: a group may have a million.
//!
//! The record has a copy of all data, because the ended allocation may be dropped before the hook has run. Lanes and
//! replicas have no mail of their own: their group or service has.

use super::signing::json;
use super::{ApplyContext, Ledger, Subject};
use lattice_model::mail::TASK_MAILS_MAX;
use lattice_model::{
    Allocation, AllocationId, AllocationState, AuditAction, AuditRecord, EndReason, MailEvent, TaskOutcome, TaskSet, Timestamp, hostlist,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Longest list of nodes in a record, in bytes; a longer list is cut.
const NODES_BYTES_MAX: usize = 1024;

/// The detail of a record of [`AuditAction::MailDue`]. Times are milliseconds since 1970; 0: not yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailNotice {
    /// What happened: [`MailEvent::name`].
    pub event: String,
    /// The receiver: an address or a name.
    pub to: String,
    pub id: AllocationId,
    pub name: String,
    pub owner: String,
    pub tenant: String,
    pub vcluster: String,
    pub state: String,
    /// Why it ended, or is back in its queue; empty: neither.
    pub reason: String,
    pub exit_code: Option<i32>,
    pub submitted_at_ms: u64,
    pub started_at_ms: u64,
    pub ended_at_ms: u64,
    /// 0: it has none.
    pub walltime_seconds: u64,
    pub requeue_count: u32,
    /// A hostlist.
    pub nodes: String,
    pub comment: String,
    /// The index of the task that it is about; absent: it is about all of the work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<u32>,
}

impl MailNotice {
    /// Parses a record of [`AuditAction::MailDue`]; `None` for any other record or content.
    pub fn of(record: &AuditRecord) -> Option<Self> {
        (record.action == AuditAction::MailDue).then(|| serde_json::from_str(&record.detail).ok()).flatten()
    }

    fn about(allocation: &Allocation, event: MailEvent) -> Self {
        let (spec, ms) = (&allocation.spec, |at: Option<Timestamp>| at.map_or(0, |at| at.0));
        let asked = spec.mail.as_deref().map(|mail| mail.user.as_str()).filter(|user| !user.is_empty());
        let reason = allocation.reason.as_ref();
        let last = allocation.attempts.last();
        let nodes = match (allocation.shares.is_empty(), last) {
            (true, Some(last)) => last.nodes.clone(),
            (_, _) => hostlist::fold(allocation.nodes()),
        };
        Self {
            event: event.name().to_owned(),
            to: asked.unwrap_or(&allocation.owner.name).to_owned(),
            id: allocation.id,
            name: spec.name.clone(),
            owner: allocation.owner.name.clone(),
            tenant: spec.tenant.clone(),
            vcluster: spec.vcluster.clone(),
            state: allocation.shown_state().to_string(),
            reason: reason.map(ToString::to_string).unwrap_or_default(),
            exit_code: reason.and_then(EndReason::exit_code),
            submitted_at_ms: allocation.submitted_at.0,
            started_at_ms: ms(allocation.started_at.or(last.and_then(|last| last.started_at))),
            ended_at_ms: ms(allocation.ended_at.or(last.filter(|_| allocation.shares.is_empty()).map(|last| last.ended_at))),
            walltime_seconds: spec.walltime.map_or(0, |walltime| walltime.as_secs()),
            requeue_count: allocation.requeue_count,
            nodes: cut(nodes),
            comment: spec.comment.clone(),
            task: None,
        }
    }

    /// About a task of a group. The quorum does not know when and on which node it began.
    fn about_task(group: &Allocation, event: MailEvent, index: u32, outcome: TaskOutcome) -> Self {
        let (state, exit_code) = match outcome {
            TaskOutcome::Exited(0) => (AllocationState::Completed, Some(0)),
            TaskOutcome::Exited(code) => (AllocationState::Failed, Some(code)),
            TaskOutcome::WalltimeExceeded | TaskOutcome::Lost => (AllocationState::Failed, None),
            TaskOutcome::Cancelled | TaskOutcome::Unmet => (AllocationState::Cancelled, None),
        };
        Self {
            state: state.to_string(),
            reason: outcome.to_string(),
            exit_code,
            started_at_ms: 0,
            ended_at_ms: 0,
            requeue_count: 0,
            nodes: String::new(),
            task: Some(index),
            ..Self::about(group, event)
        }
    }
}

impl Ledger {
    /// Records that mail is due, if the user wants mail of this event.
    pub(super) fn mail(&mut self, context: &mut ApplyContext, id: AllocationId, event: MailEvent) {
        let Some(allocation) = self.allocations.get(&id).filter(|allocation| allocation.has_mail()) else { return };
        if !allocation.spec.mail.as_ref().is_some_and(|mail| mail.events.contains(&event)) {
            return;
        }
        let notice = json(&MailNotice::about(allocation, event));
        self.record(context, "quorum", AuditAction::MailDue, Subject { allocation: Some(id), node: None }, notice);
    }

    /// The allocation has just ended for good: mails its end or its failure, at most once, and also the end of its
    /// walltime.
    pub(super) fn mail_end(&mut self, context: &mut ApplyContext, id: AllocationId) {
        let Some(allocation) = self.allocations.get(&id) else { return };
        let (state, reason) = (allocation.state, allocation.reason.clone());
        let wants_fail = allocation.spec.mail.as_ref().is_some_and(|mail| mail.events.contains(&MailEvent::Fail));
        self.mail_walltime_over(context, id, reason.as_ref());
        let event = if state != AllocationState::Completed && wants_fail { MailEvent::Fail } else { MailEvent::End };
        self.mail(context, id, event);
    }

    /// A claim of the allocation has ended for this reason.
    pub(super) fn mail_walltime_over(&mut self, context: &mut ApplyContext, id: AllocationId, reason: Option<&EndReason>) {
        if let Some(EndReason::WalltimeExceeded | EndReason::WalltimeSaved { .. }) = reason {
            self.mail(context, id, MailEvent::TimeLimit);
        }
    }

    /// The tasks of a group that have ended, before a change that may end some; `None`: no mail of a single task is due.
    pub(super) fn ended_before(&self, group: AllocationId) -> Option<EndedBefore> {
        let wanted = self.allocations.get(&group)?.spec.mail.as_deref()?;
        let tasks = self.task_groups.get(&group)?;
        let is_every_end = wanted.events.contains(&MailEvent::End);
        let count = tasks.failed + if is_every_end { tasks.completed } else { 0 };
        if !wanted.events.contains(&MailEvent::ArrayTasks) || count >= TASK_MAILS_MAX {
            return None;
        }
        // The copy is small: a group with many of these tasks has no more mail.
        let reported = tasks.ended.iter().filter(|(outcome, _)| is_mailed(**outcome, is_every_end));
        let tasks = reported.map(|(outcome, tasks)| (*outcome, tasks.clone())).collect();
        Some(EndedBefore { count, is_every_end, tasks })
    }

    /// Records mail about the tasks that have ended since `before`, up to [`TASK_MAILS_MAX`] for the group.
    pub(super) fn mail_tasks(&mut self, context: &mut ApplyContext, group: AllocationId, before: Option<EndedBefore>) {
        let Some(EndedBefore { count, is_every_end, tasks: before }) = before else { return };
        let (Some(record), Some(tasks)) = (self.allocations.get(&group), self.task_groups.get(&group)) else { return };
        let (Some(of_group), Some(wanted)) = (record.spec.tasks.as_deref(), record.spec.mail.as_deref()) else { return };
        let mut notices = Vec::new();
        let mut left = TASK_MAILS_MAX.saturating_sub(count) as usize;
        for (outcome, ended) in tasks.ended.iter().filter(|(outcome, _)| is_mailed(**outcome, is_every_end)) {
            let known = before.get(outcome);
            let new = ended.iter().filter(|ordinal| known.is_none_or(|known| !known.contains(*ordinal)));
            for ordinal in new.take(left) {
                left -= 1;
                let is_fail = outcome.is_failure() && wanted.events.contains(&MailEvent::Fail);
                let event = if is_fail { MailEvent::Fail } else { MailEvent::End };
                if let Some(index) = of_group.indices.index_of(ordinal) {
                    notices.push(json(&MailNotice::about_task(record, event, index, *outcome)));
                }
            }
        }
        for notice in notices {
            self.record(context, "quorum", AuditAction::MailDue, Subject { allocation: Some(group), node: None }, notice);
        }
    }

    /// By the leader's clock: records which part of the walltime is over. Records only the last part if several are over,
    /// because the leader was late or the walltime was made shorter.
    pub(super) fn mail_of_walltime(&mut self, context: &mut ApplyContext, id: AllocationId, now: Timestamp) {
        let mut reached = None;
        while let Some((_, event)) = self.allocations.get(&id).and_then(|a| a.next_mail_mark()).filter(|(at, _)| *at <= now) {
            let Some(allocation) = self.allocation_mut(context, id) else { return };
            allocation.mailed_percent = event.percent().unwrap_or(100);
            reached = Some(event);
        }
        if let Some(event) = reached {
            self.mail(context, id, event);
        }
    }
}

/// Whether a task with this outcome has a mail. Cancelled tasks have none: a group that is stopped cancels all tasks that
/// wait.
fn is_mailed(outcome: TaskOutcome, is_every_end: bool) -> bool {
    outcome.is_failure() || (is_every_end && outcome.is_success())
}

/// The tasks of a group that had ended before a change, and whose outcomes have mails.
pub(super) struct EndedBefore {
    count: u32,
    /// Whether tasks that succeeded have mails, too.
    is_every_end: bool,
    tasks: BTreeMap<TaskOutcome, TaskSet>,
}

fn cut(mut nodes: String) -> String {
    if nodes.len() > NODES_BYTES_MAX {
        // Names of nodes are ASCII.
        nodes.truncate(NODES_BYTES_MAX);
    }
    nodes
}
