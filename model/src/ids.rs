//! Identifiers. Each has its own type, so that one cannot be mistaken for another.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;
use uuid::Uuid;

/// Why a text is not a valid id.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum IdError {
    /// The text is not a UUID.
    #[error("{text:?} is not an id (a UUID such as 1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88)")]
    NotAUuid {
        /// The text.
        text: String,
    },
    /// The text is not a valid node name.
    #[error("{text:?} cannot name a node: 1 to 63 of a-z, A-Z, 0-9, '-', '_' and '.', beginning with a letter or digit")]
    NotANodeName {
        /// The text.
        text: String,
    },
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// The first 8 hexadecimal digits, the form that people see and type.
            pub fn short(&self) -> String {
                let mut text = self.0.simple().to_string();
                text.truncate(8);
                text
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.short())
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                Uuid::parse_str(text).map(Self).map_err(|_| IdError::NotAUuid { text: text.to_owned() })
            }
        }
    };
}

uuid_id! {
    /// One allocation. The submitting client generates the id, which is also the idempotency key of
    /// the submission.
    AllocationId
}
uuid_id! {
    /// One launch (a set of ranks) inside an allocation.
    LaunchId
}
uuid_id! {
    /// One checkpoint of an allocation.
    CheckpointId
}
uuid_id! {
    /// One DAG: allocations that were submitted together. The submitting client generates the id, which
    /// is also the idempotency key of the submission.
    DagId
}
uuid_id! {
    /// The kernel's boot id (`/proc/sys/kernel/random/boot_id`). A different one means that no
    /// process of the earlier boot remains.
    Boot
}

/// A node's name as registered by its agent: a valid host name label or xname.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeId(String);

impl NodeId {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Longest name of a node, in bytes.
pub(crate) const NODE_NAME_BYTES_MAX: usize = 63;

impl FromStr for NodeId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let fits = (1..=NODE_NAME_BYTES_MAX).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
            && text.as_bytes()[0].is_ascii_alphanumeric();
        if fits { Ok(Self(text.to_owned())) } else { Err(IdError::NotANodeName { text: text.chars().take(80).collect() }) }
    }
}

impl TryFrom<String> for NodeId {
    type Error = IdError;

    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

impl From<NodeId> for String {
    fn from(id: NodeId) -> Self {
        id.0
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// One quorum member.
    MemberId
}
number! {
    /// The ownership epoch of a claim. It increases with every claim in the cluster and fences off
    /// writes of earlier epochs.
    Epoch
}
number! {
    /// Increases when the quorum is recovered from a backup. Compared before the [`Revision`].
    Generation
}
number! {
    /// The ledger's change counter: the Raft log index at which an object last changed.
    Revision
}
number! {
    /// One run of an agent; issued by the quorum when the agent registers.
    Incarnation
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_names_are_checked() {
        for good in ["n1", "x1000c0s0b0n0", "a.b-c_d", "9"] {
            assert_eq!(good.parse::<NodeId>().unwrap().as_str(), good);
        }
        for bad in ["", "-n", ".n", "a b", "ä", "a/b", &"n".repeat(64)] {
            assert!(bad.parse::<NodeId>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_id_is_shown_by_eight_hex_and_parsed_whole() {
        let id: AllocationId = "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap();
        assert_eq!(id.short(), "1f0c9a4e");
        assert_eq!(id.to_string().parse::<AllocationId>().unwrap(), id);
        assert!("1f0c9a4e".parse::<AllocationId>().is_err());
    }
}
