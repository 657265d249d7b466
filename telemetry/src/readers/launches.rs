//! The resource use of an allocation's launches on this node.

/// The most launches of one allocation that are measured, from the first on; further simultaneous launches of a script
/// are not measured.
pub const LAUNCHES_MAX: usize = 64;

/// The launches of an allocation that have ranks here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    pub all: Vec<Part>,
    /// Whether there are more than are measured.
    pub cut: bool,
}

/// One launch's ranks here at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub launch: u32,
    pub used_us: u64,
    pub processes: u64,
}
