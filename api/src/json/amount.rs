//! Amounts of a node's resources.

use crate::v1;
use serde::Serialize;
use utoipa::ToSchema;

/// An amount of a node.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Amount)]
pub struct AmountJson {
    cores: u32,
    memory_bytes: u64,
    gpus: u32,
}

impl From<&v1::Amount> for AmountJson {
    fn from(amount: &v1::Amount) -> Self {
        Self { cores: amount.cores, memory_bytes: amount.memory_bytes, gpus: amount.gpus }
    }
}
