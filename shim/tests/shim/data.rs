//! The mounts of an allocation: directories elsewhere, and scratch in memory.

use crate::bed::{Bed, Setting};
use lattice_runtime::data_mounts::{Mount, Source};
use lattice_runtime::shim::{FromShim, LogStream};
use std::fs::{self, DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

/// A directory with roots and sources for one test, removed on drop.
struct Site(PathBuf);

impl Site {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lattice-data-{name}-{}", std::process::id()));
        let site = Self(path);
        for dir in ["", "root", "full", "full/there", "full/other", "source", "mine", "hidden", "hidden/inner"] {
            DirBuilder::new().mode(0o755).create(site.0.join(dir)).unwrap();
        }
        fs::write(site.0.join("source/set"), "a data set").unwrap();
        fs::set_permissions(site.0.join("hidden"), Permissions::from_mode(0o700)).unwrap();
        chown(site.0.join("mine"), Some(65534), Some(65534)).unwrap();
        site
    }

    fn directory(&self, source: &str, root: &str, below: &str, read_only: bool) -> Mount {
        let what = Source::Directory { path: self.0.join(source), read_only };
        Mount { what, root: self.0.join(root), below: below.into(), alone: false }
    }

    fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn with(mounts: Vec<Mount>) -> Setting {
    Setting { mounts, ..Setting::default() }
}

/// The output of a script that runs as the owner.
fn output(bed: &mut Bed, script: &str) -> String {
    let launch = bed.start_sh(1, 1, script);
    bed.agent.outcomes(&launch);
    bed.log(1, 0, LogStream::Out) + &bed.log(1, 0, LogStream::Err)
}

pub fn memory() {
    let site = Site::new("memory");
    let mount = Mount { what: Source::Memory { bytes: 1 << 20 }, root: site.0.join("full"), below: "mine".into(), alone: true };
    let mut bed = Bed::ready(with(vec![mount]));
    let dir = site.0.join("full/mine").display().to_string();
    let script = format!(
        "stat -c '%u %a' {dir}; ls {root}; head -c 900000 /dev/zero > {dir}/a && echo fits; head -c 900000 /dev/zero > {dir}/b || echo full; \
         mkdir {root}/more || echo sealed; grep -c ' {dir} .*nosuid,nodev' /proc/self/mountinfo",
        root = site.0.join("full").display()
    );
    let text = output(&mut bed, &script);
    let lines: Vec<&str> = text.lines().filter(|l| !l.contains("space") && !l.contains("Read-only")).collect();
    assert_eq!(lines, ["65534 700", "mine", "fits", "full", "sealed", "1"], "{text}");
    assert!(!Path::new(&dir).exists() && site.0.join("full/there").exists(), "nothing of it is seen outside");
    bed.end();
    assert!(!fs::read_to_string("/proc/self/mountinfo").unwrap().contains(site.text()));
}

pub fn directories() {
    let site = Site::new("directories");
    let mounts = vec![
        site.directory("source", "root", "sets/a", true),
        site.directory("mine", "full", "there", false),
        site.directory("source", "root", "sets/a/none", true),
    ];
    // The source must have the directory of the inner mount.
    fs::create_dir(site.0.join("source/none")).unwrap();
    let mut bed = Bed::ready(with(mounts));
    let base = site.text();
    let script = format!(
        "cat {base}/root/sets/a/set {base}/root/sets/a/none/set; echo; touch {base}/root/sets/a/new || echo read-only; \
         echo hello > {base}/full/there/out && echo written; ls {base}/full"
    );
    let text = output(&mut bed, &script);
    let lines: Vec<&str> = text.lines().filter(|l| !l.contains("touch")).collect();
    assert_eq!(lines, ["a data seta data set", "read-only", "written", "other", "there"], "{text}");
    bed.end();
    assert_eq!(fs::read_to_string(site.0.join("mine/out")).unwrap(), "hello\n");
    assert_eq!(fs::read_dir(site.0.join("root")).unwrap().count(), 0, "no mount point is left");
}

pub fn refused() {
    let site = Site::new("refused");
    symlink(&site.0, site.0.join("full/link")).unwrap();
    let cases = [
        (site.directory("hidden/inner", "root", "a", true), "nobody cannot reach it"),
        (site.directory("nowhere", "root", "a", true), "No such file"),
        (site.directory("source/set", "root", "a", true), "Not a directory"),
        (site.directory("source", "full", "nowhere", true), "is not empty"),
        (site.directory("source", "full", "link", true), "link"),
        (site.directory("source", "full", "link/root", true), "link"),
        (site.directory("source", "full", "../root", true), "root"),
    ];
    for (mount, why) in cases {
        let mut bed = Bed::new(with(vec![mount.clone()]));
        match &bed.agent.synced()[1] {
            FromShim::Ready { failed: Some(reason) } => assert!(reason.contains(why), "{mount:?}: {reason}"),
            other => panic!("{mount:?}: {other:?}"),
        }
        bed.end();
    }
}
