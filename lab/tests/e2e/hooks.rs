//! The site's prologue and epilogue.

use crate::data::site;
use crate::harness::{Group, Need, World};
use lattice_lab::lattice::text;
use lattice_lab::{faults, image, process};
use libtest_mimic::Trial;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

static HOOKS: Group = Group { theme: "hooks", name: "site", nodes: 3, quorum: 1, tweak: site };
/// Well below the hooks' time limit (8 s): work that ended by then did not wait for a hook.
const PROMPT: Duration = Duration::from_secs(5);

pub fn trials() -> Vec<Trial> {
    vec![
        HOOKS.test("run_around_the_job_with_their_environment", &[], around),
        HOOKS.test("a_failing_prologue_excludes_its_node_and_is_reported", &[], excluded),
        HOOKS.test("three_failing_prologues_end_it_with_the_reason", &[], three),
        HOOKS.test("a_slow_prologue_is_cancelled_promptly", &[], cancelled),
        HOOKS.test("a_launch_that_is_interrupted_before_it_began_is_brought_down", &[], interrupted),
        HOOKS.test("a_prologue_over_its_limit_is_killed_with_its_group", &[], too_long),
        HOOKS.test("a_prologue_under_a_killed_agent_is_run_again_alone", &[], killed),
        HOOKS.test("a_failing_epilogue_is_reported_and_the_node_is_released", &[], epilogue),
        HOOKS.test("a_copy_of_an_image_is_cancelled_promptly", &[Need::Mounts], copy),
    ]
}

/// Hooks that do nothing.
pub fn quiet(w: &World) {
    for name in ["prologue", "epilogue"] {
        hook(w, name, "");
    }
    // Every account that a test uses has a home where the site says; root's has the tests' working directory, which the
    // mount would hide.
    let here = std::env::current_dir().unwrap();
    fs::create_dir_all(w.dir.join("homes/root").join(here.strip_prefix("/root").unwrap_or(Path::new("")))).unwrap();
    let _ = fs::remove_file(trace(w));
}

/// Replaces a hook atomically, because the old one may be running.
fn hook(w: &World, name: &str, body: &str) {
    let (path, new) = (w.dir.join(name), w.dir.join(format!("{name}.new")));
    fs::write(&new, format!("#!/bin/sh\nT={}\n{body}\n", trace(w).display())).unwrap();
    fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(new, path).unwrap();
}

fn trace(w: &World) -> PathBuf {
    w.dir.join("trace")
}

fn traced(w: &World) -> Vec<String> {
    fs::read_to_string(trace(w)).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn alive(pid: &str) -> bool {
    process::stat(pid.parse().unwrap()).is_some_and(|(state, _)| state != 'Z')
}

fn around(w: &World) {
    quiet(w);
    let body = "echo $LATTICE_HOOK $LATTICE_ALLOC_ID $LATTICE_USER $LATTICE_UID $LATTICE_NNODES $(id -u) ${SECRET:-clean} >> $T; \
                test -d $LATTICE_SCRATCH && echo from-the-site > $LATTICE_SCRATCH/filled; grep -c alloc- /proc/self/cgroup >> $T; true";
    hook(w, "prologue", body);
    hook(w, "epilogue", &format!("cp $LATTICE_SCRATCH/result {}/collected; {body}", w.dir.display()));
    let job = format!("echo job >> {}; cat $LATTICE_SCRATCH/filled; echo of-the-job > $LATTICE_SCRATCH/result", trace(w).display());
    let id = w.submit(&["--env", "SECRET=x", "--", "/bin/sh", "-c", &job]);
    w.completed(&id);
    w.assert_nothing_left();
    w.wait("the epilogue", || traced(w).len() == 5);
    let line = |hook: &str| format!("{hook} {id} root 0 1 0 clean");
    assert_eq!(traced(w), [line("prologue"), "0".into(), "job".into(), line("epilogue"), "0".into()]);
    assert_eq!(w.ok(&["logs", &id]), "from-the-site\n");
    assert_eq!(fs::read_to_string(w.dir.join("collected")).unwrap(), "of-the-job\n");
}

fn excluded(w: &World) {
    quiet(w);
    hook(w, "prologue", "echo $LATTICE_NODE >> $T; if [ $(wc -l < $T) = 1 ]; then echo the fan of $LATTICE_NODE is broken >&2; exit 3; fi");
    let id = w.submit(&["--", "/bin/echo", "it-runs"]);
    let ended = w.completed(&id);
    let tried = traced(w);
    assert_eq!(tried.len(), 2, "{tried:?}");
    assert_ne!(tried[0], tried[1], "the node is not tried again");
    assert_eq!(ended["nodes"][0].as_str(), Some(tried[1].as_str()));
    let log = fs::read_to_string(w.dir.join(&tried[0]).join("log")).unwrap();
    let reason = format!("ended with exit code 3: the fan of {} is broken", tried[0]);
    assert!(log.contains(&reason), "the agent's log says it");
    quiet(w);
}

fn three(w: &World) {
    quiet(w);
    hook(w, "prologue", "echo $LATTICE_NODE >> $T; echo no fabric; exit 1");
    let id = w.submit(&["--", "/bin/echo", "it-did-run"]);
    let ended = w.ended(&id);
    let reason = text(&ended, "reason");
    assert!(text(&ended, "state") == "Failed" && reason.contains("prologue_failed on ") && reason.contains("no fabric"), "{ended}");
    let mut tried = traced(w);
    tried.sort();
    assert_eq!(tried, ["n1", "n2", "n3"]);
    assert!(w.ok(&["explain", &id]).contains("no fabric"));
    assert!(!w.log(&id).contains("it-did-run"));
    w.assert_nothing_left();
    quiet(w);
}

/// A prologue that hangs with a child of its own: both pids are traced.
const HANGS: &str = "sleep 600 & echo $! >> $T; echo $$ >> $T; wait";

fn cancelled(w: &World) {
    quiet(w);
    hook(w, "prologue", HANGS);
    let id = w.submit(&["--", "/bin/echo", "it-did-run"]);
    w.wait("the prologue", || traced(w).len() == 2);
    assert_eq!(text(&w.status(&id), "state"), "Staging");
    let begun = Instant::now();
    w.ok(&["cancel", &id]);
    w.wait("the prologue to be ended", || traced(w).iter().all(|pid| !alive(pid)));
    w.assert_nothing_left();
    assert!(begun.elapsed() < PROMPT, "{:?}", begun.elapsed());
    assert_eq!(text(&w.ended(&id), "state"), "Cancelled");
    quiet(w);
    // The node is free at once.
    let next = w.submit(&["--nodes", "3", "--", "/bin/true"]);
    w.completed(&next);
}

/// Whether the process has a handler for a signal.
fn catches(pid: Pid, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
    u64::from_str_radix(caught, 16).unwrap() & 1 << (signal as i32 - 1) != 0
}

fn interrupted(w: &World) {
    quiet(w);
    let gate = w.dir.join("gate");
    hook(w, "prologue", &format!("echo $LATTICE_NODE >> $T; until test -e {}; do sleep 0.05; done", gate.display()));
    let id = w.submit(&["--", "/bin/sleep", "600"]);
    w.wait("the prologue", || traced(w).len() == 1);
    let mut command = w.at(&traced(w)[0]).command(&["launch", "--alloc", &id, "-n", "1", "--", "/bin/sleep", "600"]);
    let mut launch = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = Pid::from_raw(launch.id().cast_signed());
    w.wait("it to mind Ctrl-C", || catches(pid, Signal::SIGINT));
    kill(pid, Signal::SIGINT).unwrap();
    let mut line = String::new();
    BufReader::new(launch.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("ending the launch"), "{line}");
    fs::write(&gate, "").unwrap();
    let mut code = None;
    w.wait("the launch to end", || {
        code = launch.try_wait().unwrap();
        code.is_some()
    });
    assert_eq!(code.and_then(|c| c.code()), Some(130), "{}", w.status(&id));
    fs::remove_file(&gate).unwrap();
    quiet(w);
    // Its processes are gone, and the allocation continues.
    w.ok(&["launch", "--alloc", &id, "-n", "1", "--", "/bin/true"]);
    w.ok(&["cancel", &id]);
    w.ended(&id);
    w.assert_nothing_left();
}

fn too_long(w: &World) {
    quiet(w);
    hook(w, "prologue", &format!("trap '' TERM; {HANGS}"));
    let id = w.submit(&["--nodes", "3", "--", "/bin/echo", "it-did-run"]);
    w.wait("the reason", || text(&w.status(&id), "reason").contains("did not end within 8 s"));
    w.wait("its processes to be killed", || traced(w).iter().all(|pid| !alive(pid)));
    quiet(w);
    w.ok(&["cancel", &id]);
    w.assert_nothing_left();
}

fn killed(w: &World) {
    quiet(w);
    hook(w, "prologue", &format!("echo $LATTICE_NODE > {}/where; {HANGS}", w.dir.display()));
    let id = w.submit(&["--", "/bin/echo", "it-runs"]);
    w.wait("the prologue", || traced(w).len() == 2);
    let node = fs::read_to_string(w.dir.join("where")).unwrap().trim().to_owned();
    let first = traced(w);
    faults::kill_node(&w.dir, &node).unwrap();
    assert!(first.iter().all(|pid| alive(pid)), "it outlives its agent");
    hook(w, "prologue", "echo again >> $T");
    faults::start_node(&w.dir, &node).unwrap();
    w.completed(&id);
    assert_eq!(w.ok(&["logs", &id]), "it-runs\n");
    assert!(first.iter().all(|pid| !alive(pid)), "the first was ended");
    assert_eq!(traced(w).last().map(String::as_str), Some("again"));
    w.assert_nothing_left();
}

fn epilogue(w: &World) {
    quiet(w);
    hook(w, "epilogue", "echo cannot unmount; exit 9");
    let id = w.submit(&["--nodes", "3", "--", "/bin/true"]);
    w.completed(&id);
    let degraded = |node: &str| w.at(node).ok(&["node", "status"]).unwrap_or_default();
    w.wait("it to be told", || degraded("n2").contains("ended with exit code 9: cannot unmount"));
    assert!(degraded("n2").contains(&id));
    w.assert_nothing_left();
    hook(w, "epilogue", "");
    // The node is released nevertheless, and well again after the next success.
    let next = w.submit(&["--nodes", "3", "--", "/bin/true"]);
    w.completed(&next);
    w.wait("it to be well again", || !degraded("n2").contains("cannot unmount"));
    w.assert_nothing_left();
}

/// The copy waits for another one, which this test simulates.
fn copy(w: &World) {
    quiet(w);
    let path = w.dir.join("another.sqfs");
    image::write(&path, w.ring().program()).unwrap();
    // Appended bytes make it another file, which no node has in its cache.
    let mut bytes = fs::read(&path).unwrap();
    bytes.extend([7u8; 4096]);
    fs::write(&path, &bytes).unwrap();
    let busy = w.submit(&["--nodes", "3", "--", "/bin/sleep", "60"]);
    w.running(&busy);
    let id = w.submit(&["--uenv", &path.to_string_lossy(), "--", "/bin/echo", "it-did-run"]);
    let digest = text(&w.status(&id), "uenv_sha256");
    let held: Vec<_> = ["n1", "n2", "n3"]
        .iter()
        .map(|node| {
            let images = w.cluster().run_dir.join(node).join("state/images");
            fs::create_dir_all(&images).unwrap();
            let part = fs::File::create(images.join(format!("sha256-{digest}.sqfs.part"))).unwrap();
            Flock::lock(part, FlockArg::LockExclusive).map_err(|(_, e)| e).unwrap()
        })
        .collect();
    w.ok(&["cancel", &busy]);
    w.wait("it to wait for the copy", || text(&w.status(&id), "state") == "Staging");
    let name = w.status(&id)["nodes"][0].as_str().unwrap().to_owned();
    let node = |w: &World| w.at(&name).ok(&["node", "status"]).unwrap_or_default();
    w.wait("the agent to be at the image", || node(w).contains("preparing: image"));
    let begun = Instant::now();
    w.ok(&["cancel", &id]);
    w.wait("the agent to be rid of it", || node(w).contains("No allocations"));
    assert!(begun.elapsed() < PROMPT, "{:?}", begun.elapsed());
    drop(held);
    w.assert_nothing_left();
}
