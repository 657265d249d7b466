//! Amounts of a node's resources.

use lattice_api::v1;
use lattice_model::resources::Resources;
use serde::Serialize;

/// An amount of a node as JSON.
#[derive(Serialize)]
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

/// The amount as a value of the model.
pub fn resources(amount: &v1::Amount) -> Resources {
    Resources { cores: amount.cores, memory_bytes: amount.memory_bytes, gpus: amount.gpus }
}

/// The amount for people.
pub fn amount(amount: &v1::Amount) -> String {
    resources(amount).to_string()
}
