//! `lattice node drain`.

use super::confirm::require_confirmation;
use super::each::{apply_to_each, expand_lists};
use super::waits;
use crate::command::nodes;
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::output::{Format, print};
use lattice_cli_session::progress::{Progress, bar};
use lattice_cli_session::retries::Retries;
use lattice_cli_session::session::{self, Session, answer};
use lattice_cli_syntax::args::node::Drain;
use lattice_cli_syntax::time;
use lattice_model::count::counted;
use lattice_model::{HoldKind, NodeId, NodeState, hostlist};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use uuid::Uuid;

/// Interval of the checks which nodes are Drained.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

pub async fn run(session: &Session, args: Drain) -> Result<u8, Failure> {
    let deadline = args.deadline.map(|text| time::parse_future_or_duration("--deadline", &text, session::now())).transpose()?;
    if args.urgent {
        let nodes = expand_lists(&args.with.on.nodes)?;
        require_confirmation(
            args.yes,
            &format!("work on {} that can save its state does so now and loses its nodes", hostlist::fold(&nodes)),
        )?;
    }
    let client = session.connect().await?;
    // One id for all nodes, so that an allocation on several of them is asked only once.
    let urgent_id = if args.urgent { Uuid::new_v4().to_string() } else { String::new() };
    let act = async |node: String| {
        let (kind, reason, urgent_id) = (HoldKind::Drain.to_string(), args.with.reason.clone(), urgent_id.clone());
        answer(client.nodes().set_hold(v1::SetHoldRequest { node, kind, reason, until: None, deadline, urgent_id })).await?;
        Ok(())
    };
    let success_text = |node: &NodeId| {
        format!("Node {node} drains; `{} {node}` cancels that, or takes the node back when it is Drained", HoldKind::Drain.exit())
    };
    let done = apply_to_each(session, &args.with.on.nodes, act, success_text).await?;
    if !args.wait || done.nodes.is_empty() {
        return Ok(done.exit);
    }
    let reported = done.nodes.into_iter().map(|node| (node, String::new())).collect();
    let waiting = DrainWait { session, reported, lifted: false, seen: BTreeSet::new(), progress: Progress::new(session) };
    let lifted = waiting.wait(client).await?;
    Ok(if lifted { Exit::Refused as u8 } else { done.exit })
}

/// Nodes that are not Drained yet, with the last report on each.
struct DrainWait<'a> {
    session: &'a Session,
    reported: BTreeMap<NodeId, String>,
    lifted: bool,
    /// The allocations that were on these nodes at any time of the wait.
    seen: BTreeSet<String>,
    progress: Progress,
}

impl DrainWait<'_> {
    /// Waits for all of them, over broken connections; returns whether a drain was lifted meanwhile.
    async fn wait(mut self, mut client: Client) -> Result<bool, Failure> {
        let retries = Retries::default();
        loop {
            match self.check(&client).await {
                Ok(()) if self.reported.is_empty() => return Ok(self.lifted),
                Ok(()) => {
                    retries.record_progress();
                    tokio::time::sleep(CHECK_INTERVAL).await;
                }
                Err(failure) if retries.should_retry(&failure) => client = retries.reconnect(self.session, failure).await?,
                Err(failure) => return Err(failure),
            }
        }
    }

    async fn check(&mut self, client: &Client) -> Result<(), Failure> {
        let nodes: BTreeMap<String, v1::Node> = nodes::list(client).await?.into_iter().map(|node| (node.id.clone(), node)).collect();
        let waiting: Vec<NodeId> = self.reported.keys().cloned().collect();
        let (mut left, mut are_all_known) = (BTreeSet::new(), true);
        for id in waiting {
            let node = nodes.get(id.as_str());
            let drains = node.is_some_and(|node| nodes::is_under(node, HoldKind::Drain));
            if !drains {
                self.reported.remove(&id);
                self.lifted = true;
                Failure::new(Exit::Refused, format!("the drain of node {id} was lifted before it was Drained")).report();
                continue;
            }
            let state = node.map(|node| node.state.clone()).unwrap_or_default();
            if state == NodeState::Drained.to_string() {
                self.reported.remove(&id);
                if self.session.format() == Format::Table {
                    print(&format!("Node {id} is Drained\n"))?;
                }
                continue;
            }
            let found = answer(client.nodes().waits(v1::NodeWaitsRequest { node: id.to_string() })).await?;
            left.extend(found.waits.iter().map(|wait| wait.allocation.clone()));
            are_all_known &= found.more == 0;
            let reason = node.map(|node| node.reason.clone()).filter(|reason| !reason.is_empty());
            let reason = reason.map(|reason| format!(", {reason}")).unwrap_or_default();
            let work = waits::text(&found, self.session.table_size());
            let work = if work.is_empty() { String::new() } else { format!(" and waits for\n{}", work.trim_end()) };
            self.report(&id, format!("node {id} is {state}{reason}{work}"));
        }
        self.seen.extend(left.iter().cloned());
        if !self.reported.is_empty() {
            let ended = self.seen.len().saturating_sub(left.len());
            self.progress.show(&progress_text(ended, self.seen.len(), are_all_known, self.reported.len()));
        }
        Ok(())
    }

    /// Reports the text if it is new.
    fn report(&mut self, id: &NodeId, text: String) {
        if let Some(reported) = self.reported.get_mut(id).filter(|reported| **reported != text) {
            self.session.note(&text);
            *reported = text;
        }
    }
}

/// How far the wait is. An answer may leave allocations out: then their number is not known.
fn progress_text(ended: usize, seen: usize, are_all_known: bool, nodes: usize) -> String {
    let nodes = format!("waiting for {}", counted(nodes, "node"));
    match (are_all_known, u64::try_from(ended), u64::try_from(seen)) {
        (true, Ok(ended), Ok(seen @ 1..)) => format!("{nodes}: {}", bar(ended, seen, "allocations ended")),
        _ => nodes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_shows_how_much_of_its_work_has_ended() {
        assert_eq!(progress_text(1, 4, true, 2), "waiting for 2 nodes: [#####               ] 25 %, 1 of 4 allocations ended");
        assert_eq!(progress_text(1, 4, false, 1), "waiting for 1 node");
        assert_eq!(progress_text(0, 0, true, 1), "waiting for 1 node");
    }
}
