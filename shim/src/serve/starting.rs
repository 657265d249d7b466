//! Starts the script and launches, each only once.

use super::lease::NotLeased;
use super::waiting::Waiting;
use super::{Ending, Process, Script, Shim, socket_token};
use crate::bridge::{Bridge, BridgeStartError, Pmix, READY_MS_MAX, Variables};
use crate::launch::start::{Started, namespace};
use crate::launch::{BRIDGE, Launch};
use crate::shim_log::log_line;
use crate::surroundings::{Inputs, Surroundings};
use crate::{log_files, script, slurm};
use lattice_model::binding::{RankPlace, TooFew};
use lattice_model::input::NoSuchStdin;
use lattice_model::launch::{NoSuchPmi, Pmi};
use lattice_model::layout::TASKS_PER_NODE_MAX;
use lattice_model::{AllocationId, Epoch, LaunchId, LaunchSpec, NodeId, NodeRanks, Placement, RankOutcome, with_causes};
use lattice_pmi::PmixServer;
use lattice_pmi::bridge::FromBridge;
use lattice_runtime::cgroup::Scope;
use lattice_runtime::exits::ExitRecord;
use lattice_runtime::process::{self, NotStarted, Program, StartReport};
use lattice_runtime::shim::{FromShim, REFUSED_CODE, boottime_ms as now_ms};
use nix::sys::epoll::EpollFlags;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use thiserror::Error;

/// Why nothing can be started now.
#[derive(Debug, Error)]
pub(super) enum Unstartable {
    /// Setting up this shim failed, for this reason.
    #[error("{0}")]
    SetUp(String),
    #[error(transparent)]
    NotLeased(#[from] NotLeased),
    #[error("the allocation is being ended")]
    Ending,
}

/// Why a launch is refused.
#[derive(Debug, Error)]
enum LaunchRefused {
    #[error(transparent)]
    Unstartable(#[from] Unstartable),
    #[error("it belongs to allocation {allocation} under epoch {epoch}, not to this one")]
    OtherClaim { allocation: AllocationId, epoch: Epoch },
    #[error("its number {0} is taken")]
    NumberTaken(u32),
    #[error("it has no ranks for {0}")]
    NoRanks(NodeId),
    #[error("{count} ranks from rank {first} on {node} are not possible")]
    BadRanks { count: u32, first: u32, node: NodeId },
    #[error(transparent)]
    Stdin(#[from] NoSuchStdin),
    #[error(transparent)]
    Pmi(#[from] NoSuchPmi),
    #[error(transparent)]
    Places(#[from] TooFew),
    // The remedy comes last, so the cause is part of the text.
    #[error("{}", no_pmix(&with_causes(.0)))]
    NoBridge(BridgeStartError),
}

impl Shim {
    /// Why nothing can be started now.
    pub(super) fn unstartable(&self) -> Option<Unstartable> {
        match self.ending {
            Ending::No => self.failed.clone().map(Unstartable::SetUp).or_else(|| self.run_lease.refusal().map(Unstartable::NotLeased)),
            Ending::Terminating { .. } | Ending::Killing { .. } | Ending::Stopped { .. } | Ending::Quitting { .. } => {
                Some(Unstartable::Ending)
            }
        }
    }

    pub(super) fn start_script(&mut self, text: &str, args: &[String], env: &[(String, String)], working_dir: &Path) {
        self.agent.send(&FromShim::ScriptStarted);
        match self.script {
            Script::None => {}
            Script::Running(_) => return,
            Script::Ended(outcome) => return self.agent.send(&FromShim::ScriptEnded { outcome }),
        }
        let started = self.spawn_script(text, args, env, working_dir);
        match started {
            Ok((pid, start)) => {
                self.processes.insert(pid, Process::Script);
                self.script = Script::Running(start);
            }
            Err(NotStarted { code, why }) => {
                log_files::append_error(&self.dir, 0, 0, &why);
                self.script_ended(RankOutcome::NotStarted { code });
            }
        }
    }

    /// The environment `env`, in which the variables that select GPUs name exactly the allocation's GPUs.
    pub(super) fn with_gpus(&self, env: &[(String, String)]) -> Vec<(String, String)> {
        let shown = self.config.placement.as_ref().map(Placement::whole).unwrap_or_default();
        let kept = env.iter().filter(|(name, _)| !shown.iter().any(|(ours, _)| ours == name)).cloned();
        kept.chain(shown.iter().map(|(name, ids)| ((*name).to_owned(), ids.clone()))).collect()
    }

    fn spawn_script(
        &mut self,
        text: &str,
        args: &[String],
        env: &[(String, String)],
        working_dir: &Path,
    ) -> Result<(i32, StartReport), NotStarted> {
        log_files::create_directory(&self.dir, 0)?;
        let [out, err] = log_files::create(&self.dir, 0, 0, &self.config.owner)?;
        let refused = |why| NotStarted { code: 126, why };
        if let Some(why) = self.unstartable() {
            return Err(refused(why.to_string()));
        }
        let file = script::write(&self.dir, text)?;
        let input = self.open_script_files()?;
        let group = self.work.launch_group(0).map_err(|e| refused(e.to_string()))?;
        let child = process::spawn(&Program {
            argv: &script::argv(text, args),
            env: &self.with_gpus(env),
            pid_variable: slurm::pid_variable_of(env),
            shared_env: None,
            working_dir,
            user: Some(&self.config.owner),
            stdin: input.as_ref().unwrap_or(&self.null).as_fd(),
            stdout: out.as_fd(),
            stderr: err.as_fd(),
            inherit: &[file.into()],
            cgroup: group.as_ref().map(AsFd::as_fd),
            v1_groups: &borrowed(&self.v1_groups),
            open_files: self.open_files,
            binding: None,
            terminal: false,
        })?;
        Ok((child.pid, child.into_start_report()))
    }

    pub(super) fn start_launch(&mut self, spec: LaunchSpec) {
        let (id, number) = (spec.id, spec.number);
        if self.forgotten.contains(&id) {
            return self.agent.send(&FromShim::LaunchEnded { launch: id });
        }
        if self.number_of(id).is_some() {
            return self.agent.send(&FromShim::LaunchStarted { launch: spec });
        }
        if self.waiting.values().any(|waiting| waiting.spec.id == id) {
            return;
        }
        match self.start_bridge(&spec) {
            Ok(None) => self.start_ranks(spec, None),
            Ok(Some(bridge)) => {
                self.processes.insert(bridge.pid, Process::Bridge { number });
                self.directories.insert(number, bridge.directory.clone());
                self.waiting.insert(number, Waiting { spec, bridge, until: now_ms() + READY_MS_MAX });
            }
            Err(refused) => self.refuse(id, with_causes(&refused)),
        }
    }

    fn refuse(&mut self, launch: LaunchId, why: String) {
        self.record(&ExitRecord::Aborted { launch, code: REFUSED_CODE, why: why.clone() });
        self.agent.send(&FromShim::Aborted { launch, code: REFUSED_CODE, why: why.clone() });
        self.refused.insert(launch, why);
    }

    /// Starts the PMIx server of a launch, if the launch has one. If the server cannot be started and the launch does
    /// not require PMIx ([`Pmi::Auto`]), the launch starts without it: `None`.
    fn start_bridge(&self, spec: &LaunchSpec) -> Result<Option<Bridge>, LaunchRefused> {
        self.check(spec)?;
        let asked = spec.pmi()?;
        if !asked.has_pmix(spec.size()) || spec.ranks_on(&self.node).is_empty() {
            return Ok(None);
        }
        let token = socket_token(spec.number, BRIDGE);
        let started =
            self.with_surroundings(Vec::new(), Inputs::new(), |around| Bridge::start(spec, &namespace(spec), &self.node, around, token));
        match started {
            Ok(bridge) => Ok(Some(bridge)),
            Err(error) if asked == Pmi::Auto => {
                log_line(&format!("launch {}: {}; its ranks start without PMIx", spec.number, no_pmix(&with_causes(&error))));
                Ok(None)
            }
            Err(error) => Err(LaunchRefused::NoBridge(error)),
        }
    }

    /// Handles an event on the socket of a bridge whose launch has no ranks yet: the bridge is ready, failed, or is
    /// lost.
    pub(super) fn bridge_ready(&mut self, number: u32, flags: EpollFlags) {
        let Some(waiting) = self.waiting.get_mut(&number) else { return };
        let received = waiting.bridge.handle_ready(flags, &self.epoll);
        let why = match (received.messages.into_iter().next(), received.lost) {
            (Some(FromBridge::Ready { library: _, env }), None) => {
                let Some(Waiting { spec, bridge, .. }) = self.waiting.remove(&number) else { return };
                return self.start_ranks(spec, Some((bridge, env)));
            }
            (None, None) => return,
            (Some(FromBridge::Failed { why }), _) => why,
            (_, lost) => lost.unwrap_or_else(|| "it sent a message about ranks before any exists".to_owned()),
        };
        self.start_without_bridge(number, &why);
    }

    /// Handles the loss of a bridge: starts the launch's ranks without it, unless the launch requires PMIx.
    fn start_without_bridge(&mut self, number: u32, why: &str) {
        let Some(Waiting { spec, bridge, .. }) = self.waiting.remove(&number) else { return };
        bridge.close(&self.epoll);
        match spec.pmi() {
            Ok(Pmi::Auto) => {
                log_line(&format!("launch {number}: {}; its ranks start without PMIx", no_pmix(why)));
                self.start_ranks(spec, None);
            }
            _ => {
                self.refuse(spec.id, no_pmix(why));
                self.bridge_ended(number);
            }
        }
    }

    /// Refuses a launch that waits for its bridge.
    pub(super) fn give_up(&mut self, number: u32, why: &str) {
        if let Some(Waiting { spec, bridge, .. }) = self.waiting.remove(&number) {
            bridge.close(&self.epoll);
            self.refuse(spec.id, why.to_owned());
            self.bridge_ended(number);
        }
    }

    pub(super) fn give_up_waiting(&mut self) {
        for number in self.waiting.keys().copied().collect::<Vec<_>>() {
            self.give_up(number, "the allocation is being ended");
        }
    }

    pub(super) fn check_waiting(&mut self, now: u64) {
        let late: Vec<(u32, i32)> =
            self.waiting.iter().filter(|(_, w)| w.until <= now).map(|(number, w)| (*number, w.bridge.pid)).collect();
        for (number, pid) in late {
            // A bridge that hangs does not end by itself when its socket is closed.
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
            self.start_without_bridge(number, &format!("it was not ready within {} s", READY_MS_MAX / 1000));
        }
    }

    /// Called when a bridge was reaped, and when its launch is refused: the later of the two calls removes the remains.
    /// If the launch still waits, nothing is done: the bridge's socket reports the loss.
    pub(super) fn bridge_ended(&mut self, number: u32) {
        if self.waiting.contains_key(&number) {
            return;
        }
        if self.launches.get(&number).is_none_or(Launch::has_ended) {
            self.remove_launch(number);
        }
    }

    fn with_surroundings<T>(&self, places: Vec<RankPlace>, inputs: Inputs, start: impl FnOnce(&Surroundings<'_>) -> T) -> T {
        start(&Surroundings {
            dir: &self.dir,
            owner: &self.config.owner,
            work: &self.work,
            epoll: &self.epoll,
            null: &self.null,
            open_files: self.open_files,
            v1_groups: &borrowed(&self.v1_groups),
            held_bytes_max: self.held_bytes_max(),
            places,
            inputs,
        })
    }

    /// How many bytes of values that a launch's ranks put this process may hold: a quarter of the allocation's memory.
    /// So when memory runs out, the kernel finds more to free in the work than in this process.
    fn held_bytes_max(&self) -> usize {
        let limit = self.config.scope.clone().map(Scope::at).and_then(|scope| scope.memory_bytes_max());
        limit.map_or(usize::MAX, |bytes| usize::try_from(bytes / 4).unwrap_or(usize::MAX))
    }

    fn start_ranks(&mut self, spec: LaunchSpec, bridge: Option<(Bridge, Vec<Variables>)>) {
        let number = spec.number;
        let (part, places) = match self.check(&spec) {
            Ok(checked) => checked,
            Err(refused) => return self.refuse(spec.id, with_causes(&refused)),
        };
        // Without ranks here no library is needed, but the servers of other nodes call this one.
        let is_empty = part.count == 0 && spec.pmi().is_ok_and(|asked| asked.has_pmix(spec.size()));
        let (bridge, env) = bridge.map(|(bridge, env)| (Some(bridge), env)).unwrap_or_default();
        let pmix = (bridge.is_some() || is_empty).then(|| {
            let here = spec.nodes.iter().position(|one| one.node == part.node).and_then(|at| u32::try_from(at).ok()).unwrap_or(u32::MAX);
            let parts = spec
                .runs()
                .into_iter()
                .flat_map(|run| std::iter::repeat_n(u32::try_from(run.node).unwrap_or(u32::MAX), run.count as usize));
            let server = PmixServer::new(&spec.ranks_on(&part.node), parts.collect(), here);
            Pmix { server, bridge, env }
        });
        self.agent.send(&FromShim::LaunchStarted { launch: spec.clone() });
        let inputs = self.open_rank_files(&spec, &part);
        let token = |local| socket_token(number, local);
        let Started { launch, pids, failed } =
            self.with_surroundings(places, inputs, |around| Launch::start(spec, &part, pmix, around, token));
        self.launches.insert(number, launch);
        for (local, pid) in pids {
            self.processes.insert(pid, Process::Rank { number, local });
        }
        self.report_input(number, true);
        for local in failed {
            // The launch knows this outcome already; this reports it to the agent.
            self.rank_ended(number, local, RankOutcome::NotStarted { code: 126 });
        }
    }

    /// The ranks that this node starts for a launch and the CPUs and GPUs of each, or why it refuses the launch.
    fn check(&self, spec: &LaunchSpec) -> Result<(NodeRanks, Vec<RankPlace>), LaunchRefused> {
        if let Some(why) = self.unstartable() {
            return Err(why.into());
        }
        if (spec.allocation, spec.epoch) != (self.config.allocation, self.config.epoch) {
            return Err(LaunchRefused::OtherClaim { allocation: spec.allocation, epoch: spec.epoch });
        }
        if spec.number == 0 || self.launches.contains_key(&spec.number) || self.waiting.contains_key(&spec.number) {
            return Err(LaunchRefused::NumberTaken(spec.number));
        }
        let ranks: u64 = spec.nodes.iter().map(|n| u64::from(n.count)).sum();
        let part = spec.part(&self.node).ok_or_else(|| LaunchRefused::NoRanks(self.node.clone()))?;
        let counts = spec.nodes_with_ranks().iter().all(|n| (1..=TASKS_PER_NODE_MAX).contains(&n.count));
        let first = spec.ranks_on(&part.node).first().copied();
        if !counts || u32::try_from(ranks).is_err() || spec.check().is_err() || first != Some(part.first).filter(|_| part.count > 0) {
            return Err(LaunchRefused::BadRanks { count: part.count, first: part.first, node: self.node.clone() });
        }
        spec.stdin()?;
        if part.count == 0 {
            return Ok((part.clone(), Vec::new()));
        }
        let cpus_per_task = spec.shape.cpus_per_task;
        let places = self.config.placement.as_ref().map(|p| p.share_out(&spec.binding, part.count, cpus_per_task)).transpose();
        Ok((part.clone(), places?.unwrap_or_default()))
    }
}

fn no_pmix(why: &str) -> String {
    format!(
        "this node cannot serve PMIx, which Open MPI needs: {why}; run it where nodes have it (--pmi=pmix asks for such nodes), \
         or use --pmi=none if its ranks do not communicate"
    )
}

pub(super) fn borrowed(descriptors: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    descriptors.iter().map(AsFd::as_fd).collect()
}
