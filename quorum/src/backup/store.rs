//! The store of backups. Snapshots and segments are transferred as streams, never completely in
//! memory.

use super::error::{BackupError, ChainCodecError};
use super::progress::{Reporter, Stage};
use crate::config::QuorumConfig;
use futures::StreamExt;
use lattice_api::pack;
use lattice_ledger::AuditHead;
use lattice_model::{AuditRecord, Timestamp, with_causes};
use lattice_objects::{Objects, SettingNames};
use lattice_store::StoreError;
use lattice_store::audit::{self, AuditChain};
use lattice_store::directory::sync_folder;
use lattice_store::snapshot_file::{self, About, Loaded};
use object_store::buffered::BufWriter;
use object_store::path::Path as Key;
use object_store::{ObjectStoreExt, PutPayload};
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::fs::File;
use tokio::io::AsyncWriteExt;

/// Largest accepted size of an uncompressed [`Chain`], in bytes.
const CHAIN_BYTES_MAX: u64 = 1 << 30;
/// Largest number of other backups that the error about a damaged one names.
const NAMED_MAX: usize = 3;
/// How far the clock of a store may be ahead of this machine's.
const CLOCKS_DIFFER_MAX: Duration = Duration::from_secs(300);
/// Checked audit records between two reports.
const REPORTED_RECORDS: u64 = 4096;

/// A store with backups.
#[derive(Clone, Debug)]
pub struct BackupStore {
    objects: Objects,
    reporter: Reporter,
}

/// A sealed segment, identified by its name in the store: after a recovery, a segment that begins
/// with the same record has another name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Its first record.
    pub first: u64,
    /// The hash of its last record.
    pub hash: String,
}

impl Segment {
    fn name(&self) -> String {
        format!("{:020}-{}.audit", self.first, self.hash.get(..16).unwrap_or(&self.hash))
    }
}

/// The audit chain of one backup.
#[derive(Debug, Serialize, Deserialize)]
pub struct Chain {
    /// The record before the first one. Earlier ones are in the audit log's archive.
    pub base: AuditHead,
    /// Its sealed segments.
    pub segments: Vec<Segment>,
    /// The records after them.
    pub tail: Vec<AuditRecord>,
}

/// A backup that was downloaded and completely checked.
#[derive(Debug)]
pub struct Checked {
    /// Its name.
    pub name: String,
    /// Its state.
    pub loaded: Loaded,
    /// Its audit chain, with every link verified from its beginning up to the state's head.
    pub chain: AuditChain,
}

/// A damaged object, and what is wrong with it.
struct Damage {
    object: String,
    why: String,
}

impl BackupStore {
    /// Opens the store at `url`, with the options and credentials of the configuration.
    pub fn open(url: &str, config: &QuorumConfig) -> Result<Self, BackupError> {
        let names = SettingNames { url: "backup", options: "backup_options", credentials: "backup_credentials" };
        let objects = Objects::open(names, url, &config.backup_options, &config.backup_credentials)?;
        Ok(Self { objects, reporter: Reporter::default() })
    }

    /// The same store, which reports how far the reading of a backup is.
    pub fn reporting(self, reporter: Reporter) -> Self {
        Self { reporter, ..self }
    }

    /// The URL as given.
    pub fn url(&self) -> &str {
        &self.objects.url
    }

    fn key(&self, parts: &[&str]) -> Key {
        self.objects.key(parts.iter().map(|part| (*part).to_owned()))
    }

    fn fail(&self, what: &str) -> impl FnOnce(object_store::Error) -> BackupError {
        let (url, what) = (self.objects.url.clone(), what.to_owned());
        move |source| BackupError::Store { url, what, source }
    }

    async fn put_file(&self, key: Key, mut file: File, path: &Path) -> Result<(), BackupError> {
        let mut out = BufWriter::new(Arc::clone(&self.objects.store), key);
        tokio::io::copy(&mut file, &mut out).await.map_err(BackupError::local(path))?;
        out.shutdown().await.map_err(BackupError::local(path))
    }

    /// Downloads an object. `set_read` gets how many of its bytes were read, of how many.
    async fn get_file(&self, key: &Key, to: &Path, set_read: impl Fn(u64, u64)) -> Result<(), BackupError> {
        let unread = format!("{key} cannot be read");
        let found = self.objects.store.get(key).await.map_err(self.fail(&unread))?;
        let (mut read, total) = (0, found.meta.size);
        let mut pieces = found.into_stream();
        let mut file = File::create(to).await.map_err(BackupError::local(to))?;
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(self.fail(&unread))?;
            file.write_all(&piece).await.map_err(BackupError::local(to))?;
            read += piece.len() as u64;
            set_read(read, total);
        }
        file.sync_all().await.map_err(BackupError::local(to))
    }

    /// Whether a sealed segment is there.
    pub async fn has_segment(&self, segment: &Segment) -> Result<bool, BackupError> {
        match self.objects.store.head(&self.key(&["audit", &segment.name()])).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(self.fail("it cannot be seen which audit segments are there")(error)),
        }
    }

    /// Puts a sealed segment. All later backups rely on it, so check it first.
    pub async fn put_segment(&self, segment: &Segment, path: &Path) -> Result<(), BackupError> {
        let file = File::open(path).await.map_err(BackupError::local(path))?;
        self.put_file(self.key(&["audit", &segment.name()]), file, path).await
    }

    /// Puts the description of the audit chain, and then the snapshot, which completes the backup.
    /// Returns the backup's name.
    pub async fn put(&self, about: &About, chain: &Chain, snapshot: File, path: &Path) -> Result<String, BackupError> {
        let name = format!("{}-{:020}", stamp(about.written), about.index());
        let packed = packed(chain).map_err(BackupError::Encode)?;
        let key = self.key(&["backups", &name, "audit"]);
        self.objects.store.put(&key, PutPayload::from(packed)).await.map_err(self.fail("the backup cannot be written"))?;
        self.put_file(self.key(&["backups", &name, "snapshot"]), snapshot, path).await?;
        Ok(name)
    }

    /// The names of all complete backups with the store's times, ordered by their last entry, the
    /// oldest first. The time in a name comes from one member's clock, so it does not count.
    async fn found(&self) -> Result<Vec<(String, SystemTime)>, BackupError> {
        let prefix = self.key(&["backups"]);
        let mut listed = self.objects.store.list(Some(&prefix));
        let mut found = Vec::new();
        while let Some(object) = listed.next().await {
            let object = object.map_err(self.fail("the backups cannot be listed"))?;
            let parts: Vec<_> = object.location.parts().collect();
            if let [.., name, last] = &parts[..]
                && last.as_ref() == "snapshot"
            {
                found.push((name.as_ref().to_owned(), SystemTime::from(object.last_modified)));
            }
        }
        found.sort_unstable_by(|(one, _), (other, _)| by_index(one).cmp(&by_index(other)));
        Ok(found)
    }

    /// The names of all complete backups, oldest first.
    pub async fn list(&self) -> Result<Vec<String>, BackupError> {
        Ok(self.found().await?.into_iter().map(|(name, _)| name).collect())
    }

    /// The age of the newest backup; `None`: there is none. One that is dated in the future does not
    /// count, because it was made under a wrong clock.
    pub async fn age_of_newest(&self) -> Result<Option<Duration>, BackupError> {
        let ahead = SystemTime::now() + CLOCKS_DIFFER_MAX;
        let ages = self.found().await?.into_iter().filter_map(|(_, at)| ahead.duration_since(at).ok());
        Ok(ages.min().map(|age| age.saturating_sub(CLOCKS_DIFFER_MAX)))
    }

    /// Downloads a backup (the newest if `name` is `None`) into the empty directory `dir`, and
    /// checks it completely: it verifies checksums, decodes every part, and follows every link of
    /// the audit chain up to the state's head.
    pub async fn get(&self, name: Option<&str>, dir: &Path) -> Result<Checked, BackupError> {
        let there = self.list().await?;
        let name = match name {
            Some(name) if there.iter().any(|t| t == name) => name.to_owned(),
            Some(name) => return Err(BackupError::Unknown { url: self.objects.url.clone(), name: name.to_owned(), there }),
            None => there.last().cloned().ok_or_else(|| BackupError::Empty { url: self.objects.url.clone() })?,
        };
        let damaged = |Damage { object, why }| {
            let others: Vec<&str> = there.iter().rev().filter(|t| **t != name).take(NAMED_MAX).map(String::as_str).collect();
            let others = if others.is_empty() { "there is no other".to_owned() } else { others.join(", ") };
            BackupError::Damaged { name: name.clone(), object, why, others }
        };
        let folder = dir.join("audit");
        std::fs::create_dir_all(&folder).map_err(BackupError::local(&folder))?;
        let snapshot = self.key(&["backups", &name, "snapshot"]);
        self.get_file(&snapshot, &got_snapshot(dir), |read, total| self.reporter.report(Stage::Snapshot, read, total)).await?;
        let key = self.key(&["backups", &name, "audit"]);
        let unread = format!("{key} cannot be read");
        let packed = self.objects.store.get(&key).await.map_err(self.fail(&unread))?.bytes().await.map_err(self.fail(&unread))?;
        let chain = unpacked(&packed).map_err(|e| damaged(Damage { object: key.to_string(), why: with_causes(&e) }))?;
        let segments = chain.segments.len() as u64;
        for (number, segment) in (1..).zip(&chain.segments) {
            let key = self.key(&["audit", &segment.name()]);
            match self.get_file(&key, &audit::path_of(&folder, segment.first), |_, _| {}).await {
                Err(BackupError::Store { source: object_store::Error::NotFound { .. }, .. }) => {
                    return Err(damaged(Damage { object: key.to_string(), why: "it is not there".to_owned() }));
                }
                got => got?,
            }
            self.reporter.report(Stage::Segments, number, segments);
        }
        if chain.base.seq > 0 {
            audit::begin_after(&folder, &chain.base).map_err(|e| damaged(Damage { object: key.to_string(), why: why(e) }))?;
        }
        sync_folder(&folder)?;
        let names = Names { snapshot: snapshot.to_string(), audit: key.to_string(), segments: self.key(&["audit"]).to_string() };
        let (to, reporter) = (dir.to_owned(), self.reporter.clone());
        let checked = tokio::task::spawn_blocking(move || check(&to, &chain, &names, &reporter)).await;
        let (loaded, chain) = checked.map_err(|e| BackupError::Task { why: e.to_string() })?.map_err(damaged)?;
        Ok(Checked { name, loaded, chain })
    }
}

/// The path of a downloaded snapshot until it is put in place.
fn got_snapshot(dir: &Path) -> std::path::PathBuf {
    dir.join("backup.snapshot-new")
}

/// The object names of a backup's parts.
struct Names {
    snapshot: String,
    audit: String,
    segments: String,
}

fn packed(chain: &Chain) -> Result<Vec<u8>, ChainCodecError> {
    let bytes = pack::to_bytes(chain)?;
    let mut out = zstd::Encoder::new(Vec::new(), zstd::DEFAULT_COMPRESSION_LEVEL)?;
    out.include_checksum(true)?;
    out.write_all(&bytes)?;
    Ok(out.finish()?)
}

fn unpacked(packed: &[u8]) -> Result<Chain, ChainCodecError> {
    let mut bytes = Vec::new();
    zstd::Decoder::new(packed)?.take(CHAIN_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(pack::from_bytes(&bytes)?)
}

/// The text of a member's error about a damaged file, without the remedies, which apply only to
/// members.
fn why(error: StoreError) -> String {
    match error {
        StoreError::Corrupt { offset, what, .. } => format!("at byte {offset}: {what}"),
        other => with_causes(&other),
    }
}

fn check(dir: &Path, chain: &Chain, names: &Names, reporter: &Reporter) -> Result<(Loaded, AuditChain), Damage> {
    let loaded = snapshot_file::load(&got_snapshot(dir)).map_err(|e| Damage { object: names.snapshot.clone(), why: why(e) })?;
    let of_segment = |file: &Path| {
        let first = file.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse::<u64>().ok());
        let segment = chain.segments.iter().find(|s| Some(s.first) == first);
        segment.map_or_else(|| names.audit.clone(), |s| format!("{}/{}", names.segments, s.name()))
    };
    let of_chain = |error: StoreError| {
        let object = match &error {
            StoreError::Corrupt { path, .. } => of_segment(path),
            _ => names.audit.clone(),
        };
        Damage { object, why: why(error) }
    };
    for segment in &chain.segments {
        // A member would treat a segment without a seal as unfinished, and seal it again.
        let path = audit::path_of(&dir.join("audit"), segment.first);
        if !audit::is_sealed(&path).map_err(of_chain)? {
            return Err(Damage { object: of_segment(&path), why: "it does not have its seal".to_owned() });
        }
    }
    let mut got = AuditChain::open(&dir.join("audit")).map_err(of_chain)?;
    got.append(&chain.tail).map_err(of_chain)?;
    let checked = got.checkpoint().and_then(|checkpoint| checkpoint.run()).map_err(of_chain)?;
    got.checked(checked);
    let want = loaded.ledger.audit_head();
    let checkpoint = loaded.ledger.audit_checkpoint().map_or(0, |checkpoint| checkpoint.signed.seq);
    if chain.base.seq > checkpoint {
        let why = format!("its audit chain begins after record {}; its state's checkpoint is record {checkpoint}", chain.base.seq);
        return Err(Damage { object: names.audit.clone(), why });
    }
    let mut head = chain.base.clone();
    let broken = |seq: u64, why: String| {
        let segment = chain.segments.iter().rev().find(|s| s.first <= seq && chain.tail.first().is_none_or(|t| seq < t.seq));
        Damage { object: segment.map_or_else(|| names.audit.clone(), |s| format!("{}/{}", names.segments, s.name())), why }
    };
    for record in got.records(chain.base.seq, want.seq) {
        let seq = head.seq + 1;
        let record = record.map_err(|e| broken(seq, format!("audit record {seq}: {e}")))?;
        head.follow(&record).map_err(|fault| broken(seq, fault.to_string()))?;
        if seq.is_multiple_of(REPORTED_RECORDS) || seq == want.seq {
            reporter.report(Stage::Records, seq - chain.base.seq, want.seq.saturating_sub(chain.base.seq));
        }
    }
    if head != *want {
        let why = format!("its audit chain ends at record {} ({}), its state at {} ({})", head.seq, head.hash, want.seq, want.hash);
        return Err(Damage { object: names.audit.clone(), why });
    }
    Ok((loaded, got))
}

/// The form of a time in names: `20260131T235959Z`.
pub fn stamp(at: Timestamp) -> String {
    at.to_string().chars().filter(|c| c.is_ascii_digit() || matches!(c, 'T')).take(15).chain(['Z']).collect()
}

/// A name ends with the number of the last entry.
fn by_index(name: &str) -> (&str, &str) {
    (name.rsplit_once('-').map_or("", |(_, index)| index), name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_by_time() {
        assert_eq!(stamp(Timestamp(1_769_903_999_000)), "20260131T235959Z");
        assert!(stamp(Timestamp(0)) < stamp(Timestamp(1_769_903_999_000)));
    }

    #[test]
    fn a_flipped_byte_in_the_description_is_noticed() {
        let chain = Chain { base: AuditHead::default(), segments: vec![Segment { first: 1, hash: "ab".repeat(32) }], tail: Vec::new() };
        let good = packed(&chain).unwrap();
        assert_eq!(unpacked(&good).unwrap().segments, chain.segments);
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            if let Ok(read) = unpacked(&bad) {
                assert_eq!(read.segments, chain.segments, "byte {at} changed what is read");
            }
        }
    }
}
