//! The resources that an allocation's work used on this node.
//!
//! The kernel's counters of the scope are read after its processes are gone and before the scope is
//! removed. They are part of the report that the share is free, so they need no journal entry of
//! their own. They cover the last claim only. The report does not contain the last line of standard
//! error, because then users' text would be in every snapshot of the quorum.

use crate::handles::Handles;
use lattice_model::{AllocationId, WorkUsage};
use lattice_runtime::cgroup::controllers::Controller;
use std::fs;
use std::path::Path;

/// Largest number of bytes that are read from a kernel file.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Returns the counters that can be read; `None` if none can, for example because an earlier try
/// removed the scope.
pub(super) fn final_usage(context: &Handles, allocation: AllocationId) -> Option<WorkUsage> {
    let scope = context.machine.slice.as_ref().map(|slice| slice.scope(allocation).whole().path().to_path_buf());
    let groups = context.machine.bounds.controllers.v1_groups(allocation);
    let v1 = |controller| groups.iter().find(|group| group.controller() == controller).map(|group| group.path());
    let usage = read(scope.as_deref(), v1(Controller::Memory).as_deref());
    (usage != WorkUsage::default()).then_some(WorkUsage { nodes: 1, ..usage })
}

/// Reads the scope's files. If `memory.peak` is missing, reads the peak from cgroup v1.
fn read(scope: Option<&Path>, memory_v1: Option<&Path>) -> WorkUsage {
    let number = |path: &Path, name: &str| text(path, name)?.trim().parse::<u64>().ok();
    let memory_peak_bytes =
        scope.and_then(|scope| number(scope, "memory.peak")).or_else(|| number(memory_v1?, "memory.max_usage_in_bytes"));
    let cpu_us = scope.and_then(|scope| text(scope, "cpu.stat")).and_then(|stat| {
        let line = stat.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
        line.trim().parse::<u64>().ok()
    });
    WorkUsage { nodes: 0, memory_peak_bytes, cpu_ms: cpu_us.map(|us| us / 1000) }
}

fn text(dir: &Path, name: &str) -> Option<String> {
    use std::io::Read;
    let mut text = String::new();
    fs::File::open(dir.join(name)).ok()?.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read_from_the_cgroup_files_that_exist() {
        let dir = std::env::temp_dir().join(format!("lattice-final-usage-{}", std::process::id()));
        let (scope, v1) = (dir.join("scope"), dir.join("v1"));
        fs::create_dir_all(&scope).unwrap();
        fs::create_dir_all(&v1).unwrap();
        fs::write(scope.join("cpu.stat"), "usage_usec 1234567\nuser_usec 1\n").unwrap();
        fs::write(v1.join("memory.max_usage_in_bytes"), "4096\n").unwrap();
        let usage = |memory_peak_bytes, cpu_ms| WorkUsage { nodes: 0, memory_peak_bytes, cpu_ms };
        assert_eq!(read(Some(&scope), Some(&v1)), usage(Some(4096), Some(1234)));
        fs::write(scope.join("memory.peak"), "8192\n").unwrap();
        assert_eq!(read(Some(&scope), Some(&v1)), usage(Some(8192), Some(1234)));
        assert_eq!(read(Some(&dir.join("gone")), None), usage(None, None));
        fs::remove_dir_all(&dir).unwrap();
    }
}
