//! A task on an empty machine. The test acts as its shim, at the other end of a socket, and as its
//! driver.

use super::*;
use crate::lane_quorum::NotAdvanced;
use crate::prepare::{Line, PrepareError};
use crate::test_builders::{Bench, LaneCall, ME};
use lattice_agent_common::environment::slurm::SlurmSettings;
use lattice_model::task_group::lane_walltime;
use lattice_model::test_builders::desired_share;
use lattice_model::{EndedTasks, Entrypoint, LaneOf, LaneReport, LaneWork, LaunchSpec, TaskGroup, TaskOutcome, Timestamp};
use lattice_node::LaunchEnd;
use lattice_registry::{AllocationHandle, SendSignal};
use lattice_runtime::exits::{ExitRecord, Writer};
use lattice_runtime::shim::{Decoder, SignalTarget};
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tokio::sync::oneshot;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// The number of the launch that [`launch`] returns.
const NUMBER: u32 = 3;

fn id(n: u64) -> AllocationId {
    format!("00000000-0000-4000-8000-{n:012x}").parse().unwrap()
}

struct Work {
    bench: Bench,
    task: AllocationTask,
    handle: AllocationHandle,
    shim: UnixStream,
    decoder: Decoder<ToShim>,
    queue: mpsc::Receiver<Command>,
}

/// Work that runs on this node only.
fn work(change: impl FnOnce(&mut DesiredShare)) -> Work {
    let bench = Bench::new();
    let mut share = DesiredShare { nodes: vec![ME.parse().unwrap()].into(), ..desired_share(id(1)) };
    change(&mut share);
    let mut made = None;
    let context = Arc::clone(&bench.handles);
    let handle = context.allocations.ensure(&context.setup.state_dir, &share, |ends| made = Some(AllocationTask::new(&context, ends)));
    std::fs::create_dir_all(&handle.dir().0).unwrap();
    let (task, queue) = made.unwrap();
    let (shim, _) = UnixStream::pair().unwrap();
    Work { bench, task, handle, shim, decoder: Decoder::default(), queue }
}

fn script(share: &mut DesiredShare) {
    share.spec.entrypoint = Entrypoint::Script { text: "true".into(), args: vec![] };
}

/// A lane of a group of three tasks.
fn lane(share: &mut DesiredShare) {
    script(share);
    share.spec.tasks = Some(Box::new(TaskGroup::parse("10-30:10").unwrap()));
    share.spec.walltime = Some(lane_walltime(Duration::from_secs(30)));
    share.lane = Some(LaneOf { group: id(9), number: 0, queued_at: Timestamp(0), revocations: 0 });
}

fn leased(tasks: impl IntoIterator<Item = u32>, is_last: bool) -> LaneWork {
    LaneWork { leased: tasks.into_iter().collect(), is_last, returns: 0 }
}

fn ended(code: i32, tasks: impl IntoIterator<Item = u32>) -> EndedTasks {
    EndedTasks { outcome: TaskOutcome::Exited(code), tasks: tasks.into_iter().collect() }
}

fn lane_report(ended: Vec<EndedTasks>) -> LaneReport {
    LaneReport { ended, mean_us: 5, returned: None }
}

/// A launch of two ranks here, which no entry point began.
fn launch() -> LaunchSpec {
    let share = DesiredShare { nodes: vec![ME.parse().unwrap()].into(), ..desired_share(id(1)) };
    let mut launch = lattice_agent_common::environment::entry_launch(&share, vec!["a".into()], &SlurmSettings::default());
    (launch.id, launch.number) = ("00000000-0000-4000-8000-0000000000ff".parse().unwrap(), NUMBER);
    launch.nodes[0].count = 2;
    launch
}

impl Work {
    /// Connects the task to a shim.
    async fn connect(&mut self, fresh: bool) {
        let (ours, shim) = UnixStream::pair().unwrap();
        shim.set_nonblocking(true).unwrap();
        (self.shim, self.decoder) = (shim, Decoder::default());
        self.task.take_link(Line { stream: ours, fresh, image: None }).await.unwrap();
        assert_eq!(self.sent(), [ToShim::Hello { protocol: lattice_runtime::shim::PROTOCOL_MAJOR }]);
    }

    /// Started work whose shim has reported everything.
    async fn running(change: impl FnOnce(&mut DesiredShare)) -> Self {
        let mut work = work(change);
        work.connect(true).await;
        work.task.handle_phase(TaskEvent::ShimGreeted).await;
        for message in [work.hello(1), FromShim::Ready { failed: None }, FromShim::Synced] {
            work.task.handle_message(message).await;
        }
        let (allocation, epoch) = (id(1), Epoch(1));
        assert_eq!(work.reported(), [Event::Prepared { allocation, epoch, result: Ok(()) }]);
        work.task.execute(Command::Start(Box::new(work.handle.share.as_ref().clone()))).await;
        work.sent();
        work
    }

    /// A lane that its shim has opened.
    async fn with_lane() -> Self {
        let mut work = Self::running(lane).await;
        assert!(work.asks_nothing().await, "it is not open");
        work.task.handle_message(FromShim::LaneOpened).await;
        work
    }

    fn hello(&self, epoch: u64) -> FromShim {
        FromShim::Hello { protocol: 1, allocation: id(1), epoch: Epoch(epoch), pid: 77 }
    }

    /// What the shim received.
    fn sent(&mut self) -> Vec<ToShim> {
        let mut bytes = vec![0; 1 << 20];
        while let Ok(n @ 1..) = self.shim.read(&mut bytes) {
            self.decoder.push(&bytes[..n]);
        }
        std::iter::from_fn(|| self.decoder.next().unwrap()).collect()
    }

    /// What the driver received.
    fn reported(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.bench.events.try_recv().ok()).collect()
    }

    /// How the work ended, as the driver was notified.
    fn ends(&mut self) -> Vec<EndReason> {
        let reason = |event| match event {
            Event::Ended { allocation, epoch: Epoch(1), reason } if allocation == id(1) => reason,
            other => panic!("{other:?}"),
        };
        self.reported().into_iter().map(reason).collect()
    }

    /// What the lane asks the quorum next.
    async fn asked(&mut self) -> LaneCall {
        let call = tokio::time::timeout(PATIENCE, self.bench.lane_calls.recv()).await.expect("it asks");
        call.expect("its handles live")
    }

    /// Answers the lane, and lets its task handle the answer. Returns what the shim received.
    async fn answer(&mut self, call: LaneCall, answer: Result<LaneWork, NotAdvanced>) -> Vec<ToShim> {
        call.answer.send(answer).unwrap();
        let command = tokio::time::timeout(PATIENCE, self.queue.recv()).await.expect("the answer is passed on").unwrap();
        assert!(matches!(command, Command::LaneAdvanced { .. }), "{command:?}");
        self.task.execute(command).await;
        self.sent()
    }

    /// Whether the lane asks nothing now.
    async fn asks_nothing(&mut self) -> bool {
        tokio::task::yield_now().await;
        self.bench.lane_calls.try_recv().is_err()
    }

    fn run_state(&self) -> RunState {
        *self.handle.run_state.borrow()
    }

    fn text(&self) -> String {
        self.handle.detail.borrow().text.clone()
    }

    fn leave_records(&self, records: &[ExitRecord]) {
        let mut writer = Writer::open(self.handle.dir()).unwrap();
        records.iter().for_each(|record| writer.append(record).unwrap());
    }
}

fn me() -> lattice_model::NodeId {
    ME.parse().unwrap()
}

fn stopped() -> Event {
    Event::Stopped { allocation: id(1), epoch: Epoch(1) }
}

const KILL: MemoryKill = MemoryKill { launch: 0, whole: false, had_bytes: Some(2), limit_bytes: Some(1) };

fn stranger_lost() -> EndReason {
    EndReason::NodeLost { node: me(), why: format!("its shim is gone, and another one answers in its place: {} under epoch 2", id(1)) }
}

#[tokio::test]
async fn a_shim_of_another_claim_is_not_adopted() {
    let mut work = work(|_| {});
    work.connect(false).await;
    work.task.handle_message(work.hello(2)).await;
    assert_eq!(work.ends(), [stranger_lost()]);
    assert!(!work.task.line.is_there());
    assert_eq!(work.handle.detail.borrow().shim_pid, None);
    work.connect(false).await;
    work.task.handle_message(work.hello(1)).await;
    assert_eq!((work.ends(), work.handle.detail.borrow().shim_pid), (vec![], Some(77)));
}

#[tokio::test]
async fn a_stranger_in_the_place_of_a_shim_that_ends_the_work_does_not_keep_the_share() {
    let mut work = Work::running(script).await;
    work.task.execute(Command::Stop).await;
    assert_eq!(work.sent(), [ToShim::Stop { why: StopReason::Requested, grace_ms: 30_000 }]);
    assert_eq!(work.reported(), []);
    work.task.handle_message(work.hello(2)).await;
    let ended = Event::Ended { allocation: id(1), epoch: Epoch(1), reason: stranger_lost() };
    assert_eq!(work.reported(), [ended, stopped()]);
    assert_eq!(work.task.phase, TaskPhase::Stopped);
}

#[tokio::test]
async fn a_shim_that_dies_while_it_ends_the_work_does_not_keep_the_share() {
    let mut work = Work::running(script).await;
    work.task.execute(Command::Stop).await;
    work.task.link_ended().await;
    assert_eq!(work.reported(), [stopped()]);
}

#[tokio::test]
async fn a_shim_that_cannot_be_asked_to_end_the_work_does_not_keep_the_share() {
    let mut work = Work::running(script).await;
    (work.shim, _) = UnixStream::pair().unwrap();
    work.task.execute(Command::Stop).await;
    assert_eq!(work.reported(), [stopped()]);
}

#[tokio::test]
async fn a_shim_that_does_not_end_the_work_by_its_deadline_does_not_keep_the_share() {
    let mut work = Work::running(script).await;
    work.task.execute(Command::Stop).await;
    work.task.publish_what_is_left().await;
    assert_eq!(work.reported(), [], "it has time yet");
    work.task.phase = TaskPhase::Stopping { look_at_ms: 0, shim_until_ms: 0 };
    work.task.publish_what_is_left().await;
    assert_eq!((work.reported(), work.task.phase), (vec![stopped()], TaskPhase::Stopped));
}

#[tokio::test]
async fn after_a_failed_send_the_line_is_over_and_the_next_one_gets_what_may_be_lost() {
    let mut work = Work::running(script).await;
    let (answer, processes) = oneshot::channel();
    work.task.execute(Command::Signal(SendSignal { signal: 10, to: SignalTarget::Ranks, answer })).await;
    (work.shim, _) = UnixStream::pair().unwrap();
    work.task.execute(Command::LogsFlushed { files: vec![] }).await;
    assert!(!work.task.line.is_there());
    assert_eq!((work.run_state(), processes.await.is_err()), (RunState::NotYet, true));
    assert_eq!(work.task.line.next().await, None, "the task learns of it as of any other end");
    work.connect(false).await;
    for message in [work.hello(1), FromShim::Synced] {
        work.task.handle_message(message).await;
    }
    let sent = work.sent();
    assert!(matches!(&sent[..], [ToShim::Go { .. }, ToShim::StartScript { .. }]), "{sent:?}");
    assert_eq!(work.run_state(), RunState::Running);
}

#[tokio::test]
async fn work_without_a_shim_is_stopped_by_its_scope_alone() {
    let mut work = work(|_| {});
    work.task.execute(Command::Stop).await;
    assert_eq!((work.reported(), work.run_state()), (vec![stopped()], RunState::Ending));
}

#[tokio::test]
async fn work_whose_run_lease_lapsed_is_ending_and_never_begins_again() {
    let mut work = Work::running(|share| share.run_lease_ms = Some(5000)).await;
    assert_eq!(work.run_state(), RunState::NotYet, "its lease was not granted yet");
    work.task.handle_message(FromShim::RunLease { until_ms: Some(u64::MAX) }).await;
    let due = work.task.lease.take_due().unwrap();
    work.task.begin_what_waited(due).await;
    assert_eq!(work.run_state(), RunState::Running);
    work.sent();
    work.task.handle_message(FromShim::RunLeaseLapsed).await;
    assert_eq!(work.ends(), [EndReason::RunLeaseLapsed { node: me() }]);
    assert_eq!((work.run_state(), work.text().as_str()), (RunState::Ending, "its run lease lapsed, its work was killed"));
    // Neither what the kill caused nor a new connection changes that.
    work.task.handle_message(FromShim::ScriptEnded { outcome: RankOutcome::Signalled { signal: 9 } }).await;
    work.connect(false).await;
    for message in [work.hello(1), FromShim::RunLeaseLapsed, FromShim::Synced] {
        work.task.handle_message(message).await;
    }
    assert_eq!((work.ends(), work.run_state()), (vec![], RunState::Ending));
    assert!(!work.sent().iter().any(|message| matches!(message, ToShim::StartLaunch { .. } | ToShim::Go { .. })));
}

#[tokio::test]
async fn the_last_records_of_a_lost_shim_decide_how_the_work_ended() {
    let exited = |code| ExitRecord::Script { outcome: RankOutcome::Exited { code } };
    let (kill, walltime) = (ExitRecord::OutOfMemory { launch: None, kill: KILL }, ExitRecord::Stopped { why: StopReason::Walltime });
    let lost = EndReason::NodeLost { node: me(), why: "its shim is gone".into() };
    let cases = [
        (vec![], lost.clone()),
        (vec![ExitRecord::Stopped { why: StopReason::Requested }], lost),
        (vec![exited(3)], EndReason::Exited { code: 3 }),
        (vec![kill.clone(), exited(3)], EndReason::Exited { code: 3 }),
        (vec![kill, exited(137)], EndReason::OutOfMemory { node: me(), kill: KILL }),
        (vec![exited(143), walltime], EndReason::WalltimeExceeded),
        (vec![ExitRecord::RunLeaseLapsed, exited(137)], EndReason::RunLeaseLapsed { node: me() }),
    ];
    for (records, reason) in cases {
        let mut work = work(|share| {
            script(share);
            share.run_lease_ms = Some(5000);
        });
        work.leave_records(&records);
        work.task.shim_lost("its shim is gone").await;
        let run_state = if records.contains(&ExitRecord::RunLeaseLapsed) { RunState::Ending } else { RunState::NotYet };
        assert_eq!((work.ends(), work.run_state()), (vec![reason], run_state), "{records:?}");
    }
}

#[tokio::test]
async fn a_script_ends_the_allocation_on_its_head_alone() {
    let mut work = work(|share| {
        script(share);
        share.nodes = ["n0".parse().unwrap()].into_iter().chain(share.nodes.iter().cloned()).collect();
    });
    work.leave_records(&[ExitRecord::Script { outcome: RankOutcome::Exited { code: 0 } }]);
    work.task.shim_lost("its shim is gone").await;
    assert_eq!(work.ends(), [EndReason::NodeLost { node: me(), why: "its shim is gone".into() }]);
}

#[tokio::test]
async fn the_end_of_a_script_ends_the_allocation_unless_it_is_being_ended() {
    let ended = |code| FromShim::ScriptEnded { outcome: RankOutcome::Exited { code } };
    let mut work = Work::running(script).await;
    work.task.handle_message(ended(4)).await;
    assert_eq!(work.ends(), [EndReason::Exited { code: 4 }]);
    assert!(work.handle.activity.borrow().over.contains(&0), "readers may reach the end of its output");
    let mut killed = Work::running(script).await;
    killed.task.handle_message(FromShim::OutOfMemory { launch: None, kill: KILL }).await;
    killed.task.handle_message(ended(137)).await;
    assert_eq!(killed.ends(), [EndReason::OutOfMemory { node: me(), kill: KILL }]);
    let mut stopping = Work::running(script).await;
    stopping.task.execute(Command::Stop).await;
    stopping.task.handle_message(ended(143)).await;
    assert_eq!(stopping.ends(), []);
    let mut over = Work::running(script).await;
    over.task.handle_message(FromShim::Stopping { why: StopReason::Walltime }).await;
    over.task.handle_message(ended(143)).await;
    assert_eq!(over.ends(), [EndReason::WalltimeExceeded]);
}

#[tokio::test]
async fn the_allocation_ends_as_its_inline_commands_launch_ended() {
    let end = |code| LaunchEnd { code, aborted: None, walltime_over: false, out_of_memory: None, bad: Arc::default() };
    let cases = [
        (end(3), EndReason::Exited { code: 3 }),
        (LaunchEnd { aborted: Some("rank 1 died".into()), ..end(9) }, EndReason::LaunchAborted { code: 9, why: "rank 1 died".into() }),
        (
            LaunchEnd { out_of_memory: Some((me(), KILL)), aborted: Some("no memory".into()), ..end(137) },
            EndReason::OutOfMemory { node: me(), kill: KILL },
        ),
        (LaunchEnd { walltime_over: true, aborted: Some("walltime".into()), ..end(143) }, EndReason::WalltimeExceeded),
    ];
    for (end, reason) in cases {
        let mut work = Work::running(|_| {}).await;
        work.task.execute(Command::EntryEnded { end }).await;
        assert_eq!(work.ends(), [reason]);
    }
}

#[tokio::test]
async fn a_failed_preparation_gives_its_reason() {
    let mut work = work(|_| {});
    work.task.prepared(Err(PrepareError::RootRefused)).await;
    let why = "work as root is refused on this node (work.allow_root is false)".to_owned();
    assert_eq!(work.text(), why);
    assert_eq!(work.reported(), [Event::Prepared { allocation: id(1), epoch: Epoch(1), result: Err(NotPrepared::Prologue(why)) }]);
    // A shim that is gone before it answers.
    let (ours, _) = UnixStream::pair().unwrap();
    work.task.prepared(Ok(Line { stream: ours, fresh: true, image: None })).await;
    let [Event::Prepared { result: Err(why), .. }] = &work.reported()[..] else { panic!("not one failure") };
    assert!(why.to_string().starts_with("the shim does not answer: "), "{why}");
}

#[tokio::test]
async fn nothing_is_started_before_the_shim_is_ready_or_while_it_ends() {
    let mut work = work(script);
    work.connect(true).await;
    work.task.handle_phase(TaskEvent::ShimGreeted).await;
    let share = Box::new(work.handle.share.as_ref().clone());
    work.task.execute(Command::Start(share.clone())).await;
    assert_eq!((work.sent(), work.reported(), work.run_state()), (vec![], vec![], RunState::NotYet));
    work.task.handle_message(FromShim::Ready { failed: Some("no image".into()) }).await;
    let (allocation, epoch) = (id(1), Epoch(1));
    assert_eq!(work.reported(), [Event::Prepared { allocation, epoch, result: Err(NotPrepared::Shim("no image".into())) }]);
    work.task.execute(Command::Stop).await;
    work.sent();
    work.task.execute(Command::Start(share)).await;
    assert_eq!((work.sent(), work.run_state()), (vec![], RunState::Ending));
}

#[tokio::test]
async fn a_script_begins_once_with_its_walltime_first() {
    let mut work = Work::running(|_| {}).await;
    let mut share = work.handle.share.as_ref().clone();
    script(&mut share);
    share.spec.walltime = Some(Duration::from_secs(60));
    work.task.execute(Command::Start(Box::new(share.clone()))).await;
    let sent = work.sent();
    assert_eq!(sent[0], ToShim::Go { walltime_ms: 60_000 });
    assert!(matches!(&sent[1], ToShim::StartScript { text, .. } if text == "true"), "{sent:?}");
    assert_eq!(sent.len(), 2);
    share.spec.walltime = None;
    work.task.execute(Command::ChangeWalltime(Box::new(share))).await;
    assert_eq!(work.sent(), [ToShim::Go { walltime_ms: u64::MAX }]);
}

#[tokio::test]
async fn a_signal_is_sent_on_a_line_whose_shim_reported_everything_and_never_twice() {
    let mut work = work(|_| {});
    work.connect(false).await;
    let signal = |work: &mut Work| {
        let (answer, processes) = oneshot::channel();
        (Command::Signal(SendSignal { signal: 10, to: SignalTarget::Ranks, answer }), processes, work.sent())
    };
    let (command, processes, _) = signal(&mut work);
    work.task.execute(command).await;
    assert_eq!((work.sent(), processes.await.is_err()), (vec![], true), "nobody knows whether it would reach the ranks");
    work.task.handle_message(FromShim::Synced).await;
    let (command, mut processes, _) = signal(&mut work);
    work.task.execute(command).await;
    let sent = work.sent();
    let [ToShim::Signal { request, signal: 10, to: SignalTarget::Ranks }] = sent[..] else { panic!("{sent:?}") };
    work.task.handle_message(FromShim::Signalled { request: request.wrapping_add(1), processes: 9 }).await;
    assert!(processes.try_recv().is_err(), "an answer to another request");
    work.task.handle_message(FromShim::Signalled { request, processes: 2 }).await;
    assert_eq!(processes.await, Ok(2));
}

#[tokio::test]
async fn launches_that_the_shim_does_not_have_are_asked_for_once_it_reported_everything() {
    let mut work = work(|_| {});
    work.connect(false).await;
    let (to_head, mut head) = mpsc::channel(16);
    work.task.execute(Command::Attach { launch: Box::new(launch()), to_head }).await;
    assert_eq!(work.sent(), [], "the shim may have it already");
    work.task.handle_message(FromShim::Synced).await;
    let sent = work.sent();
    let [ToShim::StartLaunch { launch: asked }] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((asked.id, asked.number, asked.env["LATTICE_NODE"].as_str()), (launch().id, NUMBER, ME));
    work.task.handle_message(FromShim::LaunchStarted { launch: launch() }).await;
    let mut messages = Vec::new();
    while let Ok(message) = head.try_recv() {
        messages.push(message);
    }
    assert_eq!(messages, [lattice_mesh::launch::ToHead::Synced, lattice_mesh::launch::ToHead::Begun]);
    for rank in 0..2 {
        assert!(!work.handle.activity.borrow().over.contains(&NUMBER));
        work.task.handle_message(FromShim::RankEnded { launch: launch().id, rank, outcome: RankOutcome::Exited { code: 0 } }).await;
    }
    assert!(work.handle.activity.borrow().over.contains(&NUMBER), "readers may reach the end of its output");
    // The head repeats its request on a new connection: the shim repeats what its ranks
    // reported.
    let (to_head, _head) = mpsc::channel(16);
    work.task.execute(Command::Attach { launch: Box::new(launch()), to_head }).await;
    assert_eq!(work.sent(), [ToShim::ResendRequests { launch: launch().id }]);
}

#[tokio::test]
async fn a_launch_with_output_that_an_old_shim_does_not_report_is_over() {
    for (fresh, over) in [(false, vec![1, 4]), (true, vec![])] {
        let mut work = work(|_| {});
        for number in [0, 1, NUMBER, 4] {
            std::fs::create_dir_all(work.handle.dir().launch_logs(number)).unwrap();
        }
        work.connect(fresh).await;
        if !fresh {
            work.task.handle_message(FromShim::LaunchStarted { launch: launch() }).await;
        }
        work.task.handle_message(FromShim::Synced).await;
        assert_eq!(work.handle.activity.borrow().over.iter().copied().collect::<Vec<_>>(), over);
    }
}

#[tokio::test]
async fn input_typed_ahead_waits_in_order_and_the_oldest_is_dropped_beyond_the_bound() {
    let mut work = work(|_| {});
    work.connect(false).await;
    let piece = |n: u8| ToTerminal::Input(vec![n; 20 * 1024]);
    for n in 1..=4 {
        work.task.execute(Command::Typed { launch: launch().id, message: piece(n) }).await;
    }
    work.task.execute(Command::Typed { launch: launch().id, message: ToTerminal::EndOfInput }).await;
    assert_eq!(work.sent(), []);
    work.task.handle_message(FromShim::LaunchStarted { launch: launch() }).await;
    let typed = |n: u8| ToShim::Typed { launch: launch().id, bytes: vec![n; 20 * 1024] };
    assert_eq!(work.sent(), [typed(2), typed(3), typed(4)]);
}

#[tokio::test]
async fn a_launch_is_forgotten_only_after_its_last_rank() {
    let mut work = Work::running(script).await;
    work.task.handle_message(FromShim::LaunchStarted { launch: launch() }).await;
    let forget = || Command::FromHead { launch: launch().id, message: lattice_mesh::launch::ToPart::Forget };
    work.sent();
    work.task.execute(forget()).await;
    assert_eq!(work.sent(), []);
    work.task.handle_message(FromShim::Aborted { launch: launch().id, code: REFUSED_CODE, why: "its number is taken".into() }).await;
    work.task.execute(forget()).await;
    work.task.execute(forget()).await;
    assert_eq!(work.sent(), [ToShim::Forget { launch: launch().id }]);
}

#[tokio::test]
async fn a_lane_gets_its_tasks_from_the_quorum_one_call_at_a_time() {
    let mut work = Work::with_lane().await;
    let call = work.asked().await;
    assert_eq!((call.lane, call.epoch, &call.report), (id(1), Epoch(1), &LaneReport::default()));
    let all = leased(0..3, false);
    assert_eq!(work.answer(call, Ok(all.clone())).await, [ToShim::LeaseTasks { work: all }]);
    let report = |code: i32, tasks: std::ops::Range<u32>| lane_report(vec![ended(code, tasks)]);
    work.task.handle_message(FromShim::TasksEnded { report: report(0, 0..1), left: 2 }).await;
    let call = work.asked().await;
    assert_eq!(call.report, report(0, 0..1));
    // While that call is under way, only the newest report waits.
    work.task.handle_message(FromShim::TasksEnded { report: report(0, 0..2), left: 1 }).await;
    work.task.handle_message(FromShim::TasksEnded { report: report(0, 0..3), left: 0 }).await;
    assert!(work.asks_nothing().await);
    let rest = leased(1..3, true);
    assert_eq!(work.answer(call, Ok(rest.clone())).await, [ToShim::LeaseTasks { work: rest }]);
    let call = work.asked().await;
    assert_eq!(call.report, report(0, 0..3));
    let none = leased([], true);
    assert_eq!(work.answer(call, Ok(none.clone())).await, [ToShim::LeaseTasks { work: none }]);
    assert!(work.asks_nothing().await);
    work.task.handle_message(FromShim::ScriptEnded { outcome: RankOutcome::Exited { code: 0 } }).await;
    assert_eq!(work.ends(), [EndReason::Exited { code: 0 }]);
    assert_eq!(work.handle.activity.borrow().over, BTreeSet::from([0, 1]), "readers may reach the end of its output");
}

#[tokio::test]
async fn a_lane_is_opened_again_on_a_new_line_and_its_output_is_not_over() {
    for command in [false, true] {
        let mut work = Work::running(|share| {
            lane(share);
            if command {
                share.spec.entrypoint = Entrypoint::Command { argv: vec!["true".into()] };
            }
        })
        .await;
        std::fs::create_dir_all(work.handle.dir().launch_logs(1)).unwrap();
        work.connect(false).await;
        for message in [work.hello(1), FromShim::LaneOpened, FromShim::Synced] {
            work.task.handle_message(message).await;
        }
        let sent = work.sent();
        let [ToShim::Go { walltime_ms: 120_000 }, ToShim::OpenLane { lane }] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!((lane.indices.to_string().as_str(), lane.walltime_ms), ("10-30:10", Some(30_000)));
        assert_eq!(lane.program, work.handle.share.spec.entrypoint);
        assert!(work.handle.activity.borrow().over.is_empty());
    }
}

#[tokio::test]
async fn a_pause_of_a_lane_is_shown_until_it_is_over_and_not_once_the_work_is_being_ended() {
    let mut work = Work::with_lane().await;
    let paused = || FromShim::LanePaused { why: Some("the disk is full".into()) };
    // The pause may end while the line is broken.
    for over in [FromShim::LanePaused { why: None }, FromShim::LaneOpened] {
        work.task.handle_message(paused()).await;
        assert_eq!(work.text(), "running; the lane begins no task: the disk is full");
        work.task.handle_message(over).await;
        assert_eq!(work.text(), "running");
    }
    work.task.execute(Command::Stop).await;
    let shown = work.text();
    work.task.handle_message(paused()).await;
    assert_eq!(work.text(), shown);
}

#[tokio::test]
async fn output_that_waits_for_its_files_is_shown_until_it_does_not_also_if_that_was_while_the_line_was_broken() {
    let mut work = Work::running(script).await;
    let shown = |work: &Work| work.handle.detail.borrow().status_text();
    let before = shown(&work);
    let late = |why: &str| FromShim::FilesLate { why: Some(why.into()) };
    work.task.handle_message(late("4 bytes wait")).await;
    work.task.handle_message(late("9 bytes wait")).await;
    assert_eq!(shown(&work), format!("{before}; 9 bytes wait"));
    work.task.handle_message(FromShim::FilesLate { why: None }).await;
    assert_eq!(shown(&work), before);
    work.task.handle_message(late("4 bytes wait")).await;
    // The replay of another connection does not have it.
    work.connect(false).await;
    work.task.handle_message(work.hello(1)).await;
    assert_eq!(shown(&work), before);
}

#[tokio::test]
async fn a_lane_whose_tasks_are_revoked_asks_what_is_left() {
    let mut work = Work::with_lane().await;
    let call = work.asked().await;
    work.answer(call, Ok(leased(0..3, false))).await;
    let mut share = work.handle.share.as_ref().clone();
    share.lane = Some(LaneOf { group: id(9), number: 0, queued_at: Timestamp(0), revocations: 1 });
    work.task.execute(Command::ChangeLane(Box::new(share))).await;
    let call = work.asked().await;
    assert_eq!(call.report, LaneReport::default());
    let left = leased([2], false);
    assert_eq!(work.answer(call, Ok(left.clone())).await, [ToShim::LeaseTasks { work: left }]);
}

#[tokio::test]
async fn an_unanswered_report_is_repeated_and_a_lane_whose_claim_is_over_asks_after_a_pause() {
    let mut work = Work::with_lane().await;
    let call = work.asked().await;
    call.answer.send(Err(NotAdvanced::Unavailable("no leader".into()))).unwrap();
    let call = work.asked().await;
    assert_eq!(call.report, LaneReport::default());
    let sent = work.answer(call, Err(NotAdvanced::ClaimOver("taken from this node".into()))).await;
    assert_eq!(sent, []);
    work.task.handle_message(FromShim::TasksEnded { report: lane_report(vec![ended(0, [0])]), left: 0 }).await;
    assert!(work.asks_nothing().await);
    assert_eq!(work.reported(), [], "the quorum's list says how it ends");
    // A recovered quorum has adopted the lane meanwhile.
    let call = work.asked().await;
    assert_eq!(call.report, LaneReport::default());
    work.answer(call, Ok(leased([0], true))).await;
    let call = work.asked().await;
    assert_eq!(call.report.ended, [ended(0, [0])]);
}

#[tokio::test]
async fn a_lane_that_the_quorum_refuses_ends() {
    let mut work = Work::with_lane().await;
    let call = work.asked().await;
    work.answer(call, Err(NotAdvanced::Refused("it is not a lane".into()))).await;
    assert_eq!(work.ends(), [EndReason::Exited { code: 1 }]);
    work.task.handle_message(FromShim::TasksEnded { report: lane_report(vec![ended(0, [0])]), left: 0 }).await;
    assert!(work.asks_nothing().await);
}

#[tokio::test]
async fn the_removal_of_a_lane_waits_until_its_ends_are_confirmed() {
    let mut work = Work::with_lane().await;
    let call = work.asked().await;
    work.answer(call, Ok(leased(0..2, false))).await;
    work.task.handle_message(FromShim::TasksEnded { report: lane_report(vec![ended(0, [0])]), left: 1 }).await;
    let first = work.asked().await;
    let both = lane_report(vec![ended(0, [0, 1])]);
    work.task.handle_message(FromShim::TasksEnded { report: both.clone(), left: 0 }).await;
    work.task.handle_message(FromShim::ScriptEnded { outcome: RankOutcome::Signalled { signal: 15 } }).await;
    assert!(work.task.lane.has_unconfirmed_ends());
    let Work { bench, task, queue, .. } = &mut work;
    let quorum = async {
        first.answer.send(Ok(leased([1], false))).unwrap();
        let second = bench.lane_calls.recv().await.unwrap();
        assert_eq!(second.report, both);
        second.answer.send(Ok(leased([], false))).unwrap();
    };
    tokio::time::timeout(PATIENCE, async { tokio::join!(task.confirm_ends(queue), quorum) }).await.unwrap();
    assert!(!work.task.lane.has_unconfirmed_ends());
    assert!(work.asks_nothing().await, "it has ended");
}

#[tokio::test]
async fn the_ends_that_a_lost_shim_recorded_are_reported_before_the_lane_ends() {
    let lost = || EndReason::NodeLost { node: me(), why: "its shim is gone".into() };
    let mut work = Work::with_lane().await;
    let call = work.asked().await;
    work.answer(call, Ok(leased(0..3, false))).await;
    let record = |ordinal, code| ExitRecord::Task { ordinal, outcome: TaskOutcome::Exited(code) };
    work.leave_records(&[record(0, 0), record(1, 4)]);
    work.task.shim_lost("its shim is gone").await;
    assert_eq!(work.reported(), []);
    let call = work.asked().await;
    assert_eq!(call.report, LaneReport::default(), "it asks what is still leased");
    work.answer(call, Ok(leased(1..3, false))).await;
    let call = work.asked().await;
    assert_eq!(call.report.ended, [ended(4, [1])]);
    assert_eq!(work.reported(), []);
    work.answer(call, Ok(leased([2], false))).await;
    assert_eq!(work.ends(), [lost()]);
    // Without a recorded end there is nothing to wait for.
    let mut work = Work::running(lane).await;
    work.task.shim_lost("its shim is gone").await;
    assert_eq!(work.ends(), [lost()]);
}

#[tokio::test]
async fn launches_in_a_lane_are_numbered_above_the_output_of_its_tasks() {
    let work = work(lane);
    for (number, highest) in [(7, 1000), (1002, 1002)] {
        std::fs::create_dir_all(work.handle.dir().launch_logs(number)).unwrap();
        assert_eq!(work.handle.highest_launch_number(), highest);
    }
}
