//! Changes of waiting work with which it would begin now: each is tried in a plan of its own.

use crate::plan::{Decision, plan_within};
use crate::state::State;
use crate::view::View;
use lattice_model::task_group::task_walltime;
use lattice_model::{Allocation, AllocationId, Timestamp, Topology};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// If more work than this waits, no change is tried: each costs a plan.
const WAITING_MAX: usize = 1000;
/// How often one of these plans may look at a node.
const LOOKS_MAX: usize = 2_000_000;
/// How many other vClusters are tried.
const VCLUSTERS_MAX: usize = 8;
/// The walltimes that are tried for work without one.
const WALLTIMES_TRIED: [Duration; 4] =
    [Duration::from_secs(24 * 3600), Duration::from_secs(4 * 3600), Duration::from_secs(3600), Duration::from_secs(900)];
/// The parts of its walltime that are tried, in sixteenths.
const SIXTEENTHS_TRIED: [u32; 5] = [12, 8, 4, 2, 1];

/// A change with which an allocation would begin now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sooner {
    /// It asks for this many nodes at most.
    Nodes(u32),
    /// Its walltime is this at most; for a lane of a task group, the walltime of a task.
    Walltime(Duration),
    /// Its nodes may be of any topology groups.
    AnyTopology,
    /// It is in this vCluster.
    VCluster(String),
}

impl fmt::Display for Sooner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nodes(1) => f.write_str("it asked for 1 node"),
            Self::Nodes(nodes) => write!(f, "it asked for {nodes} nodes"),
            Self::Walltime(walltime) => write!(f, "its walltime were {}", lattice_model::duration::clock_text(*walltime)),
            Self::AnyTopology => f.write_str("its nodes were of any topology groups (--topology any)"),
            Self::VCluster(name) => write!(f, "it were in vCluster {name}"),
        }
    }
}

/// All single changes with which a waiting allocation would begin now; empty if too much work waits to
/// try them.
pub fn sooner(view: &View, id: AllocationId, now: Timestamp) -> Vec<Sooner> {
    if view.allocations.values().filter(|a| a.waits()).nth(WAITING_MAX).is_some() {
        return Vec::new();
    }
    let Some(allocation) = view.allocations.get(&id) else { return Vec::new() };
    let mut trial = Trial { view: view.clone(), allocation: allocation.clone(), now, state: State::default() };
    let mut found = Vec::new();
    found.extend(trial.nodes().map(Sooner::Nodes));
    let walltime = match allocation.lane {
        Some(_) => trial.walltime().map(|lane| whole_minutes(task_walltime(lane))).filter(|task| !task.is_zero()),
        // A service that scales has no walltime.
        None if allocation.replica.is_some() => None,
        None => trial.walltime(),
    };
    found.extend(walltime.map(Sooner::Walltime));
    found.extend(trial.any_topology());
    found.extend(trial.vcluster().map(Sooner::VCluster));
    found
}

/// Rounds down to whole minutes, as people write them.
fn whole_minutes(walltime: Duration) -> Duration {
    Duration::from_secs(walltime.as_secs() / 60 * 60)
}

struct Trial {
    view: View,
    /// The allocation without a change.
    allocation: Allocation,
    now: Timestamp,
    state: State,
}

impl Trial {
    fn begins(&mut self, change: impl FnOnce(&mut Allocation)) -> bool {
        let mut changed = self.allocation.clone();
        change(&mut changed);
        self.view.allocations.insert(changed.id, changed);
        self.state.apply(self.view.clone());
        let plan = plan_within(&self.state, self.now, LOOKS_MAX);
        let planned = plan.planned.iter().find(|planned| planned.allocation.id == self.allocation.id);
        planned.is_some_and(|planned| matches!(planned.decision, Decision::Begins(_)))
    }

    /// The most nodes with which it begins, fewer than it asks for.
    fn nodes(&mut self) -> Option<u32> {
        // With fewer nodes, it would want more of each.
        if self.allocation.spec.spread.is_some() {
            return None;
        }
        // It begins with `fits` nodes and does not with `too_many`.
        let (mut fits, mut too_many) = (0, self.allocation.spec.nodes);
        while too_many - fits > 1 {
            let tried = fits + (too_many - fits) / 2;
            let fewer = |a: &mut Allocation| {
                let spec = Arc::make_mut(&mut a.spec);
                (spec.nodes, spec.nodes_max) = (tried, None);
            };
            if self.begins(fewer) {
                fits = tried;
            } else {
                too_many = tried;
            }
        }
        (fits > 0).then_some(fits)
    }

    /// The longest of some shorter walltimes with which it begins.
    fn walltime(&mut self) -> Option<Duration> {
        let shorter: Vec<Duration> = match self.allocation.spec.walltime {
            None => WALLTIMES_TRIED.to_vec(),
            // In whole minutes, as people write them.
            Some(walltime) => {
                let minutes = SIXTEENTHS_TRIED.map(|part| (walltime * part / 16).as_secs() / 60);
                minutes.into_iter().filter(|minutes| *minutes > 0).map(|minutes| Duration::from_secs(minutes * 60)).collect()
            }
        };
        shorter.into_iter().find(|walltime| self.begins(|a| Arc::make_mut(&mut a.spec).walltime = Some(*walltime)))
    }

    fn any_topology(&mut self) -> Option<Sooner> {
        let is_limited = self.allocation.spec.constraints.topology != Topology::Any;
        (is_limited && self.begins(|a| Arc::make_mut(&mut a.spec).constraints.topology = Topology::Any)).then_some(Sooner::AnyTopology)
    }

    fn vcluster(&mut self) -> Option<String> {
        let tenant = self.allocation.spec.tenant.clone();
        let own = self.view.queue_of(&self.allocation).to_owned();
        let accepts = |name: &String| {
            let of = self.view.vclusters.get(name).map_or("", |vcluster| vcluster.tenant.as_str());
            *name != own && (of.is_empty() || of == tenant)
        };
        let others: Vec<String> = self.view.queues().into_iter().filter(accepts).take(VCLUSTERS_MAX).collect();
        others.into_iter().find(|name| self.begins(|a| Arc::make_mut(&mut a.spec).vcluster.clone_from(name)))
    }
}
