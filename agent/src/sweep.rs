//! What a former life may have left: scopes, and groups of cgroup version 1, of allocations that the journal does not
//! know. Nothing may live in them.

use crate::context::Context;
use lattice_node::Brain;
use lattice_quorum::pack::with_causes;
use std::time::Duration;

/// How long processes that were killed may take to be gone.
const KILL_WAIT: Duration = Duration::from_secs(3);

/// Ends and removes strays. Said in the log, each by name.
pub fn strays(context: &Context, brain: &Brain) {
    stray_scopes(context, brain);
    crate::machine::sweep(&context.state_dir, |allocation| brain.local(allocation).is_some());
    let controllers = &context.bounds.controllers;
    for allocation in controllers.v1_allocations() {
        if brain.local(allocation).is_some() {
            continue;
        }
        tracing::warn!(%allocation, "cgroups of version 1 that the journal does not know: their processes are ended");
        if let Err(error) = controllers.remove(allocation, KILL_WAIT) {
            tracing::warn!(%allocation, error = with_causes(&error), "stray cgroups of version 1 could not be removed");
        }
    }
}

fn stray_scopes(context: &Context, brain: &Brain) {
    let Some(slice) = &context.slice else { return };
    let scopes = match slice.scopes() {
        Ok(scopes) => scopes,
        Err(error) => {
            tracing::warn!(%error, "the slice cannot be listed: strays of a former life are not swept");
            return;
        }
    };
    for (allocation, scope) in scopes {
        if brain.local(allocation).is_some() {
            continue;
        }
        tracing::warn!(%allocation, "a scope that the journal does not know: its processes are ended");
        let swept = scope.whole().kill().and_then(|()| scope.whole().wait_empty(KILL_WAIT)).and_then(|_| scope.whole().remove());
        if let Err(error) = swept {
            tracing::warn!(%allocation, %error, "a stray scope could not be removed");
        }
    }
}
