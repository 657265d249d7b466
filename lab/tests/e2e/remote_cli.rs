//! The CLI on another machine: every kind of command over TLS, by a token of the cluster.

use crate::attach::piped;
use crate::harness::{Folder, Group, JOB, NOBODY, World};
use crate::tty::Tty;
use lattice_lab::faults;
use lattice_lab::lattice::text;
use lattice_lab::process::{self, Finished};
use libtest_mimic::Trial;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

static REMOTE: Group = Group { theme: "remote_cli", name: "remote_cli", nodes: 2, quorum: 1, tweak: |o| o.network_api = true };

pub fn trials() -> Vec<Trial> {
    vec![
        REMOTE.test("work_is_submitted_and_followed_to_its_end", &[], follows),
        REMOTE.test("work_is_held_changed_watched_and_cancelled", &[], changes),
        REMOTE.test("terminals_and_launches_have_input_and_codes", &[], terminals),
        REMOTE.test("dags_and_sessions_are_submitted_and_listed", &[], dags),
        REMOTE.test("an_agent_that_is_killed_loses_no_output", &[], agent_killed),
        REMOTE.test("without_a_good_token_a_command_says_what_to_do", &[], tokens),
        REMOTE.test("an_agent_that_cannot_be_verified_or_reached_is_named_with_a_remedy", &[], unverified),
        REMOTE.test("the_file_of_logins_is_for_its_owner_alone", &[], store),
    ]
}

/// `lattice` of a user of another machine.
struct Remote<'a> {
    w: &'a World,
    endpoint: String,
    token: Option<String>,
    ca: Option<PathBuf>,
    home: PathBuf,
}

impl<'a> Remote<'a> {
    /// With a token for `nobody`, through these agents.
    fn new(w: &'a World, nodes: &[&str]) -> Self {
        let issue = ["admin", "token", "issue", "remote", "--account", "nobody", "--scopes", "read,work", "--days", "1"];
        let token = text(&w.lattice.json(&issue).unwrap_or_else(|e| panic!("{e:#}")), "token");
        let endpoint = nodes.iter().map(|node| w.api_url(node)).collect::<Vec<_>>().join(",");
        Self { w, endpoint, token: Some(token), ca: Some(authority(w)), home: w.dir.join(format!("home-{NOBODY}")) }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.w.dir.join("bin/lattice"));
        command.args(args).uid(NOBODY).gid(NOBODY).current_dir(&self.home).env("HOME", &self.home).env("NO_COLOR", "1");
        for variable in ["LATTICE_OPERATOR", "LATTICE_TOKEN", "LATTICE_CA", "XDG_CONFIG_HOME", "XDG_STATE_HOME"] {
            command.env_remove(variable);
        }
        command.env("LATTICE_ENDPOINT", &self.endpoint).env("SSL_CERT_FILE", "/nonexistent");
        // Agents are reached without the proxy of the environment; nothing listens there.
        command.env("HTTPS_PROXY", "http://127.0.0.1:9");
        command.envs(self.token.as_ref().map(|token| ("LATTICE_TOKEN", token)));
        command.envs(self.ca.as_ref().map(|ca| ("LATTICE_CA", ca)));
        command
    }

    fn run(&self, args: &[&str]) -> Finished {
        let done = process::run(&mut self.command(args), JOB).unwrap();
        assert!(!done.timed_out, "`lattice {}` hangs: {}{}", args.join(" "), done.out(), done.err());
        done
    }

    fn ok(&self, args: &[&str]) -> String {
        let done = self.run(args);
        assert_eq!(done.code(), 0, "{args:?}: {}", done.err());
        done.out()
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[args, &["-o", "json"]].concat())).unwrap()
    }

    fn submit(&self, args: &[&str]) -> String {
        self.ok(&[&["submit", "-o", "name"], args].concat()).trim().to_owned()
    }

    /// Checks that a command is refused with this code, and that its message has these pieces.
    fn refused(&self, args: &[&str], code: i32, pieces: &[&str]) {
        let done = self.run(args);
        assert_eq!(done.code(), code, "{args:?}: {}{}", done.out(), done.err());
        for piece in pieces {
            assert!(done.err().contains(piece), "{args:?} should say {piece:?}: {}", done.err());
        }
    }
}

/// The certificate of the cluster's authority, where every account can read it.
fn authority(w: &World) -> PathBuf {
    let file = w.dir.join("remote-ca.crt");
    std::fs::copy(w.ca(), &file).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    file
}

fn follows(w: &World) {
    let remote = Remote::new(w, &["n1", "n2"]);
    let id = remote.submit(&["-N", "2", "--", "/bin/sh", "-c", "echo out; echo err >&2; exit 3"]);
    let followed = remote.run(&["logs", "-f", &id]);
    assert_eq!(
        (followed.code(), followed.out().contains("out\n"), followed.err().contains("err\n")),
        (3, true, true),
        "{}",
        followed.err()
    );
    assert_eq!(remote.run(&["wait", &id]).code(), 3);
    let status = remote.json(&["status", &id]);
    assert_eq!((text(&status, "owner"), text(&status, "state")), ("nobody".to_owned(), "Failed".to_owned()), "{status}");
    // The last submission is remembered for these agents.
    assert!(remote.ok(&["explain", "@last"]).contains(&id[..8]));
    assert!(remote.ok(&["status", "--all"]).contains(&id[..8]));
    for args in [
        &["nodes"][..],
        &["node", "list"],
        &["usage"],
        &["vcluster", "list"],
        &["service", "list"],
        &["lease", "list"],
        &["quorum", "status"],
    ] {
        remote.ok(args);
    }
    let me = remote.ok(&["whoami"]);
    assert!(me.contains("nobody") && me.contains("token ") && me.contains("read,work"), "{me}");
    let records = remote.json(&["audit", "query", "--alloc", &id]);
    assert!(!records.as_array().unwrap().is_empty(), "the audit records of one's own work");
    let whole = remote.run(&["submit", "--wait", "--", "/bin/sh", "-c", "exit 6"]);
    assert_eq!(whole.code(), 6, "{}", whole.err());
}

fn changes(w: &World) {
    let remote = Remote::new(w, &["n2"]);
    let id = remote.submit(&["--hold", "--cores", "1", "--", "/bin/sleep", "600"]);
    remote.ok(&["update", &id, "--name", "renamed"]);
    assert_eq!(text(&remote.json(&["status", &id]), "name"), "renamed");
    remote.ok(&["resume", &id]);
    w.running(&id);
    remote.ok(&["signal", &id, "-s", "CONT"]);
    w.wait("measurements", || remote.run(&["top", &id]).code() == 0);
    let mut watching = remote.command(&["watch", &id]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(watching.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(!line.is_empty(), "nothing is shown of work that runs");
    remote.ok(&["cancel", &id]);
    assert_eq!(text(&w.ended(&id), "state"), "Cancelled");
    w.wait("watch to end with the work", || watching.try_wait().unwrap().is_some());
    // What belongs to others, and what only operators may do, is refused as on the socket.
    let of_root = w.submit(&["--cores", "1", "--", "/bin/sleep", "600"]);
    remote.refused(&["cancel", &of_root], 4, &[]);
    remote.refused(&["node", "drain", "n1", "--reason", "x"], 4, &[]);
    w.ok(&["cancel", &of_root]);
    w.ended(&of_root);
    w.assert_nothing_left();
}

fn terminals(w: &World) {
    let remote = Remote::new(w, &["n1"]);
    let id = remote.submit(&["-N", "2", "--", "/bin/sleep", "600"]);
    w.running(&id);
    let mut tty = Tty::start(remote.command(&["attach", &id, "--node", "n2", "--", "/bin/sh", "-i"]));
    w.wait("the terminal to be raw", || tty.is_raw());
    tty.asks("echo $((40 + 2)) on $LATTICE_NODE", "42 on n2");
    tty.asks("stty size | tr ' ' x", "40x100");
    tty.resize(50, 132);
    tty.asks("until [ \"$(stty size)\" = '50 132' ]; do :; done; echo re''sized", "resized");
    tty.types("exit 7\n");
    tty.ended_with(7);
    let sorted = piped(remote.command(&["launch", "--alloc", &id, "-n", "1", "--", "/usr/bin/sort", "-r"]), "a\nb\nc\n");
    assert_eq!((sorted.0, sorted.1.as_str()), (Some(0), "c\nb\na\n"), "{}", sorted.2);
    let ranks = remote.run(&["launch", "--alloc", &id, "-n", "2", "--label", "--", "/bin/echo", "here"]);
    assert_eq!((ranks.code(), ranks.out().lines().count()), (0, 2), "{}{}", ranks.out(), ranks.err());
    remote.ok(&["cancel", &id]);
    w.ended(&id);
    // A job of its own, whose output is longer than any buffer.
    let own = remote.run(&["launch", "-n", "1", "--", "/bin/sh", "-c", "seq 1 200000; exit 5"]);
    assert_eq!((own.code(), own.out().lines().count()), (5, 200_000), "{}", own.err());
    w.assert_nothing_left();
}

fn dags(w: &World) {
    let remote = Remote::new(w, &["n1"]);
    let file = remote.home.join("flow.yaml");
    let steps =
        "allocations:\n- {name: first, entrypoint: \"true\"}\n- {name: second, entrypoint: \"true\", depends_on: [first: success]}\n";
    std::fs::write(&file, steps).unwrap();
    let dag = remote.ok(&["dag", "submit", &file.to_string_lossy(), "-o", "name"]).trim().to_owned();
    w.wait("the DAG to end", || text(&remote.json(&["dag", "status", &dag]), "state") == "Completed");
    let group = remote.submit(&["--task-group=0-4", "--cores", "1", "--", "/bin/sh", "-c", "echo task $LATTICE_TASK_INDEX"]);
    w.ended(&group);
    assert_eq!(remote.ok(&["logs", &format!("{group}[3]")]), "task 3\n");
    // The account has no shell, so the session ends at once: its code is the shell's.
    let (code, _, err) = piped(remote.command(&["session", "--walltime=5m"]), "exit 4\n");
    assert!(code.is_some_and(|code| code != 125), "a session begins and ends: {code:?} {err}");
    assert_eq!(remote.ok(&["session", "list", "-o", "name"]), "");
    w.assert_nothing_left();
}

fn agent_killed(w: &World) {
    let remote = Remote::new(w, &["n1", "n2"]);
    let program = "i=1; while [ $i -le 100 ]; do echo line $i; i=$((i+1)); sleep 0.05; done";
    let id = remote.submit(&["--cores", "1", "-w", "n2", "--", "/bin/sh", "-c", program]);
    let mut following = remote.command(&["logs", "-f", &id]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(following.stdout.take().unwrap());
    let mut shown = String::new();
    while shown.lines().count() < 10 {
        assert!(out.read_line(&mut shown).unwrap() > 0, "it ended early: {shown}");
    }
    // The agent through which the CLI follows is killed; the other one takes over.
    faults::kill_node(&w.dir, "n1").unwrap();
    out.read_to_string(&mut shown).unwrap();
    let mut err = String::new();
    following.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!(following.wait().unwrap().code(), Some(0), "{err}");
    let want: String = (1..=100).map(|i| format!("line {i}\n")).collect();
    assert_eq!(shown, want, "each line once: {err}");
    assert!(err.contains("trying again"), "{err}");
    remote.ok(&["status", &id]);
    faults::heal(&w.dir, JOB).unwrap();
}

fn tokens(w: &World) {
    let good = Remote::new(w, &["n1"]);
    let none = Remote { token: None, endpoint: good.endpoint.clone(), ca: good.ca.clone(), home: good.home.clone(), w };
    let how = format!("`lattice login --server {}` first", good.endpoint);
    none.refused(&["status"], 4, &["not logged in at https://", how.as_str(), "LATTICE_TOKEN"]);
    for garbage in ["garbage", "lattice_0123456789abcdef_00", "eyJhbGciOiJub25lIn0.eyJzdWIiOiJyb290In0."] {
        let bad = Remote { token: Some(garbage.to_owned()), ..Remote::new(w, &["n1"]) };
        bad.refused(&["status"], 4, &["hint: "]);
        let shown = bad.run(&["status"]).err();
        assert!(!shown.contains(garbage), "a token is not shown: {shown}");
    }
    let broken = Remote { token: Some("two words".to_owned()), ..Remote::new(w, &["n1"]) };
    broken.refused(&["status"], 2, &["characters that no token has", "LATTICE_TOKEN"]);
    // When the token is revoked, a following command ends without retries.
    let id = good.submit(&["--cores", "1", "--", "/bin/sleep", "600"]);
    w.running(&id);
    let tokens = w.ok(&["admin", "token", "list", "-o", "name"]);
    for token in tokens.lines() {
        w.ok(&["admin", "token", "revoke", token]);
    }
    w.wait("the token to open nothing", || good.run(&["status"]).code() == 4);
    good.refused(&["logs", "-f", &id], 125, &["hint: "]);
    w.ok(&["cancel", &id]);
    w.ended(&id);
    // Without an identity provider, nobody logs in.
    none.refused(&["login"], 4, &["has no identity provider", "LATTICE_TOKEN"]);
    none.refused(&["logout"], 3, &["not logged in at https://"]);
}

fn unverified(w: &World) {
    let good = Remote::new(w, &["n1"]);
    let with = |endpoint: &str, ca: Option<PathBuf>| Remote { endpoint: endpoint.to_owned(), ca, ..Remote::new(w, &["n1"]) };
    let other = Folder::new("other-ca");
    w.ok(&["quorum", "ca", "init", "--dir", &other.0.to_string_lossy()]);
    std::fs::set_permissions(&other.0, std::fs::Permissions::from_mode(0o755)).unwrap();
    with(&good.endpoint, Some(other.0.join("ca.crt"))).refused(&["status"], 5, &["is not trusted", "LATTICE_CA"]);
    // The machine's own authorities, if it has any, did not issue the agent's certificate.
    let own = with(&good.endpoint, None).run(&["status"]);
    assert!([2, 5].contains(&own.code()) && own.err().contains("LATTICE_CA"), "{}", own.err());
    with(&good.endpoint, Some("/etc/passwd".into())).refused(&["status"], 2, &["/etc/passwd has no certificate"]);
    let port = good.endpoint.rsplit(':').next().unwrap().to_owned();
    with(&format!("https://localhost:{port}"), good.ca.clone()).refused(&["status"], 5, &["is for another name"]);
    // Where no resolver answers, the timeout is first.
    with("https://no-such-host.invalid:1", good.ca.clone()).refused(&["status"], 5, &["no-such-host.invalid:1", "hint: "]);
    with("https://127.0.0.1:1", good.ca.clone()).refused(&["status"], 5, &["no agent answers at https://127.0.0.1:1", "api.listen"]);
    let plain = format!("http://127.0.0.1:{port}");
    with(&plain, good.ca.clone()).refused(&["status"], 2, &["is not an endpoint", "https://host:port"]);
    // A port of the same machine that speaks no TLS.
    let metrics = w.cluster().nodes[0].metrics.clone();
    with(&format!("https://{metrics}"), good.ca.clone()).refused(&["status"], 5, &["is another program listening there?"]);
    // The next endpoint of a list is used.
    assert!(with(&format!("https://127.0.0.1:1,{}", good.endpoint), good.ca.clone()).ok(&["whoami"]).contains("nobody"));
}

/// Writes the file that a login would have left.
fn write_login(home: &Path, server: &str, token: &str) -> PathBuf {
    let folder = home.join(".config/lattice");
    std::fs::create_dir_all(&folder).unwrap();
    let login = serde_json::json!({
        "issuer": "https://127.0.0.1:1", "client_id": "lattice", "token_endpoint": "https://127.0.0.1:1/token",
        "revocation_endpoint": "https://127.0.0.1:1/revoke", "sends": "access_token", "token": token,
        "expires_at_ms": u64::MAX, "refresh_token": "r",
    });
    let file = folder.join("tokens.json");
    std::fs::write(&file, serde_json::json!({"logins": {server: login}}).to_string()).unwrap();
    for path in [home.join(".config"), folder, file.clone()] {
        std::os::unix::fs::chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    file
}

fn store(w: &World) {
    let good = Remote::new(w, &["n1"]);
    let home = Folder::new("remote-home");
    std::os::unix::fs::chown(&home.0, Some(NOBODY), Some(NOBODY)).unwrap();
    let user = Remote { token: None, home: home.0.clone(), ..Remote::new(w, &["n1"]) };
    let file = write_login(&home.0, &good.endpoint, good.token.as_deref().unwrap());
    let first = user.run(&["whoami"]);
    assert!(first.code() == 0 && first.out().contains("nobody"), "{}{}", first.out(), first.err());
    assert!(first.err().contains("others could read"), "{}", first.err());
    assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    assert_eq!(user.run(&["whoami"]).err(), "");
    // The other agent of the list is of the same cluster.
    let both =
        Remote { endpoint: format!("{},{}", w.api_url("n2"), good.endpoint), ca: user.ca.clone(), home: home.0.clone(), token: None, w };
    assert!(both.ok(&["whoami"]).contains("nobody"));
    // The provider does not answer; the login is removed here all the same.
    let out = user.run(&["logout"]);
    assert!(out.code() == 0 && out.err().contains("may live on"), "{}", out.err());
    assert!(!std::fs::read_to_string(&file).unwrap().contains("lattice_"));
    user.refused(&["whoami"], 4, &["not logged in"]);
    std::fs::write(&file, "{").unwrap();
    user.refused(&["whoami"], 1, &["tokens.json is damaged", "hint: remove the file"]);
}
