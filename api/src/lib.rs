//! The public API's wire format, and the only place that converts between protobuf and the model.
//!
//! ```text
//!   bytes ◀─prost─▶ v1::* ──spec::to_model (validates)──▶ lattice_model
//!                     ▲  ◀──allocation / node / spec::from_model──┘
//!                     ├── client::Client: typed clients over a Unix socket or TLS
//!                     ├── json: what programs read, as JSON
//!                     └── trace: the format of traces, and what allocations are in them
//! ```
//!
//! The conversion into the model *is* the validation: a specification returned by
//! [`spec::to_model`] is valid, and documented fields that are not implemented yet have been
//! refused by name.

#![forbid(unsafe_code)]

pub mod allocation;
pub mod audit;
pub mod client;
pub mod dag;
#[cfg(test)]
mod fuzz;
pub mod json;
pub mod measurements;
pub mod node;
pub mod operator;
pub mod pack;
pub mod spec;
#[cfg(any(test, feature = "test-builders"))]
pub mod test_builders;
pub mod trace;

/// Largest size of a message in either direction, in bytes, for clients and servers: a listing of
/// tens of thousands of allocations fits, a hostile length does not.
pub const MESSAGE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The code that `model/tests/protobuf.rs` makes from `proto/`.
pub mod v1 {
    #![allow(clippy::all, clippy::pedantic)]
    include!("generated/lattice.v1.rs");
}
