//! Exit statuses, on disk before anybody is notified: they remain when the shim itself dies.
//!
//! A file of records: length (u32), CRC-32 of the body (u32), both little endian, then MessagePack with field names.
//! A torn or damaged tail ends the reading; the records before it are valid.

use crate::shim::{ShimDir, StopReason};
use lattice_model::{LaunchId, MemoryKill, RankOutcome, TaskOutcome, TaskSet};
use nix::fcntl::{FallocateFlags, fallocate};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;

/// Longest body of one record, in bytes.
const RECORD_BYTES_MAX: usize = 64 * 1024;
/// Longest file that is read, in bytes: about two million records.
const FILE_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Reserved on disk when the file is made, in bytes, so that ends can be written when the disk is full.
const RESERVED_BYTES: i64 = 64 * 1024;

/// One end of a process, a launch or all work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitRecord {
    /// The script.
    Script { outcome: RankOutcome },
    /// One task of a lane.
    Task { ordinal: u32, outcome: TaskOutcome },
    /// One rank of a launch.
    Rank { launch: LaunchId, rank: u32, outcome: RankOutcome },
    /// The shim ended this launch.
    Aborted { launch: LaunchId, code: i32, why: String },
    /// Processes of this launch (`None`: of the script) were killed because memory ran out.
    OutOfMemory { launch: Option<LaunchId>, kill: MemoryKill },
    /// All work was ended.
    Stopped { why: StopReason },
    /// All work was killed because its run lease lapsed.
    RunLeaseLapsed,
}

/// Appends to a shim's `exits`. What was appended outlives every process. It is not synced: only a reboot would lose
/// it, and after a reboot nothing is read from it, because all running work is lost.
#[derive(Debug)]
pub struct Writer {
    file: File,
    /// Bytes of whole records.
    length: u64,
}

impl Writer {
    /// Opens or makes the file of `dir` (mode 0600). Cuts off a torn tail, because nothing after it would be read.
    pub fn open(dir: &ShimDir) -> io::Result<Self> {
        let length = read_whole(dir)?.1;
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(dir.exits())?;
        file.set_len(length)?;
        // Not every file system can reserve; the record is then written if there is space.
        let _ = fallocate(&file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, RESERVED_BYTES);
        Ok(Self { file, length })
    }

    /// Appends one record. A record that does not fit on the disk is removed again, so that later ones can be read.
    pub fn append(&mut self, record: &ExitRecord) -> io::Result<()> {
        let body = rmp_serde::to_vec_named(record).map_err(io::Error::other)?;
        let length = u32::try_from(body.len()).ok().filter(|_| body.len() <= RECORD_BYTES_MAX);
        let too_long = || io::Error::other(format!("an exit record of {} bytes; at most {RECORD_BYTES_MAX} are possible", body.len()));
        let length = length.ok_or_else(too_long)?;
        let mut bytes = Vec::with_capacity(8 + body.len());
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
        bytes.extend_from_slice(&body);
        // A full disk may also refuse to cut off the part of a record that it has taken.
        if self.file.metadata()?.len() != self.length {
            self.file.set_len(self.length)?;
        }
        match self.file.write_all(&bytes) {
            Ok(()) => {
                self.length += bytes.len() as u64;
                Ok(())
            }
            Err(error) => {
                self.file.set_len(self.length)?;
                Err(error)
            }
        }
    }
}

/// All complete records of `dir`, oldest first; none if the shim never wrote any.
pub fn read(dir: &ShimDir) -> io::Result<Vec<ExitRecord>> {
    read_whole(dir).map(|(records, _)| records)
}

/// What a shim recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// The ends of a lane's tasks, as ranges: a lane may have run a million of them.
    pub tasks: BTreeMap<TaskOutcome, TaskSet>,
    /// All other records, oldest first.
    pub others: Vec<ExitRecord>,
}

/// The same as [`read`], in memory that does not grow with the number of a lane's tasks.
pub fn read_recorded(dir: &ShimDir) -> io::Result<Recorded> {
    let mut recorded = Recorded::default();
    let file = match File::open(dir.exits()) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(recorded),
        Err(error) => return Err(error),
    };
    let mut reader = BufReader::new(file.take(FILE_BYTES_MAX));
    while let Some(record) = next_record(&mut reader)? {
        match record {
            ExitRecord::Task { ordinal, outcome } => recorded.tasks.entry(outcome).or_default().insert(ordinal..=ordinal),
            other => recorded.others.push(other),
        }
    }
    Ok(recorded)
}

/// The next complete record; `None`: a torn or damaged one follows, or none.
fn next_record(reader: &mut impl Read) -> io::Result<Option<ExitRecord>> {
    let mut bytes = vec![0; 8];
    if !filled(reader, &mut bytes)? {
        return Ok(None);
    }
    let length = bytes.first_chunk::<4>().map_or(0, |length| u32::from_le_bytes(*length) as usize);
    if length > RECORD_BYTES_MAX {
        return Ok(None);
    }
    bytes.resize(8 + length, 0);
    if !filled(reader, &mut bytes[8..])? {
        return Ok(None);
    }
    Ok(split_record(&bytes).map(|(record, _)| record))
}

/// Fills a buffer. Returns whether there was enough.
fn filled(reader: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match reader.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// All complete records, and their length in bytes.
fn read_whole(dir: &ShimDir) -> io::Result<(Vec<ExitRecord>, u64)> {
    let mut bytes = Vec::new();
    match File::open(dir.exits()) {
        Ok(file) => file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    let (records, whole) = whole_records(&bytes);
    Ok((records, whole as u64))
}

/// The complete records at the beginning of a file, and their length in bytes.
pub(crate) fn whole_records(bytes: &[u8]) -> (Vec<ExitRecord>, usize) {
    let mut rest = bytes;
    let mut records = Vec::new();
    while let Some((record, after)) = split_record(rest) {
        records.push(record);
        rest = after;
    }
    (records, bytes.len() - rest.len())
}

fn split_record(bytes: &[u8]) -> Option<(ExitRecord, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (crc, rest) = rest.split_first_chunk::<4>()?;
    let length = u32::from_le_bytes(*length) as usize;
    let (body, after) = rest.split_at_checked(length).filter(|_| length <= RECORD_BYTES_MAX)?;
    if crc32fast::hash(body) != u32::from_le_bytes(*crc) {
        return None;
    }
    Some((rmp_serde::from_slice(body).ok()?, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records() -> Vec<ExitRecord> {
        let launch = "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap();
        vec![
            ExitRecord::Rank { launch, rank: 3, outcome: RankOutcome::Signalled { signal: 9 } },
            ExitRecord::Aborted { launch, code: 7, why: "rank 3 ended before finalize".into() },
            ExitRecord::Script { outcome: RankOutcome::Exited { code: 2 } },
            ExitRecord::Task { ordinal: 7, outcome: TaskOutcome::WalltimeExceeded },
            ExitRecord::Stopped { why: StopReason::Walltime },
        ]
    }

    /// The same records, with the tasks apart.
    fn apart(records: Vec<ExitRecord>) -> Recorded {
        let mut apart = Recorded::default();
        for record in records {
            match record {
                ExitRecord::Task { ordinal, outcome } => apart.tasks.entry(outcome).or_default().insert(ordinal..=ordinal),
                other => apart.others.push(other),
            }
        }
        apart
    }

    #[test]
    fn a_record_is_read_although_an_earlier_one_was_left_torn() {
        let path = std::env::temp_dir().join(format!("lattice-exits-torn-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        let dir = ShimDir(path.clone());
        let mut writer = Writer::open(&dir).unwrap();
        let records = records();
        writer.append(&records[0]).unwrap();
        OpenOptions::new().append(true).open(dir.exits()).unwrap().write_all(&[9, 0, 0]).unwrap();
        writer.append(&records[1]).unwrap();
        assert_eq!(read(&dir).unwrap(), records[..2]);
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn records_before_a_torn_or_damaged_tail_are_read() {
        let path = std::env::temp_dir().join(format!("lattice-exits-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        let dir = ShimDir(path.clone());
        assert_eq!(read(&dir).unwrap(), []);
        let mut writer = Writer::open(&dir).unwrap();
        for record in records() {
            writer.append(&record).unwrap();
        }
        assert_eq!(read(&dir).unwrap(), records());
        assert_eq!(read_recorded(&dir).unwrap(), apart(records()));
        let whole = std::fs::read(dir.exits()).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(dir.exits(), &whole[..cut]).unwrap();
            let got = read(&dir).unwrap();
            assert!(got.len() < records().len() && records().starts_with(&got), "cut at {cut}");
            assert_eq!(read_recorded(&dir).unwrap(), apart(got), "cut at {cut}");
            let mut again = Writer::open(&dir).unwrap();
            again.append(&records()[0]).unwrap();
            assert_eq!(read(&dir).unwrap().last(), records().first(), "appended behind what was cut at {cut}");
        }
        for at in 0..whole.len() {
            let mut bad = whole.clone();
            bad[at] ^= 0x55;
            std::fs::write(dir.exits(), &bad).unwrap();
            let got = read(&dir).unwrap();
            assert!(records().starts_with(&got), "damaged at {at}");
            assert_eq!(read_recorded(&dir).unwrap(), apart(got), "damaged at {at}");
        }
        std::fs::remove_dir_all(path).unwrap();
    }
}
