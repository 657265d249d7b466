//! The table of who may call which method, against a real agent: each method is called by each kind of caller, about
//! work of somebody else, and must be refused exactly where the table says no.
//!
//! A request that the table allows must do no harm: it names what does not exist, or is wrong in a way that is found after
//! the caller's rights were checked. An object that a request would end exists once for each caller.

mod requests;

use crate::harness::{DAEMON, Group, JOB, NOBODY, Need, World, alone, lab_program};
use lattice_api::v1;
use lattice_lab::lattice::text;
use lattice_lab::process;
use lattice_model::access::{Relation, Roles, methods};
use libtest_mimic::Trial;
use nix::unistd::User;
use prost::Message;
use requests::{Target, Work};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use uuid::Uuid;

static TABLE: Group = Group { theme: "access_table", name: "access_table", nodes: 1, quorum: 1, tweak: |_| {} };

pub fn trials() -> Vec<Trial> {
    vec![
        alone("access_table::every_method_has_a_request_or_a_reason", &[], all_methods_are_walked),
        TABLE.test("a_caller_is_refused_exactly_where_the_table_says_no", &[Need::Accounts], walk),
    ]
}

/// The tenant of the work.
const TENANT: &str = "physics";
/// Methods that no request from outside of work reaches.
const OF_WORK: [&str; 5] = [
    "ApplicationService/Defer",
    "ApplicationService/Done",
    "ApplicationService/Fail",
    "ApplicationService/Progress",
    "ApplicationService/Register",
];
/// Answers that say nothing about the caller's rights.
const NO_ANSWERS: [&str; 2] = ["Unavailable", "DeadlineExceeded"];

/// One kind of caller.
struct Caller {
    kind: &'static str,
    uid: u32,
    roles: Roles,
}

/// The user id of an account of every Linux ([`Need::Accounts`]).
fn uid_of(account: &str) -> u32 {
    User::from_name(account).unwrap().unwrap_or_else(|| panic!("no account {account}")).uid.as_raw()
}

/// Callers in an order in which none ends an object that a later one must be refused: the owner is last.
fn callers() -> [Caller; 6] {
    let none = Roles::default;
    let admin_of = BTreeSet::from([TENANT.to_owned()]);
    [
        Caller { kind: "a user", uid: uid_of("games"), roles: none() },
        Caller { kind: "an admin of the tenant", uid: DAEMON, roles: Roles { admin_of, ..none() } },
        Caller { kind: "an operator", uid: uid_of("bin"), roles: Roles { operator: true, ..none() } },
        Caller { kind: "a system admin", uid: uid_of("sys"), roles: Roles { system_admin: true, ..none() } },
        Caller { kind: "root", uid: 0, roles: Roles { root: true, ..none() } },
        Caller { kind: "the owner", uid: NOBODY, roles: none() },
    ]
}

impl Caller {
    /// Whether the table lets it call this method on that target.
    fn may(&self, method: &str, target: Target) -> bool {
        let owns = self.uid == NOBODY;
        let relation = match target {
            Target::OfCaller => Relation::Own,
            Target::Work | Target::WithoutTenant if owns => Relation::Own,
            Target::WithoutTenant => Relation::Foreign,
            Target::Work | Target::Tenant => self.roles.relation_to_tenant(TENANT),
            Target::Cluster => Relation::Foreign,
        };
        self.roles.may(method, relation)
    }
}

/// The requests of the walk for one caller, by method.
fn walked(work: &Work) -> BTreeMap<&'static str, (Target, Vec<u8>)> {
    let rules = methods().filter(|rule| !OF_WORK.contains(&rule.method));
    rules.filter_map(|rule| Some((rule.method, requests::of(rule.method, work)?))).collect()
}

fn all_methods_are_walked() {
    let walked = walked(&Work::default());
    let left_out: Vec<&str> = methods().map(|rule| rule.method).filter(|method| !walked.contains_key(method)).collect();
    assert_eq!(left_out, OF_WORK, "left are the methods without a request, right those that need none");
}

/// Removes the roles and the tenant, whatever the result of the test.
struct Removed<'a>(&'a World);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        for id in self.0.run(&["status", "--all", "-o", "name"]).out().lines() {
            let _ = self.0.run(&["cancel", id]);
        }
        let _ = self.0.run(&["lease", "revoke", requests::LEASE]);
        for (role, account) in [("operator", "bin"), ("system-admin", "sys")] {
            let _ = self.0.run(&["admin", "role", "revoke", role, account]);
        }
        let _ = self.0.run(&["admin", "tenant", "delete", TENANT]);
    }
}

/// `lattice-lab` where every account can run it.
fn program(w: &World) -> PathBuf {
    let program = w.dir.join("bin/lattice-lab");
    if !program.exists() {
        fs::copy(lab_program(), &program).unwrap();
    }
    program
}

/// Makes these calls as that user; returns the name of each status, and the message.
fn call<'a>(w: &World, uid: u32, calls: impl Iterator<Item = (&'a str, &'a [u8])>) -> BTreeMap<String, (String, String)> {
    let mut lines = String::new();
    for (method, request) in calls {
        let digits: String = request.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(lines, "{method} {digits}").unwrap();
    }
    let file = w.dir.join("calls");
    fs::write(&file, &lines).unwrap();
    let endpoint = format!("unix:{}", w.lattice.socket().display());
    let mut command = Command::new(program(w));
    command.args(["call", &endpoint]).arg(&file).uid(uid).gid(uid).current_dir("/");
    let done = process::run(&mut command, JOB).unwrap();
    assert!(done.code() == 0 && !done.timed_out, "as {uid}: {}{}", done.out(), done.err());
    let answers = done.out().lines().map(answer).collect::<BTreeMap<_, _>>();
    assert_eq!(answers.len(), lines.lines().count(), "{}", done.out());
    answers
}

fn answer(line: &str) -> (String, (String, String)) {
    let parts: Vec<&str> = line.splitn(3, '\t').collect();
    let [method, code, message] = parts[..] else { panic!("no answer: {line:?}") };
    (method.to_owned(), (code.to_owned(), message.to_owned()))
}

/// Makes one call as the owner, which must succeed.
fn owner_calls(w: &World, method: &str, request: &impl Message) {
    let bytes = request.encode_to_vec();
    let answers = call(w, NOBODY, std::iter::once((method, bytes.as_slice())));
    assert_eq!(answers[method].0, "Ok", "{method}: {}", answers[method].1);
}

/// Submits work of the owner in the tenant; returns its id.
fn submit(w: &World, args: &[&str]) -> String {
    let done = w.run_as(NOBODY, &[&["submit", "-o", "name", "--tenant", TENANT], args].concat());
    assert_eq!(done.code(), 0, "{}", done.err());
    done.out().trim().to_owned()
}

/// An allocation that is kept for a terminal, with its session.
fn session(w: &World) -> String {
    let (id, session) = (Uuid::new_v4().to_string(), Uuid::new_v4().to_string());
    let lifecycle = v1::Lifecycle { walltime_seconds: 3600, ..Default::default() };
    let resources = v1::ResourceRequest { nodes: 1, shared: true, cpus: 1, ..Default::default() };
    let spec = v1::AllocationSpec {
        name: "session".to_owned(),
        tenant: TENANT.to_owned(),
        resources: Some(resources),
        lifecycle: Some(lifecycle),
        working_dir: "/".to_owned(),
        session: true,
        ..Default::default()
    };
    owner_calls(w, "AllocationService/Submit", &v1::SubmitRequest { id: id.clone(), spec: Some(spec), ..Default::default() });
    w.running(&id);
    owner_calls(w, "SessionService/Create", &v1::CreateSessionRequest { id: session.clone(), allocation: id });
    session
}

fn dag(w: &World) -> String {
    let file = w.dir.join("walk.yaml");
    let step = "  - {name: one, entrypoint: [/bin/sleep, \"600\"], walltime: 1h, cores: 1, tenant: physics}\n";
    fs::write(&file, format!("name: walk\nallocations:\n{step}")).unwrap();
    let done = w.run_as(NOBODY, &["dag", "submit", "-o", "name", &file.to_string_lossy()]);
    assert_eq!(done.code(), 0, "{}", done.err());
    done.out().trim().to_owned()
}

/// Grants the owner's lease, whoever has ended it; returns its token.
fn lease(w: &World) -> u64 {
    let done = w.run_as(NOBODY, &["lease", "grant", requests::LEASE, "--ttl", "10m", "-o", "name"]);
    assert_eq!(done.code(), 0, "{}", done.err());
    done.out().trim().parse().unwrap()
}

/// The tenant with its member and admin, and the other roles.
fn grant(w: &World) {
    w.ok(&["admin", "tenant", "create", TENANT]);
    w.ok(&["admin", "tenant", "member", "add", TENANT, "user:nobody", "--default"]);
    w.ok(&["admin", "role", "grant", "tenant-admin", "daemon", "--tenant", TENANT]);
    w.ok(&["admin", "role", "grant", "operator", "bin"]);
    w.ok(&["admin", "role", "grant", "system-admin", "sys"]);
}

fn walk(w: &World) {
    let _removed = Removed(w);
    grant(w);
    let running = submit(w, &["--cores", "1", "--", "/bin/sleep", "600"]);
    w.running(&running);
    assert_eq!(text(&w.status(&running), "tenant"), TENANT);
    let (session, dag) = (session(w), dag(w));
    let mut wrong = String::new();
    for caller in callers() {
        let held = submit(w, &["--hold", "--", "/bin/true"]);
        let work = Work { running: running.clone(), held, session: session.clone(), dag: dag.clone(), lease: lease(w) };
        let requests = walked(&work);
        // Methods that end an object come last, because the other calls need the same objects.
        let (last, first): (Vec<_>, Vec<_>) = requests.iter().partition(|(method, _)| requests::ENDS.contains(*method));
        let calls = first.iter().chain(&last).map(|(method, (_, bytes))| (**method, bytes.as_slice()));
        let answers = call(w, caller.uid, calls);
        for (method, (target, _)) in &requests {
            let (code, message) = &answers[*method];
            if NO_ANSWERS.contains(&code.as_str()) {
                writeln!(wrong, "{}, {method}: nobody answered ({code}: {message})", caller.kind).unwrap();
                continue;
            }
            let is_refused = ["PermissionDenied", "Unauthenticated"].contains(&code.as_str());
            let may = caller.may(method, *target);
            if is_refused == may || code == "Unimplemented" {
                let says = if may { "allows" } else { "refuses" };
                writeln!(wrong, "{}, {method}: the table {says} it, the answer is {code}: {message}", caller.kind).unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
    assert_eq!(text(&w.status(&running), "state"), "Running", "no call of the walk ended what others are about");
}
