//! Connections to members' ports that never finish their handshake: they must not keep agents or members out.

use crate::harness::{Group, JOB, World};
use lattice_lab::faults;
use libtest_mimic::Trial;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

static FLOOD: Group = Group { theme: "flood", name: "flood", nodes: 3, quorum: 3, tweak: |_| {} };

/// Connections to each port. Without a defence, this many kept an agent out for 24 seconds, and the quorum without a
/// leader for six.
const CONNECTIONS: usize = 420;
/// Half a record: the header of a handshake's first record and some of the 512 bytes that it announces.
const HALF_A_RECORD: [u8; 9] = [0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc];
/// How long an agent may take to get its session while members are flooded.
const SESSION_MAX: Duration = Duration::from_secs(10);
/// Allowed for one more round of votes, which a split vote may cause in any election: twice the lab's `election_ms`.
const ROUND_MAX: Duration = Duration::from_millis(600);

pub fn trials() -> Vec<Trial> {
    vec![
        FLOOD.test("unfinished_handshakes_keep_no_agent_out", &[], agents),
        FLOOD.test("unfinished_handshakes_delay_no_election", &[], elections),
        FLOOD.test("a_member_listens_where_it_is_reached_and_nowhere_else", &[], listens),
    ]
}

/// Holds connections to these ports until it is dropped: each sends half a record, and is replaced when the member
/// closes it.
struct Flood {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    opened: Arc<AtomicU64>,
}

impl Flood {
    fn begin(w: &World, targets: &[SocketAddr]) -> Self {
        let (stop, opened) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads = targets.iter().map(|target| {
            let (target, stop, opened) = (*target, Arc::clone(&stop), Arc::clone(&opened));
            std::thread::spawn(move || flood(target, &stop, &opened))
        });
        let flood = Self { threads: threads.collect(), stop, opened };
        w.wait("all connections to be made", || flood.opened.load(Ordering::Relaxed) >= (CONNECTIONS * targets.len()) as u64);
        flood
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ended = thread.join();
        }
    }
}

fn flood(target: SocketAddr, stop: &AtomicBool, opened: &AtomicU64) {
    let mut held: Vec<Option<TcpStream>> = std::iter::repeat_with(|| None).take(CONNECTIONS).collect();
    while !stop.load(Ordering::Relaxed) {
        for one in &mut held {
            let is_open = one.as_ref().is_some_and(|stream| !has_ended(stream));
            if !is_open && !stop.load(Ordering::Relaxed) {
                *one = half_a_handshake(target).ok();
                opened.fetch_add(one.is_some().into(), Ordering::Relaxed);
            }
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn half_a_handshake(target: SocketAddr) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&target, Duration::from_secs(1))?;
    stream.write_all(&HALF_A_RECORD)?;
    stream.set_nonblocking(true)?;
    Ok(stream)
}

fn has_ended(stream: &TcpStream) -> bool {
    let mut byte = [0];
    match stream.peek(&mut byte) {
        Ok(read) => read == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}

fn ports(w: &World) -> Vec<SocketAddr> {
    let members = w.cluster().members;
    members.iter().flat_map(|m| [&m.service, &m.raft]).map(|address| address.parse().unwrap()).collect()
}

fn agents(w: &World) {
    let _flood = Flood::begin(w, &ports(w));
    for node in ["n2", "n3"] {
        faults::kill_node(&w.dir, node).unwrap();
        let began = Instant::now();
        faults::start_node(&w.dir, node).unwrap();
        // Work reached this node, so it has a session.
        let id = w.submit(&["-w", node, "--", "/bin/true"]);
        w.completed(&id);
        assert!(began.elapsed() < SESSION_MAX, "{node} got work only after {:?}", began.elapsed());
    }
}

/// Time from killing the leader until another one leads and commits.
fn election(w: &World) -> Duration {
    let leader = w.leader();
    faults::kill_member(&w.dir, leader).unwrap();
    let began = Instant::now();
    let deadline = began + JOB;
    loop {
        let done = w.run(&["submit", "-o", "name", "--hold", "--", "/bin/true"]);
        if done.code() == 0 {
            break;
        }
        assert!(Instant::now() < deadline, "nobody leads: {}", done.err());
    }
    let took = began.elapsed();
    faults::start_member(&w.dir, leader).unwrap();
    w.wait("all members", || {
        let members = w.lattice.json(&["quorum", "members"]);
        members.is_ok_and(|all| {
            all.as_array().is_some_and(|all| all.len() == 3 && all.iter().all(|m| m["role"] == "leader" || m["role"] == "follower"))
        })
    });
    took
}

fn elections(w: &World) {
    let median = |mut all: Vec<Duration>| {
        all.sort_unstable();
        all[all.len() / 2]
    };
    let (mut quiet, mut flooded) = (Vec::new(), Vec::new());
    // Alternating, so that a machine that becomes busy affects both.
    for _ in 0..5 {
        quiet.push(election(w));
        let _flood = Flood::begin(w, &ports(w));
        flooded.push(election(w));
    }
    let (quiet, flooded) = (median(quiet), median(flooded));
    eprintln!("an election: {quiet:?} quiet, {flooded:?} flooded");
    assert!(flooded <= quiet.mul_f64(1.5) + ROUND_MAX, "{quiet:?} quiet, {flooded:?} flooded");
}

fn listens(w: &World) {
    for target in ports(w) {
        assert!(TcpStream::connect_timeout(&target, Duration::from_secs(1)).is_ok(), "{target} is served");
        let elsewhere = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 77), target.port());
        assert!(TcpStream::connect_timeout(&elsewhere.into(), Duration::from_secs(1)).is_err(), "{elsewhere} is not");
    }
}
