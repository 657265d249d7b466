//! Amounts of a node's resources.

use lattice_api::v1;
use lattice_model::resources::Resources;

/// The amount as a value of the model.
pub fn resources(amount: &v1::Amount) -> Resources {
    Resources { cores: amount.cores, memory_bytes: amount.memory_bytes, gpus: amount.gpus }
}

/// The amount for people.
pub fn amount(amount: &v1::Amount) -> String {
    resources(amount).to_string()
}
