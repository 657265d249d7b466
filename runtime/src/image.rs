//! Copies a user's SquashFS image into the root-owned cache.
//!
//! The file is opened with the *user's* rights, so nobody reads through us what they could not read themselves. It is
//! copied and hashed in one pass. The copy is mounted: nothing that the user does to the file afterwards reaches the
//! kernel's file system code. The digest is checked when the image is copied, not at each mount: only root writes to
//! the cache. Unused images may be removed again ([`cache`]). Zeros become holes of the copy: it has no more real
//! blocks than the file.

pub mod cache;
mod copy_monitor;
mod error;

pub use cache::{HeldImage, NoRoom, cached};
pub use copy_monitor::CopyMonitor;
pub use error::ImageError;

use crate::failpoint::{self, Point};
use lattice_model::{Image, Principal};
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Seek};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// The first four bytes of every SquashFS (kernel: `SQUASHFS_MAGIC`, little endian).
const MAGIC: &[u8; 4] = b"hsqs";
/// Bytes that are read, hashed and written at a time.
const CHUNK_BYTES: usize = 1 << 20;
/// This many zeros, at a multiple of this many bytes, become a hole of the copy.
const HOLE_BYTES: usize = 4096;
/// Space requested at a time if an image has more bytes than its file reported.
const ROOM_STEP_BYTES: u64 = 64 << 20;

/// An image in the cache. It stays there while this value lives.
#[derive(Debug)]
pub struct Admitted {
    /// The image.
    pub held: HeldImage,
    /// Whether this call copied it; otherwise it was in the cache already.
    pub copied: bool,
}

/// Copies `image` into `cache` (made with mode 0700 if it is missing). Blocks for the whole copy. May be called
/// concurrently, in any number of processes: the first copies, the others wait for it. Stops at the next chunk once
/// it is cancelled, and leaves nothing of the copy. `make_room` is called before a copy, with the bytes that the
/// image's file really has, and again if that was not enough.
pub fn admit(
    cache: &Path,
    principal: &Principal,
    image: &Image,
    monitor: &CopyMonitor,
    make_room: impl Fn(u64) -> Result<(), NoRoom>,
) -> Result<Admitted, ImageError> {
    if image.sha256.len() != 64 || !image.sha256.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        return Err(ImageError::BadDigest { given: image.sha256.chars().take(80).collect() });
    }
    // Before the cache is read: a user who may not read the image does not get the copy of another user.
    let mut source = open_as(principal, &image.path)?;
    let io_error = |doing| {
        let (path, cache) = (image.path.clone(), cache.to_owned());
        move |source: io::Error| match source.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => ImageError::NoSpace { path, cache },
            _ => ImageError::Io { path, doing, source },
        }
    };
    fs::DirBuilder::new().recursive(true).create(cache).map_err(io_error("making the image cache"))?;
    fs::set_permissions(cache, Permissions::from_mode(0o700)).map_err(io_error("giving the image cache mode 0700"))?;
    let mut copied = false;
    loop {
        if let Some(held) = cache::hold(cache, &image.sha256).map_err(io_error("locking it in the image cache"))? {
            return Ok(Admitted { held, copied });
        }
        // Not in the cache, or removed again before it was locked.
        copied |= copy_in(cache, &mut source, principal.uid, image, monitor, &make_room, &io_error)?;
    }
}

/// Copies the image into the cache. `false`: another process did so first.
fn copy_in<E: FnOnce(io::Error) -> ImageError>(
    cache: &Path,
    source: &mut File,
    uid: u32,
    image: &Image,
    monitor: &CopyMonitor,
    make_room: &impl Fn(u64) -> Result<(), NoRoom>,
    io_error: &impl Fn(&'static str) -> E,
) -> Result<bool, ImageError> {
    let place = cached(cache, &image.sha256);
    let part_path = place.with_extension("sqfs.part");
    let part = loop {
        let file = OpenOptions::new().create(true).truncate(false).write(true).read(true).mode(0o600).open(&part_path);
        let file = file.map_err(io_error("making a file in the image cache"))?;
        match file.try_lock() {
            Ok(()) => {}
            // Waiting for an exclusive lock could take as long as the work of those who use the image by then.
            Err(TryLockError::WouldBlock) => {
                file.lock_shared().map_err(io_error("waiting for another copy of it"))?;
                if place.exists() {
                    return Ok(false);
                }
                continue;
            }
            Err(TryLockError::Error(error)) => return Err(io_error("locking the copy")(error)),
        }
        // Before the lock was obtained another process may have renamed this file to its final name, or removed it:
        // look again.
        if cache::is_at(&file, &part_path) {
            break file;
        }
    };
    if place.exists() {
        let _ = fs::remove_file(&part_path);
        return Ok(false);
    }
    let has_room = |bytes| make_room(bytes).map_err(|no_room| no_room.of(&image.path, cache, bytes));
    let copied = copy_verified(source, &part, image, monitor, &has_room).and_then(|()| {
        // The file's group records whose share of the cache it uses (`cache`). If that fails, it counts as root's.
        let _ = fchown(&part, None, Some(uid));
        part.set_permissions(Permissions::from_mode(0o400)).map_err(|e| ("making the copy read-only", e))?;
        part.sync_all().map_err(|e| ("writing the copy to disk", e))?;
        failpoint::pass(Point::ImageCopied);
        fs::rename(&part_path, &place).map_err(|e| ("naming the copy", e))?;
        File::open(cache).and_then(|dir| dir.sync_all()).map_err(|e| ("writing the cache to disk", e))?;
        Ok(())
    });
    match copied {
        Ok(()) => Ok(true),
        Err(failure) => {
            let _ = fs::remove_file(&part_path);
            Err(match failure {
                CopyFailure::Io(doing, source) => io_error(doing)(source),
                CopyFailure::Refused(error) => error,
            })
        }
    }
}

/// SHA-256 of a user's image, read with the user's rights until `cancelled`: 64 lower-case hexadecimal digits.
pub fn digest_as(principal: &Principal, path: &Path, cancelled: &AtomicBool) -> Result<String, ImageError> {
    let mut source = open_as(principal, path)?;
    let digest = read_and_hash(&mut source, path, cancelled, |_| Ok(()));
    digest.map_err(|failure| match failure {
        CopyFailure::Io(doing, source) => ImageError::Io { path: path.to_owned(), doing, source },
        CopyFailure::Refused(error) => error,
    })
}

enum CopyFailure {
    Io(&'static str, io::Error),
    Refused(ImageError),
}

impl From<(&'static str, io::Error)> for CopyFailure {
    fn from((doing, error): (&'static str, io::Error)) -> Self {
        Self::Io(doing, error)
    }
}

fn copy_verified(
    source: &mut File,
    part: &File,
    image: &Image,
    monitor: &CopyMonitor,
    make_room: &dyn Fn(u64) -> Result<(), ImageError>,
) -> Result<(), CopyFailure> {
    // A killed process may have left a partial copy.
    part.set_len(0).map_err(|e| ("emptying the copy", e))?;
    source.rewind().map_err(|e| ("reading it", e))?;
    let about = source.metadata().map_err(|e| ("reading its metadata", e))?;
    // The real size of a sparse file. It is larger only if the file system compresses it, or somebody writes to it
    // meanwhile.
    let first = about.len().min(about.blocks().saturating_mul(512));
    make_room(first).map_err(CopyFailure::Refused)?;
    let mut copy = SparseCopy { part, source_len: about.len(), len: 0, written: 0, reserved: first, make_room };
    monitor.begin(about.len());
    let got = read_and_hash(source, &image.path, &monitor.cancelled, |chunk| {
        monitor.add(chunk.len());
        copy.add(chunk)
    })?;
    part.set_len(copy.len).map_err(|e| ("copying it", e))?;
    if got != image.sha256 {
        let (path, want) = (image.path.clone(), image.sha256.clone());
        return Err(CopyFailure::Refused(ImageError::WrongDigest { path, want, got }));
    }
    Ok(())
}

/// A copy whose blocks of zeros are holes.
struct SparseCopy<'a> {
    part: &'a File,
    /// Length of the image's file at the beginning, holes included.
    source_len: u64,
    /// Length copied so far, holes included.
    len: u64,
    /// Bytes written, without holes.
    written: u64,
    /// Bytes for which the cache has space reserved.
    reserved: u64,
    make_room: &'a dyn Fn(u64) -> Result<(), ImageError>,
}

impl SparseCopy<'_> {
    /// Adds bytes at the end. Bytes that are left out become a hole once the copy has its length.
    fn add(&mut self, chunk: &[u8]) -> Result<(), CopyFailure> {
        const ZEROS: [u8; HOLE_BYTES] = [0; HOLE_BYTES];
        let is_zero = |block: &&[u8]| **block == ZEROS[..block.len()];
        let mut rest = chunk;
        while !rest.is_empty() {
            let hole: usize = rest.chunks(HOLE_BYTES).take_while(is_zero).map(<[u8]>::len).sum();
            let data: usize = rest[hole..].chunks(HOLE_BYTES).take_while(|block| !is_zero(block)).map(<[u8]>::len).sum();
            self.written += data as u64;
            while self.written > self.reserved {
                let step = self.source_len.saturating_sub(self.reserved).clamp(CHUNK_BYTES as u64, ROOM_STEP_BYTES);
                (self.make_room)(step).map_err(CopyFailure::Refused)?;
                self.reserved += step;
            }
            self.part.write_all_at(&rest[hole..hole + data], self.len + hole as u64).map_err(|e| ("copying it", e))?;
            self.len += (hole + data) as u64;
            rest = &rest[hole + data..];
        }
        Ok(())
    }
}

/// Reads `source` to its end and passes each piece to `copy`; returns its SHA-256. Refuses a file that does not begin
/// as a SquashFS.
fn read_and_hash(
    source: &mut File,
    path: &Path,
    cancelled: &AtomicBool,
    mut copy: impl FnMut(&[u8]) -> Result<(), CopyFailure>,
) -> Result<String, CopyFailure> {
    let mut hash = Sha256::new();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut has_begun = false;
    loop {
        let mut got = 0;
        while got < chunk.len() {
            if cancelled.load(Ordering::Relaxed) {
                return Err(CopyFailure::Refused(ImageError::Cancelled { path: path.to_owned() }));
            }
            match source.read(&mut chunk[got..]) {
                Ok(0) => break,
                Ok(n) => got += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(CopyFailure::Io("reading it", error)),
            }
        }
        if !has_begun && !chunk[..got].starts_with(MAGIC) {
            return Err(CopyFailure::Refused(ImageError::NotAnImage { path: path.to_owned(), why: "it is not a SquashFS image" }));
        }
        has_begun = true;
        hash.update(&chunk[..got]);
        copy(&chunk[..got])?;
        if got < chunk.len() {
            break;
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Opens a regular file for reading with the principal's rights.
fn open_as(principal: &Principal, path: &Path) -> Result<File, ImageError> {
    let opened = as_user(principal, || {
        // Non-blocking: a FIFO would block us for ever. It has no effect on a regular file.
        open(path, OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY, Mode::empty())
    });
    let file = match opened {
        Ok(Ok(fd)) => File::from(fd),
        Ok(Err(Errno::ENOENT | Errno::ENOTDIR)) => return Err(ImageError::NotFound { path: path.to_owned() }),
        Ok(Err(Errno::EACCES | Errno::EPERM)) => {
            return Err(ImageError::PermissionDenied { path: path.to_owned(), user: principal.name.clone() });
        }
        Ok(Err(errno)) => return Err(ImageError::Io { path: path.to_owned(), doing: "opening it", source: errno.into() }),
        Err(source) => return Err(ImageError::Io { path: path.to_owned(), doing: "taking on the user's rights", source }),
    };
    let metadata = file.metadata().map_err(|source| ImageError::Io { path: path.to_owned(), doing: "reading its metadata", source })?;
    if !metadata.is_file() {
        return Err(ImageError::NotAnImage { path: path.to_owned(), why: "it is not a regular file" });
    }
    Ok(file)
}

/// Runs `act` with a user's rights to files, in a separate thread that ends with it.
///
/// The raw calls affect only the calling thread; libc's own would change every thread of the process. Only the *file
/// system* ids change (as in a file server), and all capabilities are dropped. If the real and effective ids changed
/// too, the user could send signals to the thread, and SIGKILL to one thread ends the whole agent.
pub(crate) fn as_user<T: Send>(principal: &Principal, act: impl FnOnce() -> T + Send) -> io::Result<T> {
    if !nix::unistd::geteuid().is_root() {
        if nix::unistd::geteuid().as_raw() == principal.uid {
            return Ok(act());
        }
        return Err(Errno::EPERM.into());
    }
    if principal.is_root() {
        return Ok(act());
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("as-user".to_owned()).spawn_scoped(scope, || {
            take_file_rights(principal)?;
            Ok(act())
        })?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Gives the calling thread the principal's rights to files, and no capability, until it ends.
fn take_file_rights(principal: &Principal) -> io::Result<()> {
    /// `struct __user_cap_header_struct` and `__user_cap_data_struct[2]` of linux/capability.h, version 3.
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    const VERSION_3: u32 = 0x2008_0522;
    let header = Header { version: VERSION_3, pid: 0 };
    let none = [0u32; 6];
    // SAFETY: setgroups reads that many gids from the slice; the others take integers, and capset a header and two
    // data structures that live until it returns. All of them act on the calling thread only.
    unsafe {
        Errno::result(libc::syscall(libc::SYS_setgroups, principal.groups.len(), principal.groups.as_ptr()))?;
        libc::syscall(libc::SYS_setfsgid, principal.gid);
        libc::syscall(libc::SYS_setfsuid, principal.uid);
        // They return the previous id and no error; a call with an impossible id returns the present one.
        let (gid, uid) = (libc::syscall(libc::SYS_setfsgid, -1), libc::syscall(libc::SYS_setfsuid, -1));
        if (gid, uid) != (i64::from(principal.gid), i64::from(principal.uid)) {
            return Err(Errno::EPERM.into());
        }
        Errno::result(libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()))?;
    }
    Ok(())
}
