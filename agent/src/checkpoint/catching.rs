//! Which processes of an allocation's work hear a signal, and sending it to those alone: to one that does not catch it, it is death.

use crate::context::Context;
use lattice_model::{AllocationId, AskSignal};
use lattice_runtime::identity;
use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};

/// Processes of the script and of launches; terminals that users attached are not among them.
pub struct Hearers {
    /// How many there are in all.
    pub all: usize,
    /// Those that catch the signal, by descriptors that can come to stand for no other process.
    pub catching: Vec<OwnedFd>,
}

impl Hearers {
    /// Looks at what runs now. `shim`: its process, by which they are found on a machine without scopes.
    pub fn find(context: &Context, allocation: AllocationId, shim: Option<u32>, signal: AskSignal) -> Self {
        let processes = || of_work(context, allocation, shim);
        let found: Vec<(i32, OwnedFd, bool)> = processes().into_iter().filter_map(|pid| look(pid, signal)).collect();
        // Whose descriptor was opened and that is still listed is what was listed, or another one of the same work.
        let still = processes();
        let found: Vec<(i32, OwnedFd, bool)> = found.into_iter().filter(|(pid, ..)| still.contains(pid)).collect();
        Self { all: found.len(), catching: found.into_iter().filter(|(.., catches)| *catches).map(|(_, fd, _)| fd).collect() }
    }

    /// Sends it. Gives those that lived to get it.
    pub fn send(self, signal: AskSignal) -> Vec<OwnedFd> {
        let sent = |fd: &OwnedFd| identity::pidfd_signal(fd.as_fd(), signal.number()).is_ok();
        self.catching.into_iter().filter(sent).collect()
    }
}

fn of_work(context: &Context, allocation: AllocationId, shim: Option<u32>) -> BTreeSet<i32> {
    let Some(slice) = &context.slice else {
        let shim = shim.and_then(|pid| i32::try_from(pid).ok());
        return shim.map(|pid| identity::descendants(pid).into_iter().map(|(pid, _)| pid).collect()).unwrap_or_default();
    };
    let scope = slice.scope(allocation);
    let groups = fs::read_dir(scope.work().path()).into_iter().flatten().flatten();
    let numbers = groups.filter_map(|group| group.file_name().to_str()?.strip_prefix("launch-")?.parse().ok());
    numbers.flat_map(|number: u32| scope.launch(number).processes()).collect()
}

/// A living process, and whether it catches the signal.
fn look(pid: i32, signal: AskSignal) -> Option<(i32, OwnedFd, bool)> {
    let fd = identity::pidfd_open(pid).ok()?;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some((pid, fd, catches(&status, signal)?))
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
        assert!(look(own, AskSignal::Usr1).is_some_and(|(_, _, catches)| !catches));
    }
}
