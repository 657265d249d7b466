//! Checks that the catalogue has every metric and label that the queries in `deploy/` use.

use lattice_telemetry::catalogue::{self, Family, Kind};
use lattice_telemetry::names::PROMISED;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Labels that no family declares: the process, the metrics store and histograms add them.
const COMMON_LABELS: [&str; 5] = ["node_id", "member_id", "job", "instance", "le"];

fn deploy(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(path)
}

/// Appends all texts under this key, at any depth.
fn texts<'a>(value: &'a Value, key: &str, out: &mut Vec<&'a str>) {
    match value {
        Value::Object(map) => {
            for (name, inner) in map {
                match inner {
                    Value::String(text) if name == key => out.push(text),
                    other => texts(other, key, out),
                }
            }
        }
        Value::Array(all) => all.iter().for_each(|inner| texts(inner, key, out)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn family(name: &str) -> Option<&'static Family> {
    let stem = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
    let named = |name: &str| catalogue::all().find(|family| family.name == name);
    named(name).or_else(|| stem.and_then(named).filter(|family| family.kind == Kind::Histogram))
}

/// Each metric of an expression, with the labels that it is selected by.
fn selected_metrics(expression: &str) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut rest = expression;
    while let Some(at) = rest.find(is_word) {
        let end = rest[at..].find(|c| !is_word(c)).map_or(rest.len(), |length| at + length);
        let (word, behind) = (&rest[at..end], &rest[end..]);
        // Quoted text is not a name.
        if rest[..at].ends_with('"') {
            let close = rest[at..].find('"').map_or(rest.len(), |length| at + length + 1);
            rest = &rest[close..];
            continue;
        }
        rest = behind;
        if !word.starts_with("lattice_") && !word.starts_with("process_") {
            continue;
        }
        let matchers = behind.strip_prefix('{').and_then(|inner| inner.split_once('}')).map_or("", |(inner, _)| inner);
        let labels = matchers.split(',').filter_map(|one| one.split(['=', '!']).next()).map(|name| name.trim().to_owned());
        found.push((word.to_owned(), labels.filter(|name| !name.is_empty()).collect()));
    }
    found
}

/// The labels that a legend shows.
fn legend_labels(legend: &str) -> impl Iterator<Item = &str> {
    legend.split("{{").skip(1).filter_map(|rest| Some(rest.split_once("}}")?.0.trim()))
}

/// Whether an expression's series have this label: its aggregation keeps the label, or a metric has it.
fn has_label(expression: &str, label: &str) -> bool {
    let words = || expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    if words().any(|word| word == "by") {
        return words().any(|word| word == label);
    }
    let of_a_metric = |(name, _): &(String, _)| family(name).is_some_and(|family| family.labels.contains(&label));
    COMMON_LABELS.contains(&label) || selected_metrics(expression).iter().any(of_a_metric)
}

fn check(file: &Path, expression: &str) -> usize {
    let metrics = selected_metrics(expression);
    for (name, labels) in &metrics {
        let family = family(name).unwrap_or_else(|| panic!("{}: there is no metric {name}: {expression}", file.display()));
        for label in labels {
            let known = family.labels.contains(&label.as_str()) || COMMON_LABELS.contains(&label.as_str());
            assert!(known, "{}: {name} has no label {label}: {expression}", file.display());
        }
    }
    metrics.len()
}

#[test]
fn the_metrics_of_an_expression_are_found_with_their_labels() {
    let of = |name: &str, labels: &[&str]| (name.to_owned(), labels.iter().map(|label| (*label).to_owned()).collect::<Vec<_>>());
    let expression = r#"sum by (le) (rate(lattice_a_bucket{x=~"$x",y!="lattice_no"}[5m])) / process_b > 1"#;
    assert_eq!(selected_metrics(expression), [of("lattice_a_bucket", &["x", "y"]), of("process_b", &[])]);
}

#[test]
fn a_legend_shows_a_label_that_there_is() {
    assert_eq!(legend_labels("in {{node_id}} {{ interface }}").collect::<Vec<_>>(), ["node_id", "interface"]);
    assert!(
        has_label("sum by (job, le) (rate(lattice_alert_active[1m]))", "job") && !has_label("sum by (job) (lattice_alert_active)", "alert")
    );
    assert!(has_label("lattice_alert_active == 1", "alert") && !has_label("lattice_alert_active == 1", "device"));
}

#[test]
fn every_metric_of_a_dashboard_is_in_the_catalogue() {
    let boards = ["holistic", "per-vcluster", "per-quorum-member", "per-node", "user-allocation"];
    for board in boards {
        let file = deploy(&format!("grafana/{board}.json"));
        let text = fs::read_to_string(&file).unwrap();
        let board: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let mut expressions = Vec::new();
        texts(&board, "expr", &mut expressions);
        let mut variables = Vec::new();
        texts(&board["templating"], "query", &mut variables);
        assert!(expressions.len() >= 8, "{}", file.display());
        let named: usize = expressions.iter().chain(&variables).map(|expression| check(&file, expression)).sum();
        assert!(named >= expressions.len(), "{}", file.display());
        for panel in board["panels"].as_array().unwrap() {
            assert!(panel["title"].is_string() && panel["targets"].as_array().is_some_and(|t| !t.is_empty()), "{panel}");
            for target in panel["targets"].as_array().unwrap() {
                let (expression, legend) = (target["expr"].as_str().unwrap(), target["legendFormat"].as_str().unwrap_or_default());
                for label in legend_labels(legend) {
                    assert!(has_label(expression, label), "{}: {legend} shows no label of {expression}", file.display());
                }
            }
            let at = &panel["gridPos"];
            assert!(at["x"].as_u64().unwrap() + at["w"].as_u64().unwrap() <= 24, "{panel}");
        }
    }
    let there = fs::read_dir(deploy("grafana")).unwrap().count();
    assert_eq!(there, boards.len(), "a dashboard is not in the list");
}

/// Whether an expression selects this `stat` of a metric, alone or as one of several.
fn selects_stat(expression: &str, metric: &str, stat: &str) -> bool {
    let behind = expression.split(metric).nth(1).and_then(|rest| rest.strip_prefix('{')?.split('}').next());
    behind.is_some_and(|labels| {
        let stats = labels.split(',').find_map(|label| label.trim().strip_prefix("stat=")).unwrap_or_default();
        stats.trim_start_matches('~').trim_matches('"').split('|').any(|one| one == stat)
    })
}

#[test]
fn every_number_that_is_promised_to_users_has_a_panel() {
    let board: Value = serde_json::from_str(&fs::read_to_string(deploy("grafana/user-allocation.json")).unwrap()).unwrap();
    let mut expressions = Vec::new();
    texts(&board, "expr", &mut expressions);
    for one in &PROMISED {
        assert!(expressions.iter().any(|expression| selects_stat(expression, one.family.name, one.stat)), "{one:?}");
    }
    // And the metrics that only the kernel programs provide.
    for metric in ["lattice_allocation_context_switches_total", "lattice_allocation_run_queue_seconds_bucket"] {
        assert!(expressions.iter().any(|expression| expression.contains(metric)), "{metric}");
    }
}

#[test]
fn alerts_of_each_severity_go_to_somebody() {
    let parsed = |path: &str| {
        let all: BTreeMap<String, Value> = lattice_model::config::parse(path, &fs::read_to_string(deploy(path)).unwrap()).unwrap();
        Value::Object(all.into_iter().collect())
    };
    let manager = parsed("prometheus/alertmanager.yaml");
    let receivers: Vec<&str> = manager["receivers"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    let route = &manager["route"];
    let routes = route["routes"].as_array().unwrap();
    for to in routes.iter().chain([route]).map(|route| route["receiver"].as_str().unwrap()) {
        assert!(receivers.contains(&to), "{to}");
    }
    let (rules, mut severities) = (parsed("prometheus/rules.yaml"), Vec::new());
    texts(&rules, "severity", &mut severities);
    assert!(!severities.is_empty());
    for severity in severities.iter().filter(|severity| **severity != "info") {
        let matcher = format!("severity=\"{severity}\"");
        assert!(routes.iter().any(|route| route["matchers"][0] == matcher.as_str()), "{severity}");
    }
    // Grafana must provision the files of this directory.
    let provisioned = parsed("grafana-provisioning/dashboards/lattice.yaml");
    assert_eq!(provisioned["providers"][0]["options"]["path"], "/var/lib/grafana/dashboards/lattice");
    assert_eq!(parsed("grafana-provisioning/datasources/lattice.yaml")["datasources"][0]["type"], "prometheus");
}

#[test]
fn every_metric_of_a_rule_is_in_the_catalogue() {
    let file = deploy("prometheus/rules.yaml");
    let text = fs::read_to_string(&file).unwrap();
    let rules: BTreeMap<String, Value> = lattice_model::config::parse("rules.yaml", &text).unwrap();
    let rules = Value::Object(rules.into_iter().collect());
    let mut expressions = Vec::new();
    texts(&rules, "expr", &mut expressions);
    assert!(expressions.len() >= 10);
    for expression in expressions {
        assert!(check(&file, expression) > 0, "{expression}");
    }
}
