//! Logins: how `lattice` gets the token with which a server on the network knows its user, and where it keeps the token.
//!
//! ```text
//!   lattice login ─▶ discovery (the server) ─▶ provider ◀─ browser, device or manual: the user proves who they are
//!                                                 │
//!   any command ─▶ renew ─▶ store ◀───────────────╯ token, refresh token, end
//!                    ╰─ has the token ended? under the store's lock: a new one from the provider
//! ```

pub mod browser;
pub mod claims;
pub mod device;
pub mod discovery;
pub mod http;
pub mod manual;
pub mod provider;
mod redirect;
pub mod renew;
pub mod store;
