//! Options for amounts that are not given for each node: memory of each core, GPUs of all nodes together, ranks of each GPU.

use clap::Args;

/// Amounts that are not given for each node.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct AmountFlags {
    /// Share the nodes: take this much memory for each core, with a unit, such as 4G. The cores are those of --cores or
    /// --cpus-per-gpu, else one, or --cpus-per-task, for each rank
    #[arg(long, alias = "mem-per-cpu", value_name = "SIZE", overrides_with = "mem_per_core", value_parser = crate::memory::parse)]
    pub mem_per_core: Option<u64>,
    /// Share the nodes: take this much memory for each GPU, with a unit, such as 64G
    #[arg(long, value_name = "SIZE", overrides_with = "mem_per_gpu", value_parser = crate::memory::parse)]
    pub mem_per_gpu: Option<u64>,
    /// Share the nodes: take this many cores for each GPU
    #[arg(long, value_name = "N", overrides_with = "cpus_per_gpu", value_parser = clap::value_parser!(u32).range(1..))]
    pub cpus_per_gpu: Option<u32>,
    /// Share the nodes: take this many GPUs of all nodes together, the same number of each
    #[arg(short = 'G', long, value_name = "N", overrides_with = "gpus_total", value_parser = clap::value_parser!(u32).range(1..))]
    pub gpus_total: Option<u32>,
    /// Ranks for each GPU: the number of ranks is this times that of --gpus or --gpus-total
    #[arg(long, alias = "ntasks-per-gpu", value_name = "N", overrides_with = "tasks_per_gpu", value_parser = clap::value_parser!(u32).range(1..))]
    pub tasks_per_gpu: Option<u32>,
}

impl AmountFlags {
    /// Merges two sets of options: a value of `self` wins over one of `under`.
    pub fn merge_over(self, under: Self) -> Self {
        Self {
            mem_per_core: self.mem_per_core.or(under.mem_per_core),
            mem_per_gpu: self.mem_per_gpu.or(under.mem_per_gpu),
            cpus_per_gpu: self.cpus_per_gpu.or(under.cpus_per_gpu),
            gpus_total: self.gpus_total.or(under.gpus_total),
            tasks_per_gpu: self.tasks_per_gpu.or(under.tasks_per_gpu),
        }
    }

    /// Whether one of them sets the memory.
    pub fn has_memory(&self) -> bool {
        self.mem_per_core.is_some() || self.mem_per_gpu.is_some()
    }

    /// The unit for which the memory is given, as requests name it; empty: a node.
    pub fn memory_unit(&self) -> &'static str {
        match (self.mem_per_core, self.mem_per_gpu) {
            (Some(_), _) => "core",
            (None, Some(_)) => "gpu",
            (None, None) => "",
        }
    }

    /// Removes the options that set the memory.
    pub fn remove_memory(&mut self) {
        (self.mem_per_core, self.mem_per_gpu) = (None, None);
    }

    /// The first of these options that was given.
    pub fn first_given(&self) -> Option<&'static str> {
        let given = [
            ("--mem-per-core", self.mem_per_core.is_some()),
            ("--mem-per-gpu", self.mem_per_gpu.is_some()),
            ("--cpus-per-gpu", self.cpus_per_gpu.is_some()),
            ("--gpus-total", self.gpus_total.is_some()),
            ("--tasks-per-gpu", self.tasks_per_gpu.is_some()),
        ];
        given.into_iter().find(|(_, set)| *set).map(|(flag, _)| flag)
    }
}
