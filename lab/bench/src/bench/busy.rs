//! The cost of measuring a full node for its agent: many allocations and GPUs, and a scraper.

use super::adoption::{Manager, NODE, fill, wait_all_running};
use super::figures::{Figure, Samples, Target};
use super::{metrics, subject};
use anyhow::{Context, Result, ensure};
use lattice_lab::binaries::Binaries;
use lattice_lab::cluster::Cluster;
use lattice_lab::down::{self, Guard};
use lattice_lab::gpus::Fault;
use lattice_lab::up::{self, Options};
use lattice_lab::{faults, interrupt, machine};
use lattice_model::gpu_load::GpuLoad;
use lattice_telemetry::procfs::field;
use nix::sys::signal::Signal;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The scrape interval of the documented configuration.
const SCRAPE_INTERVAL: Duration = Duration::from_secs(15);
/// Timeout until the agent exports everything that it measures.
const EXPORT_WAIT_MAX: Duration = Duration::from_secs(60);
/// The time after which memory that only the start needed has been freed.
const SETTLE_TIME: Duration = Duration::from_secs(5);
/// It sleeps until it is signalled, and from then on runs briefly every second. It never forks.
const WORK: [&str; 3] = ["/usr/bin/perl", "-e", "$SIG{USR1} = sub {}; sleep; sleep 1 while 1"];
const TOKEN: &str = "00112233445566778899aabbccddeeff";

/// The measured cost.
pub struct Busy {
    /// Percent of one core while all work sleeps.
    pub asleep: f64,
    /// The same while each allocation's work runs briefly every second.
    pub awake: f64,
    /// Resident memory, in megabytes.
    pub memory: Figure,
}

/// Processor time and memory of an agent with this many allocations and simulated GPUs, in two periods of this length:
/// sleeping work costs less than work that runs, however briefly. The allocations are shims that the agent adopts after
/// a kill, each with its own cgroup; the first few have a GPU each. There is no quorum, so the agent keeps them; the
/// figure includes its search for a quorum.
pub fn busy(dir: &Path, allocations: usize, gpus: u32, over: Duration, target: Option<Target>) -> Result<Busy> {
    let binaries = Binaries::beside_lab()?;
    ensure!(Path::new(WORK[0]).exists(), "{} is not installed (Debian's package perl-base): the measured work needs it", WORK[0]);
    let guard = Guard::new(dir);
    fs::create_dir_all(dir)?;
    let token = std::env::temp_dir().join(format!("lattice-bench-token-{}", std::process::id()));
    fs::write(&token, TOKEN)?;
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600))?;
    let options = Options {
        build: false,
        grace_seconds: 1,
        simulated_gpus: gpus,
        telemetry_lines: format!("  metrics_token_file: {:?}\n", token.to_string_lossy()),
        ..Options::new(1, 1, dir)
    };
    let cluster = up::up(&options);
    let measured = cluster.and_then(|cluster| measure(&cluster, &binaries, allocations, gpus, over, target));
    let _ = fs::remove_file(&token);
    let report = guard.down(Duration::ZERO)?;
    down::require_gone(&report)?;
    measured
}

fn measure(cluster: &Cluster, binaries: &Binaries, allocations: usize, gpus: u32, over: Duration, target: Option<Target>) -> Result<Busy> {
    for index in 0..gpus {
        let load = GpuLoad {
            utilization: Some(0.9),
            memory_used_bytes: Some(512 << 20),
            memory_total_bytes: Some(1 << 30),
            power_watts: Some(300.0),
            temperature_celsius: Some(60.0),
            ..GpuLoad::default()
        };
        faults::gpu(&cluster.dir, NODE, index, &Fault::Load(Box::new(load)))?;
    }
    let manager = fill(cluster, binaries, allocations, gpus, &WORK)?;
    manager.start(cluster, allocations)?;
    wait_all_running(cluster, allocations)?;
    let cluster = Cluster::load(&cluster.dir)?;
    let node = cluster.node(NODE)?;
    let pid = node.daemon.process.as_ref().context("its agent runs")?.pid;
    let began = Instant::now();
    loop {
        interrupt::check()?;
        let page = metrics::page(&node.metrics, Some(TOKEN))?;
        let of = |name: &str| page.lines().filter(|line| line.starts_with(name)).count();
        let exported = (of("lattice_allocation_memory_bytes{"), of("lattice_gpu_utilization_ratio{"), of("lattice_allocation_gpu_info{"));
        if exported == (allocations, gpus as usize, (gpus as usize).min(allocations)) {
            break;
        }
        ensure!(began.elapsed() < EXPORT_WAIT_MAX, "it exports {exported:?} of {allocations} allocations and {gpus} GPUs");
        std::thread::sleep(Duration::from_millis(200));
    }
    std::thread::sleep(SETTLE_TIME);
    let asleep = percent(pid, &node.metrics, over)?;
    for scope in manager.scopes() {
        scope.work().signal(Signal::SIGUSR1 as i32);
    }
    std::thread::sleep(SETTLE_TIME);
    let woken = switches(&manager);
    let awake = percent(pid, &node.metrics, over)?;
    let woken = switches(&manager).saturating_sub(woken);
    ensure!(woken as f64 >= allocations as f64 * over.as_secs_f64() / 2.0, "the work that should run every second ran {woken} times");
    let name = format!("agent that measures {allocations} allocations and {gpus} GPUs, resident memory");
    let memory = subject::memory_figure(&name, &[pid], target).context("the agent's memory")?;
    Ok(Busy { asleep, awake, memory })
}

/// Percent of one core that a process uses in this time, while it is scraped.
fn percent(pid: i32, address: &str, over: Duration) -> Result<f64> {
    let (began, used) = (Instant::now(), machine::processor_time(pid)?);
    while began.elapsed() < over {
        metrics::page(address, Some(TOKEN))?;
        interrupt::check()?;
        std::thread::sleep(SCRAPE_INTERVAL.min(over.saturating_sub(began.elapsed())));
    }
    Ok((machine::processor_time(pid)? - used).as_secs_f64() / began.elapsed().as_secs_f64() * 100.0)
}

/// How often all work gave up its processor voluntarily.
fn switches(manager: &Manager) -> u64 {
    let pids = manager.scopes().iter().flat_map(|scope| scope.work().processes());
    let of = |pid| field(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "voluntary_ctxt_switches");
    pids.filter_map(of).sum()
}

/// The figures of its processor time.
pub fn processor(allocations: usize, gpus: u32, busy: &Busy, target: impl Fn() -> Option<Target>) -> Result<[Figure; 2]> {
    let figure = |percent, work: &str| -> Result<Figure> {
        let samples = Samples::of(vec![percent], 0).context("one value")?;
        let name =
            format!("agent that measures {allocations} allocations and {gpus} GPUs once a second, and is scraped, {work}, processor time");
        Ok(Figure::new(&name, "%", samples, vec![], target()))
    };
    Ok([figure(busy.asleep, "their work asleep")?, figure(busy.awake, "their work running a little every second")?])
}
