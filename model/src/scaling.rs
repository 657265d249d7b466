//! Services that scale: one submission of which several replicas run, more or fewer as a metric of
//! them asks for.
//!
//! A *scaled service* gets no nodes itself. Each of its *replicas* is an allocation like any other,
//! with one node, which the quorum creates and ends until there are as many as are wanted.
//!
//! ```text
//!   metric of the replicas ──[next]──▶ one more or one less wanted ──ledger──▶ replicas created, or asked to leave
//! ```
//!
//! [`next`] is the loop: a pure function of what the ledger knows and of one look at the metric. So
//! it goes on where it was, whoever runs it.

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
