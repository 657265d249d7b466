# What people run by hand. CI runs `.ci/run`, which is the same and installs what it needs.

default: check

# Formatting, lints, tests: what CI refuses to be without.
check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings
    cargo test --workspace

# The demonstration of README.
demo:
    cargo run --release -p lattice-lab -- demo

# The programs for the kernel, made anew from ebpf/probes: commit the object that this writes.
probes:
    ebpf/rebuild

# One benchmark against its peers on this machine.
bench name="launch":
    cargo run --release -p lattice-lab -- bench {{name}}

# Longer than CI has time for: advisories where CI cannot reach them (cargo-deny), properties and damaged bytes with many more cases,
# ten minutes of each fuzz target, ten minutes of histories under faults, five of an agent that dies at each start, lists
# of a hundred thousand, the benchmarks.
nightly:
    cargo bench -p lattice-store --bench audit
    cargo deny check
    PROPTEST_CASES=20000 cargo test --release -p lattice-model -p lattice-node -p lattice-scheduler -p lattice-pmi -p lattice-gossip -p lattice-ledger -p lattice-store -p lattice-quorum
    lab/fuzz/run 600
    LATTICE_TEST_SECONDS=600 cargo test -p lattice-lab --test e2e -- histories
    LATTICE_TEST_SECONDS=300 cargo test -p lattice-lab --test e2e -- cuts::an_agent_that_dies_at_each_start
    LATTICE_TEST_SECONDS=180 cargo test -p lattice-lab --test e2e -- telemetry::a_store_that_was_away
    LATTICE_TEST_ALLOCATIONS=100000 cargo test --release -p lattice-lab --test e2e -- lists::
    cargo run --release -p lattice-lab -- bench launch
    cargo run --release -p lattice-lab -- bench mpi
    cargo run --release -p lattice-lab -- bench checkpoint
    cargo run --release -p lattice-lab -- bench quorum
    cargo run --release -p lattice-lab -- bench ledger
    cargo run --release -p lattice-lab -- bench history
    cargo run --release -p lattice-lab -- bench nodes
    cargo run --release -p lattice-lab -- bench queue
    cargo run --release -p lattice-lab -- bench dags
    cargo run --release -p lattice-lab -- bench tasks
    cargo run --release -p lattice-lab -- bench tasks --million
    cargo run --release -p lattice-lab -- bench scale --nodes 100,1000,3000
