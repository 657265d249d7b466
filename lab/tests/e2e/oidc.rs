//! People who come over the network with tokens of a real OpenID Connect provider (`oidc-provider`,
//! in Node).

use crate::harness::{DAEMON, Folder, Group, JOB, Need, World, machine};
use lattice_lab::lattice::text;
use lattice_lab::ports::Ports;
use lattice_lab::process::{self, Finished};
use lattice_pki::ca;
use lattice_pki::identity::Role;
use libtest_mimic::Trial;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

static OIDC: Group = Group { theme: "oidc", name: "oidc", nodes: 1, quorum: 1, tweak: with_provider };

/// A program of the site names the accounts.
static OIDC_HOOK: Group = Group { theme: "oidc", name: "oidc_hook", nodes: 1, quorum: 1, tweak: with_program };

/// Longer than the lifetime of an ID token of the client `lattice` (`oidc/provider.mjs`).
const TOKEN_ENDED: Duration = Duration::from_secs(22);

pub fn trials() -> Vec<Trial> {
    let needs = &[Need::OidcProvider, Need::Python];
    vec![
        OIDC.test("a_person_logs_in_by_a_browser_and_stays_logged_in_until_logout", needs, browser),
        OIDC.test("a_person_logs_in_by_a_code_on_another_device", needs, device),
        OIDC.test("a_person_logs_in_by_an_address_that_they_copy", needs, manual),
        OIDC.test("a_login_that_cannot_be_renewed_says_why_and_what_to_do", needs, not_renewed),
        OIDC.test("the_table_of_accounts_wins_over_the_claim", needs, accounts),
        OIDC.test("groups_of_a_token_make_its_user_a_member_of_tenants_for_its_calls", needs, groups),
        OIDC.test("tokens_for_others_of_root_expired_or_changed_open_nothing", needs, refused_tokens),
        OIDC.test("a_token_is_checked_while_the_provider_is_away_and_new_keys_are_fetched", needs, away),
        OIDC_HOOK.test("a_program_of_the_site_names_the_account_or_says_why_not", needs, by_program),
    ]
}

/// The provider's port: the same at each start.
fn port() -> u16 {
    static PORT: OnceLock<u16> = OnceLock::new();
    *PORT.get_or_init(|| Ports::new(u64::from(std::process::id()) * 17).take().unwrap())
}

fn issuer() -> String {
    format!("https://127.0.0.1:{}", port())
}

/// The agents start before the provider does.
fn with_provider(options: &mut lattice_lab::up::Options) {
    options.network_api = true;
    options.agent_lines = format!(
        "api:\n  oidc:\n    issuer: {:?}\n    client_id: lattice\n    audience: [lattice, long, brief]\n    leeway_seconds: 0\n    \
         ca: \"{{dir}}/ca/ca.crt\"\n    accounts: {{guest-42: nobody}}\n    \
         group_tenants: {{hpc-physics: physics}}\n",
        issuer()
    );
}

/// The program that names accounts.
fn program() -> PathBuf {
    std::env::temp_dir().join(format!("lattice-e2e-accounts-{}", std::process::id()))
}

fn with_program(options: &mut lattice_lab::up::Options) {
    let body = "#!/bin/sh\ncase $(cat) in\n*'\"sub\":\"ada\"'*) echo daemon ;;\n*) echo 'they have left the site' >&2; exit 1 ;;\nesac\n";
    fs::write(program(), body).unwrap();
    fs::set_permissions(program(), fs::Permissions::from_mode(0o755)).unwrap();
    options.network_api = true;
    options.agent_lines = format!(
        "api:\n  oidc:\n    issuer: {:?}\n    client_id: lattice\n    audience: [long]\n    ca: \"{{dir}}/ca/ca.crt\"\n    \
         account_hook: {:?}\n",
        issuer(),
        program()
    );
}

/// The provider's process, while it runs.
struct Provider {
    /// The folder of the cluster whose authority has issued its certificate.
    cluster: PathBuf,
    process: Child,
}

impl Drop for Provider {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

static PROVIDER: Mutex<Option<Provider>> = Mutex::new(None);

/// Ends the provider, and removes the program that names accounts.
pub fn close() {
    let _ = fs::remove_file(program());
    end_provider();
}

fn end_provider() {
    *PROVIDER.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

/// Starts the provider unless it runs. Its keys are new at each start.
fn start(w: &World) {
    let mut running = PROVIDER.lock().unwrap_or_else(PoisonError::into_inner);
    if running.as_ref().is_some_and(|provider| provider.cluster == w.dir) {
        return;
    }
    *running = None;
    let dir = w.dir.join("idp");
    if !dir.exists() {
        ca::issue(&w.dir.join("ca"), "idp", Role::Node, &["127.0.0.1".to_owned()], &dir, ca::LIFETIME).unwrap();
        fs::write(dir.join("provider.mjs"), include_str!("oidc/provider.mjs")).unwrap();
        fs::write(dir.join("person.py"), include_str!("oidc/person.py")).unwrap();
    }
    let mut node = Command::new("node");
    node.arg(dir.join("provider.mjs")).arg(machine().oidc_provider.as_ref().unwrap());
    node.arg(port().to_string()).arg(dir.join("idp.key")).arg(dir.join("idp.crt"));
    let log = File::create(dir.join("log")).unwrap();
    let process = node.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
    *running = Some(Provider { cluster: w.dir.clone(), process });
    let listens = process::until(JOB, || TcpStream::connect(("127.0.0.1", port())).is_ok());
    assert!(listens, "the provider does not listen: {}", process::tail(&dir.join("log"), 20));
}

/// Runs `oidc/person.py`, a person with a browser; it must succeed. Returns its output.
fn person(w: &World, args: &[&str]) -> String {
    let mut python = Command::new("python3");
    python.arg(w.dir.join("idp/person.py")).arg(w.ca()).args(args);
    let done = process::run(&mut python, JOB).unwrap();
    assert!(done.code() == 0 && !done.timed_out, "{args:?}: {}{}", done.out(), done.err());
    done.out()
}

/// An ID token for this client, of a login with this name.
fn id_token(w: &World, client: &str, name: &str) -> String {
    person(w, &["token", &issuer(), client, name]).trim().to_owned()
}

/// The CLI on a machine without a socket of an agent.
fn remote(w: &World, home: &Path) -> Command {
    let mut command = Command::new(w.dir.join("bin/lattice"));
    command.env("LATTICE_ENDPOINT", w.api_url("n1")).env("LATTICE_CA", w.ca()).env("HOME", home).env("NO_COLOR", "1");
    for variable in ["LATTICE_OPERATOR", "LATTICE_TOKEN", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "DISPLAY", "WAYLAND_DISPLAY"] {
        command.env_remove(variable);
    }
    command.current_dir(home).stdin(Stdio::null());
    command
}

fn run(command: &mut Command) -> Finished {
    let done = process::run(command, JOB).unwrap();
    assert!(!done.timed_out, "{command:?} hangs: {}", done.err());
    done
}

/// Runs the CLI with the token that its user has logged in for; it must succeed.
fn ok(w: &World, home: &Path, args: &[&str]) -> String {
    let done = run(remote(w, home).args(args));
    assert_eq!(done.code(), 0, "{args:?}: {}", done.err());
    done.out()
}

/// `whoami` with this token.
fn with_token(w: &World, token: &str) -> Finished {
    run(remote(w, &w.dir).env("LATTICE_TOKEN", token).args(["whoami", "-o", "json"]))
}

/// Waits until the agent has keys with which this token is valid: returns whom it identifies.
fn accepted(w: &World, token: &str) -> Value {
    let mut last = None;
    w.wait("the agent to accept a new token", || {
        let done = with_token(w, token);
        let is_accepted = done.code() == 0;
        last = Some(done);
        is_accepted
    });
    serde_json::from_str(&last.unwrap().out()).unwrap()
}

fn assert_refused(w: &World, token: &str, piece: &str) {
    let mut last = None;
    // Many wrong tokens in one second are not looked at.
    w.wait("an answer about the token", || !last.insert(with_token(w, token)).err().contains("too many wrong tokens"));
    let done = last.unwrap();
    assert_ne!(done.code(), 0, "{}", done.out());
    assert!(done.err().contains(piece), "it should say {piece:?}: {}", done.err());
    assert!(!done.err().contains(token), "the token is in a message");
}

/// Begins a login, lets a person do the rest at the first page whose address contains this, and
/// returns when both are done.
fn log_in(w: &World, home: &Path, flow: &str, page: &str, name: &str) {
    let shown = home.join("login");
    let mut command = remote(w, home);
    command.args(["login", "--server", &w.api_url("n1"), "--flow", flow]);
    command.stdin(if flow == "manual" { Stdio::piped() } else { Stdio::null() });
    let mut login = command.stdout(Stdio::null()).stderr(File::create(&shown).unwrap()).spawn().unwrap();
    let text = || fs::read_to_string(&shown).unwrap();
    let mut address = None;
    process::until(JOB, || {
        address = text().lines().map(str::trim).find(|line| line.starts_with(&issuer()) && line.contains(page)).map(str::to_owned);
        address.is_some() || login.try_wait().unwrap().is_some()
    });
    if let Some(address) = &address {
        match flow {
            "manual" => {
                let end = person(w, &["end", address, name]);
                login.stdin.take().unwrap().write_all(end.as_bytes()).unwrap();
            }
            "browser" => {
                intrude(address);
                person(w, &["open", address, name]);
            }
            _ => drop(person(w, &["open", address, name])),
        }
    }
    let mut status = None;
    process::until(JOB, || {
        status = login.try_wait().unwrap();
        status.is_some()
    });
    let _ = login.kill();
    let _ = login.wait();
    assert!(address.is_some() && status.is_some_and(|status| status.success()), "{status:?}: {}", text());
}

/// Another program of the machine answers a login by a browser before its user does, with a state that it has guessed.
fn intrude(address: &str) {
    let behind = address.split("redirect_uri=http%3A%2F%2F127.0.0.1%3A").nth(1);
    let port: u16 = behind.and_then(|rest| rest.split('%').next()).and_then(|port| port.parse().ok()).unwrap();
    for query in ["code=stolen&state=guessed", "error=access_denied&state=guessed"] {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        write!(stream, "GET /?{query} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 404 "), "{query}: {answer}");
    }
}

/// The stored login, which only its owner can read.
fn stored(w: &World, home: &Path) -> Value {
    let file = home.join(".config/lattice/tokens.json");
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    let all: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    all["logins"][w.api_url("n1")].clone()
}

/// A home directory in which nobody has logged in, once the agent has the provider's keys.
fn home(w: &World) -> Folder {
    start(w);
    accepted(w, &id_token(w, "long", "daemon"));
    Folder::new("oidc-home")
}

fn browser(w: &World) {
    let home = home(w);
    let home = home.0.as_path();
    log_in(w, home, "browser", "/auth?", "daemon");
    let me: Value = serde_json::from_str(&ok(w, home, &["whoami", "-o", "json"])).unwrap();
    assert!(text(&me, "account") == "daemon" && !me["roles"].to_string().contains("operator"), "{me}");
    let proof = &me["authentication"];
    assert_eq!([text(proof, "kind"), text(proof, "issuer"), text(proof, "subject")], ["oidc", issuer().as_str(), "daemon"], "{me}");
    let id = ok(w, home, &["submit", "-o", "name", "-D", "/", "--", "/bin/sh", "-c", "id -un"]).trim().to_owned();
    w.completed(&id);
    assert_eq!(ok(w, home, &["logs", &id]), "daemon\n");
    assert_eq!(text(&w.status(&id), "owner"), "daemon");
    // The token has expired; the login has not. The provider ends a login if its refresh token is used twice, so commands
    // that need a new token at the same time renew it one after the other.
    let before = stored(w, home);
    std::thread::sleep(TOKEN_ENDED);
    let begin = |_| remote(w, home).arg("whoami").stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    for command in (0..4).map(begin).collect::<Vec<Child>>() {
        let done = command.wait_with_output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    let after = stored(w, home);
    assert!(after["expires_at_ms"].as_u64() > before["expires_at_ms"].as_u64(), "a new token");
    assert!(after["refresh_token"] != before["refresh_token"], "each refresh token is used once");
    // The login may do what the account may do, roles included.
    w.ok(&["admin", "role", "grant", "operator", "daemon"]);
    let granted: Value = serde_json::from_str(&ok(w, home, &["whoami", "-o", "json"])).unwrap();
    w.ok(&["admin", "role", "revoke", "operator", "daemon"]);
    assert!(granted["roles"].to_string().contains("operator"), "{granted}");
    ok(w, home, &["logout"]);
    let done = run(remote(w, home).arg("whoami"));
    assert!(done.code() != 0 && done.err().contains("lattice login"), "{}", done.err());
}

fn device(w: &World) {
    let home = home(w);
    log_in(w, &home.0, "device", "user_code=", "daemon");
    let me: Value = serde_json::from_str(&ok(w, &home.0, &["whoami", "-o", "json"])).unwrap();
    assert_eq!(text(&me, "account"), "daemon");
    ok(w, &home.0, &["logout"]);
}

fn manual(w: &World) {
    let home = home(w);
    log_in(w, &home.0, "manual", "/auth?", "daemon");
    let me: Value = serde_json::from_str(&ok(w, &home.0, &["whoami", "-o", "json"])).unwrap();
    assert_eq!(text(&me, "account"), "daemon");
    ok(w, &home.0, &["logout"]);
}

fn not_renewed(w: &World) {
    let home = home(w);
    let home = home.0.as_path();
    log_in(w, home, "device", "user_code=", "daemon");
    let login = stored(w, home);
    end_provider();
    std::thread::sleep(TOKEN_ENDED);
    let done = run(remote(w, home).arg("whoami"));
    assert!(done.code() == 5 && done.err().contains("has ended: the login could not be renewed"), "{}", done.err());
    assert!(stored(w, home) == login, "the provider may come back");
    // The provider restarts without its former state.
    start(w);
    let done = run(remote(w, home).arg("whoami"));
    let again = format!("hint: `lattice login --server {}`", w.api_url("n1"));
    assert!(done.code() == 4 && done.err().contains("invalid_grant") && done.err().contains(&again), "{}", done.err());
    let shown = done.err();
    assert!(["token", "refresh_token"].iter().all(|secret| !shown.contains(&text(&login, secret))), "a secret is shown");
    ok(w, home, &["logout"]);
    end_provider();
}

fn accounts(w: &World) {
    let _home = home(w);
    let me = accepted(w, &id_token(w, "long", "guest-42"));
    assert_eq!((text(&me, "account").as_str(), text(&me["authentication"], "subject").as_str()), ("nobody", "guest-42"), "{me}");
}

fn groups(w: &World) {
    let home = home(w);
    w.ok(&["admin", "tenant", "create", "physics"]);
    // The tenant had a member, so it is not open to all; now the ledger has no member of it.
    for change in ["add", "remove"] {
        w.ok(&["admin", "tenant", "member", change, "physics", "user:nobody"]);
    }
    let with = |token: &str, args: &[&str]| run(remote(w, &home.0).env("LATTICE_TOKEN", token).args(args));
    let submit = ["submit", "-o", "name", "-D", "/", "--tenant", "physics", "--", "/bin/true"];
    let dry = ["submit", "--dry-run", "-D", "/", "--tenant", "physics", "--", "/bin/true"];

    let of_daemon = id_token(w, "long", "daemon");
    let me = accepted(w, &of_daemon);
    assert_eq!(me["member_of"], serde_json::json!(["physics"]), "{me}");
    assert_eq!(with(&of_daemon, &dry).code(), 0);
    let submitted = with(&of_daemon, &submit);
    assert_eq!(submitted.code(), 0, "{}", submitted.err());
    let id = submitted.out().trim().to_owned();
    assert_eq!(text(&w.completed(&id), "tenant"), "physics");
    let dag = home.0.join("flow.yaml");
    fs::write(&dag, "name: flow\nallocations:\n  - {name: a, tenant: physics, entrypoint: [/bin/true]}\n").unwrap();
    let dag = with(&of_daemon, &["dag", "submit", dag.to_str().unwrap()]);
    assert_eq!(dag.code(), 0, "{}", dag.err());

    // Without a tenant, nobody knows which one pays: no group makes one the default.
    let unnamed = with(&of_daemon, &["submit", "-D", "/", "--", "/bin/true"]);
    assert!(unnamed.code() == 2 && unnamed.err().contains("physics"), "{}", unnamed.err());
    // The account itself is no member, and neither is a person without the group.
    for refused in [w.run_as(DAEMON, &submit), with(&id_token(w, "long", "guest-42"), &submit)] {
        assert!(refused.code() == 4 && refused.err().contains("is no member of tenant \"physics\""), "{}", refused.err());
    }
    w.wait("the tenant's work to end", || w.run(&["admin", "tenant", "delete", "physics"]).code() == 0);
}

fn by_program(w: &World) {
    start(w);
    let first = id_token(w, "long", "ada");
    let me = accepted(w, &first);
    assert_eq!((text(&me, "account").as_str(), text(&me["authentication"], "subject").as_str()), ("daemon", "ada"), "{me}");
    assert_refused(w, &id_token(w, "long", "daemon"), "they have left the site");
    // Whoever can change the program could name any account: then the agent does not use it.
    let mut fresh = String::new();
    // Tokens of one person in one second are the same.
    w.wait("another token", || {
        fresh = id_token(w, "long", "ada");
        fresh != first
    });
    fs::set_permissions(program(), fs::Permissions::from_mode(0o777)).unwrap();
    assert_refused(w, &fresh, "others can write to it");
    fs::set_permissions(program(), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(text(&accepted(w, &fresh), "account"), "daemon");
    end_provider();
}

fn refused_tokens(w: &World) {
    let _home = home(w);
    assert_refused(w, &id_token(w, "other", "daemon"), "issued for another service");
    assert_refused(w, &id_token(w, "long", "root"), "names no account that may call from the network");
    // The provider knows people whom this machine does not.
    assert_refused(w, &id_token(w, "long", "nobody-knows-me"), "nobody-knows-me");
    let brief = id_token(w, "brief", "daemon");
    std::thread::sleep(Duration::from_secs(2));
    assert_refused(w, &brief, "has expired");
    let token = id_token(w, "long", "daemon");
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let other = if signature.starts_with('A') { "B" } else { "A" };
    assert_refused(w, &format!("{signed}.{other}{}", &signature[1..]), "signature is not valid");
    // {"alg":"none"}
    let (_, claims) = signed.split_once('.').unwrap();
    assert_refused(w, &format!("eyJhbGciOiJub25lIn0.{claims}."), "algorithm that is not accepted");
    assert_refused(w, "no-token", "neither one of this cluster");
}

fn away(w: &World) {
    let _home = home(w);
    let fresh = id_token(w, "long", "daemon");
    end_provider();
    // The agent has not seen this token before.
    let done = with_token(w, &fresh);
    assert_eq!(done.code(), 0, "{}", done.err());
    // The provider restarts with new keys. The agent asks for an unknown key once a minute at most.
    start(w);
    let me = accepted(w, &id_token(w, "long", "daemon"));
    assert_eq!(text(&me, "account"), "daemon");
    end_provider();
}
