//! `lattice node drain`.

use super::confirm::require_confirmation;
use super::each::{apply_to_each, expand_lists};
use super::waits;
use crate::command::nodes;
use crate::failure::{Exit, Failure};
use crate::output::{Format, print};
use crate::retries::Retries;
use crate::session::{self, Session, answer};
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_syntax::args::node::Drain;
use lattice_cli_syntax::time;
use lattice_model::{HoldKind, NodeId, NodeState, hostlist};
use std::collections::BTreeMap;
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
    let waiting = DrainWait { session, reported: done.nodes.into_iter().map(|node| (node, String::new())).collect(), lifted: false };
    let lifted = waiting.wait(client).await?;
    Ok(if lifted { Exit::Refused as u8 } else { done.exit })
}

/// Nodes that are not Drained yet, with the last report on each.
struct DrainWait<'a> {
    session: &'a Session,
    reported: BTreeMap<NodeId, String>,
    lifted: bool,
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
            let reason = node.map(|node| node.reason.clone()).filter(|reason| !reason.is_empty());
            let reason = reason.map(|reason| format!(", {reason}")).unwrap_or_default();
            let left = waits::text(&found, self.session.table_size());
            let left = if left.is_empty() { String::new() } else { format!(" and waits for\n{}", left.trim_end()) };
            self.report(&id, format!("node {id} is {state}{reason}{left}"));
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
