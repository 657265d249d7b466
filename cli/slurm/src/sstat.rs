//! The fields of sstat: what running work uses now, as its nodes measure it.

use crate::listing::{ListField, field};
use crate::time::cpu_duration;
use crate::units::kibibytes_text;
use lattice_api::v1;

/// The fields without options.
pub const DEFAULT: &str = "JobID,MaxVMSize,MaxVMSizeNode,MaxVMSizeTask,AveVMSize,MaxRSS,MaxRSSNode,MaxRSSTask,AveRSS,MaxPages,MaxPagesNode,\
MaxPagesTask,AvePages,MinCPU,MinCPUNode,MinCPUTask,AveCPU,NTasks,AveCPUFreq,ConsumedEnergy,MaxDiskRead,MaxDiskReadNode,MaxDiskReadTask,\
AveDiskRead,MaxDiskWrite,MaxDiskWriteNode,MaxDiskWriteTask,AveDiskWrite";
/// The fields of `--pidformat`.
pub const PIDS: &str = "JobID,Nodes,Pids";

/// A step that runs.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    /// Its id, such as `12.batch`.
    pub id: String,
    /// How many ranks it has.
    pub task_count: u32,
    /// How long it has run, in milliseconds.
    pub elapsed_ms: u64,
    /// What each of its nodes measures.
    pub nodes: Vec<v1::NodeUsage>,
}

impl Usage {
    /// The usage of the ranks of one launch, as its nodes measured each rank. `None`: none of its ranks runs.
    pub fn of_launch(id: String, launch: u32, elapsed_ms: u64, nodes: Vec<v1::NodeUsage>) -> Option<Self> {
        let measured = |name: &str, now: f64| v1::Measured { name: name.to_owned(), now, ..Default::default() };
        let of_node = |mut node: v1::NodeUsage| {
            node.ranks.retain(|rank| rank.launch == launch);
            let bytes = node.ranks.iter().map(|rank| rank.memory_bytes as f64);
            node.measured = vec![
                measured("memory_used", bytes.clone().sum()),
                // The greatest value of a single rank, as Slurm shows it.
                measured("memory_peak", bytes.fold(0.0, f64::max)),
                measured("cpu_cores", node.ranks.iter().filter_map(|rank| rank.cpu_cores).sum()),
            ];
            node
        };
        let nodes: Vec<v1::NodeUsage> = nodes.into_iter().map(of_node).filter(|node| !node.ranks.is_empty()).collect();
        let ranks: usize = nodes.iter().map(|node| node.ranks.len()).sum();
        let task_count = u32::try_from(ranks).unwrap_or(u32::MAX);
        (ranks > 0).then_some(Self { id, task_count, elapsed_ms, nodes })
    }

    /// The greatest value of a measurement on each node that has it.
    fn measured(&self, name: &str) -> Vec<(&str, f64)> {
        let of = |node: &'_ v1::NodeUsage| -> Option<f64> {
            let found = node.measured.iter().find(|measured| measured.name == name)?;
            Some(found.max.unwrap_or(found.now).max(found.now))
        };
        self.nodes.iter().filter_map(|node| Some((node.node.as_str(), of(node)?))).collect()
    }

    fn greatest(&self, name: &str) -> Option<(&str, f64)> {
        self.measured(name).into_iter().max_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn total(&self, name: &str) -> Option<f64> {
        let values = self.measured(name);
        (!values.is_empty()).then(|| values.iter().map(|(_, value)| value).sum())
    }

    /// The greatest peak of a node's memory, or its present use where the kernel has no peak.
    fn peak(&self) -> Option<(&str, f64)> {
        self.greatest("memory_peak").or_else(|| self.greatest("memory_used"))
    }

    /// An estimate of the processor time of one rank: its processors that are busy now, times the time that it has run.
    fn cpu_ms(&self) -> Option<u64> {
        let busy = self.nodes.iter().filter_map(|node| {
            let found = node.measured.iter().find(|measured| measured.name == "cpu_cores")?;
            Some(found.mean.unwrap_or(found.now))
        });
        let values: Vec<f64> = busy.collect();
        let per_task = values.iter().sum::<f64>() / f64::from(self.task_count.max(1));
        (!values.is_empty()).then_some((per_task * self.elapsed_ms as f64) as u64)
    }

    fn pids(&self) -> String {
        let pids = self.nodes.iter().flat_map(|node| &node.ranks).map(|rank| rank.pid.to_string());
        pids.collect::<Vec<_>>().join(",")
    }
}

fn bytes_text(bytes: Option<f64>) -> String {
    bytes.map(|bytes| kibibytes_text(bytes.max(0.0) as u64)).unwrap_or_default()
}

const fn empty(name: &'static str, width: usize) -> ListField<Usage> {
    field(name, width, |_, _| String::new())
}

/// The fields of sstat. Fields that Lattice does not measure are empty.
pub const USAGE_FIELDS: &[ListField<Usage>] = &[
    field("AveCPU", 10, |usage, _| usage.cpu_ms().map(cpu_duration).unwrap_or_default()),
    empty("AveCPUFreq", 10),
    empty("AveDiskRead", 12),
    empty("AveDiskWrite", 12),
    empty("AvePages", 10),
    field("AveRSS", 10, |usage, _| bytes_text(usage.total("memory_used").map(|bytes| bytes / f64::from(usage.task_count.max(1))))),
    empty("AveVMSize", 10),
    field("ConsumedEnergy", 14, |usage, _| usage.total("cpu_energy").map(|joules| format!("{joules:.0}")).unwrap_or_default()),
    ListField { name: "JobID", width: 12, is_left: true, value: |usage, _| usage.id.clone() },
    empty("MaxDiskRead", 12),
    empty("MaxDiskReadNode", 15),
    empty("MaxDiskReadTask", 15),
    empty("MaxDiskWrite", 12),
    empty("MaxDiskWriteNode", 16),
    empty("MaxDiskWriteTask", 16),
    empty("MaxPages", 8),
    empty("MaxPagesNode", 12),
    empty("MaxPagesTask", 14),
    field("MaxRSS", 10, |usage, _| bytes_text(usage.peak().map(|(_, bytes)| bytes))),
    field("MaxRSSNode", 10, |usage, _| usage.peak().map(|(node, _)| node.to_owned()).unwrap_or_default()),
    empty("MaxRSSTask", 10),
    empty("MaxVMSize", 10),
    empty("MaxVMSizeNode", 14),
    empty("MaxVMSizeTask", 14),
    empty("MinCPU", 10),
    empty("MinCPUNode", 10),
    empty("MinCPUTask", 10),
    field("Nodes", 20, |usage, _| crate::units::folded(usage.nodes.iter().map(|node| &node.node))),
    field("NTasks", 8, |usage, _| usage.task_count.to_string()),
    field("Pids", 20, |usage, _| usage.pids()),
    empty("ReqCPUFreq", 10),
    empty("TresUsageInAve", 15),
    empty("TresUsageInMax", 15),
    empty("TresUsageInMaxNode", 18),
    empty("TresUsageInMaxTask", 18),
    empty("TresUsageOutAve", 15),
    empty("TresUsageOutMax", 15),
    empty("TresUsageOutMaxNode", 19),
    empty("TresUsageOutMaxTask", 19),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::Context;
    use crate::listing::{Form, Listing};
    use crate::time::{Clock, Utc};
    use lattice_cli_syntax::compat::Compat;
    use std::collections::BTreeMap;

    #[test]
    fn a_launch_uses_what_its_ranks_do() {
        let rank = |launch: u32, rank: u32, memory_bytes: u64| v1::RankUsage {
            launch,
            rank,
            memory_bytes,
            cpu_cores: Some(1.0),
            ..Default::default()
        };
        let node = |name: &str, ranks: Vec<v1::RankUsage>| v1::NodeUsage { node: name.into(), ranks, ..Default::default() };
        let nodes = || vec![node("n1", vec![rank(1, 0, 1024), rank(2, 0, 4096), rank(2, 1, 2048)]), node("n2", vec![rank(1, 1, 1024)])];
        let usage = Usage::of_launch("12.1".into(), 2, 10_000, nodes()).unwrap();
        assert_eq!((usage.task_count, usage.nodes.len()), (2, 1));
        assert_eq!((usage.peak(), usage.total("memory_used"), usage.cpu_ms()), (Some(("n1", 4096.0)), Some(6144.0), Some(10_000)));
        assert!(Usage::of_launch("12.7".into(), 8, 10_000, nodes()).is_none());
    }

    #[test]
    fn usage_is_the_greatest_and_the_mean_of_its_nodes() {
        let node = |name: &str, peak: f64| v1::NodeUsage {
            node: name.into(),
            measured: [("memory_peak", peak), ("memory_used", 2_097_152.0), ("cpu_cores", 1.5)]
                .map(|(name, now)| v1::Measured { name: name.into(), now, ..Default::default() })
                .into(),
            ..Default::default()
        };
        let nodes = vec![node("n1", 1024.0), node("n2", 4_194_304.0)];
        let usage = Usage { id: "12.batch".into(), task_count: 2, elapsed_ms: 10_000, nodes };
        let (compat, clock, sizes) = (Compat::default(), Clock::new(0, &Utc, None), BTreeMap::new());
        let context = Context { compat: &compat, clock: &clock, uid_of: &|_| None, nodes: &sizes };
        let form = Form::Separated { delimiter: "|".to_owned(), ends: true };
        let listing = Listing::new("JobID,AveCPU,MaxRSS,MaxRSSNode,AveRSS,NTasks,Nodes", USAGE_FIELDS, form).unwrap();
        assert_eq!(listing.line(&usage, &context), "12.batch|00:15.000|4096K|n2|2048K|2|n[1-2]|\n");
        for format in [DEFAULT, PIDS] {
            Listing::new(format, USAGE_FIELDS, Form::Columns).unwrap();
        }
    }
}
