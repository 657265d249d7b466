//! Tests of crashes at every byte of a write, and of damaged files.

mod audit;
mod log;
mod machine;
mod pruning;
mod watches;

use super::disk_reserve::DiskReserve;
use crate::raft::{Entry, LogId, Proposal};
use lattice_ledger::{Action, Command};
use lattice_model::Timestamp;
use openraft::{CommittedLeaderId, EntryPayload};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use tokio_util::sync::CancellationToken;

/// A directory that is removed after the test.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("lattice-store-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn id(index: u64) -> LogId {
    LogId::new(CommittedLeaderId::new(1, 1), index)
}

fn entry(index: u64) -> Entry {
    entry_of(index, vec![grant(format!("l{index}"))])
}

fn grant(name: String) -> Action {
    Action::GrantLease { name, holder: "n1".parse().unwrap(), ttl_ms: 1000, user: None }
}

fn entry_of(index: u64, actions: Vec<Action>) -> Entry {
    let commands = actions.into_iter().map(|action| Command { at: Timestamp(index), action }).collect();
    Entry { log_id: id(index), payload: EntryPayload::Normal(Proposal::new(commands).unwrap()) }
}

fn no_reserve(dir: &Path) -> DiskReserve {
    DiskReserve::open(dir, 0, CancellationToken::new()).unwrap()
}

fn segment(dir: &Path, first: u64) -> PathBuf {
    dir.join(format!("{first:020}.audit"))
}
