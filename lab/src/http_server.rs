//! `lattice-lab http-server`: one replica of a service for tests and for trying things out. It uses processor time, or
//! sleeps, as each request says, and leaves without a failed request when it is asked to.
//!
//! ```text
//!   GET /burn/20     200, after 20 ms of processor time
//!   GET /sleep/20    200, after 20 ms
//!   GET /health      200; does not count as a request
//!   SIGUSR1          it serves until there was no request for --quiet-ms, then it ends with 0
//! ```
//!
//! The body says which replica answered. Each connection has one request, so every answer says `Connection: close`, and
//! a client that still has an old list of endpoints gets its answer here until it reads a new one.

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};
use nix::time::{ClockId, clock_gettime};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How many requests are served at the same time; others wait in the queue of the kernel.
const WORKERS: usize = 16;
/// The longest request, in bytes.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Timeout of reading a request and of writing the answer.
const TRANSFER_MAX: Duration = Duration::from_secs(5);
/// The longest time that a request may ask for, in milliseconds.
const WORK_MS_MAX: u64 = 10_000;
/// How often a server that leaves looks whether it had requests.
const QUIET_POLL: Duration = Duration::from_millis(20);
/// Pause after a connection could not be accepted, for example because there are too many files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// The options of the server.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The port, at all addresses of the node
    #[arg(long)]
    port: u16,
    /// Milliseconds without a request until it ends, after SIGUSR1
    #[arg(long, default_value_t = 1000)]
    quiet_ms: u64,
}

/// Serves until SIGUSR1 has come and requests have ceased.
pub fn run(options: &Options) -> Result<()> {
    let mut leave = SigSet::empty();
    leave.add(Signal::SIGUSR1);
    // The threads inherit this: the signal is only received below.
    leave.thread_block().context("blocking SIGUSR1")?;
    let listener =
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, options.port)).with_context(|| format!("listening at port {}", options.port))?;
    let name = std::env::var("LATTICE_REPLICA").map_or_else(|_| "no replica".to_owned(), |number| format!("replica {number}"));
    println!("{name} listens at port {}", options.port);
    let server = Arc::new(Server::new(name));
    for _ in 0..WORKERS {
        let (server, listener) = (Arc::clone(&server), listener.try_clone().context("sharing the port with a thread")?);
        thread::spawn(move || server.serve(&listener));
    }
    leave.wait().context("waiting for SIGUSR1")?;
    println!("asked to leave");
    server.wait_quiet(Duration::from_millis(options.quiet_ms));
    println!("left after {} requests", server.seen().requests);
    Ok(())
}

struct Server {
    /// The body of each answer.
    name: String,
    seen: Mutex<Seen>,
}

/// Counts of its requests.
struct Seen {
    /// How many requests were answered.
    requests: u64,
    /// How many are being answered.
    busy: u32,
    /// When the last one was answered.
    last: Option<Instant>,
}

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Work(Work),
    Health,
}

/// What an answer costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Processor time.
    Burn(Duration),
    Sleep(Duration),
}

impl Server {
    fn new(name: String) -> Self {
        Self { name, seen: Mutex::new(Seen { requests: 0, busy: 0, last: None }) }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers connections, one after the other, for as long as the process lives.
    fn serve(&self, listener: &TcpListener) {
        loop {
            match listener.accept() {
                // A client that goes away harms only itself.
                Ok((stream, _)) => drop(self.answer(stream)),
                Err(_) => thread::sleep(ACCEPT_PAUSE),
            }
        }
    }

    fn answer(&self, mut stream: TcpStream) -> Result<()> {
        stream.set_read_timeout(Some(TRANSFER_MAX))?;
        stream.set_write_timeout(Some(TRANSFER_MAX))?;
        let line = read_request(&mut stream)?;
        let Some(request) = parse(&line) else {
            return respond(&mut stream, "404 Not Found", "GET /burn/MS, GET /sleep/MS or GET /health");
        };
        let Request::Work(work) = request else { return respond(&mut stream, "200 OK", "healthy") };
        self.seen().busy += 1;
        match work {
            Work::Burn(time) => burn(time),
            Work::Sleep(time) => thread::sleep(time),
        }
        self.finish(&mut stream)
    }

    /// Answers a request that was counted as busy.
    fn finish(&self, stream: &mut TcpStream) -> Result<()> {
        let sent = respond(stream, "200 OK", &self.name);
        let mut seen = self.seen();
        seen.busy -= 1;
        seen.requests += 1;
        seen.last = Some(Instant::now());
        sent
    }

    /// Waits until no request has come for this time, counted from now or from the last one.
    fn wait_quiet(&self, quiet: Duration) {
        let asked = Instant::now();
        loop {
            let is_quiet = {
                let seen = self.seen();
                let since = seen.last.map_or(asked, |last| last.max(asked));
                seen.busy == 0 && since.elapsed() >= quiet
            };
            if is_quiet {
                return;
            }
            thread::sleep(QUIET_POLL);
        }
    }
}

/// The first line of a request, read together with its headers.
fn read_request(stream: &mut impl Read) -> Result<String> {
    let mut bytes = Vec::new();
    let mut piece = [0; 1024];
    while !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        let read = stream.read(&mut piece).context("reading a request")?;
        anyhow::ensure!(read > 0 && bytes.len() + read <= REQUEST_BYTES_MAX, "a request without an end");
        bytes.extend_from_slice(&piece[..read]);
    }
    Ok(String::from_utf8_lossy(&bytes).lines().next().unwrap_or_default().to_owned())
}

/// `None`: the line is no request that it knows.
fn parse(line: &str) -> Option<Request> {
    let path = line.strip_prefix("GET ")?.split(' ').next()?;
    if path == "/health" {
        return Some(Request::Health);
    }
    let (what, ms) = path.strip_prefix('/')?.split_once('/')?;
    let time = Duration::from_millis(ms.parse().ok().filter(|ms| *ms <= WORK_MS_MAX)?);
    match what {
        "burn" => Some(Request::Work(Work::Burn(time))),
        "sleep" => Some(Request::Work(Work::Sleep(time))),
        _ => None,
    }
}

fn respond(stream: &mut impl Write, status: &str, body: &str) -> Result<()> {
    let length = body.len() + 1;
    let answer = format!("HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}\n");
    stream.write_all(answer.as_bytes()).context("writing an answer")
}

/// Uses this much processor time in this thread.
fn burn(time: Duration) {
    let used = || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::MAX, Duration::from);
    let until = used().saturating_add(time);
    while used() < until {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_say_what_they_cost() {
        let ms = Duration::from_millis;
        for (line, expected) in [
            ("GET /burn/20 HTTP/1.1", Some(Request::Work(Work::Burn(ms(20))))),
            ("GET /sleep/0 HTTP/1.1", Some(Request::Work(Work::Sleep(ms(0))))),
            ("GET /health HTTP/1.0", Some(Request::Health)),
            ("GET /burn/10001 HTTP/1.1", None),
            ("GET /burn/-1 HTTP/1.1", None),
            ("GET /burn HTTP/1.1", None),
            ("POST /burn/1 HTTP/1.1", None),
            ("", None),
        ] {
            assert_eq!(parse(line), expected, "{line:?}");
        }
    }

    #[test]
    fn a_request_has_an_end_and_a_size() {
        assert_eq!(read_request(&mut &b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..]).unwrap(), "GET / HTTP/1.1");
        assert!(read_request(&mut &b"GET / HTTP/1.1\r\n"[..]).is_err());
        assert!(read_request(&mut std::io::repeat(b'a')).is_err());
    }

    #[test]
    fn burning_uses_as_much_processor_time() {
        let used = || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap();
        let before = used();
        burn(Duration::from_millis(5));
        assert!(used() - before >= Duration::from_millis(5));
    }

    #[test]
    fn it_leaves_only_when_requests_have_ceased() {
        let server = Server::new("replica 3".to_owned());
        server.seen().busy = 1;
        let began = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(50));
                let mut seen = server.seen();
                (seen.busy, seen.last) = (0, Some(Instant::now()));
            });
            server.wait_quiet(Duration::from_millis(40));
        });
        assert!(began.elapsed() >= Duration::from_millis(90), "{:?}", began.elapsed());
    }
}
