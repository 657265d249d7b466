//! Ended allocations as accounting stores them: one record for each, written once, when the allocation has ended.

use crate::allocation_state::AllocationState;
use crate::ids::AllocationId;
use crate::time::Timestamp;
use crate::usage::Used;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use uuid::Uuid;

/// One ended allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedWork {
    /// The place in the order of all ends of this cluster and of their corrections, from 1. There are no gaps, except after a recovery
    /// from a backup: the numbers continue beyond all that the lost quorum can have given.
    pub sequence: u64,
    /// Which allocation.
    pub allocation: AllocationId,
    /// Its job number; 0: of a lane or a replica.
    #[serde(default)]
    pub job: u64,
    /// Its name, tenant, project and vCluster; empty: none.
    pub name: String,
    pub tenant: String,
    pub project: String,
    pub vcluster: String,
    /// The owner's account.
    pub user: String,
    pub uid: u32,
    /// Labels of its user.
    pub tags: BTreeMap<String, String>,
    /// How it ended: a terminal state, the reason in words, the exit code of its program if it has one.
    pub state: AllocationState,
    pub reason: String,
    pub exit_code: Option<i32>,
    /// The nodes of its last claim, as a hostlist, and how many they are.
    pub nodes: String,
    pub node_count: u32,
    /// When it was submitted, first claimed, first started, and when it ended.
    pub submitted_at: Timestamp,
    pub claimed_at: Option<Timestamp>,
    pub started_at: Option<Timestamp>,
    pub ended_at: Timestamp,
    /// How often it went back to its queue, and how often because it was preempted.
    pub requeue_count: u32,
    pub preempted_count: u32,
    /// What all its attempts used: exactly what was added to the buckets of its tenant, project and user.
    pub used: Used,
    /// Cores × milliseconds of all its attempts, by the cores of its shares, over the same times as `used`.
    pub core_ms: u64,
    /// The task group, DAG or scaled service that it is part of.
    pub part_of: Option<Uuid>,
    /// Of a correction: the number of the corrected record, which gets this project and these tags. `None`: it is the
    /// record of an end.
    #[serde(default)]
    pub corrects: Option<u64>,
}

/// The store that has all ended work up to a sequence number. The ledger gives each end to one store alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountedUntil {
    /// The store's own id, made when it was created.
    pub store: Uuid,
    /// It has all records up to this one.
    pub sequence: u64,
}
