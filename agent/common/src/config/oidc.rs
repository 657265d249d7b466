//! An OpenID Connect provider whose tokens are accepted.

use serde::Deserialize;

/// `api.oidc` of `agent.yaml`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OidcSettings {}
