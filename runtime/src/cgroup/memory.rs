//! Whether and where memory was used up: the kernel's counters of one allocation's work and shim.
//!
//! In both versions the kernel counts a kill before it sends the signal. So when a process that SIGKILL ended is
//! reaped, the count includes it. (`mm/oom_kill.c`, `__oom_kill_process`: "Raise event before sending signal".)

use super::Scope;
use lattice_model::MemoryKill;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Watches the memory of one allocation's work. It exists only if something limits or counts that memory.
#[derive(Debug)]
pub struct MemoryWatch {
    place: Place,
    /// Kills that were already reported, by launch; in version 1 all under 0.
    reported: BTreeMap<u32, u64>,
    /// Kills of earlier tasks of a lane, in the group that all of them use.
    settled: u64,
}

#[derive(Debug)]
enum Place {
    /// Each launch has its own count, and is killed whole.
    V2(Scope),
    /// All work has one count.
    V1(PathBuf),
}

impl MemoryWatch {
    /// `groups`: the directories of version 1 that the work joins.
    pub fn of(scope: Option<&Scope>, groups: &[PathBuf]) -> Option<Self> {
        let v2 = scope.filter(|s| s.path().join("memory.events").exists()).map(|s| Place::V2(s.clone()));
        let v1 = || groups.iter().find(|g| g.join("memory.oom_control").exists()).map(|g| Place::V1(g.clone()));
        v2.or_else(v1).map(|place| Self { place, reported: BTreeMap::new(), settled: 0 })
    }

    /// A file that has `EPOLLPRI` when memory was used up somewhere in the scope; version 1 has no such file.
    pub fn events(&self) -> Option<File> {
        match &self.place {
            Place::V2(scope) => File::open(scope.path().join("memory.events")).ok(),
            Place::V1(_) => None,
        }
    }

    /// The next task of a lane begins in the group of launch 0, which has no process now: kills before this moment do not
    /// count for it.
    pub fn settle_tasks(&mut self) {
        // In version 1 `reported` has every kill so far, and all work shares one count.
        if let Place::V2(scope) = &self.place
            && let Some(kills) = read_counter(&scope.launch(0).path().join("memory.events"), "oom_kill")
        {
            self.settled = kills;
            self.reported.remove(&0);
        }
    }

    /// The memory kill in this launch (0 is the script) since the last call, if there was one. A launch that was
    /// killed whole is reported once. In version 1 launches have no counts of their own: call this when one of its
    /// processes was killed.
    pub fn kill_in(&mut self, launch: u32) -> Option<MemoryKill> {
        match &self.place {
            Place::V2(scope) => {
                let group = scope.launch(launch);
                let file = |name: &str| group.path().join(name);
                let whole = read_number(&file("memory.oom.group")) == Some(1);
                // The process that triggers the kill of a whole launch is counted twice: the number only shows that
                // there was a kill.
                let kills = read_counter(&file("memory.events"), "oom_kill")?;
                let kills = if launch == 0 { kills.saturating_sub(self.settled) } else { kills };
                let reported = self.reported.entry(launch).or_default();
                if kills <= *reported || (whole && *reported > 0) {
                    return None;
                }
                *reported = kills;
                // A machine without free memory kills as well, without a limit being reached.
                let own_limit = read_counter(&scope.path().join("memory.events"), "oom").is_some_and(|n| n > 0);
                let limit_bytes = read_number(&scope.path().join("memory.max")).filter(|_| own_limit);
                Some(MemoryKill { launch, whole, had_bytes: read_number(&file("memory.peak")), limit_bytes })
            }
            Place::V1(group) => {
                let file = |name: &str| group.join(name);
                let kills = read_counter(&file("memory.oom_control"), "oom_kill")?;
                let reported = self.reported.entry(0).or_default();
                if kills <= *reported {
                    return None;
                }
                *reported = kills;
                let own_limit = read_number(&file("memory.failcnt")).is_some_and(|n| n > 0);
                let limit_bytes = read_number(&file("memory.limit_in_bytes")).filter(|_| own_limit);
                Some(MemoryKill { launch, whole: false, had_bytes: read_number(&file("memory.max_usage_in_bytes")), limit_bytes })
            }
        }
    }
}

impl Scope {
    /// The memory limit of work and shim together in the v2 tree, in bytes; `None`: there is none.
    pub fn memory_bytes_max(&self) -> Option<u64> {
        read_number(&self.path().join("memory.max"))
    }

    /// The shim's memory as the kernel counts it, in bytes; `None`: this tree does not count memory.
    pub fn shim_memory_bytes(&self) -> Option<u64> {
        read_number(&self.shim().path().join("memory.current"))
    }
}

fn read_counter(file: &Path, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// `max` is not a number.
fn read_number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kills_of_one_task_of_a_lane_are_not_those_of_the_next() {
        let dir = std::env::temp_dir().join(format!("lattice-memory-watch-{}", std::process::id()));
        let scope = Scope::at(dir.clone());
        let group = scope.launch(0).path().to_owned();
        fs::create_dir_all(&group).unwrap();
        fs::write(dir.join("memory.events"), "oom 1\n").unwrap();
        fs::write(group.join("memory.oom.group"), "1\n").unwrap();
        let set_kills = |kills: u64| fs::write(group.join("memory.events"), format!("oom_kill {kills}\n")).unwrap();
        set_kills(0);
        let mut watch = MemoryWatch::of(Some(&scope), &[]).unwrap();
        assert_eq!(watch.kill_in(0), None);
        let kill = Some(MemoryKill { launch: 0, whole: true, had_bytes: None, limit_bytes: None });
        set_kills(2);
        assert_eq!(watch.kill_in(0), kill);
        set_kills(3);
        assert_eq!(watch.kill_in(0), None, "it was killed whole");
        watch.settle_tasks();
        assert_eq!(watch.kill_in(0), None);
        set_kills(5);
        assert_eq!(watch.kill_in(0), kill);
        fs::remove_dir_all(&dir).unwrap();
    }
}
