//! Adapters of fabrics, and what each of their ports has counted.
//!
//! Each of these files is a question to the adapter, some to its firmware, and one that hangs does not answer for a minute or more: who
//! asks does it beside everything else, each adapter for itself.

mod cxi;
mod infiniband;
mod port;

pub use port::{PORTS_MAX, Port};

use super::Text;
use port::names;
use std::path::{Path, PathBuf};

/// Whose driver counts.
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

    /// Where the kernel has its adapters, below this root.
    pub fn class(self, root: &Path) -> PathBuf {
        root.join(match self {
            Self::Infiniband => "sys/class/infiniband",
            Self::Cxi => "sys/class/cxi",
        })
    }

    /// The adapters that there are, by name, at most [`PORTS_MAX`].
    pub fn adapters(self, root: &Path) -> Vec<String> {
        names(&self.class(root))
    }

    /// Asks one adapter for all its ports. It may wait for long.
    pub fn ports(self, root: &Path, adapter: &str, text: &mut Text) -> Vec<Port> {
        let adapter_dir = self.class(root).join(adapter);
        match self {
            Self::Infiniband => infiniband::ports(&adapter_dir, adapter, text),
            Self::Cxi => vec![cxi::port(&adapter_dir, adapter, text)],
        }
    }
}
