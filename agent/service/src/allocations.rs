//! `AllocationService`: submissions and their life cycle. Output and launches have files of their
//! own.

use super::api::{QUORUM_TIMEOUT, Streamed};
use super::arguments::{allocation_id, node_id};
use super::isolation;
use super::networks::unenforced;
use super::refusal::{status, unexpected};
use super::servable::servable;
use super::status_message::StatusMessages;
use super::submitted::Submitting;
use super::watching::AllocationWatch;
use super::{
    Api, attaching, checkpoints, comparing, dependencies, diagnosing, estimating, explaining, images, launching, mail, monitoring,
    niceness, output, preempting, scaling, signalling, steps, tasks, telemetry, updating, usage,
};
use lattice_api::v1;
use lattice_api::v1::allocation_service_server::AllocationService;
use lattice_ledger::Action;
use lattice_model::{Allocation, AllocationId, AllocationSpec, AllocationState, Incarnation, Principal, Timestamp};
use lattice_node::Event;
use lattice_placing::ClaimResult;
use lattice_quorum_client::CallError;
use lattice_quorum_client::wire::{Answer, ListCursor, ListFilter, Refusal, Request as Ask, WantedLanes};
use std::collections::BTreeSet;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

/// How many allocations one answer lists at most.
const ALLOCATIONS_MAX: u32 = 5000;
/// How many items other answers list at most.
pub(super) const LIST_MAX: u32 = 1000;

#[tonic::async_trait]
impl AllocationService for Api {
    async fn submit(&self, request: Request<v1::SubmitRequest>) -> Result<Response<v1::SubmitResponse>, Status> {
        let owner = self.user(&request).await?;
        self.may_own_work(&owner)?;
        let login_tenants = self.caller(&request).await?.login_tenants();
        let depends = request.get_ref().spec.as_ref().is_some_and(|spec| !spec.depends_on.is_empty());
        let viewer = if depends { Some(self.viewer(&self.caller(&request).await?).await) } else { None };
        let tenant = request.get_ref().spec.as_ref().map(|spec| spec.tenant.clone()).filter(|tenant| !tenant.is_empty());
        if let Some(tenant) = tenant {
            self.check_tenants(&self.caller(&request).await?, [tenant].into()).await?;
        }
        let nice = request.get_ref().spec.as_ref().map_or(0, |spec| spec.nice);
        if nice < 0 {
            niceness::check(self, &self.caller(&request).await?, nice).await?;
        }
        let request = request.into_inner();
        let id = allocation_id(&request.id)?;
        let submitting = self.submitted.begin(id);
        let mut wire = request.spec.ok_or_else(|| Status::invalid_argument("a specification is needed"))?;
        let image = lattice_api::spec::image_request(&wire).map_err(|e| lattice_api::spec::status(&e))?;
        if let Some(image) = image {
            let sha256 = images::digest(self, &owner, image).await?;
            if let Some(environment) = &mut wire.environment {
                environment.sha256 = sha256;
            }
        }
        if let Some(viewer) = viewer {
            dependencies::look_up(self, &viewer, &mut wire.depends_on).await?;
        }
        let spec = lattice_api::spec::to_model(&wire).map_err(|e| lattice_api::spec::status(&e))?;
        let fits = match self.context.work.directory.knows_all() {
            true => servable(&self.cluster.borrow(), &spec, request.wait_for_nodes),
            // The quorum refuses the submissions of such an agent.
            false => Ok(String::new()),
        };
        let warning = match fits {
            Ok(warning) => warning,
            Err(misfit) => {
                // A repetition is answered as before, whatever has become of the nodes since.
                let is_repeated = !request.dry_run && self.allocation_of_id(id).await.is_ok();
                if !is_repeated {
                    return Err(misfit);
                }
                String::new()
            }
        };
        let warning = mail::joined([warning, mail::warning(self, &spec).await?]);
        if request.dry_run {
            let vouched = login_tenants.clone();
            self.done(&Ask::CheckSubmission { spec: Box::new(spec.clone()), owner: owner.clone(), login_tenants: vouched }).await?;
            let expected = estimating::expected_start(self, id, spec, owner).await?;
            return Ok(Response::new(v1::SubmitResponse { id: String::new(), warning, checked: Some(wire), number: 0, expected }));
        }
        let number = self.commit_submission(submitting, id, spec, (owner, login_tenants)).await?;
        Ok(Response::new(v1::SubmitResponse { id: id.to_string(), warning, checked: None, number, expected: None }))
    }

    async fn get(&self, request: Request<v1::GetAllocationRequest>) -> Result<Response<v1::Allocation>, Status> {
        let caller = self.caller(&request).await?;
        let v1::GetAllocationRequest { key, stale } = request.into_inner();
        let (allocation, age_ms) = self.find_allocation(&caller, &key, stale).await?;
        self.check(&caller, &allocation).await?;
        let cluster = self.context.work.directory.with_nodes_of(&allocation).await;
        let status_messages = StatusMessages::of(&cluster, self, std::iter::once(&allocation)).await?;
        let mut shown = v1::Allocation { age_ms, ..status_messages.shown(&allocation) };
        lattice_api::allocation::add_details(&mut shown, &allocation);
        dependencies::add_states(&mut shown.dependencies, &cluster);
        shown.network_note = unenforced(&allocation, &cluster.nodes);
        shown.isolation_note = isolation::note(&allocation, &cluster.nodes);
        if let Some(why) = status_messages.obstacle(&allocation).filter(|_| allocation.waits()) {
            shown.reason = why.to_owned();
        }
        let is_queued = matches!(allocation.state, AllocationState::Pending | AllocationState::Suspended) && !allocation.held;
        if let Some(others) = allocation.awaits().filter(|_| is_queued) {
            shown.status_message = others;
        }
        if allocation.is_task_group() {
            tasks::add_counts(self, &allocation, &mut shown, stale).await?;
        }
        Ok(Response::new(shown))
    }

    async fn list(&self, request: Request<v1::ListAllocationsRequest>) -> Result<Response<v1::ListAllocationsResponse>, Status> {
        let viewer = self.viewer_if(&self.caller(&request).await?, request.get_ref().all_users).await;
        let user = self.user(&request).await?;
        let request = request.into_inner();
        let states: Result<Vec<AllocationState>, _> = request.states.iter().map(|s| lattice_api::allocation::state_from_name(s)).collect();
        let states = states.map_err(|e| Status::invalid_argument(e.to_string()))?;
        // A filter must not reveal what is hidden either.
        let by_hidden =
            [&request.user, &request.name, &request.tenant, &request.project, &request.lanes_of].iter().any(|text| !text.is_empty());
        let by_hidden = by_hidden || !request.tags.is_empty();
        let may_filter = viewer.sees_tenant(&request.tenant) || !by_hidden;
        let uid = if request.all_users && may_filter { None } else { Some(user.uid) };
        let limit = if request.limit == 0 { 100 } else { request.limit.min(ALLOCATIONS_MAX) };
        let before = place(&request.page_token)?;
        let given = |text: String| Some(text).filter(|text| !text.is_empty());
        let node = given(request.node).map(|node| node_id(&node)).transpose()?;
        let lanes = match given(request.lanes_of) {
            Some(group) => WantedLanes::Of(allocation_id(&group)?),
            // A node has lanes and replicas, and not their groups and services.
            None if node.is_some() => WantedLanes::All,
            None => WantedLanes::LeftOut,
        };
        let filter = ListFilter {
            user: given(request.user),
            name: given(request.name),
            vcluster: given(request.vcluster),
            tenant: given(request.tenant),
            project: given(request.project),
            node,
            tags: request.tags.into_iter().collect(),
            lanes,
        };
        let question = Ask::ListAllocations { uid, states, limit, before, filter };
        let (all, more, age_ms) = match self.ask(question, request.stale).await? {
            (Answer::AllocationPage { allocations, more }, age_ms) => (allocations, more, age_ms),
            (other, _) => return Err(unexpected(&other)),
        };
        let next_page_token = next_page_token(&all, more);
        let cluster = self.cluster.borrow().clone();
        let status_messages = match request.without_outlook {
            true => StatusMessages::without_outlook(&cluster),
            false => StatusMessages::of(&cluster, self, all.iter()).await?,
        };
        // A tenant's admin does not see the work of a former tenant of that name.
        let shown = all.iter().filter(|a| !by_hidden || viewer.sees_allocation(a));
        let allocations = shown.map(|a| viewer.allocation(&a.owner, viewer.tenant_of(a), status_messages.shown(a))).collect();
        Ok(Response::new(v1::ListAllocationsResponse { allocations, next_page_token, age_ms }))
    }

    type WatchStream = Streamed<v1::Allocation>;

    async fn watch(&self, request: Request<v1::WatchAllocationRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let caller = self.caller(&request).await?;
        let request = request.into_inner();
        let allocation = self.followed(&caller, &request.key, request.being_submitted).await?;
        self.check(&caller, &allocation).await?;
        let (out, stream) = mpsc::channel(4);
        let asks_head = caller.vouched_for(&allocation.owner);
        let api = self.clone();
        self.context.work.tasks.spawn(async move {
            let mut watch = AllocationWatch::new(api, allocation, request.entry.then_some(asks_head));
            let mut sent = None;
            loop {
                let now = lattice_api::allocation::to_proto(watch.now());
                let now = v1::Allocation { entry_exit_code: watch.entry().exit_code(), ..now };
                // Most changes of wide work are of share phases, which the caller does not see.
                if sent.as_ref() != Some(&now) {
                    if out.send(Ok(now.clone())).await.is_err() {
                        return;
                    }
                    sent = Some(now);
                }
                if watch.now().state.is_terminal() {
                    return;
                }
                tokio::select! {
                    () = out.closed() => return,
                    () = watch.changed() => {}
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn cancel(&self, request: Request<v1::CancelRequest>) -> Result<Response<v1::CancelResponse>, Status> {
        let caller = self.caller(&request).await?;
        let (allocation, task) = self.allocation_or_task(&caller, &request.into_inner().key).await?;
        self.check(&caller, &allocation).await?;
        if let Some(index) = task {
            return tasks::cancel_one(self, caller, &allocation, index).await.map(Response::new);
        }
        let ask = Ask::from(Action::Cancel { id: allocation.id, by: caller.principal });
        match self.quorum.call(&ask, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
            Answer::Done { .. } => {
                let state = if allocation.state.is_terminal() { allocation.state } else { AllocationState::Cancelled };
                Ok(Response::new(v1::CancelResponse { id: allocation.id.to_string(), state: state.to_string() }))
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn get_tasks(&self, request: Request<v1::GetTasksRequest>) -> Result<Response<v1::GetTasksResponse>, Status> {
        tasks::get(self, request).await.map(Response::new)
    }

    async fn list_steps(&self, request: Request<v1::ListStepsRequest>) -> Result<Response<v1::ListStepsResponse>, Status> {
        steps::list(self, request).await.map(Response::new)
    }

    async fn cancel_tasks(&self, request: Request<v1::CancelTasksRequest>) -> Result<Response<v1::CancelTasksResponse>, Status> {
        tasks::cancel(self, request).await.map(Response::new)
    }

    async fn retry_tasks(&self, request: Request<v1::RetryTasksRequest>) -> Result<Response<v1::SubmitResponse>, Status> {
        tasks::retry(self, request).await.map(Response::new)
    }

    async fn scale(&self, request: Request<v1::ScaleRequest>) -> Result<Response<v1::ScaleResponse>, Status> {
        scaling::scale(self, request).await.map(Response::new)
    }

    async fn preempt(&self, request: Request<v1::PreemptRequest>) -> Result<Response<v1::PreemptResponse>, Status> {
        preempting::preempt(self, request).await.map(Response::new)
    }

    async fn requeue(&self, request: Request<v1::RequeueRequest>) -> Result<Response<v1::RequeueResponse>, Status> {
        signalling::requeue(self, request).await.map(Response::new)
    }

    async fn signal(&self, request: Request<v1::SignalRequest>) -> Result<Response<v1::SignalResponse>, Status> {
        signalling::signal(self, request).await.map(Response::new)
    }

    async fn set_telemetry(&self, request: Request<v1::SetTelemetryRequest>) -> Result<Response<v1::SetTelemetryResponse>, Status> {
        telemetry::set(self, request).await.map(Response::new)
    }

    type ReadTelemetryStream = Streamed<v1::ReadTelemetryResponse>;

    async fn read_telemetry(&self, request: Request<v1::ReadTelemetryRequest>) -> Result<Response<Self::ReadTelemetryStream>, Status> {
        let stream = telemetry::read(self, request).await?;
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn update(&self, request: Request<v1::UpdateAllocationRequest>) -> Result<Response<v1::UpdateAllocationResponse>, Status> {
        updating::update(self, request).await.map(Response::new)
    }

    async fn hold(&self, request: Request<v1::HoldAllocationRequest>) -> Result<Response<v1::HoldAllocationResponse>, Status> {
        preempting::hold(self, request).await.map(Response::new)
    }

    async fn resume(&self, request: Request<v1::ResumeRequest>) -> Result<Response<v1::ResumeResponse>, Status> {
        preempting::resume(self, request).await.map(Response::new)
    }

    async fn top(&self, request: Request<v1::TopRequest>) -> Result<Response<v1::TopResponse>, Status> {
        usage::top(self, request).await.map(Response::new)
    }

    type StreamMetricsStream = Streamed<v1::MetricsEvent>;

    async fn stream_metrics(&self, request: Request<v1::StreamMetricsRequest>) -> Result<Response<Self::StreamMetricsStream>, Status> {
        let stream = monitoring::stream(self, request).await?;
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn diagnose(&self, request: Request<v1::DiagnoseRequest>) -> Result<Response<v1::DiagnoseResponse>, Status> {
        diagnosing::diagnose(self, request).await.map(Response::new)
    }

    async fn compare(&self, request: Request<v1::CompareRequest>) -> Result<Response<v1::CompareResponse>, Status> {
        comparing::compare(self, request).await.map(Response::new)
    }

    async fn explain(&self, request: Request<v1::ExplainRequest>) -> Result<Response<v1::ExplainResponse>, Status> {
        explaining::explain(self, request).await.map(Response::new)
    }

    type LogsStream = Streamed<v1::LogChunk>;

    async fn logs(&self, request: Request<v1::LogsRequest>) -> Result<Response<Self::LogsStream>, Status> {
        let stream = output::logs(self, request).await?;
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn abort_launch(&self, request: Request<v1::AbortLaunchRequest>) -> Result<Response<v1::AbortLaunchResponse>, Status> {
        launching::abort(self, request).await?;
        Ok(Response::new(v1::AbortLaunchResponse {}))
    }

    type CheckpointStream = Streamed<v1::CheckpointEvent>;

    async fn checkpoint(&self, request: Request<v1::CheckpointRequest>) -> Result<Response<Self::CheckpointStream>, Status> {
        let stream = checkpoints::create(self, request).await?;
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn list_checkpoints(
        &self,
        request: Request<v1::ListCheckpointsRequest>,
    ) -> Result<Response<v1::ListCheckpointsResponse>, Status> {
        checkpoints::list(self, request).await.map(Response::new)
    }

    async fn get_checkpoint(&self, request: Request<v1::CheckpointKey>) -> Result<Response<v1::CheckpointInfo>, Status> {
        checkpoints::get(self, request).await.map(Response::new)
    }

    type VerifyCheckpointStream = Streamed<v1::VerifyCheckpointProgress>;

    async fn verify_checkpoint(&self, request: Request<v1::CheckpointKey>) -> Result<Response<Self::VerifyCheckpointStream>, Status> {
        let stream = checkpoints::check(self, request).await?;
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn remove_checkpoint(&self, request: Request<v1::CheckpointKey>) -> Result<Response<v1::RemoveCheckpointResponse>, Status> {
        checkpoints::remove(self, request).await.map(Response::new)
    }

    type AttachStream = Streamed<v1::AttachEvent>;

    async fn attach(&self, request: Request<tonic::Streaming<v1::AttachRequest>>) -> Result<Response<Self::AttachStream>, Status> {
        let stream = attaching::attach(self, request).await?;
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    type LaunchInputStream = Streamed<v1::LaunchInputResponse>;

    async fn launch_input(
        &self,
        request: Request<tonic::Streaming<v1::LaunchInputRequest>>,
    ) -> Result<Response<Self::LaunchInputStream>, Status> {
        let stream = launching::type_on(self, request).await?;
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    type LaunchStream = Streamed<v1::LaunchEvent>;

    async fn launch(&self, request: Request<v1::LaunchRequest>) -> Result<Response<Self::LaunchStream>, Status> {
        let stream = launching::launch(self, request).await?;
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }
}

impl Api {
    /// Refuses work of root if the site refuses it.
    pub(super) fn may_own_work(&self, owner: &Principal) -> Result<(), Status> {
        if owner.is_root() && !self.context.setup.allow_root {
            return Err(Status::permission_denied("work as root is refused (work.allow_root is false): submit as a user"));
        }
        Ok(())
    }

    /// Submits a checked spec of an owner, whose login makes it a member of these tenants, and returns the job number. If
    /// the work fits now and nobody waits, its nodes are claimed in the same commit.
    pub(super) async fn commit_submission(
        &self,
        submitting: Submitting<'_>,
        id: AllocationId,
        spec: AllocationSpec,
        (owner, login_tenants): (Principal, BTreeSet<String>),
    ) -> Result<u64, Status> {
        // Neither a task group nor a scaled service gets nodes itself: their lanes and replicas do, as soon as a
        // scheduler's watch shows them.
        let is_group = spec.tasks.is_some() || spec.scaling.is_some();
        let claim = if is_group { None } else { self.placing.newcomer(id, &spec, &owner).await };
        let life = Incarnation(self.context.work.view.borrow().incarnation);
        let queue = claim.as_ref().map(|_| self.cluster.borrow().queue_named(&spec.vcluster).to_owned());
        let ask = Ask::Submit { id, spec: Box::new(spec), owner, claim, life: Some(life), login_tenants };
        let (revision, desired, number) = match self.quorum.call(&ask, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
            Answer::Submitted { revision, desired, claimed, number } => {
                if let (Some(queue), Some(claimed)) = (queue, claimed) {
                    self.placing.rounds.record_claim(&queue, if claimed { ClaimResult::Accepted } else { ClaimResult::Rejected });
                }
                (revision, desired, number)
            }
            other => return Err(unexpected(&other)),
        };
        if let Some(list) = desired {
            self.context.work.driver.send(Event::Listed(list)).await;
        }
        submitting.done(revision, self.cluster.borrow().revision);
        Ok(number)
    }

    /// Why the quorum refused the last claim for a waiting allocation, or why it accepts no claims.
    /// Both are `None` if the quorum does not answer: the caller still gets the other explanations.
    pub(super) async fn refused_claim(&self, id: AllocationId) -> (Option<v1::RefusedClaim>, Option<Refusal>) {
        let refused = match self.quorum.call(&Ask::RefusedClaim { id }, QUORUM_TIMEOUT).await {
            Ok(Answer::RefusedClaim(Some(refused))) => refused,
            Err(CallError::Refused(refusal @ Refusal::DiskFull { .. })) => return (None, Some(refusal)),
            Ok(_) | Err(_) => return (None, None),
        };
        let conflicts = refused.conflicts.into_iter().map(|c| v1::refused_claim::Conflict {
            node: c.node.to_string(),
            holder: c.holder.map(|h| h.to_string()).unwrap_or_default(),
            reason: c.why,
        });
        (Some(v1::RefusedClaim { at_ms: refused.at.0, conflicts: conflicts.collect() }), None)
    }
}

pub(super) fn place(token: &str) -> Result<Option<ListCursor>, Status> {
    if token.is_empty() {
        return Ok(None);
    }
    let parsed =
        token.split_once(':').and_then(|(at, id)| Some(ListCursor { submitted_at: Timestamp(at.parse().ok()?), id: id.parse().ok()? }));
    parsed.map(Some).ok_or_else(|| Status::invalid_argument("page_token: it is not from an earlier answer"))
}

/// The token of the page after this one; empty: there is none.
pub(super) fn next_page_token(page: &[Allocation], more: bool) -> String {
    page.last().filter(|_| more).map_or(String::new(), |a| format!("{}:{}", a.submitted_at.0, a.id))
}
