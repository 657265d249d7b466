//! Finds the account that a bearer token identifies. The edge of the API on the network calls this
//! once for each request.
//!
//! ```text
//!                         ┌─ lattice_… ─▶ cluster_tokens ──(cached for 10 s)──▶ quorum: its record
//!   identify(text, now) ──┤
//!                         └─ a JWT ─────▶ jwt: issuer, audience, times, account
//!                                          └─ key_set ◀── provider: its keys, each hour
//!                                             └─ signature: by ring
//!                                                └─ account_hook: the site's program, if there is one
//! ```
//!
//! A check needs a remote answer only for the record of a cluster's token and for keys that this
//! agent does not have yet. Without that answer, the token is neither accepted nor refused for
//! good: the result is [`Refused::Unavailable`]. Results are cached, bounded in number and time.
//!
//! One task, [`Identities::run`], keeps the provider's keys fresh.

mod account_hook;
mod cluster_tokens;
mod identified;
mod identities;
mod jwt;
mod key_set;
mod memberships;
mod provider;
mod recent;
mod signature;
#[cfg(test)]
mod test_provider;

pub use account_hook::AccountHookError;
pub use identified::{Discovery, Identified, IdentifiedBy, Refused};
pub use identities::Identities;
pub use provider::IdentityError;
