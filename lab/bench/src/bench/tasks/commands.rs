//! The common parts of the commands that run tasks.

use anyhow::{Result, ensure};
use lattice_lab::{interrupt, process};
use std::process::Command;
use std::time::Duration;

/// How long all tasks of a group may take.
const GROUP_LIMIT: Duration = Duration::from_secs(240);

/// The option for a group of this many tasks.
pub fn group_of(tasks: u32) -> String {
    format!("--task-group=0-{}", tasks.saturating_sub(1))
}

/// The time of a command that must succeed.
pub fn time_of(command: &mut Command) -> Result<Duration> {
    let done = process::run(command, GROUP_LIMIT)?;
    interrupt::check()?;
    ensure!(!done.timed_out, "not ended after {} s", GROUP_LIMIT.as_secs());
    ensure!(done.code() == 0, "ended with {}: {}", done.code(), done.err().trim());
    Ok(done.took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_as_many_indices_as_tasks() {
        assert_eq!(group_of(10_000), "--task-group=0-9999");
    }
}
