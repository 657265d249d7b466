//! `bench commands`: how long the commands that Slurm's users type take, beside Slurm's own and beside ours of the same
//! meaning.

use super::figures::{Figure, Report, Target};
use super::options::Options;
use super::slurm::{self, Shape, Slurm};
use super::subject::{self, Subject};
use super::surroundings::{hold, slow_files};
use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_lab::binaries::Binaries;
use lattice_lab::cluster::Cluster;
use lattice_lab::down::{self, Guard};
use lattice_lab::interrupt;
use lattice_lab::lattice::Lattice;
use lattice_lab::machine::{self, Machine};
use lattice_lab::up::{self, Options as UpOptions};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use uuid::Uuid;

/// The jobs that `squeue` lists.
const JOBS: usize = 10_000;
/// Submissions at the same time while the queue is filled.
const SUBMISSIONS_AT_ONCE: usize = 32;
/// Limit of `squeue` over all jobs, in milliseconds.
const LIST_MS: f64 = 200.0;
/// Limit of `sbatch`, in milliseconds.
const SUBMIT_MS: f64 = 10.0;
/// A program inside an allocation, relative to Slurm's own srun.
const SRUN_RATIO: f64 = 0.15;
/// The names of the figures' subjects.
const SUBMIT: &str = "sbatch --hold --wrap true";
const LIST: &str = "squeue";
const RUN: &str = "srun -n 1 /bin/true inside an allocation";
const STATUS: &str = "lattice status --all";
const LAUNCH: &str = "lattice launch -n 1 -- /bin/true";
const PLAIN: &str = "lattice submit --hold -- true";
const SLURM_SUBMIT: &str = "Slurm's sbatch";
const SLURM_LIST: &str = "Slurm's squeue -r, an array of as many";
const SLURM_RUN: &str = "Slurm's srun";

/// As many tasks of one array as there are jobs.
const LARGE: Shape = Shape { nodes: 2, cpus: 2, lines: "MaxArraySize=20001\nMaxJobCount=40000\n" };

/// Starts the cluster, measures, and removes it again.
pub fn run(dir: Option<&Path>, options: &Options) -> Result<Report> {
    options.validate()?;
    let machine = Machine::look();
    let binaries = Binaries::beside_lab()?;
    if !options.no_build {
        binaries.build()?;
    }
    let own = std::env::temp_dir().join(format!("lattice-bench-commands-{}", std::process::id()));
    let dir = dir.unwrap_or(&own);
    interrupt::watch();
    let before = machine::cpu_pressure();
    let up_options = UpOptions { build: false, agents_dir: options.agents_dir.clone(), ..UpOptions::new(2, 3, dir) };
    let guard = Guard::new(dir);
    eprintln!("bench: starting three members and two agents");
    let cluster = up::up(&up_options.with_audit_as_documented())?;
    let mut notes = Vec::from_iter(slow_files(&cluster));
    let measured = measure(&cluster, &machine, options, &mut notes);
    down::require_gone(&guard.down(Duration::from_secs(10))?)?;
    let profile = binaries.profile();
    if profile == "debug" {
        notes.push("these are debug binaries: run the bench with --release before believing a miss".to_owned());
    }
    let cpu_pressure = [before, machine::cpu_pressure()];
    Ok(Report { bench: "commands", profile, cpu_pressure, machine, figures: measured?, notes })
}

fn measure(cluster: &Cluster, machine: &Machine, options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let lattice = Lattice::to(cluster, "n1")?;
    lattice.ok(&["admin", "limits", "--user-submissions-per-second", "none", "--user-pending", "none"])?;
    let commands = cluster.dir.join("slurm-commands");
    std::fs::create_dir_all(&commands).with_context(|| format!("cannot make {}", commands.display()))?;
    lattice.ok(&["compat", "install", "--dir", &commands.to_string_lossy()])?;
    let held = hold(&lattice, 1)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(fill(cluster))?;
    let slurm = slurm::start(cluster, machine, options, &LARGE, notes)?;
    let slurm = slurm.map(Slurm::with_held_node).transpose()?;
    if let Some(slurm) = &slurm {
        slurm.answer("sbatch", &["--hold", &format!("--array=0-{}", JOBS - 1), "--wrap", "true"])?;
    }
    let ours = OurCommands { dir: commands, lattice: lattice.clone() };
    let mut subjects = vec![
        Subject::new(SUBMIT, || subject::timed(ours.command("sbatch").args(["--hold", "--output=/dev/null", "--wrap", "true"]))),
        Subject::new(PLAIN, || subject::timed(&mut lattice.command(&["submit", "--hold", "--", "true"]))),
        Subject::new(LIST, || subject::timed(ours.command("squeue").arg("-h"))),
        Subject::new(STATUS, || subject::timed(&mut lattice.command(&["status", "--all", "-o", "name"]))),
        Subject::new(RUN, || subject::timed(ours.command("srun").args(["--jobid", &held, "-n", "1", "/bin/true"]))),
        Subject::new(LAUNCH, || subject::timed(&mut lattice.command(&["launch", "--alloc", &held, "-n", "1", "--", "/bin/true"]))),
    ];
    if let Some(slurm) = &slurm {
        subjects.push(Subject::new(SLURM_SUBMIT, || {
            subject::timed(slurm.command("sbatch").args(["--hold", "--output=/dev/null", "--wrap", "true"]))
        }));
        subjects.push(Subject::new(SLURM_LIST, || subject::timed(slurm.command("squeue").args(["-h", "-r"]))));
        subjects.push(Subject::new(SLURM_RUN, || {
            subject::timed(slurm.command("srun").args(["--jobid", slurm.held(), "--overlap", "-n", "1", "/bin/true"]))
        }));
    }
    subject::rounds(&mut subjects, options.rounds())?;
    notes.extend(subject::failures(&subjects));
    let listed = lattice_lab::process::run(ours.command("squeue").arg("-h"), Duration::from_secs(20))?.out().lines().count();
    ensure!(listed >= JOBS, "squeue lists {listed} jobs");
    figures(&subjects, slurm.is_some(), notes)
}

/// Our commands of Slurm's names, with one agent.
struct OurCommands {
    dir: PathBuf,
    lattice: Lattice,
}

impl OurCommands {
    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.dir.join(name));
        command.env("LATTICE_ENDPOINT", format!("unix:{}", self.lattice.socket().display()));
        command
    }
}

/// Submits the jobs, all of them held.
async fn fill(cluster: &Cluster) -> Result<()> {
    eprintln!("bench: submitting {JOBS} jobs");
    let client = Client::connect(&format!("unix:{}", cluster.node("n1")?.socket.display())).await?;
    let submissions = stream::iter(0..JOBS).map(|number| {
        let client = &client;
        async move {
            interrupt::check()?;
            let command = v1::entrypoint::Command { argv: vec!["/bin/true".to_owned()] };
            let spec = v1::AllocationSpec {
                name: format!("job-{number}"),
                entrypoint: Some(v1::Entrypoint { what: Some(v1::entrypoint::What::Command(command)) }),
                resources: Some(v1::ResourceRequest { nodes: 1, ..Default::default() }),
                lifecycle: Some(v1::Lifecycle { walltime_seconds: 3600, ..Default::default() }),
                working_dir: "/".to_owned(),
                hold: true,
                ..Default::default()
            };
            let request = v1::SubmitRequest { id: Uuid::new_v4().to_string(), spec: Some(spec), wait_for_nodes: false, dry_run: false };
            client.allocations().submit(request).await.context("a submission")?;
            anyhow::Ok(())
        }
    });
    submissions.buffer_unordered(SUBMISSIONS_AT_ONCE).try_collect::<()>().await
}

fn figures(subjects: &[Subject], slurm: bool, notes: &[String]) -> Result<Vec<Figure>> {
    let of = |name: &str| subject::samples(subjects, name);
    let need = |name: &str| of(name).with_context(|| format!("{name}: every try failed: {}", notes.join("; ")));
    let at_most = |value: f64, why: &str| Some(Target::AtMost { value, why: why.to_owned() });
    let of_slurm = slurm.then(|| Target::RatioTo { peer: SLURM_RUN.to_owned(), at_most: SRUN_RATIO });
    Ok(vec![
        Figure::new(
            SUBMIT,
            "ms",
            need(SUBMIT)?,
            vec![(PLAIN, of(PLAIN)), (SLURM_SUBMIT, of(SLURM_SUBMIT))],
            at_most(SUBMIT_MS, "scripts submit in loops"),
        ),
        Figure::new(
            &format!("{LIST}, {JOBS} jobs"),
            "ms",
            need(LIST)?,
            vec![(STATUS, of(STATUS)), (SLURM_LIST, of(SLURM_LIST))],
            at_most(LIST_MS, "somebody waits for it"),
        ),
        Figure::new(RUN, "ms", need(RUN)?, vec![(LAUNCH, of(LAUNCH)), (SLURM_RUN, of(SLURM_RUN))], of_slurm),
    ])
}
