//! Tokens with which programs call.

use super::values::time;
use crate::v1;
use serde::Serialize;
use utoipa::ToSchema;

/// A token, without its secret.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = AccessToken)]
pub struct AccessTokenJson {
    /// 16 hexadecimal digits.
    id: String,
    name: String,
    /// As whom its bearer acts.
    account: String,
    /// Such as `read,work`.
    scopes: String,
    issued_at: Option<String>,
    issued_by: String,
    expires_at: Option<String>,
}

impl From<&v1::AccessToken> for AccessTokenJson {
    fn from(token: &v1::AccessToken) -> Self {
        Self {
            id: token.id.clone(),
            name: token.name.clone(),
            account: token.account.clone(),
            scopes: token.scopes.clone(),
            issued_at: time(token.issued_at_ms),
            issued_by: token.issued_by.clone(),
            expires_at: time(token.expires_at_ms),
        }
    }
}
