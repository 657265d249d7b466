//! A state that cannot be used: what can be salvaged from it, and where it is moved.

use super::{Found, HEADER_BYTES, Header, JournalError, StateDir, failed, read_checkpoint};
use lattice_agent_common::files::set_file_aside;
use lattice_model::{Incarnation, NodeId, ReportItem};
use lattice_node::Brain;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

/// What can be read reliably from an unusable state.
#[derive(Debug, Default)]
pub struct Salvaged {
    /// The highest incarnation in it.
    pub incarnation: Incarnation,
    /// Reports that the quorum may not have. It ignores those that it has.
    pub outbox: Vec<ReportItem>,
    /// At least as high as any life in it.
    pub life: u64,
}

impl StateDir {
    /// Reads what can be read, from `node`'s own state only. Its allocations are not read: the
    /// unreadable part may have ended them.
    pub fn salvage(&self, node: &NodeId) -> Salvaged {
        let bytes = fs::read(self.journal()).unwrap_or_default();
        let header = Header::read(&self.journal(), &bytes).ok().flatten();
        let mut salvaged = Salvaged { life: header.map_or(0, |h| h.life), ..Salvaged::default() };
        let Some(checkpoint) = read_checkpoint(&self.state_file).ok().flatten().filter(|c| &c.node == node) else { return salvaged };
        let mut brain: Brain = checkpoint.brain;
        if header.is_some_and(|h| h.follows == checkpoint.number) {
            let mut at = HEADER_BYTES as usize;
            while let Found::Record(record, next) = Found::at(&bytes, at) {
                brain.replay(*record);
                at = next;
            }
        }
        salvaged.life = salvaged.life.max(checkpoint.number);
        salvaged.incarnation = brain.incarnation();
        salvaged.outbox = brain.reports().map(|r| r.item).collect();
        salvaged
    }

    /// Moves the state aside, within its directories. Returns the new paths.
    pub fn set_aside(&self) -> Result<Vec<PathBuf>, JournalError> {
        let mut kept = Vec::new();
        for path in [self.journal(), self.state_file.clone()] {
            match set_file_aside(&path) {
                Ok(to) => kept.push(to),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(&path, "moving it aside")(error)),
            }
        }
        for dir in [Some(self.path.as_path()), self.state_file.parent()].into_iter().flatten() {
            File::open(dir).and_then(|d| d.sync_all()).map_err(failed(dir, "syncing it"))?;
        }
        Ok(kept)
    }
}
