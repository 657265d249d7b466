//! Runs the CLI like a user or a script.

use crate::cluster::Cluster;
use crate::process::{Finished, run, until};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long an ordinary command may take before it counts as hanging.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(15);

/// `lattice`, connected to one agent.
#[derive(Clone, Debug)]
pub struct Lattice {
    program: PathBuf,
    socket: PathBuf,
}

impl Lattice {
    /// Connected to the node's agent.
    pub fn to(cluster: &Cluster, node: &str) -> Result<Self> {
        Ok(Self { program: cluster.binaries.join("lattice"), socket: cluster.node(node)?.socket.clone() })
    }

    /// Connected to the first node with a running agent.
    pub fn to_any(cluster: &Cluster) -> Result<Self> {
        let node = cluster.nodes.iter().find(|n| n.daemon.alive()).context("no agent of this cluster runs")?;
        Self::to(cluster, &node.id)
    }

    /// Uses this copy of the CLI.
    pub fn with_program(mut self, program: &Path) -> Self {
        program.clone_into(&mut self.program);
        self
    }

    /// The agent's socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Whether the agent accepts connections: known without a command.
    pub fn is_reachable(&self) -> bool {
        UnixStream::connect(&self.socket).is_ok()
    }

    /// A command that the caller completes.
    pub fn command<S: AsRef<std::ffi::OsStr>>(&self, args: &[S]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).env("LATTICE_ENDPOINT", format!("unix:{}", self.socket.display())).env("NO_COLOR", "1");
        command
    }

    /// Runs it to its end.
    pub fn run<S: AsRef<std::ffi::OsStr>>(&self, args: &[S], limit: Duration) -> Result<Finished> {
        run(&mut self.command(args), limit)
    }

    /// Runs it; any exit code but 0 is an error with its output.
    pub fn ok<S: AsRef<std::ffi::OsStr>>(&self, args: &[S]) -> Result<String> {
        self.timed(args, ANSWER_LIMIT).map(|(_, output)| output)
    }

    /// The same with another limit; also returns how long it took.
    pub fn timed<S: AsRef<std::ffi::OsStr>>(&self, args: &[S], limit: Duration) -> Result<(Duration, String)> {
        let finished = self.run(args, limit)?;
        let line = || args.iter().map(|a| a.as_ref().to_string_lossy()).collect::<Vec<_>>().join(" ");
        if finished.timed_out {
            bail!("`lattice {}` did not end within {} s", line(), limit.as_secs());
        }
        if finished.code() != 0 {
            bail!("`lattice {}` ended with {}: {}", line(), finished.code(), finished.err().trim());
        }
        Ok((finished.took, finished.out()))
    }

    /// Runs it with `-o json` and parses the answer.
    pub fn json(&self, args: &[&str]) -> Result<Value> {
        let args = [args, &["-o", "json"]].concat();
        let text = self.ok(&args)?;
        serde_json::from_str(&text).with_context(|| format!("`lattice {}` printed no JSON: {text:?}", args.join(" ")))
    }

    /// Every node's id and state, from the quorum.
    pub fn nodes(&self) -> Result<Vec<(String, String)>> {
        let answer = self.json(&["nodes"])?;
        let rows = rows(&answer, "nodes").context("`lattice nodes -o json` is not a list")?;
        if rows.iter().any(|n| n["from_gossip"] == true) {
            bail!("the quorum does not answer: the list is from gossip");
        }
        Ok(rows.iter().map(|n| (text(n, "id"), text(n, "state"))).collect())
    }

    /// `lattice status ID`: one allocation.
    pub fn allocation(&self, id: &str) -> Result<Value> {
        let answer = self.json(&["status", id])?;
        // `status ID` may return an object, or a list of one.
        match answer {
            Value::Array(mut list) if list.len() == 1 => Ok(list.remove(0)),
            Value::Object(_) => Ok(answer),
            other => bail!("`lattice status {id} -o json` is not an allocation: {other}"),
        }
    }

    /// The newest thousand allocations of all users.
    pub fn allocations(&self) -> Result<Vec<Value>> {
        let answer = self.json(&["status", "--all", "--limit", "1000"])?;
        Ok(rows(&answer, "allocations").context("`lattice status -o json` is not a list")?.clone())
    }

    /// The id of the quorum's leader, if the members agree on it now.
    pub fn leader(&self) -> Result<Option<u64>> {
        let answer = self.json(&["quorum", "status"])?;
        Ok(answer.get("leader").and_then(|l| l.as_u64().or_else(|| l.as_str().and_then(|s| s.parse().ok()))))
    }

    /// Waits until the allocation has ended; returns its last state.
    pub fn ended_within(&self, id: &str, limit: Duration) -> Result<Value> {
        let mut last = Value::Null;
        let mut trouble = None;
        let done = until(limit, || {
            if crate::interrupt::came().is_some() {
                return true;
            }
            match self.allocation(id) {
                Ok(now) => {
                    let ended = matches!(text(&now, "state").as_str(), "Completed" | "Failed" | "Cancelled");
                    last = now;
                    ended
                }
                Err(e) => {
                    trouble = Some(e);
                    false
                }
            }
        });
        crate::interrupt::check()?;
        match (done, trouble) {
            (true, _) => Ok(last),
            (false, Some(e)) if last.is_null() => Err(e),
            (false, _) => bail!("{id} has not ended after {} s: {last}", limit.as_secs()),
        }
    }
}

pub fn rows<'a>(answer: &'a Value, key: &str) -> Option<&'a Vec<Value>> {
    answer.as_array().or_else(|| answer.get(key)?.as_array())
}

/// A field as text; empty if it is missing.
pub fn text(value: &Value, key: &str) -> String {
    match value.get(key) {
        Some(Value::String(s)) => s.clone(),
        None | Some(Value::Null) => String::new(),
        Some(other) => other.to_string(),
    }
}
