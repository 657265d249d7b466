//! The programs in the kernel. They are loaded while a [`Probes`] exists.

use crate::audit::{self, Audit};
use crate::btf::Btf;
use crate::layout::{
    ALLOCATIONS_MAX, DEVICE, DEVICE_WORDS, DEVICES, DEVICES_OTHER, NO_OFFSET, NODE_READ_BYTES, NODE_UNFIT, NODE_WRITTEN_BYTES, WORDS, Words,
};
use crate::offsets::{self, Offset, tracepoint_mismatch};
use crate::probe::{LoadError, Probe, describe, is_since};
use aya::maps::{MapData, MapError, PerCpuArray, PerCpuHashMap, PerCpuValues};
use aya::programs::{CgroupAttachMode, CgroupSkb, CgroupSkbAttachType, ProgramError, RawTracePoint};
use aya::util::nr_cpus;
use aya::{Ebpf, EbpfLoader, Pod};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

static OBJECT: &[u8] = aya::include_bytes_aligned!("../probes.bpf.o");

/// The inode number of the root of the cgroup tree.
const ROOT_INODE: u64 = 1;
/// Levels of cgroups from the slice to the cgroup of all work of an allocation.
const LEVELS_BELOW_SLICE: u32 = 2;

// SAFETY: an array of words: every bit pattern is valid, and it has no padding.
unsafe impl Pod for Words {}

/// The counts of one allocation, summed over all processors, in the layout's order of words.
pub type Counts = [u64; WORDS];

/// Why a program does not count.
#[derive(Debug, Error)]
enum AttachError {
    #[error("it is not in this build")]
    NotInBuild,
    #[error("it needs Linux 6.1 or later, where maps can grow in any context")]
    NeedsGrowingMaps,
    #[error("it needs Linux 5.7 or later, where it is detached when the agent ends")]
    NeedsLinks,
    #[error("{}: {source}", .path.display())]
    OpenSlice { path: PathBuf, source: io::Error },
    #[error("{}", describe(.0))]
    Program(#[from] ProgramError),
}

/// Why a cgroup is not counted.
#[derive(Debug, Error)]
pub enum TrackError {
    #[error("{0}")]
    CountProcessors(#[source] io::Error),
    #[error("{} (at most {ALLOCATIONS_MAX} are counted)", describe(.0))]
    Insert(#[source] MapError),
}

/// How a program is attached.
enum Where {
    /// With the expected first arguments of the tracepoint.
    Tracepoint(&'static [&'static str]),
    Slice(CgroupSkbAttachType),
}

struct Plan {
    name: &'static str,
    at: Where,
    needs: &'static [Offset],
}

const CGROUP_OF: [Offset; 4] = [offsets::CGROUP_LEVEL, offsets::CGROUP_ANCESTORS, offsets::CGROUP_NODE, offsets::NODE_ID];
const OF_TASK: &[Offset] =
    &[offsets::TASK_CGROUPS, offsets::SET_CGROUP, CGROUP_OF[0], CGROUP_OF[1], CGROUP_OF[2], CGROUP_OF[3], offsets::TASK_PID];
const OF_SOCKET: &[Offset] = &[offsets::SOCK_CGROUP, CGROUP_OF[0], CGROUP_OF[1], CGROUP_OF[2], CGROUP_OF[3]];

const PLANS: &[Plan] = &[
    Plan { name: "sched_switch", at: Where::Tracepoint(&["", "task_struct", "task_struct", ""]), needs: &[] },
    Plan { name: "sched_process_fork", at: Where::Tracepoint(&["task_struct", "task_struct"]), needs: OF_TASK },
    Plan { name: "sched_process_exit", at: Where::Tracepoint(&["task_struct"]), needs: &[] },
    Plan { name: "mark_victim", at: Where::Tracepoint(&["task_struct"]), needs: OF_TASK },
    Plan { name: "block_io_start", at: Where::Tracepoint(&["request"]), needs: &[] },
    Plan {
        name: "block_rq_complete",
        at: Where::Tracepoint(&["request", "", ""]),
        needs: &[offsets::REQUEST_FLAGS, offsets::REQUEST_LENGTH],
    },
    Plan { name: "packets_sent", at: Where::Slice(CgroupSkbAttachType::Egress), needs: &[] },
    Plan { name: "packets_received", at: Where::Slice(CgroupSkbAttachType::Ingress), needs: &[] },
    Plan { name: "tcp_retransmit_skb", at: Where::Tracepoint(&["sock"]), needs: OF_SOCKET },
    Plan { name: "inet_sock_set_state", at: Where::Tracepoint(&["sock", "", ""]), needs: OF_SOCKET },
];

/// Pairs of programs: the first counts only if the second does.
const TOGETHER: &[(&str, &str)] = &[("block_io_start", "block_rq_complete"), ("block_rq_complete", "block_io_start")];
/// Parts of programs: name, program, and the offsets that the kernel must have for the part.
const PARTS: &[(&str, &str, &[Offset])] = &[
    ("run_queue", "sched_switch", &[offsets::TASK_RUN_DELAY]),
    ("block_devices", "block_rq_complete", &[offsets::REQUEST_QUEUE, offsets::QUEUE_DISK, offsets::DISK_NUMBERS]),
];

/// The programs and their maps. Dropping it detaches them all.
pub struct Probes {
    /// Owns the programs and their links.
    programs: Ebpf,
    counts: PerCpuHashMap<MapData, u64, Words>,
    node: PerCpuArray<MapData, u64>,
    processors: usize,
    probes: Vec<Probe>,
    audit: Audit,
}

impl Probes {
    /// Loads the programs that this kernel accepts. `slice`: the existing directory of all allocations in the v2 tree.
    pub fn load(slice: &Path) -> Result<Self, LoadError> {
        let level = level_of(slice)? + LEVELS_BELOW_SLICE;
        let (btf, no_btf) = match Btf::of_kernel() {
            Ok(btf) => (Some(btf), None),
            Err(error) => (None, Some(describe(&error))),
        };
        let offset_of = |offset: &Offset| btf.as_ref().map_or(NO_OFFSET, |btf| offset.of(btf));
        let offsets: BTreeMap<&str, u32> = offsets::ALL.iter().map(|offset| (offset.global, offset_of(offset))).collect();
        let mut loader = EbpfLoader::new();
        // Without this, the loader parses all types of the kernel: tens of megabytes that the programs do not need.
        loader.btf(None);
        loader.override_global("LEVEL", &level, true);
        loader.override_global("COMPAT_MASK", &offsets::IN_COMPAT.1, true);
        for (global, offset) in &offsets {
            loader.override_global(global, offset, true);
        }
        let mut programs = loader.load(OBJECT).map_err(|error| LoadError::Maps(Box::new(error)))?;
        let lacks = |offset: &Offset| (offsets[offset.global] == NO_OFFSET).then(|| format!("this kernel has no {}", offset.path()));
        let mut probes: Vec<Probe> = Vec::new();
        for plan in PLANS {
            let unfit = || {
                let btf = match (&plan.at, &btf) {
                    (Where::Slice(_), _) => return None,
                    (Where::Tracepoint(_), None) => return no_btf.clone(),
                    (Where::Tracepoint(expected), Some(btf)) => tracepoint_mismatch(btf, plan.name, expected),
                };
                btf.or_else(|| plan.needs.iter().find_map(lacks))
            };
            let why_not = unfit().or_else(|| attach(&mut programs, plan, slice).err().map(|error| error.to_string()));
            probes.push(Probe { name: plan.name, why_not });
        }
        let counts_of = |name: &str, probes: &[Probe]| probes.iter().any(|probe| probe.name == name && probe.why_not.is_none());
        for (name, other) in TOGETHER {
            let alone = !counts_of(other, &probes);
            if let Some(probe) = probes.iter_mut().find(|probe| probe.name == *name && probe.why_not.is_none() && alone) {
                probe.why_not = Some(format!("{other} does not count"));
                // Without its partner it only costs time.
                unload(&mut programs, name);
            }
        }
        if !probes.iter().any(|probe| probe.why_not.is_none()) {
            let why = probes.iter().find_map(|probe| probe.why_not.clone()).unwrap_or_default();
            return Err(LoadError::None(why));
        }
        for (name, with, needs) in PARTS {
            let why_not = needs.iter().find_map(lacks).or_else(|| (!counts_of(with, &probes)).then(|| format!("{with} does not count")));
            probes.push(Probe { name, why_not });
        }
        let audit = Audit::load(&mut programs, |tracepoint, expected, needs| match &btf {
            None => no_btf.clone(),
            Some(btf) => tracepoint_mismatch(btf, tracepoint, expected).or_else(|| needs.iter().find_map(lacks)),
        })?;
        let counts = programs.take_map("COUNTS").ok_or(LoadError::Object("no map COUNTS"))?;
        let node = programs.take_map("NODE").ok_or(LoadError::Object("no map NODE"))?;
        Ok(Self {
            counts: counts.try_into().map_err(|_| LoadError::Object("COUNTS is not a per-CPU hash map"))?,
            node: node.try_into().map_err(|_| LoadError::Object("NODE is not a per-CPU array"))?,
            programs,
            processors: nr_cpus().map_err(|(_, error)| LoadError::Processors(error))?,
            probes,
            audit,
        })
    }

    /// The names in [`Probes::probes`].
    pub fn names() -> impl Iterator<Item = &'static str> {
        PLANS.iter().map(|plan| plan.name).chain(PARTS.iter().map(|(name, ..)| *name))
    }

    /// Every program and part, and whether it counts.
    pub fn probes(&self) -> &[Probe] {
        &self.probes
    }

    /// Whether this program or part counts.
    pub fn has(&self, name: &str) -> bool {
        self.probes.iter().any(|probe| probe.name == name && probe.why_not.is_none())
    }

    /// Starts to count a cgroup from 0. Does nothing for a cgroup that is already counted. `cgroup`: the inode of the
    /// cgroup of all work of an allocation.
    pub fn track(&mut self, cgroup: u64) -> Result<(), TrackError> {
        /// Inserts only a new key.
        const BPF_NOEXIST: u64 = 1;
        let zero = PerCpuValues::try_from(vec![Words([0; WORDS]); self.processors]).map_err(TrackError::CountProcessors)?;
        match self.counts.insert(cgroup, zero, BPF_NOEXIST) {
            Ok(()) => Ok(()),
            Err(_) if self.counts(cgroup, &[0; WORDS]).is_some() => Ok(()),
            Err(error) => Err(TrackError::Insert(error)),
        }
    }

    /// The counts of a cgroup, plus `before`. `None`: it is not counted. A device has the same slot as in `before`.
    pub fn counts(&self, cgroup: u64, before: &Counts) -> Option<Counts> {
        let each = self.counts.get(&cgroup, 0).ok()?;
        let mut sum = *before;
        each.iter().for_each(|Words(words)| add(&mut sum, words));
        Some(sum)
    }

    /// All programs, including those that could not be loaded.
    pub(crate) fn programs(&self) -> impl Iterator<Item = &aya::programs::Program> {
        self.programs.programs().map(|(_, program)| program)
    }

    /// The interface for changing audits.
    pub fn audit(&mut self) -> audit::Auditing<'_> {
        audit::Auditing { programs: &mut self.programs, audit: &mut self.audit }
    }

    /// The parts of the audit programs, and whether they work.
    pub fn audit_parts(&self) -> &[Probe] {
        self.audit.parts()
    }

    /// Stops counting a cgroup.
    pub fn forget(&mut self, cgroup: u64) {
        // It may be absent.
        let _ = self.counts.remove(&cgroup);
    }

    /// Bytes read and written by block requests that belong to no allocation.
    pub fn of_no_allocation(&self) -> Option<(u64, u64)> {
        Some((self.node_word(NODE_READ_BYTES)?, self.node_word(NODE_WRITTEN_BYTES)?))
    }

    /// Block requests that were not counted because too many were in progress.
    pub fn unfit(&self) -> Option<u64> {
        self.node_word(NODE_UNFIT)
    }

    fn node_word(&self, word: u32) -> Option<u64> {
        let each: Result<PerCpuValues<u64>, MapError> = self.node.get(&word, 0);
        Some(each.ok()?.iter().fold(0, |sum: u64, word| sum.wrapping_add(*word)))
    }
}

/// Adds the counts of one processor. A device may have a different slot on each processor, so slots are found by the
/// device's id.
fn add(sum: &mut Counts, more: &Counts) {
    for (sum, word) in sum.iter_mut().zip(&more[..DEVICES]) {
        *sum = sum.wrapping_add(*word);
    }
    for from in (DEVICES..WORDS).step_by(DEVICE_WORDS) {
        let slot = match more[from + DEVICE] {
            0 if from < DEVICES_OTHER => continue,
            0 => DEVICES_OTHER,
            id => (DEVICES..DEVICES_OTHER).step_by(DEVICE_WORDS).find(|at| [0, id].contains(&sum[at + DEVICE])).unwrap_or(DEVICES_OTHER),
        };
        if slot < DEVICES_OTHER {
            sum[slot + DEVICE] = more[from + DEVICE];
        }
        for word in DEVICE + 1..DEVICE_WORDS {
            sum[slot + word] = sum[slot + word].wrapping_add(more[from + word]);
        }
    }
}

fn attach(programs: &mut Ebpf, plan: &Plan, slice: &Path) -> Result<(), AttachError> {
    let program = programs.program_mut(plan.name).ok_or(AttachError::NotInBuild)?;
    match plan.at {
        // Older kernels allocate map entries under locks that may already be held where a tracepoint is hit.
        Where::Tracepoint(_) if !is_since(6, 1) => Err(AttachError::NeedsGrowingMaps),
        Where::Tracepoint(_) => {
            let program: &mut RawTracePoint = program.try_into()?;
            program.load()?;
            program.attach(plan.name)?;
            Ok(())
        }
        // In older kernels, an attachment belongs to the cgroup and outlives a killed agent.
        Where::Slice(_) if !is_since(5, 7) => Err(AttachError::NeedsLinks),
        Where::Slice(direction) => {
            let slice = File::open(slice).map_err(|source| AttachError::OpenSlice { path: slice.to_owned(), source })?;
            let program: &mut CgroupSkb = program.try_into()?;
            program.load()?;
            // With links, programs of others are always allowed too.
            program.attach(slice, direction, CgroupAttachMode::Single)?;
            Ok(())
        }
    }
}

/// Detaches a tracepoint's program.
fn unload(programs: &mut Ebpf, name: &str) {
    let program: Option<&mut RawTracePoint> = programs.program_mut(name).and_then(|program| program.try_into().ok());
    if let Some(program) = program {
        // If that fails, the program continues to count, but nothing reads its counts.
        let _ = program.unload();
    }
}

/// The level of a directory in the cgroup tree.
fn level_of(slice: &Path) -> Result<u32, LoadError> {
    let device = fs::metadata(slice).map_err(LoadError::Slice)?.dev();
    let (mut at, mut level) = (slice, 0);
    while let Some(above) = at.parent()
        && fs::metadata(above).map_err(LoadError::Slice)?.dev() == device
    {
        (at, level) = (above, level + 1);
    }
    if fs::metadata(at).map_err(LoadError::Slice)?.ino() != ROOT_INODE {
        return Err(LoadError::Namespace);
    }
    Ok(level)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{DEVICE_READ_BYTES, DEVICE_READS, DEVICES_MAX, RECEIVED_BYTES, device_id};

    /// The counts of one processor. For each device, in this order: its minor number and the bytes of one read.
    fn counted(devices: &[(u32, u64)], other: u64) -> Counts {
        let mut words = [0; WORDS];
        words[RECEIVED_BYTES] = 1;
        for (n, (minor, bytes)) in devices.iter().enumerate() {
            let slot = DEVICES + n * DEVICE_WORDS;
            (words[slot + DEVICE], words[slot + DEVICE_READ_BYTES], words[slot + DEVICE_READS]) = (device_id(8, *minor), *bytes, 1);
        }
        words[DEVICES_OTHER + DEVICE_READ_BYTES] = other;
        words
    }

    fn read_bytes(counts: &Counts) -> Vec<(u64, u64)> {
        let slots = (DEVICES..DEVICES_OTHER).step_by(DEVICE_WORDS).filter(|at| counts[*at] != 0);
        slots.map(|at| (counts[at] & 0xffff, counts[at + DEVICE_READ_BYTES])).collect()
    }

    #[test]
    fn counts_of_a_device_are_added_across_slots_and_it_keeps_its_first_slot() {
        let mut sum = [0; WORDS];
        add(&mut sum, &counted(&[(0, 10), (16, 20)], 0));
        add(&mut sum, &counted(&[(16, 5), (0, 1), (32, 7)], 3));
        assert_eq!(read_bytes(&sum), [(0, 11), (16, 25), (32, 7)]);
        assert_eq!((sum[RECEIVED_BYTES], sum[DEVICES + DEVICE_READS], sum[DEVICES_OTHER + DEVICE_READ_BYTES]), (2, 2, 3));
        // More devices than slots: a device with a slot keeps it, so no reported count decreases.
        let many: Vec<(u32, u64)> = (0..DEVICES_MAX as u32).map(|n| (100 + n, 1)).collect();
        let mut full = sum;
        add(&mut full, &counted(&many, 0));
        assert_eq!(read_bytes(&full)[..3], [(0, 11), (16, 25), (32, 7)]);
        assert_eq!((read_bytes(&full).len(), full[DEVICES_OTHER], full[DEVICES_OTHER + DEVICE_READ_BYTES]), (DEVICES_MAX, 0, 3 + 3));
    }
}
