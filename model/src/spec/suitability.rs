//! Why a node cannot run the work of a specification. For people.

use super::{AllocationSpec, OnIsolation};
use crate::checkpoint::{CheckpointMethod, SignalTo};
use crate::conformance::Conformance;
use crate::constraint;
use crate::count::counted;
use crate::node::Node;
use crate::resources::Resources;

impl AllocationSpec {
    /// Which requirement a node does not meet, regardless of what is free on it: constraints, and
    /// for whole nodes enough cores and GPUs for its tasks. For people; `None`: the node meets all.
    pub fn lacked_by(&self, node: &Node) -> Option<String> {
        let lacked = self.tasks_do_not_fit(node).or_else(|| self.unfenced_by(node)).or_else(|| self.unsaved_by(node));
        lacked.or_else(|| self.constraints.lacked_by(node)).or_else(|| self.astray(node))
    }

    /// Why a node as registered can never run it, regardless of the node's state and free
    /// resources. For people.
    pub fn never_served_by(&self, node: &Node) -> Option<String> {
        if !node.schedulable {
            return Some("takes no work (schedulable: false)".to_owned());
        }
        let wanted = self.amount_of(&node.size);
        let too_small = (node.size == Resources::default() || !node.size.holds(&wanted)).then(|| wanted.beyond(&node.size));
        too_small.or_else(|| self.tasks_do_not_fit(node)).or_else(|| self.constraints.never_met_by(node))
    }

    /// Why the tasks for a whole node do not fit on it.
    fn tasks_do_not_fit(&self, node: &Node) -> Option<String> {
        let gpus = self.binding.gpus_per_task.saturating_mul(self.tasks_per_node);
        if self.share.is_none() && gpus > node.size.gpus {
            return Some(format!("has {}; its tasks there want {gpus}", counted(node.size.gpus, "GPU")));
        }
        let cores = self.launch.shape.cpus_per_task.saturating_mul(self.tasks_per_node);
        (self.share.is_none() && cores > node.size.cores)
            .then(|| format!("has {}; its tasks there want {cores}", counted(node.size.cores, "core")))
    }

    /// If the work must end on isolation: why a node cannot guarantee that.
    pub fn unfenced_by(&self, node: &Node) -> Option<String> {
        let wanted = self.on_isolation == OnIsolation::Stop;
        (wanted && !constraint::has(&node.features, constraint::RUN_LEASE))
            .then(|| "keeps no run leases (a machine without cgroup v2), and --on-isolation=stop asks for one".to_owned())
    }

    /// Why a node's agent cannot make checkpoints of it or restore one.
    pub fn unsaved_by(&self, node: &Node) -> Option<String> {
        let asked = self.checkpoint.as_ref()?;
        if !constraint::has(&node.features, constraint::CHECKPOINTS) {
            let why = "makes no checkpoints (neither checkpoint.store nor logs.store is configured), and --checkpoint asks for them";
            return Some(why.to_owned());
        }
        // Run leases show that the agent can attribute processes to allocations: both need cgroup
        // v2.
        if constraint::has(&node.features, constraint::RUN_LEASE) {
            return None;
        }
        let by_call = asked.method == CheckpointMethod::Call;
        let of_some = asked.method.is_signal() && asked.signal.whom() != SignalTo::All;
        if by_call {
            return Some("cannot tell which work is calling (a machine without cgroup v2), and --checkpoint=grpc asks for it".to_owned());
        }
        of_some
            .then(|| format!("cannot tell its ranks (a machine without cgroup v2), and --checkpoint-signal={} asks for that", asked.signal))
    }

    /// Why a node's software and firmware are unsuitable: sensitive work is not placed on a drifted
    /// node.
    pub fn astray(&self, node: &Node) -> Option<String> {
        let drifted = node.conformance.as_ref().filter(|_| self.sensitive).and_then(Conformance::drifted);
        drifted.map(|changes| format!("has drifted from its configuration ({changes}), and sensitive work is not placed on such a node"))
    }
}
