//! Which waiting work asks for the same nodes.

use crate::grouping::is_contiguous;
use lattice_model::Allocation;
use lattice_model::input::STDIN_VARIABLE;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Whether the same nodes could ever serve both.
pub fn is_alike(a: &Allocation, b: &Allocation) -> bool {
    let (x, y) = (&a.spec, &b.spec);
    let same_place = (&x.vcluster, &x.share, &x.constraints, x.sensitive) == (&y.vcluster, &y.share, &y.constraints, y.sensitive);
    let same_layout = (x.tasks_per_node, &x.binding, &x.launch) == (y.tasks_per_node, &y.binding, &y.launch);
    let same_care = (x.on_isolation, &x.checkpoint) == (y.on_isolation, &y.checkpoint);
    // A single node is always contiguous: such work is in another class, even if both ask for
    // contiguous nodes.
    let same_place = same_place && x.reservation == y.reservation && is_contiguous(x) == is_contiguous(y);
    same_place && same_layout && same_care && x.env.get(STDIN_VARIABLE) == y.env.get(STDIN_VARIABLE) && a.excluded == b.excluded
}

/// The same hash for all work that is alike.
pub fn hash(allocation: &Allocation) -> u64 {
    let spec = &allocation.spec;
    let mut hash = DefaultHasher::new();
    (&spec.vcluster, &spec.reservation, spec.sensitive, spec.tasks_per_node, allocation.excluded.len()).hash(&mut hash);
    let constraints = &spec.constraints;
    (constraints.gpus, constraints.memory_bytes, constraints.conformance, constraints.topology).hash(&mut hash);
    (&constraints.features, &constraints.choice, constraints.cores).hash(&mut hash);
    (&constraints.nodes, &constraints.excluded).hash(&mut hash);
    (spec.binding.gpus_per_task, spec.launch.shape.cpus_per_task).hash(&mut hash);
    spec.share.map(|share| (share.cores, share.memory_bytes, share.gpus)).hash(&mut hash);
    hash.finish()
}
