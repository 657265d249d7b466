//! The access log: one JSON object per line. A line contains no token, and of a request only its method and path.
//!
//! ```text
//!   answer ends ─▶ queue 1024 ─▶ thread ─▶ FILE ──at its largest size──▶ FILE.1 … FILE.4
//!                   └ full: counted, and the next line has the count
//! ```
//!
//! The log contains every request that may change something if an account was identified or the answer is 401, and a
//! sample of all other requests. The gate limits how many 401 an address gets, so strangers cannot fill the log. A full
//! disk loses lines, never requests.

use lattice_agent_common::clock;
use lattice_agent_common::node_problems::NodeProblems;
use lattice_model::Timestamp;
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;
use tonic::Code;

/// How many lines may wait to be written.
const QUEUE_LEN_MAX: usize = 1024;
/// Largest part of a path in a line, in bytes.
const PATH_BYTES_MAX: usize = 256;
/// Largest part of a method in a line, in bytes.
const METHOD_BYTES_MAX: usize = 16;
/// How many rotated files are retained.
const OLD_FILES_MAX: u32 = 4;
/// The subject of the node problem that is set while the log cannot be written.
const PROBLEM: &str = "access log of the API";

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Line {
    #[serde(serialize_with = "as_text")]
    pub time: Timestamp,
    pub address: IpAddr,
    /// The account; `None`: nobody was identified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The id of a token that the cluster issued, or the issuer of another token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
    pub method: String,
    pub path: String,
    /// The HTTP status; 0: the caller disconnected before the answer.
    pub status: u16,
    /// The gRPC status.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grpc_status: Option<i32>,
    /// Milliseconds from the request's arrival to the end of the answer.
    pub ms: u64,
    /// Bytes of the answer.
    pub bytes: u64,
    /// How many lines before this one were lost.
    #[serde(skip_serializing_if = "is_zero")]
    pub lost: u64,
}

fn as_text<S: serde::Serializer>(time: &Timestamp, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(time)
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What is known of a request when it arrives.
#[derive(Clone, Debug)]
pub(super) struct Begun {
    began: Instant,
    address: IpAddr,
    method: String,
    path: String,
    is_change: bool,
    account: Option<String>,
    token: Option<String>,
}

impl Begun {
    /// `is_change`: whether the request may change something.
    pub(super) fn new(address: IpAddr, method: &str, path: &str, is_change: bool) -> Self {
        let beginning = |text: &str, bytes_max: usize| text[..text.floor_char_boundary(bytes_max)].to_owned();
        let (method, path) = (beginning(method, METHOD_BYTES_MAX), beginning(path, PATH_BYTES_MAX));
        Self { began: Instant::now(), address, method, path, is_change, account: None, token: None }
    }

    /// Who calls. `token`: the id of the token, or its issuer.
    fn identified(&mut self, account: &str, token: String) {
        self.account = Some(account.to_owned());
        self.token = Some(token);
    }

    /// Whether the line is logged regardless of the sample.
    fn is_always_logged(&self, ended: Ended) -> bool {
        let is_unauthenticated = ended.status == 401 || ended.grpc_status == Some(i32::from(Code::Unauthenticated));
        self.is_change && (self.account.is_some() || is_unauthenticated)
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ended {
    pub status: u16,
    pub grpc_status: Option<i32>,
    pub bytes: u64,
}

/// A request in progress. Dropping it adds its line: when the answer ends, or when the caller disconnects before that.
pub(super) struct Entry {
    log: AccessLog,
    begun: Option<Begun>,
    pub ended: Ended,
}

impl Entry {
    /// Who calls. `token`: the id of the token, or its issuer.
    pub(super) fn identified(&mut self, account: &str, token: String) {
        if let Some(begun) = &mut self.begun {
            begun.identified(account, token);
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Some(begun) = self.begun.take() {
            self.log.add(begun, self.ended);
        }
    }
}

/// Accepts lines. All clones share the queue.
#[derive(Clone)]
pub(super) struct AccessLog(Option<Arc<Queue>>);

struct Queue {
    lines: mpsc::Sender<Line>,
    lost: AtomicU64,
    /// One in this many of the other requests is logged; 0: none.
    read_interval: u64,
    reads: AtomicU64,
}

impl AccessLog {
    /// No log.
    pub(super) fn none() -> Self {
        Self(None)
    }

    /// Begins to write `file`, until all clones are dropped.
    pub(super) fn begin(file: &Path, bytes_max: u64, read_sample: f64, problems: NodeProblems, tasks: &TaskTracker) -> Self {
        let (log, queued) = Self::queue(read_sample);
        let mut writer = Writer { file: file.to_owned(), bytes_max, open: None, problems };
        tasks.spawn_blocking(move || writer.run(queued));
        log
    }

    fn queue(read_sample: f64) -> (Self, mpsc::Receiver<Line>) {
        let (lines, queued) = mpsc::channel(QUEUE_LEN_MAX);
        // At least one in 2^53: nothing is lost by the conversion.
        let read_interval = if read_sample > 0.0 { (1.0 / read_sample).round() as u64 } else { 0 };
        (Self(Some(Arc::new(Queue { lines, lost: AtomicU64::new(0), read_interval, reads: AtomicU64::new(0) }))), queued)
    }

    /// The entry of a request that begins.
    pub(super) fn entry(&self, begun: Begun) -> Entry {
        Entry { log: self.clone(), begun: Some(begun), ended: Ended::default() }
    }

    /// Adds the line of a request that has ended.
    fn add(&self, begun: Begun, ended: Ended) {
        let Some(queue) = &self.0 else { return };
        if !begun.is_always_logged(ended) && !queue.takes_sample() {
            return;
        }
        let lost = queue.lost.swap(0, Ordering::Relaxed);
        let line = Line {
            time: clock::now(),
            address: begun.address,
            account: begun.account,
            token: begun.token,
            method: begun.method,
            path: begun.path,
            status: ended.status,
            grpc_status: ended.grpc_status,
            ms: lattice_model::millis(begun.began.elapsed()),
            bytes: ended.bytes,
            lost,
        };
        if queue.lines.try_send(line).is_err() {
            queue.lost.fetch_add(lost + 1, Ordering::Relaxed);
        }
    }
}

impl Queue {
    fn takes_sample(&self) -> bool {
        self.read_interval > 0 && self.reads.fetch_add(1, Ordering::Relaxed).is_multiple_of(self.read_interval)
    }
}

/// Writes the file.
struct Writer {
    file: PathBuf,
    bytes_max: u64,
    open: Option<(File, u64)>,
    problems: NodeProblems,
}

impl Writer {
    fn run(&mut self, mut queued: mpsc::Receiver<Line>) {
        let mut failed_at: Option<Instant> = None;
        while let Some(line) = queued.blocking_recv() {
            // After a failure, at most one line a second is tried: the disk may be full.
            if failed_at.is_some_and(|at| at.elapsed() < Duration::from_secs(1)) {
                continue;
            }
            match self.write(&line) {
                Ok(()) if failed_at.take().is_some() => self.problems.clear(PROBLEM),
                Ok(()) => {}
                Err(error) => {
                    self.open = None;
                    if failed_at.replace(Instant::now()).is_none() {
                        tracing::warn!(%error, file = %self.file.display(), "the access log cannot be written");
                        self.problems.set(PROBLEM, format!("{}: {error}; lines are missing", self.file.display()));
                    }
                }
            }
        }
    }

    fn write(&mut self, line: &Line) -> io::Result<()> {
        let mut text = serde_json::to_string(line).map_err(io::Error::other)?;
        text.push('\n');
        let added = text.len() as u64;
        if self.open.as_ref().is_some_and(|(_, bytes)| bytes + added > self.bytes_max) {
            self.open = None;
            self.rotate()?;
        }
        let (file, bytes) = match &mut self.open {
            Some(open) => open,
            None => {
                let file = OpenOptions::new().create(true).append(true).mode(0o600).open(&self.file)?;
                let bytes = file.metadata()?.len();
                self.open.insert((file, bytes))
            }
        };
        if let Err(error) = file.write_all(text.as_bytes()) {
            // Half a line would make the next line invalid.
            let _ = file.set_len(*bytes);
            return Err(error);
        }
        *bytes += added;
        Ok(())
    }

    fn rotate(&self) -> io::Result<()> {
        for number in (1..OLD_FILES_MAX).rev() {
            match std::fs::rename(self.old(number), self.old(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        std::fs::rename(&self.file, self.old(1))
    }

    fn old(&self, number: u32) -> PathBuf {
        let mut name = self.file.clone().into_os_string();
        name.push(format!(".{number}"));
        name.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unknown(is_change: bool) -> Begun {
        Begun::new([10, 0, 0, 1].into(), "POST", "/api/v1/allocations", is_change)
    }

    fn begun(is_change: bool) -> Begun {
        let mut request = unknown(is_change);
        request.identified("alice", "00000000000000ab".to_owned());
        request
    }

    fn lines(queued: &mut mpsc::Receiver<Line>) -> Vec<Line> {
        std::iter::from_fn(|| queued.try_recv().ok()).collect()
    }

    #[test]
    fn changes_are_all_logged_and_reads_sampled() {
        let (log, mut queued) = AccessLog::queue(0.25);
        (0..8).for_each(|_| log.add(begun(false), Ended::default()));
        assert_eq!(lines(&mut queued).len(), 2);
        (0..8).for_each(|_| log.add(begun(true), Ended::default()));
        assert_eq!(lines(&mut queued).len(), 8);
        let (log, mut queued) = AccessLog::queue(0.0);
        log.add(begun(false), Ended::default());
        assert!(lines(&mut queued).is_empty());
    }

    #[test]
    fn without_an_account_refused_tokens_are_logged_and_the_rest_sampled() {
        let (log, mut queued) = AccessLog::queue(0.0);
        let ended = |status, grpc_status| Ended { status, grpc_status, bytes: 0 };
        for refused in [ended(0, None), ended(403, None), ended(429, None), ended(200, Some(8))] {
            log.add(unknown(true), refused);
        }
        assert!(lines(&mut queued).is_empty());
        log.add(unknown(true), ended(401, None));
        log.add(unknown(true), ended(200, Some(16)));
        log.add(unknown(false), ended(401, None));
        assert_eq!(lines(&mut queued).len(), 2);
    }

    #[test]
    fn a_request_is_logged_although_its_caller_disconnects() {
        let (log, mut queued) = AccessLog::queue(0.0);
        let mut entry = log.entry(unknown(true));
        entry.identified("alice", "00000000000000ab".to_owned());
        assert!(lines(&mut queued).is_empty());
        drop(entry);
        let logged = lines(&mut queued);
        assert_eq!((logged.len(), logged[0].status, logged[0].account.as_deref()), (1, 0, Some("alice")));
    }

    #[test]
    fn lines_that_a_full_queue_drops_are_counted_in_the_next_line() {
        let (log, mut queued) = AccessLog::queue(1.0);
        (0..QUEUE_LEN_MAX + 3).for_each(|_| log.add(begun(true), Ended::default()));
        assert_eq!(lines(&mut queued).len(), QUEUE_LEN_MAX);
        log.add(begun(true), Ended::default());
        assert_eq!(lines(&mut queued)[0].lost, 3);
        log.add(begun(true), Ended::default());
        assert_eq!(lines(&mut queued)[0].lost, 0);
    }

    #[test]
    fn a_line_is_json_with_a_bounded_path() {
        let (log, mut queued) = AccessLog::queue(1.0);
        let mut request = Begun::new([10, 0, 0, 1].into(), &"A".repeat(1000), &"é".repeat(1000), true);
        request.identified("alice", "00000000000000ab".to_owned());
        log.add(request, Ended { status: 200, grpc_status: Some(7), bytes: 12 });
        let line = serde_json::to_value(&lines(&mut queued)[0]).unwrap();
        assert_eq!((&line["account"], &line["token"], &line["address"]), (&"alice".into(), &"00000000000000ab".into(), &"10.0.0.1".into()));
        assert_eq!((&line["status"], &line["grpc_status"], &line["bytes"]), (&200.into(), &7.into(), &12.into()));
        assert_eq!((&line["path"], &line["method"]), (&"é".repeat(PATH_BYTES_MAX / 2).into(), &"A".repeat(METHOD_BYTES_MAX).into()));
        assert!(line["time"].as_str().unwrap().ends_with('Z') && line.get("lost").is_none(), "{line}");
    }

    #[test]
    fn a_full_file_is_renamed_and_a_few_old_ones_are_retained() {
        let dir = std::env::temp_dir().join(format!("lattice-access-log-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir(&dir).unwrap();
        let (log, queued) = AccessLog::queue(1.0);
        let problems = NodeProblems::default();
        let mut writer = Writer { file: dir.join("log"), bytes_max: 1, open: None, problems: problems.clone() };
        (0..8).for_each(|_| log.add(begun(true), Ended::default()));
        drop(log);
        writer.run(queued);
        let files = std::fs::read_dir(&dir).unwrap();
        let mut names: Vec<String> = files.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        assert_eq!(names, ["log", "log.1", "log.2", "log.3", "log.4"]);
        assert_eq!(std::fs::read_to_string(dir.join("log.4")).unwrap().lines().count(), 1);
        // Without its directory the log is a problem of the node.
        std::fs::remove_dir_all(&dir).unwrap();
        let (log, queued) = AccessLog::queue(1.0);
        log.add(begun(true), Ended::default());
        drop(log);
        Writer { file: dir.join("log"), bytes_max: 1, open: None, problems: problems.clone() }.run(queued);
        assert!(problems.lines()[0].starts_with("access log of the API: "), "{:?}", problems.lines());
    }
}
