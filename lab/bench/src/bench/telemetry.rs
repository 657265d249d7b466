//! `bench telemetry`: the cost of counting in the kernel for the counted work, and the cost of exporting for the agent.

mod attribution;

pub use attribution::Load;

use super::figures::{Figure, Report, Samples, Target};
use super::options::Options;
use super::subject::{self, Subject};
use anyhow::{Context, Result, ensure};
use lattice_ebpf::{Clocked, Probes};
use lattice_lab::binaries::Binaries;
use lattice_lab::interrupt;
use lattice_lab::machine::{self, Machine};
use lattice_lab::ports::Ports;
use lattice_lab::process::until;
use lattice_model::AllocationId;
use lattice_runtime::cgroup::{Scope, Slice};
use lattice_telemetry::catalogue::allocation as family;
use lattice_telemetry::exposition::page;
use lattice_telemetry::procfs::{Stat, TICKS_PER_SECOND};
use lattice_telemetry::readers::Host;
use lattice_telemetry::sample::{Collect, Samples as Metrics, Whose};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use uuid::Uuid;

/// Round trips between two threads on one processor, with two switches each.
const ROUND_TRIPS: u32 = 100_000;
/// Limit of the processor time of a program that does nothing but switch, relative to without counting.
const PING_PONG_RATIO: f64 = 1.15;
/// Switches a second of a busy node, and the limit for counting them, in percent of one core.
const SWITCHES: f64 = 10_000.0;
const SWITCHES_PERCENT: f64 = 0.4;
/// Samples a second that one core encodes into requests.
const ENCODED: f64 = 2e6;
/// Milliseconds of processor time of one collection of the host's metrics.
const COLLECTED_MS: f64 = 8.0 / 3.0;
/// Allocations, and series of each, in the encoding test.
const ALLOCATIONS: u128 = 50;

/// The agent of a full node: allocations, GPUs, how long it is measured, and its limits in percent of a core and in
/// megabytes.
const FULL_ALLOCATIONS: usize = 50;
const GPUS: u32 = 8;
const MEASURED_TIME: Duration = Duration::from_secs(30);
const AGENT_PERCENT: f64 = 0.8;
const AGENT_MB: f64 = 40.0;

/// Two threads on one processor that wake each other by pipes (for `bench telemetry`).
#[derive(Clone, Debug, clap::Args)]
pub struct PingPong {
    /// The cgroup that the process moves itself to first
    #[arg(long)]
    cgroup: PathBuf,
    #[arg(long)]
    rounds: u32,
}

impl PingPong {
    /// Prints the nanoseconds of processor time that it took.
    pub fn run(&self) -> Result<()> {
        fs::write(self.cgroup.join("cgroup.procs"), "0").with_context(|| format!("moving to {}", self.cgroup.display()))?;
        let mut one = nix::sched::CpuSet::new();
        one.set(0)?;
        nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &one)?;
        let ((mut a_out, mut a_in), (mut b_out, mut b_in)) = (std::io::pipe()?, std::io::pipe()?);
        let rounds = self.rounds;
        let before = processor_time()?;
        let other = std::thread::spawn(move || -> std::io::Result<()> {
            let mut byte = [0];
            for _ in 0..rounds {
                a_out.read_exact(&mut byte)?;
                b_in.write_all(&byte)?;
            }
            Ok(())
        });
        let mut byte = [1];
        for _ in 0..rounds {
            a_in.write_all(&byte)?;
            b_out.read_exact(&mut byte)?;
        }
        other.join().map_err(|_| anyhow::anyhow!("the other thread panicked"))??;
        println!("{}", (processor_time()? - before).as_nanos());
        Ok(())
    }
}

fn processor_time() -> Result<Duration> {
    Ok(nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID)?.into())
}

/// A slice with one allocation's scope, removed on drop.
struct Place {
    slice: Slice,
    scope: Scope,
}

impl Place {
    fn new() -> Result<Self> {
        let slice = Slice::find(Path::new(&format!("lattice-bench-{}.slice", std::process::id())))?;
        let scope = slice.create_scope(AllocationId(Uuid::new_v4()))?;
        Ok(Self { slice, scope })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.scope.whole().remove();
        let _ = fs::remove_dir(self.slice.path());
    }
}

/// A directory for files, removed on drop.
struct Files(PathBuf);

impl Files {
    fn new() -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("lattice-bench-files-{}", std::process::id()));
        fs::create_dir_all(&dir)?;
        Ok(Self(dir))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// `account`: whether the kernel accounts the cost of its programs, as agents request for a second of each minute.
fn ping_pong(place: &Place, counted: bool, account: bool) -> Result<Duration> {
    let _account = if account { Some(Clocked::begin().map_err(anyhow::Error::msg)?) } else { None };
    let work = place.scope.work();
    let probes = if counted {
        let mut probes = Probes::load(&place.slice.path())?;
        probes.track(fs::metadata(work.path())?.ino()).map_err(anyhow::Error::msg)?;
        Some(probes)
    } else {
        None
    };
    let mut command = Command::new(std::env::current_exe()?);
    let output = command.arg("ping-pong").arg("--cgroup").arg(work.path()).args(["--rounds", &ROUND_TRIPS.to_string()]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    if let Some(probes) = probes {
        use lattice_ebpf::layout::{SWITCHES_VOLUNTARY, WORDS};
        let counts = probes.counts(fs::metadata(work.path())?.ino(), &[0; WORDS]).context("it is not counted")?;
        ensure!(counts[SWITCHES_VOLUNTARY] >= u64::from(ROUND_TRIPS), "only {} switches were counted", counts[SWITCHES_VOLUNTARY]);
    }
    Ok(Duration::from_nanos(String::from_utf8(output.stdout)?.trim().parse()?))
}

/// A part of the metrics of an agent with many allocations.
fn metrics() -> Metrics {
    let mut metrics = Metrics::new(vec![("node_id", "n1".to_owned())]);
    for n in 0..ALLOCATIONS {
        let id = Uuid::from_u128(n << 64 | 7).to_string();
        for family in family::ALL
            .iter()
            .filter(|family| family.labels == ["allocation"] && family.kind != lattice_telemetry::catalogue::Kind::Histogram)
        {
            metrics.count(family, &[&id], n as u64 * 7919);
        }
        for stat in ["mean", "p50", "p95", "p99", "max"] {
            for family in [&family::CPU_CORES, &family::MEMORY_USED, &family::IO_READ_RATE, &family::IO_WRITE_RATE] {
                metrics.add(family, &[&id, stat], n as f64 / 7.0);
            }
        }
    }
    metrics
}

/// Samples a second on one core.
fn encoding(rounds: usize) -> Result<Samples> {
    let metrics = metrics();
    let once = || {
        let (began, mut count) = (Instant::now(), 0);
        while began.elapsed() < Duration::from_millis(200) {
            count += lattice_telemetry::push::encode(&metrics, &[("job", "lattice-agents"), ("instance", "n1")], 1_700_000_000_000).1;
        }
        count as f64 / began.elapsed().as_secs_f64()
    };
    once();
    Samples::of((0..rounds).map(|_| once()).collect(), 0).context("at least one round")
}

/// Milliseconds of processor time of one collection of the host's metrics, including its text.
fn collecting(rounds: usize) -> Result<Samples> {
    const TIMES: u32 = 50;
    let host = Host::default();
    let once = || -> Result<f64> {
        let before = processor_time()?;
        for _ in 0..TIMES {
            let mut metrics = Metrics::new(vec![("node_id", "n1".to_owned())]);
            host.collect(&mut metrics, Whose::Ours);
            ensure!(!page(&metrics).is_empty(), "nothing was collected");
        }
        Ok((processor_time()? - before).as_secs_f64() * 1e3 / f64::from(TIMES))
    };
    once()?;
    Samples::of((0..rounds).map(|_| once()).collect::<Result<_>>()?, 0).context("at least one round")
}

/// The same for one scrape of node_exporter, if Debian's package is installed; an error says why it was not measured.
fn node_exporter(rounds: usize) -> Result<Samples> {
    const PROGRAM: &str = "/usr/bin/prometheus-node-exporter";
    const TIMES: u32 = 50;
    ensure!(Path::new(PROGRAM).exists(), "{PROGRAM} is not there (Debian's package prometheus-node-exporter)");
    let address = format!("127.0.0.1:{}", Ports::new(u64::from(std::process::id()) + 11).take()?);
    let child = Command::new(PROGRAM).arg(format!("--web.listen-address={address}")).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let child = Exporter(child);
    let scrape = || -> Result<usize> {
        let mut stream = TcpStream::connect(&address)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(stream, "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        let mut answer = Vec::new();
        Ok(stream.read_to_end(&mut answer)?)
    };
    ensure!(until(Duration::from_secs(10), || scrape().is_ok_and(|bytes| bytes > 1000)), "it does not answer at {address}");
    let used = || -> Result<f64> {
        let line = fs::read(format!("/proc/{}/stat", child.0.id()))?;
        let stat = Stat::parse(&line).context("its stat")?;
        Ok((stat.user_ticks + stat.system_ticks) as f64 * 1e3 / TICKS_PER_SECOND)
    };
    let once = || -> Result<f64> {
        let before = used()?;
        for _ in 0..TIMES {
            scrape()?;
        }
        Ok((used()? - before) / f64::from(TIMES))
    };
    Samples::of((0..rounds).map(|_| once()).collect::<Result<_>>()?, 0).context("at least one round")
}

/// A process that is ended on drop.
struct Exporter(Child);

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures in rounds, with and without counting.
pub fn run(options: &Options) -> Result<Report> {
    options.validate()?;
    let machine = Machine::look();
    ensure!(machine.root, "bench telemetry loads programs into the kernel: run it as root");
    let binaries = Binaries::beside_lab()?;
    if !options.no_build {
        binaries.build()?;
    }
    interrupt::watch();
    let before = machine::cpu_pressure();
    let place = Place::new()?;
    let mut subjects = vec![
        Subject::new("counted", || ping_pong(&place, true, false)),
        Subject::new("not counted", || ping_pong(&place, false, false)),
        Subject::new("counted, with an account", || ping_pong(&place, true, true)),
    ];
    subject::rounds(&mut subjects, options.rounds())?;
    let mut notes = subject::failures(&subjects);
    let need = |name: &str| subject::samples(&subjects, name).with_context(|| format!("{name}: every try failed: {}", notes.join("; ")));
    let (counted, plain) = (need("counted")?, need("not counted")?);
    let accounted = subject::samples(&subjects, "counted, with an account");
    let more_ms = (counted.median - plain.median).max(0.0);
    let percent = more_ms / 1e3 / (2.0 * f64::from(ROUND_TRIPS)) * SWITCHES * 100.0;
    let files = Files::new()?;
    let (attributed, attribution_notes) = attribution::figures(&place.slice, &place.scope, &files.0, options.rounds())?;
    notes.extend(attribution_notes);
    let exporter = node_exporter(options.rounds()).map_err(|why| notes.push(format!("node_exporter was not measured: {why}"))).ok();
    let third = match exporter {
        Some(_) => Target::RatioTo { peer: "one scrape of node_exporter".to_owned(), at_most: 1.0 / 3.0 },
        None => Target::AtMost { value: COLLECTED_MS, why: "a third of one scrape of node_exporter, 8 ms".to_owned() },
    };
    let at_most = |value, why: &str| Some(Target::AtMost { value, why: why.to_owned() });
    let figures = vec![
        Figure::new(
            "200,000 switches between two threads, processor time, counted in the kernel",
            "ms",
            counted,
            vec![("not counted", Some(plain)), ("counted, and its cost as well", accounted)],
            Some(Target::RatioTo { peer: "not counted".to_owned(), at_most: PING_PONG_RATIO }),
        ),
        Figure::new(
            "what counting 10,000 switches a second takes of a core",
            "%",
            Samples::of(vec![percent], 0).context("a value")?,
            vec![],
            at_most(SWITCHES_PERCENT, "nobody finds it"),
        ),
        Figure::new(
            "samples that one core encodes for the store",
            "/s",
            encoding(options.rounds())?,
            vec![],
            Some(Target::AtLeast { value: ENCODED, why: "a store takes as many".to_owned() }),
        ),
        Figure::new(
            "one collection of the host's metrics, processor time",
            "ms",
            collecting(options.rounds())?,
            vec![("one scrape of node_exporter", exporter)],
            Some(third),
        ),
    ];
    let mut figures = figures;
    figures.extend(attributed);
    eprintln!("bench: an agent that measures {FULL_ALLOCATIONS} allocations and {GPUS} GPUs, twice {} s", MEASURED_TIME.as_secs());
    let dir = std::env::temp_dir().join(format!("lattice-bench-busy-{}", std::process::id()));
    let busy = super::busy(&dir, FULL_ALLOCATIONS, GPUS, MEASURED_TIME, at_most(AGENT_MB, "resident"))?;
    figures.extend(super::busy::processor(FULL_ALLOCATIONS, GPUS, &busy, || at_most(AGENT_PERCENT, "of one core"))?);
    figures.push(busy.memory);
    notes.push(format!(
        "{FULL_ALLOCATIONS} allocations are shims that a restarted agent adopts, each with a cgroup and a program that sleeps, and at last wakes up once a second; the quorum is away meanwhile"
    ));
    let cpu_pressure = [before, machine::cpu_pressure()];
    Ok(Report { bench: "telemetry", profile: binaries.profile(), cpu_pressure, machine, figures, notes })
}
