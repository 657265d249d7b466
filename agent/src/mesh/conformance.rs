//! What a node is made of, on the wire.

use super::diagnosis::plain;
use super::frame::FrameError;
use crate::conformance::Found;
use lattice_model::Timestamp;
use lattice_model::conformance::{Components, check};
use rkyv::{Archive, Deserialize, Serialize};

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum FingerprintAnswer {
    Refused { why: String },
    Told(WireFound),
}

/// See [`Found`].
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct WireFound {
    pub components: Option<Vec<(String, String)>>,
    pub at_ms: Option<u64>,
    pub trouble: Option<String>,
}

impl From<&Found> for WireFound {
    fn from(found: &Found) -> Self {
        Self {
            components: found.components.clone().map(|components| components.into_iter().collect()),
            at_ms: found.at.map(|at| at.0),
            trouble: found.trouble.as_deref().map(plain),
        }
    }
}

impl TryFrom<WireFound> for Found {
    type Error = FrameError;

    /// What a node can be made of; its words go to people's terminals.
    fn try_from(wire: WireFound) -> Result<Self, FrameError> {
        let components: Option<Components> = wire.components.map(|components| components.into_iter().collect());
        if components.as_ref().is_some_and(|components| check(components).is_err()) {
            return Err(FrameError::Malformed);
        }
        Ok(Self { components, at: wire.at_ms.map(Timestamp), trouble: wire.trouble.as_deref().map(plain) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_arrives_and_what_no_node_is_made_of_does_not() {
        let found = |value: &str| Found {
            components: Some(Components::from([("kernel".to_owned(), value.to_owned())])),
            at: Some(Timestamp(1)),
            trouble: Some("the BMC does not answer".to_owned()),
        };
        for found in [found("6.6"), Found::default()] {
            assert_eq!(Found::try_from(WireFound::from(&found)).unwrap(), found);
        }
        assert!(Found::try_from(WireFound::from(&found("6.6\u{1b}[2J"))).is_err());
    }
}
