//! `bench mpi`: the time of an MPI program that only starts and ends, and the rate of consecutive launches.
//!
//! All nodes are on one machine: each has its own network, but they share the memory. Compared subjects use the same
//! transport:
//!
//! * MPICH on one node, beside Hydra: its default.
//! * MPICH across nodes, beside one node: UCX through shared memory for every pair of ranks. (With TCP as the only
//!   transport of UCX, MPICH 4.0.2 hangs in its finalization, also under Hydra.)
//! * Open MPI, beside its mpirun: shared memory.
//!
//! [`fence`] measures fences in a separate cluster with many agents.

use super::figures::{Figure, Report, Target};
use super::options::Options;
use super::slurm::Slurm;
use super::subject::{self, Subject};
use super::surroundings::{hold, slow_files};
use super::{fence, slurm};
use anyhow::{Context, Result, ensure};
use lattice_lab::binaries::Binaries;
use lattice_lab::cluster::Cluster;
use lattice_lab::down::{self, Guard};
use lattice_lab::interrupt;
use lattice_lab::lattice::Lattice;
use lattice_lab::machine::{self, Machine};
use lattice_lab::process;
use lattice_lab::up::{self, Options as UpOptions};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The number of nodes of the allocation for launches across nodes.
const NODES: u32 = 4;
/// The number of ranks of launches across nodes.
const WIDE: &str = "32";
/// Largest time of Init, Barrier and Finalize on one node, relative to Hydra.
const HYDRA_RATIO: f64 = 0.9;
/// The same for Open MPI, relative to its own mpirun.
const MPIRUN_RATIO: f64 = 0.6;
/// The same of MPICH across nodes, relative to one node.
const NODES_RATIO: f64 = 1.1;
/// Number of consecutive launches in one round.
const IN_A_ROW: u32 = 50;
/// Largest time of these launches, relative to as many of srun: eight times srun's rate.
const SRUN_RATIO: f64 = 1.0 / 8.0;
/// A prefix that makes MPICH's ranks use the same transport on one node and across nodes.
const SAME_TRANSPORT: [&str; 3] = ["/usr/bin/env", "UCX_TLS=sysv,self", "MPIR_CVAR_NOLOCAL=1"];
/// A prefix that makes Open MPI's ranks use shared memory on one node.
const OPEN_MPI_SAME_TRANSPORT: [&str; 3] = ["/usr/bin/env", "OMPI_MCA_pml=ob1", "OMPI_MCA_btl=vader,self"];
/// Variables that mpirun requires if root runs it.
const AS_ROOT: [(&str, &str); 2] = [("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")];

/// Starts the cluster, measures, and removes it again.
pub fn run(dir: Option<&Path>, options: &Options) -> Result<Report> {
    options.validate()?;
    let machine = Machine::look();
    ensure!(machine.root, "bench mpi creates network namespaces: run it as root");
    let (hydra, mpicc) = (machine.hydra.clone(), machine.mpicc.clone());
    let hydra = hydra.context("mpiexec.hydra is not installed; the launches are compared with it")?;
    let mpicc = mpicc.context("MPICH (mpicc.mpich) is not installed; its programs are launched")?;
    let open = machine.open_mpicc.clone().zip(machine::find("mpirun.openmpi"));
    let (open_mpicc, mpirun) =
        open.context("Open MPI (mpicc.openmpi, mpirun.openmpi) is not installed; the launches are compared with it too")?;
    let binaries = Binaries::beside_lab()?;
    if !options.no_build {
        binaries.build()?;
    }
    let own = std::env::temp_dir().join(format!("lattice-bench-mpi-{}", std::process::id()));
    let dir = dir.unwrap_or(&own);
    interrupt::watch();
    let before = machine::cpu_pressure();
    let up_options = UpOptions { netns: true, ..options.cluster_options(NODES + 1, 1, dir) };
    let guard = Guard::new(dir);
    eprintln!("bench: starting a member and {} agents", NODES + 1);
    let cluster = up::up(&up_options)?;
    let mut notes = vec![
        format!("MPICH across {NODES} nodes and on the one node beside them: {}", SAME_TRANSPORT[1..].join(" ")),
        format!("Open MPI, by Lattice and by mpirun: {}", OPEN_MPI_SAME_TRANSPORT[1..].join(" ")),
    ];
    notes.extend(slow_files(&cluster));
    let measured = program(&cluster, "init", &mpicc).and_then(|program| {
        let slurm = slurm::start_with_held_node(&cluster, &machine, options, &mut notes)?;
        let started = Started { hydra, program, mpirun, open_program: self::program(&cluster, "open-init", &open_mpicc)? };
        measure(&cluster, &started, slurm.as_ref(), options, &mut notes)
    });
    down::require_gone(&guard.down(Duration::from_secs(10))?)?;
    let mut figures = measured?;
    figures.extend(fence::measure(dir, options, &mut notes)?);
    let cpu_pressure = [before, machine::cpu_pressure()];
    Ok(Report { bench: "mpi", profile: binaries.profile(), cpu_pressure, machine, figures, notes })
}

/// The programs that Lattice and the MPIs' own launchers start, and those launchers.
struct Started {
    hydra: PathBuf,
    program: PathBuf,
    mpirun: PathBuf,
    open_program: PathBuf,
}

fn program(cluster: &Cluster, name: &str, mpicc: &Path) -> Result<PathBuf> {
    let (source, program) = (cluster.dir.join("init.c"), cluster.dir.join(name));
    std::fs::write(&source, include_str!("init.c")).with_context(|| format!("cannot write {}", source.display()))?;
    let done = process::run(Command::new(mpicc).args(["-O2", "-o"]).arg(&program).arg(&source), Duration::from_secs(60))?;
    ensure!(done.code() == 0, "{} cannot compile {}: {}", mpicc.display(), source.display(), done.err().trim());
    Ok(program)
}

fn measure(cluster: &Cluster, started: &Started, slurm: Option<&Slurm>, options: &Options, notes: &mut Vec<String>) -> Result<Vec<Figure>> {
    let lattice = Lattice::to(cluster, "n1")?;
    let (one, all) = (hold(&lattice, 1)?, hold(&lattice, NODES)?);
    let (program, open_program) = (started.program.to_string_lossy(), started.open_program.to_string_lossy());
    let launch = |alloc: &str, n: &str, command: &[&str]| lattice.command(&[&["launch", "--alloc", alloc, "-n", n], command].concat());
    let with = |options: &[&str], alloc: &'_ str, n: &'static str, command: &[&str]| {
        let (alloc, command) = (alloc.to_owned(), owned(&[options, &["--"], command].concat()));
        move || subject::timed(&mut launch(&alloc, n, &command.iter().map(String::as_str).collect::<Vec<_>>()))
    };
    let ours = |alloc: &'_ str, n: &'static str, command: &[&str]| with(&[], alloc, n, command);
    let theirs = |n: &'static str, command: &[&str]| {
        let command = owned(command);
        move || subject::timed(Command::new(&started.hydra).args(["-n", n]).args(&command))
    };
    let mpi = [&*program];
    let alike = [&SAME_TRANSPORT[..], &mpi].concat();
    let open = [&OPEN_MPI_SAME_TRANSPORT[..], &[&*open_program]].concat();
    let by_pmix = |n: &'static str| with(&["--pmi=pmix"], &one, n, &open);
    let by_mpirun = |n: &'static str| {
        let command = owned(&open);
        move || subject::timed(Command::new(&started.mpirun).envs(AS_ROOT).args(["--oversubscribe", "-n", n]).args(&command))
    };
    let nothing = ["/bin/true"];
    let row = |each: &dyn Fn() -> Result<Duration>| (0..IN_A_ROW).map(|_| each()).sum::<Result<Duration>>();
    let mut subjects = vec![
        Subject::new("ours 2", ours(&one, "2", &mpi)),
        Subject::new("hydra 2", theirs("2", &mpi)),
        Subject::new("ours 8", ours(&one, "8", &mpi)),
        Subject::new("hydra 8", theirs("8", &mpi)),
        Subject::new("ours 32", ours(&one, "32", &mpi)),
        Subject::new("hydra 32", theirs("32", &mpi)),
        Subject::new("ours open 2", by_pmix("2")),
        Subject::new("mpirun 2", by_mpirun("2")),
        Subject::new("ours open 8", by_pmix("8")),
        Subject::new("mpirun 8", by_mpirun("8")),
        Subject::new("ours open 32", by_pmix("32")),
        Subject::new("mpirun 32", by_mpirun("32")),
        Subject::new("one node, ucx", ours(&one, WIDE, &alike)),
        Subject::new("nodes, ucx", ours(&all, WIDE, &alike)),
        Subject::new("nodes, true", ours(&all, WIDE, &nothing)),
        Subject::new("hydra, true", theirs(WIDE, &nothing)),
        Subject::new("row", {
            let each = ours(&one, "1", &nothing);
            move || row(&each)
        }),
    ];
    if let Some(slurm) = slurm {
        let each = || subject::timed(slurm.command("srun").args(["--jobid", slurm.held(), "--overlap", "-n", "1", "/bin/true"]));
        subjects.push(Subject::new("srun row", move || row(&each)));
    }
    subject::rounds(&mut subjects, options.rounds())?;
    notes.extend(subject::failures(&subjects));
    figures(&subjects, slurm.is_some(), notes)
}

fn figures(subjects: &[Subject], slurm: bool, notes: &[String]) -> Result<Vec<Figure>> {
    let of = |name: &str| subject::samples(subjects, name);
    let need = |name: &str| of(name).with_context(|| format!("{name}: every attempt failed: {}", notes.join("; ")));
    let to = |peer: &str, at_most: f64| Some(Target::RatioTo { peer: peer.to_owned(), at_most });
    let hydra = "mpiexec.hydra on one host";
    let mut figures = Vec::new();
    for (n, ours, theirs) in [("2", "ours 2", "hydra 2"), ("8", "ours 8", "hydra 8"), ("32", "ours 32", "hydra 32")] {
        let name = format!("Init, Barrier, Finalize of {n} ranks on one node");
        figures.push(Figure::new(&name, "ms", need(ours)?, vec![(hydra, of(theirs))], to(hydra, HYDRA_RATIO)));
    }
    let mpirun = "mpirun of Open MPI";
    for (n, ours, theirs) in [("2", "ours open 2", "mpirun 2"), ("8", "ours open 8", "mpirun 8"), ("32", "ours open 32", "mpirun 32")] {
        let name = format!("Init, Barrier, Finalize of {n} ranks of Open MPI on one node");
        figures.push(Figure::new(&name, "ms", need(ours)?, vec![(mpirun, of(theirs))], to(mpirun, MPIRUN_RATIO)));
    }
    let (name, peer) = (format!("MPICH's of {WIDE} ranks on {NODES} nodes, through UCX"), "one node, through UCX");
    figures.push(Figure::new(&name, "ms", need("nodes, ucx")?, vec![(peer, of("one node, ucx"))], to(peer, NODES_RATIO)));
    let name = format!("{WIDE} × /bin/true on {NODES} nodes");
    figures.push(Figure::new(&name, "ms", need("nodes, true")?, vec![(hydra, of("hydra, true"))], to(hydra, 1.0)));
    let (name, peer) = (format!("{IN_A_ROW} launches one after another in an allocation"), "as many of srun");
    let target = if slurm { to(peer, SRUN_RATIO) } else { None };
    figures.push(Figure::new(&name, "ms", need("row")?, vec![(peer, of("srun row"))], target));
    Ok(figures)
}

fn owned(command: &[&str]) -> Vec<String> {
    command.iter().map(|word| (*word).to_owned()).collect()
}
