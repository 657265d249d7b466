//! How much of each output is here already, for going on after a lost connection.

use crate::label::Source;
use lattice_api::v1;
use std::collections::BTreeMap;

/// Bytes received of each rank's streams.
#[derive(Debug, Default)]
pub struct Received {
    bytes: BTreeMap<Source, u64>,
}

impl Received {
    /// Counts bytes that arrived.
    pub fn count(&mut self, source: &Source, data: &[u8]) {
        *self.bytes.entry(source.clone()).or_default() += data.len() as u64;
    }

    /// What a request says, so that nothing is sent twice.
    pub fn so_far(&self) -> Vec<v1::Received> {
        let one = |(s, &bytes): (&Source, &u64)| v1::Received { launch: s.launch, rank: s.rank, stderr: s.stderr, bytes };
        self.bytes.iter().map(one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stream_is_counted_apart() {
        let mut received = Received::default();
        assert_eq!(received.so_far(), []);
        let (out, err) = (Source { launch: 1, rank: 2, stderr: false }, Source { launch: 1, rank: 2, stderr: true });
        received.count(&out, b"ab");
        received.count(&err, b"x");
        received.count(&out, b"c");
        let of = |stderr, bytes| v1::Received { launch: 1, rank: 2, stderr, bytes };
        assert_eq!(received.so_far(), [of(false, 3), of(true, 1)]);
    }
}
