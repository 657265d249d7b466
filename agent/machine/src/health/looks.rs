//! The agent's own checks. Each one checks one thing, and may hang.

use crate::disk;
use crate::image_cache::ImageCache;
use lattice_agent_common::config::health::{Expected, HealthSettings};
use lattice_model::Timestamp;
use lattice_node::health::{Finding, Window};
use nix::sys::statvfs::statvfs;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Largest possible error of the machine's clock, in microseconds, that is not reported.
const CLOCK_ERROR_MAX_US: i64 = 500_000;
/// Files in a network device's `statistics` that count as errors.
const NIC_ERRORS: [&str; 5] = ["rx_errors", "tx_errors", "rx_crc_errors", "rx_dropped", "tx_dropped"];

/// The kernel's memory controllers, below `/sys` (its
/// Documentation/ABI/testing/sysfs-devices-edac).
const EDAC: &str = "devices/system/edac/mc";

/// One check.
pub(super) type Look = Box<dyn FnOnce() -> Finding + Send>;

/// What is checked on this node.
pub(super) struct Looks {
    state_dir: PathBuf,
    images: ImageCache,
    expect: Expected,
    mounts: Vec<PathBuf>,
    nics: BTreeMap<String, Window>,
    nic_errors_max: u64,
    memory: Memory,
    sys: PathBuf,
}

impl Looks {
    pub(super) fn of(settings: &HealthSettings, state_dir: &Path, images: ImageCache) -> Self {
        let window = || Window::new(settings.nic_window_seconds.saturating_mul(1000));
        Self {
            state_dir: state_dir.to_owned(),
            images,
            // The GPU task checks the number of GPUs.
            expect: Expected { gpus: 0, ..settings.expect },
            mounts: settings.mounts.clone(),
            nics: settings.nics.iter().map(|nic| (nic.clone(), window())).collect(),
            nic_errors_max: settings.nic_errors_max,
            memory: Memory {
                window_ms: settings.memory_window_seconds.saturating_mul(1000),
                controllers: BTreeMap::new(),
                errors_max: settings.memory_errors_max,
            },
            sys: "/sys".into(),
        }
    }

    /// All checks, by name.
    pub(super) fn all(&mut self, now: Timestamp) -> Vec<(String, Look)> {
        let (state_dir, images) = (self.state_dir.clone(), self.images.clone());
        let disk = move || {
            // First remove cached images that no work uses.
            images.tidy();
            disk::shortage(&state_dir).map_or(Finding::Ok, |why| Finding::Critical(why.replacen("disk: ", "", 1)))
        };
        let expect = self.expect;
        let mut all: Vec<(String, Look)> = vec![
            ("disk".to_owned(), Box::new(disk)),
            ("clock".to_owned(), Box::new(clock)),
            ("machine".to_owned(), Box::new(move || machine(expect))),
        ];
        for path in self.mounts.clone() {
            all.push((format!("mount {}", path.display()), Box::new(move || mount(&path))));
        }
        // Reading sysfs does not hang, so the counters are read here.
        for (name, window) in &mut self.nics {
            let finding = nic(&self.sys.join("class/net").join(name), window, now, self.nic_errors_max);
            all.push((format!("nic {name}"), Box::new(move || finding)));
        }
        let memory = self.memory.look(&self.sys.join(EDAC), now);
        all.push(("memory_errors".to_owned(), Box::new(move || memory)));
        for (name, is_unnamed) in [("mounts", self.mounts.is_empty()), ("nics", self.nics.is_empty())] {
            if is_unnamed {
                all.push((name.to_owned(), Box::new(move || Finding::Unsupported(format!("health.{name} names none")))));
            }
        }
        all
    }
}

/// Whether the clock is right, by the bound of its error (`maxerror`) that the NTP or PTP daemon
/// sets in the kernel.
fn clock() -> Finding {
    // SAFETY: a timex of zeros is valid; it only asks and changes nothing (adjtimex(2)).
    let mut kept: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a local timex.
    if unsafe { libc::adjtimex(&raw mut kept) } < 0 {
        return Finding::Unsupported(format!("the kernel does not report how accurate it is: {}", std::io::Error::last_os_error()));
    }
    if kept.status & libc::STA_UNSYNC != 0 {
        return Finding::Unsupported("nobody keeps the kernel's clock (no NTP or PTP daemon has set it)".to_owned());
    }
    if kept.maxerror > CLOCK_ERROR_MAX_US {
        return Finding::Warning(format!("it may be wrong by {} ms, as its NTP or PTP daemon reports", kept.maxerror / 1000));
    }
    Finding::Ok
}

/// Whether the machine has at least the processors and the memory that the site expects.
fn machine(expect: Expected) -> Finding {
    if expect == Expected::default() {
        return Finding::Unsupported("health.expect names neither cpus nor memory_bytes".to_owned());
    }
    // SAFETY: sysconf reads a number and takes no pointer.
    let cpus = u64::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(0);
    let memory = crate::hardware::total_bytes().unwrap_or(0);
    let parts = [("processors", cpus, expect.cpus), ("bytes of memory", memory, expect.memory_bytes)];
    let lacking: Vec<String> = parts
        .into_iter()
        .filter(|(_, there, wanted)| there < wanted)
        .map(|(what, there, wanted)| format!("{there} of {wanted} {what}"))
        .collect();
    if lacking.is_empty() { Finding::Ok } else { Finding::Critical(lacking.join(", ")) }
}

/// Whether a file system is mounted at `path` and answers. Hangs if it does not answer.
fn mount(path: &Path) -> Finding {
    match statvfs(path).and_then(|_| is_mount(path)) {
        Ok(true) => Finding::Ok,
        Ok(false) => Finding::Critical("nothing is mounted there".to_owned()),
        Err(error) => Finding::Critical(error.desc().to_owned()),
    }
}

fn is_mount(path: &Path) -> nix::Result<bool> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| nix::errno::Errno::EINVAL)?;
    // SAFETY: all zeros is a valid statx.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a NUL, and the buffer is a local statx.
    let done = unsafe { libc::statx(libc::AT_FDCWD, path.as_ptr(), 0, 0, &raw mut found) };
    nix::errno::Errno::result(done)?;
    let root = u64::try_from(libc::STATX_ATTR_MOUNT_ROOT).unwrap_or_default();
    Ok(found.stx_attributes & root != 0)
}

/// `dir`: the device's directory below `class/net` of sysfs.
fn nic(dir: &Path, window: &mut Window, now: Timestamp, errors_max: u64) -> Finding {
    let read = |file: &str| fs::read_to_string(dir.join(file)).map(|text| text.trim().to_owned());
    let state = match read("operstate") {
        Ok(state) => state,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Finding::Critical("there is no such device".to_owned()),
        Err(error) => return Finding::Unsupported(format!("its state cannot be read: {error}")),
    };
    // Devices without a real carrier (loopback, tunnels) report unknown.
    if !["up", "unknown"].contains(&state.as_str()) {
        return Finding::Critical(format!("it is {state}"));
    }
    let counters = NIC_ERRORS.iter().filter_map(|name| read(&format!("statistics/{name}")).ok()?.parse::<u64>().ok());
    let lately = window.counted(now, counters.sum());
    if lately > errors_max {
        return Finding::Critical(format!("{lately} errors and drops lately, more than {errors_max}"));
    }
    Finding::Ok
}

/// The error counts of the memory controllers. Each controller has a window of its own, because its
/// counter may be reset alone.
struct Memory {
    window_ms: u64,
    controllers: BTreeMap<String, Window>,
    errors_max: u64,
}

impl Memory {
    /// `dir`: [`EDAC`]. Uncorrected errors are reported until the kernel's counter is reset, by a
    /// reboot or by `reset_counters`.
    fn look(&mut self, dir: &Path, now: Timestamp) -> Finding {
        let (mut seen, mut lately, mut uncorrected) = (false, 0u64, 0u64);
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.strip_prefix("mc").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit())) {
                continue;
            }
            let read = |file: &str| fs::read_to_string(entry.path().join(file)).ok()?.trim().parse::<u64>().ok();
            let (Some(ce), Some(ue)) = (read("ce_count"), read("ue_count")) else { continue };
            let window = self.controllers.entry(name).or_insert_with(|| Window::new(self.window_ms));
            (seen, lately, uncorrected) = (true, lately.saturating_add(window.counted(now, ce)), uncorrected.saturating_add(ue));
        }
        if !seen {
            return Finding::Unsupported("the kernel has no memory controller that reports errors (EDAC)".to_owned());
        }
        if uncorrected > 0 {
            return Finding::Critical(format!("{uncorrected} could not be corrected since the machine was started"));
        }
        if lately > self.errors_max {
            return Finding::Critical(format!("{lately} were corrected lately, more than {}", self.errors_max));
        }
        Finding::Ok
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_well_while_few_errors_occur_and_all_are_corrected() {
        let dir = std::env::temp_dir().join(format!("lattice-edac-{}", std::process::id()));
        let mut memory = Memory { window_ms: 1000, controllers: BTreeMap::new(), errors_max: 10 };
        let mut look = |at, controllers: &[(&str, u64, u64)]| {
            for (name, corrected, not) in controllers {
                fs::create_dir_all(dir.join(name)).unwrap();
                fs::write(dir.join(name).join("ce_count"), format!("{corrected}\n")).unwrap();
                fs::write(dir.join(name).join("ue_count"), format!("{not}\n")).unwrap();
            }
            memory.look(&dir, Timestamp(at))
        };
        let none = |found| matches!(found, Finding::Unsupported(why) if why.contains("EDAC"));
        assert!(none(look(0, &[])), "a kernel without");
        assert!(none(look(0, &[("power", 1, 1), ("mcx", 1, 1)])), "no controllers");
        assert_eq!(look(1, &[("mc0", 5000, 0), ("mc1", 0, 0)]), Finding::Ok, "long ago");
        assert_eq!(look(10, &[("mc0", 5006, 0), ("mc1", 4, 0)]), Finding::Ok);
        assert!(matches!(look(20, &[("mc1", 5, 0)]), Finding::Critical(why) if why == "11 were corrected lately, more than 10"));
        assert_eq!(look(2000, &[]), Finding::Ok, "over");
        assert!(matches!(look(2001, &[("mc1", 5, 1)]), Finding::Critical(why) if why.starts_with("1 could not be corrected")));
        assert!(matches!(look(99_999, &[]), Finding::Critical(_)), "still");
        assert_eq!(look(99_999, &[("mc1", 0, 0)]), Finding::Ok, "counted anew");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_device_is_well_while_it_is_up_and_makes_few_errors() {
        let dir = std::env::temp_dir().join(format!("lattice-nic-{}", std::process::id()));
        fs::create_dir_all(dir.join("statistics")).unwrap();
        let mut window = Window::new(1000);
        let mut look = |at, state: &str, errors: u64| {
            fs::write(dir.join("operstate"), format!("{state}\n")).unwrap();
            fs::write(dir.join("statistics/rx_errors"), format!("{errors}\n")).unwrap();
            nic(&dir, &mut window, Timestamp(at), 10)
        };
        assert_eq!(look(0, "up", 5000), Finding::Ok, "long ago");
        assert_eq!(look(10, "up", 5010), Finding::Ok);
        assert!(matches!(look(20, "up", 5011), Finding::Critical(why) if why.starts_with("11 errors")));
        assert_eq!(look(2000, "unknown", 5011), Finding::Ok, "over");
        assert!(matches!(look(2010, "down", 5011), Finding::Critical(why) if why == "it is down"));
        fs::remove_dir_all(&dir).unwrap();
        assert!(matches!(nic(&dir, &mut window, Timestamp(0), 10), Finding::Critical(why) if why == "there is no such device"));
    }

    #[test]
    fn checks_that_are_not_configured_are_reported_as_not_made() {
        let found = |settings: &HealthSettings| -> BTreeMap<String, Finding> {
            let mut looks = Looks::of(settings, Path::new("/"), ImageCache::new(Path::new("/nonexistent"), 0));
            looks.all(Timestamp(0)).into_iter().map(|(name, look)| (name, look())).collect()
        };
        let none = found(&HealthSettings::default());
        assert_eq!(none["nics"], Finding::Unsupported("health.nics names none".to_owned()));
        assert_eq!(none["mounts"], Finding::Unsupported("health.mounts names none".to_owned()));
        let named = found(&HealthSettings { nics: vec!["lo".to_owned()], mounts: vec!["/proc".into()], ..HealthSettings::default() });
        assert_eq!((&named["nic lo"], &named["mount /proc"]), (&Finding::Ok, &Finding::Ok));
        assert!(!named.contains_key("nics") && !named.contains_key("mounts"));
    }

    #[test]
    fn a_path_at_which_nothing_is_mounted_is_critical() {
        assert_eq!(mount(Path::new("/proc")), Finding::Ok);
        assert_eq!(mount(Path::new("/")), Finding::Ok);
        assert!(matches!(mount(Path::new("/proc/self")), Finding::Critical(_)));
        assert!(matches!(mount(Path::new("/nonexistent")), Finding::Critical(_)));
    }

    #[test]
    fn missing_hardware_is_reported_by_part() {
        assert!(matches!(machine(Expected::default()), Finding::Unsupported(_)));
        assert_eq!(machine(Expected { cpus: 1, memory_bytes: 1, gpus: 0 }), Finding::Ok);
        let found = machine(Expected { cpus: 1, memory_bytes: u64::MAX, gpus: 0 });
        assert!(matches!(&found, Finding::Critical(why) if why.contains("bytes of memory") && !why.contains("processors")), "{found:?}");
    }
}
