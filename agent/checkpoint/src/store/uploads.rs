//! Records what a node has stored, so that a restarted agent does not store it again.
//!
//! ```text
//!   <checkpoint.dir>/<allocation>.put     root's; a line for each file that is complete in the store, for each
//!                                         begun upload of a large file, and for each stored part
//! ```
//!
//! A file counts as unchanged while its inode, size and ctime are the same: users cannot set the
//! ctime. Lines are not synced, because the work does not outlive a crash of the machine either. If
//! lines cannot be written, a restarted agent stores those files again.
//!
//! `MultipartStore` returns the id of an upload, `put_multipart` does not, and a restarted agent
//! needs the id to resume the upload. The agent compresses the file again, which costs the store
//! nothing, and uploads the parts whose hash is not recorded. Parts are 8 MiB, or larger if the
//! file would have more than 9,000 of them (S3 allows 10,000). A store that is a directory has no
//! upload ids: there a file is stored again from its beginning.

use super::FileEntry;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// How many bytes of the record are read. Files that are recorded after them are stored again.
const BYTES_MAX: u64 = 128 << 20;

/// Identifies a version of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    inode: u64,
    bytes: u64,
    changed_s: i64,
    changed_ns: i64,
}

impl Stamp {
    /// The stamp of a file with this metadata.
    pub fn of(about: &fs::Metadata) -> Self {
        Self { inode: about.ino(), bytes: about.len(), changed_s: about.ctime(), changed_ns: about.ctime_nsec() }
    }
}

#[derive(Serialize, Deserialize)]
enum Line {
    /// The token and epoch that all following lines belong to.
    Checkpoint { token: String, epoch: u64 },
    /// The file's object is complete.
    Complete { stamp: Stamp, object_bytes: u64, entry: FileEntry },
    /// A multipart upload of the object was begun. The following `Part` lines of the object belong
    /// to it, until the next `UploadStarted`.
    UploadStarted { object: String, key: String, stamp: Stamp, upload: String },
    /// A part of the upload is stored.
    Part { object: String, number: usize, blake3: String, id: String },
    /// The object's upload was abandoned.
    UploadAborted { object: String },
}

/// A stored part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownPart {
    pub blake3: String,
    /// The store's id of the part.
    pub id: String,
}

/// An upload that was begun.
struct Begun {
    key: String,
    stamp: Stamp,
    upload: String,
    parts: BTreeMap<usize, KnownPart>,
}

/// The uploads of one round of one allocation.
pub struct Uploads(Mutex<Inner>);

struct Inner {
    /// The record, open for appending. `None`: it cannot be written.
    file: Option<File>,
    whole: BTreeMap<String, (Stamp, u64, FileEntry)>,
    begun: BTreeMap<String, Begun>,
    /// Keys and upload ids of abandoned uploads.
    left_over: Vec<(String, String)>,
}

impl Uploads {
    /// Opens the record of this token and claim. The record of another token or claim is discarded,
    /// and its uploads count as abandoned.
    pub fn open(path: &Path, token: &str, epoch: u64) -> Self {
        let mut inner = Inner { file: None, whole: BTreeMap::new(), begun: BTreeMap::new(), left_over: Vec::new() };
        let belongs = inner.read(path, token, epoch);
        let mut how = OpenOptions::new();
        let opened = how.create(true).append(true).mode(0o600).open(path).and_then(|mut file| {
            if !belongs {
                file.set_len(0)?;
                write_line(&mut file, &Line::Checkpoint { token: token.to_owned(), epoch })?;
            }
            // Ends an incomplete last line.
            file.write_all(b"\n")?;
            Ok(file)
        });
        match opened {
            Ok(file) => inner.file = Some(file),
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "cannot record what was uploaded: a restarted agent will upload it again");
            }
        }
        Self(Mutex::new(inner))
    }

    fn with<T>(&self, act: impl FnOnce(&mut Inner) -> T) -> T {
        act(&mut self.0.lock())
    }

    /// Whether no file is recorded as complete.
    pub fn is_empty(&self) -> bool {
        self.with(|inner| inner.whole.is_empty())
    }

    /// The object's size and the file's entry, if the object is complete and made from this version
    /// of the file.
    pub fn whole(&self, object: &str, path: &str, stamp: &Stamp) -> Option<(u64, FileEntry)> {
        self.with(|inner| {
            let found = inner.whole.get(object).filter(|(of, _, entry)| of == stamp && entry.path == path);
            found.map(|(_, bytes, entry)| (*bytes, entry.clone()))
        })
    }

    /// Records that a file's object is complete.
    pub fn record_whole(&self, stamp: Stamp, object_bytes: u64, entry: &FileEntry) {
        self.note(Line::Complete { stamp, object_bytes, entry: entry.clone() });
    }

    /// The begun upload of an object, if it is from this version of the file, and its stored parts.
    pub fn begun(&self, object: &str, stamp: &Stamp) -> Option<(String, BTreeMap<usize, KnownPart>)> {
        self.with(|inner| {
            let begun = inner.begun.get(object).filter(|begun| begun.stamp == *stamp);
            begun.map(|begun| (begun.upload.clone(), begun.parts.clone()))
        })
    }

    /// Records that an upload was begun.
    pub fn record_begun(&self, object: &str, key: &str, stamp: Stamp, upload: &str) {
        self.note(Line::UploadStarted { object: object.to_owned(), key: key.to_owned(), stamp, upload: upload.to_owned() });
    }

    /// Records that a part was stored.
    pub fn record_part(&self, object: &str, number: usize, blake3: &str, id: &str) {
        self.note(Line::Part { object: object.to_owned(), number, blake3: blake3.to_owned(), id: id.to_owned() });
    }

    /// Records that an upload was abandoned.
    pub fn record_abandoned(&self, object: &str) {
        self.note(Line::UploadAborted { object: object.to_owned() });
    }

    /// Takes the keys and ids of abandoned uploads. A restarted agent may get them again.
    pub fn left_over(&self) -> Vec<(String, String)> {
        self.with(|inner| std::mem::take(&mut inner.left_over))
    }

    fn note(&self, line: Line) {
        self.with(|inner| {
            if let Some(file) = &mut inner.file
                && let Err(error) = write_line(file, &line)
            {
                tracing::debug!(%error, "cannot record what was uploaded: a restarted agent will upload it again");
                // The line may be incomplete, and the next one would be appended to it.
                inner.file = None;
            }
            inner.apply(line);
        });
    }
}

impl Inner {
    /// Reads the record. Returns whether it belongs to this token and claim.
    fn read(&mut self, path: &Path, token: &str, epoch: u64) -> bool {
        let Ok(file) = File::open(path) else { return false };
        let mut lines = BufReader::new(file.take(BYTES_MAX)).lines().map_while(Result::ok).filter(|line| !line.is_empty());
        let first = lines.next().and_then(|line| serde_json::from_str(&line).ok());
        let belongs = matches!(first, Some(Line::Checkpoint { token: of, epoch: under }) if of == token && under == epoch);
        lines.filter_map(|line| serde_json::from_str(&line).ok()).for_each(|line| self.apply(line));
        if !belongs {
            self.whole.clear();
            std::mem::take(&mut self.begun).into_values().for_each(|begun| self.abandon(begun));
        }
        belongs
    }

    fn apply(&mut self, line: Line) {
        match line {
            Line::Checkpoint { .. } => {}
            Line::Complete { stamp, object_bytes, entry } => {
                if let Some(object) = entry.object.clone() {
                    self.begun.remove(&object);
                    self.whole.insert(object, (stamp, object_bytes, entry));
                }
            }
            Line::UploadStarted { object, key, stamp, upload } => {
                let now = Begun { key, stamp, upload, parts: BTreeMap::new() };
                if let Some(before) = self.begun.insert(object, now) {
                    self.abandon(before);
                }
            }
            Line::Part { object, number, blake3, id } => {
                if let Some(begun) = self.begun.get_mut(&object) {
                    begun.parts.insert(number, KnownPart { blake3, id });
                }
            }
            Line::UploadAborted { object } => {
                if let Some(begun) = self.begun.remove(&object) {
                    self.abandon(begun);
                }
            }
        }
    }

    fn abandon(&mut self, begun: Begun) {
        self.left_over.push((begun.key, begun.upload));
    }
}

fn write_line(file: &mut File, line: &Line) -> std::io::Result<()> {
    let mut json = serde_json::to_vec(line)?;
    json.push(b'\n');
    file.write_all(&json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complete_file_is_known_after_a_restart_in_the_same_round_only() {
        let path = std::env::temp_dir().join(format!("lattice-uploads-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        let stamp = Stamp { inode: 1, bytes: 2, changed_s: 3, changed_ns: 4 };
        let object = |name: &str| Some(format!("{name}.zst"));
        let entry = FileEntry { path: "a".to_owned(), mode: 0o600, size: Some(2), blake3: Some("00".to_owned()), object: object("0") };
        let first = Uploads::open(&path, "t-1", 3);
        assert!(first.is_empty());
        first.record_whole(stamp, 9, &entry);
        drop(first);
        // The agent was killed in the middle of a line.
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"Whole\":{\"sta").unwrap();
        let second = Uploads::open(&path, "t-1", 3);
        assert_eq!(second.whole("0.zst", "a", &stamp), Some((9, entry.clone())));
        assert_eq!(second.whole("0.zst", "b", &stamp), None);
        let changed = Stamp { changed_ns: 5, ..stamp };
        assert_eq!(second.whole("0.zst", "a", &changed), None);
        second.record_whole(changed, 9, &entry);
        drop(second);
        assert_eq!(Uploads::open(&path, "t-1", 3).whole("0.zst", "a", &changed), Some((9, entry)));
        for (token, epoch) in [("t-2", 3), ("t-2", 4)] {
            assert!(Uploads::open(&path, token, epoch).is_empty());
        }
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn parts_of_a_large_file_are_known_after_a_restart_until_it_is_complete_or_changed() {
        let path = std::env::temp_dir().join(format!("lattice-uploads-parts-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        let stamp = Stamp { inode: 1, bytes: 2, changed_s: 3, changed_ns: 4 };
        let changed = Stamp { changed_ns: 5, ..stamp };
        let known = |blake3: &str, id: &str| KnownPart { blake3: blake3.to_owned(), id: id.to_owned() };
        let first = Uploads::open(&path, "t-1", 3);
        assert_eq!(first.begun("0.zst", &stamp), None);
        // A part without an upload is ignored.
        first.record_part("0.zst", 0, "aa", "e0");
        first.record_begun("0.zst", "k/0.zst", stamp, "u1");
        first.record_part("0.zst", 0, "aa", "e0");
        first.record_part("0.zst", 1, "bb", "e1");
        first.record_part("0.zst", 1, "cc", "e2");
        first.record_begun("1.zst", "k/1.zst", stamp, "u2");
        drop(first);
        let second = Uploads::open(&path, "t-1", 3);
        let parts = BTreeMap::from([(0, known("aa", "e0")), (1, known("cc", "e2"))]);
        assert_eq!(second.begun("0.zst", &stamp), Some(("u1".to_owned(), parts)));
        assert_eq!((second.begun("0.zst", &changed), second.left_over()), (None, vec![]));
        // The file has changed, so its first upload is abandoned.
        second.record_begun("0.zst", "k/0.zst", changed, "u3");
        assert_eq!(second.left_over(), [("k/0.zst".to_owned(), "u1".to_owned())]);
        assert_eq!(second.left_over(), []);
        assert_eq!(second.begun("0.zst", &changed), Some(("u3".to_owned(), BTreeMap::new())));
        let entry = FileEntry { path: "a".to_owned(), mode: 0o600, size: Some(2), blake3: None, object: Some("0.zst".to_owned()) };
        second.record_whole(changed, 9, &entry);
        assert_eq!(second.begun("0.zst", &changed), None);
        drop(second);
        // Another round. u1 is returned again, which does no harm. u2 was never completed.
        let third = Uploads::open(&path, "t-2", 3);
        assert_eq!(third.begun("1.zst", &stamp), None);
        assert!(third.left_over().contains(&("k/1.zst".to_owned(), "u2".to_owned())));
        third.record_begun("2.zst", "k/2.zst", stamp, "u4");
        third.record_abandoned("2.zst");
        assert_eq!((third.begun("2.zst", &stamp), third.left_over().len()), (None, 1));
        drop(third);
        assert_eq!(Uploads::open(&path, "t-2", 3).begun("2.zst", &stamp), None);
        fs::remove_file(&path).unwrap();
    }
}
