//! `AllocationService.Attach`: a user's terminal in an allocation, on this node or another.

use super::access::{AccessTarget, shown};
use super::caller::Caller;
use super::target::{Target, target};
use super::{Api, command};
use lattice_agent_common::user_quota::UserSlot;
use lattice_api::v1;
use lattice_api::v1::attach_event::{Ended, Started, What as Shown};
use lattice_api::v1::attach_request::{Start, What as Typed};
use lattice_ledger::{Access, AccessKind};
use lattice_mesh::UnreachedNode;
use lattice_mesh::terminal::{AttachOpen, FromTerminal, ToTerminal};
use lattice_meshd::terminal::{self, Asker, Ends, over_mesh};
use lattice_model::access::Roles;
use lattice_model::{NodeId, hostlist};
use lattice_quorum_client::for_same_caller;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Status, Streaming};
use uuid::Uuid;

/// How many events are queued for a slow caller.
const ITEMS_QUEUE_LEN: usize = 16;
/// How long a caller may take to send its first message.
const START_WAIT: Duration = Duration::from_secs(5);
/// The largest piece of input, in bytes.
pub(super) const INPUT_BYTES_MAX: usize = 128 * 1024;
/// The longest name of a terminal type, in bytes.
const TERM_BYTES_MAX: usize = 64;

type Events = mpsc::Sender<Result<v1::AttachEvent, Status>>;

/// Opens a terminal in an allocation. The receiver gives its events.
pub(super) async fn attach(
    api: &Api,
    request: Request<Streaming<v1::AttachRequest>>,
) -> Result<mpsc::Receiver<Result<v1::AttachEvent, Status>>, Status> {
    let caller = api.caller(&request).await?;
    let mut requests = request.into_inner();
    let start = first(&mut requests).await?;
    let target = target(api, &caller, &start.key).await?;
    let node = node_of(&start.node, &target)?;
    let (allocation, here) = (target.allocation, node == api.context.setup.me);
    if caller.principal.is_root() && !caller.principal.owns(&target.owner) && !here {
        check_root_elsewhere(api, &caller, &target, &node).await?;
    }
    let asker = Asker { user: caller.vouched_for(&target.owner), peer: None };
    let place = api.context.attached.take(caller.principal.uid, api.context.setup.attach_max_concurrent);
    let place = place.ok_or_else(|| Status::resource_exhausted(over_mesh::too_many(&api.context, &caller.principal.name).to_string()))?;
    let open = wanted(start, &target, &asker)?;
    let session = Uuid::new_v4();
    let accessed = AccessTarget { allocation, owner: &target.owner, node: Some(&node) };
    let what = format!("session {}: {}", session.simple(), shown(&open.argv));
    let access = api.access(session, &caller.principal, AccessKind::AttachStarted, &accessed, &what);
    let (out, events) = mpsc::channel(ITEMS_QUEUE_LEN);
    let (api, started) = (api.clone(), Started { allocation: allocation.to_string(), node: node.to_string() });
    // A task of its own: the end of a recorded session is recorded even if the caller disconnects.
    let begun = api.tasks.clone().spawn(for_same_caller(async move {
        api.record_access(access.clone()).await?;
        let recorded = Recorded { api: api.clone(), access, since: Instant::now() };
        let ends = match connected(&api, &node, open, asker).await {
            Ok(ends) => ends,
            Err(why) => return Err(recorded.refused(why)),
        };
        api.tasks.spawn(relay_terminal(ends, requests, out, started, place, recorded));
        Ok(())
    }));
    begun.await.map_err(|error| Status::internal(error.to_string()))??;
    Ok(events)
}

/// Root attaches to others' work on the node itself, and elsewhere by a granted role alone: towards other nodes, this
/// agent vouches for roles.
async fn check_root_elsewhere(api: &Api, caller: &Caller, target: &Target, node: &NodeId) -> Result<(), Status> {
    if caller.within.is_none() && api.site.vouches {
        let roles = Roles { root: false, ..api.standing(caller).await?.roles };
        if roles.may(&caller.method, roles.relation(&caller.principal, &target.owner, &target.tenant)) {
            return Ok(());
        }
    }
    let whose = if caller.private { "another user" } else { &target.owner.name };
    let text = format!(
        "allocation {} belongs to {whose}: its owner, admins of its tenant and system admins may attach, and root on {node} itself",
        target.allocation.short()
    );
    Err(Status::permission_denied(text))
}

/// Opens the terminal, here or at the agent of `node`.
async fn connected(api: &Api, node: &NodeId, open: AttachOpen, asker: Asker) -> Result<Ends, Status> {
    if *node == api.context.setup.me {
        return terminal::attach(&api.context, &open, asker).await.map_err(|error| Status::failed_precondition(error.to_string()));
    }
    let dialled = match api.mesh_address(node).await {
        Some(address) => over_mesh::dial(&api.context, node, &address, open).await,
        None => Err(UnreachedNode::NoAddress),
    };
    dialled.map_err(|why| Status::unavailable(format!("node {node} cannot be reached: {why}")))
}

/// A session whose beginning is in the audit log. Its end must be recorded there as well.
struct Recorded {
    api: Api,
    access: Access,
    since: Instant,
}

impl Recorded {
    async fn ended(self, how: &str) {
        let seconds = self.since.elapsed().as_secs();
        self.api.ended(&self.access, &format!("closed after {seconds} s: {how}")).await;
    }

    /// The session failed to begin. The caller gets the reason at once; a background task writes it
    /// to the audit log.
    fn refused(self, why: Status) -> Status {
        let how = why.message().to_owned();
        self.api.tasks.clone().spawn(async move { self.ended(&how).await });
        why
    }
}

async fn first(requests: &mut Streaming<v1::AttachRequest>) -> Result<Start, Status> {
    let first = tokio::time::timeout(START_WAIT, requests.message()).await;
    match first.map_err(|_| Status::deadline_exceeded("attach: the first message is missing"))?? {
        Some(v1::AttachRequest { what: Some(Typed::Start(start)) }) => Ok(start),
        Some(_) | None => Err(Status::invalid_argument("attach: the first message must be `start`")),
    }
}

fn node_of(name: &str, target: &Target) -> Result<NodeId, Status> {
    if name.is_empty() {
        return Ok(target.head.clone());
    }
    let own = target.nodes.iter().find(|node| node.as_str() == name).cloned();
    own.ok_or_else(|| {
        let nodes = hostlist::fold(&target.nodes);
        Status::invalid_argument(format!("node: allocation {} has no node {name:?}; it has {nodes}", target.allocation.short()))
    })
}

fn wanted(start: Start, target: &Target, asker: &Asker) -> Result<AttachOpen, Status> {
    if !start.argv.is_empty() {
        command::check(std::iter::once(&start.argv), &std::collections::HashMap::new())
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
    }
    // The name is used for the terminal database and in environments.
    let term_is_plain = start.term.len() <= TERM_BYTES_MAX && start.term.bytes().all(|b| b.is_ascii_graphic());
    let (rows, columns) = size(start.size);
    Ok(AttachOpen {
        allocation: *target.allocation.0.as_bytes(),
        epoch: target.epoch.0,
        argv: start.argv,
        term: if term_is_plain { start.term } else { String::new() },
        rows,
        columns,
        input_is_terminal: start.input_is_terminal,
        output_is_terminal: start.output_is_terminal,
        uid: asker.user.uid,
        user: asker.user.name.clone(),
    })
}

pub(super) fn size(size: Option<v1::TerminalSize>) -> (u16, u16) {
    let size = size.unwrap_or_default();
    let fits = |n: u32| u16::try_from(n).unwrap_or(u16::MAX);
    (fits(size.rows), fits(size.columns))
}

/// Carries input and output until the session ends or its caller disconnects. Until then the
/// session counts towards its user's limit of terminals (`slot`).
async fn relay_terminal(
    ends: Ends,
    requests: Streaming<v1::AttachRequest>,
    out: Events,
    started: Started,
    slot: UserSlot,
    recorded: Recorded,
) {
    let node = started.node.clone();
    let Ends { keyboard, mut screen } = ends;
    let typing = AbortOnDropHandle::new(tokio::spawn(type_on(requests, keyboard)));
    let mut started = Some(started);
    let mut over = None;
    while over.is_none() {
        let item = tokio::select! {
            () = out.closed() => break,
            item = screen.recv() => item,
        };
        let event = match item {
            Some(FromTerminal::Started) => match started.take() {
                Some(started) => Ok(Shown::Started(started)),
                None => continue,
            },
            Some(FromTerminal::Output(bytes)) => Ok(Shown::Output(bytes)),
            Some(FromTerminal::Notice(text)) => Ok(Shown::Notice(text)),
            Some(FromTerminal::Ended { code }) => Ok(Shown::Ended(Ended { code })),
            Some(FromTerminal::Refused { why }) => Err(Status::failed_precondition(why)),
            None => Err(Status::unavailable(format!("the connection to node {node} is lost: the terminal is closed"))),
        };
        over = match &event {
            Ok(Shown::Ended(ended)) => Some(format!("its program ended with {}", ended.code)),
            Err(why) => Some(why.message().to_owned()),
            Ok(Shown::Started(_) | Shown::Output(_) | Shown::Notice(_)) => None,
        };
        if out.send(event.map(|what| v1::AttachEvent { what: Some(what) })).await.is_err() {
            break;
        }
    }
    drop(typing);
    drop(slot);
    recorded.ended(over.as_deref().unwrap_or("its caller disconnected")).await;
}

/// Forwards input until the caller's stream ends, which hangs the session up.
async fn type_on(mut requests: Streaming<v1::AttachRequest>, keyboard: mpsc::Sender<ToTerminal>) {
    while let Ok(Some(request)) = requests.message().await {
        let message = match request.what {
            Some(Typed::Input(bytes)) if bytes.len() <= INPUT_BYTES_MAX => ToTerminal::Input(bytes),
            Some(Typed::Size(given)) => {
                let (rows, columns) = size(Some(given));
                ToTerminal::Size { rows, columns }
            }
            Some(Typed::End(_)) => ToTerminal::EndOfInput,
            // Too much input, a second start, or an empty message: the caller breaks the protocol.
            Some(Typed::Input(_) | Typed::Start(_)) | None => return,
        };
        if keyboard.send(message).await.is_err() {
            return;
        }
    }
}
