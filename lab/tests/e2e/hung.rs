//! A file system whose server never answers reads and writes: a process that waits for one cannot be killed until the
//! server is gone.

use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::Mode;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Bytes of a FUSE request here (`FUSE_MIN_READ_BUFFER` is less).
const REQUEST_BYTES_MAX: usize = 1 << 17;
/// The inode number of the root, and of `data` in it.
const ROOT: u64 = 1;
const DATA: u64 = 2;
/// ENOSYS as an answer.
const NOT_THERE: i32 = -38;

/// A mounted file system, unmounted on drop: readers and writers then continue with an error.
pub struct HungMount {
    pub dir: PathBuf,
    stop: Arc<AtomicBool>,
    read: Arc<AtomicBool>,
    written: Arc<AtomicBool>,
    server: Option<JoinHandle<()>>,
}

impl HungMount {
    /// With one file, `data`.
    pub fn new(dir: &Path) -> Self {
        Self::mounted(dir, true)
    }

    /// The same, which also never answers requests for its free space.
    pub fn silent(dir: &Path) -> Self {
        Self::mounted(dir, false)
    }

    fn mounted(dir: &Path, answers_statfs: bool) -> Self {
        std::fs::create_dir(dir).unwrap();
        let device = open("/dev/fuse", OFlag::O_RDWR | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK, Mode::empty()).unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        mount(Some("hung"), dir, Some("fuse"), MsFlags::MS_NOSUID | MsFlags::MS_NODEV, Some(options.as_str())).unwrap();
        let [stop, read, written] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
        let (device, stopped) = (File::from(device), Arc::clone(&stop));
        let (was_read, was_written) = (Arc::clone(&read), Arc::clone(&written));
        let server = std::thread::spawn(move || serve(device, answers_statfs, &stopped, &was_read, &was_written));
        Self { dir: dir.to_owned(), stop, read, written, server: Some(server) }
    }

    /// Whether a process waits for its contents.
    pub fn is_read(&self) -> bool {
        self.read.load(Ordering::Relaxed)
    }

    /// Whether a process waits for the end of a write.
    pub fn is_written(&self) -> bool {
        self.written.load(Ordering::Relaxed)
    }
}

impl Drop for HungMount {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The end of the server closes the device: all waiting processes get an error.
        let _ended = self.server.take().map(JoinHandle::join);
        let _ = umount2(&self.dir, MntFlags::MNT_DETACH);
    }
}

fn serve(mut device: File, answers_statfs: bool, stop: &AtomicBool, was_read: &AtomicBool, was_written: &AtomicBool) {
    let mut request = vec![0; REQUEST_BYTES_MAX];
    while !stop.load(Ordering::Relaxed) {
        let _ = poll(&mut [PollFd::new(device.as_fd(), PollFlags::POLLIN)], PollTimeout::from(50u8));
        let Ok(bytes) = device.read(&mut request) else { continue };
        let request = &request[..bytes];
        let number = |at: usize, len: usize| request[at..at + len].iter().rev().fold(0u64, |all, byte| all << 8 | u64::from(*byte));
        let (operation, unique, node) = (number(4, 4), number(8, 8), number(16, 8));
        let answer = match operation {
            // FORGET, INTERRUPT, BATCH_FORGET: no answer is expected.
            2 | 36 | 42 => continue,
            // LOOKUP
            1 if request[40..].starts_with(b"data\0") => Ok([&words(&[DATA, 0, 0, 0, 0])[..], &attributes(DATA)].concat()),
            1 => Err(-2),
            // GETATTR
            3 => Ok([&words(&[0, 0])[..], &attributes(node)].concat()),
            // OPEN and OPENDIR, past the page cache.
            14 | 27 => Ok(words(&[0, 1])),
            // STATFS: five counts, the sizes of blocks and names, and of fragments, the rest.
            17 if !answers_statfs => continue,
            17 => Ok(words(&[1000, 1000, 1000, 1000, 1000, 255 << 32 | 4096, 4096, 0, 0, 0])),
            // READ
            15 => {
                was_read.store(true, Ordering::Relaxed);
                continue;
            }
            // WRITE
            16 => {
                was_written.store(true, Ordering::Relaxed);
                continue;
            }
            // INIT: version 7.31, writes of a page, times to the nanosecond.
            26 => Ok(words(&[31 << 32 | 7, 0, 0, 1 << 32 | 4096, 0, 0, 0, 0])),
            _ => Err(NOT_THERE),
        };
        let (error, body) = answer.map_or_else(|error| (error, Vec::new()), |body| (0i32, body));
        let length = u32::try_from(16 + body.len()).unwrap();
        let head = [&length.to_ne_bytes()[..], &error.to_ne_bytes(), &unique.to_ne_bytes()].concat();
        let _gone = device.write(&[head, body].concat());
    }
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// Attributes of a directory, or of a file of one page: number, size and blocks, three times, three nanoseconds and the
/// mode, links and owner, the rest.
fn attributes(node: u64) -> Vec<u8> {
    let mode: u64 = if node == ROOT { 0o40_755 } else { 0o100_444 };
    words(&[node, 4096, 8, 0, 0, 0, 0, mode << 32, 1, 0, 4096])
}
