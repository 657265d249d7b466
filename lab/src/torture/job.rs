//! One job of a torture, and the command line that submits it.

use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

/// The largest number of requeues of an allocation, unless its submission sets another one.
pub const REQUEUES_MAX: u64 = 3;
/// Lines of a `lattice launch` into a job from outside.
pub const OUTSIDE_LINES: u32 = 20;

/// The kind of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Kind {
    /// A command on all its ranks.
    Command,
    /// A script that launches its ranks itself.
    Script,
    /// Ranks that find each other by PMI-1, and agree on each line.
    Ring,
    /// A command in an image.
    Image,
    /// A command that runs until its walltime ends it.
    Walltime,
    /// A command that runs until it is cancelled.
    Cancelled,
    /// Another launch is started in it from outside.
    Outside,
    /// A `lattice launch` that is a job of its own, and waits for its end.
    Foreground,
}

/// When it is put back into the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Requeue {
    Never,
    OnNodeFailure,
    Always,
}

/// One job.
#[derive(Clone, Debug, Serialize)]
pub struct Job {
    /// From 1. Its name is `t` and this number.
    pub number: u32,
    /// When it is submitted, in milliseconds after the beginning.
    pub at_ms: u64,
    pub kind: Kind,
    /// The number of the node whose agent gets it, if that agent runs.
    pub via: u64,
    pub nodes: u64,
    /// Tasks on each node.
    pub tasks: u64,
    /// Whether it uses whole nodes; else as many cores as it has tasks there.
    pub whole_nodes: bool,
    /// Lines of each rank.
    pub lines: u32,
    /// Milliseconds before each line.
    pub interval_ms: u64,
    pub exit_code: u8,
    /// `--on-isolation=stop`.
    pub stops: bool,
    pub requeue: Requeue,
    pub walltime_s: u64,
    /// Milliseconds between the answer to the submission and the cancellation.
    pub cancel_after_ms: Option<u64>,
}

/// Paths that jobs need.
#[derive(Clone, Debug)]
pub struct Place {
    /// The program `lattice-lab`.
    pub lab: PathBuf,
    /// The program `lattice`.
    pub lattice: PathBuf,
    /// The file of all traces.
    pub traces: PathBuf,
    /// An image with a README; none if this machine cannot mount it.
    pub image: Option<PathBuf>,
    /// The directory for scripts.
    pub scripts: PathBuf,
}

impl Job {
    /// Its name in the cluster.
    pub fn name(&self) -> String {
        format!("t{}", self.number)
    }

    /// The number of all ranks.
    pub fn ranks(&self) -> u32 {
        u32::try_from(self.nodes * self.tasks).unwrap_or(u32::MAX)
    }

    /// The arguments of `lattice` that submit it, or run it if it is a launch.
    pub fn arguments(&self, place: &Place) -> Vec<String> {
        let mut arguments: Vec<String> = match self.kind {
            Kind::Foreground => vec!["launch".to_owned()],
            _ => ["submit", "-o", "name"].map(str::to_owned).into(),
        };
        let mut add = |words: &[&str]| arguments.extend(words.iter().map(|word| (*word).to_owned()));
        add(&["--name", &self.name(), "--export", "none"]);
        add(&["--nodes", &self.nodes.to_string(), "--tasks-per-node", &self.tasks.to_string()]);
        if !self.whole_nodes {
            add(&["--cores", &self.tasks.to_string()]);
        }
        add(&["--walltime", &format!("{}s", self.walltime_s)]);
        if self.stops {
            add(&["--on-isolation", "stop"]);
        }
        match self.requeue {
            Requeue::OnNodeFailure => {}
            Requeue::Never => add(&["--requeue=never"]),
            Requeue::Always => add(&["--requeue=always"]),
        }
        if let (Kind::Image, Some(image)) = (self.kind, &place.image) {
            add(&["--uenv", &image.to_string_lossy()]);
        }
        match self.kind {
            Kind::Script => arguments.push(self.script(place).to_string_lossy().into_owned()),
            _ => {
                if self.kind != Kind::Foreground {
                    arguments.push("--".to_owned());
                }
                arguments.extend(self.work(place));
            }
        }
        arguments
    }

    /// The command line of one rank.
    fn work(&self, place: &Place) -> Vec<String> {
        let mut line = work(place, "main", self.lines, self.interval_ms);
        line.extend(["--exit-code".to_owned(), self.exit_code.to_string()]);
        if self.kind == Kind::Ring {
            line.push("--ring".to_owned());
        }
        if self.kind == Kind::Image && place.image.is_some() {
            line.extend(["--file".to_owned(), format!("{}/README", crate::image::MOUNT_POINT)]);
        }
        line
    }

    fn script(&self, place: &Place) -> PathBuf {
        place.scripts.join(format!("{}.sh", self.name()))
    }

    /// The script's path and text, if it is a script.
    pub fn script_text(&self, place: &Place) -> Option<(PathBuf, String)> {
        let line = self.work(place).join(" ");
        (self.kind == Kind::Script).then(|| (self.script(place), format!("#!/bin/sh\nexec {} launch {line}\n", place.lattice.display())))
    }
}

/// The arguments of a launch into an allocation from outside.
pub fn outside(place: &Place, allocation: &str) -> Vec<String> {
    let launch = ["launch", "--alloc", allocation, "--export", "none", "-n", "1"].map(str::to_owned);
    launch.into_iter().chain(work(place, "outside", OUTSIDE_LINES, 50)).collect()
}

fn work(place: &Place, part: &str, lines: u32, interval_ms: u64) -> Vec<String> {
    let (lab, traces) = (place.lab.to_string_lossy().into_owned(), place.traces.to_string_lossy().into_owned());
    let (lines, interval_ms) = (lines.to_string(), interval_ms.to_string());
    let options = ["torture-work", "--traces", &traces, "--part", part, "--lines", &lines, "--interval-ms", &interval_ms];
    std::iter::once(lab).chain(options.map(str::to_owned)).collect()
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nodes, tasks, lines, interval_ms, exit_code, requeue, walltime_s, via, .. } = self;
        write!(f, "{}: {:?} by n{via}, {nodes} node(s) x {tasks}, {lines} lines each {interval_ms} ms", self.name(), self.kind)?;
        write!(f, ", exit code {exit_code}, requeue {requeue:?}, walltime {walltime_s} s")?;
        let also = [(self.whole_nodes, ", whole nodes"), (self.stops, ", stops when isolated")];
        also.iter().filter(|(is, _)| *is).try_for_each(|(_, text)| f.write_str(text))?;
        self.cancel_after_ms.map_or(Ok(()), |after_ms| write!(f, ", cancelled {after_ms} ms after the answer"))
    }
}
