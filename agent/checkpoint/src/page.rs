//! The memory page through which an allocation's work on this node is asked to save itself
//! (`--checkpoint=shmem`): see [`lattice_checkpoint::layout`].
//!
//! The file belongs to the user, who may write anything into it and truncate it at any moment, and
//! the agent runs as root. So the agent never touches the page's memory: it reads and writes the
//! file with system calls, and lets the kernel increment the futex word. If the page is missing,
//! such a call returns an error, where a memory access would end the process.

use super::answer::{Answer, Claims, reason};
use super::simulated::{NoTime, SimulatedTime};
use lattice_checkpoint::layout::{
    AT_ANSWER, AT_ANSWERED, AT_BYTES, AT_DEADLINE, AT_DEFERRAL, AT_FILES, AT_LEFT, AT_OF_REQUEST, AT_PERCENT, AT_REASON, AT_REQUEST,
    AT_SAVED_BYTES, AT_STEP, AT_TAKEN, AT_TIME, AT_TIME_SET, AT_TOKEN, AT_VERSION, BYTES, DEFERRED, DONE, FAILED, MAGIC, REASON_BYTES,
    TOKEN_BYTES, UNREPORTED, VERSION,
};
use lattice_model::Principal;
use lattice_node::Progress;
use lattice_runtime::failpoint::{self, Point};
use nix::unistd::{Gid, Uid, fchown};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr;
use thiserror::Error;

/// `FUTEX_WAKE_OP`: add the argument to the word.
const OP_ADD: u32 = 1 << 28;
/// Milliseconds of a day: the longest time that an application may report.
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// What failed with an allocation's page.
#[derive(Debug, Error)]
pub enum PageError {
    #[error("{}: {source}", .path.display())]
    Make { path: PathBuf, source: io::Error },
    #[error("{}: {source}", .path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("{}: it is not a regular file of the allocation's owner", .path.display())]
    NotTheOwners { path: PathBuf },
    #[error("the shared page {}: {source}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(
        "the shared page {}: the application made it shorter than {BYTES} bytes, and cannot be asked through it any more",
        .path.display()
    )]
    Shortened { path: PathBuf },
    #[error("the shared page {}: {source}", .path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("the shared page {}: {source}", .path.display())]
    SeeListeners { path: PathBuf, source: io::Error },
    #[error("the shared page {}: {source}", .path.display())]
    CountUp { path: PathBuf, source: io::Error },
    #[error("the shared page {}: a token of {bytes} bytes does not fit", .path.display())]
    TokenTooLong { path: PathBuf, bytes: usize },
    #[error(
        "the shared page {}: the application overwrites the agent's fields: no request can be written there",
        .path.display()
    )]
    Overwritten { path: PathBuf },
    #[error(transparent)]
    AnswerTime(#[from] NoTime),
    #[error(
        "the shared page {}: the application answered {answer}; only 1 (done), 2 (failed) and 3 (deferred) are valid",
        .path.display()
    )]
    Answer { path: PathBuf, answer: u32 },
}

/// An allocation's page, opened.
pub struct Page {
    file: File,
    path: PathBuf,
}

/// Creates an allocation's page so that it appears complete; an existing page stays. `aside` is on
/// the same file system, and nobody else may write to the directory of either path.
pub fn make(path: &Path, aside: &Path, owner: &Principal) -> Result<(), PageError> {
    let failed = |source| PageError::Make { path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Ok(_) => return Ok(()),
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
        Err(_) => {}
    }
    match fs::remove_file(aside) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
        Ok(()) | Err(_) => {}
    }
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(aside).map_err(failed)?;
    let mut page = [0; BYTES];
    page[..AT_BYTES + 4].copy_from_slice(&beginning());
    // Written in full and synced: a process that writes into a hole of a mapped file on a full disk
    // is killed.
    file.write_all(&page).and_then(|()| file.sync_all()).map_err(failed)?;
    fchown(&file, Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid))).map_err(|e| failed(e.into()))?;
    fs::rename(aside, path).map_err(failed)
}

/// The bytes by which a page is recognised.
fn beginning() -> [u8; AT_BYTES + 4] {
    let mut all = [0; AT_BYTES + 4];
    all[..MAGIC.len()].copy_from_slice(&MAGIC);
    all[AT_VERSION..AT_VERSION + 4].copy_from_slice(&VERSION.to_ne_bytes());
    all[AT_BYTES..].copy_from_slice(&u32::try_from(BYTES).unwrap_or(u32::MAX).to_ne_bytes());
    all
}

impl Page {
    pub fn open(path: PathBuf, owner: &Principal) -> Result<Self, PageError> {
        let failed = |source| PageError::Open { path: path.clone(), source };
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = File::options().read(true).write(true).custom_flags(flags).open(&path).map_err(failed)?;
        let about = file.metadata().map_err(failed)?;
        if !about.is_file() || about.uid() != owner.uid {
            return Err(PageError::NotTheOwners { path });
        }
        Ok(Self { file, path })
    }

    /// The content of the page.
    fn read(&self) -> Result<[u8; BYTES], PageError> {
        let mut page = [0; BYTES];
        match self.file.read_exact_at(&mut page, 0) {
            Ok(()) => Ok(page),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(PageError::Shortened { path: self.path.clone() }),
            Err(source) => Err(PageError::Read { path: self.path.clone(), source }),
        }
    }

    fn write(&self, at: usize, bytes: &[u8]) -> Result<(), PageError> {
        self.file.write_all_at(bytes, at as u64).map_err(|source| PageError::Write { path: self.path.clone(), source })
    }

    /// Whether the application listens: a listener holds a shared lock.
    pub fn is_listened(&self) -> Result<bool, PageError> {
        // SAFETY: the descriptor is open for as long as `self` lives.
        if unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            // Unlocked explicitly: a child that is being forked has the descriptor as well.
            // SAFETY: as above.
            unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_UN) };
            return Ok(false);
        }
        match io::Error::last_os_error() {
            held if held.kind() == ErrorKind::WouldBlock => Ok(true),
            source => Err(PageError::SeeListeners { path: self.path.clone(), source }),
        }
    }

    /// The number of the current request, if it is for this token.
    pub fn asked(&self, token: &str) -> Result<Option<u32>, PageError> {
        Ok(asked(&self.read()?, token))
    }

    /// Writes a request and wakes all waiters. If the current request is for the same token, only
    /// wakes them. Returns the number that the answer must carry.
    pub fn ask(&self, token: &str, deadline_ms: u64) -> Result<u32, PageError> {
        let page = self.read()?;
        if let Some(number) = asked(&page, token) {
            self.count_up(0)?;
            return Ok(number);
        }
        if token.len() >= TOKEN_BYTES {
            return Err(PageError::TokenTooLong { path: self.path.clone(), bytes: token.len() });
        }
        // The application may have overwritten the agent's fields.
        if page[..AT_BYTES + 4] != beginning() {
            self.write(0, &beginning())?;
        }
        let mut now = word(&page, AT_REQUEST);
        if now == u32::MAX {
            now = 0;
            self.write(AT_REQUEST, &now.to_ne_bytes())?;
        }
        let number = now + 1;
        // The next number belongs to no request yet, so a half-written request counts as none.
        self.write(AT_OF_REQUEST, &number.to_ne_bytes())?;
        failpoint::pass(Point::PageNumbered);
        let mut request = [0; AT_TOKEN - AT_DEADLINE + TOKEN_BYTES];
        let (deadline, name) = request.split_at_mut(AT_TOKEN - AT_DEADLINE);
        deadline.copy_from_slice(&deadline_ms.to_ne_bytes());
        name[..token.len()].copy_from_slice(token.as_bytes());
        self.write(AT_DEADLINE, &request)?;
        failpoint::pass(Point::PageNamed);
        self.count_up(1)?;
        failpoint::pass(Point::PageCounted);
        if self.asked(token)? == Some(number) {
            return Ok(number);
        }
        Err(PageError::Overwritten { path: self.path.clone() })
    }

    /// Withdraws the request for this token if it is current and unanswered: sets the number that
    /// deadline and token belong to to 0. A later request for the token gets another number.
    pub fn withdraw(&self, token: &str) -> Result<(), PageError> {
        match self.asked(token)? {
            Some(number) if word(&self.read()?, AT_ANSWERED) != number => self.write(AT_OF_REQUEST, &0u32.to_ne_bytes()),
            Some(_) | None => Ok(()),
        }
    }

    /// Increments the request number and wakes all waiters with one system call, which returns an
    /// error if the page is gone. Nothing here reads or writes mapped memory.
    fn count_up(&self, by: u32) -> Result<(), PageError> {
        let failed = |source| PageError::CountUp { path: self.path.clone(), source };
        // SAFETY: no address is requested, the descriptor is open, and the result is checked.
        let base =
            unsafe { libc::mmap(ptr::null_mut(), BYTES, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, self.file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(failed(io::Error::last_os_error()));
        }
        let word = base.wrapping_byte_add(AT_REQUEST);
        let none: libc::c_long = 0;
        // SAFETY: only the kernel follows the address, and it checks it as it does any other.
        let woken = unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE_OP, i32::MAX, none, word, OP_ADD | (by << 12)) };
        let error = io::Error::last_os_error();
        // SAFETY: mapped above with this length; nobody else has the address.
        unsafe { libc::munmap(base, BYTES) };
        if woken < 0 { Err(failed(error)) } else { Ok(()) }
    }

    /// The application's answer to the request with this number, if there is one.
    pub fn answer(&self, number: u32) -> Result<Option<Answer>, PageError> {
        if word(&self.read()?, AT_ANSWERED) != number {
            return Ok(None);
        }
        // Read again: the number is written last, so the rest may have been read before it was
        // written.
        let page = self.read()?;
        let reported = |at: usize| Some(long(&page, at)).filter(|value| *value != UNREPORTED);
        match word(&page, AT_ANSWER) {
            DONE => {
                let (step, files, bytes) = (reported(AT_STEP), reported(AT_FILES), reported(AT_SAVED_BYTES));
                // An application that reports no time leaves zeros there.
                let time = (word(&page, AT_TIME_SET) == 1).then(|| SimulatedTime::try_from(f64::from_bits(long(&page, AT_TIME))));
                let time = time.transpose()?;
                Ok(Some(Answer::Done(Claims { step, time, files, bytes, ..Claims::default() })))
            }
            FAILED => {
                let why = text(&page, AT_REASON, REASON_BYTES).unwrap_or_default();
                Ok(Some(Answer::Failed { why: reason(&why) }))
            }
            DEFERRED => Ok(Some(Answer::Deferred { for_ms: long(&page, AT_DEFERRAL).min(DAY_MS) })),
            answer => Err(PageError::Answer { path: self.path.clone(), answer }),
        }
    }

    /// The application's progress with the request of this number.
    pub fn progress(&self, number: u32) -> Result<Option<Progress>, PageError> {
        let page = self.read()?;
        if word(&page, AT_TAKEN) != number {
            return Ok(None);
        }
        let percent = u8::try_from(word(&page, AT_PERCENT)).ok().filter(|percent| *percent <= 100);
        Ok(Some(Progress { percent, left_ms: Some(long(&page, AT_LEFT)).filter(|left| *left <= DAY_MS) }))
    }
}

/// The number of the current request, if it is for this token.
fn asked(page: &[u8; BYTES], token: &str) -> Option<u32> {
    let (number, of) = (word(page, AT_REQUEST), word(page, AT_OF_REQUEST));
    let same = text(page, AT_TOKEN, TOKEN_BYTES).is_some_and(|there| there == token);
    (number != 0 && number == of && same).then_some(number)
}

fn word(page: &[u8; BYTES], at: usize) -> u32 {
    page[at..at + 4].try_into().map_or(0, u32::from_ne_bytes)
}

fn long(page: &[u8; BYTES], at: usize) -> u64 {
    page[at..at + 8].try_into().map_or(0, u64::from_ne_bytes)
}

/// A zero-terminated text; invalid UTF-8 is replaced.
fn text(page: &[u8; BYTES], at: usize, most: usize) -> Option<String> {
    let all = &page[at..at + most];
    let end = all.iter().position(|b| *b == 0)?;
    Some(String::from_utf8_lossy(&all[..end]).into_owned())
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;
