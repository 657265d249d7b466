//! What needs attention, from what the agent reports: nodes, the quorum, running work, budgets. There is no list of
//! alerts in the API; the alerts of metrics belong to the site's monitoring.

use super::columns::{Column, List, Row, Tone};
use super::filter::Filter;
use super::snapshot::{OwnUsage, Snapshot};
use lattice_api::v1;
use lattice_cli_session::shown::{Part, filled, folded, part, reasons_text, short};
use lattice_model::NodeState;
use lattice_model::time::Timestamp;

/// Certificates of members that expire sooner than this are reported.
const CERTIFICATE_WARNING_MS: u64 = 14 * 86_400_000;

const COLUMNS: &[Column] = &[Column { name: "ABOUT", rank: 0, least: 10 }, Column { name: "WHAT", rank: 0, least: 20 }];

/// The alerts, the worst first.
pub fn alert_list(snapshot: &Snapshot, filter: &Filter, now: Timestamp) -> List {
    let mut rows = quorum_rows(snapshot, now);
    rows.extend(snapshot.nodes.value.nodes.iter().filter_map(node_row));
    rows.extend(snapshot.work.value.allocations.iter().filter_map(work_row));
    rows.extend(budget_rows(snapshot));
    rows.retain(|row| filter.matches(row.cells.iter().map(String::as_str)));
    rows.sort_by_key(|row| row.tone != Tone::Bad);
    List { columns: COLUMNS, rows }
}

fn row(key: &str, about: String, what: String, tone: Tone) -> Row {
    Row { key: key.to_owned(), cells: vec![about, what], tone }
}

fn quorum_rows(snapshot: &Snapshot, now: Timestamp) -> Vec<Row> {
    let about = |what: String, tone| row("", "quorum".to_owned(), what, tone);
    let mut rows = Vec::new();
    if let Some(why) = filled(&snapshot.nodes.value.quorum_error) {
        rows.push(about(format!("it does not answer: {why}"), Tone::Bad));
    }
    if snapshot.work.at.is_none() {
        return rows;
    }
    let quorum = &snapshot.work.value.quorum;
    if quorum.leader.is_none() {
        rows.push(about("no leader is known".to_owned(), Tone::Bad));
    }
    if quorum.held_back > 0 {
        rows.push(about(format!("{} nodes fell silent at once: see `lattice quorum status`", quorum.held_back), Tone::Bad));
    }
    if let Some(clocks) = filled(&quorum.clocks) {
        rows.push(about(clocks.to_owned(), Tone::Waits));
    }
    if !quorum.awaited.is_empty() {
        rows.push(about(format!("after a recovery it waits for reports of {}", folded(&quorum.awaited)), Tone::Waits));
    }
    for channel in quorum.notified.iter().filter(|channel| !channel.last_error.is_empty()) {
        rows.push(about(format!("notifications of {}: {}", channel.channel, channel.last_error), Tone::Waits));
    }
    for member in &quorum.members {
        let about = |what: String, tone| row("", format!("member {}", member.id), what, tone);
        if let Some(disk) = filled(&member.disk) {
            rows.push(about(format!("its disk: {disk}"), Tone::Bad));
        }
        let until = member.certificate_until_ms;
        if until != 0 && until <= now.0 {
            rows.push(about("its certificate has expired".to_owned(), Tone::Bad));
        } else if until != 0 && until - now.0 < CERTIFICATE_WARNING_MS {
            rows.push(about(format!("its certificate expires in {} days", (until - now.0) / 86_400_000), Tone::Waits));
        }
    }
    rows
}

/// A node that is not simply Ready.
fn node_row(n: &v1::Node) -> Option<Row> {
    let ready = NodeState::Ready.to_string();
    let mut what = Vec::new();
    if n.state != ready {
        what.push(format!("is {}", n.state));
    }
    what.extend(filled(&reasons_text(n)).map(str::to_owned));
    if !n.gossip.is_empty() && n.gossip != "alive" && n.gossip != "unknown" {
        what.push(format!("{} in gossip", n.gossip));
    }
    if let Some(report) = n.conformance.as_ref().filter(|report| report.drifted_since_ms != 0) {
        what.push(format!("its software drifted: {}", report.drift));
    }
    what.extend(filled(&n.wipe).map(|wipe| format!("wipe: {wipe}")));
    let is_lost = [NodeState::Down, NodeState::Failed].iter().any(|state| n.state == state.to_string());
    let tone = if is_lost || n.gossip == "down" { Tone::Bad } else { Tone::Waits };
    (!what.is_empty()).then(|| row(&n.id, format!("node {}", n.id), what.join("; "), tone))
}

/// Running work about which something is wrong.
fn work_row(a: &v1::Allocation) -> Option<Row> {
    if part(a) != Part::HasNodes {
        return None;
    }
    let what = filled(&a.status_message).or_else(|| filled(&a.preemption))?;
    Some(row(&a.id, format!("work {}", short(&a.id)), what.to_owned(), Tone::Waits))
}

fn budget_rows(snapshot: &Snapshot) -> Vec<Row> {
    let used = |own: &OwnUsage| {
        let usage = &own.usage;
        let mark = usage.budget_marks.iter().max_by_key(|mark| mark.percent)?;
        let tone = if mark.percent >= 100 { Tone::Bad } else { Tone::Waits };
        Some(row(
            "",
            format!("{} {}", own.of.name(), usage.name),
            format!("has used {} % of its budget {}", mark.percent, mark.budget),
            tone,
        ))
    };
    snapshot.usage.value.iter().filter_map(used).collect()
}

#[cfg(test)]
mod tests {
    use super::super::snapshot::{NodeList, Work};
    use super::*;

    #[test]
    fn everything_that_is_wrong_is_listed_the_worst_first() {
        let now = Timestamp(1_772_704_812_000);
        let node = |id: &str, state: &str, gossip: &str| v1::Node {
            id: id.into(),
            state: state.into(),
            gossip: gossip.into(),
            schedulable: true,
            ..Default::default()
        };
        let member = v1::quorum_status_response::Member { id: 2, certificate_until_ms: now.0 + 3 * 86_400_000, ..Default::default() };
        let quorum = v1::QuorumStatusResponse { leader: Some(1), members: vec![member], ..Default::default() };
        let work = v1::Allocation {
            id: "1f0c9a4e-5b7d".into(),
            state: "Running".into(),
            status_message: "node n2 is silent".into(),
            ..Default::default()
        };
        let mut snapshot = Snapshot::default();
        let nodes = vec![node("n1", "Ready", "alive"), node("n2", "Down", "down"), node("n3", "Draining", "alive")];
        snapshot.nodes.set(now, NodeList { nodes, quorum_error: String::new() });
        snapshot.work.set(now, Work { allocations: vec![work], quorum, ..Work::default() });
        let listed = |filter: &str| {
            let list = alert_list(&snapshot, &Filter::of(filter), now);
            list.rows.iter().map(|row| format!("{}: {}", row.cells[0], row.cells[1])).collect::<Vec<_>>()
        };
        let want = [
            "node n2: is Down; down in gossip",
            "member 2: its certificate expires in 3 days",
            "node n3: is Draining",
            "work 1f0c9a4e: node n2 is silent",
        ];
        assert_eq!(listed(""), want);
        assert_eq!(listed("work"), want[3..]);
    }
}
