//! Finds which processes of an allocation's work catch a signal, and sends it only to them: it
//! would end any other process.
//!
//! A forked child shows its parent's handlers until it executes its own program, and has none of
//! them afterwards. So a process counts as catching only when two looks, a moment apart, see it
//! catch the signal while running the same program; and it is checked once more directly before the
//! signal is sent. The first look may be long before the request ([`super::sightings`]). The agent
//! therefore waits only for processes that have just started, and asks the others at once.
//!
//! On a machine without scopes, all descendants of the shim except PMIx servers count as the work's
//! processes, the programs of attached terminals included. Which of them are ranks is unknown there:
//! the scheduler places no work there whose signal is meant for ranks or process groups, and a node
//! that loses its cgroups later refuses to send the signal ([`check_receivers`]).

use super::handles::Handles;
use super::sightings::{Program, Sightings, unsure_for};
use lattice_model::{AllocationId, CheckpointSignal, SignalTo, with_causes};
use lattice_runtime::cgroup::Slice;
use lattice_runtime::identity;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs;
use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;
use thiserror::Error;

/// Why a signal cannot ask an allocation's processes.
#[derive(Debug, Error)]
pub enum CatchingError {
    #[error("its processes cannot be examined: {0}")]
    Look(#[source] io::Error),
    #[error("{signal} cannot be sent: {source}")]
    Send { signal: CheckpointSignal, source: io::Error },
    #[error("{why}")]
    NotCaught { why: String },
}

/// A signal is meant for some of the processes only, and they cannot be distinguished from the
/// others.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "--checkpoint-signal={signal} needs cgroups, which tell the work's ranks from its other processes, and this node has none: choose \
     --checkpoint-signal={}, which goes to all processes that catch it", .signal.name()
)]
struct ReceiversUnknown {
    signal: CheckpointSignal,
}

/// Checks that the processes for which the signal is meant can be found.
fn check_receivers(slice: Option<&Slice>, signal: CheckpointSignal) -> Result<(), ReceiversUnknown> {
    match (slice, signal.whom()) {
        (Some(_), _) | (None, SignalTo::All) => Ok(()),
        (None, SignalTo::Group | SignalTo::Ranks) => Err(ReceiversUnknown { signal }),
    }
}

/// Processes that the signal is meant for, sorted by whether they catch it. With scopes, the
/// programs of attached terminals are not among them.
pub struct SignalTargets {
    /// Number of processes, catching or not.
    pub all: usize,
    /// Processes that did not catch the signal at the last look.
    deaf: Vec<i32>,
    /// Processes that catch the signal.
    catching: Vec<CatchingProcess>,
    /// Processes that seem to catch the signal, but were not seen doing so for long enough.
    unsure: Vec<CatchingProcess>,
    /// When all `unsure` processes will have been seen for long enough.
    sure_at: Instant,
}

/// A process that catches the signal.
struct CatchingProcess {
    pid: i32,
    /// Refers to this process for ever, even if its id is reused.
    fd: OwnedFd,
    program: Program,
}

/// The state of a living process.
pub(super) enum Look {
    Deaf,
    Catches(Program),
}

impl SignalTargets {
    /// Looks once at all processes that run now except `asked`; an error if that fails. `shim`: the
    /// shim's process. It is needed on a machine without scopes, and to find process groups and
    /// ranks.
    fn find(
        context: &Handles,
        allocation: AllocationId,
        shim: Option<u32>,
        signal: CheckpointSignal,
        asked: &BTreeSet<i32>,
    ) -> io::Result<Self> {
        let sightings = context.checkpoints.sightings();
        let (mut seen, mut catch) = (BTreeMap::new(), Vec::new());
        let listed = || addressed(context, allocation, shim, signal);
        for pid in listed()?.into_iter().filter(|pid| !asked.contains(pid)) {
            // Opened before the look, so that the look is at this process or at none.
            let Some(fd) = none_if_absent(identity::pidfd_open(pid))? else { continue };
            match look_at(pid, signal)? {
                None => {}
                Some(Look::Deaf) => {
                    seen.insert(pid, false);
                    sightings.is_deaf(allocation, pid);
                }
                Some(Look::Catches(program)) => {
                    seen.insert(pid, true);
                    catch.push(CatchingProcess { pid, fd, program });
                }
            }
        }
        // If the id is still listed after its descriptor was opened, the descriptor refers to the
        // listed process, or to another one of the same work.
        let still = listed()?;
        let mut found = Self { all: 0, deaf: Vec::new(), catching: Vec::new(), unsure: Vec::new(), sure_at: Instant::now() };
        for process in catch.into_iter().filter(|process| still.contains(&process.pid)) {
            found.add(process, sightings, allocation);
        }
        // A process that has just started counts: a node where something runs is not idle. The
        // others were looked at above.
        for pid in still.into_iter().filter(|pid| !asked.contains(pid)) {
            let catches = match seen.get(&pid) {
                Some(catches) => *catches,
                None => match look_at(pid, signal)? {
                    Some(look) => matches!(look, Look::Catches(_)),
                    None => continue,
                },
            };
            if !catches {
                found.deaf.push(pid);
            }
            found.all += 1;
        }
        Ok(found)
    }

    fn add(&mut self, process: CatchingProcess, sightings: &Sightings, allocation: AllocationId) {
        let left = unsure_for(sightings.record(allocation, process.pid, &process.program));
        if left.is_zero() {
            self.catching.push(process);
        } else {
            self.unsure.push(process);
            self.sure_at = self.sure_at.max(Instant::now() + left);
        }
    }

    /// Looks again at the `unsure` processes, once enough time has passed since they were first
    /// seen.
    fn settle(&mut self, signal: CheckpointSignal) -> io::Result<()> {
        if !self.unsure.is_empty() {
            std::thread::sleep(self.sure_at.saturating_duration_since(Instant::now()));
        }
        for process in std::mem::take(&mut self.unsure) {
            // The descriptor is open and the program is the same, so this is the process that was
            // seen.
            if process.catches_still(signal)? {
                self.catching.push(process);
            } else if look_at(process.pid, signal)?.is_some() {
                self.deaf.push(process.pid);
            }
        }
        Ok(())
    }

    /// Why no signal may be sent: no process catches it, or the ranks are asked together and one of
    /// them does not catch it. Waits for processes that have just started if no other one catches
    /// the signal, and always if ranks are asked together.
    pub fn not_to_be_asked(&mut self, signal: CheckpointSignal) -> io::Result<Option<String>> {
        let together = signal.whom() == SignalTo::Ranks;
        if self.catching.is_empty() || together {
            self.settle(signal)?;
        }
        if self.catching.is_empty() {
            return Ok(Some(none_catches(self.all, signal)));
        }
        let one = self.deaf.first().filter(|_| together);
        Ok(one.map(|pid| {
            let (name, number, all) = (signal.name(), self.deaf.len(), self.all);
            format!(
                "{number} of its {all} ranks does not catch {name} (process {pid}), which would end it: nothing was sent; \
                 --checkpoint-signal={name} asks those alone that catch it"
            )
        }))
    }

    /// Whether any process is known to catch the signal.
    fn is_caught(&self) -> bool {
        !self.catching.is_empty()
    }

    /// Returns the processes that catch the signal; sends nothing.
    fn unasked(mut self, signal: CheckpointSignal) -> io::Result<Vec<OwnedFd>> {
        self.settle(signal)?;
        Ok(self.catching.into_iter().map(|process| process.fd).collect())
    }

    /// Sends the signal at once to the processes that are known to catch it, and a moment later to
    /// those of the `unsure` ones that catch it. Returns the processes that got it.
    fn send(mut self, signal: CheckpointSignal) -> io::Result<Vec<CatchingProcess>> {
        let mut sent = Vec::new();
        self.send_to_sure(signal, &mut sent)?;
        match self.settle(signal).and_then(|()| self.send_to_sure(signal, &mut sent)) {
            // The processes that got the signal save themselves, and the agent waits for them.
            Err(error) if !sent.is_empty() => {
                tracing::warn!(%error, "not all processes could be examined: the others are not asked to save themselves");
            }
            done => done?,
        }
        if !self.deaf.is_empty() {
            let (asked, deaf) = (sent.len(), self.deaf.len());
            tracing::info!(%signal, asked, deaf, "processes that do not catch the signal get none: it would end them");
        }
        Ok(sent)
    }

    fn send_to_sure(&mut self, signal: CheckpointSignal, sent: &mut Vec<CatchingProcess>) -> io::Result<()> {
        for process in self.catching.drain(..) {
            if process.catches_still(signal)? && none_if_absent(identity::pidfd_signal(process.fd.as_fd(), signal.number()))?.is_some() {
                sent.push(process);
            }
        }
        Ok(())
    }

    /// Sends the signal only to the processes that an earlier look found catching it and that are
    /// still `listed`. Returns those that got it. Once one process has got it, errors with others
    /// are ignored: the next look at all processes finds them again.
    fn send_at_once(mut self, signal: CheckpointSignal, listed: &BTreeSet<i32>) -> io::Result<Vec<CatchingProcess>> {
        let mut sent = Vec::new();
        self.catching.retain(|process| listed.contains(&process.pid));
        match self.send_to_sure(signal, &mut sent) {
            Err(error) if sent.is_empty() => Err(error),
            Ok(()) | Err(_) => Ok(sent),
        }
    }
}

impl CatchingProcess {
    fn catches_still(&self, signal: CheckpointSignal) -> io::Result<bool> {
        Ok(matches!(look_at(self.pid, signal)?, Some(Look::Catches(program)) if program == self.program))
    }
}

/// An allocation's work, and its shim's process id.
pub type Work<'a> = (&'a Handles, AllocationId, Option<u32>);

/// Looks at the processes that run now.
pub fn look(
    context: &Handles,
    allocation: AllocationId,
    shim: Option<u32>,
    signal: CheckpointSignal,
) -> Result<SignalTargets, CatchingError> {
    SignalTargets::find(context, allocation, shim, signal, &BTreeSet::new()).map_err(CatchingError::Look)
}

/// The running processes that catch the signal; `None`: no process catches it. Waits for processes
/// that have just started. Sends nothing.
pub fn catching_processes((context, allocation, shim): Work<'_>, signal: CheckpointSignal) -> Result<Option<Vec<OwnedFd>>, CatchingError> {
    let mut now = look(context, allocation, shim, signal)?;
    now.not_to_be_asked(signal).map_err(CatchingError::Look)?;
    Ok(if now.is_caught() { Some(now.unasked(signal).map_err(CatchingError::Look)?) } else { None })
}

/// Sends the signal to the processes that run now, and returns those that got it. `seen`: the
/// result of an earlier look; unless ranks are asked together, processes that caught the signal
/// then get it before any other process is looked at again. `still_wanted`: returns an error once
/// the request is no longer wanted.
pub fn ask<E: From<CatchingError>>(
    (context, allocation, shim): Work<'_>,
    signal: CheckpointSignal,
    seen: Option<SignalTargets>,
    still_wanted: impl Fn() -> Result<(), E>,
) -> Result<Vec<OwnedFd>, E> {
    let unsent = |source| CatchingError::Send { signal, source };
    let mut sent = match seen.filter(|seen| seen.is_caught() && signal.whom() != SignalTo::Ranks) {
        Some(seen) => {
            let listed = addressed(context, allocation, shim, signal).map_err(CatchingError::Look)?;
            still_wanted()?;
            seen.send_at_once(signal, &listed).map_err(unsent)?
        }
        None => Vec::new(),
    };
    let asked: BTreeSet<i32> = sent.iter().map(|process| process.pid).collect();
    let rest = SignalTargets::find(context, allocation, shim, signal, &asked).map_err(CatchingError::Look);
    if sent.is_empty() {
        let mut now = rest?;
        if let Some(why) = now.not_to_be_asked(signal).map_err(CatchingError::Look)? {
            return Err(CatchingError::NotCaught { why }.into());
        }
        still_wanted()?;
        let all = now.all;
        sent = now.send(signal).map_err(unsent)?;
        if sent.is_empty() {
            return Err(CatchingError::NotCaught { why: none_catches(all, signal) }.into());
        }
    } else {
        match rest.and_then(|rest| rest.send(signal).map_err(unsent)) {
            Ok(more) => sent.extend(more),
            // The processes that got the signal save themselves, and the agent waits for them.
            Err(why) => tracing::warn!(%why, "not all processes could be examined: the others are not asked to save themselves"),
        }
    }
    Ok(sent.into_iter().map(|process| process.fd).collect())
}

/// Whether any process of the script or of a launch is alive. Without scopes, the processes of
/// attached terminals count as well.
pub fn lives(context: &Handles, allocation: AllocationId, shim: Option<u32>) -> io::Result<bool> {
    let Some(slice) = &context.slice else {
        for pid in of_work(context, allocation, shim)? {
            if look_at(pid, CheckpointSignal::default())?.is_some() {
                return Ok(true);
            }
        }
        return Ok(false);
    };
    // The kernel counts the processes of each cgroup, so none needs a look. Terminals have cgroups
    // of their own.
    let scope = slice.scope(allocation);
    for number in launches(slice, allocation)? {
        if scope.launch(number).is_populated().map_err(|error| io::Error::other(with_causes(&error)))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Maps the error "no such file or process" to `None`; other errors stay errors.
fn none_if_absent<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(nix::libc::ESRCH) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Processes of the script and of launches; without scopes, also those of attached terminals.
pub(super) fn of_work(context: &Handles, allocation: AllocationId, shim: Option<u32>) -> io::Result<BTreeSet<i32>> {
    match &context.slice {
        Some(slice) => Ok(by_launch(slice, allocation)?.into_values().flatten().collect()),
        None => {
            let below = identity::descendants_or_error(known(shim)?)?.into_iter().map(|(pid, _)| pid);
            Ok(below.filter(|pid| !is_pmix_server(*pid)).collect())
        }
    }
}

/// Whether a process is a launch's PMIx server, judged by its name. With scopes, that server has a
/// cgroup of its own.
fn is_pmix_server(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == "lattice-pmix")
}

/// Processes of the script and of launches, by launch number; 0 is the script.
fn by_launch(slice: &Slice, allocation: AllocationId) -> io::Result<BTreeMap<u32, Vec<i32>>> {
    let scope = slice.scope(allocation);
    let mut found = BTreeMap::new();
    for number in launches(slice, allocation)? {
        found.insert(number, scope.launch(number).processes_or_error()?);
    }
    Ok(found)
}

/// Numbers of the launches that have a cgroup.
fn launches(slice: &Slice, allocation: AllocationId) -> io::Result<Vec<u32>> {
    let Some(groups) = none_if_absent(fs::read_dir(slice.scope(allocation).work().path()))? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for group in groups {
        found.extend(group?.file_name().to_str().and_then(|name| name.strip_prefix("launch-")?.parse::<u32>().ok()));
    }
    Ok(found)
}

/// The shim's process, an ancestor of all processes of the work.
fn known(shim: Option<u32>) -> io::Result<i32> {
    let shim = shim.and_then(|pid| i32::try_from(pid).ok());
    shim.ok_or_else(|| io::Error::other("which processes are the allocation's is not known: its shim has not reported its own"))
}

/// The processes that the signal is meant for, whether they catch it or not.
fn addressed(context: &Handles, allocation: AllocationId, shim: Option<u32>, signal: CheckpointSignal) -> io::Result<BTreeSet<i32>> {
    let to = signal.whom();
    check_receivers(context.slice.as_ref(), signal).map_err(io::Error::other)?;
    let Some(slice) = context.slice.as_ref().filter(|_| to != SignalTo::All) else { return of_work(context, allocation, shim) };
    let mut found = Vec::new();
    for (launch, pids) in by_launch(slice, allocation)? {
        for pid in pids {
            if let Some(stat) = none_if_absent(identity::process_stat(pid))? {
                found.push(Process { launch, pid, parent: stat.parent, group: stat.group, session: stat.session });
            }
        }
    }
    Ok(chosen(&found, known(shim)?, to))
}

/// The properties that decide whether a signal is meant for a process.
#[derive(Clone, Copy)]
struct Process {
    launch: u32,
    pid: i32,
    parent: i32,
    group: i32,
    session: i32,
}

/// The processes of an allocation that a signal is meant for. The script and the ranks are children
/// of the shim, and each leads a session of its own. A process that left its session looks the same
/// once its parent has ended.
fn chosen(all: &[Process], shim: i32, to: SignalTo) -> BTreeSet<i32> {
    let begun = || all.iter().filter(|process| process.parent == shim && process.session == process.pid);
    match to {
        SignalTo::All => all.iter().map(|process| process.pid).collect(),
        SignalTo::Group => {
            let groups: BTreeSet<i32> = begun().map(|process| process.pid).collect();
            all.iter().filter(|process| groups.contains(&process.group)).map(|process| process.pid).collect()
        }
        SignalTo::Ranks => {
            let has_ranks = begun().any(|process| process.launch > 0);
            begun().filter(|process| !has_ranks || process.launch > 0).map(|process| process.pid).collect()
        }
    }
}

/// Why nothing was sent, for people.
pub(super) fn none_catches(all: usize, signal: CheckpointSignal) -> String {
    let name = signal.name();
    let (one, many) = match signal.whom() {
        SignalTo::All => ("process", "processes"),
        SignalTo::Group => ("process of its groups", "processes of its groups"),
        SignalTo::Ranks => ("rank", "ranks"),
    };
    let which = if all == 1 { format!("its one {one} does not catch") } else { format!("none of its {all} {many} catches") };
    format!("{which} {name}, which would end it: nothing was sent; catch it, or choose another with --checkpoint-signal")
}

/// Looks at one process; `None`: the process is not alive.
pub(super) fn look_at(pid: i32, signal: CheckpointSignal) -> io::Result<Option<Look>> {
    let Some(status) = none_if_absent(fs::read_to_string(format!("/proc/{pid}/status")))? else { return Ok(None) };
    match catches(&status, signal) {
        None => Ok(None),
        Some(false) => Ok(Some(Look::Deaf)),
        Some(true) => {
            let Some(stat) = none_if_absent(identity::process_stat(pid))? else { return Ok(None) };
            // Some file systems show files to their user only, not even to root (FUSE). A program
            // there is recognised by its start time alone.
            let (device, inode) = executable(pid).unwrap_or_default();
            Ok(Some(Look::Catches(Program { start_ticks: stat.start_ticks, device, inode })))
        }
    }
}

/// Device and inode of a process's executable, from the kernel's memory: an unreachable file server
/// blocks nothing.
fn executable(pid: i32) -> io::Result<((u32, u32), u64)> {
    let path = CString::new(format!("/proc/{pid}/exe"))?;
    let mut about = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path ends with a zero, and the kernel writes at most one `statx` to a place that
    // has room for one.
    let done = unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), libc::AT_STATX_DONT_SYNC, libc::STATX_INO, about.as_mut_ptr()) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all zeros are a valid `statx`, and so is any value that the kernel writes.
    let about = unsafe { about.assume_init() };
    Ok(((about.stx_dev_major, about.stx_dev_minor), about.stx_ino))
}

/// Whether `/proc/PID/status` shows that the process catches the signal; `None`: it has ended.
fn catches(status: &str, signal: CheckpointSignal) -> Option<bool> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    if field("State:").is_some_and(|state| state.starts_with(['Z', 'X'])) {
        return None;
    }
    let mask = field("SigCgt:").and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
    Some(mask & (1_u64 << (signal.number() - 1)) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Write as _};
    use std::process::{Command, Stdio};
    use std::time::Duration;

    #[test]
    fn caught_signals_are_read_from_the_process_status() {
        let status = "Name:\tx\nState:\tS (sleeping)\nSigIgn:\tffffffffffffffff\nSigCgt:\t0000000000000200\n";
        assert_eq!(catches(status, CheckpointSignal::USR1), Some(true));
        assert_eq!(catches(status, CheckpointSignal::USR2), Some(false));
        let last = "State:\tS\nSigCgt:\t8000000000000000\n";
        let real_time = |text: &str| catches(last, text.parse().unwrap());
        assert_eq!((real_time("RTMAX"), real_time("RTMIN")), (Some(true), Some(false)));
        assert_eq!(catches("State:\tZ (zombie)\nSigCgt:\t0000000000000200\n", CheckpointSignal::USR1), None);
        assert_eq!(catches("State:\tR\n", CheckpointSignal::USR1), Some(false));
    }

    #[test]
    fn without_cgroups_a_signal_for_some_processes_is_refused() {
        assert_eq!(check_receivers(None, CheckpointSignal::USR2), Ok(()));
        for to in [SignalTo::Group, SignalTo::Ranks] {
            let why = check_receivers(None, CheckpointSignal::USR2.to(to)).unwrap_err().to_string();
            let prefix = if to == SignalTo::Group { "group" } else { "ranks" };
            assert!(why.starts_with(&format!("--checkpoint-signal={prefix}:SIGUSR2 needs cgroups")), "{why}");
            assert!(why.ends_with("choose --checkpoint-signal=SIGUSR2, which goes to all processes that catch it"), "{why}");
        }
    }

    #[test]
    fn the_signal_reaches_only_the_chosen_processes() {
        let process = |launch, pid, parent, group, session| Process { launch, pid, parent, group, session };
        // The shim is 1; the script is 10, with a helper; ranks are 20 and 21; 20 forked 22; 23 has
        // a process group of its own within its session, and 24 a session of its own.
        let script = [process(0, 10, 1, 10, 10), process(0, 11, 10, 10, 10)];
        let ranks = [process(1, 20, 1, 20, 20), process(1, 21, 1, 21, 21)];
        let below = [process(1, 22, 20, 20, 20), process(1, 23, 20, 23, 20), process(1, 24, 20, 24, 24)];
        let all = [&script[..], &ranks, &below].concat();
        let of = |all: &[Process], to| chosen(all, 1, to).into_iter().collect::<Vec<_>>();
        assert_eq!(of(&all, SignalTo::All), [10, 11, 20, 21, 22, 23, 24]);
        assert_eq!(of(&all, SignalTo::Group), [10, 11, 20, 21, 22]);
        assert_eq!(of(&all, SignalTo::Ranks), [20, 21]);
        assert_eq!(of(&script, SignalTo::Ranks), [10]);
        assert_eq!(of(&below, SignalTo::Ranks), [0; 0]);
        assert_eq!(of(&[], SignalTo::Group), [0; 0]);
    }

    #[test]
    fn one_deaf_rank_keeps_all_ranks_from_being_asked_together() {
        let me = i32::try_from(std::process::id()).unwrap();
        let process = || {
            let program = Program { start_ticks: 0, device: (0, 0), inode: 0 };
            CatchingProcess { pid: me, fd: identity::pidfd_open(me).unwrap(), program }
        };
        let found = |catching: usize, deaf: Vec<i32>| {
            let catching = (0..catching).map(|_| process()).collect::<Vec<_>>();
            SignalTargets { all: catching.len() + deaf.len(), deaf, catching, unsure: vec![], sure_at: Instant::now() }
        };
        let (all, ranks) = (CheckpointSignal::USR2, CheckpointSignal::USR2.to(SignalTo::Ranks));
        assert_eq!(found(2, vec![7]).not_to_be_asked(all).unwrap(), None);
        assert_eq!(found(2, vec![]).not_to_be_asked(ranks).unwrap(), None);
        let why = found(2, vec![7]).not_to_be_asked(ranks).unwrap().unwrap();
        assert!(why.starts_with("1 of its 3 ranks does not catch SIGUSR2 (process 7)") && why.contains("nothing was sent"), "{why}");
        let why = found(0, vec![7, 8]).not_to_be_asked(ranks).unwrap().unwrap();
        assert!(why.starts_with("none of its 2 ranks catches SIGUSR2"), "{why}");
        let why = found(0, vec![7]).not_to_be_asked(all).unwrap().unwrap();
        assert!(why.starts_with("its one process does not catch SIGUSR2"), "{why}");
    }

    #[test]
    fn a_process_that_executed_another_program_after_the_look_gets_no_signal() {
        let program = "trap : USR1; echo; while ! read x; do :; done; exec sleep 1000";
        let mut command = Command::new("/bin/sh");
        let mut child = command.args(["-c", program]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let process = || match look_at(pid, CheckpointSignal::USR1).unwrap() {
            Some(Look::Catches(program)) => CatchingProcess { pid, fd: identity::pidfd_open(pid).unwrap(), program },
            Some(Look::Deaf) | None => panic!("it catches the signal"),
        };
        let unsure = |process| SignalTargets { all: 1, deaf: vec![], catching: vec![], unsure: vec![process], sure_at: Instant::now() };
        let sure = |process| SignalTargets { all: 1, deaf: vec![], catching: vec![process], unsure: vec![], sure_at: Instant::now() };
        assert_eq!(unsure(process()).send(CheckpointSignal::USR1).unwrap().len(), 1);
        assert_eq!(sure(process()).send(CheckpointSignal::USR1).unwrap().len(), 1);
        let at_once = |process, listed: &[i32]| {
            let sent = sure(process).send_at_once(CheckpointSignal::USR1, &listed.iter().copied().collect()).unwrap();
            sent.iter().map(|process| process.pid).collect::<Vec<_>>()
        };
        assert_eq!(at_once(process(), &[pid]), [pid]);
        assert_eq!(at_once(process(), &[pid + 1]), [0; 0], "it is not the allocation's any more");
        assert!(unsure(process()).send_at_once(CheckpointSignal::USR1, &[pid].into()).unwrap().is_empty(), "it was seen for a moment");
        let (known, new, seen) = (process(), process(), process());
        child.stdin.as_mut().unwrap().write_all(b"go on\n").unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while !matches!(look_at(pid, CheckpointSignal::USR1).unwrap(), Some(Look::Deaf)) {
            assert!(Instant::now() < until, "it runs no other program");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(unsure(new).send(CheckpointSignal::USR1).unwrap().len(), 0);
        assert_eq!(sure(known).send(CheckpointSignal::USR1).unwrap().len(), 0);
        assert_eq!(at_once(seen, &[pid]), [0; 0]);
        assert!(child.try_wait().unwrap().is_none(), "it was sent what ends it");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_look_and_the_executable_of_this_process_are_right() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(matches!(look_at(own, CheckpointSignal::USR1).unwrap(), Some(Look::Deaf)));
        let about = fs::metadata(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(executable(own).unwrap().1, std::os::unix::fs::MetadataExt::ino(&about));
        assert!(none_if_absent(executable(i32::MAX)).unwrap().is_none());
    }

    #[test]
    fn only_an_ended_process_counts_as_absent() {
        assert!(look_at(i32::MAX, CheckpointSignal::USR1).unwrap().is_none());
        assert!(none_if_absent::<()>(Err(io::Error::from_raw_os_error(nix::libc::ESRCH))).unwrap().is_none());
        assert!(none_if_absent::<()>(Err(io::Error::from_raw_os_error(nix::libc::EMFILE))).is_err());
    }
}
