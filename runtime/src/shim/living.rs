//! Which process a shim is, so that no other one is taken for it.
//!
//! A pid says little, and with its start time not enough: both were used again within seconds where somebody tried. A
//! shim writes down who it is before it serves anybody; an agent that finds a socket asks the kernel who listens on it
//! and compares. Numbers are never compared across pid namespaces: the kernel translates the peer's pid into ours.

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

/// A process, as its kernel knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Living {
    /// The boot in which it was started.
    pub boot: Boot,
    /// Its pid, as it sees itself.
    pub pid: u32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// Its pidfd's inode: its own until the next boot where the kernel has pidfs (6.9), else the same for all.
    pub pidfd_inode: u64,
}

/// Why what listens on a shim's socket is not that shim.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NotOurs {
    /// Somebody who could not have started it.
    #[error("it belongs to uid {uid}")]
    Uid {
        /// Whose it is.
        uid: u32,
    },
    /// A shim from before a restart of the machine cannot be.
    #[error("the shim was started under another boot of this machine")]
    Boot,
    /// Another process than the one that wrote down who it is.
    #[error("it is process {pid}, which is not the one that was started")]
    Process {
        /// Its pid here.
        pid: i32,
    },
    /// In none or another cgroup than the shim was born in.
    #[error("process {pid} does not live in the allocation's scope")]
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

    /// Writes it down, under its name only when it is whole. Not synced: it is of no use after a restart of the machine.
    pub fn write(&self, dir: &ShimDir) -> io::Result<()> {
        let part = dir.living().with_extension("id.part");
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&part)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        fs::rename(&part, dir.living())
    }

    /// What was written down in `dir`; `None` where nothing can be read: the disk was full.
    pub fn read(dir: &ShimDir) -> Option<Self> {
        serde_json::from_slice(&fs::read(dir.living()).ok()?).ok()
    }

    /// Compares who listens at the other end of `stream` with what the shim of `dir` wrote down, and with the cgroup that
    /// it was born in. What cannot be known (a file that could not be written, a process of another pid namespace) is not held against it.
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
            // Gone since: the next look at its socket says so.
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
    fn who_wrote_itself_down_is_recognised_and_nobody_else() {
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
