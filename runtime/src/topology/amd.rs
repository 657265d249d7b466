//! AMD's GPUs by ROCm SMI (`librocm_smi64.so`, AMD's `rocm_smi.h`). The few needed functions are looked up if the
//! library is installed and a GPU of AMD is on the bus: with a linked library the agent would not start without ROCm
//! (docs/dependencies.md).

use super::files::Files;
use super::pci::Pci;
use super::vendor::{Found, Vendor, VendorError};
use lattice_model::gpu_look::GpuReading;
use lattice_model::topology::{GpuDevice, GpuLink, GpuLinkType, GpuVendor};
use libloading::{Library, Symbol};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};

const LIBRARIES: [&str; 4] = ["librocm_smi64.so.7", "librocm_smi64.so.6", "librocm_smi64.so", "/opt/rocm/lib/librocm_smi64.so"];
const NAME_BYTES: usize = 256;
/// `RSMI_MEM_TYPE_VRAM`.
const MEMORY_VRAM: u32 = 0;
/// `RSMI_IOLINK_TYPE_XGMI`.
const LINK_XGMI: u32 = 2;

/// Reads the machine's AMD GPUs and their links.
pub struct RocmSmi;

impl Vendor for RocmSmi {
    fn vendor(&self) -> GpuVendor {
        GpuVendor::Amd
    }

    fn look(&self, files: &Files, pci: &Pci) -> Result<Found, VendorError> {
        // Where there is no such GPU, the library writes complaints of its own to stderr.
        if pci.gpus_of(GpuVendor::Amd) == 0 {
            return Ok(Found::default());
        }
        let rocm = Rocm::load()?;
        let count = rocm.count()?;
        let mut devices: Vec<(u32, GpuDevice)> = Vec::new();
        let mut lacking = Vec::new();
        for number in 0..count {
            match rocm.device(number, files, pci) {
                Some(device) => devices.push((number, device)),
                None => lacking.push(format!("GPU {number} of AMD does not report its address, name, memory and unique id")),
            }
        }
        devices.sort_by(|a, b| a.1.pci_address.cmp(&b.1.pci_address));
        for ((_, device), index) in devices.iter_mut().zip(0u32..) {
            device.index = index;
        }
        let mut links = Vec::new();
        for (at, (from, a)) in devices.iter().enumerate() {
            for (to, b) in &devices[at + 1..] {
                links.extend(rocm.xgmi_gbps(*from, *to).map(|bandwidth_gbps| GpuLink {
                    gpu_a: a.index,
                    gpu_b: b.index,
                    link_type: GpuLinkType::Xgmi,
                    bandwidth_gbps,
                }));
            }
        }
        let version = files.text("sys/module/amdgpu/version").unwrap_or_else(|| "of the kernel".to_owned());
        let gpus = devices.into_iter().map(|(_, device)| device).collect();
        Ok(Found { gpus, links, driver: format!("driver {version}"), lacking })
    }
}

/// One GPU's readings from amdgpu's files (the kernel's Documentation/gpu/amdgpu: "RAS Error Count sysfs Interface",
/// "hwmon Interfaces").
pub(super) fn read(files: &Files, address: &str) -> GpuReading {
    let dir = format!("sys/bus/pci/devices/{address}");
    let counts = files.names(&format!("{dir}/ras")).into_iter().filter(|name| name.ends_with("_err_count"));
    let uncorrected = counts.filter_map(|name| {
        let text = files.text(&format!("{dir}/ras/{name}"))?;
        text.lines().find_map(|line| line.strip_prefix("ue:")?.trim().parse::<u64>().ok())
    });
    let uncorrected: Vec<u64> = uncorrected.collect();
    let sensors = files.names(&format!("{dir}/hwmon")).into_iter().next().unwrap_or_default();
    // In thousandths of a degree.
    let degrees = |name: &str| files.number::<u32>(&format!("{dir}/hwmon/{sensors}/{name}")).map(|thousandths| thousandths / 1000);
    GpuReading {
        ecc_uncorrected: (!uncorrected.is_empty()).then(|| uncorrected.iter().fold(0u64, |all, n| all.saturating_add(*n))),
        temperature_c: degrees("temp1_input"),
        slowdown_c: degrees("temp1_crit"),
        shutdown_c: degrees("temp1_emergency"),
        ..GpuReading::default()
    }
}

/// The library, initialised by [`Rocm::load`] and shut down when dropped.
pub(super) struct Rocm(Library);

impl Rocm {
    pub(super) fn load() -> Result<Self, VendorError> {
        // SAFETY: the vendor's library; its constructors run as in any program that links to it.
        let open = |name: &str| unsafe { Library::new(name) };
        let [first, others @ ..] = LIBRARIES;
        let library = others.iter().fold(open(first), |found, name| found.or_else(|_| open(name)));
        let rocm = Self(library.map_err(VendorError::LoadRocm)?);
        // SAFETY: takes flags, and none is given. The library counts its users: each handle calls this once.
        let status = unsafe { rocm.find::<unsafe extern "C" fn(u64) -> u32>(b"rsmi_init\0")?(0) };
        if status == 0 { Ok(rocm) } else { Err(VendorError::BeginRocm { status }) }
    }

    fn find<T>(&self, name: &[u8]) -> Result<Symbol<'_, T>, VendorError> {
        // SAFETY: each caller names the signature that rocm_smi.h has for the name.
        unsafe { self.0.get(name) }.map_err(VendorError::FindRocmFunction)
    }

    fn count(&self) -> Result<u32, VendorError> {
        let ask: Symbol<'_, unsafe extern "C" fn(*mut u32) -> u32> = self.find(b"rsmi_num_monitor_devices\0")?;
        let mut count = 0;
        // SAFETY: writes one number.
        match unsafe { ask(&raw mut count) } {
            0 => Ok(count),
            status => Err(VendorError::CountRocm { status }),
        }
    }

    /// A 64-bit value of one device.
    fn figure(&self, name: &[u8], number: u32) -> Option<u64> {
        let ask: Symbol<'_, unsafe extern "C" fn(u32, *mut u64) -> u32> = self.find(name).ok()?;
        let mut value = 0;
        // SAFETY: writes one number.
        (unsafe { ask(number, &raw mut value) } == 0).then_some(value)
    }

    /// The library's device numbers, by bus address.
    pub(super) fn numbers(&self) -> BTreeMap<String, u32> {
        let all = 0..self.count().unwrap_or(0);
        all.filter_map(|number| Some((address(self.figure(b"rsmi_dev_pci_id_get\0", number)?), number))).collect()
    }

    /// The energy of a device since its driver was loaded: a count, and the millionths of a joule of each unit.
    pub(super) fn energy_joules(&self, number: u32) -> Option<f64> {
        let ask: Symbol<'_, unsafe extern "C" fn(u32, *mut u64, *mut f32, *mut u64) -> u32> =
            self.find(b"rsmi_dev_energy_count_get\0").ok()?;
        let (mut count, mut microjoules_each, mut at_ns) = (0, 0.0, 0);
        // SAFETY: writes three numbers.
        let known = unsafe { ask(number, &raw mut count, &raw mut microjoules_each, &raw mut at_ns) } == 0;
        known.then(|| count as f64 * f64::from(microjoules_each) / 1e6)
    }

    fn device(&self, number: u32, files: &Files, pci: &Pci) -> Option<GpuDevice> {
        let address = address(self.figure(b"rsmi_dev_pci_id_get\0", number)?);
        let memory: Symbol<'_, unsafe extern "C" fn(u32, u32, *mut u64) -> u32> = self.find(b"rsmi_dev_memory_total_get\0").ok()?;
        let mut memory_bytes = 0;
        // SAFETY: writes one number.
        if unsafe { memory(number, MEMORY_VRAM, &raw mut memory_bytes) } != 0 {
            return None;
        }
        let name: Symbol<'_, unsafe extern "C" fn(u32, *mut c_char, usize) -> u32> = self.find(b"rsmi_dev_name_get\0").ok()?;
        let mut text = [0 as c_char; NAME_BYTES];
        // SAFETY: writes at most the given length less one; the last byte stays zero.
        if unsafe { name(number, text.as_mut_ptr(), NAME_BYTES - 1) } != 0 {
            return None;
        }
        // SAFETY: ends with a zero within the array.
        let model = unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned();
        let device_files = pci.drm(&address);
        let render = device_files.iter().find(|f| f.path.contains("renderD")).map(|f| f.minor);
        Some(GpuDevice {
            index: 0,
            // In the form of ROCR_VISIBLE_DEVICES. No other name of a GPU is the same in every process.
            id: format!("GPU-{:016x}", self.figure(b"rsmi_dev_unique_id_get\0", number)?),
            vendor: GpuVendor::Amd,
            model,
            memory_bytes,
            compute_capability: render.and_then(|minor| architecture(files, minor)).unwrap_or_default(),
            partitioned: false,
            numa_node: pci.numa_node(&address),
            pci_address: Some(address),
            device_files,
        })
    }

    /// The bandwidth between two devices that xGMI joins; 0 if it joins them and the library has no value.
    fn xgmi_gbps(&self, from: u32, to: u32) -> Option<f64> {
        let kind: Symbol<'_, unsafe extern "C" fn(u32, u32, *mut u64, *mut u32) -> u32> = self.find(b"rsmi_topo_get_link_type\0").ok()?;
        let (mut hops, mut link) = (0, 0);
        // SAFETY: writes two numbers.
        if unsafe { kind(from, to, &raw mut hops, &raw mut link) } != 0 || link != LINK_XGMI {
            return None;
        }
        let speed: Symbol<'_, unsafe extern "C" fn(u32, u32, *mut u64, *mut u64) -> u32> =
            self.find(b"rsmi_minmax_bandwidth_get\0").ok()?;
        let (mut least, mut most) = (0, 0);
        // SAFETY: writes two numbers.
        let known = unsafe { speed(from, to, &raw mut least, &raw mut most) } == 0;
        Some(if known { f64::from(u32::try_from(most).unwrap_or(u32::MAX)) / 1000.0 } else { 0.0 })
    }
}

impl Drop for Rocm {
    fn drop(&mut self) {
        if let Ok(end) = self.find::<unsafe extern "C" fn() -> u32>(b"rsmi_shut_down\0") {
            // SAFETY: takes nothing; nothing of the library is used after it.
            unsafe { end() };
        }
    }
}

/// `rsmi_dev_pci_id_get`: the domain in the upper half, then bus, device and function.
fn address(bdf: u64) -> String {
    format!("{:04x}:{:02x}:{:02x}.{}", bdf >> 32, bdf >> 8 & 0xff, bdf >> 3 & 0x1f, bdf & 7)
}

/// `gfx942` from the kernel's data on the device with this render minor (`gfx_target_version 90402`).
fn architecture(files: &Files, render_minor: u32) -> Option<String> {
    let dir = "sys/class/kfd/kfd/topology/nodes";
    files.names(dir).into_iter().find_map(|node| {
        let text = files.text(&format!("{dir}/{node}/properties"))?;
        let value = |name: &str| text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')?.trim().parse::<u32>().ok());
        let version = value("gfx_target_version").filter(|v| *v > 0)?;
        (value("drm_render_minor") == Some(render_minor))
            .then(|| format!("gfx{}{:x}{:x}", version / 10_000, version / 100 % 100, version % 100))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn without_a_gpu_of_amd_the_library_is_not_loaded() {
        let files = Files::below(Path::new("/no-machine"));
        // Where the library is not installed, an attempt to load it is an error.
        assert_eq!(RocmSmi.look(&files, &Pci::look(&files)).unwrap(), Found::default());
    }

    #[test]
    fn addresses_are_written_as_sysfs_does() {
        assert_eq!(address(1 << 32 | 0xc1 << 8), "0001:c1:00.0");
        assert_eq!(address(0xc1 << 8 | 2 << 3 | 1), "0000:c1:02.1");
    }
}
