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
    /// Of `read`, `work` and `admin`.
    scopes: Vec<String>,
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
            scopes: token.scopes.split(',').map(str::to_owned).collect(),
            issued_at: time(token.issued_at_ms),
            issued_by: token.issued_by.clone(),
            expires_at: time(token.expires_at_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_are_a_list() {
        let token = v1::AccessToken { id: "00000000000000ab".into(), scopes: "read,work".into(), ..Default::default() };
        let json = serde_json::to_value(AccessTokenJson::from(&token)).unwrap();
        assert_eq!((&json["id"], &json["scopes"]), (&"00000000000000ab".into(), &serde_json::json!(["read", "work"])));
    }
}
