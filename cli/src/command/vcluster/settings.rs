//! The settings of a vCluster, in lines with labels.

use super::chart::LINE_CHARS_MAX;
use lattice_api::v1;
use lattice_cli_session::shown::{filled, folded};
use lattice_cli_session::table::shortened;
use lattice_model::duration::clock_text;
use std::time::Duration;

/// Characters of a setting's value, beside its label.
const VALUE_CHARS_MAX: usize = LINE_CHARS_MAX - 12;
/// Characters of a list of nodes, beside their number.
const NODES_CHARS_MAX: usize = VALUE_CHARS_MAX - 10;

/// Labels and values for a block. A value is empty if the vCluster does not have the setting.
pub fn lines(v: &v1::VCluster) -> Vec<(&'static str, String)> {
    let nodes = match v.nodes.len() {
        0 => "the default's".to_owned(),
        count => format!("{} ({count})", shortened(&folded(&v.nodes), NODES_CHARS_MAX)),
    };
    let interval = match v.cycle_interval_ms {
        0 => String::new(),
        ms => format!("a round of its scheduler at most every {} s", ms as f64 / 1000.0),
    };
    let lends = match v.lend_ms {
        0 => String::new(),
        ms => format!("its idle nodes to work of {} at most", clock_text(Duration::from_millis(ms))),
    };
    let mut pairs = vec![("vCluster", v.name.clone()), ("Scheduler", v.scheduler.clone())];
    pairs.extend(std::iter::once("Weights").chain(std::iter::repeat("")).zip(weight_lines(v)));
    pairs.extend([
        ("Tenant", filled(&v.tenant).unwrap_or("any").to_owned()),
        ("Nodes", nodes),
        ("Interval", interval),
        ("Borrows", if v.borrows { "idle nodes that other vClusters lend".to_owned() } else { String::new() }),
        ("Lends", lends),
        ("Served by", filled(&v.served_by).unwrap_or("no agent at present").to_owned()),
    ]);
    for (_, value) in &mut pairs {
        *value = shortened(value, VALUE_CHARS_MAX);
    }
    pairs
}

/// Who set the weights of its score, and the weights; nothing for a queue that is not ordered by scores.
fn weight_lines(v: &v1::VCluster) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for weight in &v.weights {
        let text = format!("{} {}", weight.factor, weight.weight);
        match lines.pop_if(|line| line.chars().count() + 3 + text.chars().count() <= VALUE_CHARS_MAX) {
            Some(line) => lines.push(format!("{line} · {text}")),
            None => lines.push(text),
        }
    }
    if !lines.is_empty() {
        lines.insert(0, if v.weights_set { "set by an operator" } else { "those of its scheduler" }.to_owned());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_cli_session::table::block;

    fn vcluster() -> v1::VCluster {
        v1::VCluster {
            name: "small".into(),
            scheduler: "hpc-backfill".into(),
            nodes: vec!["n2".into(), "n3".into()],
            served_by: "n1".into(),
            ..Default::default()
        }
    }

    fn weight(factor: &str, weight: f64) -> v1::Weight {
        v1::Weight { factor: factor.into(), weight }
    }

    #[test]
    fn settings_that_it_does_not_have_are_left_out() {
        let want = "\
vCluster:   small
Scheduler:  hpc-backfill
Tenant:     any
Nodes:      n[2-3] (2)
Served by:  n1
";
        assert_eq!(block(&lines(&vcluster())), want);
    }

    #[test]
    fn settings_are_in_lines_of_eighty_characters() {
        let changed = v1::VCluster {
            tenant: "physics".into(),
            nodes: vec![],
            served_by: String::new(),
            weights: vec![
                weight("priority", 0.2),
                weight("wait-time", 0.25),
                weight("fair-share", 1000.0),
                weight("data-readiness", 0.123_456),
                weight("conformance", 0.0),
            ],
            weights_set: true,
            cycle_interval_ms: 1500,
            borrows: true,
            lend_ms: 3_600_000,
            ..vcluster()
        };
        let want = "\
vCluster:   small
Scheduler:  hpc-backfill
Weights:    set by an operator
            priority 0.2 · wait-time 0.25 · fair-share 1000
            data-readiness 0.123456 · conformance 0
Tenant:     physics
Nodes:      the default's
Interval:   a round of its scheduler at most every 1.5 s
Borrows:    idle nodes that other vClusters lend
Lends:      its idle nodes to work of 01:00:00 at most
Served by:  no agent at present
";
        assert_eq!(block(&lines(&changed)), want);
        let own = block(&lines(&v1::VCluster { weights_set: false, ..changed.clone() }));
        assert!(own.contains("\nWeights:    those of its scheduler\n            priority 0.2 · "), "{own}");
        let long = v1::VCluster {
            name: "x".repeat(64),
            tenant: "t".repeat(128),
            nodes: (0..200).map(|n| format!("n{}", n * 2)).collect(),
            ..changed
        };
        let long = block(&lines(&long));
        assert!(long.contains("… (200)\n") && long.lines().all(|line| line.chars().count() <= LINE_CHARS_MAX), "{long}");
    }
}
