//! The score of waiting work: its place among work of the same class in its queue.
//!
//! The specification ("Scheduling algorithm") has nine factors, f₁ to f₉, each with a weight, and a
//! penalty for tenants whose budget runs out:
//!
//! ```text
//!   score = (w₁·f₁ + … + w₉·f₉) · budget
//! ```
//!
//! Each unit of the `nice` of work takes one minute of waiting off f₂.
//!
//! A factor is [`NEUTRAL`] for all work if this version does not have its source, or if it counts in
//! the choice of nodes instead of the order.

use crate::classes::Class;
use crate::draft::Draft;
use crate::standing::{BUDGET_EXCEEDED, Standings};
use crate::view::View;
use lattice_model::{Allocation, Factor, Timestamp, Weights};

/// The value of a factor that is the same for all work.
const NEUTRAL: f64 = 0.5;
/// After how long a wait, in seconds, f₂ is log 2.
const REFERENCE_WAIT_S: f64 = 3600.0;
/// How much of its memory work is assumed to save, if its size is not known.
pub const FIRST_SIZE_MEMORY_PART: f64 = 0.25;
/// α of f₄: the weight of the fitness between the nodes of work; the rest is that within each node.
const BETWEEN_NODES_WEIGHT: f64 = 0.7;

/// One factor of a score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Term {
    pub factor: Factor,
    pub weight: f64,
    pub value: f64,
    /// Whether the value is the allocation's own; otherwise it is the same for all.
    pub is_known: bool,
}

/// A score and its terms.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// The preemption class within which the score counts.
    pub class: u8,
    pub terms: [Term; Factor::ALL.len()],
    /// How much its `nice` changes the value of its wait factor; 0: it has none.
    pub nice: f64,
    /// The terms are multiplied by this: less than 1 if the budget of its tenant runs out.
    pub budget_factor: f64,
}

impl Score {
    /// Whether the budget of its tenant is exceeded: then it comes after all other work of its class.
    pub fn is_over_budget(&self) -> bool {
        self.budget_factor <= BUDGET_EXCEEDED
    }

    /// The score: 0 or more.
    pub fn total(&self) -> f64 {
        // `nice` is added within the term, so that a wait that it takes away is exactly 0 for all such work. Added to the
        // sum, it would leave a rounding error, which would decide the order.
        let value = |term: &Term| term.value + if term.factor == Factor::WaitTime { self.nice } else { 0.0 };
        self.terms.iter().map(|term| term.weight * value(term)).sum::<f64>().max(0.0) * self.budget_factor
    }

    /// The weight of the wait.
    pub fn wait_weight(&self) -> f64 {
        self.terms.iter().find(|term| term.factor == Factor::WaitTime).map_or(0.0, |term| term.weight)
    }
}

/// The values that all scores of a plan have in common.
pub struct Scorer<'a> {
    view: &'a View,
    now: Timestamp,
    standings: Standings<'a>,
    /// f₆: the node-hours that wait, divided by the node-hours that run, at most 1.
    backlog: f64,
    /// How many topology groups the cluster has.
    topology_groups: usize,
}

impl<'a> Scorer<'a> {
    pub fn of(state: &Draft<'a>) -> Self {
        let (view, now) = (state.view, Timestamp(state.now_ms));
        let backlog = state.kept.backlog.value(state.columns.gpus_most);
        Self { view, now, standings: Standings::of(state), backlog, topology_groups: state.columns.topology_groups }
    }

    /// See [`Standings::is_over_burst`].
    pub fn is_over_burst(&self, allocation: &Allocation) -> bool {
        self.standings.is_over_burst(allocation)
    }

    /// The score of an allocation.
    pub fn score(&self, allocation: &Allocation, class: &Class, weights: &Weights) -> Score {
        let terms = Factor::ALL.map(|factor| {
            let value = self.value(factor, allocation, class);
            Term { factor, weight: weights.get(factor).value(), value: value.unwrap_or(NEUTRAL), is_known: value.is_some() }
        });
        let nice = match allocation.spec.nice {
            0 => 0.0,
            _ => self.waited(allocation.ordered_at()) - self.waited(allocation.queued_at()),
        };
        Score { class: self.view.effective_class(allocation), terms, nice, budget_factor: self.standings.budget_factor(allocation) }
    }

    /// f₂ of work that has waited since this time.
    fn waited(&self, since: Timestamp) -> f64 {
        (self.now.since_ms(since) as f64 / 1000.0 / REFERENCE_WAIT_S).ln_1p()
    }

    fn value(&self, factor: Factor, allocation: &Allocation, class: &Class) -> Option<f64> {
        match factor {
            Factor::Priority => Some(f64::from(self.view.effective_class(allocation))),
            Factor::WaitTime => Some(self.waited(allocation.queued_at())),
            Factor::FairShare => Some(self.standings.share_deficit(allocation)),
            Factor::Backlog => Some(self.backlog),
            Factor::Checkpoint => self.checkpoint_efficiency(allocation, class),
            Factor::Topology => self.topology_fitness(allocation, class),
            // Conformance counts in the choice of nodes, as in the specification.
            Factor::DataReadiness | Factor::Energy | Factor::Conformance => None,
        }
    }

    /// f₄: the fewer topology groups it needs, and the better the wiring of a node suits it, the nearer
    /// to 1. For work of one node, the wiring alone counts, if it is known. `None`: neither is known.
    fn topology_fitness(&self, allocation: &Allocation, class: &Class) -> Option<f64> {
        match (self.fitness_between(allocation, class), class.fitness_within) {
            (Some(between), Some(within)) if allocation.spec.nodes > 1 => {
                Some(BETWEEN_NODES_WEIGHT * between + (1.0 - BETWEEN_NODES_WEIGHT) * within)
            }
            (_, Some(within)) => Some(within),
            (between, None) => between,
        }
    }

    /// The fewer topology groups it needs, the nearer to 1. `None`: all nodes are in one group.
    fn fitness_between(&self, allocation: &Allocation, class: &Class) -> Option<f64> {
        if self.topology_groups < 2 {
            return None;
        }
        let needed = class.groups_needed(allocation.spec.nodes).unwrap_or(self.topology_groups);
        Some(1.0 - needed as f64 / self.topology_groups as f64)
    }

    /// f₈: 1 for work that saves itself in no time, 0 for work that cannot save itself. `None`: the
    /// bandwidth of the checkpoint store is not known.
    fn checkpoint_efficiency(&self, allocation: &Allocation, class: &Class) -> Option<f64> {
        if allocation.spec.checkpoint.is_none() {
            return Some(0.0);
        }
        let bytes_per_second = self.view.checkpoint_bytes_per_second?;
        let memory_bytes = f64::from(allocation.spec.nodes) * class.memory_bytes as f64;
        let minutes = memory_bytes * FIRST_SIZE_MEMORY_PART / bytes_per_second / 60.0;
        Some(1.0 / (1.0 + minutes))
    }
}
