//! Starts the ranks of a launch on this node.

use super::rank_files::{PmiEnd, RankFiles, make_ranks};
use super::{Down, INPUT, Launch, Rank, RankState, sockets};
use crate::bridge::Pmix;
use crate::log_files;
use crate::rank_input::RankInput;
use crate::surroundings::Surroundings;
use lattice_model::layout::RankRun;
use lattice_model::{LaunchSpec, NodeRanks, RankOutcome, with_causes};
use lattice_pmi::{Job, Server, process_mapping};
use lattice_runtime::process::{Environment, NotStarted};
use std::collections::BTreeMap;

/// Ranks that are prepared and started together. The ranks of earlier batches run meanwhile.
const RANKS_PER_BATCH: usize = 8;

/// The result of [`Launch::start`].
pub struct Started {
    pub launch: Launch,
    /// The pids of the started processes, by local rank.
    pub pids: Vec<(u32, i32)>,
    /// Local ranks whose process could not be made.
    pub failed: Vec<u32>,
}

impl Launch {
    /// Starts this node's ranks. `token` gives the number of a rank's socket in `epoll`.
    pub fn start(spec: LaunchSpec, part: &NodeRanks, pmix: Option<Pmix>, around: &Surroundings<'_>, token: impl Fn(u32) -> u64) -> Started {
        let numbers = spec.ranks_on(&part.node);
        let runs = spec.runs();
        let here = spec.nodes.iter().position(|one| one.node == part.node).and_then(|at| u32::try_from(at).ok()).unwrap_or(u32::MAX);
        let appnum = |rank: &u32| u32::try_from(spec.program_of(*rank).0).unwrap_or(u32::MAX);
        let job = Job {
            number: spec.number,
            kvsname: namespace(&spec),
            size: spec.size(),
            first: part.first,
            count: part.count,
            ranks: numbers.clone(),
            appnums: numbers.iter().map(appnum).collect(),
            mapping: process_mapping(&among_nodes_with_ranks(&spec, &runs)),
            part: here,
            nodes: spec.nodes.iter().map(|part| part.node.clone()).collect(),
            runs,
        };
        let group = log_files::create_directory(around.dir, spec.number)
            .and_then(|()| around.work.launch_group(spec.number).map_err(|error| NotStarted { code: 126, why: with_causes(&error) }));
        let shared = group.and_then(|group| Ok((group, Environment::new(&spec.env)?)));
        let (mut ranks, mut pids, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        let mut terminal = None;
        let stdin = spec.stdin().unwrap_or_default();
        let mut input = numbers.iter().any(|rank| stdin.is_for(*rank)).then(RankInput::default);
        let locals: Vec<u32> = (0..part.count).collect();
        for some in locals.chunks(RANKS_PER_BATCH) {
            let make = |local: &u32| RankFiles::make(&spec, part, &job, *local, pmix.as_ref(), around, &token);
            let files: Vec<_> = some.iter().map(make).collect();
            let made = make_ranks(&files, &spec, &shared, around);
            for ((local, files), made) in some.iter().zip(files).zip(made) {
                let started = files.and_then(|files| Ok((files, made?)));
                ranks.push(match started {
                    Ok((files, child)) => {
                        pids.push((*local, child.pid));
                        terminal = terminal.or(files.terminal.map(|(ours, _)| ours));
                        if let (Some(input), Some((ours, _))) = (&mut input, files.input) {
                            input.add(*local, ours, token(INPUT | *local), around.epoll);
                        }
                        let state = RankState::Running { pid: child.pid, start: child.into_start_report() };
                        let (pmi, port) = match files.pmi {
                            Some(PmiEnd::Inherited { ours, .. }) => (Some(ours), None),
                            Some(PmiEnd::Port(port)) => (None, Some(port)),
                            None => (None, None),
                        };
                        Rank { state, pmi, port }
                    }
                    Err(NotStarted { code, why }) => {
                        log_files::append_error(around.dir, spec.number, job.rank(*local), &why);
                        failed.push(*local);
                        Rank { state: RankState::Ended(RankOutcome::NotStarted { code }), pmi: None, port: None }
                    }
                });
            }
        }
        let answer_bytes_max = sockets::answer_bytes_max(around.held_bytes_max, job.count);
        let server = Server::within(job, around.held_bytes_max);
        let launch = Self {
            spec,
            numbers,
            ranks,
            hung_up: BTreeMap::new(),
            paused_ports: BTreeMap::new(),
            strangers: BTreeMap::new(),
            port_failure_logged: false,
            server,
            answer_bytes_max,
            call_retry: None,
            pmix,
            down: Down::No,
            aborted: None,
            memory_kill: None,
            terminal,
            input,
        };
        Started { launch, pids, failed }
    }
}

/// The runs with the index of each node among those with ranks.
fn among_nodes_with_ranks(spec: &LaunchSpec, runs: &[RankRun]) -> Vec<RankRun> {
    let empty = usize::from(spec.has_empty_head());
    runs.iter().map(|run| RankRun { node: run.node - empty, ..*run }).collect()
}

/// The launch's name in PMI and PMIx, the same on all its nodes.
pub fn namespace(spec: &LaunchSpec) -> String {
    format!("lattice_{}_{}_{}", spec.allocation.short(), spec.epoch, spec.number)
}
