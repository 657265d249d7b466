//! The reference page, generated from the catalogue.

use crate::catalogue::{self, Family, Of};
use crate::names::{PROMISED, Promised};
use std::fmt::Write;

const HEAD: &str = "\
# Metrics

<!-- Made of telemetry/src/catalogue by `cargo run -p lattice-lab -- metrics > docs/metrics.md`; a test compares the two. -->

Everything that an agent (port 9103) and a member of the quorum (port 9100) export at `/metrics` and push to a store. Every series of an
agent has the label `node_id`, every series of a member `member_id`. A metric that is not available on a machine is absent, not 0; `lattice doctor`
and `lattice_allocation_measure_source_info` show the sources of the measures of allocations. Series of allocations are shown only to
callers with the token (`metrics_token_file`). They have only the allocation's id; `lattice_allocation_info` has its owner:

    lattice_allocation_cpu_cores{stat=\"mean\"} * on (allocation, node_id) group_left (user, tenant) lattice_allocation_info
";

const USERS: &str = "
## The ten measures that the requirement promises to users

The name and unit of each in `lattice top`, `watch` and `compare`, and the metric that is pushed. `theirs` shows how the requirement's number is computed from it.

| requirement | their unit | here | unit | theirs | metric | source |
|---|---|---|---|---|---|---|
";

const TAIL: &str = "
## Names of the requirement that do not exist here

| name | why |
|---|---|
| `lattice_scheduling_cost_function_duration_seconds` | there is no cost function: a queue is served by class and submission |
| `lattice_scheduling_backfill_jobs_total` | claims are not counted apart by whether they overtook |
| `lattice_federation_*` | there is no federation |
| `lattice_raft_sensitive_audit_entries_total` | the audit log counts all records together: `lattice_audit_records_total` |
| `lattice_sensitive_wipe_failure_total` | `lattice_nodes_wipe_failed` is the number of nodes that are out of service because of a failed wipe; `lattice node status` shows the reason |

In the requirement, `lattice_scheduling_cycle_duration_seconds` has a label `vcluster`; here one round serves all queues of an agent, so there is no such label. The
requirement's ports 9101, 9102 and 9104 belong to processes that are roles of the agent here: all their metrics are at the agent's port 9103.
";

/// `docs/metrics.md`.
pub fn page() -> String {
    let mut out = HEAD.to_owned();
    let parts: [(&str, &[&Family]); 10] = [
        ("The process", catalogue::process::ALL),
        ("The machine", catalogue::node::ALL),
        ("GPUs", catalogue::gpu::ALL),
        ("Allocations", catalogue::allocation::ALL),
        ("Alerts", catalogue::alert::ALL),
        ("The agent", catalogue::agent::ALL),
        ("The API, scheduling, beginnings", catalogue::serving::ALL),
        ("Gossip", catalogue::gossip::ALL),
        ("Push", catalogue::push::ALL),
        ("The quorum", catalogue::quorum::ALL),
    ];
    for (title, families) in parts {
        let _ = writeln!(out, "\n## {title}\n\n| metric | type | unit | labels | of | source | meaning |\n|---|---|---|---|---|---|---|");
        for family in families {
            let of = match family.of {
                Of::Agent => "agent",
                Of::Quorum => "member",
                Of::Both => "both",
            };
            let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
            let Family { name, kind, unit, source, help, .. } = family;
            let _ = writeln!(out, "| `{name}` | {kind} | {unit} | {} | {of} | {source} | {help} |", labels.join(", "));
        }
    }
    out += USERS;
    for Promised { theirs, their_unit, ours, unit, made, family, stat } in &PROMISED {
        let made = if made.is_empty() { "the same" } else { made };
        let Family { name, source, .. } = family;
        let _ = writeln!(out, "| `{theirs}` | {their_unit} | `{ours}` | {unit} | {made} | `{name}{{stat=\"{stat}\"}}` | {source} |");
    }
    out + TAIL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_in_docs_is_generated_from_this_catalogue() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
        let there = std::fs::read_to_string(path).unwrap_or_default();
        assert!(there == page(), "docs/metrics.md is stale: cargo run -p lattice-lab -- metrics > docs/metrics.md");
    }

    #[test]
    fn every_metric_is_on_it() {
        let page = page();
        for family in catalogue::all() {
            assert_eq!(page.matches(&format!("| `{}` |", family.name)).count(), 1, "{}", family.name);
        }
    }
}
