//! The caller.

use super::values::{text, time};
use crate::v1;
use serde::Serialize;
use utoipa::ToSchema;

/// The calling account, and what it may do.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = WhoAmI)]
pub struct WhoAmIJson {
    account: String,
    uid: u32,
    roles: Vec<String>,
    /// The tenants of which it is an admin.
    admin_of: Vec<String>,
    /// The tenants with members of which it is a member or an admin.
    member_of: Vec<String>,
    /// Of its work that names no tenant.
    default_tenant: Option<String>,
    /// The allocation whose process calls.
    allocation: Option<String>,
    /// How it proved who it is; null: the agent does not say.
    authentication: Option<AuthenticationJson>,
}

/// How a caller proved who it is.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Authentication)]
pub struct AuthenticationJson {
    /// `socket`, `oidc` or `token`.
    kind: String,
    /// Of an OIDC token.
    issuer: Option<String>,
    /// Of an OIDC token.
    subject: Option<String>,
    /// The id of a token of the cluster.
    token: Option<String>,
    /// Such as `read,work`.
    scopes: Option<String>,
    /// Null: never.
    expires_at: Option<String>,
}

/// What the caller may do with one method.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Permission)]
pub struct PermissionJson {
    /// Such as `AllocationService/Cancel`.
    method: String,
    /// Whether the method changes anything.
    changes: bool,
    /// On whose objects: `no` (on none), `own`, `tenant` or `all`.
    reach: String,
}

impl From<&v1::WhoAmIResponse> for WhoAmIJson {
    fn from(me: &v1::WhoAmIResponse) -> Self {
        Self {
            account: me.account.clone(),
            uid: me.uid,
            roles: me.roles.clone(),
            admin_of: me.admin_of.clone(),
            member_of: me.member_of.clone(),
            default_tenant: text(&me.default_tenant),
            allocation: text(&me.within),
            authentication: me.authentication.as_ref().map(AuthenticationJson::from),
        }
    }
}

impl From<&v1::Authentication> for AuthenticationJson {
    fn from(by: &v1::Authentication) -> Self {
        Self {
            kind: by.kind.clone(),
            issuer: text(&by.issuer),
            subject: text(&by.subject),
            token: text(&by.token),
            scopes: text(&by.scopes),
            expires_at: time(by.expires_at_ms),
        }
    }
}

impl From<&v1::Permission> for PermissionJson {
    fn from(permission: &v1::Permission) -> Self {
        Self { method: permission.method.clone(), changes: permission.changes, reach: permission.reach.clone() }
    }
}
