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

use crate::config::QuorumConfig;
use crate::core::Core;
use futures::TryStreamExt;
use lattice_ledger::{AuditFault, AuditHead};
use lattice_model::{Generation, with_causes};
use lattice_objects::{Objects, ObjectsError, SettingNames};
use lattice_store::audit::SEGMENT_RECORDS;
use lattice_store::background;
use lattice_store::machine::{Agreed, AuditError};
use object_store::path::Path as Key;
use object_store::{ObjectStoreExt, PutPayload};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::time::MissedTickBehavior;

/// The compression level: zstd's default.
const LEVEL: i32 = 3;

/// Why archiving failed.
#[derive(Debug, Error)]
enum ArchiveError {
    #[error(transparent)]
    Store(#[from] object_store::Error),
    #[error(transparent)]
    Audit(#[from] AuditError),
    #[error("records cannot be written as text")]
    Encode(#[source] io::Error),
    #[error("the archiving task failed")]
    Task(#[source] io::Error),
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
    pub(crate) async fn run(self, core: Arc<Core>) {
        let mut tick = tokio::time::interval(self.every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut there = None;
        let mut away = false;
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
                Ok(()) if away => {
                    away = false;
                    tracing::info!(url = self.objects.url, "the audit log is archived again");
                }
                Ok(()) => {}
                Err(error) => {
                    // List the contents again.
                    there = None;
                    if !away {
                        away = true;
                        tracing::error!(url = self.objects.url, error = %with_causes(&error), "the audit log cannot be archived; tried again");
                    }
                }
            }
        }
    }

    async fn step(&self, core: &Core, there: &mut Option<There>) -> Result<(), ArchiveError> {
        let head = core.agreed.audit_head().seq;
        let (generation, cluster) = {
            let ledger = core.agreed.ledger();
            (ledger.generation(), ledger.cluster().to_owned())
        };
        if cluster.is_empty() {
            return Ok(());
        }
        let place = Place { objects: &self.objects, cluster: &cluster, generation };
        let now = match *there {
            Some(known) if known.generation == generation => known,
            Some(_) | None => place.look().await?,
        };
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
        Ok(())
    }
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

    /// Lists the complete segments. How far an open rest reaches is unknown, so it is put again.
    async fn look(&self) -> Result<There, ArchiveError> {
        let names: Vec<Key> =
            self.objects.store.list(Some(&self.objects.key(self.dir()))).map_ok(|found| found.location).try_collect().await?;
        let mut whole = 0;
        while names.contains(&self.key(whole + 1, &format!("{:020}", whole + SEGMENT_RECORDS))) {
            whole += SEGMENT_RECORDS;
        }
        Ok(There { generation: self.generation, whole, open: 0 })
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
