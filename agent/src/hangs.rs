//! Detects launches that hang: when an allocation's ranks on its first node have been idle for
//! long, that node asks the others.
//!
//! A launch hangs if none of its ranks on any node has done anything for `alerts.hang_seconds`. If a
//! node does not answer, the verdict stays as it was, unless another node has an active rank.
//!
//! A rank is idle below a hundredth of a processor, while its allocation uses no block device, has
//! no GPU above 1 %, and moves at most a KiB over the network in 5 s: keep-alives do not count. An
//! MPI program that waits in a busy loop looks like one that computes. The nodes are asked
//! together, because a rank that waits for another node is the usual case. Sessions and work with a
//! liveness probe are left out.

use futures::StreamExt;
use futures::stream;
use lattice_mesh::monitor::{MonitorItem, MonitorOpen, MonitorWhat};
use lattice_meshd::context::Shared;
use lattice_meshd::monitoring;
use lattice_model::NodeId;
use lattice_observe::measuring::alerts::Suspect;
use lattice_telemetry::alert::idle::{IdleReport, Verdict, verdict};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// The pause between two rounds, or as long as the last round took, if that is longer.
const ROUND_INTERVAL: Duration = Duration::from_secs(5);
/// How many nodes are asked at once.
const NODES_AT_ONCE_MAX: usize = 32;
/// How long one node may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(6);
/// How long the node that was active last may take when it is asked alone: launches are checked one
/// after the other, and that node may be unreachable.
const SINGLE_ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Watches the launches of allocations with their head here, until `stop`.
pub async fn run(context: Shared, stop: CancellationToken) {
    let Some(limit_ms) = context.work.measuring.hang_ms() else { return };
    // The node that was active last is asked first: usually one question is enough.
    let mut movers: BTreeMap<_, NodeId> = BTreeMap::new();
    loop {
        let began = tokio::time::Instant::now();
        let suspects: Vec<Suspect> = context.work.measuring.suspects();
        let suspects = suspects.into_iter().filter(|s| s.share.nodes.head().as_ref() == Some(&context.setup.me));
        let suspects: Vec<Suspect> = suspects.collect();
        movers.retain(|key, _| suspects.iter().any(|s| (s.share.allocation, s.launch) == *key));
        for suspect in suspects {
            let key = (suspect.share.allocation, suspect.launch);
            let found = tokio::select! {
                () = stop.cancelled() => return,
                found = ask_nodes(&context, &suspect, movers.get(&key), limit_ms) => found,
            };
            if let (Verdict::Moves, Some(node)) = &found {
                movers.insert(key, node.clone());
            } else {
                // Next time all nodes are asked together.
                movers.remove(&key);
            }
            context.work.measuring.decide((suspect.share.allocation, suspect.share.epoch), suspect.launch, found.0);
        }
        let pause = ROUND_INTERVAL.max(began.elapsed());
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(pause) => {}
        }
    }
}

/// The verdict after asking the nodes, and an active node.
async fn ask_nodes(context: &Shared, suspect: &Suspect, mover: Option<&NodeId>, limit_ms: u64) -> (Verdict, Option<NodeId>) {
    let mut reports = vec![suspect.report];
    if verdict([suspect.report], limit_ms) == Verdict::Moves && suspect.report != IdleReport::None {
        return (Verdict::Moves, Some(context.setup.me.clone()));
    }
    let nodes = || suspect.share.nodes.iter().filter(|node| **node != context.setup.me);
    let moves = |report: IdleReport| report != IdleReport::None && verdict([report], limit_ms) == Verdict::Moves;
    // Asks one node first: if the work continues there, no other node needs to be asked.
    let mut answered = None;
    if let Some(node) = nodes().find(|node| Some(*node) == mover)
        && let Ok(report) = timeout(SINGLE_ANSWER_TIMEOUT, ask(context, suspect, node)).await
    {
        if moves(report) {
            return (Verdict::Moves, Some(node.clone()));
        }
        reports.push(report);
        answered = Some(node);
    }
    let others: Vec<NodeId> = nodes().filter(|node| Some(*node) != answered).cloned().collect();
    let asked = stream::iter(others).map(|node| async move {
        let report = ask(context, suspect, &node).await;
        (node, report)
    });
    let mut asked = std::pin::pin!(asked.buffer_unordered(NODES_AT_ONCE_MAX));
    while let Some((node, report)) = asked.next().await {
        if moves(report) {
            return (Verdict::Moves, Some(node));
        }
        reports.push(report);
    }
    (verdict(reports, limit_ms), None)
}

async fn ask(context: &Shared, suspect: &Suspect, node: &NodeId) -> IdleReport {
    let share = &suspect.share;
    let open = MonitorOpen {
        allocation: *share.allocation.0.as_bytes(),
        epoch: share.epoch.0,
        uid: share.owner.uid,
        user: share.owner.name.clone(),
        what: MonitorWhat::Idle { launch: suspect.launch },
    };
    let answer = async {
        let address = context.work.directory.mesh(node).await;
        monitoring::items(context, node, address, open).recv().await
    };
    match timeout(ANSWER_TIMEOUT, answer).await {
        Ok(Some(Ok(MonitorItem::Idle { idle_ms: Some(idle_ms), moved }))) => IdleReport::There { idle_ms, moved },
        Ok(Some(Ok(MonitorItem::Idle { idle_ms: None, .. }))) => IdleReport::None,
        Ok(_) | Err(_) => IdleReport::Unknown,
    }
}
