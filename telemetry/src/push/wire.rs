//! Remote write, version 1: protobuf in snappy's block format (Prometheus, `prompb/remote.proto` and `types.proto`).

use crate::exposition::{labels_of, number};
use crate::sample::{Samples, Value};
use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub struct WriteRequest {
    #[prost(message, repeated, tag = "1")]
    pub timeseries: Vec<TimeSeries>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TimeSeries {
    /// Sorted by name, the metric's own name under `__name__` among them.
    #[prost(message, repeated, tag = "1")]
    pub labels: Vec<Label>,
    #[prost(message, repeated, tag = "2")]
    pub samples: Vec<Sample>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Label {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Sample {
    #[prost(double, tag = "1")]
    pub value: f64,
    /// Milliseconds since 1970.
    #[prost(int64, tag = "2")]
    pub timestamp: i64,
}

/// The body of a request, and how many samples it has. `more`: labels of every series besides their own.
pub fn encode(samples: &Samples, more: &[(&str, &str)], at_ms: i64) -> (Vec<u8>, u64) {
    let request = request(samples, more, at_ms);
    let count = request.timeseries.len() as u64;
    let plain = request.encode_to_vec();
    let packed = snap::raw::Encoder::new().compress_vec(&plain);
    // It fails for what is longer than 4 GiB alone; series are bounded far below.
    (packed.unwrap_or_default(), count)
}

fn request(samples: &Samples, more: &[(&str, &str)], at_ms: i64) -> WriteRequest {
    let mut timeseries = Vec::new();
    for (family, of_family) in samples.families() {
        for sample in of_family {
            let mut put = |suffix: &str, le: Option<String>, value: f64| {
                let mut labels = vec![label("__name__", &format!("{}{suffix}", family.name))];
                labels.extend(more.iter().copied().chain(labels_of(samples, family.labels, &sample.labels)).map(|(n, v)| label(n, v)));
                labels.extend(le.map(|le| label("le", &le)));
                // A label without a value is none.
                labels.retain(|label| !label.value.is_empty());
                labels.sort_by(|a, b| a.name.cmp(&b.name));
                timeseries.push(TimeSeries { labels, samples: vec![Sample { value, timestamp: at_ms }] });
            };
            match &sample.value {
                Value::Number(value) => put("", None, *value),
                Value::Counts(counts) => {
                    for (bound, count) in counts.cumulative() {
                        put("_bucket", Some(number(bound)), count as f64);
                    }
                    put("_sum", None, counts.sum);
                    put("_count", None, counts.count() as f64);
                }
            }
        }
    }
    WriteRequest { timeseries }
}

fn label(name: &str, value: &str) -> Label {
    Label { name: name.to_owned(), value: value.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::{gossip, quorum};
    use crate::histogram::Histogram;

    #[test]
    fn what_is_sent_is_what_was_gathered_with_labels_in_order() {
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
