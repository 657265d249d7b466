//! Ends of work: by walltime and by cancel, with and without a reaction to SIGTERM.

use crate::harness::{Folder, Group, World, ms};
use crate::logs::{alloc_dir, node_of};
use lattice_lab::faults;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// Between SIGTERM and SIGKILL are 2 s here; see `World::start`.
static LIFETIME: Group = Group::small("lifetime");

const POLITE: &str = "trap 'echo got TERM; exit 3' TERM; echo ready; while :; do sleep 0.1; done";
const STUBBORN: &str = "trap 'echo got TERM' TERM; echo ready; while :; do sleep 0.1; echo tick; done";

pub fn trials() -> Vec<Trial> {
    vec![
        LIFETIME.test("ctrl_c_brings_a_launch_down_and_leaves_its_allocation", &[], interrupted_launch),
        LIFETIME.test("a_launch_inside_work_waits_for_an_agent_that_is_started_again", &[], agent_away),
        LIFETIME.test("a_program_that_closes_all_descriptors_ends_as_itself", &[], closes_all),
        LIFETIME.test("walltime_ends_work_politely", &[], walltime),
        LIFETIME.test("walltime_kills_what_does_not_listen", &[], walltime_stubborn),
        LIFETIME.test("cancel_ends_running_work", &[], cancel),
        LIFETIME.test("cancel_kills_what_does_not_listen_and_its_children", &[], cancel_stubborn),
        LIFETIME.test("cancel_of_waiting_and_ended_work", &[], cancel_others),
        LIFETIME.test("a_script_that_leaves_children_leaves_nothing", &[], children),
    ]
}

fn interrupted_launch(w: &World) {
    let id = w.submit(&["--", "/bin/sleep", "60"]);
    w.running(&id);
    let mut command = w.at("n1").command(&["launch", "--alloc", &id, "-n", "2", "--", "/bin/sh", "-c", "echo up; exec sleep 60"]);
    let mut launch = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(launch.stdout.take().unwrap()).lines();
    let up: Vec<String> = lines.by_ref().take(2).map(Result::unwrap).collect();
    assert_eq!(up, ["up", "up"]);
    let pid = nix::unistd::Pid::from_raw(i32::try_from(launch.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    let mut code = None;
    w.wait("the launch to end", || {
        code = launch.try_wait().unwrap();
        code.is_some()
    });
    assert_eq!(code.and_then(|c| c.code()), Some(130), "as a shell reports a program that Ctrl-C ended");
    assert_eq!(text(&w.status(&id), "state"), "Running", "the allocation goes on");
    w.ok(&["launch", "--alloc", &id, "-n", "1", "--", "/bin/true"]);
    w.ok(&["cancel", &id]);
    w.ended(&id);
    w.assert_nothing_left();
}

/// An upgrade of the agent does not end a script that starts a launch just then.
fn agent_away(w: &World) {
    let (up, go, bin) = (w.dir.join("up"), w.dir.join("go"), w.dir.join("bin"));
    let wait = format!("touch {}\nwhile [ ! -e {} ]; do sleep 0.1; done", up.display(), go.display());
    let script = w.script("away.sh", &format!("#!/bin/sh\n{wait}\nexec {}/lattice launch /bin/echo launched\n", bin.display()));
    let id = w.submit(&[&script]);
    w.wait("the script to run", || up.exists());
    let node = node_of(w, &id);
    let stderr = alloc_dir(w, &node, &id).join("logs/0/0.err");
    faults::kill_node(&w.dir, &node).unwrap();
    std::fs::write(&go, "").unwrap();
    w.wait("the launch to miss the agent", || std::fs::read_to_string(&stderr).is_ok_and(|text| text.contains("trying again")));
    faults::start_node(&w.dir, &node).unwrap();
    w.completed(&id);
    assert!(w.log(&id).contains("launched"), "{}", w.log(&id));
    w.assert_nothing_left();
}

/// A program that closes its standard streams and the PMI socket, which it does not use.
fn closes_all(w: &World) {
    let close = "exec 0<&- 1>&- 2>&- 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-";
    // The others are killed when the first one ends, so each waits until all are up.
    let up = Folder::new("up");
    let is_up = |rank: u32| format!("[ -e {}/{rank} ]", up.0.display());
    let all_are_up = (0..4).map(is_up).collect::<Vec<_>>().join(" && ");
    let body = format!("echo up; : >{}/$LATTICE_RANK; {close}; until {all_are_up}; do sleep 0.05; done; sleep 0.5; exit 5", up.0.display());
    let id = w.submit(&["--nodes", "2", "--tasks-per-node", "2", "--", "/bin/sh", "-c", &body]);
    let ended = w.ended(&id);
    assert_eq!((text(&ended, "state").as_str(), text(&ended, "exit_code").as_str()), ("Failed", "5"), "{ended}");
    assert_eq!(w.log(&id), "up\n".repeat(4));
    w.assert_nothing_left();
    let id = w.submit(&["--", "/bin/sh", "-c", &format!("echo up; trap '' TERM; {close}; while :; do sleep 0.1; done")]);
    w.wait_log(&id, "up");
    w.ok(&["cancel", &id]);
    assert_eq!(text(&w.ended(&id), "state"), "Cancelled");
    w.assert_nothing_left();
}

fn walltime(w: &World) {
    let id = w.submit(&["--walltime", "1s", "--", "/bin/sh", "-c", POLITE]);
    let ended = w.ended(&id);
    assert_eq!((text(&ended, "state").as_str(), text(&ended, "reason").as_str()), ("Failed", "walltime_exceeded"), "{ended}");
    w.wait_log(&id, "got TERM");
    assert!(w.log(&id).starts_with("ready\n"), "{}", w.log(&id));
    let ran = ms(&ended, "ended_at") - ms(&ended, "started_at");
    assert!((900..2_900).contains(&ran), "it listened, so it ends at its walltime of 1 s and not {ran} ms");
    w.assert_nothing_left();
}

fn walltime_stubborn(w: &World) {
    let id = w.submit(&["--nodes", "2", "--walltime", "3s", "--", "/bin/sh", "-c", STUBBORN]);
    let ended = w.ended(&id);
    assert_eq!((text(&ended, "state").as_str(), text(&ended, "reason").as_str()), ("Failed", "walltime_exceeded"), "{ended}");
    // The end is decided at the walltime; a program that ignores SIGTERM lives for the grace, and is then killed. It has
    // three seconds to begin to ignore it, on a busy machine.
    let ran = ms(&ended, "ended_at") - ms(&ended, "started_at");
    assert!((2_900..3_900).contains(&ran), "3 s walltime, not {ran} ms");
    w.assert_nothing_left();
    let log = w.ok(&["logs", "--rank", "0", &id]);
    let after = log.split("got TERM").nth(1).unwrap_or_default().matches("tick").count();
    assert!((10..=22).contains(&after), "2 s of grace at ten ticks a second: {after} came");
}

fn cancel(w: &World) {
    let id = w.submit(&["--nodes", "2", "--", "/bin/sh", "-c", POLITE]);
    w.wait_log(&id, "ready\nready\n");
    w.ok(&["cancel", &id]);
    let ended = w.ended(&id);
    assert_eq!(text(&ended, "state"), "Cancelled", "{ended}");
    assert!(text(&ended, "reason").contains("cancelled by root"), "{ended}");
    w.wait("both to hear of it", || w.log(&id).matches("got TERM").count() == 2);
    w.assert_nothing_left();
}

fn cancel_stubborn(w: &World) {
    let id = w.submit(&["--", "/bin/sh", "-c", &format!("setsid sh -c \"{}\" & {STUBBORN}", STUBBORN.replace("ready", "child"))]);
    w.wait_log(&id, "ready\n");
    w.wait_log(&id, "child\n");
    w.ok(&["cancel", &id]);
    assert_eq!(text(&w.ended(&id), "state"), "Cancelled");
    w.assert_nothing_left();
}

fn cancel_others(w: &World) {
    let busy = w.submit(&["--nodes", "3", "--", "/bin/sleep", "60"]);
    w.running(&busy);
    let waits = w.submit(&["--", "/bin/true"]);
    w.ok(&["cancel", &waits]);
    assert_eq!(text(&w.ended(&waits), "state"), "Cancelled");
    w.ok(&["cancel", &busy]);
    assert_eq!(text(&w.ended(&busy), "state"), "Cancelled");
    let done = w.submit(&["--", "/bin/true"]);
    w.completed(&done);
    w.ok(&["cancel", &done]);
    assert_eq!(text(&w.status(&done), "state"), "Completed", "what has ended stays as it ended");
    assert_eq!(w.run(&["cancel", "0123456789ab"]).code(), 3);
}

fn children(w: &World) {
    let script = w.script("leaves.sh", "#!/bin/sh\nsetsid sleep 300 &\nnohup sleep 301 >/dev/null 2>&1 &\necho left them\n");
    let id = w.submit(&[&script]);
    w.completed(&id);
    assert_eq!(w.ok(&["logs", &id]), "left them\n");
    w.assert_nothing_left();
}
