//! `lattice gossip members` and `watch`.

use lattice_api::v1;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::output::{Format, TableSize, print, print_names};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::{filled, time};
use lattice_cli_session::table::{Fit, Table};
use lattice_cli_syntax::args::gossip::GossipMembers;
use lattice_model::duration::clock_text;
use std::time::Duration;

pub async fn members(session: &Session, args: &GossipMembers) -> Result<(), Failure> {
    let client = session.connect().await?;
    let v1::GossipMembersResponse { mut members, counters } = answer(client.nodes().gossip_members(v1::GossipMembersRequest {})).await?;
    if args.counters {
        return show_counters(session, &counters);
    }
    if args.suspected {
        members.retain(|m| m.liveness == "suspect");
    }
    match session.format() {
        Format::Table => {
            members.iter().filter_map(contradiction_warning).for_each(|text| session.warn(&text));
            print(&text(&members, session.table_size()))
        }
        Format::Data(notation) => {
            let list = members.iter().map(|m| {
                serde_json::json!({
                    "node": m.node, "address": m.address, "incarnation": m.incarnation, "liveness": m.liveness, "state": m.state,
                    "held": m.held, "for_ms": m.for_ms, "suspected_by": m.suspected_by,
                    "contradicted_for_ms": m.contradicted_for_ms,
                })
            });
            notation.print(&list.collect::<Vec<_>>())
        }
        Format::Name => print_names(members.iter().map(|m| m.node.as_str())),
    }
}

fn show_counters(session: &Session, counters: &[v1::GossipCounter]) -> Result<(), Failure> {
    match session.format() {
        Format::Table => {
            let mut table = Table::new(&["COUNTER", "VALUE"]);
            counters.iter().for_each(|c| table.row(vec![c.name.clone(), c.value.to_string()]));
            print(&table.on_screen(&[], &Fit::default(), session.table_size()))
        }
        Format::Data(notation) => {
            let all = counters.iter().map(|c| (c.name.clone(), c.value.into()));
            notation.print(&all.collect::<serde_json::Map<String, serde_json::Value>>())
        }
        Format::Name => print_names(counters.iter().map(|c| c.name.as_str())),
    }
}

/// Prints one line for each change, until it is interrupted.
pub async fn watch(session: &Session) -> Result<(), Failure> {
    let client = session.connect().await?;
    let mut stream = answer(client.nodes().watch_gossip(v1::WatchGossipRequest {})).await?;
    session.note("following gossip as this agent sees it, from now on");
    while let Some(change) = stream.message().await? {
        let at = time(change.at_ms).unwrap_or_default();
        match session.format() {
            Format::Table => print(&line(&at, &change))?,
            Format::Data(notation) => notation.print_each(&[serde_json::json!({
                "at": at, "node": filled(&change.node), "event": change.event, "detail": filled(&change.detail),
            })])?,
            Format::Name => print_names([change.node.as_str()])?,
        }
    }
    // An agent that stops closes its streams without an error.
    Err(Failure::new(Exit::Unavailable, "the agent stopped sending changes").hint("`lattice node status` shows whether it runs"))
}

fn line(at: &str, change: &v1::GossipChange) -> String {
    format!("{at}  {:<10} {:<12} {}", change.event, change.node, change.detail).trim_end().to_owned() + "\n"
}

/// The warning about a node that other nodes contradict.
fn contradiction_warning(m: &v1::GossipMember) -> Option<String> {
    let since = clock_text(Duration::from_secs(m.contradicted_for_ms? / 1_000));
    Some(format!(
        "{}: for {since} other nodes have received an incarnation or a state of it that it never published. Either another agent \
         runs under its name, or an attacker has the gossip key: `lattice gossip keys rotate` replaces the key",
        m.node
    ))
}

/// How the list of members is fitted to a narrow terminal.
const MEMBERS_FIT: Fit<'_> = Fit { left_out: &["INCARNATION", "ADDRESS"], shortened: &[("NODE", 12)], wrapped: &[], left_out_last: &[] };

fn text(members: &[v1::GossipMember], size: TableSize) -> String {
    let mut table = Table::new(&["NODE", "LIVENESS", "FOR", "SUSPECTED BY", "STATE", "HELD", "INCARNATION", "ADDRESS"]);
    for m in members {
        let by = if m.suspected_by == 0 { String::new() } else { m.suspected_by.to_string() };
        let since = clock_text(Duration::from_secs(m.for_ms / 1_000));
        let held = if m.held { "yes" } else { "" };
        let life = m.incarnation.to_string();
        table.row(vec![m.node.clone(), m.liveness.clone(), since, by, m.state.clone(), held.to_owned(), life, m.address.clone()]);
    }
    table.on_screen(&["HELD"], &MEMBERS_FIT, size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suspect_is_shown_with_how_long_and_by_how_many() {
        let member = |node: &str, liveness: &str, for_ms, suspected_by| v1::GossipMember {
            node: node.into(),
            address: "10.0.0.1:9402".into(),
            incarnation: 2,
            liveness: liveness.into(),
            state: "Ready".into(),
            held: false,
            for_ms,
            suspected_by,
            contradicted_for_ms: None,
        };
        let shown = text(&[member("n1", "alive", 61_000, 0), member("n2", "suspect", 2_900, 3)], TableSize::default());
        let wide = member(&"x1000c0s0b0".repeat(5), "suspect", 2_900, 1000);
        lattice_cli_session::table::assert_fits(&text(&[v1::GossipMember { held: true, ..wide }], lattice_cli_session::table::NARROW));
        let lines: Vec<Vec<&str>> = shown.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(lines[1][..2], ["n1", "alive"]);
        assert_eq!(lines[2][..5], ["n2", "suspect", clock_text(Duration::from_secs(2)).as_str(), "3", "Ready"]);
    }

    #[test]
    fn the_warning_about_a_contradicted_node_names_it_and_the_duration() {
        let member = |contradicted_for_ms| v1::GossipMember { node: "n2".into(), contradicted_for_ms, ..Default::default() };
        assert_eq!(contradiction_warning(&member(None)), None);
        let text = contradiction_warning(&member(Some(61_000))).unwrap();
        assert!(text.starts_with(&format!("n2: for {} other nodes ", clock_text(Duration::from_secs(61)))), "{text}");
    }

    #[test]
    fn a_change_is_one_line_without_a_tail() {
        let change = v1::GossipChange { at_ms: 0, node: "n2".into(), event: "refuted".into(), detail: String::new() };
        assert_eq!(line("T", &change), "T  refuted    n2\n");
    }
}
