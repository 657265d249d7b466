//! Repeated checks of the machine's GPUs while the agent runs: the bus, the kernel's log, the drivers.
//!
//! Errors (XID) come from the kernel's log and not from NVML's events. Waiting for events would hold every device open,
//! and an open GPU cannot be reset; the log also contains what happened while no agent ran. For the same reason a
//! vendor's library is opened for one reading and closed again.

use super::files::Files;
use super::pci::{self, Pci};
use super::simulated::{self, SimulatedGpu};
use super::{amd, nvidia};
use lattice_model::gpu_look::{GpuEvent, GpuLook, GpuRead, GpuReads};
use lattice_model::topology::GpuVendor;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;

/// Records of the kernel's log that one look reads; the next look reads the rest.
const RECORDS_MAX: usize = 20_000;
/// Bytes of one record (the kernel's `PRINTK_MESSAGE_MAX` and its prefix).
const RECORD_BYTES_MAX: usize = 8192;
const KERNEL_LOG: &str = "dev/kmsg";

/// The bus and the kernel's log. A look takes a few milliseconds and calls no driver.
pub struct GpuWatch {
    files: Files,
    /// The devices last seen on the bus, and NVIDIA's and AMD's GPUs among them. Devices are read again only when one
    /// was added or removed.
    bus: (Vec<String>, [Vec<String>; 2]),
    simulated: simulated::Watch,
    log: Log,
}

/// The kernel's log, once there is a GPU to look for in it.
enum Log {
    Unopened,
    Open(File),
    Missing(String),
}

impl GpuWatch {
    /// For the GPUs of this machine, and simulated GPUs of the configuration.
    pub fn new(files: Files, simulated: &[SimulatedGpu]) -> Self {
        Self { files, bus: Default::default(), simulated: simulated::Watch::new(simulated), log: Log::Unopened }
    }

    /// One look.
    pub fn look(&mut self) -> GpuLook {
        let names = self.files.names(pci::DEVICES);
        if names != self.bus.0 {
            let pci = Pci::look(&self.files);
            self.bus = (names, [GpuVendor::Nvidia, GpuVendor::Amd].map(|vendor| pci.addresses_of(vendor)));
        }
        let [nvidia, amd] = self.bus.1.clone();
        let mut look = GpuLook::default();
        if !nvidia.is_empty() {
            look.events = self.log();
        }
        look.on_bus.extend(nvidia.into_iter().chain(amd));
        self.simulated.look(&mut look);
        look
    }

    /// Why the kernel's log is not read although it should be.
    pub fn log_missing(&self) -> Option<&str> {
        match &self.log {
            Log::Missing(why) => Some(why),
            Log::Unopened | Log::Open(_) => None,
        }
    }

    fn log(&mut self) -> Vec<(String, GpuEvent)> {
        if let Log::Unopened = self.log {
            // From its oldest record on: since the machine was started, or as far back as the log reaches.
            let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(self.files.path(KERNEL_LOG));
            self.log = opened.map_or_else(|e| Log::Missing(format!("/{KERNEL_LOG}: {e}")), Log::Open);
        }
        let Log::Open(log) = &mut self.log else { return Vec::new() };
        let now_us = monotonic_us();
        let mut events = Vec::new();
        let mut record = [0; RECORD_BYTES_MAX];
        for _ in 0..RECORDS_MAX {
            match log.read(&mut record) {
                Ok(0) => break,
                Ok(bytes) => events.extend(event(&String::from_utf8_lossy(&record[..bytes]), now_us)),
                // The kernel overwrote older records (EPIPE): continue with the oldest one that exists.
                Err(error) if [ErrorKind::BrokenPipe, ErrorKind::Interrupted].contains(&error.kind()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => {
                    self.log = Log::Missing(format!("/{KERNEL_LOG}: {error}"));
                    break;
                }
            }
        }
        events
    }
}

/// Reads these GPUs through their drivers. May take seconds, or hang with a driver.
pub fn read_gpus(files: &Files, simulated: &[SimulatedGpu], on_bus: &BTreeSet<String>) -> GpuReads {
    let pci = Pci::look(files);
    let mut reads = GpuReads::default();
    let mine = |vendor| pci.addresses_of(vendor).into_iter().filter(|address| on_bus.contains(address)).collect::<Vec<_>>();
    let nvidia = mine(GpuVendor::Nvidia);
    if !nvidia.is_empty() {
        nvidia::read(&nvidia, &mut reads);
    }
    for address in mine(GpuVendor::Amd) {
        let reading = amd::read(files, &address);
        reads.gpus.insert(address, GpuRead::Reading(Box::new(reading)));
    }
    if reads.gpus.len() > nvidia.len() {
        reads.unsupported.push("links and throttling of AMD's GPUs are not checked: sysfs does not report them".to_owned());
    }
    simulated::read(simulated, on_bus, &mut reads);
    reads
}

fn monotonic_us() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).map(|t| t.tv_sec() * 1_000_000 + t.tv_nsec() / 1000);
    time.ok().and_then(|us| u64::try_from(us).ok()).unwrap_or(0)
}

/// One record (the kernel's Documentation/ABI/testing/dev-kmsg): `level,number,microseconds,flags;text`.
fn event(record: &str, now_us: u64) -> Option<(String, GpuEvent)> {
    let (prefix, text) = record.split_once(';')?;
    let at_us: u64 = prefix.split(',').nth(2)?.parse().ok()?;
    let text = text.lines().next()?;
    if let Some(rest) = text.strip_prefix("NVRM: Xid (PCI:") {
        let (address, rest) = rest.split_once("): ")?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number = rest[..digits].parse().ok()?;
        // The driver omits the function, which is 0 for a GPU.
        let address = if address.contains('.') { address.to_lowercase() } else { format!("{}.0", address.to_lowercase()) };
        return Some((address, GpuEvent::Xid { number, ago_ms: now_us.saturating_sub(at_us) / 1000 }));
    }
    // `pci 0000:3b:00.0: [10de:2330] type 00 class 0x030200 …`
    let (address, rest) = text.strip_prefix("pci ")?.split_once(": [")?;
    (rest.starts_with("10de:") && rest.contains(" class 0x03")).then(|| (address.to_owned(), GpuEvent::Found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_and_new_devices_are_read_from_the_kernels_log() {
        let logged = |text: &str| event(&format!("4,1234,5000000,-;{text}\n SUBSYSTEM=pci\n"), 7_000_000);
        let xid = |number| Some(("0000:3b:00.0".to_owned(), GpuEvent::Xid { number, ago_ms: 2000 }));
        assert_eq!(logged("NVRM: Xid (PCI:0000:3B:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."), xid(79));
        assert_eq!(logged("NVRM: Xid (PCI:0000:3b:00.0): 119"), xid(119));
        let found = Some(("0000:3b:00.0".to_owned(), GpuEvent::Found));
        assert_eq!(logged("pci 0000:3b:00.0: [10de:2330] type 00 class 0x030200 PCIe Endpoint"), found);
        for other in [
            "NVRM: Xid (PCI:0000:3b:00)",
            "NVRM: Xid (PCI:x): y",
            "pci 0000:3b:00.0: BAR 1",
            "pci 0000:00:1f.0: [8086:1] type 00 class 0x060100",
            "",
        ] {
            assert_eq!(logged(other), None, "{other}");
        }
        assert_eq!(event("no record", 0), None);
    }

    #[test]
    fn amdgpus_files_give_memory_errors_and_temperatures() {
        let root = std::env::temp_dir().join(format!("lattice-amdgpu-{}", std::process::id()));
        let device = root.join("sys/bus/pci/devices/0000:c1:00.0");
        let files = [
            ("class", "0x038000"),
            ("vendor", "0x1002"),
            ("ras/umc_err_count", "ue: 2\nce: 7\n"),
            ("ras/gfx_err_count", "ue: 1\nce: 0\n"),
            ("ras/features", "feature mask: 0xffff"),
            ("hwmon/hwmon5/temp1_input", "61000"),
            ("hwmon/hwmon5/temp1_crit", "100000"),
            ("hwmon/hwmon5/temp1_emergency", "105000"),
        ];
        for (file, text) in files {
            std::fs::create_dir_all(device.join(file).parent().unwrap()).unwrap();
            std::fs::write(device.join(file), text).unwrap();
        }
        let reads = read_gpus(&Files::below(&root), &[], &BTreeSet::from(["0000:c1:00.0".to_owned()]));
        let Some(GpuRead::Reading(reading)) = reads.gpus.get("0000:c1:00.0") else { panic!("{reads:?}") };
        assert_eq!((reading.ecc_uncorrected, reading.temperature_c), (Some(3), Some(61)));
        assert_eq!((reading.slowdown_c, reading.shutdown_c, reading.nvlinks_up), (Some(100), Some(105), None));
        assert!(reads.unsupported.iter().any(|what| what.contains("links")), "{reads:?}");
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_log_is_read_once_and_one_that_cannot_be_read_is_reported() {
        let root = std::env::temp_dir().join(format!("lattice-kmsg-{}", std::process::id()));
        let device = root.join("sys/bus/pci/devices/0000:3b:00.0");
        std::fs::create_dir_all(&device).unwrap();
        for (file, text) in [("class", "0x030200"), ("vendor", "0x10de")] {
            std::fs::write(device.join(file), text).unwrap();
        }
        let mut watch = GpuWatch::new(Files::below(&root), &[]);
        assert_eq!(watch.look().on_bus, BTreeSet::from(["0000:3b:00.0".to_owned()]));
        assert!(watch.log_missing().is_some_and(|why| why.contains("dev/kmsg")));
        std::fs::create_dir_all(root.join("dev")).unwrap();
        std::fs::write(root.join(KERNEL_LOG), "4,1,0,-;NVRM: Xid (PCI:0000:3b:00): 48, DBE\n").unwrap();
        let mut watch = GpuWatch::new(Files::below(&root), &[]);
        assert!(matches!(watch.look().events.as_slice(), [(_, GpuEvent::Xid { number: 48, .. })]));
        assert_eq!(watch.look().events, []);
        std::fs::remove_dir_all(&root).unwrap();
    }
}
