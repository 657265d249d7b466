//! Files of raw measurements: lines of JSON. The first one is a header with the owner; a line with
//! `metrics` gives unit and source of the values that follow; all others are looks, or in audit mode
//! events. Looks and events begin with their time.

use super::folders::folders;
use lattice_model::{AllocationId, Epoch, NodeId, TelemetryMode};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;
use uuid::Uuid;

/// Version of the lines' format, in the header.
pub const VERSION: u32 = 1;
/// Bytes of one file that are read: more than is ever written into one.
const READ_BYTES_MAX: u64 = 8 << 20;
/// The beginning of lines with looks.
const LOOK: &[u8] = b"{\"at_ms\":";
/// Extension of a growing file, and of a complete one.
const OPEN: &str = "open";
const WHOLE: &str = "jsonl";

/// The GPU, if the number is of one, and the number's name.
pub type MetricName = (Option<String>, String);
/// The last declared source of each number.
pub type Declared = BTreeMap<MetricName, String>;

/// The first line of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    pub version: u32,
    pub allocation: AllocationId,
    pub epoch: Epoch,
    pub node: NodeId,
    pub tenant: String,
    pub project: String,
    /// The request, and who made it.
    pub order: Uuid,
    pub by: String,
    #[serde(with = "mode_name")]
    pub mode: TelemetryMode,
    /// What the lines are and what is missing in them, if that needs saying.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
}

/// Encodes a mode by its name, as elsewhere.
mod mode_name {
    use lattice_model::TelemetryMode;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(mode: &TelemetryMode, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(mode.name())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<TelemetryMode, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// A growing file.
#[derive(Debug)]
pub struct Chunk {
    file: File,
    path: PathBuf,
    bytes: u64,
    began: Instant,
    torn: bool,
    /// Metrics whose unit and source it has declared.
    pub declared: Declared,
}

impl Chunk {
    /// Begins a file. Its name will be the object's: it is unique, whatever the clock does.
    pub fn begin(dir: &Path, at_ms: u64, header: &Header) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let unique = Uuid::new_v4().simple().to_string();
        let path = dir.join(format!("{}-{at_ms:013}-{}.{OPEN}", header.epoch, &unique[..8]));
        let file = OpenOptions::new().create_new(true).append(true).mode(0o600).open(&path)?;
        let mut chunk = Self { file, path, bytes: 0, began: Instant::now(), torn: false, declared: Declared::new() };
        let mut line = serde_json::to_vec(header)?;
        line.push(b'\n');
        chunk.append(&line).inspect_err(|_| drop(fs::remove_file(&chunk.path)))?;
        Ok(chunk)
    }

    /// Adds complete lines. After an error the file ends where it ended before; if not even that can
    /// be done, it is torn.
    pub fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if let Err(error) = self.file.write_all(lines) {
            self.torn |= self.file.set_len(self.bytes).is_err();
            return Err(error);
        }
        self.bytes += lines.len() as u64;
        Ok(())
    }

    /// Whether it may end with a part of a line: nothing may be added any more.
    pub fn is_torn(&self) -> bool {
        self.torn
    }

    /// Its length in bytes, and when it was begun.
    pub fn size(&self) -> (u64, Instant) {
        (self.bytes, self.began)
    }

    /// Marks it as complete.
    pub fn close(self) -> io::Result<()> {
        close(&self.path)
    }
}

fn close(path: &Path) -> io::Result<()> {
    fs::rename(path, path.with_extension(WHOLE))
}

/// Completes the files that an earlier run was writing.
pub fn close_all(dir: &Path) -> io::Result<()> {
    for folder in folders(dir)? {
        for path in with_extension(&folder, OPEN)? {
            close(&path)?;
        }
    }
    Ok(())
}

fn with_extension(folder: &Path, extension: &str) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    Ok(entries.filter(|path| path.extension().is_some_and(|it| it == extension)).collect())
}

/// A complete file, to be stored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Whole {
    /// When it was begun, from its name: orders the oldest first.
    began: String,
    pub path: PathBuf,
    pub bytes: u64,
}

/// All complete files, oldest first.
pub fn whole(dir: &Path) -> io::Result<Vec<Whole>> {
    let mut all = Vec::new();
    for folder in folders(dir)? {
        // A file may be removed meanwhile.
        for path in with_extension(&folder, WHOLE).unwrap_or_default() {
            let Ok(about) = path.metadata() else { continue };
            let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            let began = stem.split('-').nth(1).unwrap_or_default().to_owned();
            all.push(Whole { began, path, bytes: about.len() });
        }
    }
    all.sort();
    Ok(all)
}

/// Bytes of the files that still grow.
pub fn growing(dir: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for folder in folders(dir)? {
        let files = with_extension(&folder, OPEN).unwrap_or_default();
        bytes += files.iter().filter_map(|path| path.metadata().ok()).map(|about| about.len()).sum::<u64>();
    }
    Ok(bytes)
}

/// The content of a file.
#[derive(Debug)]
pub struct Contents {
    /// `None`: the owner is unknown.
    pub header: Option<Header>,
    /// Its complete lines.
    pub lines: Vec<u8>,
    pub looks: u64,
}

/// Reads a file. A partial last line was being written when the machine crashed, and is left out.
pub fn read(path: &Path) -> io::Result<Contents> {
    let mut lines = Vec::new();
    File::open(path)?.take(READ_BYTES_MAX).read_to_end(&mut lines)?;
    lines.truncate(lines.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1));
    let header = lines.split(|byte| *byte == b'\n').next().and_then(|line| serde_json::from_slice::<Header>(line).ok());
    let header = header.filter(|header| header.version == VERSION);
    let looks = lines.split(|byte| *byte == b'\n').filter(|line| line.starts_with(LOOK)).count() as u64;
    Ok(Contents { header, lines, looks })
}
