//! Commands that set and lift holds on nodes; also `boot` and `accept-drift`.

use super::confirm::require_confirmation;
use super::each::apply_to_each;
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::session::{self, Session, answer};
use lattice_cli_session::shown::short;
use lattice_cli_syntax::args::node::{Boot, Cordon, Disable, Fail, OnNodes, Uncordon, Wipe, WithReason};
use lattice_cli_syntax::time;
use lattice_model::{HoldKind, hostlist};

pub async fn cordon(session: &Session, args: Cordon) -> Result<u8, Failure> {
    let Cordon { with, until, for_long, maintenance } = args;
    let until = match (until, for_long) {
        (Some(until), _) => Some(time::parse_future("--until", &until, session::now())?),
        (None, Some(long)) => Some(time::parse_duration("--for", &long)?),
        (None, None) => None,
    };
    set(session, if maintenance { HoldKind::Maintenance } else { HoldKind::Cordon }, (&with.on, &with.reason), until).await
}

pub async fn uncordon(session: &Session, args: &Uncordon) -> Result<u8, Failure> {
    lift(session, if args.maintenance { HoldKind::Maintenance } else { HoldKind::Cordon }, &args.on).await
}

pub async fn quarantine(session: &Session, args: &WithReason) -> Result<u8, Failure> {
    set(session, HoldKind::Quarantine, (&args.on, &args.reason), None).await
}

pub async fn release(session: &Session, args: &OnNodes) -> Result<u8, Failure> {
    lift(session, HoldKind::Quarantine, args).await
}

pub async fn undrain(session: &Session, args: &OnNodes) -> Result<u8, Failure> {
    lift(session, HoldKind::Drain, args).await
}

pub async fn disable(session: &Session, args: &Disable) -> Result<u8, Failure> {
    let nodes = super::each::expand_lists(&args.with.on.nodes)?;
    require_confirmation(args.yes, &format!("{} will be Down, and its work ended", hostlist::fold(&nodes)))?;
    set(session, HoldKind::Disable, (&args.with.on, &args.with.reason), None).await
}

pub async fn enable(session: &Session, args: &OnNodes) -> Result<u8, Failure> {
    lift(session, HoldKind::Disable, args).await
}

pub async fn fail(session: &Session, args: &Fail) -> Result<u8, Failure> {
    let Fail { with, off, yes } = args;
    if *off {
        let nodes = super::each::expand_lists(&with.on.nodes)?;
        require_confirmation(*yes, &format!("{} will be Down, and its work starts elsewhere", hostlist::fold(&nodes)))?;
    }
    let client = session.connect().await?;
    let act = async |node: String| {
        set_one(&client, HoldKind::Failure, node.clone(), &with.reason, [None, None]).await?;
        if *off {
            let half = format!("node {node} is Down, but not recorded as powered off; repeat the command");
            let request = v1::ConfirmDeadRequest { node, reason: with.reason.clone() };
            answer(client.nodes().confirm_dead(request)).await.map_err(|failure| failure.about(&half))?;
        }
        Ok(())
    };
    let work = if *off { ", and its work is ended there" } else { "" };
    let success_text = |node: &_| format!("Node {node} is Down{work}; `{} {node}` takes it back", HoldKind::Failure.exit());
    apply_to_each(session, &with.on.nodes, act, success_text).await.map(|done| done.exit)
}

pub async fn repaired(session: &Session, args: &OnNodes) -> Result<u8, Failure> {
    let client = session.connect().await?;
    let act = async |node| {
        answer(client.nodes().lift_hold(v1::LiftHoldRequest { node, kind: HoldKind::Failure.to_string() })).await?;
        Ok(())
    };
    let success_text = |node: &_| {
        format!("Node {node} is repaired; if one of its own checks still reports a failure, the hold returns: `lattice node status {node}`")
    };
    apply_to_each(session, &args.nodes, act, success_text).await.map(|done| done.exit)
}

pub async fn boot(session: &Session, args: &Boot) -> Result<u8, Failure> {
    let client = session.connect().await?;
    let act = async |node: String| {
        answer(client.nodes().boot(v1::BootNodeRequest { node, reason: args.reason.clone() })).await?;
        Ok(())
    };
    let success_text = |node: &_| format!("Node {node} is Booting; it is back when it registers under another boot id");
    apply_to_each(session, &args.on.nodes, act, success_text).await.map(|done| done.exit)
}

pub async fn wipe(session: &Session, args: &Wipe) -> Result<u8, Failure> {
    let nodes = super::each::expand_lists(&args.with.on.nodes)?;
    require_confirmation(args.yes, &format!("{} will be wiped when nothing runs there any more", hostlist::fold(&nodes)))?;
    let client = session.connect().await?;
    let act = async |node: String| {
        answer(client.nodes().wipe(v1::WipeRequest { node, reason: args.with.reason.clone(), force: args.force })).await?;
        Ok(())
    };
    let success_text = |node: &_| format!("Node {node} gets no work until it is wiped; `lattice node status {node}` shows the progress");
    apply_to_each(session, &args.with.on.nodes, act, success_text).await.map(|done| done.exit)
}

pub async fn unwipe(session: &Session, args: &OnNodes) -> Result<u8, Failure> {
    lift(session, HoldKind::Wipe, args).await
}

pub async fn accept_drift(session: &Session, args: &WithReason) -> Result<u8, Failure> {
    let client = session.connect().await?;
    let act = async |node: String| {
        answer(client.nodes().accept_drift(v1::AcceptDriftRequest { node, reason: args.reason.clone() })).await?;
        Ok(())
    };
    apply_to_each(session, &args.on.nodes, act, |node| {
        format!("Node {node} is as expected; holds because of its drift stay until they are lifted")
    })
    .await
    .map(|done| done.exit)
}

/// Requests one hold on one node.
pub async fn set_one(
    client: &Client,
    kind: HoldKind,
    node: String,
    reason: &str,
    [until, deadline]: [Option<v1::HoldTime>; 2],
) -> Result<(), Failure> {
    let request = v1::SetHoldRequest { node, kind: kind.to_string(), reason: reason.to_owned(), until, deadline, urgent_id: String::new() };
    answer(client.nodes().set_hold(request)).await?;
    Ok(())
}

async fn set(session: &Session, kind: HoldKind, (on, reason): (&OnNodes, &str), until: Option<v1::HoldTime>) -> Result<u8, Failure> {
    let client = session.connect().await?;
    let act = async |node| set_one(&client, kind, node, reason, [until, None]).await;
    let ends = if until.is_some() { ", or its time" } else { "" };
    let success_text = |node: &_| format!("Node {node} is under {kind}; `{} {node}`{ends} lifts it", kind.exit());
    apply_to_each(session, &on.nodes, act, success_text).await.map(|done| done.exit)
}

async fn lift(session: &Session, kind: HoldKind, args: &OnNodes) -> Result<u8, Failure> {
    let client = session.connect().await?;
    let act = async |node: String| {
        let lifted = answer(client.nodes().lift_hold(v1::LiftHoldRequest { node: node.clone(), kind: kind.to_string() })).await?;
        let asked: Vec<&str> = lifted.preempting.iter().map(|id| short(id)).collect();
        if !asked.is_empty() {
            let ids = asked.join(", ");
            session.note(&format!(
                "the urgent drain of node {node} has already asked {ids}: each still saves its state and gives its nodes back"
            ));
        }
        Ok(())
    };
    apply_to_each(session, &args.nodes, act, |node| format!("The {kind} of node {node} is lifted")).await.map(|done| done.exit)
}
