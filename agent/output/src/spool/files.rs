//! The log files on the disk. Everything here blocks.
//!
//! Bytes that the shim has removed are a hole at a file's beginning, so the file itself shows how
//! many they are. If a program makes such a hole itself, readers get missing bytes in place of
//! zeros.
//!
//! The user owns the files, and may have a lease on one. Any other open would wait for it, for 45 s:
//! one after another on the thread that looks at everybody's output.

use crate::output_index::{Seen, Stream};
use lattice_runtime::shim::ShimDir;
use nix::errno::Errno;
use nix::unistd::{Whence, lseek};
use std::collections::BTreeSet;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// How many bytes a [`tail_checksum()`] covers at most.
const PRINT_BYTES: u64 = 64;

/// The result of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Bytes; none at the end of the file.
    Data(Vec<u8>),
    /// The position is in the hole at the file's beginning.
    Punched,
}

/// Opens a log file. Fails with [`io::ErrorKind::WouldBlock`] instead of waiting for a lease.
pub(super) fn open_log(path: &Path, how: &mut OpenOptions) -> io::Result<File> {
    how.custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path).map_err(|error| {
        if error.kind() != io::ErrorKind::WouldBlock {
            return error;
        }
        io::Error::new(error.kind(), "a program has a lease (F_SETLEASE) on this log file: try again later")
    })
}

fn open_for_reading(path: &Path) -> io::Result<File> {
    open_log(path, OpenOptions::new().read(true))
}

/// The log files of an allocation, or of one of its launches, in the order of their streams.
pub fn list(dir: &ShimDir, launch: Option<u32>) -> io::Result<Vec<Seen>> {
    let mut found = Vec::new();
    match launch {
        Some(launch) => list_launch(dir, launch, &mut found)?,
        None => {
            for launch in launches(dir)? {
                list_launch(dir, launch, &mut found)?;
            }
        }
    }
    found.sort_by_key(|s| s.stream);
    Ok(found)
}

/// Numbers of the launches that have log files; 0 is the script.
pub fn launches(dir: &ShimDir) -> io::Result<BTreeSet<u32>> {
    let mut numbers = BTreeSet::new();
    for entry in std::fs::read_dir(dir.logs())? {
        numbers.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    Ok(numbers)
}

fn list_launch(dir: &ShimDir, launch: u32, found: &mut Vec<Seen>) -> io::Result<()> {
    let entries = match std::fs::read_dir(dir.launch_logs(launch)) {
        // The allocation's directory of log files exists, so the launch has not begun.
        Err(error) if error.kind() == io::ErrorKind::NotFound && dir.logs().is_dir() => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let Some((rank, stderr)) = entry.file_name().to_str().and_then(parse) else { continue };
        match entry.metadata().and_then(|m| seen(Stream { launch, rank, stderr }, &entry.path(), &m)) {
            Ok(seen) => found.push(seen),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The rank of a log file, and whether it is the rank's standard error.
fn parse(name: &str) -> Option<(u32, bool)> {
    let (rank, suffix) = name.split_once('.')?;
    let stderr = match suffix {
        "out" => false,
        "err" => true,
        _ => return None,
    };
    Some((rank.parse().ok()?, stderr))
}

fn seen(stream: Stream, path: &Path, metadata: &Metadata) -> io::Result<Seen> {
    let bytes = metadata.len();
    // A file whose blocks hold its whole length has no hole.
    let data_start = if metadata.blocks().saturating_mul(512) >= bytes { 0 } else { data_start(&open_for_reading(path)?, bytes)? };
    let written_ns = metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec());
    Ok(Seen { stream, bytes, data_start, written_ns: u64::try_from(written_ns).unwrap_or(0), print: None, rewritten: false })
}

fn data_start(file: &File, bytes: u64) -> io::Result<u64> {
    match lseek(file, 0, Whence::SeekData) {
        Ok(start) => Ok(u64::try_from(start).unwrap_or(0)),
        Err(Errno::ENXIO) => Ok(bytes),
        // The file system does not support holes.
        Err(Errno::EINVAL | Errno::EOPNOTSUPP) => Ok(0),
        Err(errno) => Err(errno.into()),
    }
}

/// A checksum of the last bytes before `end`. It distinguishes a file that only grew from a file
/// that was truncated and written again. `None`: the bytes do not exist, or were punched out.
pub fn tail_checksum(path: &Path, end: u64) -> io::Result<Option<u32>> {
    let most = end.min(PRINT_BYTES);
    if most == 0 {
        // Most files of most launches are empty, and are not opened.
        return Ok(Some(crc32fast::hash(&[])));
    }
    match read(path, end - most, usize::try_from(most).unwrap_or(0)) {
        Ok(Piece::Data(data)) if data.len() as u64 == most => Ok(Some(crc32fast::hash(&data))),
        Ok(Piece::Data(_) | Piece::Punched) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads up to `most` bytes from `from` on. Bytes that are punched out during the read are not
/// mistaken for zeros.
pub fn read(path: &Path, from: u64, most: usize) -> io::Result<Piece> {
    let file = open_for_reading(path)?;
    let mut data = vec![0; most];
    let mut n = 0;
    while n < most {
        match file.read_at(&mut data[n..], from + n as u64) {
            Ok(0) => break,
            Ok(more) => n += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    data.truncate(n);
    if n > 0 && data_start(&file, u64::MAX)? > from {
        return Ok(Piece::Punched);
    }
    Ok(Piece::Data(data))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::fcntl::{FallocateFlags, fallocate};
    use std::io::Write;

    #[test]
    fn a_punched_beginning_is_seen_and_never_read_as_zeros() {
        let path = std::env::temp_dir().join(format!("lattice-files-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        let dir = ShimDir(path.clone());
        for name in ["2/10.err", "0/0.out", "1/other", "1/2.3.out", "1/2.log", "other/0.out"] {
            let file = dir.logs().join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            File::create(file).unwrap().write_all(&[b'x'; 20_000]).unwrap();
        }
        let found = |at: usize| list(&dir, None).unwrap()[at];
        assert_eq!(list(&dir, None).unwrap().len(), 2);
        assert_eq!((found(0).stream, found(0).bytes, found(0).data_start), (Stream { launch: 0, rank: 0, stderr: false }, 20_000, 0));
        assert_eq!(found(1).stream, Stream { launch: 2, rank: 10, stderr: true });
        assert_eq!(list(&dir, Some(2)).unwrap(), [found(1)]);
        assert_eq!(list(&dir, Some(7)).unwrap(), [], "a launch that has not begun");
        assert_eq!(launches(&dir).unwrap(), BTreeSet::from([0, 1, 2]));
        let log = dir.logs().join("0/0.out");
        let file = std::fs::OpenOptions::new().write(true).open(&log).unwrap();
        fallocate(&file, FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, 8192).unwrap();
        assert_eq!((found(0).bytes, found(0).data_start), (20_000, 8192));
        assert_eq!(read(&log, 4096, 100).unwrap(), Piece::Punched);
        assert_eq!(read(&log, 8192, 100).unwrap(), Piece::Data(vec![b'x'; 100]));
        assert_eq!(read(&log, 19_990, 100).unwrap(), Piece::Data(vec![b'x'; 10]));
        assert_eq!(read(&log, 20_000, 100).unwrap(), Piece::Data(Vec::new()));
        std::fs::remove_dir_all(path).unwrap();
        assert!(list(&dir, Some(2)).is_err_and(|e| e.kind() == io::ErrorKind::NotFound), "an allocation that is gone");
    }

    #[test]
    fn a_lease_on_a_log_file_makes_nobody_wait() {
        let path = std::env::temp_dir().join(format!("lattice-files-lease-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        let dir = ShimDir(path.clone());
        let log = dir.log(0, 0, lattice_runtime::shim::LogStream::Out);
        std::fs::create_dir_all(log.parent().unwrap()).unwrap();
        let file = File::create(&log).unwrap();
        // With a hole at its beginning, it is opened by whoever lists it.
        file.set_len(1 << 20).unwrap();
        let lease = |kind: i32| {
            // SAFETY: three integers.
            Errno::result(unsafe { libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&file), libc::F_SETLEASE, kind) }).unwrap()
        };
        // SAFETY: nothing else in this process uses SIGIO, which would end it when somebody opens the file.
        unsafe { nix::sys::signal::signal(nix::sys::signal::Signal::SIGIO, nix::sys::signal::SigHandler::SigIgn) }.unwrap();
        lease(libc::F_WRLCK);
        let waits = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock && error.to_string().contains("F_SETLEASE");
        assert!(list(&dir, None).is_err_and(waits));
        assert!(read(&log, 0, 1).is_err_and(waits));
        assert!(tail_checksum(&log, 1).is_err_and(waits));
        assert!(open_log(&log, OpenOptions::new().write(true)).is_err_and(waits));
        lease(libc::F_UNLCK);
        assert_eq!(list(&dir, None).unwrap().len(), 1);
        std::fs::remove_dir_all(path).unwrap();
    }
}
