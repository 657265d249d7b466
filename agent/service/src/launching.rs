//! `AllocationService.Launch`: begins a user's launch on the allocation's head, and gives the
//! caller its output and its end.
//!
//! The launch's id is the caller's: a caller that reconnects finds its launch by the id and reads
//! on where it was.

use super::access::shown;
use super::command::check;
use super::output::{Selection, gather, received};
use super::target::{LaunchOver, Target, can_still_run, target};
use super::{Api, attaching, feeding};
use lattice_agent_common::environment::entry_launch_id;
use lattice_api::v1;
use lattice_api::v1::launch_event::{Ended, Exits, RankExit, Started, What};
use lattice_ledger::AccessKind;
use lattice_mesh::launch::WireOutcome;
use lattice_mesh::open::{AbortOpen, HeadAnswer, LaunchItem, LaunchOpen, Open};
use lattice_mesh::shape::WireLaunchOptions;
use lattice_mesh::terminal::ToTerminal;
use lattice_mesh::{UnreachedNode, frame};
use lattice_meshd as meshd;
use lattice_model::input::{NoSuchStdin, STDIN_VARIABLE, Stdin};
use lattice_model::{LaunchId, NodeId, Principal};
use lattice_output::output_index::Position;
use lattice_registry::AllocationHandle;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Status, Streaming};
use uuid::Uuid;

/// How many events are queued for a slow caller.
const ITEMS_QUEUE_LEN: usize = 32;
/// How many ranks' ends one event has.
const EXITS_PER_ITEM_MAX: usize = 8192;

type Events = mpsc::Sender<Result<v1::LaunchEvent, Status>>;

/// Begins the launch; the receiver gives its events.
pub(super) async fn launch(
    api: &Api,
    request: Request<v1::LaunchRequest>,
) -> Result<mpsc::Receiver<Result<v1::LaunchEvent, Status>>, Status> {
    let caller = api.caller(&request).await?;
    let request = request.into_inner();
    let id: LaunchId = request.id.parse().map_err(|e: lattice_model::ids::IdError| Status::invalid_argument(e.to_string()))?;
    let target = target(api, &caller, &request.allocation).await?;
    let programs = request.shape.iter().flat_map(|shape| &shape.programs).map(|program| &program.argv);
    check(std::iter::once(&request.argv).chain(programs), &request.env).map_err(|error| Status::invalid_argument(error.to_string()))?;
    let others = request.shape.iter().flat_map(|shape| &shape.programs);
    let what = others.fold(format!("launch {id}: {}", shown(&request.argv)), |text, other| text + " : " + &shown(&other.argv));
    // A new id: under the launch's id, which the caller chooses, a record might exist already, of
    // another program.
    api.audit_unless_owner(Uuid::new_v4(), &caller.principal, AccessKind::LaunchStarted, &target.access_target(), &what).await?;
    let asked = lattice_api::spec::shape_request(request.shape.as_ref()).map_err(|e| lattice_api::spec::status(&e))?;
    let stdin = request.env.get(STDIN_VARIABLE).map_or(Ok(Stdin::None), |asked| asked.parse());
    stdin.map_err(|unknown: NoSuchStdin| Status::invalid_argument(unknown.to_string()))?;
    let user = caller.vouched_for(&target.owner);
    let open = LaunchOpen {
        id: *id.0.as_bytes(),
        allocation: *target.allocation.0.as_bytes(),
        epoch: target.epoch.0,
        argv: request.argv,
        ranks: request.ranks,
        tasks_per_node: request.tasks_per_node,
        binding: lattice_api::spec::binding_request(request.binding.as_ref()).map_err(|e| lattice_api::spec::status(&e))?.into(),
        working_dir: request.working_dir,
        env: request.env.into_iter().collect(),
        pty: request.pty.map(|given| attaching::size(Some(given))),
        ask: WireLaunchOptions::new(&asked, request.exits),
        uid: user.uid,
        user: user.name.clone(),
    };
    let received = received(&request.received, target.epoch);
    let (out, stream) = mpsc::channel(ITEMS_QUEUE_LEN);
    let run = Run { api: api.clone(), target, open, user, received, id };
    api.context.work.tasks.spawn(run.run(out));
    Ok(stream)
}

/// Aborts a launch on its allocation's head.
pub(super) async fn abort(api: &Api, request: Request<v1::AbortLaunchRequest>) -> Result<(), Status> {
    let caller = api.caller(&request).await?;
    let request = request.into_inner();
    let id: LaunchId = request.id.parse().map_err(|e: lattice_model::ids::IdError| Status::invalid_argument(e.to_string()))?;
    let target = target(api, &caller, &request.allocation).await?;
    let what = format!("launch {id}");
    api.audit_unless_owner(Uuid::new_v4(), &caller.principal, AccessKind::LaunchAborted, &target.access_target(), &what).await?;
    let user = caller.vouched_for(&target.owner);
    let open = AbortOpen {
        id: *id.0.as_bytes(),
        allocation: *target.allocation.0.as_bytes(),
        epoch: target.epoch.0,
        uid: user.uid,
        user: user.name,
    };
    if target.head == api.context.setup.me {
        return meshd::abort_here(&api.context, &open).map_err(|error| Status::failed_precondition(error.to_string()));
    }
    let unavailable = |e: &dyn std::fmt::Display| Status::unavailable(format!("the launch's head {}: {e}", target.head));
    let address = api.mesh_address(&target.head).await.ok_or_else(|| unavailable(&"its address is not known"))?;
    let (mut send, mut recv) = api.context.work.mesh.open(&target.head, &address).await.map_err(|e| unavailable(&e))?;
    frame::write(&mut send, &Open::Abort(open)).await.map_err(|e| unavailable(&e))?;
    match frame::read::<HeadAnswer, _>(&mut recv).await.map_err(|e| unavailable(&e))? {
        HeadAnswer::Done => Ok(()),
        HeadAnswer::Refused { why } => Err(Status::failed_precondition(why)),
    }
}

/// Sends keyboard input to the terminal of a launch's first rank, or standard input to the launch,
/// on its allocation's head, as long as the caller sends any. When this returns, the head accepts
/// input.
pub(super) async fn type_on(
    api: &Api,
    request: Request<Streaming<v1::LaunchInputRequest>>,
) -> Result<mpsc::Receiver<Result<v1::LaunchInputResponse, Status>>, Status> {
    use v1::launch_input_request::What;
    let caller = api.caller(&request).await?;
    let mut requests = request.into_inner();
    let Some(v1::LaunchInputRequest { what: Some(What::Start(start)) }) = requests.message().await? else {
        return Err(Status::invalid_argument("the first message must be `start`"));
    };
    let given: Option<LaunchId> = match start.id.as_str() {
        "" => None,
        id => Some(id.parse().map_err(|e: lattice_model::ids::IdError| Status::invalid_argument(e.to_string()))?),
    };
    let target = target(api, &caller, &start.allocation).await?;
    let id = given.unwrap_or_else(|| entry_launch_id(target.allocation, target.epoch));
    let what = format!("the {} of launch {id}", if start.standard { "standard input" } else { "keyboard" });
    api.audit_unless_owner(Uuid::new_v4(), &caller.principal, AccessKind::AttachStarted, &target.access_target(), &what).await?;
    let user = caller.vouched_for(&target.owner);
    let open = AbortOpen {
        id: *id.0.as_bytes(),
        allocation: *target.allocation.0.as_bytes(),
        epoch: target.epoch.0,
        uid: user.uid,
        user: user.name,
    };
    if start.standard {
        return feeding::feed(api, requests, &target, open).await;
    }
    let unavailable = |e: &dyn std::fmt::Display| Status::unavailable(format!("the launch's head {}: {e}", target.head));
    let connection = if target.head == api.context.setup.me {
        let launch = meshd::launch_of(&api.context, &open);
        let (handle, id) = launch.map_err(|error| Status::failed_precondition(error.to_string()))?;
        InputConnection::Here { handle, id }
    } else {
        let address = api.mesh_address(&target.head).await.ok_or_else(|| unavailable(&"its address is not known"))?;
        let (mut send, mut recv) = api.context.work.mesh.open(&target.head, &address).await.map_err(|e| unavailable(&e))?;
        frame::write(&mut send, &Open::Keyboard(open)).await.map_err(|e| unavailable(&e))?;
        match frame::read::<HeadAnswer, _>(&mut recv).await.map_err(|e| unavailable(&e))? {
            HeadAnswer::Done => InputConnection::There(send),
            HeadAnswer::Refused { why } => return Err(Status::failed_precondition(why)),
        }
    };
    let (out, stream) = mpsc::channel(1);
    let _ = out.try_send(Ok(v1::LaunchInputResponse { taken: None }));
    api.context.work.tasks.spawn(async move {
        if let Err(status) = relay_input(requests, connection).await {
            let _ = out.send(Err(status)).await;
        }
    });
    Ok(stream)
}

/// Carries keyboard input to the head until there is no more.
async fn relay_input(mut requests: Streaming<v1::LaunchInputRequest>, mut connection: InputConnection) -> Result<(), Status> {
    use v1::launch_input_request::What;
    while let Some(request) = requests.message().await? {
        let message = match request.what {
            Some(What::Input(bytes)) if bytes.len() <= attaching::INPUT_BYTES_MAX => ToTerminal::Input(bytes),
            Some(What::Size(given)) => {
                let (rows, columns) = attaching::size(Some(given));
                ToTerminal::Size { rows, columns }
            }
            Some(What::Input(_) | What::Start(_) | What::Piece(_)) => {
                return Err(Status::invalid_argument("too many bytes at once, a second start, or no keys"));
            }
            None => continue,
        };
        match &mut connection {
            InputConnection::Here { handle, id } => handle.send_input(*id, message).await,
            InputConnection::There(send) => {
                frame::write(send, &message).await.map_err(|e| Status::unavailable(format!("the launch's head: {e}")))?;
            }
        }
    }
    Ok(())
}

/// The connection to a launch's terminal.
enum InputConnection {
    Here { handle: AllocationHandle, id: LaunchId },
    There(quinn::SendStream),
}

/// One rank's end, in the caller's format.
fn rank_exit(rank: u32, node: Option<&String>, outcome: Option<WireOutcome>) -> RankExit {
    let (ended, value) = match outcome {
        Some(WireOutcome::Exited(code)) => ("exited", code),
        Some(WireOutcome::Signalled(signal)) => ("signalled", signal),
        Some(WireOutcome::NotStarted(code)) => ("not_started", code),
        None => ("lost", 0),
    };
    RankExit { rank, node: node.cloned().unwrap_or_default(), ended: ended.to_owned(), value: value.into() }
}

struct Run {
    api: Api,
    target: Target,
    open: LaunchOpen,
    user: Principal,
    received: BTreeMap<(u32, bool), Position>,
    id: LaunchId,
}

impl Run {
    async fn run(self, out: Events) {
        let (over, over_view) = watch::channel(false);
        let mut output = None;
        let (mut names, mut exits) = (Vec::new(), Vec::new());
        loop {
            let mut items = match self.begin().await {
                Ok(items) => items,
                Err(why) => {
                    let text = format!("the launch's head {} cannot be reached: {why}", self.target.head);
                    tracing::debug!(launch = %self.id, %text);
                    if let Err(over) = self.wait_for_retry(&out).await {
                        let _ = out.send(Err(Status::failed_precondition(format!("{text}; {over}")))).await;
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
                            names = nodes.into_iter().map(|(node, _, _)| node).collect();
                        }
                    }
                    // After a reconnect the head sends all ends again, so the earlier ones are
                    // dropped.
                    Some(LaunchItem::Exits(some)) => {
                        if some.first().is_some_and(|(rank, ..)| *rank == 0) {
                            exits.clear();
                        }
                        exits.extend(some);
                    }
                    Some(LaunchItem::Ended { code, aborted }) => {
                        over.send_replace(true);
                        if let Some(output) = output {
                            let _ = output.await;
                        }
                        for some in exits.chunks(EXITS_PER_ITEM_MAX) {
                            let exits = some.iter().map(|(rank, place, outcome)| rank_exit(*rank, names.get(*place as usize), *outcome));
                            let what = What::Exits(Exits { exits: exits.collect() });
                            if out.send(Ok(v1::LaunchEvent { what: Some(what) })).await.is_err() {
                                return;
                            }
                        }
                        let ended = What::Ended(Ended { code, aborted: aborted.unwrap_or_default() });
                        let is_sent = out.send(Ok(v1::LaunchEvent { what: Some(ended) })).await.is_ok();
                        if is_sent && self.target.head == self.api.context.setup.me {
                            self.api.context.work.launches.acknowledge_end(self.id);
                        }
                        return;
                    }
                }
            }
            if let Err(over) = self.wait_for_retry(&out).await {
                let text = format!("the connection to the launch's head {} broke; {over}", self.target.head);
                let _ = out.send(Err(Status::failed_precondition(text))).await;
                return;
            }
        }
    }

    /// After the head became unreachable: waits a moment, and gives an error if a retry is useless.
    /// The caller must not retry then either: its launch would begin a second time, in the next
    /// attempt.
    async fn wait_for_retry(&self, out: &Events) -> Result<(), LaunchOver> {
        tokio::select! {
            () = out.closed() => return Err(LaunchOver::CallerGone),
            () = tokio::time::sleep(Duration::from_millis(200)) => {}
        }
        if self.target.head == self.api.context.setup.me {
            let here = self.api.context.work.allocations.of_epoch(self.target.allocation, self.target.epoch);
            return here.map(drop).ok_or(LaunchOver::NotHere { allocation: self.target.allocation });
        }
        let cluster = self.api.cluster.borrow();
        if cluster.fresh { can_still_run(cluster.allocations.get(&self.target.allocation), self.target.epoch) } else { Ok(()) }
    }

    async fn begin(&self) -> Result<mpsc::Receiver<LaunchItem>, UnreachedNode> {
        if self.target.head == self.api.context.setup.me {
            return match meshd::begin(&self.api.context, &self.open).await {
                Ok(items) => Ok(items),
                Err(error) => {
                    let (send, items) = mpsc::channel(1);
                    let _ = send.try_send(LaunchItem::Refused { why: error.to_string() });
                    Ok(items)
                }
            };
        }
        let address = self.api.mesh_address(&self.target.head).await.ok_or(UnreachedNode::NoAddress)?;
        let (mut send, mut recv) = self.api.context.work.mesh.open(&self.target.head, &address).await?;
        let open = Open::Launch(Box::new(self.open.clone()));
        frame::write(&mut send, &open).await?;
        let (items, receiver) = mpsc::channel(4);
        self.api.context.work.tasks.spawn(async move {
            let _send = send;
            loop {
                let item = tokio::select! {
                    () = items.closed() => return,
                    item = frame::read::<LaunchItem, _>(&mut recv) => item,
                };
                let Ok(item) = item else { return };
                if items.send(item).await.is_err() {
                    return;
                }
            }
        });
        Ok(receiver)
    }

    /// Reports that the launch began, and begins to read its output.
    async fn started(
        &self,
        number: u32,
        nodes: &[(String, u32, u32)],
        over: &watch::Receiver<bool>,
        out: &Events,
    ) -> Option<AbortOnDropHandle<()>> {
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
            at_once: self.open.pty.is_some(),
            user: self.user.clone(),
            received: self.received.clone(),
            tail: None,
            since_ms: None,
            until_ms: None,
            dated: false,
            tenant: self.target.tenant.clone(),
            project: self.target.project.clone(),
            removable: false,
        };
        let nodes: Vec<NodeId> = names.iter().filter_map(|n| n.parse().ok()).collect();
        let (api, over, out) = (self.api.clone(), over.clone(), out.clone());
        Some(AbortOnDropHandle::new(tokio::spawn(async move {
            let (chunks, mut gathered) = mpsc::channel(ITEMS_QUEUE_LEN);
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
        })))
    }
}
