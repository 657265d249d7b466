//! `sbatch --test-only`: whether a job would be accepted, and when it is expected to begin.
//!
//! The agent and the quorum check the submission, and the agent plans the job together with all waiting work. As in Slurm,
//! the time is an estimate.

use crate::command::submit;
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::message::write_message_line;
use lattice_cli_session::session::Session;
use lattice_cli_syntax::compat::Compat;
use lattice_model::time::Timestamp;
use lattice_model::{DEFAULT_VCLUSTER, NodeId, hostlist};
use std::collections::BTreeSet;

pub async fn run(
    session: &Session,
    client: &Client,
    spec: v1::AllocationSpec,
    wait_for_nodes: bool,
    compat: &Compat,
) -> Result<u8, Failure> {
    let checked = Box::pin(submit::check(session, client, spec, wait_for_nodes)).await?;
    write_message_line(text(&checked.checked.unwrap_or_default(), checked.expected.as_ref(), compat));
    Ok(0)
}

/// The line of Slurm. A job that is not submitted has no number: 0.
fn text(spec: &v1::AllocationSpec, expected: Option<&v1::ExpectedStart>, compat: &Compat) -> String {
    let vcluster = if spec.vcluster.is_empty() { DEFAULT_VCLUSTER } else { &spec.vcluster };
    let partition = compat.partition_of(vcluster);
    match expected {
        Some(v1::ExpectedStart { start_ms: start_ms @ 1.., nodes, cores, .. }) => {
            let names: BTreeSet<NodeId> = nodes.iter().filter_map(|node| node.parse().ok()).collect();
            let at = Timestamp(*start_ms).to_string();
            let seconds = at.split('.').next().unwrap_or_default();
            let list = hostlist::fold(names.iter());
            format!("Job 0 to start at {seconds}Z using {cores} processors on nodes {list} in partition {partition}")
        }
        Some(unknown) => format!("Job 0 would be accepted in partition {partition}; {}", unknown.reason),
        None => format!("Job 0 would be accepted in partition {partition}; the agent of this node does not know what else waits"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_starts_when_the_plan_says_so() {
        let compat = Compat::parse("partition_mapping: {long: batch}\n").unwrap();
        let spec = v1::AllocationSpec { vcluster: "batch".into(), ..Default::default() };
        let expected = |start_ms: u64, nodes: &[&str]| v1::ExpectedStart {
            start_ms,
            nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
            cores: 16,
            reason: "wants 2 nodes, 0 are free".into(),
        };
        let line = |expected: Option<&v1::ExpectedStart>| text(&spec, expected, &compat);
        assert_eq!(
            line(Some(&expected(1_772_704_812_034, &["n3", "n2"]))),
            "Job 0 to start at 2026-03-05T10:00:12Z using 16 processors on nodes n[2-3] in partition long"
        );
        assert_eq!(line(Some(&expected(0, &[]))), "Job 0 would be accepted in partition long; wants 2 nodes, 0 are free");
        assert!(line(None).starts_with("Job 0 would be accepted in partition long; the agent"));
        let unnamed = text(&v1::AllocationSpec::default(), None, &compat);
        assert!(unnamed.starts_with("Job 0 would be accepted in partition default; the agent"), "{unnamed}");
    }
}
