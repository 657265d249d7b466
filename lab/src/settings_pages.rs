//! Tests that the reference pages of the daemons' configuration files name the existing settings and no others. The
//! names come from serde's error for an unknown key, which lists the known keys.

use lattice_agent_common::config::AgentConfig;
use lattice_quorum::config::QuorumConfig;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;

/// A configuration with a key that does not exist, as JSON, and the function that returns the keys its error lists.
type Probe = (&'static str, fn(&str) -> BTreeSet<String>);

/// Tables of settings: the page, the heading above the table (empty: before the first heading), and the probe.
const TABLES: [(&str, &str, Probe); 31] = [
    ("agent-yaml", "", (r#"{"?":0}"#, fields::<AgentConfig>)),
    ("agent-yaml", "tls", (r#"{"tls":{"?":0}}"#, fields::<AgentConfig>)),
    ("agent-yaml", "mesh", (r#"{"mesh":{"?":0}}"#, fields::<AgentConfig>)),
    ("agent-yaml", "gossip", (r#"{"gossip":{"?":0}}"#, fields::<AgentConfig>)),
    ("agent-yaml", "work", (r#"{"work":{"?":0}}"#, fields::<AgentConfig>)),
    ("agent-yaml", "images", (r#"{"images":{"?":0}}"#, fields::<AgentConfig>)),
    ("agent-yaml", "cgroup", (r#"{"cgroup":{"?":0}}"#, fields::<AgentConfig>)),
    ("agent-yaml", "cgroup.io_max", (r#"{"cgroup":{"io_max":[{"?":0}]}}"#, fields::<AgentConfig>)),
    ("agent-yaml", "launch", (r#"{"launch":{"?":0}}"#, fields::<AgentConfig>)),
    ("agent-yaml", "logs", (r#"{"logs":{"?":0}}"#, fields::<AgentConfig>)),
    ("agent-yaml", "store", (r#"{"logs":{"store":{"?":0}}}"#, fields::<AgentConfig>)),
    ("agent-yaml", "hooks", (r#"{"hooks":{"?":0}}"#, fields::<AgentConfig>)),
    ("agent-yaml", "hook", (r#"{"hooks":{"wipe":{"?":0}}}"#, fields::<AgentConfig>)),
    ("agent-yaml", "scratch", (r#"{"scratch":{"?":0}}"#, fields::<AgentConfig>)),
    ("agent-yaml", "data", (r#"{"data":{"?":0}}"#, fields::<AgentConfig>)),
    ("agent-yaml", "fabric_manager", (r#"{"fabric_manager":{"?":0}}"#, fields::<AgentConfig>)),
    ("agent-yaml", "measuring", (r#"{"measuring":{"?":0}}"#, fields::<AgentConfig>)),
    ("agent-yaml-sections", "gossip.timers", (r#"{"gossip":{"timers":{"?":0}}}"#, fields::<AgentConfig>)),
    ("agent-yaml-sections", "api", (r#"{"api":{"?":0}}"#, fields::<AgentConfig>)),
    ("agent-yaml-sections", "api.limits", (r#"{"api":{"limits":{"?":0}}}"#, fields::<AgentConfig>)),
    ("agent-yaml-sections", "api.oidc", (r#"{"api":{"oidc":{"?":0}}}"#, fields::<AgentConfig>)),
    ("agent-yaml-sections", "simulated_gpus", (r#"{"simulated_gpus":[{"?":0}]}"#, fields::<AgentConfig>)),
    ("agent-yaml-sections", "checkpoint", (r#"{"checkpoint":{"?":0}}"#, fields::<AgentConfig>)),
    ("agent-yaml-sections", "health", (r#"{"health":{"?":0}}"#, fields::<AgentConfig>)),
    ("agent-yaml-sections", "conformance", (r#"{"conformance":{"?":0}}"#, fields::<AgentConfig>)),
    ("agent-yaml-sections", "telemetry", (r#"{"telemetry":{"?":0}}"#, fields::<AgentConfig>)),
    ("agent-yaml-sections", "alerts", (r#"{"alerts":{"?":0}}"#, fields::<AgentConfig>)),
    ("alerts", "Fields of a rule", (r#"{"alerts":{"rules":[{"?":0}]}}"#, fields::<AgentConfig>)),
    ("gpu-errors", "Settings", (r#"{"health":{"gpu_policy":{"?":0}}}"#, fields::<AgentConfig>)),
    ("quorum-yaml", "", (r#"{"?":0}"#, fields::<QuorumConfig>)),
    ("quorum-yaml", "members", (r#"{"members":[{"?":0}]}"#, fields::<QuorumConfig>)),
];

/// Settings that a page explains in a row of their parent setting: the page, the row, and the probe.
const IN_ROWS: [(&str, &str, Probe); 3] = [
    ("agent-yaml-sections", "expect.cpus", (r#"{"health":{"expect":{"?":0}}}"#, fields::<AgentConfig>)),
    ("agent-yaml-sections", "checks", (r#"{"health":{"checks":[{"?":0}]}}"#, fields::<AgentConfig>)),
    ("agent-yaml-sections", "components", (r#"{"conformance":{"components":[{"?":0}]}}"#, fields::<AgentConfig>)),
];

fn fields<C: DeserializeOwned>(probe: &str) -> BTreeSet<String> {
    let refusal = match serde_json::from_str::<C>(probe) {
        Ok(_) => panic!("{probe} is accepted"),
        Err(refusal) => refusal.to_string(),
    };
    let (_, names) = refusal.split_once("unknown field `?`, expected").unwrap_or_else(|| panic!("{probe}: {refusal}"));
    quoted(names)
}

/// The texts in backticks.
fn quoted(text: &str) -> BTreeSet<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn page(name: &str) -> String {
    let path = format!("{}/../docs/reference/{name}.md", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The names in the first column of the tables below a heading.
fn documented(page: &str, heading: &str) -> BTreeSet<String> {
    let headed = format!("\n{page}");
    let mut parts = headed.split("\n## ");
    let part = if heading.is_empty() { parts.next() } else { parts.find(|part| part.lines().next() == Some(heading)) };
    let rows = part.unwrap_or_else(|| panic!("no heading {heading:?}")).lines().filter_map(|line| line.strip_prefix("| "));
    rows.flat_map(|row| quoted(row.split(" | ").next().unwrap_or_default())).collect()
}

#[test]
fn each_table_has_exactly_the_existing_settings() {
    for (name, heading, (probe, fields)) in TABLES {
        // A table may name a nested setting: `expect.cpus` counts as `expect`.
        let there = documented(&page(name), heading).into_iter().map(|n| n.split('.').next().unwrap_or_default().to_owned());
        assert_eq!(there.collect::<BTreeSet<String>>(), fields(probe), "docs/reference/{name}.md, {heading:?}: left is the page");
    }
}

#[test]
fn each_setting_of_an_entry_is_in_the_row_of_its_list() {
    for (name, setting, (probe, fields)) in IN_ROWS {
        let page = page(name);
        let row = page.lines().find(|line| line.starts_with(&format!("| `{setting}`"))).unwrap_or_else(|| panic!("no row of {setting}"));
        let there: BTreeSet<String> = quoted(row).into_iter().map(|n| n.rsplit('.').next().unwrap_or_default().to_owned()).collect();
        let missing: Vec<String> = fields(probe).difference(&there).cloned().collect();
        assert!(missing.is_empty(), "docs/reference/{name}.md does not name {missing:?} in the row of {setting}");
    }
}
