//! Checks that several sections share.

use std::path::{Component, Path, PathBuf};
use thiserror::Error;

/// Why a setting is invalid. `setting` is its dotted path in the file.
#[derive(Debug, Error)]
pub enum SettingError {
    #[error("{setting}: {value} is not between {min} and {max}")]
    OutOfRange { setting: String, value: u64, min: u64, max: u64 },
    #[error("{setting}: {value:?} is not an IP address and port that others can reach")]
    Address { setting: String, value: String },
    #[error("{setting}: {} must be an absolute path below / without \"..\"", path.display())]
    Path { setting: String, path: PathBuf },
}

/// Checks that a number is in its range.
pub(super) fn within(setting: &str, value: u64, min: u64, max: u64) -> Result<(), SettingError> {
    if (min..=max).contains(&value) { Ok(()) } else { Err(SettingError::OutOfRange { setting: setting.to_owned(), value, min, max }) }
}

/// Checks the path of a directory that is mounted or created, or of a program. An empty path means
/// none.
pub(super) fn absolute(setting: &str, path: &Path) -> Result<(), SettingError> {
    if path.as_os_str().is_empty() || is_plain(path) && path != Path::new("/") {
        Ok(())
    } else {
        Err(SettingError::Path { setting: setting.to_owned(), path: path.to_owned() })
    }
}

/// Whether a path is absolute and without `..`.
pub(super) fn is_plain(path: &Path) -> bool {
    path.is_absolute() && path.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)))
}
