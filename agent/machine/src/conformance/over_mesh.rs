//! An operator's request for a new fingerprint of another node, passed on to that node's agent.

use super::{Conformity, Found};
use lattice_membership::directory::Directory;
use lattice_mesh::conformance::{FingerprintAnswer, WireConformance};
use lattice_mesh::diagnosis::plain;
use lattice_mesh::frame::{self, FrameError};
use lattice_mesh::open::Open;
use lattice_mesh::{Mesh, UnansweredNode};
use lattice_model::conformance::{Components, check};
use lattice_model::{NodeId, Timestamp};
use quinn::SendStream;
use std::time::Duration;
use thiserror::Error;

/// Timeout of the other agent's answer: shorter than the timeout of the operator's program.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(25);

/// Takes a new fingerprint, and answers another agent.
pub async fn answer(conformity: &Conformity, send: &mut SendStream) -> Result<(), FrameError> {
    let found = tokio::select! {
        // The caller is gone.
        _ = send.stopped() => return Ok(()),
        found = conformity.look_again() => found,
    };
    frame::write(send, &FingerprintAnswer::Answered(WireConformance::from(&*found))).await
}

/// Why another node's fingerprint is unknown.
#[derive(Debug, Error)]
pub enum UnseenNode {
    #[error(transparent)]
    Node(#[from] UnansweredNode),
    #[error("it did not finish reading within {} s; it goes on reading, and you can ask again", ANSWER_TIMEOUT.as_secs())]
    Late,
}

/// Asks the node's agent for a new fingerprint.
pub async fn ask(mesh: &Mesh, directory: &Directory, node: &NodeId) -> Result<Found, UnseenNode> {
    let address = directory.mesh(node).await.ok_or(UnansweredNode::NoAddress)?;
    let conversation = async {
        let (mut send, mut recv) = mesh.open(node, &address).await?;
        frame::write(&mut send, &Open::Fingerprint).await.map_err(UnansweredNode::Ask)?;
        frame::read::<FingerprintAnswer, _>(&mut recv).await.map_err(UnansweredNode::reading)
    };
    match tokio::time::timeout(ANSWER_TIMEOUT, conversation).await.map_err(|_| UnseenNode::Late)?? {
        FingerprintAnswer::Answered(found) => Ok(Found::try_from(found).map_err(|_| UnansweredNode::UnknownForm)?),
        FingerprintAnswer::Refused { why } => Err(UnansweredNode::Refused { why: plain(&why) }.into()),
    }
}

impl From<&Found> for WireConformance {
    fn from(found: &Found) -> Self {
        Self {
            components: found.components.clone().map(|components| components.into_iter().collect()),
            at_ms: found.at.map(|at| at.0),
            error: found.error.as_deref().map(plain),
        }
    }
}

impl TryFrom<WireConformance> for Found {
    type Error = FrameError;

    /// Refuses components that exceed the bounds or contain control characters. Control characters
    /// in `error` are replaced: the texts are printed on users' terminals.
    fn try_from(wire: WireConformance) -> Result<Self, FrameError> {
        let components: Option<Components> = wire.components.map(|components| components.into_iter().collect());
        if components.as_ref().is_some_and(|components| check(components).is_err()) {
            return Err(FrameError::Malformed);
        }
        Ok(Self { components, at: wire.at_ms.map(Timestamp), error: wire.error.as_deref().map(plain) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_components_arrive_and_impossible_ones_are_refused() {
        let found = |value: &str| Found {
            components: Some(Components::from([("kernel".to_owned(), value.to_owned())])),
            at: Some(Timestamp(1)),
            error: Some("the BMC does not answer".to_owned()),
        };
        for found in [found("6.6"), Found::default()] {
            assert_eq!(Found::try_from(WireConformance::from(&found)).unwrap(), found);
        }
        assert!(Found::try_from(WireConformance::from(&found("6.6\u{1b}[2J"))).is_err());
    }
}
