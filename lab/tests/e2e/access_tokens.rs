//! Tokens of the cluster: who issues and revokes them, what they open over the network, and where their secret is.

use crate::harness::{DAEMON, Group, JOB, NOBODY, World};
use lattice_lab::faults;
use lattice_lab::lattice::text;
use lattice_lab::process::{self, Finished};
use libtest_mimic::Trial;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

static TOKENS: Group = Group {
    theme: "access_tokens",
    name: "access_tokens",
    nodes: 2,
    quorum: 1,
    tweak: |o| {
        o.network_api = true;
        o.clocks = true;
    },
};

/// How long an agent may use its cached record of a token, plus the time of a call on a slow machine.
const REVOKED_WITHIN: Duration = Duration::from_secs(10 + 5);
const DAY_SECONDS: i64 = 86_400;

pub fn trials() -> Vec<Trial> {
    vec![
        TOKENS.test("a_program_acts_as_the_account_of_its_token_until_that_is_revoked", &[], used_and_revoked),
        TOKENS.test("a_token_opens_what_its_scopes_say", &[], scopes),
        TOKENS.test("a_token_is_issued_by_system_admins_and_never_for_root", &[], issuers),
        TOKENS.test("an_expired_token_and_one_that_nobody_issued_open_nothing", &[], refused_tokens),
        TOKENS.test("the_audit_log_is_selected_by_the_token_of_a_request", &[], audited),
        TOKENS.test("the_secret_of_a_token_is_in_no_file", &[], secret_nowhere),
    ]
}

/// Removes tokens, roles and work, whatever the result of the test.
struct Removed<'a>(&'a World);

impl Drop for Removed<'_> {
    fn drop(&mut self) {
        let _ = faults::shift_clock(&self.0.dir, "n2", 0);
        for id in self.0.run(&["admin", "token", "list", "-o", "name"]).out().lines() {
            let _ = self.0.run(&["admin", "token", "revoke", id]);
        }
        for (role, account) in [("system-admin", "daemon"), ("operator", "daemon"), ("operator", "games")] {
            let _ = self.0.run(&["admin", "role", "revoke", role, account]);
        }
        for id in self.0.run(&["status", "--all", "-o", "name"]).out().lines() {
            let _ = self.0.run(&["cancel", id]);
        }
    }
}

/// A token, and its id.
struct Issued {
    token: String,
    id: String,
}

/// Issues a token for a day, as a system admin.
fn issue(w: &World, name: &str, account: &str, scopes: &str) -> Issued {
    let args = ["admin", "token", "issue", name, "--account", account, "--scopes", scopes, "--days", "1"];
    let answer = w.lattice.json(&args).unwrap_or_else(|e| panic!("{e:#}"));
    let (token, id) = (text(&answer, "token"), text(&answer, "id"));
    assert!(token.starts_with(&format!("lattice_{id}_")) && token.len() == 89, "{id}: a token of {} characters", token.len());
    Issued { token, id }
}

/// The certificate of the cluster's authority, where every account can read it.
fn authority(w: &World) -> PathBuf {
    let file = w.dir.join("api-ca.crt");
    if !file.exists() {
        fs::copy(w.dir.join("ca/ca.crt"), &file).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    }
    file
}

/// Runs the CLI over the network with this token, as a process of `nobody`: only the token's account counts.
fn over(w: &World, node: &str, token: &str, args: &[&str]) -> Finished {
    let home = w.dir.join(format!("home-{NOBODY}"));
    let mut command = Command::new(w.dir.join("bin/lattice"));
    command.args(args).env("LATTICE_ENDPOINT", w.api_url(node)).env("LATTICE_CA", authority(w)).env("LATTICE_TOKEN", token);
    command.uid(NOBODY).gid(NOBODY).current_dir(&home).env("HOME", &home).env("NO_COLOR", "1");
    for variable in ["LATTICE_OPERATOR", "XDG_CONFIG_HOME", "XDG_STATE_HOME"] {
        command.env_remove(variable);
    }
    let done = process::run(&mut command, JOB).unwrap();
    assert!(!done.timed_out, "`lattice {}` over the network hangs", args.join(" "));
    done
}

/// The same; it must succeed. Returns its output.
fn ok_over(w: &World, node: &str, token: &str, args: &[&str]) -> String {
    let done = over(w, node, token, args);
    assert_eq!(done.code(), 0, "{args:?}: {}", done.err());
    done.out()
}

fn assert_refused(code: i32, done: &Finished, pieces: &[&str]) {
    assert_eq!(done.code(), code, "{}{}", done.out(), done.err());
    for piece in pieces {
        assert!(done.err().contains(piece), "it should say {piece:?}: {}", done.err());
    }
}

/// The latest record of this kind.
fn last_record(w: &World, kind: &str) -> Value {
    let records = w.lattice.json(&["audit", "query", "--type", kind]).unwrap_or_else(|e| panic!("{e:#}"));
    records.as_array().and_then(|records| records.last()).unwrap_or_else(|| panic!("no {kind}")).clone()
}

fn used_and_revoked(w: &World) {
    let _removed = Removed(w);
    let Issued { token, id } = issue(w, "ci", "nobody", "read,work");
    let record = last_record(w, "token-issued");
    assert_eq!(text(&record, "actor"), "root@n1", "{record}");
    let detail = text(&record, "detail");
    assert!([id.as_str(), "\"ci\"", "user:nobody", "read,work"].iter().all(|piece| detail.contains(*piece)), "{record}");

    // The token's account sees the record, and other users do not.
    let seen_by = |uid: u32| w.run_as(uid, &["audit", "query", "--type", "token-issued", "-o", "json"]).out();
    assert!(seen_by(NOBODY).contains(&id) && !seen_by(DAEMON).contains(&id));

    // The token is valid at every agent.
    for node in ["n1", "n2"] {
        assert!(ok_over(w, node, &token, &["whoami"]).contains("nobody"), "{node}");
    }
    let work = ok_over(w, "n2", &token, &["submit", "-o", "name", "--cores", "1", "--", "/bin/sh", "-c", "echo ran"]).trim().to_owned();
    w.completed(&work);
    assert_eq!(text(&w.status(&work), "owner"), "nobody");
    assert_eq!(ok_over(w, "n1", &token, &["logs", &work]), "ran\n");

    // Admins and the account see the token; nobody sees its secret.
    let secret = token.rsplit('_').next().unwrap();
    let shown = w.ok(&["admin", "token", "list", "-o", "json"]);
    assert!(shown.contains(&id) && shown.contains("\"ci\"") && !shown.contains(secret), "the list of an admin");
    let listed = |uid: u32| w.run_as(uid, &["admin", "token", "list", "-o", "name"]).out();
    assert_eq!(listed(NOBODY).trim(), id);
    assert_eq!(listed(DAEMON), "", "of another account");
    assert_eq!(ok_over(w, "n1", &token, &["admin", "token", "list", "-o", "name"]).trim(), id);
    let unknown = "there is no token";
    assert_refused(3, &w.run_as(DAEMON, &["admin", "token", "revoke", &id]), &[unknown]);

    let revoked = w.run_as(NOBODY, &["admin", "token", "revoke", &id]);
    assert!(revoked.code() == 0 && revoked.out().contains("is revoked"), "{}{}", revoked.out(), revoked.err());
    let since = Instant::now();
    for node in ["n1", "n2"] {
        w.wait("the token to open nothing", || over(w, node, &token, &["whoami"]).code() != 0);
        assert_refused(4, &over(w, node, &token, &["whoami"]), &["revoked"]);
    }
    assert!(since.elapsed() < REVOKED_WITHIN, "after {:?}", since.elapsed());
    let record = last_record(w, "token-revoked");
    assert!(text(&record, "actor") == "nobody" && text(&record, "detail").contains(&id), "{record}");
    assert_refused(3, &w.run(&["admin", "token", "revoke", &id]), &[unknown]);
}

fn scopes(w: &World) {
    let _removed = Removed(w);
    let submit = ["submit", "--hold", "-o", "name", "--", "/bin/true"];
    let reads = issue(w, "reads", "nobody", "read").token;
    ok_over(w, "n1", &reads, &["status"]);
    assert_refused(4, &over(w, "n1", &reads, &submit), &["scope"]);
    let works = issue(w, "works", "nobody", "work").token;
    assert_refused(4, &over(w, "n1", &works, &["status"]), &["scope"]);

    // The roles of an account count for its tokens with the scope `admin` alone.
    w.ok(&["admin", "role", "grant", "system-admin", "daemon"]);
    let (without, with) = (issue(w, "without", "daemon", "read,work"), issue(w, "with", "daemon", "admin"));
    let grant = ["admin", "role", "grant", "operator", "games"];
    assert_refused(4, &over(w, "n1", &without.token, &grant), &["scope"]);
    let own = ok_over(w, "n1", &without.token, &["admin", "token", "list", "-o", "name"]);
    assert_eq!(own.lines().count(), 2, "of its own account: {own}");
    assert_eq!(ok_over(w, "n1", &with.token, &["admin", "token", "list", "-o", "name"]).lines().count(), 4);
    ok_over(w, "n1", &with.token, &grant);
    assert_eq!(text(&last_record(w, "role-granted"), "actor"), "daemon@n1");
    // The submission belongs to the token's account.
    let id = ok_over(w, "n1", &without.token, &submit).trim().to_owned();
    assert_eq!(text(&w.status(&id), "owner"), "daemon");
}

fn issuers(w: &World) {
    let _removed = Removed(w);
    let of = |account: &'static str| ["admin", "token", "issue", "x", "--account", account, "--scopes", "read", "--days", "1"];
    assert_refused(2, &w.run(&of("root")), &["root gets no token", "lattice admin role grant"]);
    assert_refused(3, &w.run(&of("nosuchaccount")), &["no account nosuchaccount is known on n1"]);
    assert_refused(2, &w.run(&of("group:daemon")), &["is not the name of an account"]);
    for uid in [NOBODY, DAEMON] {
        assert_refused(4, &w.run_as(uid, &of("nobody")), &[]);
    }
    w.ok(&["admin", "role", "grant", "operator", "daemon"]);
    assert_refused(4, &w.run_as(DAEMON, &of("daemon")), &["no role"]);
    assert_eq!(w.ok(&["admin", "token", "list", "-o", "name"]), "", "none was issued");
    w.ok(&["admin", "role", "grant", "system-admin", "daemon"]);
    let issued = w.run_as(DAEMON, &of("nobody"));
    assert!(issued.code() == 0 && issued.out().starts_with("lattice_") && issued.out().lines().count() == 1, "{}", issued.err());
    assert!(issued.err().contains("acts as nobody") && !issued.err().contains("lattice_"), "{}", issued.err());
    let revoked = w.run_as(DAEMON, &["admin", "token", "revoke", w.ok(&["admin", "token", "list", "-o", "name"]).trim()]);
    assert_eq!(revoked.code(), 0, "another account's: {}", revoked.err());
    assert_eq!(text(&last_record(w, "token-revoked"), "actor"), "daemon@n1");
}

fn refused_tokens(w: &World) {
    let _removed = Removed(w);
    let token = issue(w, "short", "nobody", "read").token;
    ok_over(w, "n2", &token, &["whoami"]);
    faults::shift_clock(&w.dir, "n2", 2 * DAY_SECONDS).unwrap();
    assert_refused(4, &over(w, "n2", &token, &["whoami"]), &["the token has expired"]);
    faults::shift_clock(&w.dir, "n2", 0).unwrap();
    ok_over(w, "n2", &token, &["whoami"]);

    let digit = if token.ends_with('0') { "1" } else { "0" };
    let guessed = format!("{}{digit}", &token[..token.len() - 1]);
    assert_refused(4, &over(w, "n1", &guessed, &["whoami"]), &["no such token"]);
    let unknown = format!("lattice_{}_{}", "0".repeat(16), "0".repeat(64));
    assert_refused(4, &over(w, "n1", &unknown, &["whoami"]), &["no such token"]);
    assert_refused(4, &over(w, "n1", "lattice_nonsense", &["whoami"]), &["hint"]);
}

fn audited(w: &World) {
    let _removed = Removed(w);
    let [used, other, unused] = ["used", "other", "unused"].map(|name| issue(w, name, "nobody", "read,work"));
    let submit = ["submit", "--hold", "-o", "name", "--", "/bin/true"];
    let submit_with = |token: &str| ok_over(w, "n1", token, &submit).trim().to_owned();
    let (of_used, of_other) = (submit_with(&used.token), submit_with(&other.token));
    let without_token = w.run_as(NOBODY, &submit);
    assert_eq!(without_token.code(), 0, "{}", without_token.err());
    ok_over(w, "n1", &used.token, &["cancel", &of_used]);

    let query = |args: &[&str]| -> Vec<Value> {
        let answer = w.lattice.json(&[&["audit", "query"], args].concat()).unwrap_or_else(|e| panic!("{e:#}"));
        answer.as_array().unwrap().clone()
    };
    let found = query(&["--token", &used.id]);
    let kinds: Vec<String> = found.iter().map(|record| text(record, "action")).collect();
    assert!(["AllocationSubmitted", "CancelRequested"].iter().all(|kind| kinds.iter().any(|found| found == kind)), "{kinds:?}");
    assert!(found.iter().all(|record| text(record, "token") == used.id && text(record, "allocation") == of_used), "{found:?}");
    // Together with other filters.
    assert_eq!(query(&["--token", &used.id, "--user", "nobody", "--type", "allocation-submitted"]).len(), 1);
    assert_eq!(query(&["--token", &used.id, "--alloc", &of_other]), Vec::<Value>::new());

    // The filter makes no record visible: the account reads those of its token, and other accounts none.
    let seen_by = |uid: u32| {
        let done = w.run_as(uid, &["audit", "query", "--token", &used.id, "-o", "name"]);
        assert_eq!(done.code(), 0, "{}", done.err());
        done.out().lines().count()
    };
    assert_eq!((seen_by(NOBODY), seen_by(DAEMON)), (found.len(), 0));

    // A token that requested nothing has no records, whether it was issued or not.
    let nothing = w.ok(&["audit", "query", "--node", "n9"]);
    for id in [unused.id.as_str(), &"0".repeat(16)] {
        assert_eq!(w.ok(&["audit", "query", "--token", id]), nothing, "{id}");
    }
    for malformed in ["ci", &used.id[..8]] {
        assert_refused(2, &w.run(&["audit", "query", "--token", malformed]), &["16 hexadecimal digits"]);
    }
}

/// All files below a directory, without the programs.
fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
        let entry = entry.unwrap();
        let kind = entry.file_type().unwrap();
        if kind.is_dir() && entry.file_name() != "bin" {
            files(&entry.path(), found);
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
}

fn secret_nowhere(w: &World) {
    let _removed = Removed(w);
    let Issued { token, id } = issue(w, "found", "nobody", "read,work");
    ok_over(w, "n1", &token, &["status"]);
    ok_over(w, "n2", &token, &["status"]);
    let digits = token.rsplit('_').next().unwrap();
    let bytes: Vec<u8> = (0..32).map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap()).collect();
    let cluster = w.cluster();
    let mut all = Vec::new();
    files(&cluster.dir, &mut all);
    if cluster.run_dir != cluster.dir {
        files(&cluster.run_dir, &mut all);
    }
    let mut has_id = 0;
    for file in all {
        // A daemon may remove a file meanwhile.
        let Ok(content) = fs::read(&file) else { continue };
        let has = |wanted: &[u8]| content.windows(wanted.len()).any(|part| part == wanted);
        assert!(!has(digits.as_bytes()) && !has(&bytes), "{} has the secret", file.display());
        has_id += usize::from(has(id.as_bytes()));
    }
    assert!(has_id > 0, "the audit log, at least, names the token");
}
