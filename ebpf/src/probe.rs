//! One of our kernel programs: whether it counts, and if not, why.

use aya::util::KernelVersion;
use std::error::Error;
use thiserror::Error;

/// One program, and whether it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    pub name: &'static str,
    /// `None`: it counts.
    pub why_not: Option<String>,
}

/// This kernel cannot count anything.
#[derive(Debug, Error)]
pub enum LoadError {
    #[error("the agent runs in a cgroup namespace, which hides the kernel's cgroup ids: run the agent outside of it")]
    Namespace,
    #[error("the cgroup of all allocations cannot be read")]
    Slice(#[source] std::io::Error),
    #[error("the number of processors cannot be read")]
    Processors(#[source] std::io::Error),
    #[error("the programs' maps cannot be created; CAP_BPF and CAP_PERFMON are needed, or root")]
    Maps(#[source] Box<aya::EbpfError>),
    #[error("this build's programs do not fit this agent: {0}")]
    Object(&'static str),
    #[error("none of the programs could be loaded: {0}")]
    None(String),
}

/// Whether the kernel has this version or a later one.
pub fn is_since(major: u8, minor: u8) -> bool {
    KernelVersion::current().is_ok_and(|kernel| kernel >= KernelVersion::new(major, minor, 0))
}

/// The error in one line, with its causes; without the verifier's whole log.
pub fn describe(error: &dyn Error) -> String {
    let mut out = error.to_string().lines().next().unwrap_or_default().to_owned();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        let more = more.lines().next().unwrap_or_default();
        if !out.contains(more) {
            out = format!("{out}: {more}");
        }
        cause = error.source();
    }
    out
}
