//! The process itself.

use super::family::families;

const PROC: &str = "/proc/self";

families! {
    CPU_SECONDS = Counter "process_cpu_seconds_total", Seconds, [], Both, PROC,
        "Processor time that the process has used, in user and system mode.";
    RESIDENT_BYTES = Gauge "process_resident_memory_bytes", Bytes, [], Both, PROC,
        "Main memory that the process has resident.";
    VIRTUAL_BYTES = Gauge "process_virtual_memory_bytes", Bytes, [], Both, PROC,
        "Address space that the process has mapped.";
    OPEN_FDS = Gauge "process_open_fds", Count, [], Both, PROC,
        "File descriptors that are open.";
    MAX_FDS = Gauge "process_max_fds", Count, [], Both, PROC,
        "File descriptors that may be open at once.";
    THREADS = Gauge "process_threads", Count, [], Both, PROC,
        "Threads of the process.";
    STARTED = Gauge "process_start_time_seconds", Timestamp, [], Both, PROC,
        "When the process was started.";
    BUILD = Gauge "lattice_build_info", Truth, ["version", "process"], Both, "the binary",
        "Which version of which process this is.";
    SCRAPES = Counter "lattice_metrics_requests_total", Count, ["code"], Both, "the process",
        "Requests at the port for metrics, by the status of the answer.";
}
