//! Which processes of an allocation's work hear a signal, and sending it to those alone: to one that does not catch it, it is death.
//!
//! A child that was forked and has not executed its program yet shows what its parent catches, and catches nothing afterwards. So a
//! process counts as catching when it is seen to twice, a moment apart, being the same program both times, and it is looked at
//! once more directly before the signal is sent. The first time may be long before anybody asks ([`super::sightings`]): what began in the
//! last moment alone is waited for, and keeps the others from nothing.

use super::sightings::{Sightings, unsure_for};
use crate::context::Context;
use lattice_model::{AllocationId, AskSignal};
use lattice_runtime::identity;
use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// Between the two looks: longer than from fork to exec.
pub(super) const MOMENT: Duration = Duration::from_millis(20);

/// Processes of the script and of launches; terminals that users attached are not among them.
pub struct Hearers {
    /// How many there are in all.
    pub all: usize,
    /// Those that catch the signal.
    catching: Vec<Hearer>,
    /// Those that do as it seems, and were not seen to long enough ago.
    unsure: Vec<Hearer>,
    /// When all that are unsure will have been.
    sure_at: Instant,
}

/// One that catches the signal.
struct Hearer {
    pid: i32,
    /// Can come to stand for no other process.
    fd: OwnedFd,
    program: Program,
}

/// What a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Program {
    pub start_ticks: u64,
    /// Of its executable.
    pub device: (u32, u32),
    pub inode: u64,
}

/// A living process.
pub(super) enum Look {
    Deaf,
    Catches(Program),
}

impl Hearers {
    /// Looks at what runs now, once; an error where that cannot be told. `shim`: its process, by which they are found on a machine
    /// without scopes.
    fn find(context: &Context, allocation: AllocationId, shim: Option<u32>, signal: AskSignal) -> io::Result<Self> {
        let sightings = context.checkpoints.sightings();
        let (mut seen, mut catch) = (BTreeSet::new(), Vec::new());
        for pid in of_work(context, allocation, shim)? {
            // Opened before it is looked at: what is seen is of this process or of none.
            let Some(fd) = there(identity::pidfd_open(pid))? else { continue };
            match look_at(pid, signal)? {
                None => {}
                Some(Look::Deaf) => {
                    seen.insert(pid);
                    sightings.is_deaf(allocation, pid);
                }
                Some(Look::Catches(program)) => {
                    seen.insert(pid);
                    catch.push(Hearer { pid, fd, program });
                }
            }
        }
        // Whose descriptor was opened and that is still listed is what was listed, or another one of the same work.
        let still = of_work(context, allocation, shim)?;
        let mut found = Self { all: 0, catching: Vec::new(), unsure: Vec::new(), sure_at: Instant::now() };
        for hearer in catch.into_iter().filter(|hearer| still.contains(&hearer.pid)) {
            found.add(hearer, sightings, allocation);
        }
        // What has just begun counts: a node where something runs is not idle.
        for pid in still {
            if seen.contains(&pid) || look_at(pid, signal)?.is_some() {
                found.all += 1;
            }
        }
        Ok(found)
    }

    fn add(&mut self, hearer: Hearer, sightings: &Sightings, allocation: AllocationId) {
        let left = unsure_for(sightings.saw(allocation, hearer.pid, &hearer.program));
        if left.is_zero() {
            self.catching.push(hearer);
        } else {
            self.unsure.push(hearer);
            self.sure_at = self.sure_at.max(Instant::now() + left);
        }
    }

    /// Looks again at those that are unsure, a moment after they were first seen.
    fn settle(&mut self, signal: AskSignal) -> io::Result<()> {
        if !self.unsure.is_empty() {
            std::thread::sleep(self.sure_at.saturating_duration_since(Instant::now()));
        }
        for hearer in std::mem::take(&mut self.unsure) {
            // Whose descriptor is open and whose program is the same is what was seen.
            if hearer.catches_still(signal)? {
                self.catching.push(hearer);
            }
        }
        Ok(())
    }

    /// Whether nobody catches it. What began in the last moment is waited for where there is nobody else.
    pub fn none_catches(&mut self, signal: AskSignal) -> io::Result<bool> {
        if self.catching.is_empty() {
            self.settle(signal)?;
        }
        Ok(self.catching.is_empty())
    }

    /// Those that catch it, with nothing sent.
    pub fn unasked(mut self, signal: AskSignal) -> io::Result<Vec<OwnedFd>> {
        self.settle(signal)?;
        Ok(self.catching.into_iter().map(|hearer| hearer.fd).collect())
    }

    /// Sends it: at once to those that were seen to catch it long enough ago, and a moment later to the others. Gives those that lived
    /// to get it.
    pub fn send(mut self, signal: AskSignal) -> io::Result<Vec<OwnedFd>> {
        let mut sent = Vec::new();
        self.send_to_sure(signal, &mut sent)?;
        match self.settle(signal).and_then(|()| self.send_to_sure(signal, &mut sent)) {
            // Those that have it save themselves, and are waited for.
            Err(error) if !sent.is_empty() => tracing::warn!(%error, "not all that runs there could be looked at, and is asked"),
            done => done?,
        }
        Ok(sent)
    }

    fn send_to_sure(&mut self, signal: AskSignal, sent: &mut Vec<OwnedFd>) -> io::Result<()> {
        for hearer in self.catching.drain(..) {
            if hearer.catches_still(signal)? && there(identity::pidfd_signal(hearer.fd.as_fd(), signal.number()))?.is_some() {
                sent.push(hearer.fd);
            }
        }
        Ok(())
    }
}

impl Hearer {
    fn catches_still(&self, signal: AskSignal) -> io::Result<bool> {
        Ok(matches!(look_at(self.pid, signal)?, Some(Look::Catches(program)) if program == self.program))
    }
}

/// Looks at what runs now, with what went wrong for people.
pub fn look(context: &Context, allocation: AllocationId, shim: Option<u32>, signal: AskSignal) -> Result<Hearers, String> {
    Hearers::find(context, allocation, shim, signal).map_err(unseen)
}

/// Why it is not known what runs there, for people.
pub fn unseen(error: io::Error) -> String {
    format!("what runs there cannot be looked at: {error}")
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

pub(super) fn of_work(context: &Context, allocation: AllocationId, shim: Option<u32>) -> io::Result<BTreeSet<i32>> {
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
pub(super) fn look_at(pid: i32, signal: AskSignal) -> io::Result<Option<Look>> {
    let Some(status) = there(fs::read_to_string(format!("/proc/{pid}/status")))? else { return Ok(None) };
    match catches(&status, signal) {
        None => Ok(None),
        Some(false) => Ok(Some(Look::Deaf)),
        Some(true) => {
            let Some(stat) = there(identity::process_stat(pid))? else { return Ok(None) };
            // Some file systems tell nobody but their user of their files, root neither (FUSE): what begins there is known by its start.
            let (device, inode) = executable(pid).unwrap_or_default();
            Ok(Some(Look::Catches(Program { start_ticks: stat.start_ticks, device, inode })))
        }
    }
}

/// The device and the inode of a process's executable. As the kernel has them in memory: a file server that is away is not waited for.
fn executable(pid: i32) -> io::Result<((u32, u32), u64)> {
    let path = CString::new(format!("/proc/{pid}/exe"))?;
    let mut about = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path ends with a zero, and the kernel writes no more than one `statx` to where there is room for one.
    let done = unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), libc::AT_STATX_DONT_SYNC, libc::STATX_INO, about.as_mut_ptr()) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was all zeros, which is a value of it, and what the kernel wrote is one as well.
    let about = unsafe { about.assume_init() };
    Ok(((about.stx_dev_major, about.stx_dev_minor), about.stx_ino))
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
    use std::io::{Read as _, Write as _};
    use std::process::{Command, Stdio};

    #[test]
    fn what_a_process_catches_is_read_from_its_status() {
        let status = "Name:\tx\nState:\tS (sleeping)\nSigIgn:\tffffffffffffffff\nSigCgt:\t0000000000000200\n";
        assert_eq!(catches(status, AskSignal::Usr1), Some(true));
        assert_eq!(catches(status, AskSignal::Usr2), Some(false));
        assert_eq!(catches("State:\tZ (zombie)\nSigCgt:\t0000000000000200\n", AskSignal::Usr1), None);
        assert_eq!(catches("State:\tR\n", AskSignal::Usr1), Some(false));
    }

    #[test]
    fn who_runs_another_program_by_then_gets_nothing() {
        let program = "trap : USR1; echo; while ! read x; do :; done; exec sleep 1000";
        let mut command = Command::new("/bin/sh");
        let mut child = command.args(["-c", program]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let hearer = || match look_at(pid, AskSignal::Usr1).unwrap() {
            Some(Look::Catches(program)) => Hearer { pid, fd: identity::pidfd_open(pid).unwrap(), program },
            Some(Look::Deaf) | None => panic!("it catches the signal"),
        };
        let unsure = |hearer| Hearers { all: 1, catching: vec![], unsure: vec![hearer], sure_at: Instant::now() };
        let sure = |hearer| Hearers { all: 1, catching: vec![hearer], unsure: vec![], sure_at: Instant::now() };
        assert_eq!(unsure(hearer()).send(AskSignal::Usr1).unwrap().len(), 1);
        assert_eq!(sure(hearer()).send(AskSignal::Usr1).unwrap().len(), 1);
        let (known, new) = (hearer(), hearer());
        child.stdin.as_mut().unwrap().write_all(b"go on\n").unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while !matches!(look_at(pid, AskSignal::Usr1).unwrap(), Some(Look::Deaf)) {
            assert!(Instant::now() < until, "it runs no other program");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(unsure(new).send(AskSignal::Usr1).unwrap().len(), 0);
        assert_eq!(sure(known).send(AskSignal::Usr1).unwrap().len(), 0);
        assert!(child.try_wait().unwrap().is_none(), "it was sent what ends it");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn this_process_is_seen_as_it_is() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(matches!(look_at(own, AskSignal::Usr1).unwrap(), Some(Look::Deaf)));
        let about = fs::metadata(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(executable(own).unwrap().1, std::os::unix::fs::MetadataExt::ino(&about));
        assert!(there(executable(i32::MAX)).unwrap().is_none());
    }

    #[test]
    fn only_what_is_gone_is_not_there() {
        assert!(look_at(i32::MAX, AskSignal::Usr1).unwrap().is_none());
        assert!(there::<()>(Err(io::Error::from_raw_os_error(nix::libc::ESRCH))).unwrap().is_none());
        assert!(there::<()>(Err(io::Error::from_raw_os_error(nix::libc::EMFILE))).is_err());
    }
}
