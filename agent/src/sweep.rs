//! What a former life may have left: scopes of allocations that the journal does not know. Nothing may live in them.

use crate::context::Context;
use lattice_node::Brain;
use std::time::Duration;

/// Ends and removes stray scopes. Said in the log, each by name.
pub fn strays(context: &Context, brain: &Brain) {
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
        let swept =
            scope.whole().kill().and_then(|()| scope.whole().wait_empty(Duration::from_secs(3))).and_then(|_| scope.whole().remove());
        if let Err(error) = swept {
            tracing::warn!(%allocation, %error, "a stray scope could not be removed");
        }
    }
}
