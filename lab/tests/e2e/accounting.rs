//! Ended work in the accounting store: each end once, whatever fails, and what callers see of it.

use crate::harness::{Folder, Group, JOB, NOBODY, Need, World, configure, fresh_dir, postgres_program};
use lattice_lab::faults;
use lattice_lab::lattice::text;
use lattice_lab::process;
use libtest_mimic::Trial;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Row, RowAccessor};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

static SQLITE: Group = Group { theme: "accounting", name: "accounting", nodes: 3, quorum: 1, tweak: |_| {} };
static POSTGRES: Group = Group { theme: "accounting", name: "accounting-postgres", nodes: 3, quorum: 1, tweak: |_| {} };
/// The node with the role.
const NODE: &str = "n2";
/// The node that takes the role over.
const OTHER: &str = "n3";

pub fn trials() -> Vec<Trial> {
    vec![
        SQLITE.test("each_end_is_stored_once_while_the_agent_is_killed_and_the_disk_is_full", &[], sqlite),
        POSTGRES.test("another_agent_goes_on_with_a_server_that_was_stopped_for_a_while", &[Need::Postgres], postgres),
    ]
}

/// Gives a node the role with this store, and starts its agent anew.
pub fn give_role(w: &World, node: &str, store: &str) {
    faults::kill_node(&w.dir, node).unwrap();
    configure(&w.dir, node, &format!("roles: [api, scheduler, accounting]\naccounting: {store}"));
    faults::start_node(&w.dir, node).unwrap();
    ready(w);
}

pub fn ready(w: &World) {
    w.wait("all nodes to be ready", || lattice_lab::up::wait_ready(&w.cluster(), JOB).is_ok());
}

pub fn status(w: &World) -> Value {
    w.lattice.json(&["admin", "accounting", "status"]).unwrap_or_else(|e| panic!("{e:#}"))
}

fn waiting(w: &World) -> u64 {
    status(w)["waiting"].as_u64().unwrap()
}

/// Waits until a store is in use and has all ended work.
fn settled(w: &World) {
    w.wait("the store to have everything", || {
        let now = status(w);
        now["on"] == true && now["waiting"] == 0 && now["stored"] == now["ended"]
    });
}

/// Runs work to its end on this node; returns its id.
pub fn end(w: &World, node: &str, program: &str) -> String {
    let id = w.submit(&["-w", node, "--cores=1", "--name", "night-run", "--", "/bin/sh", "-c", program]);
    w.ended(&id);
    id
}

/// The caller's own ended work, according to the store.
fn history(w: &World) -> Vec<Value> {
    let page = w.lattice.json(&["history", "--limit", "10000"]).unwrap_or_else(|e| panic!("{e:#}"));
    page["work"].as_array().unwrap().clone()
}

/// Checks that the store has each of these ends once, and that all numbers are there without gaps.
fn assert_each_once(w: &World, ids: &[String]) {
    settled(w);
    let stored = history(w);
    let mut times: BTreeMap<String, u32> = BTreeMap::new();
    for work in &stored {
        *times.entry(text(work, "id")).or_default() += 1;
    }
    for id in ids {
        assert_eq!(times.get(id), Some(&1), "{id} of {ids:?} in {stored:?}");
    }
    let mut numbers: Vec<u64> = stored.iter().map(|work| work["sequence"].as_u64().unwrap()).collect();
    numbers.sort_unstable();
    let (first, last) = (numbers[0], numbers[numbers.len() - 1]);
    assert_eq!(numbers, (first..=last).collect::<Vec<_>>(), "without gaps, and none twice");
}

/// A small file system for the store.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: PathBuf) -> Self {
        fs::create_dir(&at).unwrap();
        mount(None::<&str>, &at, Some("tmpfs"), MsFlags::empty(), Some("size=4m")).unwrap();
        Self(at)
    }

    fn fill(&self) {
        let mut file = File::options().create(true).append(true).open(self.0.join("fill")).unwrap();
        for piece in [1 << 20, 4096, 1] {
            while file.write_all(&vec![1; piece]).is_ok() {}
        }
    }

    fn free_space(&self) {
        fs::remove_file(self.0.join("fill")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
        let _ = fs::remove_dir(&self.0);
    }
}

fn sqlite(w: &World) {
    let off = w.run(&["history"]);
    assert!(off.code() == 4 && off.err().contains("ended work is not stored in this cluster"), "{}", off.err());
    assert!(w.ok(&["admin", "accounting", "status"]).contains("no store has been seen"));
    let disk = SmallDisk::mount(fresh_dir("books"));
    give_role(w, NODE, &format!("{{store: {:?}}}", format!("sqlite://{}/accounting.db", disk.0.display())));
    settled(w);
    let mut ids = vec![end(w, "n1", "true"), end(w, NODE, "exit 3"), end(w, OTHER, "sleep 2")];
    assert_each_once(w, &ids);
    let failed = history(w).into_iter().find(|work| text(work, "id") == ids[1]).unwrap();
    assert_eq!((text(&failed, "state").as_str(), &failed["exit_code"]), ("Failed", &3.into()), "{failed}");
    assert_eq!(fs::metadata(disk.0.join("accounting.db")).unwrap().permissions().mode() & 0o777, 0o600);

    // The store's agent is killed: what ends meanwhile waits in the quorum.
    faults::kill_node(&w.dir, NODE).unwrap();
    ids.extend([end(w, "n1", "true"), end(w, OTHER, "true")]);
    w.wait("two ends to wait", || waiting(w) == 2);
    let away = w.run(&["history"]);
    assert_eq!(away.code(), 5, "{}{}", away.out(), away.err());
    faults::start_node(&w.dir, NODE).unwrap();
    assert_each_once(w, &ids);

    // Killed again and again while work ends.
    for _ in 0..3 {
        ids.push(end(w, "n1", "true"));
        faults::kill_node(&w.dir, NODE).unwrap();
        faults::start_node(&w.dir, NODE).unwrap();
    }
    ready(w);
    assert_each_once(w, &ids);

    // Its disk is full.
    disk.fill();
    ids.extend([end(w, "n1", "true"), end(w, OTHER, "true")]);
    w.wait("the reason", || text(&status(w), "problem").contains("full"));
    let of_user = w.run_as(NOBODY, &["admin", "accounting", "status", "-o", "json"]).out();
    assert!(of_user.contains("degraded") && !of_user.contains("full"), "the cause is for operators: {of_user}");
    let problems = w.at(NODE).json(&["node", "status"]).unwrap()["degraded"].to_string();
    assert!(problems.contains("accounting: ended work is not stored, and waits in the quorum"), "{problems}");
    disk.free_space();
    assert_each_once(w, &ids);
    w.wait("the problem to be over", || status(w)["problem"].is_null());

    sums_are_those_of_usage(w);
    filters(w, &ids);
    others_see_their_own(w);
    tasks_have_their_ends(w);
    exports(w);
    moves(w);
    drop(disk);
}

/// The two agree to the second.
fn sums_are_those_of_usage(w: &World) {
    let used = w.lattice.json(&["usage"]).unwrap()[0]["node_hours"].as_f64().unwrap();
    let sums = w.lattice.json(&["history", "--sum", "--since", "90d"]).unwrap();
    let stored: f64 = sums["sums"].as_array().unwrap().iter().map(|sum| sum["node_hours"].as_f64().unwrap()).sum();
    assert!((used - stored).abs() * 3600.0 < 1.0, "usage has {used} node-hours, and history {stored}");
    assert!(stored > 0.0, "{sums}");
}

fn filters(w: &World, ids: &[String]) {
    let found = |args: &[&str]| {
        let page = w.lattice.json(&[&["history"], args].concat()).unwrap_or_else(|e| panic!("{e:#}"));
        page["work"].as_array().unwrap().iter().map(|work| text(work, "id")).collect::<Vec<_>>()
    };
    assert_eq!(found(&["--state", "failed"]), [ids[1].clone()]);
    assert_eq!(found(&["--name", "night-*"]).len(), ids.len());
    assert_eq!(found(&["--name", "day-*"]), Vec::<String>::new());
    assert_eq!(found(&["--limit", "2"]).len(), 2);
    assert_eq!(found(&["--until", "1h"]), Vec::<String>::new());
    let table = w.ok(&["history"]);
    assert!(table.starts_with("ID ") && table.contains("night-run") && table.contains(&ids[1][..8]), "{table}");
}

fn others_see_their_own(w: &World) {
    let args = ["submit", "-o", "name", "--cores=1", "--", "/bin/true"];
    let id = w.run_as(NOBODY, &args).out().trim().to_owned();
    w.ended(&id);
    settled(w);
    let own = w.run_as(NOBODY, &["history", "--all", "-o", "name"]);
    assert_eq!((own.code(), own.out().trim()), (0, id.as_str()), "{}", own.err());
    let refused = w.run_as(NOBODY, &["history", "--user", "root"]);
    assert!(refused.code() == 4 && refused.err().contains("ended work of user root is shown to operators"), "{}", refused.err());
    let refused = w.run_as(NOBODY, &["admin", "accounting", "export"]);
    assert_eq!(refused.code(), 4, "{}", refused.err());
    let refused = w.run_as(NOBODY, &["admin", "accounting", "move", "--force"]);
    assert_eq!(refused.code(), 4, "{}", refused.err());
}

/// The store has the record of a task group; how each of its tasks ended is added as long as the quorum knows it.
fn tasks_have_their_ends(w: &World) {
    let id = w.submit(&["--cores=1", "--task-group=1-4", "--", "/bin/sh", "-c", "[ $LATTICE_TASK_INDEX != 3 ]"]);
    w.ended(&id);
    settled(w);
    let number = w.status(&id)["job"].as_u64().unwrap();
    let found = |args: &[&str]| {
        let page = w.lattice.json(&[&["history"], args].concat()).unwrap_or_else(|e| panic!("{e:#}"));
        page["work"].as_array().unwrap().clone()
    };
    let (third, first) = (format!("{number}_3"), format!("{number}[1]"));
    let failed = found(&["--job", &third]);
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!((text(&failed[0], "id"), text(&failed[0], "state")), (format!("{id}[3]"), "Failed".to_owned()));
    assert_eq!(
        (failed[0]["exit_code"].as_i64(), failed[0]["task"].as_u64(), failed[0]["job"].as_u64()),
        (Some(1), Some(3), Some(number + 2))
    );
    assert!(failed[0]["node_hours"].is_null() && failed[0]["ended_at"].is_null(), "{failed:?}");
    let both = found(&["--job", &format!("{first},{number}")]);
    assert_eq!(both.iter().map(|work| text(work, "id")).collect::<Vec<_>>(), [format!("{id}[1]"), id.clone()]);
    assert_eq!(text(&both[0], "state"), "Completed");
    assert!(found(&["--job", &third, "--state", "completed"]).is_empty());
    assert!(w.ok(&["history", "--job", &third]).contains(&format!("{}[3]", &id[..8])));
    let unknown = w.run(&["history", "--job", &format!("{number}_9")]);
    assert!(unknown.code() == 3 && unknown.err().contains("has no task 9"), "{}", unknown.err());
    let sums = w.run(&["history", "--sum", "--job", &third]);
    assert!(sums.code() == 2 && sums.err().contains("single tasks have no sums"), "{}", sums.err());
}

fn exports(w: &World) {
    let stored = status(w)["stored"].as_u64().unwrap();
    let (csv, json) = (w.dir.join("work.csv"), w.dir.join("work.json"));
    w.ok(&["admin", "accounting", "export", "--file", &csv.to_string_lossy()]);
    w.ok(&["admin", "accounting", "export", "--format", "json", "--file", &json.to_string_lossy()]);
    let csv = fs::read_to_string(csv).unwrap();
    assert!(csv.starts_with("sequence,id,name,user,") && csv.contains("night-run"), "{csv}");
    let records: Vec<Value> = fs::read_to_string(json).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let numbers: Vec<u64> = records.iter().map(|record| record["sequence"].as_u64().unwrap()).collect();
    assert!(numbers.is_sorted() && numbers.last() == Some(&stored), "{numbers:?}");
    assert_eq!(csv.lines().count(), records.len() + 1);
    let table = w.dir.join("work.parquet");
    w.ok(&["admin", "accounting", "export", "--format", "parquet", "--file", &table.to_string_lossy()]);
    let reader = SerializedFileReader::new(File::open(&table).unwrap()).unwrap();
    let rows: Vec<Row> = reader.get_row_iter(None).unwrap().collect::<Result<_, _>>().unwrap();
    let read: Vec<(u64, String)> =
        rows.iter().map(|row| (u64::try_from(row.get_long(0).unwrap()).unwrap(), row.get_string(1).unwrap().clone())).collect();
    let want: Vec<(u64, String)> = records.iter().map(|record| (record["sequence"].as_u64().unwrap(), text(record, "id"))).collect();
    assert_eq!(read, want);
}

/// A node with another store waits until accounting is moved to it.
fn moves(w: &World) {
    let other = Folder::new("books");
    let before = text(&status(w), "store");
    give_role(w, OTHER, &format!("{{store: {:?}}}", format!("sqlite://{}/accounting.db", other.0.display())));
    let problems = || w.at(OTHER).json(&["node", "status"]).unwrap()["degraded"].to_string();
    w.wait("it to say why it waits", || problems().contains("lattice admin accounting move"));
    settled(w);
    faults::kill_node(&w.dir, NODE).unwrap();
    let moved = w.ok(&["admin", "accounting", "move"]);
    assert!(!moved.contains(&before), "{moved}");
    w.wait("the other store to go on", || status(w)["on"] == true && text(&status(w), "store") != before);
    let id = end(w, "n1", "true");
    settled(w);
    assert_eq!(history(w).iter().map(|work| text(work, "id")).collect::<Vec<_>>(), [id]);
    configure(&w.dir, NODE, "roles: [api, scheduler]");
    faults::start_node(&w.dir, NODE).unwrap();
    let records = w.ok(&["audit", "query", "--type", "accounting-moved"]);
    assert!(records.contains(&before), "{records}");
}

/// A PostgreSQL server of an ordinary user.
struct Server {
    data: PathBuf,
    port: u16,
    child: Child,
}

impl Server {
    fn start(dir: &Path) -> Self {
        let data = dir.join("data");
        let password = dir.join("initial-password");
        fs::write(&password, "geheim\n").unwrap();
        for path in [dir, &password] {
            chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let mut init = Command::new(postgres_program("initdb").unwrap());
        init.args(["-A", "scram-sha-256", "-U", "lattice", "--no-sync", "-E", "UTF8", "--locale=C"]);
        init.arg("-D").arg(&data).arg("--pwfile").arg(&password);
        let done = process::run(init.uid(NOBODY).gid(NOBODY).current_dir(dir), JOB).unwrap();
        assert_eq!(done.code(), 0, "{}{}", done.out(), done.err());
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Self::spawned(&data, port);
        let server = Self { data, port, child };
        server.listens();
        server
    }

    fn spawned(data: &Path, port: u16) -> Child {
        let mut command = Command::new(postgres_program("postgres").unwrap());
        command.arg("-D").arg(data).arg("-k").arg(data).args(["-p", &port.to_string(), "-c", "listen_addresses=127.0.0.1"]);
        command.uid(NOBODY).gid(NOBODY).current_dir(data);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    fn listens(&self) {
        assert!(process::until(JOB, || TcpStream::connect(("127.0.0.1", self.port)).is_ok()), "PostgreSQL does not listen");
    }

    fn stop(&mut self) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), Signal::SIGINT).unwrap();
        self.child.wait().unwrap();
    }

    fn start_again(&mut self) {
        self.child = Self::spawned(&self.data, self.port);
        self.listens();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), Signal::SIGQUIT);
        let _ = self.child.wait();
    }
}

fn postgres(w: &World) {
    let folder = Folder::new("postgres");
    let mut server = Server::start(&folder.0);
    let password = w.dir.join("accounting-password");
    fs::write(&password, "geheim\n").unwrap();
    fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).unwrap();
    let store = format!("postgres://lattice@127.0.0.1:{}/postgres?sslmode=disable", server.port);
    let store = format!("{{store: {store:?}, password_file: {:?}}}", password.display().to_string());
    give_role(w, NODE, &store);
    settled(w);
    assert_eq!(text(&status(w), "kind"), "postgresql");
    let mut ids = vec![end(w, "n1", "true"), end(w, OTHER, "exit 3")];
    assert_each_once(w, &ids);

    // The server is stopped for a while: nothing is lost, and the reason is shown.
    server.stop();
    ids.extend([end(w, "n1", "true"), end(w, OTHER, "true")]);
    w.wait("the reason", || text(&status(w), "problem").contains("PostgreSQL"));
    assert_eq!(waiting(w), 2);
    server.start_again();
    assert_each_once(w, &ids);

    // Another agent with the same database takes over.
    give_role(w, OTHER, &store);
    faults::kill_node(&w.dir, NODE).unwrap();
    ids.push(end(w, "n1", "true"));
    w.wait("the other agent to store", || text(&status(w), "node") == OTHER);
    faults::start_node(&w.dir, NODE).unwrap();
    ids.push(end(w, "n1", "true"));
    ready(w);
    assert_each_once(w, &ids);
    sums_are_those_of_usage(w);
    let found = w.lattice.json(&["history", "--name", "night-*", "--tag", "none=x"]).unwrap();
    assert_eq!(found["work"], serde_json::json!([]));
}
