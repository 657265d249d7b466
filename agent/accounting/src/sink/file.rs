//! Records in a file of this machine: lines of JSON, synced before the store's position moves.
//!
//! The file itself shows which records of a batch it has: an interrupted batch is continued after its last whole line.
//! A full file is renamed between two batches, so that no batch is in two files.

use super::record::SinkRecord;
use lattice_model::ended_work::EndedWork;
use serde_json::Value;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// How much of the end of the file is read, in bytes: more than the longest record.
const TAIL_BYTES_MAX: u64 = 1 << 20;
/// The beginning of every line.
const LINE_BEGIN: &[u8] = b"{\"record\":";

/// Why a file does not have a batch.
#[derive(Debug, Error)]
pub(crate) enum FileSinkError {
    #[error("accounting.file_sink.path {}: {source}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("accounting.file_sink.path {}: its last line is not a record, so another program writes to it: name another file", path.display())]
    OtherFile { path: PathBuf },
    #[error("{}: a file of this name is there already, and a full file would replace it: move it away", path.display())]
    IsThere { path: PathBuf },
    #[error("the records cannot be encoded")]
    Encode(#[source] serde_json::Error),
}

/// Appends the records that the file lacks, and syncs it. `until`: the last number of the batch when it was first written.
/// Records of the batch may have been corrected since: they come again, under higher numbers.
///
/// # Errors
/// [`FileSinkError`]: the same batch is to be appended again; it is then continued.
pub(crate) fn append(path: &Path, rotate_bytes: u64, work: &[EndedWork], until: u64) -> Result<(), FileSinkError> {
    let failed = |source: io::Error| FileSinkError::Io { path: path.to_owned(), source };
    let Some(first) = work.first() else { return Ok(()) };
    let mut file = open(path)?;
    let whole = whole_lines(path, &mut file)?;
    // The last record, if the file has this batch or a part of it.
    let has = whole.last.filter(|has| (first.sequence..=until).contains(has));
    if has.is_none() && whole.bytes >= rotate_bytes {
        rotate(path, whole.last)?;
        file = open(path)?;
    }
    let mut lines = Vec::new();
    for work in work.iter().filter(|work| has.is_none_or(|has| work.sequence > has)) {
        serde_json::to_writer(&mut lines, &SinkRecord::from(work)).map_err(FileSinkError::Encode)?;
        lines.push(b'\n');
    }
    file.write_all(&lines).and_then(|()| file.sync_all()).map_err(failed)?;
    sync_folder(path).map_err(failed)
}

fn open(path: &Path) -> Result<File, FileSinkError> {
    let failed = |source: io::Error| FileSinkError::Io { path: path.to_owned(), source };
    // Opening a pipe would wait for its reader.
    if fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return Err(failed(io::Error::other("it is no regular file")));
    }
    OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path).map_err(failed)
}

/// The end of a file.
struct Whole {
    bytes: u64,
    /// The number of the last record; `None`: the file has none.
    last: Option<u64>,
}

/// Removes an incomplete last line, and finds the end of the file.
fn whole_lines(path: &Path, file: &mut File) -> Result<Whole, FileSinkError> {
    let failed = |source: io::Error| FileSinkError::Io { path: path.to_owned(), source };
    let other = || FileSinkError::OtherFile { path: path.to_owned() };
    let size = file.metadata().map_err(failed)?.len();
    let begin = size.saturating_sub(TAIL_BYTES_MAX);
    let mut tail = Vec::new();
    file.seek(SeekFrom::Start(begin)).map_err(failed)?;
    Read::take(&mut *file, TAIL_BYTES_MAX).read_to_end(&mut tail).map_err(failed)?;
    let whole = tail.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let (lines, part) = tail.split_at(whole);
    let is_ours = if part.len() < LINE_BEGIN.len() { LINE_BEGIN.starts_with(part) } else { part.starts_with(LINE_BEGIN) };
    if !is_ours || (lines.is_empty() && begin > 0) {
        return Err(other());
    }
    let last = match lines.split(|byte| *byte == b'\n').rev().nth(1) {
        None => None,
        Some(line) => {
            let record: Value = serde_json::from_slice(line).map_err(|_| other())?;
            Some(record["sequence"].as_u64().filter(|_| line.starts_with(LINE_BEGIN)).ok_or_else(other)?)
        }
    };
    let bytes = begin + lines.len() as u64;
    if bytes < size {
        file.set_len(bytes).map_err(failed)?;
    }
    Ok(Whole { bytes, last })
}

/// Renames a full file. `last`: the number of its last record.
fn rotate(path: &Path, last: Option<u64>) -> Result<(), FileSinkError> {
    let Some(last) = last else { return Ok(()) };
    let mut name = OsString::from(path);
    name.push(format!(".{last:012}"));
    let to = PathBuf::from(name);
    if to.exists() {
        return Err(FileSinkError::IsThere { path: to });
    }
    fs::rename(path, &to).and_then(|()| sync_folder(path)).map_err(|source| FileSinkError::Io { path: path.to_owned(), source })
}

/// Syncs the folder, so that the name survives a loss of power, too.
fn sync_folder(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |folder| File::open(folder).and_then(|folder| folder.sync_all()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::ended;
    use crate::store::tests::Directory;

    fn numbers(path: &Path) -> Vec<u64> {
        let text = fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["sequence"].as_u64().unwrap()).collect()
    }

    fn batch(numbers: std::ops::RangeInclusive<u64>) -> Vec<EndedWork> {
        numbers.map(ended).collect()
    }

    #[test]
    fn a_batch_is_written_once_wherever_the_writer_was_interrupted() {
        let directory = Directory::new();
        let path = directory.0.join("work.jsonl");
        append(&path, 1 << 20, &batch(1..=3), 3).unwrap();
        let whole = fs::read(&path).unwrap();
        for cut in (0..whole.len()).step_by(61).chain([whole.len()]) {
            fs::write(&path, &whole[..cut]).unwrap();
            append(&path, 1 << 20, &batch(1..=3), 3).unwrap();
            assert_eq!(fs::read(&path).unwrap(), whole, "cut after {cut} bytes");
        }
        // The last one was corrected before the position moved: the rest is there.
        append(&path, 1 << 20, &batch(1..=2), 3).unwrap();
        assert_eq!(fs::read(&path).unwrap(), whole);
        append(&path, 1 << 20, &batch(4..=4), 4).unwrap();
        assert_eq!(numbers(&path), [1, 2, 3, 4]);
    }

    #[test]
    fn a_full_file_is_renamed_between_two_batches() {
        let directory = Directory::new();
        let (path, full) = (directory.0.join("work.jsonl"), directory.0.join("work.jsonl.000000000002"));
        append(&path, 1, &batch(1..=2), 2).unwrap();
        // The batch is there already: it is not written into the next file.
        append(&path, 1, &batch(1..=2), 2).unwrap();
        append(&path, 1, &batch(3..=3), 3).unwrap();
        assert_eq!((numbers(&full), numbers(&path)), (vec![1, 2], vec![3]));
        fs::write(directory.0.join("work.jsonl.000000000003"), "").unwrap();
        let refused = append(&path, 1, &batch(4..=4), 4).unwrap_err();
        assert!(matches!(refused, FileSinkError::IsThere { .. }), "{refused}");
    }

    #[test]
    fn the_file_of_another_program_is_not_touched() {
        let directory = Directory::new();
        let path = directory.0.join("hosts");
        for text in ["127.0.0.1 localhost\n", "127.0.0.1 localhost", "{\"sequence\": 1}\n", "\n"] {
            fs::write(&path, text).unwrap();
            let refused = append(&path, 1, &batch(1..=1), 1).unwrap_err();
            assert!(matches!(refused, FileSinkError::OtherFile { .. }), "{text:?}: {refused}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        let refused = append(&directory.0, 1, &batch(1..=1), 1).unwrap_err();
        assert!(refused.to_string().contains("it is no regular file"), "{refused}");
    }
}
