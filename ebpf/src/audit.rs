//! Single operations of audited work.
//!
//! ```text
//!   begin(cgroup) ──▶ map of audited cgroups ──▶ programs, attached while an audit runs ──▶ ring buffer ──▶ Events
//! ```
//!
//! The programs are loaded with the others, so that starting an audit does not need the verifier, and they cost nothing
//! while no audit runs.
//!
//! Programs are attached only during an audit: a program at the end of each call costs every process of the node
//! about 0.2 µs per call. At a call's end its arguments and its result are both known; a program at its beginning
//! would need a map of calls in progress, in which a killed thread leaves its entry. The first line of each audit
//! file says what is not recorded: results of io_uring, arguments of 32-bit calls, datagrams without a connection.
//!
//! For page faults the cgroup's count is used: a program for them made each fault a tenth slower.

use crate::calls;
use crate::layout::{EVENT_BYTES, EVENT_DATA_BYTES, Event};
use crate::offsets::{self, Offset};
use crate::probe::{LoadError, Probe, describe, is_since};
use aya::Ebpf;
use aya::maps::{HashMap, MapData, MapError, RingBuf};
use aya::programs::raw_trace_point::RawTracePointLinkId;
use aya::programs::{ProgramError, RawTracePoint};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use thiserror::Error;

/// A program, the first arguments of its tracepoint, and the offsets that it reads.
struct Plan {
    name: &'static str,
    arguments: &'static [&'static str],
    needs: &'static [Offset],
}

/// The first program is the audit itself; the others add events that do not pass through it.
const PLANS: [Plan; 2] = [
    Plan {
        name: "sys_exit",
        arguments: &["pt_regs", ""],
        needs: &[
            offsets::REGS_NUMBER,
            offsets::REGS_FIRST,
            offsets::REGS_SECOND,
            offsets::REGS_THIRD,
            offsets::TASK_COMPAT,
            offsets::TASK_FILES,
            offsets::FILES_TABLE,
            offsets::TABLE_FILES,
            offsets::FILE_PRIVATE,
            offsets::SOCKET_FILE,
            offsets::SOCKET_SOCK,
            offsets::SOCK_FAMILY,
            offsets::SOCK_REMOTE4,
            offsets::SOCK_REMOTE6,
            offsets::SOCK_PORTS,
            offsets::SOCK_PROTOCOL,
            offsets::SOCK_TYPE,
        ],
    },
    Plan {
        name: "io_uring_submit_req",
        arguments: &["io_kiocb"],
        needs: &[offsets::URING_OPERATION, offsets::URING_COMMAND, offsets::OPEN_FILENAME, offsets::FILENAME_NAME],
    },
];

/// The programs' maps, and the attached programs.
pub(crate) struct Audit {
    audited: HashMap<MapData, u64, u64>,
    /// The number of audited cgroups.
    count: usize,
    events: Option<RingBuf<MapData>>,
    parts: Vec<Probe>,
    links: Vec<(&'static str, RawTracePointLinkId)>,
}

impl Audit {
    /// Loads the programs and attaches none. `unfit`: why a program cannot be used with this kernel, from its
    /// tracepoint, the tracepoint's arguments and the offsets that it reads.
    pub fn load(programs: &mut Ebpf, unfit: impl Fn(&str, &[&str], &[Offset]) -> Option<String>) -> Result<Self, LoadError> {
        let map = |programs: &mut Ebpf, name: &'static str| programs.take_map(name).ok_or(LoadError::Object("a map of audits is missing"));
        let has_another_type = |_| LoadError::Object("a map of audits has another type");
        let audited = map(programs, "AUDITED")?.try_into().map_err(has_another_type)?;
        let mut numbers: HashMap<MapData, u32, u32> = map(programs, "CALLS")?.try_into().map_err(has_another_type)?;
        let events: RingBuf<MapData> = map(programs, "EVENTS")?.try_into().map_err(has_another_type)?;
        for (number, kind) in calls::kinds() {
            numbers.insert(number, kind, 0).map_err(|_| LoadError::Object("the numbers of calls do not fit"))?;
        }
        let parts = PLANS.map(|plan| {
            // Since 6.1 a map that allocates its elements on demand may be used in any context.
            let old = (!is_since(6, 1)).then(|| "it needs Linux 6.1 or later".to_owned());
            let why_not = old.or_else(|| unfit(plan.name, plan.arguments, plan.needs)).or_else(|| {
                let Some(program) = program(programs, plan.name) else { return Some("it is not in this build".to_owned()) };
                program.load().err().map(|error| describe(&error))
            });
            Probe { name: plan.name, why_not }
        });
        Ok(Self { audited, count: 0, events: Some(events), parts: parts.into(), links: Vec::new() })
    }

    /// Each program, and why it cannot be attached, if so.
    pub fn parts(&self) -> &[Probe] {
        &self.parts
    }
}

fn program<'a>(programs: &'a mut Ebpf, name: &str) -> Option<&'a mut RawTracePoint> {
    programs.program_mut(name).and_then(|program| program.try_into().ok())
}

/// Why a cgroup's work is not audited.
#[derive(Debug, Error)]
pub enum AuditError {
    #[error("there is no program for it")]
    NoProgram,
    #[error("{why}")]
    Unfit { why: String },
    #[error("it is not in this build")]
    NotInBuild,
    #[error("{}", describe(.0))]
    Attach(#[from] ProgramError),
    #[error("{}", describe(.0))]
    Insert(#[from] MapError),
}

/// Begins and ends audits.
pub struct Auditing<'a> {
    pub(crate) programs: &'a mut Ebpf,
    pub(crate) audit: &'a mut Audit,
}

impl Auditing<'_> {
    /// The reader of the events; it can be taken once.
    pub fn events(&mut self) -> Option<Events> {
        self.audit.events.take().map(Events)
    }

    /// Starts to record what this cgroup's work does. The first audit attaches the programs.
    pub fn begin(&mut self, cgroup: u64) -> Result<(), AuditError> {
        if self.audit.audited.get(&cgroup, 0).is_ok() {
            return Ok(());
        }
        if self.audit.links.is_empty() {
            self.attach()?;
        }
        let put = self.audit.audited.insert(cgroup, 0, 0);
        match put {
            Ok(()) => self.audit.count += 1,
            Err(_) if self.audit.count == 0 => self.detach(),
            Err(_) => {}
        }
        Ok(put?)
    }

    /// How many of the cgroup's events did not fit into the buffer since its audit began.
    pub fn lost(&self, cgroup: u64) -> u64 {
        self.audit.audited.get(&cgroup, 0).unwrap_or(0)
    }

    /// Stops recording this cgroup. The end of the last audit detaches the programs.
    pub fn end(&mut self, cgroup: u64) {
        if self.audit.audited.remove(&cgroup).is_ok() {
            self.audit.count -= 1;
        }
        if self.audit.count == 0 {
            self.detach();
        }
    }

    /// Stops all recordings, for when the caller's list of the cgroups is lost.
    pub fn end_all(&mut self) {
        let all: Vec<u64> = self.audit.audited.keys().flatten().collect();
        for cgroup in all {
            // If this fails, the cgroup only occupies an entry of the map.
            let _ = self.audit.audited.remove(&cgroup);
        }
        self.audit.count = 0;
        self.detach();
    }

    fn attach(&mut self) -> Result<(), AuditError> {
        let (first, more) = self.audit.parts.split_first().ok_or(AuditError::NoProgram)?;
        if let Some(why) = &first.why_not {
            return Err(AuditError::Unfit { why: why.clone() });
        }
        for part in std::iter::once(first).chain(more.iter().filter(|part| part.why_not.is_none())) {
            let attached = program(self.programs, part.name).ok_or(AuditError::NotInBuild).and_then(|program| {
                let link = program.attach(part.name)?;
                Ok((part.name, link))
            });
            match attached {
                Ok(link) => self.audit.links.push(link),
                Err(why) => {
                    self.detach();
                    return Err(why);
                }
            }
        }
        Ok(())
    }

    fn detach(&mut self) {
        for (name, link) in self.audit.links.drain(..) {
            if let Some(program) = program(self.programs, name) {
                // A program that cannot be detached finds no audited cgroup.
                let _ = program.detach(link);
            }
        }
    }
}

/// Events that were recorded and not yet read.
pub struct Events(RingBuf<MapData>);

impl Events {
    /// The next event with its data: a path or an address. `None`: there are no more now. `Some(None)`: an event in
    /// another format than this build's; it is skipped.
    pub fn next<T>(&mut self, take: impl FnOnce(&Event, &[u8]) -> T) -> Option<Option<T>> {
        let item = self.0.next()?;
        Some(read(&item).map(|(event, data)| take(&event, data)))
    }

    /// A descriptor that becomes readable when many events wait.
    pub fn ready(&self) -> io::Result<OwnedFd> {
        self.0.as_fd().try_clone_to_owned()
    }
}

fn read(bytes: &[u8]) -> Option<(Event, &[u8])> {
    let (head, data) = bytes.split_at_checked(EVENT_BYTES)?;
    // SAFETY: all fields are numbers, which have no invalid bit pattern.
    let mut event: Event = unsafe { std::mem::zeroed() };
    // SAFETY: the two do not overlap, and the event has more bytes than its head.
    unsafe { std::ptr::copy_nonoverlapping(head.as_ptr(), (&raw mut event).cast(), head.len()) };
    let length = usize::try_from(event.data_bytes).ok().filter(|length| *length <= EVENT_DATA_BYTES)?;
    Some((event, data.get(..length)?))
}

/// The name of a system call, by its kind and number.
pub fn call_name(kind: u32, number: u32) -> Option<&'static str> {
    calls::name(kind, number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_event_is_refused() {
        let mut bytes = vec![0u8; EVENT_BYTES];
        assert!(read(&bytes).is_some_and(|(_, data)| data.is_empty()));
        assert!(read(&bytes[1..]).is_none() && read(b"").is_none());
        let at = std::mem::offset_of!(Event, data_bytes);
        bytes[at..at + 4].copy_from_slice(&3u32.to_ne_bytes());
        assert!(read(&bytes).is_none());
        bytes.extend(b"a/b and what fills it up");
        assert_eq!(read(&bytes).unwrap().1, b"a/b");
        bytes[at..at + 4].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert!(read(&bytes).is_none());
    }
}
