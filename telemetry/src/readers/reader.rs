//! What every reader of an allocation's work does.

use super::{Group, Signs, Text};
use crate::usage::{Source, Usage};

/// One source of numbers.
pub trait Reader: Send {
    /// What it says its numbers come from.
    fn source(&self) -> Source;

    /// Reads what tells whether something of the work ran, before anything else is read; what that tells besides is told by [`Reader::read`],
    /// which follows.
    fn signs(&mut self, _group: &Group, _text: &mut Text, _signs: &mut Signs) {}

    /// Adds what it can read of the group to what those before it said.
    fn read(&mut self, group: &Group, text: &mut Text, usage: &mut Usage);
}
