//! What a node is used for, which decides how long the leader tolerates its silence.

/// What a node is used for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeUse {
    Own,
    Sensitive,
    Borrowed,
}
