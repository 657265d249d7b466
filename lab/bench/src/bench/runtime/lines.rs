//! How long a line takes from its program to a following reader.

use anyhow::{Context, Result, bail};
use lattice_lab::lattice::Lattice;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A program that prints the time at intervals, for longer than any bench.
const CLOCK: &str = "while sleep 0.05; do date +%s%N; done";
/// No line for this long means that none will come.
const LINE_TIMEOUT: Duration = Duration::from_secs(20);

/// Two programs that print the time, and their readers: one job followed by `logs -f`, one plain program followed by
/// `tail -f`.
pub struct Lines {
    children: Vec<Child>,
    job: Reader,
    plain: Reader,
}

struct Reader(Mutex<Receiver<Duration>>);

impl Lines {
    pub fn begin(lattice: &Lattice, dir: &Path) -> Result<Self> {
        let job = ["submit", "-o", "name", "--name", "clock", "--nodes", "1", "--walltime", "1h", "--", "/bin/sh", "-c", CLOCK];
        let id = lattice.ok(&job)?.trim().to_owned();
        let mut follower = lattice.command(&["logs", "-f", id.as_str()]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let job = Reader::of(&mut follower)?;
        let path = dir.join("clock");
        let file = std::fs::File::options().create(true).append(true).open(&path)?;
        let plain_clock = Command::new("/bin/sh").args(["-c", CLOCK]).stdin(Stdio::null()).stdout(file).spawn()?;
        let mut tail = Command::new("tail").args(["-n", "0", "-f"]).arg(&path).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let plain = Reader::of(&mut tail)?;
        Ok(Self { children: vec![follower, plain_clock, tail], job, plain })
    }

    /// The age of a job's next line when `logs -f` receives it.
    pub fn followed(&self) -> Result<Duration> {
        self.job.next()
    }

    /// The age of a plain program's next line when `tail -f` receives it.
    pub fn tailed(&self) -> Result<Duration> {
        self.plain.next()
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Reader {
    /// Reads lines while they arrive and records the age of each.
    fn of(child: &mut Child) -> Result<Self> {
        let lines = BufReader::new(child.stdout.take().context("its output")?).lines();
        let (ages, receiver) = channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let printed = line.trim().parse().map(Duration::from_nanos).unwrap_or(now);
                if ages.send(now.saturating_sub(printed)).is_err() {
                    return;
                }
            }
        });
        Ok(Self(Mutex::new(receiver)))
    }

    fn next(&self) -> Result<Duration> {
        let ages = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // Lines that arrived during other measurements do not count.
        while ages.try_recv().is_ok() {}
        match ages.recv_timeout(LINE_TIMEOUT) {
            Ok(age) => Ok(age),
            Err(RecvTimeoutError::Timeout) => bail!("no line for {} s", LINE_TIMEOUT.as_secs()),
            Err(RecvTimeoutError::Disconnected) => bail!("the reader ended"),
        }
    }
}
