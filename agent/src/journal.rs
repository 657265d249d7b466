//! The node's journal: what was decided, on disk before it is done.
//!
//! ```text
//!   journal = header, then records: length (u32 LE), CRC-32 (u32 LE), MessagePack of lattice_node::Record
//!   header = "LATTJRN2", checkpoint that it follows, life (u64 LE each), boot id (16 bytes), CRC-32 of all this (u32 LE)
//!   agent-state.json = readable checkpoint: the whole Brain and how many bytes of the journal it contains
//! ```
//!
//! The journal is the record. A checkpoint is written at times so that the journal stays short; it is moved into its
//! place first and the journal cut after it, so that a crash between the two replays records that the checkpoint has:
//! the journal's header carries the number of the checkpoint that it follows, and an older one is set aside.
//!
//! A full disk must not keep the agent from ending the work that fills it. The journal's blocks are therefore reserved,
//! its header is rewritten in place, and a checkpoint for which there is no space is put off: the journal alone has
//! everything.

use lattice_model::{Boot, NodeId};
use lattice_node::{Brain, Record};
use lattice_runtime::failpoint::{self, Point};
use nix::fcntl::{FallocateFlags, fallocate};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

const VERSION: u32 = 1;
const MAGIC: &[u8; 8] = b"LATTJRN2";
const HEADER_BYTES: u64 = 44;
/// A record is a list of one node's work at most.
const RECORD_BYTES_MAX: usize = 64 * 1024 * 1024;
/// A journal beyond this is folded into a new checkpoint.
const CHECKPOINT_AFTER_BYTES: u64 = 4 * 1024 * 1024;
/// What the journal may grow by while there is no space for a checkpoint.
const ROOM_BYTES: u64 = 1024 * 1024;
/// Growth of the journal until a checkpoint that had no space is tried again.
const CHECKPOINT_AGAIN_BYTES: u64 = 64 * 1024;
/// What is reserved on the disk for the journal.
const RESERVED_BYTES: i64 = (CHECKPOINT_AFTER_BYTES + ROOM_BYTES) as i64;

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
    #[error("{} is the state of node {found}, not of {expected}: point state_dir at this node's own directory", path.display())]
    ForeignNode { path: PathBuf, found: NodeId, expected: NodeId },
    #[error("{} was written by a newer version ({found}, this is {VERSION}): start that version, or move the file away to begin anew from the shims", path.display())]
    Newer { path: PathBuf, found: u32 },
    #[error("{} is damaged: {why}; move it away to begin anew (running work is then ended and reported lost)", path.display())]
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
}

/// The open journal. One per state directory: it is locked.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
    state_file: PathBuf,
    /// The boot that the node's state is of: the machine's present one only once [`Self::resumed`] was called.
    boot: Boot,
    booted: Boot,
    life: u64,
    number: u64,
    end: u64,
    checkpoint_at: u64,
}

/// What the journal's first bytes say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    follows: u64,
    life: u64,
    boot: Boot,
}

/// What was on disk.
#[derive(Debug)]
pub struct Opened {
    pub journal: Journal,
    pub brain: Brain,
    /// Whether the machine has not been restarted since. True for a node that never did anything.
    pub same_boot: bool,
    /// Bytes of an unfinished last record that were cut.
    pub torn_bytes: u64,
}

fn failed(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> JournalError {
    let path = path.to_owned();
    move |source| JournalError::Io { path, doing, source }
}

impl Journal {
    /// Opens or begins the state of `node`.
    pub fn open(state_dir: &Path, state_file: &Path, node: &NodeId, boot: Boot) -> Result<Opened, JournalError> {
        fs::create_dir_all(state_dir).map_err(failed(state_dir, "making the state directory"))?;
        let path = state_dir.join("journal");
        let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).mode(0o600).open(&path);
        let file = file.map_err(failed(&path, "opening it"))?;
        // SAFETY: flock on a descriptor that we own.
        if unsafe { libc::flock(std::os::fd::AsRawFd::as_raw_fd(&file), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            return Err(JournalError::Busy { path });
        }
        let checkpoint = read_checkpoint(state_file)?;
        if let Some(c) = &checkpoint
            && &c.node != node
        {
            return Err(JournalError::ForeignNode { path: state_file.to_owned(), found: c.node.clone(), expected: node.clone() });
        }
        let mut bytes = Vec::new();
        (&file).read_to_end(&mut bytes).map_err(failed(&path, "reading it"))?;
        let header = Header::read(&bytes).map_err(|why| JournalError::Damaged { path: path.clone(), why })?;
        // The header is the later of the two: it is rewritten where a checkpoint is not.
        let before = header.map(|h| h.boot).or(checkpoint.as_ref().map(|c| c.boot));
        let (number, mut brain) = checkpoint.map_or_else(|| (0, Brain::new(node.clone())), |c| (c.number, c.brain));
        let mut journal = Self {
            file,
            path,
            state_file: state_file.to_owned(),
            boot: before.unwrap_or(boot),
            booted: boot,
            life: header.map_or(0, |h| h.life).max(number) + 1,
            number,
            end: HEADER_BYTES,
            checkpoint_at: CHECKPOINT_AFTER_BYTES,
        };
        let torn_bytes = match header {
            Some(header) if header.follows >= number => journal.replay(&bytes, header.follows, &mut brain)?,
            Some(_) | None => 0,
        };
        journal.cut()?;
        journal.checkpoint(&brain)?;
        Ok(Opened { journal, brain, same_boot: before.is_none_or(|b| b == boot), torn_bytes })
    }

    fn replay(&mut self, bytes: &[u8], follows: u64, brain: &mut Brain) -> Result<u64, JournalError> {
        let damaged = |why: String| JournalError::Damaged { path: self.path.clone(), why };
        if follows > self.number {
            return Err(damaged(format!("it follows checkpoint {follows}, the state file is checkpoint {}", self.number)));
        }
        let mut at = HEADER_BYTES as usize;
        while at < bytes.len() {
            let Some((record, next)) = read_record(bytes, at) else {
                // An append that a crash cut short is the last thing in the file; anything behind it means damage.
                if whole_record_behind(bytes, at + 1) {
                    return Err(damaged(format!("the record at byte {at} does not match its checksum, and others follow it")));
                }
                break;
            };
            brain.replay(record);
            at = next;
        }
        self.end = at as u64;
        Ok((bytes.len() - at) as u64)
    }

    /// Cuts the file behind what counts, says in its header what it is now, and reserves its blocks.
    fn cut(&mut self) -> Result<(), JournalError> {
        self.file.set_len(self.end.max(HEADER_BYTES)).map_err(failed(&self.path, "cutting it"))?;
        self.write_header()?;
        // A file system that cannot reserve serves as well, for as long as it has space.
        if let Err(error) = fallocate(&self.file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, RESERVED_BYTES) {
            tracing::warn!(path = %self.path.display(), %error, "no space can be reserved for the journal: the agent ends should the disk be full");
        }
        Ok(())
    }

    /// In place, within one sector.
    fn write_header(&self) -> Result<(), JournalError> {
        let bytes = Header { follows: self.number, life: self.life, boot: self.boot }.bytes();
        self.file.write_all_at(&bytes, 0).and_then(|()| self.file.sync_all()).map_err(failed(&self.path, "writing its header"))
    }

    /// Says that what a restart of the machine means for the node's work is in the journal: from now on the state is of
    /// this boot.
    pub fn resumed(&mut self) -> Result<(), JournalError> {
        if self.boot == self.booted {
            return Ok(());
        }
        self.boot = self.booted;
        self.write_header()
    }

    /// Appends and syncs. When it returns, the records are on the disk.
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
        self.file.write_all_at(&bytes, self.end).map_err(failed(&self.path, "appending to it"))?;
        self.file.sync_data().map_err(failed(&self.path, "syncing it"))?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// A number that is higher at each start than at any before.
    pub fn life(&self) -> u64 {
        self.life
    }

    /// Whether the journal has grown enough to be folded.
    pub fn wants_checkpoint(&self) -> bool {
        self.end > self.checkpoint_at
    }

    /// Writes the readable checkpoint and begins the journal anew behind it. Without space for one the journal goes on.
    pub fn checkpoint(&mut self, brain: &Brain) -> Result<(), JournalError> {
        let number = self.number + 1;
        let checkpoint = Checkpoint { version: VERSION, number, node: brain.me().clone(), boot: self.boot, brain: brain.clone() };
        let part = self.state_file.with_extension("json.part");
        let io = |doing| failed(&self.state_file, doing);
        let json = serde_json::to_vec_pretty(&checkpoint).map_err(|e| io("encoding it")(io::Error::other(e)))?;
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

    /// `None` where the file was never begun.
    fn read(bytes: &[u8]) -> Result<Option<Self>, String> {
        let Some(header) = bytes.first_chunk::<{ HEADER_BYTES as usize }>() else { return Ok(None) };
        // A crash can leave the length of the first header without its bytes.
        if header.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        if &header[..8] != MAGIC {
            return Err("it does not begin as a journal of this version".to_owned());
        }
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| header[at + i]));
        let found =
            Self { follows: number(8), life: number(16), boot: Boot(uuid::Uuid::from_bytes(std::array::from_fn(|i| header[24 + i]))) };
        if found.bytes() != header { Err("its header does not match its checksum".to_owned()) } else { Ok(Some(found)) }
    }
}

/// Whether a write failed for want of space, which somebody may make.
fn no_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn read_record(bytes: &[u8], at: usize) -> Option<(Record, usize)> {
    let length = u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize;
    let crc = u32::from_le_bytes(bytes.get(at + 4..at + 8)?.try_into().ok()?);
    if length == 0 || length > RECORD_BYTES_MAX {
        return None;
    }
    let body = bytes.get(at + 8..at + 8 + length)?;
    let record = (crc32fast::hash(body) == crc).then(|| rmp_serde::from_slice(body).ok()).flatten()?;
    Some((record, at + 8 + length))
}

/// Whether a record that reads well begins anywhere behind `from`.
fn whole_record_behind(bytes: &[u8], from: usize) -> bool {
    (from..bytes.len()).any(|at| read_record(bytes, at).is_some())
}

fn read_checkpoint(path: &Path) -> Result<Option<Checkpoint>, JournalError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(path, "reading it")(error)),
    };
    let damaged = |why: String| JournalError::Damaged { path: path.to_owned(), why };
    let json: serde_json::Value = serde_json::from_slice(&bytes).map_err(|e| damaged(e.to_string()))?;
    let version = json.get("version").and_then(serde_json::Value::as_u64).and_then(|v| u32::try_from(v).ok());
    match version {
        Some(VERSION) => serde_json::from_value(json).map(Some).map_err(|e| damaged(e.to_string())),
        Some(found) => Err(JournalError::Newer { path: path.to_owned(), found }),
        None => Err(damaged("it has no version".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::Incarnation;

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("lattice-journal-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Self(path)
        }

        fn open(&self) -> Result<Opened, JournalError> {
            self.open_as("n1", "00000000-0000-4000-8000-000000000000")
        }

        fn open_as(&self, node: &str, boot: &str) -> Result<Opened, JournalError> {
            Journal::open(&self.0, &self.0.join("agent-state.json"), &node.parse().unwrap(), boot.parse().unwrap())
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn registered(n: u64) -> Record {
        Record::Registered { incarnation: Incarnation(n) }
    }

    #[test]
    fn what_was_appended_is_there_again_and_a_torn_tail_is_cut_at_every_byte() {
        let dir = Dir::new("torn");
        let mut opened = dir.open().unwrap();
        opened.journal.append(&[registered(1)]).unwrap();
        let one = opened.journal.end;
        opened.journal.append(&[registered(2)]).unwrap();
        let two = opened.journal.end;
        drop(opened);
        let whole = fs::read(dir.0.join("journal")).unwrap();
        let state = fs::read(dir.0.join("agent-state.json")).unwrap();
        for cut in one..=two {
            fs::write(dir.0.join("journal"), &whole[..usize::try_from(cut).unwrap()]).unwrap();
            fs::write(dir.0.join("agent-state.json"), &state).unwrap();
            let opened = dir.open().unwrap();
            assert_eq!(opened.brain.incarnation().0, if cut == two { 2 } else { 1 }, "cut at {cut}");
            assert_eq!(opened.torn_bytes, if cut == two { 0 } else { cut - one });
        }
    }

    #[test]
    fn damage_before_the_end_refuses_to_start() {
        let dir = Dir::new("damage");
        let mut opened = dir.open().unwrap();
        opened.journal.append(&[registered(1), registered(2)]).unwrap();
        drop(opened);
        let mut bytes = fs::read(dir.0.join("journal")).unwrap();
        bytes[HEADER_BYTES as usize + 10] ^= 0xff;
        fs::write(dir.0.join("journal"), &bytes).unwrap();
        assert!(matches!(dir.open(), Err(JournalError::Damaged { .. })));
    }

    #[test]
    fn a_checkpoint_moved_in_before_the_journal_was_cut_does_not_count_its_records_twice() {
        let dir = Dir::new("between");
        let mut opened = dir.open().unwrap();
        opened.journal.append(&[registered(1), Record::ToReport(report())]).unwrap();
        opened.brain.replay(registered(1));
        opened.brain.replay(Record::ToReport(report()));
        let old = fs::read(dir.0.join("journal")).unwrap();
        opened.journal.checkpoint(&opened.brain).unwrap();
        drop(opened);
        fs::write(dir.0.join("journal"), old).unwrap();
        assert_eq!(dir.open().unwrap().brain.reports().count(), 1);
    }

    fn report() -> lattice_model::ReportItem {
        lattice_model::ReportItem::Released {
            allocation: "00000000-0000-4000-8000-000000000009".parse().unwrap(),
            epoch: lattice_model::Epoch(1),
        }
    }

    #[test]
    fn a_state_that_is_not_ours_newer_or_garbage_is_refused_by_name() {
        let dir = Dir::new("foreign");
        drop(dir.open().unwrap());
        assert!(matches!(dir.open_as("n2", "00000000-0000-4000-8000-000000000000"), Err(JournalError::ForeignNode { .. })));
        assert!(!dir.open_as("n1", "00000000-0000-4000-8000-000000000001").unwrap().same_boot);
        let opened = dir.open().unwrap();
        assert!(matches!(dir.open(), Err(JournalError::Busy { .. })));
        drop(opened);
        fs::write(dir.0.join("agent-state.json"), "{\"version\": 2}").unwrap();
        assert!(matches!(dir.open(), Err(JournalError::Newer { found: 2, .. })));
        fs::write(dir.0.join("agent-state.json"), "garbage").unwrap();
        assert!(matches!(dir.open(), Err(JournalError::Damaged { .. })));
    }

    #[test]
    fn a_full_disk_puts_the_checkpoint_off_and_nothing_is_lost() {
        let dir = Dir::new("full");
        let full = || std::os::unix::fs::symlink("/dev/full", dir.0.join("agent-state.json.part")).unwrap();
        let mut opened = dir.open().unwrap();
        opened.journal.append(&[registered(1)]).unwrap();
        let first = opened.journal.life();
        drop(opened);
        full();
        let mut opened = dir.open().unwrap();
        assert_eq!(opened.brain.incarnation().0, 1);
        let second = opened.journal.life();
        opened.journal.append(&[registered(2)]).unwrap();
        opened.brain.replay(registered(2));
        full();
        opened.journal.checkpoint(&opened.brain).unwrap();
        drop(opened);
        full();
        let opened = dir.open().unwrap();
        assert_eq!(opened.brain.incarnation().0, 2);
        assert!(first < second && second < opened.journal.life(), "a new life each time");
    }

    #[test]
    fn a_checkpoint_without_space_is_not_tried_with_each_record() {
        let dir = Dir::new("again");
        let mut opened = dir.open().unwrap();
        opened.journal.end = CHECKPOINT_AFTER_BYTES + 1;
        assert!(opened.journal.wants_checkpoint());
        std::os::unix::fs::symlink("/dev/full", dir.0.join("agent-state.json.part")).unwrap();
        opened.journal.checkpoint(&opened.brain).unwrap();
        assert!(!opened.journal.wants_checkpoint());
        opened.journal.end += CHECKPOINT_AGAIN_BYTES + 1;
        assert!(opened.journal.wants_checkpoint());
    }

    #[test]
    fn only_a_want_of_space_puts_a_checkpoint_off() {
        for (errno, off) in [(libc::ENOSPC, true), (libc::EDQUOT, true), (libc::EIO, false), (libc::EROFS, false), (libc::EMFILE, false)] {
            assert_eq!(no_space(&io::Error::from_raw_os_error(errno)), off, "{errno}");
        }
    }

    #[test]
    fn the_journals_blocks_are_reserved_also_behind_a_checkpoint() {
        use std::os::unix::fs::MetadataExt;
        let dir = Dir::new("reserved");
        let mut opened = dir.open().unwrap();
        opened.journal.append(&[registered(1)]).unwrap();
        opened.journal.checkpoint(&opened.brain).unwrap();
        let meta = fs::metadata(dir.0.join("journal")).unwrap();
        assert_eq!(meta.len(), HEADER_BYTES);
        assert!(meta.blocks() * 512 >= CHECKPOINT_AFTER_BYTES + ROOM_BYTES, "{} blocks", meta.blocks());
    }

    #[test]
    fn the_new_boot_counts_only_once_what_it_means_is_written_down() {
        const NEW: &str = "00000000-0000-4000-8000-000000000001";
        let dir = Dir::new("boot");
        drop(dir.open().unwrap());
        assert!(!dir.open_as("n1", NEW).unwrap().same_boot);
        let mut opened = dir.open_as("n1", NEW).unwrap();
        assert!(!opened.same_boot, "killed before it was written down");
        // Without a checkpoint as well: the disk may be full.
        opened.journal.append(&[registered(1)]).unwrap();
        opened.journal.resumed().unwrap();
        drop(opened);
        assert!(dir.open_as("n1", NEW).unwrap().same_boot);
    }

    #[test]
    fn a_header_that_a_disk_changed_refuses_to_start() {
        let dir = Dir::new("header");
        drop(dir.open().unwrap());
        let mut bytes = fs::read(dir.0.join("journal")).unwrap();
        bytes[20] ^= 1;
        fs::write(dir.0.join("journal"), &bytes).unwrap();
        assert!(matches!(dir.open(), Err(JournalError::Damaged { .. })));
    }
}
