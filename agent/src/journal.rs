//! The node's journal: each decision is on the disk before it is acted upon.
//!
//! ```text
//!   journal = header, then records: length (u32 LE), CRC-32 (u32 LE), MessagePack of lattice_node::Record
//!   header = "LATTJRN3", checkpoint that it follows, life (u64 LE each), boot id (16 bytes),
//!            CRC-32 of all this (u32 LE)
//!   agent-state.json = readable checkpoint: the whole Brain, and the CRC-32 of it as JSON without spaces, keys sorted
//! ```
//!
//! What is written outlives the agent. The end of work is synced before it is reported, with
//! everything before it, because users learn of it before the quorum does. The rest need not
//! outlive the machine, because work does not: a node that comes back under another boot id has
//! lost all its work, and the quorum concludes that from the boot id alone.
//!
//! The journal has the truth. A checkpoint is written now and then to keep the journal short. It is
//! first moved into place, then the journal is cut, so after a crash in between the journal has
//! records that the checkpoint already has. To prevent their replay, the journal's header has the
//! number of the checkpoint that it follows, and an older journal is ignored.
//!
//! A state that cannot be used is never deleted: [`crate::recovery`] handles it.
//!
//! A full disk must not keep the agent from ending the work that fills it. Therefore the journal's
//! blocks are reserved, its header is rewritten in place, and a checkpoint for which there is no
//! space is postponed: the journal alone has everything.

mod aside;
mod counts;

pub use aside::Salvaged;
pub use counts::JournalCounts;

use lattice_agent_common::files::{checksum, write_whole};
use lattice_model::{Boot, NodeId};
use lattice_node::{Brain, Record};
use lattice_runtime::failpoint::{self, Point};
use nix::fcntl::{FallocateFlags, fallocate};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use thiserror::Error;

/// How long to wait for the lock of an agent that is just ending, and the pause between two tries.
const LOCK_WAIT: Duration = Duration::from_secs(2);
const LOCK_RETRY_PAUSE: Duration = Duration::from_millis(10);
const VERSION: u32 = 2;
/// The last byte is the version of the format.
const MAGIC: &[u8; 8] = b"LATTJRN3";
const HEADER_BYTES: u64 = 44;
/// The largest record is a list of one node's work.
const RECORD_BYTES_MAX: usize = 64 * 1024 * 1024;
/// A longer journal is folded into a new checkpoint.
const CHECKPOINT_AFTER_BYTES: u64 = 4 * 1024 * 1024;
/// How far the journal may grow beyond that while there is no space for a checkpoint.
const GROWTH_BYTES_MAX: u64 = 1024 * 1024;
/// How far the journal grows before a checkpoint that had no space is tried again.
const CHECKPOINT_AGAIN_BYTES: u64 = 64 * 1024;
/// How much disk space is reserved for the journal.
const RESERVED_BYTES: i64 = (CHECKPOINT_AFTER_BYTES + GROWTH_BYTES_MAX) as i64;

/// Why the node's state cannot be used.
#[derive(Debug, Error)]
pub enum JournalError {
    #[error("{}: {doing}", path.display())]
    Io {
        path: PathBuf,
        doing: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("{} is the state of node {found}, not of {expected}: point state_dir at this node's own directory; or start the agent once with --recover, which moves that state aside and asks the shims on this node what runs here", path.display())]
    ForeignNode { path: PathBuf, found: NodeId, expected: NodeId },
    #[error("{} was written by a newer version ({what}): start that version; or start this one once with --recover, which moves that state aside and asks the shims on this node what runs here", path.display())]
    Newer { path: PathBuf, what: String },
    #[error("{} cannot be used: {why}", path.display())]
    Damaged { path: PathBuf, why: String },
    #[error("{}: another agent uses this state directory", path.display())]
    Busy { path: PathBuf },
}

#[derive(Serialize, Deserialize)]
struct Checkpoint {
    version: u32,
    number: u64,
    node: NodeId,
    boot: Boot,
    brain: Brain,
    /// The checksum of `brain`.
    checksum: u32,
}

/// A node's state directory, locked by this agent as long as this value lives.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    state_file: PathBuf,
    held: File,
}

/// The open journal. It is locked, so there is one per state directory.
#[derive(Debug)]
pub struct Journal {
    #[expect(dead_code, reason = "the lock is held for as long as the journal is open")]
    held: File,
    file: File,
    path: PathBuf,
    state_file: PathBuf,
    /// The boot of the node's state; the machine's present boot only after [`Self::resumed`].
    boot: Boot,
    booted: Boot,
    life: u64,
    number: u64,
    end: u64,
    checkpoint_at: u64,
    counts: Arc<JournalCounts>,
}

/// The contents of the journal's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    follows: u64,
    life: u64,
    boot: Boot,
}

/// What was on the disk.
#[derive(Debug)]
pub struct Opened {
    pub journal: Journal,
    pub brain: Brain,
    /// Whether the machine has not been restarted since the state was written. True for a node
    /// without history.
    pub same_boot: bool,
    /// The length of an unfinished last record that was cut, in bytes.
    pub torn_bytes: u64,
}

fn failed(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> JournalError {
    let path = path.to_owned();
    move |source| JournalError::Io { path, doing, source }
}

impl StateDir {
    /// Creates the directory if it is missing, and locks it.
    pub fn take(path: &Path, state_file: &Path) -> Result<Self, JournalError> {
        fs::create_dir_all(path).map_err(failed(path, "making the state directory"))?;
        let held = File::open(path).map_err(failed(path, "opening the state directory"))?;
        lock(&held, path, LOCK_WAIT)?;
        Ok(Self { path: path.to_owned(), state_file: state_file.to_owned(), held })
    }

    fn journal(&self) -> PathBuf {
        self.path.join("journal")
    }

    fn open_journal(&self) -> Result<File, JournalError> {
        let path = self.journal();
        let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).mode(0o600).open(&path);
        let file = file.map_err(failed(&path, "opening it"))?;
        lock(&file, &path, LOCK_WAIT)?;
        Ok(file)
    }

    /// Opens the state of `node`; `None`: the node never had one.
    pub fn open(&self, node: &NodeId, boot: Boot) -> Result<Option<Opened>, JournalError> {
        let (path, state_file) = (self.journal(), &self.state_file);
        let file = self.open_journal()?;
        let mut bytes = Vec::new();
        (&file).read_to_end(&mut bytes).map_err(failed(&path, "reading it"))?;
        let checkpoint = read_checkpoint(state_file)?;
        let damaged = |why: &str| JournalError::Damaged { path: path.clone(), why: why.to_owned() };
        let (header, checkpoint) = match (Header::read(&path, &bytes)?, checkpoint) {
            (None, None) => return Ok(None),
            // The header is written before the first checkpoint.
            (None, Some(_)) => return Err(damaged("it is gone, or empty, beside a state file")),
            (Some(header), None) if header.follows > 0 => return Err(damaged("its state file is gone")),
            (Some(header), checkpoint) => (header, checkpoint),
        };
        if let Some(c) = checkpoint.as_ref().filter(|c| &c.node != node) {
            return Err(JournalError::ForeignNode { path: state_file.clone(), found: c.node.clone(), expected: node.clone() });
        }
        let (number, mut brain) = checkpoint.map_or_else(|| (0, Brain::new(node.clone())), |c| (c.number, c.brain));
        // The header is the newer of the two: it is rewritten even when no checkpoint is.
        let life = life_after(header.life.max(number));
        let mut journal = self.journal_of(file, header.boot, boot, life, number)?;
        let torn_bytes = if header.follows >= number { journal.replay(&bytes, header.follows, &mut brain)? } else { 0 };
        journal.cut()?;
        journal.checkpoint(&brain)?;
        Ok(Some(Opened { journal, brain, same_boot: header.boot == boot, torn_bytes }))
    }

    /// Begins with `brain` where there is no state. `life`: higher than any before.
    pub fn begin(&self, brain: &Brain, boot: Boot, life: u64) -> Result<Journal, JournalError> {
        let mut journal = self.journal_of(self.open_journal()?, boot, boot, life, 0)?;
        journal.cut()?;
        journal.checkpoint(brain)?;
        Ok(journal)
    }

    fn journal_of(&self, file: File, boot: Boot, booted: Boot, life: u64, number: u64) -> Result<Journal, JournalError> {
        let held = self.held.try_clone().map_err(failed(&self.path, "holding the state directory"))?;
        let (path, state_file) = (self.journal(), self.state_file.clone());
        Ok(Journal {
            held,
            file,
            path,
            state_file,
            boot,
            booted,
            life,
            number,
            end: HEADER_BYTES,
            checkpoint_at: CHECKPOINT_AFTER_BYTES,
            counts: Arc::default(),
        })
    }
}

/// A life higher than `before`, and higher than lives that the state does not know because it was
/// restored from an older copy: in gossip the highest life wins.
pub fn life_after(before: u64) -> u64 {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(0));
    clock.max(before + 1)
}

/// Takes the lock, which another agent in the same directory would hold. An agent that was just
/// killed may hold it for a moment longer: by a thread that is still in a system call, or by a
/// child process that has not yet called exec. So this tries for at least `wait`.
fn lock(file: &File, path: &Path, wait: Duration) -> Result<(), JournalError> {
    let until = Instant::now() + wait;
    loop {
        // SAFETY: flock on a descriptor that we own.
        match unsafe { libc::flock(std::os::fd::AsRawFd::as_raw_fd(file), libc::LOCK_EX | libc::LOCK_NB) } {
            0 => return Ok(()),
            _ if Instant::now() >= until => return Err(JournalError::Busy { path: path.to_owned() }),
            _ => std::thread::sleep(LOCK_RETRY_PAUSE),
        }
    }
}

impl Journal {
    fn replay(&mut self, bytes: &[u8], follows: u64, brain: &mut Brain) -> Result<u64, JournalError> {
        let damaged = |why: String| JournalError::Damaged { path: self.path.clone(), why };
        if follows > self.number {
            return Err(damaged(format!("it follows checkpoint {follows}, the state file is checkpoint {}", self.number)));
        }
        let mut at = HEADER_BYTES as usize;
        while at < bytes.len() {
            match Found::at(bytes, at) {
                Found::Record(record, next) => {
                    brain.replay(*record);
                    at = next;
                }
                Found::Unknown => {
                    let what = format!("the record at byte {at} is whole, and nothing that this version knows");
                    return Err(JournalError::Newer { path: self.path.clone(), what });
                }
                // Only the last record can be an append that a crash cut short; valid records
                // behind it mean damage. After a crash of the machine, though, any of the unsynced
                // pages may be missing.
                Found::Nothing if self.boot == self.booted && Found::anything_behind(bytes, at + 1) => {
                    return Err(damaged(format!("the record at byte {at} does not match its checksum, and others follow it")));
                }
                Found::Nothing => break,
            }
        }
        self.end = at as u64;
        Ok((bytes.len() - at) as u64)
    }

    /// Cuts the file after the last valid record, updates its header, and reserves its blocks.
    fn cut(&mut self) -> Result<(), JournalError> {
        self.file.set_len(self.end.max(HEADER_BYTES)).map_err(failed(&self.path, "cutting it"))?;
        self.write_header()?;
        // A file system that cannot reserve space works too, as long as it has space.
        if let Err(error) = fallocate(&self.file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, RESERVED_BYTES) {
            tracing::warn!(path = %self.path.display(), %error, "no space can be reserved for the journal: the agent stops if the disk is full");
        }
        Ok(())
    }

    /// Writes the header in place, within one sector.
    fn write_header(&self) -> Result<(), JournalError> {
        let bytes = Header { follows: self.number, life: self.life, boot: self.boot }.bytes();
        self.file.write_all_at(&bytes, 0).and_then(|()| self.file.sync_all()).map_err(failed(&self.path, "writing its header"))
    }

    /// Call this once the journal records the effects of a restart of the machine on the node's
    /// work: from then on the state belongs to this boot.
    pub fn resumed(&mut self) -> Result<(), JournalError> {
        if self.boot == self.booted {
            return Ok(());
        }
        self.boot = self.booted;
        self.write_header()
    }

    /// Appends records. On return they outlive this process, and those that must outlive the
    /// machine are synced.
    pub fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
        if records.is_empty() {
            return Ok(());
        }
        let mut bytes = Vec::with_capacity(256 * records.len());
        for record in records {
            let body = rmp_serde::to_vec_named(record).map_err(|e| failed(&self.path, "encoding a record")(io::Error::other(e)))?;
            let length = u32::try_from(body.len()).map_err(|e| failed(&self.path, "encoding a record")(io::Error::other(e)))?;
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
            bytes.extend_from_slice(&body);
        }
        let began = Instant::now();
        self.file.write_all_at(&bytes, self.end).map_err(failed(&self.path, "appending to it"))?;
        let synced = records.iter().any(Record::outlives_the_machine);
        if synced {
            self.file.sync_data().map_err(failed(&self.path, "syncing it"))?;
        }
        self.end += bytes.len() as u64;
        self.counts.appended(records.len(), bytes.len(), synced, self.end, began.elapsed());
        Ok(())
    }

    /// Counters for metrics.
    pub fn counts(&self) -> Arc<JournalCounts> {
        Arc::clone(&self.counts)
    }

    /// A number that is higher at each start than ever before.
    pub fn life(&self) -> u64 {
        self.life
    }

    /// Whether the journal is long enough to be folded into a checkpoint.
    pub fn wants_checkpoint(&self) -> bool {
        self.end > self.checkpoint_at
    }

    /// Writes the readable checkpoint and begins the journal anew after it. If there is no space
    /// for a checkpoint, the journal grows instead.
    pub fn checkpoint(&mut self, brain: &Brain) -> Result<(), JournalError> {
        let number = self.number + 1;
        let part = self.state_file.with_extension("json.part");
        let io = |doing| failed(&self.state_file, doing);
        let encoded = |e| io("encoding it")(io::Error::other(e));
        let checksum = checksum(&serde_json::to_value(brain).map_err(encoded)?);
        let (node, brain) = (brain.me().clone(), brain.clone());
        let checkpoint = Checkpoint { version: VERSION, number, node, boot: self.boot, brain, checksum };
        let json = serde_json::to_vec_pretty(&checkpoint).map_err(encoded)?;
        let written = write_whole(&part, &json).and_then(|()| {
            failpoint::pass(Point::CheckpointWritten);
            fs::rename(&part, &self.state_file)
        });
        if let Err(error) = written {
            let _ = fs::remove_file(&part);
            if !no_space(&error) {
                return Err(io("writing it")(error));
            }
            self.checkpoint_at = self.end.max(CHECKPOINT_AFTER_BYTES) + CHECKPOINT_AGAIN_BYTES;
            tracing::warn!(path = %self.state_file.display(), %error, "no space for a checkpoint: the journal goes on without it");
            return Ok(());
        }
        if let Some(dir) = self.state_file.parent() {
            File::open(dir).and_then(|d| d.sync_all()).map_err(io("syncing its directory"))?;
        }
        failpoint::pass(Point::CheckpointNamed);
        self.number = number;
        self.end = HEADER_BYTES;
        self.checkpoint_at = CHECKPOINT_AFTER_BYTES;
        self.counts.checkpointed(self.end);
        self.cut()?;
        failpoint::pass(Point::CheckpointTaken);
        Ok(())
    }
}

impl Header {
    fn bytes(self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&self.follows.to_le_bytes());
        bytes.extend_from_slice(&self.life.to_le_bytes());
        bytes.extend_from_slice(self.boot.0.as_bytes());
        let crc = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// `None` if the file was never begun.
    fn read(path: &Path, bytes: &[u8]) -> Result<Option<Self>, JournalError> {
        let damaged = |why: &str| JournalError::Damaged { path: path.to_owned(), why: why.to_owned() };
        let Some(header) = bytes.first_chunk::<{ HEADER_BYTES as usize }>() else {
            return if bytes.is_empty() { Ok(None) } else { Err(damaged("it is too short for a journal")) };
        };
        // A crash can leave the file with the length of its first header and without its bytes.
        if header.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        if header[..7] != MAGIC[..7] {
            return Err(damaged("it does not begin as a journal"));
        }
        if header[7] > MAGIC[7] {
            let what = format!("its form is {}, this version's {}", header[7].escape_ascii(), MAGIC[7].escape_ascii());
            return Err(JournalError::Newer { path: path.to_owned(), what });
        }
        if header[7] < MAGIC[7] {
            return Err(damaged("it was written by an older version, whose form this one does not read"));
        }
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| header[at + i]));
        let found =
            Self { follows: number(8), life: number(16), boot: Boot(uuid::Uuid::from_bytes(std::array::from_fn(|i| header[24 + i]))) };
        if found.bytes() != header { Err(damaged("its header does not match its checksum")) } else { Ok(Some(found)) }
    }
}

/// Whether a write failed for lack of space, which an operator can free.
fn no_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// What is at one position of a journal.
enum Found {
    /// A record, and the position of the next one.
    Record(Box<Record>, usize),
    /// A complete entry with a valid checksum that this version does not know.
    Unknown,
    Nothing,
}

impl Found {
    fn at(bytes: &[u8], at: usize) -> Self {
        let Some((body, next)) = whole(bytes, at) else { return Self::Nothing };
        rmp_serde::from_slice(body).map_or(Self::Unknown, |record| Self::Record(Box::new(record), next))
    }

    /// Whether any complete entry begins at or after `from`.
    fn anything_behind(bytes: &[u8], from: usize) -> bool {
        (from..bytes.len()).any(|at| whole(bytes, at).is_some())
    }
}

/// The body at `at` and the position after it, if length and checksum are valid.
fn whole(bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let length = u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize;
    let crc = u32::from_le_bytes(bytes.get(at + 4..at + 8)?.try_into().ok()?);
    if length == 0 || length > RECORD_BYTES_MAX {
        return None;
    }
    let body = bytes.get(at + 8..at + 8 + length)?;
    (crc32fast::hash(body) == crc).then_some((body, at + 8 + length))
}

fn read_checkpoint(path: &Path) -> Result<Option<Checkpoint>, JournalError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(path, "reading it")(error)),
    };
    let damaged = |why: String| JournalError::Damaged { path: path.to_owned(), why };
    let newer = |what: String| JournalError::Newer { path: path.to_owned(), what };
    let json: serde_json::Value = serde_json::from_slice(&bytes).map_err(|e| damaged(format!("it is not JSON: {e}")))?;
    match json.get("version").and_then(serde_json::Value::as_u64) {
        Some(found) if found > u64::from(VERSION) => return Err(newer(format!("its version is {found}, this agent's {VERSION}"))),
        Some(found) if found < u64::from(VERSION) => {
            return Err(damaged(format!("its version is {found}, which this agent does not read")));
        }
        Some(_) => {}
        None => return Err(damaged("it has no version".to_owned())),
    }
    let stated = json.get("checksum").and_then(serde_json::Value::as_u64);
    if stated.is_none() || json.get("brain").map(|brain| u64::from(checksum(brain))) != stated {
        return Err(damaged("it does not match its checksum".to_owned()));
    }
    // Complete but unreadable: only a newer version can have written it.
    serde_json::from_value(json).map(Some).map_err(|e| newer(e.to_string()))
}

#[cfg(test)]
mod tests;
