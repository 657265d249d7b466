//! Roles, members of tenants, and what each caller sees of the audit log, through the CLI.

use crate::harness::{DAEMON, Group, NOBODY, Need, World};
use crate::telemetry::get;
use lattice_lab::lattice::text;
use lattice_lab::process::Finished;
use libtest_mimic::Trial;
use nix::unistd::{Gid, Group as Accounts};
use serde_json::Value;

static ROLES: Group = Group { theme: "roles", name: "roles", nodes: 2, quorum: 1, tweak: |_| {} };

pub fn trials() -> Vec<Trial> {
    vec![
        ROLES.test("a_tenant_with_members_takes_work_of_these_alone", &[], members),
        ROLES.test("a_project_takes_work_of_its_members_and_an_admin_of_the_tenant_says_who_they_are", &[], projects),
        ROLES.test("work_that_names_no_tenant_gets_its_owners", &[], default_tenant),
        ROLES.test("an_admin_of_a_tenant_acts_for_its_work_and_for_nothing_else", &[Need::Accounts], tenant_admin),
        ROLES.test("an_operator_by_a_role_runs_nodes_until_the_role_is_revoked", &[], operator),
        ROLES.test("work_of_an_operator_has_no_role", &[], work_of_operator),
        ROLES.test("a_new_tenant_of_a_former_name_gives_its_admin_nothing_of_the_former_work", &[], former_tenant),
        ROLES.test("work_of_an_admin_submits_into_no_tenant_that_its_role_alone_opens", &[], work_of_admin),
        ROLES.test("root_acts_for_itself_where_the_site_says_so", &[], narrowed_root),
        ROLES.test("a_user_sees_own_audit_records_and_a_denied_call_is_one", &[], audit),
        ROLES.test("everybody_sees_what_they_may_do", &[], who_am_i),
    ]
}

/// Restores the cluster, whatever the result of the test.
struct Restored<'a>(&'a World);

impl Drop for Restored<'_> {
    fn drop(&mut self) {
        let _ = self.0.run(&["admin", "limits", "--root-acts-for=everybody"]);
        let _ = self.0.run(&["lease", "revoke", "theirs"]);
        for args in [&["operator", "daemon"][..], &["operator", "root"], &["tenant-admin", "daemon", "--tenant", "physics"]] {
            let _ = self.0.run(&[&["admin", "role", "revoke"], args].concat());
        }
        for id in self.0.run(&["status", "--all", "-o", "name"]).out().lines() {
            let _ = self.0.run(&["cancel", id]);
        }
        for tenant in ["physics", "chemistry"] {
            let _ = self.0.run(&["admin", "tenant", "delete", tenant]);
        }
        let _ = self.0.run(&["node", "undrain", "n2"]);
    }
}

fn tenants(w: &World) -> Restored<'_> {
    for tenant in ["physics", "chemistry"] {
        w.ok(&["admin", "tenant", "create", tenant]);
    }
    Restored(w)
}

/// Runs a command as this user; it must succeed.
fn ok_as(w: &World, uid: u32, args: &[&str]) -> String {
    let done = w.run_as(uid, args);
    assert_eq!(done.code(), 0, "{args:?} as {uid}: {}", done.err());
    done.out()
}

/// Runs a command as this user; it must be refused with a text that contains these pieces.
fn refused_as(w: &World, uid: u32, args: &[&str], pieces: &[&str]) {
    assert_refused(args, &w.run_as(uid, args), pieces);
}

fn assert_refused(args: &[&str], done: &Finished, pieces: &[&str]) {
    assert_refused_with(4, args, done, pieces);
}

/// Submits work of this user that names no tenant: refused, because nobody knows which of these pays.
fn asks_for_tenant(w: &World, uid: u32, tenants: &str) {
    let asks = format!("is in {tenants} and has no default: which one pays?");
    for args in [&["submit", "--", "true"][..], &["submit", "--dry-run", "--", "true"]] {
        assert_refused_with(2, args, &w.run_as(uid, args), &[asks.as_str(), "give --tenant"]);
    }
}

fn assert_refused_with(code: i32, args: &[&str], done: &Finished, pieces: &[&str]) {
    assert_eq!(done.code(), code, "{args:?}: {}{}", done.out(), done.err());
    for piece in pieces {
        assert!(done.err().contains(piece), "{args:?} should say {piece:?}: {}", done.err());
    }
}

/// Submits held work as this user; returns its id.
fn submit(w: &World, uid: u32, args: &[&str]) -> String {
    let args = [&["submit", "-o", "name", "--hold"], args, &["--", "/bin/true"]].concat();
    ok_as(w, uid, &args).trim().to_owned()
}

/// Work of `nobody` that runs on n1 and writes a line.
fn running(w: &World, args: &[&str]) -> String {
    let body = "echo secret; exec sleep 600";
    let args = [&["submit", "-o", "name", "--cores=1", "-w", "n1"], args, &["--", "/bin/sh", "-c", body]].concat();
    let id = ok_as(w, NOBODY, &args).trim().to_owned();
    w.running(&id);
    id
}

fn tenant_of(w: &World, id: &str) -> String {
    text(&w.status(id), "tenant")
}

fn query(w: &World, args: &[&str]) -> Vec<Value> {
    let answer = w.lattice.json(&[&["audit", "query"], args].concat()).unwrap_or_else(|e| panic!("{e:#}"));
    answer.as_array().unwrap().clone()
}

fn projects(w: &World) {
    let _restored = tenants(w);
    let of = |project: &'static str| ["--tenant", "physics", "--project", project];
    // A label, while the tenant has no projects.
    submit(w, NOBODY, &of("label"));
    w.ok(&["admin", "role", "grant", "tenant-admin", "daemon", "--tenant", "physics"]);
    let admin = |args: &[&str]| {
        let done = w.run_as(DAEMON, &[&["admin", "project"], args].concat());
        assert_eq!(done.code(), 0, "{args:?}: {}", done.err());
        done.out()
    };
    admin(&["create", "physics/higgs"]);
    refused_as(w, DAEMON, &["admin", "project", "create", "chemistry/x"], &["chemistry"]);
    refused_as(w, NOBODY, &["admin", "project", "create", "physics/x"], &["hint: "]);
    submit(w, NOBODY, &of("higgs"));
    let unknown = w.run_as(NOBODY, &["submit", "--tenant", "physics", "--project", "label", "--", "true"]);
    assert!(unknown.code() == 3 && unknown.err().contains("tenant \"physics\" has no project \"label\""), "{}", unknown.err());

    admin(&["member", "add", "physics/higgs", "user:nobody"]);
    submit(w, NOBODY, &of("higgs"));
    let why = ["user daemon is no member of project \"higgs\"", "lattice admin project member add physics/higgs user:daemon"];
    refused_as(w, DAEMON, &["submit", "--tenant", "physics", "--project", "higgs", "--", "true"], &why);
    refused_as(w, DAEMON, &["submit", "--dry-run", "--tenant", "physics", "--project", "higgs", "--", "true"], &why);
    submit(w, DAEMON, &["--tenant", "physics"]);
    let listed = w.lattice.json(&["admin", "project", "list", "physics"]).unwrap();
    assert_eq!(listed, serde_json::json!([{"name": "higgs", "closed": true, "members": ["user:nobody"]}]));
    assert!(admin(&["list", "physics"]).contains("user:nobody"));

    admin(&["member", "remove", "physics/higgs", "nobody"]);
    refused_as(w, NOBODY, &["submit", "--tenant", "physics", "--project", "higgs", "--", "true"], &["is no member of project"]);
    admin(&["delete", "physics/higgs"]);
    submit(w, NOBODY, &of("label"));
    let changes = query(w, &["--type", "project-member-added"]);
    let change = changes.last().expect("a record");
    assert!(text(change, "actor") == "daemon@n1" && text(change, "detail").contains("physics/higgs"), "{change}");
}

/// The name of the group that `nobody` is in.
fn group_of_nobody() -> String {
    Accounts::from_gid(Gid::from_raw(NOBODY)).unwrap().expect("a group of nobody").name
}

fn members(w: &World) {
    let _restored = tenants(w);
    // Nobody is a member of anything yet.
    for uid in [NOBODY, DAEMON] {
        assert_eq!(tenant_of(w, &submit(w, uid, &["--tenant", "physics"])), "physics");
        assert_eq!(tenant_of(w, &submit(w, uid, &[])), "");
    }
    w.ok(&["admin", "tenant", "member", "add", "physics", "user:nobody"]);
    let listed = w.ok(&["admin", "tenant", "member", "list", "physics"]);
    assert!(listed.contains("user:nobody"), "{listed}");
    let why = ["user daemon is no member of tenant \"physics\"", "lattice admin tenant member add"];
    refused_as(w, DAEMON, &["submit", "--tenant", "physics", "--", "true"], &why);
    refused_as(w, DAEMON, &["submit", "--dry-run", "--tenant", "physics", "--", "true"], &why);
    assert_eq!(tenant_of(w, &submit(w, DAEMON, &["--tenant", "chemistry"])), "chemistry", "it has no members");
    assert_eq!(tenant_of(w, &submit(w, NOBODY, &["--tenant", "chemistry"])), "chemistry");
    // Root acts for everybody.
    w.ok(&["submit", "--hold", "--tenant", "physics", "--", "true"]);
    let unknown = w.run(&["admin", "tenant", "member", "add", "physics", "user:nosuchaccount"]);
    assert!(unknown.code() != 0 && unknown.err().contains("no account nosuchaccount is known on n1"), "{}", unknown.err());
    let none = w.run(&["admin", "tenant", "member", "add", "physicx", "user:nobody"]);
    assert!(none.code() == 3 && none.err().contains("there is no tenant \"physicx\""), "{}", none.err());
    let changes = query(w, &["--type", "tenant-member-added"]);
    let change = changes.last().expect("a record");
    assert!(text(change, "detail").contains("physics") && text(change, "detail").contains("user:nobody"), "{change}");

    // After its last member was removed, the tenant accepts work only from its admins.
    w.ok(&["admin", "tenant", "member", "remove", "physics", "user:nobody"]);
    for (uid, name) in [(NOBODY, "nobody"), (DAEMON, "daemon")] {
        let no_member = format!("user {name} is no member of tenant \"physics\"");
        refused_as(w, uid, &["submit", "--tenant", "physics", "--", "true"], &[no_member.as_str()]);
    }
    w.ok(&["admin", "role", "grant", "tenant-admin", "daemon", "--tenant", "physics"]);
    assert_eq!(tenant_of(w, &submit(w, DAEMON, &["--tenant", "physics"])), "physics");
    refused_as(w, NOBODY, &["submit", "--tenant", "physics", "--", "true"], &["is no member of tenant"]);
    w.ok(&["admin", "role", "revoke", "tenant-admin", "daemon", "--tenant", "physics"]);

    // A group as member.
    let group = format!("group:{}", group_of_nobody());
    w.ok(&["admin", "tenant", "member", "add", "physics", &group, "--default"]);
    assert!(w.ok(&["admin", "tenant", "member", "list", "physics"]).contains(&group));
    assert_eq!(tenant_of(w, &submit(w, NOBODY, &[])), "physics");
    refused_as(w, DAEMON, &["submit", "--tenant", "physics", "--", "true"], &why);
}

fn default_tenant(w: &World) {
    let _restored = tenants(w);
    w.ok(&["admin", "tenant", "member", "add", "physics", "user:nobody"]);
    asks_for_tenant(w, NOBODY, "tenant physics");
    assert_eq!(tenant_of(w, &submit(w, DAEMON, &[])), "", "it is a member of none");
    w.ok(&["admin", "tenant", "member", "add", "chemistry", "user:nobody"]);
    asks_for_tenant(w, NOBODY, "tenants chemistry, physics");
    assert_eq!(tenant_of(w, &submit(w, NOBODY, &["--tenant", "physics"])), "physics");
    w.ok(&["admin", "tenant", "member", "add", "chemistry", "user:nobody", "--default"]);
    assert_eq!(tenant_of(w, &submit(w, NOBODY, &[])), "chemistry");
    // A default of the account takes precedence over one of a group.
    let group = format!("group:{}", group_of_nobody());
    w.ok(&["admin", "tenant", "member", "add", "physics", &group, "--default"]);
    assert_eq!(tenant_of(w, &submit(w, NOBODY, &[])), "chemistry");
    w.ok(&["admin", "tenant", "member", "remove", "chemistry", "user:nobody"]);
    assert_eq!(tenant_of(w, &submit(w, NOBODY, &[])), "physics");
}

fn tenant_admin(w: &World) {
    let _restored = tenants(w);
    let free = running(w, &[]);
    w.ok(&["admin", "role", "grant", "tenant-admin", "daemon", "--tenant", "physics"]);
    w.ok(&["admin", "tenant", "member", "add", "physics", "user:nobody", "--default"]);
    let listed = w.ok(&["admin", "role", "list"]);
    let row = listed.lines().find(|line| line.contains("tenant-admin")).unwrap_or_else(|| panic!("{listed}"));
    assert!(row.contains("user:daemon") && row.contains("physics"), "{row}");

    // The tenant's admin manages work of the tenant.
    let theirs = running(w, &["--tenant", "physics"]);
    w.wait("its output", || w.run_as(NOBODY, &["logs", &theirs]).out().contains("secret"));
    assert_eq!(ok_as(w, DAEMON, &["logs", &theirs]), "secret\n");
    let looks = query(w, &["--alloc", &theirs, "--type", "logs-read"]);
    assert!(looks.len() == 1 && text(&looks[0], "actor").starts_with("daemon"), "{looks:?}");
    ok_as(w, DAEMON, &["update", &theirs, "--name", "renamed"]);
    assert_eq!(text(&w.status(&theirs), "name"), "renamed");
    let waiting = ["submit", "-o", "name", "--wait-for-nodes", "--constraint", "no_such_feature", "--", "/bin/true"];
    let waits = ok_as(w, NOBODY, &waiting).trim().to_owned();
    ok_as(w, DAEMON, &["hold", &waits]);
    assert_eq!(w.status(&waits)["held"], true, "{}", w.status(&waits));
    ok_as(w, DAEMON, &["cancel", &theirs]);
    w.ended(&theirs);
    let shown = w.ok(&["status", &theirs]);
    assert!(shown.contains("cancelled by daemon"), "{shown}");
    // The admin also manages its members, and submits work there.
    ok_as(w, DAEMON, &["admin", "tenant", "member", "add", "physics", "user:games"]);
    assert!(ok_as(w, DAEMON, &["admin", "tenant", "member", "list", "physics"]).contains("user:games"));
    ok_as(w, DAEMON, &["admin", "tenant", "member", "remove", "physics", "user:games"]);
    assert_eq!(tenant_of(w, &submit(w, DAEMON, &["--tenant", "physics"])), "physics");
    asks_for_tenant(w, DAEMON, "tenant physics");

    // The admin may not add groups or set defaults.
    let (group, whose) = (format!("group:{}", group_of_nobody()), "a system admin adds groups and sets defaults");
    for more in [&[group.as_str()][..], &[group.as_str(), "--default"], &["user:games", "--default"], &["user:daemon", "--default"]] {
        refused_as(w, DAEMON, &[&["admin", "tenant", "member", "add", "physics"], more].concat(), &[whose]);
    }
    w.ok(&["admin", "tenant", "member", "add", "physics", &group]);
    refused_as(w, DAEMON, &["admin", "tenant", "member", "remove", "physics", &group], &["a system admin removes groups"]);
    assert!(w.ok(&["admin", "tenant", "member", "list", "physics"]).contains(&group));

    // The admin may do nothing else.
    for command in ["logs", "cancel", "explain"] {
        refused_as(w, DAEMON, &[command, &free], &["belongs to nobody"]);
    }
    refused_as(w, DAEMON, &["admin", "tenant", "member", "add", "chemistry", "user:games"], &[]);
    refused_as(w, DAEMON, &["admin", "tenant", "member", "list", "chemistry"], &[]);
    refused_as(w, DAEMON, &["admin", "tenant", "update", "physics", "--max-nodes=9"], &[]);
    refused_as(w, DAEMON, &["node", "drain", "n2", "--reason", "x"], &[]);
    refused_as(w, DAEMON, &["admin", "role", "grant", "operator", "daemon"], &[]);
    assert_eq!(text(&w.status(&free), "state"), "Running");
    assert!(w.ok(&["admin", "tenant", "member", "list", "chemistry"]).lines().all(|line| !line.contains("user:games")));
}

/// The holds of n2, as `nodes` shows them.
fn holds(w: &World) -> Vec<String> {
    let nodes = w.lattice.json(&["nodes"]).unwrap();
    let n2 = nodes.as_array().unwrap().iter().find(|node| text(node, "id") == "n2").unwrap();
    n2["holds"].as_array().unwrap().iter().map(|hold| hold.as_str().unwrap().to_owned()).collect()
}

fn operator(w: &World) {
    let _restored = tenants(w);
    let theirs = running(w, &[]);
    let drain = ["node", "drain", "n2", "--reason", "fan"];
    refused_as(w, DAEMON, &drain, &[]);
    w.ok(&["admin", "role", "grant", "operator", "user:daemon"]);
    ok_as(w, DAEMON, &drain);
    let held = holds(w);
    assert!(held.len() == 1 && held[0].starts_with("drain by daemon@n1 since ") && held[0].ends_with(": fan"), "{held:?}");
    ok_as(w, DAEMON, &["node", "undrain", "n2"]);
    assert!(holds(w).is_empty(), "{:?}", holds(w));
    // The log names the account and the machine whose agent vouched for it.
    let seen: Vec<Value> =
        serde_json::from_str(&ok_as(w, DAEMON, &["audit", "query", "--user", "daemon", "--node", "n2", "-o", "json"])).unwrap();
    assert!(!seen.is_empty() && seen.iter().all(|record| text(record, "actor") == "daemon@n1"), "{seen:?}");
    // The operator's request for a checkpoint is recorded before it reaches the work's head. The head refuses it, because
    // this work cannot save itself.
    assert_ne!(w.run_as(DAEMON, &["checkpoint", "create", &theirs]).code(), 0);
    let asked = query(w, &["--alloc", &theirs, "--type", "checkpoint-requested"]);
    assert_eq!(asked.iter().map(|record| text(record, "actor")).collect::<Vec<_>>(), ["daemon"], "{asked:?}");
    assert_ne!(w.run_as(NOBODY, &["checkpoint", "create", &theirs]).code(), 0);
    assert_eq!(query(w, &["--alloc", &theirs, "--type", "checkpoint-requested"]).len(), 1, "its owner's own is not");
    // An operator manages the machines, and may not read the output of work.
    refused_as(w, DAEMON, &["logs", &theirs], &["belongs to nobody"]);
    let attached = w.run_as(DAEMON, &["attach", &theirs, "--", "/bin/true"]);
    assert!(attached.code() == 125 && attached.err().contains("belongs to nobody"), "{} {}", attached.code(), attached.err());
    ok_as(w, DAEMON, &["explain", &theirs]);
    refused_as(w, DAEMON, &["admin", "role", "grant", "system-admin", "daemon"], &[]);
    refused_as(w, DAEMON, &["admin", "tenant", "update", "physics", "--max-nodes=9"], &[]);
    ok_as(w, DAEMON, &["cancel", &theirs]);
    w.ended(&theirs);

    w.ok(&["admin", "role", "revoke", "operator", "daemon"]);
    refused_as(w, DAEMON, &drain, &["operator"]);
    assert!(holds(w).is_empty(), "{:?}", holds(w));
    assert_eq!(w.run(&["admin", "role", "revoke", "operator", "daemon"]).code(), 3, "it has it no more");
    let record = |action: &str| query(w, &["--type", action]).last().map(|record| text(record, "detail")).unwrap_or_default();
    for action in ["role-granted", "role-revoked"] {
        assert!(record(action).contains("operator") && record(action).contains("user:daemon"), "{action}: {}", record(action));
    }
    for (role, says) in [("user", "everybody has the role user"), ("claiming-user", "not built yet"), ("admin", "is not a role")] {
        let done = w.run(&["admin", "role", "grant", role, "daemon"]);
        assert!(done.code() == 2 && done.err().contains(says), "{role}: {} {}", done.code(), done.err());
    }
}

fn work_of_operator(w: &World) {
    let _restored = tenants(w);
    w.ok(&["admin", "role", "grant", "operator", "daemon"]);
    let token = ok_as(w, NOBODY, &["lease", "grant", "theirs", "--ttl", "10m", "-o", "name"]).trim().to_owned();
    let program = w.dir.join("bin/lattice");
    let lattice = program.display();
    let class = "--preemption-class 9";
    let body = format!(
        "{lattice} update $LATTICE_ALLOC_ID --name shown; echo name=$?\n\
         {lattice} update $LATTICE_ALLOC_ID {class}; echo class=$?\n\
         {lattice} lease release theirs --token {token}; echo lease=$?\n\
         exec sleep 600"
    );
    let submitted = ["submit", "-o", "name", "--cores=1", "-w", "n1", "--", "/bin/sh", "-c", &body];
    let id = ok_as(w, DAEMON, &submitted).trim().to_owned();
    w.running(&id);
    w.wait("the three answers", || w.log(&id).contains("lease="));
    let log = w.log(&id);
    // The work may do what its owner may do without the role.
    let answers: Vec<&str> = log.lines().filter(|line| ["name=", "class=", "lease="].iter().any(|what| line.starts_with(what))).collect();
    assert_eq!(answers, ["name=0", "class=4", "lease=4"], "{log}");
    let has_lease = || w.lattice.json(&["lease", "list"]).unwrap().as_array().unwrap().iter().any(|lease| text(lease, "name") == "theirs");
    assert!(has_lease(), "it was not released");
    // Outside of work, the same account has the role.
    ok_as(w, DAEMON, &["update", &id, "--preemption-class", "9"]);
    ok_as(w, DAEMON, &["lease", "release", "theirs", "--token", &token]);
    assert!(!has_lease());
}

fn former_tenant(w: &World) {
    let _restored = tenants(w);
    let grant = ["admin", "role", "grant", "tenant-admin", "daemon", "--tenant", "physics"];
    w.ok(&grant);
    let former = running(w, &["--tenant", "physics"]);
    w.ok(&["cancel", &former]);
    w.ended(&former);
    ok_as(w, DAEMON, &["status", &former]);
    let seen = |w: &World| ok_as(w, DAEMON, &["audit", "query", "--alloc", &former, "-o", "json"]);
    assert!(seen(w).contains("AllocationEnded"), "{}", seen(w));
    w.ok(&["admin", "tenant", "delete", "physics"]);
    w.ok(&["admin", "tenant", "create", "physics"]);
    w.ok(&grant);
    for command in ["status", "logs", "explain"] {
        refused_as(w, DAEMON, &[command, &former], &["belongs to nobody"]);
    }
    assert!(!seen(w).contains("AllocationEnded"), "{}", seen(w));
    let now = running(w, &["--tenant", "physics"]);
    ok_as(w, DAEMON, &["status", &now]);
    w.ok(&["cancel", &now]);
    w.ended(&now);
    ok_as(w, DAEMON, &["status", &now]);
}

fn work_of_admin(w: &World) {
    let _restored = tenants(w);
    w.ok(&["admin", "role", "grant", "tenant-admin", "daemon", "--tenant", "physics"]);
    w.ok(&["admin", "tenant", "member", "add", "physics", "user:nobody"]);
    // The account itself submits there.
    let args = ["submit", "-o", "name", "--walltime=2m", "--tenant", "physics", "--task-group=0-1", "--", "/bin/false"];
    let group = ok_as(w, DAEMON, &args).trim().to_owned();
    w.ended(&group);
    let file = w.script("admin-dag.yaml", "name: d\nallocations:\n  - name: a\n    entrypoint: [/bin/true]\n    tenant: physics\n");
    let program = w.dir.join("bin/lattice");
    let lattice = program.display();
    let body = format!(
        "{lattice} submit --tenant physics --hold -- /bin/true; echo submit=$?\n\
         {lattice} submit --tenant physics --dry-run -- /bin/true; echo dry=$?\n\
         {lattice} dag submit {file}; echo dag=$?\n\
         {lattice} dag submit --dry-run {file}; echo drydag=$?\n\
         {lattice} retry {group}; echo retry=$?\n\
         {lattice} submit --tenant chemistry --hold -- /bin/true; echo open=$?\n\
         exec sleep 600"
    );
    let submitted = ["submit", "-o", "name", "--cores=1", "-w", "n1", "--tenant", "chemistry", "--", "/bin/sh", "-c", &body];
    let id = ok_as(w, DAEMON, &submitted).trim().to_owned();
    w.wait("the last answer", || w.log(&id).contains("open="));
    let log = w.log(&id);
    let answers: Vec<&str> = log.lines().filter(|line| line.contains('=') && !line.contains(' ')).collect();
    assert_eq!(answers, ["submit=4", "dry=4", "dag=4", "drydag=4", "retry=4", "open=0"], "{log}");
    // Once the account is a member, its work may submit there.
    w.ok(&["admin", "tenant", "member", "add", "physics", "user:daemon"]);
    let body = format!("{lattice} submit --tenant physics --hold -- /bin/true; echo member=$?; exec sleep 600");
    let submitted = ["submit", "-o", "name", "--cores=1", "-w", "n1", "--tenant", "chemistry", "--", "/bin/sh", "-c", &body];
    let id = ok_as(w, DAEMON, &submitted).trim().to_owned();
    w.wait("the answer", || w.log(&id).contains("member="));
    assert!(w.log(&id).contains("member=0\n"), "{}", w.log(&id));
}

fn narrowed_root(w: &World) {
    let _restored = tenants(w);
    let acts_for = || text(&w.lattice.json(&["admin", "limits"]).unwrap(), "root_acts_for");
    assert_eq!(acts_for(), "everybody", "it is the default");
    let theirs = submit(w, NOBODY, &[]);
    w.ok(&["admin", "limits", "--root-acts-for", "itself"]);
    assert_eq!(acts_for(), "itself");
    let cancel = ["cancel", theirs.as_str()];
    assert_refused(&cancel, &w.run(&cancel), &["belongs to nobody"]);
    let seen: Value = serde_json::from_str(&ok_as(w, NOBODY, &["status", &theirs, "-o", "json"])).unwrap();
    assert_eq!(seen["held"], true, "{seen}");
    // Root may cancel its own work, as everybody may.
    let own = w.submit(&["--hold", "--", "/bin/true"]);
    w.ok(&["cancel", &own]);
    assert_eq!(text(&w.ended(&own), "state"), "Cancelled");
    // Root has the roles that were granted to it.
    w.ok(&["admin", "role", "grant", "operator", "root"]);
    w.ok(&["explain", &theirs]);
    w.ok(&["admin", "role", "revoke", "operator", "root"]);
    w.ok(&["admin", "limits", "--root-acts-for", "everybody"]);
    w.ok(&cancel);
    assert_eq!(text(&w.ended(&theirs), "state"), "Cancelled");
    assert!(w.ok(&["audit", "query", "--type", "limits-set"]).contains("itself"));
}

/// How many calls of a method n1's agent has refused.
fn denied(w: &World, method: &str) -> f64 {
    let (_, page) = get(&w.cluster().node("n1").unwrap().metrics, "/metrics", "");
    let label = format!("method=\"{method}\"");
    let ours = page.lines().filter(|line| line.starts_with("lattice_api_denied_total{") && line.contains(&label));
    ours.filter_map(|line| line.split_whitespace().last()?.parse::<f64>().ok()).sum()
}

fn audit(w: &World) {
    let _restored = tenants(w);
    let (mine, theirs) = (submit(w, NOBODY, &[]), submit(w, DAEMON, &[]));
    let before = denied(w, "AllocationService/Cancel");
    refused_as(w, NOBODY, &["cancel", &theirs], &["belongs to daemon"]);
    // The page of metrics is renewed once a second.
    w.wait("the denied call to be counted", || denied(w, "AllocationService/Cancel") > before);
    assert!((denied(w, "AllocationService/Cancel") - before - 1.0).abs() < f64::EPSILON, "it is counted once");
    let seen = || -> Vec<Value> { serde_json::from_str(&ok_as(w, NOBODY, &["audit", "query", "-o", "json"])).unwrap() };
    let is_denial = |record: &&Value| text(record, "action") == "AccessDenied";
    w.wait("the denied call to be on record", || seen().iter().any(|record| is_denial(&record)));
    let records = seen();
    let denial = records.iter().rfind(is_denial).expect("the denied call");
    let detail = text(denial, "detail");
    assert!(detail.contains("AllocationService/Cancel") && detail.contains("belongs to daemon"), "{denial}");
    assert_eq!(text(denial, "actor"), "nobody", "{denial}");
    let is_own = |record: &Value| text(record, "owner") == "nobody" || text(record, "actor") == "nobody";
    assert!(records.iter().all(is_own), "{:?}", records.iter().find(|record| !is_own(record)));
    assert!(records.iter().any(|record| text(record, "allocation") == mine), "its own submission is there");
    assert!(records.iter().all(|record| text(record, "previous").is_empty()), "that hash is of a record that may be another's");
    assert!(!query(w, &["--alloc", &theirs, "--type", "allocation-submitted"]).is_empty(), "an operator sees that of others");
    // An admin of the tenant also sees the records of its work.
    w.ok(&["admin", "role", "grant", "tenant-admin", "daemon", "--tenant", "physics"]);
    w.ok(&["admin", "tenant", "member", "add", "physics", "user:nobody"]);
    let of_tenant = submit(w, NOBODY, &["--tenant", "physics"]);
    let seen_by_admin: Vec<Value> = serde_json::from_str(&ok_as(w, DAEMON, &["audit", "query", "-o", "json"])).unwrap();
    let has = |id: &str| seen_by_admin.iter().any(|record| text(record, "allocation") == id);
    assert!(has(&of_tenant) && has(&theirs) && !has(&mine), "{seen_by_admin:?}");
}

/// The words of a method's row in `whoami --can`.
fn row(shown: &str, method: &str) -> Vec<String> {
    let line = shown.lines().find(|line| line.split_whitespace().next() == Some(method)).unwrap_or_else(|| panic!("no {method}: {shown}"));
    line.split_whitespace().map(str::to_owned).collect()
}

fn who_am_i(w: &World) {
    let _restored = tenants(w);
    w.ok(&["admin", "tenant", "member", "add", "physics", "user:nobody", "--default"]);
    w.ok(&["admin", "role", "grant", "tenant-admin", "daemon", "--tenant", "physics"]);
    let nobody = ok_as(w, NOBODY, &["whoami"]);
    assert!(nobody.contains("nobody") && nobody.contains("physics") && !nobody.contains("operator"), "{nobody}");
    let daemon = ok_as(w, DAEMON, &["whoami"]);
    assert!(daemon.contains("daemon") && daemon.contains("tenant-admin") && daemon.contains("physics"), "{daemon}");
    let reach = |shown: &str, method: &str| row(shown, method).last().cloned().unwrap_or_default();
    let can = |uid: u32| ok_as(w, uid, &["whoami", "--can"]);
    let (user, admin, root) = (can(NOBODY), can(DAEMON), w.ok(&["whoami", "--can"]));
    for (method, of_user, of_admin, of_root) in [
        ("AllocationService/Cancel", "own", "tenant", "all"),
        ("AdminService/AddTenantMember", "no", "tenant", "no"),
        ("AdminService/GrantRole", "no", "no", "no"),
        ("NodeService/List", "all", "all", "all"),
    ] {
        let reaches = [&user, &admin, &root].map(|shown| reach(shown, method));
        assert_eq!(reaches, [of_user, of_admin, of_root], "{method}");
    }
    w.ok(&["admin", "role", "grant", "operator", "daemon"]);
    let operator = can(DAEMON);
    assert_eq!([reach(&operator, "NodeService/SetHold"), reach(&operator, "AllocationService/Logs")], ["all", "tenant"]);
    assert!(ok_as(w, DAEMON, &["whoami"]).contains("operator"));
    // Within work, the allocation is named.
    let program = w.dir.join("bin/lattice").to_string_lossy().into_owned();
    let id = ok_as(w, NOBODY, &["submit", "-o", "name", "-w", "n1", "--", &program, "whoami"]).trim().to_owned();
    w.completed(&id);
    let log = w.log(&id);
    assert!(log.contains(&id[..8]), "{log}");
}
