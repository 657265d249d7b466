//! `lattice node confirm-dead`.

use crate::command::node::unanswered;
use crate::failure::Failure;
use crate::output::{Format, print, print_json, print_names};
use crate::session::{Session, answer};
use clap::Args;
use lattice_api::v1;
use lattice_model::{NodeId, hostlist};
use std::collections::BTreeSet;

/// Its arguments.
#[derive(Args)]
pub struct ConfirmDead {
    /// The nodes, as n7 or n[3-5,9]
    #[arg(required = true, value_name = "HOSTLIST")]
    pub nodes: Vec<String>,
    /// That they are powered off, or that whatever ran there has ended: work that still runs is begun a second time
    #[arg(long)]
    pub yes: bool,
    /// How that is known, for the audit log
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
}

/// Each node in turn; what was done before one is refused stays done.
pub async fn run(session: &Session, args: ConfirmDead) -> Result<(), Failure> {
    let nodes = expanded(&args.nodes)?;
    if !args.yes {
        let told = hostlist::fold(&nodes);
        return Err(Failure::usage(format!("work that still runs on {told} would run twice: give --yes to vouch that none does"))
            .hint("`lattice explain ID` says what work on a silent node waits for"));
    }
    let client = session.connect().await?;
    for node in &nodes {
        let request = v1::ConfirmDeadRequest { node: node.to_string(), reason: args.reason.clone() };
        answer(client.nodes().confirm_dead(request)).await.map_err(|failure| unanswered(node.as_str(), failure))?;
    }
    match session.format() {
        Format::Table => nodes.iter().try_for_each(|node| {
            print(&format!("Node {node} is Down: its work is ended, or waits to begin elsewhere; where the node comes back, it ends what is left first\n"))
        }),
        Format::Json => print_json(&nodes),
        Format::Name => print_names(nodes.iter().map(NodeId::as_str)),
    }
}

fn expanded(lists: &[String]) -> Result<BTreeSet<NodeId>, Failure> {
    let mut nodes = BTreeSet::new();
    for list in lists {
        nodes.extend(hostlist::expand(list).map_err(|error| Failure::usage(error.to_string()))?);
    }
    Ok(nodes)
}
