//! Offsets of structure members in this kernel, and checks whether its tracepoints have the expected arguments.

use crate::btf::{Argument, Btf};
use crate::layout::NO_OFFSET;

/// A member that programs read: the global variable that gets its offset, and its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset {
    pub global: &'static str,
    path: &'static [&'static str],
    /// Bytes that are added to the offset of the path's last member: they select an element of an array.
    behind: u32,
}

macro_rules! offsets {
    ($($id:ident = $global:literal, $path:expr $(, $behind:expr)?;)*) => {
        $(pub const $id: Offset = Offset { global: $global, path: $path, behind: 0 $(+ $behind)? };)*
        /// All offsets.
        pub const ALL: &[Offset] = &[$($id),*];
    };
}

offsets! {
    TASK_RUN_DELAY = "TASK_RUN_DELAY", &["task_struct", "sched_info", "run_delay"];
    TASK_PID = "TASK_PID", &["task_struct", "pid"];
    TASK_CGROUPS = "TASK_CGROUPS", &["task_struct", "cgroups"];
    SET_CGROUP = "SET_CGROUP", &["css_set", "dfl_cgrp"];
    SOCK_CGROUP = "SOCK_CGROUP", &["sock", "sk_cgrp_data", "cgroup"];
    CGROUP_LEVEL = "CGROUP_LEVEL", &["cgroup", "level"];
    CGROUP_ANCESTORS = "CGROUP_ANCESTORS", &["cgroup", "ancestors"];
    CGROUP_NODE = "CGROUP_NODE", &["cgroup", "kn"];
    NODE_ID = "NODE_ID", &["kernfs_node", "id"];
    REQUEST_FLAGS = "REQUEST_FLAGS", &["request", "cmd_flags"];
    REQUEST_LENGTH = "REQUEST_LENGTH", &["request", "__data_len"];
    REQUEST_QUEUE = "REQUEST_QUEUE", &["request", "q"];
    QUEUE_DISK = "QUEUE_DISK", &["request_queue", "disk"];
    DISK_NUMBERS = "DISK_NUMBERS", &["gendisk", "major"];
    REGS_NUMBER = "REGS_NUMBER", REGISTERS.0;
    REGS_FIRST = "REGS_FIRST", REGISTERS.1;
    REGS_SECOND = "REGS_SECOND", REGISTERS.2, REGISTERS_BEHIND.0;
    REGS_THIRD = "REGS_THIRD", REGISTERS.3, REGISTERS_BEHIND.1;
    TASK_COMPAT = "TASK_COMPAT", IN_COMPAT.0;
    TASK_FILES = "TASK_FILES", &["task_struct", "files"];
    FILES_TABLE = "FILES_TABLE", &["files_struct", "fdt"];
    TABLE_FILES = "TABLE_FILES", &["fdtable", "fd"];
    FILE_PRIVATE = "FILE_PRIVATE", &["file", "private_data"];
    SOCKET_FILE = "SOCKET_FILE", &["socket", "file"];
    SOCKET_SOCK = "SOCKET_SOCK", &["socket", "sk"];
    SOCK_FAMILY = "SOCK_FAMILY", &["sock_common", "skc_family"];
    SOCK_REMOTE4 = "SOCK_REMOTE4", &["sock_common", "skc_daddr"];
    SOCK_REMOTE6 = "SOCK_REMOTE6", &["sock_common", "skc_v6_daddr"];
    SOCK_PORTS = "SOCK_PORTS", &["sock_common", "skc_dport"];
    SOCK_PROTOCOL = "SOCK_PROTOCOL", &["sock", "sk_protocol"];
    SOCK_TYPE = "SOCK_TYPE", &["sock", "sk_type"];
    URING_OPERATION = "URING_OPERATION", &["io_kiocb", "opcode"];
    URING_COMMAND = "URING_COMMAND", &["io_kiocb", "cmd"];
    OPEN_FILENAME = "OPEN_FILENAME", &["io_open", "filename"];
    FILENAME_NAME = "FILENAME_NAME", &["filename", "name"];
}

/// Where a system call's number and its first three arguments are when it returns: in registers that the return value
/// does not overwrite.
#[cfg(target_arch = "x86_64")]
const REGISTERS: (Path, Path, Path, Path) = (&["pt_regs", "orig_ax"], &["pt_regs", "di"], &["pt_regs", "si"], &["pt_regs", "dx"]);
#[cfg(target_arch = "x86_64")]
const REGISTERS_BEHIND: (u32, u32) = (0, 0);
#[cfg(target_arch = "aarch64")]
const REGISTERS: (Path, Path, Path, Path) =
    (&["pt_regs", "syscallno"], &["pt_regs", "orig_x0"], &["pt_regs", "regs"], &["pt_regs", "regs"]);
#[cfg(target_arch = "aarch64")]
const REGISTERS_BEHIND: (u32, u32) = (8, 16);

/// The flags that mark a task inside a 32-bit system call, and the bit: `TS_COMPAT` or `TIF_32BIT`.
#[cfg(target_arch = "x86_64")]
pub const IN_COMPAT: (Path, u32) = (&["task_struct", "thread_info", "status"], 1 << 1);
#[cfg(target_arch = "aarch64")]
pub const IN_COMPAT: (Path, u32) = (&["task_struct", "thread_info", "flags"], 1 << 22);

type Path = &'static [&'static str];

/// Members that must follow another one at this distance in bytes: the programs read both at once.
const PAIRS: &[(Offset, Path, u32)] = &[
    (TASK_PID, &["task_struct", "tgid"], 4),
    (DISK_NUMBERS, &["gendisk", "first_minor"], 4),
    (SOCK_PORTS, &["sock_common", "skc_num"], 2),
];

impl Offset {
    /// The offset in bytes. `NO_OFFSET`: this kernel does not have the member, or not in the form that the programs
    /// read.
    pub fn of(self, btf: &Btf) -> u32 {
        let Some(offset) = btf.offset(self.path) else { return NO_OFFSET };
        let pair = PAIRS.iter().find(|(of, ..)| *of == self);
        let is_behind = pair.is_none_or(|(_, path, bytes)| btf.offset(path) == Some(offset + bytes));
        if is_behind { offset + self.behind } else { NO_OFFSET }
    }

    /// The path in the notation of the kernel's sources.
    pub fn path(self) -> String {
        self.path.join(".")
    }
}

/// Why the programs cannot use a tracepoint. `expected`: its first arguments, each the name of the structure that it
/// points to, or `""` for an argument of another type.
pub fn tracepoint_mismatch(btf: &Btf, tracepoint: &str, expected: &[&str]) -> Option<String> {
    let Some(has) = btf.arguments(tracepoint) else { return Some(format!("this kernel has no tracepoint {tracepoint}")) };
    let is_as = |(want, has): (&&str, &Argument)| match has {
        Argument::Pointer(name) => name == want,
        Argument::Other => want.is_empty(),
    };
    let good = has.len() >= expected.len() && expected.iter().zip(&has).all(is_as);
    (!good).then(|| format!("{tracepoint} has other arguments in this kernel"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel_has_what_the_programs_read() {
        let Ok(btf) = Btf::of_kernel() else {
            // A kernel without BTF has no probes; `doctor` reports that.
            assert!(!std::path::Path::new("/sys/kernel/btf/vmlinux").exists());
            return;
        };
        for offset in ALL {
            assert_ne!(offset.of(&btf), NO_OFFSET, "{}", offset.path());
        }
        assert_eq!(tracepoint_mismatch(&btf, "sched_switch", &["", "task_struct", "task_struct", ""]), None);
        assert!(tracepoint_mismatch(&btf, "sched_switch", &["task_struct"]).is_some());
        assert!(tracepoint_mismatch(&btf, "no_such_tracepoint", &[]).is_some());
    }
}
