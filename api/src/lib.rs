//! The wire that users see, and the only place where protobuf meets the model.

/// The generated code of `lattice.v1`.
pub mod v1 {
    #![allow(clippy::all, clippy::pedantic)]
    tonic::include_proto!("lattice.v1");
}
