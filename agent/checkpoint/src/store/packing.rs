//! Compression and expansion of a file with hashing in one pass, on blocking threads.

use super::{Source, StoreError};
use crate::directory::Found;
use crate::pack::{PackError, READ_BYTES, pack};
use bytes::Bytes;
use std::io::{self, Read, Write};
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Smallest and largest size of a part of a large object. S3 requires at least 5 MiB.
const PART_BYTES: (usize, usize) = (8 << 20, 64 << 20);
/// Parts are sized so that an object of up to 562 GiB has at most this many. S3 allows 10,000.
const PARTS_MAX: u64 = 9000;
/// Limits how many files are compressed or expanded at once in this process: each holds a blocking
/// thread, and a store that is a directory needs further ones.
static PIPES: Semaphore = Semaphore::const_new(8);

/// Waits for one of `PIPES`.
pub(super) async fn pipe() -> Result<SemaphorePermit<'static>, StoreError> {
    PIPES.acquire().await.map_err(|closed| StoreError::Unfit(closed.to_string()))
}

/// The size of all parts of a file's object, in whole MiB.
pub(super) fn part_bytes(size: u64) -> usize {
    let (least, most) = PART_BYTES;
    let wanted = size.div_ceil(PARTS_MAX).div_ceil(1 << 20) << 20;
    usize::try_from(wanted).unwrap_or(most).clamp(least, most)
}

/// A token that is cancelled when the guard is dropped: a thread sees from it that its result is no
/// longer wanted.
pub(super) fn stopping() -> (CancellationToken, DropGuard) {
    let stop = CancellationToken::new();
    (stop.clone(), stop.drop_guard())
}

fn not_packed(path: &str, error: PackError) -> StoreError {
    match error {
        PackError::GivenUp => StoreError::Unfit("given up".to_owned()),
        PackError::Changed => StoreError::Unfit(format!("{path} changed while it was read, though it was reported as saved")),
        PackError::Io(source) => StoreError::Io { what: path.to_owned(), source },
        PackError::Broke(why) => StoreError::Unfit(format!("{path}: {why}")),
    }
}

/// Compresses a file into parts, here or in a process within the allocation's work. Returns the
/// BLAKE3 of its content.
pub(super) fn compress(
    source: &Source,
    found: &Found,
    size: u64,
    (parts, part_bytes): (mpsc::Sender<Bytes>, usize),
    stop: &CancellationToken,
) -> Result<String, StoreError> {
    let file = source.open(found)?;
    let mut parts = Parts { parts, part_bytes, now: Vec::new() };
    let is_given_up = || stop.is_cancelled();
    let packed = match &source.packers {
        Some(packers) => packers.pack(&file, size, &mut parts, &is_given_up),
        None => pack(&file, size, &mut parts, &is_given_up),
    };
    let hash = packed.map_err(|error| not_packed(&found.path, error))?;
    parts.finish().map_err(|error| not_packed(&found.path, PackError::Io(error)))?;
    Ok(hash.to_hex().to_string())
}

/// A writer that sends its bytes in parts.
struct Parts {
    parts: mpsc::Sender<Bytes>,
    part_bytes: usize,
    now: Vec<u8>,
}

impl Parts {
    /// Sends the present part. `next`: the buffer of the next part.
    fn pass(&mut self, next: Vec<u8>) -> io::Result<()> {
        let part = std::mem::replace(&mut self.now, next);
        self.parts.blocking_send(part.into()).map_err(|_| io::Error::other("the store accepts no more parts"))
    }

    fn finish(mut self) -> io::Result<()> {
        if self.now.is_empty() { Ok(()) } else { self.pass(Vec::new()) }
    }
}

impl Write for Parts {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.part_bytes - self.now.len());
        self.now.extend_from_slice(&bytes[..taken]);
        if self.now.len() == self.part_bytes {
            // The part was full: the next one may be as large, so reserve its space at once.
            self.pass(Vec::with_capacity(self.part_bytes))?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A reader of the bytes that the store sends.
pub(super) struct Fed {
    compressed: mpsc::Receiver<Bytes>,
    now: Bytes,
}

impl Fed {
    pub fn of(compressed: mpsc::Receiver<Bytes>) -> Self {
        Self { compressed, now: Bytes::new() }
    }
}

impl Read for Fed {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.now.is_empty() {
            match self.compressed.blocking_recv() {
                Some(next) => self.now = next,
                None => return Ok(0),
            }
        }
        let taken = into.len().min(self.now.len());
        into[..taken].copy_from_slice(&self.now.split_to(taken));
        Ok(taken)
    }
}

pub(super) enum Expanding {
    Damaged(String),
    Io(io::Error),
}

/// Expands, hashes and writes a file; never writes more than `size` bytes.
pub(super) fn expand(
    fed: Fed,
    (size, hash): &(u64, String),
    mut to: Option<std::fs::File>,
    stop: &CancellationToken,
) -> Result<(), Expanding> {
    let damaged = |e: io::Error| Expanding::Damaged(format!("it cannot be expanded: {e}"));
    let mut decoder = zstd::stream::read::Decoder::new(fed).map_err(damaged)?;
    let mut hasher = blake3::Hasher::new();
    let (mut piece, mut got) = (vec![0u8; READ_BYTES], 0u64);
    loop {
        if stop.is_cancelled() {
            return Err(Expanding::Io(io::Error::other("given up")));
        }
        let read = decoder.read(&mut piece).map_err(damaged)?;
        if read == 0 {
            break;
        }
        got += read as u64;
        if got > *size {
            return Err(Expanding::Damaged(format!("it has more than the {size} bytes that were saved")));
        }
        hasher.update(&piece[..read]);
        if let Some(to) = &mut to {
            to.write_all(&piece[..read]).map_err(Expanding::Io)?;
        }
    }
    let now = hasher.finalize().to_hex();
    if got != *size || now.as_str() != hash {
        return Err(Expanding::Damaged(format!("it has {got} bytes of BLAKE3 {now}; {size} bytes of BLAKE3 {hash} were saved")));
    }
    to.map_or(Ok(()), |to| to.sync_all().map_err(Expanding::Io))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_size_grows_with_the_file() {
        for (size, bytes) in [(0, 8 << 20), (70 << 30, 8 << 20), (80 << 30, 10 << 20), (500 << 30, 57 << 20), (u64::MAX, 64 << 20)] {
            assert_eq!(part_bytes(size), bytes, "{size}");
        }
        let most = 560_u64 << 30;
        assert!(most / (part_bytes(most) as u64) < PARTS_MAX);
    }
}
