//! The metrics that a process exports: its own, and those that every process has.

use crate::catalogue::process as family;
use crate::process;
use crate::sample::{Collect, Samples, Whose};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A handle; all clones share one state.
#[derive(Clone)]
pub struct Exporter(Arc<Inner>);

struct Inner {
    /// `agent` or `quorum`.
    process: &'static str,
    common: Vec<(&'static str, String)>,
    parts: Vec<Box<dyn Collect>>,
    requests: Mutex<BTreeMap<u16, u64>>,
}

impl Exporter {
    /// `common`: labels of every series; `parts`: the parts of the process that have metrics.
    pub fn new(process: &'static str, common: Vec<(&'static str, String)>, parts: Vec<Box<dyn Collect>>) -> Self {
        Self(Arc::new(Inner { process, common, parts, requests: Mutex::new([(200, 0)].into()) }))
    }

    /// All present metrics. Reads a few files of `/proc`: call it where blocking is allowed.
    pub fn samples(&self, whose: Whose) -> Samples {
        let mut samples = Samples::new(self.0.common.clone());
        process::read(&mut samples);
        samples.add(&family::BUILD, &[env!("CARGO_PKG_VERSION"), self.0.process], 1);
        for (code, count) in &*self.0.requests.lock() {
            samples.count(&family::SCRAPES, &[&code.to_string()], *count);
        }
        for part in &self.0.parts {
            part.collect(&mut samples, whose);
        }
        samples
    }

    /// Counts a request that was answered with this status code.
    pub(crate) fn answered(&self, code: u16) {
        *self.0.requests.lock().entry(code).or_default() += 1;
    }
}
