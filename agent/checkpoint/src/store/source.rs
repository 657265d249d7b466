//! The source of a node's part.

use super::StoreError;
use crate::directory::{Found, Place as Directory};
use crate::packers::Packers;
use std::fs::File;
use std::sync::Arc;

/// The files that a node's work saved for one token, and the processes that compress them.
#[derive(Clone)]
pub struct Source {
    pub directory: Arc<Directory>,
    pub token: String,
    /// `None`: this process compresses, because no cgroup can hold others.
    pub packers: Option<Arc<Packers>>,
}

impl Source {
    pub(super) fn open(&self, found: &Found) -> Result<File, StoreError> {
        Ok(self.directory.file(&self.token, found)?)
    }
}
