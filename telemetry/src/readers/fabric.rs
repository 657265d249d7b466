//! Fabric adapters, and the counters of their ports.
//!
//! Reading one of these files sends a request to the adapter, sometimes to its firmware. An adapter that hangs does not
//! answer for a minute or more. So each adapter is read separately, in parallel with everything else.

mod cxi;
mod infiniband;
mod port;

pub use port::{PORTS_MAX, Port};

use super::Text;
use port::names;
use std::path::{Path, PathBuf};

/// The driver of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// InfiniBand and RoCE.
    Infiniband,
    /// HPE Slingshot's Cassini.
    Cxi,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 2] = [Self::Infiniband, Self::Cxi];

    /// The kernel's directory of these adapters, below this root.
    pub fn class(self, root: &Path) -> PathBuf {
        root.join(match self {
            Self::Infiniband => "sys/class/infiniband",
            Self::Cxi => "sys/class/cxi",
        })
    }

    /// The names of the adapters, at most [`PORTS_MAX`].
    pub fn adapters(self, root: &Path) -> Vec<String> {
        names(&self.class(root))
    }

    /// Reads all ports of one adapter. May block for long.
    pub fn ports(self, root: &Path, adapter: &str, text: &mut Text) -> Vec<Port> {
        let adapter_dir = self.class(root).join(adapter);
        match self {
            Self::Infiniband => infiniband::ports(&adapter_dir, adapter, text),
            Self::Cxi => vec![cxi::port(&adapter_dir, adapter, text)],
        }
    }
}
