//! NVIDIA's GPUs by NVML (NVIDIA's "NVML API Reference").

use super::vendor::Loads;
use crate::topology::nvidia::LIBRARY;
use lattice_model::gpu_load::{GpuLoad, GpuLoads, Lacking, PROCESSES_MAX};
use lattice_model::topology::{GpuDevice, GpuVendor};
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::sys_exports::field_id::{
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, NVML_FI_DEV_PCIE_COUNT_RX_BYTES,
    NVML_FI_DEV_PCIE_COUNT_TX_BYTES,
};
use nvml_wrapper::{Device, Nvml};
use std::ffi::{OsStr, c_void};

/// The scope of a field that each link has: all links together.
const ALL_LINKS: u32 = u32::MAX;
/// The types of a field's value that are unsigned whole numbers (`nvmlValueType_t`): one of 32 bits, two of 64 bits.
const UNSIGNED_INT: u32 = 1;
const UNSIGNED_LONG: u32 = 2;
const UNSIGNED_LONG_LONG: u32 = 3;

const REASONS: [(ThrottleReasons, &str); 7] = [
    (ThrottleReasons::SW_POWER_CAP, "power_cap"),
    (ThrottleReasons::HW_SLOWDOWN, "hardware_slowdown"),
    (ThrottleReasons::HW_THERMAL_SLOWDOWN, "hardware_thermal"),
    (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "hardware_power_brake"),
    (ThrottleReasons::SW_THERMAL_SLOWDOWN, "software_thermal"),
    (ThrottleReasons::SYNC_BOOST, "sync_boost"),
    (ThrottleReasons::APPLICATIONS_CLOCKS_SETTING, "clock_setting"),
];

/// Reads the load of NVIDIA's GPUs.
#[derive(Default)]
pub(super) struct Nvidia {
    /// The library while it is held open.
    library: Option<(Nvml, Option<Fields>)>,
}

impl Loads for Nvidia {
    fn source(&self) -> &'static str {
        "nvml"
    }

    fn vendor(&self) -> GpuVendor {
        GpuVendor::Nvidia
    }

    fn read(&mut self, devices: &[&GpuDevice], loads: &mut GpuLoads) {
        if self.library.is_none() {
            match Nvml::builder().lib_path(OsStr::new(LIBRARY)).init() {
                Ok(library) => self.library = Some((library, Fields::load())),
                Err(error) => {
                    let why = format!("NVIDIA's GPUs: NVML cannot be initialised: {error}");
                    return loads.lacking.push(Lacking { vendor: GpuVendor::Nvidia, gpu: None, why });
                }
            }
        }
        let Some((library, fields)) = &self.library else { return };
        let mut is_lost = false;
        for device in devices {
            let read = if device.partitioned { instance(library, device) } else { whole(library, device, fields.as_ref()) };
            match read {
                Ok(load) => drop(loads.gpus.insert(device.id.clone(), load)),
                Err(error) => {
                    is_lost |= matches!(error, NvmlError::GpuLost | NvmlError::Uninitialized | NvmlError::Unknown);
                    loads.lacking.push(Lacking::of(device, format!("NVML: {error}")));
                }
            }
        }
        // Values of the whole GPU are stored under its own id.
        for address in partitioned(devices) {
            let parent = library.device_by_pci_bus_id(address).and_then(|device| {
                let id = device.uuid()?;
                Ok((id, figures(&device, fields.as_ref())?))
            });
            match parent {
                Ok((id, load)) => drop(loads.gpus.insert(id, load)),
                Err(error) => {
                    // The whole GPU is not a device here, so its failure does not explain a silent instance.
                    let (gpu, why) = (Some(address.to_owned()), format!("GPU at {address}: NVML: {error}"));
                    loads.lacking.push(Lacking { vendor: GpuVendor::Nvidia, gpu, why });
                }
            }
        }
        if is_lost {
            // The next reading opens the library again: a library that has lost a device does not find it again.
            self.library = None;
        }
    }

    fn rest(&mut self) {
        self.library = None;
    }
}

/// The addresses of the GPUs that these devices are instances of.
fn partitioned<'a>(devices: &[&'a GpuDevice]) -> std::collections::BTreeSet<&'a str> {
    devices.iter().filter(|device| device.partitioned).filter_map(|device| device.pci_address.as_deref()).collect()
}

fn whole(library: &Nvml, device: &GpuDevice, fields: Option<&Fields>) -> Result<GpuLoad, NvmlError> {
    // A search by id opens other devices on the way, and a device that waits for its reset must not be opened.
    let address = device.pci_address.as_deref();
    let there =
        address.and_then(|address| library.device_by_pci_bus_id(address).ok()).filter(|found| found.uuid().is_ok_and(|id| id == device.id));
    let found = match there {
        Some(found) => found,
        None => library.device_by_uuid(device.id.as_str())?,
    };
    figures(&found, fields)
}

/// For an instance NVML reports only its memory and its processes.
fn instance(library: &Nvml, device: &GpuDevice) -> Result<GpuLoad, NvmlError> {
    let device = library.device_by_uuid(device.id.as_str())?;
    let memory = device.memory_info()?;
    let (used, total) = (Some(memory.used), Some(memory.total));
    Ok(GpuLoad { memory_used_bytes: used, memory_total_bytes: total, processes: processes(&device)?, ..GpuLoad::default() })
}

/// A value that cannot be read is `None`, most often because this GPU does not have it. A lost GPU is an error.
fn optional<T>(value: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
    match value {
        Ok(value) => Ok(Some(value)),
        Err(NvmlError::GpuLost) => Err(NvmlError::GpuLost),
        Err(_) => Ok(None),
    }
}

fn processes(device: &Device<'_>) -> Result<Option<Vec<u32>>, NvmlError> {
    let all = optional(device.running_compute_processes())?;
    Ok(all.map(|all| all.into_iter().map(|process| process.pid).take(PROCESSES_MAX).collect()))
}

fn figures(device: &Device<'_>, fields: Option<&Fields>) -> Result<GpuLoad, NvmlError> {
    let memory = optional(device.memory_info())?;
    let busy = optional(device.utilization_rates())?;
    let clock = |of| optional(device.clock_info(of)).map(|megahertz| megahertz.map(|m| f64::from(m) * 1e6));
    let ecc = |kind| optional(device.total_ecc_errors(kind, EccCounter::Volatile));
    let milli = |n: u32| f64::from(n) / 1e3;
    let reasons = optional(device.current_throttle_reasons())?.map(|now| {
        let active = REASONS.iter().filter(|(bit, _)| now.contains(*bit));
        active.map(|(_, name)| (*name).to_owned()).collect::<Vec<String>>()
    });
    let field = |id, scope| fields.and_then(|fields| fields.of(device, id, scope));
    // In units of 1024 bytes.
    let links = |id| field(id, ALL_LINKS).map(|kib| kib.saturating_mul(1024));
    Ok(GpuLoad {
        utilization: busy.as_ref().map(|busy| f64::from(busy.gpu) / 100.0),
        memory_busy: busy.as_ref().map(|busy| f64::from(busy.memory) / 100.0),
        memory_used_bytes: memory.as_ref().map(|memory| memory.used),
        memory_total_bytes: memory.as_ref().map(|memory| memory.total),
        power_watts: optional(device.power_usage())?.map(milli),
        power_limit_watts: optional(device.enforced_power_limit())?.map(milli),
        energy_joules: optional(device.total_energy_consumption())?.map(|millijoules| millijoules as f64 / 1e3),
        temperature_celsius: optional(device.temperature(TemperatureSensor::Gpu))?.map(f64::from),
        sm_clock_hertz: clock(Clock::SM)?,
        memory_clock_hertz: clock(Clock::Memory)?,
        throttled: reasons,
        ecc_corrected: ecc(MemoryError::Corrected)?,
        ecc_uncorrected: ecc(MemoryError::Uncorrected)?,
        pcie_sent_bytes: field(NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 0),
        pcie_received_bytes: field(NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 0),
        nvlink_sent_bytes: links(NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX),
        nvlink_received_bytes: links(NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX),
        processes: processes(device)?,
    })
}

/// `nvmlDeviceGetFieldValues`: the wrapper cannot request a field for all links together.
struct Fields {
    library: libloading::Library,
}

/// `nvmlFieldValue_t`.
#[repr(C)]
#[derive(Default)]
struct FieldValue {
    field: u32,
    scope: u32,
    timestamp: i64,
    latency_us: i64,
    kind: u32,
    status: u32,
    /// A union of numbers of at most eight bytes.
    value: u64,
}

type AskFields = unsafe extern "C" fn(*mut c_void, i32, *mut FieldValue) -> i32;

impl Fields {
    fn load() -> Option<Self> {
        // SAFETY: loaded and initialised already, by the wrapper.
        unsafe { libloading::Library::new(LIBRARY) }.ok().map(|library| Self { library })
    }

    /// A counter of this device.
    fn of(&self, device: &Device<'_>, field: u32, scope: u32) -> Option<u64> {
        // SAFETY: the signature is NVML's: a device, how many fields, and the fields with room for their values.
        let ask = unsafe { self.library.get::<AskFields>(b"nvmlDeviceGetFieldValues\0") }.ok()?;
        let mut value = FieldValue { field, scope, ..FieldValue::default() };
        // SAFETY: the handle is of a device that lives as long as `device`; one field is asked for and there is room
        // for one.
        let status = unsafe { ask(device.handle().cast(), 1, &raw mut value) };
        if status != 0 || value.status != 0 {
            return None;
        }
        match value.kind {
            // The lower half is the value, on every machine that NVIDIA's driver runs on.
            UNSIGNED_INT => Some(value.value & u64::from(u32::MAX)),
            UNSIGNED_LONG | UNSIGNED_LONG_LONG => Some(value.value),
            _ => None,
        }
    }
}
