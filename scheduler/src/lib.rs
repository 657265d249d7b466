//! The scheduler: from a frozen view of the cluster and a time to placements, expected starts and
//! reasons.
//!
//! ```text
//!   View ─▶ State, now ─▶ plan ─┬─▶ claims     what begins now
//!                               ├─▶ Outlook    for each that waits: reason and expected start
//!                               ├─▶ explain    the same for one, with every node
//!                               └─▶ estimate   the same for work that is not submitted
//! ```
//!
//! Each vCluster's queue has a kind of scheduler. In `interactive-fifo` no work begins before work
//! that was submitted earlier. In the others, work is ordered by class and score (they differ in
//! the weights of the score), the first waiting work has reservations, and work behind it may begin
//! now if it delays none of these (see [`plan`]). A scheduler keeps its [`State`] and applies each
//! newer view to it, and so do submissions; other callers make a state for a single plan.

#![forbid(unsafe_code)]

mod backlog;
mod borrowing;
pub mod broker;
mod calendar;
mod choice;
mod classes;
mod columns;
mod domains;
mod draft;
mod estimate;
mod explanation;
mod floors;
mod forms;
mod grouping;
mod headroom;
mod held;
mod holdings;
mod likeness;
mod locality;
mod misfit;
mod node_set;
mod order;
mod outlook;
mod owners;
mod plan;
mod quotas;
mod replicas;
mod reserve;
mod score;
mod settling;
mod sooner;
mod span;
mod standing;
mod state;
mod table;
mod together;
mod untouched;
mod user_running;
mod victims;
mod view;
mod why_not;
mod windows;

pub use estimate::{Estimate, estimate};
pub use explanation::{Explanation, explain};
pub use holdings::Holdings;
pub use misfit::{Misfit, misfit};
pub use order::waiting_in;
pub use outlook::{Expected, Outlook, REASON_CHARS_MAX, clip};
pub use plan::{Plan, RESERVATIONS_MAX, plan};
pub use score::{Score, Term};
pub use sooner::Sooner;
pub use state::State;
pub use table::Table;
pub use victims::{PreemptedFor, giving_back_s};
pub use view::{Gossiped, View};
pub use why_not::WhyNot;

use lattice_model::{Allocation, Claim};

/// If more work than this waits in all queues together, new work is left to the scheduler's rounds:
/// such a large plan would delay the submission.
const NEWCOMER_WAITING_MAX: usize = 1000;

/// The claim for an allocation that is about to be submitted, if it can be placed at once: then one
/// commit records both. `None` also if other work waits in its queue, because that comes first, or
/// much in other queues. Otherwise applies `view` to `state`, and adds the allocation.
pub fn place_newcomer(state: &mut State, view: View, newcomer: Allocation, lease_token: u64) -> Option<Claim> {
    let queue = view.queue_of(&newcomer).to_owned();
    let waits_much = view.allocations.values().filter(|a| a.waits()).nth(NEWCOMER_WAITING_MAX).is_some();
    if waits_much || view.somebody_waits(&queue) {
        return None;
    }
    let now = newcomer.submitted_at;
    state.apply(view);
    state.insert(newcomer);
    plan(state, now).claims(|name| (name == queue).then_some(lease_token)).pop()
}

#[cfg(test)]
mod backfill_tests;
#[cfg(test)]
mod borrowing_tests;
#[cfg(test)]
mod choice_tests;
#[cfg(test)]
mod contiguous_tests;
#[cfg(test)]
mod grouping_tests;
#[cfg(test)]
mod replicas_tests;
#[cfg(test)]
mod score_tests;
#[cfg(test)]
mod share_policy_tests;
#[cfg(test)]
mod spread_tests;
#[cfg(test)]
mod state_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod timing_tests;
#[cfg(test)]
mod together_tests;
#[cfg(test)]
mod victims_tests;
#[cfg(test)]
mod windows_tests;
