//! Which nodes may register: `NodeService.Admit`, `WithdrawAdmission`, `Remove` and
//! `ListAdmissions`.

use super::Api;
use super::api::QUORUM_TIMEOUT;
use super::arguments::node_id;
use super::refusal::{status, unexpected};
use lattice_api::v1;
use lattice_ledger::Action;
use lattice_quorum_client::wire::{AdmittedNode, Answer, Request as Ask, WaitingNode};
use tonic::{Request, Status};

pub(super) async fn admit(api: &Api, request: Request<v1::AdmitNodeRequest>) -> Result<v1::AdmitNodeResponse, Status> {
    let operator = api.operator(&request).await?;
    let by = operator.name.clone();
    let v1::AdmitNodeRequest { node, reason } = request.into_inner();
    let ask = operator.asks(Action::Admit { node: node_id(&node)?, by, reason });
    api.done(&ask).await?;
    Ok(v1::AdmitNodeResponse {})
}

pub(super) async fn withdraw(api: &Api, request: Request<v1::WithdrawAdmissionRequest>) -> Result<v1::WithdrawAdmissionResponse, Status> {
    let operator = api.operator(&request).await?;
    let by = operator.name.clone();
    let ask = operator.asks(Action::WithdrawAdmission { node: node_id(&request.into_inner().node)?, by });
    api.done(&ask).await?;
    Ok(v1::WithdrawAdmissionResponse {})
}

pub(super) async fn remove(api: &Api, request: Request<v1::RemoveNodeRequest>) -> Result<v1::RemoveNodeResponse, Status> {
    let operator = api.operator(&request).await?;
    let by = operator.name.clone();
    let v1::RemoveNodeRequest { node, reason } = request.into_inner();
    let ask = operator.asks(Action::RemoveNode { node: node_id(&node)?, by, reason });
    api.done(&ask).await?;
    Ok(v1::RemoveNodeResponse {})
}

pub(super) async fn list(api: &Api, request: Request<v1::ListAdmissionsRequest>) -> Result<v1::ListAdmissionsResponse, Status> {
    api.operator(&request).await?;
    match api.quorum.call(&Ask::ListAdmissions, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
        Answer::Admissions(now) => Ok(v1::ListAdmissionsResponse {
            waiting: now.waiting.into_iter().map(waiting).collect(),
            admitted: now.admitted.into_iter().map(admitted).collect(),
        }),
        other => Err(unexpected(&other)),
    }
}

fn waiting(node: WaitingNode) -> v1::WaitingNode {
    v1::WaitingNode {
        node: node.node.to_string(),
        from: node.from.unwrap_or_default(),
        relay_node: node.relay_node.map(|through| through.to_string()).unwrap_or_default(),
        cores: node.size.cores,
        memory_bytes: node.size.memory_bytes,
        gpus: node.size.gpus,
        since_ms: node.since.0,
        last_attempt_ms: node.last_attempt.0,
    }
}

fn admitted(node: AdmittedNode) -> v1::AdmittedNode {
    v1::AdmittedNode { node: node.node.to_string(), by: node.by, at_ms: node.at.0, reason: node.reason }
}
