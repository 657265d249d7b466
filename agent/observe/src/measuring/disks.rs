//! How an allocation's work uses each disk, for `lattice top` and `lattice diag --storage`.

use super::{Measuring, Tracked};
use crate::kernel_counts::Key;
use lattice_mesh::usage::Shown;
use lattice_model::resources::bytes_text;
use lattice_telemetry::catalogue::allocation as family;
use lattice_telemetry::histogram::Counts;
use lattice_telemetry::sample::Samples;
use lattice_telemetry::usage::{DeviceIo, Distribution, Source};
use std::time::Duration;

/// The names of a device's two counters, in their order.
const DIRECTIONS: [&str; 2] = ["read", "write"];

/// A disk's rates between the two newest looks.
struct Rate<'a> {
    name: &'a str,
    bytes: [f64; 2],
    requests: f64,
    /// Mean duration of a request, in seconds. `None`: there was no request.
    latency: Option<f64>,
    /// The device's total counts.
    total: &'a DeviceIo,
}

impl Tracked {
    fn disk_rates(&self) -> Vec<Rate<'_>> {
        let (Some((then, before)), Some((at, usage))) = (&self.before, &self.last) else { return Vec::new() };
        let seconds = at.saturating_duration_since(*then).as_secs_f64();
        if seconds <= 0.0 {
            return Vec::new();
        }
        let none = DeviceIo::default();
        let rates = usage.devices.iter().map(|total| {
            let DeviceIo { name, bytes, requests, seconds: took } = total;
            let was = before.devices.iter().find(|was| was.name == *name).unwrap_or(&none);
            let more = |now: &[u64; 2], was: &[u64; 2]| [0, 1].map(|n| now[n].saturating_sub(was[n]) as f64);
            let requests = more(requests, &was.requests).iter().sum::<f64>();
            let took = took.iter().sum::<f64>() - was.seconds.iter().sum::<f64>();
            let latency = (requests > 0.0).then(|| took.max(0.0) / requests);
            Rate { name, bytes: more(bytes, &was.bytes).map(|bytes| bytes / seconds), requests: requests / seconds, latency, total }
        });
        rates.collect()
    }

    /// The numbers that `lattice top` shows, named `NUMBER:DISK`.
    pub(super) fn disks(&self) -> Vec<Shown> {
        let one = |name: &str, disk: &str, unit: &str, now| Shown {
            name: format!("{name}:{disk}"),
            unit: unit.to_owned(),
            source: Source::Ebpf.name().to_owned(),
            now,
            mean: None,
            max: None,
        };
        let each = |rate: &Rate<'_>| {
            let [read, written] = rate.bytes;
            let bytes = [one("device_read_bytes", rate.name, "bytes/s", read), one("device_write_bytes", rate.name, "bytes/s", written)];
            let latency = rate.latency.map(|latency| one("device_latency", rate.name, "seconds", latency));
            bytes.into_iter().chain(latency).collect::<Vec<_>>()
        };
        self.disk_rates().iter().flat_map(each).collect()
    }
}

/// A report about one disk of an allocation, or about all of them.
#[derive(Debug, PartialEq)]
pub struct DiskReport {
    pub about: String,
    pub text: String,
    /// Age of the newest look.
    pub age: Duration,
}

/// Percentiles of the durations of requests, as text. Each is an upper bound, because the kernel
/// programs count in ranges.
fn percentiles(counts: &Counts) -> String {
    let last = counts.bounds.last().copied().unwrap_or_default();
    let bound = |percent| match counts.percentile(percent) {
        Some(seconds) => format!("p{percent} \u{2264} {:.3} ms", seconds * 1e3),
        None => format!("p{percent} > {:.3} ms", last * 1e3),
    };
    [50, 95, 99].map(bound).join(", ")
}

impl Tracked {
    /// The durations of reads and writes since the work began here, as text.
    fn latencies(&self) -> Vec<(String, String)> {
        let Some((_, usage)) = &self.last else { return Vec::new() };
        let of = [(Distribution::BlockRead, "reads"), (Distribution::BlockWrite, "writes")];
        let texts = of.into_iter().filter_map(|(of, name)| {
            let (counts, _) = usage.distribution(of).filter(|(counts, _)| counts.count() > 0)?;
            Some((format!("{name} of all disks"), format!("{} so far, {}", counts.count(), percentiles(counts))))
        });
        texts.collect()
    }
}

impl Measuring {
    /// Each disk that an allocation's work has used here, with the durations of its requests, from
    /// the newest look.
    pub fn disks_of(&self, (allocation, epoch): Key) -> Vec<DiskReport> {
        let known = self.known();
        let Some(of) = known.running.get(&allocation).filter(|of| of.share.epoch == epoch) else { return Vec::new() };
        let Some((at, _)) = &of.last else { return Vec::new() };
        let age = at.elapsed();
        let describe = |rate: Rate<'_>| {
            let [read, written] = rate.bytes.map(|bytes| bytes_text(bytes as u64));
            let latency = rate.latency.map(|latency| format!(", {:.1} ms each", latency * 1e3)).unwrap_or_default();
            let [all_read, all_written] = rate.total.bytes.map(bytes_text);
            let text = format!(
                "{read}/s read, {written}/s written by {:.0} requests/s{latency}; {all_read} read and {all_written} written so far",
                rate.requests
            );
            (format!("disk {}", rate.name), text)
        };
        let disks = of.disk_rates().into_iter().map(describe);
        disks.chain(of.latencies()).map(|(about, text)| DiskReport { about, text, age }).collect()
    }
}

/// Adds the disks' metrics.
pub(super) fn write_metrics(id: &str, devices: &[DeviceIo], samples: &mut Samples) {
    for device in devices {
        for (n, direction) in DIRECTIONS.into_iter().enumerate() {
            let labels = [id, &device.name, direction];
            samples.count(&family::DEVICE_BYTES, &labels, device.bytes[n]);
            samples.count(&family::DEVICE_REQUESTS, &labels, device.requests[n]);
            samples.add(&family::DEVICE_SECONDS, &labels, device.seconds[n]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::share;
    use super::*;
    use lattice_telemetry::usage::Usage;
    use std::sync::Arc;
    use std::time::Instant;

    #[test]
    fn durations_of_requests_are_shown_as_bounds_of_percentiles() {
        let counts = |buckets: Vec<u64>| Counts { bounds: &[0.001, 0.01, 0.1], buckets, sum: 1.0 };
        assert_eq!(percentiles(&counts(vec![50, 45, 5, 0])), "p50 \u{2264} 1.000 ms, p95 \u{2264} 10.000 ms, p99 \u{2264} 100.000 ms");
        assert_eq!(percentiles(&counts(vec![0, 1, 0, 9])), "p50 > 100.000 ms, p95 > 100.000 ms, p99 > 100.000 ms");
        let mut tracked = Tracked::new(share(1, 1));
        let mut usage = Usage::default();
        usage.offer_distribution(Distribution::BlockWrite, counts(vec![3, 0, 0, 0]), Source::Ebpf);
        usage.offer_distribution(Distribution::BlockRead, counts(vec![0, 0, 0, 0]), Source::Ebpf);
        assert_eq!(tracked.latencies(), []);
        tracked.last = Some((Instant::now(), Arc::new(usage)));
        let latencies = tracked.latencies();
        assert!(
            latencies.len() == 1 && latencies[0].0 == "writes of all disks" && latencies[0].1.starts_with("3 so far, p50 "),
            "{latencies:?}"
        );
    }

    fn device(name: &str, bytes: [u64; 2], requests: [u64; 2], seconds: [f64; 2]) -> DeviceIo {
        DeviceIo { name: name.to_owned(), bytes, requests, seconds }
    }

    #[test]
    fn rates_are_between_two_looks_and_a_new_disk_counts_from_zero() {
        let mut tracked = Tracked::new(share(1, 1));
        let began = Instant::now();
        let usage = |devices: Vec<DeviceIo>| {
            let mut usage = Usage::default();
            usage.devices = devices;
            usage
        };
        tracked.before = Some((began, Arc::new(usage(vec![device("sda", [1000, 500], [4, 4], [0.5, 0.5])]))));
        assert!(tracked.disks().is_empty());
        let now = vec![device("sda", [3000, 500], [8, 4], [0.58, 0.5]), device("sdb", [0, 100], [0, 1], [0.0, 0.25])];
        tracked.last = Some((began + Duration::from_secs(2), usage(now).into()));
        let shown: Vec<(String, f64)> = tracked.disks().into_iter().map(|one| (one.name, (one.now * 1e6).round() / 1e6)).collect();
        let want = [
            ("device_read_bytes:sda", 1000.0),
            ("device_write_bytes:sda", 0.0),
            ("device_latency:sda", 0.02),
            ("device_read_bytes:sdb", 0.0),
            ("device_write_bytes:sdb", 50.0),
            ("device_latency:sdb", 0.25),
        ];
        assert_eq!(shown, want.map(|(name, now)| (name.to_owned(), now)));
    }
}
