//! Archives the audit chain in an object store, where it survives the cluster.
//!
//! ```text
//!   <audit_archive>/audit/<cluster>/<generation>/
//!     00000000000000000001-00000000000000032768.jsonl.zst    a complete segment: put once
//!     00000000000000032769-open.jsonl.zst                    the rest: put again as it grows
//! ```
//!
//! Each line is a record in the format of `docs/audit.md`, so that it can be read and verified
//! without our software. The leader archives; a new leader lists what exists and continues. Records
//! that do not form a valid chain are not archived.
//!
//! After that the leader *confirms*: it reads the complete segments back, follows every link, compares
//! the end with its own chain, and commits a signed checkpoint. Members may then delete their copies
//! ([`crate::audit_pruning`]), if they see the segments there themselves. After a recovery the archive
//! has a new folder: complete segments up to the last checkpoint are copied into it, and everything is
//! read back again.

use crate::audit::confirmation::{Unproven, follow_segment};
use crate::config::QuorumConfig;
use crate::core::Core;
use crate::proposer::unserved;
use futures::TryStreamExt;
use lattice_ledger::signing::SignedHead;
use lattice_ledger::{Action, AuditCheckpoint, AuditFault, AuditHead, NotifyChannel, Refusal};
use lattice_model::{Generation, with_causes};
use lattice_objects::{Objects, ObjectsError, SettingNames};
use lattice_store::audit::SEGMENT_RECORDS;
use lattice_store::background;
use lattice_store::machine::{Agreed, AuditError};
use object_store::path::Path as Key;
use object_store::{ObjectStoreExt, PutPayload};
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::time::MissedTickBehavior;

/// The compression level: zstd's default.
const LEVEL: i32 = 3;

/// Why archiving failed.
#[derive(Debug, Error)]
pub(crate) enum ArchiveError {
    #[error(transparent)]
    Store(#[from] object_store::Error),
    #[error(transparent)]
    Audit(#[from] AuditError),
    #[error("records cannot be written as text")]
    Encode(#[source] io::Error),
    #[error("the archiving task failed")]
    Task(#[source] io::Error),
    #[error("{key} does not prove its records")]
    Unproven {
        key: Key,
        #[source]
        why: Unproven,
    },
    #[error("the archive's record {seq} differs from this member's")]
    Differs { seq: u64 },
    #[error(
        "records {first} to {last} are not in this archive, and not on this member's disk any more: copy them from the archive where they are"
    )]
    Elsewhere { first: u64, last: u64 },
    #[error("the archive's checkpoint is not committed")]
    Uncommitted(#[source] Refusal),
}

/// The archive.
#[derive(Debug)]
pub struct Archive {
    objects: Objects,
    every: Duration,
}

/// What the archive contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct There {
    generation: Generation,
    /// The last record in complete segments.
    whole: u64,
    /// The last record in the open rest.
    open: u64,
}

impl Archive {
    /// The configured archive, if any.
    pub fn open(config: &QuorumConfig) -> Result<Option<Self>, ObjectsError> {
        if config.audit_archive.is_empty() {
            return Ok(None);
        }
        let names = SettingNames { url: "audit_archive", options: "audit_archive_options", credentials: "audit_archive_credentials" };
        let objects = Objects::open(names, &config.audit_archive, &config.audit_archive_options, &config.audit_archive_credentials)?;
        Ok(Some(Self { objects, every: Duration::from_secs(config.audit_archive_seconds) }))
    }

    /// Archives while this member is the leader, until the member stops.
    pub(crate) async fn run(self: Arc<Self>, core: Arc<Core>) {
        let mut tick = tokio::time::interval(self.every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut there = None;
        let mut failing: Option<String> = None;
        loop {
            tokio::select! {
                () = core.stop.cancelled() => return,
                _ = tick.tick() => {}
            }
            if !core.leads() {
                there = None;
                continue;
            }
            let archived = tokio::select! {
                () = core.stop.cancelled() => return,
                archived = self.step(&core, &mut there) => archived,
            };
            match archived {
                Ok(()) => {
                    if failing.take().is_some() {
                        tracing::info!(url = self.objects.url, "the audit log is archived again");
                    }
                }
                Err(error) => {
                    // List the contents again.
                    there = None;
                    let error = with_causes(&error);
                    if failing.as_ref() != Some(&error) {
                        tracing::error!(
                            url = self.objects.url,
                            error,
                            "the audit log cannot be archived, or not be read back; tried again"
                        );
                        failing = Some(error);
                    }
                }
            }
        }
    }

    /// The first record of the first complete segment up to record `upto` that is not in the archive of
    /// `checkpoint`; `None`: all are there. Only lists names.
    pub(crate) async fn first_missing(&self, cluster: &str, checkpoint: &AuditCheckpoint, upto: u64) -> object_store::Result<Option<u64>> {
        let place = Place { objects: &self.objects, cluster, generation: checkpoint.generation };
        let names = place.names().await?;
        let mut segments = (0..upto).step_by(SEGMENT_RECORDS as usize);
        Ok(segments.find(|after| !names.contains(&place.segment_key(*after))).map(|after| after + 1))
    }

    /// Reads the complete segments after `from` up to record `upto` in the archive of `checkpoint`,
    /// and follows every link. Returns the last record.
    pub(crate) async fn read_back(
        &self,
        cluster: &str,
        checkpoint: &AuditCheckpoint,
        from: AuditHead,
        upto: u64,
    ) -> Result<AuditHead, ArchiveError> {
        Place { objects: &self.objects, cluster, generation: checkpoint.generation }.read_back(from, upto).await
    }

    /// Its URL as configured, without secrets.
    pub(crate) fn url(&self) -> &str {
        &self.objects.url
    }

    async fn step(&self, core: &Core, there: &mut Option<There>) -> Result<(), ArchiveError> {
        let head = core.agreed.audit_head().seq;
        let (generation, cluster, checkpoint) = {
            let ledger = core.agreed.ledger();
            (ledger.generation(), ledger.cluster().to_owned(), ledger.audit_checkpoint().cloned())
        };
        if cluster.is_empty() {
            return Ok(());
        }
        let place = Place { objects: &self.objects, cluster: &cluster, generation };
        let base = core.agreed.audit_base();
        let now = match *there {
            Some(known) if known.generation == generation => known,
            Some(_) | None => {
                if let Some(earlier) = checkpoint.as_ref().filter(|c| c.generation != generation) {
                    place.copy_from(earlier).await?;
                }
                place.look().await?
            }
        };
        if now.whole < base.seq {
            return Err(ArchiveError::Elsewhere { first: now.whole + 1, last: base.seq });
        }
        let now = there.insert(now);
        while now.whole + SEGMENT_RECORDS <= head {
            let upto = now.whole + SEGMENT_RECORDS;
            place.put(&core.agreed, now.whole, upto, &format!("{upto:020}")).await?;
            match self.objects.store.delete(&place.key(now.whole + 1, "open")).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            now.whole = upto;
        }
        if head > now.whole.max(now.open) {
            place.put(&core.agreed, now.whole, head, "open").await?;
            now.open = head;
        }
        // Records that must still be sent as notifications stay on the members' disks.
        let whole = now.whole.min(unsent_after(core).max(base.seq) / SEGMENT_RECORDS * SEGMENT_RECORDS);
        let confirmed = checkpoint.filter(|c| (c.generation, &c.archive) == (generation, &self.objects.url));
        let confirmed = confirmed.map_or_else(AuditHead::default, |c| c.signed.head());
        if whole <= confirmed.seq {
            return Ok(());
        }
        let head = place.read_back(confirmed, whole).await?;
        if !core.agreed.has_audit(&head) {
            return Err(ArchiveError::Differs { seq: head.seq });
        }
        // Reading may take minutes: another member may lead now, and confirms it itself.
        if core.leads() { self.confirm(core, &cluster, generation, head).await } else { Ok(()) }
    }

    /// Commits that the archive has every record up to `head`.
    async fn confirm(&self, core: &Core, cluster: &str, generation: Generation, head: AuditHead) -> Result<(), ArchiveError> {
        let signer = &core.identity.signer;
        let (member, key) = (signer.member(), signer.public().to_owned());
        let signature = signer.sign(SignedHead::message(cluster, head.seq, &head.hash).as_bytes());
        let mut actions = Vec::new();
        if core.agreed.ledger().signing().keys.get(&member) != Some(&key) {
            actions.push(Action::SetSigningKey { member, key: key.clone() });
        }
        let seq = head.seq;
        let signed = SignedHead { seq, hash: head.hash, member, key, signature };
        actions.push(Action::ArchiveAudit { signed, generation, archive: self.objects.url.clone() });
        let results = core.propose_here(actions).await.map_err(unserved);
        let results = results.and_then(|results| results.into_iter().try_for_each(|result| result.map(drop)));
        results.map_err(ArchiveError::Uncommitted)?;
        tracing::info!(upto = seq, "the audit archive was read back: every link holds");
        Ok(())
    }
}

/// The last record that all configured recipients of notifications have.
fn unsent_after(core: &Core) -> u64 {
    let config = &core.config;
    let channels = [
        (NotifyChannel::Webhook, config.notify_url.is_empty()),
        (NotifyChannel::Hook, config.notify_hook.as_os_str().is_empty()),
        (NotifyChannel::Mail, config.mail_hook.as_os_str().is_empty()),
    ];
    let ledger = core.agreed.ledger();
    let cursors = channels.into_iter().filter(|(_, off)| !off).map(|(channel, _)| ledger.notified(channel).unwrap_or_default());
    cursors.min().unwrap_or(u64::MAX)
}

/// The location of one generation's segments.
struct Place<'a> {
    objects: &'a Objects,
    cluster: &'a str,
    generation: Generation,
}

impl Place<'_> {
    fn dir(&self) -> [String; 3] {
        ["audit".to_owned(), self.cluster.to_owned(), self.generation.to_string()]
    }

    fn key(&self, first: u64, end: &str) -> Key {
        self.objects.key(self.dir().into_iter().chain([format!("{first:020}-{end}.jsonl.zst")]))
    }

    /// The key of the complete segment after record `after`.
    fn segment_key(&self, after: u64) -> Key {
        self.key(after + 1, &format!("{:020}", after + SEGMENT_RECORDS))
    }

    async fn names(&self) -> object_store::Result<HashSet<Key>> {
        self.objects.store.list(Some(&self.objects.key(self.dir()))).map_ok(|found| found.location).try_collect().await
    }

    /// Lists the complete segments. An open rest counts as absent, because its end is unknown.
    async fn look(&self) -> Result<There, ArchiveError> {
        let names = self.names().await?;
        let mut whole = 0;
        while names.contains(&self.segment_key(whole)) {
            whole += SEGMENT_RECORDS;
        }
        Ok(There { generation: self.generation, whole, open: 0 })
    }

    /// Copies the segments up to an earlier generation's checkpoint from its folder, unless they are
    /// here. Ends at a segment that its folder lacks: a member may still have it.
    async fn copy_from(&self, checkpoint: &AuditCheckpoint) -> Result<(), ArchiveError> {
        let names = self.names().await?;
        let earlier = Place { objects: self.objects, cluster: self.cluster, generation: checkpoint.generation };
        let mut after = 0;
        while after < checkpoint.signed.seq {
            let to = self.segment_key(after);
            if !names.contains(&to) {
                match self.objects.store.copy(&earlier.segment_key(after), &to).await {
                    Err(object_store::Error::NotFound { .. }) => return Ok(()),
                    copied => copied?,
                }
            }
            after += SEGMENT_RECORDS;
        }
        Ok(())
    }

    /// Reads the complete segments after `from` up to record `upto`, and follows every link.
    async fn read_back(&self, from: AuditHead, upto: u64) -> Result<AuditHead, ArchiveError> {
        let mut head = from;
        while head.seq < upto {
            let (key, end) = (self.segment_key(head.seq), head.seq + SEGMENT_RECORDS);
            let compressed = self.objects.store.get(&key).await?.bytes().await?;
            let followed = background::run("archive", move || follow_segment(&compressed, &mut head, end).map(|()| head));
            head = followed.await.map_err(ArchiveError::Task)?.map_err(|why| ArchiveError::Unproven { key, why })?;
        }
        Ok(head)
    }

    async fn put(&self, agreed: &Arc<Agreed>, after: u64, upto: u64, end: &str) -> Result<(), ArchiveError> {
        let agreed = Arc::clone(agreed);
        let text = background::run("archive", move || lines(&agreed, after, upto)).await.map_err(ArchiveError::Task)??;
        self.objects.store.put(&self.key(after + 1, end), PutPayload::from(text)).await?;
        Ok(())
    }
}

/// The records after `after` up to `upto`, one on each line, compressed.
fn lines(agreed: &Agreed, after: u64, upto: u64) -> Result<Vec<u8>, ArchiveError> {
    let mut out = zstd::Encoder::new(Vec::new(), LEVEL).map_err(ArchiveError::Encode)?;
    let mut head: Option<AuditHead> = None;
    let mut line = Vec::new();
    for record in agreed.audit_records(after, upto) {
        let record = record?;
        let head = head.get_or_insert_with(|| AuditHead { seq: after, hash: record.previous.clone() });
        head.follow(&record).map_err(AuditError::from)?;
        line.clear();
        serde_json::to_writer(&mut line, &record).map_err(|e| ArchiveError::Encode(e.into()))?;
        line.push(b'\n');
        io::Write::write_all(&mut out, &line).map_err(ArchiveError::Encode)?;
    }
    let last = head.map_or(after, |head| head.seq);
    if last != upto {
        return Err(AuditError::from(AuditFault { seq: last + 1, why: "it is missing" }).into());
    }
    out.finish().map_err(ArchiveError::Encode)
}
