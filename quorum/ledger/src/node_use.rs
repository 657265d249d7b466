//! What for a node is used, by which the leader bears its silence.

/// What for a node is used now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeUse {
    Own,
    Sensitive,
    Borrowed,
}
