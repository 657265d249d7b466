//! Ended work that waits for the accounting store, and the use of live work so far.

use crate::entries::one_by_one;
use crate::record_bytes::ended_work_bytes;
use imbl::OrdMap;
use lattice_model::ended_work::{AccountedUntil, EndedWork};
use lattice_model::{AllocationId, Timestamp, Used};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use uuid::Uuid;

/// Which store gets the ended work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StoreState {
    /// There has been no store yet: ends are numbered, but not kept.
    #[default]
    Unseen,
    /// This store, which has everything up to a number.
    Current(AccountedUntil),
    /// Accounting was moved: the next store that asks, except `former`, gets the ended work.
    Open { former: Option<Uuid> },
}

/// The use of the former claims of an allocation, and when the first of them began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedSoFar {
    pub used: Used,
    /// Cores × milliseconds.
    pub core_ms: u64,
    /// When nodes were first claimed for it.
    pub claimed_at: Option<Timestamp>,
    /// When it first began to run.
    pub started_at: Option<Timestamp>,
}

/// See the module documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ends {
    /// The number of the latest end.
    pub last: u64,
    pub store: StoreState,
    /// The records that wait for the store, by number.
    #[serde(deserialize_with = "one_by_one")]
    waiting: OrdMap<u64, Arc<EndedWork>>,
    /// Their size, in bytes.
    #[serde(skip)]
    bytes: usize,
    /// The number of the latest waiting correction, by the number of the corrected record.
    #[serde(skip)]
    corrections: OrdMap<u64, u64>,
    /// How many were dropped before a store had them.
    dropped: u64,
    /// Whether the audit log already says that records are dropped. Reset when half of the memory is free.
    is_dropping: bool,
    /// The use of allocations that have not ended and have lost a claim.
    #[serde(deserialize_with = "one_by_one")]
    pub used_so_far: OrdMap<AllocationId, UsedSoFar>,
}

impl Ends {
    /// Whether neither an allocation nor a claim has ended.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether ended work is kept until a store has it.
    pub fn are_kept(&self) -> bool {
        match self.store {
            StoreState::Unseen => false,
            StoreState::Current(_) | StoreState::Open { .. } => true,
        }
    }

    /// What the store has confirmed; `None`: there is no store now.
    pub fn accounted(&self) -> Option<AccountedUntil> {
        match self.store {
            StoreState::Current(until) => Some(until),
            StoreState::Unseen | StoreState::Open { .. } => None,
        }
    }

    /// How many records wait.
    pub fn waiting_count(&self) -> u64 {
        self.waiting.len() as u64
    }

    /// How many were dropped before a store had them.
    pub fn dropped_count(&self) -> u64 {
        self.dropped
    }

    /// The waiting records with higher numbers than this, in their order.
    pub fn after(&self, sequence: u64) -> impl Iterator<Item = &Arc<EndedWork>> {
        self.waiting.range(sequence.saturating_add(1)..).map(|(_, work)| work)
    }

    /// The latest correction of the record with this number that waits.
    pub fn waiting_correction(&self, sequence: u64) -> Option<&Arc<EndedWork>> {
        self.corrections.get(&sequence).and_then(|latest| self.waiting.get(latest))
    }

    /// Whether there is memory for this correction: half of it is only for ends, which nobody can submit again.
    pub fn takes_correction(&self, work: &EndedWork, bytes_max: usize) -> bool {
        self.bytes + ended_work_bytes(work) <= bytes_max / 2
    }

    /// Adds the latest record, and drops the oldest ones while all need more memory than `bytes_max`. Returns whether
    /// the dropping begins now.
    pub fn push(&mut self, work: EndedWork, bytes_max: usize) -> bool {
        self.bytes += ended_work_bytes(&work);
        if let Some(corrected) = work.corrects {
            self.corrections.insert(corrected, work.sequence);
        }
        self.waiting.insert(work.sequence, Arc::new(work));
        let was_dropping = self.is_dropping;
        while self.bytes > bytes_max && self.remove_oldest() {
            self.dropped += 1;
            self.is_dropping = true;
        }
        self.is_dropping && !was_dropping
    }

    /// The store has everything up to this number.
    pub fn forget_until(&mut self, sequence: u64, bytes_max: usize) {
        while self.waiting.get_min().is_some_and(|(oldest, _)| *oldest <= sequence) && self.remove_oldest() {}
        if self.bytes <= bytes_max / 2 {
            self.is_dropping = false;
        }
    }

    /// Returns whether there was a record.
    fn remove_oldest(&mut self) -> bool {
        let Some(oldest) = self.waiting.get_min().map(|(sequence, _)| *sequence) else { return false };
        if let Some(work) = self.waiting.remove(&oldest) {
            self.bytes -= ended_work_bytes(&work);
            if let Some(corrected) = work.corrects.filter(|corrected| self.corrections.get(corrected) == Some(&oldest)) {
                self.corrections.remove(&corrected);
            }
        }
        true
    }

    /// Derives what is not part of the replicated state.
    pub fn build_index(&mut self) {
        self.bytes = self.waiting.values().map(|work| ended_work_bytes(work)).sum();
        self.corrections = OrdMap::new();
        for work in self.waiting.values() {
            if let Some(corrected) = work.corrects {
                self.corrections.insert(corrected, work.sequence);
            }
        }
    }
}
