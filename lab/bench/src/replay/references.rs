//! The field's reference schedulers, plain and short. They count nodes, because all nodes are alike.

mod conservative;
mod easy;
mod fifo;
mod profile;

pub use conservative::Conservative;
pub use easy::Easy;
pub use fifo::Fifo;
