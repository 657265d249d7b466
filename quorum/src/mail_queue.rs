//! Mails that the leader has read from the audit log and that are not sent yet, by recipient.
//!
//! ```text
//!   record MailDue ──push──▶ its recipient's mails ──next: longest due──▶ sent ──accepted──▶ the recipient's next one is due
//!                                                                          ╰──failed──▶ the recipient pauses, the others go on
//! ```
//!
//! The mails of one recipient stay in their order. A recipient whose mails fail has its turn when its pause is over, after
//! all that were due before: it delays no other one by more than one run of the program. The audit log is still the queue:
//! what is here is only in memory, and the ledger's cursor stays before the oldest mail that waits. So another leader sends
//! again what has passed a mail that fails, with the same ids: about [`PASSED_MAX`] mails, because the mail is given up then.

use crate::fencing_hook::ProgramError;
use crate::mail_hook::is_given_up;
use lattice_ledger::MailNotice;
use lattice_model::count::counted;
use lattice_model::{AuditRecord, Backoff, with_causes};
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// No more records are read while so many mails wait.
const MAILS_MAX: usize = 2048;
/// The most mails that wait for one recipient whose mails fail: later ones are given up at once.
const FAILING_MAILS_MAX: usize = 128;
/// The most mails that wait for all such recipients together: the rest of the queue is for mails to others.
const FAILING_ALL_MAX: usize = 1024;
/// A mail to a recipient whose mails fail is given up after this many mails to others were sent meanwhile.
const PASSED_MAX: u64 = 1000;
/// The pauses between two tries of a recipient.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(60));
/// For so long after a mail was given up, the status says so.
const SHOWN_FOR: Duration = Duration::from_secs(3600);

/// See the module documentation.
#[derive(Default)]
pub struct MailQueue {
    /// Those with mails that wait.
    recipients: BTreeMap<String, Recipient>,
    /// The last audit record that was read; 0: none yet.
    read_upto: u64,
    /// How many mails were accepted.
    sent: u64,
    given_up: u64,
    last_given_up: Option<(String, Instant)>,
}

/// A mail that waits.
struct Waiting {
    record: AuditRecord,
    read_at: Instant,
    /// [`MailQueue::sent`] when it was read.
    sent_before: u64,
}

/// The mails of one recipient.
struct Recipient {
    mails: VecDeque<Waiting>,
    /// How often the first of them has failed.
    tries: u32,
    /// [`MailQueue::sent`] when its mails began to fail. Read only while they fail.
    failing_since: u64,
    /// Whether a mail was given up and none was accepted since: the next one has only one try.
    is_dead: bool,
    pauses: Backoff,
    /// `None`: at once.
    due_at: Option<Instant>,
    why: String,
}

impl Recipient {
    fn of(mail: Waiting) -> Self {
        let mails = VecDeque::from([mail]);
        Self { mails, tries: 0, failing_since: 0, is_dead: false, pauses: PAUSES, due_at: None, why: String::new() }
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

    /// The last audit record that was read; 0: none yet.
    pub fn read_upto(&self) -> u64 {
        self.read_upto
    }

    /// Whether more may be read.
    pub fn has_room(&self) -> bool {
        self.recipients.values().map(|recipient| recipient.mails.len()).sum::<usize>() < MAILS_MAX
    }

    /// Takes the records that were read up to `upto`.
    pub fn push(&mut self, records: Vec<AuditRecord>, upto: u64, now: Instant) {
        let failing = self.recipients.values().filter(|recipient| recipient.fails());
        let mut failing: usize = failing.map(|recipient| recipient.mails.len()).sum();
        for record in records {
            let Some(to) = MailNotice::of(&record).map(|notice| notice.to) else { continue };
            let mail = Waiting { record, read_at: now, sent_before: self.sent };
            match self.recipients.get_mut(&to) {
                Some(known) if known.fails() => {
                    if known.mails.len() >= FAILING_MAILS_MAX || failing >= FAILING_ALL_MAX {
                        self.give_up(mail.record.seq, to, now);
                    } else {
                        known.mails.push_back(mail);
                        failing += 1;
                    }
                }
                Some(known) => known.mails.push_back(mail),
                None => drop(self.recipients.insert(to, Recipient::of(mail))),
            }
        }
        self.read_upto = self.read_upto.max(upto);
    }

    /// The mail that is due for the longest time, and its recipient; of several, the oldest.
    pub fn next(&self, now: Instant) -> Option<(String, AuditRecord)> {
        let firsts = self.recipients.iter().filter_map(|(to, recipient)| {
            let first = recipient.mails.front()?;
            Some((recipient.due_at.unwrap_or(first.read_at), to, &first.record))
        });
        let due = firsts.filter(|(due_at, ..)| *due_at <= now);
        due.min_by_key(|(due_at, _, record)| (*due_at, record.seq)).map(|(_, to, record)| (to.clone(), record.clone()))
    }

    /// The recipient's first mail was accepted.
    pub fn accepted(&mut self, to: &str, now: Instant) {
        if let Some(recipient) = self.recipients.get_mut(to) {
            (recipient.is_dead, recipient.due_at, recipient.pauses) = (false, None, PAUSES);
        }
        self.remove_first(to);
        self.sent += 1;
        let failing: Vec<String> = self.recipients.iter().filter(|(_, recipient)| recipient.fails()).map(|(to, _)| to.clone()).collect();
        for other in failing {
            while self.is_passed(&other) {
                self.give_up_first(&other, now);
            }
        }
    }

    /// Whether too many mails to others were sent while the recipient's first mail waited behind a failure.
    fn is_passed(&self, to: &str) -> bool {
        let first = self.recipients.get(to).and_then(|recipient| Some((recipient.failing_since, recipient.mails.front()?)));
        first.is_some_and(|(since, mail)| self.sent.saturating_sub(since.max(mail.sent_before)) >= PASSED_MAX)
    }

    /// The recipient's first mail was not accepted: it is tried again after a pause, or given up.
    pub fn failed(&mut self, to: &str, error: &ProgramError, now: Instant) {
        let Some(recipient) = self.recipients.get_mut(to) else { return };
        if !recipient.fails() {
            recipient.failing_since = self.sent;
        }
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
        let seq = recipient.mails.front().map_or(0, |mail| mail.record.seq);
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
        recipient.tries = 0;
        if recipient.mails.is_empty() {
            self.recipients.remove(to);
        }
    }

    /// Up to which audit record no mail waits.
    pub fn cursor(&self) -> u64 {
        let oldest = self.recipients.values().filter_map(|recipient| recipient.mails.front()).map(|mail| mail.record.seq).min();
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
        queue.push(vec![record(1, "slow")], 1, now);
        (0..50).for_each(|_| queue.failed("slow", &exits(75), now));
        assert_eq!(queue.cursor(), 0, "the mail server is away");
        let others = |queue: &mut MailQueue, from: u64| {
            for seq in from..from + PASSED_MAX - 1 {
                queue.push(vec![record(seq, "ada")], seq, now);
                queue.accepted("ada", now);
            }
        };
        others(&mut queue, 2);
        assert_eq!((queue.cursor(), queue.given_up), (0, 0));
        queue.push(vec![record(2000, "slow"), record(2001, "ada")], 2001, now);
        queue.accepted("ada", now);
        assert_eq!((queue.cursor(), queue.given_up), (1999, 1), "the next one is passed by one");
        assert_eq!(due(&queue, now + Duration::from_secs(61)), Some(2000));
        others(&mut queue, 2002);
        assert_eq!(queue.given_up, 2, "nobody has tried it, and it is passed by as many");
        assert_eq!(queue.cursor(), queue.read_upto());
    }

    #[test]
    fn many_that_fail_slowly_keep_another_mail_waiting_for_one_run_each() {
        let (mut queue, now) = (MailQueue::default(), Instant::now());
        let at = |seconds| now + Duration::from_secs(seconds);
        let dead = |number: u64| format!("dead{number}");
        queue.push((1..=9).map(|seq| record(seq, &dead(seq))).collect(), 9, now);
        (1..=9).for_each(|seq| queue.failed(&dead(seq), &exits(75), now));
        // All of them are due again, and each is due once more before the others have had their runs of ten seconds.
        queue.push(vec![record(10, "ada")], 10, at(61));
        let mut turns = Vec::new();
        for run in 0..20 {
            let (to, record) = queue.next(at(61 + 10 * run)).unwrap();
            turns.push(record.seq);
            if to == "ada" {
                break;
            }
            queue.failed(&to, &exits(75), at(71 + 10 * run));
        }
        assert_eq!(turns, (1..=10).collect::<Vec<_>>());
    }

    #[test]
    fn many_that_fail_leave_room_for_mails_to_others() {
        let (mut queue, now) = (MailQueue::default(), Instant::now());
        for number in 0..20 {
            let (to, first) = (format!("dead{number}"), 1000 * number + 1);
            queue.push(vec![record(first, &to)], first, now);
            queue.failed(&to, &exits(75), now);
            queue.push((1..100).map(|more| record(first + more, &to)).collect(), first + 99, now);
        }
        assert!(queue.has_room());
        assert!(queue.given_up > 0);
        queue.push(vec![record(30_000, "ada")], 30_000, now);
        assert_eq!(due(&queue, now), Some(30_000));
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
