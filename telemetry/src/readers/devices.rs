//! Block devices that are stacked on others.
//!
//! The kernel counts I/O through LVM, LUKS or MD at that device and again at the disks below: only the disks count
//! here.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Largest number of cached devices; when it is reached, the cache is emptied.
const KNOWN_MAX: usize = 1024;

/// Caches which devices are stacked.
#[derive(Debug)]
pub struct Devices {
    /// Devices by number, as in `/sys/dev/block`.
    block: PathBuf,
    stacked: HashMap<String, bool>,
}

impl Default for Devices {
    fn default() -> Self {
        Self::of(Path::new("/sys/dev/block"))
    }
}

impl Devices {
    fn of(block: &Path) -> Self {
        Self { block: block.to_owned(), stacked: HashMap::new() }
    }

    /// `device`: `MAJOR:MINOR`. An unknown device is not stacked.
    pub fn is_stacked(&mut self, device: &str) -> bool {
        if let Some(stacked) = self.stacked.get(device) {
            return *stacked;
        }
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !device.split_once(':').is_some_and(|(major, minor)| is_number(major) && is_number(minor)) {
            return false;
        }
        let stacked = fs::read_dir(self.block.join(device).join("slaves")).is_ok_and(|mut below| below.next().is_some());
        if self.stacked.len() >= KNOWN_MAX {
            self.stacked.clear();
        }
        self.stacked.insert(device.to_owned(), stacked);
        stacked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readers::{v1, v2};

    #[test]
    fn stacked_devices_are_not_counted_again() {
        let block = std::env::temp_dir().join(format!("lattice-devices-{}", std::process::id()));
        let _ = fs::remove_dir_all(&block);
        fs::create_dir_all(block.join("8:0/slaves")).unwrap();
        fs::create_dir_all(block.join("253:0/slaves/sda")).unwrap();
        let mut devices = Devices::of(&block);
        let stat = "8:0 rbytes=100 wbytes=7 rios=1\n253:0 rbytes=100 wbytes=7\n8:16 rbytes=1 wbytes=1\n";
        assert_eq!(v2::of_whole_devices(stat, "rbytes=", &mut devices), 101.0);
        let served = "8:0 Read 10\n8:0 Write 20\n253:0 Read 10\n253:0 Write 20\nTotal 60\n";
        assert_eq!(v1::served_bytes(served, "Write", &mut devices), 20.0);
        assert!(!devices.is_stacked("../8:0") && !devices.is_stacked("Total"));
        // It was cached.
        fs::remove_dir_all(&block).unwrap();
        assert!(devices.is_stacked("253:0") && !devices.is_stacked("8:0"));
    }
}
