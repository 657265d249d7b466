//! Where work saves itself on its node, and what it finds there.
//!
//! ```text
//!   <checkpoint_dir>/<allocation>/          LATTICE_CHECKPOINT_DIR: the user's, mode 0700
//!     request                               the token of what is asked for, and by when; put there whole
//!     <token>/                              into which the application saves
//!     <token>.done | .failed | .deferred    by the application: its answer; by the agent, where it came in a call
//!   <checkpoint_dir>/<allocation>.restore/  LATTICE_RESTORE_FROM: what is begun from
//!   <checkpoint_dir>/<allocation>.put       root's: what is in the store already ([`super::store::Uploads`])
//!   <checkpoint_dir>/<allocation>.shm       LATTICE_CHECKPOINT_SHM: the user's, of what is asked through it ([`super::page`])
//! ```
//!
//! The token is new in each round, so an answer is to one round alone. All in the allocation's directory is the user's to change
//! at any moment, and the agent has root's rights: every name is opened below it without following links, and only a regular file
//! of the user's own is read.

pub use super::answer::{Answer, Claims, Found, Listed, reason};
use super::page::PageError;
use super::simulated::NoTime;
use lattice_machine::data_plane::{OwnDirectoryError, UnusableDirectory, own_directory};
use lattice_model::{AllocationId, CheckpointId, Principal};
use lattice_runtime::remove::{remove_at_most, remove_tree};
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, RenameFlags, ResolveFlag, open, openat2, renameat, renameat2};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, mkdirat};
use nix::sys::statvfs::fstatvfs;
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, unlinkat};
use std::ffi::{CStr, CString};
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Bytes of an answer that are read.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;
/// Files and directories of one node's part.
const ENTRIES_MAX: usize = 100_000;
/// Bytes of a path, by which it can be laid down again below another directory.
const PATH_BYTES_MAX: usize = 1024;
/// Bytes of all paths of one node's part.
const PATHS_BYTES_MAX: usize = 32 << 20;
/// Directories in each other.
const DEPTH_MAX: usize = 64;
/// How the name of the directory ends from which work begins again.
const RESTORE: &str = ".restore";
/// How the name of the page ends through which work is asked.
const PAGE: &str = ".shm";
/// How the name of the file ends that says what is in the store already.
const PUT: &str = ".put";
/// How the name of a directory begins that is being removed, or made.
const ASIDE: &str = ".aside-";

/// What failed with the directories of this node's allocations, and with which one.
#[derive(Debug, Error)]
pub enum DirectoryError {
    #[error("checkpoint_dir {}: {source}", .path.display())]
    MakeRoot { path: PathBuf, source: io::Error },
    #[error(transparent)]
    UnusableRoot(#[from] UnusableDirectory),
    #[error("checkpoint directory {}: {source}", .path.display())]
    Make { path: PathBuf, source: OwnDirectoryError },
    #[error(transparent)]
    MakePage(#[from] PageError),
    #[error("{}: {source}", .path.display())]
    BeginRestore { path: PathBuf, source: io::Error },
    #[error("{}: {source}", .path.display())]
    GiveRestored { path: PathBuf, source: io::Error },
    #[error("{}: {source}", .path.display())]
    PlaceRestored { path: PathBuf, source: io::Error },
    #[error("{} cannot be removed: {source}", .path.display())]
    Remove { path: PathBuf, source: io::Error },
    #[error("{}: {source}", .path.display())]
    Open { path: PathBuf, source: Errno },
}

/// What failed within one allocation's directory, and with which name in it.
#[derive(Debug, Error)]
pub enum PlaceError {
    #[error("{}: {source}", .path.display())]
    LookUpToken { path: PathBuf, source: Errno },
    #[error("{}: {source}", .path.display())]
    MakeRoom { path: PathBuf, source: Errno },
    #[error("{}: it belongs to somebody else", .path.display())]
    RoomOfAnother { path: PathBuf },
    #[error("{}: it is no file's name", .path.display())]
    NoFileName { path: PathBuf },
    #[error("{}: {source}", .path.display())]
    Put { path: PathBuf, source: Errno },
    #[error("{}: {source}", .path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("the names of its files have more than 64 KiB: tell how many files and bytes there are instead, or pack them, with tar")]
    AnswerTooLong,
    #[error("{}: {source}", .path.display())]
    MeasureRoom { path: PathBuf, source: Errno },
    #[error("{}: {source}", .path.display())]
    Withdraw { path: PathBuf, source: Errno },
    #[error("{name}: {source}")]
    Answer { name: String, source: AnswerError },
    #[error("{name}: {source}")]
    Open { name: String, source: Errno },
    #[error("{name}: {source}")]
    NotTheOwners { name: String, source: NotTheOwners },
    #[error("{name}: {source}")]
    Read { name: String, source: io::Error },
    #[error("{name}: it has more than {ANSWER_BYTES_MAX} bytes")]
    FileTooLong { name: String },
    #[error("{name}: {source}")]
    List { name: String, source: Errno },
    #[error("{name}: more than {DEPTH_MAX} directories in each other")]
    TooDeep { name: String },
    #[error("it has more than {ENTRIES_MAX} files and directories: pack them, with tar")]
    TooManyEntries,
    #[error("{name}: the name {entry:?} is not UTF-8")]
    NotUtf8 { name: String, entry: CString },
    #[error("{name}: a path in it has more than {PATH_BYTES_MAX} bytes: pack it, with tar")]
    PathTooLong { name: String },
    #[error("the paths of its files are too many and too long together: pack them, with tar")]
    PathsTooLong,
    #[error("{name} is a symbolic link: save files and directories alone")]
    SymbolicLink { name: String },
}

/// Why a file is not read that lies where the owner's are.
#[derive(Debug, Error)]
pub enum NotTheOwners {
    #[error("it is no regular file")]
    NoFile,
    #[error("it belongs to uid {uid}, not to the allocation's owner")]
    OfAnother { uid: u32 },
}

/// What an application wrote as its answer that is none.
#[derive(Debug, PartialEq, Error)]
pub enum AnswerError {
    #[error("{line:?} is none of step=NUMBER, time=SECONDS, files=NUMBER, bytes=NUMBER, file=BYTES BLAKE3 PATH (- for what is not told)")]
    Line { line: String },
    #[error(transparent)]
    Time(#[from] NoTime),
    #[error("seconds are wanted, such as 30")]
    NoSeconds,
}

/// What is asked for, as the application knows it.
pub fn token(id: CheckpointId, round: u32) -> String {
    format!("{}-{round}", id.0.simple())
}

/// Where the allocations of this node have theirs.
#[derive(Clone, Debug)]
pub struct Directories {
    root: PathBuf,
}

impl Directories {
    /// Below `root`, which is made: ours alone to write to, everybody's to pass through.
    pub fn below(root: PathBuf) -> Result<Self, DirectoryError> {
        let made = DirBuilder::new().recursive(true).mode(0o711).create(&root);
        made.map_err(|source| DirectoryError::MakeRoot { path: root.clone(), source })?;
        lattice_machine::data_plane::usable("checkpoint_dir", &root)?;
        Ok(Self { root })
    }

    /// What the work of an allocation is told.
    pub fn of(&self, allocation: AllocationId) -> PathBuf {
        self.root.join(allocation.to_string())
    }

    /// From where it begins, where it begins from a checkpoint.
    pub fn restore_of(&self, allocation: AllocationId) -> PathBuf {
        self.root.join(format!("{allocation}{RESTORE}"))
    }

    /// The page through which an allocation's work is asked, where it is asked through one.
    pub fn page_of(&self, allocation: AllocationId) -> PathBuf {
        self.root.join(format!("{allocation}{PAGE}"))
    }

    /// Where it is written down what is in the store already.
    pub fn uploads_of(&self, allocation: AllocationId) -> PathBuf {
        self.root.join(format!("{allocation}{PUT}"))
    }

    /// Makes it. May be done again.
    pub fn make_page(&self, allocation: AllocationId, owner: &Principal) -> Result<(), DirectoryError> {
        super::page::make(&self.page_of(allocation), &self.root.join(format!("{ASIDE}{allocation}{PAGE}")), owner)?;
        Ok(())
    }

    /// Makes an allocation's. May be done again.
    pub fn make(&self, allocation: AllocationId, owner: &Principal) -> Result<(), DirectoryError> {
        let path = self.of(allocation);
        own_directory(&path, owner).map(drop).map_err(|source| DirectoryError::Make { path, source })
    }

    /// A directory that only we can enter, for what is restored; nothing of a former try is in it.
    pub fn restoring(&self, allocation: AllocationId) -> Result<PathBuf, DirectoryError> {
        let path = self.root.join(format!("{ASIDE}{allocation}"));
        let failed = |source| DirectoryError::BeginRestore { path: path.clone(), source };
        remove_tree(&path).map_err(failed)?;
        DirBuilder::new().mode(0o700).create(&path).map_err(failed)?;
        Ok(path)
    }

    /// Puts what was restored into its place, whole.
    pub fn restored(&self, allocation: AllocationId, from: &Path) -> Result<(), DirectoryError> {
        let to = self.restore_of(allocation);
        let placed = remove_tree(&to).and_then(|()| fs::rename(from, &to));
        placed.map_err(|source| DirectoryError::PlaceRestored { path: to, source })
    }

    /// Removes all of an allocation's. May be done again.
    pub fn remove(&self, allocation: AllocationId) -> Result<(), DirectoryError> {
        let aside = self.root.join(format!("{ASIDE}{allocation}"));
        for path in [self.of(allocation), self.restore_of(allocation), aside] {
            remove_tree(&path).map_err(|source| DirectoryError::Remove { path, source })?;
        }
        for path in [self.page_of(allocation), self.root.join(format!("{ASIDE}{allocation}{PAGE}")), self.uploads_of(allocation)] {
            gone(fs::remove_file(&path)).map_err(|source| DirectoryError::Remove { path, source })?;
        }
        Ok(())
    }

    /// Removes what is there of allocations that `known` does not know.
    pub fn sweep(&self, known: impl Fn(AllocationId) -> bool) {
        let names = fs::read_dir(&self.root).into_iter().flatten().flatten().filter_map(|e| e.file_name().into_string().ok());
        for name in names {
            let plain = name.strip_prefix(ASIDE).unwrap_or(&name);
            let plain = [RESTORE, PAGE, PUT].iter().find_map(|ending| plain.strip_suffix(ending)).unwrap_or(plain);
            let Ok(allocation) = plain.parse::<AllocationId>() else { continue };
            if !known(allocation)
                && let Err(why) = self.remove(allocation)
            {
                tracing::warn!(%allocation, %why, "a stray checkpoint directory stays");
            }
        }
    }

    /// An allocation's, opened.
    pub fn open(&self, allocation: AllocationId, owner: &Principal) -> Result<Place, DirectoryError> {
        let path = self.of(allocation);
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let at = open(&path, flags, Mode::empty()).map_err(|source| DirectoryError::Open { path: path.clone(), source })?;
        Ok(Place { at, path, owner: (owner.uid, owner.gid) })
    }
}

/// An allocation's directory.
pub struct Place {
    at: OwnedFd,
    path: PathBuf,
    owner: (u32, u32),
}

impl Place {
    /// Whether this token was asked for: there is room for it.
    pub fn asked(&self, token: &str) -> Result<bool, PlaceError> {
        match self.beneath(token, OFlag::O_RDONLY | OFlag::O_DIRECTORY) {
            Ok(_) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(source) => Err(PlaceError::LookUpToken { path: self.path.join(token), source }),
        }
    }

    /// Makes the directory for what this token asks for. May be done again: what was saved for this token stays.
    pub fn make_room(&self, token: &str) -> Result<(), PlaceError> {
        let failed = |source| PlaceError::MakeRoom { path: self.path.join(token), source };
        match mkdirat(&self.at, token, Mode::S_IRWXU) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(error) => return Err(failed(error)),
        }
        let directory = self.beneath(token, OFlag::O_RDONLY | OFlag::O_DIRECTORY).map_err(failed)?;
        let about = fstat(&directory).map_err(failed)?;
        if about.st_uid != self.owner.0 {
            if about.st_uid != nix::unistd::geteuid().as_raw() {
                return Err(PlaceError::RoomOfAnother { path: self.path.join(token) });
            }
            self.give(&directory).map_err(failed)?;
        }
        Ok(())
    }

    /// Says that this token is asked for.
    pub fn request(&self, token: &str, deadline_ms: u64) -> Result<(), PlaceError> {
        self.put(&format!(".{token}.request"), "request", &format!("{token}\n{deadline_ms}\n"))
    }

    /// Puts the application's answer there for it, as it would itself.
    pub fn put_answer(&self, token: &str, answer: &Answer) -> Result<(), PlaceError> {
        let (ending, text) = match answer {
            Answer::Done(claims) => ("done", claims.to_text()),
            Answer::Failed { why } => ("failed", format!("{why}\n")),
            Answer::Deferred { for_ms } => ("deferred", format!("{}.{:03}\n", for_ms / 1000, for_ms % 1000)),
        };
        if text.len() as u64 > ANSWER_BYTES_MAX {
            return Err(PlaceError::AnswerTooLong);
        }
        self.put(&format!(".{token}.answer"), &format!("{token}.{ending}"), &text)
    }

    /// A file of the owner's, whole from the moment that it is there. `new`: its name until then.
    fn put(&self, new: &str, name: &str, text: &str) -> Result<(), PlaceError> {
        let failed = |what: &str, source| PlaceError::Put { path: self.path.join(what), source };
        // What is removed and renamed follows links in all of a path but its last name.
        if new.contains('/') || name.contains('/') {
            return Err(PlaceError::NoFileName { path: self.path.join(name) });
        }
        match unlinkat(&self.at, new, UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(error) => return Err(failed(new, error)),
        }
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
        let file = openat2(&self.at, new, how(flags).mode(Mode::S_IRUSR | Mode::S_IWUSR)).map_err(|e| failed(new, e))?;
        self.give(&file).map_err(|e| failed(new, e))?;
        let written = File::from(file).write_all(text.as_bytes());
        written.map_err(|source| PlaceError::Write { path: self.path.join(new), source })?;
        // One that is there changes places with it: put in its place, it would be written out first on ext4, which waits for that.
        match renameat2(&self.at, new, &self.at, name, RenameFlags::RENAME_EXCHANGE) {
            Ok(()) => unlinkat(&self.at, new, UnlinkatFlags::NoRemoveDir).map_err(|e| failed(new, e)),
            Err(_) => renameat(&self.at, new, &self.at, name).map_err(|e| failed(name, e)),
        }
    }

    fn give(&self, what: &OwnedFd) -> nix::Result<()> {
        fchown(what, Some(Uid::from_raw(self.owner.0)), Some(Gid::from_raw(self.owner.1)))
    }

    /// Removes what earlier tokens left. What writes there meanwhile, or cannot be removed, leaves some of it: no token comes twice.
    pub fn forget_all_but(&self, token: &str) -> io::Result<()> {
        let mut most = 4 * ENTRIES_MAX as u64;
        let mut dir = Dir::from_fd(self.beneath(".", OFlag::O_RDONLY | OFlag::O_DIRECTORY)?)?;
        let names: Vec<_> = dir.iter().flatten().map(|entry| entry.file_name().to_owned()).take(ENTRIES_MAX).collect();
        for name in names {
            // Only what we asked for once: the rest of the directory is the user's own.
            let Some(text) = name.to_str().ok().filter(|text| is_of_a_token(text) && !text.starts_with(token)) else { continue };
            if let Err(Errno::EISDIR | Errno::EPERM) = unlinkat(&self.at, text, UnlinkatFlags::NoRemoveDir) {
                let path = self.path.join(text);
                match remove_at_most(&path, &mut most) {
                    Ok(true) => {}
                    Ok(false) => tracing::debug!(path = %path.display(), "what an earlier checkpoint left is written to: some stays"),
                    Err(error) => tracing::warn!(path = %path.display(), %error, "what an earlier checkpoint left stays"),
                }
            }
        }
        Ok(())
    }

    /// Removes what was saved for this token.
    pub fn forget(&self, token: &str) -> io::Result<()> {
        remove_at_most(&self.path.join(token), &mut (4 * ENTRIES_MAX as u64)).map(drop)
    }

    /// Whether its owner has no room left there.
    pub fn is_full(&self) -> Result<bool, PlaceError> {
        self.room().map(|room| room == 0)
    }

    /// How many bytes its owner has left there.
    pub fn room(&self) -> Result<u64, PlaceError> {
        let about = fstatvfs(&self.at).map_err(|source| PlaceError::MeasureRoom { path: self.path.clone(), source })?;
        let blocks = if self.owner.0 == 0 { about.blocks_free() } else { about.blocks_available() };
        Ok(blocks.saturating_mul(about.fragment_size()))
    }

    fn beneath(&self, name: &str, flags: OFlag) -> nix::Result<OwnedFd> {
        openat2(&self.at, name, how(flags))
    }

    /// The token that is asked for; `None`: none was yet, or the application removed what says so.
    pub fn requested(&self) -> Result<Option<String>, PlaceError> {
        Ok(self.read("request", false)?.and_then(|text| text.lines().next().map(str::to_owned)))
    }

    /// Takes back what says that this token is asked for: an answer to it is refused then, by later lives of the agent as well.
    pub fn withdraw(&self, token: &str) -> Result<(), PlaceError> {
        if self.requested()?.as_deref() != Some(token) {
            return Ok(());
        }
        let removed = unlinkat(&self.at, "request", UnlinkatFlags::NoRemoveDir);
        removed.map_err(|source| PlaceError::Withdraw { path: self.path.join("request"), source })
    }

    /// What the application answered to this token, if it did.
    pub fn answer(&self, token: &str) -> Result<Option<Answer>, PlaceError> {
        self.find(token, true)
    }

    /// The same of an answer that came in a call, which is there whole from the first moment.
    pub fn answered(&self, token: &str) -> Result<Option<Answer>, PlaceError> {
        self.find(token, false)
    }

    fn find(&self, token: &str, settled: bool) -> Result<Option<Answer>, PlaceError> {
        for (ending, read) in [("done", done as fn(&str) -> _), ("failed", not_done), ("deferred", deferred)] {
            let name = format!("{token}.{ending}");
            if let Some(text) = self.read(&name, settled)? {
                return read(&text).map(Some).map_err(|source| PlaceError::Answer { name, source });
            }
        }
        Ok(None)
    }

    /// A small file of the user's; `None`: it is not there, or, where it is to have settled, is just being written.
    fn read(&self, name: &str, settled: bool) -> Result<Option<String>, PlaceError> {
        let named = || name.to_owned();
        let file = match self.beneath(name, OFlag::O_RDONLY | OFlag::O_NONBLOCK) {
            Ok(file) => file,
            Err(Errno::ENOENT) => return Ok(None),
            Err(source) => return Err(PlaceError::Open { name: named(), source }),
        };
        let about = fstat(&file).map_err(|source| PlaceError::Open { name: named(), source })?;
        self.check(&about).map_err(|source| PlaceError::NotTheOwners { name: named(), source })?;
        if settled && just_written(&about) {
            return Ok(None);
        }
        let mut text = String::new();
        let mut bounded = File::from(file).take(ANSWER_BYTES_MAX + 1);
        bounded.read_to_string(&mut text).map_err(|source| PlaceError::Read { name: named(), source })?;
        if text.len() as u64 > ANSWER_BYTES_MAX {
            return Err(PlaceError::FileTooLong { name: named() });
        }
        Ok(Some(text))
    }

    fn check(&self, about: &FileStat) -> Result<(), NotTheOwners> {
        if about.st_mode & SFlag::S_IFMT.bits() != SFlag::S_IFREG.bits() {
            return Err(NotTheOwners::NoFile);
        }
        if about.st_uid != self.owner.0 {
            return Err(NotTheOwners::OfAnother { uid: about.st_uid });
        }
        Ok(())
    }

    /// All that was saved for this token, directories before what is in them, in the order of their names.
    pub fn saved(&self, token: &str) -> Result<Vec<Found>, PlaceError> {
        let mut found = Vec::new();
        self.walk(token, "", 0, &mut found, &mut PATHS_BYTES_MAX.clone())?;
        Ok(found)
    }

    fn walk(&self, token: &str, below: &str, depth: usize, found: &mut Vec<Found>, left: &mut usize) -> Result<(), PlaceError> {
        let at = if below.is_empty() { token.to_owned() } else { format!("{token}/{below}") };
        let failed = |source| PlaceError::List { name: at.clone(), source };
        if depth > DEPTH_MAX {
            return Err(PlaceError::TooDeep { name: at });
        }
        let directory = self.beneath(&at, OFlag::O_RDONLY | OFlag::O_DIRECTORY).map_err(failed)?;
        let mut dir = Dir::from_fd(directory).map_err(failed)?;
        let mut names: Vec<String> = Vec::new();
        for entry in dir.iter() {
            let entry = entry.map_err(failed)?;
            let name: &CStr = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            if found.len() + names.len() >= ENTRIES_MAX {
                return Err(PlaceError::TooManyEntries);
            }
            let name = name.to_str().map_err(|_| PlaceError::NotUtf8 { name: at.clone(), entry: name.to_owned() })?;
            let bytes = below.len() + 1 + name.len();
            if bytes > PATH_BYTES_MAX {
                return Err(PlaceError::PathTooLong { name: at });
            }
            *left = left.checked_sub(bytes).ok_or(PlaceError::PathsTooLong)?;
            names.push(name.to_owned());
        }
        names.sort_unstable();
        for name in names {
            let path = if below.is_empty() { name } else { format!("{below}/{name}") };
            let named = || path.clone();
            let file = self.beneath(&format!("{token}/{path}"), OFlag::O_RDONLY | OFlag::O_NONBLOCK).map_err(|e| match e {
                Errno::ELOOP => PlaceError::SymbolicLink { name: named() },
                source => PlaceError::Open { name: named(), source },
            })?;
            let about = fstat(&file).map_err(|source| PlaceError::Open { name: named(), source })?;
            let mode = about.st_mode & 0o777;
            if about.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFDIR.bits() {
                found.push(Found { path: path.clone(), mode, size: None });
                self.walk(token, &path, depth + 1, found, left)?;
            } else {
                self.check(&about).map_err(|source| PlaceError::NotTheOwners { name: named(), source })?;
                found.push(Found { path, mode, size: Some(about.st_size.cast_unsigned()) });
            }
        }
        Ok(())
    }

    /// One of the files, opened.
    pub fn file(&self, token: &str, found: &Found) -> Result<File, PlaceError> {
        let at = format!("{token}/{}", found.path);
        let failed = |source| PlaceError::Open { name: found.path.clone(), source };
        let file = self.beneath(&at, OFlag::O_RDONLY | OFlag::O_NONBLOCK).map_err(failed)?;
        let about = fstat(&file).map_err(failed)?;
        self.check(&about).map_err(|source| PlaceError::NotTheOwners { name: found.path.clone(), source })?;
        Ok(File::from(file))
    }
}

/// Opens nothing outside of the directory, and follows no link.
fn how(flags: OFlag) -> OpenHow {
    let beneath = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    OpenHow::new().flags(flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC).resolve(beneath)
}

/// `<32 hexadecimal digits>-<round>`, with an ending or without.
fn is_of_a_token(name: &str) -> bool {
    let plain = name.strip_prefix('.').unwrap_or(name);
    plain.len() > 33 && plain.is_char_boundary(32) && plain[..32].bytes().all(|b| b.is_ascii_hexdigit()) && plain.as_bytes()[32] == b'-'
}

/// Whether it is one: what callers name becomes part of files' names, which root makes.
pub fn is_token(text: &str) -> bool {
    let is_round = |round: &str| (1..=10).contains(&round.len()) && round.bytes().all(|b| b.is_ascii_digit());
    let is_id = |id: &str| id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit());
    text.split_once('-').is_some_and(|(id, round)| is_id(id) && is_round(round))
}

/// A file that is being written is looked at again: `echo > FILE` makes it empty first.
fn just_written(about: &FileStat) -> bool {
    const SETTLED_NS: i128 = 20_000_000;
    let Ok(now) = nix::time::clock_gettime(nix::time::ClockId::CLOCK_REALTIME) else { return false };
    let age = i128::from(now.tv_sec() - about.st_mtime) * 1_000_000_000 + i128::from(now.tv_nsec() - about.st_mtime_nsec);
    (0..SETTLED_NS).contains(&age)
}

fn done(text: &str) -> Result<Answer, AnswerError> {
    let mut claims = Claims::default();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (key, value) = line.split_once('=').ok_or_else(|| odd(line))?;
        if key.trim() == "file" {
            let (path, said) = listed(value).ok_or_else(|| odd(line))?;
            claims.listed.insert(path, said);
            continue;
        }
        if key.trim() == "time" {
            claims.time = Some(value.trim().parse()?);
            continue;
        }
        let number = Some(value.trim().parse().map_err(|_| odd(line))?);
        match key.trim() {
            "step" => claims.step = number,
            "files" => claims.files = number,
            "bytes" => claims.bytes = number,
            _ => return Err(odd(line)),
        }
    }
    Ok(Answer::Done(claims))
}

fn odd(line: &str) -> AnswerError {
    AnswerError::Line { line: line.chars().take(40).collect() }
}

/// `BYTES BLAKE3 PATH`, of a file.
fn listed(value: &str) -> Option<(String, Listed)> {
    let (bytes, rest) = value.trim().split_once(' ')?;
    let (blake3, path) = rest.split_once(' ')?;
    let told = |text: &str| (text != "-").then(|| text.to_owned());
    let bytes = told(bytes).map(|number| number.parse().ok().ok_or(())).transpose().ok()?;
    let blake3 = told(blake3).map(|digits| digits.to_ascii_lowercase());
    if path.is_empty() || blake3.as_ref().is_some_and(|digits| !is_blake3(digits)) {
        return None;
    }
    Some((path.to_owned(), Listed { bytes, blake3 }))
}

/// Whether it is 64 hexadecimal digits.
pub fn is_blake3(digits: &str) -> bool {
    digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Nothing, where there was nothing.
pub fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn not_done(text: &str) -> Result<Answer, AnswerError> {
    Ok(Answer::Failed { why: reason(text) })
}

fn deferred(text: &str) -> Result<Answer, AnswerError> {
    let seconds: f64 = text.trim().parse().map_err(|_| AnswerError::NoSeconds)?;
    let ms = (seconds.clamp(0.0, 86_400.0) * 1000.0).round();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and a day; what is no number is 0")]
    Ok(Answer::Deferred { for_ms: ms as u64 })
}

/// Makes a file or directory of what is restored, below a directory that is ours alone.
pub fn lay_down(root: &Path, path: &str, mode: u32, directory: bool) -> io::Result<Option<File>> {
    if path.is_empty() || path.len() > PATH_BYTES_MAX || path.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(io::Error::new(ErrorKind::InvalidData, format!("{path:?} is no path of a file in a checkpoint")));
    }
    let to = root.join(path);
    if directory {
        DirBuilder::new().mode(0o700).create(&to)?;
        return Ok(None);
    }
    let file = File::options().write(true).create_new(true).open(&to)?;
    fchmod(&file, Mode::from_bits_truncate(mode & 0o777))?;
    Ok(Some(file))
}

/// Gives all of it to the owner, from within: as long as its top is ours nobody else meddles with it.
pub fn give_all(root: &Path, entries: &[Found], owner: &Principal) -> io::Result<()> {
    let give = |path: &Path, mode: Option<u32>| -> io::Result<()> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let what = open(path, flags, Mode::empty())?;
        fchown(what.as_fd(), Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)))?;
        if let Some(mode) = mode {
            fchmod(&what, Mode::from_bits_truncate(mode & 0o777))?;
        }
        Ok(())
    };
    for found in entries.iter().rev() {
        give(&root.join(&found.path), Some(found.mode))?;
    }
    give(root, None)
}

#[cfg(test)]
#[path = "directory_fuzz.rs"]
mod fuzz;
#[cfg(test)]
#[path = "directory_tests.rs"]
mod tests;
