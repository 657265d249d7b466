//! Liveness probes. The test acts as the service: it answers for as long as it chooses.

use crate::harness::{Group, World};
use lattice_lab::faults;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

static PROBE: Group = Group::small("probe");

pub fn trials() -> Vec<Trial> {
    vec![
        PROBE.test("a_port_that_nobody_listens_on_fails_the_service", &[], refused),
        PROBE.test("an_http_service_lives_while_it_answers_and_fails_with_its_status", &[], http),
        PROBE.test("an_answer_that_does_not_come_is_a_failure", &[], silent),
        PROBE.test("probes_go_on_after_the_agent_was_killed", &[], killed),
        PROBE.test("a_dead_service_goes_back_into_the_queue_on_request", &[], requeued),
        PROBE.test("a_service_has_no_walltime_and_ends_by_its_probe_its_program_or_a_cancel", &[], services),
        PROBE.test("what_cannot_be_a_probe_is_refused", &[], nonsense),
    ]
}

/// A server that answers requests with the configured status (0: it does not answer), and counts them.
struct Server {
    port: u16,
    status: Arc<AtomicU32>,
    asked: Arc<AtomicU64>,
}

impl Server {
    fn start(status: u32) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self { port: listener.local_addr().unwrap().port(), status: Arc::new(status.into()), asked: Arc::default() };
        let (status, asked) = (Arc::clone(&server.status), Arc::clone(&server.asked));
        std::thread::spawn(move || {
            let mut silent = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                asked.fetch_add(1, Ordering::SeqCst);
                match status.load(Ordering::SeqCst) {
                    0 => silent.push(stream),
                    code => {
                        let _ = stream.read(&mut [0; 1024]);
                        let _ = write!(stream, "HTTP/1.1 {code} Said\r\nContent-Length: 0\r\n\r\n");
                    }
                }
            }
        });
        server
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn service(w: &World, probe: &str, more: &[&str]) -> String {
    w.submit(&[&["--liveness-probe", probe], more, &["--", "/bin/sleep", "60"]].concat())
}

fn reason(w: &World, id: &str) -> String {
    let ended = w.ended(id);
    assert_eq!(text(&ended, "state"), "Failed", "{ended}");
    text(&ended, "reason")
}

fn refused(w: &World) {
    let port = free_port();
    let id = service(w, &format!("tcp:{port},period=1s,delay=0,failures=2"), &[]);
    let reason = reason(w, &id);
    let want = format!("TCP connect to 127.0.0.1:{port} failed 2 times: connection refused");
    assert!(reason.starts_with("liveness probe on n") && reason.ends_with(&want), "{reason}");
    assert!(w.ok(&["explain", &id]).contains(&want));
    w.assert_nothing_left();
}

fn http(w: &World) {
    let server = Server::start(204);
    let id = service(w, &format!("http:{}/health?a=b,period=1s,delay=0", server.port), &[]);
    w.wait("four probes", || server.asked() >= 4);
    assert_eq!(text(&w.status(&id), "state"), "Running");
    server.status.store(302, Ordering::SeqCst);
    let before = server.asked();
    w.wait("two more", || server.asked() >= before + 2);
    assert_eq!(text(&w.status(&id), "state"), "Running", "a redirection is an answer");
    server.status.store(503, Ordering::SeqCst);
    let reason = reason(w, &id);
    assert!(reason.ends_with(&format!("HTTP GET 127.0.0.1:{}/health?a=b failed 3 times: status 503", server.port)), "{reason}");
    w.assert_nothing_left();
}

fn silent(w: &World) {
    let server = Server::start(0);
    let id = service(w, &format!("http:{},period=1s,delay=0,timeout=1s,failures=1", server.port), &[]);
    assert!(reason(w, &id).ends_with("/ failed: no answer within 1 s"), "{}", w.status(&id));
}

fn killed(w: &World) {
    let server = Server::start(200);
    let id = service(w, &format!("http:{}/,period=1s,delay=1s,failures=2", server.port), &[]);
    w.wait("a probe", || server.asked() >= 1);
    let node = w.status(&id)["nodes"][0].as_str().unwrap().to_owned();
    faults::kill_node(&w.dir, &node).unwrap();
    let before = server.asked();
    faults::start_node(&w.dir, &node).unwrap();
    w.wait("probes by the next agent", || server.asked() >= before + 2);
    assert_eq!(text(&w.status(&id), "state"), "Running");
    server.status.store(500, Ordering::SeqCst);
    assert!(reason(w, &id).ends_with("failed 2 times: status 500"), "{}", w.status(&id));
    w.assert_nothing_left();
}

fn requeued(w: &World) {
    let probe = format!("tcp:{},period=1s,delay=0,failures=1", free_port());
    let id = service(w, &probe, &["--requeue=always"]);
    w.wait("it to be begun again", || text(&w.status(&id), "requeue_count").parse::<u32>().unwrap() >= 1);
    // Three requeues are the maximum; then it has failed.
    assert!(reason(w, &id).contains("connection refused"));
    assert_eq!(text(&w.status(&id), "requeue_count"), "3");
    w.assert_nothing_left();
}

fn services(w: &World) {
    let server = Server::start(200);
    let probe = format!("http:{},period=1s,delay=0,failures=2", server.port);
    let script =
        w.script("serve.sh", &format!("#!/bin/sh\n#LATTICE service\n#LATTICE liveness-probe={probe} requeue=never\nexec sleep 600\n"));
    let id = w.submit(&[&script]);
    w.running(&id);
    let now = w.status(&id);
    assert!(now["walltime_seconds"].is_null(), "{now}");
    assert!(w.ok(&["status", &id]).contains("service") && w.ok(&["status"]).contains("service"));
    // The service and its probe continue when its agent restarts.
    let node = now["nodes"][0].as_str().unwrap().to_owned();
    faults::kill_node(&w.dir, &node).unwrap();
    let before = server.asked();
    faults::start_node(&w.dir, &node).unwrap();
    w.wait("probes by the next agent", || server.asked() >= before + 2);
    assert_eq!(text(&w.status(&id), "state"), "Running");
    server.status.store(500, Ordering::SeqCst);
    assert!(reason(w, &id).ends_with("failed 2 times: status 500"), "{}", w.status(&id));
    // By default a service is restarted after any failure, three times at most.
    let id = w.submit(&["--service", "--", "/bin/sh", "-c", "exit 3"]);
    let ended = w.ended(&id);
    assert_eq!(
        (text(&ended, "state").as_str(), text(&ended, "exit_code").as_str(), text(&ended, "requeue_count").as_str()),
        ("Failed", "3", "3")
    );
    // It ends when its program exits successfully; a cancel ends it too.
    let id = w.submit(&["--service", "--", "/bin/true"]);
    assert_eq!(text(&w.completed(&id), "requeue_count"), "0");
    let id = w.submit(&["--service", "--", "/bin/sleep", "600"]);
    w.running(&id);
    w.ok(&["cancel", &id]);
    assert_eq!(text(&w.ended(&id), "state"), "Cancelled");
    w.assert_nothing_left();
    let done = w.run(&["submit", "--service", "--walltime", "1h", "--", "/bin/true"]);
    assert!(done.code() == 2 && done.err().contains("--walltime"), "{}", done.err());
}

fn nonsense(w: &World) {
    for probe in ["udp:80", "tcp:0", "tcp:65536", "tcp:80/path", "http:80/a b", "tcp:80,period=2d", "tcp:80,often=1"] {
        let done = w.run_for(&["submit", "--liveness-probe", probe, "--", "/bin/true"], Duration::from_secs(10));
        assert_eq!(done.code(), 2, "{probe}: {}", done.err());
        assert!(done.err().contains("probe"), "{probe}: {}", done.err());
    }
}
