//! Finds the cgroup, and so the allocation, of the current task, a socket or a task.

use crate::counts::layout::NO_OFFSET;
use aya_ebpf::Global;
use aya_ebpf::helpers::bpf_probe_read_kernel;
use aya_ebpf::helpers::generated::bpf_get_current_ancestor_cgroup_id;

/// The depth, below the tree's root, of the cgroups that contain all work of an allocation.
#[unsafe(no_mangle)]
static LEVEL: Global<u32> = Global::new(0);

/// `sock.sk_cgrp_data.cgroup`
#[unsafe(no_mangle)]
static SOCK_CGROUP: Global<u32> = Global::new(NO_OFFSET);
/// `task_struct.cgroups`
#[unsafe(no_mangle)]
static TASK_CGROUPS: Global<u32> = Global::new(NO_OFFSET);
/// `css_set.dfl_cgrp`
#[unsafe(no_mangle)]
static SET_CGROUP: Global<u32> = Global::new(NO_OFFSET);
/// `cgroup.level`
#[unsafe(no_mangle)]
static CGROUP_LEVEL: Global<u32> = Global::new(NO_OFFSET);
/// `cgroup.ancestors`
#[unsafe(no_mangle)]
static CGROUP_ANCESTORS: Global<u32> = Global::new(NO_OFFSET);
/// `cgroup.kn`
#[unsafe(no_mangle)]
static CGROUP_NODE: Global<u32> = Global::new(NO_OFFSET);
/// `kernfs_node.id`
#[unsafe(no_mangle)]
static NODE_ID: Global<u32> = Global::new(NO_OFFSET);

/// The depth of allocations' cgroups.
#[inline(always)]
pub fn level() -> i32 {
    LEVEL.load() as i32
}

/// The current task's cgroup at the depth of allocations; 0: its cgroup is not so deep.
#[inline(always)]
pub fn of_current() -> u64 {
    // SAFETY: a helper without pointers.
    unsafe { bpf_get_current_ancestor_cgroup_id(level()) }
}

/// Reads the kernel's memory; an invalid address is an error and not a fault.
#[inline(always)]
pub fn read<T>(at: u64, offset: u32) -> Option<T> {
    // SAFETY: the helper reads the memory, or fails.
    unsafe { bpf_probe_read_kernel((at + u64::from(offset)) as *const T) }.ok()
}

/// The cgroup of a socket, which need not belong to the current task.
#[inline(always)]
pub fn of_socket(socket: u64) -> Option<u64> {
    of_cgroup(read(socket, SOCK_CGROUP.load())?)
}

/// The cgroup of any task.
#[inline(always)]
pub fn of_task(task: u64) -> Option<u64> {
    let set: u64 = read(task, TASK_CGROUPS.load())?;
    of_cgroup(read(set, SET_CGROUP.load())?)
}

#[inline(always)]
fn of_cgroup(cgroup: u64) -> Option<u64> {
    let deep: i32 = read(cgroup, CGROUP_LEVEL.load())?;
    if deep < level() {
        return None;
    }
    let ancestor: u64 = read(cgroup + 8 * u64::from(LEVEL.load()), CGROUP_ANCESTORS.load())?;
    let node: u64 = read(ancestor, CGROUP_NODE.load())?;
    read(node, NODE_ID.load())
}
