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
    #[error("the cgroup tree is one of a namespace, in which the kernel's numbers of cgroups cannot be told: run the agent outside of it")]
    Namespace,
    #[error("the cgroups of allocations cannot be looked at")]
    Slice(#[source] std::io::Error),
    #[error("the number of processors cannot be read")]
    Processors(#[source] std::io::Error),
    #[error("the programs' maps cannot be made; CAP_BPF and CAP_PERFMON are needed, or root")]
    Maps(#[source] Box<aya::EbpfError>),
    #[error("this build's programs are not as they should be: {0}")]
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
