//! Checks every promise against the recorded facts. Each check is a pure function.

use super::facts::{Allocation, Asked, Call, Facts};
use super::fault::What;
use super::job::{Job, Kind, OUTSIDE_LINES, REQUEUES_MAX, Requeue};
use super::traces::{Mark, Part};
use super::work::{CANNOT_GO_ON, CANNOT_PRINT};
use crate::demo::Lines;
use std::collections::{BTreeMap, BTreeSet};

/// At the end a daemon may use twice the memory that it used when the cluster became Ready, and this many bytes more:
/// caches and histories grow.
const MEMORY_GROWTH_MAX: u64 = 256 << 20;
/// How many more descriptors a daemon may have at the end than when the cluster became Ready.
const DESCRIPTORS_GROWTH_MAX: u64 = 64;

/// Three requeues of an allocation within this time, in milliseconds, cannot have three faults as causes.
const REQUEUE_STORM_MS: u64 = 2_000;

/// The subject of a violation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    Allocation(String),
    /// A node or a member.
    Daemon(String),
    Cluster,
}

/// One broken promise.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    pub subject: Subject,
    pub text: String,
}

fn of_allocation(id: &str, text: impl Into<String>) -> Violation {
    Violation { subject: Subject::Allocation(id.to_owned()), text: text.into() }
}

fn of_daemon(name: &str, text: impl Into<String>) -> Violation {
    Violation { subject: Subject::Daemon(name.to_owned()), text: text.into() }
}

fn of_cluster(text: impl Into<String>) -> Violation {
    Violation { subject: Subject::Cluster, text: text.into() }
}

/// All violations, sorted.
pub fn check(facts: &Facts) -> Vec<Violation> {
    let checks = [
        is_answered,
        answers_are_known,
        ends_are_right,
        runs_are_single,
        requeues_have_causes,
        logs_are_whole,
        launches_are_whole,
        audit_is_whole,
        nodes_are_well,
        daemons_are_well,
    ];
    let mut found: Vec<Violation> = checks.iter().flat_map(|check| check(facts)).collect();
    found.sort();
    found.dedup();
    found
}

/// A healed cluster answers all requests.
pub fn is_answered(facts: &Facts) -> Vec<Violation> {
    facts.unanswered.iter().map(of_cluster).collect()
}

/// Each answered submission has its allocation, and no job has two allocations.
pub fn answers_are_known(facts: &Facts) -> Vec<Violation> {
    let known: BTreeSet<&str> = facts.allocations.iter().map(|a| a.id.as_str()).collect();
    let lost = facts.asked.iter().filter_map(|asked| asked.id.as_deref()).filter(|id| !known.contains(id));
    let mut found: Vec<Violation> =
        lost.map(|id| of_allocation(id, "its submission was answered, but the quorum has no such allocation")).collect();
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    for allocation in &facts.allocations {
        if let Some(other) = names.insert(&allocation.name, &allocation.id) {
            let text = format!("{} was submitted once, but {other} has the same name", allocation.name);
            found.push(of_allocation(&allocation.id, text));
        }
    }
    found
}

/// Every allocation has ended in an expected way.
pub fn ends_are_right(facts: &Facts) -> Vec<Violation> {
    let wrong = |allocation: &Allocation| {
        let Some(asked) = facts.asked_of(allocation) else { return Err("it belongs to no submitted job".to_owned()) };
        is_right_end(facts, allocation, asked)
    };
    let judged = facts.allocations.iter().filter_map(|a| wrong(a).err().map(|text| of_allocation(&a.id, text)));
    judged.collect()
}

fn is_right_end(facts: &Facts, allocation: &Allocation, asked: &Asked) -> Result<(), String> {
    let Allocation { state, reason, requeue_count, .. } = allocation;
    let job = &asked.job;
    match state.as_str() {
        "Completed" if job.exit_code != 0 || job.kind == Kind::Walltime => {
            Err(format!("it is Completed, but its job should not succeed: {job}"))
        }
        "Completed" => all_ended_well(facts, allocation, job),
        "Cancelled" if asked.cancellation.is_some() => Ok(()),
        "Cancelled" => Err("it is Cancelled, but it was not cancelled by the torture".to_owned()),
        "Failed" => is_right_failure(facts, allocation, job),
        _ => Err(format!("it is still {state} ({reason}, requeued {requeue_count} times)")),
    }
}

/// All ranks of a completed allocation have ended with 0 under its last epoch.
fn all_ended_well(facts: &Facts, allocation: &Allocation, job: &Job) -> Result<(), String> {
    let of_this = facts.traces.iter().filter(|t| t.allocation == allocation.id && t.epoch == allocation.epoch && t.part == Part::Main);
    let ended: BTreeMap<u32, i32> =
        of_this.filter_map(|t| if let Mark::End(code) = t.mark { Some((t.rank, code)) } else { None }).collect();
    let wrong: Vec<String> = (0..job.ranks())
        .filter_map(|rank| match ended.get(&rank) {
            Some(0) => None,
            Some(code) => Some(format!("rank {rank} ended with {code}")),
            None => Some(format!("rank {rank} did not end by itself")),
        })
        .collect();
    if wrong.is_empty() { Ok(()) } else { Err(format!("it is Completed, but under epoch {} {}", allocation.epoch, wrong.join(", "))) }
}

fn is_right_failure(facts: &Facts, allocation: &Allocation, job: &Job) -> Result<(), String> {
    let reason = &allocation.reason;
    let killed = facts.was_killed(allocation, allocation.epoch);
    let was_full = facts.broken.iter().any(|b| {
        matches!(b.fault.what, What::FullDisk { .. }) && b.fault.what.nodes().iter().any(|n| allocation.nodes.iter().any(|m| m == n))
    });
    let isolated = || allocation.nodes.iter().any(|node| facts.broken.iter().any(|b| b.fault.what.isolates(node)));
    let spent = |may_requeue: bool| {
        let left = REQUEUES_MAX.saturating_sub(allocation.requeue_count);
        if may_requeue && left > 0 {
            return Err(format!("it is Failed ({reason}), but {left} of its {REQUEUES_MAX} requeues are left"));
        }
        Ok(())
    };
    let unexpected = || Err(format!("it is Failed for an unexpected reason: {reason}"));
    let starts = |prefix: &str| reason.starts_with(prefix);
    if let Some(code) = reason.strip_prefix("exit_code ") {
        let expected = code == job.exit_code.to_string() && job.exit_code != 0;
        let broke = (was_full || killed)
            && [CANNOT_PRINT.to_string(), CANNOT_GO_ON.to_string(), "1".to_owned(), "125".to_owned()].iter().any(|c| c == code);
        return if expected || broke { spent(job.requeue == Requeue::Always) } else { unexpected() };
    }
    match () {
        () if starts("walltime_exceeded") => {
            if job.kind == Kind::Walltime {
                Ok(())
            } else {
                unexpected()
            }
        }
        () if starts("node_lost") && (killed || (job.stops && isolated())) => spent(job.requeue != Requeue::Never),
        () if starts("run_lease_lapsed") && job.stops && isolated() => spent(job.requeue != Requeue::Never),
        () if starts("prologue_failed") && (was_full || killed) => Ok(()),
        () if starts("launch_aborted") && (was_full || killed) => spent(job.requeue == Requeue::Always),
        () => unexpected(),
    }
}

/// Work is requeued only because a fault ended its run, and not several times at once.
pub fn requeues_have_causes(facts: &Facts) -> Vec<Violation> {
    let mut found = Vec::new();
    for allocation in &facts.allocations {
        let Some(stops) = facts.asked_of(allocation).map(|asked| asked.job.stops) else { continue };
        let (mut epoch, mut lost_at_ms) = (0, Vec::new());
        for record in facts.audit.iter().filter(|r| r.allocation.as_deref() == Some(&allocation.id)) {
            match record.action.as_str() {
                "AllocationClaimed" => epoch = claimed_epoch(&record.detail).unwrap_or(0),
                // Requeues after a failed program need no fault, and may follow each other fast.
                "AllocationRequeued" if record.detail.contains("node_lost") || record.detail.contains("run_lease_lapsed") => {
                    lost_at_ms.push(record.at_wall_ms);
                    if !stops && !facts.was_killed(allocation, epoch) {
                        let text = format!("it was requeued under epoch {epoch} ({}), but no fault ended that run", record.detail);
                        found.push(of_allocation(&allocation.id, text));
                    }
                }
                _ => {}
            }
        }
        if lost_at_ms.windows(3).any(|times| times[2].abs_diff(times[0]) < REQUEUE_STORM_MS) {
            found.push(of_allocation(&allocation.id, format!("it was requeued three times within {} s", REQUEUE_STORM_MS / 1000)));
        }
    }
    found
}

/// The epoch in `epoch 70, 2 nodes from n3`.
fn claimed_epoch(detail: &str) -> Option<u64> {
    detail.strip_prefix("epoch ")?.split(',').next()?.parse().ok()
}

/// Each rank of an allocation runs at most once under an epoch, and runs of different epochs do not overlap.
pub fn runs_are_single(facts: &Facts) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut begun = BTreeSet::new();
    // For each allocation and epoch: the times of the first and the last trace.
    let mut spans: BTreeMap<&str, BTreeMap<u64, (u64, u64)>> = BTreeMap::new();
    for trace in &facts.traces {
        let key = (&trace.allocation, trace.epoch, trace.part, trace.rank);
        // An allocation may have several launches from outside.
        if trace.mark == Mark::Begin && trace.part == Part::Main && !begun.insert(key) {
            let text = format!("rank {} was started twice under epoch {}, the second time on {}", trace.rank, trace.epoch, trace.node);
            found.push(of_allocation(&trace.allocation, text));
        }
        let span = spans.entry(&trace.allocation).or_default().entry(trace.epoch).or_insert((trace.at_ms, trace.at_ms));
        *span = (span.0.min(trace.at_ms), span.1.max(trace.at_ms));
    }
    for (allocation, epochs) in spans {
        let beside = epochs.iter().zip(epochs.iter().skip(1)).find(|((_, (_, last)), (_, (first, _)))| first < last);
        if let Some(((earlier, (_, last)), (later, (first, _)))) = beside {
            let text = format!("it still ran under epoch {earlier} {} ms after its start under epoch {later}", last - first);
            found.push(of_allocation(allocation, text));
        }
    }
    found
}

/// The log of a completed allocation has each line exactly once.
pub fn logs_are_whole(facts: &Facts) -> Vec<Violation> {
    let completed = facts.allocations.iter().filter(|a| a.state == "Completed");
    let wrong = completed.filter_map(|allocation| {
        let job = &facts.asked_of(allocation)?.job;
        let Some(log) = facts.logs.get(&allocation.id) else { return Some(of_allocation(&allocation.id, "its log was not shown")) };
        let error = log.lines.complete(job.ranks(), job.lines).err()?;
        Some(of_allocation(&allocation.id, format!("its log is not complete: {error}{}", stderr_text(&log.err))))
    });
    wrong.collect()
}

/// A launch returns in time, and one that reports success has shown each line exactly once.
pub fn launches_are_whole(facts: &Facts) -> Vec<Violation> {
    let mut found = Vec::new();
    for asked in &facts.asked {
        let subject = asked.id.clone().or_else(|| facts.allocations.iter().find(|a| a.name == asked.job.name()).map(|a| a.id.clone()));
        let subject = subject.map_or(Subject::Cluster, Subject::Allocation);
        let mut judge = |what: String, call: &Call, ranks: u32, lines: u32| {
            if let Err(text) = is_whole(call, ranks, lines) {
                found.push(Violation { subject: subject.clone(), text: format!("{what} {text}") });
            }
        };
        if let Some(call) = &asked.outside {
            judge("the launch from outside".to_owned(), call, 1, OUTSIDE_LINES);
        }
        if let (Kind::Foreground, Some(call)) = (asked.job.kind, &asked.submission) {
            judge(format!("the launch {}", asked.job.name()), call, asked.job.ranks(), asked.job.lines);
        }
    }
    found
}

fn is_whole(call: &Call, ranks: u32, lines: u32) -> Result<(), String> {
    if call.timed_out {
        return Err(format!("did not return within {} s", (call.returned_ms - call.called_ms) / 1000));
    }
    if call.code != 0 {
        return Ok(());
    }
    let mut shown = Lines::default();
    call.out.lines().for_each(|line| shown.take(line));
    shown.complete(ranks, lines).map_err(|error| format!("ended with 0, but did not show all lines: {error}{}", stderr_text(&call.err)))
}

fn stderr_text(err: &str) -> String {
    if err.trim().is_empty() { String::new() } else { format!("; its stderr: {:?}", err.trim()) }
}

/// The audit log verifies and has no gap, and has one submission and at most one end of each allocation.
pub fn audit_is_whole(facts: &Facts) -> Vec<Violation> {
    let mut found: Vec<Violation> =
        facts.audit_failures.iter().map(|text| of_cluster(format!("the audit log does not verify: {text}"))).collect();
    let gap = facts.audit.iter().zip(facts.audit.iter().skip(1)).find(|(a, b)| b.seq != a.seq + 1);
    found.extend(gap.map(|(a, b)| of_cluster(format!("audit record {} follows record {}", b.seq, a.seq))));
    for allocation in &facts.allocations {
        let count =
            |action: &str| facts.audit.iter().filter(|r| r.action == action && r.allocation.as_deref() == Some(&allocation.id)).count();
        let (submitted, ended) = (count("AllocationSubmitted"), count("AllocationEnded"));
        if submitted != 1 || ended != usize::from(allocation.has_ended()) {
            let text = format!("it is {}, but the audit log has {submitted} submissions and {ended} ends of it", allocation.state);
            found.push(of_allocation(&allocation.id, text));
        }
    }
    found
}

/// Every node is Ready, has no hold and no work, and its gossip considers all others alive. No work has left anything.
pub fn nodes_are_well(facts: &Facts) -> Vec<Violation> {
    let mut found: Vec<Violation> = facts.leftovers.iter().map(|left| of_cluster(format!("left on the machine: {left}"))).collect();
    for node in &facts.nodes {
        let mut wrong = |is: bool, text: String| {
            if is {
                found.push(of_daemon(&node.id, text));
            }
        };
        wrong(node.state != "Ready", format!("it is {} ({})", node.state, node.reason));
        wrong(!node.holds.is_empty(), format!("it is held: {}", node.holds.join(", ")));
        let shares = node.allocations.join(", ");
        wrong(
            node.cores_committed > 0 || !node.allocations.is_empty(),
            format!("{} of its cores are claimed, for {shares:?}", node.cores_committed),
        );
        wrong(!node.local.is_empty(), format!("its agent still has {}", node.local.join(", ")));
        wrong(!node.doubted.is_empty(), format!("its gossip does not consider these alive: {}", node.doubted.join(", ")));
    }
    found
}

/// No daemon ended by itself, panicked, or uses too much memory or too many descriptors.
pub fn daemons_are_well(facts: &Facts) -> Vec<Violation> {
    let mut found = Vec::new();
    for daemon in &facts.daemons {
        let mut wrong = |is: bool, text: String| {
            if is {
                found.push(of_daemon(&daemon.name, text));
            }
        };
        wrong(daemon.ended_by_itself, "it ended by itself".to_owned());
        wrong(!daemon.panics.is_empty(), format!("it panicked: {}", daemon.panics.join("; ")));
        let (memory, descriptors) = (daemon.memory_bytes, daemon.descriptors);
        let memory_max = daemon.memory_bytes_at_first * 2 + MEMORY_GROWTH_MAX;
        wrong(memory > memory_max, format!("it uses {} MiB of memory, and may use {}", memory >> 20, memory_max >> 20));
        let descriptors_max = daemon.descriptors_at_first + DESCRIPTORS_GROWTH_MAX;
        wrong(descriptors > descriptors_max, format!("it has {descriptors} open descriptors, and may have {descriptors_max}"));
    }
    found
}

#[cfg(test)]
mod tests;
