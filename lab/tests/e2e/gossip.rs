//! Suspicion in gossip: an agent that stops for a moment is suspected and refutes; a killed one stays dead until it is
//! started; `lattice gossip watch` shows both as they happen.

use crate::harness::{Group, World};
use crate::telemetry::get;
use crate::watches::Watching;
use lattice_gossip::{Config, Core, Event, Identity, Key, Keyring, Output};
use lattice_lab::faults;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use serde_json::Value;
use std::fs::File;
use std::io::Read;
use std::net::{SocketAddr, UdpSocket};
use std::process::Stdio;

static GOSSIP: Group = Group::small("gossip");

/// Offset of the counter in a datagram's header (`gossip::seal`).
const COUNTER_AT: usize = 33;

pub fn trials() -> Vec<Trial> {
    vec![
        GOSSIP.test("facts_of_nodes_are_current_and_can_be_read_without_a_quorum", &[], facts),
        GOSSIP.test("hostile_datagrams_are_refused_and_counted_and_gossip_goes_on", &[], hostile),
        GOSSIP.test("one_that_stands_still_refutes_and_one_that_is_killed_is_down", &[], refutes_or_dies),
    ]
}

/// The events of n3 so far.
fn of_n3(watching: &Watching) -> Vec<String> {
    let lines = watching.lines();
    assert!(lines.iter().all(|l| l["at"].is_string()), "each line has its time: {lines:?}");
    lines.iter().filter(|l| text(l, "node") == "n3").map(|l| text(l, "event")).collect()
}

fn suspects(w: &World) -> Vec<Value> {
    w.lattice.json(&["gossip", "members", "--suspected"]).unwrap().as_array().unwrap().clone()
}

fn counter(w: &World, name: &str) -> u64 {
    w.lattice.json(&["gossip", "members", "--counters"]).unwrap()[name].as_u64().unwrap()
}

/// An agent's gossip view of a node: its state, and whether it has a hold.
fn gossiped(w: &World, at: &str, node: &str) -> (String, bool) {
    let members = w.at(at).json(&["gossip", "members"]).unwrap();
    let member = members.as_array().unwrap().iter().find(|m| text(m, "node") == node).cloned().unwrap_or_default();
    (text(&member, "state"), member["held"] == true)
}

fn facts(w: &World) {
    let ready = |held| ("Ready".to_owned(), held);
    w.wait("n2 to say that it is Ready", || gossiped(w, "n3", "n2") == ready(false));
    let watching = Watching::begin(w, "facts", &["gossip", "watch", "-o", "json"], None);
    w.wait("it to follow", || watching.err().contains("following gossip"));
    w.ok(&["node", "cordon", "n2", "--reason", "fan"]);
    w.wait("n2 to say that it is held", || gossiped(w, "n3", "n2") == ready(true));
    w.wait("n1 to tell it", || watching.lines().iter().any(|l| text(l, "node") == "n2" && text(l, "detail") == "Ready, held"));
    let job = w.submit(&["--", "/bin/sleep", "600"]);
    w.running(&job);
    let there = w.status(&job)["nodes"][0].as_str().unwrap().to_owned();
    let asked = |at: &str, node: &str| w.at(at).json(&["node", "status", node]).unwrap();
    let n2 = asked("n1", "n2");
    assert!(
        n2["fact"]["reported"]["holds"][0].as_str().unwrap().starts_with("cordon by root")
            && n2["fact"]["reported"]["cores"] == n2["cores"],
        "{n2}"
    );
    assert_eq!(n2["from_gossip"], false, "{n2}");

    faults::kill_member(&w.dir, 1).unwrap();
    let listed = w.run(&["node", "list", "-o", "json"]);
    assert!(listed.code() == 0 && listed.err().contains("gossip"), "{}{}", listed.out(), listed.err());
    let listed: Vec<Value> = serde_json::from_str(&listed.out()).unwrap();
    let shown: Vec<_> = listed.iter().map(|n| (text(n, "id"), text(n, "state"), n["from_gossip"] == true)).collect();
    assert_eq!(shown, ["n1", "n2", "n3"].map(|node| (node.to_owned(), "Ready".to_owned(), true)));
    for at in ["n1", "n2", "n3"] {
        let answer = asked(at, &there);
        let runs = answer["allocations"].to_string() + &answer["fact"]["now"]["running"].to_string();
        assert!(runs.contains(&job), "asked at {at}: {answer}");
    }
    // Every change is refused, and the message names the node.
    let verbs: [&[&str]; 16] = [
        &["cordon", "n2", "--reason", "x"],
        &["uncordon", "n2"],
        &["drain", "n2", "--reason", "x"],
        &["undrain", "n2"],
        &["quarantine", "n2", "--reason", "x"],
        &["release", "n2"],
        &["disable", "n2", "--reason", "x", "--yes"],
        &["enable", "n2"],
        &["fail", "n2", "--reason", "x"],
        &["repaired", "n2"],
        &["boot", "n2"],
        &["confirm-dead", "n2", "--reason", "x", "--yes"],
        &["history", "n2"],
        &["wipe", "n2", "--reason", "x", "--yes"],
        &["unwipe", "n2"],
        &["accept-drift", "n2", "--reason", "x"],
    ];
    let begun = verbs.map(|verb| {
        let mut command = w.lattice.command(&[&["node"], verb].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    });
    for (verb, child) in verbs.into_iter().zip(begun) {
        let done = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(5), "{verb:?}: {stderr}");
        assert!(stderr.contains("n2"), "{verb:?} says of whom: {stderr}");
    }
    // A node that cannot be reached is shown as it is known.
    faults::kill_node(&w.dir, "n2").unwrap();
    let gone = w.run(&["node", "status", "n2"]);
    assert!(gone.code() == 0 && gone.out().contains("Not reached"), "{}{}", gone.out(), gone.err());
    faults::start_node(&w.dir, "n2").unwrap();
    faults::start_member(&w.dir, 1).unwrap();
    w.wait("the quorum to answer", || w.run(&["node", "uncordon", "n2"]).code() == 0);
    w.wait("n2 to say that it is not held", || gossiped(w, "n3", "n2") == ready(false));
    w.ok(&["cancel", &job]);
    w.ended(&job);
}

/// How many datagrams an agent has refused, for one reason or for all, by its metrics.
fn refused(w: &World, node: &str, reason: &str) -> u64 {
    let (_, page) = get(&w.cluster().node(node).unwrap().metrics, "/metrics", "");
    let series = page.lines().filter(|line| line.starts_with("lattice_gossip_datagrams_refused_total{"));
    let of_reason = series.filter(|line| reason.is_empty() || line.contains(&format!("reason=\"{reason}\"")));
    of_reason.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64).sum()
}

/// The next datagram that another node sends to this address, as an observer of the network sees it.
fn captured(to: SocketAddr) -> Vec<u8> {
    // A raw socket gets a copy of every UDP datagram that this host receives, with its headers.
    let wire = socket(AddressFamily::Inet, SockType::Raw, SockFlag::SOCK_CLOEXEC, SockProtocol::Udp).unwrap();
    let mut wire = File::from(wire);
    let mut packet = vec![0; 65_536];
    loop {
        let bytes = wire.read(&mut packet).unwrap();
        let header = usize::from(packet[0] & 15) * 4;
        let port = u16::from_be_bytes([packet[header + 2], packet[header + 3]]);
        if port == to.port() && bytes > header + 8 {
            return packet[header + 8..bytes].to_vec();
        }
    }
}

/// A message of a stranger that has the name of this cluster.
fn stranger(to: SocketAddr, cluster: &str) -> Vec<u8> {
    let me = Identity {
        node: "stranger".parse().unwrap(),
        addr: "127.0.0.1:9".parse().unwrap(),
        mesh: "127.0.0.1:9".parse().unwrap(),
        incarnation: 1,
    };
    let mut core = Core::new(me, Config::lab(), &Keyring::configured(Key::from_bytes([7; 32])), cluster, 1);
    let mut out = Vec::new();
    core.handle(0, Event::Join(to), &mut out);
    let sent = out.into_iter().find_map(|output| if let Output::Datagram { bytes, .. } = output { Some(bytes) } else { None });
    sent.expect("it asks to join")
}

fn hostile(w: &World) {
    let to: SocketAddr = w.cluster().node("n1").unwrap().gossip.parse().unwrap();
    let ours = captured(to);
    // A counter that was not used yet.
    let mut altered = ours.clone();
    altered[COUNTER_AT] ^= 1;
    let cases = [
        ("replayed", ours.clone()),
        ("truncated", ours[..20].to_vec()),
        ("truncated", Vec::new()),
        ("not_sealed", altered.clone()),
        ("not_sealed", altered[..altered.len() - 1].to_vec()),
        ("version", [&[99], &ours[1..]].concat()),
        ("too_long", vec![1; 4_000]),
        ("foreign_cluster", stranger(to, "elsewhere")),
        ("not_sealed", stranger(to, "lab")),
    ];
    let from = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut sent = 0;
    for (reason, bytes) in cases {
        let before = refused(w, "n1", reason);
        for _ in 0..3 {
            sent += from.send_to(&bytes, to).map(|_| 1).unwrap();
        }
        w.wait(&format!("{} bytes to be refused as {reason}", bytes.len()), || refused(w, "n1", reason) >= before + 3);
    }
    // As many datagrams at once as the socket holds, of random length and content.
    let mut noise = File::open("/dev/urandom").unwrap();
    for _ in 0..6 {
        let before = refused(w, "n1", "");
        for length in (0..1400).step_by(90) {
            let mut bytes = vec![0; length];
            noise.read_exact(&mut bytes).unwrap();
            sent += from.send_to(&bytes, to).map(|_| 1).unwrap();
        }
        w.wait("noise to be refused", || refused(w, "n1", "") >= before + 16);
    }
    let status = w.lattice.json(&["node", "status"]).unwrap();
    assert!(
        status["refused"].as_object().unwrap().iter().any(|(what, count)| what.contains("gossip") && count.as_u64() >= Some(sent)),
        "{status}"
    );
    let members = w.lattice.json(&["gossip", "members"]).unwrap();
    let names: Vec<String> = members.as_array().unwrap().iter().map(|m| text(m, "node")).collect();
    assert_eq!(names, ["n1", "n2", "n3"], "nobody joined by it");
    // It still answers, sends and receives gossip.
    let held = |node: &str| ("Ready".to_owned(), node == "n2");
    w.ok(&["node", "cordon", "n2", "--reason", "fan"]);
    w.wait("n1 to hear of n2", || gossiped(w, "n1", "n2") == held("n2"));
    w.wait("n3 to hear of n1", || gossiped(w, "n3", "n1") == held("n1"));
    w.ok(&["node", "uncordon", "n2"]);
    w.completed(&w.submit(&["--nodes", "3", "--", "/bin/true"]));
}

fn refutes_or_dies(w: &World) {
    let alive =
        || w.lattice.json(&["gossip", "members"]).unwrap().as_array().unwrap().iter().filter(|m| text(m, "liveness") == "alive").count();
    w.wait("all three to be alive", || alive() == 3);
    assert_eq!(suspects(w), Vec::<Value>::new());
    let not_sealed = counter(w, "refused_not_sealed");
    let watching = Watching::begin(w, "gossip", &["gossip", "watch", "-o", "json"], None);
    w.wait("it to follow", || watching.err().contains("following gossip"));

    let n3 = w.cluster().node("n3").unwrap().daemon.process.clone().unwrap();
    assert!(n3.signal(Signal::SIGSTOP).unwrap());
    let mut shown = Vec::new();
    w.wait("n3 to be suspected", || {
        shown = suspects(w);
        !shown.is_empty()
    });
    assert!(n3.signal(Signal::SIGCONT).unwrap());
    assert_eq!((shown.len(), text(&shown[0], "node").as_str()), (1, "n3"), "{shown:?}");
    assert!(shown[0]["suspected_by"].as_u64().unwrap() <= 2 && shown[0]["for_ms"].as_u64().unwrap() < 10_000, "{shown:?}");
    w.wait("it to refute", || of_n3(&watching).contains(&"refuted".to_owned()));
    let so_far = of_n3(&watching);
    assert!(so_far[0] == "suspected" && !so_far.contains(&"down".to_owned()), "{so_far:?}");
    assert!(suspects(w).is_empty());

    faults::kill_node(&w.dir, "n3").unwrap();
    w.wait("n3 to be taken for dead", || of_n3(&watching).contains(&"down".to_owned()));
    assert!(of_n3(&watching).iter().filter(|what| *what == "suspected").count() == 2, "{:?}", of_n3(&watching));
    faults::start_node(&w.dir, "n3").unwrap();
    let next_life = ["restarted", "back", "state"];
    w.wait("its next life to be seen", || of_n3(&watching).windows(3).any(|states| states == next_life));
    assert!(counter(w, "bytes_out") > 1_000 && counter(w, "datagrams_in") > 10);
    assert_eq!(counter(w, "refused_not_sealed"), not_sealed);
}
