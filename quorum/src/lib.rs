//! The slim quorum.

pub mod wire;
