//! The cost of stored output for the writing program.

use crate::bench::figures::{Figure, Samples, Target};
use anyhow::{Context, Result, ensure};
use lattice_lab::lattice::{Lattice, text};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// MiB that each try writes.
const MEGABYTES: u32 = 512;
const ROUNDS: usize = 7;
const LIMIT: Duration = Duration::from_secs(60);

/// The time in which a job writes as fast as it can, compared with the same program and a plain file.
pub fn figure(lattice: &Lattice, dir: &Path, at_most: f64) -> Result<Figure> {
    let peer = "the same program, to a file of its own";
    let (mut kept, mut plain) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        lattice_lab::interrupt::check()?;
        let both = [write_as_job(lattice, dir)?, write_plainly(dir)?];
        // The first round warms up.
        if round > 0 {
            kept.push(both[0]);
            plain.push(both[1]);
        }
    }
    let kept = Samples::of(kept, 0).context("nothing was measured")?;
    let name = format!("{MEGABYTES} MB of output, as fast as it can be written");
    let target = Target::RatioTo { peer: peer.to_owned(), at_most };
    Ok(Figure::new(&name, "ms", kept, vec![(peer, Samples::of(plain, 0))], Some(target)))
}

/// A shell script that writes the output, and then puts into `result_file` how many microseconds that took.
fn writer(result_file: &Path) -> String {
    let count = MEGABYTES;
    format!(
        "b=$(date +%s%N); dd if=/dev/zero bs=1M count={count} status=none; e=$(date +%s%N); echo $(((e-b)/1000)) > {}",
        result_file.display()
    )
}

fn write_as_job(lattice: &Lattice, dir: &Path) -> Result<f64> {
    let result_file = dir.join("bench-output");
    let _ = std::fs::remove_file(&result_file);
    let script = writer(&result_file);
    let id = lattice.ok(&["submit", "-o", "name", "--name", "output", "--walltime", "5m", "--", "/bin/sh", "-c", &script])?;
    let ended = lattice.ended_within(id.trim(), LIMIT)?;
    ensure!(text(&ended, "state") == "Completed", "the job that writes ended so: {ended}");
    read(&result_file)
}

fn write_plainly(dir: &Path) -> Result<f64> {
    let (result_file, out) = (dir.join("bench-plain"), dir.join("bench-plain.out"));
    let file = std::fs::File::options().create(true).append(true).open(&out)?;
    let script = writer(&result_file);
    let status = Command::new("/bin/sh").args(["-c", &script]).stdin(Stdio::null()).stdout(file).status()?;
    std::fs::remove_file(out)?;
    ensure!(status.success(), "the plain writer ended with {status}");
    read(&result_file)
}

fn read(result_file: &Path) -> Result<f64> {
    let text = std::fs::read_to_string(result_file).with_context(|| format!("reading {}", result_file.display()))?;
    Ok(text.trim().parse::<f64>().context("a number")? / 1000.0)
}
