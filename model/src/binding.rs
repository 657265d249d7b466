//! How the processors, memory and GPUs of an allocation on one node are distributed among a
//! launch's ranks there.

use crate::topology::{Core, GpuVendor};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use thiserror::Error;

/// Largest number of GPUs that one rank may request.
pub const GPUS_PER_TASK_MAX: u32 = 1024;

/// The binding requested for every rank of a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankBinding {
    /// Which of the allocation's processors each rank runs on.
    pub cpu_bind: CpuBind,
    /// Number of GPUs dedicated to each rank; 0: no rank has GPUs of its own.
    pub gpus_per_task: u32,
    /// Which GPUs a rank sees. Unset: its own GPUs if it has some, else all GPUs of the allocation.
    pub gpu_bind: Option<GpuBind>,
    /// Which NUMA nodes its memory comes from.
    pub memory_policy: MemoryPolicy,
}

/// A request for a [`RankBinding`]; unset fields leave the value of the underlying binding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BindingRequest {
    pub cpu_bind: Option<CpuBind>,
    pub gpus_per_task: Option<u32>,
    pub gpu_bind: Option<GpuBind>,
    pub memory_policy: Option<MemoryPolicy>,
}

impl BindingRequest {
    /// The binding `under`, with the set fields of this request in its place.
    pub fn over(self, under: RankBinding) -> RankBinding {
        RankBinding {
            cpu_bind: self.cpu_bind.unwrap_or(under.cpu_bind),
            gpus_per_task: self.gpus_per_task.unwrap_or(under.gpus_per_task),
            gpu_bind: self.gpu_bind.or(under.gpu_bind),
            memory_policy: self.memory_policy.unwrap_or(under.memory_policy),
        }
    }
}

impl From<RankBinding> for BindingRequest {
    fn from(binding: RankBinding) -> Self {
        let RankBinding { cpu_bind, gpus_per_task, gpu_bind, memory_policy } = binding;
        Self { cpu_bind: Some(cpu_bind), gpus_per_task: Some(gpus_per_task), gpu_bind, memory_policy: Some(memory_policy) }
    }
}

/// Which processors a rank runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CpuBind {
    /// All of the allocation's processors.
    #[default]
    None,
    /// Cores of its own: the allocation's cores, distributed evenly. With more ranks than cores,
    /// ranks share cores.
    Cores,
    /// The processors of one NUMA node; consecutive ranks share a NUMA node.
    Numa,
    /// The processors of one socket; consecutive ranks share a socket.
    Sockets,
}

/// Which GPUs a rank sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GpuBind {
    /// The GPUs near its processors.
    Closest,
    /// All of the allocation's GPUs.
    None,
}

/// Which NUMA nodes memory comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryPolicy {
    /// The NUMA node of the processor on which the code runs: the kernel's default.
    #[default]
    Local,
    /// The allocation's NUMA nodes in turn.
    Interleave,
    /// The first NUMA node of the rank's processors as long as that has free memory.
    Preferred,
    /// Only the NUMA nodes of the rank's processors.
    Bind,
}

impl CpuBind {
    /// The names that users write.
    pub const NAMES: [(&'static str, Self); 4] =
        [("none", Self::None), ("cores", Self::Cores), ("numa", Self::Numa), ("sockets", Self::Sockets)];
}

impl GpuBind {
    /// The names that users write.
    pub const NAMES: [(&'static str, Self); 2] = [("closest", Self::Closest), ("none", Self::None)];
}

impl MemoryPolicy {
    /// The names that users write.
    pub const NAMES: [(&'static str, Self); 4] =
        [("local", Self::Local), ("interleave", Self::Interleave), ("preferred", Self::Preferred), ("bind", Self::Bind)];
}

/// The part of a node that belongs to an allocation, as sent to its shim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Placement {
    /// Its cores, each with those of its processors that belong to the allocation.
    pub cores: Vec<Core>,
    /// Its GPUs, ordered by index.
    pub gpus: Vec<PlacedGpu>,
    /// The NUMA nodes of its processors and GPUs; empty if the kernel reports none.
    pub memory_nodes: BTreeSet<u32>,
    /// The vendors of all GPUs in the node: work must not see a vendor's GPUs unless it has some of
    /// them.
    pub vendors: BTreeSet<GpuVendor>,
}

/// One GPU of a [`Placement`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedGpu {
    /// The identifier that goes into the vendor's visibility variable.
    pub id: String,
    /// Its vendor.
    pub vendor: GpuVendor,
    /// The nearest NUMA node.
    pub numa_node: Option<u32>,
}

/// The resources that one rank is bound to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankPlace {
    /// Its processors; empty: it may run on all of the allocation's processors.
    pub cpus: BTreeSet<u32>,
    /// The NUMA nodes for its memory policy; empty: no policy is set.
    pub memory_nodes: BTreeSet<u32>,
    /// The environment variables that determine which GPUs it sees.
    pub visible: Vec<(&'static str, String)>,
}

/// A binding that the allocation's resources cannot satisfy.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{ranks} ranks × {each} {what} per task are more than the {there} {what} that the allocation has on this node: ask for fewer with \
     {each_option}, or put fewer ranks on each node; an allocation of a part of the node may have more with {part_option}"
)]
pub struct TooFew {
    ranks: u32,
    each: u32,
    there: usize,
    what: &'static str,
    each_option: &'static str,
    part_option: &'static str,
}

/// The environment variable that tells a vendor's libraries which devices a process may use.
fn variable(vendor: GpuVendor) -> &'static str {
    match vendor {
        GpuVendor::Nvidia => "CUDA_VISIBLE_DEVICES",
        GpuVendor::Amd => "ROCR_VISIBLE_DEVICES",
        GpuVendor::Simulated => "LATTICE_SIMULATED_VISIBLE_DEVICES",
    }
}

impl Placement {
    /// The variables that make exactly these GPUs visible, and no GPU of the node's other vendors.
    /// (Both vendors' libraries stop reading the list at an invalid index.)
    fn showing(&self, gpus: &[&PlacedGpu]) -> Vec<(&'static str, String)> {
        let of = |vendor: &GpuVendor| {
            let ids: Vec<&str> = gpus.iter().filter(|g| g.vendor == *vendor).map(|g| g.id.as_str()).collect();
            (variable(*vendor), if ids.is_empty() { "-1".to_owned() } else { ids.join(",") })
        };
        self.vendors.iter().map(of).collect()
    }

    /// The variables for the allocation's script and other programs outside launches: all GPUs of
    /// the allocation.
    pub fn whole(&self) -> Vec<(&'static str, String)> {
        self.showing(&self.gpus.iter().collect::<Vec<_>>())
    }

    /// The resources of each of a launch's `ranks` ranks on this node, by local rank. Each rank
    /// gets `cpus_per_task` cores; 0: an even share.
    pub fn share_out(&self, binding: &RankBinding, ranks: u32, cpus_per_task: u32) -> Result<Vec<RankPlace>, TooFew> {
        let (count, each) = (ranks as usize, cpus_per_task as usize);
        // Without a known topology the cores cannot be counted, so nothing is checked.
        if each * count > self.cores.len() && !self.cores.is_empty() {
            let there = self.cores.len();
            return Err(TooFew {
                ranks,
                each: cpus_per_task,
                there,
                what: "cores",
                each_option: "--cpus-per-task",
                part_option: "--cores",
            });
        }
        let cores: Vec<Vec<&Core>> = (0..count).map(|rank| self.cores_of(binding.cpu_bind, rank, count, each)).collect();
        let near: Vec<BTreeSet<u32>> = cores.iter().map(|cores| cores.iter().map(|c| c.numa_node).collect()).collect();
        let own = self.gpus_of(binding, &near)?;
        let place = |((cores, near), gpus): ((&Vec<&Core>, &BTreeSet<u32>), Vec<&PlacedGpu>)| RankPlace {
            cpus: match binding.cpu_bind {
                CpuBind::None => BTreeSet::new(),
                CpuBind::Cores | CpuBind::Numa | CpuBind::Sockets => cores.iter().flat_map(|c| c.cpus.iter().copied()).collect(),
            },
            memory_nodes: self.memory_of(binding.memory_policy, near),
            visible: self.showing(&gpus),
        };
        Ok(cores.iter().zip(&near).zip(own).map(place).collect())
    }

    fn cores_of(&self, bind: CpuBind, rank: usize, ranks: usize, each: usize) -> Vec<&Core> {
        let mut cores: Vec<&Core> = self.cores.iter().collect();
        cores.sort_by_key(|c| (c.package, c.numa_node, c.cpus.first().copied()));
        let of_block = |key: fn(&Core) -> u32| {
            let blocks: BTreeSet<u32> = cores.iter().map(|c| key(c)).collect();
            let block = blocks.iter().nth(rank * blocks.len() / ranks).copied();
            cores.iter().copied().filter(|c| Some(key(c)) == block).collect()
        };
        match bind {
            CpuBind::None => cores,
            CpuBind::Numa => of_block(|c| c.numa_node),
            CpuBind::Sockets => of_block(|c| c.package),
            CpuBind::Cores if each > 0 => cores.get(rank * each..(rank + 1) * each).unwrap_or_default().to_vec(),
            CpuBind::Cores if ranks <= cores.len() => cores[rank * cores.len() / ranks..(rank + 1) * cores.len() / ranks].to_vec(),
            CpuBind::Cores => cores.get(rank % cores.len().max(1)).copied().into_iter().collect(),
        }
    }

    fn gpus_of(&self, binding: &RankBinding, near: &[BTreeSet<u32>]) -> Result<Vec<Vec<&PlacedGpu>>, TooFew> {
        let close = |gpu: &PlacedGpu, near: &BTreeSet<u32>| gpu.numa_node.is_some_and(|n| near.contains(&n));
        let each = binding.gpus_per_task as usize;
        if each * near.len() > self.gpus.len() {
            let ranks = u32::try_from(near.len()).unwrap_or(u32::MAX);
            let (each_option, part_option) = ("--gpus-per-task", "--gpus");
            return Err(TooFew { ranks, each: binding.gpus_per_task, there: self.gpus.len(), what: "GPUs", each_option, part_option });
        }
        match (binding.gpu_bind, each) {
            (Some(GpuBind::None), _) | (None, 0) => Ok(near.iter().map(|_| self.gpus.iter().collect()).collect()),
            (Some(GpuBind::Closest), 0) => Ok(near
                .iter()
                .map(|near| {
                    let closest: Vec<&PlacedGpu> = self.gpus.iter().filter(|g| close(g, near)).collect();
                    if closest.is_empty() { self.gpus.iter().collect() } else { closest }
                })
                .collect()),
            (Some(GpuBind::Closest) | None, _) => {
                // First every rank takes GPUs near to it, so that no rank gets one that is near
                // only to another rank.
                let mut free: Vec<&PlacedGpu> = self.gpus.iter().collect();
                let mut own: Vec<Vec<&PlacedGpu>> = near.iter().map(|_| Vec::new()).collect();
                for only_near in [true, false] {
                    for (own, near) in own.iter_mut().zip(near) {
                        while own.len() < each
                            && let Some(at) = free.iter().position(|g| !only_near || close(g, near))
                        {
                            own.push(free.remove(at));
                        }
                    }
                }
                Ok(own)
            }
        }
    }

    /// With at most one NUMA node, every policy is the same as the kernel's default.
    fn memory_of(&self, policy: MemoryPolicy, near: &BTreeSet<u32>) -> BTreeSet<u32> {
        if self.memory_nodes.len() < 2 {
            return BTreeSet::new();
        }
        let near = near.intersection(&self.memory_nodes).copied();
        match policy {
            MemoryPolicy::Local => BTreeSet::new(),
            MemoryPolicy::Interleave => self.memory_nodes.clone(),
            MemoryPolicy::Preferred => near.take(1).collect(),
            MemoryPolicy::Bind => near.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sockets, each of two cores with two threads; two GPUs near the first socket, one near
    /// the second.
    fn placement() -> Placement {
        let core = |i: u32| Core { cpus: vec![i, i + 4], package: i / 2, numa_node: i / 2 };
        let gpu = |(i, numa): (usize, u32)| PlacedGpu { id: format!("G{i}"), vendor: GpuVendor::Nvidia, numa_node: Some(numa) };
        Placement {
            cores: (0..4).map(core).collect(),
            gpus: [0, 0, 1].into_iter().enumerate().map(gpu).collect(),
            memory_nodes: [0, 1].into(),
            vendors: [GpuVendor::Nvidia].into(),
        }
    }

    fn cpus(bind: CpuBind, ranks: u32) -> Vec<Vec<u32>> {
        let binding = RankBinding { cpu_bind: bind, ..RankBinding::default() };
        placement().share_out(&binding, ranks, 0).unwrap().into_iter().map(|p| p.cpus.into_iter().collect()).collect()
    }

    fn visible(binding: RankBinding, ranks: u32) -> Vec<String> {
        placement().share_out(&binding, ranks, 0).unwrap().into_iter().map(|p| p.visible[0].1.clone()).collect()
    }

    #[test]
    fn processors_are_shared_out() {
        assert_eq!(cpus(CpuBind::None, 2), [vec![], vec![]] as [Vec<u32>; 2]);
        assert_eq!(cpus(CpuBind::Cores, 4), [[0, 4], [1, 5], [2, 6], [3, 7]]);
        assert_eq!(cpus(CpuBind::Cores, 3), [vec![0, 4], vec![1, 5], vec![2, 3, 6, 7]]);
        assert_eq!(cpus(CpuBind::Cores, 5)[4], [0, 4], "more ranks than cores take turns");
        assert_eq!(cpus(CpuBind::Numa, 3), [[0, 1, 4, 5], [0, 1, 4, 5], [2, 3, 6, 7]]);
        assert_eq!(cpus(CpuBind::Sockets, 1), [[0, 1, 4, 5]]);
        let nothing = Placement::default().share_out(&RankBinding { cpu_bind: CpuBind::Cores, ..RankBinding::default() }, 3, 0).unwrap();
        assert_eq!(nothing, vec![RankPlace::default(); 3]);
    }

    #[test]
    fn ranks_have_as_many_cores_as_they_ask_for_or_are_refused() {
        let binding = RankBinding { cpu_bind: CpuBind::Cores, ..RankBinding::default() };
        let cpus = |ranks, each| {
            placement()
                .share_out(&binding, ranks, each)
                .map(|p| p.into_iter().map(|p| p.cpus.into_iter().collect()).collect::<Vec<Vec<_>>>())
        };
        assert_eq!(cpus(2, 1).unwrap(), [[0, 4], [1, 5]]);
        assert_eq!(cpus(2, 2).unwrap(), [[0, 1, 4, 5], [2, 3, 6, 7]]);
        let refused = cpus(3, 2).unwrap_err().to_string();
        assert!(refused.contains("3 ranks × 2 cores per task are more than the 4 cores"), "{refused}");
        assert!(
            refused.contains("fewer with --cpus-per-task") && refused.contains("a part of the node may have more with --cores"),
            "{refused}"
        );
        assert_eq!(Placement::default().share_out(&binding, 3, 9).unwrap(), vec![RankPlace::default(); 3]);
    }

    #[test]
    fn gpus_are_seen_by_those_who_are_near_or_own_them() {
        let asked = |gpus_per_task, gpu_bind, cpu_bind| RankBinding { cpu_bind, gpus_per_task, gpu_bind, ..RankBinding::default() };
        assert_eq!(visible(asked(0, None, CpuBind::Numa), 2), ["G0,G1,G2", "G0,G1,G2"]);
        assert_eq!(visible(asked(0, Some(GpuBind::Closest), CpuBind::Numa), 2), ["G0,G1", "G2"]);
        assert_eq!(visible(asked(1, None, CpuBind::Numa), 2), ["G0", "G2"]);
        assert_eq!(visible(asked(1, None, CpuBind::None), 3), ["G0", "G1", "G2"]);
        assert_eq!(visible(asked(1, Some(GpuBind::None), CpuBind::Numa), 2), ["G0,G1,G2", "G0,G1,G2"]);
        // The second rank on the first socket takes the remote GPU, not the one that is near to the
        // other ranks.
        assert_eq!(visible(asked(1, None, CpuBind::Cores), 3), ["G0", "G1", "G2"]);
        assert!(placement().share_out(&asked(2, None, CpuBind::None), 2, 0).is_err());
        let none = Placement { gpus: vec![], ..placement() };
        assert_eq!(none.whole(), [("CUDA_VISIBLE_DEVICES", "-1".to_owned())]);
        assert_eq!(placement().whole(), [("CUDA_VISIBLE_DEVICES", "G0,G1,G2".to_owned())]);
        assert_eq!(Placement::default().whole(), []);
    }

    #[test]
    fn memory_follows_the_policy_where_there_is_a_choice() {
        let nodes = |policy, cpu_bind| {
            let binding = RankBinding { cpu_bind, memory_policy: policy, ..RankBinding::default() };
            let last = placement().share_out(&binding, 2, 0).unwrap().remove(1);
            last.memory_nodes.into_iter().collect::<Vec<_>>()
        };
        assert!(nodes(MemoryPolicy::Local, CpuBind::Numa).is_empty());
        assert_eq!(nodes(MemoryPolicy::Interleave, CpuBind::Numa), [0, 1]);
        assert_eq!(nodes(MemoryPolicy::Preferred, CpuBind::Numa), [1]);
        assert_eq!(nodes(MemoryPolicy::Bind, CpuBind::Numa), [1]);
        assert_eq!(nodes(MemoryPolicy::Bind, CpuBind::None), [0, 1]);
        let one = Placement { memory_nodes: [0].into(), ..placement() };
        let binding = RankBinding { memory_policy: MemoryPolicy::Bind, ..RankBinding::default() };
        assert_eq!(one.share_out(&binding, 1, 0).unwrap()[0].memory_nodes, [].into());
    }
}
