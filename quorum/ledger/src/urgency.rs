//! How urgent a command is.

/// What a command is for. Where there is too little room on the disk, the less urgent are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// It begins something, or can wait.
    New,
    /// It ends work, gives something back, or keeps nodes in touch.
    Keeps,
    /// It may bring a member to the lead that has room.
    Mends,
}
