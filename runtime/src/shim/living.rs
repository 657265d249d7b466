//! The identity of a shim's process, so that no other process is mistaken for it.
//!
//! A pid is not enough, and a pid with its start time is not either: in tests both were reused within seconds. A shim
//! writes its identity down before it serves anybody. An agent that finds a socket asks the kernel for the listening
//! process and compares. Numbers are never compared across pid namespaces: the kernel translates the peer's pid into
//! ours.

use super::ShimDir;
use crate::identity;
use lattice_model::Boot;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use thiserror::Error;

/// The identity of a process, from its kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Living {
    /// The boot in which it was started.
    pub boot: Boot,
    /// Its pid in its own namespace.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// Its pidfd's inode: unique until the next boot if the kernel has pidfs (6.9), else the same for all.
    pub pidfd_inode: u64,
}

/// Why the process that listens on a shim's socket is not that shim.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotOurs {
    /// Its user could not have started the shim.
    #[error("it belongs to uid {uid}")]
    Uid {
        /// The user of the process.
        uid: u32,
    },
    /// The shim was started before the machine's last boot, so it cannot exist.
    #[error("the shim was started under another boot of this machine")]
    Boot,
    /// Not the process whose identity the shim wrote down.
    #[error("process {pid} is not the shim that was started")]
    Process {
        /// Its pid here.
        pid: i32,
    },
    /// It is in no cgroup, or not in the cgroup in which the shim was started.
    #[error("process {pid} is not in the allocation's cgroup")]
    Cgroup {
        /// Its pid here.
        pid: i32,
    },
}

impl Living {
    /// The calling process.
    pub fn of_self() -> io::Result<Self> {
        Self::of(std::process::id().cast_signed())
    }

    fn of(pid: i32) -> io::Result<Self> {
        let pidfd = identity::pidfd_open(pid)?;
        let pidfd_inode = identity::pidfd_inode(pidfd.as_fd())?;
        let start_ticks = identity::start_ticks(pid)?;
        Ok(Self { boot: identity::boot_id()?, pid: pid.cast_unsigned(), start_ticks, pidfd_inode })
    }

    /// Writes it to a file that gets its name only when it is complete. Not synced: after a reboot it is useless.
    pub fn write(&self, dir: &ShimDir) -> io::Result<()> {
        let part = dir.living().with_extension("id.part");
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&part)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        fs::rename(&part, dir.living())
    }

    /// The identity that was written in `dir`; `None` if it cannot be read, for example because the disk was full.
    pub fn read(dir: &ShimDir) -> Option<Self> {
        serde_json::from_slice(&fs::read(dir.living()).ok()?).ok()
    }

    /// Compares the process at the other end of `stream` with the identity that the shim of `dir` wrote down, and with
    /// the cgroup that it was born in. What cannot be known (a file that could not be written, a process of another pid
    /// namespace) does not count as a difference.
    pub fn check(dir: &ShimDir, scope: Option<&Path>, stream: &UnixStream) -> Result<(), NotOurs> {
        let Ok(peer) = getsockopt(stream, PeerCredentials) else { return Ok(()) };
        if peer.uid() != 0 && peer.uid() != nix::unistd::geteuid().as_raw() {
            return Err(NotOurs::Uid { uid: peer.uid() });
        }
        let pid = peer.pid();
        let Some(written) = Self::read(dir) else { return Ok(()) };
        if identity::boot_id().is_ok_and(|now| now != written.boot) {
            return Err(NotOurs::Boot);
        }
        if pid <= 0 {
            return Ok(());
        }
        match Self::of(pid) {
            Ok(found) if (found.start_ticks, found.pidfd_inode) != (written.start_ticks, written.pidfd_inode) => {
                return Err(NotOurs::Process { pid });
            }
            Ok(_) => {}
            // The process has ended since: the next use of its socket will show that.
            Err(_) => return Ok(()),
        }
        let procs = scope.and_then(|s| fs::read_to_string(s.join("shim/cgroup.procs")).ok());
        if procs.is_some_and(|procs| !procs.lines().any(|l| l.parse() == Ok(pid))) {
            return Err(NotOurs::Cgroup { pid });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    struct Dir(ShimDir);

    impl Dir {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("lattice-living-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(ShimDir(path))
        }

        fn connected(&self) -> (UnixListener, UnixStream) {
            let listener = UnixListener::bind(self.0.socket()).unwrap();
            let stream = UnixStream::connect(self.0.socket()).unwrap();
            (listener, stream)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0.0);
        }
    }

    #[test]
    fn a_process_that_wrote_its_identity_is_recognised_and_no_other() {
        let dir = Dir::new("who");
        let (_listener, stream) = dir.connected();
        assert_eq!(Living::check(&dir.0, None, &stream), Ok(()), "nothing was written: a full disk");
        let me = Living::of_self().unwrap();
        me.write(&dir.0).unwrap();
        assert_eq!(Living::read(&dir.0), Some(me.clone()));
        assert_eq!(Living::check(&dir.0, None, &stream), Ok(()));
        Living { start_ticks: me.start_ticks + 1, ..me.clone() }.write(&dir.0).unwrap();
        assert!(matches!(Living::check(&dir.0, None, &stream), Err(NotOurs::Process { .. })));
        let boot = "00000000-0000-4000-8000-000000000001".parse().unwrap();
        Living { boot, ..me.clone() }.write(&dir.0).unwrap();
        assert_eq!(Living::check(&dir.0, None, &stream), Err(NotOurs::Boot));
        me.write(&dir.0).unwrap();
        let scope: PathBuf = dir.0.0.join("scope");
        assert_eq!(Living::check(&dir.0, Some(&scope), &stream), Ok(()), "a scope that cannot be read says nothing");
        fs::create_dir_all(scope.join("shim")).unwrap();
        fs::write(scope.join("shim/cgroup.procs"), "1\n2\n").unwrap();
        assert!(matches!(Living::check(&dir.0, Some(&scope), &stream), Err(NotOurs::Cgroup { .. })));
    }
}
