//! Simulated GPUs: character devices with an experimental major number that no driver here uses. Opening one fails with
//! ENXIO if it is allowed, and with EPERM if a filter denies it. The device file simulates the bus, and the file of
//! readings beside it simulates driver and kernel log: agents read both like those of a vendor.

use anyhow::{Context, Result, bail};
use lattice_model::gpu_load::GpuLoad;
use lattice_model::gpu_look::GpuReading;
use lattice_runtime::topology::{SimulatedReadings, load_file, readings_file};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::mkfifo;
use std::fmt::Write;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The largest number of GPUs on a node.
pub const NODE_MAX: u32 = 16;
/// Numbers for local and experimental use (the kernel's Documentation/admin-guide/devices.txt).
const MAJORS: std::ops::RangeInclusive<u64> = 240..=254;

/// Links of each GPU to others; all are up at first.
const NVLINKS: u32 = 4;

/// Makes a node's devices in `dir`; `node` is `n<number>`. Every user may open them, as with real GPUs.
pub fn make(dir: &Path, node: &str, count: u32) -> Result<Vec<PathBuf>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    let major = free_major()?;
    let number: u64 = node.trim_start_matches('n').parse().unwrap_or(0);
    let mut devices = Vec::new();
    for i in 0..count {
        let path = dir.join(format!("gpu{i}"));
        let device = makedev(major, number * u64::from(NODE_MAX) + u64::from(i));
        mknod(&path, SFlag::S_IFCHR, Mode::from_bits_truncate(0o666), device)
            .with_context(|| format!("cannot make the device {} (only root can)", path.display()))?;
        // `mknod` applies the umask.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
        write_readings(&path, &new())?;
        devices.push(path);
    }
    Ok(devices)
}

/// Faults of a simulated GPU.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// It is removed from the bus.
    Remove,
    /// It is on the bus again, as a new device.
    Add,
    /// Its driver reports this error.
    Xid(u32),
    /// It has had this many uncorrectable memory errors.
    Ecc(u64),
    /// This many of its four links to others are up.
    Nvlink(u32),
    /// Its clocks are reduced for these reasons; empty: they are not reduced.
    Throttle(Vec<String>),
    /// It has this many degrees Celsius; it slows down at 87 and switches itself off at 92.
    Hot(u32),
    /// It has this load.
    Load(Box<GpuLoad>),
    /// Reading its load never returns.
    Hang,
}

/// Temperature limits of the simulated GPUs.
const SLOWDOWN_C: u32 = 87;
const SHUTDOWN_C: u32 = 92;

/// Causes a fault of GPU `index` on a node with the directory `dir`.
pub fn fault(dir: &Path, index: u32, fault: &Fault) -> Result<()> {
    let device = dir.join(format!("gpu{index}"));
    // `mknod` cannot make the same device again without its numbers, so the file is renamed.
    let aside = dir.join(format!("removed-gpu{index}"));
    if !device.exists() && !aside.exists() {
        bail!("{} has no simulated GPU {index}: make the cluster with `up --gpus N`", dir.display());
    }
    let file = readings_file(&device);
    match fault {
        Fault::Remove => fs::rename(&device, &aside).context("it is already removed"),
        Fault::Add => {
            if !aside.exists() {
                bail!("it is on the bus already");
            }
            let load = load_file(&device);
            if load.exists() {
                fs::remove_file(&load)?;
            }
            write_readings(&device, &new())?;
            Ok(fs::rename(&aside, &device)?)
        }
        Fault::Load(load) => {
            let file = load_file(&device);
            let part = file.with_extension("load-part");
            fs::write(&part, serde_json::to_vec(load)?)?;
            Ok(fs::rename(&part, &file)?)
        }
        Fault::Hang => {
            let file = load_file(&device);
            if file.exists() {
                fs::remove_file(&file)?;
            }
            // Opening it for reading waits for a writer.
            mkfifo(&file, Mode::from_bits_truncate(0o600)).with_context(|| file.display().to_string())
        }
        Fault::Xid(_) | Fault::Ecc(_) | Fault::Nvlink(_) | Fault::Throttle(_) | Fault::Hot(_) => {
            let known = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
            let mut now: SimulatedReadings = serde_json::from_str(&known).with_context(|| file.display().to_string())?;
            match fault {
                Fault::Xid(number) => now.xids.push(*number),
                Fault::Ecc(errors) => now.reading.ecc_uncorrected = Some(*errors),
                Fault::Nvlink(up) => now.reading.nvlinks_up = Some((*up).min(NVLINKS)),
                Fault::Throttle(why) => now.reading.throttled.clone_from(why),
                Fault::Hot(degrees) => {
                    let reading = &mut now.reading;
                    (reading.temperature_c, reading.slowdown_c, reading.shutdown_c) = (Some(*degrees), Some(SLOWDOWN_C), Some(SHUTDOWN_C));
                }
                Fault::Remove | Fault::Add | Fault::Load(_) | Fault::Hang => {}
            }
            write_readings(&device, &now)
        }
    }
}

/// The readings of a healthy GPU.
fn new() -> SimulatedReadings {
    let reading = GpuReading { nvlinks_up: Some(NVLINKS), ..GpuReading::default() };
    SimulatedReadings { xids: Vec::new(), reading }
}

/// Sets what driver and kernel log report about a device from now on.
fn write_readings(device: &Path, now: &SimulatedReadings) -> Result<()> {
    let file = readings_file(device);
    let part = file.with_extension("part");
    fs::write(&part, serde_json::to_vec(now)?)?;
    Ok(fs::rename(&part, &file)?)
}

/// The lines about these GPUs for the agent's configuration: two islands, each with half of them.
pub fn config(devices: &[PathBuf]) -> String {
    let mut text = String::new();
    if !devices.is_empty() {
        text.push_str("simulated_gpus:\n");
    }
    for (i, device) in devices.iter().enumerate() {
        let island = i * 2 / devices.len();
        let path = serde_json::Value::from(device.to_string_lossy());
        let _ = writeln!(text, "  - {{device: {path}, memory_bytes: 1073741824, island: {island}}}");
    }
    text
}

fn free_major() -> Result<u64> {
    let devices = fs::read_to_string("/proc/devices").context("/proc/devices")?;
    let characters = devices.split("Block devices").next().unwrap_or_default();
    let taken: Vec<u64> = characters.lines().filter_map(|l| l.split_whitespace().next()?.parse().ok()).collect();
    let mut free = MAJORS.filter(|major| !taken.contains(major));
    match free.next() {
        Some(major) => Ok(major),
        None => bail!("every experimental device number (240 to 254) is in use on this machine"),
    }
}
