//! Fetches missing audit records from another member.
//!
//! ```text
//!   leader ──InstallSnapshot──▶ member: lacks records? ──▶ "not yet"; a task fetches them, page by page
//!          ──InstallSnapshot, again──▶ member: has them ──▶ Raft installs it; the chain is checked against its head
//! ```
//!
//! If the member's records end before the other member's records begin, its chain begins anew where
//! the other one's begins: at a checkpoint, up to which the archive has every record. The member's
//! older records stay on its disk until its own ledger has that checkpoint.
//!
//! A snapshot contains only the chain's head. It is not installed before the records have been
//! fetched, so a member with a state always has its history as well, and may vote.

use crate::network::{NoReply, Peers};
use crate::peers::AuditPage;
use lattice_model::{Generation, with_causes};
use lattice_store::StoreError;
use lattice_store::machine::{Agreed, AuditError};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Approximate size of one page of records, in bytes.
const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How long a starting member without its records asks for them before it gives up.
const START_MAX: Duration = Duration::from_secs(30);
/// Pause between two rounds over the members.
const PAUSE: Duration = Duration::from_millis(250);

/// Why records could not be fetched.
#[derive(Debug, Error)]
pub(crate) enum FetchError {
    #[error(transparent)]
    NoReply(#[from] NoReply),
    #[error("the records that were sent cannot be taken")]
    Taken(#[from] AuditError),
    #[error("the member has {theirs} records where {wanted} were to be")]
    Short { theirs: u64, wanted: u64 },
    #[error("the record that was sent as number {seq} is not the one that the snapshot relies on")]
    Foreign { seq: u64 },
    #[error("the member's state is of generation {theirs}, not of {ours}")]
    Generation { theirs: Generation, ours: Generation },
    #[error("this member is stopping")]
    Stopping,
}

/// The state of fetching, with the id of the snapshot.
#[derive(Debug, Default)]
enum State {
    #[default]
    Idle,
    Fetching {
        snapshot: String,
    },
    Ready {
        snapshot: String,
    },
}

/// Fetches records for one snapshot at a time.
#[derive(Debug)]
pub(crate) struct ChainFetch {
    agreed: Arc<Agreed>,
    peers: Peers,
    stop: CancellationToken,
    tasks: TaskTracker,
    state: Mutex<State>,
}

impl ChainFetch {
    pub fn new(agreed: Arc<Agreed>, peers: Peers, stop: CancellationToken) -> Self {
        Self { agreed, peers, stop, tasks: TaskTracker::new(), state: Mutex::default() }
    }

    /// After a stop was requested: returns when nothing is being written any more.
    pub async fn stopped(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Whether the records required by this snapshot are here. If they may be missing, starts to
    /// fetch them from the member that sends the snapshot.
    pub fn is_ready_for(self: &Arc<Self>, snapshot: &str, sender: u64) -> bool {
        let mut state = self.state.lock();
        match &*state {
            State::Ready { snapshot: of } if of == snapshot => return true,
            State::Fetching { .. } => return false,
            State::Ready { .. } | State::Idle => {}
        }
        *state = State::Fetching { snapshot: snapshot.to_owned() };
        let this = Arc::clone(self);
        self.tasks.spawn(async move {
            let fetched = tokio::select! {
                () = this.stop.cancelled() => Err(FetchError::Stopping),
                fetched = this.fetch_from_any(sender) => fetched,
            };
            let done = match fetched {
                Ok(()) => true,
                Err(FetchError::Stopping) => false,
                Err(error) => {
                    tracing::warn!(error = %with_causes(&error), sender, "audit records cannot be fetched; it is tried again");
                    false
                }
            };
            let mut state = this.state.lock();
            *state = match std::mem::take(&mut *state) {
                State::Fetching { snapshot } if done => State::Ready { snapshot },
                State::Fetching { .. } | State::Ready { .. } | State::Idle => State::Idle,
            };
        });
        false
    }

    /// Fetches the records that `sender` has: from `sender`, or from others if `sender` cannot send
    /// them all, for example because a segment there is damaged.
    async fn fetch_from_any(&self, sender: u64) -> Result<(), FetchError> {
        let error = match catch_up(&self.agreed, &self.peers, &self.tasks, sender, None).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let head = self.peers.audit_page(sender, u64::MAX).await?.head;
        for other in self.peers.ids().into_iter().filter(|other| *other != sender) {
            match catch_up(&self.agreed, &self.peers, &self.tasks, other, Some(head.seq)).await {
                Ok(()) => return Ok(()),
                Err(error) => {
                    tracing::debug!(error = %with_causes(&error), other, "audit records cannot be fetched from this member either");
                }
            }
        }
        Err(error)
    }
}

/// Fetches until this member has everything that the other member had at the first request, and at
/// least up to `upto`. If the future is dropped, one page may still be being written: `tasks`
/// tracks that.
async fn catch_up(agreed: &Arc<Agreed>, peers: &Peers, tasks: &TaskTracker, from: u64, upto: Option<u64>) -> Result<(), FetchError> {
    let mut wanted = upto;
    loop {
        let after = agreed.audit_on_disk().seq;
        if wanted.is_some_and(|wanted| after >= wanted) {
            return Ok(());
        }
        let page = peers.audit_page(from, after).await?;
        if page.base.seq > after {
            if let Some(ours) = agreed.generation().filter(|ours| *ours != page.generation) {
                return Err(FetchError::Generation { theirs: page.generation, ours });
            }
            tracing::info!(have = after, begins = page.base.seq + 1, from, "audit records before a checkpoint are not fetched");
            let agreed = Arc::clone(agreed);
            let begun = tasks.spawn_blocking(move || agreed.begin_audit_at(page.base)).await;
            begun.map_err(|_| FetchError::Stopping)?.map_err(AuditError::from)?;
            continue;
        }
        let wanted = *wanted.get_or_insert(page.head.seq);
        if after >= wanted {
            return Ok(());
        }
        if page.records.is_empty() {
            return Err(FetchError::Short { theirs: page.head.seq, wanted });
        }
        let agreed = Arc::clone(agreed);
        let taken = tasks.spawn_blocking(move || agreed.take_audit(&page.records)).await;
        taken.map_err(|_| FetchError::Stopping)??;
    }
}

/// Before a member starts: if it lacks records required by its snapshot, fetches them from any
/// member that has them.
pub(crate) async fn complete(agreed: &Arc<Agreed>, peers: &Peers) -> Result<(), StoreError> {
    let Some((have, want)) = agreed.lacks_audit() else { return Ok(()) };
    tracing::warn!(have = have.seq, want = want.seq, "audit records are missing here and are fetched from another member");
    let end = Instant::now() + START_MAX;
    let mut why = "there is no other member".to_owned();
    let others = peers.ids();
    while !others.is_empty() && Instant::now() < end {
        for member in &others {
            match catch_up(agreed, peers, &TaskTracker::new(), *member, Some(want.seq)).await {
                // The records of a lost chain may all be before the checkpoint.
                Ok(()) if agreed.has_audit(&want) || agreed.audit_base().seq > want.seq => return Ok(()),
                Ok(()) => {
                    agreed.cut_audit_back(&have)?;
                    why = FetchError::Foreign { seq: want.seq }.to_string();
                }
                Err(error) => why = format!("member {member}: {}", with_causes(&error)),
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    Err(StoreError::AuditMissing { first: have.seq + 1, last: want.seq, why })
}

/// Answers another member's request. Reads the disk: call it where blocking is allowed.
pub(crate) fn page(agreed: &Agreed, after: u64) -> Result<AuditPage, AuditError> {
    let (head, base, generation) = (agreed.audit_head(), agreed.audit_base(), agreed.ledger().generation());
    if after < base.seq {
        return Ok(AuditPage { head, generation, base, records: Vec::new() });
    }
    let mut records = Vec::new();
    let mut bytes = 0;
    for record in agreed.audit_reader(after, head.seq) {
        let record = record.map_err(|source| agreed.unreadable(after + 1 + records.len() as u64, source))?;
        bytes += 512 + record.detail.len() + record.actor.len();
        records.push(record);
        if bytes >= PAGE_BYTES_MAX {
            break;
        }
    }
    Ok(AuditPage { head, generation, base, records })
}
