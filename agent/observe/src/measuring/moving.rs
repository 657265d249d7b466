//! Whether an allocation's work does something besides using processors: a launch that sleeps while
//! a GPU computes for it, or while data arrive, is not hung.

use lattice_telemetry::usage::{Measure, Source, Usage};

/// What is counted: its name for people, the measures, and how many bytes between two looks count
/// as nothing, because keeping connections alive is not work.
const COUNTED: [(&str, [Measure; 2], f64); 2] = [
    ("block input and output", [Measure::IoRead, Measure::IoWritten], 0.0),
    ("network", [Measure::NetworkReceived, Measure::NetworkSent], 1024.0),
];

/// A name from `COUNTED` or the GPUs', and whether it moved; `None`: it is not measured.
pub type Moved = (&'static str, Option<bool>);

/// The counts at the last look at launches.
#[derive(Debug, Default)]
pub(super) struct Moving([Option<[(f64, Source); 2]>; COUNTED.len()]);

impl Moving {
    /// Compares with the last look. A count that begins, or whose source changes, has not moved
    /// yet.
    pub(super) fn look(&mut self, usage: &Usage) -> impl Iterator<Item = Moved> {
        let all = COUNTED.iter().zip(&mut self.0).map(|((name, measures, nothing), before)| {
            let now = match measures.map(|measure| usage.get(measure)) {
                [Some(one), Some(other)] => Some([one, other]),
                _ => None,
            };
            let was = std::mem::replace(before, now);
            let moved = now.map(|now| {
                let same = was.filter(|was| was.iter().zip(now).all(|((_, from), (_, source))| *from == source));
                same.is_some_and(|was| was.iter().zip(now).map(|((was, _), (is, _))| (is - was).abs()).sum::<f64>() > *nothing)
            });
            (*name, moved)
        });
        all.collect::<Vec<_>>().into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(read: f64, network: Option<(f64, Source)>) -> Usage {
        let mut usage = Usage::default();
        usage.offer(Measure::IoRead, Some(read), Source::CgroupV2);
        usage.offer(Measure::IoWritten, Some(0.0), Source::CgroupV2);
        if let Some((bytes, source)) = network {
            usage.offer(Measure::NetworkReceived, Some(bytes), source);
            usage.offer(Measure::NetworkSent, Some(bytes), source);
        }
        usage
    }

    #[test]
    fn traffic_counts_as_activity_and_keepalive_packets_do_not() {
        let mut moving = Moving::default();
        let mut look = |read, network: Option<f64>| {
            let network = network.map(|bytes| (bytes, Source::Ebpf));
            moving.look(&usage(read, network)).map(|(_, moved)| moved).collect::<Vec<_>>()
        };
        assert_eq!(look(5.0, Some(0.0)), [Some(false), Some(false)], "nothing is known of before");
        assert_eq!(look(6.0, Some(500.0)), [Some(true), Some(false)]);
        assert_eq!(look(6.0, Some(1500.0)), [Some(false), Some(true)]);
        assert_eq!(look(6.0, None), [Some(false), None], "it is not counted any more");
        assert_eq!(look(6.0, Some(1e9)), [Some(false), Some(false)], "and begins anew");
    }

    #[test]
    fn a_count_that_begins_elsewhere_says_nothing() {
        let mut moving = Moving::default();
        for source in [Source::Ebpf, Source::Procfs] {
            let moved: Vec<_> = moving.look(&usage(0.0, Some((f64::from(source as u8) * 1e9, source)))).collect();
            assert_eq!(moved, [("block input and output", Some(false)), ("network", Some(false))]);
        }
    }
}
