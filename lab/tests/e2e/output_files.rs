//! Files of the user that output is also written to, standard input from a file, and the signal before the walltime
//! ends.

use crate::harness::{Group, Need, World};
use crate::hung::HungMount;
use lattice_lab::faults;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

static OUTPUT_FILES: Group = Group::small("output_files");

/// An ordinary user.
const NOBODY: u32 = 65534;

pub fn trials() -> Vec<Trial> {
    vec![
        OUTPUT_FILES.test("output_is_in_the_file_while_it_is_written_also_without_an_agent", &[], as_it_is_written),
        OUTPUT_FILES.test("ranks_on_two_nodes_have_files_of_their_own_or_share_one", &[], ranks),
        OUTPUT_FILES.test("tasks_of_a_group_have_files_by_their_index", &[], tasks),
        OUTPUT_FILES.test("a_requeued_attempt_adds_to_the_file_or_empties_it", &[], requeued),
        OUTPUT_FILES.test("work_begins_only_with_files_that_its_user_may_have", &[], refused),
        OUTPUT_FILES.test("files_belong_to_the_user", &[], of_the_user),
        OUTPUT_FILES.test("a_full_disk_of_the_file_does_not_harm_the_work", &[], full_disk),
        OUTPUT_FILES.test("a_file_that_hangs_delays_no_other_work_and_is_named_in_the_log", &[Need::Fuse], hung_file),
        OUTPUT_FILES.test("standard_input_comes_from_a_file", &[], input),
        OUTPUT_FILES.test("a_signal_comes_before_the_walltime_ends", &[], warned),
        OUTPUT_FILES.test("nothing_is_left_of_ended_jobs", &[], World::assert_nothing_left),
    ]
}

/// An empty folder where everybody may write.
fn folder(w: &World, name: &str) -> PathBuf {
    let dir = w.dir.join(format!("of-{name}"));
    fs::create_dir_all(&dir).unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
    dir
}

fn read(dir: &Path, name: &str) -> String {
    fs::read_to_string(dir.join(name)).unwrap_or_default()
}

fn option(name: &str, dir: &Path, file: &str) -> String {
    format!("--{name}={}", dir.join(file).display())
}

fn as_it_is_written(w: &World) {
    let dir = folder(w, "written");
    let lines = format!("echo out; echo err >&2; while [ ! -e {}/go ]; do sleep 0.05; done; seq 50000; echo last", dir.display());
    let script = w.script("written.sh", &format!("#!/bin/sh\n#LATTICE output=%x.out\n{lines}\n"));
    let id = w.submit(&[&format!("-D{}", dir.display()), &script]);
    let written = || read(&dir, "written.sh.out");
    w.wait("the first lines in the file", || written().contains("out\n") && written().contains("err\n"));
    let node = w.status(&id)["nodes"][0].as_str().unwrap().to_owned();
    faults::kill_node(&w.dir, &node).unwrap();
    fs::write(dir.join("go"), "").unwrap();
    w.wait("the last line in the file", || written().ends_with("50000\nlast\n"));
    faults::start_node(&w.dir, &node).unwrap();
    w.completed(&id);
    let log = w.run(&["logs", &id]);
    assert_eq!((log.out().lines().count(), log.err().as_str()), (50_002, "err\n"));
    assert_eq!(written().lines().count(), 50_003);
}

fn ranks(w: &World) {
    let dir = folder(w, "ranks");
    let (output, error) = (option("output", &dir, "r%3t.%n"), option("error", &dir, "all"));
    fs::write(dir.join("all"), "before\n").unwrap();
    let id = w.submit(&["-N2", &output, &error, "--", "/bin/sh", "-c", "echo rank $LATTICE_RANK; echo error $LATTICE_RANK >&2"]);
    w.completed(&id);
    assert_eq!([read(&dir, "r000.0"), read(&dir, "r001.1")], ["rank 0\n", "rank 1\n"]);
    let all = read(&dir, "all");
    let mut lines: Vec<&str> = all.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["error 0", "error 1"], "it was emptied before both began");
    let shown = w.ok(&["status", &id]);
    assert!(shown.contains("\nFiles:"), "{shown}");
}

fn tasks(w: &World) {
    let dir = folder(w, "tasks");
    let output = option("output", &dir, "%A_%a.out");
    let id = w.submit(&["--task-group=3-5", "--walltime=5m", &output, "--", "/bin/sh", "-c", "echo task $LATTICE_TASK_INDEX"]);
    w.completed(&id);
    let mut written: Vec<String> = fs::read_dir(&dir).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    written.sort_unstable();
    assert_eq!(written.len(), 3, "{written:?}");
    for (name, index) in written.iter().zip(3..) {
        assert!(name.ends_with(&format!("_{index}.out")), "{written:?}");
        assert_eq!(read(&dir, name), format!("task {index}\n"));
    }
    let failed = w.submit(&["--task-group=0-2", "--walltime=5m", "--output=/no/such/folder/%a", "--", "/bin/true"]);
    assert_eq!(text(&w.ended(&failed), "reason"), "tasks_failed: 3 of 3");
}

fn requeued(w: &World) {
    for (mode, want) in [("append", "attempt\nattempt\n"), ("truncate", "attempt\n")] {
        let dir = folder(w, mode);
        let work = format!("echo attempt; [ -e {0}/again ] || {{ touch {0}/again; sleep 300; }}", dir.display());
        let id = w.submit(&[&option("output", &dir, "out"), "--open-mode", mode, "--", "/bin/sh", "-c", &work]);
        w.wait("the first attempt", || dir.join("again").exists() && read(&dir, "out") == "attempt\n");
        w.ok(&["requeue", &id]);
        w.completed(&id);
        assert_eq!(read(&dir, "out"), want, "{mode}");
    }
}

fn refused(w: &World) {
    let script = w.script("refused.sh", "#!/bin/sh\ntrue\n");
    for work in [&["--", "/bin/true"][..], &[script.as_str()]] {
        let id = w.submit(&[&["--output=/no/such/folder/out"], work].concat());
        let ended = w.ended(&id);
        assert_eq!((text(&ended, "state").as_str(), text(&ended, "exit_code").as_str()), ("Failed", "126"), "{ended}");
        assert!(w.log(&id).contains("lattice: --output /no/such/folder/out: No such file or directory"), "{}", w.log(&id));
    }
    let bad = w.run(&["submit", "--output=%q", "--", "/bin/true"]);
    assert!(bad.code() == 2 && bad.err().contains("output: \"%q\" is no pattern"), "{} {}", bad.code(), bad.err());
    let format = w.run(&["submit", "--output", "json", "--", "/bin/true"]);
    assert!(format.code() == 2 && format.err().contains("write `-o json` for the format"), "{} {}", format.code(), format.err());
}

fn of_the_user(w: &World) {
    let (dir, home) = (folder(w, "user"), w.dir.join(format!("home-{NOBODY}")));
    fs::create_dir_all(&home).unwrap();
    chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
    fs::write(dir.join("root"), "root's\n").unwrap();
    fs::set_permissions(dir.join("root"), Permissions::from_mode(0o600)).unwrap();
    let submitted = |file: &str| {
        let output = option("output", &dir, file);
        let done = w.run_as(NOBODY, &["submit", "-o", "name", &output, "--", "/bin/echo", "hello"]);
        assert_eq!(done.code(), 0, "{}", done.err());
        done.out().trim().to_owned()
    };
    w.completed(&submitted("own"));
    assert_eq!((read(&dir, "own").as_str(), fs::metadata(dir.join("own")).unwrap().uid()), ("hello\n", NOBODY));
    let id = submitted("root");
    assert_eq!(text(&w.ended(&id), "exit_code"), "126");
    assert!(w.log(&id).contains("root: Permission denied"), "{}", w.log(&id));
    assert_eq!(read(&dir, "root"), "root's\n");
    // No limit of output counts the script's file, so its user must not be able to write to it.
    let lines = "head -1 /proc/self/fd/3; if chmod u+w /proc/self/fd/3 2>/dev/null; then echo changed; fi";
    fs::write(dir.join("script"), format!("#!/bin/sh\n{lines}\n")).unwrap();
    let done = w.run_as(NOBODY, &["submit", "-o", "name", &dir.join("script").display().to_string()]);
    assert_eq!(done.code(), 0, "{}", done.err());
    let id = done.out().trim().to_owned();
    w.completed(&id);
    assert_eq!(w.log(&id), "#!/bin/sh\n");
}

fn full_disk(w: &World) {
    let id = w.submit(&["--output=/dev/full", "--", "/bin/sh", "-c", "seq 1000"]);
    w.completed(&id);
    let log = w.run(&["logs", &id]);
    assert!(log.out().ends_with("\n1000\n"), "{}", log.out());
    let why = "lattice: some of its output may be missing in /dev/full: No space left on device";
    assert_eq!(log.err().matches(why).count(), 1, "{}", log.err());
    // The agent logs the failure. The line break in the path must not begin a log entry.
    let forged = "2026-01-01T00:00:00.000000Z  WARN lattice_agent: forged";
    let dir = folder(w, &format!("forged\n{forged}"));
    std::os::unix::fs::symlink("/dev/full", dir.join("full")).unwrap();
    let id = w.submit(&[&format!("-D{}", dir.display()), "--output=full", "--", "/bin/echo", "x"]);
    w.completed(&id);
    w.wait("the agent's warning", || agent_logs(w).contains(forged));
    assert!(!agent_logs(w).lines().any(|line| line.starts_with(forged)), "{}", agent_logs(w));
}

fn agent_logs(w: &World) -> String {
    w.cluster().nodes.iter().map(|node| fs::read_to_string(&node.daemon.log).unwrap()).collect()
}

/// While a write hangs, the log of its work and the status of the node name the file, and not once it returns.
fn named_while_it_hangs(w: &World, dir: &Path) {
    let (hung, end) = (HungMount::new(&w.dir.join("hung-late")), dir.join("end"));
    let path = hung.dir.join("data");
    let work = format!("echo first; while [ ! -e {} ]; do sleep 0.05; done", end.display());
    let output = option("output", &hung.dir, "data");
    let id = w.submit(&["--cores=1", "--open-mode=append", &output, "--", "/bin/sh", "-c", &work]);
    w.wait("a write that hangs", || hung.is_written());
    let node = w.status(&id)["nodes"][0].as_str().unwrap().to_owned();
    let log = || w.run(&["logs", &id]).err();
    let status = || w.at(&node).json(&["node", "status"]).unwrap()["allocations"].to_string();
    let why = format!("does not answer: {} bytes in {} are not written yet", "first\n".len(), path.display());
    w.wait("the log to name the file", || log().contains(&why));
    assert!(status().contains(&why), "{}", status());
    w.wait("the agent's warning", || agent_logs(w).lines().any(|line| line.contains(&why) && line.contains(&id)));
    assert_eq!(text(&w.status(&id), "state"), "Running");
    drop(hung);
    w.wait("the log to name it no longer", || !log().contains("does not answer"));
    assert!(!status().contains("does not answer"), "{}", status());
    assert_eq!(text(&w.status(&id), "state"), "Running");
    fs::write(end, "").unwrap();
    w.completed(&id);
}

fn hung_file(w: &World) {
    let dir = folder(w, "hung");
    named_while_it_hangs(w, &dir);
    let hung = HungMount::new(&w.dir.join("hung-output"));
    let (to_hung, go) = (option("output", &hung.dir, "data"), dir.join("go"));
    let submitted = |node: &[&str], then: &str| {
        let work = format!("echo first; {then}");
        w.submit(&[&["--cores=1", "--open-mode=append", to_hung.as_str()], node, &["--", "/bin/sh", "-c", work.as_str()]].concat())
    };
    let completes = submitted(&[], &format!("while [ ! -e {} ]; do sleep 0.05; done; echo last", go.display()));
    w.wait("a write that hangs", || hung.is_written());
    let node = w.status(&completes)["nodes"][0].as_str().unwrap().to_owned();
    // Meanwhile the output can be read, and the node runs other work with files of its own.
    w.wait_log(&completes, "first\n");
    w.completed(&w.submit(&["-w", &node, "--cores=1", &option("output", &dir, "other"), "--", "/bin/echo", "other"]));
    assert_eq!(read(&dir, "other"), "other\n");
    let cancelled = submitted(&["-w", &node], "exec sleep 600");
    w.wait_log(&cancelled, "first\n");
    assert_eq!(text(&w.status(&completes), "state"), "Running");
    // Both end while the file hangs, and their users read what is missing where.
    fs::write(go, "").unwrap();
    w.ok(&["cancel", &cancelled]);
    w.completed(&completes);
    assert_eq!(text(&w.ended(&cancelled), "state"), "Cancelled");
    for (id, missing) in [(&completes, "first\nlast\n".len()), (&cancelled, "first\n".len())] {
        let path = hung.dir.join("data");
        let why = format!("were not written in time: {missing} bytes in {} are missing; `lattice logs` has it", path.display());
        w.wait("the error log to name the file", || w.run(&["logs", id]).err().contains(&why));
        w.wait("the agent's warning", || agent_logs(w).lines().any(|line| line.contains(&why) && line.contains(id.as_str())));
    }
    assert!(w.run(&["logs", &completes]).out().ends_with("first\nlast\n"));
    // Their shims end once their writes do.
    drop(hung);
    w.assert_nothing_left_but(&dir);
}

fn input(w: &World) {
    let dir = folder(w, "input");
    fs::write(dir.join("in"), "given\n").unwrap();
    let id = w.submit(&["-n2", "--tasks-per-node=2", &option("input", &dir, "in"), "--", "/bin/cat"]);
    w.completed(&id);
    assert_eq!(w.ok(&["logs", &id]), "given\ngiven\n", "each rank reads all of it");
    let script = w.script("reads.sh", "#!/bin/sh\nread line; echo read $line\n");
    let id = w.submit(&[&option("input", &dir, "in"), &script]);
    w.completed(&id);
    assert_eq!(w.ok(&["logs", &id]), "read given\n");
}

fn warned(w: &World) {
    let text_of = "#!/bin/sh\n#LATTICE --walltime=5m --signal=B:USR1@297\ntrap 'echo warned; exit 0' USR1\nwhile :; do sleep 0.1; done\n";
    let script = w.submit(&[&w.script("warned.sh", text_of)]);
    let work = "trap 'echo warned; exit 0' USR2; while :; do sleep 0.1; done";
    let ranks = w.submit(&["--walltime=5m", "--signal=USR2@297", "-n2", "--tasks-per-node=2", "--", "/bin/sh", "-c", work]);
    for (id, want) in [(script, "warned\n"), (ranks, "warned\nwarned\n")] {
        w.completed(&id);
        assert_eq!(w.ok(&["logs", &id]), want);
    }
    for (args, piece) in [
        (&["--signal=USR1@300", "--walltime=5m", "--", "/bin/true"][..], "do not lie within a walltime of 300 s"),
        (&["--signal=B:USR1", "--", "/bin/true"], "B: is for the process of a script"),
        (&["--signal=R:USR1", "--", "/bin/true"], "leave it out"),
        (&["--signal=USR1", "--service", "--", "/bin/true"], "give --walltime as well"),
    ] {
        let refused = w.run(&[&["submit"], args].concat());
        assert!(refused.code() == 2 && refused.err().contains(piece), "{args:?}: {} {}", refused.code(), refused.err());
    }
}
