//! Programs on terminals of which an agent holds the other end. They are work like any other, but their end ends
//! nothing else, and nothing of them is written to disk: without the agent their terminal is gone as well.

use super::attached::Living;
use super::starting::borrowed;
use super::{Process, Shim};
use lattice_model::RankOutcome;
use lattice_runtime::process::{self, NotStarted, Program};
use lattice_runtime::shim::FromShim;
use nix::unistd::isatty;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The largest number of attached programs at a time, over all successive agents.
const LIVING_MAX: usize = 64;
/// The number of ended programs that are remembered for an agent that was disconnected meanwhile.
const ENDED_REMEMBERED: usize = 64;

impl Shim {
    pub(super) fn attach(&mut self, session: u64, tty: &Path, argv: &[String], env: &[(String, String)], working_dir: &Path) {
        if self.attached.living.contains_key(&session) {
            return self.agent.send(&FromShim::AttachStarted { session });
        }
        if let Some((_, outcome, why)) = self.attached.ended.iter().find(|(ended, ..)| *ended == session).cloned() {
            return self.agent.send(&FromShim::AttachEnded { session, outcome, why });
        }
        match self.spawn_attached(tty, argv, env, working_dir) {
            Ok(living) => {
                self.processes.insert(living.pid, Process::Attached { session });
                self.attached.living.insert(session, living);
                self.agent.send(&FromShim::AttachStarted { session });
            }
            Err(NotStarted { code, why }) => self.report_attached_end(session, RankOutcome::NotStarted { code }, Some(why)),
        }
    }

    fn spawn_attached(&mut self, tty: &Path, argv: &[String], env: &[(String, String)], working_dir: &Path) -> Result<Living, NotStarted> {
        let refused = |why: String| NotStarted { code: 126, why };
        if let Some(why) = self.unstartable() {
            return Err(refused(why.to_string()));
        }
        if self.attached.living.len() >= LIVING_MAX {
            return Err(refused(format!("{LIVING_MAX} terminals are attached to this allocation on this node already")));
        }
        let terminal = open_terminal(tty, self.config.owner.uid).map_err(|e| refused(format!("the terminal {}: {e}", tty.display())))?;
        self.attached.count += 1;
        let number = self.attached.count;
        let group = self.work.attached_group(number).map_err(|e| refused(e.to_string()))?;
        let child = process::spawn(&Program {
            argv,
            env: &self.with_gpus(env),
            pid_variable: None,
            shared_env: None,
            working_dir,
            user: Some(&self.config.owner),
            stdin: terminal.as_fd(),
            stdout: terminal.as_fd(),
            stderr: terminal.as_fd(),
            inherit: &[],
            cgroup: group.as_ref().map(AsFd::as_fd),
            v1_groups: &borrowed(&self.v1_groups),
            open_files: self.open_files,
            binding: None,
            terminal: true,
        })
        .inspect_err(|_| self.work.remove_attached(number))?;
        Ok(Living { number, pid: child.pid, start: child.into_start_report() })
    }

    pub(super) fn attached_ended(&mut self, session: u64, outcome: RankOutcome) {
        let Some(mut living) = self.attached.living.remove(&session) else { return };
        self.work.remove_attached(living.number);
        match living.start.failure() {
            Some(NotStarted { code, why }) => self.report_attached_end(session, RankOutcome::NotStarted { code }, Some(why)),
            None => self.report_attached_end(session, outcome, None),
        }
    }

    fn report_attached_end(&mut self, session: u64, outcome: RankOutcome, why: Option<String>) {
        if self.attached.ended.len() >= ENDED_REMEMBERED {
            self.attached.ended.pop_front();
        }
        self.attached.ended.push_back((session, outcome, why.clone()));
        self.agent.send(&FromShim::AttachEnded { session, outcome, why });
    }
}

/// Opens the programs' end, without making it our own controlling terminal. If the master was closed, another terminal
/// may have the same name by now: one that the owner does not own is refused.
fn open_terminal(tty: &Path, owner: u32) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOCTTY).open(tty)?;
    if !isatty(&file)? {
        return Err(io::Error::other("it is no terminal"));
    }
    if file.metadata()?.uid() != owner {
        return Err(io::Error::other("it belongs to somebody else"));
    }
    Ok(file)
}
