//! Sends notifications about events of nodes and marks of budgets: to an HTTP server, to a program of
//! the site, or both. Mail about allocations goes to another program in the same way.
//!
//! ```text
//!   audit log ──▶ such records after the cursor, in order ──▶ sent until accepted ──▶ cursor (in the ledger)
//! ```
//!
//! The audit log is the queue: it is on every member's disk, so nothing is lost with a leader, and
//! the next leader continues after the cursor. A record that was accepted but is not yet covered by
//! the cursor is sent again, with the same id. A record that is not accepted delays the following
//! ones, because they must arrive in order; the members' own work never waits for notifications.
//! Mail has an order for each recipient alone: see [`crate::mail_queue`].

use crate::config::QuorumConfig;
use crate::core::Core;
use crate::fencing_hook::{ProgramError, run as run_program, site_command};
use crate::mail_hook::{MailHook, NoSuchUser};
use crate::mail_queue::MailQueue;
use crate::notify_state::Notify;
use lattice_ledger::{Action, BudgetNotice, NotifyChannel};
use lattice_model::usage::HOUR_MS;
use lattice_model::{AuditAction, AuditFilter, AuditRecord, Backoff, Budget, NodeId, with_causes};
use lattice_store::audit::Step;
use lattice_store::background;
use reqwest::header::CONTENT_TYPE;
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, StatusCode};
use ring::hmac;
use serde::Serialize;
use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::process::Command;
use tokio::time::MissedTickBehavior;

/// How often to check for new records.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Number of records read at once.
const BATCH_RECORDS_MAX: usize = 64;
/// Shortest interval between two updates of the cursor while records are being accepted.
const CURSOR_INTERVAL_MIN: Duration = Duration::from_secs(1);
/// Number of skipped records about other subjects after which the cursor is updated for them alone.
const PASSED_MAX: u64 = 4096;
/// The pauses between attempts.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(60));
/// Smallest size of a secret, in bytes.
const SECRET_BYTES_MIN: usize = 16;

/// An invalid notification configuration.
#[derive(Debug, Error)]
pub enum NotifyError {
    #[error("{setting} {}: {why}", path.display())]
    File { setting: &'static str, path: PathBuf, why: String },
    /// There may be a secret in it.
    #[error("notify_url is not a URL https://HOST/… or http://HOST/…")]
    Url,
    #[error("notify_url")]
    Client(#[source] reqwest::Error),
    #[error(transparent)]
    User(#[from] NoSuchUser),
}

/// Why an event was not accepted.
#[derive(Debug, Error)]
enum Undelivered {
    #[error(transparent)]
    Encode(serde_json::Error),
    #[error(transparent)]
    Hook(#[from] ProgramError),
    #[error(transparent)]
    Send(reqwest::Error),
    #[error("the server answers {0}")]
    Status(StatusCode),
}

/// One kind of notification, ready to run.
pub struct Notifier {
    means: Means,
    limit: Duration,
    notify: Notify,
}

enum Means {
    Webhook { url: reqwest::Url, client: Client, secret: Box<hmac::Key> },
    Hook { program: PathBuf },
    Mail(MailHook),
}

/// An event of a node or of a tenant's budget, as it is sent.
#[derive(Debug, Serialize)]
struct Event<'a> {
    /// The same whenever the event is sent again.
    id: String,
    /// Increases with each event.
    seq: u64,
    at: String,
    cluster: &'a str,
    /// `None`: it is an event of a budget.
    node: Option<&'a str>,
    event: &'a str,
    /// The node's new state, if the event is a change of state.
    state: Option<&'a str>,
    /// `None`: it is an event of a node.
    budget: Option<BudgetEvent>,
    actor: &'a str,
    detail: &'a str,
}

/// A mark that the use of a budget has reached.
#[derive(Debug, Serialize)]
struct BudgetEvent {
    tenant: String,
    budget: Budget,
    percent: u64,
    used_hours: f64,
    budget_hours: u64,
    period_days: u32,
}

impl From<BudgetNotice> for BudgetEvent {
    fn from(notice: BudgetNotice) -> Self {
        let BudgetNotice { tenant, budget, percent, used_ms, budget_hours, period_days } = notice;
        Self { tenant, budget, percent, used_hours: used_ms as f64 / HOUR_MS as f64, budget_hours, period_days }
    }
}

impl<'a> Event<'a> {
    /// `None`: the record is neither about a node nor about a budget.
    fn of(cluster: &'a str, generation: u64, record: &'a AuditRecord) -> Option<Self> {
        let node = record.node.as_ref().map(NodeId::as_str);
        let budget = BudgetNotice::of(record).map(BudgetEvent::from);
        (node.is_some() || budget.is_some()).then(|| Self {
            id: event_id(cluster, generation, record),
            seq: record.seq,
            at: record.at.to_string(),
            cluster,
            node,
            event: record.action.name(),
            state: (record.action == AuditAction::NodeStateChanged).then(|| state_after(&record.detail)).flatten(),
            budget,
            actor: &record.actor,
            detail: &record.detail,
        })
    }

    /// Adds the subject, a node or a tenant, to the program's arguments and environment.
    fn name_subject(&self, command: &mut Command) {
        if let Some(node) = self.node {
            command.arg(node).env("LATTICE_NODE", node);
        } else if let Some(budget) = &self.budget {
            command.arg(&budget.tenant).env("LATTICE_TENANT", &budget.tenant);
        }
    }
}

impl Notify {
    /// From the configuration. Connects to nothing yet.
    pub fn open(config: &QuorumConfig) -> Result<(Self, Vec<Notifier>), NotifyError> {
        let (notify, mut channels) = (Self::default(), Vec::new());
        let limit = Duration::from_secs(config.notify_seconds);
        if !config.notify_url.is_empty() {
            channels.push(Notifier { means: webhook(config, limit)?, limit, notify: notify.clone() });
        }
        if !config.notify_hook.as_os_str().is_empty() {
            channels.push(Notifier { means: Means::Hook { program: config.notify_hook.clone() }, limit, notify: notify.clone() });
        }
        if !config.mail_hook.as_os_str().is_empty() {
            let limit = Duration::from_secs(config.mail_hook_seconds);
            let hook = MailHook::open(&config.mail_hook, &config.mail_hook_user, limit)?;
            channels.push(Notifier { means: Means::Mail(hook), limit, notify: notify.clone() });
        }
        channels.iter().for_each(|channel| notify.set_problem(channel.means.channel(), None));
        Ok((notify, channels))
    }
}

impl Means {
    fn channel(&self) -> NotifyChannel {
        match self {
            Self::Webhook { .. } => NotifyChannel::Webhook,
            Self::Hook { .. } => NotifyChannel::Hook,
            Self::Mail(_) => NotifyChannel::Mail,
        }
    }

    /// The actions whose records it sends.
    fn actions(&self) -> Vec<AuditAction> {
        match self {
            Self::Webhook { .. } | Self::Hook { .. } => AuditAction::OF_NODES.into_iter().chain([AuditAction::BudgetMarkReached]).collect(),
            Self::Mail(_) => vec![AuditAction::MailDue],
        }
    }
}

impl Notifier {
    /// Sends while this member is the leader, until it stops.
    pub(crate) async fn run(self, core: Arc<Core>) {
        let mut tick = tokio::time::interval(POLL_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // In this term: the last record accepted, and the mails that wait.
        let (mut notified, mut mails) = (0, MailQueue::default());
        loop {
            tokio::select! {
                () = core.stop.cancelled() => return,
                _ = tick.tick() => {}
            }
            if !core.leads() {
                (notified, mails) = (0, MailQueue::default());
                self.notify.set_problem(self.means.channel(), None);
                continue;
            }
            let round = async {
                match &self.means {
                    Means::Mail(hook) => self.mail_round(&core, hook, &mut mails).await,
                    Means::Webhook { .. } | Means::Hook { .. } => self.round(&core, &mut notified).await,
                }
            };
            if core.stop.run_until_cancelled(round).await.is_none() {
                return;
            }
        }
    }

    /// From where this goes on, and the last record; `None`: not yet.
    async fn place(&self, core: &Arc<Core>) -> Option<Place> {
        let head = core.agreed.audit_head().seq;
        let (cluster, generation, known) = {
            let ledger = core.agreed.ledger();
            if ledger.cluster().is_empty() {
                return None;
            }
            (ledger.cluster().to_owned(), ledger.generation().0, ledger.notified(self.means.channel()))
        };
        match known {
            Some(known) => Some(Place { cluster, generation, known, pruned: core.agreed.audit_base().seq, head }),
            None => {
                // Records from before notifications were enabled are not sent.
                self.write(core, head).await;
                None
            }
        }
    }

    /// The next records to be sent, at most one batch, and up to which record these are all. An error is reported.
    async fn read(&self, core: &Arc<Core>, after: u64, head: u64) -> Option<(Vec<AuditRecord>, u64)> {
        let agreed = Arc::clone(&core.agreed);
        let filter = AuditFilter { actions: self.means.actions(), ..AuditFilter::default() };
        let found = background::run("notify", move || {
            let (mut search, mut records) = (agreed.audit_search(&filter, after, head), Vec::new());
            while records.len() < BATCH_RECORDS_MAX
                && let Some(step) = search.step()?
            {
                match step {
                    Step::Found(record) => records.push(*record),
                    Step::Looked => {}
                }
            }
            Ok::<_, std::io::Error>((records, search.reached()))
        });
        match found.await.and_then(|found| found) {
            Ok((records, reached)) => {
                let is_full = records.len() == BATCH_RECORDS_MAX;
                let upto = records.last().filter(|_| is_full).map_or(reached, |last| last.seq);
                Some((records, upto))
            }
            Err(error) => {
                self.report_problem(format!("the audit log cannot be read: {}", with_causes(&error)));
                None
            }
        }
    }

    /// Processes new records, at most one batch.
    async fn round(&self, core: &Arc<Core>, notified: &mut u64) {
        let Some(Place { cluster, generation, known, pruned, head }) = self.place(core).await else { return };
        warn_if_pruned(pruned, known.max(*notified));
        *notified = (*notified).max(known).max(pruned);
        if head <= *notified {
            return;
        }
        let Some((records, upto)) = self.read(core, *notified, head).await else { return };
        let mut written = Instant::now();
        for record in &records {
            // The next leader sends the rest, because an older event must not follow a newer one.
            if !core.leads() || !self.deliver(core, &cluster, generation, record).await {
                return;
            }
            *notified = record.seq;
            if written.elapsed() >= CURSOR_INTERVAL_MIN {
                self.write(core, *notified).await;
                written = Instant::now();
            }
        }
        *notified = (*notified).max(upto);
        if !records.is_empty() || *notified - known > PASSED_MAX {
            self.write(core, *notified).await;
        }
    }

    /// Reads new mails, and gives those that are due to the program, at most one batch of each.
    async fn mail_round(&self, core: &Arc<Core>, hook: &MailHook, mails: &mut MailQueue) {
        let Some(Place { cluster, generation, known, pruned, head }) = self.place(core).await else { return };
        warn_if_pruned(pruned, known.max(mails.read_upto()));
        mails.begin_after(known.max(pruned));
        if head > mails.read_upto() && mails.has_room() {
            let Some((records, upto)) = self.read(core, mails.read_upto(), head).await else { return };
            mails.push(records, upto, Instant::now());
        }
        // Not for long: what is new must not wait for many runs of a program that is slow.
        let (mut tries, begun) = (0, Instant::now());
        while tries < BATCH_RECORDS_MAX
            && begun.elapsed() < CURSOR_INTERVAL_MIN
            && core.leads()
            && let Some((to, record)) = mails.next(Instant::now())
        {
            tries += 1;
            match hook.send(&cluster, event_id(&cluster, generation, &record), &record).await {
                Ok(()) => mails.accepted(&to, Instant::now()),
                Err(error) => mails.failed(&to, &error, Instant::now()),
            }
        }
        self.notify.set_problem(self.means.channel(), mails.problem(Instant::now()));
        let cursor = mails.cursor();
        if cursor > known && (tries > 0 || cursor - known > PASSED_MAX) {
            self.write(core, cursor).await;
        }
    }

    /// Sends one event until it is accepted. Returns false if this member is no longer the leader.
    async fn deliver(&self, core: &Arc<Core>, cluster: &str, generation: u64, record: &AuditRecord) -> bool {
        let mut pauses = PAUSES;
        loop {
            let Err(error) = self.send(cluster, generation, record).await else {
                self.notify.set_problem(self.means.channel(), None);
                return true;
            };
            self.report_problem(format!("record {} is not accepted: {}", record.seq, with_causes(&error)));
            tokio::time::sleep(pauses.next_pause()).await;
            if !core.leads() {
                return false;
            }
        }
    }

    fn report_problem(&self, why: String) {
        let channel = self.means.channel();
        if self.notify.fails(channel, &why) {
            tracing::error!(setting = %channel, %why, "notifications cannot be delivered; retrying");
        }
    }

    async fn send(&self, cluster: &str, generation: u64, record: &AuditRecord) -> Result<(), Undelivered> {
        let Some(event) = Event::of(cluster, generation, record) else { return Ok(()) };
        let body = serde_json::to_vec(&event).map_err(Undelivered::Encode)?;
        match &self.means {
            // Sent by `mail_round`.
            Means::Mail(_) => Ok(()),
            Means::Hook { program } => {
                let mut command = site_command(program, cluster);
                event.name_subject(&mut command);
                command.arg(event.event).env("LATTICE_EVENT_ID", &event.id).env("LATTICE_EVENT", String::from_utf8_lossy(&body).as_ref());
                Ok(run_program(command, self.limit, "notify_seconds").await?)
            }
            Means::Webhook { url, client, secret } => {
                let at = crate::clock::now().0;
                let request = client
                    .post(url.clone())
                    .header(CONTENT_TYPE, "application/json")
                    .header("lattice-event-id", &event.id)
                    .header("lattice-timestamp", at)
                    .header("lattice-signature", signature(secret, at, &body))
                    .body(body);
                // A URL may contain a secret.
                let answer = request.send().await.map_err(|error| Undelivered::Send(error.without_url()))?;
                if answer.status().is_success() { Ok(()) } else { Err(Undelivered::Status(answer.status())) }
            }
        }
    }

    /// Updates the cursor. If that fails now, it is updated with the next event, or the next leader
    /// sends the events again.
    async fn write(&self, core: &Arc<Core>, upto: u64) {
        let channel = self.means.channel();
        match core.propose_here(vec![Action::Notified { channel, upto }]).await {
            Ok(results) => {
                for refusal in results.into_iter().filter_map(Result::err) {
                    tracing::debug!(setting = %channel, %refusal, "the progress of notifications could not be committed");
                }
            }
            Err(error) => tracing::debug!(setting = %channel, ?error, "the progress of notifications could not be committed"),
        }
    }
}

/// From where notifications go on.
struct Place {
    cluster: String,
    generation: u64,
    /// The ledger's cursor.
    known: u64,
    /// Only the archive has the records up to this one.
    pruned: u64,
    /// The last record.
    head: u64,
}

fn warn_if_pruned(pruned: u64, after: u64) {
    if pruned > after {
        tracing::error!(after, upto = pruned, "these records are only in the archive: events among them are not sent");
    }
}

/// The same whenever the record is sent again.
fn event_id(cluster: &str, generation: u64, record: &AuditRecord) -> String {
    format!("{cluster}/{generation}/{}", record.seq)
}

/// `sha256=` and HMAC-SHA256 over the time, a point and the body, in hexadecimal digits.
fn signature(secret: &hmac::Key, at_ms: u64, body: &[u8]) -> String {
    let tag = hmac::sign(secret, &[format!("{at_ms}.").as_bytes(), body].concat());
    tag.as_ref().iter().fold("sha256=".to_owned(), |mut hex, byte| {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// The new state in a text like `Ready -> Degraded: silent for 31 s`.
fn state_after(detail: &str) -> Option<&str> {
    let after = detail.split_once(" -> ")?.1;
    after.split(':').next().map(str::trim)
}

fn webhook(config: &QuorumConfig, limit: Duration) -> Result<Means, NotifyError> {
    let url = config.notify_url.parse::<reqwest::Url>().ok().filter(|url| matches!(url.scheme(), "https" | "http") && url.has_host());
    let url = url.ok_or_else(|| NotifyError::Url)?;
    let secret = secret(&config.notify_secret_file)?;
    // If another caller was first, that is just as good: this program has only one provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut client = Client::builder().timeout(limit).connect_timeout(limit).redirect(Policy::none());
    let ca = &config.notify_ca;
    if !ca.as_os_str().is_empty() {
        let failed = |why: String| NotifyError::File { setting: "notify_ca", path: ca.clone(), why };
        let pem = std::fs::read(ca).map_err(|error| failed(error.to_string()))?;
        let authorities = Certificate::from_pem_bundle(&pem).map_err(|error| failed(with_causes(&error)))?;
        client = client.tls_certs_only(authorities);
    }
    let client = client.build().map_err(NotifyError::Client)?;
    Ok(Means::Webhook { url, client, secret: Box::new(secret) })
}

fn secret(path: &Path) -> Result<hmac::Key, NotifyError> {
    let failed = |why: String| NotifyError::File { setting: "notify_secret_file", path: path.to_owned(), why };
    let mode = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(failed(format!("others can read it (mode {:o}); chmod 600", mode & 0o777)));
    }
    let text = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
    let text = text.trim_ascii();
    if text.len() < SECRET_BYTES_MIN {
        return Err(failed(format!("it has {} bytes; a secret needs at least {SECRET_BYTES_MIN}", text.len())));
    }
    Ok(hmac::Key::new(hmac::HMAC_SHA256, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::{Revision, Timestamp};

    #[test]
    fn a_body_is_signed_with_its_time() {
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"Jefe");
        let whole = hmac::sign(&key, b"7.what do ya want for nothing?");
        let hex: String = whole.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(signature(&key, 7, b"what do ya want for nothing?"), format!("sha256={hex}"));
        assert_ne!(signature(&key, 8, b"what do ya want for nothing?"), format!("sha256={hex}"));
    }

    fn record(action: AuditAction, node: Option<&str>, detail: &str) -> AuditRecord {
        AuditRecord {
            seq: 7,
            revision: Revision(9),
            at: Timestamp(1_772_704_812_034),
            actor: "quorum".into(),
            token: None,
            action,
            allocation: None,
            owner: None,
            node: node.map(|node| node.parse().unwrap()),
            detail: detail.into(),
            previous: String::new(),
            hash: String::new(),
        }
    }

    #[test]
    fn an_event_is_about_a_node_or_a_budget() {
        let of_node = record(AuditAction::NodeStateChanged, Some("n1"), "Ready -> Drained");
        let want = r#"{"id":"c/1/7","seq":7,"at":"2026-03-05T10:00:12.034Z","cluster":"c","node":"n1","event":"NodeStateChanged","#;
        let want = format!(r#"{want}"state":"Drained","budget":null,"actor":"quorum","detail":"Ready -> Drained"}}"#);
        assert_eq!(serde_json::to_string(&Event::of("c", 1, &of_node)).unwrap(), want);
        let notice = BudgetNotice {
            tenant: "physics".into(),
            budget: Budget::GpuHours,
            percent: 80,
            used_ms: 301_500_000,
            budget_hours: 100,
            period_days: 30,
        };
        let of_budget = record(AuditAction::BudgetMarkReached, None, &serde_json::to_string(&notice).unwrap());
        let event = Event::of("c", 1, &of_budget).unwrap();
        let want = r#"{"tenant":"physics","budget":"gpu_hours","percent":80,"used_hours":83.75,"budget_hours":100,"period_days":30}"#;
        assert_eq!((serde_json::to_string(&event.budget).unwrap(), event.node), (want.to_owned(), None));
        let mut command = Command::new("program");
        event.name_subject(&mut command);
        let arguments: Vec<_> = command.as_std().get_args().collect();
        assert_eq!(arguments, ["physics"]);
        let other = record(AuditAction::BudgetMarkReached, None, "no JSON");
        assert!(Event::of("c", 1, &other).is_none());
    }

    #[test]
    fn the_state_follows_the_arrow() {
        assert_eq!(state_after("Ready -> Degraded: silent for 31 s"), Some("Degraded"));
        assert_eq!(state_after("Ready -> Drained"), Some("Drained"));
        assert_eq!(state_after("first"), None);
    }
}
