//! The two systems that are measured: how a job gets into their queue, and what they report about it.

use super::jobs::Job;
use crate::bench::slurm::Slurm;
use anyhow::{Context, Result};
use lattice_lab::lattice::{Lattice, rows};
use std::process::Command;

/// States in which work has not ended.
const LATTICE_UNENDED: &str = "pending,staging,running,suspended";
const SLURM_UNENDED: &str = "PENDING,CONFIGURING,RUNNING,SUSPENDED";
/// The walltime of a small job: `lattice submit` has it as its default.
const SLURM_HOUR: &str = "--time=60";

/// A system with a queue. All jobs of one trial have its name.
pub trait System: Sync {
    /// Its name, for people and files.
    fn name(&self) -> &'static str;
    /// Submits this job, which runs the script with these arguments on the first of its nodes.
    fn submit_script(&self, trial: &str, job: &Job, script: &[String]) -> Command;
    /// Submits `/bin/true` on one core.
    fn submit_true(&self, trial: &str) -> Command;
    /// Whether all nodes are free. It costs less than a list of all jobs.
    fn is_idle(&self) -> Result<bool>;
    /// Whether some job of the trial has not ended.
    fn has_unended(&self, trial: &str) -> Result<bool>;
    /// How many jobs of the trial ended with success.
    fn completed_count(&self, trial: &str) -> Result<usize>;
}

impl System for Lattice {
    fn name(&self) -> &'static str {
        "lattice"
    }

    fn submit_script(&self, trial: &str, job: &Job, script: &[String]) -> Command {
        let (nodes, walltime) = (job.nodes.to_string(), format!("{}m", job.walltime_minutes));
        let mut command = self.command(&["submit", "--name", trial, "--nodes", &nodes, "--walltime", &walltime]);
        command.args(script);
        command
    }

    fn submit_true(&self, trial: &str) -> Command {
        self.command(&["submit", "--name", trial, "--cores", "1", "--", "/bin/true"])
    }

    fn is_idle(&self) -> Result<bool> {
        let answer = self.json(&["nodes"])?;
        let nodes = rows(&answer, "nodes").context("`lattice nodes -o json` is not a list")?;
        Ok(nodes.iter().all(|node| node["allocations"].as_array().is_some_and(Vec::is_empty)))
    }

    fn has_unended(&self, trial: &str) -> Result<bool> {
        let unended = self.ok(&["status", "--name", trial, "--state", LATTICE_UNENDED, "--limit", "1", "-o", "name"])?;
        Ok(!unended.trim().is_empty())
    }

    fn completed_count(&self, trial: &str) -> Result<usize> {
        Ok(self.ok(&["status", "--name", trial, "--state", "completed", "-o", "name"])?.lines().count())
    }
}

impl System for Slurm {
    fn name(&self) -> &'static str {
        "Slurm"
    }

    fn submit_script(&self, trial: &str, job: &Job, script: &[String]) -> Command {
        let (nodes, walltime) = (format!("--nodes={}", job.nodes), format!("--time={}", job.walltime_minutes));
        let mut command = self.command("sbatch");
        command.args(["--job-name", trial, &nodes, &walltime, "--output=/dev/null"]).args(script);
        command
    }

    fn submit_true(&self, trial: &str) -> Command {
        let mut command = self.command("sbatch");
        command.args(["--job-name", trial, "--ntasks=1", SLURM_HOUR, "--output=/dev/null", "--wrap", "/bin/true"]);
        command
    }

    fn is_idle(&self) -> Result<bool> {
        self.has_all_nodes_idle()
    }

    fn has_unended(&self, trial: &str) -> Result<bool> {
        let unended = self.answer("squeue", &["-h", "-o", "%i", "--name", trial, "--states", SLURM_UNENDED])?;
        Ok(!unended.trim().is_empty())
    }

    fn completed_count(&self, trial: &str) -> Result<usize> {
        Ok(self.answer("squeue", &["-h", "-o", "%i", "--name", trial, "--states", "COMPLETED"])?.lines().count())
    }
}
