//! Terminals attached to allocations of this node: the agent has the pty's master, and the shim
//! starts a program at the other end.
//!
//! ```text
//!   caller ──keyboard──▶ Session ──▶ master ═ pty ═ program, started by the shim in the allocation's scope and mounts
//!          ◀──screen────    │   ◀──
//!                           └─ report of its end, through the allocation's task
//! ```
//!
//! A session lives while all of these do: the program, the caller, the allocation, this agent. When
//! the first of them ends, the master closes, and the kernel hangs up the program's session.
//! Nothing is queued without bound: output is read only when the caller can take it, and input is
//! accepted only when the terminal has taken what came before.
//!
//! The owner of the master decides how long a terminal lives. An attached terminal ends with the
//! agent, as users expect of a lost connection, so nothing must be adopted. A terminal of `launch
//! --pty` belongs to the work and must outlive agents, so the shim has that master, and its output
//! goes into the rank's log file. With one mechanism for both, the shim, which also carries fences,
//! would carry all output of attached terminals.

pub mod over_mesh;

use crate::context::{Context, Shared};
use lattice_allocation::node_environment;
use lattice_mesh::terminal::{AttachOpen, FromTerminal, ToTerminal, size};
use lattice_model::{AllocationId, AllocationState, DesiredShare, EndReason, Epoch, NodeId, PreemptCause, Principal};
use lattice_node::{CheckpointEnd, Checkpointing};
use lattice_pki::identity::{Caller, Role};
use lattice_registry::{AllocationHandle, NotRunning, OpenTerminal, RunState, TerminalEvent};
use lattice_runtime::failpoint::{self, Point};
use lattice_runtime::pty::{self, Modes, Terminal};
use nix::errno::Errno;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinError;

/// How many messages are queued for the terminal, and for the caller.
const OUTPUT_QUEUE_LEN: usize = 16;
/// How many bytes are read from a terminal at once.
const CHUNK_BYTES: usize = 16 * 1024;
/// How long a shim may take to start a program.
const START_WAIT: Duration = Duration::from_secs(10);
/// How long to wait for a program's last output after its end. A child that it left may hold the
/// terminal for longer.
const DRAIN_WAIT: Duration = Duration::from_millis(300);
/// How long to wait for the report of the program's end after the last output.
const END_WAIT: Duration = Duration::from_secs(3);
/// How long to wait for the report that the quorum has suspended work that is being ended.
const SUSPENDED_WAIT: Duration = Duration::from_secs(1);
/// The exit code that a shell reports for a program that got SIGHUP.
const HANGUP_EXIT_CODE: i32 = 128 + 1;

/// Both ends of a session, for the task that connects it to its caller. Dropping either end hangs
/// up the session.
pub struct Ends {
    pub keyboard: mpsc::Sender<ToTerminal>,
    pub screen: mpsc::Receiver<FromTerminal>,
}

/// Who attaches, and how the request came.
pub struct Asker {
    pub user: Principal,
    /// The agent that vouches for the user; `None`: a caller on this node's own socket.
    pub peer: Option<Caller>,
}

impl Asker {
    /// Whether the user may attach: the owner may, and root on this node's own socket. An agent of role `api` vouches
    /// as root for users whose roles it has checked. Root of another node has no rights here.
    pub fn may_attach_to(&self, owner: &Principal) -> bool {
        let by_role = self.peer.as_ref().is_none_or(|peer| peer.role == Role::Api);
        self.user.owns(owner) || (self.user.is_root() && by_role)
    }
}

/// Why no terminal is attached.
#[derive(Debug, Error)]
pub enum AttachError {
    #[error("{user} has {most} of {most} terminals attached by way of node {node}: close one to open another")]
    TooMany { user: String, most: usize, node: NodeId },
    #[error("allocation {} is not running on node {node}", .allocation.short())]
    NotHere { allocation: AllocationId, node: NodeId },
    #[error(
        "allocation {} is another user's: its owner, admins of its tenant and system admins may attach, and root on the node itself",
        .allocation.short()
    )]
    NotTheOwner { allocation: AllocationId },
    #[error(transparent)]
    NotRunning(#[from] NotRunning),
    #[error(transparent)]
    Broke(#[from] JoinError),
    #[error("no terminal could be made on node {node}: {source}")]
    Make { node: NodeId, source: io::Error },
    #[error("the terminal cannot be watched: {0}")]
    Watch(#[source] io::Error),
}

/// Opens a terminal in an allocation of this node.
pub async fn attach(context: &Shared, open: &AttachOpen, asker: Asker) -> Result<Ends, AttachError> {
    let allocation = AllocationId(uuid::Uuid::from_bytes(open.allocation));
    let short = allocation.short();
    let handle = context.work.allocations.of_epoch(allocation, Epoch(open.epoch));
    let handle = handle.ok_or_else(|| AttachError::NotHere { allocation, node: context.setup.me.clone() })?;
    let owner = &handle.share.owner;
    if !asker.may_attach_to(owner) {
        return Err(AttachError::NotTheOwner { allocation });
    }
    handle.wait_until_running().await?;
    let made = {
        let (context, share, open) = (Arc::clone(context), Arc::clone(&handle.share), open.clone());
        tokio::task::spawn_blocking(move || make(&context, &share, &open)).await?
    };
    let made = made.map_err(|source| AttachError::Make { node: context.setup.me.clone(), source })?;
    failpoint::pass(Point::TerminalMade);
    let Terminal { master, slave, path } = made.terminal;
    let session = rand::random();
    let (news, events) = mpsc::channel(2);
    let (keyboard, typed) = mpsc::channel(OUTPUT_QUEUE_LEN);
    let (screen, shown) = mpsc::channel(OUTPUT_QUEUE_LEN);
    let run_state = handle.run_state.clone();
    // SAFETY: an OwnedFd is an open descriptor, and stays the same one until the AsyncFd that owns
    // it is dropped.
    let master = unsafe { AsyncFd::register_with_interest(master, tokio::io::Interest::READABLE | tokio::io::Interest::WRITABLE) };
    let master = master.map_err(|error| AttachError::Watch(error.into()))?;
    let argv = made.argv.clone();
    handle.open_terminal(OpenTerminal { session, tty: path, argv: made.argv, env: made.env, working_dir: made.working_dir, news }).await;
    let session = Session { master, events, typed, screen, run_state, short, line_begun: false, waiting: Vec::new() };
    let preempted = preempted(Arc::clone(context), Arc::clone(&handle.share));
    context.work.tasks.spawn(watched(Arc::clone(context), handle, asker, argv, session.run(slave, preempted)));
    Ok(Ends { keyboard, screen: shown })
}

struct Made {
    terminal: Terminal,
    argv: Vec<String>,
    env: Vec<(String, String)>,
    working_dir: PathBuf,
}

/// Prepares the terminal. Queries the account database, which may take long.
fn make(context: &Context, share: &lattice_model::DesiredShare, open: &AttachOpen) -> io::Result<Made> {
    let account = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(share.owner.uid)).ok().flatten();
    let shell = account.map(|a| a.shell.to_string_lossy().into_owned()).filter(|s| !s.is_empty());
    let shell = shell.unwrap_or_else(|| "/bin/sh".to_owned());
    let modes = Modes { echo: open.input_is_terminal, cooked_output: open.output_is_terminal };
    let terminal = pty::open(&share.owner, size(open.rows, open.columns), modes)?;
    let env = node_environment::of_terminal(share, &context.work, &open.term, &shell);
    let argv = if open.argv.is_empty() { vec![shell] } else { open.argv.clone() };
    Ok(Made { terminal, argv, env, working_dir: share.spec.working_dir.clone() })
}

/// Runs a session, and logs who attached to what and how it ended.
async fn watched(context: Shared, handle: AllocationHandle, asker: Asker, argv: Vec<String>, session: impl Future<Output = SessionEnd>) {
    let (allocation, owner, user) = (handle.share.allocation, &handle.share.owner.name, &asker.user.name);
    let (node, by) = (&context.setup.me, asker.peer.as_ref().map_or("this node's socket", |peer| peer.name.as_str()));
    let program = argv.first().map_or("", String::as_str);
    tracing::info!(%user, uid = asker.user.uid, %owner, %allocation, %node, %by, %program, "a terminal was attached");
    let since = Instant::now();
    let over = session.await;
    failpoint::pass(Point::TerminalClosed);
    let seconds = since.elapsed().as_secs();
    tracing::info!(%user, uid = asker.user.uid, %owner, %allocation, %node, %by, %program, seconds, %over, "an attached terminal was closed");
}

/// How a session ended.
#[derive(Debug, PartialEq, Eq)]
enum SessionEnd {
    /// Its program ended, with this code.
    Ended(i32),
    /// Its caller has gone.
    Left,
    /// Its allocation does not allow terminals any more.
    Closed(String),
    /// It never began, or how its program ended will not be known.
    Failed(String),
}

impl fmt::Display for SessionEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended(code) => write!(f, "its program ended with {code}"),
            Self::Left => f.write_str("its caller has disconnected"),
            Self::Closed(why) | Self::Failed(why) => f.write_str(why),
        }
    }
}

struct Session {
    master: AsyncFd<OwnedFd>,
    events: mpsc::Receiver<TerminalEvent>,
    typed: mpsc::Receiver<ToTerminal>,
    screen: mpsc::Sender<FromTerminal>,
    run_state: watch::Receiver<RunState>,
    short: String,
    /// Whether anything was typed since the last end of line.
    line_begun: bool,
    /// Input that the terminal has not taken yet.
    waiting: Vec<u8>,
}

/// What ended the exchange between a caller and a program.
enum Break {
    Event(TerminalEvent),
    /// No process has the programs' end open any more.
    Silent,
    Left,
    Closed(String),
}

impl Session {
    /// `slave` is held until a program has it, because a terminal that no process holds is hung up.
    /// `preempted` is awaited once the allocation is being ended; it gives the text for a user
    /// whose work gives its nodes back.
    async fn run(mut self, slave: OwnedFd, preempted: impl Future<Output = Option<String>>) -> SessionEnd {
        let started = tokio::time::timeout(START_WAIT, self.events.recv()).await;
        match started {
            Ok(Some(TerminalEvent::Started)) => drop(slave),
            Ok(Some(TerminalEvent::Ended { outcome, why })) => return self.ended(outcome.code(), why).await,
            Ok(Some(TerminalEvent::Lost { why })) => return self.failed(why).await,
            Ok(None) => return self.failed(format!("allocation {} is being ended", self.short)).await,
            Err(_) => {
                let why = format!("the shim did not start it within {} s: its machine may be overloaded", START_WAIT.as_secs());
                return self.failed(why).await;
            }
        }
        if self.screen.send(FromTerminal::Started).await.is_err() {
            return SessionEnd::Left;
        }
        match self.run_until_break().await {
            Break::Event(TerminalEvent::Started) | Break::Left => SessionEnd::Left,
            Break::Event(TerminalEvent::Lost { why }) => self.failed(why).await,
            Break::Event(TerminalEvent::Ended { outcome, why }) => {
                // The program's last output is still in the terminal.
                let _ = tokio::time::timeout(DRAIN_WAIT, async { while send_output(&self.master, &self.screen).await {} }).await;
                self.ended(outcome.code(), why).await
            }
            Break::Silent => match tokio::time::timeout(END_WAIT, self.events.recv()).await {
                Ok(Some(TerminalEvent::Ended { outcome, why })) => self.ended(outcome.code(), why).await,
                Ok(Some(TerminalEvent::Lost { why })) => self.failed(why).await,
                // The program closed its terminal and lives on without it.
                Ok(Some(TerminalEvent::Started) | None) | Err(_) => self.ended(HANGUP_EXIT_CODE, None).await,
            },
            Break::Closed(why) => {
                let why = preempted.await.unwrap_or(why);
                let _ = self.screen.send(FromTerminal::Notice(why.clone())).await;
                let _ = self.screen.send(FromTerminal::Ended { code: HANGUP_EXIT_CODE }).await;
                SessionEnd::Closed(why)
            }
        }
    }

    async fn ended(&self, code: i32, why: Option<String>) -> SessionEnd {
        if let Some(why) = why {
            let _ = self.screen.send(FromTerminal::Notice(why)).await;
        }
        let _ = self.screen.send(FromTerminal::Ended { code }).await;
        SessionEnd::Ended(code)
    }

    async fn failed(&self, why: String) -> SessionEnd {
        let _ = self.screen.send(FromTerminal::Refused { why: why.clone() }).await;
        SessionEnd::Failed(why)
    }

    /// Carries bytes both ways until an event ends it.
    async fn run_until_break(&mut self) -> Break {
        loop {
            tokio::select! {
                news = self.events.recv() => {
                    return news.map_or_else(|| Break::Closed(format!("allocation {} has left this node", self.short)), Break::Event);
                }
                more = send_output(&self.master, &self.screen) => {
                    if !more {
                        return if self.screen.is_closed() { Break::Left } else { Break::Silent };
                    }
                }
                message = self.typed.recv(), if self.waiting.is_empty() => {
                    let Some(message) = message else { return Break::Left };
                    self.handle_input(message);
                }
                taken = write_input(&self.master, &self.waiting), if !self.waiting.is_empty() => {
                    drop(self.waiting.drain(..taken));
                }
                () = self.screen.closed() => return Break::Left,
                why = closed(&mut self.run_state, &self.short) => return Break::Closed(why),
            }
        }
    }

    fn handle_input(&mut self, message: ToTerminal) {
        let master = self.master.get_ref().as_fd();
        match message {
            ToTerminal::Input(bytes) => {
                failpoint::pass(Point::TerminalTyped);
                self.line_begun = bytes.last().map_or(self.line_begun, |last| *last != b'\n');
                self.waiting = bytes;
            }
            ToTerminal::Size { rows, columns } => {
                let _ = pty::set_size(master, size(rows, columns));
            }
            ToTerminal::EndOfInput => self.waiting = pty::end_of_input(master, self.line_begun).unwrap_or_default(),
        }
    }
}

/// Sends a piece of output to the caller, once there is one and the caller can take it. `false`:
/// there will be no more. Cancel-safe.
async fn send_output(master: &AsyncFd<OwnedFd>, screen: &mpsc::Sender<FromTerminal>) -> bool {
    let Ok(room) = screen.reserve().await else { return false };
    let mut chunk = vec![0; CHUNK_BYTES];
    let read = master.async_io(tokio::io::Interest::READABLE, |fd| nix::unistd::read(fd, &mut chunk).map_err(io::Error::from)).await;
    match read {
        Ok(n) if n > 0 => {
            chunk.truncate(n);
            room.send(FromTerminal::Output(chunk));
            true
        }
        Err(error) if error.raw_os_error() == Some(Errno::EINTR as i32) => true,
        Ok(_) | Err(_) => false,
    }
}

/// Writes as much input as the terminal takes, once it takes some. Cancel-safe. If the terminal is
/// gone, the input counts as written: reading will notice that it is gone.
async fn write_input(master: &AsyncFd<OwnedFd>, bytes: &[u8]) -> usize {
    let written = master.async_io(tokio::io::Interest::WRITABLE, |fd| nix::unistd::write(fd, bytes).map_err(io::Error::from)).await;
    match written {
        Ok(n) => n,
        Err(error) if error.raw_os_error() == Some(Errno::EINTR as i32) => 0,
        Err(_) => bytes.len(),
    }
}

/// Waits until the allocation no longer allows a terminal, and gives the reason.
async fn closed(run_state: &mut watch::Receiver<RunState>, short: &str) -> String {
    loop {
        match *run_state.borrow_and_update() {
            // The connection to the shim may break and be made again; the program keeps its
            // terminal.
            RunState::NotYet | RunState::Running => {}
            RunState::Ending => return format!("allocation {short} is being ended: the terminal is closed"),
        }
        if run_state.changed().await.is_err() {
            return format!("allocation {short} has left this node: the terminal is closed");
        }
    }
}

/// The text about work that is being ended because it saved itself to give its nodes back; `None`:
/// it ends for another reason.
async fn preempted(context: Shared, share: Arc<DesiredShare>) -> Option<String> {
    let (allocation, epoch) = (share.allocation, share.epoch);
    share.spec.checkpoint?;
    // The head knows before the quorum does; the other nodes end the work because the quorum
    // suspended it.
    let order = {
        let view = context.work.view.borrow();
        let local = view.locals.iter().find(|local| (local.share.allocation, local.share.epoch) == (allocation, epoch));
        local.and_then(|local| local.share.preempt.clone())
    };
    // Work that a scale-down ends does not come back.
    if order.as_ref().is_some_and(|order| order.cause == PreemptCause::ScaleDown) {
        return None;
    }
    let whole = |view: watch::Receiver<Checkpointing>| matches!(view.borrow().end(), Some(CheckpointEnd::Complete { .. }));
    if let Some(order) = order
        && context.work.checkpoint.checkpoints.last(allocation, epoch).is_some_and(whole)
    {
        return Some(suspended(&allocation.short(), order.hold));
    }
    let mut cluster = context.work.cluster.clone();
    let over = |a: &lattice_model::Allocation| a.epoch != epoch || a.state != AllocationState::Running;
    let ended = cluster.wait_for(|cluster| cluster.allocations.get(&allocation).is_none_or(over));
    let cluster = tokio::time::timeout(SUSPENDED_WAIT, ended).await.ok()?.ok()?;
    let now = cluster.allocations.get(&allocation).filter(|a| a.state == AllocationState::Suspended)?;
    matches!(now.reason, Some(EndReason::Preempted { .. })).then(|| suspended(&allocation.short(), now.held))
}

/// The specification's text.
fn suspended(short: &str, held: bool) -> String {
    let again = if held {
        format!("Use 'lattice resume {short}' to have it go on, and 'lattice attach {short}' to reconnect then.")
    } else {
        format!("Use 'lattice attach {short}' to reconnect after rescheduling.")
    };
    format!("Allocation preempted. Session suspended. {again}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Agent, id};
    use lattice_membership::cluster::Cluster;
    use lattice_model::end_reason::NotSaved;
    use lattice_model::{CheckpointPolicy, RankOutcome};
    use lattice_runtime::pty::Size;
    use std::process::{Command, Stdio};

    fn nobody_in_particular() -> Principal {
        Principal { name: "me".into(), uid: nix::unistd::geteuid().as_raw(), gid: nix::unistd::getegid().as_raw(), groups: vec![] }
    }

    struct Bench {
        news: mpsc::Sender<TerminalEvent>,
        keyboard: mpsc::Sender<ToTerminal>,
        screen: mpsc::Receiver<FromTerminal>,
        run_state: watch::Sender<RunState>,
        path: PathBuf,
        over: tokio::task::JoinHandle<SessionEnd>,
    }

    fn bench() -> Bench {
        let terminal = pty::open(&nobody_in_particular(), Size::default(), Modes { echo: false, cooked_output: false }).unwrap();
        let (news, events) = mpsc::channel(2);
        let (keyboard, typed) = mpsc::channel(OUTPUT_QUEUE_LEN);
        let (screen, shown) = mpsc::channel(OUTPUT_QUEUE_LEN);
        let (run_state, view) = watch::channel(RunState::Running);
        let interest = tokio::io::Interest::READABLE | tokio::io::Interest::WRITABLE;
        // SAFETY: the descriptor is open, and the AsyncFd owns it.
        let master = unsafe { AsyncFd::register_with_interest(terminal.master, interest) }.unwrap();
        let session = Session { master, events, typed, screen, run_state: view, short: "1234".into(), line_begun: false, waiting: vec![] };
        let over = tokio::spawn(session.run(terminal.slave, std::future::ready(None)));
        Bench { news, keyboard, screen: shown, run_state, path: terminal.path, over }
    }

    /// Starts a program at the other end, as the shim would.
    async fn begin(bench: &mut Bench, script: &str) -> std::process::Child {
        let tty = || std::fs::OpenOptions::new().read(true).write(true).open(&bench.path).unwrap();
        let child = Command::new("sh").args(["-c", script]).stdin(tty()).stdout(tty()).stderr(Stdio::null()).spawn().unwrap();
        bench.news.send(TerminalEvent::Started).await.unwrap();
        assert_eq!(bench.screen.recv().await, Some(FromTerminal::Started));
        child
    }

    async fn shown(bench: &mut Bench) -> (Vec<u8>, Option<FromTerminal>) {
        let mut all = Vec::new();
        loop {
            match bench.screen.recv().await {
                Some(FromTerminal::Output(bytes)) => all.extend(bytes),
                other => return (all, other),
            }
        }
    }

    #[tokio::test]
    async fn output_before_the_end_is_shown_before_it_and_long_input_is_typed_whole() {
        let mut bench = bench();
        let mut child = begin(&mut bench, "stty raw; echo go; head -c 400000 | wc -c; seq 1 40000").await;
        // A terminal that is not yet raw would cut input without a line end.
        assert_eq!(bench.screen.recv().await, Some(FromTerminal::Output(b"go\n".to_vec())));
        let (keyboard, piece) = (bench.keyboard.clone(), b"0123456789".repeat(1000));
        let typing = tokio::spawn(async move {
            for _ in 0..40 {
                keyboard.send(ToTerminal::Input(piece.clone())).await.unwrap();
            }
        });
        let news = bench.news.clone();
        let ended = tokio::task::spawn_blocking(move || child.wait().unwrap());
        tokio::spawn(async move {
            ended.await.unwrap();
            news.send(TerminalEvent::Ended { outcome: RankOutcome::Exited { code: 5 }, why: None }).await.unwrap();
        });
        let (all, end) = shown(&mut bench).await;
        let text = String::from_utf8(all).unwrap();
        assert!(text.starts_with("400000\n1\n") && text.ends_with("\n40000\n"), "{} lines", text.lines().count());
        assert_eq!(text.lines().count(), 40_001);
        typing.await.unwrap();
        assert_eq!(end, Some(FromTerminal::Ended { code: 5 }));
        assert_eq!(bench.over.await.unwrap(), SessionEnd::Ended(5));
    }

    #[tokio::test]
    async fn an_end_of_input_ends_a_reader_also_within_a_line() {
        for (typed, read) in [("one\ntwo\n", "8"), ("one\ntwo", "7"), ("", "0")] {
            let mut bench = bench();
            let mut child = begin(&mut bench, "wc -c").await;
            bench.keyboard.send(ToTerminal::Input(typed.into())).await.unwrap();
            bench.keyboard.send(ToTerminal::EndOfInput).await.unwrap();
            assert_eq!(bench.screen.recv().await, Some(FromTerminal::Output(format!("{read}\n").into_bytes())));
            assert!(tokio::task::spawn_blocking(move || child.wait().unwrap().success()).await.unwrap());
        }
    }

    #[tokio::test]
    async fn the_end_of_the_allocation_closes_it_with_a_message() {
        let mut bench = bench();
        let mut child = begin(&mut bench, "exec sleep 1000").await;
        bench.run_state.send_replace(RunState::NotYet);
        bench.run_state.send_replace(RunState::Ending);
        let (_, notice) = shown(&mut bench).await;
        assert_eq!(notice, Some(FromTerminal::Notice("allocation 1234 is being ended: the terminal is closed".into())));
        assert_eq!(bench.screen.recv().await, Some(FromTerminal::Ended { code: HANGUP_EXIT_CODE }));
        assert!(matches!(bench.over.await.unwrap(), SessionEnd::Closed(_)));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[tokio::test]
    async fn a_failed_start_gives_its_reason_and_a_caller_that_leaves_ends_the_session() {
        let mut one = bench();
        let why = Some("x: command not found".to_owned());
        one.news.send(TerminalEvent::Ended { outcome: RankOutcome::NotStarted { code: 127 }, why }).await.unwrap();
        assert_eq!(one.screen.recv().await, Some(FromTerminal::Notice("x: command not found".into())));
        assert_eq!(one.screen.recv().await, Some(FromTerminal::Ended { code: 127 }));
        for keyboard in [true, false] {
            let mut bench = bench();
            let mut child = begin(&mut bench, "exec sleep 1000").await;
            let Bench { keyboard: keys, screen, over, .. } = bench;
            let kept: Box<dyn std::any::Any> = if keyboard {
                drop(keys);
                Box::new(screen)
            } else {
                drop(screen);
                Box::new(keys)
            };
            assert_eq!(over.await.unwrap(), SessionEnd::Left);
            drop(kept);
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn its_owner_attaches_and_root_where_it_is_root_or_an_agent_of_role_api_vouches_for_it() {
        let of = |name: &str, uid, role: Option<Role>| Asker {
            user: Principal { name: name.into(), uid, gid: uid, groups: vec![] },
            peer: role.map(|role| Caller { name: "n2".into(), role }),
        };
        let owner = Principal { name: "ada".into(), uid: 7, gid: 7, groups: vec![] };
        for role in [None, Some(Role::Api), Some(Role::Node)] {
            assert!(of("ada", 7, role).may_attach_to(&owner), "{role:?}");
        }
        assert!(of("root", 0, None).may_attach_to(&owner), "on the node itself");
        assert!(of("root", 0, Some(Role::Api)).may_attach_to(&owner), "for a role");
        for other in [of("root", 0, Some(Role::Node)), of("eve", 8, None), of("eve", 7, None), of("ada", 8, Some(Role::Api))] {
            assert!(!other.may_attach_to(&owner));
        }
    }

    #[tokio::test]
    async fn a_terminal_of_work_that_saved_itself_says_how_to_come_back() {
        let agent = Agent::new();
        let policy = Some(CheckpointPolicy::default());
        let held = agent.holds(1, |share| share.spec.checkpoint = policy);
        let share = Arc::clone(&held.handle.share);
        let saved = EndReason::Preempted { by: "ada".into(), why: String::new(), saved: Err(NotSaved("no".into())) };
        let now = |state, reason: Option<EndReason>, held| {
            let mut allocation = lattice_model::test_builders::allocation(id(1));
            (allocation.epoch, allocation.state, allocation.reason, allocation.held) = (Epoch(2), state, reason, held);
            let allocations = [(allocation.id, allocation)].into();
            agent.bench.cluster.send_replace(Arc::new(Cluster { allocations, ..Cluster::default() }));
            preempted(Arc::clone(&agent.context), Arc::clone(&share))
        };
        let short = id(1).short();
        let text = now(AllocationState::Suspended, Some(saved.clone()), false).await.unwrap();
        let again = format!("Use 'lattice attach {short}' to reconnect after rescheduling.");
        assert_eq!(text, format!("Allocation preempted. Session suspended. {again}"));
        let text = now(AllocationState::Suspended, Some(saved.clone()), true).await.unwrap();
        let again = format!("Use 'lattice resume {short}' to have it go on, and 'lattice attach {short}' to reconnect then.");
        assert_eq!(text, format!("Allocation preempted. Session suspended. {again}"));
        assert_eq!(now(AllocationState::Suspended, Some(EndReason::WalltimeExceeded), false).await, None);
        assert_eq!(now(AllocationState::Failed, Some(saved), false).await, None);
        agent.bench.cluster.send_replace(Arc::default());
        let unable = Arc::new(DesiredShare { spec: lattice_model::test_builders::spec(), ..(*share).clone() });
        assert_eq!(preempted(Arc::clone(&agent.context), unable).await, None);
        assert_eq!(preempted(Arc::clone(&agent.context), share).await, None, "the quorum has forgotten it");
    }
}
