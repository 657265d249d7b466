//! Which events of an allocation the site's mail hook reports.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What the hook reports, and to whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mail {
    /// The events; not empty.
    pub events: BTreeSet<MailEvent>,
    /// An address or a name; empty: the owner's name.
    #[serde(default)]
    pub user: String,
}

/// An event that can be reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum MailEvent {
    /// It began.
    Begin,
    /// It ended as Completed.
    End,
    /// It ended in another way.
    Fail,
    /// It was requeued.
    Requeue,
    /// Half of its walltime is over.
    TimeLimit50,
    /// 80 % of its walltime are over.
    TimeLimit80,
    /// 90 % of its walltime are over.
    TimeLimit90,
    /// Its walltime is over.
    TimeLimit,
}
