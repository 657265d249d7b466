//! REST: what is under `/api/v1`, by curl, and by a client that is generated from the description.

use crate::harness::{Group, JOB, Need, World};
use lattice_lab::lattice::text;
use lattice_lab::machine;
use lattice_lab::process;
use libtest_mimic::Trial;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

static REST: Group = Group { theme: "rest_api", name: "rest_api", nodes: 2, quorum: 1, tweak: |o| o.network_api = true };

const ALLOCATIONS: &str = "/api/v1/allocations";
/// How long each step from the description to the client's end may take.
const GENERATION: Duration = Duration::from_secs(180);

pub fn trials() -> Vec<Trial> {
    vec![
        REST.test("work_is_submitted_listed_changed_and_cancelled", &[Need::Curl], work),
        REST.test("a_submission_is_made_once_for_each_key", &[Need::Curl], keys),
        REST.test("pages_link_to_the_next_one", &[Need::Curl], pages),
        REST.test("a_task_group_and_a_dag_have_their_parts", &[Need::Curl], parts),
        REST.test("tenants_and_queues_are_put_by_those_who_may", &[Need::Curl], administered),
        REST.test("nodes_are_reserved_changed_and_given_back", &[Need::Curl], reserved),
        REST.test("everything_that_can_be_read_is_read", &[Need::Curl], readings),
        REST.test("what_is_malformed_is_refused_at_once_and_by_name", &[Need::Curl], malformed),
        REST.test("a_generated_client_speaks_to_the_agent", &[Need::Curl, Need::OpenApi], generated),
    ]
}

/// An account that calls.
struct Client<'a> {
    w: &'a World,
    authorization: String,
}

/// An answer of the API.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}\n{}", self.head, self.body))
    }

    /// The value of a header.
    fn header(&self, name: &str) -> Option<&str> {
        let named = |line: &&str| line.split_once(':').is_some_and(|(key, _)| key.eq_ignore_ascii_case(name));
        self.head.lines().find(named).and_then(|line| line.split_once(": ")).map(|(_, value)| value.trim())
    }

    /// The JSON of an answer with this status.
    fn expect(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}\n{}", self.head, self.body);
        if self.body.is_empty() { Value::Null } else { self.json() }
    }

    /// The detail of a problem with this status.
    fn problem(&self, status: u16) -> String {
        let problem = self.expect(status);
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{}", self.head);
        assert_eq!(problem["status"], status, "{problem}");
        format!("{} | {}", text(&problem, "detail"), text(&problem, "hint"))
    }
}

impl<'a> Client<'a> {
    fn new(w: &'a World, account: &str, scopes: &str) -> Self {
        let args = ["admin", "token", "issue", "rest", "--account", account, "--scopes", scopes, "--days", "1"];
        let issued = w.lattice.json(&args).unwrap_or_else(|e| panic!("{e:#}"));
        Self { w, authorization: format!("Authorization: Bearer {}", text(&issued, "token")) }
    }

    fn call(&self, method: &str, path: &str, args: &[&str]) -> Answer {
        let mut command = Command::new("curl");
        command.args(["-sS", "-i", "-m", "60", "--path-as-is", "-H", "Expect:", "-X", method, "-H", &self.authorization]);
        command.arg("--cacert").arg(self.w.ca()).args(args).arg(self.w.api_url("n1") + path);
        let done = process::run(&mut command, JOB).unwrap();
        assert_eq!(done.code(), 0, "{method} {path}: {}", done.err());
        let answer = done.out();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
        let status = head.split(' ').nth(1).and_then(|status| status.trim().parse().ok()).unwrap_or_else(|| panic!("{head}"));
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    fn get(&self, path: &str) -> Value {
        self.call("GET", path, &[]).expect(200)
    }

    /// With a JSON body, and more arguments of curl.
    fn send(&self, method: &str, path: &str, body: &Value, args: &[&str]) -> Answer {
        let body = body.to_string();
        self.call(method, path, &[&["-H", "Content-Type: application/json", "--data-binary", &body], args].concat())
    }

    /// Sends six changes of what is there now at the same moment; `$i` in the body (outside of single quotes) is their
    /// number. Returns the sorted statuses.
    fn at_once(&self, path: &str, method: &str, body: &str) -> Vec<String> {
        let tag = format!("If-Match: {}", self.call("GET", path, &[]).header("etag").unwrap());
        let headers = format!("-H '{}' -H '{tag}' -H 'Content-Type: application/json'", self.authorization);
        let url = self.w.api_url("n1") + path;
        let curl = format!(
            "curl -sS -o /dev/null -w '%{{http_code}}\\n' -m 60 --cacert {} -X {method} {headers} --data-binary '{body}' {url}",
            self.w.ca().display()
        );
        let script = format!("for i in 1 2 3 4 5 6; do {curl} & done; wait");
        let done = process::run(Command::new("sh").args(["-c", &script]), JOB).unwrap();
        let mut statuses: Vec<String> = done.out().lines().map(str::to_owned).collect();
        statuses.sort();
        statuses
    }

    /// Submits work; returns its id.
    fn submit(&self, body: &Value) -> String {
        text(&self.send("POST", ALLOCATIONS, body, &[]).expect(201), "id")
    }

    fn state(&self, id: &str) -> String {
        text(&self.get(&format!("{ALLOCATIONS}/{id}")), "state")
    }
}

/// Cancels everything, whatever the result of the test.
struct Cleared<'a>(&'a World);

impl Drop for Cleared<'_> {
    fn drop(&mut self) {
        for id in self.0.run(&["status", "--all", "-o", "name"]).out().lines() {
            let _ = self.0.run(&["cancel", id]);
        }
        let _ = self.0.run(&["admin", "role", "revoke", "system-admin", "daemon"]);
        let _ = self.0.run(&["admin", "tenant", "delete", "rest"]);
        let _ = self.0.run(&["admin", "vcluster", "delete", "rest"]);
        let _ = self.0.run(&["admin", "reservation", "delete", "rest"]);
    }
}

fn work(w: &World) {
    let _cleared = Cleared(w);
    let daemon = Client::new(w, "daemon", "read,work");
    let body = json!({
        "name": "sim", "entrypoint": ["/bin/sh", "-c", "echo $GREETING; exec sleep 600"], "cores": 1, "walltime": "1h",
        "env": {"GREETING": "grün"}, "tag": ["campaign=42"],
    });
    let made = daemon.send("POST", ALLOCATIONS, &body, &[]);
    let id = text(&made.expect(201), "id");
    assert_eq!(made.header("location"), Some(format!("{ALLOCATIONS}/{id}").as_str()));
    w.wait("the work to run", || daemon.state(&id) == "Running");

    // The same fields as the command line shows.
    let path = format!("{ALLOCATIONS}/{id}");
    let shown = daemon.get(&path);
    let by_command = w.status(&id);
    for field in ["id", "name", "owner", "state", "nodes", "tags", "walltime_seconds", "command", "working_dir", "share"] {
        assert_eq!(shown[field], by_command[field], "{field}");
    }
    assert_eq!((text(&shown, "owner"), text(&shown, "working_dir")), ("daemon".to_owned(), "/".to_owned()));
    assert!(text(&daemon.get(&format!("{path}/explain")), "summary").len() > 3);
    let listed = daemon.get(&format!("{ALLOCATIONS}?state=Running&tag=campaign%3D42&name=sim"));
    assert_eq!(listed["allocations"].as_array().map(Vec::len), Some(1), "{listed}");

    // A change is made to what was read.
    let read = daemon.call("GET", &path, &[]);
    let tag = format!("If-Match: {}", read.header("etag").unwrap());
    let renamed = json!({ "name": "sim-2", "tags": {"campaign": null, "phase": "2"} });
    let changed = daemon.send("PATCH", &path, &renamed, &["-H", &tag]).expect(200);
    assert_eq!((&changed["name"], &changed["tags"]), (&json!("sim-2"), &json!({"phase": "2"})));
    let longer = daemon.send("PATCH", &path, &json!({ "walltime_more_seconds": 600 }), &[]).problem(409);
    assert!(longer.contains("only operators lengthen the walltime"), "{longer}");
    let refused = daemon.send("PATCH", &path, &json!({ "name": "other" }), &["-H", &tag]);
    assert!(refused.problem(412).contains("it has changed since it was read"), "{}", refused.body);

    // Of changes of one version at the same moment, one is made.
    assert_eq!(daemon.at_once(&path, "PATCH", "{\"name\": \"at-once-'$i'\"}"), ["200", "412", "412", "412", "412", "412"]);

    // Another user's work is not for everybody.
    let nobody = Client::new(w, "nobody", "read,work");
    assert_eq!(nobody.call("DELETE", &path, &[]).status, 403);
    let reader = Client::new(w, "daemon", "read");
    assert!(reader.call("DELETE", &path, &[]).problem(403).contains("work"), "the scope that is needed");
    assert_eq!(daemon.call("DELETE", &path, &[]).expect(200)["id"], json!(id));
    w.wait("the end", || daemon.state(&id) == "Cancelled");
    daemon.call("GET", &format!("{ALLOCATIONS}/00000000-0000-4000-8000-000000000000"), &[]).problem(404);
}

fn keys(w: &World) {
    let _cleared = Cleared(w);
    let daemon = Client::new(w, "daemon", "read,work");
    let body = json!({ "entrypoint": "true", "hold": true });
    let with =
        |client: &Client, key: &str, body: &Value| client.send("POST", ALLOCATIONS, body, &["-H", &format!("Idempotency-Key: {key}")]);
    let id = "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88";
    assert_eq!(with(&daemon, id, &body).expect(201)["id"], json!(id));
    assert_eq!(with(&daemon, id, &body).expect(201)["id"], json!(id), "repeated");
    let first = with(&daemon, "night run", &body).expect(201);
    assert_eq!(with(&daemon, "night run", &body).expect(201)["id"], first["id"]);
    let nobody = Client::new(w, "nobody", "read,work");
    assert_ne!(with(&nobody, "night run", &body).expect(201)["id"], first["id"], "another account's key is another one");
    let all = daemon.get(&format!("{ALLOCATIONS}?state=Pending"));
    assert_eq!(all["allocations"].as_array().map(Vec::len), Some(2), "{all}");
    let checked = daemon.send("POST", &format!("{ALLOCATIONS}?dry_run=true"), &body, &[]).expect(200);
    assert_eq!((&checked["id"], &checked["would_submit"]["held"]), (&Value::Null, &json!(true)));
}

fn pages(w: &World) {
    let _cleared = Cleared(w);
    let daemon = Client::new(w, "daemon", "read,work");
    for number in 0..5 {
        daemon.submit(&json!({ "name": format!("page-{number}"), "entrypoint": "true", "hold": true }));
    }
    let (mut names, mut path) = (Vec::new(), format!("{ALLOCATIONS}?state=Pending&limit=2"));
    loop {
        let answer = daemon.call("GET", &path, &[]);
        let page = answer.expect(200);
        names.extend(page["allocations"].as_array().unwrap().iter().map(|a| text(a, "name")));
        match answer.header("link") {
            Some(link) => path = link.trim_start_matches('<').split('>').next().unwrap().to_owned(),
            None => {
                assert_eq!(page["next_page_token"], Value::Null);
                break;
            }
        }
        assert!(names.len() < 20, "{names:?}");
    }
    names.sort();
    assert_eq!(names, ["page-0", "page-1", "page-2", "page-3", "page-4"]);
}

fn parts(w: &World) {
    let _cleared = Cleared(w);
    let daemon = Client::new(w, "daemon", "read,work");
    let script = "#!/bin/sh\n#LATTICE --task-group=0-5%2 --cores=1\n[ $LATTICE_TASK_INDEX != 3 ]\n";
    let group = daemon.submit(&json!({ "script": script }));
    let tasks = format!("{ALLOCATIONS}/{group}/tasks");
    w.wait("the tasks to end", || daemon.get(&tasks)["counts"]["completed"] == json!(5) && daemon.state(&group) == "Failed");
    assert_eq!(daemon.get(&format!("{tasks}/3"))["exit_code"], json!(1));
    let again = daemon.call("POST", &format!("{ALLOCATIONS}/{group}/retry"), &[]).expect(201);
    let retried = daemon.get(&format!("{ALLOCATIONS}/{}", text(&again, "id")));
    assert_eq!(text(&retried, "task_group").split('%').next(), Some("3"));
    assert_eq!(daemon.call("DELETE", &format!("{tasks}?indices=0-5"), &[]).expect(200)["ended"], json!(6));

    let flow = json!({ "name": "flow", "allocations": [
        { "name": "a", "entrypoint": "true", "cores": 1 },
        { "name": "b", "script": "#!/bin/sh\nexit 0\n", "cores": 1, "depends_on": [{ "a": "success" }] },
    ] });
    let key = ["-H", "Idempotency-Key: flow 1"];
    let dag = daemon.send("POST", "/api/v1/dags", &flow, &key).expect(201);
    assert_eq!(daemon.send("POST", "/api/v1/dags", &flow, &key).expect(201)["dag"]["id"], dag["dag"]["id"]);
    let path = format!("/api/v1/dags/{}", text(&dag["dag"], "id"));
    w.wait("the DAG to end", || text(&daemon.get(&path), "state") == "Completed");
    assert_eq!(daemon.get("/api/v1/dags")["dags"][0]["name"], json!("flow"));
    assert_eq!(daemon.call("DELETE", &path, &[]).expect(200)["steps"], json!(0));
}

fn administered(w: &World) {
    let _cleared = Cleared(w);
    w.ok(&["admin", "role", "grant", "system-admin", "daemon"]);
    let (admin, user) = (Client::new(w, "daemon", "admin"), Client::new(w, "daemon", "read,work"));
    let path = "/api/v1/tenants/rest";
    let quotas = json!({ "max_nodes": 250, "gpu_hours_budget": 150_000, "fair_share_target": 0.15 });
    assert_eq!(user.send("PUT", path, &quotas, &[]).status, 403, "roles count only with the scope admin");
    let created = admin.send("PUT", path, &quotas, &[]).expect(201);
    assert_eq!((&created["max_nodes"], &created["fair_share_target"]), (&json!(250), &json!(0.15)));
    let tag = format!("If-Match: {}", admin.call("GET", path, &[]).header("etag").unwrap());
    let changed = admin.send("PUT", path, &json!({ "max_nodes": null }), &["-H", &tag]).expect(200);
    assert_eq!((&changed["max_nodes"], &changed["gpu_hours_budget"]), (&Value::Null, &json!(150_000)));
    assert!(admin.send("PUT", path, &json!({ "max_nodes": 1 }), &["-H", &tag]).problem(412).contains("changed"));
    // Of changes of one version at the same moment, one is made.
    assert_eq!(admin.at_once(path, "PUT", "{\"max_nodes\": '$i'}"), ["200", "412", "412", "412", "412", "412"]);
    admin.send("PUT", &format!("{path}/members/user:nobody"), &json!({ "default": true }), &[]).expect(200);
    assert_eq!(admin.get(&format!("{path}/members"))["members"][0]["subject"], json!("user:nobody"));
    admin.call("DELETE", &format!("{path}/members/user:nobody"), &[]).expect(204);
    assert_eq!(admin.get(&format!("{path}/usage?days=90"))["of"], json!("tenant"));
    admin.call("DELETE", path, &[]).expect(204);

    let path = "/api/v1/vclusters/rest";
    assert!(admin.send("PUT", path, &json!({}), &[]).problem(400).contains("scheduler is needed"));
    admin.send("PUT", path, &json!({ "scheduler": "hpc-backfill" }), &[]).expect(201);
    let weighed = admin.send("PUT", &format!("{path}/weights"), &json!({ "weights": { "fair-share": 0.35 } }), &[]).expect(200);
    assert_eq!(weighed["weights"]["fair-share"], json!(0.35));
    assert_eq!(admin.send("PUT", path, &json!({ "borrows": true }), &[]).expect(200)["borrows"], json!(true));
    assert_eq!(admin.at_once(path, "PUT", "{\"cycle_interval_ms\": '$i'}"), ["200", "412", "412", "412", "412", "412"]);
    let old = admin.send("PUT", &format!("{path}/weights"), &json!({ "profile": "default" }), &["-H", "If-Match: \"old\""]);
    assert!(old.problem(412).contains("changed"), "{}", old.body);
    assert_eq!(admin.get(&format!("{path}/queue"))["waiting"], json!(0));
    admin.call("DELETE", path, &[]).expect(204);

    assert!(admin.send("POST", "/api/v1/nodes/n2/drain", &json!({ "reason": "" }), &[]).status >= 400);
    admin.send("POST", "/api/v1/nodes/n2/drain", &json!({ "reason": "fan" }), &[]).expect(200);
    w.wait("n2 to be drained", || admin.get("/api/v1/nodes/n2")["state"] == json!("Drained"));
    assert_eq!(admin.call("POST", "/api/v1/nodes/n2/undrain", &[]).expect(200)["node"], json!("n2"));
    w.wait("n2 to be ready", || admin.get("/api/v1/nodes/n2")["state"] == json!("Ready"));
    admin.send("POST", "/api/v1/nodes/n2/cordon", &json!({ "reason": "look", "seconds": 600 }), &[]).expect(200);
    admin.call("POST", "/api/v1/nodes/n2/uncordon", &[]).expect(200);
    assert_eq!(user.send("POST", "/api/v1/nodes/n2/cordon", &json!({ "reason": "x" }), &[]).status, 403);

    let role = "/api/v1/roles/operator/user:nobody";
    assert_eq!(admin.call("PUT", role, &[]).expect(200)["role"], json!("operator"));
    let granted = |admin: &Client| {
        let roles = admin.get("/api/v1/roles")["roles"].as_array().cloned().unwrap_or_default();
        roles.iter().any(|one| one["subject"] == json!("user:nobody") && one["tenant"].is_null())
    };
    assert!(granted(&admin));
    admin.call("DELETE", role, &[]).expect(204);
    assert!(!granted(&admin));
    assert_eq!(user.call("PUT", role, &[]).status, 403);

    let exported = admin.get("/api/v1/audit/export?type=HoldSet&node=n2");
    assert_eq!(exported["format"], json!("lattice-audit-export/1"));
    let pages = exported["pages"].as_array().unwrap();
    assert!(!pages.is_empty() && pages.iter().any(|page| text(page, "body").contains("HoldSet")), "{exported}");
    assert_eq!(user.call("GET", "/api/v1/audit/export", &[]).status, 403);

    // The records of what was requested with one token.
    let id = text(&admin.get("/api/v1/whoami")["authentication"], "token");
    let by_token = admin.get(&format!("/api/v1/audit?token={id}&type=RoleGranted"));
    let granted = by_token["records"].as_array().unwrap();
    assert!(!granted.is_empty() && granted.iter().all(|record| text(record, "token") == id), "{by_token}");
    assert!(admin.call("GET", "/api/v1/audit?token=ci", &[]).problem(400).contains("16 hexadecimal digits"));

    let token = json!({ "name": "made over REST", "account": "nobody", "scopes": "read", "days": 1 });
    let issued = admin.send("POST", "/api/v1/tokens", &token, &[]).expect(201);
    let made = Client { w, authorization: format!("Authorization: Bearer {}", text(&issued, "token")) };
    let me = made.get("/api/v1/whoami");
    assert_eq!((text(&me, "account"), text(&me["authentication"], "token")), ("nobody".to_owned(), text(&issued, "id")));
    admin.call("DELETE", &format!("/api/v1/tokens/{}", text(&issued, "id")), &[]).expect(200);
    assert!(user.call("DELETE", "/api/v1/tokens/0000000000000000", &[]).status >= 400);
}

fn reserved(w: &World) {
    let _cleared = Cleared(w);
    w.ok(&["admin", "role", "grant", "system-admin", "daemon"]);
    let (admin, user) = (Client::new(w, "daemon", "read,work,admin"), Client::new(w, "daemon", "read,work"));
    let all = "/api/v1/reservations";
    let new = json!({ "name": "rest", "nodes": "n2", "start": "2h", "duration_seconds": 3600, "users": ["daemon"], "comment": "course" });
    assert_eq!(user.send("POST", all, &new, &[]).status, 403, "roles count only with the scope admin");
    let made = admin.send("POST", all, &new, &[]);
    let (shown, path) = (made.expect(201), format!("{all}/rest"));
    assert_eq!(made.header("location"), Some(path.as_str()));
    assert_eq!((text(&shown, "state"), text(&shown, "nodes")), ("Pending".to_owned(), "n2".to_owned()));
    assert_eq!((&shown["users"], &shown["comment"]), (&json!(["daemon"]), &json!("course")));
    // The command line shows the same.
    assert_eq!(w.lattice.json(&["admin", "reservation", "show", "rest"]).unwrap(), shown);

    let id = admin.submit(&json!({ "entrypoint": "true", "cores": 1, "reservation": "rest" }));
    assert_eq!(user.state(&id), "Pending");

    // A change is made to what was read.
    let read = admin.call("GET", &path, &[]);
    let tag = format!("If-Match: {}", read.header("etag").unwrap());
    let changed = admin.send("PATCH", &path, &json!({ "nodes": "n1", "duration_seconds": 7200 }), &["-H", &tag]).expect(200);
    assert_eq!((&changed["nodes"], &changed["start"]), (&json!("n1"), &shown["start"]));
    assert_ne!(changed["end"], shown["end"]);
    let late = admin.send("PATCH", &path, &json!({ "comment": "late" }), &["-H", &tag]);
    assert!(late.problem(412).contains("it has changed since it was read"), "{}", late.body);
    assert_eq!(admin.at_once(&path, "PATCH", "{\"comment\": \"at-once-'$i'\"}"), ["200", "412", "412", "412", "412", "412"]);

    // REST refuses what the handlers refuse, with the same reason.
    let other = json!({ "name": "other", "nodes": "n1", "start": "2h", "end": "3h", "maintenance": true });
    assert!(admin.send("POST", all, &other, &[]).problem(409).contains("set aside by reservation rest"));
    assert!(admin.send("PATCH", &path, &json!({ "users": [] }), &[]).problem(400).contains("name one of them"));
    assert!(admin.send("PATCH", &path, &json!({ "end": "soon" }), &[]).problem(400).contains("end: "));
    assert!(admin.send("PATCH", &path, &json!({ "node": "n1" }), &[]).problem(400).contains("node"));
    assert!(admin.send("PATCH", &format!("{all}/none"), &json!({}), &[]).problem(404).contains("there is no reservation"));
    assert_eq!(user.send("PATCH", &path, &json!({ "comment": "x" }), &[]).status, 403);
    assert_eq!(user.call("DELETE", &path, &[]).status, 403);

    // The records of these changes name the token; a change by the command line has none.
    w.ok(&["admin", "reservation", "update", "rest", "--comment=by command"]);
    let token = text(&admin.get("/api/v1/whoami")["authentication"], "token");
    let records = w.lattice.json(&["audit", "query", "--type", "reservation-set", "--since=10m"]).unwrap();
    let of_rest = |record: &&Value| text(record, "detail").starts_with("rest: ");
    let records: Vec<&Value> = records.as_array().unwrap().iter().filter(of_rest).collect();
    let (last, before) = records.split_last().unwrap();
    assert!(before.len() == 3 && before.iter().all(|record| record["token"] == json!(token)), "{before:?}");
    assert_eq!(last.get("token"), None, "{last}");
    w.ok(&["audit", "verify"]);

    let maintained = admin.send("PATCH", &path, &json!({ "maintenance": true }), &[]).expect(200);
    assert_eq!((&maintained["maintenance"], &maintained["users"]), (&json!(true), &json!([])));
    w.wait("the agent to see what waits for it", || admin.get(&path)["waiting"] == json!(1));
    let deleted = admin.call("DELETE", &path, &[]).expect(200);
    assert_eq!((&deleted["name"], &deleted["waiting"]), (&json!("rest"), &json!(1)));
    admin.call("GET", &path, &[]).problem(404);
    assert!(admin.call("DELETE", &path, &[]).problem(404).contains("there is no reservation"));
}

fn readings(w: &World) {
    let daemon = Client::new(w, "daemon", "read");
    assert_eq!(daemon.get("/api/v1/nodes")["nodes"].as_array().map(Vec::len), Some(2));
    assert_eq!(daemon.get("/api/v1/nodes/n1")["state"], json!("Ready"));
    assert!(daemon.call("GET", "/api/v1/nodes/n9", &[]).problem(404).contains("there is no node \"n9\""));
    assert_eq!(daemon.get("/api/v1/vclusters")["vclusters"][0]["name"], json!("default"));
    assert_eq!(daemon.get("/api/v1/usage")["name"], json!("daemon"));
    assert_eq!(daemon.get("/api/v1/quorum/status")["cluster"], json!("lab"));
    assert!(daemon.get("/api/v1/whoami/permissions")["permissions"].as_array().is_some_and(|all| all.len() > 50));
    let audited = daemon.get("/api/v1/audit?since=1h&limit=10");
    assert!(audited["end"].as_u64() > Some(0) && audited["records"].is_array(), "{audited}");
    for list in ["services", "sessions", "tenants", "tokens", "dags"] {
        assert!(daemon.get(&format!("/api/v1/{list}"))[list].is_array(), "{list}");
    }
}

fn malformed(w: &World) {
    let daemon = Client::new(w, "daemon", "read,work");
    let post = |body: &str| daemon.call("POST", ALLOCATIONS, &["-H", "Content-Type: application/json", "--data-binary", body]);
    for (body, piece) in [
        ("{", "EOF"),
        ("[1, 2]", "map"),
        ("{\"entrypoint\": \"true\", \"nodse\": 2}", "did you mean --nodes?"),
        ("{\"entrypoint\": \"true\", \"nodes\": \"many\"}", "many"),
        ("{\"entrypoint\": \"true\", \"nodelist\": \"/etc/shadow\"}", "--nodelist"),
        ("{\"script\": \"/etc/shadow\"}", "not the name of a file"),
    ] {
        let problem = post(body).problem(400);
        assert!(problem.contains(piece) && !problem.contains("root:"), "{body}: {problem}");
    }
    let deep = "[".repeat(100_000);
    assert!(!post(&deep).problem(400).is_empty(), "brackets without end");
    for (method, path, status) in [
        ("GET", "/api/v1/allocations?stat=Running", 400),
        ("GET", "/api/v1/allocations/../whoami", 404),
        ("GET", "/api/v1/allocations/%2e%2e%2fwhoami", 400),
        ("GET", "/api/v1/allocations/%ff", 400),
        ("GET", "/api/v1//allocations", 404),
        ("GET", "/api/v1/nothing", 404),
        ("PUT", "/api/v1/whoami", 405),
        ("POST", "/api/v1/whoami", 405),
    ] {
        let answer = daemon.call(method, path, &[]);
        assert!(answer.status == status || (status == 400 && answer.status == 404), "{method} {path}: {}\n{}", answer.head, answer.body);
    }
    // As many ids as a body holds are refused before anybody looks one of them up.
    let file = w.dir.join("many-ids.json");
    let many = json!({ "entrypoint": "true", "depends_on": vec!["1f0c9a4e"; 150_000] });
    std::fs::write(&file, many.to_string()).unwrap();
    let began = Instant::now();
    let answer = daemon.call("POST", ALLOCATIONS, &["-H", "Content-Type: application/json", "--data-binary", &at(&file)]);
    assert!(answer.status == 400 && began.elapsed() < Duration::from_secs(20), "{} after {:?}", answer.head, began.elapsed());
    let long = daemon.call("GET", &format!("{ALLOCATIONS}/{}", "1".repeat(4000)), &[]);
    assert!([400, 404].contains(&long.status), "{}", long.head);
}

/// A file's contents, as curl's argument.
fn at(file: &Path) -> String {
    format!("@{}", file.display())
}

/// What the generated client does: it lists the nodes, submits work, and reads it.
const PROGRAM: &str = r#"
import sys
from lattice_client import AuthenticatedClient
from lattice_client.api.allocations import get_allocation, submit_allocation
from lattice_client.api.nodes import list_nodes
from lattice_client.models import SubmittedAllocation

url, ca, token = sys.argv[1:]
client = AuthenticatedClient(base_url=url, token=token, verify_ssl=ca, raise_on_unexpected_status=True)
assert len(list_nodes.sync(client=client).nodes) == 2
body = SubmittedAllocation.from_dict({"name": "generated", "entrypoint": "true", "hold": True})
made = submit_allocation.sync(client=client, body=body)
found = get_allocation.sync(made.id, client=client)
assert (found.name, found.state, found.held) == ("generated", "Pending", True), found
print(found.id)
"#;

fn generated(w: &World) {
    let _cleared = Cleared(w);
    let daemon = Client::new(w, "daemon", "read,work");
    let description = w.dir.join("openapi.json");
    std::fs::write(&description, daemon.call("GET", "/api/v1/openapi.json", &[]).body).unwrap();
    let tool = |name: &str| machine::find(name).unwrap_or_else(|| panic!("there is no {name} here"));
    let run = |command: &mut Command| {
        let done = process::run(command, GENERATION).unwrap();
        assert_eq!(done.code(), 0, "{}{}", done.out(), done.err());
        done.out()
    };
    run(Command::new(tool("openapi-spec-validator")).arg(&description));
    let config = w.dir.join("openapi-client.yaml");
    std::fs::write(&config, "project_name_override: lattice-client\npackage_name_override: lattice_client\npost_hooks: []\n").unwrap();
    std::fs::create_dir_all(w.dir.join("client")).unwrap();
    let generator = tool("openapi-python-client");
    let mut generate = Command::new(&generator);
    generate.args(["generate", "--overwrite", "--meta=none", "--path"]).arg(&description).arg("--config").arg(&config);
    run(generate.arg("--output-path").arg(w.dir.join("client/lattice_client")).current_dir(&w.dir));
    // The interpreter that has what the client needs.
    let python = generator.canonicalize().unwrap().with_file_name("python3");
    let token = daemon.authorization.rsplit(' ').next().unwrap();
    let mut program = Command::new(python);
    program.args(["-c", PROGRAM, &w.api_url("n1")]).arg(w.ca()).arg(token).env("PYTHONPATH", w.dir.join("client"));
    let id = run(&mut program);
    assert_eq!(daemon.state(id.trim()), "Pending");
}
