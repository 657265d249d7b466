//! Which waiting work asks for the same, kept from one plan to the next.

use lattice_model::input::STDIN_VARIABLE;
use lattice_model::{Allocation, AllocationId};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// More than this many times what waits is not kept.
const KEPT_FACTOR_MAX: usize = 2;
/// So many are kept however little waits.
const KEPT_MIN: usize = 1024;

/// Numbers for what work asks for, which a scheduler keeps from one plan to the next: no
/// plan compares again what an earlier one has compared. They never change what a plan decides.
#[derive(Default)]
pub struct Likenesses {
    /// The records that are known, each with its number.
    known: HashMap<AllocationId, (Arc<Allocation>, usize)>,
    /// A record with each number.
    examples: Vec<Arc<Allocation>>,
    /// By hash: the numbers.
    by_hash: HashMap<u64, Vec<usize>>,
}

impl Likenesses {
    /// The number of what a record asks for: the same for two if the same nodes could ever serve both.
    pub(crate) fn number(&mut self, record: &Arc<Allocation>) -> usize {
        if let Some((known, number)) = self.known.get(&record.id)
            && Arc::ptr_eq(known, record)
        {
            return *number;
        }
        let same_hash = self.by_hash.entry(hash(record)).or_default();
        let number = same_hash.iter().copied().find(|number| is_alike(&self.examples[*number], record)).unwrap_or_else(|| {
            same_hash.push(self.examples.len());
            self.examples.push(Arc::clone(record));
            self.examples.len() - 1
        });
        self.known.insert(record.id, (Arc::clone(record), number));
        number
    }

    /// Begins anew if much more is kept than the plan needed: `waiting` records, of so many numbers.
    pub(crate) fn bound(&mut self, waiting: usize, numbers: usize) {
        let is_too_much = |kept: usize, needed: usize| kept > KEPT_MIN.max(KEPT_FACTOR_MAX * needed);
        if is_too_much(self.known.len(), waiting) || is_too_much(self.examples.len(), numbers) {
            *self = Self::default();
        }
    }
}

/// Whether the same nodes could ever serve both.
fn is_alike(a: &Allocation, b: &Allocation) -> bool {
    let (x, y) = (&a.spec, &b.spec);
    let same_place = (&x.vcluster, &x.share, &x.constraints, x.sensitive) == (&y.vcluster, &y.share, &y.constraints, y.sensitive);
    let same_layout = (x.tasks_per_node, &x.binding, &x.launch) == (y.tasks_per_node, &y.binding, &y.launch);
    let same_care = (x.on_isolation, &x.checkpoint) == (y.on_isolation, &y.checkpoint);
    same_place && same_layout && same_care && x.env.get(STDIN_VARIABLE) == y.env.get(STDIN_VARIABLE) && a.excluded == b.excluded
}

/// Equal for work that is alike.
fn hash(allocation: &Allocation) -> u64 {
    let spec = &allocation.spec;
    let mut hash = DefaultHasher::new();
    (&spec.vcluster, spec.sensitive, spec.tasks_per_node, allocation.excluded.len()).hash(&mut hash);
    let constraints = &spec.constraints;
    (constraints.gpus, constraints.memory_bytes, constraints.conformance, constraints.topology).hash(&mut hash);
    (&constraints.features, &constraints.nodes).hash(&mut hash);
    (spec.binding.gpus_per_task, spec.launch.shape.cpus_per_task).hash(&mut hash);
    spec.share.map(|share| (share.cores, share.memory_bytes, share.gpus)).hash(&mut hash);
    hash.finish()
}
