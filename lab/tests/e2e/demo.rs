//! What the README promises, as the README runs it.

use crate::harness::{Need, alone, binaries, close, lab};
use libtest_mimic::Trial;
use std::time::{Duration, Instant};

pub fn trials() -> Vec<Trial> {
    vec![
        alone("demo::it_is_as_promised_within_60_s", &[Need::Mounts], demo),
        alone("demo::the_launch_bench_prints_its_figures", &[], bench),
    ]
}

fn demo() {
    close();
    binaries();
    let began = Instant::now();
    let done = lab(&["demo", "--no-build"], Duration::from_secs(120));
    assert_eq!(done.code(), 0, "{}\n{}", done.out(), done.err());
    assert!(done.out().contains("All of it as promised"), "{}", done.out());
    assert!(began.elapsed() < Duration::from_secs(60), "it took {:?}", began.elapsed());
}

/// Whether targets are met is the bench's own business; that it measures is tested.
fn bench() {
    close();
    binaries();
    let done = lab(&["bench", "launch", "--json", "--no-build", "--no-slurm", "--rounds", "3"], Duration::from_secs(120));
    assert!([0, 3].contains(&done.code()), "{}\n{}", done.out(), done.err());
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    let figures = report["figures"].as_array().unwrap();
    assert_eq!(figures.len(), 6, "{report}");
    assert!(figures.iter().all(|f| f["samples"]["median"].as_f64().is_some_and(|m| m > 0.0)), "{report}");
    assert_eq!(done.code() == 3, figures.iter().any(|f| f["verdict"] == "missed"));
}
