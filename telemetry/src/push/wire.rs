//! Remote write, version 1: protobuf in snappy's block format (Prometheus, `prompb/remote.proto` and `types.proto`).

use crate::catalogue::Kind;
use crate::exposition::{labels_of, number};
use crate::sample::{Samples, Value};

/// The body of a request, and its number of samples. `more`: labels of every series in addition to its own.
pub fn encode(samples: &Samples, more: &[(&str, &str)], at_ms: i64) -> (Vec<u8>, u64) {
    let (plain, count) = request(samples, more, at_ms);
    let packed = snap::raw::Encoder::new().compress_vec(&plain);
    // It fails only for more than 4 GiB; the number of series is bounded far below.
    (packed.unwrap_or_default(), count)
}

/// `WriteRequest`, written field by field from borrowed labels: a request has tens of thousands of them.
///
/// ```text
///   WriteRequest { 1: TimeSeries { 1: Label { 1: name, 2: value } sorted by name,
///                                  2: Sample { 1: double, 2: ms since 1970 } } }
/// ```
fn request(samples: &Samples, more: &[(&str, &str)], at_ms: i64) -> (Vec<u8>, u64) {
    let mut request = Request { at_ms, out: Vec::new(), count: 0 };
    let mut labels: Vec<(&str, &str)> = Vec::new();
    for (family, of_family) in samples.families() {
        let suffixed = |suffix: &str| format!("{}{suffix}", family.name);
        let (bucket, sum, count) = match family.kind {
            Kind::Histogram => (suffixed("_bucket"), suffixed("_sum"), suffixed("_count")),
            Kind::Counter | Kind::Gauge => Default::default(),
        };
        for sample in of_family {
            labels.clear();
            labels.extend(more.iter().copied().chain(labels_of(samples, family.labels, &sample.labels)));
            // A label with an empty value counts as absent.
            labels.retain(|(_, value)| !value.is_empty());
            labels.sort_unstable_by_key(|(name, _)| *name);
            match &sample.value {
                Value::Number(value) => request.put(family.name, &labels, None, *value),
                Value::Counts(counts) => {
                    for (bound, count) in counts.cumulative() {
                        request.put(&bucket, &labels, Some(&number(bound)), count as f64);
                    }
                    request.put(&sum, &labels, None, counts.sum);
                    request.put(&count, &labels, None, counts.count() as f64);
                }
            }
        }
    }
    (request.out, request.count)
}

/// Tags of protobuf: the field's number and the kind of its value: a length with bytes, eight bytes, or a varint.
const FIELD_1_BYTES: u8 = 1 << 3 | 2;
const FIELD_2_BYTES: u8 = 2 << 3 | 2;
const FIELD_1_DOUBLE: u8 = 1 << 3 | 1;
const FIELD_2_VARINT: u8 = 2 << 3;

struct Request {
    at_ms: i64,
    out: Vec<u8>,
    count: u64,
}

impl Request {
    /// One series with one sample. `labels`: sorted by name, without `__name__` and `le`.
    fn put(&mut self, name: &str, labels: &[(&str, &str)], le: Option<&str>, value: f64) {
        let le = le.map(|le| ("le", le));
        let place = labels.partition_point(|(name, _)| *name < "le");
        // Underscores sort before all letters.
        let all = || {
            let (before, behind) = labels.split_at(place);
            [("__name__", name)].into_iter().chain(before.iter().copied()).chain(le).chain(behind.iter().copied())
        };
        // A signed number is encoded as an unsigned one of 64 bits.
        let at = self.at_ms as u64;
        let sample_bytes = 1 + 8 + 1 + varint_bytes(at);
        let labels_bytes: usize = all().map(|(name, value)| nested_bytes(label_bytes(name, value))).sum();
        self.out.push(FIELD_1_BYTES);
        varint(&mut self.out, (labels_bytes + nested_bytes(sample_bytes)) as u64);
        for (name, value) in all() {
            self.out.push(FIELD_1_BYTES);
            varint(&mut self.out, label_bytes(name, value) as u64);
            for (field, text) in [(FIELD_1_BYTES, name), (FIELD_2_BYTES, value)] {
                self.out.push(field);
                varint(&mut self.out, text.len() as u64);
                self.out.extend_from_slice(text.as_bytes());
            }
        }
        self.out.push(FIELD_2_BYTES);
        varint(&mut self.out, sample_bytes as u64);
        self.out.push(FIELD_1_DOUBLE);
        self.out.extend_from_slice(&value.to_le_bytes());
        self.out.push(FIELD_2_VARINT);
        varint(&mut self.out, at);
        self.count += 1;
    }
}

fn label_bytes(name: &str, value: &str) -> usize {
    nested_bytes(name.len()) + nested_bytes(value.len())
}

/// The length of a field with this many bytes, including its tag and its length.
fn nested_bytes(bytes: usize) -> usize {
    1 + varint_bytes(bytes as u64) + bytes
}

/// Seven bits in each byte.
fn varint_bytes(number: u64) -> usize {
    (64 - (number | 1).leading_zeros() as usize).div_ceil(7)
}

fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{gossip, quorum};
    use crate::histogram::Histogram;
    use prost::Message;

    /// The request as a store reads it.
    #[derive(Clone, PartialEq, Message)]
    struct WriteRequest {
        #[prost(message, repeated, tag = "1")]
        timeseries: Vec<TimeSeries>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct TimeSeries {
        #[prost(message, repeated, tag = "1")]
        labels: Vec<Label>,
        #[prost(message, repeated, tag = "2")]
        samples: Vec<Sample>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Label {
        #[prost(string, tag = "1")]
        name: String,
        #[prost(string, tag = "2")]
        value: String,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Sample {
        #[prost(double, tag = "1")]
        value: f64,
        #[prost(int64, tag = "2")]
        timestamp: i64,
    }

    #[test]
    fn prost_reads_what_is_written_by_hand() {
        let long = "x".repeat(300);
        let mut samples = Samples::new(vec![("node_id", long.clone())]);
        samples.add(&gossip::MEMBERS, &["alive"], -1.5);
        samples.count(&gossip::MEMBERS, &[""], 3);
        samples.histogram(&quorum::APPLY_SECONDS, &[], Histogram::new(&[0.5, 2.0]).counts());
        for at_ms in [0, 127, 128, 1_700_000_000_000, -1, i64::MAX] {
            let (plain, count) = super::request(&samples, &[("job", "j")], at_ms);
            let read = WriteRequest::decode(plain.as_slice()).unwrap();
            let values: Vec<f64> = read.timeseries.iter().map(|series| series.samples[0].value).collect();
            assert_eq!((values, count), (vec![-1.5, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0], 7));
            assert!(read.timeseries.iter().all(|series| series.samples[0].timestamp == at_ms && series.labels.len() >= 3));
            assert!(read.timeseries.iter().all(|series| series.labels.is_sorted_by(|a, b| a.name < b.name)));
        }
    }

    #[test]
    fn all_gathered_samples_are_sent_with_labels_in_order() {
        let mut samples = Samples::new(vec![("node_id", "n1".to_owned())]);
        samples.count(&gossip::MEMBERS, &["alive"], 3);
        samples.histogram(&quorum::APPLY_SECONDS, &[], Histogram::new(&[0.5]).counts());
        let (body, count) = encode(&samples, &[("job", "j"), ("instance", "n1")], 42);
        let plain = snap::raw::Decoder::new().decompress_vec(&body).unwrap();
        let request = WriteRequest::decode(plain.as_slice()).unwrap();
        assert_eq!((request.timeseries.len(), count), (5, 5), "one number, two buckets, sum and count");
        let text = |series: &TimeSeries| series.labels.iter().map(|l| format!("{}={}", l.name, l.value)).collect::<Vec<_>>().join(" ");
        assert_eq!(text(&request.timeseries[0]), "__name__=lattice_gossip_members instance=n1 job=j node_id=n1 state=alive");
        assert_eq!(request.timeseries[0].samples, [Sample { value: 3.0, timestamp: 42 }]);
        assert_eq!(text(&request.timeseries[2]), "__name__=lattice_raft_apply_seconds_bucket instance=n1 job=j le=+Inf node_id=n1");
    }
}
