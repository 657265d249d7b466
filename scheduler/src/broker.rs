//! The checkpoint broker: decides when running work is asked to save itself although nobody
//! requested it. It compares the cost and the value of a checkpoint, and orders the work that is due.
//!
//! ```text
//!   value = recompute_saved + preemptability + backlog_relief
//!   cost  = compute_waste + storage_cost
//!
//!   value > cost                                    it is due
//!   due, and the store has bandwidth and a slot     it is asked, the highest value first
//! ```
//!
//! The terms are those of the specification ("Checkpoint broker"), all in node-seconds: seconds of
//! work of one node. The specification's write time is no term of its own here: it is a factor of
//! `compute_waste`. The number of GPUs of a node would multiply both sides and decide nothing. A
//! failure loses on average half of the time since the last checkpoint, so with failures alone the
//! value is `(1 - exp(-rate * t)) * t/2 * nodes`. It exceeds the cost `write_time * nodes` at about
//! `t = sqrt(2 * write_time / rate)`: the interval of Young (CACM 17(9), 1974). Daly (FGCS 22(3),
//! 2006) bounds it for write times that are not small against the mean time between failures;
//! [`Terms::least_interval_s`] bounds it here.
//!
//! No scheduler preempts by itself yet: `preemptability` covers `lattice preempt` and urgent
//! drains, which people ask for.
//!
//! [`should_checkpoint`] makes the whole decision; `lattice explain` shows what it gives.

use crate::order::Ordered;
use crate::score::FIRST_SIZE_MEMORY_PART;
use crate::state::State;
use crate::view::View;
use lattice_model::checkpoint::{Automatic, DEADLINE_MS_DEFAULT, walltime_lead_ms};
use lattice_model::{Allocation, AllocationId, AllocationState, HoldKind, Node, NodeState, Preemption, Timestamp, VCluster, millis};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

/// How many well nodes fail as often as one unwell node.
const UNWELL_FAILURE_FACTOR: f64 = 100.0;
/// The least time between checkpoints, as a multiple of the write time: saving takes at most a
/// tenth of an allocation's time.
const LEAST_INTERVAL_IN_WRITE_TIMES: f64 = 10.0;
/// How often per hour work is preempted at the highest possible demand for its nodes.
const PREEMPTIONS_PER_HOUR_MAX: f64 = 1.0;
/// How long work waits, in seconds, until it is half as urgent as work can be.
const HALF_URGENT_AFTER_S: f64 = 600.0;
/// How many waiting allocations preemptability considers, from the first on.
const WAITING_CONSIDERED_MAX: usize = 100;
/// The least write time in calculations, in seconds.
const WRITE_TIME_S_MIN: f64 = 0.001;
/// After how many failures in a row the pause before the next try stops growing.
const FAILURES_COUNTED_MAX: u32 = 6;

/// The site's settings for its machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    /// The bandwidth of the checkpoint store, in bytes per second. Checkpoints that nobody
    /// requested wait when those under way use all of it.
    pub storage_bytes_per_second: f64,
    /// Checkpoints that nobody requested wait while this many are under way.
    pub at_once_max: usize,
    /// The shortest time between two checkpoints of one allocation that the broker requests because
    /// of their value, in seconds. A fixed interval may be shorter. The pause after a failed try is
    /// a multiple of this.
    pub least_interval_s: f64,
    /// How often a well node fails, per day.
    pub failures_per_node_day: f64,
    /// The cost of a gigabyte in the store, in node-seconds.
    pub storage_cost_node_s_per_gb: f64,
}

/// The last complete checkpoint of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastSaved {
    /// When it was complete.
    pub at: Timestamp,
    /// Its size in bytes.
    pub bytes: u64,
    /// How long it took, if known.
    pub took_ms: Option<u64>,
}

impl LastSaved {
    /// The same, with `at` limited to `now`: a time in the future comes from a wrong clock, and would
    /// delay the next checkpoint until then.
    pub fn not_after(self, now: Timestamp) -> Self {
        Self { at: self.at.min(now), ..self }
    }
}

/// What the broker itself last did for an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// A checkpoint is under way; `times` tries before it failed in a row.
    UnderWay { times: u32 },
    /// The last try failed at this time; it was the `times`-th in a row to fail.
    InVain { at: Timestamp, times: u32 },
}

/// What is known of one allocation besides its record in the quorum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Its last checkpoint.
    pub last: Option<LastSaved>,
    /// The quorum has a later checkpoint than `last`; its manifest has not been read from the store
    /// yet.
    pub last_is_unread: bool,
    /// The broker's last try.
    pub tried: Option<Tried>,
}

impl Known {
    /// How many tries in a row failed.
    fn failed_tries(&self) -> u32 {
        match self.tried {
            Some(Tried::UnderWay { times } | Tried::InVain { times, .. }) => times,
            None => 0,
        }
    }
}

/// Whether the checkpoint store answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// It answers.
    Reachable,
    /// It does not answer, and why.
    Unreachable { why: String },
}

/// All inputs of the decision.
#[derive(Clone, Copy, Debug)]
pub struct BrokerView<'a> {
    /// The cluster at this moment.
    pub cluster: &'a View,
    /// What else is known of each allocation.
    pub known: &'a BTreeMap<AllocationId, Known>,
    /// Work whose head reports that it is saving itself, whether a user, the broker or its walltime
    /// asked for that.
    pub saving: &'a BTreeSet<AllocationId>,
    /// The checkpoint store.
    pub storage: &'a Storage,
    /// The site's settings.
    pub tuning: &'a Tuning,
}

/// The arguments for and against a checkpoint now. Names end with the unit; `node_s` are
/// node-seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// The time since its last checkpoint, or since it began.
    pub unsaved_s: f64,
    /// The number of its nodes.
    pub nodes: u32,
    /// How many of its nodes are unwell, so that it may soon lose them.
    pub unwell_nodes: u32,
    /// How many bytes a checkpoint would write.
    pub size_bytes: f64,
    /// Whether the size is a guess, because it has saved nothing yet.
    pub size_is_guessed: bool,
    /// How long saving would take. Infinite while the store does not answer.
    pub write_time_s: f64,
    /// Whether the write time is a guess, because no earlier checkpoint has a known duration.
    pub write_time_is_guessed: bool,
    /// The work that its nodes lose during the write time.
    pub compute_waste_node_s: f64,
    /// The cost of the space in the store.
    pub storage_cost_node_s: f64,
    /// The probability that one of its nodes fails within a time as long as `unsaved_s`: 0 to 1.
    pub failure_probability: f64,
    /// The probability that it is preempted within that time: 0 to 1.
    pub preemption_probability: f64,
    /// The work to be repeated after a failure, times the probability of a failure.
    pub recompute_saved_node_s: f64,
    /// The work to be repeated after a preemption, times the probability of a preemption.
    pub preemptability_node_s: f64,
    /// The nodes that waiting work wants, divided by the sum of these and all nodes of the cluster:
    /// 0 to 1.
    pub backlog_pressure: f64,
    /// How much less other work waits if this allocation has saved itself before its nodes are
    /// wanted.
    pub backlog_relief_node_s: f64,
    /// The shortest time between its last checkpoint and the next request. Does not apply to a
    /// fixed interval.
    pub least_interval_s: f64,
    /// The time until its walltime is over.
    pub walltime_left_s: Option<f64>,
}

impl Terms {
    /// The cost of a checkpoint now, in node-seconds.
    pub fn cost_node_s(&self) -> f64 {
        self.compute_waste_node_s + self.storage_cost_node_s
    }

    /// The value of a checkpoint now, in node-seconds.
    pub fn value_node_s(&self) -> f64 {
        self.recompute_saved_node_s + self.preemptability_node_s + self.backlog_relief_node_s
    }

    /// How fast it writes to the store, in bytes per second. If the write time is a guess, this is
    /// an equal part of the store's bandwidth: a checkpoint that never ends would otherwise keep
    /// all others from the store.
    fn bytes_per_second(&self, tuning: &Tuning) -> f64 {
        match (self.write_time_s.is_finite(), self.write_time_is_guessed) {
            (false, _) => 0.0,
            (true, true) => tuning.storage_bytes_per_second / tuning.at_once_max.max(1) as f64,
            (true, false) => self.size_bytes / self.write_time_s.max(WRITE_TIME_S_MIN),
        }
    }
}

/// The decision about one allocation in this round.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It is asked to save itself now.
    Ask,
    /// A checkpoint is worth less than it costs.
    NotWorthIt,
    /// It is asked at a fixed interval, which is not over yet.
    NotDue { every_s: u64, left_s: f64 },
    /// It saved itself, or began, too short a time ago.
    TooSoon { left_s: f64 },
    /// It is due, but other work comes first: `under_way` checkpoints are under way or begin now.
    Staggered { under_way: usize },
    /// A checkpoint is under way.
    UnderWay,
    /// The last try failed, and the pause after it is not over.
    AfterFailure { times: u32, left_s: f64 },
    /// The quorum has a later checkpoint of it than this agent knows; the time of the later one has
    /// not been read from the store yet.
    NotKnownYet,
    /// No checkpoint begins while the store does not answer.
    StorageUnreachable { why: String },
    /// It is being preempted, and its head asks it to save itself for that.
    Preempted,
    /// Its walltime ends soon; its head asks it before that, without the broker.
    WalltimeNear { left_s: f64 },
}

/// The terms of one allocation, and the decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// What was weighed.
    pub terms: Terms,
    /// The decision.
    pub verdict: Verdict,
}

/// Decides for each running allocation that was submitted with automatic checkpoints. The most
/// valuable due checkpoints are requested first, as many as the store can write at once; the others
/// are due again in the next round, with a higher value. Work that failed to save itself comes
/// after all other work, and only one such allocation is asked at a time.
pub fn should_checkpoint(view: &BrokerView<'_>, now: Timestamp) -> BTreeMap<AllocationId, Judgement> {
    let queue = Queue::of(view.cluster, now);
    let mut judged = BTreeMap::new();
    let mut due = Vec::new();
    let (mut under_way, mut written, mut tried_again) = (0, 0.0, false);
    for (allocation, automatic) in view.cluster.allocations.values().filter_map(with_automatic_policy) {
        let known = view.known.get(&allocation.id).copied().unwrap_or_default();
        let terms = terms(view, &queue, allocation, &known, now);
        let verdict = judge_alone(view, allocation, automatic, &known, &terms, now);
        match verdict {
            Verdict::Ask => due.push((allocation.id, known.failed_tries(), terms)),
            Verdict::UnderWay => {
                under_way += 1;
                written += terms.bytes_per_second(view.tuning);
                tried_again |= known.failed_tries() > 0;
            }
            _ => {}
        }
        judged.insert(allocation.id, Judgement { terms, verdict });
    }
    // Work that was asked for another reason saves itself regardless of the store's bandwidth,
    // which leaves less for the work that is asked here.
    let is_counted = |allocation: &&Allocation| judged.get(&allocation.id).is_some_and(|judgement| judgement.verdict == Verdict::UnderWay);
    let is_asked_by_others = |allocation: &&Allocation| view.saving.contains(&allocation.id) || saves_itself_for_preemption(allocation);
    for allocation in view.cluster.allocations.values().filter(|allocation| is_asked_by_others(allocation) && !is_counted(allocation)) {
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
        // An allocation may exceed the bandwidth if no other saves itself: it would never be asked
        // otherwise.
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

/// A running allocation that its user submitted with automatic checkpoints, and their policy.
fn with_automatic_policy(allocation: &Allocation) -> Option<(&Allocation, Automatic)> {
    let automatic = allocation.spec.checkpoint.as_ref().and_then(|policy| policy.automatic)?;
    (allocation.state == AllocationState::Running).then_some((allocation, automatic))
}

/// Whether the head of running work asks it to save itself for a preemption or an urgent drain.
fn saves_itself_for_preemption(allocation: &Allocation) -> bool {
    let asked = allocation.spec.checkpoint.is_some() && allocation.preemption.as_deref().is_some_and(Preemption::stands);
    asked && allocation.state == AllocationState::Running
}

/// The decision about one allocation, without regard to the others.
fn judge_alone(
    view: &BrokerView<'_>,
    allocation: &Allocation,
    automatic: Automatic,
    known: &Known,
    terms: &Terms,
    now: Timestamp,
) -> Verdict {
    // A preemption does not count once its checkpoint has failed: the work continues.
    if allocation.preemption.as_deref().is_some_and(Preemption::stands) {
        return Verdict::Preempted;
    }
    if matches!(known.tried, Some(Tried::UnderWay { .. })) || view.saving.contains(&allocation.id) {
        return Verdict::UnderWay;
    }
    if let Storage::Unreachable { why } = view.storage {
        return Verdict::StorageUnreachable { why: why.clone() };
    }
    if known.last_is_unread {
        return Verdict::NotKnownYet;
    }
    let took_ms = known.last.and_then(|last| last.took_ms);
    let lead = |walltime: Duration| seconds(walltime_lead_ms(millis(walltime), took_ms));
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
        Automatic::CostBased => {
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
    // If the last checkpoint is of an earlier claim, this claim began from it, and a failure loses
    // what was computed since this claim began.
    let since = known.last.map_or(began, |last| last.at.max(began));
    let unsaved_s = seconds(now.since_ms(since));
    let nodes = u32::try_from(allocation.shares.len()).unwrap_or(u32::MAX).max(1);
    let is_unwell = |node: &&Node| unwell(node);
    let of = allocation.nodes().filter_map(|id| cluster.nodes.get(id));
    let unwell_nodes = u32::try_from(of.filter(is_unwell).count()).unwrap_or(u32::MAX);
    let memory: f64 = allocation.shares.iter().map(|share| share.resources.memory_bytes as f64).sum();
    let (size_bytes, size_is_guessed) = match known.last {
        Some(last) => (last.bytes as f64, false),
        None => (memory * FIRST_SIZE_MEMORY_PART, true),
    };
    let took_ms = known.last.and_then(|last| last.took_ms);
    let write_time_s = match (view.storage, took_ms) {
        (Storage::Unreachable { .. }, _) => f64::INFINITY,
        (Storage::Reachable, Some(took_ms)) => seconds(took_ms).max(WRITE_TIME_S_MIN),
        // At most the default timeout of a checkpoint.
        (Storage::Reachable, None) => (size_bytes / tuning.storage_bytes_per_second).clamp(WRITE_TIME_S_MIN, seconds(DEADLINE_MS_DEFAULT)),
    };
    let node_count = f64::from(nodes);
    let failures_per_s =
        (node_count + f64::from(unwell_nodes) * (UNWELL_FAILURE_FACTOR - 1.0)) * tuning.failures_per_node_day.max(0.0) / (24.0 * 3600.0);
    let within = |rate_per_s: f64| 1.0 - (-rate_per_s * unsaved_s).exp();
    let failure_probability = within(failures_per_s);
    let preemption_probability = within(queue.demand_of(allocation) * PREEMPTIONS_PER_HOUR_MAX / 3600.0);
    // A failure may come at any time, so half of the unsaved work is lost on average.
    let at_stake_node_s = unsaved_s / 2.0 * node_count;
    let compute_waste_node_s = write_time_s * node_count;
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
        // If no work waits, the relief is 0, even where the write time is infinite.
        backlog_relief_node_s: if queue.pressure > 0.0 { queue.pressure * compute_waste_node_s } else { 0.0 },
        least_interval_s: tuning.least_interval_s.max(if write_time_s.is_finite() {
            write_time_s * LEAST_INTERVAL_IN_WRITE_TIMES
        } else {
            0.0
        }),
        walltime_left_s: allocation.spec.walltime.map(|time| time.as_secs_f64() - seconds(now.since_ms(began))),
    }
}

/// Whether a node is in a state in which work may soon lose it.
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

/// The work that waits for nodes.
struct Queue<'a> {
    cluster: &'a View,
    /// The first allocations of the queue, with the urgency of each: 0 to 1.
    waiting: Vec<(&'a Allocation, f64)>,
    pressure: f64,
}

impl<'a> Queue<'a> {
    fn of(cluster: &'a View, now: Timestamp) -> Self {
        let state = State::from(cluster.clone());
        let merged = Ordered::of(&state, now).merged().into_iter();
        let waiting: Vec<&Allocation> = merged.filter_map(|(_, waiting)| cluster.allocations.get(&waiting.allocation.id)).collect();
        let wanted: f64 = waiting.iter().map(|a| f64::from(a.spec.nodes)).sum();
        let all_nodes = cluster.nodes.len() as f64;
        let urgency = |a: &Allocation| {
            let waited_s = seconds(now.since_ms(a.queued_at()));
            waited_s / (waited_s + HALF_URGENT_AFTER_S)
        };
        let first = waiting.into_iter().take(WAITING_CONSIDERED_MAX).map(|a| (a, urgency(a)));
        let pressure = if wanted > 0.0 { wanted / (wanted + all_nodes) } else { 0.0 };
        Self { cluster, waiting: first.collect(), pressure }
    }

    /// How much work that is harder to preempt wants this allocation's nodes, times how easily this
    /// allocation is preempted: 0 to 1. Whether a vCluster may use the nodes is checked for the head only.
    fn demand_of(&self, allocation: &Allocation) -> f64 {
        if allocation.spec.sensitive {
            return 0.0;
        }
        let Some(head) = allocation.head().and_then(|id| self.cluster.nodes.get(id)) else { return 0.0 };
        let class = allocation.spec.preemption_class;
        let nobody_wants: f64 = self
            .waiting
            .iter()
            .filter(|(a, _)| a.spec.preemption_class > class && VCluster::may_use(self.cluster.named(a), head))
            .map(|(_, urgency)| 1.0 - urgency)
            .product();
        let ease = f64::from(10u8.saturating_sub(class)) / 10.0;
        (1.0 - nobody_wants) * ease
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
                write!(f, "its last {times} checkpoint(s) failed, and it is asked again in {left_s:.0} s")
            }
            Self::NotKnownYet => f.write_str("the time of its last checkpoint has not been read from the store yet"),
            Self::StorageUnreachable { why } => write!(f, "paused: the store of checkpoints is unreachable ({why})"),
            Self::Preempted => f.write_str("it is being preempted, and saves itself for that"),
            Self::WalltimeNear { left_s } => {
                write!(f, "its walltime ends in {:.0} s; its head asks it to save itself before that", left_s.max(0.0))
            }
        }
    }
}

impl Terms {
    /// Every term for people: its name, its value with unit, and where the value comes from.
    pub fn lines(&self) -> Vec<(&'static str, String, &'static str)> {
        let node_s = |value: f64| format!("{value:.3} node-s");
        let guessed = if self.size_is_guessed { "a quarter of its memory: it has saved nothing yet" } else { "as its last checkpoint" };
        let mut lines = vec![
            ("nodes", self.nodes.to_string(), "nodes of the allocation"),
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
                "by waiting work of a higher class, within that time",
            ),
            ("recompute_saved", node_s(self.recompute_saved_node_s), "failure_probability x half of the unsaved time x nodes"),
            ("preemptability", node_s(self.preemptability_node_s), "preemption_probability x half of the unsaved time x nodes"),
            (
                "backlog_pressure",
                format!("{:.3}", self.backlog_pressure),
                "nodes that waiting work wants / (these nodes + all nodes of the cluster)",
            ),
            ("backlog_relief", node_s(self.backlog_relief_node_s), "backlog_pressure x compute_waste"),
            ("value", node_s(self.value_node_s()), "recompute_saved + preemptability + backlog_relief"),
            ("least_interval", format!("{:.1} s", self.least_interval_s), "ten write times, and at least the site's interval"),
        ];
        if self.unwell_nodes > 0 {
            lines.push(("unwell_nodes", self.unwell_nodes.to_string(), "those of its nodes that are unwell"));
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
