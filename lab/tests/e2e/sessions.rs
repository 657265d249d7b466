//! Interactive sessions: nodes with a terminal, through the CLI.

use crate::attach::piped;
use crate::harness::{DAEMON, Group, JOB, World};
use crate::tty::Tty;
use lattice_lab::faults;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use serde_json::Value;

static SESSIONS: Group = Group::small("sessions");

pub fn trials() -> Vec<Trial> {
    vec![
        SESSIONS.test("a_shell_on_a_node_that_is_released_when_it_ends", &[], shell),
        SESSIONS.test("a_session_survives_a_lost_terminal_and_a_restart_of_everything", &[], lost),
    ]
}

fn open(w: &World) -> Vec<Value> {
    w.lattice.json(&["session", "list"]).unwrap().as_array().unwrap().clone()
}

/// The only open session.
fn only(w: &World) -> Value {
    let mut found = Vec::new();
    w.wait("the session", || {
        found = open(w);
        found.len() == 1
    });
    found.remove(0)
}

fn shell(w: &World) {
    let refused = w.run(&["session", "--nodes", "2"]);
    assert!(refused.code() == 2 && refused.err().contains("--walltime"), "{}", refused.err());
    let refused = w.run(&["session", "--walltime=5m", "--vcluster=none"]);
    assert!(refused.code() == 125 && refused.err().contains("not found"), "{}", refused.err());
    let refused = w.run(&["session", "--walltime=5m", "--requeue=always"]);
    assert!([2, 4].contains(&refused.code()) && refused.err().contains("always is not for a session"), "{}", refused.err());

    let mut tty = Tty::start(w.lattice.command(&["session", "--nodes=2", "--walltime=5m"]));
    w.wait("the terminal to be raw", || tty.is_raw());
    tty.asks("echo $((40 + 2)) nodes=$LATTICE_NNODES", "42 nodes=2");
    let session = only(w);
    let (id, node) = (text(&session, "allocation"), text(&session, "node"));
    let now = w.status(&id);
    assert_eq!((text(&now, "name"), text(&now, "state"), &now["nodes"][0]), ("session".into(), "Running".into(), &node.as_str().into()));
    assert!(w.ok(&["session", "list"]).contains(&node));
    // Another user cannot end it, and does not see it in the default list.
    let refused = w.run_as(DAEMON, &["session", "delete", &id]);
    assert!(refused.code() == 4 && refused.err().contains("belongs to root"), "{}", refused.err());
    assert_eq!(w.run_as(DAEMON, &["session", "list", "-o", "name"]).out(), "");
    assert_eq!(w.run_as(DAEMON, &["session", "list", "--all", "-o", "name"]).out(), format!("{}\n", text(&session, "id")));
    let launch = format!("{}/lattice launch echo from-wi''thin", w.dir.join("bin").display());
    // Text that is typed during the launch goes to the shell.
    tty.types(&format!("{launch}\nexit 4\n"));
    tty.sees("from-within\r\n");
    tty.ended_with(4);
    assert_eq!(text(&w.ended(&id), "state"), "Completed");
    assert_eq!(open(w), Vec::<Value>::new());
    w.assert_nothing_left();
    let who = w.ok(&["audit", "query", "--alloc", &id, "--type", "session-created,session-deleted", "-o", "json"]);
    assert!(who.contains("SessionCreated") && who.contains("SessionDeleted"), "{who}");

    // Without a local terminal the shell reads commands from standard input.
    let (code, out, err) = piped(w.lattice.command(&["session", "--walltime=5m"]), "echo $((40 + 2))\nexit 7\n");
    assert!(code == Some(7) && out.lines().any(|line| line.ends_with("42")), "{code:?} {out} {err}");
    assert_eq!(open(w), Vec::<Value>::new());

    // Ctrl-C cancels a session that waits for nodes.
    let busy = w.submit(&["--nodes", "3", "--", "/bin/sleep", "600"]);
    w.running(&busy);
    let mut tty = Tty::start(w.lattice.command(&["session", "--walltime=5m"]));
    tty.sees("waits for its nodes");
    tty.types("\x03");
    tty.ended_with(130);
    let waited = w.lattice.allocations().unwrap().into_iter().find(|a| text(a, "name") == "session").unwrap();
    assert_eq!(text(&w.ended(&text(&waited, "id")), "state"), "Cancelled");
    w.ok(&["cancel", &busy]);
    w.ended(&busy);
}

fn lost(w: &World) {
    let mut tty = Tty::start(w.lattice.command(&["session", "--walltime=5m"]));
    w.wait("the terminal to be raw", || tty.is_raw());
    tty.asks("echo $((40 + 2))", "42");
    let session = only(w);
    let (id, node) = (text(&session, "allocation"), text(&session, "node"));
    // The nodes before the member: a living agent would repeat reports that the member did not acknowledge.
    for n in ["n1", "n2", "n3"] {
        faults::kill_node(&w.dir, n).unwrap();
    }
    let shown = tty.ended_with(5);
    assert!(shown.contains("continues until its walltime") && shown.contains("lattice session delete"), "{shown}");
    faults::kill_member(&w.dir, 1).unwrap();
    faults::heal(&w.dir, JOB).unwrap();
    assert_eq!(only(w), session, "unchanged since everything was killed");
    assert_eq!(text(&w.status(&id), "state"), "Running");
    let mut tty = Tty::start(w.lattice.command(&["attach", &id]));
    tty.asks("echo $((40 + 2)) on $LATTICE_NODE", &format!("42 on {node}"));
    tty.types("exit 3\n");
    tty.ended_with(3);
    assert_eq!(text(&w.status(&id), "state"), "Running", "the end of a later shell does not end the session");
    let ended = w.ok(&["session", "delete", &id]);
    assert!(ended.contains("Ended session"), "{ended}");
    assert_eq!(text(&w.ended(&id), "state"), "Completed");
    assert_eq!(open(w), Vec::<Value>::new());
    let again = w.run(&["session", "delete", &id]);
    assert!(again.code() == 3 && again.err().contains("no session"), "{}", again.err());
    w.assert_nothing_left();
}
