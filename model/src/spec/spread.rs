//! Ranks that are spread over nodes in equal parts, over as few nodes as hold them. So the work's part of each node
//! follows from the number of nodes.
//!
//! The specification itself is the form on the fewest nodes. [`AllocationSpec::spread_over`] gives the others.

use super::{AllocationSpec, invalid, share_of};
use crate::layout::Distribution;
use crate::resources::Resources;
use crate::spec_error::SpecError;
use std::iter;

const FIELD: &str = "spread";

impl AllocationSpec {
    /// The numbers of nodes over which its ranks may be spread, ascending; of numbers with equally many ranks on a
    /// node, only the lowest. If it is not spread: the requested number.
    pub fn spread_counts(&self) -> impl Iterator<Item = u32> {
        let ranks = if self.spread.is_some() { self.launch.ranks } else { 0 };
        let most = self.nodes_most();
        iter::successors(Some(self.nodes.max(1)), move |nodes| {
            let fewer = ranks.div_ceil(*nodes).checked_sub(1).filter(|fewer| *fewer > 0)?;
            Some(ranks.div_ceil(fewer)).filter(|nodes| *nodes <= most)
        })
    }

    /// The same work on exactly this many nodes, with an equal part of its ranks on each. Work that is not spread stays as
    /// it is.
    pub fn spread_over(&self, nodes: u32) -> Self {
        let Some(each) = self.spread else { return self.clone() };
        let (tasks_per_node, share, cores) = self.of_form(each, nodes);
        let mut form = Self { nodes, nodes_max: None, tasks_per_node, share, ..self.clone() };
        form.constraints.cores = cores;
        form
    }

    /// Whether a node of this size is large enough for the form on this many nodes.
    pub fn spread_fits(&self, nodes: u32, size: &Resources) -> bool {
        let of_form = self.spread.map(|each| self.of_form(each, nodes));
        let (share, cores) = of_form.map_or((self.share, self.constraints.cores), |(_, share, cores)| (share, cores));
        size.cores >= cores && size.holds(&share.map_or(*size, |asked| share_of(&asked, size)))
    }

    /// In the form on this many nodes: the ranks on a node, its share, and its least number of cores.
    fn of_form(&self, each: Resources, nodes: u32) -> (u32, Option<Resources>, u32) {
        let tasks = self.launch.ranks.div_ceil(nodes.max(1)).max(1);
        let of_ranks = each.times(tasks);
        match self.share {
            Some(share) => (tasks, Some(share.minus(&each.times(self.tasks_per_node)).plus(&of_ranks)), self.constraints.cores),
            None => (tasks, None, self.constraints.cores.max(of_ranks.cores)),
        }
    }

    pub(super) fn validate_spread(&self) -> Result<(), SpecError> {
        let Some(each) = self.spread else { return Ok(()) };
        let refuse = |why: &str| Err(invalid(FIELD, why));
        if self.launch.ranks == 0 {
            return refuse("a number of ranks is spread over nodes: give --ntasks");
        }
        if self.tasks_per_node != self.launch.ranks.div_ceil(self.nodes) {
            return refuse("the ranks on a node follow from the number of nodes: leave --tasks-per-node out");
        }
        if let Distribution::Plane(_) = self.launch.shape.distribution {
            return refuse("with plane=N the nodes have different numbers of ranks: give --nodes instead");
        }
        if !self.constraints.nodes.is_empty() {
            return refuse("its nodes are named: leave --nodelist out, or --spread");
        }
        if each.cores == 0 {
            return refuse("each rank needs at least 1 core");
        }
        if self.share.is_some_and(|share| !share.holds(&each.times(self.tasks_per_node))) {
            return refuse("the amount of each node is less than that of its ranks");
        }
        Ok(())
    }
}

impl Resources {
    /// `count` times this amount; saturates.
    fn times(&self, count: u32) -> Self {
        Self {
            cores: self.cores.saturating_mul(count),
            memory_bytes: self.memory_bytes.saturating_mul(count.into()),
            gpus: self.gpus.saturating_mul(count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_builders::spec;

    const EACH: Resources = Resources { cores: 2, memory_bytes: 10, gpus: 0 };

    fn spread(ranks: u32) -> AllocationSpec {
        let mut spec = spec();
        (spec.nodes, spec.nodes_max, spec.tasks_per_node) = (1, Some(ranks).filter(|ranks| *ranks > 1), ranks);
        (spec.launch.ranks, spec.spread) = (ranks, Some(EACH));
        spec
    }

    #[test]
    fn the_lowest_number_of_nodes_for_each_number_of_ranks_on_a_node() {
        let counts = |ranks: u32| spread(ranks).spread_counts().collect::<Vec<u32>>();
        assert_eq!((counts(1), counts(2), counts(6)), (vec![1], vec![1, 2], vec![1, 2, 3, 6]));
        assert_eq!(counts(10), [1, 2, 3, 4, 5, 10], "4, 3, 3 and not 4, 4, 2");
        assert_eq!((0..12).filter(|nodes| spread(10).may_have(*nodes)).collect::<Vec<usize>>(), [1, 2, 3, 4, 5, 10]);
        for ranks in 1..200 {
            let mut before = u32::MAX;
            for nodes in counts(ranks) {
                let on_each = ranks.div_ceil(nodes);
                assert!(on_each < before && (nodes == 1 || ranks.div_ceil(nodes - 1) > on_each), "{ranks} over {nodes}");
                before = on_each;
            }
            assert_eq!(before, 1);
        }
        let plain = AllocationSpec { nodes: 3, ..spec() };
        assert_eq!(plain.spread_counts().collect::<Vec<u32>>(), [3]);
        assert_eq!(plain.spread_over(2), plain);
    }

    #[test]
    fn a_share_has_the_amounts_for_each_node_and_for_its_ranks() {
        // 5 bytes for each node, whatever its ranks.
        let shared = AllocationSpec { share: Some(Resources { cores: 20, memory_bytes: 105, gpus: 0 }), ..spread(10) };
        assert_eq!(shared.validate(), Ok(()));
        let form = shared.spread_over(3);
        assert_eq!((form.nodes, form.nodes_most(), form.tasks_per_node, form.ranks_min()), (3, 3, 4, 10));
        assert_eq!((form.share, form.validate()), (Some(Resources { cores: 8, memory_bytes: 45, gpus: 0 }), Ok(())));
        assert_eq!(form.spread_over(1).share, shared.share);
        assert_eq!(form.spread_counts().collect::<Vec<u32>>(), [3]);
        let whole = spread(10).spread_over(3);
        assert_eq!((whole.share, whole.constraints.cores), (None, 8));
        let size = |cores| Resources { cores, memory_bytes: 45, gpus: 0 };
        for spec in [&shared, &spread(10)] {
            assert_eq!([8, 7].map(|cores| spec.spread_fits(3, &size(cores))), [true, false]);
        }
        let nodes = ["n1", "n2", "n3"].map(|name| name.parse().unwrap());
        let counts: Vec<u32> = form.usual_ranks(&nodes).iter().map(|ranks| ranks.count).collect();
        assert_eq!(counts, [4, 3, 3]);
    }

    #[test]
    fn what_cannot_be_spread_is_refused() {
        let refused = |change: &dyn Fn(&mut AllocationSpec)| {
            let mut changed = spread(10);
            change(&mut changed);
            match changed.validate() {
                Err(SpecError::Invalid { field, .. }) => field,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(spread(10).validate(), Ok(()));
        assert_eq!(refused(&|s| s.launch.ranks = 0), FIELD);
        assert_eq!(refused(&|s| s.launch.ranks = 9), "nodes");
        assert_eq!(refused(&|s| s.launch.shape.distribution = Distribution::Plane(2)), FIELD);
        assert_eq!(refused(&|s| s.spread = Some(Resources::default())), FIELD);
        assert_eq!(refused(&|s| s.share = Some(Resources { cores: 19, memory_bytes: 105, gpus: 0 })), FIELD);
        assert_eq!(refused(&|s| s.constraints.nodes = ["n1".parse().unwrap()].into()), "nodes");
    }
}
