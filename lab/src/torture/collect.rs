//! Collects the facts after everything was healed.

use super::facts::{Allocation, Daemon, Facts, Log, Node, Record};
use super::stage::{Stage, size_of};
use super::traces;
use crate::cluster::Cluster;
use crate::demo::Lines;
use crate::down;
use crate::lattice::{Lattice, rows, text};
use anyhow::{Context, Result, ensure};
use lattice_model::AuditRecord;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Timeout of long answers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// How many lines with panics are shown of a daemon's log.
const PANICS_MAX: usize = 3;

/// Collects facts, and caches those that can no longer change.
#[derive(Debug, Default)]
pub struct Collector {
    /// Complete logs.
    whole: BTreeMap<String, Log>,
    pub ended_by_themselves: BTreeSet<String>,
}

impl Collector {
    /// Collects everything except logs and the audit log.
    pub fn look(&mut self, stage: &Stage, facts: &mut Facts) -> Result<()> {
        let cluster = stage.cluster()?;
        facts.unanswered.clear();
        facts.traces = traces::read(&stage.place.traces)?;
        facts.leftovers = down::leftovers(&cluster);
        facts.daemons = cluster.daemons().map(|daemon| self.daemon(stage, daemon)).collect();
        let answered = allocations(stage, facts).and_then(|()| nodes(&cluster, facts));
        if let Err(error) = answered {
            facts.unanswered.push(format!("{error:#}"));
        }
        Ok(())
    }

    /// Collects the logs of completed allocations, and the audit log.
    pub fn read(&mut self, stage: &Stage, facts: &mut Facts) -> Result<()> {
        let cluster = stage.cluster()?;
        for (number, allocation) in (1..).zip(facts.allocations.iter().filter(|a| a.state == "Completed")) {
            let Some(job) = facts.asked_of(allocation).map(|asked| asked.job.clone()) else { continue };
            if let Some(log) = self.whole.get(&allocation.id) {
                facts.logs.insert(allocation.id.clone(), log.clone());
                continue;
            }
            // Each log is read from another agent, in turn.
            match log_of(&stage.lattice(number % super::plan::NODES + 1)?, &allocation.id) {
                Ok(log) => {
                    if log.lines.complete(job.ranks(), job.lines).is_ok() {
                        self.whole.insert(allocation.id.clone(), log.clone());
                    }
                    facts.logs.insert(allocation.id.clone(), log);
                }
                Err(error) => facts.unanswered.push(format!("{error:#}")),
            }
        }
        facts.audit_failures.clear();
        for node in &cluster.nodes {
            let verified = Lattice::to(&cluster, &node.id)?.run(&["audit", "verify"], ANSWER_TIMEOUT)?;
            if verified.code() != 0 {
                facts.audit_failures.push(format!("{} says: {}", node.id, verified.err().trim()));
            }
        }
        match audit(&stage.lattice(1)?) {
            Ok(audit) => facts.audit = audit,
            Err(error) => facts.unanswered.push(format!("{error:#}")),
        }
        Ok(())
    }

    fn daemon(&self, stage: &Stage, daemon: &crate::cluster::Daemon) -> Daemon {
        let (memory_bytes, descriptors) = daemon.process.as_ref().map_or((0, 0), |p| size_of(p.pid));
        let (memory_bytes_at_first, descriptors_at_first) = stage.at_first.get(&daemon.name).copied().unwrap_or_default();
        let log = std::fs::read(&daemon.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        Daemon {
            name: daemon.name.clone(),
            ended_by_itself: self.ended_by_themselves.contains(&daemon.name),
            panics: log.lines().filter(|line| line.contains("panicked at")).take(PANICS_MAX).map(str::to_owned).collect(),
            memory_bytes,
            memory_bytes_at_first,
            descriptors,
            descriptors_at_first,
        }
    }
}

fn strings(value: &Value, key: &str) -> Vec<String> {
    value[key].as_array().into_iter().flatten().filter_map(|s| s.as_str().map(str::to_owned)).collect()
}

fn allocations(stage: &Stage, facts: &mut Facts) -> Result<()> {
    let answer = stage.lattice(1)?.json(&["status", "--all", "--limit", "100000"])?;
    let listed = rows(&answer, "allocations").context("`lattice status -o json` is not a list")?;
    facts.allocations = listed.iter().map(allocation).collect();
    Ok(())
}

fn allocation(value: &Value) -> Allocation {
    let number = |key: &str| value[key].as_u64().unwrap_or(0);
    Allocation {
        id: text(value, "id"),
        name: text(value, "name"),
        state: text(value, "state"),
        reason: text(value, "reason"),
        nodes: strings(value, "nodes"),
        exit_code: value["exit_code"].as_i64(),
        requeue_count: number("requeue_count"),
        epoch: number("epoch"),
    }
}

fn nodes(cluster: &Cluster, facts: &mut Facts) -> Result<()> {
    facts.nodes.clear();
    let answer = Lattice::to_any(cluster)?.json(&["nodes"])?;
    for value in rows(&answer, "nodes").context("`lattice nodes -o json` is not a list")? {
        ensure!(value["from_gossip"] != true, "the quorum does not answer: the list of nodes is from gossip");
        let id = text(value, "id");
        let lattice = Lattice::to(cluster, &id)?;
        let status = lattice.json(&["node", "status"])?;
        let local = status["allocations"].as_array().into_iter().flatten();
        let gossip = lattice.json(&["gossip", "members"])?;
        let members = rows(&gossip, "members").context("`lattice gossip members -o json` is not a list")?;
        facts.nodes.push(Node {
            state: text(value, "state"),
            reason: text(value, "reason"),
            holds: strings(value, "holds"),
            cores_committed: value["committed"]["cores"].as_u64().unwrap_or(0),
            allocations: strings(value, "allocations"),
            local: local.map(|a| format!("{} under epoch {}, {}", text(a, "id"), a["epoch"], text(a, "phase"))).collect(),
            doubted: members
                .iter()
                .filter(|m| text(m, "liveness") != "alive")
                .map(|m| format!("{} {}", text(m, "node"), text(m, "liveness")))
                .collect(),
            id,
        });
    }
    Ok(())
}

fn log_of(lattice: &Lattice, id: &str) -> Result<Log> {
    let shown = lattice.run(&["logs", id], ANSWER_TIMEOUT)?;
    ensure!(shown.code() == 0, "`lattice logs {id}` ended with {}: {}", shown.code(), shown.err().trim());
    let mut lines = Lines::default();
    shown.out().lines().for_each(|line| lines.take(line));
    Ok(Log { lines, err: shown.err() })
}

fn audit(lattice: &Lattice) -> Result<Vec<Record>> {
    let output = lattice.run(&["audit", "query", "--limit", "1000000", "-o", "json"], ANSWER_TIMEOUT)?;
    ensure!(output.code() == 0, "`lattice audit query` ended with {}: {}", output.code(), output.err().trim());
    let records: Vec<AuditRecord> = serde_json::from_slice(&output.stdout).context("`lattice audit query -o json` printed no records")?;
    let record = |r: AuditRecord| Record {
        seq: r.seq,
        at_wall_ms: r.at.0,
        actor: r.actor,
        action: r.action.name().to_owned(),
        allocation: r.allocation.map(|id| id.to_string()),
        node: r.node.map(|node| node.to_string()),
        detail: r.detail,
    };
    Ok(records.into_iter().map(record).collect())
}
