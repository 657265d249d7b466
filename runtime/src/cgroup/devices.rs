//! Device files that work must not open: a BPF program on its cgroup (`BPF_PROG_TYPE_CGROUP_DEVICE`), for which the v2
//! tree needs no controller.
//!
//! The program is a list of comparisons that is assembled here and attached by bpf(2) with `BPF_PROG_ATTACH`. It then
//! belongs to the cgroup and is removed with it, whatever happens to us. (A BPF *link* would end with the process that
//! holds it: a killed agent would leave its allocations without a filter. docs/dependencies.md.)

use super::Cgroup;
use nix::errno::Errno;
use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use thiserror::Error;

/// Device files that a filter may deny: it compares them one after the other whenever a device is
/// opened.
const DENIED_MAX: usize = 4096;

/// Attempts to load a program: the kernel stops verifying it when a signal is pending for the loading thread.
const LOADS_MAX: usize = 16;

// linux/bpf.h
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_PROG_ATTACH: libc::c_int = 8;
const BPF_PROG_QUERY: libc::c_int = 16;
const BPF_PROG_TYPE_CGROUP_DEVICE: u32 = 15;
const BPF_CGROUP_DEVICE: u32 = 6;
const BPF_DEVCG_DEV_CHAR: i32 = 2;

/// Why there is no filter.
#[derive(Debug, Error)]
pub enum FilterError {
    /// More devices than the program can compare.
    #[error("{0} device files are to be denied; at most {DENIED_MAX} can be")]
    TooMany(usize),
    /// The cgroup cannot be opened.
    #[error(transparent)]
    Cgroup(#[from] super::CgroupError),
    /// The kernel refused it.
    #[error("{doing}: {}", errno.desc())]
    Refused {
        /// What was being done.
        doing: &'static str,
        /// The system's error.
        errno: Errno,
    },
    /// The kernel accepted the program, but the cgroup has none.
    #[error("the kernel accepted a device filter, and the cgroup has none")]
    NotTaken,
}

/// A character device's major and minor numbers.
pub type Device = (u32, u32);

/// Denies the processes of `group` and below opening and making these character devices, from now on until the cgroup
/// is removed; all other devices stay allowed. A later call replaces the list.
pub fn keep_out(group: &Cgroup, denied: &BTreeSet<Device>) -> Result<(), FilterError> {
    if denied.len() > DENIED_MAX {
        return Err(FilterError::TooMany(denied.len()));
    }
    let directory = group.open_dir()?;
    let program = load(&program(denied))?;
    let attach = Attach {
        target: raw(&directory),
        program: raw(&program),
        kind: BPF_CGROUP_DEVICE,
        // The only program of ours on its cgroup: the same call with another program replaces it. Programs on the
        // parents (systemd's) apply as well.
        flags: 0,
    };
    bpf(BPF_PROG_ATTACH, &attach, "attaching a device filter to the cgroup")?;
    if attached(group)? == 1 { Ok(()) } else { Err(FilterError::NotTaken) }
}

/// How many device filters the cgroup itself has.
pub fn attached(group: &Cgroup) -> Result<u32, FilterError> {
    let directory = group.open_dir()?;
    let mut ids = [0u32; 8];
    let query = Query {
        target: raw(&directory),
        kind: BPF_CGROUP_DEVICE,
        query_flags: 0,
        attach_flags: 0,
        ids: ids.as_mut_ptr().expose_provenance() as u64,
        count: 8,
        padding: 0,
    };
    bpf(BPF_PROG_QUERY, &query, "asking for the cgroup's device filters")?;
    Ok(ids.iter().map(|id| u32::from(*id != 0)).sum())
}

fn raw(fd: &impl AsFd) -> u32 {
    // An open descriptor is not negative.
    u32::try_from(fd.as_fd().as_raw_fd()).unwrap_or(u32::MAX)
}

/// One instruction (the kernel's Documentation/bpf/standardization/instruction-set.rst).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instruction {
    code: u8,
    /// The destination in the lower half, the source in the upper.
    registers: u8,
    offset: i16,
    immediate: i32,
}

fn instruction(code: u8, registers: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction { code, registers, offset, immediate }
}

/// Register 1 points to `struct bpf_cgroup_dev_ctx`: access and type, major, minor, 32 bits each. 0 denies, 1 allows.
fn program(denied: &BTreeSet<Device>) -> Vec<Instruction> {
    const LOAD_WORD: u8 = 0x61;
    const AND: u8 = 0x57;
    const JUMP_EQUAL: u8 = 0x15;
    const JUMP_NOT_EQUAL: u8 = 0x55;
    const MOVE: u8 = 0xb7;
    const EXIT: u8 = 0x95;
    let answer = |value| [instruction(MOVE, 0, 0, value), instruction(EXIT, 0, 0, 0)];
    let mut out =
        vec![instruction(LOAD_WORD, 0x12, 0, 0), instruction(AND, 2, 0, 0xffff), instruction(JUMP_EQUAL, 2, 2, BPF_DEVCG_DEV_CHAR)];
    out.extend(answer(1));
    out.extend([instruction(LOAD_WORD, 0x13, 4, 0), instruction(LOAD_WORD, 0x14, 8, 0)]);
    for (major, minor) in denied {
        out.push(instruction(JUMP_NOT_EQUAL, 3, 3, major.cast_signed()));
        out.push(instruction(JUMP_NOT_EQUAL, 4, 2, minor.cast_signed()));
        out.extend(answer(0));
    }
    out.extend(answer(1));
    out
}

/// The used part of the kernel's `union bpf_attr` for BPF_PROG_LOAD.
#[repr(C)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
}

#[repr(C)]
struct Attach {
    target: u32,
    program: u32,
    kind: u32,
    flags: u32,
}

#[repr(C)]
struct Query {
    target: u32,
    kind: u32,
    query_flags: u32,
    attach_flags: u32,
    ids: u64,
    count: u32,
    padding: u32,
}

fn load(program: &[Instruction]) -> Result<OwnedFd, FilterError> {
    let load = Load {
        kind: BPF_PROG_TYPE_CGROUP_DEVICE,
        count: u32::try_from(program.len()).unwrap_or(u32::MAX),
        instructions: program.as_ptr().expose_provenance() as u64,
        license: c"Apache-2.0".as_ptr().expose_provenance() as u64,
        log_level: 0,
        log_bytes: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
        name: *b"lattice_devices\0",
    };
    let doing = "loading a device filter (CAP_BPF and CAP_NET_ADMIN, or CAP_SYS_ADMIN, are needed)";
    let mut left = LOADS_MAX;
    let fd = loop {
        left -= 1;
        match bpf(BPF_PROG_LOAD, &load, doing) {
            Err(FilterError::Refused { errno: Errno::EAGAIN, .. }) if left > 0 => {}
            loaded => break loaded?,
        }
    };
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// bpf(2).
fn bpf<T>(command: libc::c_int, attributes: &T, doing: &'static str) -> Result<RawFd, FilterError> {
    // SAFETY: `attributes` is the head of the union that the command reads, and what it points to lives until we
    // return.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size_of::<T>()) };
    let refused = |errno| FilterError::Refused { doing, errno };
    RawFd::try_from(Errno::result(result).map_err(refused)?).map_err(|_| refused(Errno::EBADF))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of the program, interpreted here.
    fn allows(program: &[Instruction], kind: u32, (major, minor): Device) -> bool {
        let context = [2 << 16 | kind, major, minor];
        let mut registers = [0u64; 11];
        let mut at = 0usize;
        loop {
            let Instruction { code, registers: named, offset, immediate } = program[at];
            let to = usize::from(named & 15);
            at += 1;
            match code {
                0x61 => registers[to] = u64::from(context[offset as usize / 4]),
                0x57 => registers[to] &= immediate as u64,
                0xb7 => registers[to] = immediate as u64,
                0x15 if registers[to] == immediate as u64 => at += offset as usize,
                0x55 if registers[to] != immediate as u64 => at += offset as usize,
                0x15 | 0x55 => {}
                0x95 => return registers[0] == 1,
                other => panic!("{other:#x}"),
            }
        }
    }

    #[test]
    fn only_listed_devices_are_denied() {
        let denied = [(240, 1), (240, 3), (195, 0)].into();
        let program = program(&denied);
        for major in [1, 195, 240, 241] {
            for minor in 0..5 {
                assert_eq!(allows(&program, 2, (major, minor)), !denied.contains(&(major, minor)), "{major}:{minor}");
                assert!(allows(&program, 1, (major, minor)), "a block device of the same numbers is another one");
            }
        }
        assert!(allows(&super::program(&BTreeSet::new()), 2, (240, 1)));
    }
}
