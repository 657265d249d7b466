//! A short account of what went wrong: for each subject of violations, its events in order.

use super::facts::{Asked, Call, Facts, Record};
use super::job::Kind;
use super::promises::{Subject, Violation};
use super::traces::{Mark, Part, Trace};
use std::collections::BTreeMap;

/// Limit of the lines of one story. A longer one loses its middle.
const LINES_MAX: usize = 60;
/// If the time of an audit record is this much later than the previous one's, a fault had set the leader's clock wrong.
const CLOCK_JUMP_MS: u64 = 20_000;
/// How many faults of a daemon are shown: the last ones.
const LAST_FAULTS_MAX: usize = 6;

/// A time in milliseconds after the beginning, and what happened.
type Entry = (u64, String);

/// The violations of each subject, and its events.
pub fn describe(facts: &Facts, violations: &[Violation]) -> String {
    let mut of: BTreeMap<&Subject, Vec<&str>> = BTreeMap::new();
    for violation in violations {
        of.entry(&violation.subject).or_default().push(&violation.text);
    }
    let times = record_times(facts);
    let mut text = String::new();
    for (subject, violations) in of {
        text += &match subject {
            Subject::Allocation(id) => format!("allocation {id}\n"),
            Subject::Daemon(name) => format!("{name}\n"),
            Subject::Cluster => "the cluster\n".to_owned(),
        };
        violations.iter().for_each(|violation| text += &format!("  VIOLATED: {violation}\n"));
        let mut entries = match subject {
            Subject::Allocation(id) => of_allocation(facts, &times, id),
            Subject::Daemon(name) => of_daemon(facts, &times, name),
            Subject::Cluster => Vec::new(),
        };
        entries.sort_by_key(|(at_ms, _)| *at_ms);
        text += &shown(&entries);
        text.push('\n');
    }
    text
}

fn shown(entries: &[Entry]) -> String {
    let line = |(at_ms, what): &Entry| format!("  {:8.3} s  {what}\n", *at_ms as f64 / 1000.0);
    if entries.len() <= LINES_MAX {
        return entries.iter().map(line).collect();
    }
    let (first, last) = (&entries[..LINES_MAX / 2], &entries[entries.len() - LINES_MAX / 2..]);
    let left_out = format!("             … {} more …\n", entries.len() - LINES_MAX);
    first.iter().map(line).chain([left_out]).chain(last.iter().map(line)).collect()
}

/// When each audit record was written, in milliseconds after the beginning. The clock may have been wrong: a record that
/// seems earlier than the previous one, or much later, gets the previous one's time.
fn record_times(facts: &Facts) -> Vec<u64> {
    let mut last = 0;
    let time = |record: &Record| {
        let at_ms = record.at_wall_ms.saturating_sub(facts.began_wall_ms);
        last = if (last..last + CLOCK_JUMP_MS).contains(&at_ms) { at_ms } else { last };
        last
    };
    facts.audit.iter().map(time).collect()
}

fn of_allocation(facts: &Facts, times: &[u64], id: &str) -> Vec<Entry> {
    let allocation = facts.allocations.iter().find(|a| a.id == id);
    let asked = facts.asked.iter().find(|asked| asked.id.as_deref() == Some(id)).or_else(|| facts.asked_of(allocation?));
    let mut entries = asked.map(|asked| of_asked(facts, asked)).unwrap_or_default();
    for (record, at_ms) in facts.audit.iter().zip(times).filter(|(r, _)| r.allocation.as_deref() == Some(id)) {
        let node = record.node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
        entries.push((*at_ms, format!("audit {}: {} by {}{node}: {}", record.seq, record.action, record.actor, record.detail)));
    }
    let traces: Vec<&Trace> = facts.traces.iter().filter(|t| t.allocation == id && t.mark != Mark::Beat).collect();
    entries.extend(traces.iter().map(|trace| (trace.at_ms.saturating_sub(facts.began_ms), of_trace(trace))));
    let first_ms = entries.iter().map(|(at_ms, _)| *at_ms).min().unwrap_or(0);
    let ended = allocation.is_some_and(super::facts::Allocation::has_ended);
    let last_ms = if ended { entries.iter().map(|(at_ms, _)| *at_ms).max().unwrap_or(0) } else { u64::MAX };
    let mut nodes: Vec<String> = traces.iter().map(|trace| trace.node.clone()).collect();
    nodes.extend(allocation.iter().flat_map(|a| a.nodes.iter().cloned()));
    for broken in &facts.broken {
        let (began, over) = (broken.began_ms.saturating_sub(facts.began_ms), broken.ended_ms.saturating_sub(facts.began_ms));
        let of_all = broken.fault.what.nodes().is_empty();
        let touches = of_all || broken.fault.what.nodes().iter().any(|node| nodes.iter().any(|n| n == node));
        if touches && began <= last_ms && over + 1_000 >= first_ms {
            entries.extend(of_fault(facts, broken));
        }
    }
    if let Some(a) = allocation {
        let at_ms = entries.iter().map(|(at_ms, _)| *at_ms).max().unwrap_or(0);
        let nodes = a.nodes.join(", ");
        entries.push((
            at_ms,
            format!("at the end: {} ({}), epoch {}, requeued {} times, on {nodes:?}", a.state, a.reason, a.epoch, a.requeue_count),
        ));
    }
    entries
}

fn of_asked(facts: &Facts, asked: &Asked) -> Vec<Entry> {
    let after = |at_ms: u64| at_ms.saturating_sub(facts.began_ms);
    let answer = |call: &Call| {
        let detail = if call.err.trim().is_empty() { String::new() } else { format!(": {}", call.err.trim()) };
        if call.timed_out { format!("did not return{detail}") } else { format!("ended with {}{detail}", call.code) }
    };
    let mut entries = Vec::new();
    if let Some(call) = &asked.submission {
        entries.push((after(call.called_ms), format!("submitted: {}", asked.job)));
        let what = if asked.job.kind == Kind::Foreground { "the launch" } else { "the submission" };
        entries.push((after(call.returned_ms), format!("{what} {}", answer(call))));
    }
    for (what, call) in [("the cancellation", &asked.cancellation), ("the launch from outside", &asked.outside)] {
        if let Some(call) = call {
            entries.push((after(call.called_ms), format!("{what} is requested")));
            entries.push((after(call.returned_ms), format!("{what} {}", answer(call))));
        }
    }
    entries
}

fn of_trace(trace: &Trace) -> String {
    let part = if trace.part == Part::Outside { " from outside" } else { "" };
    let what = match trace.mark {
        Mark::Begin => "begins".to_owned(),
        Mark::Beat => "runs".to_owned(),
        Mark::End(code) => format!("ends with {code}"),
    };
    format!("rank {}{part} under epoch {} on {} {what}", trace.rank, trace.epoch, trace.node)
}

fn of_fault(facts: &Facts, broken: &super::facts::Broken) -> Vec<Entry> {
    let after = |at_ms: u64| at_ms.saturating_sub(facts.began_ms);
    let hit = if broken.hit.runs.is_empty() { String::new() } else { format!(" (hits {})", broken.hit.runs.join(", ")) };
    let members = if broken.hit.members.is_empty() { String::new() } else { format!(" (members {:?})", broken.hit.members) };
    let mut entries = vec![(after(broken.began_ms), format!("FAULT {}{hit}{members}", broken.fault))];
    let error = broken.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
    if broken.fault.for_ms > 0 || broken.error.is_some() {
        entries.push((after(broken.ended_ms), format!("fault f{} is over{error}", broken.fault.number)));
    }
    entries
}

fn of_daemon(facts: &Facts, times: &[u64], name: &str) -> Vec<Entry> {
    let hits = |broken: &&super::facts::Broken| {
        let what = &broken.fault.what;
        what.nodes().contains(&name)
            || (name.starts_with("member-") && what.nodes().is_empty())
            || what.hits().iter().any(|h| h.contains(name))
    };
    let faults: Vec<_> = facts.broken.iter().filter(hits).collect();
    let last = &faults[faults.len().saturating_sub(LAST_FAULTS_MAX)..];
    let mut entries: Vec<Entry> = last.iter().flat_map(|broken| of_fault(facts, broken)).collect();
    let since_ms = entries.iter().map(|(at_ms, _)| *at_ms).min().unwrap_or(0);
    let of_itself = |r: &Record| r.allocation.is_none() && r.node.as_deref() == Some(name);
    let records = facts.audit.iter().zip(times).filter(|(r, at_ms)| of_itself(r) && **at_ms >= since_ms);
    entries.extend(records.map(|(r, at_ms)| (*at_ms, format!("audit {}: {} by {}: {}", r.seq, r.action, r.actor, r.detail))));
    entries
}

#[cfg(test)]
mod tests {
    use super::super::facts::{Allocation, Broken};
    use super::super::fault::{Fault, Hit, What};
    use super::super::job::{Job, Requeue};
    use super::*;

    fn facts() -> Facts {
        let job = Job {
            number: 1,
            at_ms: 0,
            kind: Kind::Command,
            via: 1,
            nodes: 1,
            tasks: 1,
            whole_nodes: false,
            lines: 2,
            interval_ms: 10,
            exit_code: 0,
            stops: true,
            requeue: Requeue::Never,
            walltime_s: 300,
            cancel_after_ms: None,
        };
        let call = Call { called_ms: 1_100, returned_ms: 1_200, ..Call::default() };
        let trace = Trace {
            mark: Mark::Begin,
            allocation: "a".to_owned(),
            epoch: 4,
            part: Part::Main,
            rank: 0,
            node: "n2".to_owned(),
            pid: 7,
            at_ms: 1_400,
        };
        let broken = |number, node: &str, began_ms| Broken {
            fault: Fault { number, at_ms: 0, for_ms: 300, what: What::StopAgent { node: node.to_owned() } },
            began_ms,
            ended_ms: began_ms + 300,
            hit: Hit::default(),
            error: None,
        };
        let record = |seq, action: &str, at_wall_ms| Record {
            seq,
            at_wall_ms,
            actor: "quorum".to_owned(),
            action: action.to_owned(),
            allocation: Some("a".to_owned()),
            node: None,
            detail: "epoch 4".to_owned(),
        };
        Facts {
            began_ms: 1_000,
            began_wall_ms: 5_000_000,
            asked: vec![Asked { job, submission: Some(call), id: Some("a".to_owned()), cancellation: None, outside: None }],
            broken: vec![broken(1, "n3", 1_300), broken(2, "n2", 1_500), broken(3, "n2", 90_000)],
            traces: vec![trace],
            allocations: vec![Allocation {
                id: "a".to_owned(),
                name: "t1".to_owned(),
                state: "Failed".to_owned(),
                reason: "lost".to_owned(),
                nodes: vec!["n2".to_owned()],
                ..Allocation::default()
            }],
            // The second record is from a leader whose clock is an hour ahead.
            audit: vec![record(1, "AllocationClaimed", 5_000_300), record(2, "AllocationEnded", 8_600_900)],
            ..Facts::default()
        }
    }

    #[test]
    fn a_story_has_the_events_of_its_allocation_in_order_and_no_others() {
        let violation = Violation { subject: Subject::Allocation("a".to_owned()), text: "it is Failed".to_owned() };
        let text = describe(&facts(), &[violation]);
        let entries: Vec<&str> = text.lines().map(|line| line.split(" s  ").last().unwrap_or(line)).collect();
        let wanted = [
            "allocation a",
            "  VIOLATED: it is Failed",
            "submitted: t1:",
            "the submission ended with 0",
            "audit 1: AllocationClaimed by quorum: epoch 4",
            "audit 2: AllocationEnded by quorum: epoch 4",
            "rank 0 under epoch 4 on n2 begins",
            "at the end: Failed (lost)",
        ];
        for (entry, wanted) in entries.iter().zip(wanted) {
            assert!(entry.starts_with(wanted), "{entry:?} is not {wanted:?}:\n{text}");
        }
        assert!(!text.contains("n3"), "{text}");
    }

    #[test]
    fn a_story_without_an_end_has_all_later_faults_of_the_nodes() {
        let mut facts = facts();
        facts.allocations[0].state = "Pending".to_owned();
        let violation = Violation { subject: Subject::Allocation("a".to_owned()), text: "it is still Pending".to_owned() };
        let text = describe(&facts, &[violation]);
        assert!(text.contains("FAULT f2: SIGSTOP to the agent of n2, for 0.3 s") && text.contains("FAULT f3"), "{text}");
        assert!(!text.contains("FAULT f1"), "{text}");
    }

    #[test]
    fn a_long_story_loses_its_middle() {
        let entries: Vec<Entry> = (0..200).map(|at_ms| (at_ms, format!("entry {at_ms}"))).collect();
        let text = shown(&entries);
        assert!(text.contains("entry 0\n") && text.contains("entry 199\n") && text.contains("… 140 more …"), "{text}");
        assert_eq!(text.lines().count(), LINES_MAX + 1);
    }
}
