//! Checks that the lab alone is built with the same features as the lab together with the programs that it starts. Else the
//! first `cargo run -p lattice-lab` of a newcomer compiles most packages twice.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// The packages whose binaries the lab builds when it starts, and the lab itself: see `lab/src/binaries.rs`.
const BUILT_BY_LAB: [&str; 7] =
    ["lattice-agent", "lattice-quorum", "lattice-shim", "lattice-pmi", "lattice-cli", "lattice-checkpoint", "lattice-lab"];

/// The sets of features with which each package is built if these are selected. A package may be built more than once: for
/// build scripts too.
fn features(selected: &[&str]) -> BTreeMap<String, BTreeSet<String>> {
    let tree = ["tree", "--locked", "--offline", "--prefix", "none", "--edges", "normal,build", "--format", "{p}\t{f}"];
    let selected = selected.iter().flat_map(|package| ["--package", *package]);
    let output = Command::new(env!("CARGO")).args(tree).args(selected).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let Some((package, features)) = line.split_once('\t') else { continue };
        found.entry(package.to_owned()).or_default().insert(features.trim_end_matches(" (*)").to_owned());
    }
    assert!(found.len() > 100, "{} packages: the format of cargo tree has changed", found.len());
    found
}

#[test]
fn the_lab_alone_and_with_its_programs_has_the_same_features() {
    let (alone, together) = (features(&["lattice-lab"]), features(&BUILT_BY_LAB));
    let differ: Vec<String> = alone
        .iter()
        .filter(|(package, features)| together.get(*package) != Some(features))
        .map(|(package, features)| format!("{package}: {features:?}, and with the programs {:?}", together.get(package)))
        .collect();
    assert!(differ.is_empty(), "add what asks for these features to the unused dependencies of lab/Cargo.toml:\n{}", differ.join("\n"));
}
