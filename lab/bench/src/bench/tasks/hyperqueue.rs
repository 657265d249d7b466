//! HyperQueue on this machine, for comparison: a server and a worker in a process of Python, with the package
//! `hyperqueue` of PyPI.

use anyhow::{Context, Result, ensure};
use lattice_lab::interrupt;
use lattice_lab::process::{tail, until};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Names the Python that has the package, if that is not `python3`.
const PYTHON_VARIABLE: &str = "LATTICE_LAB_HQ_PYTHON";
const PROGRAM: &str = include_str!("hyperqueue.py");
/// How long its start may take, and all tasks of a job.
const ANSWER_LIMIT: Duration = Duration::from_secs(240);
/// How many of its last lines an error contains.
const LOG_LINES_SHOWN: usize = 5;

/// A running HyperQueue. Its server and its worker are threads of one process, which is ended on drop.
pub struct HyperQueue {
    python: Child,
    talk: RefCell<(ChildStdin, BufReader<ChildStdout>)>,
    folder: Folder,
}

/// The folder of all its files, which is removed on drop. Its path is short: HyperQueue has a Unix socket there.
struct Folder(PathBuf);

impl Folder {
    fn make() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("lattice-hq-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }

    /// What it and Python print.
    fn log(&self) -> PathBuf {
        self.0.join("log")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("bench: cannot remove {}: {error}", self.0.display());
        }
    }
}

impl HyperQueue {
    /// Starts it with a worker of this many cores, if it is installed; otherwise notes that it is not.
    pub fn start(cores: usize, notes: &mut Vec<String>) -> Result<Option<Self>> {
        let python = std::env::var_os(PYTHON_VARIABLE).unwrap_or_else(|| "python3".into());
        let found = Command::new(&python).args(["-c", "import hyperqueue"]).stdin(Stdio::null()).stderr(Stdio::null()).status();
        if !found.is_ok_and(|status| status.success()) {
            notes.push(format!(
                "HyperQueue is not here: {} has no package `hyperqueue` ({PYTHON_VARIABLE} names another Python). Nothing is \
                 compared with it",
                python.display()
            ));
            return Ok(None);
        }
        eprintln!("bench: starting HyperQueue");
        let folder = Folder::make()?;
        let log = File::create(folder.log()).with_context(|| format!("cannot make {}", folder.log().display()))?;
        let mut command = Command::new(&python);
        command.args(["-c", PROGRAM, &cores.to_string()]).arg(&folder.0).env("TMPDIR", &folder.0);
        let mut python = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn().context("cannot start Python")?;
        let input = python.stdin.take().context("Python has no input")?;
        let output = python.stdout.take().context("Python has no output")?;
        let started = Self { python, talk: RefCell::new((input, BufReader::new(output))), folder };
        let version = started.read_line()?;
        notes.push(format!("HyperQueue {version} of PyPI: one server, and one worker with {cores} cores, without a journal"));
        Ok(Some(started))
    }

    /// Submits a job of this many tasks, and waits for its end. The time is that of the client's calls.
    pub fn run(&self, tasks: u32) -> Result<Duration> {
        writeln!(self.talk.borrow_mut().0, "{tasks}").with_context(|| self.end())?;
        let seconds: f64 = self.read_line()?.parse().context("HyperQueue answered with no number")?;
        Duration::try_from_secs_f64(seconds).context("HyperQueue answered with no time")
    }

    /// Its next line. It writes whole lines, one for each that it reads, so nothing is left from an earlier answer.
    fn read_line(&self) -> Result<String> {
        let mut talk = self.talk.borrow_mut();
        let output = &mut talk.1;
        let has_answered = until(ANSWER_LIMIT, || {
            let mut readable = [PollFd::new(output.get_ref().as_fd(), PollFlags::POLLIN)];
            interrupt::came().is_some() || poll(&mut readable, PollTimeout::ZERO) != Ok(0)
        });
        interrupt::check()?;
        ensure!(has_answered, "HyperQueue has not answered after {} s", ANSWER_LIMIT.as_secs());
        let mut line = String::new();
        output.read_line(&mut line).context("HyperQueue does not answer")?;
        ensure!(!line.is_empty(), "{}", self.end());
        Ok(line.trim().to_owned())
    }

    /// The text of an error: it has ended, and its last lines.
    fn end(&self) -> String {
        format!("HyperQueue has ended: {}", tail(&self.folder.log(), LOG_LINES_SHOWN))
    }
}

impl Drop for HyperQueue {
    fn drop(&mut self) {
        let _ = self.python.kill();
        let _ = self.python.wait();
    }
}
