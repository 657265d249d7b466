//! `lattice top --per-rank`: what each rank of an allocation's launches does, from two reads of
//! `/proc` a second apart. Nothing is read without a request.
//!
//! A rank consists of all processes with its `LATTICE_RANK` in their environment. Its processor
//! time is the sum of theirs and of the children that they have waited for: a child's time counts
//! once, before its end and after it.

use super::fact::text_of;
use super::processes::{self, Listed};
use super::{DiagnosisError, LOCAL_TIMEOUT, MESH_TIMEOUT, running};
use crate::context::{Context, Shared};
use lattice_mesh::UnansweredNode;
use lattice_mesh::diagnosis::plain;
use lattice_mesh::frame::{self, FrameError};
use lattice_mesh::open::Open;
use lattice_mesh::ranks::{RANKS_MAX, RanksAnswer, WireRank, WireRanks};
use lattice_mesh::usage::UsageOpen;
use lattice_model::{AllocationId, Epoch, NodeId, millis};
use lattice_telemetry::procfs::TICKS_PER_SECOND;
use quinn::SendStream;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::time::timeout;
use uuid::Uuid;

/// The time between the two reads.
const READ_INTERVAL: Duration = Duration::from_secs(1);
/// Largest number of an allocation's processes that are read on one node.
const READ_MAX: usize = 4096;
/// The longest name in characters; the kernel's names have at most 15.
const NAME_MAX: usize = 32;

/// Launch number and rank.
type Key = (u32, u32);

/// What ranks do on `node`, for a user who has been authorized.
pub async fn of_node(context: &Shared, node: &NodeId, address: Option<String>, open: UsageOpen) -> Result<WireRanks, DiagnosisError> {
    if *node == context.setup.me {
        return read_locally(context, &open).await;
    }
    let address = address.ok_or(UnansweredNode::NoAddress)?;
    let conversation = async {
        let (mut send, mut recv) = context.work.mesh.open(node, &address).await?;
        frame::write(&mut send, &Open::Ranks(Box::new(open))).await.map_err(UnansweredNode::Ask)?;
        frame::read::<RanksAnswer, _>(&mut recv).await.map_err(UnansweredNode::reading)
    };
    let answer = timeout(MESH_TIMEOUT, conversation).await.map_err(|_| UnansweredNode::Timeout)??;
    match answer {
        RanksAnswer::Answered(ranks) => Ok(ranks.checked().map_err(|_| UnansweredNode::UnknownForm)?),
        RanksAnswer::Refused { why } => Err(UnansweredNode::Refused { why: plain(&why) }.into()),
    }
}

/// Answers the request of another agent.
pub async fn answer(context: &Shared, open: &UsageOpen, send: &mut SendStream) -> Result<(), FrameError> {
    let answer = match read_locally(context, open).await {
        Ok(ranks) => RanksAnswer::Answered(ranks),
        Err(error) => RanksAnswer::Refused { why: error.to_string() },
    };
    frame::write(send, &answer).await
}

fn key(open: &UsageOpen) -> (AllocationId, Epoch) {
    (AllocationId(Uuid::from_bytes(open.allocation)), Epoch(open.epoch))
}

async fn read_locally(context: &Context, open: &UsageOpen) -> Result<WireRanks, DiagnosisError> {
    let work = running(context, key(open))?;
    let slot = context.diagnosis_slots.take(super::LOCAL_TIMEOUT).await?;
    let reading = tokio::task::spawn_blocking(move || {
        let _slot = slot;
        measure(&work)
    });
    match timeout(LOCAL_TIMEOUT, reading).await {
        Ok(Ok(ranks)) => Ok(ranks),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(DiagnosisError::KernelTimeout),
    }
}

fn measure(work: &Path) -> WireRanks {
    let first = Look::at(work);
    std::thread::sleep(READ_INTERVAL);
    Look::at(work).since(&first)
}

/// A snapshot of all ranks.
struct Look {
    at: Instant,
    ranks: BTreeMap<Key, Seen>,
    omitted: usize,
    unknown: usize,
}

/// One rank.
struct Seen {
    at: Instant,
    /// The start time and the pid of its first process.
    began: (u64, i32),
    ticks: u64,
    rank: WireRank,
}

impl Look {
    fn at(work: &Path) -> Self {
        let at = Instant::now();
        // Processes of attached terminals belong to no launch.
        let listed: Vec<Listed> = processes::list(work).into_iter().filter(|one| one.launch.is_some()).collect();
        let read = &listed[..listed.len().min(READ_MAX)];
        let mut look = Self { at, ranks: BTreeMap::new(), omitted: listed.len() - read.len(), unknown: 0 };
        for (one, rank) in read.iter().zip(processes::ranks(work, read)) {
            match (one.launch, rank) {
                (Some(launch), Ok(Some(rank))) => look.add((launch, rank), one.pid),
                // The script and its children.
                (_, Ok(_)) => {}
                (_, Err(_)) => look.unknown += 1,
            }
        }
        look
    }

    /// Adds a process to its rank, unless it has ended meanwhile.
    fn add(&mut self, key: Key, pid: i32) {
        let Some(process) = process(key, pid) else { return };
        match self.ranks.get_mut(&key) {
            Some(seen) => seen.join(process),
            None => drop(self.ranks.insert(key, process)),
        }
    }

    fn since(self, first: &Self) -> WireRanks {
        let window_ms = millis(self.at.saturating_duration_since(first.at));
        let omitted = self.omitted + self.ranks.len().saturating_sub(RANKS_MAX);
        let count = |many: usize| u32::try_from(many).unwrap_or(u32::MAX);
        let ranks = self.ranks.into_iter().take(RANKS_MAX).map(|(key, seen)| {
            let cpu_cores = first.ranks.get(&key).and_then(|before| seen.cores_since(before));
            WireRank { cpu_cores, ..seen.rank }
        });
        WireRanks { window_ms, ranks: ranks.collect(), omitted: count(omitted), unknown: count(self.unknown) }
    }
}

impl Seen {
    /// Adds another process.
    fn join(&mut self, other: Self) {
        let state = more_severe(&self.rank.state, &other.rank.state).to_owned();
        let (this, that) = (&self.rank, &other.rank);
        let (processes, threads) = (this.processes + that.processes, this.threads.saturating_add(that.threads));
        let memory_bytes = this.memory_bytes.saturating_add(that.memory_bytes);
        let first = if other.began < self.began { other.rank.clone() } else { self.rank.clone() };
        self.rank = WireRank { processes, threads, memory_bytes, state, ..first };
        self.began = self.began.min(other.began);
        self.ticks = self.ticks.saturating_add(other.ticks);
    }

    /// `None`: the sums cannot be compared, because the rank's first process is another one, or
    /// because a process ended and its parent has not waited for it.
    fn cores_since(&self, before: &Self) -> Option<f64> {
        let seconds = self.at.saturating_duration_since(before.at).as_secs_f64();
        let ticks = self.ticks.checked_sub(before.ticks)?;
        (self.began == before.began && seconds > 0.0).then(|| ticks as f64 / TICKS_PER_SECOND / seconds)
    }
}

/// The state to report of two: uninterruptible sleep, else running, else the first one.
fn more_severe<'a>(one: &'a str, other: &'a str) -> &'a str {
    let weight = |state: &str| match state {
        "D" => 2,
        "R" => 1,
        _ => 0,
    };
    if weight(other) > weight(one) { other } else { one }
}

fn process((launch, rank): Key, pid: i32) -> Option<Seen> {
    let at = Instant::now();
    let stat = text_of(&format!("/proc/{pid}/stat"))?;
    let (name, fields) = processes::stat_fields(&stat)?;
    let number = |at: usize| fields.get(at).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let threads = u32::try_from(number(17)).unwrap_or(u32::MAX);
    let first = *fields.first()?;
    let state = if threads > 1 {
        processes::threads(pid).fold(first.to_owned(), |all, one| more_severe(&all, &one).to_owned())
    } else {
        first.to_owned()
    };
    // Its own time and its children's, in user and system mode.
    let ticks = (11..=14).map(number).fold(0, u64::saturating_add);
    let name = plain(&name.chars().take(NAME_MAX).collect::<String>());
    let memory_bytes = processes::resident_bytes(pid);
    let rank = WireRank { launch, rank, pid, name, processes: 1, cpu_cores: None, memory_bytes, threads, state: plain(&state) };
    Some(Seen { at, began: (number(19), pid), ticks, rank })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(pid: i32, began: u64, ticks: u64, state: &str) -> Seen {
        let rank = WireRank {
            launch: 1,
            rank: 0,
            pid,
            name: format!("p{pid}"),
            processes: 1,
            memory_bytes: 10,
            threads: 1,
            ..WireRank::default()
        };
        Seen { at: Instant::now(), began: (began, pid), ticks, rank: WireRank { state: state.to_owned(), ..rank } }
    }

    #[test]
    fn a_rank_is_the_sum_of_its_processes_and_has_the_name_of_the_first() {
        let mut all = seen(20, 300, 5, "S");
        all.join(seen(10, 200, 7, "R"));
        all.join(seen(5, 400, 1, "S"));
        let WireRank { pid, name, processes, memory_bytes, threads, state, .. } = &all.rank;
        assert_eq!((*pid, name.as_str(), *processes, *memory_bytes, *threads, state.as_str()), (10, "p10", 3, 30, 3, "R"));
        assert_eq!((all.ticks, all.began), (13, (200, 10)));
        assert_eq!(more_severe("R", "D"), "D");
        assert_eq!(more_severe("S", "T"), "S");
    }

    #[test]
    fn usage_is_the_difference_of_two_reads_and_unknown_for_a_rank_that_began_in_between() {
        let before = seen(10, 200, 100, "R");
        let after = |ticks, began| Seen { at: before.at + Duration::from_secs(2), began: (began, 10), ..seen(10, began, ticks, "R") };
        assert_eq!(after(300, 200).cores_since(&before), Some(1.0));
        assert_eq!(after(300, 250).cores_since(&before), None);
        let look = |ranks: BTreeMap<Key, Seen>| Look { at: before.at, ranks, omitted: 2, unknown: 1 };
        let later = look([((1, 0), after(300, 200)), ((1, 1), seen(11, 201, 4, "S"))].into());
        let ranks = later.since(&look([((1, 0), seen(10, 200, 100, "R"))].into()));
        let cores: Vec<_> = ranks.ranks.iter().map(|rank| rank.cpu_cores.is_some()).collect();
        assert_eq!((cores, ranks.omitted, ranks.unknown), (vec![true, false], 2, 1));
    }

    #[test]
    fn this_process_can_be_read_as_a_rank() {
        let seen = process((1, 0), i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(seen.rank.memory_bytes > 0 && seen.rank.threads >= 1 && ["R", "S", "D"].contains(&seen.rank.state.as_str()));
    }
}
