//! Mails that the leader has read from the audit log and that are not sent yet, by recipient.
//!
//! ```text
//!   record MailDue ──push──▶ its recipient's mails ──next: due, oldest──▶ sent ──accepted──▶ the recipient's next one is due
//!                                                                          ╰──failed──▶ the recipient pauses, the others go on
//! ```
//!
//! The mails of one recipient stay in their order. A recipient whose mails fail delays no other one by more than one run
//! of the program. The audit log is still the queue: what is here is only in memory, and the ledger's cursor stays before
//! the oldest mail that waits. So another leader sends again what has passed a mail that fails, with the same ids:
//! [`PASSED_MAX`] mails at most, because the mail is given up then.

use crate::fencing_hook::ProgramError;
use crate::mail_hook::is_given_up;
use lattice_ledger::MailNotice;
use lattice_model::count::counted;
use lattice_model::{AuditRecord, Backoff, with_causes};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// No more records are read while so many mails wait.
const MAILS_MAX: usize = 2048;
/// Of a recipient whose mails fail, so many wait at most: later ones are given up at once.
const FAILING_MAILS_MAX: usize = 128;
/// When so many mails to others were sent after it, a mail that fails is given up.
const PASSED_MAX: u32 = 1000;
/// The pauses between two tries of a recipient.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(60));
/// For so long after a mail was given up, the status says so.
const SHOWN_FOR: Duration = Duration::from_secs(3600);

/// See the module documentation.
#[derive(Default)]
pub struct MailQueue {
    /// Those with mails that wait.
    recipients: BTreeMap<String, Recipient>,
    /// Up to which audit record all was read; 0: nothing yet.
    read_upto: u64,
    given_up: u64,
    last_given_up: Option<(String, Instant)>,
}

/// The mails of one recipient.
struct Recipient {
    mails: VecDeque<AuditRecord>,
    /// How often the first of them has failed.
    tries: u32,
    /// How many mails to others were sent since it failed.
    passed: u32,
    /// Whether a mail was given up and none was accepted since: the next one has only one try.
    is_dead: bool,
    pauses: Backoff,
    /// `None`: at once.
    due_at: Option<Instant>,
    why: String,
}

impl Recipient {
    fn of(record: AuditRecord) -> Self {
        let mails = VecDeque::from([record]);
        Self { mails, tries: 0, passed: 0, is_dead: false, pauses: PAUSES, due_at: None, why: String::new() }
    }

    fn fails(&self) -> bool {
        self.tries > 0 || self.is_dead
    }
}

impl MailQueue {
    /// Begins after this audit record, unless it has begun.
    pub fn begin_after(&mut self, seq: u64) {
        self.read_upto = self.read_upto.max(seq);
    }

    /// Up to which audit record all was read.
    pub fn read_upto(&self) -> u64 {
        self.read_upto
    }

    /// Whether more may be read.
    pub fn has_room(&self) -> bool {
        self.recipients.values().map(|recipient| recipient.mails.len()).sum::<usize>() < MAILS_MAX
    }

    /// Takes the records that were read up to `upto`.
    pub fn push(&mut self, records: Vec<AuditRecord>, upto: u64, now: Instant) {
        for record in records {
            let Some(to) = MailNotice::of(&record).map(|notice| notice.to) else { continue };
            match self.recipients.get_mut(&to) {
                Some(known) if known.fails() && known.mails.len() >= FAILING_MAILS_MAX => self.give_up(record.seq, to, now),
                Some(known) => known.mails.push_back(record),
                None => drop(self.recipients.insert(to, Recipient::of(record))),
            }
        }
        self.read_upto = self.read_upto.max(upto);
    }

    /// The oldest mail that is due, and its recipient.
    pub fn next(&self, now: Instant) -> Option<(String, AuditRecord)> {
        let due = self.recipients.iter().filter(|(_, recipient)| recipient.due_at.is_none_or(|at| at <= now));
        let firsts = due.filter_map(|(to, recipient)| Some((to, recipient.mails.front()?)));
        firsts.min_by_key(|(_, record)| record.seq).map(|(to, record)| (to.clone(), record.clone()))
    }

    /// The recipient's first mail was accepted.
    pub fn accepted(&mut self, to: &str, now: Instant) {
        if let Some(recipient) = self.recipients.get_mut(to) {
            (recipient.tries, recipient.is_dead, recipient.due_at, recipient.pauses) = (0, false, None, PAUSES);
        }
        self.remove_first(to);
        let mut passed_too_often = Vec::new();
        for (other, recipient) in self.recipients.iter_mut().filter(|(other, recipient)| recipient.tries > 0 && *other != to) {
            recipient.passed += 1;
            if recipient.passed >= PASSED_MAX {
                passed_too_often.push(other.clone());
            }
        }
        for other in passed_too_often {
            self.give_up_first(&other, now);
        }
    }

    /// The recipient's first mail was not accepted: it is tried again after a pause, or given up.
    pub fn failed(&mut self, to: &str, error: &ProgramError, now: Instant) {
        let Some(recipient) = self.recipients.get_mut(to) else { return };
        recipient.tries += 1;
        recipient.why = with_causes(error);
        recipient.due_at = Some(now + recipient.pauses.next_pause());
        let tries = if recipient.is_dead { u32::MAX } else { recipient.tries };
        if recipient.tries == 1 && !recipient.is_dead {
            tracing::error!(to, why = %recipient.why, "a mail is not accepted; retrying");
        }
        if is_given_up(error, tries) {
            self.give_up_first(to, now);
        }
    }

    /// The recipient's first mail is given up. The recipient's pause stays.
    fn give_up_first(&mut self, to: &str, now: Instant) {
        let Some(recipient) = self.recipients.get_mut(to) else { return };
        recipient.is_dead = true;
        let seq = recipient.mails.front().map_or(0, |record| record.seq);
        self.remove_first(to);
        self.give_up(seq, to.to_owned(), now);
    }

    fn give_up(&mut self, record: u64, to: String, now: Instant) {
        tracing::error!(record, to, "this mail is given up");
        self.given_up += 1;
        self.last_given_up = Some((to, now));
    }

    fn remove_first(&mut self, to: &str) {
        let Some(recipient) = self.recipients.get_mut(to) else { return };
        recipient.mails.pop_front();
        (recipient.tries, recipient.passed) = (0, 0);
        if recipient.mails.is_empty() {
            self.recipients.remove(to);
        }
    }

    /// Up to which audit record no mail waits.
    pub fn cursor(&self) -> u64 {
        let oldest = self.recipients.values().filter_map(|recipient| recipient.mails.front()).map(|record| record.seq).min();
        oldest.map_or(self.read_upto, |oldest| oldest.saturating_sub(1))
    }

    /// What is wrong, for the status; `None`: nothing.
    pub fn problem(&self, now: Instant) -> Option<String> {
        let failing: Vec<(&String, &Recipient)> = self.recipients.iter().filter(|(_, recipient)| recipient.fails()).collect();
        let waits = failing.iter().map(|(_, recipient)| recipient.mails.len()).sum::<usize>();
        let fails = failing.first().map(|(to, recipient)| {
            let whom = if failing.len() == 1 { (*to).clone() } else { format!("{} recipients, such as {to}", failing.len()) };
            format!("{} to {whom} cannot be sent now: {}", counted(waits, "mail"), recipient.why)
        });
        let given_up = self.last_given_up.as_ref().filter(|(_, at)| now.saturating_duration_since(*at) < SHOWN_FOR);
        let given_up =
            given_up.map(|(to, _)| format!("{} given up since this member leads, the last one to {to}", counted(self.given_up, "mail")));
        let parts: Vec<String> = fails.into_iter().chain(given_up).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::{AllocationId, AuditAction, Revision, Timestamp};
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn record(seq: u64, to: &str) -> AuditRecord {
        let notice = MailNotice {
            event: "end".into(),
            to: to.into(),
            id: AllocationId(uuid::Uuid::from_u128(1)),
            name: String::new(),
            owner: "u7".into(),
            tenant: String::new(),
            vcluster: String::new(),
            state: "Completed".into(),
            reason: String::new(),
            exit_code: None,
            submitted_at_ms: 0,
            started_at_ms: 0,
            ended_at_ms: 0,
            walltime_seconds: 0,
            requeue_count: 0,
            nodes: String::new(),
            comment: String::new(),
            task: None,
        };
        AuditRecord {
            seq,
            revision: Revision(seq),
            at: Timestamp(0),
            actor: "quorum".into(),
            token: None,
            action: AuditAction::MailDue,
            allocation: None,
            owner: None,
            node: None,
            detail: serde_json::to_string(&notice).unwrap(),
            previous: String::new(),
            hash: String::new(),
        }
    }

    fn exits(code: i32) -> ProgramError {
        ProgramError::Exit(ExitStatus::from_raw(code << 8))
    }

    /// The number of the mail that is due.
    fn due(queue: &MailQueue, now: Instant) -> Option<u64> {
        queue.next(now).map(|(_, record)| record.seq)
    }

    #[test]
    fn a_hundred_mails_to_a_dead_address_delay_no_other_mail() {
        let (mut queue, now) = (MailQueue::default(), Instant::now());
        let dead = (1..=100).map(|seq| record(seq, "dead")).chain([record(101, "ada"), record(102, "bob")]);
        queue.push(dead.collect(), 110, now);
        assert_eq!((due(&queue, now), queue.cursor()), (Some(1), 0));
        queue.failed("dead", &exits(1), now);
        assert_eq!(due(&queue, now), Some(101), "its turn comes after one failure");
        queue.accepted("ada", now);
        queue.accepted("bob", now);
        assert_eq!((due(&queue, now), queue.cursor()), (None, 0), "another leader would begin with the one that fails");
        let problem = queue.problem(now).unwrap();
        assert!(problem.starts_with("100 mails to dead cannot be sent now: "), "{problem}");
        // It is tried again after a pause, and given up with the fifth failure; each of the others with its first one.
        let later = |seconds| now + Duration::from_secs(seconds);
        for seconds in [1, 10, 30] {
            assert_eq!(due(&queue, later(seconds)), Some(1));
            queue.failed("dead", &exits(1), later(seconds));
        }
        queue.failed("dead", &exits(1), later(100));
        assert_eq!((queue.cursor(), due(&queue, later(100))), (1, None));
        queue.failed("dead", &exits(1), later(200));
        assert_eq!((queue.cursor(), due(&queue, later(300))), (2, Some(3)));
        assert!(queue.problem(later(300)).unwrap().ends_with("2 mails given up since this member leads, the last one to dead"));
        // It lives again: all that wait are due at once, in their order.
        queue.accepted("dead", later(300));
        assert_eq!((due(&queue, later(300)), queue.cursor()), (Some(4), 3));
        (4..=100).for_each(|_| queue.accepted("dead", later(300)));
        assert_eq!((due(&queue, later(300)), queue.cursor()), (None, 110));
        assert_eq!(queue.problem(later(200 + 3601)), None);
    }

    #[test]
    fn what_cannot_be_sent_now_waits_until_many_others_were_sent() {
        let (mut queue, now) = (MailQueue::default(), Instant::now());
        queue.push(vec![record(1, "slow"), record(2, "slow")], 2, now);
        (0..50).for_each(|_| queue.failed("slow", &exits(75), now));
        assert_eq!(queue.cursor(), 0, "the mail server is away");
        for seq in 3..=u64::from(PASSED_MAX) + 1 {
            queue.push(vec![record(seq, "ada")], seq, now);
            queue.accepted("ada", now);
        }
        assert_eq!(queue.cursor(), 0);
        queue.push(vec![record(2000, "ada")], 2000, now);
        queue.accepted("ada", now);
        assert_eq!((queue.cursor(), queue.given_up), (1, 1), "the next one waits for its try");
        assert_eq!(due(&queue, now + Duration::from_secs(61)), Some(2));
    }

    #[test]
    fn the_queue_is_bounded_and_counts_what_it_gives_up() {
        let (mut queue, now) = (MailQueue::default(), Instant::now());
        queue.begin_after(10);
        queue.begin_after(5);
        assert_eq!((queue.read_upto(), queue.cursor()), (10, 10));
        // A burst to one recipient whose mails do not fail is no reason to give one up.
        let burst = |from: u64, to: &str| (from..from + 300).map(|seq| record(seq, to)).collect::<Vec<_>>();
        queue.push(burst(11, "ada"), 310, now);
        assert_eq!(queue.given_up, 0);
        queue.push(vec![record(311, "dead")], 311, now);
        queue.failed("dead", &exits(1), now);
        queue.push(burst(312, "dead"), 611, now);
        assert_eq!(queue.given_up, 300 - (FAILING_MAILS_MAX as u64 - 1));
        assert!(queue.has_room());
        (0..7).for_each(|part| queue.push(burst(1000 + part * 300, "bob"), 4000, now));
        assert!(!queue.has_room());
        queue.push(vec![AuditRecord { detail: "no JSON".into(), ..record(5000, "x") }], 5001, now);
        assert_eq!((queue.read_upto(), due(&queue, now)), (5001, Some(11)));
    }
}
