//! The configuration's section `logs`, and the form of an object store.

use super::setting::{SettingError, within};
use lattice_objects::{Objects, ObjectsError, SettingNames};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// An object store. Set it alike on all agents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoreSettings {
    /// `file:///DIR`, `s3://BUCKET/PREFIX`, `gs://…`, `az://…`; empty: none.
    pub url: String,
    /// Settings of the store (`endpoint`, `region`, `allow_http`, …).
    pub options: BTreeMap<String, String>,
    /// A file of mode 0600 with further settings of the store (`access_key_id`,
    /// `secret_access_key`, …); empty: none.
    pub credentials: PathBuf,
}

impl StoreSettings {
    /// Whether there is a store.
    pub fn is_configured(&self) -> bool {
        !self.url.is_empty()
    }

    /// Creates the client without contacting the store. `names`: what the file calls these settings.
    pub fn open(&self, names: SettingNames) -> Result<Objects, ObjectsError> {
        Objects::open(names, &self.url, &self.options, &self.credentials)
    }
}

/// The names of [`LogSettings::store`].
pub const LOGS_STORE: SettingNames =
    SettingNames { url: "logs.store.url", options: "logs.store.options", credentials: "logs.store.credentials" };

/// Output of work: how much of it stays on this node, and where the rest goes.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogSettings {
    /// Bytes of logs on this node: of all ended allocations together, and of each running one as
    /// long as the log store lacks them. Beyond it, the oldest are removed. At least `ring_bytes`.
    pub spool_max_bytes: u64,
    /// Bytes of a running allocation's logs that stay on this node for live reading after the log
    /// store has them; 64 KiB to `spool_max_bytes`.
    pub ring_bytes: u64,
    /// Seconds that output may wait before it is flushed to the log store; 1 to 3600.
    pub flush_seconds: u64,
    /// Log streams that one user may have open at this agent; 1 to 10,000.
    pub max_concurrent: usize,
    /// The object store for output. None: output stays on its node, within `spool_max_bytes`.
    pub store: StoreSettings,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { spool_max_bytes: 1 << 30, ring_bytes: 64 << 20, flush_seconds: 30, max_concurrent: 10, store: StoreSettings::default() }
    }
}

impl LogSettings {
    /// Checks the ranges.
    pub fn validate(&self) -> Result<(), SettingError> {
        within("logs.ring_bytes", self.ring_bytes, 64 << 10, self.spool_max_bytes)?;
        within("logs.flush_seconds", self.flush_seconds, 1, 3600)?;
        within("logs.max_concurrent", self.max_concurrent as u64, 1, 10_000)
    }
}
