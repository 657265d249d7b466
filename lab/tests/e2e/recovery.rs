//! An agent whose environment changed while it was down: another binary, no state or an unusable one, another boot, an
//! impostor, strays. Living work stays, lost work is reported, and nothing is done twice.

use crate::harness::{Folder, Group, JOB, World, binaries};
use lattice_lab::lattice::text;
use lattice_lab::{down, faults, process, sweep};
use lattice_runtime::exits;
use lattice_runtime::shim::ShimDir;
use libtest_mimic::Trial;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

static RECOVERY: Group = Group::small("recovery");

pub fn trials() -> Vec<Trial> {
    vec![
        RECOVERY.test("a_state_that_cannot_be_used_is_kept_and_the_work_goes_on", &[], damaged),
        RECOVERY.test("an_end_before_the_damage_is_reported", &[], ended_before),
        RECOVERY.test("a_newer_state_or_another_nodes_is_refused_until_the_operator_says_otherwise", &[], newer),
        RECOVERY.test("work_lost_with_the_state_is_reported_and_not_started_again", &[], lost),
        RECOVERY.test("a_claim_that_came_and_went_while_the_agent_was_away_is_given_back", &[], missed),
        RECOVERY.test("a_claim_that_an_old_state_does_not_contain_is_given_back", &[], put_back),
        RECOVERY.test("after_a_reboot_all_earlier_work_is_lost", &[], reboot),
        RECOVERY.test("an_impostor_on_a_shims_socket_is_not_adopted", &[], impostor),
        RECOVERY.test("scopes_left_by_an_earlier_agent_are_removed", &[], strays),
        RECOVERY.test("another_copy_of_the_agent_adopts_all", &[], upgrade),
    ]
}

/// A job that records each of its runs, and ends with 7 once [`Job::go`] is called.
struct Job {
    folder: Folder,
    id: String,
    node: String,
}

impl Job {
    fn begin(w: &World, nodes: u32, more: &[&str]) -> Self {
        let folder = Folder::new("recovery-job");
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o777)).unwrap();
        let (ran, go) = (folder.0.join("ran"), folder.0.join("go"));
        let body = format!("echo $LATTICE_RANK >> {}; while [ ! -e {} ]; do sleep 0.02; done; exit 7", ran.display(), go.display());
        let nodes = nodes.to_string();
        let id = w.submit(&[&["--nodes", &nodes, "--requeue=never"][..], more, &["--", "/bin/sh", "-c", &body]].concat());
        w.wait("every rank to run", || runs(&folder.0).len().to_string() == nodes);
        let node = w.status(&id)["nodes"][0].as_str().unwrap().to_owned();
        Self { folder, id, node }
    }

    fn go(&self) {
        fs::write(self.folder.0.join("go"), "").unwrap();
    }

    fn runs(&self) -> usize {
        runs(&self.folder.0).len()
    }

    /// The directory of its shim on its first node.
    fn dir(&self, w: &World) -> PathBuf {
        let below = state_dir(w, &self.node).join("alloc");
        let named = |e: &fs::DirEntry| e.file_name().to_string_lossy().starts_with(&self.id);
        fs::read_dir(below).unwrap().flatten().find(named).unwrap().path()
    }

    fn ends_with_7(&self, w: &World) {
        let runs = self.runs();
        self.go();
        let ended = w.ended(&self.id);
        assert_eq!((text(&ended, "state").as_str(), text(&ended, "exit_code").as_str()), ("Failed", "7"), "{ended}");
        assert_eq!((self.runs(), text(&ended, "requeue_count").as_str()), (runs, "0"), "{ended}");
        w.assert_nothing_left();
    }

    fn is_lost(&self, w: &World, why: &str) {
        let ended = w.ended(&self.id);
        let reason = text(&ended, "reason");
        assert!(text(&ended, "state") == "Failed" && reason.starts_with("node_lost ") && reason.contains(why), "{ended}");
        assert_eq!(self.runs(), 1, "never begun again");
        w.assert_nothing_left();
    }
}

fn runs(folder: &Path) -> Vec<String> {
    fs::read_to_string(folder.join("ran")).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn state_dir(w: &World, node: &str) -> PathBuf {
    w.cluster().run_dir.join(node).join("state")
}

fn log(w: &World, node: &str) -> String {
    fs::read_to_string(&w.cluster().node(node).unwrap().daemon.log).unwrap()
}

fn degraded(w: &World, node: &str) -> String {
    w.at(node).json(&["node", "status"]).unwrap()["degraded"].to_string()
}

fn kept(state: &Path) -> usize {
    fs::read_dir(state).unwrap().flatten().filter(|e| e.file_name().to_string_lossy().contains(".kept-")).count()
}

fn remove_kept(state: &Path) {
    let kept = fs::read_dir(state).unwrap().flatten().filter(|e| e.file_name().to_string_lossy().contains(".kept-"));
    kept.for_each(|e| fs::remove_file(e.path()).unwrap());
}

fn scopes(w: &World, node: &str) -> PathBuf {
    sweep::scopes_root(&format!("{}/{node}/workload.slice", w.cluster().cgroup_root)).unwrap()
}

/// Ends the processes of one node as a reboot would.
fn kill_scopes(w: &World, node: &str) {
    let root = scopes(w, node);
    fs::write(root.join("cgroup.kill"), "1").unwrap();
    w.wait("killed processes to be gone", || sweep::processes_in(&root).is_empty());
}

fn damaged(w: &World) {
    type Damage = fn(&Path);
    let job = Job::begin(w, 2, &[]);
    let state = state_dir(w, &job.node);
    let damages: [(&str, Damage); 7] = [
        ("garbage in the state file", |s| fs::write(s.join("agent-state.json"), "garbage").unwrap()),
        ("half of the state file", |s| {
            let text = fs::read(s.join("agent-state.json")).unwrap();
            fs::write(s.join("agent-state.json"), &text[..text.len() / 2]).unwrap();
        }),
        ("a changed byte in the state file", |s| {
            let text = fs::read_to_string(s.join("agent-state.json")).unwrap();
            assert!(text.contains("\"phase\": \"Running\""), "{text}");
            fs::write(s.join("agent-state.json"), text.replace("\"phase\": \"Running\"", "\"phase\": \"Undoing\"")).unwrap();
        }),
        ("an older journal", |s| {
            let bytes = fs::read(s.join("journal")).unwrap();
            fs::write(s.join("journal"), [b"LATTJRN1", &bytes[8..]].concat()).unwrap();
        }),
        ("a journal that is no journal", |s| fs::write(s.join("journal"), [7; 4096]).unwrap()),
        ("no journal", |s| fs::remove_file(s.join("journal")).unwrap()),
        ("nothing at all", |s| {
            fs::remove_file(s.join("journal")).unwrap();
            fs::remove_file(s.join("agent-state.json")).unwrap();
        }),
    ];
    for (what, damage) in damages {
        faults::kill_node(&w.dir, &job.node).unwrap();
        // The checkpoint must contain the present state.
        faults::start_node(&w.dir, &job.node).unwrap();
        faults::kill_node(&w.dir, &job.node).unwrap();
        damage(&state);
        faults::start_node(&w.dir, &job.node).unwrap();
        let here = w.at(&job.node).json(&["node", "status"]).unwrap();
        assert_eq!((text(&here["allocations"][0], "id"), text(&here["allocations"][0], "phase")), (job.id.clone(), "Running".to_owned()));
        if what != "nothing at all" {
            assert!(degraded(w, &job.node).contains("1 allocation(s) found"), "{what}: {here}");
            assert!(kept(&state) > 0, "{what}");
            assert!(log(w, &job.node).contains("It is kept as"), "{what}");
            remove_kept(&state);
        }
        w.wait("it to be registered", || w.at(&job.node).json(&["node", "status"]).is_ok_and(|s| s["quorum_connected"] == true));
        assert_eq!((text(&w.status(&job.id), "state").as_str(), job.runs()), ("Running", 2), "{what}");
    }
    job.ends_with_7(w);
    w.completed(&w.submit(&["--nodes", "3", "--", "/bin/true"]));
}

fn ended_before(w: &World) {
    let job = Job::begin(w, 1, &[]);
    faults::kill_node(&w.dir, &job.node).unwrap();
    job.go();
    w.wait("it to end without its agent", || sweep::processes_in(&scopes(w, &job.node)).len() <= 1);
    fs::write(state_dir(w, &job.node).join("agent-state.json"), "garbage").unwrap();
    faults::start_node(&w.dir, &job.node).unwrap();
    job.ends_with_7(w);
    // If the shim is gone as well, its file of exits is left.
    let job = Job::begin(w, 1, &[]);
    faults::kill_node(&w.dir, &job.node).unwrap();
    let dir = ShimDir(job.dir(w));
    job.go();
    w.wait("its end to be in the shim's file", || !exits::read(&dir).unwrap().is_empty());
    kill_scopes(w, &job.node);
    fs::write(state_dir(w, &job.node).join("journal"), "garbage").unwrap();
    faults::start_node(&w.dir, &job.node).unwrap();
    job.ends_with_7(w);
    remove_kept(&state_dir(w, &job.node));
}

fn newer(w: &World) {
    type Change = fn(&Path);
    let job = Job::begin(w, 1, &[]);
    let state = state_dir(w, &job.node);
    let changes: [(&str, Change, &str); 3] = [
        (
            "a newer journal",
            |s| {
                let bytes = fs::read(s.join("journal")).unwrap();
                fs::write(s.join("journal"), [b"LATTJRN9", &bytes[8..]].concat()).unwrap();
            },
            "was written by a newer version",
        ),
        ("a newer state file", |s| fs::write(s.join("agent-state.json"), "{\"version\": 99}").unwrap(), "was written by a newer version"),
        (
            "another node's",
            |s| {
                let text = fs::read_to_string(s.join("agent-state.json")).unwrap();
                let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
                json["node"] = "elsewhere".into();
                fs::write(s.join("agent-state.json"), json.to_string()).unwrap();
            },
            "is the state of node elsewhere",
        ),
    ];
    for (what, change, expected) in changes {
        faults::kill_node(&w.dir, &job.node).unwrap();
        change(&state);
        let before = fs::read(state.join("agent-state.json")).unwrap();
        faults::begin_node(&w.dir, &job.node, &[], &[]).unwrap();
        w.wait("the agent to refuse", || !w.cluster().node(&job.node).unwrap().daemon.alive());
        let log = log(w, &job.node);
        let last = log.lines().rfind(|l| l.starts_with("error:")).unwrap_or_default();
        assert!(last.contains(expected) && last.contains("--recover"), "{what}: {last}");
        assert!(kept(&state) == 0 && fs::read(state.join("agent-state.json")).unwrap() == before, "{what}: untouched");
        faults::begin_node(&w.dir, &job.node, &["--recover"], &[]).unwrap();
        w.wait("the agent to go on", || w.at(&job.node).json(&["node", "status"]).is_ok_and(|s| s["quorum_connected"] == true));
        assert_eq!(kept(&state), 2, "{what}");
        assert_eq!((text(&w.status(&job.id), "state").as_str(), job.runs()), ("Running", 1), "{what}");
        remove_kept(&state);
    }
    job.ends_with_7(w);
}

fn lost(w: &World) {
    let job = Job::begin(w, 1, &[]);
    faults::kill_node(&w.dir, &job.node).unwrap();
    kill_scopes(w, &job.node);
    let state = state_dir(w, &job.node);
    fs::remove_dir_all(&state).unwrap();
    faults::start_node(&w.dir, &job.node).unwrap();
    job.is_lost(w, "lost its memory");
    // The node accepts work again.
    w.completed(&w.submit(&["--nodes", "3", "--", "/bin/true"]));
}

/// A job is claimed and cancelled between two runs of the agent: none of the agent's lists ever contains it.
fn missed(w: &World) {
    faults::kill_node(&w.dir, "n3").unwrap();
    let id = w.submit(&["--nodes", "3", "--", "/bin/true"]);
    w.wait("the claim", || w.status(&id)["nodes"].as_array().unwrap().len() == 3);
    w.ok(&["cancel", &id]);
    assert_eq!(text(&w.ended(&id), "state"), "Cancelled");
    faults::start_node(&w.dir, "n3").unwrap();
    w.completed(&w.submit(&["--nodes", "3", "--", "/bin/true"]));
}

/// The disk with the state is reset to an old state, or is not mounted, so that the directory below it is used.
fn put_back(w: &World) {
    let state = state_dir(w, "n3");
    let copy = w.dir.join("state-of-before");
    let copied = |from: &Path, to: &Path| {
        let _ = fs::remove_dir_all(to);
        let done = process::run(Command::new("cp").arg("-a").args([from, to]), JOB).unwrap();
        assert_eq!(done.code(), 0, "{}", done.err());
    };
    faults::kill_node(&w.dir, "n3").unwrap();
    copied(&state, &copy);
    faults::start_node(&w.dir, "n3").unwrap();
    let job = Job::begin(w, 3, &[]);
    faults::kill_node(&w.dir, "n3").unwrap();
    w.ok(&["cancel", &job.id]);
    assert_eq!(text(&w.ended(&job.id), "state"), "Cancelled");
    copied(&copy, &state);
    faults::start_node(&w.dir, "n3").unwrap();
    w.completed(&w.submit(&["--nodes", "3", "--", "/bin/true"]));
    w.wait("nothing to be left of it", || down::leftovers(&w.cluster()).is_empty());
}

/// A program that acts as the agent after a reboot: it mounts a file over the kernel's boot id, in its own mount
/// namespace.
pub fn rebooted_agent(w: &World) -> PathBuf {
    let fake = w.dir.join("fake-boot-id");
    fs::write(&fake, "5eb07a6d-0000-4000-8000-00000000b007\n").unwrap();
    let agent = binaries().agent();
    let wrapper = w.dir.join("rebooted-agent");
    let line = format!("mount --bind {} /proc/sys/kernel/random/boot_id && exec {} \"$@\"", fake.display(), agent.display());
    fs::write(&wrapper, format!("#!/bin/sh\nexec unshare --mount --propagation private /bin/sh -c '{line}' agent \"$@\"\n")).unwrap();
    fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).unwrap();
    wrapper
}

fn reboot(w: &World) {
    let job = Job::begin(w, 1, &[]);
    let (agent, wrapper) = (binaries().agent(), rebooted_agent(w));
    faults::kill_node(&w.dir, &job.node).unwrap();
    kill_scopes(w, &job.node);
    faults::agent_program(&w.dir, &job.node, &wrapper).unwrap();
    faults::start_node(&w.dir, &job.node).unwrap();
    assert!(log(w, &job.node).contains("the machine was restarted: what ran before is lost and reported so"));
    job.is_lost(w, "another boot id");
    w.completed(&w.submit(&["--nodes", "3", "--", "/bin/true"]));
    // Again, with the state damaged as well: the shim's files are from another boot.
    let job = Job::begin(w, 1, &[]);
    faults::kill_node(&w.dir, &job.node).unwrap();
    kill_scopes(w, &job.node);
    fs::write(state_dir(w, &job.node).join("journal"), "garbage").unwrap();
    let rebooted = w.cluster().node(&job.node).unwrap().daemon.program == wrapper;
    faults::agent_program(&w.dir, &job.node, if rebooted { &agent } else { &wrapper }).unwrap();
    faults::start_node(&w.dir, &job.node).unwrap();
    job.is_lost(w, "another boot id");
    remove_kept(&state_dir(w, &job.node));
    for node in ["n1", "n2", "n3"] {
        faults::agent_program(&w.dir, node, &agent).unwrap();
        faults::restart_node(&w.dir, node).unwrap();
    }
    w.completed(&w.submit(&["--nodes", "3", "--", "/bin/true"]));
}

fn impostor(w: &World) {
    let job = Job::begin(w, 1, &[]);
    faults::kill_node(&w.dir, &job.node).unwrap();
    let socket = job.dir(w).join("shim.sock");
    fs::remove_file(&socket).unwrap();
    // The shim lives, and can no longer be reached: the process that answers in its place is another one.
    let listener = UnixListener::bind(&socket).unwrap();
    faults::start_node(&w.dir, &job.node).unwrap();
    job.is_lost(w, "what listens in its place is not it");
    drop(listener);
    assert!(log(w, &job.node).contains("work was not adopted"));
}

fn strays(w: &World) {
    let node = "n2";
    let state = state_dir(w, node);
    faults::kill_node(&w.dir, node).unwrap();
    let stranger = "00000000-1111-4222-8333-444444444444";
    // A scope of an unknown allocation, with a process in it.
    let scope = scopes(w, node).join(format!("alloc-{stranger}.scope/work/launch-1"));
    fs::create_dir_all(&scope).unwrap();
    let mut sleeper = Command::new("/bin/sleep").arg("300").spawn().unwrap();
    fs::write(scope.join("cgroup.procs"), sleeper.id().to_string()).unwrap();
    // A mount of ours in the machine's namespace.
    let mounted = state.join("scratch").join(stranger);
    fs::create_dir_all(&mounted).unwrap();
    nix::mount::mount(None::<&str>, &mounted, Some("tmpfs"), nix::mount::MsFlags::empty(), Some("size=64k")).unwrap();
    // A loop device that does not free itself.
    let backing = state.join("images").join("left.sqfs");
    fs::create_dir_all(backing.parent().unwrap()).unwrap();
    fs::write(&backing, vec![0; 1 << 20]).unwrap();
    let looped = crate::harness::machine().loop_devices.then(|| Command::new("losetup").arg("-f").arg(&backing).status());
    // The socket and files of a dead shim.
    let dead = state.join("alloc").join(format!("{stranger}-3"));
    fs::create_dir_all(dead.join("logs/1")).unwrap();
    drop(UnixListener::bind(dead.join("shim.sock")).unwrap());
    fs::write(dead.join("logs/1/0.out"), "still to be read").unwrap();
    let cluster = w.cluster();
    assert!(down::leftovers(&cluster).len() >= 3, "{:?}", down::leftovers(&cluster));
    faults::start_node(&w.dir, node).unwrap();
    assert!(process::until(crate::harness::JOB, || sleeper.try_wait().unwrap().is_some()), "its process lives");
    w.assert_nothing_left();
    assert!(!dead.join("shim.sock").exists() && dead.join("logs/1/0.out").exists());
    let log = log(w, node);
    assert!(log.contains("a scope that the journal does not know") && log.contains("a mount that the journal does not know"));
    assert!(looped.is_none_or(|l| !l.is_ok_and(|s| s.success()) || log.contains("loop devices of an earlier run")), "{log}");
    fs::remove_dir_all(dead).unwrap();
    fs::remove_file(backing).unwrap();
}

fn upgrade(w: &World) {
    let job = Job::begin(w, 3, &[]);
    let bin = w.dir.join("upgraded");
    fs::create_dir(&bin).unwrap();
    let copy = bin.join("lattice-agent");
    fs::copy(binaries().agent(), &copy).unwrap();
    for node in ["n1", "n2", "n3"] {
        faults::agent_program(&w.dir, node, &copy).unwrap();
        let pid = faults::restart_node(&w.dir, node).unwrap();
        assert_eq!(fs::read_link(format!("/proc/{pid}/exe")).unwrap(), copy);
    }
    assert_eq!(text(&w.status(&job.id), "state"), "Running");
    assert_eq!(runs(&job.folder.0).len(), 3);
    job.ends_with_7(w);
    for node in ["n1", "n2", "n3"] {
        faults::agent_program(&w.dir, node, &binaries().agent()).unwrap();
        faults::restart_node(&w.dir, node).unwrap();
    }
}
