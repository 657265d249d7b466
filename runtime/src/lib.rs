//! Linux mechanism.

pub mod shim;
