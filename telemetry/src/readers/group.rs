//! An allocation's work at one moment: its cgroups and its processes.

use super::launches::Parts;
use super::polled_file::{FILE_BYTES_MAX, Held, PolledFile, Text, is_passing};
use crate::procfs::field;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// At most this many processes of an allocation are listed; with more, no process is read individually.
pub const PROCESSES_MAX: usize = 4096;
/// At most this many cgroups below that of the work are searched.
const BELOW_MAX: usize = 1024;
/// How deep cgroups are searched: launches are one level below the work, cgroups of the work itself below those.
const DEPTH_MAX: usize = 4;
/// The links of an empty directory; each directory in it adds one. Fewer mean that the file system does not count them.
const OWN_LINKS: u64 = 2;

/// The cgroups of an allocation's work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupPaths {
    /// The directory of all its work in the v2 tree.
    pub v2: Option<PathBuf>,
    /// Its directories in hierarchies of version 1.
    pub v1: Vec<PathBuf>,
}

/// One allocation's work at one moment.
#[derive(Debug)]
pub struct Group {
    paths: CgroupPaths,
    top: Option<Directory>,
    processes: Vec<i32>,
    /// Whether all processes are listed.
    whole: bool,
    /// Whether no process of it has run since they were listed.
    is_idle: bool,
    /// The number of links of its directory at this measurement.
    links: Option<u64>,
    /// From the last full reading.
    pub(super) parts: Option<Parts>,
}

impl Group {
    pub(super) fn new(paths: CgroupPaths) -> Self {
        let is_v1 = paths.v2.is_none();
        let top = paths.v2.clone().or_else(|| paths.v1.first().cloned()).map(|path| Directory::new(path, is_v1));
        Self { paths, top, processes: Vec::new(), whole: false, is_idle: false, links: None, parts: None }
    }

    /// Its cgroups.
    pub fn paths(&self) -> &CgroupPaths {
        &self.paths
    }

    /// The inode of the directory of all its work in the v2 tree; `None`: there is none.
    pub fn inode(&self) -> Option<u64> {
        self.paths.v2.as_ref().and(self.top.as_ref()).map(|top| top.inode)
    }

    /// The sum of a number over the directories in the v2 tree; `of` gives it for an inode. `None`: there is no such
    /// tree, not all directories are known, or none has the number.
    pub(super) fn sum_of_cgroups(&self, of: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        self.paths.v2.as_ref()?;
        self.top.as_ref().filter(|_| self.whole)?.sum(&of)
    }

    /// Adds the inodes of its directories in the v2 tree, if all are known.
    pub(super) fn add_cgroups(&self, to: &mut BTreeSet<u64>) {
        if let Some(top) = self.paths.v2.as_ref().and(self.top.as_ref()).filter(|_| self.whole) {
            top.add_inodes(to);
        }
    }

    /// Its processes; `None` where they cannot be listed, or are too many.
    pub fn processes(&self) -> Option<&[i32]> {
        self.whole.then_some(self.processes.as_slice())
    }

    /// Whether nothing of it has run since the last measurement: its processes, and the values that only they change,
    /// are unchanged.
    pub fn is_idle(&self) -> bool {
        self.is_idle
    }

    /// Whether its directory exists. Called before each [`Self::mark_idle`] and [`Self::refresh`].
    pub(super) fn is_there(&mut self) -> bool {
        let Some(top) = &mut self.top else { return true };
        let was = top.inode;
        self.links = top.links();
        if top.inode != was {
            // The list belonged to another directory.
            self.whole = false;
        }
        self.links.is_some()
    }

    /// Keeps the list of processes.
    pub(super) fn mark_idle(&mut self) {
        self.is_idle = true;
    }

    /// Lists its processes again; with more than `processes_max` the list is not used. `false`: its directory is gone.
    pub(super) fn refresh(&mut self, text: &mut Text, processes_max: usize) -> bool {
        self.processes.clear();
        (self.whole, self.is_idle, self.parts) = (false, false, None);
        let Some(top) = &mut self.top else { return true };
        let Some(links) = self.links.take().or_else(|| top.links()) else { return false };
        let mut listing = Listing { processes: &mut self.processes, whole: true, below: 0, most: processes_max.min(PROCESSES_MAX) };
        let is_there = top.list(links, DEPTH_MAX, &mut listing, text);
        self.whole = listing.whole && is_there;
        is_there
    }

    /// How many of its processes were listed.
    pub(super) fn listed(&self) -> usize {
        self.processes.len()
    }

    /// The subdirectories of the v2 directory of all its work; `None`: there is no such directory, or it cannot be
    /// listed now. `anew`: list them again, even if their number has not changed.
    pub(super) fn directly_below(&mut self, anew: bool) -> Option<&mut [Directory]> {
        self.paths.v2.as_ref()?;
        let top = self.top.as_mut()?;
        let links = top.links()?;
        if anew || top.has_others(links) {
            top.look_within().ok()?;
        }
        Some(&mut top.within)
    }
}

/// The results of one listing.
struct Listing<'a> {
    processes: &'a mut Vec<i32>,
    whole: bool,
    below: usize,
    most: usize,
}

/// Some entries could not be read now.
struct Unlisted;

/// A directory and its subdirectories. They are listed again when the number of links differs from the known
/// subdirectories, or when a known one is gone: a new one that replaces a removed one does not change the number.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    is_v1: bool,
    /// Held open in a v2 tree, so that its path is not resolved at each measurement. A removed directory is recognised
    /// by its list of processes, which cannot be read.
    open: Option<Held>,
    inode: u64,
    processes: PolledFile,
    /// Its processor time, if a caller requested it.
    cpu: Option<PolledFile>,
    within: Vec<Directory>,
}

impl Directory {
    fn new(path: PathBuf, is_v1: bool) -> Self {
        let processes = PolledFile::new(path.join("cgroup.procs"));
        Self { path, is_v1, open: None, inode: 0, processes, cpu: None, within: Vec::new() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The sum over this directory and all below it; `None`: none of them has the number.
    fn sum<F: Fn(u64) -> Option<u64>>(&self, of: &F) -> Option<u64> {
        let below = self.within.iter().filter_map(|below| below.sum(of));
        of(self.inode).into_iter().chain(below).reduce(u64::saturating_add)
    }

    fn add_inodes(&self, to: &mut BTreeSet<u64>) {
        to.insert(self.inode);
        self.within.iter().for_each(|below| below.add_inodes(to));
    }

    /// Microseconds of processor time in it and below, and the number of processes directly in it.
    pub(super) fn part(&mut self, text: &mut Text) -> Option<(u64, u64)> {
        let processes = self.processes.read(text)?.lines().count() as u64;
        let stat = self.cpu.get_or_insert_with(|| PolledFile::new(self.path.join("cpu.stat"))).read(text)?;
        Some((field(stat, "usage_usec")?, processes))
    }

    /// Its number of links; `None`: it is gone.
    fn links(&mut self) -> Option<u64> {
        if let Some(links) = self.open.as_ref().and_then(Held::links).filter(|links| *links > 0) {
            return Some(links);
        }
        let about = fs::metadata(&self.path).ok().filter(fs::Metadata::is_dir)?;
        if self.inode != about.ino() {
            *self = Self { inode: about.ino(), ..Self::new(std::mem::take(&mut self.path), self.is_v1) };
        }
        let open = || File::open(&self.path).ok().filter(|file| file.metadata().is_ok_and(|now| now.ino() == about.ino()));
        self.open = if self.is_v1 { None } else { open().and_then(Held::new) };
        Some(about.nlink())
    }

    /// Whether it has other subdirectories than the known ones, by its number of links.
    fn has_others(&self, links: u64) -> bool {
        links < OWN_LINKS || links != OWN_LINKS + self.within.len() as u64
    }

    /// Lists it with this number of links; `false`: it is gone.
    fn list(&mut self, mut links: u64, depth: usize, listing: &mut Listing<'_>, text: &mut Text) -> bool {
        if !self.list_own(listing, text) && self.open.take().is_some() {
            let Some(again) = self.links() else { return false };
            links = again;
            self.list_own(listing, text);
        }
        // Compared with the known subdirectories, not with the previous count, so that a subdirectory that was made
        // during a listing is found.
        if self.has_others(links) {
            listing.whole &= self.look_within().is_ok();
        }
        let (mut at, mut looked_again) = (0, false);
        loop {
            let mut lost = false;
            while at < self.within.len() {
                listing.below += 1;
                if depth == 0 || listing.below > BELOW_MAX || !listing.whole {
                    listing.whole = false;
                    return true;
                }
                let below = &mut self.within[at];
                if below.links().is_some_and(|links| below.list(links, depth - 1, listing, text)) {
                    at += 1;
                } else {
                    self.within.remove(at);
                    lost = true;
                }
            }
            if !lost {
                return true;
            }
            // Listed again once, for a directory that replaced a removed one. Further changes are seen at the next
            // measurement.
            if looked_again {
                return true;
            }
            looked_again = true;
            let Ok(stay) = self.look_within() else {
                listing.whole = false;
                return true;
            };
            at = stay;
        }
    }

    /// Lists the processes directly in it. `false`: there is no list. A directory that was just removed has none, nor
    /// has one that contains only threads: the kernel lists their processes above it.
    fn list_own(&mut self, listing: &mut Listing<'_>, text: &mut Text) -> bool {
        let listed = if self.is_v1 {
            // In version 1 the kernel builds the list of an open file once, and again when nobody has read it for a
            // second: a file that is held open and read once a second would never change.
            match text.of(&self.path.join("cgroup.procs")) {
                Ok(listed) => Ok(Some(listed)),
                Err(error) if is_passing(&error) => Err(Unlisted),
                Err(_gone) => Ok(None),
            }
        } else {
            match self.processes.read(text) {
                Some(listed) => Ok(Some(listed)),
                None if self.processes.is_missed() => Err(Unlisted),
                None => Ok(None),
            }
        };
        match listed {
            Ok(Some(listed)) => {
                listing.processes.extend(listed.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 0));
                listing.whole &= listed.len() < FILE_BYTES_MAX && listing.processes.len() <= listing.most;
                true
            }
            Ok(None) => false,
            Err(Unlisted) => {
                listing.whole = false;
                true
            }
        }
    }

    /// Removes subdirectories that are gone, and appends new ones; returns how many stayed.
    fn look_within(&mut self) -> Result<usize, Unlisted> {
        let entries = match fs::read_dir(&self.path) {
            Err(error) if is_passing(&error) => return Err(Unlisted),
            entries => entries,
        };
        let directories = entries.into_iter().flatten().flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        // One more than the limit, so that too many are recognised as too many.
        let mut names: BTreeSet<OsString> = directories.take(BELOW_MAX + 1).map(|entry| entry.file_name()).collect();
        self.within.retain(|known| known.path.file_name().is_some_and(|name| names.remove(name)));
        let stay = self.within.len();
        self.within.extend(names.into_iter().map(|name| Self::new(self.path.join(name), self.is_v1)));
        Ok(stay)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn processes_are_listed_in_all_subdirectories_also_in_one_that_replaced_another() {
        let top = std::env::temp_dir().join(format!("lattice-group-{}", std::process::id()));
        let _ = fs::remove_dir_all(&top);
        let put = |below: &str, pid: i32| {
            fs::create_dir_all(top.join(below)).unwrap();
            fs::write(top.join(below).join("cgroup.procs"), format!("{pid}\n")).unwrap();
        };
        let mut group = Group::new(CgroupPaths { v2: Some(top.clone()), v1: Vec::new() });
        let mut text = Text::default();
        assert!(!group.is_there() || !group.refresh(&mut text, 100), "it is not there yet");
        put("", 1);
        let mut listed = |group: &mut Group| {
            assert!(group.is_there() && group.refresh(&mut text, 100));
            let mut pids = group.processes().unwrap().to_vec();
            pids.sort_unstable();
            pids
        };
        assert_eq!((listed(&mut group), listed(&mut group)), (vec![1], vec![1]));
        put("launch-1", 2);
        put("launch-1/own", 3);
        assert_eq!((listed(&mut group), listed(&mut group)), (vec![1, 2, 3], vec![1, 2, 3]));
        fs::remove_dir_all(top.join("launch-1")).unwrap();
        put("launch-2", 4);
        assert_eq!(listed(&mut group), [1, 4], "as many as before, and another one");
        fs::remove_dir_all(top.join("launch-2")).unwrap();
        assert_eq!(listed(&mut group), [1]);
        fs::remove_dir_all(&top).unwrap();
        assert!(!group.is_there() || !group.refresh(&mut text, 100));
    }

    /// In the kernel's own v2 tree; skipped if there is none, or if no directory can be made.
    #[test]
    fn in_version_2_a_directory_that_was_made_again_is_another_one() {
        let mounted =
            ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"].into_iter().find(|top| PathBuf::from(top).join("cgroup.controllers").exists());
        let top = PathBuf::from(mounted.unwrap_or("/sys/fs/cgroup")).join(format!("lattice-group-{}", std::process::id()));
        if mounted.is_none() || fs::create_dir(&top).is_err() {
            eprintln!("skipped: no group can be made in a v2 tree");
            return;
        }
        let within = top.join("launch-1");
        let (mut group, mut text) = (Group::new(CgroupPaths { v2: Some(top.clone()), v1: Vec::new() }), Text::default());
        let mut lives = Vec::new();
        for life in 0..3 {
            if life > 0 {
                fs::remove_dir(&within).unwrap();
            }
            if life == 2 {
                fs::remove_dir(&top).unwrap();
                assert!(!group.is_there() || !group.refresh(&mut text, 100), "it is gone");
                fs::create_dir(&top).unwrap();
            }
            fs::create_dir(&within).unwrap();
            let mut sleeps = Command::new("sleep").arg("60").spawn().unwrap();
            fs::write(within.join("cgroup.procs"), sleeps.id().to_string()).unwrap();
            for _ in 0..2 {
                assert!(group.is_there() && group.refresh(&mut text, 100));
                assert_eq!(group.processes(), Some(&[i32::try_from(sleeps.id()).unwrap()][..]));
            }
            lives.push(group.inode());
            sleeps.kill().unwrap();
            sleeps.wait().unwrap();
        }
        assert!(lives[0] == lives[1] && lives[1] != lives[2], "{lives:?}");
        fs::remove_dir(&within).unwrap();
        fs::remove_dir(&top).unwrap();
        assert!(!group.is_there() || !group.refresh(&mut text, 100));
    }

    /// Below the kernel's hierarchy that counts processes; skipped if there is none, or if no directory can be made.
    #[test]
    fn in_version_1_a_new_process_is_in_the_next_list() {
        let top = PathBuf::from(format!("/sys/fs/cgroup/pids/lattice-group-{}", std::process::id()));
        if fs::create_dir(&top).is_err() || !top.join("cgroup.procs").exists() {
            eprintln!("skipped: no group can be made in a hierarchy of version 1");
            let _none = fs::remove_dir(&top);
            return;
        }
        let (mut group, mut text) = (Group::new(CgroupPaths { v2: None, v1: vec![top.clone()] }), Text::default());
        let mut born = Vec::new();
        // Faster than the kernel discards the list of an open file.
        for _ in 0..3 {
            let sleeps = Command::new("sleep").arg("60").spawn().unwrap();
            fs::write(top.join("cgroup.procs"), sleeps.id().to_string()).unwrap();
            born.push(sleeps);
            assert!(group.is_there() && group.refresh(&mut text, 100));
            let mut listed = group.processes().unwrap().to_vec();
            listed.sort_unstable();
            let mut want: Vec<i32> = born.iter().map(|one| i32::try_from(one.id()).unwrap()).collect();
            want.sort_unstable();
            assert_eq!(listed, want);
        }
        for mut sleeps in born {
            sleeps.kill().unwrap();
            sleeps.wait().unwrap();
        }
        fs::remove_dir(&top).unwrap();
        assert!(!group.is_there() || !group.refresh(&mut text, 100));
    }
}
