//! Metrics of this process, from `/proc/self`.

use crate::catalogue::process as family;
use crate::procfs::{Stat, TICKS_PER_SECOND, boot_time_seconds, page_bytes};
use crate::sample::Samples;
use std::fs;

/// Adds all values that can be read.
pub fn read(samples: &mut Samples) {
    if let Some(stat) = fs::read("/proc/self/stat").ok().as_deref().and_then(Stat::parse) {
        samples.add(&family::CPU_SECONDS, &[], (stat.user_ticks + stat.system_ticks) as f64 / TICKS_PER_SECOND);
        samples.count(&family::RESIDENT_BYTES, &[], stat.resident_pages * page_bytes());
        samples.count(&family::VIRTUAL_BYTES, &[], stat.virtual_bytes);
        samples.count(&family::THREADS, &[], stat.threads);
        if let Some(booted) = boot_time_seconds() {
            samples.add(&family::STARTED, &[], booted + stat.started_ticks as f64 / TICKS_PER_SECOND);
        }
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        // One of them is the descriptor of the directory that is being read.
        samples.count(&family::OPEN_FDS, &[], (open.count() as u64).saturating_sub(1));
    }
    if let Some(most) = fs::read_to_string("/proc/self/limits").ok().as_deref().and_then(open_files_max) {
        samples.count(&family::MAX_FDS, &[], most);
    }
}

fn open_files_max(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exposition::page;

    #[test]
    fn this_process_has_all_of_it() {
        let mut samples = Samples::default();
        read(&mut samples);
        let page = page(&samples);
        for family in [
            &family::CPU_SECONDS,
            &family::RESIDENT_BYTES,
            &family::VIRTUAL_BYTES,
            &family::THREADS,
            &family::STARTED,
            &family::OPEN_FDS,
            &family::MAX_FDS,
        ] {
            assert!(page.contains(&format!("\n{} ", family.name)), "{} is not in\n{page}", family.name);
        }
    }

    #[test]
    fn a_limit_that_is_none_is_absent() {
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024                 4096                 files\n";
        assert_eq!(open_files_max(limits), Some(1024));
        assert_eq!(open_files_max("Max open files  unlimited unlimited files"), None);
    }
}
