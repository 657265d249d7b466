//! An application's answer to a request, and its comparison with the saved files.

use super::simulated::SimulatedTime;
use std::collections::BTreeMap;

/// What the application answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Everything is saved.
    Done(Claims),
    /// It cannot save.
    Failed { why: String },
    /// It asks to be asked again after this time.
    Deferred { for_ms: u64 },
}

/// The application's claims about the files that it saved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// The step.
    pub step: Option<u64>,
    /// The simulated time.
    pub time: Option<SimulatedTime>,
    /// Number of files.
    pub files: Option<u64>,
    /// Bytes of all files.
    pub bytes: Option<u64>,
    /// The files by path. Empty, or complete.
    pub listed: BTreeMap<String, Listed>,
}

/// Claims about one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Size in bytes.
    pub bytes: Option<u64>,
    /// BLAKE3 of the content, 64 hexadecimal digits.
    pub blake3: Option<String>,
}

impl Claims {
    /// Whether the claims contain nothing that could reveal a missing file.
    pub fn is_of_no_size(&self) -> bool {
        self.files.is_none() && self.bytes.is_none() && self.listed.is_empty()
    }

    /// The first difference between the claims and the files found, for people; `None`: they agree.
    pub fn wrong(&self, found: &[Found]) -> Option<String> {
        let files: BTreeMap<&str, u64> = found.iter().filter_map(|f| Some((f.path.as_str(), f.size?))).collect();
        let bytes = files.values().copied().fold(0, u64::saturating_add);
        for (what, claimed, there) in [("files", self.files, files.len() as u64), ("bytes", self.bytes, bytes)] {
            if let Some(claimed) = claimed.filter(|claimed| *claimed != there) {
                return Some(format!("the application says that it saved {claimed} {what}, and {there} are there"));
            }
        }
        if self.listed.is_empty() {
            return None;
        }
        for (path, claimed) in &self.listed {
            match (files.get(path.as_str()), claimed.bytes) {
                (None, _) => return Some(format!("the application says that it saved {path}, which is not there")),
                (Some(there), Some(bytes)) if bytes != *there => {
                    return Some(format!("the application says that it saved {bytes} bytes in {path}, and {there} are there"));
                }
                (Some(_), _) => {}
            }
        }
        let unnamed = files.keys().find(|path| !self.listed.contains_key(**path))?;
        Some(format!("{unnamed} is there, and not among the files that the application says it saved"))
    }

    /// The text of the answer file; see [`super::directory`].
    pub fn to_text(&self) -> String {
        let numbers = [("step", self.step), ("files", self.files), ("bytes", self.bytes)];
        let numbers = numbers.into_iter().filter_map(|(key, value)| Some(format!("{key}={}\n", value?)));
        let time = self.time.map(|time| format!("time={time}\n"));
        let listed = self.listed.iter().map(|(path, claimed)| {
            let number = claimed.bytes.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
            format!("file={number} {} {path}\n", claimed.blake3.as_deref().unwrap_or("-"))
        });
        numbers.chain(time).chain(listed).collect()
    }
}

/// A saved file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Path below the directory, with `/`.
    pub path: String,
    pub mode: u32,
    /// `None`: a directory.
    pub size: Option<u64>,
}

/// An application's reason for a failure, cleaned and shortened for display.
pub fn reason(text: &str) -> String {
    let why: String = text.trim().chars().filter(|c| !c.is_control()).take(200).collect();
    if why.is_empty() { "the application says that it failed".to_owned() } else { why }
}
