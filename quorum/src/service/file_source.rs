//! The generation from which a member without files gets its files.
//!
//! After a recovery an empty member may get messages both from a recovered member and from one that
//! was started with its old files. It must not mix the two generations: it prefers the newer one,
//! but once it has stored something of one generation, it accepts no other.

use parking_lot::Mutex;

/// Decides for one member, while it has no files of any generation.
#[derive(Debug, Default)]
pub struct FileSource(Mutex<Option<Bound>>);

#[derive(Clone, Copy, Debug)]
struct Bound {
    generation: u64,
    /// Whether entries or a snapshot of this generation were accepted.
    stored: bool,
}

impl FileSource {
    /// Accepts a message of a member of this generation; `stores`: the message has entries or a snapshot.
    ///
    /// # Errors
    /// The generation that this member accepts instead.
    pub fn accept(&self, generation: u64, stores: bool) -> Result<(), u64> {
        let mut bound = self.0.lock();
        match &mut *bound {
            Some(bound) if bound.generation == generation => bound.stored |= stores,
            Some(bound) if bound.stored || generation < bound.generation => return Err(bound.generation),
            none_or_older => *none_or_older = Some(Bound { generation, stored: stores }),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_generation_is_refused_after_a_message_of_a_newer_one() {
        let source = FileSource::default();
        assert_eq!((source.accept(1, false), source.accept(7, false)), (Ok(()), Ok(())));
        assert_eq!((source.accept(1, true), source.accept(7, true)), (Err(7), Ok(())));
    }

    #[test]
    fn files_of_one_generation_are_not_mixed_with_any_other() {
        let source = FileSource::default();
        assert_eq!((source.accept(3, false), source.accept(3, true), source.accept(3, false)), (Ok(()), Ok(()), Ok(())));
        assert_eq!((source.accept(2, false), source.accept(9, false), source.accept(3, true)), (Err(3), Err(3), Ok(())));
    }
}
