//! Options for binding ranks to the allocation's resources on a node.

use clap::Args;
use clap::builder::PossibleValuesParser;
use lattice_api::v1;
use lattice_model::binding::{CpuBind, GPUS_PER_TASK_MAX, GpuBind, MemoryPolicy};

/// With `submit` they apply to all launches of the job, with `launch` to that launch.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct BindingFlags {
    /// Bind each rank to processors of the allocation: cores (its own), numa or sockets (all of one) [default: none]
    #[arg(long, value_name = "WHAT", overrides_with = "cpu_bind", value_parser = possible_values(&CpuBind::NAMES), hide_possible_values = true)]
    pub cpu_bind: Option<String>,
    /// GPUs for each rank, which no other rank uses [default: none]
    #[arg(long, value_name = "N", overrides_with = "gpus_per_task", value_parser = clap::value_parser!(u32).range(1..=i64::from(GPUS_PER_TASK_MAX)))]
    pub gpus_per_task: Option<u32>,
    /// Which GPUs each rank sees: closest (to its processors) or none (all) [default: those of --gpus-per-task, else
    /// all]
    #[arg(long, value_name = "WHAT", overrides_with = "gpu_bind", value_parser = possible_values(&GpuBind::NAMES), hide_possible_values = true)]
    pub gpu_bind: Option<String>,
    /// The NUMA policy for each rank's memory: local, interleave, preferred or bind [default: local]
    #[arg(long, alias = "memory_policy", value_name = "POLICY", overrides_with = "memory_policy", value_parser = possible_values(&MemoryPolicy::NAMES), hide_possible_values = true)]
    pub memory_policy: Option<String>,
}

fn possible_values<T>(names: &[(&'static str, T)]) -> PossibleValuesParser {
    PossibleValuesParser::new(names.iter().map(|(name, _)| *name).collect::<Vec<_>>())
}

impl BindingFlags {
    /// Merges two sets of options: a value of `self` wins over one of `under`.
    pub fn merge_over(self, under: Self) -> Self {
        Self {
            cpu_bind: self.cpu_bind.or(under.cpu_bind),
            gpus_per_task: self.gpus_per_task.or(under.gpus_per_task),
            gpu_bind: self.gpu_bind.or(under.gpu_bind),
            memory_policy: self.memory_policy.or(under.memory_policy),
        }
    }

    /// The options as a message, if any was given.
    pub fn to_message(&self) -> Option<v1::RankBinding> {
        let word = |given: &Option<String>| given.clone().unwrap_or_default();
        (*self != Self::default()).then(|| v1::RankBinding {
            cpu_bind: word(&self.cpu_bind),
            gpus_per_task: self.gpus_per_task.unwrap_or_default(),
            gpu_bind: word(&self.gpu_bind),
            memory_policy: word(&self.memory_policy),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: BindingFlags,
    }

    #[test]
    fn the_server_accepts_every_value_that_the_options_accept() {
        for line in ["--cpu-bind numa --gpu-bind=closest", "--cpu-bind cores --gpus-per-task 2", "--memory-policy interleave", ""] {
            let flags = Line::try_parse_from(std::iter::once("x").chain(line.split_whitespace())).unwrap().flags;
            lattice_api::spec::binding_request(flags.to_message().as_ref()).unwrap();
        }
        for line in ["--cpu-bind threads", "--gpus-per-task 0", "--gpu-bind all", "--memory-policy near"] {
            assert!(Line::try_parse_from(std::iter::once("x").chain(line.split_whitespace())).is_err(), "{line}");
        }
    }
}
