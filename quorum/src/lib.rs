//! The slim quorum.

pub mod ca;
pub mod client;
pub mod identity;
pub mod ledger;
pub mod pack;
pub mod tls;
pub mod wire;
