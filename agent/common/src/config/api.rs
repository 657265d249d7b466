//! The API on the network: where it listens, with which certificate, whose tokens it accepts, and its limits.

use serde::Deserialize;

/// `api` of `agent.yaml`. Without `listen`, users reach this agent by its socket alone.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ApiSettings {}
