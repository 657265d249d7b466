//! Which processes of an allocation's work hear a signal, and sending it to those alone: to one that does not catch it, it is death.
//!
//! A child that was forked and has not executed its program yet shows what its parent catches, and catches nothing afterwards. So a
//! process counts as catching when it is seen to twice, a moment apart, being the same program both times, and it is looked at
//! once more directly before the signal is sent.

use crate::context::Context;
use lattice_model::{AllocationId, AskSignal};
use lattice_runtime::identity;
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

/// Between the two looks: longer than from fork to exec.
const MOMENT: Duration = Duration::from_millis(20);

/// Processes of the script and of launches; terminals that users attached are not among them.
pub struct Hearers {
    /// How many there are in all.
    pub all: usize,
    /// Those that catch the signal.
    catching: Vec<Hearer>,
}

/// One that catches the signal.
struct Hearer {
    pid: i32,
    /// Can come to stand for no other process.
    fd: OwnedFd,
    program: Program,
}

/// What a process runs.
#[derive(PartialEq, Eq)]
struct Program {
    start_ticks: u64,
    path: PathBuf,
}

/// A living process.
enum Look {
    Deaf,
    Catches(Program),
}

impl Hearers {
    /// Looks at what runs now; an error where that cannot be told. `shim`: its process, by which they are found on a machine
    /// without scopes.
    pub fn find(context: &Context, allocation: AllocationId, shim: Option<u32>, signal: AskSignal) -> io::Result<Self> {
        let processes = || of_work(context, allocation, shim);
        let mut seen = BTreeSet::new();
        let mut catching = Vec::new();
        for pid in processes()? {
            // Opened before it is looked at: what is seen is of this process or of none.
            let Some(fd) = there(identity::pidfd_open(pid))? else { continue };
            match look_at(pid, signal)? {
                None => {}
                Some(Look::Deaf) => drop(seen.insert(pid)),
                Some(Look::Catches(program)) => {
                    seen.insert(pid);
                    catching.push(Hearer { pid, fd, program });
                }
            }
        }
        if !catching.is_empty() {
            std::thread::sleep(MOMENT);
        }
        // Whose descriptor was opened and that is still listed is what was listed, or another one of the same work.
        let still = processes()?;
        let mut twice = Vec::new();
        for hearer in catching {
            if still.contains(&hearer.pid) && hearer.catches_still(signal)? {
                twice.push(hearer);
            }
        }
        // What has just begun counts: a node where something runs is not idle.
        let mut all = 0;
        for pid in still {
            if seen.contains(&pid) || look_at(pid, signal)?.is_some() {
                all += 1;
            }
        }
        Ok(Self { all, catching: twice })
    }

    /// Whether nobody catches it.
    pub fn none_catches(&self) -> bool {
        self.catching.is_empty()
    }

    /// Those that catch it, with nothing sent.
    pub fn unasked(self) -> Vec<OwnedFd> {
        self.catching.into_iter().map(|hearer| hearer.fd).collect()
    }

    /// Sends it. Gives those that lived to get it.
    pub fn send(self, signal: AskSignal) -> io::Result<Vec<OwnedFd>> {
        let mut sent = Vec::new();
        for hearer in self.catching {
            if hearer.catches_still(signal)? && there(identity::pidfd_signal(hearer.fd.as_fd(), signal.number()))?.is_some() {
                sent.push(hearer.fd);
            }
        }
        Ok(sent)
    }
}

impl Hearer {
    fn catches_still(&self, signal: AskSignal) -> io::Result<bool> {
        Ok(matches!(look_at(self.pid, signal)?, Some(Look::Catches(program)) if program == self.program))
    }
}

/// [`Hearers::find`], with what went wrong for people.
pub fn look(context: &Context, allocation: AllocationId, shim: Option<u32>, signal: AskSignal) -> Result<Hearers, String> {
    Hearers::find(context, allocation, shim, signal).map_err(|e| format!("what runs there cannot be looked at: {e}"))
}

/// How many processes of the script and of launches live.
pub fn count(context: &Context, allocation: AllocationId, shim: Option<u32>) -> io::Result<usize> {
    let mut all = 0;
    for pid in of_work(context, allocation, shim)? {
        if look_at(pid, AskSignal::default())?.is_some() {
            all += 1;
        }
    }
    Ok(all)
}

/// Nothing where the process is gone; every other error is one.
fn there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(nix::libc::ESRCH) => Ok(None),
        Err(error) => Err(error),
    }
}

fn of_work(context: &Context, allocation: AllocationId, shim: Option<u32>) -> io::Result<BTreeSet<i32>> {
    let Some(slice) = &context.slice else {
        let shim = shim.and_then(|pid| i32::try_from(pid).ok());
        let shim =
            shim.ok_or_else(|| io::Error::other("which processes are the allocation's is not known: its shim has not said its own"))?;
        return Ok(identity::descendants_or_error(shim)?.into_iter().map(|(pid, _)| pid).collect());
    };
    let scope = slice.scope(allocation);
    let Some(groups) = there(fs::read_dir(scope.work().path()))? else { return Ok(BTreeSet::new()) };
    let mut found = BTreeSet::new();
    for group in groups {
        let name = group?.file_name();
        if let Some(number) = name.to_str().and_then(|name| name.strip_prefix("launch-")?.parse().ok()) {
            found.extend(scope.launch(number).processes_or_error()?);
        }
    }
    Ok(found)
}

/// `None`: no living process.
fn look_at(pid: i32, signal: AskSignal) -> io::Result<Option<Look>> {
    let Some(status) = there(fs::read_to_string(format!("/proc/{pid}/status")))? else { return Ok(None) };
    match catches(&status, signal) {
        None => Ok(None),
        Some(false) => Ok(Some(Look::Deaf)),
        Some(true) => {
            let stat = there(identity::process_stat(pid))?;
            let path = there(fs::read_link(format!("/proc/{pid}/exe")))?;
            Ok(stat.zip(path).map(|(stat, path)| Look::Catches(Program { start_ticks: stat.start_ticks, path })))
        }
    }
}

/// By `/proc/PID/status`; `None`: a zombie.
fn catches(status: &str, signal: AskSignal) -> Option<bool> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    if field("State:").is_some_and(|state| state.starts_with(['Z', 'X'])) {
        return None;
    }
    let mask = field("SigCgt:").and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
    Some(mask & (1 << (signal.number() - 1)) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_catches_is_read_from_its_status() {
        let status = "Name:\tx\nState:\tS (sleeping)\nSigIgn:\tffffffffffffffff\nSigCgt:\t0000000000000200\n";
        assert_eq!(catches(status, AskSignal::Usr1), Some(true));
        assert_eq!(catches(status, AskSignal::Usr2), Some(false));
        assert_eq!(catches("State:\tZ (zombie)\nSigCgt:\t0000000000000200\n", AskSignal::Usr1), None);
        assert_eq!(catches("State:\tR\n", AskSignal::Usr1), Some(false));
    }

    #[test]
    fn this_process_is_seen_as_it_is() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(matches!(look_at(own, AskSignal::Usr1).unwrap(), Some(Look::Deaf)));
    }

    #[test]
    fn only_what_is_gone_is_not_there() {
        assert!(look_at(i32::MAX, AskSignal::Usr1).unwrap().is_none());
        assert!(there::<()>(Err(io::Error::from_raw_os_error(nix::libc::ESRCH))).unwrap().is_none());
        assert!(there::<()>(Err(io::Error::from_raw_os_error(nix::libc::EMFILE))).is_err());
    }
}
