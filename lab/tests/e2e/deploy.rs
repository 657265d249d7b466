//! Checks `deploy/` with the tools that read it.

use crate::harness::{JOB, Need, alone, fresh_dir};
use lattice_lab::process;
use libtest_mimic::Trial;
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

pub fn trials() -> Vec<Trial> {
    vec![
        alone("deploy::prometheus_takes_the_rules_which_fire_when_they_should", &[Need::Promtool], rules),
        alone("deploy::prometheus_takes_the_configuration_and_each_query_of_a_dashboard", &[Need::Promtool], queries),
    ]
}

fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(path)
}

fn promtool(args: &[&str], path: &Path) -> String {
    let done = process::run(Command::new("promtool").args(args).arg(path), JOB).unwrap();
    assert_eq!(done.code(), 0, "promtool {args:?}: {}{}", done.out(), done.err());
    done.out() + &done.err()
}

fn rules() {
    let output = promtool(&["check", "rules"], &deploy("prometheus/rules.yaml"));
    assert!(output.contains("SUCCESS"), "{output}");
    let output = promtool(&["test", "rules"], &deploy("prometheus/rules-test.yaml"));
    assert!(output.contains("SUCCESS"), "{output}");
}

fn queries() {
    // Only the syntax: the site's own files are not here.
    promtool(&["check", "config", "--syntax-only"], &deploy("prometheus/prometheus.yaml"));
    // Each query as the expression of a rule, with Grafana's variables replaced.
    let mut text = "groups:\n  - name: dashboards\n    rules:\n".to_owned();
    let mut count = 0;
    for entry in fs::read_dir(deploy("grafana")).unwrap().flatten() {
        let board: Value = serde_json::from_str(&fs::read_to_string(entry.path()).unwrap()).unwrap();
        for panel in board["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().unwrap() {
                let query = target["expr"].as_str().unwrap().replace("$__rate_interval", "1m").replace('$', "");
                let _ = writeln!(text, "      - record: query:of:{count}\n        expr: {}", Value::from(query));
                count += 1;
            }
        }
    }
    let dir = fresh_dir("deploy");
    fs::create_dir_all(&dir).unwrap();
    let file = dir.join("queries.yaml");
    fs::write(&file, text).unwrap();
    let output = promtool(&["check", "rules"], &file);
    assert!(count > 40 && output.contains(&format!("{count} rules found")), "{output}");
    fs::remove_dir_all(&dir).unwrap();
}
