//! The choice of nodes stays the same if nodes are left out because others are alike.

use crate::choice;
use crate::classes::Class;
use crate::draft::Draft;
use crate::owners::Who;
use crate::quotas::Quotas;
use crate::span::{Span, duration_ms};
use crate::state::State;
use crate::tests::{NOW, id, pending, running_on, view};
use lattice_model::test_builders::spec_of;
use lattice_model::{Allocation, Conformance, LocalDomain, Resources, Tenant, Timestamp, Topology};
use proptest::prelude::*;
use std::time::Duration;

/// A node's kind, conformance group and topology group; whether it has drifted.
type Node = (u8, u8, u8, bool);
/// A node, how much of it is held, when in minutes from now, and for how long.
type Held = (prop::sample::Index, u32, u64, u64);

fn node() -> impl Strategy<Value = Node> {
    (0_u8..2, 0_u8..4, 0_u8..3, prop::bool::weighted(0.1))
}

fn held() -> impl Strategy<Value = Held> {
    (any::<prop::sample::Index>(), 1_u32..=2, 0_u64..4, 1_u64..4)
}

const SHARE: Resources = Resources { cores: 1, memory_bytes: 0, gpus: 0 };

fn of_tenant(n: u64) -> Allocation {
    let mut allocation = pending(n, 1, 5);
    spec_of(&mut allocation).tenant = "t".to_owned();
    allocation
}

fn conforming(group: u8, drifts: bool) -> Conformance {
    let components = |kernel: u8| [("kernel".to_owned(), kernel.to_string())].into();
    let first = Conformance::first(components(group));
    if drifts { first.then(components(group + 10), Timestamp(5), false) } else { first }
}

proptest! {
    #[test]
    fn work_gets_the_nodes_that_it_would_get_of_all(
        nodes in prop::collection::vec(node(), 1..20),
        held in prop::collection::vec(held(), 0..12),
        (wanted, more, cores) in (1_u32..6, 0_u32..3, 0_u32..3),
        (is_one_group, is_tight, same_numa, minutes) in (any::<bool>(), any::<bool>(), any::<bool>(), 1_u64..5),
        max_nodes in prop::option::of(1_u32..5),
    ) {
        let mut waits = pending(1, wanted, 10);
        {
            let spec = spec_of(&mut waits);
            (spec.nodes_max, spec.walltime) = ((more > 0).then_some(wanted + more), Some(Duration::from_secs(minutes * 60)));
            (spec.constraints.conformance, spec.constraints.same_numa) = (is_one_group, same_numa);
            spec.constraints.topology = if is_tight { Topology::Tight } else { Topology::Any };
            spec.share = (cores > 0).then_some(Resources { cores, memory_bytes: 0, gpus: 0 });
            spec.tenant = "t".to_owned();
        }
        let mut v = view(nodes.len() as u64, vec![waits.clone(), running_on(of_tenant(8), "n1", SHARE)]);
        v.tenants.insert("t".to_owned(), Tenant { name: "t".to_owned(), max_nodes, ..Tenant::default() });
        for (node, (kind, conformance, topology, drifts)) in v.nodes.values_mut().zip(&nodes) {
            node.size.cores += u32::from(*kind);
            node.topology_group = Some(topology.to_string());
            node.locality.domains = vec![LocalDomain { cores: 1 + u32::from(*kind), gpus: 0 }];
            // 0 stands for no known group: such a node is a group of its own.
            node.conformance = (*conformance > 0).then(|| conforming(*conformance, *drifts));
        }
        let kept = State::from(v);
        let mut state = Draft::of(&kept, NOW);
        for (node, cores, from, long) in &held {
            let (start_ms, amount) = (NOW.0 + from * 60_000, Resources { cores: *cores, memory_bytes: 0, gpus: 0 });
            let (end_ms, by) = (start_ms + long * 60_000, id(9));
            let span = Span { start_ms, end_ms, amount, by, who: Who::default(), replica_of: None, has_end: true, is_planned: true };
            state.plan(node.index(nodes.len()), span);
        }
        let mut class = kept.classes.all[kept.waiting[&waits.id].1].clone();
        let quotas = Quotas::of(&state);
        let choose = |class: &Class| choice::choose(&state, class, &quotas, &waits, NOW.0 + duration_ms(&waits.spec));
        let chosen = choose(&class);
        class.kinds = None;
        prop_assert_eq!(chosen, choose(&class));
    }
}
