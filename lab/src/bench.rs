//! `lattice-lab bench NAME`: figures against peers or floors of the same run, interleaved, because a machine's mood
//! changes more between runs than between systems.

mod figures;
pub mod launch;
mod slurm;

use anyhow::Result;
use std::path::Path;

pub use figures::{Figure, Report, Samples, Verdict};

/// Runs the benchmark and prints it; whether every target was met.
pub fn run(name: Name, dir: Option<&Path>, options: &launch::Options, json: bool) -> Result<bool> {
    let report = match name {
        Name::Launch => launch::run(dir, options)?,
    };
    if json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{report}");
    }
    Ok(report.met())
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Name {
    /// Starting work: inside an allocation, a whole job, and memory at rest
    Launch,
}
