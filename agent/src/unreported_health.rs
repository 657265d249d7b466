//! Records changes of this node's health while the quorum does not receive its heartbeats. Each
//! change is journalled at once and reported in order after the reconnect, for `lattice node
//! history`. The present health is in the heartbeats.
//!
//! Heartbeats are not stored: each contains the whole present state, and a late one extends no
//! lease. But the next heartbeat does not show a change that was undone meanwhile. So changes are
//! stored: at most 64, and one more entry which says that there were others.

use lattice_agent_common::clock::now;
use lattice_agent_common::session_state::SessionState;
use lattice_meshd::context::Shared;
use lattice_model::{NodeReport, ReportItem};
use lattice_node::Event;
use lattice_quorum_client::wire::NodeHealth;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How long the first session may take. If a node is unwell when its agent starts and the session
/// takes longer, that counts as a change while disconnected. Longer than the session waits for the
/// node's first checks.
const FIRST_SESSION: Duration = Duration::from_secs(15);

/// Records changes until `stop`. `received_health`: the node's health as the quorum last received
/// it; `waiting`: the unacknowledged reports.
pub async fn run(
    context: Shared,
    mut session: watch::Receiver<SessionState>,
    received_health: watch::Receiver<NodeHealth>,
    waiting: watch::Receiver<Arc<Vec<NodeReport>>>,
    stop: CancellationToken,
) {
    // Before the first checks are over, the node's health is unknown.
    if stop.run_until_cancelled(context.machine.checks.wait_for_first_look()).await.is_none() {
        return;
    }
    let mut checks = context.machine.checks.watch();
    let mut first = Some((now(), describe(&context.machine.checks.report())));
    let is_connected = |state: &SessionState| matches!(state, SessionState::Connected { .. });
    let connected = async { drop(session.wait_for(is_connected).await) };
    // Continues whether the session connected in time or not.
    if stop.run_until_cancelled(tokio::time::timeout(FIRST_SESSION, connected)).await.is_none() {
        return;
    }
    // The last recorded health since the connection was lost, perhaps by the agent's previous run.
    let mut kept = waiting.borrow().iter().rev().find_map(|report| {
        let ReportItem::UnreportedHealth { health, .. } = &report.item else { return None };
        Some(health.clone())
    });
    loop {
        let is_online = is_connected(&session.borrow_and_update());
        let (at, health) = first.take().unwrap_or_else(|| (now(), describe(&context.machine.checks.report())));
        if is_online {
            kept = None;
        } else if kept.clone().unwrap_or_else(|| describe(&received_health.borrow())) != health {
            context.work.driver.send(Event::UnreportedHealth { at, text: health.clone() }).await;
            kept = Some(health);
        }
        tokio::select! {
            () = stop.cancelled() => return,
            Ok(()) = session.changed() => {}
            Ok(()) = checks.changed() => {}
        }
    }
}

fn describe(health: &NodeHealth) -> String {
    match health.clone().bounded() {
        NodeHealth::Well => "well".to_owned(),
        NodeHealth::Unwell { why, .. } => format!("not well: {why}"),
        NodeHealth::Failed { why } => format!("failed: {why}"),
    }
}
