//! Why an image is not accepted.

use lattice_model::resources::bytes_text;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Why an image is not accepted.
#[derive(Debug, Error)]
pub enum ImageError {
    /// The file does not exist.
    #[error("image {}: there is no such file on this node", path.display())]
    NotFound {
        /// The user's path.
        path: PathBuf,
    },
    /// The user may not read it.
    #[error("image {}: {user} may not read it on this node", path.display())]
    PermissionDenied {
        /// The user's path.
        path: PathBuf,
        /// The account.
        user: String,
    },
    /// It is not a SquashFS image.
    #[error("image {}: {why}", path.display())]
    NotAnImage {
        /// The user's path.
        path: PathBuf,
        /// What it is instead.
        why: &'static str,
    },
    /// The digest asked for is not one.
    #[error("{given:?} is not a SHA-256 digest (64 hexadecimal digits in lower case)")]
    BadDigest {
        /// What was given.
        given: String,
    },
    /// The contents are not those that were submitted.
    #[error("image {}: its SHA-256 is {got}, but {want} was recorded at submission: it was changed since, or differs on this node", path.display())]
    WrongDigest {
        /// The user's path.
        path: PathBuf,
        /// As recorded.
        want: String,
        /// As found.
        got: String,
    },
    /// The cache's file system is full.
    #[error("image {}: no space left in the image cache {}", path.display(), cache.display())]
    NoSpace {
        /// The user's path.
        path: PathBuf,
        /// The cache.
        cache: PathBuf,
    },
    /// The image does not fit, even if all unused images are removed.
    #[error(
        "image {}: it has {}, and the image cache {} can have at most {} more beside the images that are in use; make room on that disk, \
         or run this on nodes with a larger one",
        path.display(), bytes_text(*bytes), cache.display(), bytes_text(*bytes_max)
    )]
    NoRoom {
        /// The user's path.
        path: PathBuf,
        /// The cache.
        cache: PathBuf,
        /// How large the image is.
        bytes: u64,
        /// How large it may be now.
        bytes_max: u64,
    },
    /// The caller cancelled the copy.
    #[error("image {}: its copy was cancelled", path.display())]
    Cancelled {
        /// The user's path.
        path: PathBuf,
    },
    /// Anything else.
    #[error("image {}: {doing}", path.display())]
    Io {
        /// The file of the failed operation.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}
