//! Checkpoints that are to go: some time after their allocation has ended, or when it has so many newer ones.
//!
//! Done by the agent that is the broker. The manifest of a checkpoint goes first: whoever is killed in the middle of it leaves none that
//! looks whole, and the next round removes the rest. The last one that the quorum has of work that may run again always stays.

use super::settings::CheckpointSettings;
use super::store::{CheckpointStore, Manifest, Owner, StoreError};
use crate::context::Shared;
use crate::placing::Placing;
use futures::StreamExt;
use lattice_model::{Allocation, AllocationId, Timestamp};
use lattice_quorum::client::{CallError, QuorumClient};
use lattice_quorum::pack::with_causes;
use lattice_quorum::wire::{Answer, Refusal, Request};
use lattice_runtime::failpoint::{self, Point};
use std::pin::pin;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How long the quorum may take to say what it has of an allocation.
const ANSWER: Duration = Duration::from_secs(5);

/// When the checkpoints of an ended allocation go, in milliseconds since 1970; `None`: by hand alone.
pub fn goes_at_ms(settings: &CheckpointSettings, ended_at_ms: u64) -> Option<u64> {
    (settings.retention_seconds > 0).then(|| ended_at_ms.saturating_add(settings.retention_seconds.saturating_mul(1000)))
}

/// Looks from time to time until `stop`, while this agent has the lease.
pub async fn run(context: Shared, quorum: QuorumClient, placing: Placing, settings: CheckpointSettings, stop: CancellationToken) {
    let sweep = Sweep { context, quorum, placing, settings };
    let mut looks = tokio::time::interval(Duration::from_secs(settings.retention_sweep_seconds));
    looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = looks.tick() => {}
        }
        let swept = tokio::select! {
            () = stop.cancelled() => return,
            swept = sweep.all() => swept,
        };
        if let Err(why) = swept {
            tracing::info!(%why, "checkpoints that are to go stay for now");
        }
    }
}

struct Sweep {
    context: Shared,
    quorum: QuorumClient,
    placing: Placing,
    settings: CheckpointSettings,
}

impl Sweep {
    /// One look. What cannot be read of one allocation keeps no other's; a store or a quorum that is away ends it.
    async fn all(&self) -> Result<(), String> {
        let Ok(store) = self.context.checkpoints.store() else { return Ok(()) };
        if (self.settings.retention_seconds == 0 && self.settings.keep == 0) || !self.placing.leads() {
            return Ok(());
        }
        let mut all = pin!(store.all_kept());
        while let Some(allocation) = all.next().await {
            let allocation = allocation.map_err(|e| with_causes(&e))?;
            if !self.placing.leads() {
                return Ok(());
            }
            match self.one(store, allocation).await {
                Ok(()) => {}
                Err(Stopped::Here(why)) => tracing::warn!(%allocation, %why, "its checkpoints are not looked after"),
                Err(Stopped::Everywhere(why)) => return Err(why),
            }
        }
        Ok(())
    }

    async fn one(&self, store: &CheckpointStore, id: AllocationId) -> Result<(), Stopped> {
        let Some(kept) = store.kept(id).await? else { return Ok(()) };
        let owner = kept.owner();
        let now = crate::service::now();
        // It is known to have ended, and its time has not come.
        if kept.ended_at_ms.is_some_and(|ended| goes_at_ms(&self.settings, ended).is_none_or(|at| now.0 < at)) {
            return Ok(());
        }
        match self.allocation(id).await? {
            Some(allocation) if !allocation.state.is_terminal() => {
                if kept.ended_at_ms.is_some() {
                    // A quorum that was recovered from a backup heard of it later.
                    store.put_kept(&kept.ended(None)).await?;
                }
                self.trim(store, &owner, &allocation).await
            }
            known => {
                let ended_at = known.as_ref().and_then(|a| a.ended_at).or(kept.ended_at_ms.map(Timestamp));
                // Forgotten by the quorum, or never known to this one: from now on it counts as ended.
                let ended_at = ended_at.unwrap_or(now);
                if kept.ended_at_ms != Some(ended_at.0) {
                    store.put_kept(&kept.ended(Some(ended_at.0))).await?;
                }
                match goes_at_ms(&self.settings, ended_at.0) {
                    Some(at_ms) if now.0 >= at_ms => self.remove_all(store, &owner).await,
                    Some(_) | None => match known {
                        Some(allocation) => self.trim(store, &owner, &allocation).await,
                        None => Ok(()),
                    },
                }
            }
        }
    }

    /// What the quorum has of it; `None`: nothing.
    async fn allocation(&self, id: AllocationId) -> Result<Option<Allocation>, Stopped> {
        let living = {
            let cluster = self.placing.cluster.borrow();
            cluster.allocations.get(&id).filter(|a| cluster.fresh && !a.state.is_terminal()).cloned()
        };
        if living.is_some() {
            return Ok(living);
        }
        match self.quorum.call(&Request::GetAllocation { key: id.to_string() }, ANSWER).await {
            Ok(Answer::Allocation(allocation)) => Ok(Some(*allocation)),
            Ok(_) => Err(Stopped::Here("the quorum answered with something else".to_owned())),
            Err(CallError::Refused(Refusal::NoSuchAllocation { .. })) => Ok(None),
            Err(error) => Err(Stopped::Everywhere(with_causes(&error))),
        }
    }

    /// Those of one allocation that are older than the last, and too many.
    async fn trim(&self, store: &CheckpointStore, owner: &Owner, allocation: &Allocation) -> Result<(), Stopped> {
        let (keep, Some(last)) = (self.settings.keep, &allocation.checkpoint) else { return Ok(()) };
        if keep == 0 {
            return Ok(());
        }
        let (all, _) = store.list(owner).await?;
        for manifest in surplus(&all, last.id, keep) {
            tracing::info!(allocation = %owner.allocation, checkpoint = %manifest.id, keep, "a checkpoint goes: so many newer ones are there");
            store.remove(owner, manifest.id).await?;
        }
        Ok(())
    }

    async fn remove_all(&self, store: &CheckpointStore, owner: &Owner) -> Result<(), Stopped> {
        for id in store.ids(owner).await? {
            if !self.placing.leads() {
                return Ok(());
            }
            tracing::info!(allocation = %owner.allocation, checkpoint = %id, "a checkpoint goes: its allocation ended long ago");
            store.remove(owner, id).await?;
            failpoint::pass(Point::CheckpointGone);
        }
        store.forget_kept(owner.allocation).await?;
        Ok(())
    }
}

/// Of checkpoints in the order in which they were made: those before the last one of the quorum's that are more than are kept. What is
/// newer may be under way, and where the last one is not among them, none goes.
fn surplus(all: &[Manifest], last: lattice_model::CheckpointId, keep: usize) -> &[Manifest] {
    match all.iter().position(|manifest| manifest.id == last) {
        Some(at) => &all[..(at + 1).saturating_sub(keep.max(1))],
        None => &[],
    }
}

/// Why a look ended early.
enum Stopped {
    /// For this allocation.
    Here(String),
    /// For all: who does not answer for one will not for the next.
    Everywhere(String),
}

impl From<StoreError> for Stopped {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::Store(_) => Self::Everywhere(with_causes(&error)),
            StoreError::Damaged { .. } | StoreError::Unfit(_) | StoreError::Io { .. } | StoreError::NoSuch(_) => {
                Self::Here(with_causes(&error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::{CheckpointId, Epoch};
    use uuid::Uuid;

    fn made(number: u128) -> Manifest {
        Manifest {
            version: 1,
            id: CheckpointId(Uuid::from_u128(number)),
            allocation: AllocationId(Uuid::from_u128(9)),
            epoch: Epoch(1),
            parent: None,
            round: 1,
            step: None,
            made_at_ms: u64::try_from(number).unwrap(),
            took_ms: None,
            owner: "u".to_owned(),
            owner_uid: 1,
            nodes: vec![],
        }
    }

    #[test]
    fn what_is_newer_than_the_last_stays_and_so_do_as_many_as_are_kept() {
        let all: Vec<Manifest> = (1..=5).map(made).collect();
        let gone = |last, keep| surplus(&all, CheckpointId(Uuid::from_u128(last)), keep).iter().map(|m| m.made_at_ms).collect::<Vec<_>>();
        assert_eq!(gone(4, 1), [1, 2, 3]);
        assert_eq!(gone(4, 3), [1]);
        assert_eq!(gone(4, 9), [0u64; 0]);
        assert_eq!(gone(77, 1), [0u64; 0]);
        assert_eq!(gone(1, 1), [0u64; 0]);
    }

    #[test]
    fn without_a_time_they_go_by_hand_alone() {
        let settings = |retention_seconds| CheckpointSettings { retention_seconds, ..Default::default() };
        assert_eq!(goes_at_ms(&settings(0), 5), None);
        assert_eq!(goes_at_ms(&settings(2), 5), Some(2005));
        assert_eq!(goes_at_ms(&settings(u64::MAX), 5), Some(u64::MAX));
    }
}
