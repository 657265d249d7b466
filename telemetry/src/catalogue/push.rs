//! Metrics of pushing samples to a store.

use super::family::families;

const PUSH: &str = "the process";

families! {
    SAMPLES = Counter "lattice_push_samples_total", Count, [], Both, PUSH,
        "Samples that the store has acknowledged.";
    BATCHES = Counter "lattice_push_batches_total", Count, ["result"], Both, PUSH,
        "Batches by result: stored; refused by the store; dropped because the buffer or its disk was full, or a file was damaged.";
    FAILURES = Counter "lattice_push_failures_total", Count, [], Both, PUSH,
        "Failed attempts that are repeated: the store does not answer, or is overloaded.";
    BUFFERED = Gauge "lattice_push_buffered_bytes", Bytes, [], Both, PUSH,
        "Data on the disk that waits for the store.";
}
