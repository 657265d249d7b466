//! Weights of cgroups on block devices. Like the weights of processor time, they count when a device cannot serve all
//! groups at once.
//!
//! The kernel has four files for them: `io.weight` in the v2 tree (iocost), `io.bfq.weight` there and
//! `blkio.bfq.weight` in version 1 (BFQ), `blkio.weight` in old kernels (CFQ). Each has an effect only on devices with
//! that scheduler, or with iocost switched on (Documentation/admin-guide/cgroup-v2.rst, "IO"; block/bfq-cgroup.c,
//! block/blk-iocost.c).

use super::place::Place;
use std::fs;
use std::path::Path;

/// The files' names, with the least and greatest value of each.
const V2_FILES: [(&str, u64, u64); 2] = [("io.weight", 1, 10_000), ("io.bfq.weight", 1, 1000)];
const V1_FILES: [(&str, u64, u64); 2] = [("blkio.bfq.weight", 1, 1000), ("blkio.weight", 10, 1000)];
/// The greatest weight on our own scale.
const WEIGHT_MAX: u64 = 10_000;

/// One of the weight files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoWeight {
    /// Its name, in each group.
    pub file: &'static str,
    least: u64,
    most: u64,
}

impl IoWeight {
    /// The weight files that `group` has; the controller must be enabled there. A kernel may have
    /// several, each for another scheduler of devices.
    pub fn find(place: &Place, group: &Path) -> Vec<Self> {
        let known = match place {
            Place::V2 => V2_FILES,
            Place::V1 { .. } => V1_FILES,
        };
        let there = known.into_iter().filter(|(file, ..)| group.join(file).exists());
        there.map(|(file, least, most)| Self { file, least, most }).collect()
    }

    /// The value to write for a weight of 1 to 10,000; a greater weight counts as 10,000.
    pub fn value(self, weight: u64) -> u64 {
        (weight.min(WEIGHT_MAX) * self.most / WEIGHT_MAX).clamp(self.least, self.most)
    }

    /// Whether some device of this machine uses the weight now.
    pub fn counts_somewhere(self, v2_mount: Option<&Path>) -> bool {
        let schedulers = || fs::read_dir("/sys/block").into_iter().flatten().flatten().map(|e| e.path().join("queue/scheduler"));
        let is_used = |name: &str| schedulers().any(|file| fs::read_to_string(file).is_ok_and(|text| text.contains(name)));
        match self.file {
            "io.weight" => {
                let qos = v2_mount.and_then(|mount| fs::read_to_string(mount.join("io.cost.qos")).ok()).unwrap_or_default();
                qos.contains("enable=1")
            }
            "blkio.weight" => is_used("[cfq]"),
            _ => is_used("[bfq]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_is_scaled_to_the_range_of_each_file() {
        let dir = std::env::temp_dir().join(format!("lattice-io-weight-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (v1, v2) = (Place::V1 { mount: dir.clone() }, Place::V2);
        assert_eq!((IoWeight::find(&v1, &dir), IoWeight::find(&v2, &dir)), (vec![], vec![]));
        for (place, file, values) in [
            (&v1, "blkio.weight", [10, 500, 1000]),
            (&v1, "blkio.bfq.weight", [1, 500, 1000]),
            (&v2, "io.bfq.weight", [1, 500, 1000]),
            (&v2, "io.weight", [1, 5000, 10_000]),
        ] {
            fs::write(dir.join(file), "").unwrap();
            let found = IoWeight::find(place, &dir).into_iter().find(|found| found.file == file).unwrap();
            assert_eq!([1, 5000, 20_000].map(|w| found.value(w)), values, "{file}");
        }
        assert_eq!([&v1, &v2].map(|place| IoWeight::find(place, &dir).len()), [2, 2]);
        fs::remove_dir_all(dir).unwrap();
    }
}
