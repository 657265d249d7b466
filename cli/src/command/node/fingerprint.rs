//! `lattice node fingerprint`, and the display of a node's conformance.

use super::each::{expand_lists, name_if_unavailable};
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::{Format, print, print_names};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::{filled, time};
use lattice_cli_session::table::block;
use lattice_cli_syntax::args::node::Fingerprint;
use lattice_model::NodeId;
use lattice_model::conformance::short;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Nodes that are examined at the same time.
const CONCURRENT_REQUESTS_MAX: usize = 16;

/// Makes nodes examine themselves again: the named ones, else the one of the answering agent. Continues if a node
/// fails.
pub async fn run(session: &Session, args: &Fingerprint) -> Result<u8, Failure> {
    let client = session.connect().await?;
    if args.nodes.is_empty() {
        let found = answer(client.nodes().fingerprint(v1::FingerprintRequest::default())).await?;
        match session.format() {
            Format::Table => print(&local_text(&found))?,
            Format::Data(notation) => notation.print(&local_json(&found))?,
            Format::Name => print_names([found.fingerprint.as_str()])?,
        }
        return Ok(0);
    }
    let nodes: Vec<NodeId> = expand_lists(&args.nodes)?.into_iter().collect();
    let (mut all, mut exit) = (Vec::new(), 0);
    for some in nodes.chunks(CONCURRENT_REQUESTS_MAX) {
        let asked: Vec<_> = some.iter().map(|node| tokio::spawn(fetch(client.clone(), node.clone()))).collect();
        for asked in asked {
            match asked.await.unwrap_or_else(|broke| Err(Failure::other(broke.to_string()))) {
                Ok(found) => {
                    if session.format() == Format::Table {
                        print(&(block(&[("Node", found.node.clone())]) + &local_text(&found)))?;
                    }
                    all.push(found);
                }
                Err(failure) => {
                    failure.report();
                    exit = if exit == 0 { failure.exit() } else { exit };
                }
            }
        }
    }
    match session.format() {
        Format::Table => {}
        Format::Data(notation) => notation.print(&all.iter().map(of_node_json).collect::<Vec<_>>())?,
        Format::Name => print_names(all.iter().map(|found| found.fingerprint.as_str()))?,
    }
    Ok(exit)
}

async fn fetch(client: Client, node: NodeId) -> Result<v1::LocalConformance, Failure> {
    let request = v1::FingerprintRequest { node: node.to_string() };
    answer(client.nodes().fingerprint(request)).await.map_err(|failure| name_if_unavailable(node.as_str(), failure))
}

fn of_node_json(found: &v1::LocalConformance) -> Value {
    let mut shown = local_json(found);
    shown["node"] = found.node.clone().into();
    shown
}

/// The findings of a node's own agent.
pub fn local_text(found: &v1::LocalConformance) -> String {
    let mut text = String::new();
    if found.fingerprint.is_empty() {
        text.push_str(&block(&[("Fingerprint", "not known yet".to_owned())]));
    } else {
        let at = time(found.at_ms).map(|at| format!(", as of {at}")).unwrap_or_default();
        text.push_str(&block(&[("Fingerprint", format!("{}{at}", short(&found.fingerprint)))]));
        for (name, value) in found.components.iter().collect::<BTreeMap<_, _>>() {
            text.push_str(&format!("  {name}: {value}\n"));
        }
        if !found.absent.is_empty() {
            text.push_str(&format!("  absent: {}\n", found.absent.join(", ")));
        }
    }
    if !found.error.is_empty() {
        text.push_str(&format!("  the last check failed, and nothing new is known: {}\n", found.error));
    }
    text
}

/// The same as JSON.
pub fn local_json(found: &v1::LocalConformance) -> Value {
    json!({
        "fingerprint": filled(&found.fingerprint), "components": found.components.iter().collect::<BTreeMap<_, _>>(),
        "absent": found.absent, "at": time(found.at_ms), "error": filled(&found.error),
    })
}

/// The quorum's record of a node, and the progress of its wipe; empty if there is nothing to report.
pub fn conformance_text(node: &v1::Node) -> String {
    let mut text = String::new();
    if let Some(conformance) = &node.conformance {
        let nodes = match conformance.group_nodes {
            0 | 1 => "alone".to_owned(),
            2 => "with 1 other".to_owned(),
            nodes => format!("with {} others", nodes - 1),
        };
        if conformance.stale {
            text.push_str("Its last report of drivers, firmware, kernel and image is too old: it is a conformance group of its own until its agent can read them again. That report:\n");
        }
        text.push_str(&format!("It belongs to conformance group {}, {nodes}", short(&conformance.fingerprint)));
        match time(conformance.drifted_since_ms) {
            None => text.push_str(", as expected.\n"),
            Some(since) => text.push_str(&format!(
                ". It has drifted since {since} ({}); {} is expected. `lattice node accept-drift {}` accepts that.\n",
                conformance.drift,
                short(&conformance.expected),
                node.id
            )),
        }
    }
    if !node.wipe.is_empty() {
        text.push_str(&format!("Its wipe is {}\n", node.wipe));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_is_shown_with_the_change_and_absent_components_are_named() {
        let found = v1::LocalConformance {
            fingerprint: "0123456789abcdef".into(),
            components: [("kernel".to_owned(), "6.6".to_owned()), ("bios".to_owned(), "A 1".to_owned())].into(),
            absent: vec!["bmc".into()],
            at_ms: 1_772_704_800_000,
            error: String::new(),
            node: "n1".into(),
        };
        assert_eq!(
            local_text(&found),
            "Fingerprint:  0123456789ab, as of 2026-03-05T10:00:00.000Z\n  bios: A 1\n  kernel: 6.6\n  absent: bmc\n"
        );
        let conformance = v1::Conformance {
            fingerprint: "0123456789abcdef".into(),
            group_nodes: 3,
            drifted_since_ms: 1_772_704_800_000,
            drift: "kernel: 6.1 -> 6.6".into(),
            expected: "ffff456789abcdef".into(),
            stale: false,
        };
        let node = v1::Node { id: "n1".into(), conformance: Some(conformance.clone()), ..Default::default() };
        let want = "It belongs to conformance group 0123456789ab, with 2 others. It has drifted since 2026-03-05T10:00:00.000Z (kernel: 6.1 -> 6.6); ffff456789ab is expected. `lattice node accept-drift n1` accepts that.\n";
        assert_eq!(conformance_text(&node), want);
        let conformance = v1::Conformance { group_nodes: 1, drifted_since_ms: 0, ..conformance };
        let node = v1::Node { conformance: Some(conformance), ..node };
        assert_eq!(conformance_text(&node), "It belongs to conformance group 0123456789ab, alone, as expected.\n");
        let conformance = v1::Conformance { stale: true, ..node.conformance.unwrap_or_default() };
        let stale = conformance_text(&v1::Node { conformance: Some(conformance), ..Default::default() });
        assert!(
            stale.starts_with("Its last report of drivers, firmware, kernel and image is too old: it is a conformance group"),
            "{stale}"
        );
        assert_eq!(conformance_text(&v1::Node::default()), "");
    }
}
