//! A load of HTTP requests on a service whose endpoints change, from clients that find the service by its name.
//!
//! ```text
//!   agent ──lookup, every 200 ms──▶ list of endpoints ──round robin──▶ clients, each with one request at a time
//! ```
//!
//! Each request is a connection of its own to a [`crate::http_server`]. A client uses a list for a short time only,
//! because a replica that left the list soon stops serving. Refused connections of an endpoint that has never accepted
//! one are counted separately: it was listed too early. Every other request without an answer of 200 is a failure, and
//! so is a list without endpoints.

use crate::networks::Networks;
use anyhow::{Context, Result, ensure};
use lattice_api::client::Client;
use lattice_api::v1;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How often the endpoints are looked up.
const LOOKUP_INTERVAL: Duration = Duration::from_millis(200);
/// Timeout of one lookup.
const LOOKUP_MAX: Duration = Duration::from_secs(5);
/// The age from which a list is not used any more. A server that was asked to leave still serves for longer.
const LIST_AGE_MAX: Duration = Duration::from_millis(800);
/// How often a client looks for a new list when it has none that it may use.
const LIST_POLL: Duration = Duration::from_millis(10);
/// Timeout of connecting, of writing and of each read of a request.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// The longest answer, in bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
/// How many failures are described.
const FAILURES_SHOWN_MAX: usize = 20;
/// How many latencies are kept, for quantiles.
const LATENCIES_MAX: usize = 1_000_000;

/// What each client demands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Processor time of a request, in milliseconds.
    pub burn_ms: u32,
    /// The pause of a client after an answer.
    pub pause: Duration,
}

/// The results of the requests so far.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// How many were answered with 200.
    pub answered: u64,
    /// How many failed.
    pub failed: u64,
    /// The errors of the first ones that failed.
    pub failures: Vec<String>,
    /// How many connections were refused by endpoints that had never accepted one since they were listed.
    pub not_yet: u64,
    /// How many each replica answered, by the name in its answers.
    pub replicas: BTreeMap<String, u64>,
    /// How long answers took from the beginning of the connection, ascending; the first million.
    latencies: Vec<Duration>,
}

/// Clients that send requests until this is dropped.
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    stops: AtomicBool,
    demand: Mutex<Demand>,
    list: Mutex<Option<List>>,
    /// The number of the next request: clients take turns at the endpoints.
    next: AtomicUsize,
    report: Mutex<Report>,
}

struct List {
    endpoints: Vec<String>,
    /// The endpoints that have accepted a connection since they were listed.
    ready: BTreeSet<String>,
    /// When its lookup began: endpoints that were removed before are not in it.
    asked: Instant,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Load {
    /// Starts this many clients of a service, which the agent at `socket` finds. `networks`: the cluster's networks, if its
    /// daemons have their own; requests then come from the hub.
    pub fn start(networks: Option<&Networks>, socket: &Path, service: &str, clients: usize, demand: Demand) -> Result<Self> {
        let shared = Arc::new(Shared {
            stops: AtomicBool::new(false),
            demand: Mutex::new(demand),
            list: Mutex::new(None),
            next: AtomicUsize::new(0),
            report: Mutex::new(Report::default()),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("a runtime for lookups")?;
        let (agent, service) = (format!("unix:{}", socket.display()), service.to_owned());
        let of_lookups = Arc::clone(&shared);
        let mut threads = vec![thread::spawn(move || runtime.block_on(of_lookups.look_up(&agent, &service)))];
        // New threads are in the network of the thread that starts them.
        let start_clients = || {
            let client = |_: usize| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || shared.send())
            };
            (0..clients).map(client).collect::<Vec<_>>()
        };
        let started = match networks {
            Some(networks) => networks.within(start_clients),
            None => Ok(start_clients()),
        };
        match started {
            Ok(started) => threads.extend(started),
            Err(error) => {
                shared.stops.store(true, Ordering::Relaxed);
                return Err(error);
            }
        }
        Ok(Self { shared, threads })
    }

    /// From now on the clients demand this.
    pub fn change(&self, demand: Demand) {
        *lock(&self.shared.demand) = demand;
    }

    /// The results of the requests so far.
    pub fn report(&self) -> Report {
        let mut report = lock(&self.shared.report).clone();
        report.latencies.sort_unstable();
        report
    }

    /// Lets the clients finish their requests; returns the results of all.
    pub fn stop(mut self) -> Report {
        self.shared.stops.store(true, Ordering::Relaxed);
        for thread in std::mem::take(&mut self.threads) {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
        self.report()
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // The threads end by themselves, after the request that they are at.
        self.shared.stops.store(true, Ordering::Relaxed);
    }
}

impl Report {
    /// The latency that this part of the answers did not exceed; zero without answers.
    pub fn latency(&self, part: f64) -> Duration {
        let at = (self.latencies.len() as f64 * part) as usize;
        let last = self.latencies.len().saturating_sub(1);
        self.latencies.get(at.min(last)).copied().unwrap_or_default()
    }
}

impl Shared {
    fn stops(&self) -> bool {
        self.stops.load(Ordering::Relaxed)
    }

    /// Looks the endpoints up until the load stops. While the agent does not answer, the list gets older.
    async fn look_up(&self, agent: &str, service: &str) {
        while !self.stops() {
            let _ = self.look_up_connected(agent, service).await;
            tokio::time::sleep(LOOKUP_INTERVAL).await;
        }
    }

    /// The same until a lookup fails.
    async fn look_up_connected(&self, agent: &str, service: &str) -> Result<()> {
        let mut admin = Client::connect(agent).await?.admin();
        while !self.stops() {
            let asked = Instant::now();
            let request = v1::LookupServiceRequest { name: service.to_owned(), tenant: None };
            let answer = tokio::time::timeout(LOOKUP_MAX, admin.lookup_service(request)).await.context("a lookup without an answer")?;
            let found = answer?.into_inner().endpoints;
            self.take_list(found.iter().map(|e| format!("{}:{}", e.host, e.port)).collect(), asked);
            tokio::time::sleep(LOOKUP_INTERVAL).await;
        }
        Ok(())
    }

    fn take_list(&self, endpoints: Vec<String>, asked: Instant) {
        let mut list = lock(&self.list);
        if endpoints.is_empty() && list.is_some() {
            self.fail("the service has no endpoint any more".to_owned());
        }
        // The load begins with the first list that has endpoints.
        if !endpoints.is_empty() || list.is_some() {
            let mut ready = list.take().map(|list| list.ready).unwrap_or_default();
            ready.retain(|endpoint| endpoints.contains(endpoint));
            *list = Some(List { endpoints, ready, asked });
        }
    }

    /// Notes that an endpoint accepts connections.
    fn note_ready(&self, endpoint: &str) {
        if let Some(list) = lock(&self.list).as_mut().filter(|list| !list.ready.contains(endpoint)) {
            list.ready.insert(endpoint.to_owned());
        }
    }

    /// Whether an endpoint was listed, and has never accepted a connection.
    fn is_not_yet_ready(&self, endpoint: &str) -> bool {
        lock(&self.list).as_ref().is_some_and(|list| list.endpoints.iter().any(|one| one == endpoint) && !list.ready.contains(endpoint))
    }

    /// Where the next request goes; `None`: no list may be used at present.
    fn next_endpoint(&self) -> Option<String> {
        let list = lock(&self.list);
        let list = list.as_ref().filter(|list| list.asked.elapsed() < LIST_AGE_MAX)?;
        let turn = self.next.fetch_add(1, Ordering::Relaxed).checked_rem(list.endpoints.len())?;
        list.endpoints.get(turn).cloned()
    }

    /// Sends requests, one after the other, until the load stops.
    fn send(&self) {
        while !self.stops() {
            let Some(endpoint) = self.next_endpoint() else {
                thread::sleep(LIST_POLL);
                continue;
            };
            let demand = *lock(&self.demand);
            let began = Instant::now();
            let answer = match connect(&endpoint) {
                Ok(stream) => {
                    self.note_ready(&endpoint);
                    request(stream, &endpoint, demand.burn_ms)
                }
                Err(error) if error.kind() == ErrorKind::ConnectionRefused && self.is_not_yet_ready(&endpoint) => {
                    lock(&self.report).not_yet += 1;
                    thread::sleep(LIST_POLL);
                    continue;
                }
                Err(error) => Err(anyhow::Error::new(error).context("connecting")),
            };
            match answer {
                Ok(replica) => self.count(replica, began.elapsed()),
                Err(error) => self.fail(format!("{endpoint}, after {} ms: {error:#}", began.elapsed().as_millis())),
            }
            thread::sleep(demand.pause);
        }
    }

    fn count(&self, replica: String, latency: Duration) {
        let mut report = lock(&self.report);
        report.answered += 1;
        *report.replicas.entry(replica).or_default() += 1;
        if report.latencies.len() < LATENCIES_MAX {
            report.latencies.push(latency);
        }
    }

    fn fail(&self, why: String) {
        let mut report = lock(&self.report);
        report.failed += 1;
        if report.failures.len() < FAILURES_SHOWN_MAX {
            report.failures.push(why);
        }
    }
}

fn connect(endpoint: &str) -> io::Result<TcpStream> {
    let address: SocketAddr = endpoint.parse().map_err(|e| io::Error::new(ErrorKind::InvalidInput, e))?;
    let stream = TcpStream::connect_timeout(&address, REQUEST_MAX)?;
    stream.set_read_timeout(Some(REQUEST_MAX))?;
    stream.set_write_timeout(Some(REQUEST_MAX))?;
    Ok(stream)
}

/// The only request on a connection. Returns the body: which replica answered.
fn request(mut stream: TcpStream, endpoint: &str, burn_ms: u32) -> Result<String> {
    let line = format!("GET /burn/{burn_ms} HTTP/1.1\r\nHost: {endpoint}\r\nConnection: close\r\n\r\n");
    stream.write_all(line.as_bytes()).context("writing")?;
    let mut answer = String::new();
    stream.take(ANSWER_BYTES_MAX).read_to_string(&mut answer).context("reading")?;
    let (head, body) = answer.split_once("\r\n\r\n").with_context(|| format!("an incomplete answer: {answer:?}"))?;
    ensure!(head.starts_with("HTTP/1.1 200 "), "{}", head.lines().next().unwrap_or_default());
    ensure!(body.ends_with('\n'), "an incomplete body: {body:?}");
    Ok(body.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// The result of a request to a server that sends this answer.
    fn answered(answer: &'static str) -> Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let read = stream.read(&mut [0; 1024]).unwrap();
            assert!(read > 0);
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let result = request(connect(&endpoint).unwrap(), &endpoint, 0);
        server.join().unwrap();
        result
    }

    #[test]
    fn only_a_complete_200_is_an_answer() {
        assert_eq!(answered("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nreplica 3\n").unwrap(), "replica 3");
        for bad in ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\n\r\nrep", "HTTP/1.1 503 Busy\r\n\r\nbusy\n"] {
            assert!(answered(bad).is_err(), "{bad:?}");
        }
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        assert_eq!(connect(&nobody).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        assert_eq!(connect("no address").unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    #[test]
    fn endpoints_take_turns_and_an_old_list_is_not_used() {
        let demand = Demand { burn_ms: 0, pause: Duration::ZERO };
        let shared = Shared {
            stops: AtomicBool::new(false),
            demand: Mutex::new(demand),
            list: Mutex::new(None),
            next: AtomicUsize::new(0),
            report: Mutex::new(Report::default()),
        };
        shared.take_list(Vec::new(), Instant::now());
        assert_eq!((shared.next_endpoint(), lock(&shared.report).failed), (None, 0), "it has not begun");
        shared.take_list(vec!["a".to_owned(), "b".to_owned()], Instant::now());
        shared.note_ready("a");
        shared.take_list(vec!["a".to_owned(), "b".to_owned()], Instant::now());
        assert_eq!(["a", "b", "c"].map(|one| shared.is_not_yet_ready(one)), [false, true, false]);
        let turns: Vec<String> = (0..3).filter_map(|_| shared.next_endpoint()).collect();
        assert!(turns == ["a", "b", "a"] || turns == ["b", "a", "b"], "{turns:?}");
        shared.take_list(Vec::new(), Instant::now());
        assert_eq!((shared.next_endpoint(), lock(&shared.report).failed), (None, 1), "a service that is gone");
        let old = Instant::now().checked_sub(LIST_AGE_MAX).unwrap();
        shared.take_list(vec!["a".to_owned()], old);
        assert_eq!(shared.next_endpoint(), None);
        assert!(shared.is_not_yet_ready("a"), "it was not listed meanwhile");
    }

    #[test]
    fn latencies_are_quantiles() {
        let report = Report { latencies: (1..=100).map(Duration::from_millis).collect(), ..Report::default() };
        let ms = |part| report.latency(part).as_millis();
        assert_eq!((ms(0.5), ms(0.99), ms(1.0)), (51, 100, 100));
        assert_eq!(Report::default().latency(0.5), Duration::ZERO);
    }
}
