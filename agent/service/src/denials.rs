//! Denied calls that would have changed something, for the audit log. The caller's answer never waits for
//! the record, and no caller can fill the log or this agent's memory with denials.
//!
//! ```text
//!   answer: permission denied ─▶ the user's quota ──▶ queue ──▶ task: account (NSS) ─▶ quorum
//!                                     │ used up         │ full                  │ not known   │ away
//!                                     ╰─────────────────┴──── counted for the user ───────────╯
//!                                                   the user's next record has the count
//! ```

use super::access::recordable;
use super::accounts::ACCOUNTS;
use super::api::QUORUM_TIMEOUT;
use super::refusal::{status, unexpected};
use lattice_agent_common::token_bucket::{Rate, TokenBucket};
use lattice_ledger::{Access, AccessKind};
use lattice_model::access::rule;
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::wire::{Answer, Request as Ask};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;
use uuid::Uuid;

/// How many denials of one user may be recorded: ten at once, and ten a minute.
const RECORD_RATE: Rate = Rate { interval: Duration::from_secs(6), burst: 10 };
/// How many users' quotas are remembered.
const USERS_MAX: usize = 1024;
/// How many denials wait to be recorded.
const QUEUE_LEN_MAX: usize = 64;

/// Notes denied calls. Cloneable; all clones share the quotas and the queue.
#[derive(Clone)]
pub(super) struct Denials {
    quotas: Arc<Mutex<Quotas>>,
    queue: mpsc::Sender<Denial>,
}

/// Starts the task that records denials until `stop`; denials that are queued then are not recorded.
pub(super) fn begin(quorum: QuorumClient, tasks: &TaskTracker, stop: CancellationToken) -> Denials {
    let (denials, queue) = Denials::new();
    let task = DenialsTask { quotas: Arc::clone(&denials.quotas), queue, quorum };
    tasks.spawn(async move {
        stop.run_until_cancelled(task.run()).await;
    });
    denials
}

impl Denials {
    fn new() -> (Self, mpsc::Receiver<Denial>) {
        let (queue, queued) = mpsc::channel(QUEUE_LEN_MAX);
        (Self { quotas: Arc::default(), queue }, queued)
    }

    /// Notes that a call was denied. `account`: the caller's uid and gid. Methods that change nothing
    /// are not noted.
    pub(super) fn note(&self, account: (u32, u32), method: &str, refusal: &str, now: Instant) {
        let Some(rule) = rule(method).filter(|rule| rule.changes) else { return };
        let (uid, gid) = account;
        let Some(left_out) = self.quotas.lock().take(uid, now) else { return };
        let denial = Denial { uid, gid, detail: detail(rule.method, left_out, refusal), left_out };
        if let Err(unsent) = self.queue.try_send(denial) {
            self.quotas.lock().leave_out(&unsent.into_inner(), now);
        }
    }
}

/// A denied call for the audit log.
#[derive(Debug, PartialEq, Eq)]
struct Denial {
    uid: u32,
    gid: u32,
    /// The text of the record.
    detail: String,
    /// How many earlier denials of this user the text counts.
    left_out: u64,
}

/// The text of the record. The count comes before the refusal, which may be too long for the log.
fn detail(method: &str, left_out: u64, refusal: &str) -> String {
    let more = if left_out == 0 { String::new() } else { format!(" (and {left_out} more)") };
    recordable(&format!("{method}{more}: {refusal}"))
}

/// How many denials each user may have recorded, and how many were left out.
#[derive(Default)]
struct Quotas(BTreeMap<u32, Quota>);

/// The quota of one user.
struct Quota {
    bucket: TokenBucket,
    /// Denials since the last record.
    left_out: u64,
}

impl Quotas {
    /// Takes a token of the user for one record, and returns how many denials were left out before it.
    /// `None`: there is no token, and this denial is left out too.
    fn take(&mut self, uid: u32, now: Instant) -> Option<u64> {
        let quota = self.of(uid, now);
        if quota.bucket.take(RECORD_RATE, now).is_err() {
            quota.left_out = quota.left_out.saturating_add(1);
            return None;
        }
        Some(std::mem::take(&mut quota.left_out))
    }

    /// Counts a denial that could not be recorded although it had a token, and the denials that its text counts.
    fn leave_out(&mut self, denial: &Denial, now: Instant) {
        let quota = self.of(denial.uid, now);
        quota.left_out = quota.left_out.saturating_add(denial.left_out).saturating_add(1);
    }

    /// The user's quota. If there are too many, the longest unused one is forgotten first.
    fn of(&mut self, uid: u32, now: Instant) -> &mut Quota {
        if self.0.len() >= USERS_MAX && !self.0.contains_key(&uid) {
            self.0.retain(|_, quota| quota.bucket.full_at() > now || quota.left_out > 0);
            let oldest = self.0.iter().min_by_key(|(_, quota)| quota.bucket.full_at()).map(|(uid, _)| *uid);
            if let Some(oldest) = oldest.filter(|_| self.0.len() >= USERS_MAX) {
                self.0.remove(&oldest);
            }
        }
        self.0.entry(uid).or_insert_with(|| Quota { bucket: TokenBucket::new(now), left_out: 0 })
    }
}

/// Records one denial after the other.
struct DenialsTask {
    quotas: Arc<Mutex<Quotas>>,
    queue: mpsc::Receiver<Denial>,
    quorum: QuorumClient,
}

impl DenialsTask {
    async fn run(mut self) {
        while let Some(denial) = self.queue.recv().await {
            if let Err(error) = self.record(&denial).await {
                tracing::warn!(%error, uid = denial.uid, detail = denial.detail, "a denied call is not in the audit log");
                self.quotas.lock().leave_out(&denial, Instant::now());
            }
        }
    }

    async fn record(&self, denial: &Denial) -> Result<(), Status> {
        let by = ACCOUNTS.principal(denial.uid, denial.gid).await?;
        let detail = denial.detail.clone();
        let access = Access { id: Uuid::new_v4(), by, kind: AccessKind::Denied, allocation: None, node: None, detail };
        match self.quorum.call(&Ask::RecordAccess(access), QUORUM_TIMEOUT).await {
            Ok(Answer::Done { .. }) => Ok(()),
            Ok(other) => Err(unexpected(&other)),
            Err(error) => Err(status(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_ledger::access::TEXT_BYTES_MAX;

    const CANCEL: &str = "AllocationService/Cancel";

    fn noted(queued: &mut mpsc::Receiver<Denial>) -> Vec<Denial> {
        std::iter::from_fn(|| queued.try_recv().ok()).collect()
    }

    #[test]
    fn ten_denials_are_recorded_at_once_then_one_each_six_seconds_with_the_count_of_those_left_out() {
        let (mut quotas, began) = (Quotas::default(), Instant::now());
        let after = |seconds| began + Duration::from_secs(seconds);
        let first: Vec<_> = (0..12).map(|_| quotas.take(7, began)).collect();
        assert_eq!(first, [[Some(0_u64); 10].as_slice(), &[None, None]].concat());
        assert_eq!(quotas.take(8, began), Some(0), "another user");
        assert_eq!([quotas.take(7, after(5)), quotas.take(7, after(6)), quotas.take(7, after(6))], [None, Some(3), None]);
        assert_eq!(quotas.take(7, after(12)), Some(1));
        let later: Vec<_> = (0..11).map(|_| quotas.take(7, after(1000))).collect();
        assert_eq!(later, [[Some(0_u64); 10].as_slice(), &[None]].concat(), "no more than ten gather");
    }

    #[test]
    fn a_denial_that_could_not_be_recorded_is_counted_with_the_denials_that_it_counted() {
        let (mut quotas, now) = (Quotas::default(), Instant::now());
        let lost = Denial { uid: 7, gid: 7, detail: String::new(), left_out: 4 };
        quotas.leave_out(&lost, now);
        assert_eq!([quotas.take(7, now), quotas.take(7, now)], [Some(5), Some(0)]);
    }

    #[test]
    fn the_number_of_quotas_is_limited_and_unused_quotas_are_dropped_first() {
        let (mut quotas, began) = (Quotas::default(), Instant::now());
        let users = u32::try_from(USERS_MAX).unwrap();
        (0..users).for_each(|uid| assert_eq!(quotas.take(uid, began + Duration::from_millis(uid.into())), Some(0)));
        // All quotas are in use: the longest unused one goes.
        assert_eq!(quotas.take(users, began + Duration::from_secs(2)), Some(0));
        assert_eq!(quotas.0.len(), USERS_MAX);
        assert!(!quotas.0.contains_key(&0) && quotas.0.contains_key(&1));
        // A quota with a full bucket is dropped, unless it has a count.
        let lost = Denial { uid: 5, gid: 5, detail: String::new(), left_out: 0 };
        quotas.leave_out(&lost, began);
        assert_eq!(quotas.take(9999, began + Duration::from_secs(60)), Some(0));
        assert_eq!(quotas.0.keys().copied().collect::<Vec<_>>(), [5, 9999]);
    }

    #[test]
    fn only_denials_of_methods_that_change_something_are_noted_and_a_full_queue_is_counted() {
        let ((denials, mut queued), now) = (Denials::new(), Instant::now());
        for method in ["AllocationService/Logs", "AllocationService/Whatever"] {
            denials.note((7, 70), method, "no", now);
        }
        assert!(noted(&mut queued).is_empty());
        denials.note((7, 70), CANCEL, "allocation 1f0c9a4e belongs to bob", now);
        let detail = "AllocationService/Cancel: allocation 1f0c9a4e belongs to bob".to_owned();
        assert_eq!(noted(&mut queued), [Denial { uid: 7, gid: 70, detail, left_out: 0 }]);
        for uid in 100..100 + u32::try_from(QUEUE_LEN_MAX).unwrap() {
            denials.note((uid, uid), CANCEL, "no", now);
        }
        denials.note((7, 70), CANCEL, "no", now);
        denials.note((7, 70), CANCEL, "no", now);
        assert_eq!(noted(&mut queued).len(), QUEUE_LEN_MAX);
        denials.note((7, 70), CANCEL, "no", now);
        let detail = "AllocationService/Cancel (and 2 more): no".to_owned();
        assert_eq!(noted(&mut queued), [Denial { uid: 7, gid: 70, detail, left_out: 2 }]);
    }

    #[test]
    fn denials_after_the_task_has_ended_are_counted_and_delay_nobody() {
        let ((denials, queued), now) = (Denials::new(), Instant::now());
        drop(queued);
        denials.note((7, 7), CANCEL, "no", now);
        assert_eq!(denials.quotas.lock().take(7, now), Some(1));
    }

    #[test]
    fn a_record_is_one_line_of_bounded_length_and_never_loses_the_count() {
        assert_eq!(detail(CANCEL, 0, "no\nhint: ask"), "AllocationService/Cancel: no\\nhint: ask");
        let long = detail(CANCEL, 12, &"é".repeat(2000));
        assert!(long.starts_with("AllocationService/Cancel (and 12 more): é"), "{long}");
        assert!(long.len() <= TEXT_BYTES_MAX && long.len() > TEXT_BYTES_MAX - 4, "{}", long.len());
    }
}
