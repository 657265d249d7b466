//! The file systems that an allocation sees besides its node's own, and where it may write.

use crate::spec_error::SpecError;
use serde::{Deserialize, Serialize};
use std::path::{Component, Path, PathBuf};

/// Largest number of mounts that one allocation may request.
pub const MOUNTS_MAX: usize = 64;
/// Largest length of a path, in bytes.
const PATH_BYTES_MAX: usize = 4096;

/// An allocation's data: the default directories and those requested in addition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Data {
    /// Whether to provide home, scratch and output directory as configured on the node.
    pub defaults: bool,
    /// Directories of the node to mount at other paths.
    pub mounts: Vec<DataMount>,
    /// Scratch space requested on each node, in bytes; `None`: the node's default with `defaults`,
    /// else none.
    pub scratch_bytes: Option<u64>,
}

impl Default for Data {
    fn default() -> Self {
        Self { defaults: true, mounts: Vec::new(), scratch_bytes: None }
    }
}

/// A directory of the node, mounted at another path inside the allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataMount {
    /// Absolute path on every node of the allocation; accessed with the owner's rights.
    pub source: PathBuf,
    /// Absolute path inside the allocation.
    pub target: PathBuf,
    /// Whether the mount is read-only.
    pub read_only: bool,
}

impl Data {
    /// Checks everything that does not depend on a node.
    ///
    /// # Errors
    /// [`SpecError::Invalid`] with the name of the field as the user writes it.
    pub fn validate(&self) -> Result<(), SpecError> {
        let invalid = |field, why| Err(SpecError::Invalid { field, why });
        if self.mounts.len() > MOUNTS_MAX {
            return invalid("data-mount", format!("{} mounts; at most {MOUNTS_MAX} are possible", self.mounts.len()));
        }
        for (index, mount) in self.mounts.iter().enumerate() {
            plain("source", &mount.source)?;
            plain("target", &mount.target)?;
            if mount.target == Path::new("/") {
                return invalid("data-mount", "the target / is the whole machine: name a directory below it".to_owned());
            }
            if self.mounts[..index].iter().any(|m| m.target == mount.target) {
                return invalid("data-mount", format!("two mounts have the target {}", mount.target.display()));
            }
        }
        if self.scratch_bytes == Some(0) {
            return invalid("scratch-per-node", "more than 0 is needed".to_owned());
        }
        Ok(())
    }

    /// Approximate size of the mounts in the log, in bytes.
    pub fn bytes(&self) -> usize {
        self.mounts.iter().map(|m| m.source.as_os_str().len() + m.target.as_os_str().len() + 48).sum()
    }
}

fn plain(what: &str, path: &Path) -> Result<(), SpecError> {
    let text = path.to_string_lossy();
    let normal = path.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)));
    if path.is_absolute() && normal && !text.contains('\0') && text.len() <= PATH_BYTES_MAX {
        return Ok(());
    }
    let shown: String = text.chars().take(80).collect();
    let why = format!("the {what} {shown:?} must be an absolute path without \"..\", of at most {PATH_BYTES_MAX} bytes");
    Err(SpecError::Invalid { field: "data-mount", why })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(mounts: &[(&str, &str)]) -> Data {
        let mount = |(source, target): &(&str, &str)| DataMount { source: source.into(), target: target.into(), read_only: false };
        Data { mounts: mounts.iter().map(mount).collect(), ..Data::default() }
    }

    #[test]
    fn each_form_is_kept() {
        assert_eq!(with(&[("/a", "/data/a"), ("/a", "/data/b")]).validate(), Ok(()));
        for bad in [("a", "/b"), ("/a", "b"), ("/a", "/data/../etc"), ("/a/..", "/b"), ("/a", "/"), ("/a\0", "/b"), ("", "/b")] {
            assert!(matches!(with(&[bad]).validate(), Err(SpecError::Invalid { field: "data-mount", .. })), "{bad:?}");
        }
        assert!(with(&[("/a", "/d"), ("/b", "/d")]).validate().is_err(), "one target twice");
        assert!(with(&vec![("/a", "/d"); MOUNTS_MAX + 1]).validate().is_err());
        let nothing = Data { scratch_bytes: Some(0), ..Data::default() };
        assert!(matches!(nothing.validate(), Err(SpecError::Invalid { field: "scratch-per-node", .. })));
    }
}
