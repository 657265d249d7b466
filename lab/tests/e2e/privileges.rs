//! The rights that work can gain on its node, and those that its shim keeps.

use crate::harness::{Folder, Group, NOBODY, World, configure};
use lattice_lab::{faults, process};
use libtest_mimic::Trial;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

static PRIVILEGES: Group = Group::small("privileges");

/// Bits of linux/capability.h.
const CAP_SETPCAP: u64 = 1 << 8;
const CAP_SYS_MODULE: u64 = 1 << 16;
const CAP_SYS_ADMIN: u64 = 1 << 21;
const CAP_SYS_BOOT: u64 = 1 << 22;
const CAP_SYS_TIME: u64 = 1 << 25;
const CAP_MKNOD: u64 = 1 << 27;

pub fn trials() -> Vec<Trial> {
    vec![
        PRIVILEGES.test("a_setuid_program_gives_work_no_rights_unless_the_site_allows_it", &[], setuid),
        PRIVILEGES.test("a_shim_keeps_few_capabilities_and_work_gets_none_over_the_machine", &[], capabilities),
    ]
}

/// The effective user of a setuid-root program in a script, a rank and a terminal of `nobody`'s work on n1.
fn effective_users(w: &World, program: &str) -> [String; 3] {
    let script = w.script("setuid.sh", &format!("#!/bin/sh\n{program} -u\n{}/lattice launch {program} -u\n", w.dir.join("bin").display()));
    let submitted = w.run_as(NOBODY, &["submit", "-o", "name", "-w", "n1", &script]);
    assert_eq!(submitted.code(), 0, "{}", submitted.err());
    let id = submitted.out().trim().to_owned();
    w.completed(&id);
    let log = w.run_as(NOBODY, &["logs", &id]).out();
    let printed: Vec<&str> = log.lines().collect();
    let &[script, rank] = printed.as_slice() else { panic!("{log}") };
    let sleeper = w.run_as(NOBODY, &["submit", "-o", "name", "-w", "n1", "--", "/bin/sleep", "60"]);
    let sleeper = sleeper.out().trim().to_owned();
    w.running(&sleeper);
    let attached = w.run_as(NOBODY, &["attach", &sleeper, "--", program, "-u"]);
    assert_eq!(attached.code(), 0, "{}", attached.err());
    w.ok(&["cancel", &sleeper]);
    w.ended(&sleeper);
    [script.to_owned(), rank.to_owned(), attached.out().trim().to_owned()]
}

fn setuid(w: &World) {
    let folder = Folder::new("setuid");
    let program = folder.0.join("id");
    fs::copy("/usr/bin/id", &program).unwrap();
    fs::set_permissions(&folder.0, Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o4755)).unwrap();
    // If the file system ignored the bit, the test would prove nothing.
    let outside = process::run(Command::new(&program).arg("-u").uid(NOBODY).gid(NOBODY), Duration::from_secs(10)).unwrap();
    assert_eq!(outside.out().trim(), "0", "{} is on a file system that is mounted nosuid", program.display());
    let program = program.to_string_lossy().into_owned();
    assert_eq!(effective_users(w, &program), [(); 3].map(|()| NOBODY.to_string()));

    let previous_config = configure(&w.dir, "n1", "work: {may_gain_privileges: true}");
    faults::restart_node(&w.dir, "n1").unwrap();
    let gained = effective_users(w, &program);
    fs::write(w.dir.join("n1/agent.yaml"), previous_config).unwrap();
    faults::restart_node(&w.dir, "n1").unwrap();
    assert_eq!(gained, [(); 3].map(|()| "0".to_owned()));
}

/// A set of capabilities in `/proc/PID/status`.
fn set(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name} in {status}"));
    u64::from_str_radix(line.trim_start_matches(':').trim(), 16).unwrap()
}

fn capabilities(w: &World) {
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let of_the_machine = CAP_SYS_MODULE | CAP_SYS_BOOT | CAP_SYS_TIME | CAP_MKNOD;
    assert_ne!(set(&own, "CapBnd") & CAP_MKNOD, 0, "root must have CAP_MKNOD here, or the test proves nothing");

    let submitted = w.run_as(NOBODY, &["submit", "-o", "name", "-w", "n1", "--", "/bin/sleep", "60"]);
    let id = submitted.out().trim().to_owned();
    w.running(&id);
    let shim = w.at("n1").json(&["node", "status"]).unwrap()["allocations"][0]["shim_pid"].as_i64().unwrap();
    let status = fs::read_to_string(format!("/proc/{shim}/status")).unwrap();
    for kept in ["CapPrm", "CapEff"] {
        assert_eq!(set(&status, kept) & (of_the_machine | CAP_SYS_ADMIN | CAP_SETPCAP), 0, "{status}");
    }
    assert_eq!((set(&status, "CapInh"), set(&status, "CapBnd") & of_the_machine), (0, 0), "{status}");
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    w.ok(&["cancel", &id]);
    w.ended(&id);

    // Work of root has all capabilities except those over the machine.
    let made = w.dir.join("made-by-work");
    let body = format!("cat /proc/self/status; mknod {} c 1 3 && echo made it", made.display());
    let id = w.submit(&["-w", "n1", "--", "/bin/sh", "-c", &body]);
    w.ended(&id);
    let log = w.log(&id);
    assert_eq!(set(&log, "CapEff"), set(&own, "CapBnd") & set(&log, "CapBnd"), "{log}");
    assert_eq!(set(&log, "CapBnd") & of_the_machine, 0, "{log}");
    assert_ne!(set(&log, "CapEff") & CAP_SYS_ADMIN, 0, "{log}");
    assert!(!made.exists() && !log.contains("made it"), "{log}");
}
