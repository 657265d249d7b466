//! HyperQueue on this machine, for comparison: a server and a worker in a process of Python, with the package
//! `hyperqueue` of PyPI.

use anyhow::{Context, Result, ensure};
use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Names the Python that has the package, where that is not `python3`.
const PYTHON_VARIABLE: &str = "LATTICE_LAB_HQ_PYTHON";
const PROGRAM: &str = include_str!("hyperqueue.py");

/// A running HyperQueue; its processes are ended on drop.
pub struct HyperQueue {
    python: Child,
    talk: RefCell<(ChildStdin, BufReader<ChildStdout>)>,
}

impl HyperQueue {
    /// Starts it with a worker of this many processors, if it is installed; otherwise notes that it is not.
    pub fn start(cpus: usize, notes: &mut Vec<String>) -> Result<Option<Self>> {
        let python = std::env::var_os(PYTHON_VARIABLE).unwrap_or_else(|| "python3".into());
        let found = Command::new(&python).args(["-c", "import hyperqueue"]).stderr(Stdio::null()).status();
        if !found.is_ok_and(|status| status.success()) {
            notes.push(format!(
                "HyperQueue is not here: {} has no package `hyperqueue` ({PYTHON_VARIABLE} names another Python). Nothing is \
                 compared with it",
                python.display()
            ));
            return Ok(None);
        }
        eprintln!("bench: starting HyperQueue");
        let mut command = Command::new(&python);
        command.args(["-c", PROGRAM, &cpus.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut python = command.spawn().context("cannot start Python")?;
        let input = python.stdin.take().context("Python has no input")?;
        let output = python.stdout.take().context("Python has no output")?;
        let started = Self { python, talk: RefCell::new((input, BufReader::new(output))) };
        let version = started.read_line()?;
        notes.push(format!("HyperQueue {version} of PyPI: one server, and one worker with {cpus} cores, without a journal"));
        Ok(Some(started))
    }

    /// Submits a job of this many tasks, and waits for its end. The time is that of the client's calls.
    pub fn run(&self, tasks: u32) -> Result<Duration> {
        writeln!(self.talk.borrow_mut().0, "{tasks}").context("HyperQueue has ended")?;
        let seconds: f64 = self.read_line()?.parse().context("HyperQueue answered with no number")?;
        Duration::try_from_secs_f64(seconds).context("HyperQueue answered with no time")
    }

    fn read_line(&self) -> Result<String> {
        let mut line = String::new();
        self.talk.borrow_mut().1.read_line(&mut line).context("HyperQueue does not answer")?;
        ensure!(!line.is_empty(), "HyperQueue has ended");
        Ok(line.trim().to_owned())
    }
}

impl Drop for HyperQueue {
    fn drop(&mut self) {
        let _ = self.python.kill();
        let _ = self.python.wait();
    }
}
