//! NVIDIA's GPUs by NVML (`libnvidia-ml.so.1`, NVIDIA's "NVML API Reference"). A partitioned GPU (MIG) is not assigned
//! itself: each of its instances is a device.

use super::files::Files;
use super::pci::Pci;
use super::vendor::{Found, Vendor, VendorError};
use lattice_model::gpu_look::{GpuRead, GpuReading, GpuReads, GpuRecovery};
use lattice_model::topology::{DeviceFile, GpuDevice, GpuLink, GpuLinkType, GpuVendor};
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError, TemperatureSensor, TemperatureThreshold};
use nvml_wrapper::enum_wrappers::nv_link::{ErrorCounter, IntDeviceType};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::{
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, NVML_FI_DEV_REMAPPED_FAILURE, NVML_FI_DEV_REMAPPED_PENDING,
};
use nvml_wrapper::{Device, Nvml as Library};
use std::ffi::{OsStr, c_void};

/// The library's file name.
pub(super) const LIBRARY: &str = "libnvidia-ml.so.1";
/// The character devices `/dev/nvidia<minor>`.
const MAJOR: u32 = 195;
/// The largest number of NVLinks of a GPU.
const LINKS_MAX: u32 = 18;
/// NVML's field for the speed of each of a GPU's NVLinks, in megabytes a second
/// (`NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON`).
const FIELD_NVLINK_SPEED: FieldId = FieldId(90);
const MIG_ENABLED: u32 = 1;

/// Discovers NVIDIA's GPUs by NVML.
pub struct Nvml;

/// One physical GPU, with the far ends of its links.
struct Physical {
    address: String,
    instances: Vec<GpuDevice>,
    to_gpus: Vec<String>,
    to_switches: u32,
    link_gbps: f64,
}

impl Vendor for Nvml {
    fn vendor(&self) -> GpuVendor {
        GpuVendor::Nvidia
    }

    fn look(&self, files: &Files, pci: &Pci) -> Result<Found, VendorError> {
        let library = Library::builder().lib_path(OsStr::new(LIBRARY)).init()?;
        let ids = InstanceIds::load();
        let count = library.device_count()?;
        let (mut physical, mut lacking) = (Vec::new(), Vec::new());
        for index in 0..count {
            match library.device_by_index(index).and_then(|d| look_at(&d, files, pci, ids.as_ref())) {
                Ok(gpu) => physical.push(gpu),
                Err(error) => lacking.push(format!("GPU {index} of NVIDIA does not answer: {error}")),
            }
        }
        physical.sort_by(|a, b| a.address.cmp(&b.address));
        let driver = format!("driver {}", library.sys_driver_version().unwrap_or_else(|_| "of unknown version".to_owned()));
        for empty in physical.iter().filter(|p| p.instances.is_empty()) {
            lacking.push(format!("the GPU at {} is partitioned (MIG) and has no instances: make some, or disable MIG", empty.address));
        }
        let mut gpus: Vec<GpuDevice> = physical.iter().flat_map(|p| p.instances.iter().cloned()).collect();
        for (gpu, index) in gpus.iter_mut().zip(0u32..) {
            gpu.index = index;
        }
        let links = links(&gpus, &physical);
        Ok(Found { gpus, links, driver, lacking })
    }
}

fn look_at(device: &Device<'_>, files: &Files, pci: &Pci, ids: Option<&InstanceIds>) -> Result<Physical, NvmlError> {
    let address = sysfs_address(&device.pci_info()?.bus_id);
    let minor = device.minor_number()?;
    let capability = device.cuda_compute_capability().map(|c| format!("{}.{}", c.major, c.minor)).unwrap_or_default();
    let own = DeviceFile { path: format!("/dev/nvidia{minor}"), major: MAJOR, minor };
    let describe = |device: &Device<'_>, partitioned, device_files| {
        Ok::<_, NvmlError>(GpuDevice {
            index: 0,
            id: device.uuid()?,
            vendor: GpuVendor::Nvidia,
            model: device.name()?,
            memory_bytes: device.memory_info()?.total,
            compute_capability: capability.clone(),
            partitioned,
            pci_address: Some(address.clone()),
            numa_node: pci.numa_node(&address),
            device_files,
        })
    };
    let mut instances = Vec::new();
    if device.mig_mode().is_ok_and(|mode| mode.current == MIG_ENABLED) {
        for place in 0..device.mig_device_count()? {
            // Places are sparse: an empty one is not an error.
            let Ok(instance) = device.mig_device_by_index(place) else { continue };
            let capabilities = ids.and_then(|ids| ids.of(&instance)).map(|(gi, ci)| capabilities(files, minor, gi, ci)).unwrap_or_default();
            instances.push(describe(&instance, true, [vec![own.clone()], capabilities].concat())?);
        }
    } else {
        instances.push(describe(device, false, [vec![own], pci.drm(&address)].concat())?);
    }
    let (to_gpus, to_switches) = neighbours(device);
    Ok(Physical { address, instances, to_gpus, to_switches, link_gbps: link_gbps(device) })
}

/// NVML's readings of the GPUs at these addresses.
pub(super) fn read(addresses: &[String], reads: &mut GpuReads) {
    let library = match Library::builder().lib_path(OsStr::new(LIBRARY)).init() {
        Ok(library) => library,
        Err(NvmlError::LibloadingError(error)) => {
            reads.unsupported.push(format!("NVIDIA's GPUs are not checked, because NVML is not installed: {error}"));
            return;
        }
        Err(error) => {
            let silent = || GpuRead::Silent(format!("NVML cannot be initialised: {error}"));
            reads.gpus.extend(addresses.iter().map(|address| (address.clone(), silent())));
            return;
        }
    };
    for address in addresses {
        let result = library.device_by_pci_bus_id(address.as_str()).and_then(|device| reading(&device));
        let read = match result {
            Ok(reading) => GpuRead::Reading(Box::new(reading)),
            Err(NvmlError::GpuLost) => GpuRead::Lost("NVML reports that it has fallen off the bus or is no longer accessible".to_owned()),
            Err(error) => GpuRead::Silent(format!("NVML: {error}")),
        };
        reads.gpus.insert(address.clone(), read);
    }
}

/// A value that this GPU does not have is `None`; a lost GPU is an error.
fn reading(device: &Device<'_>) -> Result<GpuReading, NvmlError> {
    fn optional<T>(value: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
        match value {
            Ok(value) => Ok(Some(value)),
            Err(NvmlError::GpuLost) => Err(NvmlError::GpuLost),
            Err(_) => Ok(None),
        }
    }
    // Every present GPU answers this, except a virtual one, which has no sensor.
    let temperature = match device.temperature(TemperatureSensor::Gpu) {
        Err(NvmlError::NotSupported) => None,
        answered => Some(answered?),
    };
    let fields = [NVML_FI_DEV_REMAPPED_PENDING, NVML_FI_DEV_REMAPPED_FAILURE, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION].map(FieldId);
    let mut fields =
        optional(device.field_values_for(&fields))?.unwrap_or_default().into_iter().map(|field| match field.ok()?.value.ok()? {
            SampleValue::U32(n) => Some(u64::from(n)),
            SampleValue::U64(n) => Some(n),
            SampleValue::I64(n) => u64::try_from(n).ok(),
            SampleValue::F64(_) => None,
        });
    let [pending, failed, recovery] = std::array::from_fn(|_| fields.next().flatten());
    let retired_pending = optional(device.are_pages_pending_retired())?;
    let (mut up, mut errors) = (0, None);
    for number in 0..LINKS_MAX {
        let link = device.link_wrapper_for(number);
        if !optional(link.is_active())?.unwrap_or(false) {
            continue;
        }
        up += 1;
        for counter in [ErrorCounter::DlReplay, ErrorCounter::DlRecovery, ErrorCounter::DlCrcFlit, ErrorCounter::DlCrcData] {
            if let Some(count) = optional(link.error_counter(counter))? {
                errors = Some(errors.unwrap_or(0u64).saturating_add(count));
            }
        }
    }
    let throttled = optional(device.current_throttle_reasons())?.unwrap_or(ThrottleReasons::empty());
    let reasons = [
        (ThrottleReasons::HW_THERMAL_SLOWDOWN, "heat"),
        (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "the power supply's brake"),
        (ThrottleReasons::SW_THERMAL_SLOWDOWN, "heat, by the driver"),
    ];
    Ok(GpuReading {
        ecc_uncorrected: optional(device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile))?,
        remap_pending: pending.map(|n| n != 0).or(retired_pending),
        remap_failed: failed.map(|n| n != 0),
        nvlinks_up: Some(up),
        nvlink_errors: errors,
        temperature_c: temperature,
        slowdown_c: optional(device.temperature_threshold(TemperatureThreshold::Slowdown))?,
        shutdown_c: optional(device.temperature_threshold(TemperatureThreshold::Shutdown))?,
        throttled: reasons.iter().filter(|(bit, _)| throttled.contains(*bit)).map(|(_, what)| (*what).to_owned()).collect(),
        recovery: recovery.and_then(|action| match action {
            0 => Some(GpuRecovery::None),
            1 => Some(GpuRecovery::Reset),
            2 => Some(GpuRecovery::Reboot),
            3 => Some(GpuRecovery::DrainP2p),
            4 => Some(GpuRecovery::DrainAndReset),
            _ => None,
        }),
    })
}

/// The far ends of its active NVLinks: addresses of GPUs, and how many lead into switches.
fn neighbours(device: &Device<'_>) -> (Vec<String>, u32) {
    let (mut gpus, mut switches) = (Vec::new(), 0);
    for number in 0..LINKS_MAX {
        let link = device.link_wrapper_for(number);
        if !link.is_active().unwrap_or(false) {
            continue;
        }
        if matches!(link.remote_device_type(number), Ok(IntDeviceType::Switch)) {
            switches += 1;
        } else if let Ok(remote) = link.remote_pci_info() {
            gpus.push(sysfs_address(&remote.bus_id));
        }
    }
    (gpus, switches)
}

/// The speed of one of its NVLinks, in gigabytes a second.
fn link_gbps(device: &Device<'_>) -> f64 {
    let samples = device.field_values_for(&[FIELD_NVLINK_SPEED]).unwrap_or_default();
    let value = samples.into_iter().next().and_then(Result::ok).and_then(|s| s.value.ok());
    let megabytes = match value {
        Some(SampleValue::U32(n)) => n,
        Some(SampleValue::U64(n)) => u32::try_from(n).unwrap_or(0),
        Some(SampleValue::F64(_) | SampleValue::I64(_)) | None => 0,
    };
    f64::from(megabytes) / 1000.0
}

/// The links between each two whole GPUs that NVLink joins, directly or through switches.
fn links(gpus: &[GpuDevice], physical: &[Physical]) -> Vec<GpuLink> {
    let of = |gpu: &GpuDevice| physical.iter().find(|p| !gpu.partitioned && Some(&p.address) == gpu.pci_address.as_ref());
    let mut out = Vec::new();
    for (at, a) in gpus.iter().enumerate() {
        for b in &gpus[at + 1..] {
            let (Some(from), Some(to)) = (of(a), of(b)) else { continue };
            let direct = from.to_gpus.iter().filter(|address| **address == to.address).count();
            let through = from.to_switches.min(to.to_switches);
            let (link_type, count) = match (u32::try_from(direct).unwrap_or(0), through) {
                (0, 0) => continue,
                (0, through) => (GpuLinkType::NvSwitch, through),
                (direct, _) => (GpuLinkType::NvLink, direct),
            };
            let bandwidth_gbps = f64::from(count) * from.link_gbps.min(to.link_gbps);
            out.push(GpuLink { gpu_a: a.index, gpu_b: b.index, link_type, bandwidth_gbps });
        }
    }
    out
}

/// The device files that open one instance of a partitioned GPU: `/proc/driver/nvidia/capabilities` has their minors.
fn capabilities(files: &Files, gpu_minor: u32, gi: u32, ci: u32) -> Vec<DeviceFile> {
    let devices = files.text("proc/devices").unwrap_or_default();
    let major = devices.lines().find_map(|l| l.trim().strip_suffix(" nvidia-caps")?.trim().parse().ok());
    let Some(major) = major else { return Vec::new() };
    let dir = format!("proc/driver/nvidia/capabilities/gpu{gpu_minor}/mig/gi{gi}");
    let minors = [format!("{dir}/access"), format!("{dir}/ci{ci}/access")].into_iter().filter_map(|path| {
        let text = files.text(&path)?;
        text.lines().find_map(|l| l.strip_prefix("DeviceFileMinor:")?.trim().parse::<u32>().ok())
    });
    minors.map(|minor| DeviceFile { path: format!("/dev/nvidia-caps/nvidia-cap{minor}"), major, minor }).collect()
}

/// NVML writes `00000000:3B:00.0`, sysfs `0000:3b:00.0`.
fn sysfs_address(bus_id: &str) -> String {
    let lower = bus_id.to_lowercase();
    match lower.split_once(':') {
        Some((domain, rest)) if domain.len() == 8 => format!("{}:{rest}", &domain[4..]),
        _ => lower,
    }
}

/// Two NVML functions that its wrapper lacks.
struct InstanceIds {
    library: libloading::Library,
}

type AskId = unsafe extern "C" fn(*mut c_void, *mut u32) -> i32;

impl InstanceIds {
    fn load() -> Option<Self> {
        // SAFETY: loaded and initialised already, by the wrapper.
        unsafe { libloading::Library::new(LIBRARY) }.ok().map(|library| Self { library })
    }

    /// The numbers of an instance and of its compute instance.
    fn of(&self, instance: &Device<'_>) -> Option<(u32, u32)> {
        let ask = |name: &[u8]| {
            // SAFETY: the signature is NVML's: a device, a pointer to an unsigned number, a status.
            let function = unsafe { self.library.get::<AskId>(name) }.ok()?;
            let mut id = 0;
            // SAFETY: the handle is of a device that lives as long as `instance`; `id` is written before it returns.
            let status = unsafe { function(instance.handle().cast(), &raw mut id) };
            (status == 0).then_some(id)
        };
        Some((ask(b"nvmlDeviceGetGpuInstanceId\0")?, ask(b"nvmlDeviceGetComputeInstanceId\0")?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn physical(address: &str, to_gpus: &[&str], to_switches: u32) -> Physical {
        let to_gpus = to_gpus.iter().map(|a| (*a).to_owned()).collect();
        Physical { address: address.to_owned(), instances: vec![], to_gpus, to_switches, link_gbps: 25.0 }
    }

    fn gpu(index: u32, address: &str, partitioned: bool) -> GpuDevice {
        GpuDevice {
            index,
            id: format!("GPU-{index}"),
            vendor: GpuVendor::Nvidia,
            model: String::new(),
            memory_bytes: 0,
            compute_capability: String::new(),
            partitioned,
            pci_address: Some(address.to_owned()),
            numa_node: None,
            device_files: vec![],
        }
    }

    #[test]
    fn links_add_up_and_a_switch_joins_all() {
        let all = [physical("a", &["b", "b"], 0), physical("b", &["a", "a"], 0), physical("c", &[], 12), physical("d", &[], 6)];
        let gpus = [gpu(0, "a", false), gpu(1, "b", false), gpu(2, "c", false), gpu(3, "d", false)];
        let found: Vec<_> = links(&gpus, &all).iter().map(|l| (l.gpu_a, l.gpu_b, l.link_type, l.bandwidth_gbps)).collect();
        assert_eq!(found, [(0, 1, GpuLinkType::NvLink, 50.0), (2, 3, GpuLinkType::NvSwitch, 150.0)]);
        assert_eq!(links(&[gpu(0, "a", true), gpu(1, "b", false)], &all), []);
    }

    #[test]
    fn addresses_are_written_as_sysfs_does() {
        assert_eq!(sysfs_address("00000000:3B:00.0"), "0000:3b:00.0");
        assert_eq!(sysfs_address("0000:3B:00.0"), "0000:3b:00.0");
        assert_eq!(sysfs_address("x"), "x");
    }
}
