//! REST over the calls of `lattice.v1`: JSON, events, terminals, OpenAPI.

#![forbid(unsafe_code)]

mod calls;

pub use calls::Grpc;
