//! Traces of the cluster, for operators: lists the work in them (`AdminService.ListTracedWork`), and puts what a caller
//! has captured into the object store of this agent (`AdminService.StoreTrace`).

use super::Api;
use super::allocations::{LIST_MAX, next_page_token, place};
use super::refusal::unexpected;
use futures::{Stream, StreamExt};
use lattice_agent_common::clock::now;
use lattice_api::trace::TRACE_BYTES_MAX;
use lattice_api::v1;
use lattice_model::with_causes;
use lattice_output::log_store::{ClusterTraceUpload, LogStore, StoreError};
use lattice_quorum_client::wire::{Answer, ListFilter, Request as Ask, WantedLanes};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::{Request, Status, Streaming};

/// Allocations of a page if the caller does not say how many.
const PAGE_LEN_DEFAULT: u32 = 100;
/// Limits how many traces are stored at once: parts of each are in memory.
static STORED_AT_ONCE: Semaphore = Semaphore::const_new(2);
/// How long the caller may take for its next piece.
const PIECE_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) async fn list(api: &Api, request: Request<v1::ListTracedWorkRequest>) -> Result<v1::ListTracedWorkResponse, Status> {
    api.operator(&request).await?;
    let v1::ListTracedWorkRequest { limit, page_token } = request.into_inner();
    let limit = if limit == 0 { PAGE_LEN_DEFAULT } else { limit.min(LIST_MAX) };
    let before = place(&page_token)?;
    let filter = ListFilter { lanes: WantedLanes::All, ..ListFilter::default() };
    let question = Ask::ListAllocations { uid: None, states: Vec::new(), limit, before, filter };
    let (all, more) = match api.ask(question, false).await? {
        (Answer::AllocationPage { allocations, more }, _) => (allocations, more),
        (other, _) => return Err(unexpected(&other)),
    };
    Ok(v1::ListTracedWorkResponse {
        next_page_token: next_page_token(&all, more),
        // Task groups and scaled services get no nodes themselves: their lanes and replicas do.
        work: all.iter().filter(|a| !a.is_group()).map(lattice_api::trace::to_proto).collect(),
        checkpoint_bytes_per_second: api.cluster.borrow().checkpoint_bytes_per_second,
    })
}

/// The caller chooses neither the store nor the name: the agent writes with its own credentials, and
/// into a directory as root.
pub(super) async fn store(api: &Api, request: Request<Streaming<v1::StoreTraceRequest>>) -> Result<v1::StoreTraceResponse, Status> {
    api.operator(&request).await?;
    let Some(store) = api.context.work.spools.store().cloned() else {
        let text = "the agent that was asked has no object store (logs.store)\nhint: ask another one with --endpoint, or write a file";
        return Err(Status::failed_precondition(text));
    };
    let Ok(one_of_few) = STORED_AT_ONCE.try_acquire() else {
        let text = "this agent stores other traces at this moment\nhint: try again when they are stored, or write a file";
        return Err(Status::resource_exhausted(text));
    };
    let time: String = now().to_string().chars().filter(char::is_ascii_alphanumeric).collect();
    let name = format!("lattice-trace-{time}-{}.jsonl", api.context.setup.me);
    let pieces = request.into_inner();
    // A task of its own: if the caller is gone, what was uploaded must still be removed.
    let storing = api.tasks.spawn(async move {
        let stored = put(&store, &name, pieces).await;
        drop(one_of_few);
        stored
    });
    let url = storing.await.map_err(|error| Status::internal(error.to_string()))??;
    Ok(v1::StoreTraceResponse { url })
}

/// Puts the pieces, and returns the object's URL. If one of them does not come, nothing is stored.
async fn put(
    store: &LogStore,
    name: &str,
    pieces: impl Stream<Item = Result<v1::StoreTraceRequest, Status>> + Unpin,
) -> Result<String, Status> {
    let mut upload = store.begin_cluster_trace(name).await.map_err(|error| unavailable(&error))?;
    match put_pieces(&mut upload, pieces).await {
        Ok(()) => upload.finish().await.map_err(|error| unavailable(&error)),
        Err(status) => {
            if let Err(error) = upload.abort().await {
                tracing::warn!(name, error = %with_causes(&error), "a part of a trace that was not completed stays in the store");
            }
            Err(status)
        }
    }
}

async fn put_pieces(
    upload: &mut ClusterTraceUpload,
    mut pieces: impl Stream<Item = Result<v1::StoreTraceRequest, Status>> + Unpin,
) -> Result<(), Status> {
    let mut bytes = 0_u64;
    loop {
        let next = timeout(PIECE_TIMEOUT, pieces.next()).await;
        let late = |_| Status::deadline_exceeded(format!("the next piece of the trace did not come within {} s", PIECE_TIMEOUT.as_secs()));
        // A call that the client cancels ends like this.
        let Some(piece) = next.map_err(late)? else { return Err(Status::cancelled("the trace ended without its last piece")) };
        let v1::StoreTraceRequest { lines, is_last } = piece?;
        bytes = bytes.saturating_add(lines.len() as u64);
        if bytes > TRACE_BYTES_MAX {
            return Err(Status::invalid_argument("the trace is larger than 1 GiB\nhint: capture fewer days"));
        }
        upload.put(lines).await.map_err(|error| unavailable(&error))?;
        if is_last {
            break;
        }
    }
    if bytes == 0 { Err(Status::invalid_argument("the trace has no lines")) } else { Ok(()) }
}

fn unavailable(error: &StoreError) -> Status {
    Status::unavailable(with_causes(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_agent_common::config::logs::StoreSettings;
    use std::fs;
    use tonic::Code;

    fn piece(lines: &[u8], is_last: bool) -> Result<v1::StoreTraceRequest, Status> {
        Ok(v1::StoreTraceRequest { lines: lines.to_vec(), is_last })
    }

    #[tokio::test]
    async fn a_trace_is_stored_whole_or_not_at_all() {
        let dir = std::env::temp_dir().join(format!("lattice-store-trace-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let url = format!("file://{}", dir.display());
        let store = LogStore::open(&StoreSettings { url: url.clone(), ..StoreSettings::default() }).unwrap();
        let put = async |name: &str, pieces| put(&store, name, futures::stream::iter::<Vec<_>>(pieces)).await;
        for (name, end) in [("cut.jsonl", None), ("broken.jsonl", Some(Err(Status::cancelled("gone"))))] {
            let cut = put(name, std::iter::once(piece(b"{}\n", false)).chain(end).collect()).await.unwrap_err();
            assert_eq!(cut.code(), Code::Cancelled);
        }
        let empty = put("empty.jsonl", vec![piece(b"", true)]).await.unwrap_err();
        assert_eq!((empty.code(), empty.message()), (Code::InvalidArgument, "the trace has no lines"));
        let stored = put("whole.jsonl", vec![piece(b"{}\n{", false), piece(b"}\n", true)]).await.unwrap();
        assert_eq!(stored, format!("{url}/traces/whole.jsonl"));
        let names: Vec<_> = fs::read_dir(dir.join("traces")).unwrap().map(|file| file.unwrap().file_name()).collect();
        assert_eq!(names, ["whole.jsonl"]);
        assert_eq!(fs::read(dir.join("traces/whole.jsonl")).unwrap(), b"{}\n{}\n");
        fs::remove_dir_all(dir).unwrap();
    }
}
