//! HyperQueue on loopback, for comparison: a server and a worker.

use super::commands::time_of;
use crate::process::{Identity, run, spawn_detached, tail, until};
use crate::{interrupt, machine};
use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Names the program where it is not on the path.
const PROGRAM_VARIABLE: &str = "LATTICE_LAB_HQ";
/// How long its server, and then its worker, may take to start.
const START_LIMIT: Duration = Duration::from_secs(20);
/// How long one of its commands may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// How long its processes may take to end after they were asked to.
const END_LIMIT: Duration = Duration::from_secs(10);

/// A running HyperQueue; its processes are ended on drop.
pub struct HyperQueue {
    program: PathBuf,
    dir: PathBuf,
    processes: Vec<Identity>,
}

impl HyperQueue {
    /// Starts it in `dir` with a worker of this many processors, if it is installed; otherwise notes that it is not.
    pub fn start(dir: &Path, cpus: usize, notes: &mut Vec<String>) -> Result<Option<Self>> {
        let named = std::env::var_os(PROGRAM_VARIABLE).map(PathBuf::from);
        let Some(program) = named.or_else(|| machine::find("hq")) else {
            notes.push(format!(
                "HyperQueue is not here: there is no `hq` on the path, and {PROGRAM_VARIABLE} names none. Nothing is compared with it"
            ));
            return Ok(None);
        };
        eprintln!("bench: starting HyperQueue");
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let mut started = Self { program, dir: dir.to_owned(), processes: Vec::new() };
        let version = started.answer(&["--version"])?;
        started.spawn("server", &["server", "start", "--host", "127.0.0.1"])?;
        started.wait_for("server", || started.answer(&["server", "info"]).is_ok())?;
        let cpus = cpus.to_string();
        started.spawn("worker", &["worker", "start", "--cpus", &cpus, "--hostname", "localhost"])?;
        started.wait_for("worker", || started.answer(&["worker", "list"]).is_ok_and(|list| list.contains("RUNNING")))?;
        notes.push(format!("HyperQueue: {}, one server and one worker with --cpus {cpus}, no journal", version.trim()));
        Ok(Some(started))
    }

    /// Submits an array of this many tasks, and waits for its end.
    pub fn run(&self, tasks: u32) -> Result<Duration> {
        let array = format!("1-{tasks}");
        time_of(&mut self.command(&["submit", "--wait", "--array", &array, "--stdout", "none", "--stderr", "none", "/bin/true"]))
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).env("HQ_SERVER_DIR", self.dir.join("server")).current_dir(&self.dir);
        command
    }

    fn answer(&self, args: &[&str]) -> Result<String> {
        let done = run(&mut self.command(args), ANSWER_LIMIT)?;
        ensure!(done.code() == 0, "`hq {}` ended with {}: {}", args.join(" "), done.code(), done.err().trim());
        Ok(done.out())
    }

    fn log(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.log"))
    }

    fn spawn(&mut self, name: &str, args: &[&str]) -> Result<()> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let server = self.dir.join("server").to_string_lossy().into_owned();
        let process = spawn_detached(&self.program, &args, &[("HQ_SERVER_DIR", &server)], &self.log(name))?;
        self.processes.push(process);
        Ok(())
    }

    fn wait_for(&self, name: &str, is_there: impl Fn() -> bool) -> Result<()> {
        let started = until(START_LIMIT, || interrupt::came().is_some() || is_there());
        interrupt::check()?;
        ensure!(started, "HyperQueue's {name} does not start within {} s:\n{}", START_LIMIT.as_secs(), tail(&self.log(name), 12));
        Ok(())
    }
}

impl Drop for HyperQueue {
    fn drop(&mut self) {
        // Its own commands end the worker's tasks too.
        let _ = self.answer(&["worker", "stop", "all"]);
        let _ = self.answer(&["server", "stop"]);
        for process in self.processes.iter().rev() {
            let _ = process.signal(Signal::SIGTERM);
            if !process.gone_within(END_LIMIT) {
                let _ = process.kill();
            }
        }
    }
}
