//! Lanes of task groups.

use crate::bed::{Bed, PATIENCE, Setting, eventually};
use lattice_model::{EndedTasks, Entrypoint, LaneWork, RankOutcome, TaskIndices, TaskOutcome, TaskSet};
use lattice_runtime::exits::{self, ExitRecord};
use lattice_runtime::shim::{FromShim, LaneSpec, LogStream, SignalTarget, StopReason, ToShim, connect_shim};
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

const DONE: TaskOutcome = TaskOutcome::Exited(0);

fn script(text: &str) -> Entrypoint {
    Entrypoint::Script { text: text.into(), args: vec![] }
}

/// Opens a lane without an end. `DIR` is a directory where its tasks may write.
fn open(bed: &mut Bed, program: Entrypoint, indices: &str, walltime_ms: Option<u64>) {
    bed.agent.send(&ToShim::Go { walltime_ms: u64::MAX });
    send_lane(bed, program, indices, walltime_ms);
    bed.agent.until("LaneOpened", |m| *m == FromShim::LaneOpened);
}

fn send_lane(bed: &mut Bed, program: Entrypoint, indices: &str, walltime_ms: Option<u64>) {
    fs::set_permissions(&bed.scratch, Permissions::from_mode(0o777)).unwrap();
    let env = [("PATH", "/usr/bin:/bin".to_owned()), ("DIR", bed.scratch.display().to_string())];
    let lane = LaneSpec {
        indices: TaskIndices::parse(indices).unwrap(),
        program,
        env: env.map(|(name, value)| (name.to_owned(), value)).into(),
        working_dir: "/tmp".into(),
        walltime_ms,
        slurm_number: None,
    };
    bed.agent.send(&ToShim::OpenLane { lane: Box::new(lane) });
}

fn lease(bed: &mut Bed, tasks: impl IntoIterator<Item = u32>, is_last: bool) {
    let leased = tasks.into_iter().collect();
    bed.agent.send(&ToShim::LeaseTasks { work: LaneWork { leased, is_last, returns: 0 } });
}

/// Leases these tasks, confirms the ends that are reported, and returns them when the lane has ended.
fn run(bed: &mut Bed, tasks: impl IntoIterator<Item = u32>) -> BTreeMap<u32, TaskOutcome> {
    let mut left: TaskSet = tasks.into_iter().collect();
    let mut outcomes = BTreeMap::new();
    bed.agent.send(&ToShim::LeaseTasks { work: LaneWork { leased: left.clone(), is_last: true, returns: 0 } });
    loop {
        match bed.agent.next().expect("the shim went away") {
            FromShim::TasksEnded { report, .. } => {
                for ended in report.ended {
                    let ended_now = ended.tasks.and(&left);
                    outcomes.extend(ended_now.iter().map(|task| (task, ended.outcome)));
                    left.remove_all(&ended_now);
                }
                bed.agent.send(&ToShim::LeaseTasks { work: LaneWork { leased: left.clone(), is_last: true, returns: 0 } });
            }
            FromShim::ScriptEnded { outcome } => {
                assert_eq!((outcome, left.is_empty()), (RankOutcome::Exited { code: 0 }, true));
                return outcomes;
            }
            _ => {}
        }
    }
}

fn written(bed: &Bed, name: &str) -> String {
    fs::read_to_string(bed.scratch.join(name)).unwrap_or_default()
}

fn task(ordinal: u32, outcome: TaskOutcome) -> ExitRecord {
    ExitRecord::Task { ordinal, outcome }
}

/// How many directories of log files there are.
fn log_entries(bed: &Bed) -> usize {
    fs::read_dir(bed.dir.logs()).unwrap().count()
}

pub fn in_order() {
    let mut bed = Bed::ready(Setting::default());
    let text = "#!/bin/sh\necho $LATTICE_TASK_INDEX >> $DIR/order\necho out $SLURM_ARRAY_TASK_ID $(pwd)\n\
                [ $LATTICE_TASK_INDEX != 20 ] || { echo err >&2; exit 3; }\n";
    open(&mut bed, script(text), "10-30:10", None);
    let outcomes = run(&mut bed, 0..3);
    assert_eq!(outcomes, BTreeMap::from([(0, DONE), (1, TaskOutcome::Exited(3)), (2, DONE)]));
    assert_eq!(written(&bed, "order"), "10\n20\n30\n");
    for (ordinal, out, err) in [(0, "out 10 /tmp\n", ""), (1, "out 20 /tmp\n", "err\n"), (2, "out 30 /tmp\n", "")] {
        assert_eq!((bed.log(1, ordinal, LogStream::Out).as_str(), bed.log(1, ordinal, LogStream::Err).as_str()), (out, err));
    }
    let end = ExitRecord::Script { outcome: RankOutcome::Exited { code: 0 } };
    assert_eq!(exits::read(&bed.dir).unwrap(), [task(0, DONE), task(1, TaskOutcome::Exited(3)), task(2, DONE), end]);
    bed.end();
}

pub fn silent() {
    let mut bed = Bed::ready(Setting::default());
    open(&mut bed, Entrypoint::Command { argv: vec!["true".into()] }, "0-299", None);
    let outcomes = run(&mut bed, 0..300);
    assert_eq!((outcomes.len(), outcomes.values().all(|outcome| *outcome == DONE)), (300, true));
    assert_eq!(log_entries(&bed), 0);
    assert!(!bed.dir.task_output(LogStream::Out).exists() && !bed.dir.task_output(LogStream::Err).exists());
    bed.end();
}

pub fn not_started() {
    let mut bed = Bed::ready(Setting::default());
    open(&mut bed, Entrypoint::Command { argv: vec!["no-such-program".into()] }, "0-1", None);
    assert_eq!(run(&mut bed, 0..2), BTreeMap::from([(0, TaskOutcome::Exited(127)), (1, TaskOutcome::Exited(127))]));
    for ordinal in 0..2 {
        assert_eq!(bed.log(1, ordinal, LogStream::Err), "lattice: no-such-program: command not found\n");
    }
    bed.end();
}

pub fn node_cannot_start() {
    let mut bed = Bed::ready(Setting::default());
    open(&mut bed, Entrypoint::Command { argv: vec!["true".into()] }, "0-9", None);
    let output = bed.dir.task_output(LogStream::Out);
    fs::create_dir(&output).unwrap();
    lease(&mut bed, 0..10, false);
    let over = RankOutcome::NotStarted { code: 126 };
    let seen = bed.agent.until("ScriptEnded", |m| *m == FromShim::ScriptEnded { outcome: over });
    assert!(!seen.iter().any(|m| matches!(m, FromShim::TasksEnded { .. })), "its tasks may run elsewhere: {seen:?}");
    assert_eq!(exits::read(&bed.dir).unwrap(), [ExitRecord::Script { outcome: over }]);
    let why = bed.log(0, 0, LogStream::Err);
    assert!(why.starts_with(&format!("lattice: its output file {}: ", output.display())), "{why}");
    // It is not opened again.
    send_lane(&mut bed, Entrypoint::Command { argv: vec!["true".into()] }, "0-9", None);
    let seen = bed.agent.until("ScriptEnded", |m| *m == FromShim::ScriptEnded { outcome: over });
    assert!(!seen.contains(&FromShim::LaneOpened), "{seen:?}");
    bed.end();
}

fn no_leftovers(setting: Setting) {
    let mut bed = Bed::ready(setting);
    // A task fails if the process that the task before it left is more than a zombie.
    let text = "#!/bin/sh\nif [ -e $DIR/left ]; then\n\
                state=$(sed 's/.*) //; s/ .*//' /proc/$(cat $DIR/left)/stat 2> /dev/null)\n\
                [ -z \"$state\" ] || [ \"$state\" = Z ] || exit 9\nfi\nsetsid sleep 1000 &\necho $! > $DIR/left\n";
    open(&mut bed, script(text), "0-4", None);
    assert_eq!(run(&mut bed, 0..5), (0..5).map(|ordinal| (ordinal, DONE)).collect::<BTreeMap<_, _>>());
    bed.end();
}

pub fn leftovers() {
    no_leftovers(Setting::default());
}

pub fn leftovers_without_scope() {
    no_leftovers(Setting { without_scope: true, ..Setting::default() });
}

pub fn walltime() {
    let mut bed = Bed::ready(Setting::default());
    let text = "#!/bin/sh\n[ $LATTICE_TASK_INDEX = 0 ] || exit 0\ntrap '' TERM\nwhile :; do sleep 1000; done\n";
    open(&mut bed, script(text), "0-1", Some(700));
    assert_eq!(run(&mut bed, 0..2), BTreeMap::from([(0, TaskOutcome::WalltimeExceeded), (1, DONE)]));
    bed.end();
}

pub fn own_walltime() {
    let mut bed = Bed::ready(Setting::default());
    bed.agent.send(&ToShim::Go { walltime_ms: 60_000 });
    send_lane(&mut bed, Entrypoint::Command { argv: vec!["sleep".into(), "1.1".into()] }, "0-9", Some(59_000));
    lease(&mut bed, 0..10, false);
    let seen = bed.agent.until("TasksEnded", |m| matches!(m, FromShim::TasksEnded { .. }));
    let Some(FromShim::TasksEnded { report, left: 9 }) = seen.last() else { panic!("{seen:?}") };
    assert_eq!(report.ended[0].tasks, TaskSet::first(1));
    // The end is confirmed, and more was leased meanwhile: none of it begins.
    lease(&mut bed, 1..10, false);
    bed.agent.until("ScriptEnded", |m| *m == FromShim::ScriptEnded { outcome: RankOutcome::Exited { code: 0 } });
    assert_eq!(exits::read(&bed.dir).unwrap().len(), 2);
    bed.end();
}

/// The first task runs until it is ended; the others end at once.
const FIRST_STAYS: &str =
    "#!/bin/sh\necho $LATTICE_TASK_INDEX >> $DIR/order\n[ $LATTICE_TASK_INDEX = 0 ] || exit 0\necho up\nexec sleep 1000\n";

pub fn revoked() {
    let mut bed = Bed::ready(Setting::default());
    open(&mut bed, script(FIRST_STAYS), "0-3", None);
    lease(&mut bed, 0..3, false);
    bed.wait_log(1, 0, "up");
    assert_eq!(run(&mut bed, [2]), BTreeMap::from([(2, DONE)]));
    assert_eq!(written(&bed, "order"), "0\n2\n");
    assert_eq!(exits::read(&bed.dir).unwrap()[..2], [task(0, TaskOutcome::Cancelled), task(2, DONE)]);
    bed.end();
}

pub fn agent_away() {
    let mut bed = Bed::ready(Setting::default());
    let text = "#!/bin/sh\necho $LATTICE_TASK_INDEX >> $DIR/order\nwhile [ ! -e $DIR/go ]; do sleep 0.01; done\n";
    open(&mut bed, script(text), "0-2", None);
    lease(&mut bed, 0..2, false);
    eventually("the first task", || written(&bed, "order") == "0\n");
    // A connection that is closed at once replaces the agent: there is none now.
    drop(connect_shim(&bed.dir).unwrap());
    fs::write(bed.scratch.join("go"), "").unwrap();
    eventually("both ends on disk", || exits::read(&bed.dir).unwrap() == [task(0, DONE), task(1, DONE)]);
    bed.reconnect();
    let replay = bed.agent.synced();
    let at = replay.iter().position(|m| *m == FromShim::LaneOpened).expect("the lane is open");
    let FromShim::TasksEnded { report, left: 0 } = &replay[at + 1] else { panic!("{replay:?}") };
    assert_eq!((report.ended.len(), &report.ended[0].tasks), (1, &TaskSet::first(2)));
    // The agent opens the lane again, and the quorum does not have the ends yet.
    open(&mut bed, script(text), "0-2", None);
    lease(&mut bed, 0..3, false);
    assert_eq!(run(&mut bed, [2]), BTreeMap::from([(2, DONE)]));
    assert_eq!(written(&bed, "order"), "0\n1\n2\n");
    bed.end();
}

pub fn killed_shim() {
    let mut bed = Bed::ready(Setting::default());
    let text = "#!/bin/sh\n[ $LATTICE_TASK_INDEX = 1 ] || exit 6\necho up\nexec sleep 1000\n";
    open(&mut bed, script(text), "0-9", None);
    lease(&mut bed, 0..10, false);
    bed.wait_log(1, 1, "up");
    // SAFETY: our own child, not reaped yet.
    unsafe { libc::kill(bed.pid, libc::SIGKILL) };
    assert_eq!(bed.wait_shim(), RankOutcome::Signalled { signal: 9 });
    assert_eq!(exits::read(&bed.dir).unwrap(), [task(0, TaskOutcome::Exited(6))]);
    bed.scope().whole().kill().unwrap();
    assert!(bed.scope().whole().wait_empty(PATIENCE).unwrap());
    bed.scope().whole().remove().unwrap();
}

/// The end of a lane whose work was ended.
const STOPPED_LANE: ExitRecord = ExitRecord::Script { outcome: RankOutcome::Signalled { signal: 15 } };

pub fn stopped() {
    let mut bed = Bed::ready(Setting::default());
    open(&mut bed, script(FIRST_STAYS), "0-9", None);
    lease(&mut bed, 0..10, false);
    bed.wait_log(1, 0, "up");
    bed.agent.send(&ToShim::Stop { why: StopReason::Requested, grace_ms: 5000 });
    let seen = bed.agent.until("Stopped", |m| matches!(m, FromShim::Stopped { .. }));
    assert!(!seen.iter().any(|m| matches!(m, FromShim::TasksEnded { .. })), "{seen:?}");
    assert_eq!(exits::read(&bed.dir).unwrap(), [STOPPED_LANE, ExitRecord::Stopped { why: StopReason::Requested }]);
    assert_eq!((written(&bed, "order").as_str(), bed.log(1, 0, LogStream::Out).as_str()), ("0\n", "up\n"));
    bed.quit();
}

pub fn stopped_after_walltime() {
    let mut bed = Bed::ready(Setting::default());
    let text = "#!/bin/sh\ntrap 'echo cut' TERM\necho up\nwhile :; do sleep 0.01; done\n";
    open(&mut bed, script(text), "0-1", Some(400));
    lease(&mut bed, [0], false);
    bed.wait_log(1, 0, "cut");
    bed.agent.send(&ToShim::Stop { why: StopReason::Requested, grace_ms: 100 });
    let seen = bed.agent.until("Stopped", |m| matches!(m, FromShim::Stopped { .. }));
    let report = seen.iter().find_map(|m| match m {
        FromShim::TasksEnded { report, .. } => Some(&report.ended),
        _ => None,
    });
    let ended = EndedTasks { outcome: TaskOutcome::WalltimeExceeded, tasks: TaskSet::first(1) };
    assert_eq!(report, Some(&vec![ended]), "{seen:?}");
    let records = exits::read(&bed.dir).unwrap();
    assert_eq!(records, [task(0, TaskOutcome::WalltimeExceeded), STOPPED_LANE, ExitRecord::Stopped { why: StopReason::Requested }]);
    bed.quit();
}

pub fn terminated_shim() {
    let mut bed = Bed::ready(Setting::default());
    let text = "#!/bin/sh\n[ $LATTICE_TASK_INDEX = 1 ] || exit 6\necho up\nexec sleep 1000\n";
    open(&mut bed, script(text), "0-9", None);
    lease(&mut bed, 0..10, false);
    bed.wait_log(1, 1, "up");
    // SAFETY: our own child, not reaped yet.
    unsafe { libc::kill(bed.pid, libc::SIGTERM) };
    let over = FromShim::ScriptEnded { outcome: RankOutcome::Signalled { signal: 15 } };
    let seen = bed.agent.until("Stopped", |m| matches!(m, FromShim::Stopped { .. }));
    assert!(seen.contains(&over), "{seen:?}");
    let records = exits::read(&bed.dir).unwrap();
    assert_eq!(records, [task(0, TaskOutcome::Exited(6)), STOPPED_LANE, ExitRecord::Stopped { why: StopReason::Requested }]);
    // No lease has confirmed the end of the first task: it is reported again, before the end of the lane.
    bed.reconnect();
    let replay = bed.agent.synced();
    let reported = replay.iter().position(|m| matches!(m, FromShim::TasksEnded { .. }));
    let ended = replay.iter().position(|m| *m == over);
    assert!(reported.is_some() && reported < ended, "{replay:?}");
    bed.quit();
}

pub fn signalled() {
    let mut bed = Bed::ready(Setting::default());
    let text = "#!/bin/sh\ntrap 'exit 7' USR1\necho up\nwhile :; do sleep 0.01; done\n";
    open(&mut bed, script(text), "0", None);
    lease(&mut bed, [0], false);
    bed.wait_log(1, 0, "up");
    bed.agent.send(&ToShim::Signal { request: 1, signal: libc::SIGUSR1, to: SignalTarget::Script });
    bed.agent.until("Signalled", |m| *m == FromShim::Signalled { request: 1, processes: 1 });
    assert_eq!(run(&mut bed, [0]), BTreeMap::from([(0, TaskOutcome::Exited(7))]));
    bed.end();
}
