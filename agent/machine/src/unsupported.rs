//! Measurements of the specification that no node of this version supports: a request for one is
//! answered with the reason.

use lattice_model::topology::{GpuTopology, GpuVendor};

/// Congestion signals in packets (CSIG). `has_cxi`: the machine has a fabric adapter.
pub fn csig(has_cxi: bool) -> &'static str {
    if has_cxi {
        "the adapters' driver reports no congestion signals of packets; their counters are measured"
    } else {
        "signals come with the packets of a fabric that marks them, and no adapter of one is here, in /sys/class/cxi"
    }
}

/// Profiles of single kernels on GPUs (CUPTI).
pub fn cupti(gpus: &GpuTopology) -> &'static str {
    if gpus.gpus.iter().any(|gpu| gpu.vendor == GpuVendor::Nvidia) {
        "CUPTI works from within the program that is profiled, where the agent is not: nsys and ncu do it, started with the work"
    } else {
        "no NVIDIA GPU is here"
    }
}
