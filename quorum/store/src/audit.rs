//! The audit chain on disk: append-only segments, which are not part of snapshots.
//!
//! ```text
//!   audit/00000000000000000001.audit   sealed: records 1 … 32,768, then the seal; never changed again
//!   audit/00000000000000000001.index   the offsets of an allocation's, a user's … records ([`index`])
//!   audit/00000000000000032769.audit   the active one: appended to
//!   audit/begins                       the record after which the chain begins ([`base`]); no file: with record 1
//! ```
//!
//! The chain is *derived*: records of entries after the last snapshot are created again by applying
//! the log, so it is synced and sealed with each snapshot and not with every entry. Therefore a
//! torn tail is cut off and created again. Records missing from a snapshot's chain are fetched from
//! another member and checked against the snapshot's head. Segments end at the same record numbers
//! on every member.
//!
//! The ledger has checkpoints only of records that the archive has, so segments up to a checkpoint may
//! be deleted ([`AuditChain::prune`]). The rest is verified as well as a complete chain: its links lead
//! from the checkpoint to the head in the ledger.

mod base;
mod index;
mod layout;
mod reading;
mod sealed;
mod search;
mod segment;

#[cfg(test)]
mod search_tests;

pub(crate) use base::has_earlier;
pub use base::{remove_before, write as begin_after};
pub use reading::Records;
pub use sealed::{SEGMENT_RECORDS, Sealed};
pub use search::{Search, Step};

use super::StoreError;
use super::directory::{sync_folder, sync_parent};
use lattice_ledger::AuditHead;
use lattice_model::{AuditFilter, AuditRecord};
use search::{How, Part};
use segment::{Active, Found};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The chain, appended to by a single owner.
#[derive(Debug)]
pub struct AuditChain {
    dir: PathBuf,
    /// The record before the first one here.
    base: AuditHead,
    sealed: Vec<Sealed>,
    /// Full segments that are not sealed yet.
    full: Vec<Arc<Active>>,
    active: Option<Active>,
    head: AuditHead,
    /// How many bytes of segments [`Self::open`] has read.
    opened_bytes: u64,
    /// How many of the next appends find no space on the disk.
    #[cfg(test)]
    pub(crate) appends_without_space: u32,
    /// How often records were appended.
    #[cfg(test)]
    pub(crate) appends: u32,
}

/// The work needed before a snapshot may depend on the chain: sealing and syncing. Run it where
/// blocking is allowed.
#[derive(Debug)]
pub struct Checkpoint {
    full: Vec<Arc<Active>>,
    active: Option<(PathBuf, File, u64)>,
}

/// The result of a [`Checkpoint`]; see [`AuditChain::checked`].
#[derive(Debug)]
pub struct Checked {
    sealed: Vec<Sealed>,
    active: Option<(PathBuf, u64)>,
}

impl AuditChain {
    /// Opens or creates the chain in `dir`. A torn tail is cut off; other damage is an error. Reads
    /// the records after the last seal, and of sealed segments only the seals: [`Sealed::check`]
    /// reads the rest later.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        fs::create_dir_all(dir).map_err(StoreError::io(dir, "the folder cannot be made"))?;
        sync_parent(dir)?;
        let base = base::read(dir)?;
        let mut this = Self {
            dir: dir.to_owned(),
            base: base.clone(),
            sealed: Vec::new(),
            full: Vec::new(),
            active: None,
            head: base.clone(),
            opened_bytes: 0,
            #[cfg(test)]
            appends_without_space: 0,
            #[cfg(test)]
            appends: 0,
        };
        // Earlier segments were about to be deleted, or are kept until the ledger has the checkpoint.
        let mut paths = segment::list(dir)?.into_iter().filter(|(first, _)| *first > base.seq).peekable();
        while let Some((first, path)) = paths.next() {
            if first > this.head.seq + 1 && this.full.last().is_some() {
                // The previous segment was full and never synced, and so was this one.
                remove_behind_a_tear(dir, std::iter::once((first, path)).chain(paths.by_ref()))?;
                this.active = this.full.pop().and_then(Arc::into_inner);
                break;
            }
            if first != this.head.seq + 1 {
                let what = format!(
                    "it begins with record {first} where record {} should follow: a segment before it is missing",
                    this.head.seq + 1
                );
                return Err(StoreError::corrupt(&path, 0, what));
            }
            let (found, read) = segment::open(&path, &this.head)?;
            this.opened_bytes += read;
            match found {
                Found::Sealed(sealed) => {
                    this.head = sealed.last.clone();
                    this.sealed.push(sealed);
                }
                Found::Open { active, torn } => {
                    this.head = active.last().clone();
                    if torn && paths.peek().is_some() {
                        remove_behind_a_tear(dir, paths.by_ref())?;
                    }
                    this.active = Some(active);
                    if this.head.seq.is_multiple_of(SEGMENT_RECORDS) || paths.peek().is_some() {
                        this.finish_active();
                    }
                }
                Found::Nothing => {
                    remove_behind_a_tear(dir, paths.by_ref())?;
                }
            }
        }
        let checked = this.checkpoint()?.run()?;
        this.checked(checked);
        tracing::debug!(records = this.head.seq, sealed = this.sealed.len(), read = this.opened_bytes, "the audit chain is open");
        Ok(this)
    }

    /// How many bytes of segments [`Self::open`] has read.
    #[cfg(test)]
    pub(crate) fn opened_bytes(&self) -> u64 {
        self.opened_bytes
    }

    /// A check has found that this segment is damaged: nothing is read from it any more.
    pub fn set_damaged(&mut self, segment: &Sealed, why: &str) {
        if let Some(found) = self.sealed.iter_mut().find(|s| s.is_same(segment)) {
            found.damage = Some(why.into());
        }
    }

    /// Whether the chain has this sealed segment.
    pub fn has_sealed(&self, segment: &Sealed) -> bool {
        self.sealed.iter().any(|s| s.is_same(segment))
    }

    /// Number of sealed segments that a check has found damaged.
    pub fn damaged(&self) -> usize {
        self.sealed.iter().filter(|s| s.damage.is_some()).count()
    }

    /// The number and hash of the last record.
    pub fn head(&self) -> &AuditHead {
        &self.head
    }

    /// The record before the first one on this disk.
    pub fn base(&self) -> &AuditHead {
        &self.base
    }

    /// Begins the chain anew after `base`, where another member's chain begins, if `base` is later than
    /// all records here. The old segments stay on the disk until [`remove_before`] is called.
    pub fn begin_at(&mut self, base: AuditHead) -> Result<(), StoreError> {
        if base.seq <= self.head.seq {
            return Ok(());
        }
        base::write(&self.dir, &base)?;
        (self.sealed, self.full, self.active) = (Vec::new(), Vec::new(), None);
        (self.base, self.head) = (base.clone(), base);
        Ok(())
    }

    /// The last record of the sealed segments that may be deleted: those up to `checkpoint`, except the
    /// newest `kept` ones. `None`: there are none, or the checkpoint's own segment is not sealed here.
    pub fn prunable(&self, checkpoint: &AuditHead, kept: usize) -> Result<Option<AuditHead>, StoreError> {
        let Some(at) = self.sealed.iter().position(|s| s.last.seq == checkpoint.seq) else { return Ok(None) };
        let there = &self.sealed[at];
        if there.last != *checkpoint {
            let what = format!("its record {} differs from the one in the archive", checkpoint.seq);
            return Err(StoreError::corrupt(&there.path, there.records_end, what));
        }
        let count = (at + 1).min(self.sealed.len().saturating_sub(kept));
        Ok(self.sealed[..count].last().map(|segment| segment.last.clone()))
    }

    /// Forgets the sealed segments up to the one that ends with `upto`, and begins behind it. Their
    /// files stay on the disk until [`remove_before`] is called.
    pub fn prune(&mut self, upto: &AuditHead) {
        if let Some(at) = self.sealed.iter().position(|s| s.last == *upto) {
            self.sealed.drain(..=at);
            self.base = upto.clone();
        }
    }

    /// The sealed segments in order.
    pub fn sealed(&self) -> &[Sealed] {
        &self.sealed
    }

    /// Appends new records; records that are already there (a replay) are skipped. Not on disk
    /// before a [`Checkpoint`].
    pub fn append(&mut self, records: &[AuditRecord]) -> Result<(), StoreError> {
        #[cfg(test)]
        if self.appends_without_space > 0 {
            self.appends_without_space -= 1;
            return Err(StoreError::io(&self.dir, "cannot be written")(std::io::ErrorKind::StorageFull.into()));
        }
        #[cfg(test)]
        {
            self.appends += 1;
        }
        let mut rest = records;
        while let Some(next) = rest.first() {
            if next.seq <= self.head.seq {
                if next.seq == self.head.seq && next.hash != self.head.hash {
                    let what = format!("record {} differs from the one in the log", next.seq);
                    return Err(StoreError::corrupt(&self.dir, 0, what));
                }
                rest = &rest[1..];
                continue;
            }
            let active = match &mut self.active {
                Some(active) => active,
                None => self.active.insert(Active::create(&self.dir, &self.head)?),
            };
            let room = usize::try_from(SEGMENT_RECORDS - self.head.seq % SEGMENT_RECORDS).unwrap_or(usize::MAX);
            let (fits, others) = rest.split_at(room.min(rest.len()));
            active.append(fits)?;
            self.head = active.last().clone();
            rest = others;
            if self.head.seq.is_multiple_of(SEGMENT_RECORDS) {
                self.finish_active();
            }
        }
        Ok(())
    }

    fn finish_active(&mut self) {
        self.full.extend(self.active.take().map(Arc::new));
    }

    /// Drops every segment with a record after `head`, because those records are not part of this
    /// chain.
    pub fn cut_back(&mut self, head: &AuditHead) -> Result<(), StoreError> {
        while self.head.seq > head.seq {
            let first = self.active.as_ref().map(Active::first).or_else(|| self.full.last().map(|f| f.first()));
            let Some(first) = first.or_else(|| self.sealed.last().map(|s| s.first)) else { break };
            let path = segment::path(&self.dir, first);
            fs::remove_file(&path).map_err(StoreError::io(&path, "cannot be removed"))?;
            // The index may not exist. If it stays, its hash shows that it belongs to other
            // records.
            let _none = fs::remove_file(index::path_of(&path));
            if self.active.take().is_none() && self.full.pop().is_none() {
                self.sealed.pop();
            }
            self.head = self.end();
        }
        sync_folder(&self.dir)
    }

    fn end(&self) -> AuditHead {
        let open = self.active.as_ref().or_else(|| self.full.last().map(|f| &**f)).map(|a| a.last().clone());
        open.or_else(|| self.sealed.last().map(|s| s.last.clone())).unwrap_or_else(|| self.base.clone())
    }

    /// The work needed so that everything appended so far is on disk.
    pub fn checkpoint(&self) -> Result<Checkpoint, StoreError> {
        let active = self.active.as_ref().map(Active::to_sync).transpose()?;
        Ok(Checkpoint { full: self.full.clone(), active })
    }

    /// Records the result of a checkpoint.
    pub fn checked(&mut self, checked: Checked) {
        for sealed in checked.sealed {
            // Another checkpoint may have been faster, or the segment is gone.
            if self.full.first().is_some_and(|f| f.first() == sealed.first) {
                self.full.remove(0);
                self.sealed.push(sealed);
            }
        }
        if let (Some(active), Some((path, upto))) = (&mut self.active, checked.active) {
            active.is_synced(&path, upto);
        }
    }

    /// Records after `after` up to `upto`.
    pub fn records(&self, after: u64, upto: u64) -> Records {
        let open = self.full.iter().map(|f| &**f).chain(&self.active);
        Records::new(self.sealed.iter().map(Sealed::extent).chain(open.map(Active::extent)), after, upto)
    }
}

impl AuditChain {
    /// Records that match `filter` after `after` up to `upto`. The candidates of unsealed segments
    /// are determined immediately.
    pub fn search(&self, filter: &AuditFilter, after: u64, upto: u64) -> Search {
        let sealed = self.sealed.iter().map(|s| Part { extent: s.extent(), how: How::Sealed { last: s.last.hash.clone() } });
        let open = self.full.iter().map(|f| &**f).chain(&self.active);
        let open = open.map(|active| Part { extent: active.extent(), how: How::Known(active.search(filter)) });
        Search::new(sealed.chain(open), filter, after, upto)
    }
}

impl Checkpoint {
    /// Seals and syncs.
    pub fn run(self) -> Result<Checked, StoreError> {
        let sealed = self.full.iter().map(|full| full.seal()).collect::<Result<_, _>>()?;
        let active = match self.active {
            Some((path, file, upto)) => {
                file.sync_data().map_err(StoreError::unsynced(&path))?;
                Some((path, upto))
            }
            None => None,
        };
        Ok(Checked { sealed, active })
    }
}

/// Checks all records of the chain in `dir` without changing anything. A torn tail is accepted; the
/// next start cuts it off.
pub fn check(dir: &Path) -> Result<(), StoreError> {
    if !dir.exists() {
        return Ok(());
    }
    base::read(dir)?;
    segment::list(dir)?.iter().try_for_each(|(_, path)| segment::check(path))
}

/// The path of the segment whose first record is `first`.
pub fn path_of(dir: &Path, first: u64) -> PathBuf {
    segment::path(dir, first)
}

/// Whether the segment in this file is sealed.
pub fn is_sealed(path: &Path) -> Result<bool, StoreError> {
    segment::is_sealed(path)
}

/// Removes segments after a torn one: they were never synced, and are created again from the log.
/// If one of them is sealed, it was synced, so the damage is an error.
fn remove_behind_a_tear(dir: &Path, paths: impl Iterator<Item = (u64, PathBuf)>) -> Result<(), StoreError> {
    for (_, path) in paths {
        if segment::is_sealed(&path)? {
            return Err(StoreError::corrupt(&path, 0, "the segment before this one is no longer complete"));
        }
        tracing::warn!(file = %path.display(), "a segment after a torn one is removed");
        fs::remove_file(&path).map_err(StoreError::io(&path, "cannot be removed"))?;
    }
    sync_folder(dir)
}
