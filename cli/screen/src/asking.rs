//! Carries out the user's requests, one after the other.

use super::events::{Change, Request};
use super::refreshing::failure_line;
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::last_stderr::LastStderr;
use lattice_cli_session::output::TableSize;
use lattice_cli_session::session::{Session, answer, now};
use lattice_cli_session::shown::{allocation_block, attempts_text, group_text, service_text, short};
use lattice_model::{AllocationState, HoldKind};
use std::convert::Infallible;
use tokio::sync::mpsc;

/// The text of an explanation, as `lattice explain` shows it.
pub type Explanation = fn(&v1::Allocation, &v1::ExplainResponse) -> String;

/// Answers requests for ever.
pub async fn answer_requests(
    session: &Session,
    mut client: Option<Client>,
    explanation: Explanation,
    mut requests: mpsc::Receiver<Request>,
    to: mpsc::Sender<Change>,
) -> Infallible {
    loop {
        let Some(request) = requests.recv().await else {
            // The screen ends, and this with it.
            std::future::pending::<()>().await;
            continue;
        };
        let change = match Box::pin(carry_out(session, &mut client, explanation, &request)).await {
            Ok(change) => change,
            Err(failure) => {
                // The connection may be broken: the next request makes a new one.
                client = None;
                Change::Done { request, result: Err(failure_line(&failure)) }
            }
        };
        // This fails only if the screen is gone, and then this task ends too.
        let _ = to.send(change).await;
    }
}

async fn carry_out(session: &Session, client: &mut Option<Client>, explanation: Explanation, request: &Request) -> Result<Change, Failure> {
    let client = match client {
        Some(client) => client.clone(),
        None => client.insert(session.connect().await?).clone(),
    };
    let done = |text: String| Change::Done { request: request.clone(), result: Ok(text) };
    Ok(match request {
        Request::Explain(id) => {
            let explained = answer(client.allocations().explain(v1::ExplainRequest { key: id.clone() })).await?;
            let text = explanation(&explained.allocation.clone().unwrap_or_default(), &explained);
            Change::Answered { request: request.clone(), title: format!("Explanation of {}", short(id)), text }
        }
        Request::Details(id) => {
            let a = answer(client.allocations().get(v1::GetAllocationRequest { key: id.clone(), stale: false })).await?;
            let text = allocation_block(&a, &LastStderr::default(), now())
                + &group_text(&a)
                + &service_text(&a)
                + &attempts_text(&a, TableSize::default());
            Change::Answered { request: request.clone(), title: format!("Allocation {}", short(id)), text }
        }
        Request::Cancel(id) => {
            let cancelled = answer(client.allocations().cancel(v1::CancelRequest { key: id.clone() })).await?;
            if cancelled.state == AllocationState::Cancelled.to_string() {
                done(format!("Allocation {} is cancelled", short(id)))
            } else {
                done(format!("Allocation {} had ended before: it is {}", short(id), cancelled.state))
            }
        }
        Request::Drain { node, reason } => {
            let (kind, reason) = (HoldKind::Drain.to_string(), reason.clone());
            let request = v1::SetHoldRequest { node: node.clone(), kind, reason, ..Default::default() };
            answer(client.nodes().set_hold(request)).await?;
            done(format!("Node {node} drains; u lifts that"))
        }
        Request::Undrain(node) => {
            let request = v1::LiftHoldRequest { node: node.clone(), kind: HoldKind::Drain.to_string() };
            answer(client.nodes().lift_hold(request)).await?;
            done(format!("Node {node} is not drained any more"))
        }
    })
}
