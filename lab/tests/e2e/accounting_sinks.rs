//! Sinks of ended work: a server that fails, stalls and loses its answers, and a file. Each record is stored once.

use crate::accounting::{end, give_role, ready, status};
use crate::harness::{Folder, Group, NOBODY, World};
use crate::notifications::request;
use crate::telemetry::get;
use lattice_lab::faults;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use ring::hmac;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

static SINKS: Group = Group { theme: "accounting", name: "accounting-sinks", nodes: 2, quorum: 1, tweak: |_| {} };
/// The node with the accounting role.
const NODE: &str = "n2";
const KEY: &str = "0123456789abcdef0123456789abcdef";

pub fn trials() -> Vec<Trial> {
    vec![
        SINKS.test("a_server_that_fails_and_a_file_get_each_record_once", &[], sinks),
        SINKS.test("project_and_tags_change_while_work_runs_and_are_corrected_after_its_end", &[], corrections),
    ]
}

/// What the server does with a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Accept,
    /// Answers 503.
    Refuse,
    /// Answers nothing.
    Stall,
    /// Stores the records and closes the connection without an answer.
    LoseAnswer,
}

/// One request.
#[derive(Clone, Debug)]
struct Delivery {
    id: String,
    records: Vec<String>,
    is_stored: bool,
}

struct State {
    mode: Mode,
    deliveries: Vec<Delivery>,
    /// Records by their identity, as a site would store them.
    stored: BTreeMap<String, Value>,
}

/// The site's server.
#[derive(Clone)]
struct Server {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let state = State { mode: Mode::Accept, deliveries: Vec::new(), stored: BTreeMap::new() };
        let server = Self { address: listener.local_addr().unwrap(), state: Arc::new(Mutex::new(state)) };
        let serving = server.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let serving = serving.clone();
                std::thread::spawn(move || serving.serve(stream));
            }
        });
        server
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, mode: Mode) {
        self.state().mode = mode;
    }

    /// Handles all requests of one connection.
    fn serve(&self, stream: TcpStream) {
        let mut answers = stream.try_clone().unwrap();
        let mut reader = BufReader::new(stream);
        while let Some((headers, body)) = request(&mut reader) {
            let header = |name: &str| headers.get(name).cloned().unwrap_or_default();
            let mode = self.state().mode;
            let is_stored = is_signed(&headers, &body) && matches!(mode, Mode::Accept | Mode::LoseAnswer);
            let batch: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(batch["delivery"], header("x-lattice-delivery").as_str());
            let records = batch["records"].as_array().unwrap();
            let named = records.iter().map(|record| text(record, "record")).collect();
            let mut state = self.state();
            state.deliveries.push(Delivery { id: header("x-lattice-delivery"), records: named, is_stored });
            if is_stored {
                state.stored.extend(records.iter().map(|record| (text(record, "record"), record.clone())));
            }
            drop(state);
            let status = match mode {
                Mode::LoseAnswer => return,
                // Until the agent hangs up.
                Mode::Stall => continue,
                Mode::Accept if is_stored => "204 No Content",
                Mode::Accept => "401 Unauthorized",
                Mode::Refuse => "503 Service Unavailable",
            };
            if write!(answers, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").is_err() {
                return;
            }
        }
    }

    /// How often each allocation is stored.
    fn allocations(&self) -> BTreeMap<String, usize> {
        let mut times = BTreeMap::new();
        for record in self.state().stored.values() {
            *times.entry(text(record, "id")).or_default() += 1;
        }
        times
    }

    fn deliveries(&self) -> Vec<Delivery> {
        self.state().deliveries.clone()
    }
}

fn is_signed(headers: &BTreeMap<String, String>, body: &[u8]) -> bool {
    let header = |name: &str| headers.get(name).cloned().unwrap_or_default();
    let signed = [format!("{}.", header("x-lattice-timestamp")).as_bytes(), body].concat();
    let hex = header("x-lattice-signature").strip_prefix("sha256=").unwrap_or_default().to_owned();
    let tag: Vec<u8> = (0..hex.len() / 2).filter_map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()).collect();
    hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, KEY.as_bytes()), &signed, &tag).is_ok()
}

fn sink(w: &World, kind: &str) -> Value {
    let sinks = status(w)["sinks"].as_array().cloned().unwrap_or_default();
    sinks.into_iter().find(|sink| sink["kind"] == kind).unwrap_or_default()
}

/// Waits until both sinks have everything that ended.
fn delivered(w: &World) {
    w.wait("both sinks to have everything", || {
        let now = status(w);
        let sinks = now["sinks"].as_array().cloned().unwrap_or_default();
        now["waiting"] == 0 && sinks.len() == 2 && sinks.iter().all(|sink| sink["delivered"] == now["ended"] && sink["problem"].is_null())
    });
}

/// The records of the file.
fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn assert_each_once(server: &Server, file: &Path, ids: &[String]) {
    let (at_server, in_file) = (server.allocations(), lines(file));
    for id in ids {
        assert_eq!(at_server.get(id), Some(&1), "{id} in {at_server:?}");
        assert_eq!(in_file.iter().filter(|record| text(record, "id") == *id).count(), 1, "{id} in {in_file:?}");
    }
    let known: BTreeSet<String> = in_file.iter().map(|record| text(record, "record")).collect();
    let stored: BTreeSet<String> = server.state().stored.keys().cloned().collect();
    assert_eq!(known, stored, "both have the same records");
    let numbers: Vec<u64> = in_file.iter().map(|record| record["sequence"].as_u64().unwrap()).collect();
    assert!(numbers.is_sorted(), "{numbers:?}");
}

fn sinks(w: &World) {
    let folder = Folder::new("sinks");
    let server = Server::start();
    let (key, file) = (folder.0.join("key"), folder.0.join("work.jsonl"));
    fs::write(&key, format!("{KEY}\n")).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let store = format!("store: {:?}", format!("sqlite://{}/accounting.db", folder.0.display()));
    let http = format!(
        "http_sink: {{url: \"http://{}/work?token=geheim\", key_file: {:?}, batch_records: 2, timeout_seconds: 2}}",
        server.address,
        key.display().to_string()
    );
    give_role(w, NODE, &format!("{{{store}, {http}, file_sink: {{path: {:?}}}}}", file.display().to_string()));
    w.wait("both sinks", || status(w)["sinks"].as_array().is_some_and(|sinks| sinks.len() == 2));
    let mut ids = vec![end(w, "n1", "true"), end(w, NODE, "exit 3"), end(w, "n1", "true")];
    delivered(w);
    assert_each_once(&server, &file, &ids);
    let failed = lines(&file).into_iter().find(|record| text(record, "id") == ids[1]).unwrap();
    assert_eq!((text(&failed, "state").as_str(), &failed["exit_code"]), ("Failed", &3.into()), "{failed}");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let shown = w.ok(&["admin", "accounting", "status"]);
    assert!(shown.contains("http: delivered up to ") && !shown.contains("geheim"), "{shown}");
    let of_user = w.run_as(NOBODY, &["admin", "accounting", "status"]).out();
    assert!(of_user.contains("http: delivered up to ") && !of_user.contains("127.0.0.1"), "where it is is for operators: {of_user}");

    // The server refuses: nothing is skipped, and the reason is shown.
    server.set(Mode::Refuse);
    ids.extend([end(w, "n1", "true"), end(w, "n1", "true"), end(w, "n1", "true")]);
    w.wait("the refusal", || text(&sink(w, "http"), "problem").contains("503"));
    w.wait("the records to wait", || sink(w, "http")["waiting"] == 3);
    let refused = server.deliveries().into_iter().rfind(|delivery| !delivery.is_stored).unwrap();
    let page = get(&w.cluster().node(NODE).unwrap().metrics, "/metrics", "").1;
    assert!(page.lines().any(|line| line.starts_with("lattice_accounting_sink_lag_seconds{") && line.contains("http")), "{page}");

    // It stalls, and the agent is killed meanwhile: the restarted one sends the same batch.
    server.set(Mode::Stall);
    w.wait("the timeout", || text(&sink(w, "http"), "problem").contains("no answer"));
    faults::kill_node(&w.dir, NODE).unwrap();
    faults::start_node(&w.dir, NODE).unwrap();
    ready(w);

    // It stores a batch, and its answer is lost: the same batch comes again.
    let before = server.deliveries().len();
    server.set(Mode::LoseAnswer);
    w.wait("a lost answer", || server.deliveries()[before..].iter().any(|delivery| delivery.is_stored));
    server.set(Mode::Accept);
    delivered(w);
    assert_each_once(&server, &file, &ids);
    let of_batch: Vec<Delivery> = server.deliveries().into_iter().filter(|delivery| delivery.id == refused.id).collect();
    let stored = of_batch.iter().filter(|delivery| delivery.is_stored).count();
    assert!(stored >= 2 && of_batch.iter().all(|delivery| delivery.records == refused.records), "{of_batch:?}");
    assert!(server.deliveries().iter().all(|delivery| delivery.records.len() <= 2), "batch_records");

    // A key that others can read is not used.
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    ids.push(end(w, "n1", "true"));
    w.wait("the reason", || text(&sink(w, "http"), "problem").contains("chmod 600"));
    let problems = w.at(NODE).json(&["node", "status"]).unwrap()["degraded"].to_string();
    assert!(problems.contains("accounting.http_sink: "), "{problems}");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    delivered(w);
    assert_each_once(&server, &file, &ids);
}

fn corrections(w: &World) {
    let folder = Folder::new("corrections");
    let file = folder.0.join("work.jsonl");
    let store = format!("sqlite://{}/accounting.db", folder.0.display());
    let before = text(&status(w), "store");
    give_role(w, NODE, &format!("{{store: {store:?}, file_sink: {{path: {:?}}}}}", file.display().to_string()));
    // The role moves away from the store of an earlier test.
    if !before.is_empty() {
        w.ok(&["admin", "accounting", "move", "--force"]);
    }
    w.wait("the new store", || status(w)["on"] == true && text(&status(w), "store") != before);

    // Work that runs.
    let id = w.submit(&["-w", "n1", "--cores=1", "--project", "atlas", "--tag", "run=1", "--", "/bin/sleep", "600"]);
    w.wait("it to run", || text(&w.lattice.json(&["status", &id]).unwrap(), "state") == "Running");
    w.ok(&["update", &id, "--project", "higgs"]);
    let now = w.lattice.json(&["status", &id]).unwrap();
    assert_eq!((text(&now, "project").as_str(), &now["tags"]), ("higgs", &serde_json::json!({"run": "1"})));
    let listed = |project: &str| w.run(&["status", "--project", project, "-o", "name"]).out().contains(&id);
    assert!(listed("higgs") && !listed("atlas"));
    w.ok(&["cancel", &id]);
    w.ended(&id);

    // Its record, once it is there.
    let record = || {
        let page = w.lattice.json(&["history"]).unwrap();
        page["work"].as_array().unwrap().iter().find(|work| text(work, "id") == id).cloned().unwrap_or_default()
    };
    w.wait("its record", || text(&record(), "project") == "higgs");
    let (job, used) = (record()["job"].to_string(), record()["node_hours"].clone());
    let refused = w.run_as(NOBODY, &["update", &job, "--project", "mine"]);
    assert!(refused.code() == 4 && refused.err().contains("belongs to"), "{}{}", refused.out(), refused.err());
    let refused = w.run(&["update", &job, "--name", "other"]);
    assert_eq!(refused.code(), 4, "a name is not corrected: {}{}", refused.out(), refused.err());
    w.ok(&["update", &job, "--project", "lhcb", "--tag", "run=,paper=7"]);
    w.wait("the correction", || text(&record(), "project") == "lhcb");
    let corrected = record();
    assert_eq!((&corrected["tags"], &corrected["node_hours"]), (&serde_json::json!({"paper": "7"}), &used));
    let records = w.ok(&["audit", "query", "--job", &job, "--type", "ended-work-corrected"]);
    assert!(records.contains("project lhcb instead of higgs, tags paper=7 instead of run=1"), "{records}");
    // The sink gets it as a record of its own, which names the one that it replaces.
    let of_work = || lines(&file).into_iter().filter(|record| text(record, "id") == id).collect::<Vec<_>>();
    w.wait("the sink to have both", || of_work().len() == 2);
    let (first, second) = (of_work()[0].clone(), of_work()[1].clone());
    assert_eq!((text(&first, "project").as_str(), text(&second, "project").as_str()), ("higgs", "lhcb"));
    assert_eq!(second["corrects"], first["sequence"]);
    assert!(first["corrects"].is_null() && first["record"] != second["record"], "{first} {second}");
}
