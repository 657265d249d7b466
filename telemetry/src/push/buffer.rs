//! Batches that wait for the store, each in its own file, oldest first.
//!
//! ```text
//!   NUMBER.batch = "LATTPSH1", CRC-32 of the rest, samples (u32 LE each), the request's body as it will be sent
//! ```
//!
//! A file is complete or does not exist: it is written under another name and renamed. It survives the agent, but need
//! not survive the machine. Only its owner may enter the directory, because it has the values of all users. The disk has
//! other users: the buffer drops batches so that the configured space stays free for them.

use super::disk::{Disk, Real, Spare};
use std::collections::VecDeque;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use thiserror::Error;

const MAGIC: &[u8; 8] = b"LATTPSH1";
const HEADER_BYTES: usize = 16;
const DIR_MODE: u32 = 0o700;
/// Files take whole blocks of a disk.
const BLOCK_BYTES: u64 = 4096;

/// The buffer's directory, or one of its files, cannot be used.
#[derive(Debug, Error)]
#[error("{}: {doing}", path.display())]
pub struct BufferError {
    path: PathBuf,
    doing: &'static str,
    #[source]
    source: io::Error,
}

fn failed(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> BufferError {
    let path = path.to_owned();
    move |source| BufferError { path, doing, source }
}

/// The state of the buffer, for callers that must not wait for its disk.
#[derive(Debug, Default)]
pub struct BufferState {
    bytes: AtomicU64,
    dropped: AtomicU64,
}

impl BufferState {
    /// Bytes of waiting batches.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Batches that were dropped: the buffer or the disk was full, or they were damaged or missing.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// One waiting batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    pub number: u64,
    /// The body of the request.
    pub body: Vec<u8>,
    pub samples: u64,
}

/// The waiting batches on the disk. One for each directory. Every method accesses the disk.
#[derive(Debug)]
pub struct Buffer {
    dir: PathBuf,
    bytes_max: u64,
    spare: Spare,
    disk: Box<dyn Disk>,
    /// Number and bytes, ascending.
    waiting: VecDeque<(u64, u64)>,
    next: u64,
    state: Arc<BufferState>,
}

impl Buffer {
    /// Opens or creates the buffer, with the batches that an earlier process left.
    pub fn open(dir: &Path, bytes_max: u64, spare: Spare) -> Result<Self, BufferError> {
        Self::on(Box::new(Real), dir, bytes_max, spare)
    }

    fn on(disk: Box<dyn Disk>, dir: &Path, bytes_max: u64, spare: Spare) -> Result<Self, BufferError> {
        make_private(dir)?;
        let mut waiting = Vec::new();
        for entry in fs::read_dir(dir).map_err(failed(dir, "listing it"))? {
            let path = entry.map_err(failed(dir, "listing it"))?.path();
            if path.extension().is_some_and(|extension| extension == "part") {
                // A crash left it incomplete.
                let _gone = fs::remove_file(&path);
            } else if let Some(number) = number_of(&path) {
                let about = fs::symlink_metadata(&path).map_err(failed(&path, "reading its metadata"))?;
                waiting.push((number, about.len()));
            }
        }
        waiting.sort_unstable();
        let state = BufferState { bytes: waiting.iter().map(|(_, bytes)| bytes).sum::<u64>().into(), ..BufferState::default() };
        let next = waiting.last().map_or(0, |(number, _)| number + 1);
        let (dir, waiting, state) = (dir.to_owned(), waiting.into(), Arc::new(state));
        let mut buffer = Self { dir, bytes_max, spare, disk, waiting, next, state };
        buffer.keep_limit(0)?;
        Ok(buffer)
    }

    /// Stores a batch and drops the oldest ones if the buffer or the disk is full. A batch that alone exceeds the
    /// buffer's limit is stored. An error: the batch is not stored.
    pub fn put(&mut self, body: &[u8], samples: u64) -> Result<(), BufferError> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&u32::try_from(samples).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend_from_slice(body);
        let sum = crc32fast::hash(&bytes[12..]);
        bytes[8..12].copy_from_slice(&sum.to_le_bytes());
        self.keep_limit(bytes.len() as u64)?;
        self.leave_spare(bytes.len() as u64)?;
        let path = self.path(self.next);
        let mut written = self.write(&path, &bytes);
        if written.as_ref().is_err_and(is_full) && self.drop_oldest()?.is_some() {
            written = self.write(&path, &bytes);
        }
        written.map_err(failed(&path, "writing it"))?;
        self.waiting.push_back((self.next, bytes.len() as u64));
        self.state.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.next += 1;
        Ok(())
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), io::Error> {
        let part = path.with_extension("part");
        let written = self.disk.write(&part, bytes).and_then(|()| fs::rename(&part, path));
        if written.is_err() {
            let _gone = self.disk.remove(&part);
        }
        written
    }

    /// The oldest valid batch. Damaged or missing ones are dropped and counted. An error: it may be readable later.
    pub fn oldest(&mut self) -> Result<Option<Batch>, BufferError> {
        while let Some((number, _)) = self.waiting.front().copied() {
            let path = self.path(number);
            match self.disk.read(&path) {
                Ok(bytes) => {
                    if let Some((body, samples)) = open_batch(bytes) {
                        return Ok(Some(Batch { number, body, samples }));
                    }
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(failed(&path, "reading it")(error)),
            }
            self.drop_oldest()?;
        }
        Ok(None)
    }

    /// Removes a batch, for example one that was sent; does nothing if it is gone. An error: it still exists.
    pub fn remove(&mut self, number: u64) -> Result<(), BufferError> {
        let Some(at) = self.waiting.iter().position(|(known, _)| *known == number) else { return Ok(()) };
        let path = self.path(number);
        match self.disk.remove(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(&path, "removing it")(error)),
            Ok(()) | Err(_) => {}
        }
        let bytes = self.waiting.remove(at).map_or(0, |(_, bytes)| bytes);
        self.state.bytes.fetch_sub(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Its state, which stays up to date.
    pub fn state(&self) -> Arc<BufferState> {
        Arc::clone(&self.state)
    }

    /// Drops the oldest batch and counts it; returns its bytes, or `None` if there is none.
    fn drop_oldest(&mut self) -> Result<Option<u64>, BufferError> {
        let Some((number, bytes)) = self.waiting.front().copied() else { return Ok(None) };
        self.remove(number)?;
        self.state.dropped.fetch_add(1, Ordering::Relaxed);
        Ok(Some(bytes))
    }

    /// Drops batches until the buffer's limit allows this many bytes more, or none is left.
    fn keep_limit(&mut self, wanted: u64) -> Result<(), BufferError> {
        while self.state.bytes() + wanted > self.bytes_max && self.drop_oldest()?.is_some() {}
        Ok(())
    }

    /// Drops batches until the disk has this many free bytes beyond its reserve.
    fn leave_spare(&mut self, wanted: u64) -> Result<(), BufferError> {
        let mut missing_bytes = self.missing_bytes(wanted);
        if missing_bytes == 0 {
            return Ok(());
        }
        // Dropped batches are counted by their size: a file system may be late to report free space.
        while missing_bytes > 0
            && let Some(bytes) = self.drop_oldest()?
        {
            missing_bytes = missing_bytes.saturating_sub(bytes.next_multiple_of(BLOCK_BYTES));
        }
        if self.missing_bytes(wanted) > 0 {
            return Err(failed(&self.dir, "no free space beyond the disk's reserve")(ErrorKind::StorageFull.into()));
        }
        Ok(())
    }

    fn missing_bytes(&self, wanted: u64) -> u64 {
        self.disk.space(&self.dir).map_or(0, |space| (self.spare.bytes(space) + wanted).saturating_sub(space.free))
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{number:020}.batch"))
    }
}

/// Makes the directory, or removes everybody else's access to an existing one.
fn make_private(dir: &Path) -> Result<(), BufferError> {
    fs::DirBuilder::new().recursive(true).mode(DIR_MODE).create(dir).map_err(failed(dir, "making it"))?;
    let mode = fs::metadata(dir).map_err(failed(dir, "reading its metadata"))?.permissions().mode();
    if mode & 0o777 != DIR_MODE {
        fs::set_permissions(dir, fs::Permissions::from_mode(DIR_MODE)).map_err(failed(dir, "making it private"))?;
    }
    Ok(())
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

fn number_of(path: &Path) -> Option<u64> {
    if path.extension()? != "batch" {
        return None;
    }
    path.file_stem()?.to_str()?.parse().ok()
}

fn open_batch(bytes: Vec<u8>) -> Option<(Vec<u8>, u64)> {
    let header = bytes.get(..HEADER_BYTES)?;
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let is_whole = &header[..8] == MAGIC && word(8) == crc32fast::hash(&bytes[12..]);
    is_whole.then(|| (bytes[HEADER_BYTES..].to_vec(), u64::from(word(12))))
}

#[cfg(test)]
mod tests {
    use super::super::disk::Space;
    use super::*;
    use parking_lot::Mutex;
    use proptest::prelude::*;
    use std::io;
    use std::sync::atomic::AtomicU32;

    fn dir() -> PathBuf {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let dir = std::env::temp_dir().join(format!("lattice-push-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        let _ = fs::remove_dir_all(&dir);
        dir
    }

    fn open(dir: &Path, bytes_max: u64) -> Buffer {
        Buffer::open(dir, bytes_max, Spare::Bytes(0)).unwrap()
    }

    /// The first bytes of the remaining bodies, with their samples; removes them.
    fn drain(buffer: &mut Buffer) -> Vec<(u8, u64)> {
        let mut seen = Vec::new();
        while let Some(batch) = buffer.oldest().unwrap() {
            seen.push((batch.body[0], batch.samples));
            buffer.remove(batch.number).unwrap();
        }
        seen
    }

    /// A disk of this size, on which chosen calls fail once each.
    #[derive(Clone, Debug, Default)]
    struct Failing(Arc<Mutex<Faults>>);

    #[derive(Debug, Default)]
    struct Faults {
        total: Option<u64>,
        read: Option<i32>,
        remove: Option<i32>,
        write: Option<i32>,
    }

    impl Failing {
        fn with<T>(&self, with: impl FnOnce(&mut Faults) -> T) -> T {
            with(&mut self.0.lock())
        }

        fn or_fail(fault: Option<i32>) -> io::Result<()> {
            fault.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
        }
    }

    impl Disk for Failing {
        fn space(&self, dir: &Path) -> Option<Space> {
            let total = self.with(|faults| faults.total)?;
            let used: u64 = fs::read_dir(dir).unwrap().map(|e| e.unwrap().metadata().unwrap().len().next_multiple_of(BLOCK_BYTES)).sum();
            Some(Space { total, free: total.saturating_sub(used) })
        }

        fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
            Self::or_fail(self.with(|faults| faults.write.take()))?;
            Real.write(path, bytes)
        }

        fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
            Self::or_fail(self.with(|faults| faults.read.take()))?;
            Real.read(path)
        }

        fn remove(&self, path: &Path) -> io::Result<()> {
            Self::or_fail(self.with(|faults| faults.remove.take()))?;
            Real.remove(path)
        }
    }

    const EIO: i32 = 5;
    const EMFILE: i32 = 24;
    const ENOSPC: i32 = 28;
    const EROFS: i32 = 30;

    #[test]
    fn waiting_batches_survive_a_restart_in_order_and_damage_costs_one_batch() {
        let dir = dir();
        let mut buffer = open(&dir, 1 << 20);
        for n in 0..4u8 {
            buffer.put(&[n; 100], u64::from(n)).unwrap();
        }
        fs::write(dir.join("00000000000000000009.part"), "torn").unwrap();
        fs::write(dir.join("unrelated"), "x").unwrap();
        let damaged = dir.join(format!("{:020}.batch", 1));
        let mut bytes = fs::read(&damaged).unwrap();
        bytes[50] ^= 1;
        fs::write(&damaged, bytes).unwrap();
        let mut buffer = open(&dir, 1 << 20);
        let state = buffer.state();
        assert_eq!(state.bytes(), 4 * 116);
        assert_eq!(drain(&mut buffer), [(0, 0), (2, 2), (3, 3)]);
        assert_eq!((state.dropped(), state.bytes()), (1, 0));
        assert!(!dir.join("00000000000000000009.part").exists() && dir.join("unrelated").exists());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_batch_that_cannot_be_read_or_removed_for_a_while_stays() {
        let (dir, disk) = (dir(), Failing::default());
        let mut buffer = Buffer::on(Box::new(disk.clone()), &dir, 1 << 20, Spare::Bytes(0)).unwrap();
        let state = buffer.state();
        for n in 0..3u8 {
            buffer.put(&[n; 10], 1).unwrap();
        }
        for errno in [EIO, EMFILE] {
            disk.with(|faults| faults.read = Some(errno));
            assert!(buffer.oldest().is_err());
            assert_eq!((state.bytes(), state.dropped()), (3 * 26, 0));
        }
        let first = buffer.oldest().unwrap().unwrap();
        disk.with(|faults| faults.remove = Some(EROFS));
        assert!(buffer.remove(first.number).is_err());
        assert_eq!((state.bytes(), buffer.oldest().unwrap()), (3 * 26, Some(first)));
        // A batch that somebody removed by hand counts as dropped.
        fs::remove_file(buffer.path(1)).unwrap();
        assert_eq!(drain(&mut buffer), [(0, 1), (2, 1)]);
        assert_eq!((state.bytes(), state.dropped()), (0, 1));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn only_the_owner_may_use_the_directory_and_its_files() {
        let dir = dir();
        fs::create_dir_all(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let mut buffer = open(&dir, 1 << 20);
        buffer.put(b"x", 1).unwrap();
        assert_eq!((mode(&dir), mode(&buffer.path(0))), (0o700, 0o600));
        fs::remove_dir_all(&dir).unwrap();
        open(&dir, 1 << 20);
        assert_eq!(mode(&dir), 0o700);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_full_disk_costs_the_oldest_and_then_the_new() {
        let (dir, disk) = (dir(), Failing::default());
        let mut buffer = Buffer::on(Box::new(disk.clone()), &dir, 1 << 20, Spare::Bytes(0)).unwrap();
        let state = buffer.state();
        disk.with(|faults| faults.write = Some(ENOSPC));
        assert!(buffer.put(&[9; 10], 1).is_err(), "there is nothing to drop for it");
        for n in 0..3u8 {
            buffer.put(&[n; 10], 1).unwrap();
        }
        disk.with(|faults| faults.write = Some(ENOSPC));
        buffer.put(&[3; 10], 1).unwrap();
        assert_eq!(state.dropped(), 1);
        disk.with(|faults| faults.write = Some(EIO));
        assert!(buffer.put(&[9; 10], 1).is_err());
        assert_eq!(state.dropped(), 1, "nothing is dropped if space would not help");
        assert_eq!(drain(&mut buffer), [(1, 1), (2, 1), (3, 1)]);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn the_configured_space_stays_free() {
        let (dir, disk) = (dir(), Failing::default());
        disk.with(|faults| faults.total = Some(14 * BLOCK_BYTES));
        let mut buffer = Buffer::on(Box::new(disk.clone()), &dir, 1 << 20, Spare::Bytes(10 * BLOCK_BYTES)).unwrap();
        let state = buffer.state();
        for n in 0..8u8 {
            buffer.put(&[n; 4000], 1).unwrap();
            let space = disk.space(&dir).unwrap();
            assert!(space.free >= 10 * BLOCK_BYTES, "{space:?}");
        }
        assert_eq!(state.dropped(), 4);
        // Others fill the disk: the buffer drops batches and accepts no more.
        disk.with(|faults| faults.total = Some(9 * BLOCK_BYTES));
        assert!(buffer.put(&[9; 4000], 1).is_err());
        assert_eq!((state.dropped(), state.bytes()), (8, 0));
        disk.with(|faults| faults.total = Some(14 * BLOCK_BYTES));
        buffer.put(&[10; 4000], 1).unwrap();
        assert_eq!(drain(&mut buffer), [(10, 1)]);
        fs::remove_dir_all(&dir).unwrap();
        let of_disk = |total| Spare::OfDisk.bytes(Space { total, free: 0 });
        assert_eq!((of_disk(1 << 40), of_disk(100 << 20)), (256 << 20, 5 << 20));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn it_never_grows_beyond_its_bound_and_keeps_the_newest(sizes in proptest::collection::vec(1..400usize, 1..40), bound in 200..2000u64) {
            let dir = dir();
            let mut buffer = open(&dir, bound);
            let state = buffer.state();
            for (n, size) in sizes.iter().enumerate() {
                buffer.put(&vec![n as u8; *size], 1).unwrap();
                // A single batch may be larger than the bound.
                prop_assert!(state.bytes() <= bound || buffer.waiting.len() == 1);
                let on_disk: u64 = fs::read_dir(&dir).unwrap().flatten().map(|e| e.metadata().unwrap().len()).sum();
                prop_assert_eq!(on_disk, state.bytes());
            }
            // By definition: after each batch, the longest run of existing batches that ends with it and is within the
            // bound.
            let mut expected: Vec<u8> = Vec::new();
            for n in 0..sizes.len() {
                expected.push(n as u8);
                let bytes = |kept: &[u8]| kept.iter().map(|k| (sizes[usize::from(*k)] + HEADER_BYTES) as u64).sum::<u64>();
                while expected.len() > 1 && bytes(&expected) > bound {
                    expected.remove(0);
                }
            }
            prop_assert_eq!(state.dropped() as usize + buffer.waiting.len(), sizes.len());
            let kept: Vec<u8> = drain(&mut buffer).into_iter().map(|(first, _)| first).collect();
            prop_assert_eq!(kept, expected);
            fs::remove_dir_all(&dir).unwrap();
        }
    }
}
