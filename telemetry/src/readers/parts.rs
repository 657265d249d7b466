//! Reads the resource use of an allocation's launches on this node.

use super::group::Directory;
use super::launches::{LAUNCHES_MAX, Part, Parts};
use super::{Group, Text};

impl Group {
    /// The use of each launch's ranks, if there is a v2 tree. `None`: it cannot be read now.
    pub(super) fn parts(&mut self, text: &mut Text) -> Option<&Parts> {
        // Known parts are still right: no process of the work has run since.
        if self.parts.is_none() {
            let (parts, is_lost) = self.read_parts(false, text)?;
            // A launch that replaced a removed one is not known yet.
            self.parts = if is_lost { self.read_parts(true, text).map(|(parts, _)| parts) } else { Some(parts) };
        }
        self.parts.as_ref()
    }

    /// Also returns whether a directory was removed meanwhile.
    fn read_parts(&mut self, anew: bool, text: &mut Text) -> Option<(Parts, bool)> {
        let mut launches: Vec<(u32, &mut Directory)> =
            self.directly_below(anew)?.iter_mut().filter_map(|below| Some((number(below)?, below))).collect();
        launches.sort_unstable_by_key(|(launch, _)| *launch);
        let cut = launches.len() > LAUNCHES_MAX;
        launches.truncate(LAUNCHES_MAX);
        let (mut all, mut is_lost) = (Vec::with_capacity(launches.len()), false);
        for (launch, directory) in launches {
            match directory.part(text) {
                Some((used_us, processes)) => all.extend((processes > 0).then_some(Part { launch, used_us, processes })),
                // A removed directory is a launch that has just ended. A directory that exists and cannot be read is an
                // error.
                None if !directory.path().exists() => is_lost = true,
                None => return None,
            }
        }
        Some((Parts { all, cut }, is_lost))
    }
}

fn number(directory: &Directory) -> Option<u32> {
    directory.path().file_name()?.to_str()?.strip_prefix("launch-")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readers::CgroupPaths;
    use std::fs;
    use std::path::Path;

    fn put(top: &Path, launch: &str, processes: usize, used_us: u64) {
        let directory = top.join(launch);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("cgroup.procs"), "7\n".repeat(processes)).unwrap();
        fs::write(directory.join("cpu.stat"), format!("usage_usec {used_us}\nuser_usec 0\nsystem_usec 0\n")).unwrap();
    }

    #[test]
    fn launches_with_ranks_are_read_by_number_and_again_after_each_full_reading() {
        let top = std::env::temp_dir().join(format!("lattice-parts-{}", std::process::id()));
        let _ = fs::remove_dir_all(&top);
        let (mut group, mut text) = (Group::new(CgroupPaths { v2: Some(top.clone()), v1: Vec::new() }), Text::default());
        assert_eq!(group.parts(&mut text), None, "nothing was looked at");
        fs::create_dir_all(&top).unwrap();
        fs::write(top.join("cgroup.procs"), "").unwrap();
        for (launch, processes, used_us) in [("launch-10", 1, 70), ("launch-2", 2, 60), ("launch-3", 0, 50), ("attach-1", 1, 40)] {
            put(&top, launch, processes, used_us);
        }
        let part = |launch, used_us, processes| Part { launch, used_us, processes };
        let refreshed = |group: &mut Group, text: &mut Text| assert!(group.is_there() && group.refresh(text, 100));
        refreshed(&mut group, &mut text);
        let expected = Parts { all: vec![part(2, 60, 2), part(10, 70, 1)], cut: false };
        assert_eq!(group.parts(&mut text), Some(&expected));
        put(&top, "launch-2", 2, 61);
        assert_eq!(group.parts(&mut text), Some(&expected), "until everything is looked at again");
        fs::remove_dir_all(top.join("launch-10")).unwrap();
        refreshed(&mut group, &mut text);
        assert_eq!(group.parts(&mut text), Some(&Parts { all: vec![part(2, 61, 2)], cut: false }));
        // As many launches as before, but another one; not fully listed before.
        put(&top, "launch-4", 3, 90);
        assert!(group.is_there() && group.refresh(&mut text, 0));
        fs::remove_dir_all(top.join("launch-4")).unwrap();
        put(&top, "launch-5", 1, 80);
        assert!(group.is_there() && group.refresh(&mut text, 0));
        assert_eq!(group.parts(&mut text), Some(&Parts { all: vec![part(2, 61, 2), part(5, 80, 1)], cut: false }));
        fs::remove_dir_all(top.join("launch-5")).unwrap();
        // A directory that exists but whose file is empty.
        fs::write(top.join("launch-2/cpu.stat"), "").unwrap();
        refreshed(&mut group, &mut text);
        assert_eq!(group.parts(&mut text), None);
        for launch in 0..=LAUNCHES_MAX {
            put(&top, &format!("launch-{}", 100 + launch), 1, 1);
        }
        for launch in ["launch-2", "launch-3"] {
            fs::remove_dir_all(top.join(launch)).unwrap();
        }
        refreshed(&mut group, &mut text);
        let parts = group.parts(&mut text).unwrap();
        assert_eq!((parts.all.len(), parts.cut, parts.all[0].launch), (LAUNCHES_MAX, true, 100));
        fs::remove_dir_all(&top).unwrap();
    }
}
