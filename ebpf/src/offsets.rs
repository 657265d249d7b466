//! Where things lie in this kernel, and whether its tracepoints are as the programs take them.

use crate::btf::{Argument, Btf};
use crate::layout::NO_OFFSET;

/// What a program reads: the name of its global, and the way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offset {
    pub global: &'static str,
    path: &'static [&'static str],
}

macro_rules! offsets {
    ($($id:ident = $global:literal, [$($step:literal),*];)*) => {
        $(pub const $id: Offset = Offset { global: $global, path: &[$($step),*] };)*
        /// All of them.
        pub const ALL: &[Offset] = &[$($id),*];
    };
}

offsets! {
    TASK_RUN_DELAY = "TASK_RUN_DELAY", ["task_struct", "sched_info", "run_delay"];
    TASK_PID = "TASK_PID", ["task_struct", "pid"];
    TASK_CGROUPS = "TASK_CGROUPS", ["task_struct", "cgroups"];
    SET_CGROUP = "SET_CGROUP", ["css_set", "dfl_cgrp"];
    SOCK_CGROUP = "SOCK_CGROUP", ["sock", "sk_cgrp_data", "cgroup"];
    CGROUP_LEVEL = "CGROUP_LEVEL", ["cgroup", "level"];
    CGROUP_ANCESTORS = "CGROUP_ANCESTORS", ["cgroup", "ancestors"];
    CGROUP_NODE = "CGROUP_NODE", ["cgroup", "kn"];
    NODE_ID = "NODE_ID", ["kernfs_node", "id"];
    REQUEST_FLAGS = "REQUEST_FLAGS", ["request", "cmd_flags"];
    REQUEST_LENGTH = "REQUEST_LENGTH", ["request", "__data_len"];
}

/// What has to lie directly behind: the programs read the two at once.
const PAIRS: &[(Offset, &[&str], u32)] = &[(TASK_PID, &["task_struct", "tgid"], 4)];

impl Offset {
    /// `NO_OFFSET`: this kernel does not have it, or not as the programs read it.
    pub fn of(self, btf: &Btf) -> u32 {
        let Some(offset) = btf.offset(self.path) else { return NO_OFFSET };
        let pair = PAIRS.iter().find(|(of, ..)| *of == self);
        let is_behind = pair.is_none_or(|(_, path, bytes)| btf.offset(path) == Some(offset + bytes));
        if is_behind { offset } else { NO_OFFSET }
    }

    /// As a kernel's sources have it.
    pub fn path(self) -> String {
        self.path.join(".")
    }
}

/// Why a tracepoint cannot be used as the programs use it: `expected` are its first arguments, each a structure's name or `""`.
pub fn unlike(btf: &Btf, tracepoint: &str, expected: &[&str]) -> Option<String> {
    let Some(has) = btf.arguments(tracepoint) else { return Some(format!("this kernel has no tracepoint {tracepoint}")) };
    let is_as = |(want, has): (&&str, &Argument)| match has {
        Argument::Pointer(name) => name == want,
        Argument::Other => want.is_empty(),
    };
    let good = has.len() >= expected.len() && expected.iter().zip(&has).all(is_as);
    (!good).then(|| format!("the arguments of {tracepoint} are others in this kernel"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel_has_what_the_programs_read() {
        let Ok(btf) = Btf::of_kernel() else {
            // A kernel without a description of its types has no probes; `doctor` says so.
            assert!(!std::path::Path::new("/sys/kernel/btf/vmlinux").exists());
            return;
        };
        for offset in ALL {
            assert_ne!(offset.of(&btf), NO_OFFSET, "{}", offset.path());
        }
        assert_eq!(unlike(&btf, "sched_switch", &["", "task_struct", "task_struct", ""]), None);
        assert!(unlike(&btf, "sched_switch", &["task_struct"]).is_some());
        assert!(unlike(&btf, "no_such_tracepoint", &[]).is_some());
    }
}
