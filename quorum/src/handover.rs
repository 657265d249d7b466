//! The leadership handed to a member that is named.
//!
//! openraft 0.9 has no transfer. Its followers refuse every candidate until they have heard nothing of their leader for
//! a lease (the longest election timeout), and only after a further random time become candidates themselves. So:
//!
//! ```text
//!   gate closed: no new entries, no reads ──▶ the target has all ──▶ no heartbeats ──▶ lease over ──▶ target: elect!
//!                                                                                          │ leads, or did not in time
//!   gate open ◀── heartbeats on ◀──────────────────────────────────────────────────────────┘
//! ```
//!
//! Commands wait at the gate and are not refused; the pause is about 0.7 × `election_ms`. Nothing depends on it coming
//! right: the old leader goes on, or whoever is elected meanwhile does.

use crate::core::Core;
use lattice_quorum_client::wire::Refusal;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long what is under way may take until the target has it.
const DRAIN_MAX: Duration = Duration::from_secs(1);
/// How often it is looked.
const LOOK: Duration = Duration::from_millis(5);

/// Hands the leadership to `to`. Returns once it leads.
pub(crate) async fn to(core: &Core, to: u64) -> Result<(), Refusal> {
    let _gate = Gate::close(core);
    let began = Instant::now();
    if !drained(core, to).await {
        return refused(format!("member {to} does not take the last entries within {} s", DRAIN_MAX.as_secs()));
    }
    core.raft.runtime_config().heartbeat(false);
    let config = core.raft.config();
    let lease = Duration::from_millis(config.election_timeout_max);
    // A heartbeat may have been on its way.
    sleep(lease + Duration::from_millis(config.heartbeat_interval.min(50))).await;
    if !core.peers.campaign(to, lease).await {
        return refused(format!("member {to} does not answer"));
    }
    let until = Instant::now() + lease * 2;
    while Instant::now() < until {
        let leader = core.raft.metrics().borrow().current_leader;
        if leader == Some(to) {
            tracing::info!(to, took = ?began.elapsed(), "the leadership is handed over");
            return Ok(());
        }
        sleep(LOOK).await;
    }
    refused(format!("member {to} was not elected"))
}

fn refused(why: String) -> Result<(), Refusal> {
    Err(Refusal::Members { why: format!("the leadership was not handed over: {why}") })
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
        sleep(LOOK).await;
    }
}

/// Keeps commands and reads back, and heartbeats off, until it is dropped.
struct Gate<'a>(&'a Core);

impl<'a> Gate<'a> {
    fn close(core: &'a Core) -> Self {
        core.gate.send_replace(false);
        Self(core)
    }
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        self.0.raft.runtime_config().heartbeat(true);
        self.0.gate.send_replace(true);
    }
}
