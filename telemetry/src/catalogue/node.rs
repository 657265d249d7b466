//! The whole machine.

use super::families;

families! {
    CPU_SECONDS = Counter "lattice_node_cpu_seconds_total", Seconds, ["mode"], Agent, "/proc/stat",
        "Time that all processors have spent in each mode.";
    CONTEXT_SWITCHES = Counter "lattice_node_context_switches_total", Count, [], Agent, "/proc/stat",
        "Context switches on all processors.";
    PROCESSES_RUNNING = Gauge "lattice_node_processes_running", Count, [], Agent, "/proc/stat",
        "Threads that run or wait for a processor.";
    MEMORY_TOTAL = Gauge "lattice_node_memory_total_bytes", Bytes, [], Agent, "/proc/meminfo",
        "Main memory of the machine.";
    MEMORY_AVAILABLE = Gauge "lattice_node_memory_available_bytes", Bytes, [], Agent, "/proc/meminfo",
        "Main memory that new work could have without swapping, as the kernel estimates.";
    PAGE_FAULTS = Counter "lattice_node_page_faults_total", Count, ["kind"], Agent, "/proc/vmstat",
        "Page faults: minor, major (those that waited for a disk).";
    OOM_KILLS = Counter "lattice_node_oom_kills_total", Count, [], Agent, "/proc/vmstat",
        "Processes that the kernel killed because memory was over.";
    DISK_READ = Counter "lattice_node_disk_read_bytes_total", Bytes, ["device"], Agent, "/proc/diskstats",
        "Bytes read from each whole disk; at most 64 disks.";
    DISK_WRITTEN = Counter "lattice_node_disk_written_bytes_total", Bytes, ["device"], Agent, "/proc/diskstats",
        "Bytes written to each whole disk; at most 64 disks.";
    BLOCK_UNATTRIBUTED = Counter "lattice_node_block_unattributed_bytes_total", Bytes, ["direction"], Agent, "eBPF",
        "Bytes of block requests that belong to no allocation, since the agent began: read, write; writing back what lay in memory is among them.";
    NETWORK_RECEIVED = Counter "lattice_node_network_received_bytes_total", Bytes, ["interface"], Agent, "/proc/net/dev",
        "Bytes received by each network interface but loopback; at most 32 interfaces.";
    NETWORK_SENT = Counter "lattice_node_network_sent_bytes_total", Bytes, ["interface"], Agent, "/proc/net/dev",
        "Bytes sent by each network interface but loopback; at most 32 interfaces.";
    PRESSURE = Counter "lattice_node_pressure_seconds_total", Seconds, ["resource", "kind"], Agent, "/proc/pressure",
        "Time in which some, or all, threads waited for the resource (PSI).";
}
