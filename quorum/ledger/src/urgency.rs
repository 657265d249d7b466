//! How urgent a command is.

/// The purpose of a command. If disk space is low, the less urgent ones are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// It begins something, or can wait.
    New,
    /// It ends work, releases something, or keeps nodes in contact.
    Keeps,
    /// It may help a member with enough disk space to become the leader.
    Mends,
}
