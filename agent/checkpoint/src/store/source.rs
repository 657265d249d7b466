//! What a node's part is made from.

use super::StoreError;
use crate::directory::{Found, Place as Directory};
use crate::packers::Packers;
use std::fs::File;
use std::sync::Arc;

/// Where the files lie that a node's work saved for one token, and who compresses them.
#[derive(Clone)]
pub struct Source {
    pub directory: Arc<Directory>,
    pub token: String,
    /// `None`: this process, where no cgroup could hold others.
    pub packers: Option<Arc<Packers>>,
}

impl Source {
    pub(super) fn open(&self, found: &Found) -> Result<File, StoreError> {
        Ok(self.directory.file(&self.token, found)?)
    }
}
