//! The watch and the requests of simulated agents besides their sessions: the watch that real agents of their role open,
//! and the requests of a scheduler that waits for its lease. The contents of the watch are received and counted, not
//! stored.

use super::counts::Counts;
use lattice_ledger::SCHEDULER_LEASE;
use lattice_model::{Backoff, Generation, NodeId, Revision};
use lattice_pki::identity::Role;
use lattice_quorum_client::wire::{Refusal, Request, WatchAllocations, WatchCursor, WatchRequest};
use lattice_quorum_client::{CallError, QuorumClient};
use serde::Deserialize;
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// Backoff between attempts to open the watch again, as that of agents.
const WATCH_PAUSES: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(1));
/// The agents' default `scheduler_lease_ms`. A scheduler asks three times in this time.
const SCHEDULER_LEASE_MS: u64 = 5000;

/// The watch of an agent with a certificate of this role: see `agent/membership/src/cluster.rs`. To an agent of role
/// `node`, the quorum sends only its own node and the allocations on it.
pub(super) fn watched_by(role: Role) -> WatchRequest {
    let places = role == Role::Api;
    WatchRequest {
        nodes: true,
        allocations: WatchAllocations::Live,
        tenants: places,
        vclusters: places,
        domains: places,
        limits: places,
        ..WatchRequest::nothing()
    }
}

/// A [`lattice_quorum_client::wire::WatchMessage`] without the changes.
#[derive(Debug, PartialEq, Eq, Deserialize)]
enum Outline {
    Start { generation: Generation, revision: Revision },
    Changes { revision: Revision, complete: bool },
    Resync {},
}

/// Keeps the watch of this client's role open, for ever. A lost watch continues at its position. `listed` is dropped
/// after the first complete list. Then the watch is opened again at its position: the buffer of a stream keeps the size
/// of its largest message, and a real agent has memory for one of them.
pub(super) async fn follow<T>(client: &QuorumClient, counts: &Counts, agent: usize, listed: T) -> Infallible {
    let mut pauses = WATCH_PAUSES;
    let mut listed = Some(listed);
    let mut place = None;
    loop {
        let before = place;
        let Err(ended) = read(client, &mut place, counts, agent, &mut listed).await;
        match ended {
            Ended::HasList => continue,
            Ended::Lost | Ended::Resync => counts.count_lost_watch(),
        }
        if place != before {
            pauses.reset();
        }
        tokio::time::sleep(pauses.next_pause().mul_f64(rand::random_range(0.5..1.0))).await;
    }
}

/// Why a stream ended.
enum Ended {
    Lost,
    /// The first list is complete.
    HasList,
    /// The member does not have the changes after the watcher's position any more.
    Resync,
}

impl From<CallError> for Ended {
    fn from(_error: CallError) -> Self {
        Self::Lost
    }
}

async fn read<T>(
    client: &QuorumClient,
    place: &mut Option<WatchCursor>,
    counts: &Counts,
    agent: usize,
    listed: &mut Option<T>,
) -> Result<Infallible, Ended> {
    let role = client.role();
    let mut stream = client.watch_as::<Outline>(&WatchRequest { since: *place, ..watched_by(role) }).await?;
    let _open = counts.count_watch();
    let mut reading = place.unwrap_or_default();
    let mut counted = 0;
    loop {
        let message = stream.next().await;
        let bytes = stream.received_bytes() - counted;
        counts.add_received(agent, bytes);
        counts.add_watched(role, bytes);
        counted = stream.received_bytes();
        match message? {
            Outline::Start { generation, revision } => reading = WatchCursor { generation, revision },
            Outline::Changes { revision, complete: true } => {
                reading.revision = revision;
                *place = Some(reading);
                if listed.take().is_some() {
                    counts.count_listed();
                    return Err(Ended::HasList);
                }
            }
            Outline::Changes { complete: false, .. } => {}
            Outline::Resync {} => {
                *place = None;
                return Err(Ended::Resync);
            }
        }
    }
}

/// Asks for the scheduler's lease, for ever, as an agent with the role `scheduler` does while another one holds it.
pub(super) async fn ask_for_lease(client: &QuorumClient, node: NodeId, counts: &Counts) -> Infallible {
    let interval = Duration::from_millis(SCHEDULER_LEASE_MS / 3);
    let mut tick = tokio::time::interval(interval);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let request = Request::AcquireLease { name: SCHEDULER_LEASE.to_owned(), holder: node, ttl_ms: SCHEDULER_LEASE_MS, user: None };
    loop {
        tick.tick().await;
        match client.call(&request, interval).await {
            Ok(_) | Err(CallError::Refused(Refusal::LeaseHeld { .. })) => {}
            Err(CallError::Refused(_) | CallError::Unavailable { .. }) => counts.count_unanswered_lease(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_api::pack::{pack, unpack};
    use lattice_quorum_client::wire::{Change, WatchMessage};

    #[test]
    fn the_outline_of_a_message_is_read_from_the_whole_message() {
        let outline = |message: WatchMessage| unpack::<Outline>(&pack(&message).unwrap()).unwrap();
        let (generation, revision) = (Generation(2), Revision(9));
        assert_eq!(outline(WatchMessage::Start { generation, revision }), Outline::Start { generation, revision });
        let changes = vec![Change::TenantDeleted("physics".into()), Change::LeaseEnded(SCHEDULER_LEASE.into())];
        assert_eq!(outline(WatchMessage::Changes { revision, changes, complete: true }), Outline::Changes { revision, complete: true });
        assert_eq!(outline(WatchMessage::Resync { why: "compacted".into() }), Outline::Resync {});
    }
}
