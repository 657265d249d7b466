//! The counts of each disk, by its name.

use lattice_ebpf::Counts;
use lattice_ebpf::layout::{
    DEVICE, DEVICE_READ_BYTES, DEVICE_READ_NS, DEVICE_READS, DEVICE_WORDS, DEVICE_WRITE_NS, DEVICE_WRITES, DEVICE_WRITTEN_BYTES, DEVICES,
    DEVICES_OTHER, WORDS,
};
use lattice_telemetry::usage::{DeviceIo, OTHER_DEVICES};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long names are cached; then all are looked up again.
const NAMES_FOR: Duration = Duration::from_secs(30);

/// A cache of disks' names by device number. A number may later belong to another disk, so the cache
/// is emptied after `NAMES_FOR`.
#[derive(Default)]
pub struct Names {
    known: BTreeMap<u64, String>,
    since: Option<Instant>,
}

impl Names {
    pub fn of(&mut self, id: u64) -> String {
        if self.since.is_none_or(|since| since.elapsed() > NAMES_FOR) {
            (self.known, self.since) = (BTreeMap::new(), Some(Instant::now()));
        }
        self.known.entry(id).or_insert_with(|| device_name(Path::new("/sys/dev/block"), id)).clone()
    }
}

/// The name in sysfs; for a device that is gone, its numbers.
fn device_name(below: &Path, id: u64) -> String {
    let numbers = format!("{}:{}", id >> 32 & 0x7fff_ffff, id & 0xffff_ffff);
    let link = fs::read_link(below.join(&numbers)).ok();
    let name = link.as_deref().and_then(Path::file_name).and_then(|name| name.to_str()).map(str::to_owned);
    name.unwrap_or(numbers)
}

/// The counts of each disk; those of disks without a slot of their own are combined.
pub fn of(total: &Counts, mut name: impl FnMut(u64) -> String) -> Vec<DeviceIo> {
    let counts = (DEVICES..WORDS).step_by(DEVICE_WORDS).filter_map(|at| {
        let words = &total[at..at + DEVICE_WORDS];
        let name = match words[DEVICE] {
            _ if at == DEVICES_OTHER && words.iter().all(|word| *word == 0) => return None,
            _ if at == DEVICES_OTHER => OTHER_DEVICES.to_owned(),
            0 => return None,
            id => name(id),
        };
        let [bytes, requests, ns] =
            [[DEVICE_READ_BYTES, DEVICE_WRITTEN_BYTES], [DEVICE_READS, DEVICE_WRITES], [DEVICE_READ_NS, DEVICE_WRITE_NS]];
        let seconds = ns.map(|at| words[at] as f64 / 1e9);
        Some(DeviceIo { name, bytes: bytes.map(|at| words[at]), requests: requests.map(|at| words[at]), seconds })
    });
    counts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_ebpf::layout::device_id;

    #[test]
    fn disks_have_their_names_and_those_without_a_slot_are_combined() {
        let mut total = [0u64; WORDS];
        let sda = DEVICES + DEVICE_WORDS;
        (total[sda + DEVICE], total[sda + DEVICE_READ_BYTES], total[sda + DEVICE_READS]) = (device_id(8, 16), 4096, 1);
        (total[sda + DEVICE_WRITE_NS], total[DEVICES_OTHER + DEVICE_WRITES]) = (1_500_000_000, 2);
        let found = of(&total, |id| device_name(Path::new("/nowhere"), id));
        let one = DeviceIo { name: "8:16".into(), bytes: [4096, 0], requests: [1, 0], seconds: [0.0, 1.5] };
        let others = DeviceIo { name: "other".into(), bytes: [0, 0], requests: [0, 2], seconds: [0.0, 0.0] };
        assert_eq!(found, [one, others]);
        assert!(of(&[0; WORDS], |_| String::new()).is_empty());
    }
}
