//! Where the files of a node's part of a checkpoint come from.

use super::StoreError;
use crate::directory::{Found, Place as Directory};
use crate::packers::Packers;
use std::fs::File;
use std::sync::Arc;

/// The files that a node's work saved for one request, and the processes that compress them.
#[derive(Clone)]
pub struct Source {
    pub directory: Arc<Directory>,
    pub token: String,
    /// `None`: this process compresses, because this machine has no cgroup for others.
    pub packers: Option<Arc<Packers>>,
}

impl Source {
    pub(super) fn open(&self, found: &Found) -> Result<File, StoreError> {
        Ok(self.directory.file(&self.token, found)?)
    }
}
