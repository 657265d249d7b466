//! Where a controller is used.

use std::path::PathBuf;

/// Where a controller is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the v2 tree.
    V2,
    /// In the hierarchy of version 1 that is mounted there.
    V1 {
        /// The mount point.
        mount: PathBuf,
    },
}
