//! Loop devices, and mounts in a mount namespace of one's own.

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;

/// How often another process may take the free loop device before we give up. 128 shims at once on two cores needed a
/// few dozen tries.
const LOOP_TRIES_MAX: u32 = 2000;
/// Pause between two tries, so that many processes do not block each other.
const LOOP_RETRY_PAUSE: Duration = Duration::from_micros(500);

/// Why an image could not be mounted.
#[derive(Debug, Error)]
pub enum MountError {
    /// The namespace could not be made: not root, or a container that forbids it.
    #[error("a mount namespace of its own could not be made (needs CAP_SYS_ADMIN)")]
    Namespace(#[source] io::Error),
    /// The mount point is missing and could not be made.
    #[error("mount point {} is missing on this node and could not be made: an administrator must make this empty directory", at.display())]
    NoMountPoint {
        /// The mount point.
        at: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The mount point is not a directory.
    #[error("mount point {} is not a directory", at.display())]
    NotADirectory {
        /// The mount point.
        at: PathBuf,
    },
    /// No loop device.
    #[error("no loop device for {}: {doing}", image.display())]
    Loop {
        /// The image.
        image: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The kernel refused the mount.
    #[error("{} could not be mounted at {}", image.display(), at.display())]
    Mount {
        /// The image.
        image: PathBuf,
        /// The mount point.
        at: PathBuf,
        /// The system's error. `EINVAL`: the image is damaged, or this kernel does not support its compression.
        #[source]
        source: io::Error,
    },
}

/// Gives the calling thread its own mount namespace; the process's other threads keep theirs. Mounts inside it are not
/// visible outside. What the machine mounts or unmounts later is visible inside: a job can use a file system that is
/// automounted after it began, and does not keep a file system busy that the machine unmounts.
pub fn own_namespace() -> Result<(), MountError> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(|e| MountError::Namespace(e.into()))?;
    let flags = MsFlags::MS_REC | MsFlags::MS_SLAVE;
    mount(None::<&str>, "/", None::<&str>, flags, None::<&str>).map_err(|e| MountError::Namespace(e.into()))
}

/// Makes the mount point if it is missing. Sites with uenv have an empty `/user-environment` on every node, since the
/// images are built for that prefix. A missing one is made on the root file system, as an installer would do, and is
/// never removed. Call it before or after [`own_namespace`]: a directory is not a mount.
pub fn ensure_mount_point(at: &Path) -> Result<(), MountError> {
    match fs::metadata(at) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(MountError::NotADirectory { at: at.to_owned() }),
        Err(_) => {
            let made = fs::DirBuilder::new().mode(0o755).create(at);
            made.or_else(|e| if at.is_dir() { Ok(()) } else { Err(e) })
                .map_err(|source| MountError::NoMountPoint { at: at.to_owned(), source })
        }
    }
}

/// Mounts a SquashFS image from a file, `ro,nosuid,nodev`. The loop device frees itself when the mount ends, even if the
/// last process of the namespace was killed.
pub fn mount_squashfs(image: &Path, at: &Path) -> Result<(), MountError> {
    let (device, path) = attach_loop(image)?;
    let flags = MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let mounted = mount(Some(&path), at, Some("squashfs"), flags, None::<&str>);
    // Closed only now: the device frees itself at the last close, so the mount must exist before.
    drop(device);
    mounted.map_err(|e| MountError::Mount { image: image.to_owned(), at: at.to_owned(), source: e.into() })
}

/// `struct loop_info64` of linux/loop.h.
#[repr(C)]
struct LoopInfo64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` of linux/loop.h.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo64,
    reserved: [u64; 8],
}

const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// A free loop device, bound to `image`, and its path; it frees itself at the last close. Finding a free device and
/// taking it are two calls, so another process may take it between them: then try again.
pub fn attach_loop(image: &Path) -> Result<(File, PathBuf), MountError> {
    let failed = |doing| move |source: io::Error| MountError::Loop { image: image.to_owned(), doing, source };
    let backing = File::open(image).map_err(failed("opening the image"))?;
    // The device keeps this open file with its lock, so the image stays in the cache while it is mounted.
    backing.lock_shared().map_err(failed("locking the image"))?;
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control").map_err(failed("opening /dev/loop-control"))?;
    let mut name = [0u8; 64];
    let shown = image.as_os_str().as_encoded_bytes();
    let shown = &shown[shown.len().saturating_sub(63)..];
    name[..shown.len()].copy_from_slice(shown);
    let config = LoopConfig {
        fd: backing.as_raw_fd().cast_unsigned(),
        block_size: 0,
        info: LoopInfo64 {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: LO_FLAGS_READ_ONLY | LO_FLAGS_AUTOCLEAR,
            file_name: name,
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        },
        reserved: [0; 8],
    };
    let mut last = Errno::EBUSY;
    for _ in 0..LOOP_TRIES_MAX {
        // SAFETY: this request takes no argument.
        let number = Errno::result(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) });
        let number = number.map_err(|e| failed("asking for a free device")(e.into()))?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_CLOEXEC).open(&path);
        let taken = match opened {
            // SAFETY: this request reads a loop_config, which lives until the call returns.
            Ok(device) => Errno::result(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, &raw const config) }).map(|_| device),
            Err(error) => Err(Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))),
        };
        match taken {
            Ok(device) => return Ok((device, path)),
            // Another process took it; or its node in /dev is not there yet (ENOENT), or the device is being removed
            // (ENXIO).
            Err(errno @ (Errno::EBUSY | Errno::ENOENT | Errno::ENXIO)) => last = errno,
            Err(errno) => return Err(failed("binding the image to it")(errno.into())),
        }
        std::thread::sleep(LOOP_RETRY_PAUSE);
    }
    Err(failed("other processes took each free device first")(last.into()))
}

/// The loop devices with the backing file `image`: for tests and benchmarks, which check that none is left behind.
pub fn loops_of(image: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block")? {
        let name = entry?.file_name();
        let backing = fs::read_to_string(Path::new("/sys/block").join(&name).join("loop/backing_file"));
        if backing.is_ok_and(|b| Path::new(b.trim_end_matches('\n')) == image) {
            found.push(Path::new("/dev").join(name));
        }
    }
    Ok(found)
}

const LOOP_CLR_FD: libc::c_ulong = 0x4C01;

/// Frees the loop devices on files below `dir` that do not have the flag to free themselves (autoclear): nothing else
/// would free them. A device in use is freed at its last close. Returns the devices.
pub fn free_stray_loops(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut freed = Vec::new();
    for entry in fs::read_dir("/sys/block")? {
        let name = entry?.file_name();
        let of = |file: &str| fs::read_to_string(Path::new("/sys/block").join(&name).join("loop").join(file)).unwrap_or_default();
        if !Path::new(of("backing_file").trim_end()).starts_with(dir) || of("autoclear").trim() != "0" {
            continue;
        }
        let path = Path::new("/dev").join(&name);
        let device = File::open(&path)?;
        // SAFETY: this request takes no argument.
        Errno::result(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CLR_FD as _, 0) })?;
        freed.push(path);
    }
    Ok(freed)
}

/// The mount points below `dir` in the calling process's namespace, in the order in which they were made.
pub fn mount_points_below(dir: &Path) -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points = text.lines().filter_map(|line| line.split(' ').nth(4)).map(|point| PathBuf::from(crate::cgroup::unescape(point)));
    points.filter(|point| point != dir && point.starts_with(dir)).collect()
}

/// Unmounts a mount point in the calling process's namespace. Processes that use the mount keep it until they end.
pub fn unmount(point: &Path) -> io::Result<()> {
    Ok(nix::mount::umount2(point, nix::mount::MntFlags::MNT_DETACH)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_structures_have_the_kernels_sizes() {
        assert_eq!(size_of::<LoopInfo64>(), 232);
        assert_eq!(size_of::<LoopConfig>(), 304);
    }
}
