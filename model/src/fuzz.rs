//! Fuzz targets for texts from users, certificates and configuration. `docs/fuzzing.md` lists all
//! targets.

use crate::duration::BareNumber;
use crate::{
    AllocationId, AllocationPrefix, AuditAction, CheckpointSignal, Distribution, NodeId, Stdin, TaskGroup, TelemetryMode, constraint,
    duration, hostlist, signal, size,
};
use lattice_fuzz::{Target, numbered};
use std::fmt::{Debug, Display};
use std::str::FromStr;

/// Checks that a parsed value can be written, and that parsing the result gives an equal value.
fn round_trip<T: FromStr<Err: Debug> + Display + PartialEq + Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        assert_eq!(value.to_string().parse::<T>().unwrap(), value);
    }
}

#[test]
fn texts() {
    let texts: [&[&str]; 11] = [
        &["n[1-3,7],login", "n[08-11]", "a,b", "x1000c0s0b0n[0-3]"],
        &["4G", "1.5TiB", "512", "0", "12kB"],
        &["90", "1h30m", "01:30:00", "2-12:00:00", "infinite"],
        &["block", "cyclic", "plane=4", "arbitrary"],
        &["1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88", "1f0c9a4e"],
        &["1f0c9a4e", "1f0c9a4e-5b7d"],
        &["n1", "x1000c0s0b0n0"],
        &["USR1", "SIGTERM", "15", "RTMIN+1"],
        &["none", "all", "0", "debug", "audit", "Submitted", "all"],
        &["0-99%20", "1,5,9", "0-98:2,7", "9,8-10,5-50:5%1"],
        &["gpu_type=GH200", "nvme_scratch"],
    ];
    let seeds = texts.map(|texts| texts.iter().map(|text| text.as_bytes().to_vec()).collect());
    // A list may name many thousand nodes, up to a limit.
    Target::new("model-texts", numbered(seeds)).memory_bytes_max(64 << 20).fuzz(|bytes| {
        let Some((which, text)) = bytes.split_first() else { return };
        let text = &*String::from_utf8_lossy(text);
        match which {
            0 => {
                if let Ok(nodes) = hostlist::expand(text) {
                    assert_eq!(hostlist::expand(&hostlist::fold(&nodes)).as_ref(), Ok(&nodes), "{text}");
                }
            }
            1 => drop(size::parse(text)),
            2 => {
                for bare in [BareNumber::Seconds, BareNumber::Minutes] {
                    drop(duration::parse(text, bare).map(duration::clock_text));
                }
            }
            3 => round_trip::<Distribution>(text),
            4 => round_trip::<AllocationId>(text),
            5 => drop(text.parse::<AllocationPrefix>().map(|prefix| prefix.bounds())),
            6 => round_trip::<NodeId>(text),
            7 => {
                drop(text.parse::<signal::WorkSignal>());
                drop(text.parse::<CheckpointSignal>());
            }
            8 => {
                drop(text.parse::<Stdin>());
                drop(text.parse::<TelemetryMode>());
                drop(text.parse::<AuditAction>());
            }
            9 => {
                if let Ok(group) = TaskGroup::parse(text) {
                    assert_eq!(TaskGroup::parse(&group.to_string()).as_ref(), Ok(&group), "{text}");
                }
            }
            _ => assert!(!constraint::is_feature(text) || text.len() <= constraint::FEATURE_BYTES_MAX),
        }
    });
}
