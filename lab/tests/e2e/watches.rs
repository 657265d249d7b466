//! `--watch`: one line for each change, also when daemons are killed meanwhile; and very long lists.
//! `LATTICE_TEST_ALLOCATIONS` makes them longer: the nightly run has a hundred thousand.

use crate::harness::{DAEMON, Group, JOB, NOBODY, World, configure};
use futures::StreamExt;
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_lab::faults;
use lattice_lab::lattice::{Lattice, text};
use lattice_lab::process::until;
use lattice_lab::quorum::members::certificate;
use lattice_model::{AllocationId, AllocationSpec, Entrypoint, Principal};
use lattice_pki::credentials::Credentials;
use lattice_pki::identity::Role;
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::wire::{Answer, Request};
use libtest_mimic::Trial;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use uuid::Uuid;

static WATCHES: Group = Group::large("watches");
static MANY: Group = Group { theme: "lists", name: "many", nodes: 1, quorum: 1, tweak: |_| {} };

pub fn trials() -> Vec<Trial> {
    vec![
        WATCHES.test("each_change_makes_one_line_whatever_is_killed", &[], each_once),
        WATCHES.test("one_allocation_is_watched_to_its_end_by_its_owner_alone", &[], one),
        MANY.test("very_many_allocations_are_listed_filtered_and_watched", &[], many),
    ]
}

/// A command that keeps running, and its output.
pub struct Watching {
    child: Child,
    out: PathBuf,
    err: PathBuf,
}

impl Watching {
    pub fn begin(w: &World, name: &str, args: &[&str], uid: Option<u32>) -> Self {
        Self::begin_at(w, &w.lattice, name, args, uid)
    }

    /// The same with another node's agent.
    pub fn begin_at(w: &World, lattice: &Lattice, name: &str, args: &[&str], uid: Option<u32>) -> Self {
        let (out, err) = (w.dir.join(format!("{name}.out")), w.dir.join(format!("{name}.err")));
        let mut command = lattice.clone().with_program(&w.dir.join("bin/lattice")).command(args);
        command.stdin(Stdio::null()).stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap());
        if let Some(uid) = uid {
            let home = w.dir.join(format!("home-{uid}"));
            command.uid(uid).gid(uid).current_dir(&home).env("HOME", &home).env_remove("XDG_STATE_HOME");
        }
        Self { child: command.spawn().unwrap(), out, err }
    }

    pub fn out(&self) -> String {
        std::fs::read_to_string(&self.out).unwrap()
    }

    pub fn err(&self) -> String {
        std::fs::read_to_string(&self.err).unwrap()
    }

    /// The complete lines of JSON so far.
    pub fn lines(&self) -> Vec<Value> {
        let text = self.out();
        let whole = text.rfind('\n').map_or("", |end| &text[..=end]);
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits until it ends by itself; returns its exit code.
    pub fn ended(&mut self) -> Option<i32> {
        let mut status = None;
        let ended = until(JOB, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        assert!(ended, "it goes on: {}{}", self.out(), self.err());
        status.and_then(|s| s.code())
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// The changes made while everything was watched.
#[derive(Default)]
struct Done {
    ids: Vec<String>,
    tokens: Vec<u64>,
    rounds: usize,
}

impl Done {
    /// Changes everything once and back, through this node's agent.
    fn round(&mut self, w: &World, node: &str) {
        let lattice = w.at(node);
        // Repeated until it is accepted: members are killed meanwhile.
        let ask = |args: &[&str]| {
            let mut out = String::new();
            w.wait(&format!("`lattice {}`", args.join(" ")), || match lattice.run(args, JOB).unwrap() {
                done if done.code() == 0 => {
                    out = done.out().trim().to_owned();
                    true
                }
                done => {
                    assert_eq!(done.code(), 5, "{}", done.err());
                    false
                }
            });
            out
        };
        let id = ask(&["submit", "--nodes", "9", "--wait-for-nodes", "-o", "name", "--", "/bin/true"]);
        let token = ask(&["lease", "grant", "guard", "--ttl", "10m", "-o", "name"]);
        ask(&["node", "cordon", "n3", "--reason", "fan"]);
        ask(&["cancel", &id]);
        ask(&["lease", "release", "guard", "--token", &token]);
        ask(&["node", "uncordon", "n3"]);
        self.ids.push(id);
        self.tokens.push(token.parse().unwrap());
        self.rounds += 1;
    }
}

/// How often each agent's own watch began with a list, and how often it resumed at its position.
fn agents_watches(w: &World, node: &str) -> (usize, usize) {
    let log = std::fs::read_to_string(&w.cluster().node(node).unwrap().daemon.log).unwrap();
    (log.matches("a watch begins with a list").count(), log.matches("a watch continues where it was").count())
}

fn each_once(w: &World) {
    // The last change that a node makes by itself.
    w.wait("the nodes to have reported their components", || {
        let nodes = w.lattice.json(&["nodes"]).unwrap_or_default();
        nodes.as_array().is_some_and(|nodes| nodes.iter().all(|node| !node["conformance"].is_null()))
    });
    let allocations = Watching::begin(w, "allocations", &["status", "--all", "--watch", "-o", "json"], None);
    let nodes = Watching::begin(w, "nodes", &["nodes", "-w", "-o", "json"], None);
    let leases = Watching::begin(w, "leases", &["lease", "list", "-w", "-o", "json"], None);
    let table = Watching::begin(w, "table", &["nodes", "n3", "-w"], None);
    w.wait("the lists", || nodes.lines().len() == 3 && !leases.lines().is_empty() && table.out().lines().count() == 2);
    let before = ["n2", "n3"].map(|node| agents_watches(w, node));
    let mut done = Done::default();
    done.round(w, "n1");
    for member in 1..=3 {
        faults::kill_member(&w.dir, member).unwrap();
        done.round(w, "n1");
        faults::start_member(&w.dir, member).unwrap();
        w.wait("all members to be there", || {
            let members = w.lattice.json(&["quorum", "members"]).unwrap_or_default();
            let has_leader = |m: &Value| ["leader", "follower"].contains(&text(m, "role").as_str());
            members.as_array().is_some_and(|rows| rows.len() == 3 && rows.iter().all(has_leader))
        });
    }
    // The agent that the watching commands use.
    faults::kill_node(&w.dir, "n1").unwrap();
    done.round(w, "n2");
    faults::start_node(&w.dir, "n1").unwrap();
    for member in 1..=3 {
        faults::kill_member(&w.dir, member).unwrap();
    }
    for member in 1..=3 {
        faults::start_member(&w.dir, member).unwrap();
    }
    done.round(w, "n2");

    let last = done.ids.last().unwrap();
    let cancelled = |line: &Value| text(line, "id") == *last && text(line, "state") == "Cancelled";
    w.wait("the last line of allocations", || allocations.lines().iter().any(cancelled));
    let held = |line: &Value| line["holds"].as_array().is_some_and(|holds| !holds.is_empty());
    let of_n3 = || nodes.lines().into_iter().filter(|line| text(line, "id") == "n3").map(|line| held(&line)).collect::<Vec<_>>();
    w.wait("the last line of n3", || of_n3().len() > 2 * done.rounds);
    let guard = || leases.lines().into_iter().filter(|line| text(line, "name") == "guard").collect::<Vec<_>>();
    w.wait("the last line of leases", || guard().len() >= 2 * done.rounds);

    let mut states: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in allocations.lines() {
        states.entry(text(&line, "id")).or_default().push(text(&line, "state"));
    }
    for id in &done.ids {
        assert_eq!(states[id], ["Pending", "Cancelled"], "{id}");
    }
    let holds: Vec<bool> = std::iter::once(false).chain((0..done.rounds).flat_map(|_| [true, false])).collect();
    assert_eq!(of_n3(), holds);
    let held: Vec<Option<u64>> = guard().iter().map(|line| line["token"].as_u64()).collect();
    assert_eq!(held, done.tokens.iter().flat_map(|token| [Some(*token), None]).collect::<Vec<_>>());
    let shown = table.out();
    assert!(
        shown.starts_with("NODE") && shown.matches("NODE").count() == 1 && shown.matches("cordon by root").count() == done.rounds,
        "{shown}"
    );
    for watching in [&allocations, &nodes, &leases, &table] {
        assert!(!watching.err().contains("changes are missing"), "{}", watching.err());
    }
    // Agents do not read the list again because a member was killed.
    for (node, (lists, resumed)) in ["n2", "n3"].into_iter().zip(before) {
        let (now, again) = agents_watches(w, node);
        assert_eq!(now, lists, "{node} began again with a list");
        assert!(again > resumed, "{node} went on {again} times, {resumed} of them before");
    }
}

fn one(w: &World) {
    let go = w.dir.join("go-on");
    let id = w.submit(&["--", "/bin/sh", "-c", &format!("while [ ! -e {} ]; do sleep 0.05; done; exit 3", go.display())]);
    let theirs = w.run_as(NOBODY, &["status", &id, "--watch"]);
    assert!(theirs.code() == 4 && theirs.err().contains("belongs to root"), "{}", theirs.err());
    let others = Watching::begin(w, "others", &["status", "-w", "-o", "name"], Some(NOBODY));
    let all = Watching::begin(w, "all", &["status", "--all", "--state", "running,failed", "-w", "-o", "json"], Some(NOBODY));
    let filters = ["status", "-w", "--user", "root", "--name", "watched", "--node", "n1", "-o", "json"];
    let filtered = Watching::begin(w, "filtered", &filters, Some(NOBODY));
    w.wait("the running one among all", || all.lines().iter().any(|line| text(line, "id") == id));
    std::fs::write(&go, "").unwrap();
    let mut own = Watching::begin(w, "own", &["status", &id[..8], "-w", "-o", "json"], None);
    assert_eq!(own.ended(), Some(0), "{}", own.err());
    let lines = own.lines();
    let (last, before) = lines.split_last().unwrap();
    assert_eq!((text(last, "state").as_str(), last["exit_code"].as_i64()), ("Failed", Some(3)), "{last}");
    assert!(before.iter().all(|line| text(line, "id") == id && !crate::harness::ended(line)), "{before:?}");
    let mut again = Watching::begin(w, "again", &["status", &id, "-w"], None);
    assert_eq!(again.ended(), Some(0));
    assert!(again.out().starts_with("ID") && again.out().contains("Failed") && again.out().lines().count() == 2, "{}", again.out());
    // A watch has the same filters as a list: owner, name and node.
    let elsewhere = w.submit(&["--name", "watched", "--nodelist", "n2", "--", "/bin/true"]);
    let other = w.submit(&["--name", "other", "--nodelist", "n1", "--", "/bin/true"]);
    w.completed(&elsewhere);
    w.completed(&other);
    let wanted = w.submit(&["--name", "watched", "--nodelist", "n1", "--", "/bin/true"]);
    w.wait("its end among what is filtered", || filtered.lines().iter().any(crate::harness::ended));
    assert!(filtered.lines().iter().all(|line| text(line, "id") == wanted && text(line, "name") == "watched"), "{}", filtered.out());
    // Everybody may list and watch the allocations of others; without --all only their own are shown.
    w.wait("its end among all", || all.lines().iter().any(|line| text(line, "id") == id && text(line, "state") == "Failed"));
    let mine = w.run_as(NOBODY, &["submit", "--nodes", "9", "--wait-for-nodes", "-o", "name", "--", "/bin/true"]).out();
    w.wait("their own", || others.out() == mine);
    let many: Vec<Watching> =
        (0..16).map(|n| Watching::begin(w, &format!("many-{n}"), &["nodes", "-w", "-o", "name"], Some(DAEMON))).collect();
    // Each has the list, and one more line for each change.
    w.wait("sixteen watches", || many.iter().all(|watching| watching.out().lines().count() >= 3));
    let more = w.run_as(DAEMON, &["nodes", "-w"]);
    assert!(more.code() == 4 && more.err().contains("you have 16 watches open at this agent"), "{}", more.err());
    let none = w.run(&["status", "ffffffff", "-w"]);
    assert_eq!(none.code(), 3, "{}", none.err());
    let both = w.run(&["status", "-w", "--stale"]);
    assert_eq!(both.code(), 2, "{}", both.err());
}

/// The number of allocations, unless the environment sets another one.
const ALLOCATIONS: usize = 10_000;
/// One in this many is another user's.
const OTHERS: usize = 100;

/// Submits allocations as an agent would, which is faster than running the CLI for each.
fn submit_all(w: &World, count: usize) -> BTreeSet<String> {
    let cluster = w.cluster();
    let credentials = Credentials::new(certificate(&cluster, "submitter", Role::Api).unwrap()).unwrap();
    let members: Vec<String> = cluster.members.iter().map(|m| m.service.clone()).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let client = QuorumClient::new(members, credentials).unwrap();
        let commits = (0..count).map(|number| {
            let client = client.clone();
            async move {
                let id = AllocationId(Uuid::new_v4());
                let command = Entrypoint::Command { argv: vec!["true".into()] };
                let spec = AllocationSpec { nodes: 9, ..AllocationSpec::new("many", command, Path::new("/")) };
                let (name, uid) = if number % OTHERS == 0 { ("nobody", NOBODY) } else { ("root", 0) };
                let owner = Principal { name: name.into(), uid, gid: uid, groups: vec![] };
                let request = Request::Submit { id, spec: Box::new(spec), owner, claim: None, life: None, login_tenants: [].into() };
                let answer = client.call(&request, JOB).await;
                assert!(matches!(answer, Ok(Answer::Done { .. })), "{answer:?}");
                id.to_string()
            }
        });
        futures::stream::iter(commits).buffer_unordered(200).collect().await
    })
}

/// The number of allocations on each page of a list, requested as the CLI does.
fn pages(w: &World, states: &[&str]) -> Vec<usize> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::connect(&format!("unix:{}", w.lattice.socket().display())).await.unwrap();
        let states = states.iter().map(|state| (*state).to_owned()).collect();
        let mut request = v1::ListAllocationsRequest { all_users: true, states, limit: 1000, ..Default::default() };
        let mut sizes = Vec::new();
        loop {
            let page = client.allocations().list(request.clone()).await.unwrap().into_inner();
            sizes.push(page.allocations.len());
            if page.next_page_token.is_empty() {
                return sizes;
            }
            request.page_token = page.next_page_token;
        }
    })
}

fn many(w: &World) {
    let count = std::env::var("LATTICE_TEST_ALLOCATIONS").map_or(ALLOCATIONS, |text| text.parse().unwrap());
    // Allocations without enough free nodes wait; this need not be checked for each of them again.
    configure(&w.dir, "n1", "roles: [api]");
    faults::kill_node(&w.dir, "n1").unwrap();
    faults::start_node(&w.dir, "n1").unwrap();
    let began = Instant::now();
    let ids = submit_all(w, count);
    assert_eq!(ids.len(), count);
    let submitted = began.elapsed();

    let most = count.to_string();
    let limit = Duration::from_secs(120);
    let names = |text: String| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let list = |args: &[&str]| {
        let done = w.run_for(&[&["status", "-o", "name", "--limit", &most], args].concat(), limit);
        assert_eq!(done.code(), 0, "{}", done.err());
        names(done.out())
    };
    let listing = Instant::now();
    let all = list(&["--all", "--state", "pending"]);
    let listed = listing.elapsed();
    assert_eq!(all.len(), count, "each once");
    assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), ids);
    assert_eq!(list(&["--all", "--state", "running,failed"]), Vec::<String>::new());
    let theirs = count.div_ceil(OTHERS);
    assert_eq!(list(&[]).len(), count - theirs, "one's own");
    let shown = w.run_as(NOBODY, &["status", "-o", "name", "--limit", &most]);
    assert_eq!(shown.out().lines().count(), theirs, "{}", shown.err());

    // The last page is marked as such, so that a short list needs only one call.
    assert_eq!(pages(w, &["Running"]), [0]);
    assert_eq!(pages(w, &["Pending"]), vec![1000; count / 1000]);

    let watching = Instant::now();
    let watch = Watching::begin(w, "watch", &["status", "--all", "-w", "-o", "name"], None);
    let lines = || watch.out().bytes().filter(|byte| *byte == b'\n').count();
    w.wait("the whole list", || lines() == count);
    let watched = watching.elapsed();
    let ended: Vec<&String> = ids.iter().take(20).collect();
    let (first, second) = ended.split_at(10);
    let cancel = |ids: &[&String]| {
        w.ok(&[&["cancel"], &ids.iter().map(|id| id.as_str()).collect::<Vec<_>>()[..]].concat());
    };
    cancel(first);
    w.wait("ten changes", || lines() == count + 10);
    // Ten more lines and no new list, at a member that has read everything from its disk.
    faults::kill_member(&w.dir, 1).unwrap();
    faults::start_member(&w.dir, 1).unwrap();
    w.wait("the member", || w.run(&["status", "-o", "name", "--limit", "1"]).code() == 0);
    cancel(second);
    w.wait("ten more", || lines() >= count + 20);
    let shown = names(watch.out());
    assert_eq!(shown[..count].iter().cloned().collect::<BTreeSet<_>>(), ids);
    assert_eq!(shown[count..].iter().collect::<BTreeSet<_>>(), ended.into_iter().collect());
    assert_eq!(shown.len(), count + 20, "{}", watch.err());
    eprintln!("{count} allocations: submitted in {submitted:?}, listed in {listed:?}, on the screen of a watch in {watched:?}");
}
