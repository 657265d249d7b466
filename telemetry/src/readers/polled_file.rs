//! Files of the kernel that are read again and again: how they are read, and how long they stay open.

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many bytes of a file are read, from its beginning.
pub(super) const FILE_BYTES_MAX: usize = 64 << 10;
/// The kernel fills each page with whole records, and no record is this long: a page with this much left empty is the
/// last.
const LAST_BYTES: usize = 2048;
/// A missing file is tried again after one round of measurements, two, four … and finally after this many.
const ABSENT_LOOKS_MAX: u32 = 64;
/// One in this many of the process's descriptors may be used for files that stay open.
const HELD_ONE_IN: usize = 4;
/// At most this many files stay open: each costs a page of kernel memory.
const HELD_MAX: usize = 8192;

/// The number of files held open here.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// A reusable buffer for small files.
#[derive(Debug, Default)]
pub struct Text(Vec<u8>);

impl Text {
    /// Reads a file; invalid UTF-8 gives an empty text.
    pub fn of(&mut self, path: &Path) -> io::Result<&str> {
        self.up_to(path, FILE_BYTES_MAX)
    }

    /// Reads at most this many bytes of a file.
    pub fn up_to(&mut self, path: &Path, bytes_max: usize) -> io::Result<&str> {
        Ok(std::str::from_utf8(self.bytes(&File::open(path)?, bytes_max)?).unwrap_or_default())
    }

    /// Reads a file that need not be text.
    pub fn bytes_of(&mut self, path: &Path) -> io::Result<&[u8]> {
        self.bytes(&File::open(path)?, FILE_BYTES_MAX)
    }

    /// Reads an open file from its beginning.
    fn bytes(&mut self, file: &File, bytes_max: usize) -> io::Result<&[u8]> {
        if self.0.len() < bytes_max {
            self.0.resize(bytes_max, 0);
        }
        let mut length = 0;
        while length < bytes_max {
            let more = file.read_at(&mut self.0[length..bytes_max], length as u64)?;
            length += more;
            if more < LAST_BYTES {
                break;
            }
        }
        Ok(&self.0[..length])
    }
}

/// A file that is read with each measurement. It is opened once it exists, stays open while descriptors allow it, and
/// is closed when what it describes is gone. A missing one is tried less and less often.
#[derive(Debug)]
pub(crate) struct PolledFile {
    path: PathBuf,
    state: State,
    /// How often it was opened.
    openings: u64,
}

#[derive(Debug)]
enum State {
    Open(Held),
    /// The last read lacked a descriptor or memory: the file may exist.
    Missed,
    /// `found_none` tries in a row found no file; the next `skips` reads do not try.
    Absent {
        found_none: u32,
        skips: u32,
    },
}

/// An open file or directory, counted in [`HELD`].
#[derive(Debug)]
pub(super) struct Held(File);

impl Held {
    /// `None`: too many are open, and it is closed.
    pub(super) fn new(file: File) -> Option<Self> {
        let held = Self(file);
        (HELD.fetch_add(1, Ordering::Relaxed) < most()).then_some(held)
    }

    /// Its number of links.
    pub(super) fn links(&self) -> Option<u64> {
        self.0.metadata().ok().map(|about| about.nlink())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.fetch_sub(1, Ordering::Relaxed);
    }
}

fn most() -> usize {
    static MOST: OnceLock<usize> = OnceLock::new();
    *MOST.get_or_init(|| {
        let open_max = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        (usize::try_from(open_max).unwrap_or(usize::MAX) / HELD_ONE_IN).min(HELD_MAX)
    })
}

/// Whether the error is only a temporary lack of descriptors or memory.
pub(super) fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw), Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM))
}

impl PolledFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, state: State::Absent { found_none: 0, skips: 0 }, openings: 0 }
    }

    /// Its text now, empty if it is not UTF-8. `None` as for [`Self::bytes`].
    pub(crate) fn read<'a>(&mut self, text: &'a mut Text) -> Option<&'a str> {
        self.bytes(text).map(|bytes| std::str::from_utf8(bytes).unwrap_or_default())
    }

    /// Its bytes now. `None`: there is no such file, it cannot be read, or this read does not look for it.
    pub(crate) fn bytes<'a>(&mut self, text: &'a mut Text) -> Option<&'a [u8]> {
        let length = self.length(text)?;
        Some(&text.0[..length])
    }

    /// Whether the last read failed although the file may exist.
    pub(super) fn is_missed(&self) -> bool {
        matches!(self.state, State::Missed)
    }

    /// How often it was opened: if this number has changed, it may be another file of the same name.
    pub(super) fn openings(&self) -> u64 {
        self.openings
    }

    /// Whether it is open, and the last read succeeded.
    fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    fn length(&mut self, text: &mut Text) -> Option<usize> {
        let found_none = match &mut self.state {
            State::Open(Held(file)) => match text.bytes(file, FILE_BYTES_MAX) {
                Ok(bytes) => return Some(bytes.len()),
                // What it described is gone. Another file may have its name now.
                Err(_gone) => 0,
            },
            State::Missed => 0,
            State::Absent { found_none, skips: 0 } => *found_none,
            State::Absent { skips, .. } => {
                *skips -= 1;
                return None;
            }
        };
        let read = File::open(&self.path).and_then(|file| Ok((text.bytes(&file, FILE_BYTES_MAX)?.len(), file)));
        let (length, state) = match read {
            Ok((length, file)) => match Held::new(file) {
                Some(held) => (Some(length), State::Open(held)),
                // Not held open: it is opened for each read.
                None => (Some(length), State::Absent { found_none: 0, skips: 0 }),
            },
            // It may exist: the next read tries again.
            Err(error) if is_passing(&error) => (None, State::Missed),
            Err(_) => {
                let skips = (1u32 << found_none.min(16)).min(ABSENT_LOOKS_MAX) - 1;
                (None, State::Absent { found_none: found_none.saturating_add(1), skips })
            }
        };
        self.state = state;
        self.openings += u64::from(length.is_some());
        length
    }
}

/// A file that is not read again while its numbers are known to be unchanged: the last ones are used then.
#[derive(Debug)]
pub(super) struct CachedFile<T> {
    file: PolledFile,
    last: Option<T>,
}

impl<T: Copy> CachedFile<T> {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { file: PolledFile::new(path), last: None }
    }

    /// The last numbers.
    pub(super) fn last(&self) -> Option<T> {
        self.last
    }

    /// The numbers, parsed by `of`. `unchanged`: the last ones are still right. A file that is not open is read all
    /// the same.
    pub(super) fn read(&mut self, unchanged: bool, text: &mut Text, of: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        if !(unchanged && self.file.is_open()) {
            self.last = self.file.read(text).and_then(of);
        }
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_missing_file_is_tried_less_and_less_often_and_found() {
        let path = std::env::temp_dir().join(format!("lattice-polled-file-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        let (mut polled, mut text) = (PolledFile::new(path.clone()), Text::default());
        let looks_until_found = |polled: &mut PolledFile, text: &mut Text| (1..).find(|_| polled.read(text).is_some()).unwrap();
        for _ in 0..1000 {
            assert_eq!(polled.read(&mut text), None);
        }
        fs::write(&path, "7\n").unwrap();
        let looks = looks_until_found(&mut polled, &mut text);
        assert!((2..=ABSENT_LOOKS_MAX).contains(&looks), "{looks}");
        assert_eq!(polled.read(&mut text), Some("7\n"));
        let mut young = PolledFile::new(path.with_extension("young"));
        assert_eq!(young.read(&mut text), None);
        fs::write(path.with_extension("young"), [b"8\xff".as_slice()].concat()).unwrap();
        assert_eq!(young.bytes(&mut text), Some(b"8\xff".as_slice()), "at once, while it is young");
        assert_eq!(young.read(&mut text), Some(""), "no text");
        for file in [&path, &path.with_extension("young")] {
            fs::remove_file(file).unwrap();
        }
    }

    #[test]
    fn all_of_a_long_file_is_read_and_its_new_text_with_the_next_read() {
        let path = std::env::temp_dir().join(format!("lattice-polled-file-long-{}", std::process::id()));
        let long = "word ".repeat(4000);
        fs::write(&path, &long).unwrap();
        let (mut polled, mut text) = (PolledFile::new(path.clone()), Text::default());
        assert_eq!(polled.read(&mut text), Some(long.as_str()));
        fs::write(&path, "short").unwrap();
        assert_eq!(polled.read(&mut text), Some("short"));
        assert_eq!(text.up_to(&path, 2).unwrap(), "sh");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn unchanged_numbers_are_not_read_again_and_a_missing_file_is_tried() {
        let path = std::env::temp_dir().join(format!("lattice-cached-file-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        let (mut cached, mut text) = (CachedFile::new(path.clone()), Text::default());
        let number = |text: &str| text.trim().parse::<u64>().ok();
        assert_eq!(cached.read(true, &mut text, number), None);
        fs::write(&path, "7\n").unwrap();
        assert_eq!(cached.read(true, &mut text, number), Some(7), "it was not there");
        fs::write(&path, "8\n").unwrap();
        assert_eq!(cached.read(true, &mut text, number), Some(7));
        assert_eq!((cached.read(false, &mut text, number), cached.read(true, &mut text, number)), (Some(8), Some(8)));
        fs::remove_file(&path).unwrap();
    }

    /// The kernel's own files, whose records do not fill a page exactly.
    #[test]
    fn a_file_of_many_records_is_read_to_its_end() {
        let last = |maps: &str| maps.lines().last().map(str::to_owned);
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let (mut polled, mut text) = (PolledFile::new("/proc/self/maps".into()), Text::default());
        let read = polled.read(&mut text).unwrap();
        assert!(maps.len() > 4096 && last(read) == last(&maps), "{} of {} bytes", read.len(), maps.len());
    }
}
