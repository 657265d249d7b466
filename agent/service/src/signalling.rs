//! `AllocationService.Signal` and `Requeue`: what users do to running work besides ending it.

use super::Api;
use super::access::AccessTarget;
use super::groups::refuse_part;
use super::usage::runs;
use futures::stream::{self, StreamExt};
use lattice_api::v1;
use lattice_ledger::{AccessKind, Action};
use lattice_mesh::signal::{SignalOpen, WireSignalTarget};
use lattice_meshd::signalling;
use lattice_model::ReplicaOf;
use lattice_model::signal::WorkSignal;
use lattice_quorum_client::wire::Request as Ask;
use tonic::{Request, Status};
use uuid::Uuid;

/// How many nodes are asked at once.
const NODES_AT_ONCE: usize = 64;
/// The highest signal number.
const SIGNAL_MAX: u32 = 64;

/// The text of a signal in the audit log.
fn recorded(signal: u32, to: WireSignalTarget) -> String {
    let name = signal.to_string().parse::<WorkSignal>().map_or_else(|_| format!("signal {signal}"), |known| known.to_string());
    let whom = match to {
        WireSignalTarget::Ranks => "its ranks",
        WireSignalTarget::Launches => "all of its launches",
        WireSignalTarget::Script => "its script",
    };
    format!("{name} to {whom}")
}

pub(super) async fn signal(api: &Api, request: Request<v1::SignalRequest>) -> Result<v1::SignalResponse, Status> {
    let caller = api.caller(&request).await?;
    let v1::SignalRequest { key, signal, to } = request.into_inner();
    if !(1..=SIGNAL_MAX).contains(&signal) {
        return Err(Status::invalid_argument(format!("there is no signal {signal}: 1 to {SIGNAL_MAX} are possible")));
    }
    let whom = match to.as_str() {
        "" | "ranks" => WireSignalTarget::Ranks,
        "launches" => WireSignalTarget::Launches,
        "script" => WireSignalTarget::Script,
        _ => return Err(Status::invalid_argument(format!("to: {to:?} is neither ranks, launches nor script"))),
    };
    let allocation = api.allocation(&caller, &key).await?;
    api.check(&caller, &allocation).await?;
    runs(&allocation)?;
    let user = caller.vouched_for(&allocation.owner);
    if !caller.principal.owns(&allocation.owner) {
        let accessed = AccessTarget { allocation: allocation.id, owner: &allocation.owner, node: None };
        api.audit_unless_owner(Uuid::new_v4(), &caller.principal, AccessKind::WorkSignalled, &accessed, &recorded(signal, whom)).await?;
    }
    // The script runs on the head only.
    let nodes: Vec<_> = match whom {
        WireSignalTarget::Script => allocation.head().cloned().into_iter().collect(),
        WireSignalTarget::Ranks | WireSignalTarget::Launches => allocation.nodes().cloned().collect(),
    };
    let asked = nodes.into_iter().map(|node| {
        let open = SignalOpen {
            allocation: *allocation.id.0.as_bytes(),
            epoch: allocation.epoch.0,
            uid: user.uid,
            user: user.name.clone(),
            signal: i32::try_from(signal).unwrap_or_default(),
            to: whom,
        };
        async move {
            let sent = signalling::of_node(&api.context, &node, api.mesh_address(&node).await, open).await;
            let (processes, failed) = sent.map_or_else(|error| (0, error.to_string()), |processes| (processes, String::new()));
            v1::signal_response::Node { node: node.to_string(), processes, failed }
        }
    });
    let nodes: Vec<_> = stream::iter(asked).buffered(NODES_AT_ONCE).collect().await;
    Ok(v1::SignalResponse { id: allocation.id.to_string(), nodes })
}

pub(super) async fn requeue(api: &Api, request: Request<v1::RequeueRequest>) -> Result<v1::RequeueResponse, Status> {
    let caller = api.caller(&request).await?;
    let v1::RequeueRequest { key, reason } = request.into_inner();
    let allocation = api.allocation(&caller, &key).await?;
    api.check(&caller, &allocation).await?;
    let short = allocation.id.short();
    if let Some(ReplicaOf { service, number }) = allocation.replica.as_deref() {
        let text = format!(
            "allocation {short} is replica {number} of service {}: replicas are replaced and not requeued by hand\n\
             hint: `lattice cancel {short}` ends it, and another one takes its place",
            service.short()
        );
        return Err(Status::failed_precondition(text));
    }
    refuse_part(&allocation, "be requeued")?;
    if allocation.is_task_group() {
        let text = format!(
            "allocation {short} is a task group: its tasks run again by themselves if they lose their node\n\
             hint: `lattice retry {short}` submits those that failed once more"
        );
        return Err(Status::failed_precondition(text));
    }
    if allocation.is_scaled_service() {
        let text = format!(
            "allocation {short} is a scaled service: a replica that ends is replaced by itself\n\
             hint: `lattice cancel '{short}[N]'` ends replica N, and another one takes its place"
        );
        return Err(Status::failed_precondition(text));
    }
    if allocation.state.is_terminal() {
        let text = format!("allocation {short} is {}: what has ended is not requeued\nhint: submit it again", allocation.state);
        return Err(Status::failed_precondition(text));
    }
    if allocation.state.is_without_nodes() {
        let hint =
            if allocation.held { format!("`lattice resume {short}` has it wait for nodes") } else { format!("lattice explain {short}") };
        let text = format!("allocation {short} is {}: it is in the queue already\nhint: {hint}", allocation.state);
        return Err(Status::failed_precondition(text));
    }
    let ask = Ask::from(Action::RequeueAllocation { allocation: allocation.id, epoch: allocation.epoch, by: caller.principal, reason });
    api.done(&ask).await?;
    Ok(v1::RequeueResponse { id: allocation.id.to_string() })
}
