//! Terminals in running allocations.

use crate::harness::{DAEMON, Group, JOB, NOBODY, Need, World};
use crate::tty::Tty;
use lattice_lab::faults;
use lattice_lab::image::README;
use lattice_lab::lattice::{Lattice, text};
use lattice_lab::process;
use libtest_mimic::Trial;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

static ATTACH: Group = Group::small("attach");

pub fn trials() -> Vec<Trial> {
    vec![
        ATTACH.test("a_shell_with_control_keys_window_size_and_exit_code", &[], shell),
        ATTACH.test("pipes_and_exit_codes", &[], pipes),
        ATTACH.test("any_agent_connects_to_a_terminal_on_any_node", &[], anywhere),
        ATTACH.test("only_the_owner_may_attach_and_root_on_the_node_itself", &[], owner),
        ATTACH.test("five_at_once_and_the_sixth_is_refused", &[], five),
        ATTACH.test("a_terminal_ends_with_its_allocation_and_does_not_prolong_it", &[], ends),
        ATTACH.test("a_killed_agent_hangs_up_and_the_terminal_is_restored", &[], killed),
        ATTACH.test("a_signal_from_outside_leaves_the_terminal_restored", &[], signals),
        ATTACH.test("a_launch_has_a_terminal_that_outlives_its_agent", &[], launch),
        ATTACH.test("a_launch_as_a_job_of_its_own_has_a_terminal", &[], job),
        ATTACH.test("a_signal_that_ends_a_launch_without_a_terminal_ends_its_ranks", &[], ended_from_outside),
        ATTACH.test("the_image_is_seen_inside", &[Need::Mounts], image),
    ]
}

fn sleeper(w: &World, args: &[&str]) -> String {
    let id = w.submit(&[args, &["--", "/bin/sleep", "600"]].concat());
    w.running(&id);
    id
}

fn attach(lattice: &Lattice, args: &[&str]) -> Tty {
    Tty::start(lattice.command(&[&["attach"], args].concat()))
}

fn cancel(w: &World, id: &str) {
    w.ok(&["cancel", id]);
    w.ended(id);
    w.assert_nothing_left();
}

/// The number of processes with this name and state in the allocation's attached terminals.
fn attached(id: &str, name: &str, state: fn(char) -> bool) -> usize {
    processes(&format!("alloc-{id}.scope/work/attach-"), name, state)
}

/// The number of processes with this name in the allocation's launches, including its own command.
fn on_launch(id: &str, name: &str) -> usize {
    processes(&format!("alloc-{id}.scope/work/launch-"), name, |_| true)
}

fn processes(cgroup: &str, name: &str, state: fn(char) -> bool) -> usize {
    let comm = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let within = |pid: i32| std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default().contains(cgroup);
    let pids = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    let is_one = |pid: &i32| comm(*pid) == format!("{name}\n") && within(*pid) && process::stat(*pid).is_some_and(|(now, _)| state(now));
    pids.filter(is_one).count()
}

fn shell(w: &World) {
    let id = sleeper(w, &[]);
    // Without a command the owner's shell is started; here it is root's.
    let mut tty = attach(&w.lattice, &[&id]);
    w.wait("the terminal to be raw", || tty.is_raw());
    tty.asks("echo $((40 + 2)).$LATTICE_ALLOC_ID.$TERM.", &format!("42.{id}.vt220."));
    tty.asks("stty size | tr ' ' x", "40x100");
    tty.resize(50, 132);
    // The size is sent separately from the keys.
    tty.asks("until [ \"$(stty size)\" = '50 132' ]; do :; done; echo re''sized", "resized");
    tty.types("sleep 601\n");
    w.wait("sleep to run", || attached(&id, "sleep", |_| true) == 1);
    tty.types("\x03");
    tty.sees("^C");
    tty.asks("echo code=$?", "code=130");
    tty.types("sleep 602\n");
    w.wait("sleep to run", || attached(&id, "sleep", |_| true) == 1);
    tty.types("\x1a");
    tty.sees("Stopped");
    let stopped = || attached(&id, "sleep", |state| state == 'T') == 1;
    assert!(stopped());
    tty.types("fg\n");
    w.wait("sleep to go on", || !stopped());
    tty.types("\x1c");
    tty.asks("echo code=$?", "code=131");
    let launch = format!("{}/lattice launch echo from-wi''thin", w.dir.join("bin").display());
    tty.asks(&launch, "from-within\r\n");
    tty.types("exit 4\n");
    tty.ended_with(4);
    assert_eq!(text(&w.status(&id), "state"), "Running", "the end of a terminal does not end the allocation");
    cancel(w, &id);
}

/// Runs the command with this standard input. Returns its exit code, stdout and stderr.
pub fn piped(mut command: Command, input: &str) -> (Option<i32>, String, String) {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let mut err = child.stderr.take().unwrap();
    let stderr = std::thread::spawn(move || {
        let mut text = String::new();
        err.read_to_string(&mut text).unwrap();
        text
    });
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    (child.wait().unwrap().code(), out, stderr.join().unwrap())
}

fn pipes(w: &World) {
    let id = sleeper(w, &[]);
    let run = |args: &[&str], input: &str| piped(w.lattice.command(&[&["attach", &id], args].concat()), input);
    assert_eq!(run(&["--", "sh", "-c", "echo out; echo err >&2; exit 9"], ""), (Some(9), "out\nerr\n".into(), String::new()));
    assert_eq!(run(&["--", "sort", "-r"], "a\nb\nc"), (Some(0), "c\nb\na\n".into(), String::new()), "lines are not changed or echoed");
    assert_eq!(run(&["--command=echo $((6*7)); kill -9 $$"], "").0, Some(137));
    let (code, out, err) = run(&["--", "seq", "1", "200000"], "");
    assert_eq!((code, out.lines().count(), err.as_str()), (Some(0), 200_000, ""), "no part of a large output is lost");
    let (code, _, err) = run(&["--", "no-such-program"], "");
    assert!(code == Some(127) && err.contains("no-such-program: command not found"), "{code:?} {err}");
    let (code, _, err) = run(&["--node", "n9"], "");
    assert!(code == Some(2) && err.contains("n9"), "{code:?} {err}");
    let done = w.run(&["attach", "ffffffff"]);
    assert!(done.code() == 125 && done.err().contains("ffffffff"), "{}", done.err());
    cancel(w, &id);
    let (code, _, err) = run(&[], "");
    // The node's agent may end the work before the agent that the CLI uses knows the new state.
    assert!(code == Some(125) && (err.contains("Cancelled") || err.contains("is not running on node")), "{code:?} {err}");
}

fn anywhere(w: &World) {
    let id = sleeper(w, &["--nodes", "2"]);
    let nodes: Vec<String> = w.status(&id)["nodes"].as_array().unwrap().iter().map(|n| n.as_str().unwrap().to_owned()).collect();
    for agent in ["n1", "n2", "n3"] {
        for node in &nodes {
            let command = w.at(agent).command(&["attach", &id, "--node", node, "--", "sh", "-c", "read x; echo $x on $LATTICE_NODE"]);
            assert_eq!(piped(command, "asked\n"), (Some(0), format!("asked on {node}\n"), String::new()), "through {agent}");
        }
        let mut tty = attach(&w.at(agent), &[&id, "--", "sh", "-i"]);
        tty.asks("echo $((40 + 2)) on $LATTICE_NODE", &format!("42 on {}", nodes[0]));
        tty.types("sleep 601\n");
        w.wait("sleep to run", || attached(&id, "sleep", |_| true) == 1);
        tty.types("\x03");
        tty.types("exit 6\n");
        tty.ended_with(6);
    }
    // The agent of the terminal's node is killed, but not the one that the CLI uses.
    let other = if nodes[0] == "n1" { "n2" } else { "n1" };
    let mut tty = attach(&w.at(other), &[&id, "--", "sh", "-i"]);
    tty.asks("echo $((40 + 2))", "42");
    faults::kill_node(&w.dir, &nodes[0]).unwrap();
    let shown = tty.ended_with(5);
    assert!(shown.contains(&format!("the connection to node {} is lost", nodes[0])), "{shown}");
    faults::heal(&w.dir, JOB).unwrap();
    w.wait("its programs to be hung up", || attached(&id, "sh", |_| true) == 0);
    assert_eq!(text(&w.status(&id), "state"), "Running");
    cancel(w, &id);
}

fn owner(w: &World) {
    let done = w.run_as(NOBODY, &["submit", "-o", "name", "--", "/bin/sleep", "600"]);
    let id = done.out().trim().to_owned();
    w.running(&id);
    let node = w.status(&id)["nodes"][0].as_str().unwrap().to_owned();
    let who = ["attach", &id, "--", "sh", "-c", "id -u; tty; stat -c %u:%a $(tty)"];
    let done = w.run_as(NOBODY, &who);
    assert_eq!(done.code(), 0, "{}", done.err());
    assert!(done.out().starts_with("65534\n/dev/pts/") && done.out().ends_with("65534:600\n"), "{}", done.out());
    let refused = w.run_as(DAEMON, &who);
    assert!(refused.code() == 125 && refused.err().contains("nobody") && refused.out().is_empty(), "{}", refused.err());
    // Root counts as the owner on the terminal's node, and on no other.
    let as_root = w.at(&node).run(&who, JOB).unwrap();
    assert!(as_root.code() == 0 && as_root.out().starts_with("65534\n"), "{}{}", as_root.out(), as_root.err());
    let other = if node == "n1" { "n2" } else { "n1" };
    let elsewhere = w.at(other).run(&who, JOB).unwrap();
    assert!(elsewhere.code() == 125 && elsewhere.err().contains("nobody") && elsewhere.out().is_empty(), "{}", elsewhere.err());
    // The agent logs who attached the terminal.
    let log = std::fs::read_to_string(&w.cluster().node(&node).unwrap().daemon.log).unwrap();
    let line = log.lines().find(|l| l.contains("a terminal was attached") && l.contains(&id) && l.contains("user=root"));
    assert!(line.is_some_and(|l| l.contains("owner=nobody") && l.contains("uid=0")), "{log}");
    // Programs of the owner may attach, in this allocation and in others; programs of other users may not.
    let lattice = w.dir.join("bin/lattice");
    let inside = format!("{lattice} attach {id} -- echo $((40 + 2)) 2>&1; echo gave $?", lattice = lattice.display());
    let done = w.run_as(NOBODY, &["launch", "--alloc", &id, "sh", "-c", &inside]);
    assert_eq!(done.out(), "42\ngave 0\n", "{}", done.err());
    let done = w.run_as(NOBODY, &["launch", "sh", "-c", &inside]);
    assert_eq!(done.out(), "42\ngave 0\n", "{}", done.err());
    let done = w.run_as(DAEMON, &["launch", "sh", "-c", &inside]);
    assert!(done.out().ends_with("gave 125\n") && done.out().contains("belongs to nobody"), "{}", done.out());
    assert_eq!(w.run_as(NOBODY, &["cancel", &id]).code(), 0);
    w.ended(&id);
    w.assert_nothing_left();
}

fn five(w: &World) {
    let id = sleeper(w, &[]);
    let open = || {
        let mut tty = attach(&w.lattice, &[&id, "--", "sh", "-i"]);
        tty.asks("echo $((40 + 2))", "42");
        tty
    };
    let mut terminals: Vec<Tty> = (0..5).map(|_| open()).collect();
    assert_eq!(attached(&id, "sh", |_| true), 5);
    let refused = w.run(&["attach", &id, "--", "true"]);
    assert!(refused.code() == 125 && refused.err().contains("5 of 5"), "{} {}", refused.code(), refused.err());
    // Other users are not affected.
    let theirs = w.run_as(NOBODY, &["submit", "-o", "name", "--", "/bin/sleep", "600"]).out().trim().to_owned();
    w.running(&theirs);
    assert_eq!(w.run_as(NOBODY, &["attach", &theirs, "--", "true"]).code(), 0);
    terminals[2].types("exit\n");
    terminals[2].ended_with(0);
    w.wait("a terminal to be permitted again", || w.run(&["attach", &id, "--", "true"]).code() == 0);
    for (at, tty) in terminals.iter_mut().enumerate().filter(|(at, _)| *at != 2) {
        tty.types(&format!("exit {at}\n"));
        tty.ended_with(i32::try_from(at).unwrap());
    }
    w.ok(&["cancel", &theirs]);
    w.ended(&theirs);
    cancel(w, &id);
}

fn ends(w: &World) {
    // Cancelled while a terminal is attached.
    let id = sleeper(w, &["--nodes", "2"]);
    let mut terminals: Vec<Tty> = w.status(&id)["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| attach(&w.lattice, &[&id, "--node", node.as_str().unwrap(), "--", "sh", "-i"]))
        .collect();
    for tty in &mut terminals {
        tty.asks("echo $((40 + 2))", "42");
    }
    w.ok(&["cancel", &id]);
    for tty in &mut terminals {
        let shown = tty.ended_with(129);
        assert!(shown.contains("is being ended: the terminal is closed"), "{shown}");
    }
    w.ended(&id);
    w.assert_nothing_left();
    // The program ends: an idle shell, which ignores SIGTERM, does not keep the allocation alive.
    let go = w.dir.join("go");
    let id = w.submit(&["--", "/bin/sh", "-c", &format!("until [ -e {} ]; do sleep 0.02; done", go.display())]);
    w.running(&id);
    let mut tty = attach(&w.lattice, &[&id]);
    tty.asks("echo $((40 + 2))", "42");
    std::fs::write(&go, "").unwrap();
    let began = Instant::now();
    let shown = tty.ended_with(129);
    assert!(shown.contains("is being ended: the terminal is closed"), "{shown}");
    w.completed(&id);
    w.assert_nothing_left();
    assert!(began.elapsed() < JOB);
}

fn killed(w: &World) {
    let id = sleeper(w, &[]);
    let node = w.status(&id)["nodes"][0].as_str().unwrap().to_owned();
    let mut tty = attach(&w.at(&node), &[&id, "--", "sh", "-c", "echo up; sleep 601"]);
    tty.sees("up");
    w.wait("the terminal to be raw", || tty.is_raw());
    faults::kill_node(&w.dir, &node).unwrap();
    let shown = tty.ended_with(5);
    assert!(shown.contains("the connection to the agent is lost") && shown.contains("lattice attach"), "{shown}");
    w.wait("its programs to be hung up", || attached(&id, "sleep", |_| true) == 0);
    faults::heal(&w.dir, JOB).unwrap();
    let again = w.run(&["attach", &id, "--", "echo", "again"]);
    assert_eq!((again.code(), again.out().as_str()), (0, "again\n"), "{}", again.err());
    cancel(w, &id);
}

fn signals(w: &World) {
    let id = sleeper(w, &[]);
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGHUP, 129), (Signal::SIGQUIT, 131), (Signal::SIGINT, 130)] {
        let mut tty = attach(&w.lattice, &[&id, "--", "sh", "-i"]);
        tty.asks("echo $((40 + 2))", "42");
        assert!(tty.is_raw());
        kill(Pid::from_raw(tty.pid()), signal).unwrap();
        tty.ended_with(code);
        w.wait("its shell to be hung up", || attached(&id, "sh", |_| true) == 0);
    }
    // While the CLI is stopped from outside, the terminal is restored; then it is raw again.
    let mut tty = attach(&w.lattice, &[&id, "--", "sh", "-i"]);
    tty.asks("echo $((40 + 2))", "42");
    kill(Pid::from_raw(tty.pid()), Signal::SIGTSTP).unwrap();
    w.wait("it to stop", || process::stat(tty.pid()).is_some_and(|(state, _)| state == 'T'));
    tty.is_restored();
    kill(Pid::from_raw(tty.pid()), Signal::SIGCONT).unwrap();
    w.wait("the terminal to be raw", || tty.is_raw());
    tty.asks("echo $((50 + 2))", "52");
    tty.types("exit\n");
    tty.ended_with(0);
    cancel(w, &id);
}

fn image(w: &World) {
    let image = w.image().to_string_lossy().into_owned();
    let id = sleeper(w, &["--uenv", &image]);
    let done = w.run(&["attach", &id, "--", "head", "-n", "1", "/user-environment/README"]);
    assert_eq!(done.code(), 0, "{}", done.err());
    assert!(done.out().contains(README), "{}", done.out());
    cancel(w, &id);
}

fn launch(w: &World) {
    let id = sleeper(w, &["--nodes", "2"]);
    let head = w.status(&id)["nodes"][0].as_str().unwrap().to_owned();
    let refused = w.run(&["launch", "--pty", "--alloc", &id, "true"]);
    assert!(refused.code() == 2 && refused.err().contains("must be a terminal"), "{}", refused.err());
    let refused = w.run(&["launch", "--pty", "true"]);
    assert!(refused.code() == 2 && refused.err().contains("must be a terminal"), "{}", refused.err());
    let begin = |agent: &str, args: &[&str]| Tty::start(w.at(agent).command(&[&["launch", "--pty", "--alloc", &id], args].concat()));
    for agent in ["n1", "n2", "n3"] {
        let mut tty = begin(agent, &["-n", "1", "sh", "-c", "PS1='what? ' exec sh -i"]);
        // A prompt is shown although it has no newline.
        tty.sees("what? ");
        assert!(tty.is_raw());
        tty.asks("echo $((40 + 2)).$LATTICE_RANK.$LATTICE_NPROCS.$TERM.", "42.0.1.vt220.");
        tty.asks("stty size | tr ' ' x", "40x100");
        tty.resize(50, 132);
        tty.asks("until [ \"$(stty size)\" = '50 132' ]; do :; done; echo re''sized", "resized");
        tty.types("sleep 601; echo not reached\n");
        w.wait("sleep to run", || on_launch(&id, "sleep") == 3);
        tty.types("\x03");
        tty.asks("echo code=$?", "code=130");
        tty.types("exit 6\n");
        tty.ended_with(6);
    }
    // Two ranks: the first has the terminal, the other's output arrives as usual.
    let mut tty =
        begin("n1", &["-n", "2", "--no-kill-on-bad-exit", "sh", "-c", "echo $LATTICE_RANK; [ $LATTICE_RANK = 1 ] || read x; exit 3"]);
    tty.sees("1");
    tty.types("\n");
    tty.ended_with(3);
    // Its agent is killed and restarted: no output is lost.
    let mut tty = begin("n1", &["-n", "1", "sh", "-c", "PS1='what? ' exec sh -i"]);
    tty.sees("what? ");
    tty.asks("kept=$((6 * 7)); echo is $kept", "is 42");
    faults::kill_node(&w.dir, &head).unwrap();
    faults::heal(&w.dir, JOB).unwrap();
    tty.sees_again(|tty| tty.types("echo kept $kept\n"), "kept 42");
    tty.types("exit 7\n");
    tty.ended_with(7);
    // A signal from outside ends the launch.
    let mut tty = begin("n1", &["-n", "1", "sleep", "602"]);
    w.wait("sleep to run", || on_launch(&id, "sleep") == 3);
    kill(Pid::from_raw(tty.pid()), Signal::SIGTERM).unwrap();
    tty.ended_with(143);
    w.wait("the launch to end", || on_launch(&id, "sleep") == 2);
    cancel(w, &id);
}

/// The last allocation that this user submitted.
fn last(w: &World) -> String {
    let all = w.lattice.allocations().unwrap();
    text(all.iter().max_by_key(|a| text(a, "submitted_at")).unwrap(), "id")
}

fn job(w: &World) {
    let begin = |agent: &str, args: &[&str]| Tty::start(w.at(agent).command(&[&["launch", "--pty"], args].concat()));
    for agent in ["n1", "n2"] {
        let mut tty = begin(agent, &["sh", "-c", "PS1='what? ' exec sh -i"]);
        // Text typed before the program starts is buffered for it.
        tty.types("echo $((40 + 2)).$LATTICE_RANK.$LATTICE_NPROCS.$TERM.\n");
        tty.sees("42.0.1.vt220.");
        assert!(tty.is_raw());
        let id = last(w);
        tty.asks("stty size | tr ' ' x", "40x100");
        tty.resize(50, 132);
        tty.asks("until [ \"$(stty size)\" = '50 132' ]; do :; done; echo re''sized", "resized");
        tty.types("sleep 601; echo not reached\n");
        w.wait("sleep to run", || on_launch(&id, "sleep") == 1);
        tty.types("\x03");
        tty.asks("echo code=$?", "code=130");
        tty.types("exit 6\n");
        tty.ended_with(6);
        let now = w.ended(&id);
        assert_eq!((text(&now, "state").as_str(), text(&now, "exit_code").as_str()), ("Failed", "6"));
        assert!(w.log(&id).contains("42.0.1.vt220."), "the terminal's output is the job's output");
    }
    // Four ranks: the first has the terminal, the others' output arrives as usual; the launch's code is the highest.
    let ranks = "echo is $LATTICE_RANK; [ $LATTICE_RANK != 0 ] || read x; exit $LATTICE_RANK";
    let mut tty = begin("n1", &["-N", "2", "-n", "4", "--no-kill-on-bad-exit", "sh", "-c", ranks]);
    tty.sees("is 0");
    tty.types("\n");
    tty.ended_with(3);
    // Its head's agent is killed and restarted: no output is lost.
    let mut tty = begin("n1", &["sh", "-c", "PS1='what? ' exec sh -i"]);
    tty.sees("what? ");
    let id = last(w);
    let head = w.status(&id)["nodes"][0].as_str().unwrap().to_owned();
    tty.asks("kept=$((6 * 7)); echo is $kept", "is 42");
    faults::kill_node(&w.dir, &head).unwrap();
    faults::heal(&w.dir, JOB).unwrap();
    tty.sees_again(|tty| tty.types("echo kept $kept\n"), "kept 42");
    tty.types("exit 7\n");
    tty.ended_with(7);
    // While the job waits for its nodes, the terminal is not raw, and Ctrl-C cancels the job.
    let all = sleeper(w, &["--nodes", "3"]);
    let mut tty = begin("n1", &["true"]);
    tty.sees("waiting for nodes");
    assert!(!tty.is_raw());
    let id = last(w);
    tty.types("\x03");
    tty.ended_with(130);
    assert_eq!(text(&w.ended(&id), "state"), "Cancelled");
    cancel(w, &all);
    // A signal from outside cancels the job.
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
        let mut tty = begin("n1", &["sh", "-c", "echo up; exec sleep 602"]);
        tty.sees("up");
        w.wait("the terminal to be raw", || tty.is_raw());
        let id = last(w);
        kill(Pid::from_raw(tty.pid()), signal).unwrap();
        tty.ended_with(code);
        assert_eq!(text(&w.ended(&id), "state"), "Cancelled");
    }
    w.assert_nothing_left();
}

fn ended_from_outside(w: &World) {
    let id = sleeper(w, &["--nodes", "2"]);
    let ranks = ["sh", "-c", "echo up; exec sleep 602"];
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
        let mut tty = Tty::start(w.at("n2").command(&[&["launch", "--alloc", &id, "-n", "2"], &ranks[..]].concat()));
        tty.sees("up");
        w.wait("both ranks to run", || on_launch(&id, "sleep") == 4);
        kill(Pid::from_raw(tty.pid()), signal).unwrap();
        tty.ended_with(code);
        // The CLI waited for the ranks' end.
        assert_eq!(on_launch(&id, "sleep"), 2);
        let mut tty = Tty::start(w.lattice.command(&[&["launch"], &ranks[..]].concat()));
        tty.sees("up");
        let job = last(w);
        kill(Pid::from_raw(tty.pid()), signal).unwrap();
        tty.ended_with(code);
        assert_eq!(text(&w.status(&job), "state"), "Cancelled");
    }
    // With SIGHUP ignored, as under nohup, the terminal may be closed.
    let launch = w.lattice.command(&["launch", "--alloc", &id, "-n", "1", "--stdin=0", "sh", "-c", "echo up; read x; echo $x"]);
    let mut kept = Command::new("/bin/sh");
    kept.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(launch.get_program()).args(launch.get_args());
    kept.envs(launch.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut tty = Tty::start(kept);
    tty.sees("up");
    kill(Pid::from_raw(tty.pid()), Signal::SIGHUP).unwrap();
    // Typed text is the first rank's standard input, as requested.
    tty.types("kept all the same\n");
    tty.sees("kept all the same\r\nkept all the same");
    tty.ended_with(0);
    cancel(w, &id);
}
