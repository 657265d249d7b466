//! Services: ports of running work, found by name while it runs and never afterwards.

use crate::harness::{Group, NOBODY, World};
use lattice_lab::faults;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use std::net::{TcpListener, TcpStream};

static SERVICES: Group = Group::small("services");

pub fn trials() -> Vec<Trial> {
    vec![
        SERVICES.test("what_runs_is_found_by_its_name_also_from_within_other_work", &[], found),
        SERVICES.test("a_service_whose_probe_fails_is_found_no_longer", &[], probed),
        SERVICES.test("work_is_found_by_its_name_once_its_port_accepts_connections", &[], late),
    ]
}

fn endpoints(w: &World, name: &str) -> Vec<String> {
    let done = w.run(&["service", "lookup", name, "-o", "name"]);
    assert!([0, 3].contains(&done.code()), "{}", done.err());
    done.out().lines().map(str::to_owned).collect()
}

fn serve(w: &World, more: &[&str]) -> String {
    let id = w.submit(&[&["--service", "--cores", "1", "--tenant", "physics"], more, &["--", "/bin/sleep", "600"]].concat());
    w.running(&id);
    id
}

/// A port that accepts connections while this lives: the test plays the service, and listens where the work would.
fn listens() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Waits until exactly these endpoints are found under a name.
fn wait_endpoints(w: &World, name: &str, ports: &[u16]) {
    let mut want: Vec<String> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    want.sort_unstable();
    w.wait(&format!("{name} at {want:?}"), || {
        let mut there = endpoints(w, name);
        there.sort_unstable();
        there == want
    });
}

fn found(w: &World) {
    let ((_api, port), (_metrics, metrics), (_other, other)) = (listens(), listens(), listens());
    let first = serve(w, &["--expose", &format!("api:{port}/http"), "--expose", &format!("metrics:{metrics}")]);
    let second = serve(w, &["--expose", &format!("api:{other}"), "--nodes", "2"]);
    wait_endpoints(w, "api", &[port, other, other]);
    wait_endpoints(w, "metrics", &[metrics]);
    drop(TcpStream::connect(format!("127.0.0.1:{port}")).unwrap());
    let found = w.lattice.json(&["service", "lookup", "api"]).unwrap();
    let of_first = found.as_array().unwrap().iter().find(|e| e["allocation"] == first.as_str()).unwrap().clone();
    let node = w.status(&first)["nodes"][0].clone();
    assert_eq!((&of_first["protocol"], &of_first["tenant"], &of_first["node"]), (&"http".into(), &"physics".into(), &node), "{of_first}");
    let listed = w.ok(&["service", "list"]);
    assert!(listed.contains("api") && listed.contains("metrics") && listed.contains("physics"), "{listed}");
    assert!(w.ok(&["status", &first]).contains(&format!("api:{port}/http, metrics:{metrics}/tcp")));
    // Users see the services of their own tenants, or of the one that they name.
    assert_eq!(w.run_as(NOBODY, &["service", "lookup", "api"]).code(), 3);
    let of_other = w.run_as(NOBODY, &["service", "lookup", "metrics", "--tenant", "physics", "-o", "name"]);
    assert_eq!(of_other.out().trim(), format!("127.0.0.1:{metrics}"));
    // Work sees the services of its own tenant, or, as its owner, of the one that it names.
    let path = format!("PATH={}:/usr/bin:/bin", w.dir.join("bin").display());
    let ask = "lattice service lookup metrics -o name; echo code $?; lattice service list --tenant physics; echo other $?";
    let asked = |tenant: &str| w.submit(&["--cores", "1", "--tenant", tenant, "--env", &path, "--", "sh", "-c", ask]);
    let (inside, outside) = (asked("physics"), asked("chemistry"));
    for id in [&inside, &outside] {
        w.completed(id);
    }
    let log = w.log(&inside);
    assert!(log.contains(&format!("127.0.0.1:{metrics}\ncode 0")) && log.contains("other 0"), "{log}");
    let log = w.log(&outside);
    assert!(log.contains("code 3") && log.contains("other 0") && log.contains("physics"), "{log}");
    // When an allocation ends its endpoints are removed at once.
    w.ok(&["cancel", &second]);
    assert_eq!(endpoints(w, "api"), [format!("127.0.0.1:{port}")]);
    w.ok(&["cancel", &first]);
    let gone = w.run(&["service", "lookup", "api"]);
    assert!(gone.code() == 3 && gone.err().contains("hint: "), "{}", gone.err());
    let refused = w.run(&["submit", "--expose", "api:http", "--", "/bin/true"]);
    assert!(refused.code() == 2 && refused.err().contains("api:8080/http"), "{}", refused.err());
}

fn probed(w: &World) {
    let (listener, port) = listens();
    let probe = format!("tcp:{port},period=1s,delay=0,failures=2");
    let id = serve(w, &["--name", "inference", "--expose", &port.to_string(), "--liveness-probe", &probe, "--requeue=never"]);
    // Without a name the endpoint has the allocation's.
    wait_endpoints(w, "inference", &[port]);
    drop(listener);
    let ended = w.ended(&id);
    assert_eq!(text(&ended, "state"), "Failed", "{ended}");
    assert_eq!(endpoints(w, "inference"), [""; 0]);
    assert_eq!(w.lattice.json(&["service", "list"]).unwrap().as_array().map(Vec::len), Some(0));
}

fn late(w: &World) {
    let (closed, port) = listens();
    drop(closed);
    let id = serve(w, &["--expose", &format!("late:{port}/http"), "--expose", "stream:9/udp"]);
    // Nothing shows whether a port of UDP is served: it is listed at once.
    wait_endpoints(w, "stream", &[9]);
    let node = w.status(&id)["nodes"][0].as_str().unwrap().to_owned();
    let awaited = format!("not listed as a service yet: port {port} at 127.0.0.1: connection refused");
    w.wait("the awaited port to be shown", || w.at(&node).json(&["node", "status"]).is_ok_and(|now| now.to_string().contains(&awaited)));
    assert!(w.ok(&["explain", &id]).contains(&awaited));
    assert_eq!(w.run(&["service", "lookup", "late"]).code(), 3);
    // An agent that dies around its report loses no port.
    faults::kill_node(&w.dir, &node).unwrap();
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    for point in ["ports-report-unsent", "ports-report-sent"] {
        faults::begin_node(&w.dir, &node, &[], &[("LATTICE_FAILPOINT", point)]).unwrap();
        w.wait(&format!("the agent to come to {point}"), || !w.cluster().node(&node).unwrap().daemon.alive());
    }
    faults::start_node(&w.dir, &node).unwrap();
    wait_endpoints(w, "late", &[port]);
    wait_endpoints(w, "stream", &[9]);
    // Only a liveness probe checks whether the service continues to accept connections.
    drop(listener);
    faults::kill_node(&w.dir, &node).unwrap();
    faults::start_node(&w.dir, &node).unwrap();
    w.wait("the port to be awaited by the next agent", || {
        w.at(&node).json(&["node", "status"]).is_ok_and(|now| now.to_string().contains(&awaited))
    });
    assert_eq!(endpoints(w, "late"), [format!("127.0.0.1:{port}")]);
    w.ok(&["cancel", &id]);
    assert_eq!((endpoints(w, "late"), endpoints(w, "stream")), (vec![], vec![]));
    w.ended(&id);
    w.assert_nothing_left();
}
