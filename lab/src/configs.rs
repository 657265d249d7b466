//! The daemons' configuration files.

use crate::cluster::{Cluster, Member, Node};
use crate::options::Options;
use anyhow::Result;
use serde_json::Value;
use std::fmt::Write;
use std::path::Path;

/// A member's file.
pub fn member(cluster: &Cluster, member: &Member, options: &Options) -> String {
    let timers = format!(
        "certificate_seconds: {}\nheartbeat_ms: {}\nelection_ms: {}\nnode_heartbeat_ms: {}\nnode_degraded_after_ms: {}\nnode_down_after_ms: {}\nnode_admission: {}\naudit_sign_seconds: {}\naudit_archive_seconds: {}\n{}",
        options.certificate_seconds,
        options.raft_heartbeat_ms,
        options.raft_election_ms,
        options.heartbeat_ms,
        options.degraded_after_ms,
        options.down_after_ms,
        options.node_admission,
        options.audit_sign_seconds,
        options.audit_archive_seconds,
        options.member_lines.replace("{dir}", &cluster.dir.to_string_lossy())
    );
    member_with(cluster, member, &cluster.members, &timers, &options.telemetry_lines.replace("{dir}", &cluster.dir.to_string_lossy()))
}

/// The file of a member that joins later: it lists only itself, and has the timers of the file `of`.
pub fn joining(cluster: &Cluster, member: &Member, of: &str) -> String {
    let of_audit = |key: &str| key.starts_with("audit_") && key.ends_with("_seconds");
    let is_timer =
        |line: &&str| line.split_once(':').is_some_and(|(key, _)| key.ends_with("_ms") || key == "node_admission" || of_audit(key));
    let timers: Vec<&str> = of.lines().filter(is_timer).collect();
    member_with(cluster, member, std::slice::from_ref(member), &(timers.join("\n") + "\n"), "")
}

fn member_with(cluster: &Cluster, member: &Member, named: &[Member], timers: &str, telemetry_lines: &str) -> String {
    let dir = cluster.dir.join(&member.daemon.name);
    let mut text = format!("id: {}\ncluster: lab\ndata_dir: {}\n", member.id, quoted(&dir.join("data")));
    text += "members:\n";
    for m in named {
        let _ = writeln!(text, "  - {{id: {}, service: {:?}, raft: {:?}}}", m.id, m.service, m.raft);
    }
    text += &tls(&cluster.dir, &dir, &member.daemon.name);
    let _ = writeln!(text, "ca_key: {}", quoted(&cluster.dir.join("ca/ca.key")));
    text += timers;
    text += &telemetry(&member.metrics);
    text += telemetry_lines;
    let archive = format!("file://{}", cluster.dir.join("audit-archive").display());
    let _ = writeln!(text, "audit_archive: {archive:?}");
    text
}

/// Largest cluster in which all agents use kernel probes.
const COUNTING_NODES_MAX: usize = 8;

/// An agent's file. Later snippets win over earlier ones, and all of them over what the lab sets itself.
pub fn agent(cluster: &Cluster, node: &Node, options: &Options, cgroup_root: &str, gpus: &str) -> Result<String> {
    let in_dir = |lines: &str| lines.replace("{dir}", &cluster.dir.to_string_lossy());
    let run = cluster.run_dir.join(&node.id);
    let mut text = agent_alone(cluster, node, options, cgroup_root);
    let api = if options.network_api { format!("api: {{listen: {:?}}}\n", node.api) } else { String::new() };
    for snippet in [
        api,
        telemetry(&node.metrics) + &in_dir(&options.telemetry_lines),
        in_dir(&options.log_lines),
        in_dir(&options.agent_lines).replace("{run}", &run.to_string_lossy()),
        options.node_lines.iter().filter(|(id, _)| *id == node.id).map(|(_, lines)| lines.as_str()).collect(),
        gpus.to_owned(),
    ] {
        text = merged(&text, &snippet)?;
    }
    Ok(text)
}

/// What the lab sets in every agent's file.
fn agent_alone(cluster: &Cluster, node: &Node, options: &Options, cgroup_root: &str) -> String {
    let (dir, run) = (cluster.dir.join(&node.id), cluster.run_dir.join(&node.id));
    let quorum: Vec<String> = cluster.members.iter().map(|m| format!("{:?}", m.service)).collect();
    let seeds: Vec<String> = cluster.nodes.iter().take(3).filter(|n| n.id != node.id).map(|n| format!("{:?}", n.gossip)).collect();
    let mut text =
        format!("node_id: {}\ncluster: lab\nstate_dir: {}\nsocket: {}\n", node.id, quoted(&run.join("state")), quoted(&node.socket));
    let _ = writeln!(text, "quorum: [{}]", quorum.join(", "));
    text += &tls(&cluster.dir, &dir, &node.id);
    let _ = writeln!(text, "mesh: {{listen: {:?}}}", node.mesh);
    let key = quoted(&cluster.dir.join("gossip.key"));
    let _ = writeln!(text, "gossip: {{listen: {:?}, key_file: {key}, seeds: [{}]}}", node.gossip, seeds.join(", "));
    let _ = writeln!(text, "roles: [api, scheduler]\nschedulable: true");
    let _ = writeln!(text, "work: {{allow_root: true, grace_seconds: {}}}", options.grace_seconds);
    let _ = writeln!(text, "shim: {}", quoted(&cluster.binaries.join("lattice-shim")));
    // Without memory: under version 1 other software of this machine may depend on it.
    let delegated = quoted(Path::new(cgroup_root).iter().next().map(Path::new).unwrap_or(Path::new("")));
    let _ = writeln!(
        text,
        "cgroup: {{root: {cgroup_root:?}, delegated: {delegated}, v1_controllers: [cpu, cpuset, pids, io], pids_max: 1024}}"
    );
    let _ = writeln!(text, "launch: {{fence_timeout_seconds: {}}}", options.fence_timeout_seconds);
    let _ = writeln!(text, "scheduler_lease_ms: {}", options.scheduler_lease_ms);
    let store = format!("file://{}", cluster.dir.join("objects").display());
    let _ = writeln!(text, "logs: {{store: {{url: {store:?}}}}}");
    let _ = writeln!(text, "scratch: {{tmpfs_dir: {}}}", quoted(&cluster.run_dir.join("scratch-tmp")));
    // Each agent's programs run at every context switch of the machine.
    let _ = writeln!(text, "measuring: {{kernel_probes: {}}}", cluster.nodes.len() <= COUNTING_NODES_MAX);
    text
}

/// `base` with the settings of `more`, both in YAML: sections are merged, and any other value of `more` replaces the
/// value of `base`.
pub fn merged(base: &str, more: &str) -> Result<String> {
    let mut all: Value = lattice_model::config::parse("base", base)?;
    merge(&mut all, lattice_model::config::parse("more", more)?);
    Ok(lattice_model::config::write(&all)?)
}

fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more,
    }
}

/// The beginning of the section `telemetry`.
fn telemetry(listen: &str) -> String {
    format!("telemetry:\n  metrics_listen: {listen:?}\n")
}

fn tls(cluster_dir: &Path, dir: &Path, name: &str) -> String {
    let (ca, cert, key) = (cluster_dir.join("ca/ca.crt"), dir.join(format!("{name}.crt")), dir.join(format!("{name}.key")));
    format!("tls: {{ca: {}, cert: {}, key: {}}}\n", quoted(&ca), quoted(&cert), quoted(&key))
}

/// A path as a YAML scalar: JSON's double quotes mean the same there.
fn quoted(path: &Path) -> String {
    Value::from(path.to_string_lossy()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_merged_and_what_comes_later_wins() {
        let base = "node_id: n1\nroles: [api, scheduler]\nlogs: {store: {url: \"file:///a\"}, flush_seconds: 30}\n";
        let more = "roles: [api]\nlogs:\n  store: {options: {allow_http: \"true\"}}\n  flush_seconds: 1\nhealth: {xids: {140: fail}}\n";
        let all: Value = lattice_model::config::parse("all", &merged(base, more).unwrap()).unwrap();
        let expected = serde_json::json!({
            "node_id": "n1",
            "roles": ["api"],
            "logs": {"store": {"url": "file:///a", "options": {"allow_http": "true"}}, "flush_seconds": 1},
            "health": {"xids": {"140": "fail"}},
        });
        assert_eq!(all, expected);
        assert_eq!(merged(base, "").unwrap(), merged("", base).unwrap());
        assert!(merged(base, "logs: {flush_seconds: 1, flush_seconds: 2}").is_err());
    }
}
