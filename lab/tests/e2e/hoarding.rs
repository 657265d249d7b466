//! Resources that one user cannot take from others: the agent's memory, its answers, its metrics, its image cache. The
//! tests run the attacks.

use crate::full_disk::SmallDisk;
use crate::harness::{DAEMON, Group, JOB, NOBODY, Need, World};
use lattice_api::client::Client;
use lattice_api::v1::LocalStatusRequest;
use lattice_lab::lattice::text;
use lattice_lab::{faults, image, process};
use libtest_mimic::Trial;
use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

static HOARDING: Group = Group {
    theme: "hoarding",
    name: "hoarding",
    nodes: 1,
    quorum: 1,
    tweak: |o| "health: {period_seconds: 1}\n".clone_into(&mut o.agent_lines),
};
const NODE: &str = "n1";
const MIB: usize = 1 << 20;
/// Growth of the agent's memory under attack, in KiB: a release build begins with 35 MiB, and so stays below 100. (A
/// build with debug assertions begins with 85.)
const GAIN_KIB_MAX: u64 = 64 << 10;
/// Median time of other users' calls under attack, on a busy machine.
const CALL_MAX: Duration = Duration::from_millis(250);

pub fn trials() -> Vec<Trial> {
    vec![
        HOARDING.test("unfinished_messages_take_neither_the_agents_memory_nor_others_calls", &[], unfinished),
        HOARDING.test("a_connection_that_says_nothing_is_closed", &[], silent),
        HOARDING.test("metrics_are_served_beside_slow_connections", &[], slow_scrapes),
        HOARDING.test("a_key_that_others_may_read_is_refused", &[], open_keys),
        HOARDING.test("an_image_is_read_only_while_its_caller_waits_and_others_are_served", &[], digests),
        HOARDING.test("a_sparse_image_stays_sparse_in_the_cache", &[Need::Mounts], sparse),
        HOARDING.test("one_users_images_do_not_push_out_anothers", &[Need::Mounts], cache_share),
    ]
}

/// Runs `act` in a thread that the kernel treats as another user's: its connections are that user's.
fn acting_as<T: Send + 'static>(uid: u32, act: impl FnOnce() -> T + Send + 'static) -> std::thread::JoinHandle<T> {
    std::thread::spawn(move || {
        // SAFETY: takes integers, and acts on the calling thread alone, which ends with `act`. -1 leaves the real and
        // the saved id.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, -1, uid, -1) };
        assert_eq!(changed, 0, "{}", io::Error::last_os_error());
        act()
    })
}

fn connect_as(uid: u32, socket: &Path) -> UnixStream {
    let socket = socket.to_owned();
    acting_as(uid, move || UnixStream::connect(socket).unwrap()).join().unwrap()
}

fn agent(w: &World) -> i32 {
    w.cluster().node(NODE).unwrap().daemon.process.clone().unwrap().pid
}

/// An HTTP/2 client that begins calls and never finishes their messages.
struct Attacker {
    stream: UnixStream,
    input: Vec<u8>,
    output: Vec<u8>,
    window: i64,
    calls: Vec<UnfinishedCall>,
}

struct UnfinishedCall {
    id: u32,
    window: i64,
    message_bytes: usize,
    /// Bytes of the message and its header that were sent; the last byte is never sent.
    sent: usize,
    ended: bool,
}

impl Attacker {
    fn new(socket: &Path, calls: u32, message_bytes: usize) -> Self {
        let stream = connect_as(NOBODY, socket);
        stream.set_nonblocking(true).unwrap();
        let mut attacker = Self { stream, input: Vec::new(), output: Vec::new(), window: 65_535, calls: Vec::new() };
        attacker.output.extend(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        attacker.frame(4, 0, 0, &[]);
        // :method POST and :scheme http of HPACK's static table, then literals.
        let mut headers = vec![0x83, 0x86];
        let texts: [(&[u8], &str); 4] = [
            (&[0x04], "/lattice.v1.AllocationService/Submit"),
            (&[0x01], "x"),
            (&[0x0f, 0x10], "application/grpc"),
            (&[0x00, 2, b't', b'e'], "trailers"),
        ];
        for (name, value) in texts {
            headers.extend(name);
            headers.push(u8::try_from(value.len()).unwrap());
            headers.extend(value.as_bytes());
        }
        for number in 0..calls {
            let id = 2 * number + 1;
            attacker.frame(1, 4, id, &headers);
            attacker.calls.push(UnfinishedCall { id, window: 65_535, message_bytes, sent: 0, ended: false });
        }
        attacker
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.output.extend(&u32::try_from(payload.len()).unwrap().to_be_bytes()[1..]);
        self.output.extend([kind, flags]);
        self.output.extend(stream.to_be_bytes());
        self.output.extend(payload);
    }

    /// Sends what the windows allow, and reads what arrived.
    fn pump(&mut self) {
        let mut chunk = [0; 16 << 10];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => break self.calls.iter_mut().for_each(|call| call.ended = true),
                Ok(n) => self.input.extend(&chunk[..n]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => break self.calls.iter_mut().for_each(|call| call.ended = true),
            }
        }
        while self.input.len() >= 9 {
            let length = u32::from_be_bytes([0, self.input[0], self.input[1], self.input[2]]) as usize;
            if self.input.len() < 9 + length {
                break;
            }
            let whole: Vec<u8> = self.input.drain(..9 + length).collect();
            let (kind, flags, payload) = (whole[3], whole[4], &whole[9..]);
            let number = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
            let stream = u32::from_be_bytes(whole[5..9].try_into().unwrap()) & 0x7fff_ffff;
            let of_stream = self.calls.iter_mut().find(|call| call.id == stream);
            match (kind, of_stream) {
                (0 | 1, Some(call)) if flags & 1 == 1 => call.ended = true,
                (3, Some(call)) => call.ended = true,
                (4, _) if flags & 1 == 0 => {
                    let initial = payload
                        .chunks(6)
                        .find(|s| s[..2] == [0, 4])
                        .map_or(65_535, |s| i64::from(u32::from_be_bytes([s[2], s[3], s[4], s[5]])));
                    self.calls.iter_mut().for_each(|call| call.window += initial - 65_535);
                    self.frame(4, 1, 0, &[]);
                }
                (6, _) if flags & 1 == 0 => self.frame(6, 1, 0, payload),
                (8, Some(call)) => call.window += i64::from(number(0)),
                (8, None) if stream == 0 => self.window += i64::from(number(0)),
                _ => {}
            }
        }
        for at in 0..self.calls.len() {
            let call = &self.calls[at];
            let left = call.message_bytes + 5 - 1 - call.sent;
            let window = usize::try_from(call.window.min(self.window).max(0)).unwrap();
            let now = left.min(window).min(16 << 10);
            if call.ended || now < 5.min(left) || now == 0 || self.output.len() > 256 << 10 {
                continue;
            }
            let mut payload = vec![b'x'; now];
            if call.sent == 0 {
                payload[0] = 0;
                payload[1..5].copy_from_slice(&u32::try_from(call.message_bytes).unwrap().to_be_bytes());
            }
            let id = call.id;
            self.frame(0, 0, id, &payload);
            let taken = i64::try_from(now).unwrap();
            self.window -= taken;
            self.calls[at].window -= taken;
            self.calls[at].sent += now;
        }
        match self.stream.write(&self.output) {
            Ok(n) => drop(self.output.drain(..n)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.calls.iter_mut().for_each(|call| call.ended = true),
        }
    }
}

/// The agent's peak memory since the last `clear_refs`, in KiB.
fn peak_kib(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

fn unfinished(w: &World) {
    let (pid, socket) = (agent(w), w.lattice.socket().to_owned());
    fs::write(format!("/proc/{pid}/clear_refs"), "5").unwrap();
    let at_rest = peak_kib(pid);
    // Too long for any call, and as long as a call may be.
    let mut attackers: Vec<_> = (0..4).map(|_| Attacker::new(&socket, 8, 24 * MIB)).collect();
    attackers.extend((0..56).map(|_| Attacker::new(&socket, 4, MIB)));
    let began = Instant::now();
    let attack = std::thread::spawn(move || {
        let is_over = |a: &Attacker| a.calls.iter().all(|call| call.ended);
        while !attackers.iter().all(is_over) && began.elapsed() < 2 * JOB {
            attackers.iter_mut().for_each(Attacker::pump);
            std::thread::sleep(Duration::from_millis(1));
        }
        attackers.iter().flat_map(|a| &a.calls).filter(|call| !call.ended).count()
    });
    // Other users are served meanwhile: small calls, and a submission of the greatest size.
    let endpoint = format!("unix:{}", socket.display());
    let mut took = acting_as(DAEMON, move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = Client::connect(&endpoint).await.unwrap();
            let mut took = Vec::new();
            for _ in 0..50 {
                let began = Instant::now();
                client.nodes().local_status(LocalStatusRequest::default()).await.unwrap();
                took.push(began.elapsed());
                tokio::time::sleep(Duration::from_millis(40)).await;
            }
            took
        })
    })
    .join()
    .unwrap();
    took.sort_unstable();
    let script = w.script("large.sh", &format!("#!/bin/sh\n#{}\necho large\n", "x".repeat(MIB - 1024)));
    let submitted = w.run_as(DAEMON, &["submit", "-o", "name", &script]);
    assert_eq!(submitted.code(), 0, "{}", submitted.err());
    assert!(!attack.is_finished(), "the attack goes on");
    let median = took[took.len() / 2];
    assert!(median <= CALL_MAX, "half of others' calls take more than {median:?}");
    assert_eq!(attack.join().unwrap(), 0, "slow senders are cut off");
    let peak = peak_kib(pid);
    assert!(peak <= at_rest + GAIN_KIB_MAX, "the agent had {at_rest} KiB, and {peak} KiB under attack");
    w.completed(submitted.out().trim());
    // The attacking user is served again, too.
    assert_eq!(w.run_as(NOBODY, &["status"]).code(), 0);
    let _ = fs::remove_file(script);
}

fn silent(w: &World) {
    let mut connections: Vec<_> = (0..3).map(|_| connect_as(NOBODY, w.lattice.socket())).collect();
    // The second connection sends half of a client's preface.
    connections[1].write_all(b"PRI * HTTP/2.0\r\n").unwrap();
    for connection in &mut connections {
        connection.set_read_timeout(Some(JOB)).unwrap();
        let read = connection.read(&mut [0; 64]);
        assert!(!matches!(&read, Err(e) if e.kind() == io::ErrorKind::WouldBlock), "it is still open after {} s", JOB.as_secs());
    }
}

/// Ends the attack with its test, whatever the result.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn slow_scrapes(w: &World) {
    const SLOW: usize = 110;
    let cluster = w.cluster();
    for address in [&cluster.nodes[0].metrics, &cluster.members[0].metrics] {
        let stop = AtomicBool::new(false);
        let mut slow: Vec<_> = (0..SLOW).map(|_| TcpStream::connect(address).unwrap()).collect();
        std::thread::scope(|scope| {
            let _stops = StopOnDrop(&stop);
            scope.spawn(|| {
                let request = b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: ";
                for at in 0.. {
                    for stream in &mut slow {
                        // A closed connection is opened again, and starts over.
                        let written = stream.write_all(&[*request.get(at).unwrap_or(&b'x')]);
                        if written.is_err()
                            && let Ok(new) = TcpStream::connect(address)
                        {
                            *stream = new;
                        }
                    }
                    let next = Instant::now() + Duration::from_secs(1);
                    while Instant::now() < next {
                        if stop.load(Ordering::Relaxed) {
                            return;
                        }
                        std::thread::sleep(Duration::from_millis(10));
                    }
                }
            });
            let mut slowest = Duration::ZERO;
            for _ in 0..20 {
                let began = Instant::now();
                let mut scrape = TcpStream::connect(address).unwrap();
                scrape.set_read_timeout(Some(JOB)).unwrap();
                scrape.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
                let mut page = String::new();
                let read = scrape.read_to_string(&mut page);
                slowest = slowest.max(began.elapsed());
                assert!(read.is_ok() && page.starts_with("HTTP/1.1 200"), "{address}: {read:?} {page:.80}");
                std::thread::sleep(Duration::from_millis(100));
            }
            assert!(slowest < Duration::from_secs(2), "{address}: a scrape took {slowest:?}");
        });
    }
}

fn open_keys(w: &World) {
    let tls = |name: &str| -> PathBuf {
        let found = process::run(Command::new("find").arg(&w.dir).args(["-name", name]), JOB).unwrap().out();
        PathBuf::from(found.lines().next().unwrap_or_else(|| panic!("there is no {name} in {}", w.dir.display())))
    };
    for (name, key, mode) in [(NODE, tls("n1.key"), 0o640), ("member-1", tls("member-1.key"), 0o604), ("member-1", tls("ca.key"), 0o640)] {
        let cluster = w.cluster();
        let daemon = cluster.daemons().find(|daemon| daemon.name == name).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
        daemon.process.as_ref().unwrap().kill().unwrap();
        let done = process::run(Command::new(&daemon.program).args(&daemon.args), JOB).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        if daemon.name == NODE {
            faults::start_node(&w.dir, NODE).unwrap();
        } else {
            faults::start_member(&w.dir, 1).unwrap();
        }
        let output = done.out() + &done.err();
        assert!(!done.timed_out && done.code() != 0, "{} starts with {} of mode {mode:o}", daemon.name, key.display());
        let name = key.file_name().unwrap().to_string_lossy().into_owned();
        assert!(output.contains(&name) && output.contains(&format!("mode {mode:o}")) && output.contains("chmod 600"), "{output}");
    }
}

/// An image of this user, with holes after the archive.
fn sparse_image(w: &World, uid: u32, name: &str, bytes: u64) -> String {
    let path = w.dir.join(format!("home-{uid}")).join(name);
    image::write(&path, Path::new("/bin/true")).unwrap();
    fs::File::options().append(true).open(&path).unwrap().set_len(bytes).unwrap();
    chown(&path, Some(uid), Some(uid)).unwrap();
    path.to_string_lossy().into_owned()
}

fn begin_submit(w: &World, uid: u32, image: &str) -> Child {
    let home = w.dir.join(format!("home-{uid}"));
    let lattice = w.lattice.clone().with_program(&w.dir.join("bin/lattice"));
    let mut command = lattice.command(&["submit", "--uenv", image, "--", "/bin/true"]);
    {
        use std::os::unix::process::CommandExt;
        command.uid(uid).gid(uid);
    }
    command.current_dir(&home).env("HOME", &home).env_remove("XDG_STATE_HOME");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn digests(w: &World) {
    let large: Vec<_> = (0..6).map(|n| sparse_image(w, NOBODY, &format!("large-{n}.sqfs"), 14 << 30)).collect();
    let fds = PathBuf::from(format!("/proc/{}/fd", agent(w)));
    let read_now = || {
        let links = fs::read_dir(&fds).unwrap().flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
        links.filter(|at| large.iter().any(|image| at == Path::new(image))).count()
    };
    let mut clients: Vec<_> = large.iter().map(|image| begin_submit(w, NOBODY, image)).collect();
    w.wait("images to be read", || read_now() >= 2);
    // Another user's image is read meanwhile.
    let small = sparse_image(w, DAEMON, "small.sqfs", MIB as u64);
    let submitted = w.run_as(DAEMON, &["submit", "-o", "name", "--uenv", &small, "--", "/bin/true"]);
    let busy = read_now();
    for client in &mut clients {
        client.kill().unwrap();
        client.wait().unwrap();
    }
    let began = Instant::now();
    w.wait("the reading to stop with its callers", || read_now() == 0);
    assert!(began.elapsed() < Duration::from_secs(10), "it went on for {:?}", began.elapsed());
    assert_eq!(submitted.code(), 0, "{}", submitted.err());
    assert_eq!(busy, 2, "what one user may have read at once");
    w.ended(submitted.out().trim());
    large.iter().for_each(|image| fs::remove_file(image).unwrap());
}

fn cached(w: &World, id: &str) -> PathBuf {
    let state = w.cluster().run_dir.join(NODE).join("state");
    state.join("images").join(format!("sha256-{}.sqfs", text(&w.status(id), "uenv_sha256")))
}

fn submit_image(w: &World, uid: u32, image: &str) -> String {
    let done = w.run_as(uid, &["submit", "-o", "name", "--uenv", image, "--", "/bin/cat", "/user-environment/README"]);
    assert_eq!(done.code(), 0, "{}", done.err());
    let id = done.out().trim().to_owned();
    w.completed(&id);
    id
}

fn sparse(w: &World) {
    const BYTES: u64 = 96 << 20;
    let image = sparse_image(w, NOBODY, "sparse.sqfs", BYTES);
    let of_user = fs::metadata(&image).unwrap();
    assert!(of_user.blocks() * 512 < 4 << 20, "the user's file has {} blocks", of_user.blocks());
    let id = submit_image(w, NOBODY, &image);
    let copy = fs::metadata(cached(w, &id)).unwrap();
    assert_eq!((copy.len(), copy.mode() & 0o777, copy.uid()), (BYTES, 0o400, 0));
    assert!(copy.blocks() * 512 < 4 << 20, "{} blocks of 512 bytes in the cache", copy.blocks());
}

fn cache_share(w: &World) {
    const IMAGE_BYTES: usize = 8 << 20;
    // Without holes, and each one different.
    let make = |uid: u32, number: u8| {
        let image = sparse_image(w, uid, &format!("share-{number}.sqfs"), 0);
        image::write(Path::new(&image), Path::new("/bin/true")).unwrap();
        let mut bytes = fs::read(&image).unwrap();
        bytes.resize(IMAGE_BYTES, number);
        fs::write(&image, bytes).unwrap();
        image
    };
    let disk = SmallDisk::under(w, NODE, "64m");
    w.wait("the node to be back", || w.lattice.nodes().unwrap_or_default().iter().any(|(_, state)| state == "Ready"));
    let own = submit_image(w, DAEMON, &make(DAEMON, 1));
    let own = cached(w, &own);
    let others: Vec<_> = (2..=9).map(|number| cached(w, &submit_image(w, NOBODY, &make(NOBODY, number)))).collect();
    assert!(own.exists(), "another user's images pushed it out");
    assert!(!others[0].exists() && others[7].exists(), "who brings many loses their own");
    w.assert_nothing_left_but(&disk.at);
}
