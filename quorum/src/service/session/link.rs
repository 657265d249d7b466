//! The two directions of a session's stream, and how it ends.

use lattice_api::pack::{pack, unpack};
use lattice_api::v1::Packed;
use lattice_model::with_causes;
use lattice_quorum_client::wire::{Down, Up};
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

/// How long an agent may take to say who it is, or to read what it is sent.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// How a session ends.
pub(super) enum Ended {
    /// The agent went away, or does not read.
    Gone,
    /// It is told why, and connects elsewhere.
    Close(String),
    /// Another member takes it.
    Move,
    /// What it asks for is not its to ask.
    Refused(Status),
}

pub(super) struct DownLink {
    pub(super) tx: mpsc::Sender<Result<Packed, Status>>,
}

impl DownLink {
    pub(super) async fn send(&self, down: &Down) -> Result<(), Ended> {
        let packed = pack(down).map_err(|e| Ended::Close(with_causes(&e)))?;
        match tokio::time::timeout(PATIENCE, self.tx.send(Ok(packed))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Ended::Gone),
        }
    }
}

pub(super) async fn next(up: &mut Streaming<Packed>) -> Result<Up, Ended> {
    match up.message().await {
        Ok(Some(packed)) => unpack(&packed).map_err(|e| Ended::Refused(e.into())),
        Ok(None) | Err(_) => Err(Ended::Gone),
    }
}
