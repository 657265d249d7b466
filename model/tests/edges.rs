//! Checks that the dependencies between our crates are those of the table in ARCHITECTURE.md.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// For each crate, our crates that it may depend on.
const ALLOWED: &[(&str, &str)] = &[
    ("model", ""),
    ("node", "model pmi"),
    ("scheduler", "model"),
    ("gossip", "model"),
    ("pmi", "model"),
    ("runtime", "model"),
    ("objects", "model"),
    ("checkpoint", ""),
    ("api", "model"),
    ("shim", "model pmi runtime"),
    ("telemetry", "model"),
    ("ebpf", ""),
    ("ledger-state", "model"),
    ("ledger", "model ledger-state"),
    ("pki", "model api"),
    ("quorum-client", "model api ledger pki"),
    ("store", "model api telemetry ledger"),
    ("quorum", "model objects api telemetry ledger ledger-state pki quorum-client store"),
    ("agent-common", "model node scheduler gossip pmi runtime objects telemetry pki"),
    ("mesh", "model node pmi runtime pki"),
    ("membership", "model scheduler gossip runtime ledger pki quorum-client agent-common mesh"),
    ("machine", "model node gossip runtime api telemetry quorum-client agent-common mesh membership"),
    ("output", "model runtime objects agent-common mesh"),
    ("registry", "model node runtime pki agent-common mesh output"),
    ("placing", "model scheduler telemetry ledger quorum-client agent-common membership"),
    // `ledger` is for the command alone.
    ("scaling", "model telemetry ledger quorum-client agent-common mesh membership placing observe"),
    ("launch", "model node pmi pki agent-common mesh membership machine registry"),
    (
        "agent-checkpoint",
        "model node scheduler runtime objects checkpoint api telemetry pki quorum-client agent-common mesh membership machine registry placing",
    ),
    ("observe", "model node runtime telemetry ebpf agent-common mesh machine output registry"),
    (
        // `pki` and `quorum-client` are for its `test_builders` alone.
        "allocation",
        "model node scheduler runtime telemetry pki quorum-client agent-common mesh membership machine output registry launch agent-checkpoint observe",
    ),
    ("identity", "model quorum-client agent-common"),
    ("accounting", "model telemetry quorum-client agent-common"),
    (
        "meshd",
        "model node runtime telemetry pki agent-common mesh membership machine output registry launch agent-checkpoint observe allocation accounting",
    ),
    (
        "service",
        "model node scheduler gossip runtime api telemetry ledger pki quorum-client agent-common mesh membership machine output registry placing launch agent-checkpoint observe meshd accounting",
    ),
    ("rest", "model api cli-syntax"),
    ("edge", "model telemetry pki agent-common identity rest service"),
    (
        "agent",
        "model cli-syntax node gossip runtime objects telemetry ebpf pki quorum-client quorum agent-common mesh membership machine output registry placing launch agent-checkpoint observe allocation meshd service scaling identity accounting edge",
    ),
    ("cli-syntax", "model api"),
    ("slurm", "model api cli-syntax"),
    ("cli-session", "model api cli-syntax slurm"),
    ("cli-screen", "model api cli-session"),
    ("cli", "model api cli-syntax slurm cli-session cli-screen"),
    ("fuzz", ""),
    // `gossip` and `lab-bench` are for the end-to-end tests alone.
    ("lab", "model gossip pmi runtime checkpoint api telemetry ledger pki quorum-client quorum agent-common mesh lab-bench"),
    ("lab-bench", "model scheduler gossip pmi runtime api telemetry ebpf ledger pki quorum-client quorum agent-common accounting lab"),
];

/// The fuzzing library, allowed as a dev-dependency of every crate and nowhere else.
const OF_TESTS: &str = "lattice-fuzz";

/// Pure crates: no async runtime, no sockets.
const PURE: &[&str] = &["model", "node", "scheduler", "gossip", "pmi", "ledger", "ledger-state"];
/// Optional dependencies for binaries of pure crates, enabled by a feature: `lattice-pmix` is not a
/// core.
const OF_A_BINARY: &[(&str, &str)] = &[("pmi", "libc")];
const IMPURE: &[&str] = &["tokio", "quinn", "tonic", "nix", "libc", "openraft"];

#[test]
fn our_crates_depend_on_each_other_as_the_architecture_says() {
    let output = Command::new(env!("CARGO")).args(["metadata", "--format-version", "1", "--no-deps", "--offline"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut seen = BTreeMap::new();
    for package in metadata["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap().strip_prefix("lattice-").unwrap().to_owned();
        let names = |kind: bool| -> BTreeSet<String> {
            let dependencies = package["dependencies"].as_array().unwrap().iter();
            let of_a_binary =
                |d: &&Value| d["optional"] == true && OF_A_BINARY.iter().any(|(of, needed)| *of == name && d["name"] == *needed);
            dependencies
                .filter(|d| d["kind"] != "dev" || d["name"] != OF_TESTS)
                .filter(|d| !kind || (d["kind"].is_null() && !of_a_binary(d)))
                .map(|d| d["name"].as_str().unwrap().to_owned())
                .collect()
        };
        let dependencies = (names(false), names(true));
        seen.insert(name, dependencies);
    }
    let allowed: BTreeMap<&str, Vec<&str>> = ALLOWED.iter().map(|(name, others)| (*name, others.split(' ').collect())).collect();
    assert_eq!(seen.keys().map(String::as_str).collect::<Vec<_>>(), allowed.keys().copied().collect::<Vec<_>>());
    for (name, (all, ordinary)) in &seen {
        for dependency in all.iter().filter_map(|d| d.strip_prefix("lattice-")) {
            assert!(allowed[name.as_str()].contains(&dependency), "{name} depends on {dependency}, which the architecture does not have");
        }
        if PURE.contains(&name.as_str()) {
            for dependency in IMPURE {
                assert!(!ordinary.contains(*dependency), "{name} is pure and depends on {dependency}");
            }
        }
    }
}
