//! Measurements that the specification names and this version does not support. A request for such
//! a measurement is answered with the reason.

use lattice_model::topology::{GpuTopology, GpuVendor};

/// Congestion signals in packets (CSIG). `has_cxi`: the machine has a fabric adapter.
pub fn csig(has_cxi: bool) -> &'static str {
    if has_cxi {
        "the adapters' driver does not report congestion signals of packets; the adapters' counters are measured"
    } else {
        "only a fabric that marks packets has congestion signals, and this node has no adapter for such a fabric (/sys/class/cxi)"
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
