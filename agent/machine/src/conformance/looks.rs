//! The versions of this node's software and firmware, as the kernel and os-release(5) report them.

use super::plain::plain;
use lattice_model::conformance::Components;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// What could not be read.
#[derive(Debug, Error)]
pub(super) enum LookError {
    #[error("{}: {source}", .path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}: {source}", .path.display())]
    List { path: PathBuf, source: io::Error },
    #[error("the driver of {device}: {source}")]
    AskDriver { device: String, source: io::Error },
}

/// The components that the agent itself reads, as far as they exist here. Names are those of
/// [`OWN`](lattice_agent_common::config::conformance::OWN).
pub(super) fn all(ignored: &[String]) -> Result<Components, LookError> {
    let (sys, proc) = (Path::new("/sys"), Path::new("/proc"));
    let found = [
        ("gpu driver", gpu_driver(sys)?),
        ("nic firmware", nic_firmware(sys)?),
        ("bios", bios(sys)?),
        ("bmc", bmc(sys)?),
        ("kernel", read(&proc.join("sys/kernel/osrelease"))?),
        ("kernel parameters", read(&proc.join("cmdline"))?.map(|line| parameters(&line, ignored))),
        ("base image", base_image()?),
    ];
    let found = found.into_iter().filter_map(|(name, value)| Some((name.to_owned(), plain(&value?)?)));
    Ok(found.collect())
}

/// The text of a file; `None`: the file does not exist or is empty, this agent may not read it, or
/// the device has no answer.
fn read(path: &Path) -> Result<Option<String>, LookError> {
    match fs::read(path) {
        // Texts of firmware need not be UTF-8.
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).trim().to_owned()).filter(|text| !text.is_empty())),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => Ok(None),
        // The device's driver has no answer.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ENXIO | libc::EOPNOTSUPP | libc::EINVAL)) => Ok(None),
        Err(source) => Err(LookError::Read { path: path.to_owned(), source }),
    }
}

/// The entries of a directory, by name; empty if it does not exist.
fn entries(dir: &Path) -> Result<Vec<PathBuf>, LookError> {
    let failed = |source| LookError::List { path: dir.to_owned(), source };
    let listed = match fs::read_dir(dir) {
        Ok(listed) => listed,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let found: Result<Vec<PathBuf>, LookError> = listed.map(|entry| entry.map(|entry| entry.path()).map_err(failed)).collect();
    let mut found = found?;
    found.sort();
    Ok(found)
}

/// Joins the versions of several devices of one kind: how many devices have which version does not
/// matter.
fn join_versions(found: BTreeSet<String>) -> Option<String> {
    (!found.is_empty()).then(|| found.into_iter().collect::<Vec<_>>().join(", "))
}

/// A driver without a version of its own is a part of the kernel and has the kernel's version.
fn gpu_driver(sys: &Path) -> Result<Option<String>, LookError> {
    let mut found = BTreeSet::new();
    for driver in ["nvidia", "amdgpu"] {
        found.extend(read(&sys.join("module").join(driver).join("version"))?.map(|version| format!("{driver} {version}")));
    }
    Ok(join_versions(found))
}

fn nic_firmware(sys: &Path) -> Result<Option<String>, LookError> {
    let mut found = BTreeSet::new();
    for device in entries(&sys.join("class/infiniband"))? {
        let board = read(&device.join("board_id"))?.unwrap_or_else(|| "infiniband".to_owned());
        found.extend(read(&device.join("fw_ver"))?.map(|version| format!("{board} {version}")));
    }
    // A network device without hardware behind it is software.
    for nic in entries(&sys.join("class/net"))?.into_iter().filter(|nic| nic.join("device").exists()) {
        let name = nic.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        found.extend(driver_of(&name)?);
    }
    Ok(join_versions(found))
}

fn bios(sys: &Path) -> Result<Option<String>, LookError> {
    let dmi = sys.join("class/dmi/id");
    let mut parts = Vec::new();
    for name in ["bios_vendor", "bios_version", "bios_date"] {
        parts.extend(read(&dmi.join(name))?);
    }
    Ok((!parts.is_empty()).then(|| parts.join(" ")))
}

/// The version as the kernel's IPMI driver reports it.
fn bmc(sys: &Path) -> Result<Option<String>, LookError> {
    let is_bmc = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("ipmi_bmc"));
    let mut found = BTreeSet::new();
    for device in entries(&sys.join("devices/platform"))?.into_iter().filter(is_bmc) {
        let maker = read(&device.join("manufacturer_id"))?.unwrap_or_default();
        found.extend(read(&device.join("firmware_revision"))?.map(|version| format!("{maker} {version}").trim().to_owned()));
    }
    Ok(join_versions(found))
}

/// The kernel's command line without parameters that differ from node to node.
fn parameters(line: &str, ignored: &[String]) -> String {
    let named = |word: &str| word.split('=').next().unwrap_or(word).to_owned();
    line.split_whitespace().filter(|word| !ignored.contains(&named(word))).collect::<Vec<_>>().join(" ")
}

/// See os-release(5).
fn base_image() -> Result<Option<String>, LookError> {
    let text = match read(Path::new("/etc/os-release"))? {
        Some(text) => Some(text),
        None => read(Path::new("/usr/lib/os-release"))?,
    };
    Ok(text.and_then(|text| image(&text)))
}

fn image(os_release: &str) -> Option<String> {
    let of = |key: &str| {
        let value = os_release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
        let value = value.trim().trim_matches(['"', '\'']);
        (!value.is_empty()).then(|| value.to_owned())
    };
    let parts: Vec<String> = ["ID", "VERSION_ID", "BUILD_ID", "IMAGE_ID", "IMAGE_VERSION"].into_iter().filter_map(of).collect();
    (!parts.is_empty()).then(|| parts.join(" "))
}

/// `struct ethtool_drvinfo` of `linux/ethtool.h`.
#[repr(C)]
struct DriverInfo {
    cmd: u32,
    driver: [u8; 32],
    version: [u8; 32],
    firmware: [u8; 32],
    rest: [u8; 96],
}

/// `ETHTOOL_GDRVINFO` and `SIOCETHTOOL`.
const GET_DRIVER: u32 = 3;
const SIOCETHTOOL: libc::Ioctl = 0x8946;

/// Driver and firmware of a network device, if its driver reports the firmware.
fn driver_of(name: &str) -> Result<Option<String>, LookError> {
    let failed = |source| LookError::AskDriver { device: name.to_owned(), source };
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").map_err(failed)?;
    // SAFETY: all zeros is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return Ok(None);
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed() as libc::c_char;
    }
    let mut info = DriverInfo { cmd: GET_DRIVER, driver: [0; 32], version: [0; 32], firmware: [0; 32], rest: [0; 96] };
    request.ifr_ifru.ifru_data = (&raw mut info).cast();
    // SAFETY: the request names a device, ends with a NUL, and points to a structure of the size
    // that this command fills.
    if unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut request) } < 0 {
        let error = io::Error::last_os_error();
        // The driver reports nothing, or the device is gone.
        return if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENODEV)) { Ok(None) } else { Err(failed(error)) };
    }
    let text = |bytes: &[u8]| {
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).trim().to_owned()
    };
    let firmware = text(&info.firmware);
    Ok((!firmware.is_empty() && firmware != "N/A").then(|| format!("{} {firmware}", text(&info.driver))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_kernel_parameters_are_left_out() {
        let ignored = ["root".to_owned(), "ip".to_owned()];
        assert_eq!(parameters("root=UUID=7 quiet ip=10.0.0.7 hugepages=4 rootwait", &ignored), "quiet hugepages=4 rootwait");
    }

    #[test]
    fn the_base_image_is_read_from_os_release() {
        let text = "PRETTY_NAME=\"x\"\nID=sles\nVERSION_ID=\"15.6\"\nBUILD_ID=\nIMAGE_VERSION='7'\n";
        assert_eq!(image(text).as_deref(), Some("sles 15.6 7"));
        assert_eq!(image("NAME=x\n"), None);
    }

    #[test]
    fn missing_components_are_absent_and_existing_ones_are_not_empty() {
        let found = all(&[]).unwrap();
        assert!(found.contains_key("kernel") && found.values().all(|value| !value.is_empty()), "{found:?}");
        assert!(found.keys().all(|name| lattice_agent_common::config::conformance::OWN.contains(&name.as_str())), "{found:?}");
        let empty = std::env::temp_dir().join(format!("lattice-conformance-{}", std::process::id()));
        fs::create_dir_all(empty.join("module/nvidia")).unwrap();
        for look in [gpu_driver, bios, bmc, nic_firmware] {
            assert_eq!(look(&empty).unwrap(), None);
        }
        fs::write(empty.join("module/nvidia/version"), "550.54.14\n").unwrap();
        fs::create_dir_all(empty.join("devices/platform/ipmi_bmc.0")).unwrap();
        fs::write(empty.join("devices/platform/ipmi_bmc.0/firmware_revision"), "2.81\n").unwrap();
        assert_eq!(gpu_driver(&empty).unwrap(), Some("nvidia 550.54.14".into()));
        assert_eq!(bmc(&empty).unwrap(), Some("2.81".into()));
        fs::create_dir_all(empty.join("class/dmi/id")).unwrap();
        fs::write(empty.join("class/dmi/id/bios_vendor"), b"Acm\xe9 Inc.\n").unwrap();
        assert_eq!(bios(&empty).unwrap(), Some("Acm\u{fffd} Inc.".into()));
        fs::remove_dir_all(&empty).unwrap();
    }

    #[test]
    fn a_directory_that_cannot_be_listed_is_an_error() {
        let sys = std::env::temp_dir().join(format!("lattice-unlisted-{}", std::process::id()));
        for folder in ["class", "devices"] {
            fs::create_dir_all(sys.join(folder)).unwrap();
        }
        for file in ["class/infiniband", "devices/platform"] {
            fs::write(sys.join(file), "").unwrap();
        }
        assert!(nic_firmware(&sys).is_err_and(|why| why.to_string().contains("class/infiniband")));
        assert!(bmc(&sys).is_err());
        fs::remove_dir_all(&sys).unwrap();
        // There is no such device; the longer text is no device's name.
        assert_eq!((driver_of("lattice-none").unwrap(), driver_of(&"x".repeat(16)).unwrap()), (None, None));
    }
}
