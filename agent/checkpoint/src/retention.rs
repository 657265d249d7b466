//! The sweep that removes expired checkpoints: some time after their allocation has ended, or when
//! enough newer ones exist.
//!
//! The agent that is the broker runs it. A checkpoint's manifest is removed first, so that an
//! interrupted removal leaves nothing that looks complete; the rest is removed with the
//! allocation's other objects. While work may run again, the quorum's last checkpoint of it stays,
//! and only that checkpoint's ancestors are removed. Checkpoints of other clusters are left alone.
//! The same holds for an allocation that the quorum does not know and that no agent saw end: a
//! quorum that was set up anew may still learn of it. An operator removes its checkpoints by hand.
//!
//! The retention time counts from the end of the allocation, or from when the store recorded that
//! end if that is later. It is over only when it is over by the clocks of this agent, of the store
//! and of the quorum, so that one wrong clock removes nothing too early.

use super::handles::Shared;
use super::store::{CheckpointStore, Manifest, Owner, StoreError};
use futures::StreamExt;
use lattice_agent_common::config::checkpoint::CheckpointSettings;
use lattice_model::{Allocation, AllocationId, CheckpointId, with_causes};
use lattice_placing::Placing;
use lattice_quorum_client::wire::{Answer, Refusal, Request};
use lattice_quorum_client::{CallError, QuorumClient};
use lattice_runtime::failpoint::{self, Point};
use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

/// Timeout of the quorum's answer about an allocation.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How many allocations unknown to the quorum the log names.
const UNKNOWN_LOGGED_MAX: usize = 16;

/// When the checkpoints of an ended allocation expire, in milliseconds since 1970; `None`: never,
/// an operator removes them.
pub fn expires_at_ms(settings: &CheckpointSettings, ended_at_ms: u64) -> Option<u64> {
    (settings.retention_seconds > 0).then(|| ended_at_ms.saturating_add(settings.retention_seconds.saturating_mul(1000)))
}

/// Sweeps periodically until `stop`, while this agent is the broker.
pub async fn run(context: Shared, quorum: QuorumClient, placing: Placing, settings: CheckpointSettings, stop: CancellationToken) {
    let mut looks = tokio::time::interval(Duration::from_secs(settings.retention_sweep_seconds));
    let sweep = Sweep { context, quorum, placing, settings };
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
            tracing::info!(%why, "the sweep of expired checkpoints failed; the next one tries again");
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
    /// One sweep. Unreadable data of one allocation does not affect the others; an unreachable
    /// store or quorum ends the sweep.
    async fn all(&self) -> Result<(), SweepError> {
        let Ok(store) = self.context.checkpoints.store() else { return Ok(()) };
        if (self.settings.retention_seconds == 0 && self.settings.keep == 0) || !self.placing.leads() {
            return Ok(());
        }
        let clock_ms = store.clock_ms().await?.min(self.quorums_clock_ms().await?);
        let (mut others, mut unknown) = (0u64, 0u64);
        let mut first_unknown = Vec::new();
        let mut all = pin!(store.recorded_allocations());
        while let Some(allocation) = all.next().await {
            let allocation = allocation?;
            if !self.placing.leads() {
                return Ok(());
            }
            match self.one(store, allocation, clock_ms).await {
                Ok(Looked::Ours) => {}
                Ok(Looked::Anothers) => others += 1,
                Ok(Looked::Unknown) => {
                    unknown += 1;
                    if first_unknown.len() < UNKNOWN_LOGGED_MAX {
                        first_unknown.push(allocation.to_string());
                    }
                }
                Err(Stopped::Here(why)) => tracing::warn!(%allocation, %why, "its checkpoints are skipped in this sweep"),
                Err(Stopped::Everywhere(why)) => return Err(why),
            }
        }
        if others > 0 {
            tracing::info!(allocations = others, "checkpoints of other clusters are in the store as well, and are left alone");
        }
        if unknown > 0 {
            tracing::info!(
                allocations = unknown,
                first = %first_unknown.join(" "),
                "checkpoints of allocations that the quorum does not know, and that nobody saw end, stay in the store until they are removed by hand"
            );
        }
        Ok(())
    }

    /// The clock of the member that answers.
    async fn quorums_clock_ms(&self) -> Result<u64, SweepError> {
        match self.quorum.call(&Request::Status, ANSWER_TIMEOUT).await {
            Ok(Answer::Status(status)) => Ok(status.at.0),
            Ok(_) => Err(SweepError::OtherAnswer),
            Err(error) => Err(error.into()),
        }
    }

    /// Sweeps one allocation. `clock_ms`: the earlier one of the store's and the quorum's clock.
    async fn one(&self, store: &CheckpointStore, id: AllocationId, clock_ms: u64) -> Result<Looked, Stopped> {
        let Some((record, written_ms)) = store.record(id).await? else { return Ok(Looked::Ours) };
        if !store.is_ours(&record) {
            return Ok(Looked::Anothers);
        }
        if store.has_changed_identity(&record) {
            store.put_record(&record).await?;
            return Ok(Looked::Ours);
        }
        let owner = record.owner();
        let now_ms = lattice_agent_common::clock::now().0.min(clock_ms);
        let mark = Mark { ended_at_ms: record.end_seen_at_ms, written_ms };
        // The end is known and the retention time is not over: no need to ask the quorum.
        if mark.ended_at_ms.is_some() && !mark.is_over(&self.settings, now_ms) {
            return Ok(Looked::Ours);
        }
        let known = self.allocation(id).await?;
        match verdict(mark, known.as_ref(), &self.settings, now_ms) {
            Verdict::Lives { again } => {
                if again {
                    store.put_record(&record.ended(None)).await?;
                }
                if let Some(allocation) = &known {
                    self.trim(store, &owner, allocation).await?;
                }
            }
            Verdict::HasEnded { at_ms } => {
                if let Some(allocation) = &known {
                    self.trim(store, &owner, allocation).await?;
                }
                store.put_record(&record.ended(Some(at_ms))).await?;
            }
            Verdict::Unknown => return Ok(Looked::Unknown),
            Verdict::Stays => {}
            Verdict::Goes => self.remove_all(store, &owner).await?,
        }
        Ok(Looked::Ours)
    }

    /// The allocation as the quorum has it; `None`: the quorum does not know it.
    async fn allocation(&self, id: AllocationId) -> Result<Option<Allocation>, Stopped> {
        let living = {
            let cluster = self.placing.cluster.borrow();
            cluster.allocations.get(&id).filter(|a| cluster.fresh && !a.state.is_terminal()).cloned()
        };
        if living.is_some() {
            return Ok(living);
        }
        match self.quorum.call(&Request::GetAllocation { key: id.to_string() }, ANSWER_TIMEOUT).await {
            Ok(Answer::Allocation(allocation)) => Ok(Some(*allocation)),
            Ok(_) => Err(Stopped::Here(SweepError::OtherAnswer)),
            Err(CallError::Refused(Refusal::NoSuchAllocation { .. })) => Ok(None),
            Err(error) => Err(Stopped::Everywhere(error.into())),
        }
    }

    /// Keeps the newest `keep` of an allocation's last checkpoint and its ancestors, and removes the
    /// other ancestors.
    async fn trim(&self, store: &CheckpointStore, owner: &Owner, allocation: &Allocation) -> Result<(), Stopped> {
        let (keep, Some(last)) = (self.settings.keep, &allocation.checkpoint) else { return Ok(()) };
        if keep == 0 {
            return Ok(());
        }
        let (all, _) = store.list(owner).await?;
        for manifest in surplus(&all, last.id, keep) {
            tracing::info!(allocation = %owner.allocation, checkpoint = %manifest.id, keep, "a checkpoint is removed: there are enough newer ones");
            store.remove(owner, manifest.id).await?;
            failpoint::pass(Point::CheckpointGone);
        }
        Ok(())
    }

    async fn remove_all(&self, store: &CheckpointStore, owner: &Owner) -> Result<(), Stopped> {
        for id in store.ids(owner).await? {
            if !self.placing.leads() {
                return Ok(());
            }
            tracing::info!(allocation = %owner.allocation, checkpoint = %id, "a checkpoint is removed: its allocation ended long ago");
            store.remove(owner, id).await?;
            failpoint::pass(Point::CheckpointGone);
        }
        store.remove_record(owner.allocation).await?;
        Ok(())
    }
}

/// The end of an allocation, as recorded in the store.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// When it ended, in milliseconds since 1970; `None`: no agent saw it end.
    ended_at_ms: Option<u64>,
    /// When the end was recorded, by the store's clock.
    written_ms: u64,
}

impl Mark {
    fn is_over(self, settings: &CheckpointSettings, now_ms: u64) -> bool {
        let goes = |ended_ms: u64| expires_at_ms(settings, ended_ms.max(self.written_ms));
        self.ended_at_ms.and_then(goes).is_some_and(|at| now_ms >= at)
    }
}

/// What to do with an allocation's checkpoints.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// The allocation may start from its last checkpoint. `again`: its end had been recorded, but
    /// then the quorum was recovered from a backup.
    Lives { again: bool },
    /// Its end must be recorded: the retention time begins.
    HasEnded { at_ms: u64 },
    /// Nobody knows whether it may run again.
    Unknown,
    /// The retention time is not over.
    Stays,
    /// Remove all of them.
    Goes,
}

/// `known`: the allocation as the quorum has it.
fn verdict(mark: Mark, known: Option<&Allocation>, settings: &CheckpointSettings, now_ms: u64) -> Verdict {
    match (known, mark.ended_at_ms) {
        (Some(allocation), _) if !allocation.state.is_terminal() => Verdict::Lives { again: mark.ended_at_ms.is_some() },
        (Some(allocation), None) => Verdict::HasEnded { at_ms: allocation.ended_at.map_or(now_ms, |at| at.0) },
        (None, None) => Verdict::Unknown,
        // The work has run again since its recorded end, under a quorum that was recovered from a backup.
        (Some(Allocation { ended_at: Some(at), .. }), Some(marked)) if at.0 > marked => Verdict::HasEnded { at_ms: at.0 },
        // The quorum forgets ended allocations in time: `None` with a recorded end is normal.
        (Some(_) | None, Some(_)) if mark.is_over(settings, now_ms) => Verdict::Goes,
        (Some(_) | None, Some(_)) => Verdict::Stays,
    }
}

/// The ancestors of the quorum's last checkpoint, found through their parents, oldest first,
/// without the newest ones that `keep` allows. A checkpoint that is not an ancestor may still be in
/// progress, whatever time its manifest has.
fn surplus(all: &[Manifest], last: CheckpointId, keep: usize) -> Vec<&Manifest> {
    let mut by_id: BTreeMap<CheckpointId, &Manifest> = all.iter().map(|manifest| (manifest.id, manifest)).collect();
    let (mut chain, mut next) = (Vec::new(), Some(last));
    while let Some(manifest) = next.and_then(|id| by_id.remove(&id)) {
        chain.push(manifest);
        next = manifest.parent;
    }
    chain.into_iter().skip(keep.max(1)).rev().collect()
}

/// Which cluster an allocation belongs to.
enum Looked {
    Ours,
    /// Perhaps ours: the quorum does not know the allocation, and no agent saw it end.
    Unknown,
    Anothers,
}

/// Why a sweep failed.
#[derive(Debug, Error)]
enum SweepError {
    #[error("{}", with_causes(.0))]
    Store(#[from] StoreError),
    #[error("{}", with_causes(.0))]
    CallQuorum(#[from] CallError),
    #[error("the quorum sent an unexpected answer")]
    OtherAnswer,
}

/// Why a step of the sweep failed.
enum Stopped {
    /// Skip this allocation.
    Here(SweepError),
    /// End the sweep: the store or the quorum would not answer for the next allocation either.
    Everywhere(SweepError),
}

impl From<StoreError> for Stopped {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::Store(_) => Self::Everywhere(error.into()),
            StoreError::Damaged { .. }
            | StoreError::Unavailable(_)
            | StoreError::Directory(_)
            | StoreError::Place(_)
            | StoreError::Unfit(_)
            | StoreError::Io { .. }
            | StoreError::NoSuch(_) => Self::Here(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::{AllocationState, Epoch, Timestamp, test_builders};
    use uuid::Uuid;

    fn made(number: u128) -> Manifest {
        Manifest {
            version: 1,
            id: CheckpointId(Uuid::from_u128(number)),
            allocation: AllocationId(Uuid::from_u128(9)),
            epoch: Epoch(1),
            parent: number.checked_sub(1).filter(|n| *n > 0).map(|n| CheckpointId(Uuid::from_u128(n))),
            round: 1,
            step: None,
            created_at_ms: u64::try_from(number).unwrap(),
            took_ms: None,
            owner: "u".to_owned(),
            owner_uid: 1,
            nodes: vec![],
        }
    }

    #[test]
    fn only_ancestors_of_the_last_checkpoint_beyond_keep_are_surplus() {
        let all: Vec<Manifest> = (1..=5).map(made).collect();
        let gone =
            |last, keep| surplus(&all, CheckpointId(Uuid::from_u128(last)), keep).iter().map(|m| m.created_at_ms).collect::<Vec<_>>();
        assert_eq!(gone(4, 1), [1, 2, 3]);
        assert_eq!(gone(4, 3), [1]);
        assert_eq!(gone(4, 9), [0u64; 0]);
        assert_eq!(gone(77, 1), [0u64; 0]);
        assert_eq!(gone(1, 1), [0u64; 0]);
    }

    #[test]
    fn a_checkpoint_in_progress_is_no_surplus_whatever_its_clock_says() {
        let id = |n| CheckpointId(Uuid::from_u128(n));
        // A head whose clock is behind made the second from the first; the quorum has the first.
        let newest = Manifest { created_at_ms: 1, ..made(2) };
        let last = Manifest { created_at_ms: 600_000, ..made(1) };
        let all = [newest, last];
        assert!(surplus(&all, id(1), 1).is_empty());
        assert_eq!(surplus(&all, id(2), 1), [&all[1]]);
        // Each claims the other as its parent: the search ends nevertheless.
        let all = [Manifest { parent: Some(id(2)), ..made(1) }, made(2)];
        assert_eq!(surplus(&all, id(2), 1), [&all[0]]);
    }

    const DAY_MS: u64 = 86_400_000;

    fn of_state(state: AllocationState) -> Allocation {
        let mut allocation = test_builders::allocation(AllocationId(Uuid::from_u128(9)));
        allocation.submitted_at = Timestamp(DAY_MS);
        allocation.state = state;
        allocation.ended_at = state.is_terminal().then_some(Timestamp(2 * DAY_MS));
        allocation
    }

    fn judged(mark: (Option<u64>, u64), known: Option<&Allocation>, now_ms: u64) -> Verdict {
        verdict(Mark { ended_at_ms: mark.0, written_ms: mark.1 }, known, &CheckpointSettings::default(), now_ms)
    }

    #[test]
    fn checkpoints_expire_a_week_after_the_recorded_end_and_not_earlier() {
        let over = of_state(AllocationState::Completed);
        assert_eq!(
            judged((None, 0), Some(&over), 90 * DAY_MS),
            Verdict::HasEnded { at_ms: 2 * DAY_MS },
            "its time begins when that is written"
        );
        let mark = (Some(2 * DAY_MS), 3 * DAY_MS);
        for known in [Some(&over), None] {
            assert_eq!(judged(mark, known, 10 * DAY_MS - 1), Verdict::Stays);
            assert_eq!(judged(mark, known, 10 * DAY_MS), Verdict::Goes);
        }
    }

    #[test]
    fn checkpoints_of_work_that_may_run_again_never_expire() {
        use AllocationState::{Pending, Running, Staging, Suspended};
        for state in [Pending, Staging, Running, Suspended] {
            let living = of_state(state);
            for (ended_at_ms, again) in [(None, false), (Some(1), true)] {
                assert_eq!(judged((ended_at_ms, 1), Some(&living), u64::MAX), Verdict::Lives { again }, "{state}");
            }
        }
    }

    #[test]
    fn checkpoints_of_an_unknown_allocation_stay_unless_an_agent_saw_it_end() {
        assert_eq!(judged((None, 1), None, u64::MAX), Verdict::Unknown);
        assert_eq!(judged((Some(1), 1), None, u64::MAX), Verdict::Goes);
    }

    #[test]
    fn the_week_counts_from_the_last_end() {
        let over = of_state(AllocationState::Completed);
        assert_eq!(judged((Some(DAY_MS), DAY_MS), Some(&over), 9 * DAY_MS), Verdict::HasEnded { at_ms: 2 * DAY_MS });
    }

    #[test]
    fn an_end_with_a_wrong_clock_counts_from_when_it_was_recorded() {
        let over = of_state(AllocationState::Failed);
        assert_eq!(judged((Some(0), 30 * DAY_MS), None, 37 * DAY_MS - 1), Verdict::Stays);
        assert_eq!(
            judged((Some(30 * DAY_MS), 0), Some(&over), 37 * DAY_MS - 1),
            Verdict::Stays,
            "and one whose store was wrong from its end"
        );
    }

    #[test]
    fn without_a_retention_time_nothing_expires() {
        let settings = |retention_seconds| CheckpointSettings { retention_seconds, ..Default::default() };
        assert_eq!(expires_at_ms(&settings(0), 5), None);
        assert_eq!(expires_at_ms(&settings(2), 5), Some(2005));
        assert_eq!(expires_at_ms(&settings(u64::MAX), 5), Some(u64::MAX));
    }
}
