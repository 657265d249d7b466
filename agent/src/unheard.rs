//! How this node finds itself while the quorum does not hear it: journalled as it changes, and told in order once it is heard again,
//! for `lattice node history`. What its heartbeats say then is how it is then.
//!
//! Heartbeats are not kept: the next one says all that the last one said, and a late one extends no
//! lease. What is not in the next one is a change that came and went, so changes are kept: at most
//! 64, and one more that says that there were others.

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

/// How long the first session may take before a node that finds itself unwell when its agent starts counts as unheard: longer than that
/// session waits for the node's first looks.
const FIRST_SESSION: Duration = Duration::from_secs(15);

/// Keeps it until `stop`. `heard`: how the quorum last heard that it is; `waiting`: the reports that it does not have.
pub async fn run(
    context: Shared,
    mut session: watch::Receiver<SessionState>,
    heard: watch::Receiver<NodeHealth>,
    waiting: watch::Receiver<Arc<Vec<NodeReport>>>,
    stop: CancellationToken,
) {
    // Before its first checks are over nobody knows how it is.
    if stop.run_until_cancelled(context.machine.checks.made()).await.is_none() {
        return;
    }
    let mut checks = context.machine.checks.watch();
    let mut first = Some((now(), told(&context.machine.checks.word())));
    let is_connected = |state: &SessionState| matches!(state, SessionState::Connected { .. });
    let connected = async { drop(session.wait_for(is_connected).await) };
    // In time or not.
    if stop.run_until_cancelled(tokio::time::timeout(FIRST_SESSION, connected)).await.is_none() {
        return;
    }
    // What was kept last, while nobody hears it: also by the agent before this one.
    let mut kept = waiting.borrow().iter().rev().find_map(|report| {
        let ReportItem::Unheard { word, .. } = &report.item else { return None };
        Some(word.clone())
    });
    loop {
        let is_heard = is_connected(&session.borrow_and_update());
        let (at, word) = first.take().unwrap_or_else(|| (now(), told(&context.machine.checks.word())));
        if is_heard {
            kept = None;
        } else if kept.clone().unwrap_or_else(|| told(&heard.borrow())) != word {
            context.work.tell(Event::Unheard { at, word: word.clone() }).await;
            kept = Some(word);
        }
        tokio::select! {
            () = stop.cancelled() => return,
            Ok(()) = session.changed() => {}
            Ok(()) = checks.changed() => {}
        }
    }
}

fn told(health: &NodeHealth) -> String {
    match health.clone().bounded() {
        NodeHealth::Well => "well".to_owned(),
        NodeHealth::Unwell { why, .. } => format!("not well: {why}"),
        NodeHealth::Failed { why } => format!("failed: {why}"),
    }
}
