//! Checkpoints: requests go to the allocation's head. The agent that received the call reads and
//! removes what is in the store.

use super::Api;
use super::access::AccessTarget;
use super::target::{LaunchOver, Target, can_still_run, target};
use lattice_agent_checkpoint as checkpoint;
use lattice_agent_checkpoint::restore::verify;
use lattice_agent_checkpoint::retention;
use lattice_agent_checkpoint::simulated::SimulatedTime;
use lattice_agent_checkpoint::store::{CheckpointStore, Manifest, Owner, Part, StoreError};
use lattice_agent_common::config::checkpoint::CheckpointsUnavailable;
use lattice_api::v1;
use lattice_ledger::AccessKind;
use lattice_membership::cluster::Cluster;
use lattice_mesh::UnreachedNode;
use lattice_mesh::checkpoint::{CheckpointItem, CheckpointOpen};
use lattice_model::checkpoint::DEADLINE_MS;
use lattice_model::{Allocation, AllocationState, CheckpointId, with_causes};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tonic::{Request, Status};
use uuid::Uuid;

/// How many events are queued for a slow caller.
const QUEUE: usize = 16;
/// How many files one answer lists.
const FILES_MAX: usize = 10_000;
/// Time between two reports of how far a verification is.
const VERIFY_REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// How many checkpoints are verified at once: others wait, so that saving and restoring continue.
static VERIFIED_AT_ONCE: Semaphore = Semaphore::const_new(2);

type Events = mpsc::Sender<Result<v1::CheckpointEvent, Status>>;
type Verified = Result<v1::VerifyCheckpointProgress, Status>;

/// Requests a checkpoint; the receiver gives its progress.
pub(super) async fn create(
    api: &Api,
    request: Request<v1::CheckpointRequest>,
) -> Result<mpsc::Receiver<Result<v1::CheckpointEvent, Status>>, Status> {
    let caller = api.caller(&request).await?;
    let request = request.into_inner();
    let id: CheckpointId = request.id.parse().map_err(|e: lattice_model::ids::IdError| Status::invalid_argument(e.to_string()))?;
    let length_ms =
        if request.deadline_ms == 0 { api.context.work.checkpoint.checkpoints.settings().timeout_ms() } else { request.deadline_ms };
    let (least, most) = DEADLINE_MS;
    if !(least..=most).contains(&length_ms) {
        return Err(Status::invalid_argument(format!("deadline: {length_ms} ms; 1 s to 24 h are possible")));
    }
    let target = target(api, &caller, &request.allocation).await?;
    // To the head, a caller that is not the owner is only root.
    let (by, about) = (&caller.principal, target.access_target());
    api.audit_unless_owner(Uuid::new_v4(), by, AccessKind::CheckpointRequested, &about, &format!("checkpoint {id}")).await?;
    let user = caller.vouched_for(&target.owner);
    let open = CheckpointOpen {
        id: *id.0.as_bytes(),
        allocation: *target.allocation.0.as_bytes(),
        epoch: target.epoch.0,
        length_ms,
        uid: user.uid,
        user: user.name,
    };
    let (out, stream) = mpsc::channel(QUEUE);
    api.context.work.tasks.spawn(Following { api: api.clone(), target, open }.run(out));
    Ok(stream)
}

struct Following {
    api: Api,
    target: Target,
    open: CheckpointOpen,
}

impl Following {
    /// Runs until the checkpoint is over. If the head becomes unreachable, the request is repeated
    /// with the same id while the work lives.
    async fn run(self, out: Events) {
        loop {
            if let Ok(mut items) = self.begin().await {
                loop {
                    let item = tokio::select! {
                        () = out.closed() => return,
                        item = items.recv() => item,
                    };
                    let Some(item) = item else { break };
                    let event = event(item);
                    let over = event.as_ref().map_or(true, |event| event.done);
                    if out.send(event).await.is_err() || over {
                        return;
                    }
                }
            }
            tokio::select! {
                () = out.closed() => return,
                () = tokio::time::sleep(Duration::from_millis(200)) => {}
            }
            if let Err(why) = self.worth_while() {
                let text = format!(
                    "the connection to the head {} broke: {why}; `lattice checkpoint list` shows whether the checkpoint is complete",
                    self.target.head
                );
                let _ = out.send(Err(Status::failed_precondition(text))).await;
                return;
            }
        }
    }

    fn worth_while(&self) -> Result<(), LaunchOver> {
        let here = self.target.head == self.api.context.setup.me;
        if here && self.api.context.work.allocations.of_epoch(self.target.allocation, self.target.epoch).is_some() {
            return Ok(());
        }
        let cluster = self.api.cluster.borrow();
        if cluster.fresh || here { can_still_run(cluster.allocations.get(&self.target.allocation), self.target.epoch) } else { Ok(()) }
    }

    async fn begin(&self) -> Result<mpsc::Receiver<CheckpointItem>, UnreachedNode> {
        let address = self.api.mesh_address(&self.target.head).await;
        checkpoint::ask(&self.api.context.work.checkpoint, &self.target.head, address, &self.open).await
    }
}

fn event(item: CheckpointItem) -> Result<v1::CheckpointEvent, Status> {
    let text = |id: [u8; 16]| CheckpointId(Uuid::from_bytes(id)).to_string();
    match item {
        CheckpointItem::Refused { why } => Err(Status::failed_precondition(format!("no checkpoint is made: {why}"))),
        CheckpointItem::Progress { id, state, detail } => Ok(v1::CheckpointEvent { id: text(id), state, detail, ..Default::default() }),
        CheckpointItem::Ended { id, state, why, complete, step, bytes } => {
            Ok(v1::CheckpointEvent { id: text(id), state, detail: why, done: true, complete, step, bytes })
        }
    }
}

/// One of the caller's allocations, and the owner of its checkpoints in the store.
async fn owned_allocation<T>(api: &Api, request: &Request<T>, key: &str) -> Result<(Allocation, Owner), Status> {
    let caller = api.caller(request).await?;
    let within = caller.within.map(|id| id.to_string());
    let key = if key.is_empty() { within.as_deref().ok_or_else(|| Status::invalid_argument("no allocation is given"))? } else { key };
    let allocation = api.allocation(&caller, key).await?;
    api.check(&caller, &allocation).await?;
    let (tenant, project) = (allocation.spec.tenant.clone(), allocation.stored_project().to_owned());
    let owner = Owner { tenant, project, allocation: allocation.id };
    Ok((allocation, owner))
}

fn status(error: &StoreError) -> Status {
    match error {
        StoreError::Store(_) => Status::unavailable(with_causes(error)),
        StoreError::NoSuch(_) => Status::not_found(error.to_string()),
        StoreError::Damaged { .. }
        | StoreError::Unavailable(_)
        | StoreError::Directory(_)
        | StoreError::Place(_)
        | StoreError::Unfit(_)
        | StoreError::Io { .. } => Status::failed_precondition(with_causes(error)),
    }
}

/// The error if there is no store.
fn without(error: CheckpointsUnavailable) -> Status {
    Status::failed_precondition(error.to_string())
}

/// The checkpoint of a key: an id, a prefix of one, or empty for the last.
async fn find(api: &Api, allocation: &Allocation, owner: &Owner, key: &str) -> Result<Manifest, Status> {
    let store = api.context.work.checkpoint.checkpoints.store().map_err(without)?;
    if key.is_empty() {
        let last = allocation.checkpoint.as_ref().ok_or_else(|| {
            Status::not_found(format!("allocation {} has no checkpoint; `lattice checkpoint create` makes one", allocation.id.short()))
        })?;
        return store.manifest(owner, last.id).await.map_err(|e| status(&e));
    }
    if let Ok(id) = key.parse() {
        return store.manifest(owner, id).await.map_err(|e| status(&e));
    }
    let digits: String = key.chars().filter(|c| *c != '-').collect::<String>().to_ascii_lowercase();
    if digits.len() < 4 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(Status::invalid_argument(format!("{key:?}: give at least 4 hexadecimal digits of the checkpoint's id")));
    }
    let (mut all, _) = store.list(owner).await.map_err(|e| status(&e))?;
    all.retain(|manifest| manifest.id.0.simple().to_string().starts_with(&digits));
    match <[Manifest; 1]>::try_from(all) {
        Ok([one]) => Ok(one),
        Err(none) if none.is_empty() => Err(status(&StoreError::NoSuch(key.to_owned()))),
        Err(some) => {
            let ids: Vec<String> = some.iter().map(|m| m.id.to_string()).collect();
            Err(Status::invalid_argument(format!("{key:?} is ambiguous, give more digits: it is the beginning of {}", ids.join(", "))))
        }
    }
}

/// The broker's decision about work with automatic checkpoints.
pub(super) async fn judged(api: &Api, cluster: &Cluster, allocation: &Allocation) -> Option<v1::CheckpointJudgement> {
    allocation.spec.checkpoint.filter(|policy| policy.automatic.is_some())?;
    if allocation.state != AllocationState::Running {
        return None;
    }
    let mut view = cluster.with_gossip(api.membership.gossiped());
    view.allocations.insert(allocation.id, allocation.clone());
    let judgement = checkpoint::broker::explain(&api.context.work.checkpoint, &api.quorum, &view, allocation).await?;
    let term = |(name, value, meaning): (&str, String, &str)| v1::checkpoint_judgement::Term {
        name: name.to_owned(),
        value,
        meaning: meaning.to_owned(),
    };
    let terms = judgement.terms.lines().into_iter().map(term).collect();
    Some(v1::CheckpointJudgement { verdict: judgement.verdict.to_string(), terms })
}

fn shown(api: &Api, manifest: &Manifest, allocation: &Allocation) -> v1::CheckpointInfo {
    let (files, bytes) = manifest.size();
    let node = |n: &lattice_agent_checkpoint::store::NodeEntry| v1::checkpoint_info::Node {
        node: n.node.to_string(),
        files: n.files,
        bytes: n.bytes,
        list: Vec::new(),
    };
    v1::CheckpointInfo {
        id: manifest.id.to_string(),
        allocation: allocation.id.to_string(),
        epoch: manifest.epoch.0,
        parent: manifest.parent.map(|id| id.to_string()).unwrap_or_default(),
        step: manifest.step,
        created_at_ms: manifest.created_at_ms,
        files,
        bytes,
        last: allocation.checkpoint.as_ref().is_some_and(|last| last.id == manifest.id),
        nodes: manifest.nodes.iter().map(node).collect(),
        expires_at_ms: expires_at_ms(api, allocation),
        damaged: String::new(),
        time_seconds: None,
    }
}

/// When the checkpoints of an ended allocation will be removed.
fn expires_at_ms(api: &Api, allocation: &Allocation) -> Option<u64> {
    retention::expires_at_ms(api.context.work.checkpoint.checkpoints.settings(), allocation.ended_at?.0)
}

pub(super) async fn list(api: &Api, request: Request<v1::ListCheckpointsRequest>) -> Result<v1::ListCheckpointsResponse, Status> {
    let (allocation, owner) = owned_allocation(api, &request, &request.get_ref().allocation).await?;
    let store = api.context.work.checkpoint.checkpoints.store().map_err(without)?;
    let all = store.list(&owner).await.map_err(|e| status(&e))?;
    let (all, broken) = all;
    let damaged = |(id, why): (CheckpointId, String)| v1::CheckpointInfo {
        id: id.to_string(),
        allocation: allocation.id.to_string(),
        last: allocation.checkpoint.as_ref().is_some_and(|last| last.id == id),
        expires_at_ms: expires_at_ms(api, &allocation),
        damaged: why,
        ..Default::default()
    };
    let whole = all.iter().map(|manifest| shown(api, manifest, &allocation));
    Ok(v1::ListCheckpointsResponse { checkpoints: whole.chain(broken.into_iter().map(damaged)).collect() })
}

pub(super) async fn get(api: &Api, request: Request<v1::CheckpointKey>) -> Result<v1::CheckpointInfo, Status> {
    let (allocation, owner) = owned_allocation(api, &request, &request.get_ref().allocation).await?;
    let manifest = find(api, &allocation, &owner, &request.get_ref().checkpoint).await?;
    let store = api.context.work.checkpoint.checkpoints.store().map_err(without)?;
    let mut info = shown(api, &manifest, &allocation);
    let mut left = FILES_MAX;
    for (index, (entry, node)) in manifest.nodes.iter().zip(&mut info.nodes).enumerate() {
        let part =
            Part { owner: owner.clone(), id: manifest.id, epoch: manifest.epoch, round: manifest.round, index, node: entry.node.clone() };
        let Some(of_node) = store.node_manifest(&part, entry).await.map_err(|e| status(&e))? else { continue };
        info.time_seconds = info.time_seconds.or(of_node.time_seconds.map(SimulatedTime::seconds));
        let files = of_node.files.into_iter().filter(|f| f.size.is_some()).take(left);
        node.list = files
            .map(|f| v1::checkpoint_info::File { path: f.path, bytes: f.size.unwrap_or_default(), blake3: f.blake3.unwrap_or_default() })
            .collect();
        left -= node.list.len();
    }
    Ok(info)
}

/// Verifies a checkpoint; the receiver gives how much of it was read, and at the end what is damaged.
pub(super) async fn check(api: &Api, request: Request<v1::CheckpointKey>) -> Result<mpsc::Receiver<Verified>, Status> {
    let (allocation, owner) = owned_allocation(api, &request, &request.get_ref().allocation).await?;
    let manifest = find(api, &allocation, &owner, &request.get_ref().checkpoint).await?;
    let store = api.context.work.checkpoint.checkpoints.store().map_err(without)?.clone();
    let (out, stream) = mpsc::channel(QUEUE);
    api.context.work.tasks.spawn(async move { report_verification(&store, &owner, &manifest, &out).await });
    Ok(stream)
}

/// Ends early if the caller has gone.
async fn report_verification(store: &CheckpointStore, owner: &Owner, manifest: &Manifest, out: &mpsc::Sender<Verified>) {
    let (_, bytes) = manifest.size();
    let (bytes_read, waiting) = (AtomicU64::new(0), AtomicBool::new(true));
    let set_read = |now: u64| bytes_read.store(now.min(bytes), Ordering::Relaxed);
    let report = |done, damaged_files| v1::VerifyCheckpointProgress {
        id: manifest.id.to_string(),
        damaged_files,
        bytes_read: bytes_read.load(Ordering::Relaxed),
        bytes,
        done,
        waiting: waiting.load(Ordering::Relaxed),
    };
    let mut verification = pin!(async {
        let _one_of_few = VERIFIED_AT_ONCE.acquire().await.map_err(|closed| Status::internal(closed.to_string()))?;
        waiting.store(false, Ordering::Relaxed);
        verify(store, owner, manifest, &set_read).await.map_err(|e| status(&e))
    });
    loop {
        tokio::select! {
            () = out.closed() => return,
            verified = &mut verification => {
                // A caller that has gone needs no answer.
                let _gone = out.send(verified.map(|damaged_files| report(true, damaged_files))).await;
                return;
            }
            // A slow caller gets fewer reports.
            () = tokio::time::sleep(VERIFY_REPORT_INTERVAL) => {
                let _full = out.try_send(Ok(report(false, Vec::new())));
            }
        }
    }
}

/// Refuses to remove what may be under way while the allocation lives: a checkpoint without a
/// manifest, and one that is newer than the quorum's last. The local view of the quorum may be old:
/// then more is refused, never less.
async fn removable(store: &CheckpointStore, allocation: &Allocation, owner: &Owner, id: CheckpointId) -> Result<(), Status> {
    let refused = |why: &str| {
        let text = format!(
            "checkpoint {id} {why}: it can be removed once a later one is complete, or allocation {} has ended",
            allocation.id.short()
        );
        Err(Status::failed_precondition(text))
    };
    let when = |m: &Manifest| (m.epoch, m.created_at_ms);
    let manifest = match store.manifest(owner, id).await {
        Ok(manifest) => manifest,
        Err(StoreError::NoSuch(_)) => return refused("has no manifest, and may be under way"),
        // A manifest is written as a whole: this one was complete before it was damaged.
        Err(StoreError::Damaged { .. }) => return Ok(()),
        Err(error) => return Err(status(&error)),
    };
    let Some(last) = &allocation.checkpoint else { return refused("is not known to the quorum yet") };
    let older = match store.manifest(owner, last.id).await {
        Ok(last) => when(&manifest) < when(&last),
        Err(StoreError::Damaged { .. } | StoreError::NoSuch(_)) => manifest.epoch < last.epoch,
        Err(error) => return Err(status(&error)),
    };
    if older { Ok(()) } else { refused("is newer than the last one that the quorum knows, and may be under way") }
}

pub(super) async fn remove(api: &Api, request: Request<v1::CheckpointKey>) -> Result<v1::RemoveCheckpointResponse, Status> {
    let (allocation, owner) = owned_allocation(api, &request, &request.get_ref().allocation).await?;
    let key = &request.get_ref().checkpoint;
    if key.is_empty() {
        return Err(Status::invalid_argument("no checkpoint is named\nhint: `lattice checkpoint list` shows them"));
    }
    // A damaged checkpoint can be removed too, by its full id.
    let id = match key.parse() {
        Ok(id) => id,
        Err(_) => find(api, &allocation, &owner, key).await?.id,
    };
    if allocation.checkpoint.as_ref().is_some_and(|last| last.id == id) && !allocation.state.is_terminal() {
        let text = format!(
            "allocation {} is {}, and would continue from this checkpoint: create a later one first, or cancel the allocation",
            allocation.id.short(),
            allocation.state
        );
        return Err(Status::failed_precondition(text));
    }
    let store = api.context.work.checkpoint.checkpoints.store().map_err(without)?;
    if !allocation.state.is_terminal() {
        removable(store, &allocation, &owner, id).await?;
    }
    let by = api.caller(&request).await?.principal;
    let about = AccessTarget { allocation: allocation.id, owner: &allocation.owner, node: None };
    api.audit_unless_owner(Uuid::new_v4(), &by, AccessKind::CheckpointRemoved, &about, &format!("checkpoint {id}")).await?;
    store.remove(&owner, id).await.map_err(|e| status(&e))?;
    Ok(v1::RemoveCheckpointResponse { id: id.to_string() })
}
