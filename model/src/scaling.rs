//! Services that scale: one submission that runs as several replicas, more or fewer as a metric of
//! the replicas demands.
//!
//! A *scaled service* gets no nodes itself. Each of its *replicas* is an ordinary allocation with
//! one node. The quorum creates and ends replicas until there are as many as are wanted.
//!
//! ```text
//!   metric of the replicas ──[next]──▶ one more or one less wanted ──ledger──▶ replicas created, or asked to leave
//! ```
//!
//! [`next`] is the loop: a pure function of the ledger's state and of one look at the metric. So
//! whoever runs it continues where the last one stopped.

mod amount;
mod metric;
mod policy;
mod state;
mod step;

pub use amount::{Amount, NoAmount};
pub use metric::{ALLOCATION, METRIC_CHARS_MAX, NoSuchMetric, ScaleMetric, Selector};
pub use policy::{DRAIN_MAX, Drain, REPLICAS_MAX, ReplicaOf, ScalePolicy, Scaling, TIMES};
pub use state::{ALTERNATIONS_ALERT, Look, MISSING_ALERT, Reading, ScaleChange, ScalingState};
pub use step::{Refused, Step, Wait, check, next, resume};
