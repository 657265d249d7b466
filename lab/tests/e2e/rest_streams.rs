//! Streams over REST: output, measurements, changes and launches as server-sent events, terminals as WebSockets. The client
//! is a program of its own, with Python's standard library alone.

use crate::harness::{DAEMON, Group, JOB, NOBODY, Need, World};
use lattice_lab::lattice::text;
use lattice_lab::{faults, machine, process};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

static STREAMS: Group =
    Group { theme: "rest_streams", name: "rest_streams", nodes: 3, quorum: 1, tweak: |options| options.network_api = true };

const CLIENT: &str = include_str!("rest_streams/client.py");
/// How many MiB a program writes while its readers read nothing.
const UNREAD_MIB: u64 = 64;
/// By how many MiB the readers' agent may grow meanwhile.
const GROWTH_MIB_MAX: u64 = 32;

pub fn trials() -> Vec<Trial> {
    vec![
        STREAMS.test("output_is_followed_and_continued_exactly_once", &[Need::Python], output),
        STREAMS.test("output_goes_on_at_another_agent_when_one_is_killed", &[Need::Python], killed),
        STREAMS.test("what_is_measured_and_what_changes_comes_as_events", &[Need::Python], changes),
        STREAMS.test("ranks_are_launched_followed_and_ended", &[Need::Python], launches),
        STREAMS.test("a_terminal_is_a_websocket", &[Need::Python], terminals),
        STREAMS.test("a_reader_that_takes_nothing_costs_no_memory", &[Need::Python], slow_reader),
        STREAMS.test("streams_are_for_those_who_may_read_and_ask_properly", &[Need::Python], refused),
    ]
}

/// The client with the token of an account.
struct Client {
    program: PathBuf,
    ca: PathBuf,
    url: String,
    token: String,
}

impl Client {
    /// A new token for this account, which is revoked with the test's cluster.
    fn new(w: &World, account: &str) -> Self {
        let args = ["admin", "token", "issue", "streams", "--account", account, "--scopes", "read,work", "--days", "1"];
        let issued = w.lattice.json(&args).unwrap_or_else(|e| panic!("{e:#}"));
        let program = w.dir.join("streams-client.py");
        std::fs::write(&program, CLIENT).unwrap();
        let ca = w.dir.join("ca/ca.crt");
        Self { program, ca, url: w.cluster().node("n1").unwrap().api_url(), token: text(&issued, "token") }
    }

    /// The same at another node's agent.
    fn at(&self, w: &World, node: &str) -> Self {
        let url = w.cluster().node(node).unwrap().api_url();
        Self { program: self.program.clone(), ca: self.ca.clone(), url, token: self.token.clone() }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("python3");
        command.arg(&self.program).arg(&self.url).arg(&self.ca).arg(&self.token).args(args);
        command
    }

    /// Runs the client to its end; returns what it printed.
    fn lines(&self, args: &[&str]) -> Vec<Value> {
        let done = process::run(&mut self.command(args), JOB).unwrap();
        assert!(done.code() == 0 && !done.timed_out, "{args:?}: {}{}", done.out(), done.err());
        parsed(&done.out())
    }

    /// `GET`: the events of a stream, up to `end` or this many.
    fn events(&self, path: &str, more: &[&str]) -> Vec<Value> {
        self.lines(&[&["events", "GET", path], more].concat())
    }

    /// The status and the body of an answer that is no stream of events.
    fn answer(&self, args: &[&str]) -> (u64, String) {
        let lines = self.lines(&[&["events"], args].concat());
        (lines[0]["status"].as_u64().unwrap(), text(&lines[1], "body"))
    }

    /// Runs steps in a terminal; returns what the client printed.
    fn terminal(&self, path: &str, more: &[&str], steps: &[Value]) -> Vec<Value> {
        let mut command = self.command(&[&["terminal", path], more].concat());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        for step in steps {
            writeln!(input, "{step}").unwrap();
        }
        drop(input);
        let done = child.wait_with_output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success(), "{path}: {out}{err}");
        parsed(&out)
    }
}

fn parsed(out: &str) -> Vec<Value> {
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The output of a program in these events.
fn output_of(events: &[Value]) -> String {
    events.iter().filter(|event| text(event, "event") == "output").map(|event| text(&event["data"], "text")).collect()
}

/// The id of the last event that has one.
fn last_id(events: &[Value]) -> String {
    events.iter().rev().map(|event| text(event, "id")).find(|id| !id.is_empty()).unwrap()
}

fn submit_as_daemon(w: &World, args: &[&str]) -> String {
    let done = w.run_as(DAEMON, &[&["submit", "-o", "name"], args].concat());
    assert_eq!(done.code(), 0, "{}", done.err());
    done.out().trim().to_owned()
}

/// Starts a program of `daemon` that writes a line as soon as each file `go-1`, `go-2` … exists. Returns its id, and the
/// path of the files without their number.
fn by_steps(w: &World, name: &str, steps: u32) -> (String, String) {
    let go = w.dir.join(format!("{name}-go-"));
    let go = go.to_str().unwrap();
    let line = format!("for i in $(seq {steps}); do while [ ! -e {go}$i ]; do sleep 0.05; done; echo line-$i; done");
    let id = submit_as_daemon(w, &["--nodelist", "n2", "--", "/bin/sh", "-c", &line]);
    w.running(&id);
    (id, go.to_owned())
}

/// A client in the background.
struct Follower {
    child: Child,
    out: PathBuf,
}

impl Follower {
    fn begin(w: &World, client: &Client, name: &str, path: &str, more: &[&str]) -> Self {
        let out = w.dir.join(format!("{name}.events"));
        let mut command = client.command(&[&["events", "GET", path], more].concat());
        let child = command.stdin(Stdio::null()).stdout(File::create(&out).unwrap()).spawn().unwrap();
        Self { child, out }
    }

    /// The complete lines so far.
    fn lines(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.out).unwrap();
        parsed(text.rfind('\n').map_or("", |end| &text[..=end]))
    }

    fn ended(&mut self) -> Vec<Value> {
        let ended = process::until(JOB, || self.child.try_wait().unwrap().is_some());
        assert!(ended, "it goes on: {:?}", self.lines());
        self.lines()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn output(w: &World) {
    let client = Client::new(w, "daemon");
    let (id, go) = by_steps(w, "output", 4);
    let path = format!("/api/v1/allocations/{id}/logs?follow=true");
    std::fs::write(format!("{go}1"), "").unwrap();
    let begun = client.events(&path, &["--stop-after", "1"]);
    assert_eq!((&begun[0]["status"], output_of(&begun)), (&200.into(), "line-1\n".to_owned()), "{begun:?}");
    // The program writes these lines while no client is connected.
    for step in 2..=3 {
        std::fs::write(format!("{go}{step}"), "").unwrap();
    }
    w.wait_log(&id, "line-3");
    let continued = format!("Last-Event-ID:{}", last_id(&begun));
    let mut follower = Follower::begin(w, &client, "continued", &path, &["-H", &continued]);
    w.wait("what was written meanwhile", || output_of(&follower.lines()) == "line-2\nline-3\n");
    // A stream without output sends heartbeats.
    w.wait("a heartbeat", || follower.lines().iter().any(|line| text(line, "comment") == "heartbeat"));
    std::fs::write(format!("{go}4"), "").unwrap();
    let events = follower.ended();
    assert_eq!(output_of(&events), "line-2\nline-3\nline-4\n", "{events:?}");
    let [.., end, closed] = &events[..] else { panic!("{events:?}") };
    assert_eq!((text(end, "event"), text(&end["data"], "state"), &end["data"]["exit_code"]), ("end".into(), "Completed".into(), &0.into()));
    assert_eq!(closed["closed"], true);
    // A client that has all output gets only the end.
    let again = client.events(&path, &["-H", &format!("Last-Event-ID:{}", last_id(&events))]);
    assert_eq!((output_of(&again), again.len()), (String::new(), 3), "{again:?}");

    let plain = format!("/api/v1/allocations/{id}/logs");
    let (status, lines) = client.answer(&["GET", &plain]);
    let lines = parsed(&lines);
    let written: String = lines.iter().map(|line| text(line, "text")).collect();
    assert_eq!((status, written.as_str()), (200, "line-1\nline-2\nline-3\nline-4\n"), "{lines:?}");
    assert_eq!(text(lines.last().unwrap(), "event"), "end");
    let accepted = client.answer(&["GET", &format!("{plain}?tail=1"), "-H", "Accept:text/plain"]);
    assert_eq!(accepted, (200, "line-4\n".to_owned()));
}

fn killed(w: &World) {
    let client = Client::new(w, "daemon");
    let (id, go) = by_steps(w, "killed", 3);
    let path = format!("/api/v1/allocations/{id}/logs?follow=true");
    let mut follower = Follower::begin(w, &client, "broken", &path, &[]);
    std::fs::write(format!("{go}1"), "").unwrap();
    w.wait("the first line", || output_of(&follower.lines()) == "line-1\n");
    faults::kill_node(&w.dir, "n1").unwrap();
    let broken = follower.ended();
    assert!(broken.iter().all(|line| text(line, "event") != "end"), "without its end, a stream is not over: {broken:?}");
    std::fs::write(format!("{go}2"), "").unwrap();
    let continued = format!("Last-Event-ID:{}", last_id(&broken));
    let mut follower = Follower::begin(w, &client.at(w, "n3"), "elsewhere", &path, &["-H", &continued]);
    w.wait("the second line", || output_of(&follower.lines()) == "line-2\n");
    std::fs::write(format!("{go}3"), "").unwrap();
    let events = follower.ended();
    assert_eq!(output_of(&events), "line-2\nline-3\n", "{events:?}");
    faults::start_node(&w.dir, "n1").unwrap();
}

fn changes(w: &World) {
    let client = Client::new(w, "daemon");
    let all = Follower::begin(w, &client, "all", "/api/v1/watch?objects=allocations", &[]);
    w.wait("the list", || all.lines().iter().any(|event| text(event, "event") == "list"));
    let (id, go) = by_steps(w, "changes", 1);
    let mut one = Follower::begin(w, &client, "one", &format!("/api/v1/allocations/{id}/watch"), &[]);
    let numbers = format!("/api/v1/allocations/{id}/metrics/stream?interval_ms=1000&metrics=cpu_cores");
    let mut measured = Follower::begin(w, &client, "measured", &numbers, &[]);
    let cores = |event: &Value| text(event, "event") == "metrics" && event["data"]["measured"][0]["name"] == "cpu_cores";
    w.wait("a number", || measured.lines().iter().any(cores));
    let (status, now) = client.answer(&["GET", &format!("/api/v1/allocations/{id}/metrics")]);
    let now: Value = serde_json::from_str(&now).unwrap();
    assert_eq!((status, &now["allocation"], &now["nodes"][0]["node"]), (200, &id.as_str().into(), &"n2".into()));
    let top = w.lattice.json(&["top", &id]).unwrap();
    let fields = |of: &Value| of.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(fields(&top), fields(&now), "REST and the CLI write the same");
    std::fs::write(format!("{go}1"), "").unwrap();
    let events = one.ended();
    let states: Vec<String> = events.iter().map(|event| text(&event["data"], "state")).filter(|state| !state.is_empty()).collect();
    assert_eq!((states.first().unwrap().as_str(), &states[states.len() - 2..]), ("Running", &["Completed".into(), "Completed".into()][..]));
    assert_eq!(text(&events[events.len() - 2], "event"), "end", "{events:?}");
    let ended = measured.ended();
    assert_eq!(text(&ended[ended.len() - 2], "event"), "end", "{ended:?}");
    let of_id = |event: &Value| {
        let allocations = event["data"]["allocations"].as_array().cloned().unwrap_or_default();
        allocations.into_iter().filter(|one| text(one, "id") == id).map(|one| text(&one, "state")).collect::<Vec<_>>()
    };
    w.wait("its end among all", || all.lines().iter().flat_map(of_id).any(|state| state == "Completed"));
    // The changes since an earlier event, without a list.
    let list = all.lines().into_iter().find(|event| text(event, "event") == "list").unwrap();
    let more = ["-H", &format!("Last-Event-ID:{}", text(&list, "id")), "--stop-after", "1"];
    let since = client.events("/api/v1/watch?objects=allocations", &more);
    assert_eq!((text(&since[1], "event"), of_id(&since[1]).is_empty()), ("change".into(), false), "{since:?}");
    let nodes = client.events("/api/v1/watch?objects=nodes", &["--stop-after", "1"]);
    assert_eq!(nodes[1]["data"]["nodes"].as_array().unwrap().len(), 3, "{nodes:?}");
}

fn launches(w: &World) {
    let client = Client::new(w, "daemon");
    let id = submit_as_daemon(w, &["--nodes", "2", "--", "/bin/sleep", "600"]);
    w.running(&id);
    let path = format!("/api/v1/allocations/{id}/tasks");
    // The failure of one rank ends the other, which has to write its line before.
    let written = w.dir.join(format!("home-{DAEMON}/rank-0-has-written"));
    let written = written.display();
    let program = format!(
        "echo rank $LATTICE_RANK; [ $LATTICE_RANK = 0 ] && touch {written} && exit 0; while [ ! -e {written} ]; do sleep 0.05; done; exit 1"
    );
    let body = json!({"argv": ["/bin/sh", "-c", program], "ranks": 2, "exits": true}).to_string();
    let key = "Idempotency-Key:1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88";
    let ask = |more: &[&str]| client.lines(&[&["events", "POST", &path, "-d", &body, "-H", key], more].concat());
    let events = ask(&[]);
    let data_of = |events: &[Value], name: &str| {
        let found = events.iter().find(|event| text(event, "event") == name);
        found.map(|event| event["data"].clone())
    };
    let started = data_of(&events, "started").unwrap();
    assert_eq!((text(&started, "launch").as_str(), &started["ranks"]), ("1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88", &2.into()));
    let mut lines: Vec<String> = output_of(&events).lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["rank 0", "rank 1"], "{events:?}");
    let exits = data_of(&events, "exits").unwrap();
    assert_eq!((&exits["exits"][1]["ended"], &exits["exits"][1]["value"]), (&"exited".into(), &1.into()));
    assert_eq!(data_of(&events, "end").unwrap()["code"], 1);

    let refused = |body: Value| {
        let (status, body) = client.answer(&["POST", &path, "-d", &body.to_string()]);
        (status, text(&serde_json::from_str(&body).unwrap(), "detail"))
    };
    let no_input = |field: &str| (400, format!("{field}: a launch over REST has no input"));
    assert_eq!(refused(json!({"argv": ["/bin/cat"], "stdin": "all"})), no_input("stdin"));
    assert_eq!(refused(json!({"argv": ["/bin/cat"], "pty": {}})), no_input("pty"));
    let (status, detail) = refused(json!({"argv": ["/bin/cat"], "rank": 3}));
    assert!(status == 400 && detail.contains("unknown field `rank`"), "{detail}");

    // A launch continues without its client, until somebody ends it.
    let body = json!({"argv": ["/bin/sh", "-c", "echo here; exec /bin/sleep 600"], "ranks": 1}).to_string();
    let key = "Idempotency-Key:2f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88";
    let begun = client.lines(&["events", "POST", &path, "-d", &body, "-H", key, "--stop-after", "2"]);
    assert_eq!(output_of(&begun), "here\n", "{begun:?}");
    let continued = format!("Last-Event-ID:{}", last_id(&begun));
    let mut command = client.command(&["events", "POST", &path, "-d", &body, "-H", key, "-H", &continued]);
    let child = command.stdout(Stdio::piped()).spawn().unwrap();
    let launch = format!("/api/v1/allocations/{id}/launches/2f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88");
    assert_eq!(client.answer(&["DELETE", &launch]).0, 204);
    let ended = child.wait_with_output().unwrap();
    let events = parsed(&String::from_utf8_lossy(&ended.stdout));
    assert_eq!((output_of(&events), data_of(&events, "end").unwrap()["code"].clone()), (String::new(), 130.into()), "{events:?}");
    w.ok(&["cancel", &id]);
    w.ended(&id);
    w.assert_nothing_left();
}

fn terminals(w: &World) {
    let client = Client::new(w, "daemon");
    let id = submit_as_daemon(w, &["--nodes", "2", "--", "/bin/sleep", "600"]);
    w.running(&id);
    let nodes = w.status(&id)["nodes"].clone();
    let path = format!("/api/v1/allocations/{id}/attach?command=exec+/bin/sh+-i&rows=30&columns=100");
    let steps = [
        json!({"type": "echo $((40 + 2)) on $LATTICE_NODE\n"}),
        json!({"wait": &format!("42 on {}", nodes[0].as_str().unwrap())}),
        json!({"type": "stty size\n"}),
        json!({"wait": "30 100"}),
        json!({"send": {"type": "resize", "rows": 41, "columns": 121}}),
        json!({"type": "sleep 0.3; stty size\n"}),
        json!({"wait": "41 121"}),
        json!({"type": "exit 3\n"}),
    ];
    let lines = client.terminal(&path, &[], &steps);
    assert_eq!((&lines[0]["status"], &lines[0]["protocol"]), (&101.into(), &"lattice.attach.v1".into()));
    assert_eq!(lines[1]["text"], json!({"event": "started", "allocation": id, "node": nodes[0]}));
    let [.., ended, close] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(ended["text"], json!({"event": "ended", "code": 3}));
    assert_eq!((&close["close"], &close["reason"]), (&1000.into(), &"exit 3".into()));

    let other = format!("/api/v1/allocations/{id}/attach?command=echo+here;sleep+600&node={}", nodes[1].as_str().unwrap());
    let dropped = client.terminal(&other, &[], &[json!({"wait": "here"}), json!({"drop": true})]);
    assert!(text(dropped.last().unwrap(), "shown").contains("here"), "{dropped:?}");
    // Although the client types on after the end, it gets the exit code.
    let typed_on = std::iter::repeat_n(json!({"type": "x".repeat(1000)}), 50);
    let steps: Vec<Value> = [json!({"wait": "ready"}), json!({"type": "go\n"})].into_iter().chain(typed_on).collect();
    let ends = format!("/api/v1/allocations/{id}/attach?command=echo+ready;+read+line;+exit+4");
    let lines = client.terminal(&ends, &[], &steps);
    let [.., ended, close] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!((&ended["text"]["code"], &close["close"]), (&4.into(), &1000.into()), "{lines:?}");
    let wrong = client.terminal(&path, &[], &[json!({"send": {"type": "paste"}})]);
    assert_eq!(wrong.last().unwrap()["close"], 1008, "{wrong:?}");

    let refused = |path: &str, more: &[&str]| {
        let lines = client.terminal(path, more, &[]);
        (lines[0]["status"].as_u64().unwrap(), text(&lines[1], "body"))
    };
    let (status, body) = refused(&format!("/api/v1/allocations/{id}/attach?node=n9"), &[]);
    assert!(status == 400 && body.contains("has no node"), "{status} {body}");
    let (status, body) = refused(&path, &["-p", ""]);
    assert!(status == 400 && body.contains("lattice.attach.v1"), "{status} {body}");
    let (status, body) = refused(&path, &["-p", &format!("bearer.{}", client.token)]);
    assert!(status == 400 && !body.contains(&client.token), "a token is no subprotocol: {status} {body}");
    w.ok(&["cancel", &id]);
    w.ended(&id);
    w.assert_nothing_left();

    session(w, &client);
}

/// A session, all by REST.
fn session(w: &World, client: &Client) {
    let post = |path: &str, body: Value| {
        let sent = client.answer(&["POST", path, "-H", "Content-Type:application/json", "-d", &body.to_string()]);
        assert_eq!(sent.0, 201, "{}", sent.1);
        text(&serde_json::from_str(&sent.1).unwrap(), "id")
    };
    let allocation = post("/api/v1/allocations", json!({"session": true, "walltime": "5m"}));
    w.running(&allocation);
    let id = post("/api/v1/sessions", json!({"allocation": allocation}));
    // The account's own shell refuses logins, so a command replaces it.
    let path = format!("/api/v1/sessions/{}/terminal?command=exec+/bin/sh+-i", &id[..8]);
    let lines = client.terminal(&path, &[], &[json!({"type": "echo $((40 + 2))\n"}), json!({"wait": "42"}), json!({"type": "exit\n"})]);
    assert_eq!(lines.last().unwrap()["close"], 1000, "{lines:?}");
    let ended = client.answer(&["DELETE", &format!("/api/v1/sessions/{id}")]);
    assert_eq!(ended.0, 200, "{}", ended.1);
    w.ended(&allocation);
    let lines = client.terminal(&path, &[], &[]);
    assert_eq!(lines[0]["status"], 404, "{lines:?}");
    w.assert_nothing_left();
}

fn slow_reader(w: &World) {
    let client = Client::new(w, "daemon");
    let bytes = UNREAD_MIB << 20;
    let line = format!("sleep 3; yes 0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde | head -c {bytes}");
    let id = submit_as_daemon(w, &["--nodelist", "n2", "--", "/bin/sh", "-c", &line]);
    w.running(&id);
    let pid = w.cluster().node("n1").unwrap().daemon.process.as_ref().unwrap().pid;
    // Without the pages of its program, which come with what is called for the first time.
    let memory_mib = || machine::anonymous_memory_of(pid).unwrap() >> 20;
    let before = memory_mib();
    // These clients connect, and read nothing until the program has ended.
    let path = format!("/api/v1/allocations/{id}/logs?follow=true");
    let readers: Vec<Follower> = (0..4).map(|n| Follower::begin(w, &client, &format!("slow-{n}"), &path, &["--pause", "30"])).collect();
    let until = Instant::now() + Duration::from_secs(15);
    let mut most = before;
    while Instant::now() < until {
        most = most.max(memory_mib());
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(most - before <= GROWTH_MIB_MAX, "the agent had {before} MiB, and {most} MiB with four readers that took nothing");
    for mut reader in readers {
        let events = reader.ended();
        let bytes_read: usize = output_of(&events).len();
        assert_eq!(bytes_read as u64, bytes, "all of it arrives in the end");
        assert_eq!(text(&events[events.len() - 2], "event"), "end");
    }
}

fn refused(w: &World) {
    let client = Client::new(w, "daemon");
    let (id, go) = by_steps(w, "refused", 1);
    let path = format!("/api/v1/allocations/{id}/logs");
    let theirs = Client::new(w, &account(w, NOBODY));
    let resources = [
        path.clone(),
        format!("/api/v1/allocations/{id}/metrics"),
        format!("/api/v1/allocations/{id}/metrics/stream"),
        format!("/api/v1/allocations/{id}/watch"),
    ];
    for resource in &resources {
        let (status, body) = theirs.answer(&["GET", resource]);
        assert!(status == 403 && body.contains("belongs to"), "{resource}: {status} {body}");
        let nobody = Client { token: "-".into(), program: client.program.clone(), ca: client.ca.clone(), url: client.url.clone() };
        assert_eq!(nobody.answer(&["GET", resource]).0, 401, "{resource}");
    }
    let detail = |args: &[&str]| {
        let (status, body) = client.answer(args);
        let problem: Value = serde_json::from_str(&body).unwrap();
        (status, text(&problem, "detail"))
    };
    let (status, why) = detail(&["GET", &format!("{path}?folow=true")]);
    assert!(status == 400 && why.contains("unknown field `folow`"), "{status} {why}");
    let (status, why) = detail(&["GET", &path, "-H", "Last-Event-ID:yesterday"]);
    assert!(status == 400 && why.starts_with("Last-Event-ID: \"yesterday\""), "{status} {why}");
    let (status, why) = detail(&["GET", &path, "-H", "Accept:image/png"]);
    assert!(status == 406 && why.contains("text/event-stream"), "{status} {why}");
    let (status, _) = detail(&["GET", "/api/v1/allocations/ffffffff/logs"]);
    assert_eq!(status, 404);
    let (status, why) = detail(&["GET", "/api/v1/watch?objects=tenants"]);
    assert!(status == 400 && why.contains("tenants"), "{status} {why}");
    std::fs::write(format!("{go}1"), "").unwrap();
    w.completed(&id);
}

/// The name of an account.
fn account(w: &World, uid: u32) -> String {
    let who: Value = serde_json::from_str(&w.run_as(uid, &["whoami", "-o", "json"]).out()).unwrap();
    text(&who, "account")
}
