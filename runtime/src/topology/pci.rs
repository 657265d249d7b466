//! Nearness of devices on the PCI bus, from `/sys/bus/pci/devices` (the kernel's
//! Documentation/ABI/testing/sysfs-bus-pci).

use super::files::Files;
use lattice_model::topology::{DeviceFile, GpuVendor};
use std::collections::BTreeMap;
use std::path::{Component, Path};

/// The directory with every device of the bus, by address.
pub const DEVICES: &str = "sys/bus/pci/devices";
const VENDOR_NVIDIA: &str = "0x10de";
const VENDOR_AMD: &str = "0x1002";

/// The devices of the bus that are used here.
pub struct Pci {
    devices: BTreeMap<String, Device>,
}

struct Device {
    class: String,
    vendor: String,
    numa_node: Option<u32>,
    bandwidth_gbps: Option<f64>,
    /// The addresses of the bridges above it, from its root complex down.
    path: Vec<String>,
    /// Its network interfaces.
    interfaces: Vec<String>,
    drm: Vec<DeviceFile>,
}

impl Pci {
    /// Reads the bus.
    pub fn look(files: &Files) -> Self {
        let dir = DEVICES;
        let devices = files.names(dir).into_iter().map(|address| {
            let at = format!("{dir}/{address}");
            let text = |name: &str| files.text(&format!("{at}/{name}")).unwrap_or_default();
            let link = std::fs::read_link(files.path(&at)).unwrap_or_default();
            let device = Device {
                class: text("class"),
                vendor: text("vendor"),
                numa_node: files.number::<i64>(&format!("{at}/numa_node")).and_then(|n| u32::try_from(n).ok()),
                bandwidth_gbps: bandwidth_gbps(&text("max_link_speed"), &text("max_link_width")),
                path: above(&link),
                interfaces: [files.names(&format!("{at}/net")), files.names(&format!("{at}/cxi"))].concat(),
                drm: drm(files, &at),
            };
            (address, device)
        });
        Self { devices: devices.collect() }
    }

    /// How many GPUs of this vendor are on the bus.
    pub fn gpus_of(&self, vendor: GpuVendor) -> usize {
        self.addresses_of(vendor).len()
    }

    /// The addresses of this vendor's GPUs.
    pub fn addresses_of(&self, vendor: GpuVendor) -> Vec<String> {
        let vendor = match vendor {
            GpuVendor::Nvidia => VENDOR_NVIDIA,
            GpuVendor::Amd => VENDOR_AMD,
            GpuVendor::Simulated => return Vec::new(),
        };
        // Display controllers, and processing accelerators.
        let is_gpu = |class: &str| class.starts_with("0x03") || class.starts_with("0x12");
        let of_vendor = self.devices.iter().filter(|(_, d)| d.vendor == vendor && is_gpu(&d.class));
        of_vendor.map(|(address, _)| address.clone()).collect()
    }

    /// The NUMA node of the device at this address, if it has one.
    pub fn numa_node(&self, address: &str) -> Option<u32> {
        self.devices.get(address)?.numa_node
    }

    /// The bandwidth of the device's connection, in gigabytes a second and one direction.
    pub fn bandwidth_gbps(&self, address: &str) -> Option<f64> {
        self.devices.get(address)?.bandwidth_gbps
    }

    /// The graphics subsystem's device files of the device.
    pub fn drm(&self, address: &str) -> Vec<DeviceFile> {
        self.devices.get(address).map(|d| d.drm.clone()).unwrap_or_default()
    }

    /// The network interface that shares most bridges with the device; without a shared bridge, one on its NUMA node;
    /// of equal ones the first by name.
    pub fn nearest_interface(&self, address: &str) -> Option<String> {
        let own = self.devices.get(address)?;
        let mut best: Option<((usize, bool), &str)> = None;
        for other in self.devices.values().filter(|d| d.class.starts_with("0x02")) {
            let Some(name) = other.interfaces.first() else { continue };
            let shared = own.path.iter().zip(&other.path).take_while(|(a, b)| a == b).count();
            let same_numa = own.numa_node.is_some() && own.numa_node == other.numa_node;
            let near = (shared, same_numa);
            let better = best.is_none_or(|(most, known)| near > most || (near == most && name.as_str() < known));
            if near > (0, false) && better {
                best = Some((near, name));
            }
        }
        best.map(|(_, name)| name.to_owned())
    }
}

/// `32.0 GT/s PCIe` on 16 lanes. Generations 1 and 2 send 8 bits in 10, later ones 128 in 130.
fn bandwidth_gbps(speed: &str, width: &str) -> Option<f64> {
    let transfers: f64 = speed.split_whitespace().next()?.parse().ok()?;
    let lanes: u32 = width.trim().parse().ok()?;
    let coding = if transfers <= 5.0 { 0.8 } else { 128.0 / 130.0 };
    (lanes > 0 && lanes <= 64).then(|| (transfers * coding * f64::from(lanes) / 8.0 * 10.0).round() / 10.0)
}

/// From `../../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0`: all but the device itself.
fn above(link: &Path) -> Vec<String> {
    let names = link.components().filter_map(|c| match c {
        Component::Normal(name) => name.to_str(),
        _ => None,
    });
    let mut path: Vec<String> = names.skip_while(|n| !n.starts_with("pci")).map(str::to_owned).collect();
    path.pop();
    path
}

fn drm(files: &Files, device: &str) -> Vec<DeviceFile> {
    let named = files.names(&format!("{device}/drm"));
    let numbers = |name: &String| {
        let text = files.text(&format!("{device}/drm/{name}/dev"))?;
        let (major, minor) = text.split_once(':')?;
        Some(DeviceFile { path: format!("/dev/dri/{name}"), major: major.parse().ok()?, minor: minor.parse().ok()? })
    };
    named.iter().filter_map(numbers).collect()
}
