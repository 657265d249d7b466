//! Slurm on loopback, for comparison: one controller and two node daemons, without anything that a bench does not need
//! (no accounting, no cgroups). It is faster than a production Slurm, so the comparison is fair to it.

use super::options::Options;
use crate::cluster::Cluster;
use crate::machine::Machine;
use crate::ports::Ports;
use crate::process::{Identity, run, spawn_detached, tail, until};
use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Starts it if that is possible and requested; otherwise notes why not.
pub fn start(cluster: &Cluster, machine: &Machine, options: &Options, notes: &mut Vec<String>) -> Result<Option<Slurm>> {
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
    eprintln!("bench: starting Slurm with two nodes");
    Slurm::start(&cluster.dir.join("slurm")).map(Some).context("Slurm is installed but does not start")
}

/// A running Slurm with one node held by an allocation; ended on drop.
pub struct Slurm {
    dir: PathBuf,
    processes: Vec<Identity>,
    held: String,
}

impl Slurm {
    /// Starts it in `dir` and waits until both nodes are idle.
    pub fn start(dir: &Path) -> Result<Self> {
        std::fs::create_dir_all(dir.join("state")).with_context(|| format!("cannot make {}", dir.display()))?;
        let mut slurm = Self { dir: dir.to_owned(), processes: Vec::new(), held: String::new() };
        slurm.configure()?;
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
        for node in ["s1", "s2"] {
            std::fs::create_dir_all(dir.join(format!("spool.{node}")))?;
            slurm.spawn("slurmd", &["-D".to_owned(), "-N".to_owned(), node.to_owned(), "-f".to_owned(), conf.clone()])?;
        }
        let idle = until(Duration::from_secs(40), || {
            run(slurm.command("sinfo").args(["-h", "-t", "idle", "-o", "%D"]), Duration::from_secs(5)).is_ok_and(|f| f.out().trim() == "2")
        });
        if !idle {
            bail!("its nodes are not idle after 40 s:\n{}\n{}", tail(&dir.join("slurmctld.out"), 12), tail(&dir.join("slurmd.out"), 12));
        }
        slurm.held = slurm.hold()?;
        Ok(slurm)
    }

    /// A Slurm command that uses this instance.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("SLURM_CONF", self.dir.join("slurm.conf")).current_dir("/");
        command
    }

    /// The job id of the allocation that holds one node.
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

    fn spawn(&mut self, program: &str, args: &[String]) -> Result<()> {
        let path = crate::machine::find(program).with_context(|| format!("{program} is not installed"))?;
        self.processes.push(spawn_detached(&path, args, &[], &self.dir.join(format!("{program}.out")))?);
        Ok(())
    }

    fn configure(&self) -> Result<()> {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").context("the host name")?;
        let host = host.trim().split('.').next().unwrap_or("localhost");
        let mut ports = Ports::new(u64::from(std::process::id()) * 131);
        let (controller, first, second) = (ports.take()?, ports.take()?, ports.take()?);
        let dir = self.dir.display();
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
             NodeName=s1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=2 RealMemory=1000\n\
             NodeName=s2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=2 RealMemory=1000\n\
             PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
        );
        std::fs::write(self.dir.join("slurm.conf"), text)?;
        // The node daemon reads this although no cgroup plugin is used, and cannot detect the version on a hybrid
        // machine.
        std::fs::write(self.dir.join("cgroup.conf"), "CgroupPlugin=cgroup/v1\n")?;
        Ok(())
    }
}

fn write_private(path: &Path, bytes: &[u8]) -> Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut file = std::fs::File::options().create(true).truncate(true).write(true).mode(0o600).open(path)?;
    std::io::Write::write_all(&mut file, bytes).with_context(|| format!("cannot write {}", path.display()))
}

impl Drop for Slurm {
    fn drop(&mut self) {
        if !self.held.is_empty() {
            let _ = run(self.command("scancel").arg(&self.held), Duration::from_secs(5));
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
