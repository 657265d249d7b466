//! Slurm on loopback, for comparison: one controller and a daemon for each node, without anything that a bench does not
//! need (no accounting, no cgroups). It is faster than a production Slurm, so the comparison is fair to it.

use super::options::Options;
use anyhow::{Context, Result, bail, ensure};
use lattice_lab::cluster::Cluster;
use lattice_lab::interrupt;
use lattice_lab::machine::Machine;
use lattice_lab::ports::Ports;
use lattice_lab::process::{Identity, run, spawn_detached, tail, until};
use nix::sys::signal::Signal;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long one of its commands may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);
/// How long all of its jobs may take to end.
const CANCEL_LIMIT: Duration = Duration::from_secs(20);

/// The nodes of a Slurm, all of them on this machine.
pub struct Shape {
    /// How many; each has a daemon of its own.
    pub nodes: u32,
    /// Processors of each node. Slurm takes the number as it is, whatever the machine has.
    pub cpus: u32,
    /// Further lines of `slurm.conf`, each with its end.
    pub lines: &'static str,
}

/// The nodes of the Slurm with which single launches are compared.
const TWO_NODES: Shape = Shape { nodes: 2, cpus: 2, lines: "" };

/// Starts two nodes, one of which is held by an allocation, if that is possible and requested; otherwise notes why not.
pub fn start_with_held_node(cluster: &Cluster, machine: &Machine, options: &Options, notes: &mut Vec<String>) -> Result<Option<Slurm>> {
    let slurm = start(cluster, machine, options, &TWO_NODES, notes)?;
    slurm.map(Slurm::with_held_node).transpose()
}

/// Starts nodes that are all idle, if that is possible and requested; otherwise notes why not.
pub fn start(cluster: &Cluster, machine: &Machine, options: &Options, shape: &Shape, notes: &mut Vec<String>) -> Result<Option<Slurm>> {
    if options.no_slurm {
        notes.push("Slurm was left out, as asked".to_owned());
        return Ok(None);
    }
    if machine.srun.is_none() {
        notes.push("Slurm (slurmctld, slurmd, munged, srun) is not installed".to_owned());
        return Ok(None);
    }
    if !machine.root {
        notes.push("Slurm is installed, but its daemons need root here".to_owned());
        return Ok(None);
    }
    eprintln!("bench: starting Slurm; nodes: {}", shape.nodes);
    Slurm::start(&cluster.dir.join("slurm"), shape).map(Some).context("Slurm is installed but does not start")
}

/// A running Slurm; its jobs and daemons are ended on drop.
pub struct Slurm {
    dir: PathBuf,
    nodes: u32,
    processes: Vec<Identity>,
    /// Whether it ever answered: only then can it have jobs.
    has_answered: bool,
    held: String,
}

impl Slurm {
    /// Starts it in `dir` and waits until all nodes are idle.
    fn start(dir: &Path, shape: &Shape) -> Result<Self> {
        std::fs::create_dir_all(dir.join("state")).with_context(|| format!("cannot make {}", dir.display()))?;
        let mut slurm = Self { dir: dir.to_owned(), nodes: shape.nodes, processes: Vec::new(), has_answered: false, held: String::new() };
        slurm.configure(shape)?;
        let path = |name: &str| dir.join(name).to_string_lossy().into_owned();
        let key = std::fs::File::open("/dev/urandom").and_then(|mut f| {
            let mut bytes = [0u8; 1024];
            std::io::Read::read_exact(&mut f, &mut bytes)?;
            Ok(bytes)
        })?;
        write_private(&dir.join("munge.key"), &key)?;
        let socket = path("munge.sock");
        let munge = [
            "--foreground".to_owned(),
            "--force".to_owned(),
            format!("--key-file={}", path("munge.key")),
            format!("--socket={socket}"),
            format!("--pid-file={}", path("munged.pid")),
            format!("--log-file={}", path("munged.log")),
            format!("--seed-file={}", path("munge.seed")),
        ];
        slurm.spawn("munged", &munge)?;
        if !until(Duration::from_secs(10), || Path::new(&socket).exists()) {
            bail!("munged makes no socket: {}", tail(&dir.join("munged.out"), 10));
        }
        let conf = path("slurm.conf");
        slurm.spawn("slurmctld", &["-D".to_owned(), "-f".to_owned(), conf.clone()])?;
        for node in node_names(shape) {
            std::fs::create_dir_all(dir.join(format!("spool.{node}")))?;
            slurm.spawn("slurmd", &["-D".to_owned(), "-N".to_owned(), node, "-f".to_owned(), conf.clone()])?;
        }
        let is_idle = until(Duration::from_secs(40), || interrupt::came().is_some() || slurm.has_all_nodes_idle().unwrap_or(false));
        interrupt::check()?;
        if !is_idle {
            bail!("its nodes are not idle after 40 s:\n{}\n{}", tail(&dir.join("slurmctld.out"), 12), tail(&dir.join("slurmd.out"), 12));
        }
        slurm.has_answered = true;
        Ok(slurm)
    }

    /// The same with one node held by an allocation.
    pub fn with_held_node(mut self) -> Result<Self> {
        self.held = self.hold()?;
        Ok(self)
    }

    /// Whether every node is up and has no job.
    pub fn has_all_nodes_idle(&self) -> Result<bool> {
        let idle = self.answer("sinfo", &["-h", "-t", "idle", "-o", "%D"])?;
        Ok(idle.trim() == self.nodes.to_string())
    }

    /// What a command of Slurm prints; any exit code but 0 is an error.
    pub fn answer(&self, program: &str, args: &[&str]) -> Result<String> {
        let done = run(self.command(program).args(args), ANSWER_LIMIT)?;
        ensure!(done.code() == 0, "`{program} {}` ended with {}: {}", args.join(" "), done.code(), done.err().trim());
        Ok(done.out())
    }

    /// A Slurm command that uses this instance.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.dir.join("slurm.conf")).current_dir("/");
        command
    }

    /// The job id of the allocation that holds one node; empty if none was started for that.
    pub fn held(&self) -> &str {
        &self.held
    }

    fn hold(&self) -> Result<String> {
        let done = run(self.command("salloc").args(["--no-shell", "-N1", "--exclusive", "-J", "held"]), Duration::from_secs(20))?;
        // It prints "Granted job allocation 7" on stderr.
        let output = done.err() + &done.out();
        let id = output.lines().find_map(|l| l.split("Granted job allocation ").nth(1)?.split_whitespace().next().map(str::to_owned));
        id.with_context(|| format!("salloc granted nothing: {}", output.trim()))
    }

    /// Ends every job. A job's own daemon outlives the daemon of its node, so it must be gone before that one is
    /// stopped.
    fn end_jobs(&self) {
        let cancelled = run(self.command("scancel").args(["-u", "root"]), CANCEL_LIMIT);
        let are_gone = until(CANCEL_LIMIT, || self.answer("squeue", &["-h", "-o", "%i"]).is_ok_and(|left| left.trim().is_empty()));
        if !are_gone {
            let why = cancelled.map_or_else(|error| format!("{error:#}"), |done| done.err().trim().to_owned());
            eprintln!(
                "bench: Slurm's jobs did not end within {} s of `scancel`, and may still run: look for slurmstepd ({why})",
                CANCEL_LIMIT.as_secs()
            );
        }
    }

    fn spawn(&mut self, program: &str, args: &[String]) -> Result<()> {
        let path = lattice_lab::machine::find(program).with_context(|| format!("{program} is not installed"))?;
        self.processes.push(spawn_detached(&path, args, &[], &self.dir.join(format!("{program}.out")))?);
        Ok(())
    }

    fn configure(&self, shape: &Shape) -> Result<()> {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").context("the host name")?;
        let host = host.trim().split('.').next().unwrap_or("localhost");
        let mut ports = Ports::new(u64::from(std::process::id()) * 131);
        let controller = ports.take()?;
        let mut nodes = String::new();
        for node in node_names(shape) {
            let (port, cpus) = (ports.take()?, shape.cpus);
            let _ = writeln!(nodes, "NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=1000");
        }
        let (dir, lines) = (self.dir.display(), shape.lines);
        let text = format!(
            "ClusterName=bench\n\
             SlurmctldHost={host}(127.0.0.1)\n\
             SlurmctldPort={controller}\n\
             SlurmUser=root\n\
             SlurmdUser=root\n\
             AuthType=auth/munge\n\
             AuthInfo=socket={dir}/munge.sock\n\
             CredType=cred/munge\n\
             CommunicationParameters=NoCtldInAddrAny,NoInAddrAny\n\
             StateSaveLocation={dir}/state\n\
             SlurmdSpoolDir={dir}/spool.%n\n\
             SlurmctldPidFile={dir}/slurmctld.pid\n\
             SlurmdPidFile={dir}/slurmd.%n.pid\n\
             ProctrackType=proctrack/linuxproc\n\
             TaskPlugin=task/none\n\
             JobAcctGatherType=jobacct_gather/none\n\
             AccountingStorageType=accounting_storage/none\n\
             JobCompType=jobcomp/none\n\
             SwitchType=switch/none\n\
             MpiDefault=none\n\
             ReturnToService=2\n\
             SlurmdParameters=config_overrides\n\
             SelectType=select/cons_tres\n\
             SelectTypeParameters=CR_CPU\n\
             {lines}{nodes}\
             PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
        );
        std::fs::write(self.dir.join("slurm.conf"), text)?;
        // The node daemon reads this although no cgroup plugin is used, and cannot detect the version on a hybrid
        // machine.
        std::fs::write(self.dir.join("cgroup.conf"), "CgroupPlugin=cgroup/v1\n")?;
        Ok(())
    }
}

fn node_names(shape: &Shape) -> impl Iterator<Item = String> {
    (1..=shape.nodes).map(|number| format!("s{number}"))
}

fn write_private(path: &Path, bytes: &[u8]) -> Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = std::fs::File::options().create(true).truncate(true).write(true).mode(0o600).open(path)?;
    std::io::Write::write_all(&mut file, bytes).with_context(|| format!("cannot write {}", path.display()))
}

impl Drop for Slurm {
    fn drop(&mut self) {
        if self.has_answered {
            self.end_jobs();
        }
        // Node daemons before their controller, munge last.
        for process in self.processes.iter().rev() {
            let _ = process.signal(Signal::SIGTERM);
            if !process.gone_within(Duration::from_secs(10)) {
                let _ = process.kill();
            }
        }
    }
}
