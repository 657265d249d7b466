//! The ranks of a specification: how many there are, on which nodes, and which launches it cannot ask for.

use super::checks::without_nul;
use super::{AllocationSpec, Entrypoint, invalid};
use crate::count::counted;
use crate::ids::NodeId;
use crate::layout::{Distribution, lay_out};
use crate::node_ranks::NodeRanks;
use crate::spec_error::SpecError;

impl AllocationSpec {
    /// Number of ranks of an inline command, and of a script's launch that does not specify it, on the
    /// fewest nodes that it may get.
    pub fn ranks_min(&self) -> u32 {
        self.ranks_on(self.nodes)
    }

    /// The same on this number of nodes.
    pub fn ranks_on(&self, nodes: u32) -> u32 {
        match self.launch.ranks {
            0 => nodes.saturating_mul(self.tasks_per_node),
            ranks => ranks,
        }
    }

    /// The distribution of ranks to these nodes for the launch of an inline command, and for a
    /// script's launch that does not specify it.
    pub fn usual_ranks(&self, nodes: &[NodeId]) -> Vec<NodeRanks> {
        let asked = &self.launch;
        // Fewer ranks than would fit are distributed evenly.
        let limit = (asked.ranks == 0 || asked.shape.distribution != Distribution::Block).then_some(self.tasks_per_node);
        let ranks = self.ranks_on(u32::try_from(nodes.len()).unwrap_or(u32::MAX));
        lay_out(nodes, ranks, limit, &asked.shape.distribution).unwrap_or_default()
    }

    pub(super) fn validate_launch(&self) -> Result<(), SpecError> {
        let (shape, most) = (&self.launch.shape, self.nodes.saturating_mul(self.tasks_per_node));
        if self.launch.ranks > most {
            let (nodes, tasks) = (counted(self.nodes, "node"), counted(self.tasks_per_node, "task"));
            let why = format!("{} ranks do not fit: {nodes} × {tasks} per node = {most}", self.launch.ranks);
            return Err(invalid("ntasks", why));
        }
        if let Distribution::Explicit(_) = shape.distribution {
            return Err(invalid("nodelist", "its nodes are not known yet; launches inside the allocation may list them"));
        }
        if let Entrypoint::Script { .. } = self.entrypoint
            && !shape.programs.is_empty()
        {
            return Err(invalid("ntasks", "of a script: its launches say how many ranks each program has (`lattice launch -n`)"));
        }
        shape.validate(self.ranks_min()).map_err(|e| invalid("launch", e.to_string()))?;
        for program in &shape.programs {
            without_nul("command", &program.argv)?;
        }
        let cores = shape.cpus_per_task.saturating_mul(self.tasks_per_node);
        match self.share.filter(|s| s.cores > 0 && s.cores < cores) {
            Some(share) => Err(invalid(
                "cpus-per-task",
                format!("its tasks want {} of each node, and --cores asks for {}", counted(cores, "core"), share.cores),
            )),
            None => Ok(()),
        }
    }
}
