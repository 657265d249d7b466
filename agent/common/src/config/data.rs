//! The configuration's sections `scratch` and `data`.

use super::setting::{SettingError, absolute, is_plain};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Where the scratch directories of allocations are.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScratchSettings {
    /// Absolute path of the directory for allocations' scratch on a disk of this node. It is owned
    /// by root, writable by nobody else, and used by this agent only: the agent removes everything
    /// in it that has the name of an allocation. Empty: scratch is in memory.
    pub dir: PathBuf,
    /// Path of in-memory scratch inside allocations; created if it is missing.
    pub tmpfs_dir: PathBuf,
    /// Bytes of memory for the scratch of one allocation; 0: a quarter of the machine's memory.
    pub tmpfs_max_bytes: u64,
}

impl Default for ScratchSettings {
    fn default() -> Self {
        Self { dir: PathBuf::new(), tmpfs_dir: "/scratch/tmp".into(), tmpfs_max_bytes: 0 }
    }
}

impl ScratchSettings {
    /// Checks the paths.
    pub fn validate(&self) -> Result<(), SettingError> {
        absolute("scratch.dir", &self.dir)?;
        absolute("scratch.tmpfs_dir", &self.tmpfs_dir)
    }
}

/// Directories that allocations see besides scratch.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DataSettings {
    /// The directory that is mounted as a user's home; `{user}` stands for the account's name.
    /// Empty: the machine's own home.
    pub home_source: String,
    /// Directory in which `<tenant>/<project>/<allocation>` is created for each allocation. It is
    /// not removed at the end. Empty: none is created.
    pub output_dir: PathBuf,
    /// Directories below which the targets of `--data-mount` must lie.
    pub mount_roots: Vec<PathBuf>,
}

impl Default for DataSettings {
    fn default() -> Self {
        Self { home_source: String::new(), output_dir: PathBuf::new(), mount_roots: vec!["/data".into(), "/mnt".into()] }
    }
}

/// Why a section `data` is invalid.
#[derive(Debug, Error)]
pub enum DataSettingsError {
    #[error(transparent)]
    Setting(#[from] SettingError),
    #[error(
        "data.mount_roots: {} is not allowed: users could hide files that programs of root rely on; choose a separate directory such as \
         /data",
        path.display()
    )]
    MountRoot { path: PathBuf },
}

impl DataSettings {
    /// Checks the paths.
    pub fn validate(&self) -> Result<(), DataSettingsError> {
        absolute("data.home_source", Path::new(&self.home_source))?;
        absolute("data.output_dir", &self.output_dir)?;
        for root in &self.mount_roots {
            if !is_plain(root) || root == Path::new("/") || is_system(root) {
                return Err(DataSettingsError::MountRoot { path: root.clone() });
            }
        }
        Ok(())
    }
}

/// Directories that must look the same to everybody on a machine.
const SYSTEM: [&str; 15] =
    ["/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/opt", "/proc", "/root", "/run", "/sbin", "/sys", "/usr", "/var"];

/// Whether a path lies in a directory that must look the same to everybody on a machine.
pub fn is_system(path: &Path) -> bool {
    SYSTEM.iter().any(|s| path.starts_with(s))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_root_is_a_separate_directory() {
        let with = |root: &str| DataSettings { mount_roots: vec![root.into()], ..DataSettings::default() }.validate();
        with("/data").unwrap();
        for root in ["", "/", "data", "/usr/local", "/data/../etc"] {
            assert!(matches!(with(root), Err(DataSettingsError::MountRoot { .. })), "{root}");
        }
    }
}
