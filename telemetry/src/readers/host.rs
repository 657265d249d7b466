//! The whole machine, from `/proc`.

use super::Text;
use crate::catalogue::node as family;
use crate::procfs::{TICKS_PER_SECOND, field, pressure_totals};
use crate::sample::{Collect, Samples, Whose};
use parking_lot::Mutex;
use std::path::Path;

/// Series of one metric by device.
const DISKS_MAX: usize = 64;
const INTERFACES_MAX: usize = 32;
const SECTOR_BYTES: u64 = 512;
/// Bytes of `/proc/stat` that are read: its lines of processors and interrupts grow with the machine, and the needed
/// lines follow them.
const STAT_BYTES_MAX: usize = 1 << 20;
/// The columns of `cpu` in `/proc/stat`; guests' time is in user and nice already.
const MODES: [&str; 8] = ["user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"];

/// Reads the machine at each call.
#[derive(Debug, Default)]
pub struct Host(Mutex<Text>);

impl Collect for Host {
    fn collect(&self, samples: &mut Samples, _whose: Whose) {
        let mut text = self.0.lock();
        if let Ok(stat) = text.up_to(Path::new("/proc/stat"), STAT_BYTES_MAX) {
            processors(stat, samples);
        }
        let mut file = |path: &str| text.of(Path::new(path)).ok().map(str::to_owned);
        if let Some(meminfo) = file("/proc/meminfo") {
            for (name, family) in [("MemTotal", &family::MEMORY_TOTAL), ("MemAvailable", &family::MEMORY_AVAILABLE)] {
                if let Some(kib) = field(&meminfo, name) {
                    samples.count(family, &[], kib * 1024);
                }
            }
        }
        if let Some(vmstat) = file("/proc/vmstat") {
            if let (Some(all), Some(major)) = (field(&vmstat, "pgfault"), field(&vmstat, "pgmajfault")) {
                samples.count(&family::PAGE_FAULTS, &["minor"], all.saturating_sub(major));
                samples.count(&family::PAGE_FAULTS, &["major"], major);
            }
            if let Some(kills) = field(&vmstat, "oom_kill") {
                samples.count(&family::OOM_KILLS, &[], kills);
            }
        }
        if let Some(stats) = file("/proc/diskstats") {
            disks(&stats, |name| Path::new("/sys/block").join(name).exists(), samples);
        }
        if let Some(dev) = file("/proc/net/dev") {
            interfaces(&dev, samples);
        }
        for resource in ["cpu", "memory", "io"] {
            if let Some(psi) = file(&format!("/proc/pressure/{resource}")) {
                let (some, full) = pressure_totals(&psi);
                for (kind, micros) in [("some", some), ("full", full)] {
                    if let Some(micros) = micros {
                        samples.add(&family::PRESSURE, &[resource, kind], micros as f64 / 1e6);
                    }
                }
            }
        }
    }
}

fn processors(stat: &str, samples: &mut Samples) {
    if let Some(all) = stat.lines().find_map(|line| line.strip_prefix("cpu ")) {
        for (mode, ticks) in MODES.iter().zip(all.split_ascii_whitespace()) {
            if let Ok(ticks) = ticks.parse::<u64>() {
                samples.add(&family::CPU_SECONDS, &[mode], ticks as f64 / TICKS_PER_SECOND);
            }
        }
    }
    if let Some(switches) = field(stat, "ctxt") {
        samples.count(&family::CONTEXT_SWITCHES, &[], switches);
    }
    if let Some(running) = field(stat, "procs_running") {
        samples.count(&family::PROCESSES_RUNNING, &[], running);
    }
}

/// `is_whole`: whether a name is a disk and not a partition. Devices that never moved a byte (unused loop devices) are
/// left out.
fn disks(stats: &str, is_whole: impl Fn(&str) -> bool, samples: &mut Samples) {
    let lines = stats.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(2);
        let name = words.next()?;
        let numbers: Vec<u64> = words.take(7).map_while(|word| word.parse().ok()).collect();
        // Sectors read are the third number, sectors written the seventh (Documentation/admin-guide/iostats.rst).
        (numbers.len() == 7 && numbers[2] + numbers[6] > 0).then_some((name, numbers[2], numbers[6]))
    });
    for (name, read, written) in lines.filter(|(name, ..)| is_whole(name)).take(DISKS_MAX) {
        samples.count(&family::DISK_READ, &[name], read * SECTOR_BYTES);
        samples.count(&family::DISK_WRITTEN, &[name], written * SECTOR_BYTES);
    }
}

fn interfaces(dev: &str, samples: &mut Samples) {
    let lines = dev.lines().skip(2).filter_map(|line| {
        let (name, numbers) = line.split_once(':')?;
        let numbers: Vec<u64> = numbers.split_ascii_whitespace().map_while(|word| word.parse().ok()).collect();
        Some((name.trim(), numbers))
    });
    for (name, numbers) in lines.filter(|(name, _)| *name != "lo").take(INTERFACES_MAX) {
        // Eight columns for receiving, then those for sending: bytes, packets, errors, dropped.
        for (direction, first, bytes) in [("received", 0, &family::NETWORK_RECEIVED), ("sent", 8, &family::NETWORK_SENT)] {
            let Some([moved, packets, errors, dropped]) = numbers.get(first..first + 4) else { continue };
            samples.count(bytes, &[name], *moved);
            samples.count(&family::NETWORK_PACKETS, &[name, direction], *packets);
            samples.count(&family::NETWORK_ERRORS, &[name, direction], *errors);
            samples.count(&family::NETWORK_DROPPED, &[name, direction], *dropped);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exposition::page;

    #[test]
    fn this_machine_is_read() {
        let mut samples = Samples::default();
        Host::default().collect(&mut samples, Whose::Ours);
        let page = page(&samples);
        for part in [
            "lattice_node_cpu_seconds_total{mode=\"idle\"}",
            "lattice_node_memory_available_bytes ",
            "lattice_node_context_switches_total ",
        ] {
            assert!(page.contains(part), "{part} is not in\n{page}");
        }
    }

    #[test]
    fn disks_and_interfaces_are_those_that_count_and_not_without_end() {
        let mut samples = Samples::default();
        let stats = "   8 0 sda 10 0 100 5 20 0 200 9 0 1 1\n   8 1 sda1 10 0 100 5 20 0 200 9 0 1 1\n   7 0 loop0 0 0 0 0 0 0 0 0 0 0 0\n";
        disks(stats, |name| name != "sda1", &mut samples);
        let many: String = (0..100).map(|n| format!(" {n} 0 d{n} 1 0 1 1 1 0 1 1 0 1 1\n")).collect();
        disks(&many, |_| true, &mut samples);
        interfaces("a\nb\n  lo: 5 0 0 0 0 0 0 0 5 0 0 0\n hsn0: 7 2 1 0 0 0 0 0 9 3 0 4 0 0 0 0\n", &mut samples);
        let page = page(&samples);
        assert!(
            page.contains("disk_read_bytes_total{device=\"sda\"} 51200\n")
                && page.contains("disk_written_bytes_total{device=\"sda\"} 102400\n")
        );
        assert!(!page.contains("loop0") && !page.contains("sda1"));
        assert_eq!(page.matches("lattice_node_disk_read_bytes_total{").count(), 1 + DISKS_MAX);
        assert!(page.contains("received_bytes_total{interface=\"hsn0\"} 7\n") && page.contains("sent_bytes_total{interface=\"hsn0\"} 9\n"));
        assert!(page.contains("network_errors_total{interface=\"hsn0\",direction=\"received\"} 1\n"));
        assert!(page.contains("network_dropped_total{interface=\"hsn0\",direction=\"sent\"} 4\n"));
        assert!(!page.contains("\"lo\""));
    }
}
