//! The slim quorum.

pub mod ca;
pub mod changes;
pub mod client;
pub mod identity;
pub mod ledger;
pub mod pack;
pub mod raft;
pub mod store;
pub mod tls;
pub mod wire;
