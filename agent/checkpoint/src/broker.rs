//! The checkpoint broker: it asks work for checkpoints without a user's request, if the submission
//! allows that.
//!
//! ```text
//!   cluster, manifests, the store's answer ──▶ should_checkpoint (pure) ──▶ heads, as for `lattice checkpoint create`
//! ```
//!
//! It is part of the scheduler's role: the agent that holds the lease of the default queue is the
//! broker. Its state is in memory only. The next broker reads the manifests and decides anew, so
//! losing a broker costs one round. Two brokers at once would ask the same head, which makes one
//! checkpoint of two requests. Work runs, and users get checkpoints, without the broker.

use super::broker_knowledge::{Followed, Latest};
use super::broker_request::{BrokeredError, length_ms, request_checkpoint, wait_max};
use super::handles::Shared;
use super::store::{CheckpointStore, Owner, StoreError};
use super::{retention, saving};
use futures::StreamExt;
use lattice_agent_common::config::checkpoint::CheckpointSettings;
use lattice_membership::cluster::Cluster;
use lattice_membership::quorum_clock::QuorumTime;
use lattice_mesh::checkpoint::CheckpointOpen;
use lattice_model::{Allocation, AllocationId, AllocationState, CheckpointId, Timestamp, with_causes};
use lattice_placing::Placing;
use lattice_quorum_client::QuorumClient;
use lattice_scheduler::View;
use lattice_scheduler::broker::{BrokerView, Judgement, Known, LastSaved, Storage, Tried, Verdict, should_checkpoint};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// The subject in this node's problems.
const SUBJECT: &str = "checkpoint broker";
/// Timeout of the store's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Manifests that are read at once.
const NODES_READ_AT_ONCE: usize = 8;
/// How long one round may read manifests. Later rounds read the rest.
const NODES_READ_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the time of a checkpoint is unknown.
#[derive(Debug, Error)]
enum LastSavedError {
    #[error("{}", with_causes(.0))]
    ReadManifest(#[source] StoreError),
    #[error("no answer within {} s", ANSWER_TIMEOUT.as_secs())]
    Timeout,
}

/// Runs until `stop`; acts only while this agent holds the lease.
pub async fn run(context: Shared, quorum: QuorumClient, placing: Placing, stop: CancellationToken) {
    let settings = context.checkpoints.settings().clone();
    let mut broker = Broker {
        context: Arc::clone(&context),
        placing: placing.clone(),
        settings: settings.clone(),
        quorum: quorum.clone(),
        time: None,
        known: BTreeMap::new(),
        storage: Storage::Reachable,
        asked: JoinSet::new(),
        of: BTreeMap::new(),
    };
    // Removing expired checkpoints may take long and must not delay the rounds.
    let sweeping = retention::run(context, quorum, placing, settings, stop.clone());
    let rounds = broker.run(&stop);
    tokio::join!(sweeping, rounds);
}

struct Broker {
    context: Shared,
    placing: Placing,
    settings: CheckpointSettings,
    quorum: QuorumClient,
    /// The time of all decisions; `None` before the first round.
    time: Option<QuorumTime>,
    known: BTreeMap<AllocationId, Followed>,
    storage: Storage,
    asked: JoinSet<(AllocationId, Result<(), BrokeredError>)>,
    /// The allocation of each task in `asked`.
    of: BTreeMap<tokio::task::Id, AllocationId>,
}

impl Broker {
    async fn run(&mut self, stop: &CancellationToken) {
        let mut rounds = tokio::time::interval(Duration::from_secs(self.settings.evaluate_seconds));
        rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = rounds.tick() => {}
                Some(ended) = self.asked.join_next_with_id() => {
                    let (task, ended) = match ended {
                        Ok((task, (_, ended))) => (task, ended),
                        Err(error) => (error.id(), Err(error.into())),
                    };
                    if let Some(allocation) = self.of.remove(&task) {
                        self.ended(allocation, ended);
                    }
                    continue;
                }
            }
            if self.placing.leads() {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = self.round() => {}
                }
            } else {
                self.rest();
            }
        }
    }

    /// Forgets everything, because another agent is the broker. Heads continue the checkpoints that
    /// were requested.
    fn rest(&mut self) {
        self.known.clear();
        self.of.clear();
        self.asked = JoinSet::new();
        self.set_storage(Storage::Reachable);
        self.context.checkpoints.counts().broker(false, false, 0);
        self.context.checkpoints.set_broker_state(None);
    }

    fn ended(&mut self, allocation: AllocationId, ended: Result<(), BrokeredError>) {
        self.context.checkpoints.counts().brokered(ended.is_ok());
        let (Some(Followed { known, .. }), Some(time)) = (self.known.get_mut(&allocation), self.time) else { return };
        known.tried = match ended {
            Ok(()) => {
                // Its size and duration follow, once the watch reports the checkpoint.
                if let Some(last) = &mut known.last {
                    last.at = time.now();
                }
                None
            }
            Err(why) => {
                let before = match known.tried {
                    Some(Tried::UnderWay { times } | Tried::InVain { times, .. }) => times,
                    None => 0,
                };
                tracing::warn!(%allocation, %why, "the work did not save itself when the broker asked");
                Some(Tried::InVain { at: time.now(), times: before.saturating_add(1) })
            }
        };
    }

    async fn round(&mut self) {
        let cluster = Arc::clone(&self.placing.cluster.borrow());
        // A stale view may list allocations that have ended, and the lease's holder is unknown.
        if !cluster.fresh {
            return;
        }
        let store = match self.context.checkpoints.store() {
            Ok(store) => store.clone(),
            Err(why) => {
                // Other agents may have a store, if work wants checkpoints.
                let is_needed = cluster.allocations.values().any(|a| is_candidate(&a));
                let why = format!(
                    "{why}; this agent is the checkpoint broker, because it has the lease scheduler/default: configure the checkpoint.store of the other agents here too, or remove its role scheduler"
                );
                self.set_storage(if is_needed { Storage::Unreachable { why } } else { Storage::Reachable });
                self.context.checkpoints.counts().broker(true, is_needed, 0);
                return;
            }
        };
        let time = match self.context.checkpoints.quorum_clock().read(&self.quorum).await {
            Ok(time) => time,
            Err(why) => {
                tracing::info!(%why, "no work is asked to save itself in this round");
                return;
            }
        };
        self.time = Some(time);
        let storage = probe(&store).await;
        self.set_storage(storage);
        self.learn(&store, &cluster, time).await;
        // The lease may have been lost during the steps above, which may take long.
        if !self.placing.leads() {
            return self.rest();
        }
        // Avoids a copy of the whole cluster if there is nothing to do.
        if self.known.is_empty() {
            self.context.checkpoints.counts().broker(true, matches!(self.storage, Storage::Unreachable { .. }), 0);
            self.context.checkpoints.set_broker_state(Some(Latest { storage: self.storage.clone(), ..Latest::default() }));
            return;
        }
        let saving = saving::now(&self.context, &cluster).await;
        // This step may have taken long as well.
        if !self.placing.leads() {
            return self.rest();
        }
        let view = cluster.with_gossip(self.placing.membership.gossiped());
        let known: BTreeMap<AllocationId, Known> = self.known.iter().map(|(id, followed)| (*id, followed.known)).collect();
        let tuning = self.settings.tuning();
        let broker_view = BrokerView { cluster: &view, known: &known, saving: &saving, storage: &self.storage, tuning: &tuning };
        let judged = should_checkpoint(&broker_view, time.now());
        let waits = judged.values().filter(|j| matches!(j.verdict, Verdict::Staggered { .. })).count();
        let unreachable = matches!(self.storage, Storage::Unreachable { .. });
        self.context.checkpoints.counts().broker(true, unreachable, waits as u64);
        for (id, judgement) in &judged {
            if judgement.verdict == Verdict::Ask
                && let Some(allocation) = view.allocations.get(id)
            {
                self.ask(allocation, judgement);
            }
        }
        let known = self.known.iter().map(|(id, followed)| (*id, followed.known)).collect();
        self.context.checkpoints.set_broker_state(Some(Latest { known, saving, storage: self.storage.clone() }));
    }

    /// Reports the state of the store if it has changed.
    fn set_storage(&mut self, storage: Storage) {
        if storage == self.storage {
            return;
        }
        match &storage {
            Storage::Unreachable { why } => {
                tracing::warn!(%why, "the store of checkpoints is unreachable: no work is asked to save itself");
                self.context.problems.set(SUBJECT, format!("paused: the checkpoint store accepts no writes ({why}); work continues"));
            }
            Storage::Reachable => {
                tracing::info!("the store of checkpoints answers again");
                self.context.problems.clear(SUBJECT);
                // Requests that failed meanwhile may have failed because of the store: forget all
                // failures, so that the work is judged by its costs alone.
                for Followed { known, .. } in self.known.values_mut() {
                    if let Some(Tried::InVain { .. }) = known.tried {
                        known.tried = None;
                    }
                }
            }
        }
        self.storage = storage;
    }

    /// Reads the unknown times of checkpoints, and forgets work that no longer runs.
    async fn learn(&mut self, store: &CheckpointStore, cluster: &Cluster, time: QuorumTime) {
        let runs =
            |a: &&Allocation| a.state == AllocationState::Running && a.spec.checkpoint.is_some_and(|policy| policy.automatic.is_some());
        let running: BTreeMap<AllocationId, &Allocation> = cluster.allocations.values().filter(runs).map(|a| (a.id, a)).collect();
        self.known.retain(|id, _| running.contains_key(id));
        let mut reading = Vec::new();
        for (id, allocation) in running {
            let last = allocation.checkpoint.as_ref().map(|last| last.id);
            let followed = self.known.entry(id).or_insert_with(|| Followed::new(last));
            if let Some(last) = followed.notice(last, time.now()) {
                reading.push(async move { (id, last, last_saved(store, allocation, last).await) });
            }
        }
        if matches!(self.storage, Storage::Unreachable { .. }) {
            return;
        }
        let mut read = futures::stream::iter(reading).buffer_unordered(NODES_READ_AT_ONCE);
        let until = tokio::time::Instant::now() + NODES_READ_TIMEOUT;
        // A hanging store must not block the round.
        while let Ok(Some((id, checkpoint, found))) = tokio::time::timeout_at(until, read.next()).await {
            match found {
                Ok(last) => {
                    if let Some(followed) = self.known.get_mut(&id) {
                        followed.take_manifest(checkpoint, last, time.now());
                    }
                }
                Err(why) => tracing::info!(allocation = %id, %why, "the time of its last checkpoint is not known yet"),
            }
        }
    }

    fn ask(&mut self, allocation: &Allocation, judgement: &Judgement) {
        let Some(head) = allocation.head().cloned() else { return };
        let Some(Followed { known, .. }) = self.known.get_mut(&allocation.id) else { return };
        let times = if let Some(Tried::InVain { times, .. }) = known.tried { times } else { 0 };
        known.tried = Some(Tried::UnderWay { times });
        let length_ms = length_ms(known.last.and_then(|last| last.took_ms), self.settings.timeout_ms());
        let (value, cost) = (judgement.terms.value_node_s(), judgement.terms.cost_node_s());
        tracing::info!(allocation = %allocation.id, value_node_s = value, cost_node_s = cost, "the broker asks work to save itself");
        let id = allocation.id;
        let open = CheckpointOpen {
            id: *Uuid::new_v4().as_bytes(),
            allocation: *id.0.as_bytes(),
            epoch: allocation.epoch.0,
            length_ms,
            uid: allocation.owner.uid,
            user: allocation.owner.name.clone(),
        };
        let address = self.placing.cluster.borrow().nodes.get(&head).map(|node| node.addresses.mesh.clone());
        let context = Arc::clone(&self.context);
        let wait_max = wait_max(length_ms, self.settings.deferral_ms_max());
        let task = self.asked.spawn(async move {
            let asked = tokio::time::timeout(wait_max, request_checkpoint(&context, &head, address, &open)).await;
            (id, asked.unwrap_or_else(|_| Err(BrokeredError::NoEnd)))
        });
        self.of.insert(task.id(), id);
    }
}

/// Running work for which the broker may request checkpoints.
fn is_candidate(allocation: &&Allocation) -> bool {
    allocation.state == AllocationState::Running && allocation.spec.checkpoint.is_some_and(|policy| policy.automatic.is_some())
}

/// Whether the store accepts a small write.
pub async fn probe(store: &CheckpointStore) -> Storage {
    match tokio::time::timeout(ANSWER_TIMEOUT, store.probe()).await {
        Ok(Ok(())) => Storage::Reachable,
        Ok(Err(error)) => Storage::Unreachable { why: with_causes(&error) },
        Err(_) => Storage::Unreachable { why: format!("no answer within {} s", ANSWER_TIMEOUT.as_secs()) },
    }
}

/// The time and duration of a checkpoint, from its manifest; `None`: there is no readable one.
async fn last_saved(store: &CheckpointStore, allocation: &Allocation, id: CheckpointId) -> Result<Option<LastSaved>, LastSavedError> {
    let (tenant, project) = (allocation.spec.tenant.clone(), allocation.stored_project().to_owned());
    let owner = Owner { tenant, project, allocation: allocation.id };
    match tokio::time::timeout(ANSWER_TIMEOUT, store.manifest(&owner, id)).await {
        Ok(Ok(manifest)) => {
            let (_, bytes) = manifest.size();
            Ok(Some(LastSaved { at: Timestamp(manifest.created_at_ms), bytes, took_ms: manifest.took_ms }))
        }
        Ok(Err(StoreError::NoSuch(_) | StoreError::Damaged { .. })) => Ok(None),
        Ok(Err(error)) => Err(LastSavedError::ReadManifest(error)),
        Err(_) => Err(LastSavedError::Timeout),
    }
}

/// The broker's judgement of one allocation, as this agent knows it. The broker uses its own state;
/// any other agent applies the same rule to what it reads from the store.
pub async fn explain(context: &Shared, quorum: &QuorumClient, view: &View, allocation: &Allocation) -> Option<Judgement> {
    let store = context.checkpoints.store().ok()?;
    let now = context.checkpoints.quorum_clock().read(quorum).await.ok()?.now();
    let latest = context.checkpoints.0.broker.lock().clone();
    let Latest { known, saving, storage } = match latest {
        Some(latest) => latest,
        None => {
            let last = match &allocation.checkpoint {
                Some(last) => last_saved(store, allocation, last.id).await,
                // A user's question never writes to the store; only the broker tests whether it
                // accepts writes.
                None => Ok(None),
            };
            match last {
                Ok(last) => {
                    let known = Known { last: last.map(|last| last.not_after(now)), ..Known::default() };
                    Latest { known: [(allocation.id, known)].into(), ..Latest::default() }
                }
                Err(error) => Latest { storage: Storage::Unreachable { why: error.to_string() }, ..Latest::default() },
            }
        }
    };
    let tuning = context.checkpoints.settings().tuning();
    let broker_view = BrokerView { cluster: view, known: &known, saving: &saving, storage: &storage, tuning: &tuning };
    should_checkpoint(&broker_view, now).remove(&allocation.id)
}

/// How long the work's last checkpoint took in milliseconds, from its manifest.
pub async fn last_took_ms(context: &Shared, allocation: &Allocation) -> Option<u64> {
    let (store, last) = (context.checkpoints.store().ok()?, allocation.checkpoint.as_ref()?);
    last_saved(store, allocation, last.id).await.ok()??.took_ms
}
