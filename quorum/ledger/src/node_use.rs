//! The use of a node.

/// What a node is used for now. It decides how long the leader tolerates the node's silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeUse {
    /// Nothing, or work of its own vCluster.
    Own,
    /// Sensitive work, of any vCluster.
    Sensitive,
    /// Work of another vCluster.
    Borrowed,
}
