//! The API on the network: TLS, who may call, limits, access log.

use crate::harness::{DAEMON, Group, JOB, Need, World, configure};
use crate::telemetry::get;
use lattice_lab::faults;
use lattice_lab::lattice::text;
use lattice_lab::process;
use libtest_mimic::Trial;
use serde_json::Value;
use std::io::Read;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// With an access log of all requests.
static SERVED: Group = Group {
    theme: "network_api",
    name: "network_api",
    nodes: 2,
    quorum: 1,
    tweak: |o| {
        o.network_api = true;
        "api: {origins: [\"https://portal.example.org\"], access_log: \"{run}/access.log\", access_log_read_sample: 1.0}\n"
            .clone_into(&mut o.agent_lines);
    },
};
/// With limits that a test reaches.
static LIMITED: Group = Group {
    theme: "network_api",
    name: "network_api_limits",
    nodes: 1,
    quorum: 1,
    tweak: |o| {
        o.network_api = true;
        "api: {limits: {requests_per_second: 1, burst: 8, submissions_per_minute: 2}}\n".clone_into(&mut o.agent_lines);
    },
};
/// With a limit of tenants that a test reaches.
static LIMITED_TENANTS: Group = Group {
    theme: "network_api",
    name: "network_api_tenants",
    nodes: 1,
    quorum: 1,
    tweak: |o| {
        o.network_api = true;
        "api: {limits: {tenant_requests_per_second: 1, tenant_burst: 4}}\n".clone_into(&mut o.agent_lines);
    },
};

pub fn trials() -> Vec<Trial> {
    vec![
        SERVED.test("three_pages_need_no_token_and_nothing_else_answers_without_one", &[Need::Curl], public),
        SERVED.test("a_token_calls_rest_and_grpc_at_one_port", &[Need::Curl], one_port),
        SERVED.test("what_no_request_needs_is_refused_before_it_is_read", &[Need::Curl], shapes),
        SERVED.test("pages_of_other_origins_may_not_call", &[Need::Curl], origins),
        SERVED.test("a_token_of_few_scopes_is_refused_and_the_denial_is_on_record", &[Need::Curl], scopes),
        SERVED.test("streams_end_when_their_token_is_revoked", &[Need::Curl], revoked),
        SERVED.test("without_the_quorum_it_is_not_healthy_and_no_token_is_refused_for_good", &[Need::Curl], quorum_away),
        SERVED.test("a_connection_that_says_nothing_is_closed_and_one_address_gets_so_many", &[], connections),
        SERVED.test("the_access_log_and_the_metrics_show_who_called_and_no_token", &[Need::Curl], watched),
        SERVED.test("changed_certificates_are_used_and_clients_may_have_to_present_one", &[Need::Curl], certificates),
        SERVED.test("a_service_account_calls_by_its_certificate_until_that_is_revoked", &[Need::Curl], service_accounts),
        LIMITED.test("requests_submissions_and_wrong_tokens_have_rates", &[Need::Curl], rates),
        LIMITED_TENANTS.test("the_accounts_of_a_tenant_share_a_rate_of_requests", &[Need::Curl], tenant_rates),
    ]
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
}

/// Calls n1 with curl, which trusts the authority in this file. The error is curl's exit code.
fn curl_trusting(w: &World, ca: &Path, path: &str, args: &[&str]) -> Result<Answer, i32> {
    let mut command = Command::new("curl");
    command.args(["-sS", "-i", "-m", "60", "-H", "Expect:", "--cacert"]).arg(ca).args(args).arg(w.api_url("n1") + path);
    let done = process::run(&mut command, JOB).unwrap();
    if done.code() != 0 {
        return Err(done.code());
    }
    let answer = done.out();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    let status = head.split(' ').nth(1).and_then(|status| status.trim().parse().ok()).unwrap_or_else(|| panic!("{head}"));
    Ok(Answer { status, head: head.to_owned(), body: body.to_owned() })
}

fn curl(w: &World, path: &str, args: &[&str]) -> Answer {
    curl_trusting(w, &w.ca(), path, args).unwrap_or_else(|code| panic!("curl {args:?} {path} ended with {code}"))
}

/// A token for this account, for a day.
fn token(w: &World, account: &str, scopes: &str) -> String {
    let args = ["admin", "token", "issue", "network-api", "--account", account, "--scopes", scopes, "--days", "1"];
    text(&w.lattice.json(&args).unwrap_or_else(|e| panic!("{e:#}")), "token")
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}")
}

fn public(w: &World) {
    for version in ["--http1.1", "--http2"] {
        let health = curl(w, "/healthz", &[version]);
        assert_eq!((health.status, text(&health.json(), "status")), (200, "ok".to_owned()), "{version}");
    }
    let discovery = curl(w, "/api/v1/auth/discovery", &[]).json();
    let expected = serde_json::json!({"issuer": null, "client_id": null, "scopes": [], "token_login": true, "cluster": "lab"});
    assert_eq!(discovery, expected);
    assert_eq!(text(&curl(w, "/api/v1/openapi.json", &[]).json(), "openapi").split('.').next(), Some("3"));

    let wrong = bearer(&format!("lattice_0000000000000000_{}", "0".repeat(64)));
    for args in [
        &[][..],
        &["-H", "Authorization: Basic cm9vdDpyb290"],
        &["-H", "Authorization: Bearer "],
        &["-H", "Cookie: token=a"],
        &["-H", &wrong],
        &["-H", "Authorization: Bearer eyJhbGciOiJub25lIn0.e30."],
    ] {
        for path in ["/api/v1/allocations", "/api/v1/nothing", "/", "/metrics", "/healthz/", "/api/v1/allocations?token=a"] {
            let refused = curl(w, path, args);
            assert_eq!((refused.status, refused.json()["status"].as_u64()), (401, Some(401)), "{args:?} {path}");
            assert!(refused.header("www-authenticate").is_some_and(|header| header.starts_with("Bearer ")), "{}", refused.head);
            assert_eq!(refused.header("content-type"), Some("application/problem+json"));
        }
    }
    assert_eq!(curl(w, "/healthz", &["-X", "POST"]).status, 401);
    let grpc = curl(w, "/lattice.v1.AllocationService/Get", &["--http2", "-X", "POST", "-H", "content-type: application/grpc"]);
    assert_eq!((grpc.status, grpc.header("grpc-status")), (200, Some("16")), "{}", grpc.head);
}

fn one_port(w: &World) {
    let token = token(w, "daemon", "read,work");
    for version in ["--http1.1", "--http2"] {
        let me = curl(w, "/api/v1/whoami", &[version, "-H", &bearer(&token)]);
        assert_eq!((me.status, text(&me.json(), "account")), (200, "daemon".to_owned()), "{}", me.body);
        assert_eq!(me.header("x-content-type-options"), Some("nosniff"));
    }
    // The CLI speaks gRPC.
    let mut command = Command::new(w.dir.join("bin/lattice"));
    command.args(["whoami", "-o", "json"]).env("LATTICE_ENDPOINT", w.api_url("n2")).env("LATTICE_CA", w.ca());
    let done = process::run(command.env("LATTICE_TOKEN", &token).env_remove("LATTICE_OPERATOR"), JOB).unwrap();
    assert_eq!(done.code(), 0, "{}", done.err());
    let me: Value = serde_json::from_str(&done.out()).unwrap();
    assert_eq!(text(&me, "account"), "daemon", "the process is root's, and the token another account's");
}

fn shapes(w: &World) {
    let token = token(w, "daemon", "read,work");
    let authorization = bearer(&token);
    // curl would send a gigabyte.
    let began = Instant::now();
    let large = curl(w, "/api/v1/allocations", &["--http1.1", "-X", "POST", "-H", &authorization, "-H", "Content-Length: 1073741824"]);
    assert!(large.status == 413 && began.elapsed() < Duration::from_secs(10), "{} after {:?}", large.head, began.elapsed());
    let head = format!("X-Long: {}", "a".repeat(20 << 10));
    let long = curl_trusting(w, &w.ca(), "/api/v1/whoami", &["--http1.1", "-H", &authorization, "-H", &head]);
    assert!(long.is_err() || long.is_ok_and(|answer| answer.status == 431), "a head of 20 KiB");
    let grpc = curl(w, "/lattice.v1.AllocationService/Get", &["--http1.1", "-X", "POST", "-H", &authorization]);
    assert!(grpc.status == 400 && grpc.body.contains("gRPC needs HTTP/2"), "{}", grpc.body);
    let twice = curl(w, "/api/v1/whoami", &["-H", &authorization, "-H", &authorization]);
    assert_eq!(twice.status, 401, "{}", twice.body);
}

fn origins(w: &World) {
    let authorization = bearer(&token(w, "daemon", "read"));
    let of = |origin: &str, more: &[&str]| {
        let origin = format!("Origin: {origin}");
        curl(w, "/api/v1/whoami", &[&["-H", authorization.as_str(), "-H", origin.as_str()], more].concat())
    };
    for origin in ["https://evil.example.org", "null", "http://portal.example.org"] {
        assert_eq!(of(origin, &[]).status, 403, "{origin}");
    }
    let listed = of("https://portal.example.org", &[]);
    assert_eq!((listed.status, listed.header("access-control-allow-origin")), (200, Some("https://portal.example.org")));
    let asked = of("https://portal.example.org", &["-X", "OPTIONS", "-H", "Access-Control-Request-Method: GET"]);
    assert_eq!((asked.status, asked.body.as_str()), (204, ""), "{}", asked.head);
    assert_eq!(curl(w, "/healthz", &["-H", "Origin: https://evil.example.org"]).status, 403);
}

fn scopes(w: &World) {
    let authorization = bearer(&token(w, "daemon", "read"));
    let call = ["--http2", "-H", authorization.as_str(), "-H", "Content-Type: application/grpc", "-d", ""];
    let id = authorization.split('_').nth(1).unwrap();
    let refused = curl(w, "/lattice.v1.AllocationService/Submit", &call);
    assert_eq!((refused.status, refused.header("grpc-status")), (200, Some("7")), "{}", refused.head);
    assert!(refused.header("grpc-message").is_some_and(|text| text.contains("needs%20the%20scope%20work")), "{}", refused.head);
    w.wait("the denial in the audit log", || {
        let records = w.lattice.json(&["audit", "query", "--type", "access-denied"]).unwrap_or_else(|e| panic!("{e:#}"));
        let by_token = format!("by token {id}: ");
        let is_ours = |record: &Value| text(record, "actor").starts_with("daemon") && text(record, "detail").contains(&by_token);
        records.as_array().unwrap().iter().any(is_ours)
    });
    // No token is issued for root.
    let root = w.run(&["admin", "token", "issue", "x", "--account", "root", "--scopes", "read", "--days", "1"]);
    assert_ne!(root.code(), 0, "{}", root.out());
}

/// Streams by gRPC and by REST.
fn revoked(w: &World) {
    let token = token(w, "daemon", "read");
    let done = w.run_as(DAEMON, &["submit", "-o", "name", "--", "/bin/sleep", "600"]);
    assert_eq!(done.code(), 0, "{}", done.err());
    let work = done.out().trim().to_owned();
    w.running(&work);
    let mut logs = Command::new(w.dir.join("bin/lattice"));
    logs.args(["logs", "-f", &work]).env("LATTICE_ENDPOINT", w.api_url("n1")).env("LATTICE_CA", w.ca());
    logs.env("LATTICE_TOKEN", &token).env_remove("LATTICE_OPERATOR");
    let mut watch = Command::new("curl");
    watch.args(["-sS", "-N", "-m", "100", "-H", &bearer(&token), "--cacert"]).arg(w.ca());
    watch.arg(w.api_url("n1") + &format!("/api/v1/allocations/{work}/watch"));
    let mut followers: Vec<Child> = [&mut logs, &mut watch]
        .map(|command| command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
        .into();
    let metrics = w.cluster().node("n1").unwrap().metrics.clone();
    w.wait("both streams", || {
        let (_, page) = get(&metrics, "/metrics", "");
        let open: Vec<&str> =
            page.lines().filter(|line| line.starts_with("lattice_api_active_streams{") && !line.ends_with(" 0")).collect();
        ["\"logs\"", "\"watch\""].iter().all(|kind| open.iter().any(|line| line.contains(kind)))
    });
    w.ok(&["admin", "token", "revoke", token.split('_').nth(1).unwrap()]);
    let since = Instant::now();
    w.wait("both streams to end", || followers.iter_mut().all(|child| child.try_wait().unwrap().is_some()));
    assert!(since.elapsed() < Duration::from_secs(10 + 5), "after {:?}", since.elapsed());
    for child in followers {
        let done = child.wait_with_output().unwrap();
        let shown = [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(shown.contains("revoked") && !shown.contains(&token), "{shown}");
    }
    w.ok(&["cancel", &work]);
}

fn quorum_away(w: &World) {
    let authorization = bearer(&token(w, "daemon", "read"));
    faults::stop_member(&w.dir, 1).unwrap();
    w.wait("an agent without a session", || curl(w, "/healthz", &[]).status == 503);
    assert_eq!(curl(w, "/healthz", &[]).json(), serde_json::json!({"status": "degraded"}), "the cause is for operators");
    // n1 has not cached this token yet.
    let unknown = curl(w, "/api/v1/whoami", &["-H", &authorization]);
    assert!(unknown.status == 503 && unknown.header("retry-after").is_some(), "{}{}", unknown.head, unknown.body);
    faults::cont_member(&w.dir, 1).unwrap();
    w.wait("the session", || curl(w, "/healthz", &[]).status == 200);
    assert_eq!(curl(w, "/api/v1/whoami", &["-H", &authorization]).status, 200);
}

fn connections(w: &World) {
    let address = w.api_url("n2").trim_start_matches("https://").to_owned();
    let connect = || {
        let stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    };
    // Closed: an end or a reset.
    let is_closed = |stream: &mut TcpStream| !matches!(stream.read(&mut [0; 1]), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock);
    let began = Instant::now();
    let mut silent: Vec<TcpStream> = (0..64).map(|_| connect()).collect();
    let mut last = connect();
    assert!(is_closed(&mut last) && began.elapsed() < Duration::from_secs(4), "the 65th of one address, after {:?}", began.elapsed());
    assert!(is_closed(&mut silent[0]), "no handshake");
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(4) && took < Duration::from_secs(15), "{took:?}");
    drop(silent);
    let at_n2 = || {
        let mut command = Command::new("curl");
        command.args(["-sS", "-o", "/dev/null", "--cacert"]).arg(w.ca()).arg(w.api_url("n2") + "/healthz");
        process::run(&mut command, JOB).unwrap().code() == 0
    };
    w.wait("places to be free again", at_n2);
}

fn watched(w: &World) {
    let token = token(w, "daemon", "read");
    let secret = token.rsplit('_').next().unwrap().to_owned();
    let id = token.split('_').nth(1).unwrap().to_owned();
    assert_eq!(curl(w, "/api/v1/whoami", &["-H", &bearer(&token)]).status, 200);
    let wrong = bearer(&format!("lattice_{id}_{}", "0".repeat(64)));
    assert_eq!(curl(w, "/api/v1/whoami", &["-X", "DELETE", "-H", &wrong]).status, 401);
    let file = w.cluster().run_dir.join("n1/access.log");
    let lines = || -> Vec<Value> {
        let log = std::fs::read_to_string(&file).unwrap_or_default();
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let is_ours = |line: &Value| line["token"] == id.as_str() && line["path"] == "/api/v1/whoami";
    w.wait("the request in the access log", || lines().iter().any(is_ours));
    let line = lines().into_iter().find(is_ours).unwrap();
    assert_eq!([text(&line, "account"), text(&line, "method"), text(&line, "address")], ["daemon", "GET", "127.0.0.1"]);
    assert!(line["status"] == 200 && line["bytes"].as_u64() > Some(0), "{line}");
    w.wait("the refused one", || lines().iter().any(|line| line["method"] == "DELETE" && line["status"] == 401));
    let node = w.cluster().nodes.into_iter().find(|node| node.id == "n1").unwrap();
    for name in [&file, &node.daemon.log] {
        assert!(!std::fs::read_to_string(name).unwrap().contains(&secret), "{} has a token", name.display());
    }
    let (_, page) = get(&node.metrics, "/metrics", "");
    let has = |start: &str, piece: &str| page.lines().any(|line| line.starts_with(start) && line.contains(piece));
    assert!(has("lattice_api_authentications_total{", "result=\"ok\"") && has("lattice_api_network_connections{", ""), "{page}");
    assert!(has("lattice_api_authentications_total{", "kind=\"token\"") && has("lattice_api_rate_limited_total{", "kind=\"requests\""));
}

/// Restores n1's configuration, whatever the result of the test.
struct Restored<'a>(&'a World, String);

impl Drop for Restored<'_> {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0.dir.join("n1/agent.yaml"), &self.1);
        let _ = faults::restart_node(&self.0.dir, "n1");
    }
}

fn certificates(w: &World) {
    let (dir, site) = (w.dir.join("site-ca"), w.dir.join("site"));
    let text_of = |path: &Path| path.to_string_lossy().into_owned();
    let (dir_text, site_text) = (text_of(&dir), text_of(&site));
    w.ok(&["quorum", "ca", "init", "--dir", &dir_text]);
    let issue = |name: &str, role: &str| {
        let args = ["quorum", "ca", "issue", "--dir", &dir_text, "--name", name, "--role", role, "--out", &site_text];
        w.ok(&[&args[..], &["--host", "127.0.0.1"]].concat());
    };
    issue("web", "api");
    let (cert, key, other_ca) = (site.join("web.crt"), site.join("web.key"), dir.join("ca.crt"));
    let settings = format!("api: {{tls_cert: {cert:?}, tls_key: {key:?}}}\n");
    let _restored = Restored(w, configure(&w.dir, "n1", &settings));
    faults::restart_node(&w.dir, "n1").unwrap();
    let health = |ca: &Path| curl_trusting(w, ca, "/healthz", &[]).map(|answer| answer.status);
    // Both authorities have the same name: curl does not always say that one is unknown.
    w.wait("the site's certificate", || health(&other_ca) == Ok(200));
    assert!(health(&w.ca()).is_err(), "the agent's own certificate is not used");

    // Another certificate in its place, without a restart; then one that fits no key.
    let own = |suffix: &str| w.dir.join("n1").join(format!("n1.{suffix}"));
    let put = |from: PathBuf, to: &Path| assert!(std::fs::copy(&from, to).unwrap_or(0) > 0, "{} to {}", from.display(), to.display());
    put(own("key"), &key);
    put(own("crt"), &cert);
    w.wait("the changed certificate", || health(&w.ca()) == Ok(200));
    std::fs::write(&cert, "no certificate").unwrap();
    w.wait("a problem of the node", || w.run(&["node", "status"]).out().contains("certificate of the API on the network"));
    assert_eq!(health(&w.ca()), Ok(200), "the present one stays");
    put(own("crt"), &cert);

    configure(&w.dir, "n1", &format!("api: {{client_ca: {other_ca:?}}}\n"));
    put(own("key"), &key);
    faults::restart_node(&w.dir, "n1").unwrap();
    assert!(health(&w.ca()).is_err(), "without a client's certificate");
    let (client_cert, client_key) = (text_of(&site.join("client.crt")), text_of(&site.join("client.key")));
    issue("client", "node");
    let presenting = |path: &str| curl(w, path, &["--cert", &client_cert, "--key", &client_key]).status;
    w.wait("the client's certificate", || presenting("/healthz") == 200);
    assert_eq!(presenting("/api/v1/whoami"), 401, "a token is needed besides");
}

fn service_accounts(w: &World) {
    let text_of = |path: PathBuf| path.to_string_lossy().into_owned();
    let (authority, pem) = (text_of(w.dir.join("ca")), text_of(w.dir.join("daemon.pem")));
    let _ = std::fs::remove_file(&pem);
    w.ok(&["quorum", "ca", "service", "--dir", &authority, "--account", "daemon", "--out", &pem]);
    let refused = w.run(&["quorum", "ca", "service", "--dir", &authority, "--account", "root", "--out", &pem]);
    assert!(refused.code() != 0 && refused.err().contains("root may not call from the network"), "{}", refused.err());
    let presenting = |args: &[&str]| curl_trusting(w, &w.ca(), "/api/v1/whoami", &[&["--cert", &pem], args].concat());

    // Without the setting, a certificate identifies nobody.
    assert_eq!(presenting(&[]).unwrap().status, 401);
    let _restored = Restored(w, configure(&w.dir, "n1", "api: {client_certificates: allowed}\n"));
    faults::restart_node(&w.dir, "n1").unwrap();
    w.wait("the service account", || presenting(&[]).is_ok_and(|answer| answer.status == 200));
    let me = presenting(&[]).unwrap().json();
    let proof = &me["authentication"];
    assert_eq!([text(&me, "account"), text(proof, "kind"), text(proof, "scopes")], ["daemon", "certificate", "read,work"], "{me}");
    assert_eq!(curl(w, "/api/v1/whoami", &[]).status, 401, "without a certificate and a token");
    let of_agent = [text_of(w.dir.join("n1/n1.crt")), text_of(w.dir.join("n1/n1.key"))];
    let by_agent = curl(w, "/api/v1/whoami", &["--cert", &of_agent[0], "--key", &of_agent[1]]);
    assert_eq!(by_agent.status, 401, "a machine is no account: {}", by_agent.body);

    // A token besides the certificate must be of the same account; its scopes apply.
    let (own, other) = (bearer(&token(w, "daemon", "read")), bearer(&token(w, "nobody", "read")));
    let with_own = presenting(&["-H", &own]).unwrap().json();
    assert_eq!(text(&with_own["authentication"], "scopes"), "read", "{with_own}");
    let with_other = presenting(&["-H", &other]).unwrap();
    assert!(with_other.status == 403 && with_other.body.contains("the token is for account nobody"), "{}", with_other.body);

    let lattice = |args: &[&str]| {
        let mut command = Command::new(w.dir.join("bin/lattice"));
        command.args(args).env("LATTICE_ENDPOINT", w.api_url("n1")).env("LATTICE_CA", w.ca()).env("LATTICE_CERTIFICATE", &pem);
        for variable in ["HOME", "LATTICE_TOKEN", "LATTICE_OPERATOR", "XDG_CONFIG_HOME", "XDG_STATE_HOME"] {
            command.env_remove(variable);
        }
        process::run(&mut command, JOB).unwrap()
    };
    let submitted = lattice(&["submit", "-o", "name", "-D", "/", "--", "/bin/true"]);
    assert_eq!(submitted.code(), 0, "{}", submitted.err());
    assert_eq!(text(&w.completed(submitted.out().trim()), "owner"), "daemon");
    let denied = lattice(&["admin", "role", "grant", "operator", "daemon"]);
    assert_eq!(denied.code(), 4, "{}", denied.err());

    configure(&w.dir, "n1", "api: {client_certificates: required}\n");
    faults::restart_node(&w.dir, "n1").unwrap();
    w.wait("the service account", || presenting(&[]).is_ok_and(|answer| answer.status == 200));
    assert!(curl_trusting(w, &w.ca(), "/healthz", &[]).is_err(), "without a certificate");
    let by_agent = curl(w, "/api/v1/whoami", &["--cert", &of_agent[0], "--key", &of_agent[1], "-H", &own]);
    assert_eq!(by_agent.status, 403, "{}", by_agent.body);

    w.ok(&["quorum", "ca", "revoke", "account-daemon"]);
    w.wait("the revocation", || presenting(&[]).is_ok_and(|answer| answer.status == 401));
    assert!(presenting(&[]).unwrap().body.contains("account-daemon is revoked"));
    assert!(lattice(&["whoami"]).err().contains("account-daemon is revoked"));
}

fn tenant_rates(w: &World) {
    w.ok(&["admin", "tenant", "create", "physics"]);
    for account in ["daemon", "nobody"] {
        w.ok(&["admin", "tenant", "member", "add", "physics", &format!("user:{account}")]);
    }
    let [one, other] = ["daemon", "nobody"].map(|account| bearer(&token(w, account, "read")));
    let whoami = |header: &str| curl(w, "/api/v1/whoami", &["-H", header]);
    let limited = |answer: &Answer| {
        let is_limited = answer.status == 429 && answer.body.contains("the accounts of tenant \\\"physics\\\" send too many requests");
        is_limited && answer.header("retry-after").is_some_and(|seconds| seconds.parse::<u64>().is_ok())
    };
    // One account uses up the rate of its tenant, so the other account is limited, too.
    w.wait("the limit of the tenant", || limited(&whoami(&one)));
    w.wait("the other account's limit", || {
        let _used = [whoami(&one), whoami(&one)];
        limited(&whoami(&other))
    });
    w.wait("the limit to end", || whoami(&other).status == 200);
    w.ok(&["admin", "tenant", "delete", "physics"]);
}

fn rates(w: &World) {
    let (mine, others) = (bearer(&token(w, "daemon", "read,work")), bearer(&token(w, "nobody", "read,work")));
    let whoami = |authorization: &str| curl(w, "/api/v1/whoami", &["-H", authorization]);
    let mut limited = None;
    w.wait("a limit of requests", || {
        let answer = whoami(&mine);
        let is_limited = answer.status == 429;
        limited = Some(answer);
        is_limited
    });
    let limited = limited.unwrap();
    assert_eq!(limited.header("retry-after"), Some("1"), "{}", limited.head);
    assert!(limited.body.contains("daemon sends too many requests: try again in 1 s"), "{}", limited.body);
    assert_eq!(whoami(&others).status, 200, "another account");

    // Submissions, however slowly: two a minute. Malformed ones count, too.
    std::thread::sleep(Duration::from_secs(4));
    let submit = || curl(w, "/api/v1/allocations", &["-H", &mine, "-H", "Content-Type: application/json", "-d", "{"]);
    let answers: Vec<Answer> = (0..3).map(|_| submit()).collect();
    assert_eq!(answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), [400, 400, 429], "{}", answers[2].body);
    assert!(answers[2].body.contains("daemon submits too often"), "{}", answers[2].body);

    // An address that sends wrong tokens is limited; a caller from there with a valid token is not.
    let wrong = bearer(&format!("lattice_0000000000000000_{}", "0".repeat(64)));
    let is_limited = || {
        let answer = whoami(&wrong);
        answer.status == 429 && answer.body.contains("too many wrong tokens")
    };
    w.wait("a limit of wrong tokens", is_limited);
    assert_eq!(whoami(&others).status, 200, "others at this address");
    w.wait("the limit to end", || whoami(&wrong).status == 401);
}
