//! The directories in which work saves itself on its node, and from which it is restored.
//!
//! ```text
//!   <checkpoint.dir>/<allocation>/          LATTICE_CHECKPOINT_DIR: the user's, mode 0700
//!     request                               token and deadline; appears complete
//!     <token>/                              the application saves into it
//!     <token>.done | .failed | .deferred    the application's answer; the agent writes it if it came in a call
//!   <checkpoint.dir>/<allocation>.restore/  LATTICE_RESTORE_FROM: the work starts from it
//!   <checkpoint.dir>/<allocation>.put       root's: what is in the store already ([`super::store::Uploads`])
//!   <checkpoint.dir>/<allocation>.shm       LATTICE_CHECKPOINT_SHM: the user's memory page ([`super::page`])
//! ```
//!
//! Each round has a new token, so an answer belongs to one round only. The user may change
//! everything in the allocation's directory at any moment, and the agent runs as root: so every
//! name is opened below the directory without following links, and only regular files of the user
//! are read.

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

/// Largest size of an answer or a request, in bytes.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;
/// Largest number of files and directories in one node's part.
const ENTRIES_MAX: usize = 100_000;
/// Longest path in bytes: it must still be usable below another directory.
const PATH_BYTES_MAX: usize = 1024;
/// Largest size of all paths of one node's part together, in bytes.
const PATHS_BYTES_MAX: usize = 32 << 20;
/// Largest depth of nested directories.
const DEPTH_MAX: usize = 64;
/// Suffix of the directory from which work is restored.
const RESTORE: &str = ".restore";
/// Suffix of the memory page.
const PAGE: &str = ".shm";
/// Suffix of the file that lists what is in the store already.
const PUT: &str = ".put";
/// Prefix of a directory that is being created or removed.
const ASIDE: &str = ".aside-";

/// How much a walk over a saved directory may still find.
struct Left {
    entries: usize,
    path_bytes: usize,
}

/// What failed with the directories of this node's allocations.
#[derive(Debug, Error)]
pub enum DirectoryError {
    #[error("checkpoint.dir {}: {source}", .path.display())]
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

/// What failed within one allocation's directory.
#[derive(Debug, Error)]
pub enum PlaceError {
    #[error("{}: {source}", .path.display())]
    LookUpToken { path: PathBuf, source: Errno },
    #[error("{}: {source}", .path.display())]
    MakeRoom { path: PathBuf, source: Errno },
    #[error("{}: it belongs to somebody else", .path.display())]
    RoomOfAnother { path: PathBuf },
    #[error("{}: this is not a file name", .path.display())]
    NoFileName { path: PathBuf },
    #[error("{}: {source}", .path.display())]
    Put { path: PathBuf, source: Errno },
    #[error("{}: {source}", .path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("the names of its files have more than 64 KiB: give the number of files and bytes instead, or pack them with tar")]
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
    #[error("{name} is a symbolic link: save only files and directories")]
    SymbolicLink { name: String },
}

/// Why a file in the owner's directory is not read.
#[derive(Debug, Error)]
pub enum NotTheOwners {
    #[error("it is not a regular file")]
    NoFile,
    #[error("it belongs to uid {uid}, not to the allocation's owner")]
    OfAnother { uid: u32 },
}

/// Why an application's answer is invalid.
#[derive(Debug, PartialEq, Error)]
pub enum AnswerError {
    #[error("{line:?} is none of step=NUMBER, time=SECONDS, files=NUMBER, bytes=NUMBER, file=BYTES BLAKE3 PATH (- for what is not given)")]
    Line { line: String },
    #[error(transparent)]
    Time(#[from] NoTime),
    #[error("a number of seconds is needed, such as 30")]
    NoSeconds,
}

/// The token of a round, as the application sees it.
pub fn token(id: CheckpointId, round: u32) -> String {
    format!("{}-{round}", id.0.simple())
}

/// The checkpoint directories of this node's allocations.
#[derive(Clone, Debug)]
pub struct Directories {
    root: PathBuf,
}

impl Directories {
    /// Directories below `root`, which is created: only the agent may write to it, everybody may
    /// pass through it.
    pub fn below(root: PathBuf) -> Result<Self, DirectoryError> {
        let made = DirBuilder::new().recursive(true).mode(0o711).create(&root);
        made.map_err(|source| DirectoryError::MakeRoot { path: root.clone(), source })?;
        lattice_machine::data_plane::usable("checkpoint.dir", &root)?;
        Ok(Self { root })
    }

    /// The directory in which an allocation's work saves itself.
    pub fn of(&self, allocation: AllocationId) -> PathBuf {
        self.root.join(allocation.to_string())
    }

    /// The directory from which an allocation is restored.
    pub fn restore_of(&self, allocation: AllocationId) -> PathBuf {
        self.root.join(format!("{allocation}{RESTORE}"))
    }

    /// The path of the memory page through which the agent asks the work.
    pub fn page_of(&self, allocation: AllocationId) -> PathBuf {
        self.root.join(format!("{allocation}{PAGE}"))
    }

    /// The file that lists what is in the store already.
    pub fn uploads_of(&self, allocation: AllocationId) -> PathBuf {
        self.root.join(format!("{allocation}{PUT}"))
    }

    /// Creates the memory page. Idempotent.
    pub fn make_page(&self, allocation: AllocationId, owner: &Principal) -> Result<(), DirectoryError> {
        super::page::make(&self.page_of(allocation), &self.root.join(format!("{ASIDE}{allocation}{PAGE}")), owner)?;
        Ok(())
    }

    /// Creates an allocation's directory. Idempotent.
    pub fn make(&self, allocation: AllocationId, owner: &Principal) -> Result<(), DirectoryError> {
        let path = self.of(allocation);
        own_directory(&path, owner).map(drop).map_err(|source| DirectoryError::Make { path, source })
    }

    /// Creates an empty directory for a restore, which only the agent can enter. Removes what an
    /// earlier attempt left.
    pub fn restoring(&self, allocation: AllocationId) -> Result<PathBuf, DirectoryError> {
        let path = self.root.join(format!("{ASIDE}{allocation}"));
        let failed = |source| DirectoryError::BeginRestore { path: path.clone(), source };
        remove_tree(&path).map_err(failed)?;
        DirBuilder::new().mode(0o700).create(&path).map_err(failed)?;
        Ok(path)
    }

    /// Moves a completed restore to its final path, where it appears complete.
    pub fn restored(&self, allocation: AllocationId, from: &Path) -> Result<(), DirectoryError> {
        let to = self.restore_of(allocation);
        let placed = remove_tree(&to).and_then(|()| fs::rename(from, &to));
        placed.map_err(|source| DirectoryError::PlaceRestored { path: to, source })
    }

    /// Removes everything of an allocation. Idempotent.
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

    /// Removes everything of allocations for which `known` is false.
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

    /// Opens an allocation's directory.
    pub fn open(&self, allocation: AllocationId, owner: &Principal) -> Result<Place, DirectoryError> {
        let path = self.of(allocation);
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let at = open(&path, flags, Mode::empty()).map_err(|source| DirectoryError::Open { path: path.clone(), source })?;
        Ok(Place { at, path, owner: (owner.uid, owner.gid) })
    }
}

/// An allocation's directory, opened.
pub struct Place {
    at: OwnedFd,
    path: PathBuf,
    owner: (u32, u32),
}

impl Place {
    /// Whether this token was requested before: its directory exists.
    pub fn asked(&self, token: &str) -> Result<bool, PlaceError> {
        match self.beneath(token, OFlag::O_RDONLY | OFlag::O_DIRECTORY) {
            Ok(_) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(source) => Err(PlaceError::LookUpToken { path: self.path.join(token), source }),
        }
    }

    /// Creates the directory of this token. Idempotent: what was saved there stays.
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

    /// Writes the request for this token.
    pub fn request(&self, token: &str, deadline_ms: u64) -> Result<(), PlaceError> {
        self.put(&format!(".{token}.request"), "request", &format!("{token}\n{deadline_ms}\n"))
    }

    /// Writes an answer in the application's name, in the form that the application would use
    /// itself.
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

    /// Writes a file of the owner that appears complete. `new`: its temporary name.
    fn put(&self, new: &str, name: &str, text: &str) -> Result<(), PlaceError> {
        let failed = |what: &str, source| PlaceError::Put { path: self.path.join(what), source };
        // Removing and renaming follow links in every path component except the last.
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
        // An existing file is exchanged: before ext4 renames a file over another one, it writes the
        // file to the disk, and the caller waits.
        match renameat2(&self.at, new, &self.at, name, RenameFlags::RENAME_EXCHANGE) {
            Ok(()) => unlinkat(&self.at, new, UnlinkatFlags::NoRemoveDir).map_err(|e| failed(new, e)),
            Err(_) => renameat(&self.at, new, &self.at, name).map_err(|e| failed(name, e)),
        }
    }

    fn give(&self, what: &OwnedFd) -> nix::Result<()> {
        fchown(what, Some(Uid::from_raw(self.owner.0)), Some(Gid::from_raw(self.owner.1)))
    }

    /// Removes what earlier tokens left. If the work still writes there, or something cannot be
    /// removed, the rest stays, which does no harm: tokens are never reused.
    pub fn forget_all_but(&self, token: &str) -> io::Result<()> {
        let mut most = 4 * ENTRIES_MAX as u64;
        let mut dir = Dir::from_fd(self.beneath(".", OFlag::O_RDONLY | OFlag::O_DIRECTORY)?)?;
        let names: Vec<_> = dir.iter().flatten().map(|entry| entry.file_name().to_owned()).take(ENTRIES_MAX).collect();
        for name in names {
            // Removes only names made from tokens: the rest of the directory is the user's own.
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

    /// Removes what was saved for this token. The rest stays if the work still writes there.
    pub fn forget(&self, token: &str) -> io::Result<()> {
        remove_at_most(&self.path.join(token), &mut (4 * ENTRIES_MAX as u64)).map(drop)
    }

    /// Whether the owner has no space left in the directory.
    pub fn is_full(&self) -> Result<bool, PlaceError> {
        self.room().map(|room| room == 0)
    }

    /// How many bytes the owner can still write in the directory.
    pub fn room(&self) -> Result<u64, PlaceError> {
        let about = fstatvfs(&self.at).map_err(|source| PlaceError::MeasureRoom { path: self.path.clone(), source })?;
        let blocks = if self.owner.0 == 0 { about.blocks_free() } else { about.blocks_available() };
        Ok(blocks.saturating_mul(about.fragment_size()))
    }

    fn beneath(&self, name: &str, flags: OFlag) -> nix::Result<OwnedFd> {
        openat2(&self.at, name, how(flags))
    }

    /// The token of the present request; `None`: there is none yet, or the application removed the
    /// file.
    pub fn requested(&self) -> Result<Option<String>, PlaceError> {
        Ok(self.read("request", false)?.and_then(|text| text.lines().next().map(str::to_owned)))
    }

    /// Withdraws the request for this token: an answer to it is then refused, also after a restart
    /// of the agent.
    pub fn withdraw(&self, token: &str) -> Result<(), PlaceError> {
        if self.requested()?.as_deref() != Some(token) {
            return Ok(());
        }
        let removed = unlinkat(&self.at, "request", UnlinkatFlags::NoRemoveDir);
        removed.map_err(|source| PlaceError::Withdraw { path: self.path.join("request"), source })
    }

    /// The application's answer to this token, if there is one.
    pub fn answer(&self, token: &str) -> Result<Option<Answer>, PlaceError> {
        self.find(token, true)
    }

    /// As [`Self::answer`], for an answer that came in a call. The agent's file appears complete,
    /// so it is read at once.
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

    /// Reads a small file of the user; `None`: it does not exist, or, with `settled`, it was
    /// modified a moment ago.
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

    /// Everything that was saved for this token, in the order of names, directories before their
    /// content.
    pub fn saved(&self, token: &str) -> Result<Vec<Found>, PlaceError> {
        let mut found = Vec::new();
        let mut left = Left { entries: ENTRIES_MAX, path_bytes: PATHS_BYTES_MAX };
        self.walk(token, "", 0, &mut found, &mut left)?;
        Ok(found)
    }

    fn walk(&self, token: &str, below: &str, depth: usize, found: &mut Vec<Found>, left: &mut Left) -> Result<(), PlaceError> {
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
            left.entries = left.entries.checked_sub(1).ok_or(PlaceError::TooManyEntries)?;
            let name = name.to_str().map_err(|_| PlaceError::NotUtf8 { name: at.clone(), entry: name.to_owned() })?;
            let bytes = below.len() + 1 + name.len();
            if bytes > PATH_BYTES_MAX {
                return Err(PlaceError::PathTooLong { name: at });
            }
            left.path_bytes = left.path_bytes.checked_sub(bytes).ok_or(PlaceError::PathsTooLong)?;
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

    /// Opens one of the saved files.
    pub fn file(&self, token: &str, found: &Found) -> Result<File, PlaceError> {
        let at = format!("{token}/{}", found.path);
        let failed = |source| PlaceError::Open { name: found.path.clone(), source };
        let file = self.beneath(&at, OFlag::O_RDONLY | OFlag::O_NONBLOCK).map_err(failed)?;
        let about = fstat(&file).map_err(failed)?;
        self.check(&about).map_err(|source| PlaceError::NotTheOwners { name: found.path.clone(), source })?;
        Ok(File::from(file))
    }
}

/// Opens nothing outside the directory, and follows no link.
fn how(flags: OFlag) -> OpenHow {
    let beneath = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    OpenHow::new().flags(flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC).resolve(beneath)
}

/// Whether a name begins as a token, `<32 hexadecimal digits>-`, perhaps with a dot before it.
fn is_of_a_token(name: &str) -> bool {
    let plain = name.strip_prefix('.').unwrap_or(name);
    plain.len() > 33 && plain.is_char_boundary(32) && plain[..32].bytes().all(|b| b.is_ascii_hexdigit()) && plain.as_bytes()[32] == b'-'
}

/// Whether a text is a token. Callers send tokens, and they become part of names of files that root
/// creates.
pub fn is_token(text: &str) -> bool {
    let is_round = |round: &str| (1..=10).contains(&round.len()) && round.bytes().all(|b| b.is_ascii_digit());
    let is_id = |id: &str| id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit());
    text.split_once('-').is_some_and(|(id, round)| is_id(id) && is_round(round))
}

/// Whether the file was written a moment ago, and should be read later: `echo > FILE` first makes
/// it empty, and on a busy node it takes a while until the text is in it.
fn just_written(about: &FileStat) -> bool {
    const SETTLED_NS: i128 = 20_000_000;
    const EMPTY_SETTLED_NS: i128 = 1_000_000_000;
    let Ok(now) = nix::time::clock_gettime(nix::time::ClockId::CLOCK_REALTIME) else { return false };
    let age = i128::from(now.tv_sec() - about.st_mtime) * 1_000_000_000 + i128::from(now.tv_nsec() - about.st_mtime_nsec);
    let settled = if about.st_size == 0 { EMPTY_SETTLED_NS } else { SETTLED_NS };
    (0..settled).contains(&age)
}

fn done(text: &str) -> Result<Answer, AnswerError> {
    let mut claims = Claims::default();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (key, value) = line.split_once('=').ok_or_else(|| odd(line))?;
        if key.trim() == "file" {
            let (path, file) = listed(value).ok_or_else(|| odd(line))?;
            claims.listed.insert(path, file);
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

/// Parses a line `BYTES BLAKE3 PATH` about a file.
fn listed(value: &str) -> Option<(String, Listed)> {
    let (bytes, rest) = value.trim().split_once(' ')?;
    let (blake3, path) = rest.split_once(' ')?;
    let given = |text: &str| (text != "-").then(|| text.to_owned());
    let bytes = given(bytes).map(|number| number.parse().ok().ok_or(())).transpose().ok()?;
    let blake3 = given(blake3).map(|digits| digits.to_ascii_lowercase());
    if path.is_empty() || blake3.as_ref().is_some_and(|digits| !is_blake3(digits)) {
        return None;
    }
    Some((path.to_owned(), Listed { bytes, blake3 }))
}

/// Whether a text is 64 hexadecimal digits.
pub fn is_blake3(digits: &str) -> bool {
    digits.len() == 64 && digits.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Treats "does not exist" as success.
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

/// Creates a file or directory of a restore, below a directory that only the agent can enter.
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

/// Gives everything to the owner, from the inside out: as long as the top directory is the agent's,
/// nobody else can interfere.
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
