//! Which work is saving itself now, whoever asked it to: the broker asks the heads, which know it.
//!
//! ```text
//!   broker ──Open::Saving──▶ the heads of work with --checkpoint, each once a round ──▶ their allocations that are saving
//! ```
//!
//! The broker uses this only to decide which work may write to the store next. A head that does not
//! answer in time counts as having nothing to report.

use super::handles::{Handles, Shared};
use super::heads::is_writing;
use futures::StreamExt;
use lattice_membership::cluster::Cluster;
use lattice_mesh::checkpoint::SavingNow;
use lattice_mesh::frame::{self, FrameError};
use lattice_mesh::open::Open;
use lattice_model::{AllocationId, AllocationState, NodeId};
use quinn::SendStream;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use uuid::Uuid;

/// Timeout of one head's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of all answers together.
const ALL_ANSWERS_TIMEOUT: Duration = Duration::from_secs(5);
/// How many heads are asked at once.
const HEADS_AT_ONCE_MAX: usize = 32;
/// How many allocations one agent reports at most.
const ALLOCATIONS_REPORTED_MAX: usize = 1000;

/// Answers another agent with the allocations whose head is here and that are saving themselves.
pub async fn answer(context: &Handles, send: &mut SendStream) -> Result<(), FrameError> {
    let allocations = saving_locally(context).into_iter().take(ALLOCATIONS_REPORTED_MAX).map(|id| *id.0.as_bytes()).collect();
    frame::write(send, &SavingNow { allocations }).await
}

/// The allocations with their head here that are saving themselves.
fn saving_locally(context: &Handles) -> BTreeSet<AllocationId> {
    let heads = context.checkpoints.0.heads.lock();
    heads.iter().filter(|(_, head)| is_writing(&head.view.borrow())).map(|(id, _)| *id).collect()
}

/// The allocations of the whole cluster that are saving themselves, as far as heads answered.
pub(super) async fn now(context: &Shared, cluster: &Cluster) -> BTreeSet<AllocationId> {
    let mut of_heads: BTreeMap<NodeId, BTreeSet<AllocationId>> = BTreeMap::new();
    for allocation in cluster.allocations.values() {
        if allocation.state == AllocationState::Running
            && allocation.spec.checkpoint.is_some()
            && let Some(head) = allocation.head()
        {
            of_heads.entry(head.clone()).or_default().insert(allocation.id);
        }
    }
    let asked = of_heads.into_iter().map(|(head, its)| {
        let context = Arc::clone(context);
        let address = cluster.nodes.get(&head).map(|node| node.addresses.mesh.clone());
        async move {
            let reported = if head == context.me { saving_locally(&context) } else { ask_head(&context, &head, address).await };
            // A head can only report allocations that it is the head of.
            reported.intersection(&its).copied().collect::<BTreeSet<_>>()
        }
    });
    let mut answers = futures::stream::iter(asked).buffer_unordered(HEADS_AT_ONCE_MAX);
    let (mut all, until) = (BTreeSet::new(), tokio::time::Instant::now() + ALL_ANSWERS_TIMEOUT);
    while let Ok(Some(some)) = tokio::time::timeout_at(until, answers.next()).await {
        all.extend(some);
    }
    all
}

async fn ask_head(context: &Handles, head: &NodeId, address: Option<String>) -> BTreeSet<AllocationId> {
    let Some(address) = address else { return BTreeSet::new() };
    let conversation = async {
        let (mut send, mut recv) = context.mesh.open(head, &address).await.map_err(|e| e.to_string())?;
        frame::write(&mut send, &Open::Saving).await.map_err(|e| e.to_string())?;
        frame::read::<SavingNow, _>(&mut recv).await.map_err(|e| e.to_string())
    };
    match tokio::time::timeout(ANSWER_TIMEOUT, conversation).await {
        Ok(Ok(SavingNow { allocations })) => allocations.into_iter().map(|id| AllocationId(Uuid::from_bytes(id))).collect(),
        Ok(Err(why)) => {
            tracing::debug!(%head, %why, "a head did not report which of its work is saving itself");
            BTreeSet::new()
        }
        Err(_) => BTreeSet::new(),
    }
}
