//! Notifies readers when log files grow, through one inotify instance for the whole agent.
//!
//! There is one instance for all readers, because the kernel allows a user only a few hundred, and
//! because closing one waits for the kernel's grace period (15 ms when measured), which would delay
//! the end of every launch.

use lattice_agent_common::readiness::readable;
use lattice_runtime::shim::ShimDir;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

/// A cloneable handle.
#[derive(Clone)]
pub struct Growth(Arc<Inner>);

struct Inner {
    inotify: Inotify,
    directories: Mutex<HashMap<WatchDescriptor, Watched>>,
    _reading: AbortOnDropHandle<()>,
}

struct Watched {
    grown: watch::Sender<()>,
    readers: usize,
}

/// A reader's watch on a launch's log files, which may begin before the launch.
pub struct LaunchGrowth {
    growth: Growth,
    all: PathBuf,
    own: PathBuf,
    now: Watching,
}

enum Watching {
    /// Neither directory can be watched: it does not exist yet, or the kernel refuses.
    Nothing,
    /// The launch has no files yet: the allocation's log directory is watched.
    Others(Growing),
    /// The launch's own files are watched. A new file counts only once it has grown; the output of a
    /// task of a lane is moved here with what was written before.
    Own(Growing),
}

/// One reader's watch on a directory; dropping it ends the watch.
struct Growing {
    inner: Arc<Inner>,
    descriptor: WatchDescriptor,
    grown: watch::Receiver<()>,
}

impl Growth {
    /// Starts to read the kernel's events; ends with the last handle and reader. Needs a tokio
    /// runtime.
    pub fn start() -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let ready = readable(inotify.as_fd().try_clone_to_owned()?)?;
        let inner = Arc::new_cyclic(|inner: &Weak<Inner>| {
            let inner = Weak::clone(inner);
            let reading = tokio::spawn(async move {
                while let Ok(mut guard) = ready.readable().await {
                    let Some(inner) = Weak::upgrade(&inner) else { return };
                    while inner.take_events() {}
                    guard.clear_ready();
                }
            });
            Inner { inotify, directories: Mutex::default(), _reading: AbortOnDropHandle::new(reading) }
        });
        Ok(Self(inner))
    }

    /// Begins to watch a launch's log files.
    pub fn of_launch(&self, dir: &ShimDir, launch: u32) -> LaunchGrowth {
        let mut watching = LaunchGrowth { growth: self.clone(), all: dir.logs(), own: dir.launch_logs(launch), now: Watching::Nothing };
        watching.look();
        watching
    }

    fn of(&self, directory: &Path, what: AddWatchFlags) -> io::Result<Growing> {
        let mut directories = self.0.directories.lock();
        // The kernel returns the same descriptor for the same directory.
        let descriptor = self.0.inotify.add_watch(directory, what)?;
        let watched = directories.entry(descriptor).or_insert_with(|| Watched { grown: watch::channel(()).0, readers: 0 });
        watched.readers += 1;
        Ok(Growing { inner: Arc::clone(&self.0), descriptor, grown: watched.grown.subscribe() })
    }
}

impl Inner {
    /// Handles pending events; returns whether there were any.
    fn take_events(&self) -> bool {
        let Ok(events) = self.inotify.read_events() else { return false };
        let directories = self.directories.lock();
        for event in &events {
            if let Some(watched) = directories.get(&event.wd) {
                watched.grown.send_replace(());
            }
        }
        !events.is_empty()
    }
}

impl LaunchGrowth {
    /// Begins to watch the launch's own files as soon as they exist. Call it before each read of
    /// the files: then that read finds what was written before the watch began.
    pub fn look(&mut self) {
        let own = || self.growth.of(&self.own, AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_MOVED_TO).map(Watching::Own);
        let others = || self.growth.of(&self.all, AddWatchFlags::IN_CREATE).map(Watching::Others);
        self.now = match std::mem::replace(&mut self.now, Watching::Nothing) {
            Watching::Own(growing) => Watching::Own(growing),
            Watching::Others(growing) => own().unwrap_or(Watching::Others(growing)),
            Watching::Nothing => match own().or_else(|_| others()) {
                // The launch's directory may have appeared between the two calls.
                Ok(Watching::Others(growing)) => own().unwrap_or(Watching::Others(growing)),
                Ok(watching) => watching,
                Err(_) => Watching::Nothing,
            },
        };
    }

    /// Waits until something has grown since the last call. Cancel-safe.
    pub async fn grown(&mut self) {
        let (Watching::Others(growing) | Watching::Own(growing)) = &mut self.now else { return std::future::pending().await };
        if growing.grown.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        let mut directories = self.inner.directories.lock();
        if let Some(watched) = directories.get_mut(&self.descriptor) {
            watched.readers -= 1;
            if watched.readers == 0 {
                directories.remove(&self.descriptor);
                // The watch may have ended with its directory.
                let _ = self.inner.inotify.rm_watch(self.descriptor);
            }
        }
    }
}
