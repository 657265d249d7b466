//! Checks that the kernel's counts are attributed correctly: two scopes at once, each with a load that counts itself.

use super::super::figures::{Figure, Samples, Target};
use anyhow::{Context, Result, ensure};
use lattice_ebpf::layout::{BLOCK_WRITTEN_BYTES, RECEIVED_BYTES, SENT_BYTES, SWITCHES_INVOLUNTARY, SWITCHES_VOLUNTARY, WORDS};
use lattice_ebpf::{Counts, Probes};
use lattice_model::AllocationId;
use lattice_runtime::cgroup::{Scope, Slice};
use nix::sys::resource::{UsageWho, getrusage};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use uuid::Uuid;

/// The load of each scope: round trips between two threads, datagrams, and MiB written past the page cache.
const LOADS: [[u32; 3]; 2] = [[50_000, 20_000, 64], [20_000, 5000, 16]];
/// Bytes of a datagram, and of its headers.
const DATAGRAM: usize = 1000;
const HEADERS: usize = 28;
/// Bytes of one write.
const WRITE: usize = 1 << 20;
/// MiB that stay in memory, and are written back later.
const BUFFERED: u32 = 32;
/// Largest permitted difference between the count and the true number, in percent.
const OFF_PERCENT: f64 = 1.0;

/// A load in a cgroup, whose events are counted (for `bench telemetry`)
#[derive(Clone, Debug, clap::Args)]
pub struct Load {
    /// The cgroup that the process moves itself to first
    #[arg(long)]
    cgroup: PathBuf,
    /// Round trips between two threads
    #[arg(long, default_value_t = 0)]
    rounds: u32,
    /// Datagrams that it sends to itself
    #[arg(long, default_value_t = 0)]
    datagrams: u32,
    /// The file that it writes
    #[arg(long)]
    file: Option<PathBuf>,
    /// MiB that it writes to --file past the page cache
    #[arg(long, default_value_t = 0)]
    direct: u32,
    /// MiB that it writes to --file and leaves in memory
    #[arg(long, default_value_t = 0)]
    buffered: u32,
}

impl Load {
    /// Runs the load, and prints the number of context switches of this process.
    pub fn run(&self) -> Result<()> {
        fs::write(self.cgroup.join("cgroup.procs"), "0").with_context(|| format!("moving to {}", self.cgroup.display()))?;
        let before = switches()?;
        self.switch()?;
        self.send()?;
        if let Some(file) = &self.file {
            write(file, self.direct, libc::O_DIRECT)?;
            write(file, self.buffered, 0)?;
        }
        println!("{}", switches()? - before);
        Ok(())
    }

    fn switch(&self) -> Result<()> {
        let ((mut a_out, mut a_in), (mut b_out, mut b_in)) = (std::io::pipe()?, std::io::pipe()?);
        let rounds = self.rounds;
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
        Ok(())
    }

    fn send(&self) -> Result<()> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.connect(socket.local_addr()?)?;
        let mut bytes = [7; DATAGRAM];
        for _ in 0..self.datagrams {
            socket.send(&bytes)?;
            ensure!(socket.recv(&mut bytes)? == DATAGRAM, "a datagram arrived incomplete");
        }
        Ok(())
    }
}

/// Context switches of all threads of this process so far.
fn switches() -> Result<i64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    Ok(usage.voluntary_context_switches() + usage.involuntary_context_switches())
}

fn write(path: &Path, mebibytes: u32, flags: i32) -> Result<()> {
    if mebibytes == 0 {
        return Ok(());
    }
    let file = File::options().create(true).truncate(true).write(true).custom_flags(flags).open(path)?;
    // Writes past the page cache need aligned memory.
    let mut memory = vec![7; WRITE + 4096];
    let at = memory.as_ptr().align_offset(4096);
    let bytes = &mut memory[at..at + WRITE];
    for n in 0..mebibytes {
        file.write_all_at(bytes, u64::from(n) * WRITE as u64)?;
    }
    Ok(())
}

/// Whether files in this directory are on a block device whose requests are counted.
fn is_on_a_disk(dir: &Path) -> Result<bool> {
    let device = fs::metadata(dir)?.dev();
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    Ok(Path::new(&format!("/sys/dev/block/{major}:{minor}")).exists())
}

/// The two scopes, and their counters.
struct Two<'a> {
    scopes: [&'a Scope; 2],
    cgroups: [u64; 2],
    probes: Probes,
}

impl<'a> Two<'a> {
    fn new(slice: &Slice, scopes: [&'a Scope; 2]) -> Result<Self> {
        let cgroup = |scope: &Scope| -> Result<u64> { Ok(fs::metadata(scope.work().path())?.ino()) };
        let cgroups = [cgroup(scopes[0])?, cgroup(scopes[1])?];
        let mut probes = Probes::load(&slice.path())?;
        cgroups.iter().try_for_each(|cgroup| probes.track(*cgroup)).map_err(anyhow::Error::msg)?;
        Ok(Self { scopes, cgroups, probes })
    }

    fn counts(&self, n: usize) -> Result<Counts> {
        self.probes.counts(self.cgroups[n], &[0; WORDS]).context("the scope is not counted")
    }

    fn begin(&self, n: usize, file: Option<&Path>, args: &[(&str, u32)]) -> Result<Child> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("load").arg("--cgroup").arg(self.scopes[n].work().path());
        args.iter().for_each(|(name, value)| {
            command.arg(name).arg(value.to_string());
        });
        file.into_iter().for_each(|file| {
            command.arg("--file").arg(file);
        });
        Ok(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
    }
}

/// The switches that the load reported.
fn reported_switches(child: Child) -> Result<f64> {
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// The difference between the count and the true number, in percent of the latter.
fn off(counted: u64, known: f64) -> f64 {
    (counted as f64 - known).abs() / known * 100.0
}

/// The larger of both scopes' differences, in percent: switches, bytes of the network, bytes past the page cache.
#[derive(Default)]
struct Off([f64; 3]);

fn one_round(two: &Two<'_>, dir: Option<&Path>) -> Result<Off> {
    let before = [two.counts(0)?, two.counts(1)?];
    let file = |n: usize| dir.map(|dir| dir.join(format!("direct-{n}")));
    let mut children = Vec::new();
    for (n, [rounds, datagrams, mebibytes]) in LOADS.into_iter().enumerate() {
        let direct = if dir.is_some() { mebibytes } else { 0 };
        let args = [("--rounds", rounds), ("--datagrams", datagrams), ("--direct", direct)];
        children.push(two.begin(n, file(n).as_deref(), &args)?);
    }
    let mut worst = Off::default();
    for (n, child) in children.into_iter().enumerate() {
        let [_, datagrams, mebibytes] = LOADS[n];
        let switched = reported_switches(child)?;
        let now = two.counts(n)?;
        let more = |words: &[usize]| words.iter().map(|word| now[*word].wrapping_sub(before[n][*word])).sum::<u64>();
        let sent = f64::from(datagrams) * (DATAGRAM + HEADERS) as f64;
        let network = off(more(&[SENT_BYTES]), sent).max(off(more(&[RECEIVED_BYTES]), sent));
        let disk = dir.map_or(0.0, |_| off(more(&[BLOCK_WRITTEN_BYTES]), f64::from(mebibytes) * WRITE as f64));
        let found = [off(more(&[SWITCHES_VOLUNTARY, SWITCHES_INVOLUNTARY]), switched), network, disk];
        worst.0.iter_mut().zip(found).for_each(|(worst, found)| *worst = worst.max(found));
    }
    Ok(worst)
}

/// Data of a scope that stays in memory until the kernel writes it back: the percentage that is counted for the scope,
/// and the bytes that are counted for no allocation.
fn written_back(two: &Two<'_>, dir: &Path) -> Result<(f64, u64)> {
    let unattributed = || two.probes.of_no_allocation().map(|(_, written)| written).context("bytes of no allocation are not counted");
    let (own, before) = (two.counts(0)?[BLOCK_WRITTEN_BYTES], unattributed()?);
    let file = dir.join("buffered");
    reported_switches(two.begin(0, Some(&file), &[("--buffered", BUFFERED)])?)?;
    let file = File::open(file)?;
    file.sync_all()?;
    let known = f64::from(BUFFERED) * WRITE as f64;
    let own = two.counts(0)?[BLOCK_WRITTEN_BYTES].wrapping_sub(own);
    Ok((own as f64 / known * 100.0, unattributed()?.wrapping_sub(before)))
}

/// The figures, and notes about them. `dir`: the directory for files.
pub(super) fn figures(slice: &Slice, first: &Scope, dir: &Path, rounds: usize) -> Result<(Vec<Figure>, Vec<String>)> {
    let second = slice.create_scope(AllocationId(Uuid::new_v4()))?;
    let measured = measure(&Two::new(slice, [first, &second])?, dir, rounds);
    let _ = second.whole().remove();
    measured
}

fn measure(two: &Two<'_>, dir: &Path, rounds: usize) -> Result<(Vec<Figure>, Vec<String>)> {
    let mut notes = Vec::new();
    let on_a_disk = is_on_a_disk(dir)?;
    let dir = on_a_disk.then_some(dir);
    if !on_a_disk {
        notes.push("direct I/O was not measured: temporary files are on no block device here (TMPDIR)".to_owned());
    }
    let worst: Vec<Off> = (0..rounds).map(|_| one_round(two, dir)).collect::<Result<_>>()?;
    let at_most = || Some(Target::AtMost { value: OFF_PERCENT, why: "attributed to its own scope".to_owned() });
    let figure = |name: &str, n: usize| -> Result<Figure> {
        let samples = Samples::of(worst.iter().map(|off| off.0[n]).collect(), 0).context("at least one round")?;
        Ok(Figure::new(name, "%", samples, vec![], at_most()))
    };
    let mut figures = vec![
        figure("two scopes at once, context switches: difference between counted and true, the larger of the two", 0)?,
        figure("the same, bytes sent and received", 1)?,
    ];
    if let Some(dir) = dir {
        figures.push(figure("the same, bytes written past the page cache", 2)?);
        let (own, unattributed) = written_back(two, dir)?;
        let samples = Samples::of(vec![own], 0).context("a value")?;
        figures.push(Figure::new("data written back later, counted for its scope", "%", samples, vec![], at_most()));
        notes.push(format!(
            "{BUFFERED} MiB were left in memory and written back; meanwhile {:.1} MiB were counted for no allocation (unattributed)",
            unattributed as f64 / WRITE as f64
        ));
    }
    Ok((figures, notes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_difference_is_in_percent_of_the_true_number_and_never_negative() {
        assert_eq!([off(1010, 1000.0), off(980, 1000.0), off(1000, 1000.0)], [1.0, 2.0, 0.0]);
    }
}
