//! How closely an allocation's work is measured, set by its owner or by operators.

use super::Api;
use super::groups::refuse_group;
use lattice_api::v1;
use lattice_ledger::Action;
use lattice_model::telemetry::{CLOSELY_MS, CLOSELY_MS_DEFAULT, NoMode};
use lattice_model::{AllocationState, NodeId, TelemetryMode, with_causes};
use lattice_output::log_store::{LogStore, Place, StoreError, TRACES_MAX};
use lattice_quorum_client::wire::Request as Ask;
use tokio::sync::mpsc;
use tonic::{Request, Status};
use uuid::Uuid;

/// How many pieces are queued for a slow caller, and the bytes of one: far below a message's limit.
const ITEMS_QUEUE_LEN: usize = 2;
const PIECE_BYTES: usize = 1 << 20;
/// How many unreadable items an error names.
const NAMED_MAX: usize = 8;

pub(super) async fn set(api: &Api, request: Request<v1::SetTelemetryRequest>) -> Result<v1::SetTelemetryResponse, Status> {
    let caller = api.caller(&request).await?;
    let v1::SetTelemetryRequest { key, id, mode, duration_ms } = request.into_inner();
    let id: Uuid = id.parse().map_err(|e: uuid::Error| Status::invalid_argument(format!("id: {e}")))?;
    let mode: TelemetryMode = mode.parse().map_err(|no_mode: NoMode| Status::invalid_argument(no_mode.to_string()))?;
    let duration_ms = match mode {
        TelemetryMode::Prod if duration_ms != 0 => {
            return Err(Status::invalid_argument("duration: mode prod is the default, and has no duration"));
        }
        TelemetryMode::Prod => 0,
        TelemetryMode::Debug if duration_ms == 0 => CLOSELY_MS_DEFAULT,
        TelemetryMode::Debug | TelemetryMode::Audit => duration_ms,
    };
    let (least, most) = CLOSELY_MS;
    if duration_ms != 0 && !(least..=most).contains(&duration_ms) {
        return Err(Status::invalid_argument(format!("duration: {duration_ms} ms; 1 s to 24 h are possible")));
    }
    let allocation = api.allocation(&caller, &key).await?;
    api.check(&caller, &allocation).await?;
    refuse_group(&allocation)?;
    let short = allocation.id.short();
    match (mode, allocation.state) {
        (TelemetryMode::Prod, _) | (_, AllocationState::Staging | AllocationState::Running) => {}
        (TelemetryMode::Debug | TelemetryMode::Audit, AllocationState::Pending | AllocationState::Suspended) => {
            let text = format!("allocation {short} is {}: nothing of it runs yet\nhint: lattice explain {short}", allocation.state);
            return Err(Status::failed_precondition(text));
        }
        (
            TelemetryMode::Debug | TelemetryMode::Audit,
            AllocationState::Completed | AllocationState::Failed | AllocationState::Cancelled,
        ) => {
            return Err(Status::failed_precondition(format!("allocation {short} is {}: nothing of it runs any more", allocation.state)));
        }
    }
    api.done(&Ask::from(Action::SetTelemetry { allocation: allocation.id, by: caller.principal, id, mode, duration_ms })).await?;
    let (tenant, project) = (allocation.spec.tenant.clone(), allocation.stored_project().to_owned());
    let place = Place { tenant, project, allocation: allocation.id, epoch: allocation.epoch }.of_traces();
    let store = api.context.work.spools.store().map(|store| store.url().to_owned()).unwrap_or_default();
    Ok(v1::SetTelemetryResponse { id: allocation.id.to_string(), mode: mode.to_string(), duration_ms, place, store })
}

type Pieces = mpsc::Sender<Result<v1::ReadTelemetryResponse, Status>>;

/// The records of debug mode in the store for an allocation, node by node.
pub(super) async fn read(
    api: &Api,
    request: Request<v1::ReadTelemetryRequest>,
) -> Result<mpsc::Receiver<Result<v1::ReadTelemetryResponse, Status>>, Status> {
    let caller = api.caller(&request).await?;
    let v1::ReadTelemetryRequest { key, node } = request.into_inner();
    let node = match node.as_str() {
        "" => None,
        named => Some(named.parse::<NodeId>().map_err(|e| Status::invalid_argument(format!("node: {e}")))?),
    };
    let allocation = api.allocation(&caller, &key).await?;
    api.check(&caller, &allocation).await?;
    refuse_group(&allocation)?;
    let Some(store) = api.context.work.spools.store().cloned() else {
        let text = "the agent that was asked has no logs.store, where raw measurements are\nhint: ask another one with --endpoint";
        return Err(Status::failed_precondition(text));
    };
    api.audit_measurements_read(&caller.principal, &allocation, "telemetry --read").await?;
    let held = api.watching(caller.principal.uid)?;
    let (tenant, project) = (allocation.spec.tenant.clone(), allocation.stored_project().to_owned());
    let place = Place { tenant, project, allocation: allocation.id, epoch: allocation.epoch };
    let (out, pieces) = mpsc::channel(ITEMS_QUEUE_LEN);
    api.context.work.tasks.spawn(async move {
        if let Err(status) = send(&store, &place, node, TRACES_MAX, &out).await {
            let _gone = out.send(Err(status)).await;
        }
        drop(held);
    });
    Ok(pieces)
}

/// Node by node, so that the list of files stays small. An unreadable file does not keep back the
/// rest: an error at the end names it.
async fn send(store: &LogStore, place: &Place, node: Option<NodeId>, most: usize, out: &Pieces) -> Result<(), Status> {
    let unavailable = |error: StoreError| Status::unavailable(with_causes(&error));
    let nodes = match node {
        Some(node) => vec![node.to_string()],
        None => store.traced(place).await.map_err(unavailable)?,
    };
    let mut unread = Unread::default();
    for node in nodes {
        let traces = match store.traces(place, &node, most).await {
            Ok(traces) => traces,
            Err(error @ StoreError::TooMany { .. }) => {
                unread.note(&error);
                continue;
            }
            Err(error) => return Err(unavailable(error)),
        };
        for trace in traces {
            let lines = match store.trace(&trace).await {
                Ok(lines) => lines,
                Err(error @ StoreError::Damaged { .. }) => {
                    unread.note(&error);
                    continue;
                }
                Err(error) => return Err(unavailable(error)),
            };
            for lines in lines.chunks(PIECE_BYTES) {
                let piece = v1::ReadTelemetryResponse { node: trace.node.clone(), lines: lines.to_vec() };
                if out.send(Ok(piece)).await.is_err() {
                    return Ok(());
                }
            }
        }
    }
    unread.into_result()
}

/// The files that could not be read.
#[derive(Default)]
struct Unread {
    count: usize,
    named: Vec<String>,
}

impl Unread {
    fn note(&mut self, error: &StoreError) {
        self.count += 1;
        if self.named.len() < NAMED_MAX {
            self.named.push(error.to_string());
        }
    }

    fn into_result(self) -> Result<(), Status> {
        if self.count == 0 {
            return Ok(());
        }
        let more = self.count - self.named.len();
        let more = if more == 0 { String::new() } else { format!("; and {more} more") };
        Err(Status::data_loss(format!("everything but this could be read: {}{more}", self.named.join("; "))))
    }
}

#[cfg(test)]
mod tests;
