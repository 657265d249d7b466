//! A state that cannot be used: what can be saved of it, and where it goes.

use super::{Found, HEADER_BYTES, Header, JournalError, StateDir, failed, read_checkpoint};
use lattice_agent_common::files::set_file_aside;
use lattice_model::{Incarnation, NodeId, ReportItem};
use lattice_node::Brain;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

/// What a state that cannot be used as a whole still says for certain.
#[derive(Debug, Default)]
pub struct Salvaged {
    /// The highest incarnation that it knows.
    pub incarnation: Incarnation,
    /// Reports that the quorum may not have. It ignores those that it has.
    pub outbox: Vec<ReportItem>,
    /// The highest life that it knows.
    pub life: u64,
}

impl StateDir {
    /// Reads what can be read. Of `node`'s own state only; what it says of allocations may have been overtaken by what
    /// cannot be read, so that is not asked.
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

    /// Moves the state out of the way, within its directories. Where it went.
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
