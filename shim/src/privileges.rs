//! The privileges that the shim drops once its mounts are made, and so also those of the work that it starts.
//!
//! | what | the shim | work of a user | work of root |
//! |---|---|---|---|
//! | capabilities in use | [`NEEDED`]; all if the work runs as root | none | the shim's |
//! | bounding set | without [`OF_THE_MACHINE`] | the same | the same |
//! | `NoNewPrivs` | set unless the site lets work gain privileges | the same | the same |
//!
//! With `NoNewPrivs` a program of root gets no capability that the shim lacks. So if the owner is root, the shim keeps
//! all of its own.

use anyhow::{Context, ensure};
use lattice_model::Principal;
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, Uid, geteuid, setfsgid, setfsuid};

/// Capability numbers of linux/capability.h.
const CAP_CHOWN: u32 = 0;
const CAP_DAC_OVERRIDE: u32 = 1;
const CAP_FOWNER: u32 = 3;
const CAP_KILL: u32 = 5;
const CAP_SETGID: u32 = 6;
const CAP_SETUID: u32 = 7;
const CAP_SETPCAP: u32 = 8;
const CAP_SYS_MODULE: u32 = 16;
const CAP_SYS_RAWIO: u32 = 17;
const CAP_SYS_PTRACE: u32 = 19;
const CAP_SYS_PACCT: u32 = 20;
const CAP_SYS_BOOT: u32 = 22;
const CAP_SYS_RESOURCE: u32 = 24;
const CAP_SYS_TIME: u32 = 25;
const CAP_MKNOD: u32 = 27;
const CAP_AUDIT_CONTROL: u32 = 30;
const CAP_MAC_OVERRIDE: u32 = 32;
const CAP_MAC_ADMIN: u32 = 33;

/// The capabilities that a shim needs to serve an allocation.
const NEEDED: [u32; 8] = [
    // Log files, scripts and terminals belong to the owner; the shim opens, punches and removes them.
    CAP_CHOWN,
    CAP_DAC_OVERRIDE,
    CAP_FOWNER,
    // Signals to the owner's processes.
    CAP_KILL,
    // To start programs as the owner.
    CAP_SETGID,
    CAP_SETUID,
    // To find the process at the other end of a rank's PMI port in `/proc/PID/fd`.
    CAP_SYS_PTRACE,
    // To write exits to a file system that is full except for its reserve. Also, work cannot set its oom_score_adj
    // below the value at its start.
    CAP_SYS_RESOURCE,
];

/// Capabilities that affect the whole machine. No program of an allocation can get them, not even a setuid program.
const OF_THE_MACHINE: [u32; 9] = [
    CAP_SYS_MODULE,
    CAP_SYS_RAWIO,
    CAP_SYS_PACCT,
    CAP_SYS_BOOT,
    CAP_SYS_TIME,
    CAP_MKNOD,
    CAP_AUDIT_CONTROL,
    CAP_MAC_OVERRIDE,
    CAP_MAC_ADMIN,
];

/// An argument of setresuid(2) and setresgid(2).
const UNCHANGED: u32 = u32::MAX;

/// From linux/capability.h, version 3.
const VERSION_3: u32 = 0x2008_0522;

/// `struct __user_cap_header_struct`.
#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

/// The lower or upper half of the three sets, `struct __user_cap_data_struct`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Half {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Drops privileges as in [the table](self). Call it before the first program is started, in a process with one thread.
pub fn drop_unneeded(owner_is_root: bool, work_may_gain_privileges: bool) -> anyhow::Result<()> {
    let mut halves = capabilities().context("giving up privileges: reading the capabilities")?;
    // A shim that is not root cannot shrink its bounding set, and has nothing else to drop.
    if halves[0].effective & 1 << CAP_SETPCAP != 0 {
        for capability in OF_THE_MACHINE {
            drop_from_bounding_set(capability).context("giving up privileges: shrinking the bounding set")?;
        }
    }
    if geteuid().is_root() && !owner_is_root {
        let needed = NEEDED.iter().fold(0, |all, capability| all | 1 << capability);
        for (half, kept) in halves.iter_mut().zip([needed, 0]) {
            let kept = half.permitted & kept;
            *half = Half { effective: kept, permitted: kept, inheritable: 0 };
        }
        set_capabilities(&halves).context("giving up privileges: setting the capabilities")?;
    }
    if !work_may_gain_privileges {
        prctl::set_no_new_privs().context("giving up privileges: setting NoNewPrivs")?;
    }
    Ok(())
}

/// Makes the calling thread the user for every access to files, for ever: its rights, groups and quota. Other threads
/// stay as they are. The real and saved user stay as well, so that the user can neither signal nor trace the thread;
/// the effective user changes, because `/proc/sys` checks it and not the user for files. A shim that is not root is the
/// user already, and root's thread stays root.
pub fn become_user_for_files(owner: &Principal) -> anyhow::Result<()> {
    // So that the umask is this thread's own.
    if unshare(CloneFlags::CLONE_FS).is_ok() {
        umask(Mode::S_IWGRP | Mode::S_IWOTH);
    }
    if !geteuid().is_root() || owner.is_root() {
        return Ok(());
    }
    // SAFETY: the kernel reads as many integers as the slice has. Not libc's call, which changes all threads.
    let set = unsafe { libc::syscall(libc::SYS_setgroups, owner.groups.len(), owner.groups.as_ptr()) };
    Errno::result(set).context("becoming the user for files: setting the groups")?;
    // SAFETY: only integers. The group first: without root as the effective user there are no capabilities.
    let set = unsafe { libc::syscall(libc::SYS_setresgid, UNCHANGED, owner.gid, UNCHANGED) };
    Errno::result(set).context("becoming the user for files: setting the group")?;
    // SAFETY: as above.
    let set = unsafe { libc::syscall(libc::SYS_setresuid, UNCHANGED, owner.uid, UNCHANGED) };
    Errno::result(set).context("becoming the user for files: setting the user")?;
    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
    // The user and group for files follow the effective ones; each call returns the value before it.
    ensure!((setfsgid(gid), setfsuid(uid)) == (gid, uid), "becoming the user for files: setting the user");
    set_capabilities(&[Half::default(); 2]).context("becoming the user for files: giving up capabilities")
}

fn capabilities() -> Result<[Half; 2], Errno> {
    let header = Header { version: VERSION_3, pid: 0 };
    let mut halves = [Half::default(); 2];
    // SAFETY: the kernel reads one header and writes the two halves that this version has; both live until it returns.
    Errno::result(unsafe { libc::syscall(libc::SYS_capget, &raw const header, halves.as_mut_ptr()) })?;
    Ok(halves)
}

fn set_capabilities(halves: &[Half; 2]) -> Result<(), Errno> {
    let header = Header { version: VERSION_3, pid: 0 };
    // SAFETY: the kernel reads one header and two halves, which live until it returns.
    Errno::result(unsafe { libc::syscall(libc::SYS_capset, &raw const header, halves.as_ptr()) }).map(drop)
}

fn drop_from_bounding_set(capability: u32) -> Result<(), Errno> {
    // SAFETY: only integers.
    Errno::result(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(capability), 0, 0, 0) }).map(drop)
}
