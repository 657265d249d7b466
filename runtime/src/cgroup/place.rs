//! The hierarchy in which a controller is used.

use std::path::PathBuf;

/// The hierarchy in which a controller is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the v2 tree.
    V2,
    /// In a hierarchy of version 1.
    V1 {
        /// The mount point.
        mount: PathBuf,
    },
}
