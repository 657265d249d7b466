//! Homes, scratch, output directories and mounts in an allocation, and their removal.

use crate::harness::{Group, NOBODY, World};
use lattice_lab::lattice::text;
use lattice_lab::process::Identity;
use lattice_lab::up::Options;
use lattice_lab::{faults, process};
use libtest_mimic::Trial;
use std::fs;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

static MEMORY: Group = Group::small("data");
static DISK: Group = Group { theme: "data", name: "site", nodes: 3, quorum: 1, tweak: site };

/// A site with scratch on disk, homes, an output directory, a root for mounts, and hooks.
pub fn site(options: &mut Options) {
    options.node_folders = vec!["scratch".to_owned()];
    options.agent_lines = "scratch: {dir: \"{run}/scratch\"}\n\
                           data: {home_source: \"{dir}/homes/{user}\", output_dir: \"{dir}/output\", mount_roots: [\"{dir}/data\"]}\n\
                           hooks:\n  prologue: {program: \"{dir}/prologue\", timeout_seconds: 8}\n  \
                           epilogue: {program: \"{dir}/epilogue\", timeout_seconds: 8}\n"
        .to_owned();
}

pub fn trials() -> Vec<Trial> {
    vec![
        MEMORY.test("scratch_in_memory_is_limited_and_private", &[], memory),
        MEMORY.test("what_is_not_implemented_or_not_allowed_is_refused_by_name", &[], refused),
        DISK.test("scratch_on_disk_belongs_to_the_owner_and_is_removed_with_the_job", &[], disk),
        DISK.test("scratch_is_removed_also_when_agent_and_shim_are_killed", &[], killed),
        DISK.test("stray_scratch_is_swept_at_the_agents_start_and_nothing_else", &[], strays),
        DISK.test("directories_are_mounted_with_the_users_rights", &[], mounts),
        DISK.test("home_and_output_directory_exist_in_the_allocation", &[], home_and_output),
    ]
}

/// The scratch directory of a node.
fn scratch(w: &World, node: &str) -> PathBuf {
    w.cluster().run_dir.join(node).join("scratch")
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Submits as an ordinary user.
fn submit_as_nobody(w: &World, args: &[&str]) -> String {
    let done = w.run_as(NOBODY, &[&["submit", "-o", "name"], args].concat());
    assert_eq!(done.code(), 0, "{}", done.err());
    done.out().trim().to_owned()
}

fn memory(w: &World) {
    let script = "stat -c '%u %a' $LATTICE_SCRATCH; ls $(dirname $LATTICE_SCRATCH) | wc -l; \
                  head -c 1500000 /dev/zero > $LATTICE_SCRATCH/a && echo fits; head -c 1500000 /dev/zero > $LATTICE_SCRATCH/b || echo full";
    let id = submit_as_nobody(w, &["--scratch-per-node", "2MiB", "--", "/bin/sh", "-c", script]);
    w.completed(&id);
    let log = w.ok(&["logs", "--stdout", &id]);
    assert_eq!(log.lines().collect::<Vec<_>>(), ["65534 700", "1", "fits", "full"], "{log}");
    let id = w.submit(&["--", "/bin/sh", "-c", "df -B1 --output=size $LATTICE_SCRATCH | tail -1; cat /proc/meminfo | head -1"]);
    w.completed(&id);
    let numbers: Vec<u64> = w.ok(&["logs", &id]).split_whitespace().filter_map(|n| n.parse().ok()).collect();
    let (size, total) = (numbers[0], numbers[1] * 1024);
    // Without a size it is a quarter of the memory for work, which is less than all memory.
    assert!(size <= total / 4 && size > total / 6, "a quarter of {total} and not {size}");
    let id = w.submit(&["--no-data-defaults", "--", "/bin/sh", "-c", "echo ${LATTICE_SCRATCH:-none}"]);
    w.completed(&id);
    assert_eq!(w.ok(&["logs", &id]), "none\n");
    let id = w.submit(&["--scratch-per-node", "900TB", "--", "/bin/true"]);
    let ended = w.ended(&id);
    assert!(text(&ended, "state") == "Failed" && text(&ended, "reason").contains("bytes of memory"), "{ended}");
    w.assert_nothing_left();
}

fn refused(w: &World) {
    let cases: [(&[&str], &str); 5] = [
        (&["--data-mount", "s3://a/b:/data/b"], "s3://"),
        (&["--data-mount", "nfs://home/x:/data/b"], "nfs://"),
        (&["--data-mount", "ftp://x:/data/b"], "ftp://"),
        (&["--data-mount", "/tmp:/data/../etc"], "absolute path"),
        (&["--scratch-per-node", "much"], "500GB"),
    ];
    for (options, expected) in cases {
        let done = w.run(&[&["submit"], options, &["--", "/bin/true"]].concat());
        assert!([2, 4].contains(&done.code()) && done.err().contains(expected), "{options:?}: {} {}", done.code(), done.err());
    }
    let id = w.submit(&["--data-mount", "/tmp:/etc", "--", "/bin/true"]);
    let ended = w.ended(&id);
    assert!(text(&ended, "state") == "Failed" && text(&ended, "reason").contains("mount_roots"), "{ended}");
    assert!(w.ok(&["explain", &id]).contains("mount_roots"));
}

fn disk(w: &World) {
    crate::hooks::quiet(w);
    let victim = w.dir.join("victim");
    fs::create_dir_all(&victim).unwrap();
    fs::write(victim.join("kept"), "kept").unwrap();
    fs::create_dir_all(scratch(w, "n1").join("of-the-site")).unwrap();
    let script = format!(
        "cd $LATTICE_SCRATCH && mkdir -p a/b/c && echo x > a/b/c/d && ln -s {v} a/link && ln -s {v}/kept l && chmod 0 a/b/c; \
         ls -a $LATTICE_SCRATCH/.. | tail -n +3; echo ready; sleep 60",
        v = victim.display()
    );
    let id = submit_as_nobody(w, &["--nodes", "2", "--", "/bin/sh", "-c", &script]);
    w.wait("both to be ready", || w.log(&id).matches("ready").count() == 2);
    // A size limit is enforced if the file system has project quota; elsewhere it is reported as not enforced.
    let (status, nodes) = (w.ok(&["node", "status"]), w.ok(&["nodes", "-o", "json"]));
    assert_eq!(status.contains("scratch: a requested size"), nodes.contains("\"scratch\""), "{status} {nodes}");
    let nodes: Vec<String> = w.status(&id)["nodes"].as_array().unwrap().iter().map(|n| n.as_str().unwrap().to_owned()).collect();
    for node in &nodes {
        let about = fs::symlink_metadata(scratch(w, node).join(&id)).unwrap();
        assert_eq!((about.uid(), about.mode() & 0o7777), (NOBODY, 0o700));
    }
    assert_eq!(w.log(&id).matches(&id).count(), 2, "it sees only its own: {}", w.log(&id));
    assert!(!w.log(&id).contains("of-the-site"), "{}", w.log(&id));
    w.ok(&["cancel", &id]);
    w.assert_nothing_left();
    for node in &nodes {
        w.wait("scratch to be removed", || !scratch(w, node).join(&id).exists());
    }
    assert!(victim.join("kept").exists() && scratch(w, "n1").join("of-the-site").exists());
    let wants = w.submit(&["--scratch-per-node", "900PB", "--", "/bin/true"]);
    assert!(text(&w.ended(&wants), "reason").contains("are free"), "{}", w.status(&wants));
}

fn killed(w: &World) {
    crate::hooks::quiet(w);
    let script = "echo x > $LATTICE_SCRATCH/x; echo ready; sleep 60";
    let id = submit_as_nobody(w, &["--requeue=never", "--", "/bin/sh", "-c", script]);
    w.wait_log(&id, "ready");
    let node = w.status(&id)["nodes"][0].as_str().unwrap().to_owned();
    let shim = w.at(&node).json(&["node", "status"]).unwrap()["allocations"][0]["shim_pid"].as_i64().unwrap();
    faults::kill_node(&w.dir, &node).unwrap();
    Identity::of(i32::try_from(shim).unwrap()).unwrap().kill().unwrap();
    assert!(scratch(w, &node).join(&id).join("x").exists());
    faults::start_node(&w.dir, &node).unwrap();
    assert!(text(&w.ended(&id), "reason").contains("shim is gone"));
    w.wait("scratch to be removed", || !scratch(w, &node).join(&id).exists());
    w.assert_nothing_left();
}

fn strays(w: &World) {
    crate::hooks::quiet(w);
    let dir = scratch(w, "n2");
    let kept = w.dir.join("not-to-be-followed");
    fs::create_dir_all(kept.join("inner")).unwrap();
    let stray = dir.join("1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88");
    fs::create_dir_all(stray.join("a/b")).unwrap();
    chown(&stray, Some(NOBODY), Some(NOBODY)).unwrap();
    symlink(&kept, stray.join("a/link")).unwrap();
    symlink(&kept, dir.join("2f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88")).unwrap();
    fs::create_dir_all(dir.join("lost+found")).unwrap();
    // Remains of an agent that was killed while it removed a stray.
    fs::create_dir_all(dir.join(".stray-3f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88-7/x")).unwrap();
    faults::restart_node(&w.dir, "n2").unwrap();
    w.wait("strays to be swept", || names(&dir).iter().all(|n| n == "lost+found" || n == "of-the-site"));
    assert!(dir.join("lost+found").exists() && kept.join("inner").exists());
}

fn mounts(w: &World) {
    crate::hooks::quiet(w);
    let sets = w.dir.join("sets");
    let mine = w.dir.join("mine");
    let hidden = w.dir.join("hidden");
    for dir in [&sets, &mine, &hidden.join("inner")] {
        fs::create_dir_all(dir).unwrap();
    }
    fs::write(sets.join("set"), "a data set\n").unwrap();
    chown(&mine, Some(NOBODY), Some(NOBODY)).unwrap();
    fs::set_permissions(&hidden, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let root = w.dir.join("data");
    let of = |source: &Path, target: &str| format!("{}:{}/{target}", source.display(), root.display());
    let script = format!("cat {r}/in/set; touch {r}/in/x 2>/dev/null || echo read-only; echo out > {r}/out/result", r = root.display());
    let input = of(&sets, "in") + ":ro";
    let id = submit_as_nobody(w, &["--data-mount", &input, "--data-mount", &of(&mine, "out"), "--", "/bin/sh", "-c", &script]);
    w.completed(&id);
    assert_eq!(w.ok(&["logs", &id]), "a data set\nread-only\n");
    assert_eq!(fs::read_to_string(mine.join("result")).unwrap(), "out\n");
    assert_eq!(names(&root), Vec::<String>::new(), "no mount point is left");
    let id = submit_as_nobody(w, &["--data-mount", &of(&hidden.join("inner"), "in"), "--", "/bin/true"]);
    let ended = w.ended(&id);
    assert!(text(&ended, "reason").contains("nobody cannot reach it"), "{ended}");
    w.assert_nothing_left();
}

fn home_and_output(w: &World) {
    crate::hooks::quiet(w);
    let home = w.dir.join("homes/root");
    fs::create_dir_all(&home).unwrap();
    fs::write(home.join("settings"), "of the site\n").unwrap();
    let script = "cat /root/settings; echo result > $LATTICE_OUTPUT/result; echo $LATTICE_OUTPUT";
    let id = w.submit(&["--name", "prep-data", "--tenant", "physics", "--project", "../x", "--", "/bin/sh", "-c", script]);
    w.completed(&id);
    let reads = "cat $LATTICE_PARENT_OUTPUT_prep_data/result";
    let child = w.submit(&["--depends-on", &id, "--", "/bin/sh", "-c", reads]);
    w.completed(&child);
    assert_eq!(w.ok(&["logs", &child]), "result\n");
    let output = w.dir.join("output/physics/_._x").join(&id);
    assert_eq!(w.ok(&["logs", &id]), format!("of the site\n{}\n", output.display()));
    assert_eq!(fs::read_to_string(output.join("result")).unwrap(), "result\n");
    let id = submit_as_nobody(w, &["--nodes", "3", "--", "/bin/sh", "-c", "echo x > $LATTICE_OUTPUT/$LATTICE_NODE"]);
    w.completed(&id);
    let output = w.dir.join("output/default/default").join(&id);
    assert_eq!((fs::metadata(&output).unwrap().uid(), names(&output).len()), (NOBODY, 3));
    assert!(process::until(Duration::from_secs(5), || !Path::new("/root/settings").exists()), "only the job sees it");
}
