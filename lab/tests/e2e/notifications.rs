//! Notifications about nodes and budgets, to an HTTP server and to the site's program, also across a change of the
//! leader.

use crate::harness::{Group, JOB, World};
use lattice_lab::{faults, process};
use libtest_mimic::Trial;
use ring::hmac;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

const SECRET: &str = "0123456789abcdef";
/// Refuse every call.
const ALWAYS: u32 = u32::MAX;

static NOTIFICATIONS: Group = Group {
    theme: "notifications",
    name: "notifications",
    nodes: 2,
    quorum: 3,
    tweak: |options| {
        let (secret, hook) = (file("notify-secret"), file("notify-hook"));
        let _ = fs::remove_file(hook_output());
        fs::write(&secret, SECRET).unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&hook, "#!/bin/sh\necho \"$1 $2 $LATTICE_EVENT_ID\" >> \"$0.events\"\n").unwrap();
        fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
        options.member_lines = format!(
            "notify_url: \"http://{}/nodes\"\nnotify_secret_file: {:?}\nnotify_hook: {:?}\nnotify_seconds: 5\n",
            server().address,
            secret.to_string_lossy(),
            hook.to_string_lossy()
        );
    },
};

pub fn trials() -> Vec<Trial> {
    vec![
        NOTIFICATIONS.test("node_events_arrive_in_order_and_signed_and_survive_a_dead_leader", &[], notifies_in_order),
        NOTIFICATIONS.test("a_used_budget_is_notified_once_for_each_time_it_is_used", &[], notifies_of_budgets),
        NOTIFICATIONS.test("running_work_uses_a_budget_and_dead_leaders_record_that_once", &[], records_once),
    ]
}

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn hook_output() -> PathBuf {
    file("notify-hook.events")
}

/// One received request.
#[derive(Clone)]
struct Call {
    id: String,
    event: Value,
    accepted: bool,
}

/// A server that refuses the configured number of calls.
struct Server {
    address: SocketAddr,
    refuses: AtomicU32,
    calls: Mutex<Vec<Call>>,
}

fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || server().serve(stream));
            }
        });
        Server { address, refuses: AtomicU32::new(0), calls: Mutex::default() }
    })
}

impl Server {
    /// Handles all requests of one connection.
    fn serve(&self, stream: TcpStream) {
        let mut answers = stream.try_clone().unwrap();
        let mut reader = BufReader::new(stream);
        while let Some((headers, body)) = request(&mut reader) {
            let header = |name: &str| headers.get(name).cloned().unwrap_or_default();
            let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
            let signed = [format!("{}.", header("lattice-timestamp")).as_bytes(), &body].concat();
            let hex = header("lattice-signature").strip_prefix("sha256=").unwrap_or_default().to_owned();
            let tag: Vec<u8> = (0..hex.len() / 2).filter_map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()).collect();
            let is_signed = hmac::verify(&key, &signed, &tag).is_ok() && header("content-type") == "application/json";
            let event: Value = serde_json::from_slice(&body).unwrap();
            let left = self.refuses.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| match n {
                0 => None,
                ALWAYS => Some(ALWAYS),
                // Other events may arrive at any time, so only holds are counted.
                n => (event["event"] == "HoldSet").then(|| n - 1),
            });
            let accepted = is_signed && left.is_err();
            let call = Call { id: header("lattice-event-id"), event, accepted };
            self.calls.lock().unwrap_or_else(PoisonError::into_inner).push(call);
            let status = if accepted { "204 No Content" } else { "503 Service Unavailable" };
            if write!(answers, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").is_err() {
                return;
            }
        }
    }

    fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The accepted events of a node: number and event. Repetitions are left out.
    fn accepted(&self, node: &str) -> Vec<(u64, String)> {
        let mut accepted: Vec<(u64, String)> = Vec::new();
        for call in self.calls().into_iter().filter(|call| call.accepted && call.event["node"] == node) {
            let seq = call.event["seq"].as_u64().unwrap();
            if accepted.iter().all(|(known, _)| *known != seq) {
                accepted.push((seq, call.event["event"].as_str().unwrap().to_owned()));
            }
        }
        accepted
    }

    /// The accepted events of a tenant's budgets. Repetitions are left out.
    fn budgets(&self, tenant: &str) -> Vec<Value> {
        let mut accepted: Vec<Value> = Vec::new();
        for call in self.calls().into_iter().filter(|call| call.accepted && call.event["budget"]["tenant"] == tenant) {
            if accepted.iter().all(|known| known["seq"] != call.event["seq"]) {
                accepted.push(call.event);
            }
        }
        accepted
    }
}

/// The headers, with names in small letters, and the body of the next request.
pub fn request(reader: &mut BufReader<TcpStream>) -> Option<(BTreeMap<String, String>, Vec<u8>)> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|n| *n > 0)?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) => drop(headers.insert(name.to_ascii_lowercase(), value.to_owned())),
            None => break,
        }
    }
    let mut body = vec![0; headers.get("content-length")?.parse().ok()?];
    reader.read_exact(&mut body).ok()?;
    Some((headers, body))
}

/// Waits until the leader begins to send records; it never sends earlier ones.
fn wait_for_begin(w: &World) {
    let begun = || {
        let status = w.lattice.json(&["quorum", "status"]).unwrap_or_default();
        status["notified"].as_array().is_some_and(|all| all.iter().all(|one| one["delivered_seq"].as_u64().unwrap_or_default() > 0))
    };
    w.wait("notifications to begin", begun);
}

fn notifies_in_order(w: &World) {
    let server = server();
    wait_for_begin(w);
    w.ok(&["node", "cordon", "n1", "--reason", "first"]);
    w.ok(&["node", "uncordon", "n1"]);
    w.wait("n1's events", || server.accepted("n1").iter().any(|(_, event)| event == "HoldLifted"));
    server.refuses.store(2, Ordering::SeqCst);
    w.ok(&["node", "cordon", "n2", "--reason", "fan"]);
    w.ok(&["node", "uncordon", "n2"]);
    w.wait("n2's events", || server.accepted("n2").iter().any(|(_, event)| event == "HoldLifted"));
    let calls = server.calls();
    let set: Vec<&Call> = calls.iter().filter(|call| call.event["event"] == "HoldSet" && call.event["node"] == "n2").collect();
    assert_eq!(set.iter().map(|call| call.accepted).collect::<Vec<_>>(), [false, false, true], "refused twice, then accepted");
    assert!(set.iter().all(|call| call.id == set[0].id && call.event["actor"] == "root@n1"), "{:?}", set[0].event);

    // The leader is killed while deliveries fail: the next leader continues at the same event.
    let refused = || server.calls().iter().filter(|call| !call.accepted).count();
    let before = refused();
    server.refuses.store(ALWAYS, Ordering::SeqCst);
    w.ok(&["node", "drain", "n2", "--reason", "disk"]);
    let shown = |piece: &str| w.run(&["quorum", "status"]).out().contains(piece) || w.run(&["quorum", "members"]).out().contains(piece);
    let at_leader = || {
        let status = w.lattice.json(&["quorum", "status"]).unwrap();
        status["notified"].as_array().unwrap().iter().any(|n| n["channel"] == "notify_url" && !n["last_error"].as_str().unwrap().is_empty())
    };
    w.wait("a delivery to fail", || refused() > before);
    w.wait("the problem to be shown", || at_leader() || shown("503"));
    let gone = w.leader();
    faults::kill_member(&w.dir, gone).unwrap();
    w.wait("another leader", || w.lattice.leader().ok().flatten().is_some_and(|leader| leader != gone));
    server.refuses.store(0, Ordering::SeqCst);
    w.wait("the event of the Drained state", || server.calls().iter().any(|call| call.accepted && call.event["state"] == "Drained"));
    w.ok(&["node", "undrain", "n2"]);
    let about = |action: &str| server.accepted("n2").iter().filter(|(_, event)| event == action).count();
    w.wait("the remaining events", || about("HoldLifted") == 2 && about("NodeStateChanged") >= 2);
    let accepted = server.accepted("n2");
    assert!(accepted.is_sorted_by_key(|(seq, _)| *seq), "events are out of order: {accepted:?}");
    let known = w.lattice.json(&["audit", "query", "--node", "n2"]).unwrap();
    for record in
        known.as_array().unwrap().iter().filter(|r| ["HoldSet", "HoldLifted", "NodeStateChanged"].contains(&r["action"].as_str().unwrap()))
    {
        assert!(accepted.iter().any(|(seq, _)| record["seq"] == *seq), "{record} was not delivered: {accepted:?}");
    }
    // The program got the same events.
    let program = || fs::read_to_string(hook_output()).unwrap_or_default();
    let done = process::until(JOB, || accepted.iter().all(|(seq, event)| program().contains(&format!("n2 {event} lab/1/{seq}\n"))));
    assert!(done, "{accepted:?}: {}", program());
    faults::start_member(&w.dir, gone).unwrap();
    fs::remove_file(hook_output()).unwrap();
}

/// How many budget marks of a tenant are in the audit log; `None`: the quorum does not answer now.
fn recorded(w: &World, tenant: &str) -> Option<usize> {
    let all = w.lattice.json(&["audit", "query", "--type", "budget-mark-reached"]).ok()?;
    let of_tenant = format!("\"tenant\":\"{tenant}\"");
    Some(all.as_array()?.iter().filter(|record| record["detail"].as_str().is_some_and(|detail| detail.contains(&of_tenant))).count())
}

fn notifies_of_budgets(w: &World) {
    let server = server();
    wait_for_begin(w);
    w.ok(&["admin", "tenant", "create", "physics"]);
    w.completed(&w.submit(&["--tenant=physics", "--", "/bin/sleep", "1"]));
    let set = |hours: &str| w.ok(&["admin", "tenant", "update", "physics", &format!("--node-hours-budget={hours}")]);
    let marks = || w.lattice.json(&["usage", "--tenant=physics"]).unwrap()[0]["budget_marks"].clone();
    set("1000");
    assert_eq!(marks(), serde_json::json!([]));
    // Any use exceeds a budget of 0.
    set("0");
    w.wait("the event", || !server.budgets("physics").is_empty());
    let event = server.budgets("physics").remove(0);
    assert_eq!((&event["event"], &event["node"], &event["actor"]), (&"BudgetMarkReached".into(), &Value::Null, &"quorum".into()));
    let budget = &event["budget"];
    assert_eq!((&budget["budget"], &budget["percent"]), (&"node_hours".into(), &100.into()), "{event}");
    assert_eq!((&budget["budget_hours"], &budget["period_days"]), (&0.into(), &90.into()), "{event}");
    assert!(budget["used_hours"].as_f64().unwrap() > 0.0, "{event}");
    let mark = marks();
    assert_eq!((&mark[0]["budget"], &mark[0]["percent"]), (&"node_hours".into(), &100.into()), "{mark}");
    let program = || fs::read_to_string(hook_output()).unwrap_or_default();
    let line = format!("physics BudgetMarkReached lab/1/{}\n", event["seq"]);
    w.wait("the program to have the event", || program().contains(&line));
    // Further use beyond the mark causes no event. After a time below the mark, reaching it causes one.
    w.completed(&w.submit(&["--tenant=physics", "--", "/bin/true"]));
    set("1000");
    assert_eq!(marks(), serde_json::json!([]));
    set("0");
    w.wait("the second event", || server.budgets("physics").len() > 1);
    assert_eq!((server.budgets("physics").len(), recorded(w, "physics")), (2, Some(2)));
    w.ok(&["admin", "tenant", "delete", "physics"]);
}

fn records_once(w: &World) {
    let server = server();
    wait_for_begin(w);
    w.ok(&["admin", "tenant", "create", "chemistry", "--node-hours-budget=0"]);
    // The mark is recorded while nobody accepts events: each leader compares at the beginning of its term.
    server.refuses.store(ALWAYS, Ordering::SeqCst);
    let works = w.submit(&["--tenant=chemistry", "--", "/bin/sleep", "600"]);
    w.running(&works);
    let mut gone = Vec::new();
    for _ in 0..2 {
        let leader = w.leader();
        faults::kill_member(&w.dir, leader).unwrap();
        w.wait("another leader", || w.lattice.leader().ok().flatten().is_some_and(|now| now != leader));
        w.wait("the record", || recorded(w, "chemistry").is_some_and(|count| count > 0));
        faults::start_member(&w.dir, leader).unwrap();
        gone.push(leader);
    }
    assert!(server.budgets("chemistry").is_empty());
    server.refuses.store(0, Ordering::SeqCst);
    w.wait("the event", || !server.budgets("chemistry").is_empty());
    let events = server.budgets("chemistry");
    assert_eq!((events.len(), recorded(w, "chemistry")), (1, Some(1)), "{gone:?}: {events:?}");
    assert_eq!(w.lattice.json(&["usage", "--tenant=chemistry"]).unwrap()[0]["budget_marks"][0]["percent"], 100);
    w.ok(&["cancel", &works]);
    w.ended(&works);
    w.ok(&["admin", "tenant", "delete", "chemistry"]);
}
