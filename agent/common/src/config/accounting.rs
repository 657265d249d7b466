//! The store of ended work.

use serde::Deserialize;

/// `accounting` of `agent.yaml`, for an agent with that role.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccountingSettings {}
