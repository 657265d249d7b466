//! What an agent answers to others over its mesh, and to whom. The test plays those others, and the
//! tasks of the allocations on this node.

use super::*;
use crate::context::Context;
use crate::diagnosis_slots::DiagnosisSlots;
use lattice_accounting::Accounting;
use lattice_agent_common::session_state::SessionState;
use lattice_agent_common::user_quota::UserQuota;
use lattice_allocation::test_builders::{Bench, ME};
use lattice_launch::Parents;
use lattice_membership::relay::RelayedAgents;
use lattice_mesh::Mesh;
use lattice_mesh::checkpoint::PartOpen;
use lattice_mesh::diagnosis::{DiagnosisAnswer, DiagnosisOpen};
use lattice_mesh::history::{HistoryAnswer, HistoryOpen};
use lattice_mesh::launch::ToHead;
use lattice_mesh::monitor::{METRICS_MAX, MonitorItem, MonitorOpen, MonitorWhat};
use lattice_mesh::open::{StatusTexts, StatusTextsOpen};
use lattice_mesh::ranks::RanksAnswer;
use lattice_mesh::shape::WireLaunchOptions;
use lattice_mesh::signal::{SignalAnswer, SignalOpen, WireSignalTarget};
use lattice_mesh::terminal::{AttachOpen, FromTerminal};
use lattice_mesh::usage::UsageOpen;
use lattice_model::Timestamp;
use lattice_model::history::{HistoryKind, HistoryQuery, Visible};
use lattice_model::layout::Program;
use lattice_model::test_builders::desired_share;
use lattice_model::{NodeRanks, RankOutcome};
use lattice_observe::traces::Traces;
use lattice_output::growth::Growth;
use lattice_pki::identity::{Caller, Role};
use lattice_registry::{Command, RunState, SendSignal, StateSenders, TaskEnds};
use lattice_runtime::shim::SignalTarget;
use std::collections::BTreeMap;
use std::time::Instant;
use tokio::sync::watch;
use tokio_util::sync::DropGuard;

/// An agent that serves its mesh, and another one that may vouch for users.
pub struct Agent {
    pub bench: Bench,
    pub context: Shared,
    pub api: Mesh,
    _stop: DropGuard,
}

/// The ends of an allocation's task.
pub struct Held {
    pub handle: AllocationHandle,
    pub queue: mpsc::Receiver<Command>,
    pub senders: StateSenders,
}

pub fn id(n: u128) -> AllocationId {
    AllocationId(uuid::Uuid::from_u128(n))
}

impl Agent {
    pub fn new() -> Self {
        let mut bench = Bench::new();
        let api = bench.peer("login", Role::Api);
        let setup = Arc::clone(&bench.handles.setup);
        let (_, session) = watch::channel(SessionState::Lost { since: Instant::now(), why: String::new() });
        let context = Arc::new(Context {
            machine: Arc::clone(&bench.handles.machine),
            work: Arc::clone(&bench.handles),
            traces: Traces::open(&setup.state_dir, None, Duration::from_secs(30)),
            diagnosis_slots: DiagnosisSlots::default(),
            carried: RelayedAgents::new(0, session),
            growth: Growth::start().unwrap(),
            parents: Parents::default(),
            accounting: Accounting::default(),
            attached: UserQuota::default(),
            setup,
        });
        let (_, none) = mpsc::channel(1);
        let incoming = std::mem::replace(&mut bench.incoming, none);
        let stop = CancellationToken::new();
        tokio::spawn(serve(Arc::clone(&context), incoming, stop.clone()));
        Self { bench, context, api, _stop: stop.drop_guard() }
    }

    /// The allocation with this number is on this node and on n2.
    pub fn holds(&self, n: u128, change: impl FnOnce(&mut DesiredShare)) -> Held {
        let nodes = [ME, "n2"].map(|node| node.parse().unwrap()).into_iter().collect();
        let mut share = DesiredShare { nodes, epoch: Epoch(2), ..desired_share(id(n)) };
        change(&mut share);
        let mut made = None;
        let handle = self.context.work.allocations.ensure(&self.context.setup.state_dir, &share, |ends| made = Some(ends));
        let TaskEnds { queue, senders, .. } = made.unwrap();
        Held { handle, queue, senders }
    }

    async fn open(&self, peer: &Mesh, open: Open) -> (SendStream, RecvStream) {
        let (mut send, recv) = peer.open(&ME.parse().unwrap(), &self.bench.address).await.unwrap();
        frame::write(&mut send, &open).await.unwrap();
        (send, recv)
    }

    /// The first answer to a request, as text.
    async fn answer(&self, peer: &Mesh, open: Open) -> String {
        macro_rules! first {
            ($recv:expr, $($answer:pat => $text:expr),+) => {
                match frame::read(&mut $recv).await {
                    $(Ok($answer) => $text,)+
                    Ok(other) => format!("{other:?}"),
                    Err(error) => no_answer(&error),
                }
            };
        }
        let (_send, mut recv) = self.open(peer, open.clone()).await;
        match open {
            Open::Abort(_) | Open::Keyboard(_) | Open::Input(_) => first!(recv, HeadAnswer::Refused { why } => why),
            Open::Launch(_) => first!(recv, LaunchItem::Refused { why } => why),
            Open::Signal(_) => first!(recv, SignalAnswer::Refused { why } => why),
            Open::Checkpoint(_) => first!(recv, CheckpointItem::Refused { why } => why),
            Open::Diagnosis(_) => first!(recv, DiagnosisAnswer::Refused { why } => why),
            Open::Ranks(_) => first!(recv, RanksAnswer::Refused { why } => why),
            Open::History(_) => first!(recv, HistoryAnswer::Refused { why } => why),
            Open::Monitor(_) => first!(recv, MonitorItem::Refused { why } => why),
            Open::Attach(_) => first!(recv, FromTerminal::Refused { why } => why),
            Open::Logs(_) => first!(recv, LogItem::Notice(text) => text),
            Open::Entry(_) => first!(recv, lattice_mesh::open::EntryItem::Ended { code } => format!("ended with {code}")),
            Open::StatusTexts(_) => match frame::read::<StatusTexts, _>(&mut recv).await {
                Ok(StatusTexts(texts)) => texts.join(","),
                Err(error) => no_answer(&error),
            },
            other => panic!("{other:?}"),
        }
    }
}

fn no_answer(error: &frame::FrameError) -> String {
    match error {
        frame::FrameError::Ended => "nothing".to_owned(),
        error => error.to_string(),
    }
}

/// A user as an agent vouches for it.
#[derive(Clone, Copy)]
struct User(u32, &'static str);

/// Owns the allocations.
const OWNER: User = User(1000, "u");

fn launch_of_user(user: User, n: u128, epoch: u64) -> AbortOpen {
    AbortOpen { id: [7; 16], allocation: *id(n).0.as_bytes(), epoch, uid: user.0, user: user.1.to_owned() }
}

fn launch_open(user: User, n: u128, epoch: u64) -> LaunchOpen {
    LaunchOpen {
        id: [7; 16],
        allocation: *id(n).0.as_bytes(),
        epoch,
        argv: vec!["a".into()],
        ranks: 1,
        tasks_per_node: 0,
        binding: lattice_mesh::binding::WireBinding::default(),
        working_dir: String::new(),
        env: vec![],
        pty: None,
        ask: WireLaunchOptions::new(&ShapeRequest::default(), true),
        uid: user.0,
        user: user.1.to_owned(),
    }
}

fn logs_open(user: User, n: u128, epoch: u64) -> LogsOpen {
    LogsOpen {
        allocation: *id(n).0.as_bytes(),
        epoch,
        launch: 0,
        rank: None,
        stdout: true,
        stderr: true,
        follow: false,
        at_once: false,
        received: vec![],
        tail: None,
        since_ms: None,
        until_ms: None,
        dated: false,
        uid: user.0,
        user: user.1.to_owned(),
    }
}

fn signal_open(user: User, epoch: u64, signal: i32) -> SignalOpen {
    SignalOpen { allocation: *id(1).0.as_bytes(), epoch, uid: user.0, user: user.1.to_owned(), signal, to: WireSignalTarget::Launches }
}

fn monitor_open(user: User, epoch: u64, metrics: usize) -> Open {
    let metrics = vec!["cpu".to_owned(); metrics];
    let what = MonitorWhat::Follow { interval_ms: 0, metrics };
    let (allocation, uid, user) = (*id(1).0.as_bytes(), user.0, user.1.to_owned());
    Open::Monitor(Box::new(MonitorOpen { allocation, epoch, uid, user, what }))
}

/// What a user may ask about allocation 1 under this epoch.
fn requests(User(uid, name): User, epoch: u64) -> Vec<Open> {
    let (who, allocation, user) = (User(uid, name), *id(1).0.as_bytes(), name.to_owned());
    let diagnosis =
        DiagnosisOpen { allocation, epoch, uid, user: user.clone(), processes: true, stacks: false, network: false, storage: false };
    let attach = AttachOpen {
        allocation,
        epoch,
        argv: vec![],
        term: String::new(),
        rows: 0,
        columns: 0,
        input_is_terminal: false,
        output_is_terminal: false,
        uid,
        user: user.clone(),
    };
    vec![
        Open::Abort(launch_of_user(who, 1, epoch)),
        Open::Keyboard(launch_of_user(who, 1, epoch)),
        Open::Input(launch_of_user(who, 1, epoch)),
        Open::Launch(Box::new(launch_open(who, 1, epoch))),
        Open::Signal(Box::new(signal_open(who, epoch, 10))),
        Open::Diagnosis(Box::new(diagnosis)),
        Open::Ranks(Box::new(UsageOpen { allocation, epoch, duration_ms: 0, uid, user: user.clone() })),
        monitor_open(who, epoch, 0),
        Open::Logs(Box::new(logs_open(who, 1, epoch))),
        Open::Attach(attach),
        Open::Entry(EntryOpen { allocation, epoch, uid, user }),
    ]
}

async fn answers(agent: &Agent, peer: &Mesh, requests: Vec<Open>) -> Vec<String> {
    let mut answers = Vec::new();
    for open in requests {
        answers.push(agent.answer(peer, open).await);
    }
    answers
}

#[tokio::test]
async fn an_agent_that_has_nothing_of_the_allocation_may_not_ask_for_its_owner() {
    let agent = Agent::new();
    let held = agent.holds(1, |_| {});
    held.senders.run_state.send_replace(RunState::Running);
    let stranger = agent.bench.peer("n9", Role::Node);
    let refused = "refused: the asking agent may not vouch for users";
    let want = [refused, refused, refused, refused, refused, refused, refused, refused, refused, refused, "nothing"];
    assert_eq!(answers(&agent, &stranger, requests(OWNER, 2)).await, want);
    let checkpoint = CheckpointOpen { id: [7; 16], allocation: [1; 16], epoch: 2, length_ms: 1, uid: 1000, user: "u".into() };
    assert_eq!(agent.answer(&stranger, Open::Checkpoint(Box::new(checkpoint))).await, refused);
    let texts = StatusTextsOpen { allocations: vec![*id(1).0.as_bytes()] };
    assert_eq!(agent.answer(&stranger, Open::StatusTexts(texts)).await, "nothing");
}

#[tokio::test]
async fn ended_work_is_for_agents_that_may_vouch_and_an_agent_without_a_store_says_so() {
    let agent = Agent::new();
    let stranger = agent.bench.peer("n9", Role::Node);
    let everything = || {
        let query = HistoryQuery {
            visible: Visible::All,
            kind: HistoryKind::NewestFirst,
            user: String::new(),
            tenant: String::new(),
            project: String::new(),
            vcluster: String::new(),
            name: String::new(),
            states: vec![],
            jobs: vec![],
            part_of: None,
            tags: [].into(),
            from: Timestamp(0),
            until: Timestamp(1),
            limit: 1,
            after: None,
        };
        Open::History(HistoryOpen::Query(Box::new(query.into())))
    };
    for open in [everything(), Open::History(HistoryOpen::Status)] {
        assert_eq!(agent.answer(&stranger, open).await, "refused: the asking agent may not vouch for users");
    }
    let why = "this agent has no store of ended work: it lacks the role accounting";
    assert_eq!(agent.answer(&agent.api, everything()).await, why);
    let status = agent.answer(&agent.api, Open::History(HistoryOpen::Status)).await;
    assert_eq!(status, "Status { kind: \"\", problem: \"\", sinks: [] }");
}

#[tokio::test]
async fn an_agent_of_the_allocations_nodes_may_ask_about_the_work_but_begins_and_ends_nothing() {
    let agent = Agent::new();
    let held = agent.holds(1, |_| {});
    held.senders.run_state.send_replace(RunState::Ending);
    let sibling = agent.bench.peer("n2", Role::Node);
    let refused = "refused: the asking agent may not vouch for users";
    let no_cgroup = "there is no cgroup for its work on this node: which processes are its own is not known";
    let ending = format!("allocation {} is being ended", id(1).short());
    let want = [refused, refused, refused, refused, refused, no_cgroup, no_cgroup, "Begun", "NotHere", ending.as_str(), "nothing"];
    assert_eq!(answers(&agent, &sibling, requests(OWNER, 2)).await, want);
}

#[tokio::test]
async fn only_the_owner_is_answered_and_root_gets_a_terminal_only_by_an_agent_that_may_vouch_for_it() {
    let agent = Agent::new();
    let held = agent.holds(1, |_| {});
    held.senders.run_state.send_replace(RunState::Ending);
    let short = id(1).short();
    let (belongs, other) = (format!("allocation {short} belongs to u"), "refused: the allocation belongs to somebody else");
    let attach = format!(
        "allocation {short} is another user's: its owner, admins of its tenant and system admins may attach, and root on the node itself"
    );
    let want = [&belongs, &belongs, &belongs, &belongs, other, other, other, other, other, &attach, "nothing"];
    for user in [User(1001, "eve"), User(1001, "u"), User(1000, "eve")] {
        assert_eq!(answers(&agent, &agent.api, requests(user, 2)).await, want, "{} {}", user.0, user.1);
    }
    let mut of_root = requests(User(0, "root"), 2);
    let (terminal, signal) = (of_root.swap_remove(9), of_root.swap_remove(4));
    let ending = format!("allocation {short} is being ended");
    let sibling = agent.bench.peer("n2", Role::Node);
    let again = requests(User(0, "root"), 2).swap_remove(9);
    assert_eq!(agent.answer(&sibling, terminal).await, attach);
    assert_eq!(agent.answer(&agent.api, signal).await, ending);
    assert_eq!(agent.answer(&agent.api, again).await, ending);
}

#[tokio::test]
async fn a_request_of_another_epoch_finds_nothing() {
    let agent = Agent::new();
    let held = agent.holds(1, |_| {});
    held.senders.run_state.send_replace(RunState::Running);
    let gone = format!("allocation {} is not running on this node", id(1).short());
    let attach = format!("allocation {} is not running on node {ME}", id(1).short());
    for epoch in [1, 3] {
        // The request about the entry point is left out: it waits for the epoch to come.
        let mut requests = requests(OWNER, epoch);
        requests.pop();
        let want = [&gone, &gone, &gone, &gone, &gone, &gone, &gone, &gone, "NotHere", &attach];
        assert_eq!(answers(&agent, &agent.api, requests).await, want);
    }
}

#[tokio::test]
async fn a_bad_first_frame_ends_its_stream_alone() {
    let agent = Agent::new();
    let answer = lattice_mesh::frame::Frame::of(&"x".to_owned()).unwrap();
    let body = |length: u32| [&[frame::VERSION, 0, 0, 0][..], &length.to_le_bytes()].concat();
    let too_long = body(u32::try_from(frame::OPEN_BYTES_MAX + 1).unwrap());
    let garbage = [body(16), vec![0xff; 16]].concat();
    for bytes in [vec![frame::VERSION + 1, 0, 0, 0, 0, 0, 0, 0], too_long, garbage, body(0)] {
        let (mut send, mut recv) = agent.api.open(&ME.parse().unwrap(), &agent.bench.address).await.unwrap();
        send.write_all(&bytes).await.unwrap();
        assert_eq!(recv.read_to_end(64).await.unwrap(), b"", "{bytes:?}");
    }
    let (mut send, mut recv) = agent.api.open(&ME.parse().unwrap(), &agent.bench.address).await.unwrap();
    answer.send(&mut send).await.unwrap();
    assert_eq!(recv.read_to_end(64).await.unwrap(), b"", "a message that begins no stream");
    let texts = Open::StatusTexts(StatusTextsOpen { allocations: vec![] });
    assert_eq!(agent.answer(&agent.api, texts).await, "", "the connection serves others");
}

#[tokio::test]
async fn status_texts_are_in_the_order_of_the_request_and_no_more_than_the_bound() {
    let agent = Agent::new();
    let (one, two) = (agent.holds(1, |_| {}), agent.holds(2, |_| {}));
    one.senders.detail.send_modify(|detail| detail.text = "one".into());
    two.senders.detail.send_modify(|detail| detail.text = "two".into());
    let ids = |ids: &[u128]| StatusTextsOpen { allocations: ids.iter().map(|n| *id(*n).0.as_bytes()).collect() };
    assert_eq!(agent.answer(&agent.api, Open::StatusTexts(ids(&[2, 9, 1, 2]))).await, "two,,one,two");
    let many = vec![1; status_texts::ALLOCATIONS_MAX + 1];
    assert_eq!(agent.answer(&agent.api, Open::StatusTexts(ids(&many))).await, vec!["one"; status_texts::ALLOCATIONS_MAX].join(","));
}

#[tokio::test]
async fn a_signal_reaches_the_task_once_and_its_answer_the_caller() {
    let agent = Agent::new();
    let mut held = agent.holds(1, |_| {});
    held.senders.run_state.send_replace(RunState::Running);
    for signal in [0, -1, 65] {
        let open = Open::Signal(Box::new(signal_open(OWNER, 2, signal)));
        assert_eq!(agent.answer(&agent.api, open).await, format!("there is no signal {signal}"));
    }
    let ask = agent.answer(&agent.api, Open::Signal(Box::new(signal_open(OWNER, 2, 64))));
    let task = async {
        let Some(Command::Signal(SendSignal { signal: 64, to: SignalTarget::Launches, answer })) = held.queue.recv().await else {
            panic!("another command")
        };
        answer.send(3).unwrap();
    };
    assert_eq!(tokio::join!(ask, task).0, format!("{:?}", SignalAnswer::Sent { processes: 3 }));
    assert!(held.queue.try_recv().is_err());
    // The line to the shim breaks before it answers.
    let ask = agent.answer(&agent.api, Open::Signal(Box::new(signal_open(OWNER, 2, 1))));
    let task = async { drop(held.queue.recv().await) };
    assert_eq!(tokio::join!(ask, task).0, "the line to its shim broke: whether the signal was sent is not known");
}

#[tokio::test]
async fn a_request_for_too_many_metrics_is_refused() {
    let agent = Agent::new();
    let _held = agent.holds(1, |_| {});
    assert_eq!(agent.answer(&agent.api, monitor_open(OWNER, 2, METRICS_MAX)).await, "Begun");
    assert_eq!(agent.answer(&agent.api, monitor_open(OWNER, 2, METRICS_MAX + 1)).await, "65 metrics; at most 64 per request");
}

#[tokio::test]
async fn a_users_terminals_are_limited() {
    let agent = Agent::new();
    let held = agent.holds(1, |_| {});
    held.senders.run_state.send_replace(RunState::Ending);
    let attach = || requests(OWNER, 2).swap_remove(9);
    let place = agent.context.attached.take(OWNER.0, agent.context.setup.attach_max_concurrent).unwrap();
    let full = format!("u has 1 of 1 terminals attached by way of node {ME}: close one to open another");
    assert_eq!(agent.answer(&agent.api, attach()).await, full);
    drop(place);
    let ending = format!("allocation {} is being ended", id(1).short());
    for _ in 0..2 {
        assert_eq!(agent.answer(&agent.api, attach()).await, ending, "a refused one takes no place");
    }
}

#[tokio::test]
async fn those_who_act_by_a_role_take_no_place_of_root_of_this_node() {
    let agent = Agent::new();
    let held = agent.holds(1, |_| {});
    held.senders.run_state.send_replace(RunState::Ending);
    let attach = || requests(User(0, "root"), 2).swap_remove(9);
    let most = agent.context.setup.attach_max_concurrent;
    let vouched = agent.context.attached.take_by_way_of("login", 0, most).unwrap();
    let full = format!("root has {most} of {most} terminals attached by way of node {ME}: close one to open another");
    assert_eq!(agent.answer(&agent.api, attach()).await, full);
    drop(vouched);
    let _own = agent.context.attached.take(0, most).unwrap();
    let ending = format!("allocation {} is being ended", id(1).short());
    assert_eq!(agent.answer(&agent.api, attach()).await, ending, "root of this node has places of its own");
}

#[tokio::test]
async fn a_launch_begins_once_on_its_head_and_its_end_says_how_each_rank_ended() {
    let agent = Agent::new();
    let mut held = agent.holds(1, |share| share.nodes = share.nodes[..1].to_vec().into());
    held.senders.run_state.send_replace(RunState::Running);
    let open = LaunchOpen { ranks: 2, tasks_per_node: 2, ..launch_open(OWNER, 1, 2) };
    let mut items = begin(&agent.context, &open).await.unwrap();
    // An inline command has the first number.
    let started = || LaunchItem::Started { number: 2, nodes: vec![(ME.to_owned(), 0, 2)] };
    assert_eq!(items.recv().await, Some(started()));
    let Some(Command::Attach { launch, to_head }) = held.queue.recv().await else { panic!("another command") };
    assert_eq!((launch.id.0.as_bytes(), launch.number, launch.nodes[0].count), (&[7; 16], 2, 2));
    let mut again = begin(&agent.context, &open).await.unwrap();
    assert_eq!(again.recv().await, Some(started()), "found by its id");
    for (rank, code) in [(0, 0), (1, 3)] {
        to_head.send(ToHead::RankEnded { rank, outcome: WireOutcome::Exited(code) }).await.unwrap();
    }
    let exits = vec![(0, 0, Some(WireOutcome::Exited(0))), (1, 0, Some(WireOutcome::Exited(3)))];
    assert_eq!(items.recv().await, Some(LaunchItem::Exits(exits)));
    let ended = items.recv().await;
    assert!(matches!(ended, Some(LaunchItem::Ended { code: 3, .. })), "{ended:?}");
    assert_eq!(items.recv().await, None);
    // Another allocation of the same owner does not find the launch by its id.
    let other = agent.holds(3, |share| share.nodes = share.nodes[..1].to_vec().into());
    other.senders.run_state.send_replace(RunState::Running);
    let refused = begin(&agent.context, &launch_open(OWNER, 3, 2)).await.unwrap_err().to_string();
    assert_eq!(refused, "a launch of this id belongs to another allocation");
    let not_there = launch_of(&agent.context, &launch_of_user(OWNER, 3, 2)).unwrap_err().to_string();
    assert_eq!(not_there, format!("allocation {} has no launch {}", id(3).short(), LaunchId(uuid::Uuid::from_bytes([7; 16])).short()));
    assert!(launch_of(&agent.context, &launch_of_user(OWNER, 1, 2)).is_ok());
}

#[tokio::test]
async fn a_launch_of_an_allocation_that_ends_is_refused() {
    let agent = Agent::new();
    let mut held = agent.holds(1, |share| share.nodes = share.nodes[..1].to_vec().into());
    held.senders.run_state.send_replace(RunState::Running);
    let mut items = begin(&agent.context, &launch_open(OWNER, 1, 2)).await.unwrap();
    assert!(matches!(items.recv().await, Some(LaunchItem::Started { .. })));
    let _attached = held.queue.recv().await;
    agent.context.work.launches.drop_launches(id(1));
    assert_eq!(items.recv().await, Some(LaunchItem::Refused { why: "the allocation was ended".into() }));
    held.senders.run_state.send_replace(RunState::Ending);
    let why = begin(&agent.context, &launch_open(OWNER, 1, 2)).await.unwrap_err().to_string();
    assert_eq!(why, format!("allocation {} is being ended", id(1).short()));
}

#[tokio::test]
async fn output_that_was_never_written_here_is_not_here() {
    let agent = Agent::new();
    let mut items = read_output(&agent.context, id(1), Epoch(2), &logs_open(OWNER, 1, 2));
    assert_eq!((items.recv().await, items.recv().await), (Some(LogItem::NotHere), None));
}

#[tokio::test]
async fn output_begins_with_a_notice_while_it_waits_for_its_files() {
    let agent = Agent::new();
    let held = agent.holds(1, |_| {});
    std::fs::create_dir_all(held.handle.dir().logs()).unwrap();
    for (late, launch) in [(true, 1), (false, 1), (true, 2)] {
        let why = || "4 bytes wait".to_owned();
        held.senders.detail.send_modify(|detail| detail.files_late = late.then(why));
        let mut items = read_output(&agent.context, id(1), Epoch(2), &LogsOpen { launch, ..logs_open(OWNER, 1, 2) });
        // The output of a step, here launch 2, goes to no such file.
        if late && launch == 1 {
            assert_eq!(items.recv().await, Some(LogItem::Notice(why())));
        }
        assert_eq!(items.recv().await, Some(LogItem::End));
    }
}

#[test]
fn each_ranks_end_has_the_index_of_its_node() {
    let nodes =
        vec![NodeRanks { node: ME.parse().unwrap(), first: 0, count: 2 }, NodeRanks { node: "n2".parse().unwrap(), first: 2, count: 1 }];
    let spec = LaunchSpec { nodes, ..two_nodes(&launch_open(OWNER, 1, 2), &ShapeRequest::default()).unwrap() };
    let bad: BTreeMap<u32, RankEnd> = [(1, RankEnd::Ended(RankOutcome::Signalled { signal: 9 })), (2, RankEnd::Lost)].into();
    let end = LaunchEnd { code: 137, aborted: None, walltime_over: false, out_of_memory: None, bad: Arc::new(bad) };
    let want = [(0, 0, Some(WireOutcome::Exited(0))), (1, 0, Some(RankOutcome::Signalled { signal: 9 }.into())), (2, 1, None)];
    assert_eq!(exits_of(&spec, &end), want);
}

/// The launch that a request makes in an allocation of two nodes with two tasks each.
fn two_nodes(open: &LaunchOpen, asked: &ShapeRequest) -> Result<LaunchSpec, String> {
    let nodes = [ME, "n2"].map(|node| node.parse().unwrap()).into_iter().collect();
    let mut share = DesiredShare { nodes, ..desired_share(id(1)) };
    share.spec.tasks_per_node = 2;
    share.spec.working_dir = "/work".into();
    launch_spec(&share, LaunchId(uuid::Uuid::from_bytes(open.id)), open, asked, &SlurmSettings::default())
        .map_err(|error| error.to_string())
}

fn laid(open: &LaunchOpen, asked: &ShapeRequest) -> Result<Vec<(String, u32, u32)>, String> {
    two_nodes(open, asked).map(|launch| lattice_mesh::launch::wire_nodes(&launch.nodes))
}

#[test]
fn a_launch_without_a_number_of_ranks_fills_the_nodes_that_it_asks_for() {
    let open = |ranks, tasks_per_node| LaunchOpen { ranks, tasks_per_node, ..launch_open(OWNER, 1, 2) };
    let (none, on_one) = (ShapeRequest::default(), ShapeRequest { nodes: 1, ..ShapeRequest::default() });
    let nodes = |each: &[(&str, u32, u32)]| Ok(each.iter().map(|(node, first, count)| ((*node).to_owned(), *first, *count)).collect());
    assert_eq!(laid(&open(0, 0), &none), nodes(&[(ME, 0, 2), ("n2", 2, 2)]));
    assert_eq!(laid(&open(0, 3), &none), nodes(&[(ME, 0, 3), ("n2", 3, 3)]));
    assert_eq!(laid(&open(0, 0), &on_one), nodes(&[(ME, 0, 2)]));
    assert_eq!(laid(&open(3, 2), &none), nodes(&[(ME, 0, 2), ("n2", 2, 1)]));
    let on_two = ShapeRequest { nodes: 2, ..ShapeRequest::default() };
    assert_eq!(laid(&open(2, 2), &on_two), nodes(&[(ME, 0, 1), ("n2", 1, 1)]), "each node that was asked for gets ranks");
    let on_n2 = ShapeRequest { listed: vec![("n2".parse().unwrap(), 1)], ..ShapeRequest::default() };
    assert_eq!(laid(&open(1, 0), &on_n2), nodes(&[(ME, 0, 0), ("n2", 0, 1)]), "the first node needs no rank");
    let launch = two_nodes(&open(1, 0), &none).unwrap();
    assert_eq!((launch.number, launch.epoch, launch.working_dir.to_str()), (0, Epoch(1), Some("/work")));
    let elsewhere = two_nodes(&LaunchOpen { working_dir: "/tmp".into(), ..open(1, 0) }, &none).unwrap();
    assert_eq!(elsewhere.working_dir.to_str(), Some("/tmp"));
}

#[test]
fn a_launch_that_cannot_be_laid_out_is_refused_with_the_reason() {
    let open = || launch_open(OWNER, 1, 2);
    let none = ShapeRequest::default();
    for argv in [vec![], vec![String::new(), "a".into()]] {
        assert_eq!(laid(&LaunchOpen { argv, ..open() }, &none), Err("a program is needed".into()));
    }
    let three = ShapeRequest { nodes: 3, ..none.clone() };
    assert_eq!(laid(&open(), &three), Err("nodes: 3 given; the allocation has 2".into()));
    let most = LaunchOpen { tasks_per_node: TASKS_PER_NODE_MAX + 1, ..open() };
    let crowded = format!("{} ranks on one node; at most {TASKS_PER_NODE_MAX} are possible", TASKS_PER_NODE_MAX + 1);
    assert_eq!(laid(&most, &none), Err(crowded));
    let too_many = laid(&LaunchOpen { ranks: 5, tasks_per_node: 2, ..open() }, &none).unwrap_err();
    assert!(too_many.starts_with("5 ranks do not fit: 2 nodes"), "{too_many}");
    let on = |node: &str| ShapeRequest { listed: vec![(node.parse().unwrap(), 1)], ..ShapeRequest::default() };
    assert!(laid(&open(), &on("n9")).unwrap_err().starts_with("nodelist: n9 is none of the allocation's nodes"));
    let programs = ShapeRequest { programs: vec![Program { ranks: 1, argv: vec!["b".into()] }], ..none.clone() };
    assert!(laid(&open(), &programs).is_err(), "no rank is left for the first program");
}

#[test]
fn a_terminal_needs_rank_0_on_the_first_node() {
    let open = LaunchOpen { ranks: 2, pty: Some((24, 80)), ..launch_open(OWNER, 1, 2) };
    let listed = |nodes: [&str; 2]| ShapeRequest { listed: nodes.map(|node| (node.parse().unwrap(), 1)).into(), ..ShapeRequest::default() };
    assert!(two_nodes(&open, &listed([ME, "n2"])).unwrap().pty.is_some());
    let why = "--pty: rank 0 has the terminal, and must be on the allocation's first node for it";
    assert_eq!(laid(&open, &listed(["n2", ME])), Err(why.into()));
    assert!(laid(&LaunchOpen { pty: None, ..open }, &listed(["n2", ME])).is_ok());
}

#[tokio::test]
async fn the_head_alone_asks_for_a_part_of_a_checkpoint() {
    let agent = Agent::new();
    let _held = agent.holds(1, |_| {});
    let part = |epoch| PartOpen { id: [7; 16], allocation: *id(1).0.as_bytes(), epoch, round: 1, deadline_ms: 1 };
    let check = |name: &str, role, epoch| {
        let peer = Caller { name: name.to_owned(), role };
        access::check(&Open::CheckpointPart(Box::new(part(epoch))), &agent.context.work.allocations, &peer)
    };
    assert_eq!(check(ME, Role::Node, 2), Ok(()));
    assert_eq!(check("n2", Role::Node, 2), Err(Denied::NotItsHead));
    assert_eq!(check("login", Role::Api, 2), Err(Denied::NotItsHead));
    assert_eq!(check(ME, Role::Node, 3), Err(Denied::NotHere { allocation: id(1) }));
}
