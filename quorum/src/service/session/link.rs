//! The two directions of a session's stream, and how it ends.

use lattice_api::pack::{pack, unpack};
use lattice_api::v1::Packed;
use lattice_model::{Incarnation, with_causes};
use lattice_quorum_client::wire::{Down, Up};
use std::time::Duration;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

/// How long an agent may take to register, or to read a message.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// How a session ends.
pub(super) enum Ended {
    /// The agent has disconnected, or does not read.
    Gone,
    /// The agent gets the reason, and connects again, to another member if possible.
    Close(String),
    /// The agent's node was removed from the cluster; the agent gets the reason.
    Removed(String),
    /// The agent is asked to register again, and to name this incarnation as the one that the quorum has.
    RegisterAgain(Incarnation),
    /// The agent is asked to connect to another member.
    Move,
    /// A message of the agent is invalid, or asks for something that the agent may not do.
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

/// Largest message of an agent, in bytes. Only the first message after the registration may be
/// larger: it may be [`Up::Holds`].
pub(super) const MESSAGE_BYTES_MAX: usize = 256 * 1024;

/// The agent's next message, of at most `bytes_max` bytes.
pub(super) async fn next(up: &mut Streaming<Packed>, bytes_max: usize) -> Result<Up, Ended> {
    match up.message().await {
        Ok(Some(packed)) if packed.body.len() > bytes_max => {
            let why = format!("a message of {} bytes: at most {bytes_max} are possible", packed.body.len());
            Err(Ended::Refused(Status::invalid_argument(why)))
        }
        Ok(Some(packed)) => unpack(&packed).map_err(|e| Ended::Refused(e.into())),
        Ok(None) | Err(_) => Err(Ended::Gone),
    }
}
