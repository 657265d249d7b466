//! The mapped page.

use crate::layout::{AT_BYTES, AT_VERSION, BYTES, MAGIC, VERSION};
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// A mapping of [`BYTES`] bytes that other processes write as well: all of it is read and written atomically.
#[derive(Debug)]
pub struct Page {
    base: NonNull<u8>,
    /// Its lock shows that somebody listens.
    file: File,
    /// The process that opened it.
    opener: u32,
}

// SAFETY: the mapping belongs to this value alone until it is dropped, and is only accessed by atomic operations.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {why}", path.display()));
        let bytes = file.metadata()?.len();
        if bytes < BYTES as u64 {
            return Err(invalid(format!("it has {bytes} bytes of {BYTES}: somebody made it shorter")));
        }
        // SAFETY: no address is requested, the descriptor is open, and the result is checked.
        let base = unsafe { libc::mmap(ptr::null_mut(), BYTES, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| io::Error::other("a mapping at address 0"))?;
        let page = Self { base, file, opener: std::process::id() };
        let magic: Vec<u8> = (0..MAGIC.len()).map(|at| page.byte(at).load(Ordering::Relaxed)).collect();
        if magic != MAGIC || page.load(AT_BYTES) as usize != BYTES {
            return Err(invalid("it is not a checkpoint page".to_owned()));
        }
        let version = page.load(AT_VERSION);
        if version != VERSION {
            return Err(invalid(format!("it has version {version}, and this library supports {VERSION}")));
        }
        page.lock()?;
        Ok(page)
    }

    /// Shows that somebody listens. The kernel releases the lock with the last descriptor, and forked children have
    /// copies of it.
    fn lock(&self) -> io::Result<()> {
        loop {
            // SAFETY: the descriptor is open for as long as `self` lives.
            if unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_SH) } == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    fn byte(&self, at: usize) -> &AtomicU8 {
        assert!(at < BYTES);
        // SAFETY: within the mapping, which lives as long as `self`; every access to it is atomic.
        unsafe { AtomicU8::from_ptr(self.base.as_ptr().add(at)) }
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at + 4 <= BYTES && at.is_multiple_of(4));
        // SAFETY: within the mapping, which lives as long as `self`; aligned, as pages are; every access to it is
        // atomic.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    fn long(&self, at: usize) -> &AtomicU64 {
        assert!(at + 8 <= BYTES && at.is_multiple_of(8));
        // SAFETY: as for `word`.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(at).cast()) }
    }

    pub fn load(&self, at: usize) -> u32 {
        self.word(at).load(Ordering::Acquire)
    }

    pub fn store(&self, at: usize, value: u32) {
        self.word(at).store(value, Ordering::Release);
    }

    pub fn load_long(&self, at: usize) -> u64 {
        self.long(at).load(Ordering::Acquire)
    }

    pub fn store_long(&self, at: usize, value: u64) {
        self.long(at).store(value, Ordering::Release);
    }

    /// A text that ends with a zero; `None`: it has no end, or is not UTF-8.
    pub fn text(&self, at: usize, most: usize) -> Option<String> {
        let bytes: Vec<u8> = (at..at + most).map(|at| self.byte(at).load(Ordering::Acquire)).take_while(|b| *b != 0).collect();
        if bytes.len() == most { None } else { String::from_utf8(bytes).ok() }
    }

    /// Writes a text there, cut to the available bytes.
    pub fn put_text(&self, at: usize, most: usize, text: &str) {
        let mut end = text.len().min(most - 1);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        for (place, byte) in text.as_bytes()[..end].iter().chain([&0]).enumerate() {
            self.byte(at + place).store(*byte, Ordering::Release);
        }
    }

    /// Sleeps while the word is `seen`, for at most `at_most`.
    pub fn sleep(&self, at: usize, seen: u32, at_most: Duration) {
        let seconds = libc::time_t::try_from(at_most.as_secs()).unwrap_or(libc::time_t::MAX);
        let time = libc::timespec { tv_sec: seconds, tv_nsec: at_most.subsec_nanos().into() };
        // SAFETY: the word is in the mapping, the time is on the stack; the kernel only reads both.
        unsafe { libc::syscall(libc::SYS_futex, self.word(at).as_ptr(), libc::FUTEX_WAIT, seen, &raw const time) };
    }

    /// Wakes all that sleep on the word.
    pub fn wake(&self, at: usize) {
        // SAFETY: the word is in the mapping.
        unsafe { libc::syscall(libc::SYS_futex, self.word(at).as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // Unlocked explicitly, because forked children may still have the descriptor. A child must not unlock for its
        // parent.
        if std::process::id() == self.opener {
            // SAFETY: the descriptor is open for as long as `self` lives.
            unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_UN) };
        }
        // SAFETY: made by `open` with this length, and nobody has a reference into it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast::<c_void>(), BYTES) };
    }
}
