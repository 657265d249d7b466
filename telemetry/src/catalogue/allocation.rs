//! The work of each allocation on a node. `allocation` is its full id; only `lattice_allocation_info` has its owner and
//! name.

use super::family::families;

const BY_GROUP: &str = "cgroup v2, else cgroup v1, else procfs";
const EBPF: &str = "eBPF";
const V2: &str = "cgroup v2";
const WINDOWS: &str = "windows of 30 s over samples of 1 s";
const REQUESTS: &str = "windows of 30 s over eBPF's ranges";

families! {
    INFO = Gauge "lattice_allocation_info", Truth, ["allocation", "user", "tenant", "project", "vcluster"], Agent, "the quorum's desired state",
        "Always 1: to join owner, tenant, project and vCluster on `allocation`.";
    SOURCE = Gauge "lattice_allocation_measure_source_info", Truth, ["measure", "source"], Agent, "the agent's readers",
        "Always 1: the source of each measure of allocations on this node; a measure that is absent is not available on this node.";
    CPU_SECONDS = Counter "lattice_allocation_cpu_seconds_total", Seconds, ["allocation", "mode"], Agent, BY_GROUP,
        "Processor time of the allocation's work here, in user and system mode.";
    MEMORY = Gauge "lattice_allocation_memory_bytes", Bytes, ["allocation"], Agent, BY_GROUP,
        "Main memory that is charged to the work. From procfs: the sum of its processes' resident memory, in which shared pages count for each process, and which is up to 10 s old while none of them runs.";
    MEMORY_PEAK = Gauge "lattice_allocation_memory_peak_bytes", Bytes, ["allocation"], Agent, "cgroup v2, else cgroup v1",
        "The most memory ever charged to the work.";
    PAGE_FAULTS = Counter "lattice_allocation_page_faults_total", Count, ["allocation", "kind"], Agent, BY_GROUP,
        "Page faults: minor, major. From procfs: a lower bound, because processes can end unseen between two readings.";
    IO_READ = Counter "lattice_allocation_io_read_bytes_total", Bytes, ["allocation"], Agent, BY_GROUP,
        "Bytes that were read from block devices for the work.";
    IO_WRITTEN = Counter "lattice_allocation_io_written_bytes_total", Bytes, ["allocation"], Agent, BY_GROUP,
        "Bytes that were written to block devices for the work; under cgroup v1, later write-back counts for no allocation.";
    PROCESSES = Gauge "lattice_allocation_processes", Count, ["allocation"], Agent, "the cgroup's list",
        "Processes of the work.";
    THREADS = Gauge "lattice_allocation_threads", Count, ["allocation"], Agent, BY_GROUP,
        "Threads of the work, including those of processes with one thread.";
    PRESSURE = Counter "lattice_allocation_pressure_seconds_total", Seconds, ["allocation", "resource", "kind"], Agent, V2,
        "Time in which threads of the work waited for the resource, by kind: some of them, or all (PSI).";
    OOM_KILLS = Counter "lattice_allocation_oom_kills_total", Count, ["allocation"], Agent, "cgroup v2, else cgroup v1, else eBPF",
        "Processes of the work that the kernel killed because memory ran out.";
    CONTEXT_SWITCHES = Counter "lattice_allocation_context_switches_total", Count, ["allocation", "kind"], Agent, EBPF,
        "How often a thread of the work left its processor: voluntary (it waited for something), involuntary (another thread got the processor).";
    ON_CPU = Histogram "lattice_allocation_on_cpu_seconds", Seconds, ["allocation"], Agent, EBPF,
        "The length of each stint of a thread of the work on a processor, counted when the thread leaves it.";
    RUN_QUEUE = Histogram "lattice_allocation_run_queue_seconds", Seconds, ["allocation"], Agent, EBPF,
        "The length of each wait of a runnable thread of the work for a processor; for a thread that was moved to another processor meanwhile, only the wait there.";
    BLOCK_IO = Histogram "lattice_allocation_block_io_seconds", Seconds, ["allocation", "direction"], Agent, EBPF,
        "How long requests of the work to block devices took, from the request to the device's answer: read, write; without later write-back.";
    BLOCK_BYTES = Counter "lattice_allocation_block_io_bytes_total", Bytes, ["allocation", "direction"], Agent, EBPF,
        "Bytes of the requests that the work itself made to block devices: read, write; without later write-back.";
    DEVICE_BYTES = Counter "lattice_allocation_device_io_bytes_total", Bytes, ["allocation", "device", "direction"], Agent, EBPF,
        "Bytes of the requests that the work itself made to each disk: read, write; for the first 8 disks each, for the rest together as other. Without later write-back.";
    DEVICE_REQUESTS = Counter "lattice_allocation_device_io_requests_total", Count, ["allocation", "device", "direction"], Agent, EBPF,
        "Requests that the work itself made to each disk: read, write.";
    DEVICE_SECONDS = Counter "lattice_allocation_device_io_seconds_total", Seconds, ["allocation", "device", "direction"], Agent, EBPF,
        "Total time of the work's requests to each disk: read, write; each from the request to the device's answer. Divided by the number of requests: the mean latency of a disk.";
    NETWORK_RECEIVED = Counter "lattice_allocation_network_received_bytes_total", Bytes, ["allocation"], Agent, EBPF,
        "Bytes that sockets of the work received, with the headers of IP; loopback counts.";
    NETWORK_SENT = Counter "lattice_allocation_network_sent_bytes_total", Bytes, ["allocation"], Agent, EBPF,
        "Bytes that sockets of the work sent, with the headers of IP; loopback counts.";
    NETWORK_PACKETS = Counter "lattice_allocation_network_packets_total", Count, ["allocation", "direction"], Agent, EBPF,
        "Packets of sockets of the work: received, sent.";
    TCP_RETRANSMITS = Counter "lattice_allocation_tcp_retransmits_total", Count, ["allocation"], Agent, EBPF,
        "Retransmissions by TCP for the work: one for each buffer, which may have several segments.";
    TCP_CONNECTS = Counter "lattice_allocation_tcp_connects_total", Count, ["allocation"], Agent, EBPF,
        "TCP connections that the work began, including those that failed.";
    TCP_ACCEPTS = Counter "lattice_allocation_tcp_accepts_total", Count, ["allocation"], Agent, EBPF,
        "TCP connections that arrived at listening sockets of the work and were established, whether the work has accepted them yet or not; loopback counts.";
    ACCEPT_QUEUE = Gauge "lattice_allocation_accept_queue", Count, ["allocation"], Agent, "sock_diag, by the cgroup of each listening socket",
        "Established TCP connections that wait to be accepted by the work, over all of its listening sockets in the node's network; 0 for work that does not listen.";
    PROCESSES_STARTED = Counter "lattice_allocation_processes_started_total", Count, ["allocation"], Agent, EBPF,
        "Processes of the work that began.";
    PROCESSES_EXITED = Counter "lattice_allocation_processes_exited_total", Count, ["allocation"], Agent, EBPF,
        "Processes of the work that ended.";
    GPU_INFO = Gauge "lattice_allocation_gpu_info", Truth, ["allocation", "gpu"], Agent, "the agent's assignment of devices",
        "Always 1: the GPUs that the allocation has here, to join with the metrics of each on `gpu`.";
    ENERGY = Counter "lattice_allocation_energy_joules_total", Joules, ["allocation", "device"], Agent, "RAPL, NVML, ROCm SMI",
        "Energy of the allocation's part of the node: cpu (processors and memory: all of it for work that has the whole node, else an estimate by its part of all processors' time), gpu (the GPUs that it has).";
    GPU_UTILIZATION = Gauge "lattice_allocation_gpu_utilization_ratio", Ratio, ["allocation", "stat"], Agent, WINDOWS,
        "Part of the time in which something ran on the allocation's GPUs here, averaged over the GPUs, in the last whole window: mean, p50, p95, p99, max.";
    GPU_MEMORY_USED = Gauge "lattice_allocation_gpu_memory_used_bytes", Bytes, ["allocation", "stat"], Agent, WINDOWS,
        "Memory in use on the allocation's GPUs here, over the last whole window: mean, p50, p95, p99, max.";
    GPU_POWER = Gauge "lattice_allocation_gpu_power_watts", Watts, ["allocation", "stat"], Agent, WINDOWS,
        "Power of the allocation's GPUs here together, over the last whole window: mean, p50, p95, p99, max.";
    CPU_CORES = Gauge "lattice_allocation_cpu_cores", Cores, ["allocation", "stat"], Agent, WINDOWS,
        "Processors that the work kept busy, over the last whole window: mean, p50, p95, p99, max.";
    MEMORY_USED = Gauge "lattice_allocation_memory_used_bytes", Bytes, ["allocation", "stat"], Agent, WINDOWS,
        "Memory of the work, over the last whole window: mean, p50, p95, p99, max.";
    IO_READ_RATE = Gauge "lattice_allocation_io_read_bytes_per_second", BytesPerSecond, ["allocation", "stat"], Agent, WINDOWS,
        "Bytes per second that the work read from block devices, over the last whole window: mean, p50, p95, p99, max.";
    IO_WRITE_RATE = Gauge "lattice_allocation_io_write_bytes_per_second", BytesPerSecond, ["allocation", "stat"], Agent, WINDOWS,
        "Bytes per second that the work wrote to block devices, over the last whole window: mean, p50, p95, p99, max.";
    NETWORK_RECEIVED_RATE = Gauge "lattice_allocation_network_received_bytes_per_second", BytesPerSecond, ["allocation", "stat"], Agent, WINDOWS,
        "Bytes per second that sockets of the work received, over the last whole window: mean, p50, p95, p99, max.";
    NETWORK_SENT_RATE = Gauge "lattice_allocation_network_sent_bytes_per_second", BytesPerSecond, ["allocation", "stat"], Agent, WINDOWS,
        "Bytes per second that sockets of the work sent, over the last whole window: mean, p50, p95, p99, max.";
    IO_LATENCY = Gauge "lattice_allocation_io_latency_seconds", Seconds, ["allocation", "stat"], Agent, REQUESTS,
        "How long requests of the work to block devices took, for reads and writes that ended in the last whole window: mean; p50, p95, p99 and max are upper bounds of ranges; absent if there was no request.";
    IO_LATENCY_REQUESTS = Gauge "lattice_allocation_io_latency_requests", Count, ["allocation"], Agent, REQUESTS,
        "Requests of the work to block devices that ended in the last whole window.";
    SAMPLES = Gauge "lattice_allocation_window_samples", Count, ["allocation"], Agent, WINDOWS,
        "Samples in the last whole window: fewer than 30 if the agent was down or late, or if the work began or ended.";
    LEFT_OUT = Gauge "lattice_allocation_measures_omitted", Count, [], Agent, "the agent",
        "Allocations on this node beyond the 512 that are measured.";
    PROBE = Gauge "lattice_agent_kernel_probe", Truth, ["probe"], Agent, "the agent",
        "Whether this program in the kernel, or this part of one, counts; also 0 if none is loaded. lattice doctor shows the reason.";
    OVERHEAD = Gauge "lattice_agent_ebpf_overhead_percent", Percent, [], Agent, "the kernel's account of its programs (BPF_ENABLE_STATS)",
        "Part of the time of all of the node's processors that the agent's programs in the kernel took, in the last measured second: one second of each minute, because measuring costs time too.";
    REQUESTS_LEFT_OUT = Counter "lattice_agent_kernel_block_requests_omitted_total", Count, [], Agent, EBPF,
        "Block requests that were not counted because 8192 others were in progress.";
    PASS_SECONDS = Histogram "lattice_allocation_pass_seconds", Seconds, [], Agent, "the agent",
        "How long it took to read all allocations once. The next pass begins after 20 times its processor time, and after at least a second.";
}
