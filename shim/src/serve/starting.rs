//! Starting the script and launches, once each.

use super::{Ending, Process, Script, Shim, socket_token};
use crate::launch::{Launch, Started, Surroundings};
use crate::{log_files, script};
use lattice_model::binding::RankPlace;
use lattice_model::spec::TASKS_PER_NODE_MAX;
use lattice_model::{LaunchSpec, NodeRanks, Placement, RankOutcome};
use lattice_runtime::exits::ExitRecord;
use lattice_runtime::process::{self, NotStarted, Program, Start};
use lattice_runtime::shim::{FromShim, REFUSED_CODE};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

impl Shim {
    /// Why nothing can be started now.
    pub(super) fn unstartable(&self) -> Option<String> {
        match self.ending {
            Ending::No => self.failed.clone(),
            Ending::Terminating { .. } | Ending::Killing { .. } | Ending::Stopped { .. } | Ending::Quitting { .. } => {
                Some("the allocation is being ended".to_owned())
            }
        }
    }

    pub(super) fn start_script(&mut self, text: &str, args: &[String], env: &[(String, String)], working_dir: &Path) {
        self.agent.tell(&FromShim::ScriptStarted);
        match self.script {
            Script::None => {}
            Script::Running(_) => return,
            Script::Ended(outcome) => return self.agent.tell(&FromShim::ScriptEnded { outcome }),
        }
        let started = self.spawn_script(text, args, env, working_dir);
        match started {
            Ok((pid, start)) => {
                self.processes.insert(pid, Process::Script);
                self.script = Script::Running(start);
            }
            Err(NotStarted { code, why }) => {
                log_files::tell(&self.dir, 0, 0, &why);
                self.script_ended(RankOutcome::NotStarted { code });
            }
        }
    }

    /// An environment with the variables that show the allocation's GPUs and no others.
    pub(super) fn with_gpus(&self, env: &[(String, String)]) -> Vec<(String, String)> {
        let shown = self.config.placement.as_ref().map(Placement::whole).unwrap_or_default();
        let kept = env.iter().filter(|(name, _)| !shown.iter().any(|(ours, _)| ours == name)).cloned();
        kept.chain(shown.iter().map(|(name, ids)| ((*name).to_owned(), ids.clone()))).collect()
    }

    fn spawn_script(&self, text: &str, args: &[String], env: &[(String, String)], working_dir: &Path) -> Result<(i32, Start), NotStarted> {
        log_files::create_directory(&self.dir, 0)?;
        let [out, err] = log_files::create(&self.dir, 0, 0, &self.config.owner)?;
        let refused = |why| NotStarted { code: 126, why };
        if let Some(why) = self.unstartable() {
            return Err(refused(why));
        }
        let file = script::write(&self.dir, text, &self.config.owner)?;
        let group = self.work.launch_group(0).map_err(|e| refused(e.to_string()))?;
        let child = process::spawn(&Program {
            argv: &script::argv(text, args),
            env: &self.with_gpus(env),
            shared_env: None,
            working_dir,
            user: Some(&self.config.owner),
            stdin: self.null.as_fd(),
            stdout: out.as_fd(),
            stderr: err.as_fd(),
            inherit: &[file.into()],
            cgroup: group.as_ref().map(AsFd::as_fd),
            v1_groups: &borrowed(&self.v1_groups),
            open_files: self.open_files,
            binding: None,
            terminal: false,
        })?;
        Ok((child.pid, child.into_start()))
    }

    pub(super) fn start_launch(&mut self, spec: LaunchSpec) {
        let (id, number) = (spec.id, spec.number);
        if self.forgotten.contains(&id) {
            let why = "it has ended, and its end was told".to_owned();
            return self.agent.tell(&FromShim::Aborted { launch: id, code: REFUSED_CODE, why });
        }
        if self.number_of(id).is_some() {
            return self.agent.tell(&FromShim::LaunchStarted { launch: spec });
        }
        let (part, places) = match self.check(&spec) {
            Ok(checked) => checked,
            Err(why) => {
                self.record(&ExitRecord::Aborted { launch: id, code: REFUSED_CODE, why: why.clone() });
                self.agent.tell(&FromShim::Aborted { launch: id, code: REFUSED_CODE, why: why.clone() });
                self.refused.insert(id, why);
                return;
            }
        };
        let around = Surroundings {
            dir: &self.dir,
            owner: &self.config.owner,
            work: &self.work,
            epoll: &self.epoll,
            null: &self.null,
            open_files: self.open_files,
            v1_groups: &borrowed(&self.v1_groups),
            places,
        };
        self.agent.tell(&FromShim::LaunchStarted { launch: spec.clone() });
        let Started { launch, pids, failed } = Launch::start(spec, &part, &around, |local| socket_token(number, local));
        self.launches.insert(number, launch);
        for (local, pid) in pids {
            self.processes.insert(pid, Process::Rank { number, local });
        }
        for local in failed {
            // Its outcome is known; this tells it on.
            self.rank_ended(number, local, RankOutcome::NotStarted { code: 126 });
        }
    }

    /// What this node is to start of a launch and where each rank goes, or why it will not.
    fn check(&self, spec: &LaunchSpec) -> Result<(NodeRanks, Vec<RankPlace>), String> {
        if let Some(why) = self.unstartable() {
            return Err(why);
        }
        if (spec.allocation, spec.epoch) != (self.config.allocation, self.config.epoch) {
            return Err(format!("it belongs to allocation {} under epoch {}, not to this one", spec.allocation, spec.epoch));
        }
        if spec.number == 0 || self.launches.contains_key(&spec.number) {
            return Err(format!("its number {} is taken", spec.number));
        }
        let ranks: u64 = spec.nodes.iter().map(|n| u64::from(n.count)).sum();
        let part = spec.part(&self.node).ok_or_else(|| format!("it has no ranks for {}", self.node))?;
        let fits = u64::from(part.first) + u64::from(part.count) <= ranks && u32::try_from(ranks).is_ok();
        if !fits || !(1..=TASKS_PER_NODE_MAX).contains(&part.count) {
            return Err(format!("{} ranks from {} on {} cannot be", part.count, part.first, self.node));
        }
        let places = self.config.placement.as_ref().map(|p| p.share_out(&spec.binding, part.count)).transpose();
        Ok((part.clone(), places.map_err(|e| e.to_string())?.unwrap_or_default()))
    }
}

pub(super) fn borrowed(descriptors: &[OwnedFd]) -> Vec<BorrowedFd<'_>> {
    descriptors.iter().map(AsFd::as_fd).collect()
}
