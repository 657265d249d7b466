//! Whom a bearer token identifies. The edge of the API on the network asks here once for each
//! request.
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
//! A token is checked without a question to anybody, except for the record of a cluster's token and
//! keys that are not here yet. Without their answer nobody is let in and nobody is refused for
//! good: the result is [`Refused::Unavailable`]. What was found is cached, bounded in number and
//! time.
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
