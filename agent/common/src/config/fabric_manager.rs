//! The configuration's section `fabric_manager`.

use serde::Deserialize;
use std::path::PathBuf;

/// The fabric manager, which makes keys for work in a network domain.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FabricManagerSettings {
    /// Its URL: `https://HOST/…` or `http://HOST/…`. Set it alike on all agents. Empty: there is no
    /// fabric manager, and work gets only the number (VNI) of its domain.
    pub url: String,
    /// A file of mode 0600 with the token for it; empty: none.
    pub token: PathBuf,
    /// A PEM file of the authorities that its certificate is verified with; empty: the system's.
    pub ca: PathBuf,
}

impl FabricManagerSettings {
    /// Whether there is a manager.
    pub fn is_configured(&self) -> bool {
        !self.url.is_empty()
    }
}
