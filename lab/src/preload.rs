//! A small library (`preload.c`) that is preloaded into a daemon. It sets the daemon's clock wrong and delays its syncs,
//! by the values in a shared file.

use crate::hub;
use anyhow::{Context, Result};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Offsets of the members of `struct host` in the shared file, and the file's size, in bytes.
const CLOCK_AT: u64 = 0;
const SYNC_AT: u64 = 8;
const BYTES: u64 = 16;

/// Compiles the library into `dir`.
pub fn build(dir: &Path) -> Result<()> {
    let source = dir.join("preload.c");
    std::fs::write(&source, include_str!("preload/preload.c")).with_context(|| format!("cannot write {}", source.display()))?;
    hub::command(Command::new("cc").args(["-O2", "-shared", "-fPIC", "-o"]).args([&library(dir), &source]))
}

fn library(dir: &Path) -> PathBuf {
    dir.join("preload.so")
}

/// The shared file of one daemon.
#[derive(Debug)]
pub struct Shared {
    file: File,
    path: PathBuf,
}

impl Shared {
    /// Creates a file without faults.
    pub fn make(path: &Path) -> Result<Self> {
        let file = File::options().read(true).write(true).create_new(true).open(path);
        let file = file.with_context(|| format!("cannot create {}", path.display()))?;
        file.set_len(BYTES)?;
        Ok(Self { file, path: path.to_owned() })
    }

    /// Opens an existing file; `None`: there is none.
    pub fn open(path: &Path) -> Result<Option<Self>> {
        match File::options().write(true).open(path) {
            Ok(file) => Ok(Some(Self { file, path: path.to_owned() })),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e).with_context(|| format!("cannot open {}", path.display())),
        }
    }

    /// The start of a command line that preloads the library from `dir`: append the daemon's program and its arguments.
    pub fn launcher(&self, dir: &Path) -> Vec<String> {
        vec![
            "/usr/bin/env".to_owned(),
            format!("LD_PRELOAD={}", library(dir).display()),
            format!("LATTICE_LAB_HOST={}", self.path.display()),
        ]
    }

    /// Sets the daemon's time of day wrong by this many seconds.
    pub fn shift_clock(&self, seconds: i64) -> Result<()> {
        self.write_value(CLOCK_AT, seconds)
    }

    /// Delays each sync of the daemon by this time.
    pub fn slow_disk(&self, by: Duration) -> Result<()> {
        self.write_value(SYNC_AT, i64::try_from(by.as_millis())?)
    }

    fn write_value(&self, at: u64, value: i64) -> Result<()> {
        self.file.write_all_at(&value.to_ne_bytes(), at).with_context(|| format!("cannot write {}", self.path.display()))
    }
}
