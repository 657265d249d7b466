//! Handles inputs that end the process or never end: each input is in a file before it is decoded.

use crate::corpus::to_hex;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The present input. Without a directory for findings nothing is written, and no time limit applies.
#[derive(Debug)]
pub struct Watch {
    name: &'static str,
    findings: Option<(PathBuf, File)>,
    begun: Instant,
    /// When the current input began, in milliseconds since `begun`, plus one; 0: no input runs.
    running_since: Arc<AtomicU64>,
}

impl Watch {
    /// Ends the process when an input takes longer than `run_time_max`.
    pub fn start(name: &'static str, findings: Option<PathBuf>, run_time_max: Duration) -> Self {
        let (begun, running_since) = (Instant::now(), Arc::new(AtomicU64::new(0)));
        let findings = findings.map(|dir| {
            let current = dir.join(format!("{name}.current"));
            let file = File::create(&current).unwrap_or_else(|error| panic!("{}: {error}", current.display()));
            let watched = Arc::downgrade(&running_since);
            std::thread::spawn(move || {
                while let Some(since) = watched.upgrade().map(|since| since.load(Ordering::Relaxed)) {
                    let ran_for = begun.elapsed().saturating_sub(Duration::from_millis(since));
                    if since != 0 && ran_for > run_time_max {
                        eprintln!("{name}: an input runs for more than {} s: {}", run_time_max.as_secs(), current.display());
                        std::process::abort();
                    }
                    std::thread::sleep(Duration::from_secs(1));
                }
            });
            (dir, file)
        });
        Self { name, findings, begun, running_since }
    }

    pub fn begin(&self, input: &[u8]) {
        let Some((_, current)) = &self.findings else { return };
        let written = current.write_all_at(input, 0).and_then(|()| current.set_len(input.len() as u64));
        written.unwrap_or_else(|error| panic!("writing the input of {}: {error}", self.name));
        let since = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX - 1) + 1;
        self.running_since.store(since, Ordering::Relaxed);
    }

    pub fn end(&self) {
        self.running_since.store(0, Ordering::Relaxed);
    }

    /// The path of a written finding; `None` if findings are not written.
    pub fn write_finding(&self, input: &[u8]) -> Option<PathBuf> {
        let (dir, _) = self.findings.as_ref()?;
        let path = dir.join(format!("{}.finding", self.name));
        std::fs::write(&path, to_hex(input)).ok()?;
        Some(path)
    }
}
