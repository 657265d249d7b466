//! `lattice node cordon`, `quarantine` and what lifts them.

use crate::args::{LiftHold, SetHold};
use crate::failure::Failure;
use crate::output::{Format, print, print_json, print_names};
use crate::session::{Session, answer};
use lattice_api::v1;
use lattice_model::HoldKind;

pub async fn set(session: &Session, kind: HoldKind, args: SetHold) -> Result<(), Failure> {
    let client = session.connect().await?;
    for node in &args.nodes {
        let request = v1::SetHoldRequest { node: node.clone(), kind: kind.to_string(), reason: args.reason.clone() };
        answer(client.nodes().set_hold(request)).await?;
    }
    told(session, &args.nodes, &format!("is under {kind}; `{}` lifts it", kind.exit()))
}

pub async fn lift(session: &Session, kind: HoldKind, args: LiftHold) -> Result<(), Failure> {
    let client = session.connect().await?;
    for node in &args.nodes {
        answer(client.nodes().lift_hold(v1::LiftHoldRequest { node: node.clone(), kind: kind.to_string() })).await?;
    }
    told(session, &args.nodes, &format!("is under no {kind}"))
}

fn told(session: &Session, nodes: &[String], what: &str) -> Result<(), Failure> {
    match session.format() {
        Format::Table => nodes.iter().try_for_each(|node| print(&format!("Node {node} {what}\n"))),
        Format::Json => print_json(&nodes),
        Format::Name => print_names(nodes.iter().map(String::as_str)),
    }
}
