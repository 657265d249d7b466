//! Batches that wait for the store, each in a file of its own, oldest first.
//!
//! ```text
//!   NUMBER.batch = "LATTPSH1", CRC-32 of the rest, samples (u32 LE each), the request's body as it is sent
//! ```
//!
//! A file is whole or not there: it is written under another name and moved. It outlives the agent, and need not outlive the machine.

use super::Io;
use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use thiserror::Error;

const MAGIC: &[u8; 8] = b"LATTPSH1";
const HEADER_BYTES: usize = 16;

/// The buffer's directory cannot be used.
#[derive(Debug, Error)]
#[error("{}: {doing}", path.display())]
pub struct BufferError {
    path: PathBuf,
    doing: &'static str,
    #[source]
    source: Io,
}

fn failed(path: &Path, doing: &'static str) -> impl FnOnce(Io) -> BufferError {
    let path = path.to_owned();
    move |source| BufferError { path, doing, source }
}

/// What waits on the disk. One per directory.
#[derive(Debug)]
pub struct Buffer {
    dir: PathBuf,
    bytes_max: u64,
    /// Number and bytes, ascending.
    waiting: VecDeque<(u64, u64)>,
    next: u64,
    bytes: u64,
    dropped: u64,
}

impl Buffer {
    /// Opens it, made where it is missing; what a former life left is taken over.
    pub fn open(dir: &Path, bytes_max: u64) -> Result<Self, BufferError> {
        fs::create_dir_all(dir).map_err(failed(dir, "making it"))?;
        let mut waiting = Vec::new();
        for entry in fs::read_dir(dir).map_err(failed(dir, "listing it"))?.flatten() {
            let path = entry.path();
            if path.extension().is_some_and(|extension| extension == "part") {
                // Cut short by a crash.
                let _gone = fs::remove_file(&path);
            } else if let Some(number) = number_of(&path)
                && let Ok(about) = entry.metadata()
            {
                waiting.push((number, about.len()));
            }
        }
        waiting.sort_unstable();
        let mut buffer = Self {
            dir: dir.to_owned(),
            bytes_max,
            next: waiting.last().map_or(0, |(number, _)| number + 1),
            bytes: waiting.iter().map(|(_, bytes)| bytes).sum(),
            waiting: waiting.into(),
            dropped: 0,
        };
        buffer.make_room(0);
        Ok(buffer)
    }

    /// Keeps a batch; of what is too much the oldest go.
    pub fn put(&mut self, body: &[u8], samples: u64) -> Result<(), BufferError> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&u32::try_from(samples).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend_from_slice(body);
        let sum = crc32fast::hash(&bytes[12..]);
        bytes[8..12].copy_from_slice(&sum.to_le_bytes());
        self.make_room(bytes.len() as u64);
        let (path, part) = (self.path(self.next), self.path(self.next).with_extension("part"));
        let written = fs::write(&part, &bytes).and_then(|()| fs::rename(&part, &path));
        if let Err(error) = written {
            let _gone = fs::remove_file(&part);
            return Err(failed(&path, "writing it")(error));
        }
        self.waiting.push_back((self.next, bytes.len() as u64));
        self.bytes += bytes.len() as u64;
        self.next += 1;
        Ok(())
    }

    /// The oldest that is whole: its number, body and samples. What is damaged is dropped and counted.
    pub fn oldest(&mut self) -> Option<(u64, Vec<u8>, u64)> {
        while let Some((number, _)) = self.waiting.front().copied() {
            if let Some((body, samples)) = fs::read(self.path(number)).ok().and_then(open_batch) {
                return Some((number, body, samples));
            }
            self.dropped += 1;
            self.remove(number);
        }
        None
    }

    /// Lets a batch go that was sent; nothing where it went already.
    pub fn remove(&mut self, number: u64) {
        if let Some(at) = self.waiting.iter().position(|(known, _)| *known == number) {
            let _gone = fs::remove_file(self.path(number));
            self.bytes -= self.waiting.remove(at).map_or(0, |(_, bytes)| bytes);
        }
    }

    /// Bytes that wait.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Batches that were dropped, for want of room or because they were damaged.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    fn make_room(&mut self, wanted: u64) {
        while self.bytes + wanted > self.bytes_max
            && let Some((number, _)) = self.waiting.front().copied()
        {
            self.dropped += 1;
            self.remove(number);
        }
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{number:020}.batch"))
    }
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
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    fn dir() -> PathBuf {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let dir = std::env::temp_dir().join(format!("lattice-push-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        let _ = fs::remove_dir_all(&dir);
        dir
    }

    #[test]
    fn what_waits_is_there_after_a_restart_in_its_order_and_damage_costs_one_batch() {
        let dir = dir();
        let mut buffer = Buffer::open(&dir, 1 << 20).unwrap();
        for n in 0..4u8 {
            buffer.put(&[n; 100], u64::from(n)).unwrap();
        }
        fs::write(dir.join("00000000000000000009.part"), "torn").unwrap();
        fs::write(dir.join("unrelated"), "x").unwrap();
        let damaged = dir.join(format!("{:020}.batch", 1));
        let mut bytes = fs::read(&damaged).unwrap();
        bytes[50] ^= 1;
        fs::write(&damaged, bytes).unwrap();
        let mut buffer = Buffer::open(&dir, 1 << 20).unwrap();
        assert_eq!(buffer.bytes(), 4 * 116);
        let mut seen = Vec::new();
        while let Some((number, body, samples)) = buffer.oldest() {
            seen.push((body[0], samples));
            buffer.remove(number);
        }
        assert_eq!((seen, buffer.dropped(), buffer.bytes()), (vec![(0, 0), (2, 2), (3, 3)], 1, 0));
        assert!(!dir.join("00000000000000000009.part").exists() && dir.join("unrelated").exists());
        fs::remove_dir_all(&dir).unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn it_never_grows_beyond_its_bound_and_keeps_the_newest(sizes in proptest::collection::vec(1..400usize, 1..40), bound in 200..2000u64) {
            let dir = dir();
            let mut buffer = Buffer::open(&dir, bound).unwrap();
            for (n, size) in sizes.iter().enumerate() {
                buffer.put(&vec![n as u8; *size], 1).unwrap();
                // One batch alone may be larger.
                prop_assert!(buffer.bytes() <= bound || buffer.waiting.len() == 1);
                let on_disk: u64 = fs::read_dir(&dir).unwrap().flatten().map(|e| e.metadata().unwrap().len()).sum();
                prop_assert_eq!(on_disk, buffer.bytes());
            }
            let mut expected: Vec<u8> = Vec::new();
            let mut room = bound;
            for (n, size) in sizes.iter().enumerate().rev() {
                let bytes = (*size + HEADER_BYTES) as u64;
                if bytes > room && !expected.is_empty() {
                    break;
                }
                room = room.saturating_sub(bytes);
                expected.insert(0, n as u8);
            }
            prop_assert_eq!(buffer.dropped() as usize + buffer.waiting.len(), sizes.len());
            let mut kept = Vec::new();
            while let Some((number, body, _)) = buffer.oldest() {
                kept.push(body[0]);
                buffer.remove(number);
            }
            prop_assert!(kept.ends_with(&expected[expected.len().saturating_sub(kept.len())..]), "{:?} {:?}", kept, expected);
            prop_assert!(kept.iter().copied().eq((sizes.len() - kept.len()..sizes.len()).map(|n| n as u8)));
            fs::remove_dir_all(&dir).unwrap();
        }
    }
}
