//! The interface of every reader of an allocation's work.

use super::{Group, Signs, Text};
use crate::usage::{Source, Usage};

/// One source of numbers.
pub trait Reader: Send {
    /// The source of its values.
    fn source(&self) -> Source;

    /// Reads the signs that something of the work has run, before anything else is read. Numbers in the same files are
    /// returned by [`Reader::read`], which follows.
    fn signs(&mut self, _group: &Group, _text: &mut Text, _signs: &mut Signs) {}

    /// Adds the numbers that it can read of the group to those of the readers before it.
    fn read(&mut self, group: &Group, text: &mut Text, usage: &mut Usage);
}
