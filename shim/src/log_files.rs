//! The files that ranks write to: opened for appending, owned by the user, in a directory of the shim's own user (root,
//! unless the shim is started without privileges).

use lattice_model::Principal;
use lattice_runtime::process::NotStarted;
use lattice_runtime::shim::{LogStream, ShimDir};
use nix::unistd::{Gid, Uid, fchown};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};

/// Makes the directory of a launch's log files.
pub fn create_directory(dir: &ShimDir, number: u32) -> Result<(), NotStarted> {
    let path = dir.launch_logs(number);
    match DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(NotStarted { code: 126, why: format!("log files {}: {error}", path.display()) })
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Makes the files for standard output and error of one rank: mode 0600, owned by the user, so that the rank can open
/// `/dev/stdout` again.
pub fn create(dir: &ShimDir, number: u32, rank: u32, owner: &Principal) -> Result<[File; 2], NotStarted> {
    let one = |stream| {
        let path = dir.log(number, rank, stream);
        open_owned(&path, owner).map_err(|e| NotStarted { code: 126, why: format!("log file {}: {e}", path.display()) })
    };
    Ok([one(LogStream::Out)?, one(LogStream::Err)?])
}

/// Opens a file for appending; makes it if needed, with mode 0600, owned by the user.
pub fn open_owned(path: &std::path::Path, owner: &Principal) -> io::Result<File> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    set_owner(&file, owner)?;
    Ok(file)
}

/// Makes the owner the owner of a file. A shim that is not root runs as the owner anyway.
pub fn set_owner(file: &File, owner: &Principal) -> io::Result<()> {
    if nix::unistd::geteuid().is_root() {
        fchown(file, Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)))?;
    }
    Ok(())
}

/// Writes to a rank's own error log why the rank did not start or was killed: its user looks there first. Does nothing
/// if that would wait, for a lease on the file.
pub fn append_error(dir: &ShimDir, number: u32, rank: u32, why: &str) {
    let flags = libc::O_NONBLOCK | libc::O_NOFOLLOW;
    let file = OpenOptions::new().append(true).custom_flags(flags).open(dir.log(number, rank, LogStream::Err));
    let _ = file.and_then(|mut f| writeln!(f, "lattice: {why}"));
}
