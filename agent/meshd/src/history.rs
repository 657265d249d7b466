//! Ended work, from the agent whose store has it: all other agents ask that agent.

use crate::context::Context;
use lattice_accounting::{Accounting, SinkStatus};
use lattice_mesh::MeshError;
use lattice_mesh::diagnosis::plain;
use lattice_mesh::frame::{self, FrameError};
use lattice_mesh::history::{HistoryAnswer, HistoryOpen, WireSinkStatus};
use lattice_mesh::open::Open;
use lattice_model::NodeId;
use lattice_model::history::{HistoryPage, HistoryQuery};
use quinn::SendStream;
use std::time::Duration;
use thiserror::Error;
use tokio::time::timeout;

/// Timeout of another agent's answer: longer than its database may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// Why there is no answer about ended work.
#[derive(Debug, Error)]
pub enum HistoryError {
    #[error("its mesh address is unknown: neither gossip nor the quorum has it")]
    NoAddress,
    #[error(transparent)]
    Open(#[from] MeshError),
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("it does not answer in time")]
    Timeout,
    #[error("its answer is none to this question")]
    OtherAnswer,
    /// The agent's own reason, without control characters.
    #[error("{why}")]
    Refused { why: String },
}

/// What an agent says about its store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreReport {
    /// `sqlite` or `postgresql`; empty: it was not opened yet.
    pub kind: String,
    /// Why nothing is stored at present; empty: nothing is wrong.
    pub problem: String,
    /// The sinks to which it delivers.
    pub sinks: Vec<SinkStatus>,
}

/// Answers another agent.
pub async fn answer(accounting: &Accounting, open: HistoryOpen, send: &mut SendStream) -> Result<(), FrameError> {
    frame::write(send, &locally(accounting, open).await?).await
}

async fn locally(accounting: &Accounting, open: HistoryOpen) -> Result<HistoryAnswer, FrameError> {
    Ok(match open {
        HistoryOpen::Query(query) => match accounting.query(&query.checked()?).await {
            Ok(page) => HistoryAnswer::Page(page.into()),
            Err(error) => HistoryAnswer::Refused { why: error.to_string() },
        },
        HistoryOpen::Status => {
            let StoreReport { kind, problem, sinks } = report(accounting);
            HistoryAnswer::Status { kind, problem, sinks: sinks.into_iter().map(sink_to_wire).collect() }
        }
    })
}

/// What this agent says about its store.
fn report(accounting: &Accounting) -> StoreReport {
    StoreReport {
        kind: accounting.kind().unwrap_or_default().to_owned(),
        problem: accounting.problem().unwrap_or_default(),
        sinks: accounting.sinks(),
    }
}

fn sink_to_wire(sink: SinkStatus) -> WireSinkStatus {
    let SinkStatus { kind, target, delivered, waiting, lag_ms, problem } = sink;
    WireSinkStatus { kind, target, delivered, waiting, lag_ms, problem }
}

/// Without control characters: people see it.
fn sink_from_wire(sink: WireSinkStatus) -> SinkStatus {
    let WireSinkStatus { kind, target, delivered, waiting, lag_ms, problem } = sink;
    SinkStatus { kind: plain(&kind), target: plain(&target), delivered, waiting, lag_ms, problem: plain(&problem) }
}

/// Asks the agent of `node`, which may be this one. `address`: where its mesh is, if that is known.
pub async fn page(context: &Context, node: &NodeId, address: Option<String>, query: HistoryQuery) -> Result<HistoryPage, HistoryError> {
    if *node == context.setup.me {
        return context.accounting.query(&query).await.map_err(|error| HistoryError::Refused { why: error.to_string() });
    }
    match ask(context, node, address, HistoryOpen::Query(Box::new(query.into()))).await? {
        HistoryAnswer::Page(page) => Ok(page.checked()?),
        HistoryAnswer::Refused { why } => Err(HistoryError::Refused { why: plain(&why) }),
        HistoryAnswer::Status { .. } => Err(HistoryError::OtherAnswer),
    }
}

/// As [`page`], for what the agent says about its store.
pub async fn status(context: &Context, node: &NodeId, address: Option<String>) -> Result<StoreReport, HistoryError> {
    if *node == context.setup.me {
        return Ok(report(&context.accounting));
    }
    match ask(context, node, address, HistoryOpen::Status).await? {
        HistoryAnswer::Status { kind, problem, sinks } => {
            Ok(StoreReport { kind: plain(&kind), problem: plain(&problem), sinks: sinks.into_iter().map(sink_from_wire).collect() })
        }
        HistoryAnswer::Refused { why } => Err(HistoryError::Refused { why: plain(&why) }),
        HistoryAnswer::Page(_) => Err(HistoryError::OtherAnswer),
    }
}

async fn ask(context: &Context, node: &NodeId, address: Option<String>, open: HistoryOpen) -> Result<HistoryAnswer, HistoryError> {
    let address = address.ok_or(HistoryError::NoAddress)?;
    let conversation = async {
        let (mut send, mut recv) = context.work.mesh.open(node, &address).await?;
        frame::write(&mut send, &Open::History(open)).await?;
        Ok::<_, HistoryError>(frame::read::<HistoryAnswer, _>(&mut recv).await?)
    };
    timeout(ANSWER_TIMEOUT, conversation).await.map_err(|_| HistoryError::Timeout)?
}
