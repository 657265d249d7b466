//! Files of a user that the output of their work is also written to.

use serde::{Deserialize, Serialize};

/// Longest pattern of a file's name, in bytes.
pub const FILE_PATTERN_BYTES_MAX: usize = 1024;

/// Patterns of file names; see `OutputFiles` of the API. A relative name begins at the working directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputFiles {
    /// Where standard output is written; empty: to no file.
    #[serde(default)]
    pub stdout: String,
    /// Where standard error is written; empty: where `stdout` goes.
    #[serde(default)]
    pub stderr: String,
    /// The standard input of the script, or of all ranks of a command; empty: none.
    #[serde(default)]
    pub stdin: String,
    /// Whether each attempt adds to the files; otherwise they are emptied first.
    #[serde(default)]
    pub append: bool,
}
