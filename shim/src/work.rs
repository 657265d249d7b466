//! All processes of the allocation on this node: where they are started, and how they are ended.

use lattice_runtime::cgroup::{CgroupError, Scope};
use lattice_runtime::{identity, process};
use std::fs::File;
use std::os::fd::OwnedFd;

/// How the processes of the work are tracked.
pub enum Work {
    /// By the scope's cgroups: no process escapes.
    Scope(Scope),
    /// This machine has no cgroup v2 tree: all work by descent from us (we are its subreaper), a launch by its ranks'
    /// sessions.
    Tree,
}

impl Work {
    /// Makes a launch's cgroup, to start processes in it.
    pub fn launch_group(&self, number: u32) -> Result<Option<OwnedFd>, CgroupError> {
        match self {
            Self::Scope(scope) => {
                scope.launch(number).create()?;
                scope.launch(number).kill_whole_on_oom()?;
                scope.launch(number).open_dir().map(Some)
            }
            Self::Tree => Ok(None),
        }
    }

    /// Makes the cgroup of a launch's PMIx server, to start it in.
    pub fn pmix_group(&self, number: u32) -> Result<Option<OwnedFd>, CgroupError> {
        match self {
            Self::Scope(scope) => {
                scope.pmix_server(number).create()?;
                scope.pmix_server(number).open_dir().map(Some)
            }
            Self::Tree => Ok(None),
        }
    }

    /// Makes an attached terminal's cgroup, to start its program in.
    pub fn attached_group(&self, number: u32) -> Result<Option<OwnedFd>, CgroupError> {
        match self {
            Self::Scope(scope) => {
                scope.attached(number).create()?;
                scope.attached(number).open_dir().map(Some)
            }
            Self::Tree => Ok(None),
        }
    }

    /// Removes an attached terminal's cgroup if it is empty.
    pub fn remove_attached(&self, number: u32) {
        if let Self::Scope(scope) = self {
            let _ = scope.attached(number).remove();
        }
    }

    /// Sends a signal to all work.
    pub fn signal_all(&self, signal: i32) {
        match self {
            Self::Scope(scope) => scope.work().signal(signal),
            Self::Tree => drop(process::signal_descendants(own_pid(), signal, |_| true)),
        }
    }

    /// Kills all work. Processes may survive without a scope, or with a kernel without `cgroup.kill`: repeat until
    /// [`Self::is_empty`].
    pub fn kill_all(&self) {
        match self {
            Self::Scope(scope) => {
                if let Err(error) = scope.work().kill() {
                    crate::shim_log::log_line(&format!(
                        "{error}: {}",
                        std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default()
                    ));
                    scope.work().signal(libc::SIGKILL);
                }
            }
            Self::Tree => self.signal_all(libc::SIGKILL),
        }
    }

    /// Sends a signal to all processes of one launch; `ranks` are the pids of the living ones.
    pub fn signal_launch(&self, number: u32, ranks: &[i32], signal: i32) {
        match self {
            Self::Scope(scope) if signal == libc::SIGKILL && scope.launch(number).kill().is_ok() => {
                // The PMIx server has no rank left to serve. If it cannot be killed, it ends when its socket is closed.
                let _ = scope.pmix_server(number).kill();
            }
            Self::Scope(scope) => scope.launch(number).signal(signal),
            Self::Tree => drop(process::signal_descendants(own_pid(), signal, |stat| ranks.contains(&stat.session))),
        }
    }

    /// The processes of one launch; `ranks` are the pids of the living ones.
    pub fn processes_of_launch(&self, number: u32, ranks: &[i32]) -> Vec<i32> {
        match self {
            Self::Scope(scope) => scope.launch(number).processes(),
            Self::Tree => {
                let all = identity::descendants(own_pid()).into_iter();
                all.filter(|(_, stat)| ranks.contains(&stat.session)).map(|(pid, _)| pid).collect()
            }
        }
    }

    /// Whether a process of the script, of a task or of a launch is left (zombies are not counted). `attached`: the
    /// sessions of attached terminals.
    pub fn has_launch_processes(&self, attached: &[i32]) -> bool {
        match self {
            Self::Scope(scope) => scope.launches().iter().any(|group| !matches!(group.is_populated(), Ok(false))),
            Self::Tree => identity::descendants(own_pid()).iter().any(|(_, stat)| !attached.contains(&stat.session)),
        }
    }

    /// Kills the processes of the script, of tasks and of launches, but not those of attached terminals. Repeat until
    /// [`Self::has_launch_processes`] is false.
    pub fn kill_launch_processes(&self, attached: &[i32]) {
        match self {
            Self::Scope(scope) => {
                for group in scope.launches() {
                    if group.kill().is_err() {
                        group.signal(libc::SIGKILL);
                    }
                }
            }
            Self::Tree => drop(process::signal_descendants(own_pid(), libc::SIGKILL, |stat| !attached.contains(&stat.session))),
        }
    }

    /// Whether no process is left (zombies are not counted).
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Scope(scope) => matches!(scope.work().is_populated(), Ok(false)),
            Self::Tree => identity::descendants(own_pid()).is_empty(),
        }
    }

    /// A file that signals when a scope may have become empty.
    pub fn events(&self) -> Option<File> {
        match self {
            Self::Scope(scope) => scope.work().events().ok(),
            Self::Tree => None,
        }
    }

    /// Removes a launch's cgroups if they are empty. Returns whether the launch's own is gone: processes that ranks
    /// left running keep it.
    pub fn remove_launch(&self, number: u32) -> bool {
        match self {
            Self::Scope(scope) => {
                // The cgroup of a server that is still ending stays: it is removed when the server was reaped.
                let _ = scope.pmix_server(number).remove();
                scope.launch(number).remove().is_ok()
            }
            Self::Tree => false,
        }
    }

    /// Removes the cgroups below `work`, at the end.
    pub fn remove_all(&self) {
        if let Self::Scope(scope) = self {
            let _ = scope.work().remove();
        }
    }
}

fn own_pid() -> i32 {
    std::process::id().cast_signed()
}
