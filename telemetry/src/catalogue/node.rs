//! The whole machine.

use super::family::families;

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
        "Main memory that new work could use without swapping, by the kernel's estimate.";
    PAGE_FAULTS = Counter "lattice_node_page_faults_total", Count, ["kind"], Agent, "/proc/vmstat",
        "Page faults: minor, major (those that waited for a disk).";
    OOM_KILLS = Counter "lattice_node_oom_kills_total", Count, [], Agent, "/proc/vmstat",
        "Processes that the kernel killed because memory ran out.";
    DISK_READ = Counter "lattice_node_disk_read_bytes_total", Bytes, ["device"], Agent, "/proc/diskstats",
        "Bytes read from each whole disk; at most 64 disks.";
    DISK_WRITTEN = Counter "lattice_node_disk_written_bytes_total", Bytes, ["device"], Agent, "/proc/diskstats",
        "Bytes written to each whole disk; at most 64 disks.";
    BLOCK_UNATTRIBUTED = Counter "lattice_node_block_unattributed_bytes_total", Bytes, ["direction"], Agent, "eBPF",
        "Bytes of block requests that belong to no allocation, since the agent began: read, write; including write-back of cached data.";
    NETWORK_RECEIVED = Counter "lattice_node_network_received_bytes_total", Bytes, ["interface"], Agent, "/proc/net/dev",
        "Bytes received by each network interface but loopback; at most 32 interfaces.";
    NETWORK_SENT = Counter "lattice_node_network_sent_bytes_total", Bytes, ["interface"], Agent, "/proc/net/dev",
        "Bytes sent by each network interface but loopback; at most 32 interfaces.";
    NETWORK_PACKETS = Counter "lattice_node_network_packets_total", Count, ["interface", "direction"], Agent, "/proc/net/dev",
        "Packets of each network interface but loopback: received, sent; at most 32 interfaces.";
    NETWORK_ERRORS = Counter "lattice_node_network_errors_total", Count, ["interface", "direction"], Agent, "/proc/net/dev",
        "Packets with errors of each network interface but loopback: received, sent; at most 32 interfaces.";
    NETWORK_DROPPED = Counter "lattice_node_network_dropped_total", Count, ["interface", "direction"], Agent, "/proc/net/dev",
        "Packets that each network interface but loopback dropped: received, sent; at most 32 interfaces.";
    FABRIC_BYTES = Counter "lattice_node_infiniband_bytes_total", Bytes, ["device", "port", "direction"], Agent, "/sys/class/infiniband",
        "Data of each port of InfiniBand and RoCE adapters: received, sent; at most 32 ports.";
    FABRIC_PACKETS = Counter "lattice_node_infiniband_packets_total", Count, ["device", "port", "direction"], Agent, "/sys/class/infiniband",
        "Packets of each port of InfiniBand and RoCE adapters: received, sent; at most 32 ports.";
    FABRIC_ERRORS = Counter "lattice_node_infiniband_errors_total", Count, ["device", "port", "kind"], Agent, "/sys/class/infiniband",
        "Errors of each port of InfiniBand and RoCE adapters: received, discarded (not sent), symbol, link_downed; at most 32 ports.";
    CXI_BYTES = Counter "lattice_node_cxi_bytes_total", Bytes, ["device", "direction"], Agent, "/sys/class/cxi",
        "Data of each Slingshot adapter (Cassini): received, sent, without damaged packets; at most 32.";
    CXI_PACKETS = Counter "lattice_node_cxi_packets_total", Count, ["device", "direction"], Agent, "/sys/class/cxi",
        "Packets of each Slingshot adapter, of Ethernet's form and its own: received, sent; at most 32.";
    CXI_ERRORS = Counter "lattice_node_cxi_errors_total", Count, ["device", "kind"], Agent, "/sys/class/cxi",
        "Errors of each Slingshot adapter: received (damaged packets), discarded, replayed (by the link, after an error), uncorrected (code words); at most 32.";
    CXI_RESTARTED = Gauge "lattice_node_cxi_link_restarted_timestamp_seconds", Timestamp, ["device"], Agent, "/sys/class/cxi",
        "When the link of each Slingshot adapter last recovered by itself; absent if it never did.";
    MOUNT_SIZE = Gauge "lattice_node_mount_size_bytes", Bytes, ["mount", "type"], Agent, "statvfs(3), every 30 s",
        "Size of each mounted file system that has a size; at most 32, each once.";
    MOUNT_AVAILABLE = Gauge "lattice_node_mount_available_bytes", Bytes, ["mount", "type"], Agent, "statvfs(3), every 30 s",
        "Bytes that a user can still write to it.";
    MOUNT_ANSWERS = Gauge "lattice_node_mount_answers", Truth, ["mount", "type"], Agent, "statvfs(3), every 30 s",
        "Whether the file system answered within a second: 0 if its server does not answer, so that all its users wait.";
    ENERGY = Counter "lattice_node_energy_joules_total", Joules, ["domain"], Agent, "RAPL (powercap)",
        "Energy of processors and memory since the agent's first reading after the boot: package-N, and core, uncore, dram of each; a package includes its core and uncore, but not its dram.";
    PRESSURE = Counter "lattice_node_pressure_seconds_total", Seconds, ["resource", "kind"], Agent, "/proc/pressure",
        "Time in which threads waited for the resource, by kind: some of them, or all (PSI).";
}
