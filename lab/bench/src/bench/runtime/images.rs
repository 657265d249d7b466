//! Mounting images: by shims as agents start them, and by the bare system calls.

use crate::bench::figures::Samples;
use crate::bench::subject;
use anyhow::{Context, Result, bail, ensure};
use lattice_lab::cluster::Cluster;
use lattice_lab::image;
use lattice_model::{AllocationId, Epoch, Principal};
use lattice_runtime::cgroup::Slice;
use lattice_runtime::mounts::{self, loops_of};
use lattice_runtime::process;
use lattice_runtime::shim::{Decoder, FromShim, PROTOCOL_MAJOR, ShimConfig, ShimDir, StartedShim, ToShim, encode, start_shim};
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// How often the mount of many images at once is measured.
const TIMES: usize = 5;
/// A shim that sends no message for this long counts as hung.
const SHIM_TIMEOUT: Duration = Duration::from_secs(20);

/// An image, and the directory of its shims.
pub struct Images {
    image: PathBuf,
    state: PathBuf,
    shim: PathBuf,
    slice: Slice,
}

impl Images {
    pub fn new(cluster: &Cluster) -> Result<Self> {
        let state = cluster.dir.join("bench");
        std::fs::create_dir_all(&state)?;
        let image = state.join("env.sqfs");
        image::write(&image, Path::new("/bin/true"))?;
        let slice = Slice::find(Path::new(&format!("lattice-bench-{}.slice", std::process::id())))?;
        mounts::ensure_mount_point(Path::new(image::MOUNT_POINT))?;
        Ok(Self { image, state, shim: cluster.binaries.join("lattice-shim"), slice })
    }

    /// From the start of a shim until it reports that the image is mounted.
    pub fn one(&self) -> Result<Duration> {
        let id = AllocationId(uuid::Uuid::new_v4());
        let began = Instant::now();
        let started = self.start(id)?;
        let took = began.elapsed();
        self.end(id, started)?;
        Ok(took)
    }

    /// Namespace, loop device, mount, and a program that ends at once.
    pub fn raw(&self) -> Result<Duration> {
        let (image, at) = (self.image.clone(), Path::new(image::MOUNT_POINT));
        let mut command = Command::new("/bin/true");
        // SAFETY: the closure runs in the forked child, whose only thread it is. It makes system calls and allocates
        // memory; no other thread of this process uses the allocator at the time of the fork.
        unsafe {
            command
                .pre_exec(move || mounts::own_namespace().and_then(|()| mounts::mount_squashfs(&image, at)).map_err(std::io::Error::other));
        }
        subject::timed(&mut command)
    }

    /// Mounts this many at once, several times: from the first start until the last is mounted. No loop device may be
    /// left.
    pub fn many(&self, count: usize) -> Result<Samples> {
        let mut values = Vec::new();
        for _ in 0..TIMES {
            lattice_lab::interrupt::check()?;
            let ids: Vec<AllocationId> = (0..count).map(|_| AllocationId(uuid::Uuid::new_v4())).collect();
            let began = Instant::now();
            let started: Vec<Result<StartedShim>> = std::thread::scope(|scope| {
                let threads: Vec<_> = ids.iter().map(|id| scope.spawn(|| self.start(*id))).collect();
                threads.into_iter().map(|t| t.join().unwrap_or_else(|_| bail!("a starting thread panicked"))).collect()
            });
            let took = began.elapsed();
            let mounted = loops_of(&self.image)?.len();
            for (id, started) in ids.iter().zip(started) {
                self.end(*id, started?)?;
            }
            ensure!(mounted == count, "{mounted} loop devices for {count} mounts");
            let gone = lattice_lab::process::until(SHIM_TIMEOUT, || loops_of(&self.image).is_ok_and(|l| l.is_empty()));
            ensure!(gone, "loop devices are left: {:?}", loops_of(&self.image)?);
            values.push(took.as_secs_f64() * 1000.0);
        }
        Samples::of(values, 0).context("nothing was measured")
    }

    fn start(&self, id: AllocationId) -> Result<StartedShim> {
        let scope = self.slice.create_scope(id)?;
        let config = ShimConfig {
            protocol: PROTOCOL_MAJOR,
            allocation: id,
            epoch: Epoch(1),
            owner: Principal { name: "root".to_owned(), uid: 0, gid: 0, groups: vec![0] },
            image: Some((self.image.clone(), image::MOUNT_POINT.into())),
            mounts: Vec::new(),
            scope: Some(scope.path().to_owned()),
            v1_groups: Vec::new(),
            placement: None,
            grace_ms: 1000,
            node: "bench".to_owned(),
            open_files: None,
            boot: None,
            share: None,
            assignment: None,
            log_limits: None,
            run_lease: false,
            work_may_gain_privileges: false,
        };
        let mut started = start_shim(&self.shim, &ShimDir::of(&self.state, id, Epoch(1)), &config)?;
        started.stream.set_read_timeout(Some(SHIM_TIMEOUT))?;
        started.stream.write_all(&encode(&ToShim::Hello { protocol: PROTOCOL_MAJOR })?)?;
        let mut decoder = Decoder::<FromShim>::default();
        let mut buffer = [0; 4096];
        loop {
            match decoder.next()? {
                Some(FromShim::Ready { failed: None }) => return Ok(started),
                Some(FromShim::Ready { failed: Some(why) }) => bail!("{why}"),
                Some(_) => {}
                None => {
                    let n = started.stream.read(&mut buffer).context("waiting for the shim")?;
                    ensure!(n > 0, "the shim ended");
                    decoder.push(&buffer[..n]);
                }
            }
        }
    }

    fn end(&self, id: AllocationId, mut started: StartedShim) -> Result<()> {
        started.stream.write_all(&encode(&ToShim::Quit)?)?;
        let mut rest = Vec::new();
        let _closed = started.stream.read_to_end(&mut rest);
        let gone = lattice_lab::process::until(SHIM_TIMEOUT, || !matches!(process::reap(started.pid), Ok(None)));
        ensure!(gone, "a shim does not quit");
        self.slice.create_scope(id)?.whole().remove()?;
        Ok(std::fs::remove_dir_all(ShimDir::of(&self.state, id, Epoch(1)).0)?)
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        for (_, scope) in self.slice.scopes().unwrap_or_default() {
            let _ = scope.whole().kill();
            let _ = scope.whole().wait_empty(SHIM_TIMEOUT);
            let _ = scope.whole().remove();
        }
        let _ = self.slice.remove();
    }
}
