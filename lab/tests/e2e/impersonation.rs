//! An attacker who has the gossip key, but no node, sends messages in a node's name. The messages of that node still
//! reach the others, and the forged ones have no effect once the key is rotated.

use crate::harness::{Group, JOB, World};
use crate::telemetry::get;
use lattice_gossip::{Config, Core, Event, Identity, Key, Keyring, Output};
use lattice_lab::faults;
use lattice_lab::lattice::text;
use libtest_mimic::Trial;
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use ring::{digest, hkdf};
use serde_json::Value;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

static IMPERSONATION: Group = Group { theme: "impersonation", name: "impersonation", nodes: 3, quorum: 1, tweak: |_| {} };

const NODES: [&str; 3] = ["n1", "n2", "n3"];
/// The node that the attacker impersonates, and the nodes that receive the attacker's messages.
const VICTIM: &str = "n1";
const OTHERS: [&str; 2] = ["n2", "n3"];
/// The cluster's name, which is part of its seals.
const CLUSTER: &str = "lab";
/// How far ahead of the clock the attacker's second life of the victim is.
const HOUR_MS: u64 = 3_600_000;

pub fn trials() -> Vec<Trial> {
    vec![IMPERSONATION.test("a_holder_of_the_gossip_key_silences_no_node_and_is_refused_after_a_rotation", &[], impersonation)]
}

/// Has the site's key and a socket, and is not in the cluster.
struct Attacker {
    key: Vec<u8>,
    socket: UdpSocket,
}

impl Attacker {
    fn new(w: &World) -> Self {
        let hex = std::fs::read_to_string(w.cluster().dir.join("gossip.key")).unwrap();
        let hex = hex.trim();
        let key = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        Self { key, socket }
    }

    /// The shortest datagram that opens, 58 bytes: sealed in the name of this life of the victim, with a body of one
    /// byte. See `gossip/src/seal.rs`.
    fn shortest(&self, life: u64) -> Vec<u8> {
        let first_eight = |text: &str| digest::digest(&digest::SHA256, text.as_bytes()).as_ref()[..8].to_vec();
        let sender = [&first_eight(VICTIM)[..], &life.to_be_bytes(), &[7; 8]].concat();
        let mut datagram = [&[1], &first_eight(&format!("lattice cluster {CLUSTER}"))[..], &sender, &1u64.to_be_bytes()].concat();
        let root = hkdf::Salt::new(hkdf::HKDF_SHA256, b"lattice gossip 1").extract(&self.key);
        let info: [&[u8]; 3] = [b"lattice gossip 1", CLUSTER.as_bytes(), &sender];
        let subkey: UnboundKey = root.expand(&info, &CHACHA20_POLY1305).unwrap().into();
        let nonce = Nonce::assume_unique_for_key([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        let mut body = vec![0];
        LessSafeKey::new(subkey).seal_in_place_append_tag(nonce, Aad::from(&datagram), &mut body).unwrap();
        datagram.extend(body);
        assert_eq!(datagram.len(), 58);
        datagram
    }

    fn send_shortest(&self, w: &World, life: u64) {
        for node in OTHERS {
            self.socket.send_to(&self.shortest(life), gossip(w, node)).unwrap();
        }
    }

    /// Joins the others as this life of the victim, at another address, and leaves. Returns whether any node answered.
    fn impersonate(&self, w: &World, life: u64) -> bool {
        let me = Identity {
            node: VICTIM.parse().unwrap(),
            addr: self.socket.local_addr().unwrap(),
            mesh: self.socket.local_addr().unwrap(),
            incarnation: life,
        };
        let key = Key::from_bytes(self.key.clone().try_into().unwrap());
        let mut core = Core::new(me, Config::lab(), &Keyring::configured(key), CLUSTER, life);
        // The attacker's clock can have any value.
        core.set_clock(0, life);
        OTHERS.iter().for_each(|node| self.send_outputs(&mut core, Event::Join(gossip(w, node))));
        let (mut bytes, mut answered) = (vec![0; 2_000], 0);
        while answered < 4
            && let Ok((length, from)) = self.socket.recv_from(&mut bytes)
        {
            answered += 1;
            self.send_outputs(&mut core, Event::Datagram { from, bytes: &bytes[..length] });
        }
        self.send_outputs(&mut core, Event::Leave);
        answered > 0
    }

    fn send_outputs(&self, core: &mut Core, event: Event<'_>) {
        let mut out = Vec::new();
        core.handle(0, event, &mut out);
        for output in out {
            if let Output::Datagram { to, bytes } = output {
                self.socket.send_to(&bytes, to).unwrap();
            }
        }
    }
}

fn gossip(w: &World, node: &str) -> SocketAddr {
    w.cluster().node(node).unwrap().gossip.parse().unwrap()
}

/// The victim as a node's gossip shows it.
fn victim(w: &World, at: &str) -> Value {
    let members = w.at(at).json(&["gossip", "members"]).unwrap();
    members.as_array().unwrap().iter().find(|m| text(m, "node") == VICTIM).cloned().unwrap_or_default()
}

fn life(w: &World, at: &str) -> u64 {
    victim(w, at)["incarnation"].as_u64().unwrap_or(0)
}

/// Whether all nodes see the victim alive at its address.
fn is_well(w: &World) -> bool {
    let own = gossip(w, VICTIM).to_string();
    NODES.iter().all(|at| {
        let shown = victim(w, at);
        text(&shown, "liveness") == "alive" && text(&shown, "address") == own
    })
}

/// Whether all nodes, or none, show that the victim is contradicted.
fn all_show(w: &World, contradicted: bool) -> bool {
    NODES.iter().all(|at| victim(w, at)["contradicted_for_ms"].is_u64() == contradicted)
}

fn metric(w: &World, node: &str, name: &str, label: &str) -> u64 {
    let (_, page) = get(&w.cluster().node(node).unwrap().metrics, "/metrics", "");
    let mut lines = page.lines().filter(|line| line.starts_with(name) && line.contains(label));
    let line = lines.next().unwrap_or_else(|| panic!("{name} {label} is served"));
    line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64
}

fn refused(w: &World, node: &str, reason: &str) -> u64 {
    metric(w, node, "lattice_gossip_datagrams_refused_total{", &format!("reason=\"{reason}\""))
}

fn contradictions(w: &World) -> u64 {
    metric(w, VICTIM, "lattice_gossip_contradictions_total", "")
}

/// Checks that the victim's own messages reach all other nodes.
fn victim_reaches_all(w: &World) {
    for held in [true, false] {
        let verb: &[&str] = if held { &["node", "cordon", VICTIM, "--reason", "fan"] } else { &["node", "uncordon", VICTIM] };
        w.ok(verb);
        w.wait("the victim's message at the others", || OTHERS.iter().all(|at| victim(w, at)["held"] == held));
    }
}

fn restart(w: &World) {
    let before = life(w, "n2");
    faults::kill_node(&w.dir, VICTIM).unwrap();
    faults::start_node(&w.dir, VICTIM).unwrap();
    w.wait("the victim's next life in all views", || is_well(w) && OTHERS.iter().all(|at| life(w, at) > before));
    victim_reaches_all(w);
}

fn impersonation(w: &World) {
    let attacker = Attacker::new(w);
    w.wait("all to see the victim", || is_well(w));
    let own = life(w, "n2");
    let now = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap();

    // One life that no other can exceed, and one that is close enough to the clock to be accepted.
    attacker.send_shortest(w, u64::MAX);
    w.wait("the first to be refused", || OTHERS.iter().all(|at| refused(w, at, "life_ahead") == 1));
    attacker.send_shortest(w, now + HOUR_MS);
    w.wait("the second to be opened", || OTHERS.iter().all(|at| refused(w, at, "undecodable") == 1));
    victim_reaches_all(w);
    assert!(!attacker.impersonate(w, u64::MAX), "nobody answers a life that is ahead of the clock");
    victim_reaches_all(w);
    assert!(is_well(w) && OTHERS.iter().all(|at| life(w, at) == own) && all_show(w, false));
    assert_eq!(contradictions(w), 0);

    // All others take the attacker for the victim, and consider the victim dead when the attacker leaves.
    assert!(attacker.impersonate(w, now + HOUR_MS), "without an answer this test proves nothing");
    w.wait("the victim to notice it", || contradictions(w) > 0);
    w.wait("the victim to be alive again, in a higher life", || is_well(w) && NODES.iter().all(|at| life(w, at) > now + HOUR_MS));
    victim_reaches_all(w);
    w.wait("all to show the contradiction", || all_show(w, true));
    let shown = w.at("n3").run(&["gossip", "members"], JOB).unwrap();
    assert!(shown.err().contains("n1: for ") && shown.err().contains("it never published"), "{}", shown.err());
    let status = w.at(VICTIM).json(&["node", "status"]).unwrap();
    assert!(status["degraded"].to_string().contains("it never published"), "{status}");
    w.completed(&w.submit(&["--nodes", "3", "--", "/bin/true"]));

    // After a rotation, messages sealed with the old key have no effect.
    assert_eq!(w.run_for(&["gossip", "keys", "rotate"], JOB).code(), 0);
    w.wait("nobody to show the contradiction any more", || all_show(w, false));
    assert!(is_well(w));
    // From a new address: nodes may still send to the last one.
    let attacker = Attacker::new(w);
    attacker.send_shortest(w, now + 2 * HOUR_MS);
    assert!(!attacker.impersonate(w, now + 2 * HOUR_MS), "nobody opens what is sealed with the old key");
    w.wait("the attacker to be refused", || OTHERS.iter().all(|at| refused(w, at, "unknown_key") > 0));
    victim_reaches_all(w);
    restart(w);
    assert!(all_show(w, false));
    w.completed(&w.submit(&["--nodes", "3", "--", "/bin/true"]));
}
