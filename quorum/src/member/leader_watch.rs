//! The task that watches whether this member has a leader.

use crate::core::Core;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

/// A member without a leader for this long closes its watches, refuses commands, and begins to close
/// its sessions.
const LEADERLESS_MAX: Duration = Duration::from_secs(2);
/// How many sessions it closes at each check. If it has thousands and gets a leader again soon, most
/// of their agents need not register anew.
const CLOSED_SESSIONS_MAX: usize = 30;
/// How often to check for a leader.
const LEADER_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Sets `led` to false once there has been no leader for [`LEADERLESS_MAX`], and to true when there
/// is one again. A leader without a majority counts as none.
pub(super) async fn watch_leader(core: Arc<Core>, led: watch::Sender<bool>) {
    let mut tick = tokio::time::interval(LEADER_CHECK_INTERVAL);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_led = Instant::now();
    let mut known = (None, 0);
    loop {
        tokio::select! {
            () = core.stop.cancelled() => return,
            _ = tick.tick() => {}
        }
        let metrics = core.raft.metrics();
        {
            let metrics = metrics.borrow();
            let now = (metrics.current_leader, metrics.current_term);
            if known != now {
                known = now;
                match now {
                    (Some(leader), term) => tracing::info!(leader, term, "this member has a leader"),
                    (None, term) => tracing::warn!(term, "this member has no leader"),
                }
            }
        }
        if core.has_leader() {
            last_led = Instant::now();
        }
        let is_led = last_led.elapsed() < LEADERLESS_MAX;
        core.status.closing.allow(if is_led { 0 } else { CLOSED_SESSIONS_MAX });
        led.send_if_modified(|was| std::mem::replace(was, is_led) != is_led);
    }
}
