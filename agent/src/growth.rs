//! The kernel's word that log files grow: one inotify instance for the whole agent.
//!
//! One for all, because a user may have only a few hundred instances, and because closing one waits for the kernel's
//! grace period (15 ms here), which the end of every launch would pay.

use crate::readiness::readable;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::watch;

/// A cloneable handle.
#[derive(Clone)]
pub struct Growth(Arc<Inner>);

struct Inner {
    inotify: Inotify,
    directories: Mutex<HashMap<WatchDescriptor, Watched>>,
}

struct Watched {
    grown: watch::Sender<()>,
    readers: usize,
}

/// One reader's interest in a directory; ends when it is dropped.
pub struct Growing {
    inner: Arc<Inner>,
    descriptor: WatchDescriptor,
    grown: watch::Receiver<()>,
}

impl Growth {
    /// Begins to listen to the kernel; ends with the last handle and reader. Call within the runtime.
    pub fn start() -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let ready = readable(inotify.as_fd().try_clone_to_owned()?)?;
        let inner = Arc::new(Inner { inotify, directories: Mutex::default() });
        let weak = Arc::downgrade(&inner);
        tokio::spawn(async move {
            while let Ok(mut guard) = ready.readable().await {
                let Some(inner) = Weak::upgrade(&weak) else { return };
                while inner.take_events() {}
                guard.clear_ready();
            }
        });
        Ok(Self(inner))
    }

    /// Watches the files of a directory.
    pub fn of(&self, directory: &Path) -> io::Result<Growing> {
        let mut directories = self.0.directories.lock().unwrap_or_else(PoisonError::into_inner);
        // The same directory has the same descriptor. A file that comes is nothing to read before it has grown.
        let descriptor = self.0.inotify.add_watch(directory, AddWatchFlags::IN_MODIFY)?;
        let watched = directories.entry(descriptor).or_insert_with(|| Watched { grown: watch::channel(()).0, readers: 0 });
        watched.readers += 1;
        Ok(Growing { inner: Arc::clone(&self.0), descriptor, grown: watched.grown.subscribe() })
    }
}

impl Inner {
    /// Whether there were events.
    fn take_events(&self) -> bool {
        let Ok(events) = self.inotify.read_events() else { return false };
        let directories = self.directories.lock().unwrap_or_else(PoisonError::into_inner);
        for event in &events {
            if let Some(watched) = directories.get(&event.wd) {
                watched.grown.send_replace(());
            }
        }
        !events.is_empty()
    }
}

impl Growing {
    /// Waits until a file has grown since the last time. Safe to drop while it waits.
    pub async fn grown(&mut self) {
        if self.grown.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        let mut directories = self.inner.directories.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(watched) = directories.get_mut(&self.descriptor) {
            watched.readers -= 1;
            if watched.readers == 0 {
                directories.remove(&self.descriptor);
                // It may be gone with its directory.
                let _ = self.inner.inotify.rm_watch(self.descriptor);
            }
        }
    }
}
