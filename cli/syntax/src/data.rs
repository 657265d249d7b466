//! Options for mounts, scratch space and liveness probes.

use clap::Args;
use lattice_api::v1;
use lattice_model::duration::{self, BareNumber, DurationError};
use lattice_model::size::{self, SizeError};
use std::path::Path;
use thiserror::Error;

/// Options for mounts, scratch space and liveness probes.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct DataFlags {
    /// Also mount a directory of the nodes at another path: SOURCE:TARGET[:ro|:rw], by default rw; may be given more
    /// than once
    #[arg(long, value_name = "MOUNT", value_parser = parse_mount)]
    pub data_mount: Vec<v1::data::Mount>,
    /// Scratch space that it needs on each node, such as 500GB or 64GiB (a bare number is bytes)
    #[arg(long, value_name = "SIZE", overrides_with = "scratch_per_node", value_parser = check_size)]
    pub scratch_per_node: Option<String>,
    /// Do not mount the home, scratch and output directories that every allocation gets
    #[arg(long)]
    pub no_data_defaults: bool,
    /// End the work when it does not answer this probe: tcp:PORT or http:PORT/PATH, and optionally ,period=30s
    /// ,delay=10s ,timeout=5s ,failures=3 (these are the defaults)
    #[arg(long, value_name = "PROBE", overrides_with = "liveness_probe", value_parser = parse_probe)]
    pub liveness_probe: Option<v1::LivenessProbe>,
}

impl DataFlags {
    /// Merges two sets of options: a value of `self` wins over one of `under`. The mounts of both are kept.
    pub fn merge_over(self, under: Self) -> Self {
        Self {
            data_mount: [under.data_mount, self.data_mount].concat(),
            scratch_per_node: self.scratch_per_node.or(under.scratch_per_node),
            no_data_defaults: self.no_data_defaults || under.no_data_defaults,
            liveness_probe: self.liveness_probe.or(under.liveness_probe),
        }
    }

    /// The first of these options that was given.
    pub fn first_given(&self) -> Option<&'static str> {
        let given = [
            ("--data-mount", !self.data_mount.is_empty()),
            ("--scratch-per-node", self.scratch_per_node.is_some()),
            ("--no-data-defaults", self.no_data_defaults),
            ("--liveness-probe", self.liveness_probe.is_some()),
        ];
        given.into_iter().find(|(_, set)| *set).map(|(flag, _)| flag)
    }

    /// The mounts and scratch of a submission from `dir`, to which a relative source is resolved.
    pub fn data(&self, dir: &Path) -> v1::Data {
        let absolute = |mount: &v1::data::Mount| {
            let mut mount = mount.clone();
            if !mount.source.contains("://") {
                mount.source = dir.join(&mount.source).to_string_lossy().into_owned();
            }
            mount
        };
        v1::Data {
            mounts: self.data_mount.iter().map(absolute).collect(),
            defaults: Some(!self.no_data_defaults),
            output: String::new(),
            scratch_per_node: self.scratch_per_node.clone().unwrap_or_default(),
        }
    }
}

/// The text is not a mount.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("write SOURCE:/TARGET, and :ro after it for a read-only mount")]
struct MountError;

/// `SOURCE:TARGET[:ACCESS]`; the source may be a URL that contains colons.
fn parse_mount(text: &str) -> Result<v1::data::Mount, MountError> {
    let (rest, access) = match text.rsplit_once(':') {
        Some((rest, access)) if matches!(access, "ro" | "rw" | "read-only" | "read-write") => (rest, access),
        _ => (text, ""),
    };
    match rest.rsplit_once(':') {
        Some((source, target)) if !source.is_empty() && target.starts_with('/') && !target.starts_with("//") => Ok(v1::data::Mount {
            source: source.to_owned(),
            target: target.to_owned(),
            access: access.to_owned(),
            tier_hint: String::new(),
        }),
        _ => Err(MountError),
    }
}

fn check_size(text: &str) -> Result<String, SizeError> {
    size::parse(text).map(|_| text.to_owned())
}

/// The syntax of a probe, as a hint.
const PROBE_FORM: &str = "write tcp:PORT or http:PORT/PATH, optionally followed by ,period=30s ,delay=10s ,timeout=5s ,failures=3";

/// Why a probe is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
enum ProbeError {
    #[error("{PROBE_FORM}")]
    Form,
    #[error("{0:?} is not a port")]
    Port(String),
    #[error(transparent)]
    Duration(#[from] DurationError),
    #[error("{0:?} is too long")]
    TooLong(String),
    #[error("{0:?} is not a number")]
    Number(String),
    #[error("{0} must be more than 0")]
    Zero(String),
    #[error("a probe has no option {0:?}: {PROBE_FORM}")]
    Unknown(String),
}

/// `tcp:PORT` or `http:PORT[/PATH]`, followed by `,name=value`.
fn parse_probe(text: &str) -> Result<v1::LivenessProbe, ProbeError> {
    let mut parts = text.split(',');
    let (kind, place) = parts.next().and_then(|what| what.split_once(':')).ok_or(ProbeError::Form)?;
    let (port, path) = place.split_at(place.find('/').unwrap_or(place.len()));
    let mut probe = v1::LivenessProbe {
        probe_type: kind.to_owned(),
        port: port.parse().map_err(|_| ProbeError::Port(port.to_owned()))?,
        path: path.to_owned(),
        ..Default::default()
    };
    for part in parts {
        let (name, value) = part.split_once('=').ok_or(ProbeError::Form)?;
        let seconds = || {
            let time = duration::parse(value, BareNumber::Seconds)?;
            u32::try_from(time.as_secs()).map_err(|_| ProbeError::TooLong(value.to_owned()))
        };
        let positive = |seconds: u32| if seconds == 0 { Err(ProbeError::Zero(name.to_owned())) } else { Ok(seconds) };
        match name {
            "period" => probe.period_secs = positive(seconds()?)?,
            "delay" => probe.initial_delay_secs = Some(seconds()?),
            "timeout" => probe.timeout_secs = positive(seconds()?)?,
            "failures" => probe.failure_threshold = positive(value.parse().map_err(|_| ProbeError::Number(value.to_owned()))?)?,
            other => return Err(ProbeError::Unknown(other.to_owned())),
        }
    }
    Ok(probe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read() {
        let read = |text: &str| parse_mount(text).map(|m| (m.source, m.target, m.access));
        let got = |s: &str, t: &str, a: &str| Ok((s.to_owned(), t.to_owned(), a.to_owned()));
        assert_eq!(read("/sets/a:/data/a"), got("/sets/a", "/data/a", ""));
        assert_eq!(read("./a:/data/a:ro"), got("./a", "/data/a", "ro"));
        assert_eq!(read("s3://a/b:/data:ro"), got("s3://a/b", "/data", "ro"));
        for bad in ["/a", "s3://a/b", "/a:b", ":/b", "/a:ro", ""] {
            assert!(read(bad).is_err(), "{bad}");
        }
        let flags =
            DataFlags { data_mount: vec![parse_mount("a:/data/a").unwrap(), parse_mount("s3://x:/data/b").unwrap()], ..Default::default() };
        let sources: Vec<String> = flags.data(Path::new("/home/ada")).mounts.into_iter().map(|m| m.source).collect();
        assert_eq!(sources, ["/home/ada/a", "s3://x"]);
    }

    #[test]
    fn probes_are_read() {
        let tcp = v1::LivenessProbe { probe_type: "tcp".into(), port: 80, ..Default::default() };
        assert_eq!(parse_probe("tcp:80"), Ok(tcp));
        let http = v1::LivenessProbe {
            probe_type: "http".into(),
            port: 8080,
            path: "/healthz".into(),
            period_secs: 60,
            initial_delay_secs: Some(0),
            failure_threshold: 2,
            timeout_secs: 1,
        };
        assert_eq!(parse_probe("http:8080/healthz,period=1m,delay=0,failures=2,timeout=1"), Ok(http));
        for bad in ["", "tcp", "tcp:", "tcp:x", "80", "http:80/,period", "http:80/,period=0", "http:80/,often=1", "tcp:80,failures=no"] {
            assert!(parse_probe(bad).is_err(), "{bad}");
        }
    }
}
