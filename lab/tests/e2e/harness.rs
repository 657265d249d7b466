//! Clusters for tests, requirements of tests, and waiting for visible conditions.

use lattice_lab::binaries::Binaries;
use lattice_lab::cluster::Cluster;
use lattice_lab::down::{self, Guard};
use lattice_lab::image::{self, Ring};
use lattice_lab::lattice::{Lattice, text};
use lattice_lab::machine::Machine;
use lattice_lab::process::{self, Finished};
use lattice_lab::up::{Options, up};
use lattice_lab::{configs, faults, interrupt, up as lab_up};
use lattice_ledger::{LEVEL_KNOWN, LEVEL_MAX};
use libtest_mimic::{Completion, Failed, Trial};
use serde_json::Value;
use std::collections::VecDeque;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// How long an ordinary small job may take from submission to its end: far more than it should, for a machine that is
/// shared with others and slow for minutes.
pub const JOB: Duration = Duration::from_secs(120);
/// An ordinary user.
pub const NOBODY: u32 = 65_534;
/// Another ordinary user: `daemon` in every `/etc/passwd`.
pub const DAEMON: u32 = 1;

/// Requirements of a test besides root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Loop devices and SquashFS.
    Mounts,
    /// Debian's MPICH, or another one with `mpicc.mpich`.
    Mpich,
    /// Slurm's PMI-2 library and a C compiler (Debian's package libpmi2-0-dev).
    Pmi2,
    /// Debian's Open MPI (packages openmpi-bin, libopenmpi-dev and libpmix-dev), beside another MPI.
    OpenMpi,
    /// mpi4py with MPICH, and with Open MPI 5, each in a virtual environment (Python's packages `mpi4py`, `mpich` and
    /// `openmpi`).
    Mpi4py,
    /// Programs that use Slurm, in a virtual environment (Python's packages `submitit`, `dask-jobqueue`, `parsl`,
    /// `psij-python`, `snakemake-executor-plugin-slurm` and `ReFrame-HPC`).
    SlurmClients,
    /// `moto_server`: an S3 server (Python's package `moto[server]`).
    Moto,
    /// An OpenID Connect provider: Node (Debian's packages nodejs and npm) and its package `oidc-provider`.
    OidcProvider,
    /// A validator and a client generator for API descriptions (Python's packages `openapi-spec-validator` and
    /// `openapi-python-client`).
    OpenApi,
    /// `systemd-analyze` (Debian's package `systemd`).
    SystemdAnalyze,
    /// `python3`, for a program of the documentation.
    Python,
    /// `zstd`, for objects in an object store.
    Zstd,
    /// The parser of Prometheus's own client, for Debian's Python (package python3-prometheus-client).
    PrometheusClient,
    /// A store for metrics (Debian's package victoria-metrics).
    VictoriaMetrics,
    /// `promtool` (Debian's package `prometheus`).
    Promtool,
    /// `curl`, which pages of the documentation use.
    Curl,
    /// A database server (Debian's package postgresql).
    Postgres,
    /// A kernel in which agents can use all their counters: Linux 6.5 with BTF.
    KernelProbes,
    /// Temporary directories on a file system whose block device requests the kernel counts.
    BlockDevice,
    /// FUSE, for a file system that does not answer.
    Fuse,
    /// The second cluster level, which debug builds have.
    SecondLevel,
    /// The accounts `bin`, `sys` and `games`, which most Linux systems have.
    Accounts,
    /// The tools for members' hosts: `ip` (Debian's package iproute2), `nsenter` and a C compiler.
    Hosts,
}

/// One cluster, shared by the tests of a group.
pub struct Group {
    /// The subject of its tests: the first part of their names.
    pub theme: &'static str,
    /// Consecutive groups with the same name share a cluster.
    pub name: &'static str,
    pub nodes: u32,
    pub quorum: u32,
    pub tweak: fn(&mut Options),
}

/// The running cluster, of any group.
static NOW: Mutex<Option<World>> = Mutex::new(None);

impl Group {
    /// With a cluster of three nodes and one member.
    pub const fn small(theme: &'static str) -> Self {
        Self { theme, name: "small", nodes: 3, quorum: 1, tweak: |_| {} }
    }

    /// With a cluster of three nodes and three members.
    pub const fn large(theme: &'static str) -> Self {
        Self { theme, name: "large", nodes: 3, quorum: 3, tweak: |_| {} }
    }

    /// One test of this group.
    pub fn test(&'static self, name: &str, needs: &'static [Need], body: fn(&World)) -> Trial {
        alone(&format!("{}::{name}", self.theme), needs, move || self.run(body))
    }

    fn run(&'static self, body: fn(&World)) {
        let mut now = NOW.lock().unwrap_or_else(PoisonError::into_inner);
        if now.as_ref().is_some_and(|w| w.group != self.name || w.make_ready().is_err()) {
            *now = None;
        }
        let world = now.get_or_insert_with(|| World::start(self));
        let outcome = catch_unwind(AssertUnwindSafe(|| body(world)));
        if let Err(panic) = outcome {
            eprintln!("{}", world.logs());
            world.keep_logs();
            resume_unwind(panic);
        }
    }
}

/// A test that makes its own environment.
pub fn alone(name: &str, needs: &'static [Need], body: impl FnOnce() + Send + 'static) -> Trial {
    Trial::ignorable_test(name, move || {
        interrupt::check().map_err(|e| Failed::from(e.to_string()))?;
        if let Some(missing) = missing(needs) {
            if std::env::var_os("LATTICE_TEST_REQUIRE_ALL").is_some_and(|v| v == "1") {
                return Err(Failed::from(format!("LATTICE_TEST_REQUIRE_ALL=1, and {missing}")));
            }
            return Ok(Completion::ignored_with(missing));
        }
        body();
        Ok(Completion::Completed)
    })
}

/// Removes the last cluster.
pub fn close() {
    *NOW.lock().unwrap_or_else(PoisonError::into_inner) = None;
}

/// The abilities of this machine.
pub fn machine() -> &'static Machine {
    static MACHINE: OnceLock<Machine> = OnceLock::new();
    MACHINE.get_or_init(Machine::look)
}

fn missing(needs: &[Need]) -> Option<String> {
    let machine = machine();
    if !machine.root {
        return Some("this needs root (namespaces, scopes, other users)".to_owned());
    }
    if machine.cgroup2.is_none() {
        return Some("no cgroup v2 tree is mounted here".to_owned());
    }
    needs.iter().find_map(|need| match need {
        Need::Mounts if !machine.can_mount() => Some("loop devices or SquashFS are missing here".to_owned()),
        Need::Mpich if machine.mpicc.is_none() => Some("there is no MPICH here (mpicc.mpich)".to_owned()),
        Need::Pmi2 if !Path::new("/usr/include/slurm/pmi2.h").exists() => {
            Some("there is no libpmi2 here (package libpmi2-0-dev)".to_owned())
        }
        Need::OpenMpi if machine.open_mpicc.is_none() => Some("there is no Open MPI here (mpicc.openmpi)".to_owned()),
        Need::Mpi4py if machine.mpi4py_mpich.is_none() || machine.mpi4py_open.is_none() => {
            Some("there is no mpi4py here with both MPICH and Open MPI (.ci/run makes both in the cache)".to_owned())
        }
        Need::SlurmClients if machine.slurm_clients.is_none() => {
            Some("there are no programs here that use Slurm (.ci/run installs them in the cache)".to_owned())
        }
        Need::Moto if machine.moto.is_none() => Some("there is no moto_server here (pip install 'moto[server]')".to_owned()),
        Need::OidcProvider if machine.oidc_provider.is_none() => {
            Some("there is no OpenID Connect provider here (.ci/run installs oidc-provider in the cache)".to_owned())
        }
        Need::OpenApi => ["openapi-spec-validator", "openapi-python-client"]
            .iter()
            .find(|tool| lattice_lab::machine::find(tool).is_none())
            .map(|tool| format!("there is no {tool} here (.ci/run installs it in the cache)")),
        Need::SystemdAnalyze if lattice_lab::machine::find("systemd-analyze").is_none() => {
            Some("there is no systemd-analyze here (package systemd)".to_owned())
        }
        Need::Python if lattice_lab::machine::find("python3").is_none() => Some("there is no python3 here".to_owned()),
        Need::Zstd if lattice_lab::machine::find("zstd").is_none() => Some("there is no zstd here".to_owned()),
        Need::PrometheusClient if !Path::new("/usr/lib/python3/dist-packages/prometheus_client").is_dir() => {
            Some("there is no parser of metrics here (package python3-prometheus-client)".to_owned())
        }
        Need::VictoriaMetrics if lattice_lab::machine::find("victoria-metrics").is_none() => {
            Some("there is no store for metrics here (package victoria-metrics)".to_owned())
        }
        Need::Promtool if lattice_lab::machine::find("promtool").is_none() => {
            Some("there is no promtool here (package prometheus)".to_owned())
        }
        Need::Curl if lattice_lab::machine::find("curl").is_none() => Some("there is no curl here".to_owned()),
        Need::Postgres if postgres_program("postgres").is_none() => Some("there is no PostgreSQL here (package postgresql)".to_owned()),
        Need::KernelProbes if !counts_in_kernel() => Some(
            "this kernel does not describe its types (CONFIG_DEBUG_INFO_BTF), or has no tracepoint block_io_start (Linux 6.5)".to_owned(),
        ),
        Need::BlockDevice if !lies_on_block_device(&std::env::temp_dir()) => {
            Some("temporary folders are on no block device here (TMPDIR)".to_owned())
        }
        Need::Accounts => {
            let is_known = |account: &str| nix::unistd::User::from_name(account).is_ok_and(|known| known.is_some());
            ["bin", "sys", "games"]
                .into_iter()
                .find(|account| !is_known(account))
                .map(|account| format!("there is no account {account} here"))
        }
        Need::Hosts => {
            ["ip", "nsenter", "cc"].iter().find(|p| lattice_lab::machine::find(p).is_none()).map(|p| format!("there is no {p} here"))
        }
        Need::Fuse if !Path::new("/dev/fuse").exists() => Some("there is no FUSE here (/dev/fuse)".to_owned()),
        Need::SecondLevel if LEVEL_MAX == LEVEL_KNOWN => Some("a release build has no second cluster level".to_owned()),
        Need::Mounts
        | Need::SecondLevel
        | Need::Fuse
        | Need::Mpich
        | Need::OpenMpi
        | Need::Mpi4py
        | Need::SlurmClients
        | Need::Pmi2
        | Need::Python
        | Need::Zstd
        | Need::Moto
        | Need::OidcProvider
        | Need::PrometheusClient
        | Need::VictoriaMetrics
        | Need::Promtool
        | Need::Curl
        | Need::Postgres
        | Need::KernelProbes
        | Need::BlockDevice
        | Need::SystemdAnalyze => None,
    })
}

/// A program of PostgreSQL. Debian installs the server's programs in one directory for each version.
pub fn postgres_program(name: &str) -> Option<PathBuf> {
    lattice_lab::machine::find(name).or_else(|| {
        let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
        versions.flatten().map(|version| version.path().join("bin").join(name)).find(|program| program.is_file())
    })
}

/// Whether the kernel supports the most demanding of the agent's BPF programs.
pub fn counts_in_kernel() -> bool {
    static COUNTS: OnceLock<bool> = OnceLock::new();
    let name = b"\0btf_trace_block_io_start\0";
    *COUNTS.get_or_init(|| std::fs::read("/sys/kernel/btf/vmlinux").is_ok_and(|types| types.windows(name.len()).any(|at| at == name)))
}

/// Whether direct writes in `dir` go to a block device whose requests the kernel counts.
fn lies_on_block_device(dir: &Path) -> bool {
    let device = std::fs::metadata(dir).unwrap().dev();
    Path::new(&format!("/sys/dev/block/{}:{}", nix::sys::stat::major(device), nix::sys::stat::minor(device))).exists()
}

/// The binaries, built once a run; a failed build fails every test that needs them, and is not repeated.
pub fn binaries() -> &'static Binaries {
    static BUILT: OnceLock<Result<Binaries, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let binaries = Binaries { dir: lab_program().parent().unwrap().to_owned() };
        binaries.build_for_tests().map(|()| binaries).map_err(|e| format!("{e:#}"))
    });
    built.as_ref().unwrap_or_else(|e| panic!("{e}"))
}

/// `lattice-lab` itself.
pub fn lab_program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_lattice-lab"))
}

/// Runs `lattice-lab`.
pub fn lab(args: &[&str], limit: Duration) -> Finished {
    process::run(Command::new(lab_program()).args(args), limit).unwrap()
}

/// A directory that no other test uses.
pub fn fresh_dir(name: &str) -> PathBuf {
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    std::env::temp_dir().join(format!("lat-{name}-{}-{count}", std::process::id()))
}

/// Merges settings into a node's configuration, for the next start of its agent; returns the file as it was.
pub fn configure(dir: &Path, node: &str, more: &str) -> String {
    let path = dir.join(node).join("agent.yaml");
    let before = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, configs::merged(&before, more).unwrap_or_else(|e| panic!("{e:#}"))).unwrap();
    before
}

/// A directory that is removed with its contents when the test ends, whatever the result.
pub struct Folder(pub PathBuf);

impl Folder {
    /// A new empty directory.
    pub fn new(name: &str) -> Self {
        let dir = fresh_dir(name);
        std::fs::create_dir(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A running cluster, with helpers for tests.
pub struct World {
    group: &'static str,
    pub dir: PathBuf,
    /// The agent of n1, used as root.
    pub lattice: Lattice,
    guard: Option<Guard>,
    image: OnceLock<PathBuf>,
    ring: OnceLock<Ring>,
}

impl World {
    fn start(group: &'static Group) -> Self {
        binaries();
        let dir = fresh_dir(group.name);
        let mut options = Options { build: false, grace_seconds: 2, ..Options::new(group.nodes, group.quorum, &dir) };
        (group.tweak)(&mut options);
        let guard = Guard::new(&dir);
        let cluster = up(&options).unwrap_or_else(|e| panic!("{e:#}"));
        // A home and a writable directory for ordinary users.
        for user in [NOBODY, DAEMON] {
            let home = dir.join(format!("home-{user}"));
            std::fs::create_dir(&home).unwrap();
            std::os::unix::fs::chown(&home, Some(user), Some(user)).unwrap();
        }
        let lattice = Lattice::to(&cluster, "n1").unwrap();
        Self { group: group.name, dir, lattice, guard: Some(guard), image: OnceLock::new(), ring: OnceLock::new() }
    }

    /// The present record.
    pub fn cluster(&self) -> Cluster {
        Cluster::load(&self.dir).unwrap()
    }

    /// The URL of a node's API on the network, for groups whose options set `network_api`.
    pub fn api_url(&self, node: &str) -> String {
        let cluster = self.cluster();
        cluster.nodes.iter().find(|known| known.id == node).unwrap_or_else(|| panic!("there is no {node} here")).api_url()
    }

    /// The certificate of the cluster's authority, which issued those of its APIs.
    pub fn ca(&self) -> PathBuf {
        self.dir.join("ca/ca.crt")
    }

    /// Repairs what the last test broke or left.
    fn make_ready(&self) -> anyhow::Result<()> {
        faults::heal(&self.dir, Duration::from_secs(20))?;
        let left: Vec<String> = self.lattice.allocations()?.iter().filter(|a| !ended(a)).map(|a| text(a, "id")).collect();
        for id in &left {
            let _ = self.lattice.run(&["cancel", id], JOB);
        }
        let cluster = self.cluster();
        anyhow::ensure!(process::until(Duration::from_secs(10), || down::leftovers(&cluster).is_empty()), "work is left of the last test");
        // The repair has waited until all nodes were Ready.
        if left.is_empty() { Ok(()) } else { lab_up::wait_ready(&cluster, Duration::from_secs(10)) }
    }

    /// Runs the CLI as root with n1's agent: it must succeed; returns its stdout.
    pub fn ok(&self, args: &[&str]) -> String {
        self.lattice.ok(args).unwrap_or_else(|e| panic!("{e:#}"))
    }

    /// Runs the CLI as root with n1's agent, whatever the result.
    pub fn run(&self, args: &[&str]) -> Finished {
        self.run_for(args, JOB)
    }

    /// The same with its own timeout.
    pub fn run_for(&self, args: &[&str], limit: Duration) -> Finished {
        let finished = self.lattice.run(args, limit).unwrap();
        assert!(!finished.timed_out, "`lattice {}` hangs; so far: {}{}", args.join(" "), finished.out(), finished.err());
        finished
    }

    /// The CLI with another node's agent.
    pub fn at(&self, node: &str) -> Lattice {
        Lattice::to(&self.cluster(), node).unwrap()
    }

    /// Runs the CLI as another user.
    pub fn run_as(&self, uid: u32, args: &[&str]) -> Finished {
        let home = self.dir.join(format!("home-{uid}"));
        let lattice = self.lattice.clone().with_program(&self.dir.join("bin/lattice"));
        let mut command = lattice.command(args);
        command.uid(uid).gid(uid).current_dir(&home).env("HOME", &home).env_remove("XDG_STATE_HOME");
        let finished = process::run(&mut command, JOB).unwrap();
        assert!(!finished.timed_out, "`lattice {}` as {uid} hangs", args.join(" "));
        finished
    }

    /// `lattice submit -o name` with these further arguments; returns the id.
    pub fn submit(&self, args: &[&str]) -> String {
        let id = self.ok(&[&["submit", "-o", "name"], args].concat());
        let id = id.trim();
        assert!(id.len() == 36 && !id.contains(char::is_whitespace), "submit -o name prints the bare id, not {id:?}");
        id.to_owned()
    }

    /// The present `lattice status ID -o json`.
    pub fn status(&self, id: &str) -> Value {
        // A quorum of one member on a busy machine may take longer than a caller waits.
        let twice = (0..2).find_map(|_| self.lattice.allocation(id).ok());
        twice.unwrap_or_else(|| self.lattice.allocation(id).unwrap_or_else(|e| panic!("{e:#}")))
    }

    /// Waits until the allocation has ended.
    pub fn ended(&self, id: &str) -> Value {
        self.lattice.ended_within(id, JOB).unwrap_or_else(|e| {
            let output_of = |what| self.run(&[what, id]).out();
            panic!("{e:#}\n{}\nits log:\n{}", output_of("explain"), output_of("logs"))
        })
    }

    /// The leading member, once there is one.
    pub fn leader(&self) -> u64 {
        let mut leader = None;
        self.wait("a leader", || {
            leader = self.lattice.leader().ok().flatten();
            leader.is_some()
        });
        leader.unwrap()
    }

    /// Waits until the allocation has completed successfully.
    pub fn completed(&self, id: &str) -> Value {
        let now = self.ended(id);
        let (state, code) = (text(&now, "state"), text(&now, "exit_code"));
        assert!(state == "Completed" && code == "0", "{now}\nlog: {}", self.log(id));
        now
    }

    /// Waits until the allocation runs.
    pub fn running(&self, id: &str) {
        self.wait(&format!("{id} to run"), || {
            let now = self.status(id);
            assert!(!ended(&now), "it has ended: {now}\nlog: {}", self.log(id));
            text(&now, "state") == "Running"
        });
    }

    /// Waits until a condition is visible.
    pub fn wait(&self, what: &str, mut seen: impl FnMut() -> bool) {
        let done = process::until(JOB, || {
            if interrupt::came().is_some() {
                panic!("interrupted");
            }
            seen()
        });
        assert!(done, "waited {} s in vain for {what}", JOB.as_secs());
    }

    /// `lattice logs ID`: stdout and stderr of the program, as text.
    pub fn log(&self, id: &str) -> String {
        let finished = self.run(&["logs", id]);
        finished.out() + &finished.err()
    }

    /// Waits until the log contains this.
    pub fn wait_log(&self, id: &str, piece: &str) {
        self.wait(&format!("{piece:?} in the log of {id}"), || self.log(id).contains(piece));
    }

    /// Waits until nothing of any job is left on the machine.
    pub fn assert_nothing_left(&self) {
        let cluster = self.cluster();
        assert_eq!(down::leftovers_within(&cluster, Duration::from_secs(5)), Vec::<String>::new());
    }

    /// The same, except for a file system that the test mounted.
    pub fn assert_nothing_left_but(&self, mounted: &Path) {
        let (cluster, mut last) = (self.cluster(), Vec::new());
        process::until(JOB, || {
            last = down::leftovers(&cluster);
            last.retain(|left| *left != format!("mount {}", mounted.display()));
            last.is_empty()
        });
        assert_eq!(last, Vec::<String>::new());
    }

    /// The ring program of this machine.
    pub fn ring(&self) -> &Ring {
        self.ring.get_or_init(|| Ring::make(machine(), &self.dir).unwrap_or_else(|e| panic!("{e:#}")))
    }

    /// An image with that ring in it.
    pub fn image(&self) -> &Path {
        self.image.get_or_init(|| {
            let path = self.dir.join("env.sqfs");
            image::write(&path, self.ring().program()).unwrap_or_else(|e| panic!("{e:#}"));
            path
        })
    }

    /// A script in the cluster's folder.
    pub fn script(&self, name: &str, text: &str) -> String {
        let path = self.dir.join(name);
        std::fs::write(&path, text).unwrap();
        path.to_string_lossy().into_owned()
    }

    fn logs(&self) -> String {
        let Ok(cluster) = Cluster::load(&self.dir) else { return String::new() };
        cluster.daemons().map(|d| format!("--- the end of {}'s log\n{}\n", d.name, process::tail(&d.log, 12))).collect()
    }

    /// Copies the daemons' logs to a place that outlives the cluster.
    fn keep_logs(&self) {
        let to = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("e2e-{}", self.group));
        let _ = std::fs::create_dir_all(&to);
        let Ok(cluster) = Cluster::load(&self.dir) else { return };
        for daemon in cluster.daemons() {
            let _ = std::fs::copy(&daemon.log, to.join(format!("{}.log", daemon.name)));
        }
        eprintln!("the whole logs are in {}", to.display());
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.take() {
            match guard.kill(Duration::from_secs(3)) {
                Ok(report) if report.stuck.is_empty() => {}
                Ok(report) => eprintln!("{}: these could not be removed: {}", self.group, report.stuck.join("; ")),
                Err(e) => eprintln!("{}: {e:#}", self.group),
            }
        }
    }
}

/// Runs `body` for every item, with as many items at once as there are lanes; a lane takes the next item once it is done.
pub fn in_lanes<T: Send>(lanes: &[&str], items: Vec<T>, body: impl Fn(&str, T) + Sync) {
    let (items, body) = (Mutex::new(VecDeque::from(items)), &body);
    let next = || items.lock().unwrap().pop_front();
    std::thread::scope(|scope| {
        let running: Vec<_> = lanes
            .iter()
            .map(|lane| {
                let next = &next;
                scope.spawn(move || {
                    while let Some(item) = next() {
                        body(lane, item);
                    }
                })
            })
            .collect();
        let broken = running.into_iter().filter_map(|lane| lane.join().err()).next();
        if let Some(panic) = broken {
            resume_unwind(panic);
        }
    });
}

/// Whether its state is final.
pub fn ended(allocation: &Value) -> bool {
    matches!(text(allocation, "state").as_str(), "Completed" | "Failed" | "Cancelled")
}

/// A time of an allocation, in milliseconds since 1970; `status -o json` writes it as `2026-03-05T10:00:12.034Z`.
pub fn ms(allocation: &Value, key: &str) -> u64 {
    let text = allocation.get(key).and_then(Value::as_str).unwrap_or_else(|| panic!("no {key} in {allocation}"));
    let numbers: Vec<u64> = text.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    let [year, month, day, hour, minute, second, milli] = numbers[..] else { panic!("{key} is no time: {text}") };
    // Days since 1970-01-01, with years that begin in March (H. Hinnant, "days_from_civil").
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = y * 365 + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
    (((days * 24 + hour) * 60 + minute) * 60 + second) * 1000 + milli
}
