//! Single checks of `lattice doctor`: what can be tried without harm is tried.

use super::health::Health;
use lattice_agent_common::config::AgentConfig;
use lattice_machine::disk;
use lattice_model::with_causes;
use lattice_runtime::data_mounts::has_mount_attributes;
use lattice_runtime::{identity, mounts};
use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{Resource, getrlimit};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// A severity and its text.
pub(super) type Look = (Health, String);

/// A private mount namespace. Tried on its own thread, which alone gets the namespace and then
/// ends.
pub(super) fn mount_namespace() -> Look {
    let tried = std::thread::spawn(|| mounts::own_namespace().map_err(|e| e.to_string())).join();
    match tried {
        Ok(Ok(())) => (Health::Ok, "a private one was made".to_owned()),
        Ok(Err(why)) => (Health::Missing, format!("{why}; CAP_SYS_ADMIN is needed")),
        Err(_) => (Health::Missing, "the attempt panicked".to_owned()),
    }
}

/// The system call that makes a mount and everything below it read-only, without setuid and
/// devices.
pub(super) fn mount_attributes() -> Look {
    if has_mount_attributes() {
        return (Health::Ok, "mount_setattr is there".to_owned());
    }
    let text =
        "the kernel has no mount_setattr: homes (data.home_source), scratch on disk and --data-mount fail here; Linux 5.12 or later has it";
    (Health::Degraded, text.to_owned())
}

/// The other namespaces, which interactive and later work uses.
pub(super) fn other_namespaces() -> Look {
    let kinds = [("ipc", CloneFlags::CLONE_NEWIPC), ("uts", CloneFlags::CLONE_NEWUTS), ("net", CloneFlags::CLONE_NEWNET)];
    let refused = |(name, flag)| {
        let tried = std::thread::spawn(move || unshare(flag)).join();
        match tried {
            Ok(Ok(())) => None,
            Ok(Err(errno)) => Some(format!("{name} ({errno})")),
            Err(_) => Some(format!("{name} (the attempt panicked)")),
        }
    };
    let refused: Vec<String> = kinds.into_iter().filter_map(refused).collect();
    if refused.is_empty() {
        return (Health::Ok, "ipc, uts and net were made".to_owned());
    }
    (Health::Degraded, format!("refused: {}; CAP_SYS_ADMIN is needed, and a kernel with namespaces", refused.join(", ")))
}

/// A loop device, bound to a file and released again.
pub(super) fn loop_device() -> Look {
    let file = std::env::temp_dir().join(format!("lattice-doctor-{}.img", std::process::id()));
    let tried =
        fs::write(&file, [0; 65536]).map_err(|e| e.to_string()).and_then(|()| mounts::attach_loop(&file).map_err(|e| with_causes(&e)));
    let _ = fs::remove_file(&file);
    match tried {
        Ok((_device, path)) => (Health::Ok, format!("{} was bound to a file and let go", path.display())),
        Err(why) => (Health::Degraded, format!("{why}; allocations with --uenv fail here: modprobe loop, and CAP_SYS_ADMIN")),
    }
}

/// Whether the kernel has SquashFS, or a module for it.
pub(super) fn squashfs() -> Look {
    if fs::read_to_string("/proc/filesystems").is_ok_and(|f| f.lines().any(|l| l.trim() == "squashfs")) {
        return (Health::Ok, "the kernel has it".to_owned());
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    if Path::new("/lib/modules").join(release.trim()).join("kernel/fs/squashfs").exists() {
        return (Health::Ok, "a module that the first mount loads".to_owned());
    }
    (Health::Degraded, "the kernel has none: allocations with --uenv fail here; modprobe squashfs, or a kernel with it".to_owned())
}

/// Where the kernel's trace events are described.
pub(super) fn tracefs() -> Look {
    for root in ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"] {
        if Path::new(root).join("events/sched/sched_switch/format").exists() {
            return (Health::Ok, format!("{root} is mounted"));
        }
    }
    let remedy = "mount -t tracefs nodev /sys/kernel/tracing; nothing of this version needs it, raw tracepoints do without";
    (Health::Degraded, format!("not mounted, or not to be read; {remedy}"))
}

/// Whether the machine's time is synchronised, and whether the walltime clock advances.
pub(super) fn clock() -> Look {
    let boottime = || nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).map(Duration::from);
    let (Ok(before), Ok(after)) = (boottime(), boottime()) else {
        return (Health::Missing, "CLOCK_BOOTTIME cannot be read: no walltime can be kept".to_owned());
    };
    if after < before {
        return (Health::Missing, "CLOCK_BOOTTIME goes backwards: no walltime can be kept; look at the hypervisor".to_owned());
    }
    // SAFETY: all zeros is a timex that asks and sets nothing (adjtimex(2)).
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the structure lives until the call returns.
    let state = unsafe { libc::adjtimex(&raw mut timex) };
    if state < 0 {
        return (Health::Degraded, format!("whether it is synchronised cannot be determined ({})", std::io::Error::last_os_error()));
    }
    if state == libc::TIME_ERROR || timex.status & libc::STA_UNSYNC != 0 {
        let remedy = "run chronyd or another NTP client: certificates and the times that people read depend on it";
        return (Health::Degraded, format!("not synchronised; {remedy}"));
    }
    (Health::Ok, "synchronised; CLOCK_BOOTTIME goes on".to_owned())
}

/// Space and speed of the disk with the state directory.
pub(super) fn disk(config: &AgentConfig) -> Look {
    let dir = &config.state_dir;
    let free = match disk::free_bytes(dir) {
        Ok(free) => free,
        Err(error) => return (Health::Missing, format!("{}: {error}", dir.display())),
    };
    if !dir.is_dir() {
        return (Health::Ok, format!("{} GiB free where {} will be; it is made at the agent's start", free >> 30, dir.display()));
    }
    let took = match disk::try_sync(dir) {
        Ok(took) => took,
        Err(error) => {
            return (Health::Missing, format!("{} cannot be written and synced: {error}; make room, or repair it", dir.display()));
        }
    };
    let text = format!("{} MiB free below {}; 4 KiB written and synced in {:.1} ms", free >> 20, dir.display(), took.as_secs_f64() * 1e3);
    if free < 2 << 30 {
        return (Health::Degraded, format!("{text}: make room (2 GiB for images and logs)"));
    }
    if took > Duration::from_millis(200) {
        return (Health::Degraded, format!("{text}: each step of an allocation waits for that; a local disk is better"));
    }
    (Health::Ok, text)
}

/// File descriptors for connections, shims and launches.
pub(super) fn open_files() -> Look {
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((_, hard)) if hard >= 65_536 => (Health::Ok, format!("up to {hard}")),
        Ok((_, hard)) => {
            (Health::Degraded, format!("at most {hard}: a node with many ranks needs more; LimitNOFILE=524288 in the unit, or ulimit -Hn"))
        }
        Err(errno) => (Health::Degraded, format!("the limit cannot be read: {errno}")),
    }
}

/// The kernel versions that the agent needs: 5.14 kills a cgroup as a whole, 6.9 gives processes a
/// unique identity.
pub(super) fn kernel() -> Look {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < (5, 14) {
        return (Health::Degraded, format!("{release}: processes are ended one by one, not by their cgroup; 5.14 is better"));
    }
    if version < (6, 9) {
        return (Health::Ok, format!("{release}; with 6.9 and later shims are distinguished by their pidfd as well"));
    }
    (Health::Ok, release)
}

/// The id that distinguishes one boot from the next.
pub(super) fn boot_id() -> Look {
    match identity::boot_id() {
        Ok(boot) => (Health::Ok, boot.to_string()),
        Err(error) => (Health::Missing, format!("{error}: /proc is needed")),
    }
}

/// States that were moved aside, which an operator should look at.
pub(super) fn kept_aside(config: &AgentConfig) -> Option<Look> {
    let entries = fs::read_dir(&config.state_dir).ok()?;
    let kept: Vec<String> =
        entries.flatten().map(|e| e.path()).filter(|p| p.to_string_lossy().contains(".kept-")).map(|p| p.display().to_string()).collect();
    let text = || {
        format!("the agent could not use its state once, and went on from the shims; remove when nobody needs them: {}", kept.join(", "))
    };
    (!kept.is_empty()).then(|| (Health::Degraded, text()))
}
