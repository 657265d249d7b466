//! Calls of an allocation's work about its checkpoints: it waits for a request to save itself,
//! reports progress, and answers.

use super::Api;
use super::api::Streamed;
use lattice_agent_checkpoint::{Answer, app_message};
use lattice_api::v1;
use lattice_api::v1::application_service_server::ApplicationService;
use lattice_model::{CheckpointMethod, CheckpointPolicy, DesiredShare};
use lattice_registry::RunState;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::sync::watch;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// The calling work, as it runs here.
struct Work {
    share: Arc<DesiredShare>,
    run_state: watch::Receiver<RunState>,
}

impl Api {
    /// Identifies the calling work.
    async fn work<T>(&self, request: &Request<T>) -> Result<Work, Status> {
        let caller = self.caller(request).await?;
        if self.context.machine.slice.is_none() {
            let why = "this machine has no usable cgroup v2 tree, so the allocation that calls is not known: submit with --checkpoint=shmem or signal";
            return Err(Status::failed_precondition(why));
        }
        let within = caller.within.ok_or_else(|| {
            Status::permission_denied(
                "this process belongs to no allocation on this node: only processes of an allocation may wait for checkpoints",
            )
        })?;
        let handle = self.context.work.allocations.get(within);
        // Its processes are alive: the agent has just started, or the work is about to end.
        let handle = handle.ok_or_else(|| {
            Status::unavailable(format!(
                "allocation {} is not yet known to this node's agent, which was restarted: call again in a moment",
                within.short()
            ))
        })?;
        self.check_work(&caller, within, &handle.share.owner, &handle.share.spec.tenant).await?;
        match handle.share.spec.checkpoint {
            Some(CheckpointPolicy { method: CheckpointMethod::Call, port: Some(port), .. }) => Err(Status::failed_precondition(format!(
                "allocation {} has --checkpoint-port {port}: the agent calls it at that port, and it answers there",
                within.short()
            ))),
            Some(policy) if policy.method == CheckpointMethod::Call => Ok(Work { share: handle.share, run_state: handle.run_state }),
            Some(policy) => Err(Status::failed_precondition(format!(
                "allocation {} has --checkpoint={}: only work with --checkpoint=grpc may wait for checkpoints here",
                within.short(),
                policy.method.name()
            ))),
            None => Err(Status::failed_precondition(format!("allocation {} was submitted without --checkpoint=grpc", within.short()))),
        }
    }

    /// Writes an answer to the disk, and only then acknowledges it.
    async fn answered(&self, work: Work, token: String, answer: Answer) -> Result<Response<v1::SaveAck>, Status> {
        let checkpoints = self.context.work.checkpoint.checkpoints.clone();
        // Waits here, not on a blocking thread: all allocations share those threads.
        let turn = checkpoints.callers().lock_answers((work.share.allocation, work.share.epoch)).await;
        let turn = turn.ok_or_else(|| Status::resource_exhausted("too many answers of this allocation are pending: send one at a time"))?;
        // In the background: an answer counts even if its caller disconnects meanwhile.
        let written = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            checkpoints.put_answer(&work.share, &token, &answer)
        });
        match written.await {
            Ok(Ok(())) => Ok(Response::new(v1::SaveAck {})),
            Ok(Err(why)) => Err(Status::failed_precondition(format!("the answer is refused: {why}"))),
            Err(broke) => Err(Status::internal(format!("the answer is refused: {broke}"))),
        }
    }
}

/// Waits until the allocation is being ended (`true`), or the agent stops (`false`).
async fn ending(run_state: &mut watch::Receiver<RunState>) -> bool {
    run_state.wait_for(|run_state| *run_state == RunState::Ending).await.is_ok()
}

#[tonic::async_trait]
impl ApplicationService for Api {
    type RegisterStream = Streamed<v1::SaveRequest>;

    async fn register(&self, request: Request<v1::RegisterRequest>) -> Result<Response<Self::RegisterStream>, Status> {
        let Work { share, mut run_state } = self.work(&request).await?;
        let over = format!("allocation {} is being ended: no checkpoint will be requested", share.allocation.short());
        if *run_state.borrow() == RunState::Ending {
            return Err(Status::failed_precondition(over));
        }
        let key = (share.allocation, share.epoch);
        let waiting = self.context.work.checkpoint.checkpoints.callers().wait(key);
        let mut waiting = waiting.ok_or_else(|| {
            Status::resource_exhausted("too many processes of this allocation wait for checkpoints: let one of them wait")
        })?;
        let directory = self.context.work.checkpoint.checkpoints.directory_of(share.allocation);
        let directory = directory.map_err(|error| Status::failed_precondition(error.to_string()))?;
        let (out, stream) = mpsc::channel(1);
        self.context.work.tasks.spawn(async move {
            loop {
                let asked = waiting.asked.borrow_and_update().clone();
                if let Some(asked) = asked {
                    let directory = directory.join(&asked.token).display().to_string();
                    let save_request = v1::SaveRequest { directory, token: asked.token, deadline_ms: asked.deadline_ms };
                    if out.send(Ok(save_request)).await.is_err() {
                        return;
                    }
                }
                tokio::select! {
                    () = out.closed() => return,
                    changed = waiting.asked.changed() => if changed.is_err() { return },
                    ended = ending(&mut run_state) => {
                        if ended {
                            let _ = out.send(Err(Status::failed_precondition(over))).await;
                        }
                        return;
                    }
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn progress(&self, request: Request<Streaming<v1::SaveProgress>>) -> Result<Response<v1::SaveAck>, Status> {
        let work = self.work(&request).await?;
        let key = (work.share.allocation, work.share.epoch);
        let mut messages = request.into_inner();
        while let Some(now) = messages.next().await.transpose()? {
            let progress = app_message::progress(&now).map_err(|error| Status::invalid_argument(error.to_string()))?;
            let counted = self.context.work.checkpoint.checkpoints.callers().progresses(key, &now.token, progress);
            counted.map_err(|error| Status::failed_precondition(error.to_string()))?;
        }
        Ok(Response::new(v1::SaveAck {}))
    }

    async fn defer(&self, request: Request<v1::SaveDeferral>) -> Result<Response<v1::SaveAck>, Status> {
        let work = self.work(&request).await?;
        let now = request.into_inner();
        self.answered(work, now.token.clone(), app_message::deferral(&now)).await
    }

    async fn fail(&self, request: Request<v1::SaveFailure>) -> Result<Response<v1::SaveAck>, Status> {
        let work = self.work(&request).await?;
        let now = request.into_inner();
        self.answered(work, now.token.clone(), app_message::failure(&now)).await
    }

    async fn done(&self, request: Request<v1::SaveDone>) -> Result<Response<v1::SaveAck>, Status> {
        let work = self.work(&request).await?;
        let now = request.into_inner();
        let token = now.token.clone();
        let answer = app_message::done(now).map_err(|error| Status::invalid_argument(error.to_string()))?;
        self.answered(work, token, answer).await
    }
}
