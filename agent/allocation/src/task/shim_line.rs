//! The state of the connection to an allocation's shim.

use crate::link::Link;
use lattice_runtime::shim::FromShim;

/// The state of the connection.
pub(super) enum ShimLine {
    Absent,
    /// A message could not be sent, and the connection was closed. [`Self::next`] reports that as
    /// the end of the connection.
    Broken,
    /// The shim is reporting what it has. `is_fresh`: the shim was just started.
    Replaying {
        link: Link,
        is_fresh: bool,
    },
    /// The shim has reported everything.
    Synced {
        link: Link,
    },
}

impl ShimLine {
    pub(super) fn link(&mut self) -> Option<&mut Link> {
        match self {
            Self::Absent | Self::Broken => None,
            Self::Replaying { link, .. } | Self::Synced { link } => Some(link),
        }
    }

    /// The next message, once connected; `None`: the connection is closed. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<FromShim> {
        match self {
            Self::Absent => std::future::pending().await,
            Self::Broken => None,
            Self::Replaying { link, .. } | Self::Synced { link } => link.next().await,
        }
    }

    pub(super) fn is_there(&self) -> bool {
        match self {
            Self::Absent | Self::Broken => false,
            Self::Replaying { .. } | Self::Synced { .. } => true,
        }
    }

    pub(super) fn is_synced(&self) -> bool {
        matches!(self, Self::Synced { .. })
    }

    pub(super) fn is_fresh(&self) -> bool {
        matches!(self, Self::Replaying { is_fresh: true, .. })
    }

    pub(super) fn set_synced(&mut self) {
        *self = match std::mem::replace(self, Self::Absent) {
            Self::Absent => Self::Absent,
            Self::Broken => Self::Broken,
            Self::Replaying { link, .. } | Self::Synced { link } => Self::Synced { link },
        };
    }
}
