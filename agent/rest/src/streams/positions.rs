//! How much of each output a client has, as the `id` of an event. A client that connects again sends the id of the last
//! event that it got, as `Last-Event-ID`, and gets what follows.
//!
//! ```text
//!   3;0.0.out.0.1234;0.0.err.0.20        epoch; then launch, rank, stream, segment and bytes of each output
//! ```
//!
//! An id has the positions of all outputs, because a client sends back the last one alone. So that ids stay small enough
//! for a header, an event has none when too many outputs have sent something: after a reconnect, what followed the last id
//! is then sent again, and a client sees by each event's position what it already has. Positions that no id can have are
//! not kept.

use super::events::unknown_id;
use crate::problem::Problem;
use lattice_api::v1;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The longest id, in bytes: about a hundred outputs.
const ID_BYTES_MAX: usize = 4096;
/// More outputs than an id can have: an output needs at least this many bytes.
const OUTPUTS_MAX: usize = ID_BYTES_MAX / ";0.0.out.0.0".len();

/// The end of what was received of each output of one attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Positions {
    epoch: u64,
    ends: BTreeMap<Output, End>,
    /// More outputs of this attempt sent something than an id can have: none is recorded any more.
    is_too_many: bool,
}

/// One output of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Output {
    launch: u32,
    rank: u32,
    stderr: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    segment: u32,
    bytes: u64,
}

impl Positions {
    /// The positions that an id names.
    pub(super) fn parse(id: &str) -> Result<Self, Problem> {
        let unknown = || unknown_id(id).with_hint("leave the header out to get the output from its beginning");
        if id.len() > ID_BYTES_MAX {
            return Err(unknown());
        }
        let mut parts = id.split(';');
        let epoch = parts.next().and_then(|part| part.parse().ok()).ok_or_else(unknown)?;
        let ends = parts.map(parse_end).collect::<Option<BTreeMap<_, _>>>().ok_or_else(unknown)?;
        Ok(Self { epoch, ends, is_too_many: false })
    }

    /// Records a received piece. Those of an earlier attempt have no meaning in a later one.
    pub(super) fn record(&mut self, chunk: &v1::LogChunk) {
        if !chunk.notice.is_empty() || chunk.epoch < self.epoch {
            return;
        }
        if chunk.epoch > self.epoch {
            *self = Self { epoch: chunk.epoch, ..Self::default() };
        }
        if self.is_too_many {
            return;
        }
        let output = Output { launch: chunk.launch, rank: chunk.rank, stderr: chunk.stderr };
        self.ends.insert(output, End { segment: chunk.segment, bytes: chunk.bytes });
        if self.ends.len() > OUTPUTS_MAX {
            (self.ends, self.is_too_many) = (BTreeMap::new(), true);
        }
    }

    /// The id of an event after which a client has all of this; `None`: it would be too long.
    pub(super) fn id(&self) -> Option<String> {
        if self.is_too_many {
            return None;
        }
        let mut id = self.epoch.to_string();
        for (Output { launch, rank, stderr }, End { segment, bytes }) in &self.ends {
            let stream = if *stderr { "err" } else { "out" };
            // Writing to a text does not fail.
            let _ = write!(id, ";{launch}.{rank}.{stream}.{segment}.{bytes}");
        }
        (id.len() <= ID_BYTES_MAX).then_some(id)
    }

    /// The same for a request.
    pub(super) fn received(&self) -> Vec<v1::Received> {
        let epoch = self.epoch;
        let one = |(Output { launch, rank, stderr }, End { segment, bytes }): (&Output, &End)| v1::Received {
            launch: *launch,
            rank: *rank,
            stderr: *stderr,
            bytes: *bytes,
            epoch,
            segment: *segment,
        };
        self.ends.iter().map(one).collect()
    }

    /// Whether nothing was received.
    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

fn parse_end(part: &str) -> Option<(Output, End)> {
    let fields: Vec<&str> = part.split('.').collect();
    let [launch, rank, stream, segment, bytes] = fields[..] else { return None };
    let stderr = match stream {
        "out" => false,
        "err" => true,
        _ => return None,
    };
    let output = Output { launch: launch.parse().ok()?, rank: rank.parse().ok()?, stderr };
    Some((output, End { segment: segment.parse().ok()?, bytes: bytes.parse().ok()? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(rank: u32, stderr: bool, epoch: u64, bytes: u64) -> v1::LogChunk {
        v1::LogChunk { launch: 1, rank, stderr, epoch, segment: 2, bytes, ..Default::default() }
    }

    #[test]
    fn an_id_has_the_end_of_each_output_and_gives_it_back() {
        let mut positions = Positions::default();
        assert!(positions.is_empty());
        positions.record(&chunk(0, false, 3, 10));
        positions.record(&chunk(0, true, 3, 5));
        positions.record(&chunk(0, false, 3, 12));
        positions.record(&v1::LogChunk { notice: "x".into(), epoch: 9, ..Default::default() });
        let id = positions.id().unwrap();
        assert_eq!(id, "3;1.0.out.2.12;1.0.err.2.5");
        assert_eq!(Positions::parse(&id), Ok(positions.clone()));
        let of = |stderr, bytes| v1::Received { launch: 1, rank: 0, stderr, bytes, epoch: 3, segment: 2 };
        assert_eq!(positions.received(), [of(false, 12), of(true, 5)]);
        positions.record(&chunk(0, true, 2, 99));
        assert_eq!(positions.id().unwrap(), id, "a piece of an earlier attempt");
        positions.record(&chunk(4, true, 4, 1));
        assert_eq!(positions.id().unwrap(), "4;1.4.err.2.1", "a new attempt");
    }

    #[test]
    fn ids_stay_small_enough_for_a_header() {
        let mut positions = Positions::default();
        for rank in 0..100 {
            positions.record(&chunk(rank, false, 3, 10));
        }
        let id = positions.id().unwrap();
        assert!(id.len() <= ID_BYTES_MAX && Positions::parse(&id).is_ok());
        for rank in 0..100_000 {
            positions.record(&chunk(rank, false, 3, 10));
            assert!(positions.ends.len() <= OUTPUTS_MAX);
        }
        assert_eq!(positions.id(), None);
        positions.record(&chunk(7, false, 4, 10));
        assert_eq!(positions.id().unwrap(), "4;1.7.out.2.10", "the next attempt begins anew");
    }

    #[test]
    fn what_no_event_had_as_its_id_is_refused() {
        let long = "9".repeat(ID_BYTES_MAX + 1);
        for text in ["", "x", "3;", "3;1.0.out.2", "3;1.0.both.2.5", "3;1.0.out.2.5.6", "3;-1.0.out.2.5", "3; 1.0.out.2.5", &long] {
            let refused = serde_json::to_value(Positions::parse(text).unwrap_err()).unwrap();
            let detail = refused["detail"].as_str().unwrap();
            assert!(detail.starts_with("Last-Event-ID: ") && detail.len() < 300, "{detail}");
        }
        assert_eq!(Positions::parse("3"), Ok(Positions { epoch: 3, ..Positions::default() }));
    }
}
