//! Mail about allocations: what happens to work whose user wants mail of that is an audit record, which the leader gives
//! to the site's mail hook.
//!
//! ```text
//!   begin, end, requeue, a part of the walltime ──wanted?──▶ record MailDue, with all that the hook needs
//! ```
//!
//! The record has a copy of what it says, because the ended allocation may be dropped before the hook has run. Lanes and
//! replicas have no mail of their own: their group or service does.

use super::signing::json;
use super::{ApplyContext, Ledger, Subject};
use lattice_model::{Allocation, AllocationId, AllocationState, AuditAction, AuditRecord, EndReason, MailEvent, Timestamp, hostlist};
use serde::{Deserialize, Serialize};

/// Longest list of nodes in a record, in bytes; of a longer one, it has the beginning.
const NODES_BYTES_MAX: usize = 1024;

/// The detail of a record of [`AuditAction::MailDue`]. Times are milliseconds since 1970; 0: not yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailNotice {
    /// What happened: [`MailEvent::name`].
    pub event: String,
    /// To whom: an address or a name.
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

    /// The allocation has just ended for good: there is one mail about it at most, and another one if its walltime was
    /// over.
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

    /// The leader's clock: records the parts of the walltime that are over. Of several, only the last one: the leader was
    /// late, or the walltime was made shorter.
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

fn cut(mut nodes: String) -> String {
    if nodes.len() > NODES_BYTES_MAX {
        // Names of nodes are ASCII.
        nodes.truncate(NODES_BYTES_MAX);
    }
    nodes
}
