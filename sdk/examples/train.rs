//! A training loop that survives preemption: each step is hashed with all steps before it, and restored state is
//! checked.
//!
//! `lattice submit --checkpoint=shmem -- ./train 1000`

use lattice_checkpoint::{Done, Listener};
use std::env;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

/// FNV-1a over the previous hash and the step.
fn next(chain: u64, step: u64) -> u64 {
    let bytes = chain.to_le_bytes().into_iter().chain(step.to_le_bytes());
    bytes.fold(14_695_981_039_346_656_037, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211))
}

fn save(directory: &Path, step: u64, chain: u64) -> io::Result<()> {
    fs::write(directory.join("state"), format!("{step} {chain}\n"))
}

fn restore(directory: &Path) -> io::Result<(u64, u64)> {
    let text = fs::read_to_string(directory.join("state"))?;
    let invalid = || io::Error::other(format!("{text:?} is not a saved state"));
    let (step, chain) = text.trim().split_once(' ').ok_or_else(invalid)?;
    let (step, chain) = (step.parse().map_err(|_| invalid())?, chain.parse().map_err(|_| invalid())?);
    if (1..=step).fold(0, next) != chain {
        return Err(io::Error::other(format!("the restored state is not the result of {step} steps")));
    }
    println!("restored {step}");
    Ok((step, chain))
}

fn main() -> io::Result<()> {
    let steps: u64 = env::args().nth(1).and_then(|steps| steps.parse().ok()).unwrap_or(1000);
    let from = env::var_os("LATTICE_RESTORE_FROM");
    let (mut step, mut chain) = from.map_or(Ok((0, 0)), |from| restore(Path::new(&from)))?;
    let listener = Listener::from_env()?;
    println!("begun");
    while step < steps {
        // Simulates the computation of a real step.
        std::thread::sleep(Duration::from_millis(10));
        step += 1;
        chain = next(chain, step);
        if let Some(request) = listener.as_ref().and_then(Listener::asked) {
            match save(&request.directory, step, chain) {
                Ok(()) => request.done(Done { step: Some(step), files: Some(1), ..Done::default() }),
                Err(error) => request.failed(&error.to_string()),
            }
        }
        println!("step {step}");
    }
    println!("final {step} {chain}");
    Ok(())
}
