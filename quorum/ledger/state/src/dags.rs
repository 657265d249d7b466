//! The records of DAGs, and the memory that they take.

use crate::record_bytes::dag_bytes;
use imbl::OrdMap;
use lattice_model::{Dag, DagId, Step};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// See the module documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Stored", into = "Stored")]
pub struct Dags {
    records: OrdMap<DagId, Arc<Dag>>,
    /// DAGs with steps that are still to be cancelled, each with the name of the requester.
    pub cancelling: BTreeMap<DagId, String>,
    /// Memory of the records, in bytes, by the owner's uid. Derived from the records.
    bytes: BTreeMap<u32, u64>,
}

/// The part of [`Dags`] that is replicated.
#[derive(Serialize, Deserialize)]
struct Stored {
    records: BTreeMap<DagId, Arc<Dag>>,
    cancelling: BTreeMap<DagId, String>,
}

impl From<Stored> for Dags {
    fn from(Stored { records, cancelling }: Stored) -> Self {
        let mut dags = Self { records: OrdMap::new(), cancelling, bytes: BTreeMap::new() };
        records.into_values().for_each(|dag| dags.insert(dag));
        dags
    }
}

impl From<Dags> for Stored {
    fn from(Dags { records, cancelling, bytes: _ }: Dags) -> Self {
        Self { records: records.into_iter().collect(), cancelling }
    }
}

impl Dags {
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.cancelling.is_empty()
    }

    pub fn get(&self, id: DagId) -> Option<&Arc<Dag>> {
        self.records.get(&id)
    }

    /// The step with this number.
    pub fn step(&self, dag: DagId, number: u32) -> Option<&Step> {
        self.records.get(&dag)?.steps.get(number as usize)
    }

    /// All DAGs, by id.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Dag>> {
        self.records.values()
    }

    /// The DAGs with these ids, in order.
    pub fn range(&self, ids: RangeInclusive<DagId>) -> impl Iterator<Item = &Arc<Dag>> {
        self.records.range(ids).map(|(_, dag)| dag)
    }

    /// Memory of all records, and of those of this user, in bytes.
    pub fn bytes(&self, uid: u32) -> (u64, u64) {
        (self.bytes.values().sum(), self.bytes.get(&uid).copied().unwrap_or_default())
    }

    pub fn insert(&mut self, dag: Arc<Dag>) {
        *self.bytes.entry(dag.owner.uid).or_default() += dag_bytes(&dag) as u64;
        self.records.insert(dag.id, dag);
    }

    /// A step of a DAG, to set how it ended.
    pub fn step_mut(&mut self, id: DagId, number: u32) -> Option<&mut Step> {
        let dag = Arc::make_mut(self.records.get_mut(&id)?);
        dag.steps.get_mut(usize::try_from(number).ok()?)
    }

    /// The record of an allocation of this DAG was dropped. After the last one, drops the DAG's record.
    pub fn release(&mut self, id: DagId) {
        let Some(dag) = self.records.get_mut(&id).map(Arc::make_mut) else { return };
        dag.records = dag.records.saturating_sub(1);
        if dag.records > 0 {
            return;
        }
        let (uid, freed) = (dag.owner.uid, dag_bytes(dag) as u64);
        self.records.remove(&id);
        self.cancelling.remove(&id);
        if let Some(bytes) = self.bytes.get_mut(&uid) {
            *bytes = bytes.saturating_sub(freed);
            if *bytes == 0 {
                self.bytes.remove(&uid);
            }
        }
    }
}
