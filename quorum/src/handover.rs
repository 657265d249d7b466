//! Transfer of the leadership to a given member.
//!
//! openraft 0.9 has no leadership transfer. Its followers refuse every candidate until they have
//! received nothing from their leader for a lease (the longest election timeout), and become
//! candidates themselves only after a further random time. So:
//!
//! ```text
//!   gate closed: no new entries, no reads ──▶ target has all ──▶ no heartbeats ──▶ lease over ──▶ target campaigns
//!                                                                                          │ elected, or timed out
//!   gate open ◀── heartbeats on ◀──────────────────────────────────────────────────────────┘
//! ```
//!
//! Commands wait at the gate and are not refused; the pause is about 0.7 × `election_ms`. A member
//! other than the target may be elected meanwhile: the caller decides whether to accept that. If no
//! member is elected, nothing is lost: the old leader continues.

use crate::core::Core;
use lattice_quorum_client::wire::Refusal;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long pending entries may take until the target has them.
const DRAIN_MAX: Duration = Duration::from_secs(1);
/// How often to check the progress.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Transfers the leadership to `to`. Returns the new leader: `to`, or another member that was elected
/// first.
pub(crate) async fn transfer_to(core: &Core, to: u64) -> Result<u64, Refusal> {
    let _gate = Gate::close(core);
    let began = Instant::now();
    if !drained(core, to).await {
        return refused(format!("member {to} does not take the last entries within {} s", DRAIN_MAX.as_secs()));
    }
    core.raft.runtime_config().heartbeat(false);
    let config = core.raft.config();
    let lease = Duration::from_millis(config.election_timeout_max);
    // A heartbeat may have been in transit.
    sleep(lease + Duration::from_millis(config.heartbeat_interval.min(50))).await;
    // Without heartbeats, the others become candidates as well.
    if !core.peers.campaign(to, lease).await {
        tracing::warn!(to, "the member that is to lead does not answer; another one may be elected");
    }
    let until = Instant::now() + lease * 2;
    while Instant::now() < until {
        let leader = core.raft.metrics().borrow().current_leader;
        if let Some(leader) = leader.filter(|leader| *leader != core.config.id) {
            tracing::info!(to, leader, took = ?began.elapsed(), "the leadership is handed over");
            return Ok(leader);
        }
        sleep(POLL_INTERVAL).await;
    }
    refused(format!("neither member {to} nor another one was elected"))
}

fn refused(why: String) -> Result<u64, Refusal> {
    Err(Refusal::Members { why: format!("the leadership was not handed over, and the same request tries it again: {why}") })
}

/// Waits until the target has everything that this member has, and all of it is applied.
async fn drained(core: &Core, to: u64) -> bool {
    let until = Instant::now() + DRAIN_MAX;
    loop {
        {
            let metrics = core.raft.metrics();
            let metrics = metrics.borrow();
            let matched = metrics.replication.as_ref().and_then(|r| r.get(&to)).copied().flatten().map(|id| id.index);
            let applied = metrics.last_applied.map(|id| id.index);
            if matched == metrics.last_log_index && applied == metrics.last_log_index {
                return true;
            }
        }
        if Instant::now() > until {
            return false;
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Holds commands, reads and heartbeats back until it is dropped.
struct Gate<'a>(&'a Core);

impl<'a> Gate<'a> {
    fn close(core: &'a Core) -> Self {
        core.status.gate.send_replace(false);
        Self(core)
    }
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        self.0.raft.runtime_config().heartbeat(true);
        self.0.status.gate.send_replace(true);
    }
}
