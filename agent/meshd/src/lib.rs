//! Serves requests of other agents over the mesh. [`lattice_registry::access`] has the table of who
//! may open which stream; it is checked here, before anything is done for a stream. What a user may
//! do is checked in the code that also answers this node's own users.
//!
//! | task | ends | queues |
//! |---|---|---|
//! | [`serve`] | once the mesh is closed | incoming streams, bounded by `lattice_mesh` |
//! | one per stream, at most `STREAMS_PER_PEER` for each peer | with its stream, or with [`serve`] | |
//! | one per follower of output, a launch, an entry point or measurements | with what it follows, or with the follower | items 2 to 16 |
//! | a terminal session; `work.attach_max_concurrent` limits those of a user | with its program, or with its caller | input and output 16 each |
//! | two per terminal on another node | with the session | the same |
//!
//! Tasks of streams are in [`serve`]'s `JoinSet`, all others in `Handles::tasks` of
//! `lattice_allocation`.

pub mod context;
pub mod diagnosis;
pub mod diagnosis_slots;
pub mod entry;
mod first_frames;
pub mod history;
pub mod monitoring;
mod refusal;
pub mod signalling;
pub mod status_texts;
pub mod steps;
pub mod terminal;

use crate::context::Shared;
use crate::first_frames::FirstFrames;
use crate::terminal::over_mesh;
use lattice_agent_checkpoint as checkpoint;
use lattice_agent_common::environment;
use lattice_agent_common::environment::slurm::SlurmSettings;
use lattice_launch as launch;
use lattice_launch::{InputPort, next_taken};
use lattice_machine::conformance;
use lattice_machine::facts;
use lattice_membership::relay;
use lattice_mesh::checkpoint::{CheckpointItem, CheckpointOpen};
use lattice_mesh::input::{WireInputAck, WireInputChunk};
use lattice_mesh::launch::WireOutcome;
use lattice_mesh::open::{AbortOpen, EntryOpen, HeadAnswer, LaunchItem, LaunchOpen, LogItem, LogsOpen, Open, vouched};
use lattice_mesh::terminal::size;
use lattice_mesh::{Incoming, frame};
use lattice_model::binding::BindingRequest;
use lattice_model::input::NoSuchStdin;
use lattice_model::layout::{LayoutError, RankRun, ShapeRequest, TASKS_PER_NODE_MAX, lay_out, list_out};
use lattice_model::{AllocationId, DesiredShare, Distribution, Entrypoint, Epoch, LaunchId, LaunchSpec, NodeId, Stdin};
use lattice_node::{LaunchEnd, RankEnd};
use lattice_observe::measuring::{self, devices};
use lattice_output::logs::{self, Wanted};
use lattice_output::output_index::Position;
use lattice_registry::access::{self, Denied};
use lattice_registry::{AllocationHandle, NotRunning};
use lattice_runtime::shim::ShimDir;
use quinn::{RecvStream, SendStream};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

/// How long a peer may take to send its request, and to read a refusal.
const OPEN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a reader of output waits for an agent that has just started to adopt it.
const ADOPTION_WAIT: Duration = Duration::from_secs(3);
/// How many ranks' ends one frame has.
const EXITS_PER_FRAME_MAX: usize = 8192;
/// How many pieces of output are queued for a slow reader.
const LOG_QUEUE_LEN: usize = 16;

/// Why this head refuses a user's request about a launch.
#[derive(Debug, Error)]
pub enum LaunchRefused {
    #[error("allocation {} is not running on this node", .allocation.short())]
    NotHere { allocation: AllocationId },
    #[error("allocation {} belongs to {owner}", .allocation.short())]
    NotTheOwner { allocation: AllocationId, owner: String },
    #[error(transparent)]
    NotRunning(#[from] NotRunning),
    #[error("a launch of this id belongs to another allocation")]
    OfAnotherAllocation,
    #[error("allocation {} has no launch {}", .allocation.short(), .launch.short())]
    NoLaunch { allocation: AllocationId, launch: LaunchId },
    #[error("launch {} has no standard input", .launch.short())]
    NoInput { launch: LaunchId },
    #[error("a program is needed")]
    NoProgram,
    #[error("{given} ranks on one node; at most {TASKS_PER_NODE_MAX} are possible")]
    TooManyOnOneNode { given: u32 },
    #[error("--pty: rank 0 has the terminal, and must be on the allocation's first node for it")]
    TerminalElsewhere,
    /// Its shape or its binding is malformed.
    #[error(transparent)]
    Malformed(#[from] frame::FrameError),
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error(transparent)]
    Stdin(#[from] NoSuchStdin),
    #[error(transparent)]
    FindLastNumber(#[from] JoinError),
}

/// Serves incoming streams: new ones until `stop`, the open ones until each ends or this is
/// dropped. It must be dropped only once the mesh is closed: a peer may mistake a stream that just
/// ends for a complete answer.
pub async fn serve(context: Shared, mut incoming: mpsc::Receiver<Incoming>, stop: CancellationToken) {
    let mut streams = JoinSet::new();
    let first_frames = Arc::<FirstFrames>::default();
    loop {
        let stream = tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = streams.join_next() => continue,
            stream = incoming.recv() => stream,
        };
        let Some(stream) = stream else { break };
        let (context, first_frames) = (Arc::clone(&context), Arc::clone(&first_frames));
        streams.spawn(async move {
            let peer = stream.peer.clone();
            if let Err(error) = serve_stream(&context, &first_frames, stream).await {
                tracing::debug!(peer = %peer.name, %error, "a peer's stream on the mesh ended badly");
            }
        });
    }
    drop(incoming);
    while streams.join_next().await.is_some() {}
}

async fn serve_stream(context: &Shared, first_frames: &FirstFrames, mut stream: Incoming) -> Result<(), frame::FrameError> {
    let opened = tokio::time::timeout(OPEN_TIMEOUT, first_frames.read(&stream.peer.name, &mut stream.recv)).await;
    let Ok(opened) = opened else {
        let seconds = OPEN_TIMEOUT.as_secs();
        tracing::warn!(peer = %stream.peer.name, seconds, "a peer opened a stream and sent no request in time");
        return Ok(());
    };
    let (opened, held) = opened?;
    if let Err(denied) = access::check(&opened, &context.work.allocations, &stream.peer) {
        match denied {
            Denied::NotOfItsNodes | Denied::NotItsHead => {
                tracing::warn!(peer = %stream.peer.name, why = %denied, "a peer asked for what it may not have");
            }
            Denied::MayNotVouch | Denied::NotTheOwner | Denied::NotHere { .. } => {
                tracing::debug!(peer = %stream.peer.name, why = %denied, "a peer may not open this stream");
            }
        }
        // A peer that does not read its refusal must not keep its request here.
        let refused = tokio::time::timeout(OPEN_TIMEOUT, refusal::refuse(&opened, &denied, &mut stream.send)).await;
        return refused.unwrap_or(Ok(()));
    }
    drop(held);
    match opened {
        Open::Branch(open) => {
            launch::serve(context.work.launches.handles(), &context.parents, &stream.peer, *open, stream.send, stream.recv).await
        }
        Open::Logs(open) => output(context, &open, stream.send).await,
        Open::Launch(open) => launch(context, &open, stream.send).await,
        Open::Attach(open) => over_mesh::serve(context, &stream.peer, &open, stream.send, stream.recv).await,
        Open::Entry(open) => entry_point(context, open, stream.send).await,
        Open::StatusTexts(open) => status_texts::answer(context, &open, &mut stream.send).await,
        Open::Fact(open) => facts::answer(&context.machine.facts, open, &mut stream.send).await,
        Open::Usage(open) => measuring::answer(&context.work.measuring, &open, &mut stream.send).await,
        Open::UsageGpus(open) => devices::answer_gpus(&context.work.measuring, &open, &mut stream.send).await,
        Open::Monitor(open) => monitoring::answer(context, *open, stream.send).await,
        Open::Diagnosis(open) => diagnosis::answer(context, &open, &mut stream.send).await,
        Open::Ranks(open) => diagnosis::ranks::answer(context, &open, &mut stream.send).await,
        Open::Signal(open) => signalling::answer(context, &open, &mut stream.send).await,
        Open::History(open) => history::answer(&context.accounting, open, &mut stream.send).await,
        Open::Steps(open) => steps::answer(context, &open, &mut stream.send).await,
        Open::Fingerprint => conformance::over_mesh::answer(&context.machine.conformance, &mut stream.send).await,
        Open::Keyboard(open) => keyboard(context, &open, stream.send, stream.recv).await,
        Open::Input(open) => input(context, &open, stream.send, stream.recv).await,
        Open::Checkpoint(open) => checkpoint(context, &open, stream.send).await,
        Open::Saving => checkpoint::saving::answer(&context.work.checkpoint, &mut stream.send).await,
        Open::CheckpointPart(open) => checkpoint::serve(&context.work.checkpoint, *open, stream.send, stream.recv).await,
        Open::RelaySession => relay::relay_session(&context.carried, &stream.peer, stream.send, stream.recv).await,
        Open::Abort(open) => {
            let answer = match abort_here(context, &open) {
                Ok(()) => HeadAnswer::Done,
                Err(error) => HeadAnswer::Refused { why: error.to_string() },
            };
            frame::write(&mut stream.send, &answer).await
        }
    }
}

async fn output(context: &Shared, open: &LogsOpen, mut send: SendStream) -> Result<(), frame::FrameError> {
    let allocation = AllocationId(uuid::Uuid::from_bytes(open.allocation));
    let mut items = read_output(context, allocation, Epoch(open.epoch), open);
    loop {
        let item = tokio::select! {
            // The reader has gone: do not wait for what a silent program may write some day.
            _ = send.stopped() => return Ok(()),
            item = items.recv() => item,
        };
        let Some(item) = item else { return Ok(()) };
        frame::write(&mut send, &item).await?;
    }
}

fn at(segment: u32, offset: u64) -> Position {
    Position { segment, offset }
}

/// Whether the output of this launch goes to the files of `--output` and `--error`: that of the script, the command or the
/// tasks does, and that of steps does not.
fn is_of_files(share: &DesiredShare, launch: u32) -> bool {
    share.lane.is_some() || launch == u32::from(matches!(share.spec.entrypoint, Entrypoint::Command { .. }))
}

/// Begins to read this node's output of an allocation. The caller has checked the reader's
/// permission.
pub fn read_output(context: &Shared, allocation: AllocationId, epoch: Epoch, open: &LogsOpen) -> mpsc::Receiver<LogItem> {
    let dir = ShimDir::of(&context.setup.state_dir, allocation, epoch);
    let (out, items) = mpsc::channel(LOG_QUEUE_LEN);
    if !dir.logs().is_dir() {
        let _ = out.try_send(LogItem::NotHere);
        return items;
    }
    let wanted = Wanted {
        launch: open.launch,
        rank: open.rank,
        stdout: open.stdout,
        stderr: open.stderr,
        at_once: open.at_once,
        positions: open.received.iter().map(|(rank, stderr, segment, offset)| ((*rank, *stderr), at(*segment, *offset))).collect(),
        tail: open.tail,
        since_ms: open.since_ms,
        until_ms: open.until_ms,
        dated: open.dated,
    };
    let running = context.work.allocations.of_epoch(allocation, epoch);
    // Before the output, which may be long. The queue is empty, so it has space.
    let has_files = |running: &&AllocationHandle| is_of_files(&running.share, open.launch);
    if let Some(why) = running.as_ref().filter(has_files).and_then(|running| running.detail.borrow().files_late.clone()) {
        let _ = out.try_send(LogItem::Notice(why));
    }
    let follow = running.filter(|_| open.follow).map(|running| (running.activity, context.growth.clone()));
    let spools = context.work.spools.clone();
    let me = context.setup.me.clone();
    context.work.tasks.spawn(async move {
        // An agent that has just started will look after the output that it adopts in a moment.
        let soon = std::time::Instant::now() + ADOPTION_WAIT;
        while dir.config().exists() && spools.running_spool(&dir).is_none() && std::time::Instant::now() < soon {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let spool = match spools.running_spool(&dir) {
            Some(spool) => spool,
            None => {
                let (known, of) = (spools.clone(), dir.clone());
                let Ok(spool) = tokio::task::spawn_blocking(move || known.of(&of, allocation, epoch, &me)).await else { return };
                spool
            }
        };
        logs::tail(dir, spool, spools.store().cloned(), wanted, follow, out).await;
    });
    items
}

async fn entry_point(context: &Shared, open: EntryOpen, mut send: SendStream) -> Result<(), frame::FrameError> {
    let mut items = entry::follow(context, open);
    loop {
        let item = tokio::select! {
            _ = send.stopped() => return Ok(()),
            item = items.recv() => item,
        };
        let Some(item) = item else { return Ok(()) };
        frame::write(&mut send, &item).await?;
    }
}

async fn checkpoint(context: &Shared, open: &CheckpointOpen, mut send: SendStream) -> Result<(), frame::FrameError> {
    let mut items = match checkpoint::begin(&context.work.checkpoint, open).await {
        Ok(items) => items,
        Err(error) => return frame::write(&mut send, &CheckpointItem::Refused { why: error.to_string() }).await,
    };
    loop {
        let item = tokio::select! {
            _ = send.stopped() => return Ok(()),
            item = items.recv() => item,
        };
        let Some(item) = item else { return Ok(()) };
        frame::write(&mut send, &item).await?;
    }
}

async fn launch(context: &Shared, open: &LaunchOpen, mut send: SendStream) -> Result<(), frame::FrameError> {
    let mut items = match begin(context, open).await {
        Ok(items) => items,
        Err(error) => return frame::write(&mut send, &LaunchItem::Refused { why: error.to_string() }).await,
    };
    let id = LaunchId(uuid::Uuid::from_bytes(open.id));
    loop {
        let item = tokio::select! {
            _ = send.stopped() => return Ok(()),
            item = items.recv() => item,
        };
        let Some(item) = item else { return Ok(()) };
        let ended = matches!(item, LaunchItem::Ended { .. });
        frame::write(&mut send, &item).await?;
        if ended {
            // The end is acknowledged only once the peer has it: if the stream breaks before, the
            // peer asks again.
            let _ = send.finish();
            if send.stopped().await.is_ok() {
                context.work.launches.acknowledge_end(id);
            }
            return Ok(());
        }
    }
}

/// Begins a user's launch on this head, or finds it by its id, and gives its progress. Waits a
/// moment for an allocation that is about to run, or whose shim has not reported everything: an id
/// is unknown only after that.
pub async fn begin(context: &Shared, open: &LaunchOpen) -> Result<mpsc::Receiver<LaunchItem>, LaunchRefused> {
    let id = LaunchId(uuid::Uuid::from_bytes(open.id));
    let allocation = AllocationId(uuid::Uuid::from_bytes(open.allocation));
    let handle = context.work.allocations.of_epoch(allocation, Epoch(open.epoch)).ok_or(LaunchRefused::NotHere { allocation })?;
    let share = Arc::clone(&handle.share);
    if !vouched(open.uid, &open.user).may_act_for(&share.owner) {
        return Err(LaunchRefused::NotTheOwner { allocation, owner: share.owner.name.clone() });
    }
    handle.wait_until_running().await?;
    let exits = open.ask.exits;
    let view = match context.work.launches.get(id) {
        Some(view) if view.spec.allocation == allocation => view,
        Some(_) => return Err(LaunchRefused::OfAnotherAllocation),
        None => {
            let asked = ShapeRequest::try_from(open.ask.clone())?;
            let share = with_start(context, share);
            let spec = launch_spec(&share, id, open, &asked, &context.setup.slurm)?;
            context.work.launches.begin_next(&share, spec).await?
        }
    };
    let (out, items) = mpsc::channel(4);
    let mut ended = view.ended;
    context.work.tasks.spawn(async move {
        let started =
            LaunchItem::Started { number: view.spec.number, nodes: lattice_mesh::launch::wire_nodes(view.spec.nodes_with_ranks()) };
        if out.send(started).await.is_err() {
            return;
        }
        let end = tokio::select! {
            () = out.closed() => return,
            end = ended.wait_for(Option::is_some) => end.ok().and_then(|e| e.clone()),
        };
        if let Some(end) = end.as_ref().filter(|_| exits) {
            for some in exits_of(&view.spec, end).chunks(EXITS_PER_FRAME_MAX) {
                if out.send(LaunchItem::Exits(some.to_vec())).await.is_err() {
                    return;
                }
            }
        }
        let item = match end {
            Some(end) => LaunchItem::Ended { code: end.code, aborted: end.aborted },
            None => LaunchItem::Refused { why: "the allocation was ended".to_owned() },
        };
        let _ = out.send(item).await;
    });
    Ok(items)
}

/// Aborts a launch of this head, for its allocation's owner.
pub fn abort_here(context: &Shared, open: &AbortOpen) -> Result<(), LaunchRefused> {
    let (handle, id) = launch_of(context, open)?;
    // Agents vouch as root for all who act by a role.
    let who = if open.uid == 0 && handle.share.owner.uid != 0 { "an administrator" } else { open.user.as_str() };
    context.work.launches.abort(id, 130, who.to_owned());
    Ok(())
}

/// Sends keyboard input of a user to the terminal of a launch of this head.
async fn keyboard(context: &Shared, open: &AbortOpen, mut send: SendStream, mut recv: RecvStream) -> Result<(), frame::FrameError> {
    let (handle, id) = match launch_of(context, open) {
        Ok(launch) => launch,
        Err(error) => return frame::write(&mut send, &HeadAnswer::Refused { why: error.to_string() }).await,
    };
    frame::write(&mut send, &HeadAnswer::Done).await?;
    loop {
        match frame::read(&mut recv).await {
            Ok(message) => handle.send_input(id, message).await,
            Err(frame::FrameError::Ended) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Receives a user's standard input for a launch of this head.
async fn input(context: &Shared, open: &AbortOpen, mut send: SendStream, mut recv: RecvStream) -> Result<(), frame::FrameError> {
    let InputPort { pieces, mut taken } = match input_of(context, open) {
        Ok(port) => port,
        Err(error) => return frame::write(&mut send, &HeadAnswer::Refused { why: error.to_string() }).await,
    };
    frame::write(&mut send, &HeadAnswer::Done).await?;
    let comes = async {
        loop {
            match frame::read::<WireInputChunk, _>(&mut recv).await {
                Ok(piece) => drop(pieces.send(piece).await),
                Err(frame::FrameError::Ended) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    };
    let goes = async {
        while let Some(now) = next_taken(&mut taken).await {
            frame::write(&mut send, &WireInputAck::from(now)).await?;
        }
        Ok::<_, frame::FrameError>(())
    };
    tokio::select! { ended = comes => ended, ended = goes => ended }
}

/// The port for standard input of a launch of this head.
pub fn input_of(context: &Shared, open: &AbortOpen) -> Result<InputPort, LaunchRefused> {
    let (_, id) = launch_of(context, open)?;
    let port = context.work.launches.get(id).filter(|launch| launch.spec.stdin() != Ok(Stdin::None)).map(|launch| launch.input);
    port.ok_or(LaunchRefused::NoInput { launch: id })
}

/// A launch of this head, of an allocation that the user owns.
pub fn launch_of(context: &Shared, open: &AbortOpen) -> Result<(AllocationHandle, LaunchId), LaunchRefused> {
    let allocation = AllocationId(uuid::Uuid::from_bytes(open.allocation));
    let handle = context.work.allocations.of_epoch(allocation, Epoch(open.epoch));
    let handle = handle.ok_or(LaunchRefused::NotHere { allocation })?;
    if !vouched(open.uid, &open.user).may_act_for(&handle.share.owner) {
        return Err(LaunchRefused::NotTheOwner { allocation, owner: handle.share.owner.name.clone() });
    }
    let id = LaunchId(uuid::Uuid::from_bytes(open.id));
    let ours = context.work.launches.get(id).is_some_and(|l| l.spec.allocation == allocation);
    if ours { Ok((handle, id)) } else { Err(LaunchRefused::NoLaunch { allocation, launch: id }) }
}

/// How each rank ended, with the index of its node among those with ranks.
fn exits_of(spec: &LaunchSpec, end: &LaunchEnd) -> Vec<(u32, u32, Option<WireOutcome>)> {
    let empty = usize::from(spec.has_empty_head());
    let of_run = |run: RankRun| {
        let place = u32::try_from(run.node - empty).unwrap_or(u32::MAX);
        (run.first..run.first + run.count).map(move |rank| (rank, place))
    };
    let ended = |(rank, place)| match end.bad.get(&rank) {
        None => (rank, place, Some(WireOutcome::Exited(0))),
        Some(RankEnd::Ended(outcome)) => (rank, place, Some((*outcome).into())),
        Some(RankEnd::Lost) => (rank, place, None),
    };
    spec.runs().into_iter().flat_map(of_run).map(ended).collect()
}

/// The share with the time at which its work began, as the quorum recorded it.
fn with_start(context: &Shared, share: Arc<DesiredShare>) -> Arc<DesiredShare> {
    let view = context.work.view.borrow();
    let local = view.locals.iter().find(|local| (local.share.allocation, local.share.epoch) == (share.allocation, share.epoch));
    match local.and_then(|local| local.share.started_at).filter(|_| share.started_at.is_none()) {
        Some(at) => Arc::new(DesiredShare { started_at: Some(at), ..DesiredShare::clone(&share) }),
        None => share,
    }
}

fn launch_spec(
    share: &DesiredShare,
    id: LaunchId,
    open: &LaunchOpen,
    asked: &ShapeRequest,
    slurm: &SlurmSettings,
) -> Result<LaunchSpec, LaunchRefused> {
    if open.argv.first().is_none_or(String::is_empty) {
        return Err(LaunchRefused::NoProgram);
    }
    let mut names: Vec<NodeId> = share.nodes.to_vec();
    if asked.nodes as usize > names.len() {
        return Err(LayoutError::TooFewNodes { asked: asked.nodes, there: names.len() }.into());
    }
    if asked.nodes > 0 {
        names.truncate(asked.nodes as usize);
    }
    let per_node = if open.tasks_per_node > 0 { Some(open.tasks_per_node) } else { None };
    if let Some(given) = per_node.filter(|given| *given > TASKS_PER_NODE_MAX) {
        return Err(LaunchRefused::TooManyOnOneNode { given });
    }
    let (mut shape, kill_on_bad_exit) = asked.over(&share.spec.launch);
    shape.slurm_env |= slurm.for_all_work;
    // A launch without any shape has the allocation's number of ranks.
    let is_usual = per_node.is_none() && asked.nodes == 0 && asked.listed.is_empty() && asked.programs.is_empty();
    let usual = Some(share.spec.launch.ranks).filter(|ranks| is_usual && *ranks > 0);
    let given = (open.ranks > 0).then_some(open.ranks).or(usual);
    let laid = if asked.listed.is_empty() {
        let everywhere = per_node.unwrap_or(share.spec.tasks_per_node).saturating_mul(u32::try_from(names.len()).unwrap_or(u32::MAX));
        // If a number of nodes was asked for, that many get ranks: dealt out evenly, no node
        // exceeds its limit.
        let fits = |ranks: &u32| asked.nodes > 0 && *ranks <= everywhere && shape.distribution == Distribution::Block;
        let limit = if given.as_ref().is_some_and(fits) { None } else { per_node };
        lay_out(&names, given.unwrap_or(everywhere), limit, &shape.distribution)
    } else {
        list_out(&names, &asked.listed, given, per_node).map(|(nodes, distribution)| {
            shape.distribution = distribution;
            nodes
        })
    };
    let nodes = laid?;
    if open.pty.is_some() && nodes.first().is_some_and(|head| head.first != 0 || head.count == 0) {
        return Err(LaunchRefused::TerminalElsewhere);
    }
    let working_dir = if open.working_dir.is_empty() { share.spec.working_dir.clone() } else { open.working_dir.clone().into() };
    let launch = LaunchSpec {
        id,
        number: 0,
        allocation: share.allocation,
        epoch: share.epoch,
        argv: open.argv.clone(),
        env: environment::of_launch(share, id, &nodes, &shape, open.env.iter().cloned(), slurm),
        working_dir,
        nodes,
        shape,
        kill_on_bad_exit,
        pty: open.pty.map(|(rows, columns)| size(rows, columns)),
        binding: BindingRequest::try_from(open.binding)?.over(share.spec.binding),
    };
    launch.check()?;
    launch.stdin()?;
    Ok(launch)
}

#[cfg(test)]
mod tests;
