//! Simulated agents in a process of their own, which the bench starts, queries and ends. So their memory and sockets are
//! separate from the bench's, and there can be more agents than one process may have open files.
//!
//! ```text
//!   bench                                                 simulated-agents
//!     start ───────────────────────────────────────────▶ issues certificates
//!     ◀── "prepared" ─────────────────────────────────────
//!     "open" ──────────────────────────────────────────▶ all register
//!     "totals" or "progress" ──────────────────────────▶
//!     ◀── a line of JSON (or of the error) ───────────────   … again and again
//!     its end of the pipe closes ──────────────────────▶ ends
//! ```

use super::agents::{Agents, Conduct, Crowd, Prepared, Progress, Totals};
use crate::cluster::Cluster;
use crate::machine;
use anyhow::{Context, Result, bail, ensure};
use lattice_agent_common::limits::raise_open_files;
use nix::errno::Errno;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

const PREPARED: &str = "prepared";
const OPEN: &str = "open";
const TOTALS: &str = "totals";
const PROGRESS: &str = "progress";

/// The agents of one process. A hidden command of the lab has these options.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The cluster's folder
    #[arg(long)]
    pub dir: PathBuf,
    /// The number of the first agent
    #[arg(long)]
    pub first: usize,
    /// How many agents
    #[arg(long)]
    pub count: usize,
    /// How many of them, the first ones, have role api
    #[arg(long)]
    pub followers: usize,
    /// The interval of heartbeats, in milliseconds
    #[arg(long)]
    pub heartbeat_ms: u64,
}

/// The agents' counts, and the memory of their process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Answer {
    /// The agents' counts.
    pub totals: Totals,
    /// Resident memory before the first agent was made, in bytes, without pages of files such as the program.
    pub resident_before: u64,
    /// The same now.
    pub resident: u64,
}

/// Runs the agents until standard input ends.
pub fn run(options: &Options) -> Result<()> {
    raise_open_files();
    let cluster = Cluster::load(&options.dir)?;
    let resident_before = resident()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().context("the runtime")?;
    let _inside = runtime.enter();
    let conduct = Conduct::Whole { followers: options.followers };
    let interval = Duration::from_millis(options.heartbeat_ms);
    let mut prepared = Some(Prepared::new(&cluster, Crowd { first: options.first, count: options.count, interval, conduct })?);
    let mut agents: Option<Agents> = None;
    let mut has_trimmed = false;
    answer(&PREPARED)?;
    for line in std::io::stdin().lock().lines() {
        match line.context("the bench's requests")?.as_str() {
            OPEN => agents = prepared.take().map(Prepared::open),
            TOTALS => {
                let agents = agents.as_mut().context("the agents are not open")?;
                agents.check()?;
                let totals = agents.totals();
                if totals.listed == options.count && !std::mem::replace(&mut has_trimmed, true) {
                    // The memory of the lists that the agents have read and not stored.
                    machine::return_freed_memory();
                }
                answer(&Answer { totals, resident_before, resident: resident()? })?;
            }
            PROGRESS => {
                let agents = agents.as_mut().context("the agents are not open")?;
                agents.check()?;
                answer(&agents.progress())?;
            }
            other => bail!("{other:?} is no request to simulated agents"),
        }
    }
    Ok(())
}

fn answer(answer: &impl Serialize) -> Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, answer)?;
    out.write_all(b"\n")?;
    out.flush().context("the bench does not read")
}

fn resident() -> Result<u64> {
    machine::anonymous_memory_of(i32::try_from(std::process::id())?).context("this process's memory")
}

/// How much lower the priority of simulated agents is than that of members: agents have their own machines.
const NICE: libc::c_int = 10;

/// A running process with simulated agents. It ends when this is dropped.
pub struct AgentProcess {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl AgentProcess {
    /// Starts the process with the lab's own program, and waits until its agents have certificates.
    pub fn start(lab: &Path, options: &Options) -> Result<Self> {
        let mut command = Command::new(lab);
        command.arg("simulated-agents").arg("--dir").arg(&options.dir);
        for (option, value) in [
            ("--first", options.first),
            ("--count", options.count),
            ("--followers", options.followers),
            ("--heartbeat-ms", usize::try_from(options.heartbeat_ms)?),
        ] {
            command.arg(option).arg(value.to_string());
        }
        // SAFETY: setpriority(2) is async-signal-safe, and changes the new process alone.
        unsafe {
            command.pre_exec(|| Errno::result(libc::setpriority(libc::PRIO_PROCESS, 0, NICE)).map(drop).map_err(io::Error::from));
        }
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().with_context(|| format!("cannot start {}", lab.display()))?;
        let requests = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().context("its output")?);
        let mut this = Self { child, requests, answers };
        let said: String = this.read()?;
        ensure!(said == PREPARED, "simulated agents said {said:?} instead of {PREPARED:?}");
        Ok(this)
    }

    /// Its pid.
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Lets all agents register.
    pub fn open(&mut self) -> Result<()> {
        self.request(OPEN)
    }

    /// The agents' counts. An error says that an agent, or the process, has ended.
    pub fn totals(&mut self) -> Result<Answer> {
        self.request(TOTALS)?;
        self.read()
    }

    /// The course of the agents' shares, sessions and watches.
    pub fn progress(&mut self) -> Result<Progress> {
        self.request(PROGRESS)?;
        self.read()
    }

    fn request(&mut self, request: &str) -> Result<()> {
        let requests = self.requests.as_mut().context("the process with simulated agents is ending")?;
        writeln!(requests, "{request}").context("the process with simulated agents has ended; its error is above")
    }

    fn read<T: for<'a> Deserialize<'a>>(&mut self) -> Result<T> {
        let mut line = String::new();
        self.answers.read_line(&mut line).context("the answer of simulated agents")?;
        ensure!(!line.is_empty(), "the process with simulated agents has ended; its error is above");
        serde_json::from_str(&line).with_context(|| format!("simulated agents answered {line:?}"))
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        drop(self.requests.take());
        // Ten thousand connections take long to close one by one, and nobody needs that.
        let _ended_already = self.child.kill();
        let _reaped = self.child.wait();
    }
}
