//! Simulated GPUs: character devices of a major number that is kept for experiments and that no driver here has. Opening
//! one fails with ENXIO where that is allowed, and with EPERM where a filter stands before it. The file is what the bus shows, the
//! file of readings beside it what driver and kernel log say: agents look at both as at a vendor's.

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

/// At most so many on a node.
pub const NODE_MAX: u32 = 16;
/// Numbers for local and experimental use (the kernel's Documentation/admin-guide/devices.txt).
const MAJORS: std::ops::RangeInclusive<u64> = 240..=254;

/// Links of each to others, all of which are up at first.
const NVLINKS: u32 = 4;

/// Makes a node's devices in `dir`; `node` is `n<number>`. Every user may open them, as he may those of real GPUs.
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
        // Whatever the umask is.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666))?;
        says(&path, &new())?;
        devices.push(path);
    }
    Ok(devices)
}

/// What can happen to one of them.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// It is gone from the bus.
    Remove,
    /// It is there again, as new.
    Add,
    /// Its driver reports this error.
    Xid(u32),
    /// It has had so many memory errors that could not be corrected.
    Ecc(u64),
    /// So many of its four links to others are up.
    Nvlink(u32),
    /// Its clocks are held down for these reasons; none: they are not.
    Throttle(Vec<String>),
    /// It is so hot, of 87 °C at which it slows down and 92 °C at which it switches itself off.
    Hot(u32),
    /// It is so busy.
    Load(Box<GpuLoad>),
    /// Whoever asks how busy it is waits for ever.
    Hang,
}

/// Temperatures of the simulated GPUs' own.
const SLOWDOWN_C: u32 = 87;
const SHUTDOWN_C: u32 = 92;

/// Lets it happen to GPU `index` of a node whose folder is `dir`.
pub fn fault(dir: &Path, index: u32, fault: &Fault) -> Result<()> {
    let device = dir.join(format!("gpu{index}"));
    // As `mknod` cannot be asked for the same device again without its numbers, the file is kept aside.
    let aside = dir.join(format!("removed-gpu{index}"));
    if !device.exists() && !aside.exists() {
        bail!("{} has no simulated GPU {index}: make the cluster with `up --gpus N`", dir.display());
    }
    let file = readings_file(&device);
    match fault {
        Fault::Remove => fs::rename(&device, &aside).context("it is gone already"),
        Fault::Add => {
            if !aside.exists() {
                bail!("it is there");
            }
            let load = load_file(&device);
            if load.exists() {
                fs::remove_file(&load)?;
            }
            says(&device, &new())?;
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
            // Opening it for reading waits for somebody who writes.
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
            says(&device, &now)
        }
    }
}

/// Of one with which nothing is the matter.
fn new() -> SimulatedReadings {
    let reading = GpuReading { nvlinks_up: Some(NVLINKS), ..GpuReading::default() };
    SimulatedReadings { xids: Vec::new(), reading }
}

/// What driver and kernel log say of a device from now on.
fn says(device: &Path, now: &SimulatedReadings) -> Result<()> {
    let file = readings_file(device);
    let part = file.with_extension("part");
    fs::write(&part, serde_json::to_vec(now)?)?;
    Ok(fs::rename(&part, &file)?)
}

/// What the agent's configuration says of them: two islands, each of one half.
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
        None => bail!("every experimental device number (240 to 254) is taken on this machine"),
    }
}
