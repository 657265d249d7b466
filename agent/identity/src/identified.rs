//! Answers: whom a token identifies, or why it does not.

use lattice_model::Timestamp;
use lattice_model::access::Scopes;
use lattice_model::access_token::TokenId;
use serde::Serialize;
use std::collections::BTreeSet;
use thiserror::Error;

/// Whom a token identifies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identified {
    /// The account of the site. The caller must check whether this machine has it.
    pub account: String,
    /// The account's user id when the token was issued: it must be the one that this machine knows.
    /// `None`: the token names no user id.
    pub uid: Option<u32>,
    /// What the token opens.
    pub scopes: Scopes,
    /// The tenants that the token's bearer belongs to, at most [`lattice_model::access::LOGIN_TENANTS_MAX`].
    pub tenants: BTreeSet<String>,
    /// The kind of token.
    pub kind: IdentifiedBy,
    /// When the token expires. For a token of a provider, the leeway is included.
    pub expires_at: Timestamp,
}

/// The kind of token, with what names it in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdentifiedBy {
    /// A token of the OpenID Connect provider.
    Oidc {
        /// The provider.
        issuer: String,
        /// The person, as the provider names them.
        subject: String,
    },
    /// A token of the cluster.
    Token {
        /// Which one.
        id: TokenId,
        /// What it is for.
        name: String,
    },
}

/// What `lattice login` has to know of the provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Discovery {
    /// The provider's issuer.
    pub issuer: String,
    /// The client as which to log in.
    pub client_id: String,
    /// The scopes to request.
    pub scopes: Vec<String>,
}

/// Why a token identifies nobody. The text is for its user, and never contains the token.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    #[error(
        "the token is neither one of this cluster nor one of its identity provider\n\
         hint: `lattice login`, or use a token that an admin has issued (`lattice admin token issue`)"
    )]
    Malformed,
    #[error("the token has expired\nhint: `lattice login`, or have a new token issued")]
    Expired,
    #[error("the token is not valid yet\nhint: compare the clocks of the identity provider and of the cluster")]
    NotYet,
    #[error(
        "the token was issued for another service (its `aud`)\n\
         hint: `lattice login`; an admin finds the accepted audiences in api.oidc.audience of agent.yaml"
    )]
    WrongAudience,
    #[error("the token is of another identity provider than this cluster's\nhint: `lattice login`")]
    WrongIssuer,
    #[error(
        "the token is signed by an algorithm that is not accepted here\n\
         hint: an admin finds the accepted ones in api.oidc.algorithms of agent.yaml"
    )]
    Algorithm,
    #[error("the token is signed with a key that the identity provider does not have any more\nhint: `lattice login`")]
    UnknownKey,
    #[error("the token's signature is not valid\nhint: `lattice login`")]
    BadSignature,
    #[error(
        "the token names no account that may call from the network\n\
         hint: an admin maps people to accounts by api.oidc.account_claim and api.oidc.accounts of agent.yaml, or by a program of the site; root never comes by a token"
    )]
    NoAccount,
    /// The site's program refuses the person, and says why.
    #[error("the site's program refuses this token: {0}\nhint: ask the admins of the cluster")]
    ByHook(String),
    #[error("there is no such token, or it was revoked\nhint: have a new token issued: `lattice admin token issue`")]
    Revoked,
    /// The token can neither be accepted nor refused at present.
    #[error("the token cannot be checked at present: {0}\nhint: try again")]
    Unavailable(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_says_what_to_do_next() {
        let refusals = [
            Refused::Malformed,
            Refused::Expired,
            Refused::NotYet,
            Refused::WrongAudience,
            Refused::WrongIssuer,
            Refused::Algorithm,
            Refused::UnknownKey,
            Refused::BadSignature,
            Refused::NoAccount,
            Refused::ByHook("no contract".to_owned()),
            Refused::Revoked,
            Refused::Unavailable("no answer".to_owned()),
        ];
        for refused in refusals {
            let text = refused.to_string();
            assert!(text.split_once("\nhint: ").is_some_and(|(what, hint)| !what.is_empty() && !hint.is_empty()), "{text}");
        }
    }
}
