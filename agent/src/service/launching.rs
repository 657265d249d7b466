//! `AllocationService.Launch`: a user's launch, begun on the allocation's head, its output and its end brought to the caller.
//!
//! The launch's id is the caller's: one that comes back after a lost connection finds its launch again and goes on
//! reading where it was.

use super::Api;
use super::caller::Caller;
use super::output::{Selection, gather};
use crate::mesh::frame::{self, AbortAnswer, AbortOpen, LaunchItem, LaunchOpen, Open};
use crate::meshd;
use lattice_api::v1;
use lattice_api::v1::launch_event::{Ended, Started, What};
use lattice_model::{AllocationId, AllocationState, Epoch, LaunchId, NodeId, Principal};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tonic::{Request, Status};

/// Events that wait for a slow caller.
const QUEUE: usize = 32;

type Events = mpsc::Sender<Result<v1::LaunchEvent, Status>>;

/// Where a launch is to be begun.
struct Target {
    allocation: AllocationId,
    epoch: Epoch,
    head: NodeId,
    owner: Principal,
}

/// Begins it; what happens comes out of the receiver.
pub(super) async fn launch(
    api: &Api,
    request: Request<v1::LaunchRequest>,
) -> Result<mpsc::Receiver<Result<v1::LaunchEvent, Status>>, Status> {
    let caller = api.caller(&request).await?;
    let request = request.into_inner();
    let id: LaunchId = request.id.parse().map_err(|e: lattice_model::ids::IdError| Status::invalid_argument(e.to_string()))?;
    let target = target(api, &caller, &request.allocation).await?;
    if request.argv.first().is_none_or(String::is_empty) {
        return Err(Status::invalid_argument("a program is needed after --"));
    }
    let open = LaunchOpen {
        id: *id.0.as_bytes(),
        allocation: *target.allocation.0.as_bytes(),
        epoch: target.epoch.0,
        argv: request.argv,
        ranks: request.ranks,
        tasks_per_node: request.tasks_per_node,
        working_dir: request.working_dir,
        env: request.env.into_iter().collect(),
        uid: caller.principal.uid,
        user: caller.principal.name.clone(),
    };
    let received = request.received.iter().map(|r| ((r.rank, r.stderr), r.bytes)).collect();
    let (out, stream) = mpsc::channel(QUEUE);
    let run = Run { api: api.clone(), target, open, user: caller.principal, received, id };
    tokio::spawn(run.run(out));
    Ok(stream)
}

/// Brings a launch down, on its allocation's head.
pub(super) async fn abort(api: &Api, request: Request<v1::AbortLaunchRequest>) -> Result<(), Status> {
    let caller = api.caller(&request).await?;
    let request = request.into_inner();
    let id: LaunchId = request.id.parse().map_err(|e: lattice_model::ids::IdError| Status::invalid_argument(e.to_string()))?;
    let target = target(api, &caller, &request.allocation).await?;
    let open = AbortOpen {
        id: *id.0.as_bytes(),
        allocation: *target.allocation.0.as_bytes(),
        epoch: target.epoch.0,
        uid: caller.principal.uid,
        user: caller.principal.name,
    };
    if target.head == api.context.me {
        return meshd::abort_here(&api.context, &open).map_err(Status::failed_precondition);
    }
    let unavailable = |e: &dyn std::fmt::Display| Status::unavailable(format!("the launch's head {}: {e}", target.head));
    let address = api.mesh_address(target.allocation, &target.head).ok_or_else(|| unavailable(&"its address is not known"))?;
    let (mut send, mut recv) = api.context.mesh.open(&target.head, &address).await.map_err(|e| unavailable(&e))?;
    frame::write(&mut send, &Open::Abort(open)).await.map_err(|e| unavailable(&e))?;
    match frame::read::<AbortAnswer, _>(&mut recv).await.map_err(|e| unavailable(&e))? {
        AbortAnswer::Done => Ok(()),
        AbortAnswer::Refused { why } => Err(Status::failed_precondition(why)),
    }
}

/// The allocation that a caller means, which must be the caller's: the one of `key`, or the one that it runs in.
async fn target(api: &Api, caller: &Caller, key: &str) -> Result<Target, Status> {
    let target = match (key, caller.within) {
        ("", None) => return Err(Status::invalid_argument("which allocation? (--alloc ID, or run it inside one)")),
        ("", Some(within)) => find(api, &within.to_string()).await?,
        (key, _) => find(api, key).await?,
    };
    caller.check(target.allocation, &target.owner)?;
    Ok(target)
}

async fn find(api: &Api, key: &str) -> Result<Target, Status> {
    // Work of this node needs no quorum to launch.
    if let Some(worker) = key.parse().ok().and_then(|id| api.context.workers.get(id))
        && let Some((head, _)) = worker.share.nodes.first()
    {
        let share = &worker.share;
        return Ok(Target { allocation: share.allocation, epoch: share.epoch, head: head.clone(), owner: share.owner.clone() });
    }
    let allocation = api.allocation(key).await?;
    if allocation.state != AllocationState::Running {
        return Err(Status::failed_precondition(format!("allocation {} is {}, not Running", allocation.id.short(), allocation.state)));
    }
    let head = allocation.head().cloned().ok_or_else(|| Status::internal("a running allocation without nodes"))?;
    Ok(Target { allocation: allocation.id, epoch: allocation.epoch, head, owner: allocation.owner })
}

struct Run {
    api: Api,
    target: Target,
    open: LaunchOpen,
    user: Principal,
    received: BTreeMap<(u32, bool), u64>,
    id: LaunchId,
}

impl Run {
    async fn run(self, out: Events) {
        let (over, over_view) = watch::channel(false);
        let mut output = None;
        loop {
            let mut items = match self.begin().await {
                Ok(items) => items,
                Err(why) => {
                    let text = format!("the launch's head {} cannot be reached: {why}", self.target.head);
                    tracing::debug!(launch = %self.id, %text);
                    if !self.again(&out).await {
                        let _ = out.send(Err(Status::unavailable(text))).await;
                        return;
                    }
                    continue;
                }
            };
            loop {
                let item = tokio::select! {
                    () = out.closed() => return,
                    item = items.recv() => item,
                };
                match item {
                    None => break,
                    Some(LaunchItem::Refused { why }) => {
                        let _ = out.send(Err(Status::failed_precondition(why))).await;
                        return;
                    }
                    Some(LaunchItem::Started { number, nodes }) => {
                        if output.is_none() {
                            output = self.started(number, &nodes, &over_view, &out).await;
                        }
                    }
                    Some(LaunchItem::Ended { code, aborted }) => {
                        over.send_replace(true);
                        if let Some(output) = output {
                            let _ = output.await;
                        }
                        let ended = What::Ended(Ended { code, aborted: aborted.unwrap_or_default() });
                        let told = out.send(Ok(v1::LaunchEvent { what: Some(ended) })).await.is_ok();
                        if told && self.target.head == self.api.context.me {
                            self.api.context.launches.told(self.id);
                        }
                        return;
                    }
                }
            }
            if !self.again(&out).await {
                let text = format!("the launch's head {} went away", self.target.head);
                let _ = out.send(Err(Status::unavailable(text))).await;
                return;
            }
        }
    }

    /// After the head went away: whether to try again, after a moment. Not once the allocation has ended.
    async fn again(&self, out: &Events) -> bool {
        tokio::select! {
            () = out.closed() => return false,
            () = tokio::time::sleep(Duration::from_millis(200)) => {}
        }
        if self.target.head == self.api.context.me {
            return self.api.context.workers.of_epoch(self.target.allocation, self.target.epoch).is_some();
        }
        let cluster = self.api.cluster.borrow();
        !cluster.fresh || cluster.allocations.get(&self.target.allocation).is_some_and(|a| !a.state.is_terminal())
    }

    async fn begin(&self) -> Result<mpsc::Receiver<LaunchItem>, String> {
        if self.target.head == self.api.context.me {
            return match meshd::begin(&self.api.context, &self.open).await {
                Ok(items) => Ok(items),
                Err(why) => {
                    let (send, items) = mpsc::channel(1);
                    let _ = send.try_send(LaunchItem::Refused { why });
                    Ok(items)
                }
            };
        }
        let address = self.api.mesh_address(self.target.allocation, &self.target.head).ok_or("its address is not known")?;
        let (mut send, mut recv) = self.api.context.mesh.open(&self.target.head, &address).await.map_err(|e| e.to_string())?;
        frame::write(&mut send, &Open::Launch(self.open.clone())).await.map_err(|e| e.to_string())?;
        let (items, receiver) = mpsc::channel(4);
        tokio::spawn(async move {
            let _send = send;
            while let Ok(item) = frame::read::<LaunchItem, _>(&mut recv).await {
                if items.send(item).await.is_err() {
                    return;
                }
            }
        });
        Ok(receiver)
    }

    /// Says that it began, and begins to bring its output.
    async fn started(
        &self,
        number: u32,
        nodes: &[(String, u32, u32)],
        over: &watch::Receiver<bool>,
        out: &Events,
    ) -> Option<tokio::task::JoinHandle<()>> {
        let ranks = nodes.iter().map(|(_, _, count)| count).sum();
        let names: Vec<String> = nodes.iter().map(|(node, _, _)| node.clone()).collect();
        let started = Started { launch: self.id.to_string(), number, ranks, nodes: names.clone() };
        out.send(Ok(v1::LaunchEvent { what: Some(What::Started(started)) })).await.ok()?;
        let selection = Selection {
            allocation: self.target.allocation,
            epoch: self.target.epoch,
            launch: number,
            rank: None,
            stdout: true,
            stderr: true,
            follow: true,
            user: self.user.clone(),
            received: self.received.clone(),
        };
        let nodes: Vec<NodeId> = names.iter().filter_map(|n| n.parse().ok()).collect();
        let (api, over, out) = (self.api.clone(), over.clone(), out.clone());
        Some(tokio::spawn(async move {
            let (chunks, mut gathered) = mpsc::channel(QUEUE);
            let gather = async {
                gather(&api, &nodes, &selection, over, &chunks).await;
                drop(chunks);
            };
            let pass_on = async {
                while let Some(Ok(chunk)) = gathered.recv().await {
                    if out.send(Ok(v1::LaunchEvent { what: Some(What::Output(chunk)) })).await.is_err() {
                        return;
                    }
                }
            };
            tokio::join!(gather, pass_on);
        }))
    }
}
