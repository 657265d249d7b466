//! Notices to the service manager (sd_notify(3)): ready once the node's work is adopted, a status
//! text, a watchdog signal from the driver, and stopping. Without a service manager nothing is
//! sent.

use lattice_agent_common::node_view::NodeView;
use lattice_agent_common::session_state::{self, SessionState};
use lattice_allocation::adoption::Adopted;
use sd_notify::NotifyState;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The shortest pause between two status lines.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "the service manager cannot be notified");
    }
}

/// Reports what the agent does before it is ready.
pub fn status(text: &str) {
    notify(&[NotifyState::Status(text)]);
}

/// Reports that the node's work is adopted.
pub fn ready(adopted: Adopted) {
    let text = format!("{} allocation(s) taken up again, {} of them lost, {} not answering", adopted.all, adopted.lost, adopted.open);
    notify(&[NotifyState::Ready, NotifyState::Status(&text)]);
}

/// Reports that the agent ends; its work continues.
pub fn stopping() {
    notify(&[NotifyState::Stopping, NotifyState::Status("stopping; the node's work goes on")]);
}

/// The interval at which the driver sends a watchdog signal, a third of the service manager's
/// timeout; `None`: the watchdog is off.
pub fn pulse() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|within| within / 3)
}

/// Sends the watchdog signal. Only the driver calls this, while it handles no event: a driver that
/// hangs sends none.
pub fn alive() {
    notify(&[NotifyState::Watchdog]);
}

/// Reports the node's status when it changes, at most once per `STATUS_INTERVAL`.
pub async fn follow(mut session: watch::Receiver<SessionState>, mut view: watch::Receiver<Arc<NodeView>>, stop: CancellationToken) {
    let mut reported = String::new();
    loop {
        let quorum = match &*session.borrow_and_update() {
            SessionState::Connected { member, relay_node } => session_state::describe(member, relay_node.as_ref()),
            SessionState::Lost { why, .. } => format!("no session with the quorum ({why})"),
        };
        let text = {
            let view = view.borrow_and_update();
            format!("{} allocation(s) here, {} report(s) unsent; {quorum}", view.locals.len(), view.reports_pending)
        };
        if text != reported {
            status(&text);
            reported = text;
        }
        let changed = async {
            tokio::select! {
                changed = session.changed() => changed.is_ok(),
                changed = view.changed() => changed.is_ok(),
            }
        };
        tokio::select! {
            () = stop.cancelled() => return,
            goes_on = changed => if !goes_on { return },
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(STATUS_INTERVAL) => {}
        }
    }
}
