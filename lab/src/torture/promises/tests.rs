//! Each check accepts a good history, and finds the fault in one that was changed in one place.

use super::*;
use crate::networks::{Direction, From};
use crate::torture::facts::{Broken, Daemon, Log, Node, Record};
use crate::torture::fault::{Fault, Hit};
use crate::torture::traces::Trace;

const ID: &str = "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88";

fn job() -> Job {
    Job {
        number: 1,
        at_ms: 0,
        kind: Kind::Command,
        via: 1,
        nodes: 2,
        tasks: 1,
        whole_nodes: false,
        lines: 2,
        interval_ms: 10,
        exit_code: 0,
        stops: false,
        requeue: Requeue::OnNodeFailure,
        walltime_s: 300,
        cancel_after_ms: None,
    }
}

fn trace(mark: Mark, epoch: u64, rank: u32, at_ms: u64) -> Trace {
    let node = format!("n{}", rank + 1);
    Trace { mark, allocation: ID.to_owned(), epoch, part: Part::Main, rank, node, pid: 7, at_ms }
}

fn log(lines: &[(u32, u32)]) -> Log {
    let mut log = Log::default();
    lines.iter().for_each(|(rank, line)| log.lines.take(&format!("rank {rank} of 2 line {line} on n1")));
    log
}

fn record(seq: u64, action: &str, detail: &str) -> Record {
    Record {
        seq,
        at_wall_ms: seq * 1_500,
        action: action.to_owned(),
        detail: detail.to_owned(),
        allocation: Some(ID.to_owned()),
        ..Record::default()
    }
}

/// A job of two ranks that was requeued once, ended well, and left nothing behind.
fn good() -> Facts {
    let allocation = Allocation {
        id: ID.to_owned(),
        name: "t1".to_owned(),
        state: "Completed".to_owned(),
        nodes: vec!["n1".to_owned(), "n2".to_owned()],
        exit_code: Some(0),
        requeue_count: 1,
        epoch: 9,
        ..Allocation::default()
    };
    let call = Call { called_ms: 10, returned_ms: 20, ..Call::default() };
    let begun = [trace(Mark::Begin, 4, 0, 100), trace(Mark::Begin, 9, 0, 200), trace(Mark::Begin, 9, 1, 201)];
    let ended = [trace(Mark::End(0), 9, 0, 300), trace(Mark::End(0), 9, 1, 301)];
    let actions = [
        ("AllocationSubmitted", "t1 on 2 nodes"),
        ("AllocationClaimed", "epoch 4, 2 nodes from n1"),
        ("AllocationRequeued", "requeue 1: node_lost n1: its shim is gone"),
        ("AllocationClaimed", "epoch 9, 2 nodes from n1"),
        ("AllocationEnded", "Completed: completed"),
    ];
    Facts {
        asked: vec![Asked { job: job(), submission: Some(call), id: Some(ID.to_owned()), cancellation: None, outside: None }],
        traces: begun.into_iter().chain(ended).collect(),
        allocations: vec![allocation],
        broken: vec![broken(What::KillShim { node: "n1".to_owned(), number: 0 }, &[&format!("{ID}-4")])],
        audit: (1..).zip(actions).map(|(seq, (action, detail))| record(seq, action, detail)).collect(),
        logs: [(ID.to_owned(), log(&[(0, 1), (0, 2), (1, 1), (1, 2)]))].into(),
        nodes: vec![Node { id: "n1".to_owned(), state: "Ready".to_owned(), ..Node::default() }],
        daemons: vec![Daemon { name: "n1".to_owned(), memory_bytes: 1 << 20, descriptors: 9, ..Daemon::default() }],
        ..Facts::default()
    }
}

fn broken(what: What, runs: &[&str]) -> Broken {
    let hit = Hit { runs: runs.iter().map(|run| (*run).to_owned()).collect(), ..Hit::default() };
    Broken { fault: Fault { number: 1, at_ms: 0, for_ms: 1000, what }, began_ms: 50, ended_ms: 1050, hit, error: None }
}

/// All texts of one check after a change, joined; every other check must pass.
fn found(check: fn(&Facts) -> Vec<Violation>, change: impl FnOnce(&mut Facts)) -> String {
    let mut facts = good();
    change(&mut facts);
    let own = check(&facts);
    for violation in super::check(&facts) {
        assert!(own.contains(&violation), "another check finds {violation:?}");
    }
    own.into_iter().map(|violation| violation.text).collect::<Vec<_>>().join("; ")
}

/// Changes the end of the job to a failure with this reason.
fn failed(facts: &mut Facts, reason: &str) {
    (facts.allocations[0].state, facts.allocations[0].reason) = ("Failed".to_owned(), reason.to_owned());
    facts.traces.retain(|trace| !matches!(trace.mark, Mark::End(_)));
}

#[test]
fn a_good_history_is_accepted() {
    assert_eq!(check(&good()), []);
}

#[test]
fn a_lost_answer_and_a_doubled_submission_are_found() {
    let lost = found(answers_are_known, |facts| facts.asked.push(Asked { id: Some("gone".to_owned()), ..facts.asked[0].clone() }));
    assert_eq!(lost, "its submission was answered, but the quorum has no such allocation");
    let mut twice = good();
    twice.allocations.push(Allocation { id: "other".to_owned(), ..twice.allocations[0].clone() });
    assert!(answers_are_known(&twice)[0].text.starts_with("t1 was submitted once, but"), "{twice:?}");
    assert_eq!(found(is_answered, |facts| facts.unanswered.push("no quorum".to_owned())), "no quorum");
}

#[test]
fn wrong_ends_are_found() {
    let end = |change: fn(&mut Facts)| found(ends_are_right, change);
    assert_eq!(end(|facts| facts.asked[0].job.exit_code = 3).split(',').next(), Some("it is Completed"));
    assert_eq!(end(|facts| drop(facts.traces.pop())), "it is Completed, but under epoch 9 rank 1 did not end by itself");
    assert_eq!(end(|facts| facts.traces[4].mark = Mark::End(1)), "it is Completed, but under epoch 9 rank 1 ended with 1");
    assert_eq!(
        end(|facts| facts.allocations[0].state = "Cancelled".to_owned()),
        "it is Cancelled, but it was not cancelled by the torture"
    );
    assert!(end(|facts| failed(facts, "walltime_exceeded")).starts_with("it is Failed for an unexpected reason"));
    assert!(end(|facts| failed(facts, "exit_code 3")).contains("exit_code 3"));
    let mut running = good();
    running.allocations[0].state = "Running".to_owned();
    assert_eq!(ends_are_right(&running)[0].text, "it is still Running (, requeued 1 times)");
    // The audit log has its end already.
    assert_eq!(audit_is_whole(&running).len(), 1);
}

#[test]
fn failures_that_a_fault_explains_are_right_and_others_are_not() {
    let run = format!("{ID}-9");
    let after = |reason: &str, what: What, runs: &[&str], change: fn(&mut Facts)| {
        found(ends_are_right, |facts| {
            failed(facts, reason);
            facts.allocations[0].requeue_count = REQUEUES_MAX;
            facts.broken.push(broken(what, runs));
            change(facts);
        })
    };
    let shim = || What::KillShim { node: "n1".to_owned(), number: 0 };
    let cut = |node: &str| What::Cut { node: node.to_owned(), from: From::All, direction: Direction::Both };
    let agent = || What::KillAgent { node: "n1".to_owned() };
    assert_eq!(after("node_lost n1: its shim is gone", shim(), &[&run], |_| {}), "");
    assert!(after("node_lost n1: its shim is gone", shim(), &[], |_| {}).contains("unexpected reason"));
    let left = after("node_lost n1: its shim is gone", shim(), &[&run], |facts| facts.allocations[0].requeue_count = 1);
    assert!(left.ends_with("but 2 of its 3 requeues are left"), "{left}");
    // A lapse can only end work with --on-isolation=stop, on a node that was isolated.
    assert_eq!(after("run_lease_lapsed on n2", cut("n2"), &[], |facts| facts.asked[0].job.stops = true), "");
    assert_ne!(after("run_lease_lapsed on n2", cut("n2"), &[], |_| {}), "");
    assert_ne!(after("run_lease_lapsed on n2", cut("n3"), &[], |facts| facts.asked[0].job.stops = true), "");
    // The absence of an agent aborts no launch.
    assert_ne!(after("launch_aborted: n1: is not on this node", agent(), &[], |_| {}), "");
    let full = |daemon: &str| What::FullDisk { daemon: daemon.to_owned() };
    assert_eq!(after("exit_code 74", full("n2"), &[], |_| {}), "");
    assert_ne!(after("exit_code 74", full("n4"), &[], |_| {}), "");
    assert_ne!(after("exit_code 74", full("member-3"), &[], |_| {}), "");
    assert_eq!(after("prologue_failed on n2: no space", full("n2"), &[], |_| {}), "");
    assert_ne!(after("prologue_failed on n2: no space", agent(), &[], |_| {}), "");
}

#[test]
fn a_walltime_an_exit_code_and_a_cancellation_end_their_jobs_rightly() {
    let end = |change: fn(&mut Facts)| found(ends_are_right, change);
    let walltime = |facts: &mut Facts| {
        failed(facts, "walltime_exceeded");
        facts.asked[0].job.kind = Kind::Walltime;
    };
    assert_eq!(end(walltime), "");
    let code = |facts: &mut Facts| {
        failed(facts, "exit_code 3");
        facts.asked[0].job.exit_code = 3;
    };
    assert_eq!(end(code), "");
    let cancelled = |facts: &mut Facts| {
        facts.allocations[0].state = "Cancelled".to_owned();
        facts.asked[0].cancellation = Some(Call::default());
    };
    assert_eq!(end(cancelled), "");
}

#[test]
fn requeues_without_a_fault_and_storms_of_them_are_found() {
    let requeues = |change: fn(&mut Facts)| found(requeues_have_causes, change);
    let without = requeues(|facts| facts.broken.clear());
    assert_eq!(without, "it was requeued under epoch 4 (requeue 1: node_lost n1: its shim is gone), but no fault ended that run");
    let code = requeues(|facts| {
        facts.broken.clear();
        facts.audit[2].detail = "requeue 1: exit_code 3".to_owned();
    });
    assert_eq!(code, "");
    // Work with --on-isolation=stop may be lost without a fault of its own, but not again and again.
    let storm = |between_ms: u64| {
        found(requeues_have_causes, |facts| {
            facts.asked[0].job.stops = true;
            for (seq, count) in (6..).zip(2..4) {
                let detail = format!("requeue {count}: run_lease_lapsed on n1");
                facts.audit.push(Record { at_wall_ms: 4_500 + (count - 1) * between_ms, ..record(seq, "AllocationRequeued", &detail) });
            }
        })
    };
    assert_eq!((storm(60).as_str(), storm(3_000).as_str()), ("it was requeued three times within 2 s", ""));
}

#[test]
fn overlapping_runs_are_found() {
    let twice = found(runs_are_single, |facts| facts.traces.insert(2, trace(Mark::Begin, 9, 0, 205)));
    assert_eq!(twice, "rank 0 was started twice under epoch 9, the second time on n1");
    let beside = found(runs_are_single, |facts| facts.traces.push(trace(Mark::Beat, 4, 0, 260)));
    assert_eq!(beside, "it still ran under epoch 4 60 ms after its start under epoch 9");
}

#[test]
fn lost_and_doubled_lines_are_found() {
    let lost = found(logs_are_whole, |facts| drop(facts.logs.insert(ID.to_owned(), log(&[(0, 1), (0, 2), (1, 1)]))));
    assert!(lost.starts_with("its log is not complete: rank 1 got to line 1 of 2"), "{lost}");
    let doubled = found(logs_are_whole, |facts| drop(facts.logs.insert(ID.to_owned(), log(&[(0, 1), (0, 1), (0, 2), (1, 1), (1, 2)]))));
    assert!(doubled.starts_with("its log is not complete: rank 0: line 1 came where 2 was due"), "{doubled}");
    assert_eq!(found(logs_are_whole, |facts| facts.logs.clear()), "its log was not shown");
}

#[test]
fn a_launch_that_shows_half_or_does_not_return_is_found() {
    let shown = |lines: u32| (1..=lines).map(|line| format!("rank 0 of 1 line {line} on n1\n")).collect::<String>();
    let launch = |call: Call| found(launches_are_whole, |facts| facts.asked[0].outside = Some(call));
    assert_eq!(launch(Call { out: shown(OUTSIDE_LINES), ..Call::default() }), "");
    let half = launch(Call { out: shown(OUTSIDE_LINES / 2), ..Call::default() });
    assert!(half.starts_with("the launch from outside ended with 0, but did not show all lines: rank 0 got to line 10 of 20"), "{half}");
    assert_eq!(launch(Call { code: 125, ..Call::default() }), "");
    let hangs = launch(Call { code: 137, timed_out: true, returned_ms: 90_000, ..Call::default() });
    assert_eq!(hangs, "the launch from outside did not return within 90 s");
}

#[test]
fn an_audit_log_with_a_hole_or_two_ends_is_found() {
    let audit = |change: fn(&mut Facts)| found(audit_is_whole, change);
    assert_eq!(
        audit(|facts| facts.audit_failures.push("n1 says: record 7".to_owned())),
        "the audit log does not verify: n1 says: record 7"
    );
    assert_eq!(audit(|facts| drop(facts.audit.remove(2))), "audit record 4 follows record 2");
    let ends = audit(|facts| facts.audit.push(record(6, "AllocationEnded", "")));
    assert_eq!(ends, "it is Completed, but the audit log has 1 submissions and 2 ends of it");
}

#[test]
fn leftovers_on_nodes_are_found() {
    let nodes = |change: fn(&mut Facts)| found(nodes_are_well, change);
    assert_eq!(nodes(|facts| facts.leftovers.push("mount /x".to_owned())), "left on the machine: mount /x");
    assert_eq!(nodes(|facts| facts.nodes[0].state = "Down".to_owned()), "it is Down ()");
    assert_eq!(nodes(|facts| facts.nodes[0].cores_committed = 2), "2 of its cores are claimed, for \"\"");
    assert_eq!(nodes(|facts| facts.nodes[0].holds.push("drain".to_owned())), "it is held: drain");
    assert_eq!(nodes(|facts| facts.nodes[0].local.push("x, running".to_owned())), "its agent still has x, running");
    let doubted = nodes(|facts| facts.nodes[0].doubted.push("n2 suspect".to_owned()));
    assert_eq!(doubted, "its gossip does not consider these alive: n2 suspect");
}

#[test]
fn daemons_that_end_panic_or_grow_are_found() {
    let daemons = |change: fn(&mut Facts)| found(daemons_are_well, change);
    assert_eq!(daemons(|facts| facts.daemons[0].ended_by_itself = true), "it ended by itself");
    assert_eq!(daemons(|facts| facts.daemons[0].panics.push("panicked at x".to_owned())), "it panicked: panicked at x");
    assert_eq!(daemons(|facts| facts.daemons[0].memory_bytes = 1 << 30), "it uses 1024 MiB of memory, and may use 256");
    assert_eq!(daemons(|facts| facts.daemons[0].descriptors = 100), "it has 100 open descriptors, and may have 64");
}
