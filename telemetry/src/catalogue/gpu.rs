//! The node's GPUs, each by its id. `lattice_allocation_gpu_info` names the work that uses one, for those who may see
//! allocations.

use super::family::families;

const DRIVER: &str = "NVML, amdgpu";
const NVML: &str = "NVML";

families! {
    INFO = Gauge "lattice_gpu_info", Truth, ["gpu", "vendor", "model", "pci_address", "source"], Agent, "the machine's topology",
        "Always 1: the model of each GPU, and the source of its metrics: nvml, amdgpu, simulated; most metrics of an instance of a partitioned GPU have the whole GPU's id.";
    UTILIZATION = Gauge "lattice_gpu_utilization_ratio", Ratio, ["gpu"], Agent, DRIVER,
        "Part of the time in which something ran on the GPU, by its driver's own window.";
    MEMORY_BUSY = Gauge "lattice_gpu_memory_busy_ratio", Ratio, ["gpu"], Agent, DRIVER,
        "Part of the time in which the GPU's memory was read or written.";
    MEMORY_USED = Gauge "lattice_gpu_memory_used_bytes", Bytes, ["gpu"], Agent, DRIVER,
        "Memory of the GPU that is in use.";
    MEMORY_TOTAL = Gauge "lattice_gpu_memory_total_bytes", Bytes, ["gpu"], Agent, DRIVER,
        "Memory that the GPU has.";
    POWER = Gauge "lattice_gpu_power_watts", Watts, ["gpu"], Agent, DRIVER,
        "Power of the GPU.";
    POWER_LIMIT = Gauge "lattice_gpu_power_limit_watts", Watts, ["gpu"], Agent, DRIVER,
        "Power limit of the GPU.";
    ENERGY = Counter "lattice_gpu_energy_joules_total", Joules, ["gpu"], Agent, "NVML, ROCm SMI",
        "Energy of the GPU since its driver was loaded.";
    TEMPERATURE = Gauge "lattice_gpu_temperature_celsius", Celsius, ["gpu"], Agent, DRIVER,
        "The GPU's temperature.";
    CLOCK = Gauge "lattice_gpu_clock_hertz", Hertz, ["gpu", "domain"], Agent, DRIVER,
        "Clocks of the GPU: sm (its processors), memory.";
    THROTTLED = Gauge "lattice_gpu_throttled", Truth, ["gpu", "reason"], Agent, NVML,
        "Whether the GPU's clocks are throttled, by reason.";
    ECC_ERRORS = Counter "lattice_gpu_ecc_errors_total", Count, ["gpu", "kind"], Agent, DRIVER,
        "Memory errors since the GPU's driver was loaded: corrected, uncorrected.";
    XID_ERRORS = Counter "lattice_gpu_xid_errors_total", Count, ["gpu", "xid"], Agent, "the kernel's log",
        "Errors that NVIDIA's driver reported of the GPU, by number, as far back as the kernel's log reached when the agent began.";
    PCIE = Counter "lattice_gpu_pcie_bytes_total", Bytes, ["gpu", "direction"], Agent, NVML,
        "Bytes over the GPU's PCIe: sent, received; absent if the GPU has no counter.";
    NVLINK = Counter "lattice_gpu_nvlink_bytes_total", Bytes, ["gpu", "direction"], Agent, NVML,
        "Bytes of data over all of the GPU's NVLinks: sent, received.";
    PROCESSES = Gauge "lattice_gpu_processes", Count, ["gpu", "of"], Agent, NVML,
        "Processes that compute on the GPU: of the allocation that has it (holder), of another one (other_allocation), of none (none).";
    AGE = Gauge "lattice_gpu_reading_age_seconds", Seconds, [], Agent, "the agent",
        "How long ago the GPUs' drivers last answered: they are read once a second while work has GPUs, else every 30 s. While an answer is late, no other readings of GPUs are exported.";
}
