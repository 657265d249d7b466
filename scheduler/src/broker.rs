//! When running work is asked to save itself though nobody asks for it: what it costs, what it is worth, and whose turn it is.
//!
//! ```text
//!   value = recompute_saved + preemptability + backlog_relief        value > cost: it is due
//!   cost  = compute_waste + storage_cost                             due, and the storage has room: it is asked, the highest value first
//! ```
//!
//! The terms are the documents' ("Checkpoint broker"), all in node-seconds: seconds that one node works. Their write time is a factor of
//! `compute_waste` and no term of its own: it is time, and in it already. The number of GPUs a node has would multiply both sides and
//! decide nothing. What is lost by a failure is on average half of the time since the last checkpoint,
//! so with failures alone the value is `(1 - exp(-rate * t)) * t/2 * nodes`, and it exceeds the cost `write_time * nodes` at about
//! `t = sqrt(2 * write_time / rate)`: the interval of Young (CACM 17(9), 1974), which Daly (FGCS 22(3), 2006) bounds for write times that
//! are not small against the mean time between failures; [`Terms::least_interval_s`] bounds it here.
//!
//! No scheduler preempts by itself yet: what `preemptability` counts on is `lattice preempt` and urgent drains, by
//! people.
//!
//! [`should_checkpoint`] is the whole decision; what `lattice explain` shows of an allocation comes from it as well.

use crate::view::{View, queue};
use lattice_model::checkpoint::{Automatic, DEADLINE_MS_DEFAULT, walltime_lead_ms};
use lattice_model::{Allocation, AllocationId, AllocationState, HoldKind, Node, NodeState, Preemption, Timestamp, VCluster};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// An unwell node fails as often as so many well ones.
const UNWELL_COUNTS_AS: f64 = 100.0;
/// Work of which nothing is known yet is assumed to save this part of the main memory of its shares.
const FIRST_SIZE_OF_MEMORY: f64 = 0.25;
/// Saving itself takes no more than one part in so many of an allocation's time.
const LEAST_INTERVAL_IN_WRITE_TIMES: f64 = 10.0;
/// How often an hour work is preempted that everybody waits for.
const PREEMPTIONS_PER_HOUR_MAX: f64 = 1.0;
/// What waits so long is half as urgent as anything can be, in seconds.
const HALF_URGENT_AFTER_S: f64 = 600.0;
/// Preemptability considers this many of the allocations that wait, from the first.
const WAITING_LOOKED_AT_MAX: usize = 100;
/// A write time below this is none, in seconds.
const WRITE_TIME_S_MIN: f64 = 0.001;
/// After so many failures in a row the pause before the next try grows no more.
const FAILURES_COUNTED_MAX: u32 = 6;

/// The site's settings for its machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    /// What the store of checkpoints may be written with, in bytes a second, before checkpoints that nobody asked for wait.
    pub storage_bytes_per_second: f64,
    /// How many checkpoints may be under way at once before those wait.
    pub at_once_max: usize,
    /// No work is asked more often than this, in seconds.
    pub least_interval_s: f64,
    /// How often a well node fails, by day.
    pub failures_per_node_day: f64,
    /// What a gigabyte in the store is worth, in node-seconds.
    pub storage_cost_node_s_per_gb: f64,
}

/// The last whole checkpoint of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastSaved {
    /// When it was whole.
    pub at: Timestamp,
    /// Its size.
    pub bytes: u64,
    /// How long it took, where that is known.
    pub took_ms: Option<u64>,
}

/// What the broker itself did about an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// A checkpoint is under way; so many before it came to nothing in a row.
    UnderWay { times: u32 },
    /// The last one came to nothing, at this time, as so many before it did in a row (this one counted).
    InVain { at: Timestamp, times: u32 },
}

/// What is known of one allocation besides what the quorum has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Its last checkpoint.
    pub last: Option<LastSaved>,
    /// The quorum has a later one than `last`; its manifest in the store was not read yet.
    pub last_is_unread: bool,
    /// What the broker did.
    pub tried: Option<Tried>,
}

impl Known {
    /// How often in a row it was asked in vain.
    fn in_vain(&self) -> u32 {
        match self.tried {
            Some(Tried::UnderWay { times } | Tried::InVain { times, .. }) => times,
            None => 0,
        }
    }
}

/// Whether the store of checkpoints answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// It does.
    Here,
    /// It does not, and why.
    Away { why: String },
}

/// All that is decided from.
#[derive(Clone, Copy, Debug)]
pub struct BrokerView<'a> {
    /// The cluster at this moment.
    pub cluster: &'a View,
    /// What is known besides.
    pub known: &'a BTreeMap<AllocationId, Known>,
    /// Work whose head reports that it saves itself now, whether a user, the broker or its walltime asked it.
    pub saving: &'a BTreeSet<AllocationId>,
    /// The store.
    pub storage: &'a Storage,
    /// The site's numbers.
    pub tuning: &'a Tuning,
}

/// What speaks for and against a checkpoint now. Units last in the names; `node_s` are node-seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// Since its last checkpoint, or since it began.
    pub unsaved_s: f64,
    /// Its nodes.
    pub nodes: u32,
    /// Those of them that something speaks against.
    pub unwell_nodes: u32,
    /// What it would save.
    pub size_bytes: f64,
    /// Whether that is a guess: it has saved nothing yet.
    pub size_is_guessed: bool,
    /// How long that would take. Infinite while the store is away.
    pub write_time_s: f64,
    /// Whether that is a guess: it is not known how long any of its checkpoints took.
    pub write_time_is_guessed: bool,
    /// The work of its nodes meanwhile.
    pub compute_waste_node_s: f64,
    /// The cost of its space in the store.
    pub storage_cost_node_s: f64,
    /// That one of its nodes fails within as long a time as it has not saved itself for: 0 to 1.
    pub failure_probability: f64,
    /// That it is preempted within that time: 0 to 1.
    pub preemption_probability: f64,
    /// What would be computed again after a failure, times how likely that is.
    pub recompute_saved_node_s: f64,
    /// The same of a preemption.
    pub preemptability_node_s: f64,
    /// What of the cluster's nodes is waited for: 0 to 1.
    pub backlog_pressure: f64,
    /// What those that wait would not wait for, were it saved when its nodes are wanted.
    pub backlog_relief_node_s: f64,
    /// It is not asked again earlier than this after its last checkpoint.
    pub least_interval_s: f64,
    /// Until its walltime is over.
    pub walltime_left_s: Option<f64>,
}

impl Terms {
    /// What a checkpoint costs now, in node-seconds.
    pub fn cost_node_s(&self) -> f64 {
        self.compute_waste_node_s + self.storage_cost_node_s
    }

    /// What it is worth now, in node-seconds.
    pub fn value_node_s(&self) -> f64 {
        self.recompute_saved_node_s + self.preemptability_node_s + self.backlog_relief_node_s
    }

    /// How fast it writes to the store, in bytes a second. Where that is a guess it counts as its part of the budget: one that never
    /// answers would keep all others from the store.
    fn bytes_per_second(&self, tuning: &Tuning) -> f64 {
        match (self.write_time_s.is_finite(), self.write_time_is_guessed) {
            (false, _) => 0.0,
            (true, true) => tuning.storage_bytes_per_second / tuning.at_once_max.max(1) as f64,
            (true, false) => self.size_bytes / self.write_time_s.max(WRITE_TIME_S_MIN),
        }
    }
}

/// What is done about one allocation in this round.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It is asked to save itself now.
    Ask,
    /// It is worth less than it costs.
    NotWorthIt,
    /// Its time has not come: it is asked every so often.
    NotDue { every_s: u64, left_s: f64 },
    /// It saved itself, or began, a short time ago.
    TooSoon { left_s: f64 },
    /// It is due, and others come first: so many checkpoints are under way or are begun now.
    Staggered { under_way: usize },
    /// A checkpoint is under way.
    UnderWay,
    /// The last one came to nothing.
    AfterFailure { times: u32, left_s: f64 },
    /// The quorum has a later checkpoint of it than is known here: the time of that was not read from the store yet.
    NotKnownYet,
    /// Nothing is begun while the store is away.
    StorageAway { why: String },
    /// It is being preempted, and is asked for that.
    Preempted,
    /// Its walltime ends soon, before which its head asks it by itself.
    WalltimeNear { left_s: f64 },
}

/// The terms of one allocation, and what follows from them.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// See there.
    pub terms: Terms,
    /// What is done.
    pub verdict: Verdict,
}

/// The decision about each running allocation that is to be asked without a request. Those that are due are asked in the order of their
/// value, as many as the store can write at once; the others are due again in the next round, with a higher value. Work that failed to
/// save comes after all other work, and only one such allocation at a time.
pub fn should_checkpoint(view: &BrokerView<'_>, now: Timestamp) -> BTreeMap<AllocationId, Judgement> {
    let queue = Queue::of(view.cluster, now);
    let mut judged = BTreeMap::new();
    let mut due = Vec::new();
    let (mut under_way, mut written, mut tried_again) = (0, 0.0, false);
    for (allocation, automatic) in view.cluster.allocations.values().filter_map(asked_unasked) {
        let known = view.known.get(&allocation.id).copied().unwrap_or_default();
        let terms = terms(view, &queue, allocation, &known, now);
        let verdict = alone(view, allocation, automatic, &known, &terms, now);
        match verdict {
            Verdict::Ask => due.push((allocation.id, known.in_vain(), terms)),
            Verdict::UnderWay => {
                under_way += 1;
                written += terms.bytes_per_second(view.tuning);
                tried_again |= known.in_vain() > 0;
            }
            _ => {}
        }
        judged.insert(allocation.id, Judgement { terms, verdict });
    }
    // Who is asked for another reason saves itself whatever the storage bears: there is less of it for those that can wait.
    let counted = |allocation: &&Allocation| judged.get(&allocation.id).is_some_and(|judgement| judgement.verdict == Verdict::UnderWay);
    let of_others = |allocation: &&Allocation| view.saving.contains(&allocation.id) || saves_itself_to_go(allocation);
    for allocation in view.cluster.allocations.values().filter(|allocation| of_others(allocation) && !counted(allocation)) {
        let known = view.known.get(&allocation.id).copied().unwrap_or_default();
        under_way += 1;
        written += terms(view, &queue, allocation, &known, now).bytes_per_second(view.tuning);
    }
    let worth_more = |a: &Terms, b: &Terms| b.value_node_s().total_cmp(&a.value_node_s());
    due.sort_by(|(one, failed, a), (other, other_failed, b)| {
        failed.cmp(other_failed).then_with(|| worth_more(a, b)).then_with(|| one.cmp(other))
    });
    for (id, failed, terms) in due {
        let writes = terms.bytes_per_second(view.tuning);
        // One that is alone may be larger than the budget: it would never come otherwise.
        let may_start = under_way == 0 || (under_way < view.tuning.at_once_max && written + writes <= view.tuning.storage_bytes_per_second);
        if may_start && (failed == 0 || !tried_again) {
            tried_again |= failed > 0;
            under_way += 1;
            written += writes;
        } else if let Some(judgement) = judged.get_mut(&id) {
            judgement.verdict = Verdict::Staggered { under_way };
        }
    }
    judged
}

/// Work that runs and asked for this at its submission.
fn asked_unasked(allocation: &Allocation) -> Option<(&Allocation, Automatic)> {
    let automatic = allocation.spec.checkpoint.as_ref().and_then(|policy| policy.automatic)?;
    (allocation.state == AllocationState::Running).then_some((allocation, automatic))
}

/// Work that runs and is asked by its head, for a preemption or an urgent drain.
fn saves_itself_to_go(allocation: &Allocation) -> bool {
    let asked = allocation.spec.checkpoint.is_some() && allocation.preemption.as_ref().is_some_and(Preemption::stands);
    asked && allocation.state == AllocationState::Running
}

/// What is done about it, the others left aside.
fn alone(view: &BrokerView<'_>, allocation: &Allocation, automatic: Automatic, known: &Known, terms: &Terms, now: Timestamp) -> Verdict {
    // One that could not save itself and goes on is work like any other.
    if allocation.preemption.as_ref().is_some_and(Preemption::stands) {
        return Verdict::Preempted;
    }
    if matches!(known.tried, Some(Tried::UnderWay { .. })) || view.saving.contains(&allocation.id) {
        return Verdict::UnderWay;
    }
    if let Storage::Away { why } = view.storage {
        return Verdict::StorageAway { why: why.clone() };
    }
    if known.last_is_unread {
        return Verdict::NotKnownYet;
    }
    let took_ms = known.last.and_then(|last| last.took_ms);
    let lead = |walltime: Duration| seconds(walltime_lead_ms(u64::try_from(walltime.as_millis()).unwrap_or(u64::MAX), took_ms));
    if let (Some(left_s), Some(lead_s)) = (terms.walltime_left_s, allocation.spec.walltime.map(lead))
        && left_s <= lead_s
    {
        return Verdict::WalltimeNear { left_s };
    }
    if let Some(Tried::InVain { at, times }) = known.tried {
        let pause_s = view.tuning.least_interval_s * f64::from(1u32 << times.clamp(1, FAILURES_COUNTED_MAX));
        let left_s = pause_s - seconds(now.since_ms(at));
        if left_s > 0.0 {
            return Verdict::AfterFailure { times, left_s };
        }
    }
    match automatic {
        Automatic::Every { seconds: every_s } => {
            let left_s = every_s as f64 - terms.unsaved_s;
            if left_s > 0.0 { Verdict::NotDue { every_s, left_s } } else { Verdict::Ask }
        }
        Automatic::Weighed => {
            let left_s = terms.least_interval_s - terms.unsaved_s;
            match (left_s > 0.0, terms.value_node_s() > terms.cost_node_s()) {
                (true, _) => Verdict::TooSoon { left_s },
                (false, true) => Verdict::Ask,
                (false, false) => Verdict::NotWorthIt,
            }
        }
    }
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1e3
}

fn terms(view: &BrokerView<'_>, queue: &Queue<'_>, allocation: &Allocation, known: &Known, now: Timestamp) -> Terms {
    let (tuning, cluster) = (view.tuning, view.cluster);
    let began = allocation.started_at.unwrap_or(now);
    // A checkpoint of a former claim is what it began from: what is lost is what was computed since then.
    let since = known.last.map_or(began, |last| last.at.max(began));
    let unsaved_s = seconds(now.since_ms(since));
    let nodes = u32::try_from(allocation.shares.len()).unwrap_or(u32::MAX).max(1);
    let is_unwell = |node: &&Node| unwell(node);
    let of = allocation.nodes().filter_map(|id| cluster.nodes.get(id));
    let unwell_nodes = u32::try_from(of.filter(is_unwell).count()).unwrap_or(u32::MAX);
    let memory: f64 = allocation.shares.iter().map(|share| share.resources.memory_bytes as f64).sum();
    let (size_bytes, size_is_guessed) = match known.last {
        Some(last) => (last.bytes as f64, false),
        None => (memory * FIRST_SIZE_OF_MEMORY, true),
    };
    let took_ms = known.last.and_then(|last| last.took_ms);
    let write_time_s = match (view.storage, took_ms) {
        (Storage::Away { .. }, _) => f64::INFINITY,
        (Storage::Here, Some(took_ms)) => seconds(took_ms).max(WRITE_TIME_S_MIN),
        // The broker gives it no longer than that.
        (Storage::Here, None) => (size_bytes / tuning.storage_bytes_per_second).clamp(WRITE_TIME_S_MIN, seconds(DEADLINE_MS_DEFAULT)),
    };
    let many = f64::from(nodes);
    let failures_per_s =
        (many + f64::from(unwell_nodes) * (UNWELL_COUNTS_AS - 1.0)) * tuning.failures_per_node_day.max(0.0) / (24.0 * 3600.0);
    let within = |rate_per_s: f64| 1.0 - (-rate_per_s * unsaved_s).exp();
    let failure_probability = within(failures_per_s);
    let preemption_probability = within(queue.demand_of(allocation) * PREEMPTIONS_PER_HOUR_MAX / 3600.0);
    // Half of it on average: the failure comes somewhere in between.
    let at_stake_node_s = unsaved_s / 2.0 * many;
    let compute_waste_node_s = write_time_s * many;
    Terms {
        unsaved_s,
        nodes,
        unwell_nodes,
        size_bytes,
        size_is_guessed,
        write_time_s,
        write_time_is_guessed: took_ms.is_none(),
        compute_waste_node_s,
        storage_cost_node_s: size_bytes / 1e9 * tuning.storage_cost_node_s_per_gb,
        failure_probability,
        preemption_probability,
        recompute_saved_node_s: failure_probability * at_stake_node_s,
        preemptability_node_s: preemption_probability * at_stake_node_s,
        backlog_pressure: queue.pressure,
        // Nobody waits for less than nothing where nobody waits: infinite times 0 is 0 here.
        backlog_relief_node_s: if queue.pressure > 0.0 { queue.pressure * compute_waste_node_s } else { 0.0 },
        least_interval_s: tuning.least_interval_s.max(if write_time_s.is_finite() {
            write_time_s * LEAST_INTERVAL_IN_WRITE_TIMES
        } else {
            0.0
        }),
        walltime_left_s: allocation.spec.walltime.map(|time| time.as_secs_f64() - seconds(now.since_ms(began))),
    }
}

/// Whether something speaks against a node that work is on: it may not have it for long.
fn unwell(node: &Node) -> bool {
    let held = node.holds.iter().any(|hold| match hold.kind {
        HoldKind::Quarantine | HoldKind::Failure | HoldKind::Disable => true,
        HoldKind::Cordon | HoldKind::Maintenance | HoldKind::Drain | HoldKind::Wipe => false,
    });
    held || match node.state {
        NodeState::Ready | NodeState::Draining | NodeState::Drained => node.is_unwell(),
        NodeState::Degraded | NodeState::Down | NodeState::Booting | NodeState::Failed => true,
    }
}

/// Who waits for nodes.
struct Queue<'a> {
    cluster: &'a View,
    /// The first ones, with how urgent each is: 0 to 1.
    waiting: Vec<(&'a Allocation, f64)>,
    pressure: f64,
}

impl<'a> Queue<'a> {
    fn of(cluster: &'a View, now: Timestamp) -> Self {
        let waiting = queue(cluster);
        let wanted: f64 = waiting.iter().map(|a| f64::from(a.spec.nodes)).sum();
        let there = cluster.nodes.len() as f64;
        let urgency = |a: &Allocation| {
            let waited_s = seconds(now.since_ms(a.submitted_at));
            waited_s / (waited_s + HALF_URGENT_AFTER_S)
        };
        let first = waiting.into_iter().take(WAITING_LOOKED_AT_MAX).map(|a| (a, urgency(a)));
        let pressure = if wanted > 0.0 { wanted / (wanted + there) } else { 0.0 };
        Self { cluster, waiting: first.collect(), pressure }
    }

    /// How much this allocation's nodes are wanted by what is harder to preempt than it, and how easily it is: 0 to 1.
    fn demand_of(&self, allocation: &Allocation) -> f64 {
        if allocation.spec.sensitive {
            return 0.0;
        }
        let Some(head) = allocation.head().and_then(|id| self.cluster.nodes.get(id)) else { return 0.0 };
        let class = allocation.spec.preemption_class;
        let nobody: f64 = self
            .waiting
            .iter()
            .filter(|(a, _)| a.spec.preemption_class > class && VCluster::may_use(self.cluster.named(a), head))
            .map(|(_, urgency)| 1.0 - urgency)
            .product();
        let easy = f64::from(10u8.saturating_sub(class)) / 10.0;
        (1.0 - nobody) * easy
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ask => f.write_str("it is due, and is asked to save itself in the broker's next round"),
            Self::NotWorthIt => f.write_str("saving itself is worth less than it costs"),
            Self::NotDue { every_s, left_s } => write!(f, "it is asked every {every_s} s, next in {left_s:.0} s"),
            Self::TooSoon { left_s } => write!(f, "it is not asked again for {left_s:.0} s"),
            Self::Staggered { under_way } => write!(f, "it is due, and waits for its turn: {under_way} checkpoint(s) come first"),
            Self::UnderWay => f.write_str("a checkpoint is under way"),
            Self::AfterFailure { times, left_s } => {
                write!(f, "it was asked in vain {times} time(s) in a row, and is asked again in {left_s:.0} s")
            }
            Self::NotKnownYet => f.write_str("the store has not said yet when its last checkpoint was made"),
            Self::StorageAway { why } => write!(f, "paused: the store of checkpoints is away ({why})"),
            Self::Preempted => f.write_str("it is being preempted, and saves itself for that"),
            Self::WalltimeNear { left_s } => {
                write!(f, "its walltime ends in {:.0} s; its head asks it to save itself before that", left_s.max(0.0))
            }
        }
    }
}

impl Terms {
    /// Every term with its value and unit, and what it is made of, for people.
    pub fn lines(&self) -> Vec<(&'static str, String, &'static str)> {
        let node_s = |value: f64| format!("{value:.3} node-s");
        let guessed = if self.size_is_guessed { "a quarter of its memory: it has saved nothing yet" } else { "as its last checkpoint" };
        let mut lines = vec![
            ("nodes", self.nodes.to_string(), "that it has"),
            ("unsaved", format!("{:.1} s", self.unsaved_s), "since its last checkpoint, or since it began"),
            ("checkpoint_size", format!("{:.0} bytes", self.size_bytes), guessed),
            (
                "write_time",
                format!("{:.3} s", self.write_time_s),
                "as its last checkpoint took, or size / write bandwidth, at most ten minutes",
            ),
            ("compute_waste", node_s(self.compute_waste_node_s), "write_time x nodes"),
            ("storage_cost", node_s(self.storage_cost_node_s), "size x cost of a gigabyte"),
            ("cost", node_s(self.cost_node_s()), "compute_waste + storage_cost"),
            (
                "failure_probability",
                format!("{:.6}", self.failure_probability),
                "of its nodes within the unsaved time; unwell ones count 100 times",
            ),
            (
                "preemption_probability",
                format!("{:.6}", self.preemption_probability),
                "by what waits with a higher class, within that time",
            ),
            ("recompute_saved", node_s(self.recompute_saved_node_s), "failure_probability x half of the unsaved time x nodes"),
            ("preemptability", node_s(self.preemptability_node_s), "preemption_probability x half of the unsaved time x nodes"),
            (
                "backlog_pressure",
                format!("{:.3}", self.backlog_pressure),
                "nodes that are waited for, as a part of those and all that there are",
            ),
            ("backlog_relief", node_s(self.backlog_relief_node_s), "backlog_pressure x compute_waste"),
            ("value", node_s(self.value_node_s()), "recompute_saved + preemptability + backlog_relief"),
            ("least_interval", format!("{:.1} s", self.least_interval_s), "ten write times, and not less than the site's"),
        ];
        if self.unwell_nodes > 0 {
            lines.push(("unwell_nodes", self.unwell_nodes.to_string(), "nodes of it that something speaks against"));
        }
        if let Some(left_s) = self.walltime_left_s {
            lines.push(("walltime_left", format!("{left_s:.0} s"), "until its walltime is over"));
        }
        lines
    }
}

#[cfg(test)]
#[path = "broker_tests.rs"]
mod tests;
