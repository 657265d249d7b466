//! How much of each output was received, to continue after a lost connection.

use crate::label::Source;
use lattice_api::v1;
use std::collections::BTreeMap;

/// The end of the last received piece of each stream of each rank.
#[derive(Debug, Default)]
pub struct Received {
    positions: BTreeMap<Source, v1::Received>,
}

impl Received {
    /// Records a received piece. A new attempt resets the positions, because those of the previous one have no meaning.
    pub fn record(&mut self, chunk: &v1::LogChunk) {
        if !chunk.notice.is_empty() {
            return;
        }
        self.positions.retain(|_, position| position.epoch >= chunk.epoch);
        let (launch, rank, stderr) = (chunk.launch, chunk.rank, chunk.stderr);
        let position = v1::Received { launch, rank, stderr, bytes: chunk.bytes, epoch: chunk.epoch, segment: chunk.segment };
        self.positions.insert(Source { launch, rank, stderr }, position);
    }

    /// The positions for a request, so that nothing is sent twice.
    pub fn positions(&self) -> Vec<v1::Received> {
        self.positions.values().copied().collect()
    }

    /// Whether nothing was received.
    pub fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_position_of_each_stream_is_kept_until_a_new_attempt() {
        let mut received = Received::default();
        assert!(received.is_empty());
        let chunk =
            |stderr, epoch, segment, bytes| v1::LogChunk { launch: 1, rank: 2, stderr, epoch, segment, bytes, ..Default::default() };
        let of = |stderr, epoch, segment, bytes| v1::Received { launch: 1, rank: 2, stderr, epoch, segment, bytes };
        received.record(&chunk(false, 3, 0, 2));
        received.record(&chunk(true, 3, 0, 1));
        received.record(&chunk(false, 3, 1, 1));
        received.record(&v1::LogChunk { notice: "x".into(), ..Default::default() });
        assert_eq!(received.positions(), [of(false, 3, 1, 1), of(true, 3, 0, 1)]);
        received.record(&chunk(true, 4, 0, 5));
        assert_eq!(received.positions(), [of(true, 4, 0, 5)]);
    }
}
