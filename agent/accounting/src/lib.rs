//! The role `accounting`: ended work goes into a database, questions about it are answered from there, and sinks get it.
//!
//! ```text
//!   the ledger: every end has a number ──▶ [follower] ──batch and position, one transaction──▶ SQLite or PostgreSQL
//!        ▲                                     │                                                  │
//!        ╰──────── Account: up to here ────────╯             [Accounting::query] ◀──one page──────╯
//! ```
//!
//! Exactly once: the position of the store is in the store itself, and moves with each batch in one transaction; the
//! ledger keeps each end until the store has confirmed it. The agent with the lease `accounting` writes. The ledger
//! accepts one store, by the id that the store got when it was created, until an admin moves accounting to another.
//!
//! Sinks get what the store has: a server of the site, a file, or both; see `sink`.
//!
//! While the database is away, its disk is full, or the quorum does not answer, ended work waits in the ledger; the
//! node's problems and a metric say why. After a failure the database is opened anew, because its password, its server
//! or its file may have changed. If it fails again and again, the agent gives the lease back for a while, so that
//! another agent that can reach the database gets it. SQL is built in `question` and `record`, without a database, and
//! the two drivers only send it.
//!
//! | task | ends | queues |
//! |---|---|---|
//! | [`run`] | at `stop`, once it has given its lease back | one page of ended work, at most 1,000 records |
//! | one per connection to SQLite (a thread) | 60 s after its last use | 1 connection that stores, 3 that read |
//! | one for each sink, within [`run`] | at `stop` | one batch, at most 1,000 records |
//! | questions, in the tasks of whoever asks | after 14 s at the latest | 3 at once; others wait 2 s, then are refused |

#![forbid(unsafe_code)]

mod accounting;
mod counts;
mod follower;
mod ledger;
mod postgres;
mod question;
mod record;
mod schema;
mod sink;
mod sink_progress;
mod sqlite;
mod statement;
mod store;

pub use accounting::{Accounting, NoHistory};
pub use counts::AccountingCounts;
pub use record::DamagedRow;
pub use sink_progress::SinkStatus;
pub use store::{Store, StoreError};

use follower::Follower;
use lattice_agent_common::config::accounting::AccountingSettings;
use lattice_agent_common::node_problems::NodeProblems;
use lattice_model::NodeId;
use lattice_quorum_client::QuorumClient;
use ledger::OfQuorum;
use tokio_util::sync::CancellationToken;

/// Stores ended work until `stop`, while this agent has the lease, and delivers what is stored to the sinks.
pub async fn run(
    me: NodeId,
    quorum: QuorumClient,
    settings: AccountingSettings,
    accounting: Accounting,
    problems: NodeProblems,
    stop: CancellationToken,
) {
    let sinks = sink::sinks(&settings, &accounting, &problems);
    let stop_sinks = stop.clone();
    let delivering = async move { futures::future::join_all(sinks.into_iter().map(|sink| sink.run(stop_sinks.clone()))).await };
    let follower = Follower::new(OfQuorum { quorum, me }, settings, accounting, problems);
    tokio::join!(Box::pin(delivering), Box::pin(follower.run(stop)));
}
