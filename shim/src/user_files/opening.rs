//! Opening files of the user. The thread is the user, but it is also a thread of the shim, and the kernel gives a process
//! more of its own `/proc` than its user gets. So no file is opened there, and no link there is followed.

use super::plan::OutputFile;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, FcntlArg, OFlag, OpenHow, ResolveFlag, fcntl, openat2};
use nix::sys::stat::{Mode, major};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// The major number of `/dev/null` and its like. Others may be devices that the node gave to other work.
const MEMORY_DEVICES: u64 = 1;
const FILE_OF_PROC: &str = "it is in /proc: give another file";
const LINK_OF_PROC: &str = "it leads through a link in /proc, as /dev/stdout does, or through a loop of links: give another file";

/// Opens a file for appending. `is_wanted`: whether somebody still waits for it; otherwise it is not emptied.
pub fn open_output(to: &OutputFile, is_wanted: impl Fn() -> bool) -> io::Result<File> {
    let file = open(&to.path, OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_CREAT)?;
    if to.is_emptied && file.metadata()?.is_file() && is_wanted() {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Opens a file that is the standard input of work.
pub fn open_input(path: &Path) -> io::Result<File> {
    let file = open(path, OFlag::O_RDONLY)?;
    let metadata = file.metadata()?;
    let kind = metadata.file_type();
    if kind.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    // Work gets the open file itself, past the check of devices that it may open.
    let is_harmless = kind.is_file() || kind.is_fifo() || (kind.is_char_device() && major(metadata.rdev()) == MEMORY_DEVICES);
    if !is_harmless {
        return Err(io::Error::other("it is a device: give a regular file, a pipe or /dev/null"));
    }
    // Its program reads it as any other file.
    fcntl(&file, FcntlArg::F_SETFL(OFlag::empty()))?;
    Ok(file)
}

/// Empties a file, if it exists. `is_wanted`: as above.
pub fn empty(path: &Path, is_wanted: impl Fn() -> bool) -> io::Result<()> {
    let file = open(path, OFlag::O_WRONLY)?;
    if file.metadata()?.is_file() && is_wanted() { file.set_len(0) } else { Ok(()) }
}

/// Opens without waiting: neither for the reader of a pipe nor for the end of a lease.
fn open(path: &Path, flags: OFlag) -> io::Result<File> {
    let mode = if flags.contains(OFlag::O_CREAT) { Mode::from_bits_truncate(0o666) } else { Mode::empty() };
    let how = OpenHow::new()
        .flags(flags | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC)
        .mode(mode)
        .resolve(ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let file = match openat2(AT_FDCWD, path, how) {
        Ok(file) => File::from(file),
        Err(Errno::ELOOP) => return Err(io::Error::other(LINK_OF_PROC)),
        Err(errno) => return Err(errno.into()),
    };
    if fstatfs(&file)?.filesystem_type() == PROC_SUPER_MAGIC {
        return Err(io::Error::other(FILE_OF_PROC));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_runtime::shim::LogStream;
    use std::path::PathBuf;

    fn why(result: io::Result<File>) -> String {
        result.map_or_else(|error| error.to_string(), |_| "opened".to_owned())
    }

    fn output(path: &str) -> OutputFile {
        OutputFile { stream: LogStream::Out, option: "output", path: PathBuf::from(path), is_emptied: true }
    }

    #[test]
    fn nothing_in_proc_is_opened_and_no_link_there_is_followed() {
        for path in ["/dev/stdout", "/proc/self/fd/1", "/proc/self/root/dev/null"] {
            assert_eq!(why(open_output(&output(path), || true)), LINK_OF_PROC, "{path}");
        }
        assert_eq!(why(open_output(&output("/proc/thread-self/comm"), || true)), FILE_OF_PROC);
        assert_eq!(why(open_input(Path::new("/proc/self/maps"))), FILE_OF_PROC);
        assert_eq!(why(open_output(&output("/dev/null"), || true)), "opened");
    }

    #[test]
    fn input_is_no_device_but_those_without_hardware() {
        assert_eq!(why(open_input(Path::new("/dev/null"))), "opened");
        assert_eq!(why(open_input(Path::new("/dev/zero"))), "opened");
        assert_eq!(why(open_input(Path::new("/dev/ptmx"))), "it is a device: give a regular file, a pipe or /dev/null");
    }
}
