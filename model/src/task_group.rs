//! Task groups (job arrays): one submission of which many tasks run, each with an index of its own.
//!
//! The quorum numbers the tasks of a group from 0 without gaps, in the order of their indices: the
//! number of a task is its *ordinal*. Sets of ordinals are stored as ranges, so consecutive tasks
//! cost one range, however many they are. Users write and read *indices*, which may have gaps.
//!
//! Tasks run in *lanes*: one or more ordinary allocations that the ledger creates for the group. A
//! lane leases tasks from the group, runs them one after another, and reports their ends.

use crate::ids::AllocationId;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;
use thiserror::Error;

/// Largest number of tasks in one group.
pub const TASKS_MAX: u32 = 1_000_000;
/// Largest index of a task.
pub const INDEX_MAX: u32 = i32::MAX as u32;
/// How many separate runs of indices a submission may have: encoded, this many take half of
/// [`crate::spec::SPEC_BYTES_MAX`].
pub const RUNS_MAX: usize = 2000;
/// How often a task that was lost with its node runs again.
pub const TASK_RESTARTS_MAX: u32 = 3;
/// The walltime of a lane beyond two walltimes of a task: time to get the first task.
pub const LANE_WALLTIME_MARGIN: Duration = Duration::from_secs(60);
/// How many characters of a wrong text an error shows.
const SHOWN_CHARS_MAX: usize = 40;

/// The walltime of a lane whose tasks have the walltime `task`. The lane begins a task only while that
/// much is left.
pub fn lane_walltime(task: Duration) -> Duration {
    task.saturating_mul(2).saturating_add(LANE_WALLTIME_MARGIN)
}

/// The walltime of the tasks of a lane with the walltime `lane`: see [`lane_walltime`].
pub fn task_walltime(lane: Duration) -> Duration {
    lane.saturating_sub(LANE_WALLTIME_MARGIN) / 2
}

/// The tasks of a submission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskGroup {
    /// The indices.
    pub indices: TaskIndices,
    /// The most tasks that run at the same time, at least 1; `None`: as many as get nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrent_max: Option<u32>,
    /// When more tasks than this have failed, the waiting tasks are cancelled; `None`: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures_max: Option<u32>,
}

/// The indices `first`, `first + step`, … up to `last`, which is one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexRun {
    /// The first index.
    pub first: u32,
    /// The last index.
    pub last: u32,
    /// The distance between neighbours, at least 1.
    pub step: u32,
}

impl IndexRun {
    /// One index.
    pub fn single(index: u32) -> Self {
        Self { first: index, last: index, step: 1 }
    }

    /// How many there are.
    pub fn count(self) -> u32 {
        (self.last - self.first) / self.step + 1
    }
}

impl fmt::Display for IndexRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.count(), self.step) {
            (1, _) => write!(f, "{}", self.first),
            (_, 1) => write!(f, "{}-{}", self.first, self.last),
            (_, step) => write!(f, "{}-{}:{step}", self.first, self.last),
        }
    }
}

/// The indices of a group's tasks, ascending; at least one, at most [`TASKS_MAX`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<IndexRun>", into = "Vec<IndexRun>")]
pub struct TaskIndices {
    /// Ascending: each begins after the last index of the one before.
    runs: Vec<IndexRun>,
    /// The ordinal of the first index of each run.
    firsts: Vec<u32>,
    count: u32,
}

/// Why a text is no set of indices.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NoSuchIndices {
    /// It is malformed.
    #[error("{0:?} is no index and no range of indices: write numbers, ranges and steps such as 0-99, 1,5,9 or 0-98:2")]
    Malformed(String),
    /// It goes downwards.
    #[error("{0:?} ends before it begins")]
    Backwards(String),
    /// An index is too large.
    #[error("{0} is larger than the largest index, {INDEX_MAX}")]
    TooLarge(String),
    /// There are too many.
    #[error("more than {TASKS_MAX} tasks: split them into several groups")]
    TooMany,
    /// There are too many separate runs.
    #[error("more than {RUNS_MAX} separate ranges: number the tasks without gaps and look their values up by index")]
    TooManyRuns,
    /// The limit of concurrency is malformed.
    #[error("{0:?} is no number of tasks that may run at the same time: write at least 1, as in 0-99%20")]
    Concurrency(String),
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS_MAX).collect()
}

impl TaskIndices {
    /// From runs in any order, which may overlap. A run of one index gets step 1, and two indices
    /// that are not adjacent become two runs, so that the text of the result gives the same runs.
    ///
    /// # Errors
    /// [`NoSuchIndices`] if there are none, or too many.
    pub fn new(runs: impl IntoIterator<Item = IndexRun>) -> Result<Self, NoSuchIndices> {
        let given: Vec<IndexRun> = runs.into_iter().collect();
        let mut total: u64 = 0;
        for run in &given {
            if run.step == 0 || run.last < run.first || !(run.last - run.first).is_multiple_of(run.step) {
                return Err(NoSuchIndices::Malformed(format!("{}-{}:{}", run.first, run.last, run.step)));
            }
            if run.last > INDEX_MAX {
                return Err(NoSuchIndices::TooLarge(run.last.to_string()));
            }
            total += u64::from(run.count());
        }
        if total > u64::from(TASKS_MAX) {
            return Err(NoSuchIndices::TooMany);
        }
        let ascends = given.windows(2).all(|two| two[0].last < two[1].first);
        let found = Self::of_ascending(if ascends && given.len() <= RUNS_MAX { given } else { compressed(&given)? });
        if found.runs.len() > RUNS_MAX {
            return Err(NoSuchIndices::TooManyRuns);
        }
        if found.runs.is_empty() {
            return Err(NoSuchIndices::Malformed(String::new()));
        }
        Ok(found)
    }

    /// From valid ascending runs, without a limit of their number.
    fn of_ascending(given: Vec<IndexRun>) -> Self {
        let (mut runs, mut firsts, mut count) = (Vec::with_capacity(given.len()), Vec::with_capacity(given.len()), 0);
        for run in given {
            let is_split = run.step > 1 && run.count() == 2;
            let first = if is_split || run.count() == 1 { IndexRun::single(run.first) } else { run };
            for part in std::iter::once(first).chain(is_split.then(|| IndexRun::single(run.last))) {
                firsts.push(count);
                count += part.count();
                runs.push(part);
            }
        }
        Self { runs, firsts, count }
    }

    /// Reads indices such as `0-99`, `1,5,9` or `0-98:2`.
    ///
    /// # Errors
    /// [`NoSuchIndices`], with the part that is wrong.
    pub fn parse(text: &str) -> Result<Self, NoSuchIndices> {
        let number = |digits: &str, part: &str| -> Result<u32, NoSuchIndices> {
            if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                return Err(NoSuchIndices::Malformed(shown(part)));
            }
            digits.parse::<u32>().ok().filter(|value| *value <= INDEX_MAX).ok_or_else(|| NoSuchIndices::TooLarge(shown(digits)))
        };
        let mut runs = Vec::new();
        for part in text.split(',') {
            let (range, step) = part.split_once(':').map_or((part, None), |(range, step)| (range, Some(step)));
            let (first, last) = range.split_once('-').map_or((range, None), |(first, last)| (first, Some(last)));
            let first = number(first, part)?;
            let last = last.map_or(Ok(first), |last| number(last, part))?;
            let step = step.map_or(Ok(1), |step| number(step, part))?;
            if step == 0 {
                return Err(NoSuchIndices::Malformed(shown(part)));
            }
            if last < first {
                return Err(NoSuchIndices::Backwards(shown(part)));
            }
            runs.push(IndexRun { first, last: last - (last - first) % step, step });
            if runs.len() > TASKS_MAX as usize {
                return Err(NoSuchIndices::TooMany);
            }
        }
        Self::new(runs)
    }

    /// The number of tasks.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The runs, ascending.
    pub fn runs(&self) -> &[IndexRun] {
        &self.runs
    }

    /// The smallest index.
    pub fn first(&self) -> u32 {
        self.runs.first().map_or(0, |run| run.first)
    }

    /// The largest index.
    pub fn last(&self) -> u32 {
        self.runs.last().map_or(0, |run| run.last)
    }

    /// The distance between neighbours, if it is the same everywhere; otherwise 1.
    pub fn step(&self) -> u32 {
        let within = self.runs.iter().filter(|run| run.last > run.first).map(|run| run.step);
        let between = self.runs.windows(2).map(|two| two[1].first - two[0].last);
        let mut distances = within.chain(between);
        let first = distances.next().unwrap_or(1);
        if distances.all(|distance| distance == first) { first } else { 1 }
    }

    /// The index of the task with this ordinal; `None`: there is none.
    pub fn index_of(&self, ordinal: u32) -> Option<u32> {
        if ordinal >= self.count {
            return None;
        }
        let at = self.firsts.partition_point(|first| *first <= ordinal) - 1;
        let run = self.runs[at];
        Some(run.first + (ordinal - self.firsts[at]) * run.step)
    }

    /// The ordinal of the task with this index; `None`: there is none.
    pub fn ordinal_of(&self, index: u32) -> Option<u32> {
        let at = self.runs.partition_point(|run| run.first <= index).checked_sub(1)?;
        let run = self.runs[at];
        let is_one = index <= run.last && (index - run.first).is_multiple_of(run.step);
        is_one.then(|| self.firsts[at] + (index - run.first) / run.step)
    }

    /// The ordinals of the tasks that have one of these indices.
    pub fn ordinals_of(&self, indices: &TaskIndices) -> TaskSet {
        let mut found = TaskSet::default();
        for run in &indices.runs {
            if run.step == 1 {
                let (first, end) = (self.count_below(run.first), self.count_below(run.last + 1));
                if first < end {
                    found.insert(first..=end - 1);
                }
            } else {
                let all = (run.first..=run.last).step_by(run.step as usize);
                all.filter_map(|index| self.ordinal_of(index)).for_each(|ordinal| found.insert(ordinal..=ordinal));
            }
        }
        found
    }

    /// How many tasks have an index below `index`.
    fn count_below(&self, index: u32) -> u32 {
        let Some(at) = self.runs.partition_point(|run| run.first < index).checked_sub(1) else { return 0 };
        let run = self.runs[at];
        self.firsts[at] + if index > run.last { run.count() } else { (index - run.first).div_ceil(run.step) }
    }

    /// The ordinals in `others` of the tasks whose indices are those of `ordinals` here. Costs the
    /// number of ranges if both have the same indices, or no steps; otherwise the number of tasks.
    pub fn corresponding_in(&self, others: &TaskIndices, ordinals: &TaskSet) -> TaskSet {
        if self == others {
            return ordinals.clone();
        }
        self.indices_of(ordinals).map_or_else(TaskSet::default, |indices| others.ordinals_of(&indices))
    }

    /// The indices of these ordinals, in any number of runs; `None`: there are none.
    pub fn indices_of(&self, ordinals: &TaskSet) -> Option<TaskIndices> {
        let mut runs: Vec<IndexRun> = Vec::new();
        for range in ordinals.ranges() {
            let (mut at, last) = (*range.start(), (*range.end()).min(self.count.checked_sub(1)?));
            while at <= last {
                let run_at = self.firsts.partition_point(|first| *first <= at) - 1;
                let run = self.runs[run_at];
                let upto = last.min(self.firsts[run_at] + run.count() - 1);
                let first = run.first + (at - self.firsts[run_at]) * run.step;
                let end = run.first + (upto - self.firsts[run_at]) * run.step;
                runs.push(IndexRun { first, last: end, step: run.step });
                at = upto + 1;
            }
        }
        (!runs.is_empty()).then(|| Self::of_ascending(runs))
    }
}

/// All indices of these runs, each once, as ascending runs. Fails if there are too many runs.
fn compressed(runs: &[IndexRun]) -> Result<Vec<IndexRun>, NoSuchIndices> {
    let mut all: Vec<u32> = runs.iter().flat_map(|run| (run.first..=run.last).step_by(run.step as usize)).collect();
    all.sort_unstable();
    all.dedup();
    let mut found: Vec<IndexRun> = Vec::new();
    for index in all {
        match found.last_mut() {
            Some(run) if run.first == run.last => (run.last, run.step) = (index, index - run.first),
            Some(run) if index - run.last == run.step => run.last = index,
            // No third index follows at the distance of these two: the second may begin a longer run.
            Some(run) if run.count() == 2 && run.step > 1 => {
                let first = run.last;
                *run = IndexRun::single(run.first);
                found.push(IndexRun { first, last: index, step: index - first });
            }
            Some(_) | None => found.push(IndexRun::single(index)),
        }
        if found.len() > RUNS_MAX {
            return Err(NoSuchIndices::TooManyRuns);
        }
    }
    Ok(found)
}

impl TryFrom<Vec<IndexRun>> for TaskIndices {
    type Error = NoSuchIndices;

    fn try_from(runs: Vec<IndexRun>) -> Result<Self, NoSuchIndices> {
        Self::new(runs)
    }
}

impl From<TaskIndices> for Vec<IndexRun> {
    fn from(indices: TaskIndices) -> Self {
        indices.runs
    }
}

impl fmt::Display for TaskIndices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, run) in self.runs.iter().enumerate() {
            if at > 0 {
                f.write_str(",")?;
            }
            write!(f, "{run}")?;
        }
        Ok(())
    }
}

impl TaskGroup {
    /// Reads `0-99%20`: indices, and after `%` the most tasks that run at the same time.
    ///
    /// # Errors
    /// [`NoSuchIndices`], with the part that is wrong.
    pub fn parse(text: &str) -> Result<Self, NoSuchIndices> {
        let (indices, limit) = text.split_once('%').map_or((text, None), |(indices, limit)| (indices, Some(limit)));
        let concurrent_max = limit
            .map(|limit| {
                let is_number = !limit.is_empty() && limit.bytes().all(|b| b.is_ascii_digit());
                let most = is_number.then(|| limit.parse::<u32>().ok()).flatten().filter(|most| *most > 0);
                most.ok_or_else(|| NoSuchIndices::Concurrency(shown(limit)))
            })
            .transpose()?;
        Ok(Self { indices: TaskIndices::parse(indices)?, concurrent_max, failures_max: None })
    }

    /// Approximate number of committed bytes.
    pub fn bytes(&self) -> usize {
        self.indices.runs.len() * 16 + 32
    }
}

impl fmt::Display for TaskGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.indices)?;
        self.concurrent_max.map_or(Ok(()), |most| write!(f, "%{most}"))
    }
}

/// A set of ordinals, as ranges that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<(u32, u32)>", into = "Vec<(u32, u32)>")]
pub struct TaskSet(BTreeMap<u32, u32>);

impl TaskSet {
    /// The ordinals 0 to `count` - 1.
    pub fn first(count: u32) -> Self {
        let mut set = Self::default();
        if let Some(last) = count.checked_sub(1) {
            set.insert(0..=last);
        }
        set
    }

    /// The ranges, ascending.
    pub fn ranges(&self) -> impl DoubleEndedIterator<Item = RangeInclusive<u32>> + '_ {
        self.0.iter().map(|(first, last)| *first..=*last)
    }

    /// How many ranges there are.
    pub fn range_count(&self) -> usize {
        self.0.len()
    }

    /// How many ordinals there are. Costs the number of ranges.
    pub fn len(&self) -> u32 {
        self.0.iter().fold(0, |count, (first, last)| (last - first).saturating_add(1).saturating_add(count))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this one is in it.
    pub fn contains(&self, ordinal: u32) -> bool {
        self.0.range(..=ordinal).next_back().is_some_and(|(_, last)| *last >= ordinal)
    }

    /// Adds a range.
    pub fn insert(&mut self, range: RangeInclusive<u32>) {
        let (mut first, mut last) = range.into_inner();
        if last < first {
            return;
        }
        // Ranges that overlap or touch become one.
        while let Some((&from, &to)) = self.0.range(..=last.saturating_add(1)).next_back().filter(|(_, to)| to.saturating_add(1) >= first) {
            self.0.remove(&from);
            first = first.min(from);
            last = last.max(to);
        }
        self.0.insert(first, last);
    }

    /// Removes a range.
    pub fn remove(&mut self, range: RangeInclusive<u32>) {
        let (first, last) = range.into_inner();
        if last < first {
            return;
        }
        while let Some((&from, &to)) = self.0.range(..=last).next_back().filter(|(_, to)| **to >= first) {
            self.0.remove(&from);
            if from < first {
                self.0.insert(from, first - 1);
            }
            if to > last {
                self.0.insert(last + 1, to);
            }
        }
    }

    /// Adds all of another set.
    pub fn insert_all(&mut self, other: &Self) {
        other.ranges().for_each(|range| self.insert(range));
    }

    /// Removes all of another set.
    pub fn remove_all(&mut self, other: &Self) {
        other.ranges().for_each(|range| self.remove(range));
    }

    /// The ordinals in both sets. Costs the number of ranges of the other one, and of the result.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let mut both = Self::default();
        for range in other.ranges() {
            let (first, last) = range.into_inner();
            let before = self.0.range(..first).next_back().filter(|(_, to)| **to >= first);
            for (from, to) in before.into_iter().chain(self.0.range(first..=last)) {
                both.insert((*from).max(first)..=(*to).min(last));
            }
        }
        both
    }

    /// Removes and returns the first `count` ordinals, or all.
    #[must_use]
    pub fn take_first(&mut self, count: u32) -> Self {
        let mut taken = Self::default();
        let mut left = count;
        while left > 0 {
            let Some((&first, &last)) = self.0.first_key_value() else { break };
            let some = left.min((last - first).saturating_add(1));
            taken.insert(first..=first + (some - 1));
            self.remove(first..=first + (some - 1));
            left -= some;
        }
        taken
    }

    /// All ordinals, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranges().flatten()
    }
}

impl FromIterator<u32> for TaskSet {
    fn from_iter<I: IntoIterator<Item = u32>>(ordinals: I) -> Self {
        let mut set = Self::default();
        ordinals.into_iter().for_each(|ordinal| set.insert(ordinal..=ordinal));
        set
    }
}

/// From ranges of unknown origin. Numbers that are no ordinal of any group are left out.
impl From<Vec<(u32, u32)>> for TaskSet {
    fn from(ranges: Vec<(u32, u32)>) -> Self {
        let mut set = Self::default();
        ranges.into_iter().for_each(|(first, last)| set.insert(first..=last.min(TASKS_MAX - 1)));
        set
    }
}

impl From<TaskSet> for Vec<(u32, u32)> {
    fn from(set: TaskSet) -> Self {
        set.0.into_iter().collect()
    }
}

/// The place of a lane in its task group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneOf {
    /// The group.
    pub group: AllocationId,
    /// The lane's number in it, from 0.
    pub number: u32,
    /// Since when the group has its place in the queue, which its lanes share.
    pub queued_at: Timestamp,
    /// How many times tasks that this lane holds were cancelled one by one. If this grows, the lane
    /// asks the quorum what it may still run.
    #[serde(default)]
    pub revocations: u32,
}

/// How one task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum TaskOutcome {
    /// With this status: 128 + signal if a signal ended it; 126 or 127 if it could not be started.
    Exited(i32),
    /// Its walltime ran out.
    WalltimeExceeded,
    /// Its node was lost, and it has run again as often as it may.
    Lost,
    /// It was cancelled, or its group was.
    Cancelled,
    /// It waited for the task with its index in another group, which did not succeed.
    Unmet,
}

impl TaskOutcome {
    /// Whether it did what it was for.
    pub fn is_success(self) -> bool {
        self == Self::Exited(0)
    }

    /// Whether it counts as failed. A cancelled task does not, nor does one that never began.
    pub fn is_failure(self) -> bool {
        match self {
            Self::Exited(code) => code != 0,
            Self::WalltimeExceeded | Self::Lost => true,
            Self::Cancelled | Self::Unmet => false,
        }
    }
}

impl fmt::Display for TaskOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(0) => f.write_str("completed"),
            Self::Exited(code) => write!(f, "exit_code {code}"),
            Self::WalltimeExceeded => f.write_str("walltime_exceeded"),
            Self::Lost => f.write_str("node_lost"),
            Self::Cancelled => f.write_str("cancelled"),
            Self::Unmet => f.write_str("dependency_unmet"),
        }
    }
}

/// Tasks that ended in the same way, as a lane reports them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedTasks {
    /// How.
    pub outcome: TaskOutcome,
    /// Which.
    pub tasks: TaskSet,
}

/// A lane's report to the quorum: see `lattice_quorum_client::wire::Request::AdvanceLane`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneReport {
    /// What has ended since. Repetitions are ignored.
    pub ended: Vec<EndedTasks>,
    /// How long the latest tasks took here on average, in microseconds; 0: none has ended yet.
    pub mean_us: u64,
    /// Tasks that it returns before it has begun them, because the running task takes long. With this
    /// the lane asks for no other task.
    pub returned: Option<LaneReturn>,
}

/// Tasks that a lane returns. It has not begun them, and will not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneReturn {
    /// [`LaneWork::returns`] of the latest answer to the lane, so that a late repetition is ignored.
    pub number: u32,
    /// Which.
    pub tasks: TaskSet,
}

/// What a lane may run: the answer to its report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneWork {
    /// All tasks that the lane holds and has not reported as ended; it runs them in ascending
    /// order. An unended task that is no longer here was cancelled or returned.
    pub leased: TaskSet,
    /// No further task will come: when those leased have ended and were reported, the lane ends.
    pub is_last: bool,
    /// How many times the lane has returned tasks under its claim: the number of the next return.
    pub returns: u32,
}

#[cfg(test)]
mod tests;
