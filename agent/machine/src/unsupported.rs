//! Measurements of the specification that no node of this version supports: a request for one is
//! answered with the reason.

use lattice_model::topology::{GpuTopology, GpuVendor};

/// Congestion signals in packets (CSIG). `has_cxi`: the machine has a fabric adapter.
pub fn csig(has_cxi: bool) -> &'static str {
    if has_cxi {
        "the adapters' driver reports no congestion signals of packets; their counters are measured"
    } else {
        "only a fabric that marks packets has such signals, and this node has no adapter of one (/sys/class/cxi)"
    }
}

/// Profiles of single kernels on GPUs (CUPTI).
pub fn cupti(gpus: &GpuTopology) -> &'static str {
    if gpus.gpus.iter().any(|gpu| gpu.vendor == GpuVendor::Nvidia) {
        "CUPTI works only inside the profiled program: start the work with nsys or ncu"
    } else {
        "this node has no NVIDIA GPU"
    }
}
