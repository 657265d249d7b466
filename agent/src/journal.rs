//! The node's journal: what was decided, on disk before it is done.
//!
//! ```text
//!   journal = header, then records: length (u32 LE), CRC-32 (u32 LE), MessagePack of lattice_node::Record
//!   agent-state.json = readable checkpoint: the whole Brain and how many bytes of the journal it contains
//! ```
//!
//! The journal is the record. A checkpoint is written at times so that the journal stays short; it is moved into its
//! place first and the journal cut after it, so that a crash between the two replays records that the checkpoint has:
//! the journal's header carries the number of the checkpoint that it follows, and an older one is set aside.

use lattice_model::{Boot, NodeId};
use lattice_node::{Brain, Record};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

const VERSION: u32 = 1;
const MAGIC: &[u8; 8] = b"LATTJRN1";
const HEADER_BYTES: u64 = 16;
/// A record is a list of one node's work at most.
const RECORD_BYTES_MAX: usize = 64 * 1024 * 1024;
/// A journal beyond this is folded into a new checkpoint.
const CHECKPOINT_AFTER_BYTES: u64 = 4 * 1024 * 1024;

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
    boot: Boot,
    number: u64,
    end: u64,
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
        let same_boot = checkpoint.as_ref().is_none_or(|c| c.boot == boot);
        let (number, mut brain) = checkpoint.map_or_else(|| (0, Brain::new(node.clone())), |c| (c.number, c.brain));
        let mut journal = Self { file, path, state_file: state_file.to_owned(), boot, number, end: HEADER_BYTES };
        let torn_bytes = journal.replay(&mut brain)?;
        // A checkpoint of this boot at once: the next start compares with it.
        journal.checkpoint(&brain)?;
        Ok(Opened { journal, brain, same_boot, torn_bytes })
    }

    fn replay(&mut self, brain: &mut Brain) -> Result<u64, JournalError> {
        let mut bytes = Vec::new();
        self.file.seek(SeekFrom::Start(0)).and_then(|_| self.file.read_to_end(&mut bytes)).map_err(failed(&self.path, "reading it"))?;
        let damaged = |why: String| JournalError::Damaged { path: self.path.clone(), why };
        if bytes.len() < usize::try_from(HEADER_BYTES).unwrap_or(16) {
            return Ok(0);
        }
        if &bytes[..8] != MAGIC {
            return Err(damaged("it does not begin as a journal".to_owned()));
        }
        let follows = u64::from_le_bytes(bytes[8..16].try_into().unwrap_or_default());
        if follows < self.number {
            return Ok(0);
        }
        if follows > self.number {
            return Err(damaged(format!("it follows checkpoint {follows}, the state file is checkpoint {}", self.number)));
        }
        let mut at = 16;
        while at < bytes.len() {
            let Some((record, next)) = read_record(&bytes, at) else {
                // An append that a crash cut short is the last thing in the file; anything behind it means damage.
                if whole_record_behind(&bytes, at + 1) {
                    return Err(damaged(format!("the record at byte {at} does not match its checksum, and others follow it")));
                }
                break;
            };
            brain.replay(record);
            at = next;
        }
        Ok((bytes.len() - at) as u64)
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
        self.number
    }

    /// Whether the journal has grown enough to be folded.
    pub fn wants_checkpoint(&self) -> bool {
        self.end > CHECKPOINT_AFTER_BYTES
    }

    /// Writes the readable checkpoint and begins the journal anew behind it.
    pub fn checkpoint(&mut self, brain: &Brain) -> Result<(), JournalError> {
        let number = self.number + 1;
        let checkpoint = Checkpoint { version: VERSION, number, node: brain.me().clone(), boot: self.boot, brain: brain.clone() };
        let part = self.state_file.with_extension("json.part");
        let io = |doing| failed(&self.state_file, doing);
        let json = serde_json::to_vec_pretty(&checkpoint).map_err(|e| io("encoding it")(io::Error::other(e)))?;
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&part).map_err(io("making it"))?;
        file.write_all(&json).and_then(|()| file.sync_all()).map_err(io("writing it"))?;
        fs::rename(&part, &self.state_file).map_err(io("naming it"))?;
        if let Some(dir) = self.state_file.parent() {
            File::open(dir).and_then(|d| d.sync_all()).map_err(io("syncing its directory"))?;
        }
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(&number.to_le_bytes());
        self.file
            .set_len(0)
            .and_then(|()| self.file.write_all_at(&header, 0))
            .and_then(|()| self.file.sync_all())
            .map_err(failed(&self.path, "beginning it anew"))?;
        self.number = number;
        self.end = HEADER_BYTES;
        Ok(())
    }
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
        bytes[26] ^= 0xff;
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
}
