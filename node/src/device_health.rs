//! The health of a node's GPUs: what each finding requires, by a versioned table.
//!
//! ```text
//!   none ───────────────────────────── not reported
//!   warn ───────────────────────────── reported; the GPU stays in use
//!   restart_application ────────────── as warn, and the work on it fails, to begin again if its owner wants that
//!   reset, replace ─────────────────── reported; the GPU is not offered until it is well
//!   drain ──────────────────────────── as reset, and the node asks to be drained (`crate::health`)
//!   fail ───────────────────────────── as reset, and the node's hardware counts as failed: Down at once
//! ```
//!
//! The numbers are those of NVIDIA's "Xid Catalog" for Ampere and later ("Analyzing Xid Errors with
//! the Xid Catalog", column "Immediate Action"); the rest follows "GPU Memory Error Management" and
//! the NVML reference. Where the catalogue refers to a workflow, the table has the severest outcome
//! of that workflow, except for 45, which always comes with another error.
//!
//! No default response is `fail`, although the requirement is that the node is Down after an
//! uncorrectable memory error and after a GPU fell off the bus. The node knows which of its GPUs
//! failed, which work had it and whether a reset helps; Down would end the work on all others. A
//! site that wants it sets `gpu_policy: {version: 1, xids: {48: fail, 79: fail}}`.
//!
//! A response that withholds the GPU lasts until the GPU was visibly reset: it was gone from the
//! bus and came back, the bus found it anew, the driver had lost it and has it again, or the driver
//! no longer asks for a recovery. It also ends with a restart of the machine, as the kernel's log
//! does. Errors that the log has from before the first look are dropped if the driver's first answer
//! asks for no recovery: the GPU was reset while no agent ran.
//!
//! `restart_application` ends work that had the GPU before the error, by the time in the kernel's
//! log; a successor is left alone. On a partitioned GPU no work is ended, because the log does not
//! name the instance.

use crate::health::{Finding, Window};
use lattice_model::Timestamp;
use lattice_model::gpu_look::{GpuEvent, GpuLook, GpuRead, GpuReading, GpuReads, GpuRecovery, gpu_key};
use lattice_model::topology::GpuDevice;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;
use thiserror::Error;

/// The table's version; it changes whenever any response changes.
pub const POLICY_VERSION: u32 = 1;
/// How many errors a site may give its own responses for.
const OWN_MAX: usize = 256;
/// How many error numbers are stored per GPU; beyond that, the oldest one without a lasting
/// response is dropped.
const XIDS_MAX: usize = 32;
/// How long an error without a lasting response is reported, in milliseconds.
const XID_REPORT_MS: u64 = 3_600_000;
/// The error "the GPU has fallen off the bus".
const FALLEN_OFF: u32 = 79;

/// The response to a finding, the least severe first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// Nothing, and no report.
    None,
    /// A report.
    Warn,
    /// The work on the GPU was hit and is ended; the GPU itself is well.
    RestartApplication,
    /// The GPU must be reset.
    Reset,
    /// The GPU must be replaced.
    Replace,
    /// The whole node must be drained, then restarted or examined.
    Drain,
    /// The node's hardware failed: it is out of service at once, until an operator declares it
    /// repaired. Only a site's own policy has this.
    Fail,
}

impl Response {
    /// Whether the GPU is withheld from work.
    pub fn withholds(self) -> bool {
        match self {
            Self::None | Self::Warn | Self::RestartApplication => false,
            Self::Reset | Self::Replace | Self::Drain | Self::Fail => true,
        }
    }
}

impl fmt::Display for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "nothing to do",
            Self::Warn => "look after it",
            Self::RestartApplication => "the program must be started again, the GPU itself is well",
            Self::Reset => "reset the GPU, which is not offered until then",
            Self::Replace => "replace the GPU, which is not offered any more",
            Self::Drain => "drain the node, then restart or repair the machine",
            Self::Fail => "the node is out of service until it is repaired",
        })
    }
}

/// Errors by number, with response and description. [`Policy::unknown_xid`] is for all others.
const XIDS: &[(RangeInclusive<u32>, Response, &str)] = &[
    (8..=8, Response::RestartApplication, "the GPU stopped processing"),
    (11..=11, Response::RestartApplication, "invalid push buffer"),
    (13..=13, Response::RestartApplication, "graphics engine exception"),
    (14..=14, Response::None, "unused"),
    (25..=25, Response::RestartApplication, "illegal notification"),
    (31..=31, Response::RestartApplication, "memory page fault"),
    (32..=32, Response::RestartApplication, "corrupted push buffer"),
    (37..=38, Response::None, "driver firmware"),
    (39..=41, Response::RestartApplication, "copy engine"),
    (43..=44, Response::None, "a channel was reset"),
    (45..=45, Response::Warn, "channels were removed after another error"),
    (46..=46, Response::Reset, "the GPU does not answer"),
    (48..=48, Response::Reset, "double-bit memory error"),
    (54..=54, Response::Drain, "auxiliary power is not connected"),
    (60..=60, Response::RestartApplication, "security engine"),
    (62..=62, Response::Reset, "power management firmware halted"),
    (63..=63, Response::None, "a row of memory is to be replaced"),
    (64..=64, Response::Reset, "a row of memory could not be replaced"),
    (66..=67, Response::None, "context switch firmware"),
    (68..=72, Response::RestartApplication, "an engine failed"),
    (74..=74, Response::Reset, "NVLink error"),
    (75..=77, Response::RestartApplication, "copy engine"),
    (78..=78, Response::Warn, "a virtual GPU could not start: software or firmware is to be updated"),
    (79..=79, Response::Drain, "the GPU has fallen off the bus"),
    (80..=80, Response::RestartApplication, "push buffer checksum"),
    (82..=86, Response::RestartApplication, "an engine failed"),
    (88..=89, Response::RestartApplication, "video decoder"),
    (92..=93, Response::None, "many single-bit errors"),
    (94..=94, Response::RestartApplication, "memory error, contained"),
    (95..=95, Response::Reset, "memory error, not contained"),
    (96..=105, Response::RestartApplication, "a video engine failed"),
    (106..=108, Response::None, "informational"),
    (109..=110, Response::Reset, "context switch timeout, or security fault"),
    (119..=120, Response::Reset, "the GPU's system processor does not answer"),
    (121..=121, Response::None, "chip-to-chip link error, corrected"),
    (126..=135, Response::RestartApplication, "copy engine"),
    (136..=136, Response::Reset, "link training failed"),
    (137..=137, Response::None, "NVLink privilege error"),
    (139..=139, Response::RestartApplication, "optical flow engine"),
    (140..=140, Response::Reset, "memory error that could not be recovered"),
    (141..=141, Response::None, "fast path error"),
    (142..=142, Response::Warn, "video encoder"),
    (143..=143, Response::Reset, "the GPU could not be initialised"),
    (144..=146, Response::Reset, "NVLink error"),
    (147..=148, Response::None, "NVLink event"),
    (149..=150, Response::Reset, "NVLink error"),
    (151..=151, Response::Drain, "key rotation failed"),
    (152..=153, Response::None, "deep learning accelerator"),
    (154..=154, Response::Warn, "what the driver asks for has changed"),
    (155..=156, Response::Reset, "NVLink software error, or a retired resource"),
    (157..=157, Response::None, "a resource could not be retired"),
    (158..=159, Response::Reset, "fatal timeout"),
    (160..=161, Response::None, "a memory channel was retired"),
];

/// The table, with a site's own responses.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Policy {
    /// The version of the table that the site's own responses were written for. Required if there
    /// are any; they are refused if it is not this program's version.
    pub version: Option<u32>,
    /// The site's own responses to errors, by number (XID).
    pub xids: BTreeMap<u32, Response>,
    /// Response to an error that is not in the table.
    pub unknown_xid: Response,
    /// Response to a GPU that is on the bus and that no driver reports. If a driver reports it as
    /// lost, that is error 79.
    pub silent: Response,
    /// Response to uncorrectable memory errors. Those that need a reset come with an error that
    /// asks for one.
    pub ecc_uncorrected: Response,
    /// Response to a memory row that is replaced at the next reset.
    pub remap_pending: Response,
    /// Response to a memory row that cannot be replaced.
    pub remap_failed: Response,
    /// Response to an NVLink that was up and is down.
    pub nvlink_down: Response,
    /// Response to more than `nvlink_errors_max` errors of a GPU's links within
    /// `nvlink_window_seconds`.
    pub nvlink_errors: Response,
    /// Errors; at least 1.
    pub nvlink_errors_max: u64,
    /// Seconds; 1 to 604,800.
    pub nvlink_window_seconds: u64,
    /// Response to a temperature at which the GPU slows itself down.
    pub hot: Response,
    /// Response to a temperature at which the GPU switches itself off.
    pub too_hot: Response,
    /// Response to clocks that the hardware holds down.
    pub throttled: Response,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            version: None,
            xids: BTreeMap::new(),
            unknown_xid: Response::Warn,
            // `Reset` withholds the GPU only: work that needs no GPU may continue and begin.
            silent: Response::Reset,
            // A contained memory error (94) raises the same counter.
            ecc_uncorrected: Response::Warn,
            // NVIDIA: work may continue and begin.
            remap_pending: Response::Warn,
            remap_failed: Response::Replace,
            nvlink_down: Response::Reset,
            nvlink_errors: Response::Warn,
            nvlink_errors_max: 1000,
            nvlink_window_seconds: 3600,
            hot: Response::Warn,
            too_hot: Response::Drain,
            throttled: Response::Warn,
        }
    }
}

/// Why a policy is invalid.
#[derive(Debug, Error)]
pub enum PolicyError {
    #[error(
        "version: these responses are for {}, this program's table is version {POLICY_VERSION}: compare them with it (docs/reference/gpu-errors.md), then set this version",
        given.map_or_else(|| "no version".to_owned(), |version| format!("version {version}"))
    )]
    Version { given: Option<u32> },
    #[error("xids: at most {OWN_MAX} can have responses of their own")]
    TooMany,
    #[error("{field}: {value} is not between 1 and {max}")]
    OutOfRange { field: &'static str, value: u64, max: u64 },
}

impl Policy {
    /// Checks version and ranges.
    pub fn validate(&self) -> Result<(), PolicyError> {
        if (self.has_own() || self.version.is_some()) && self.version != Some(POLICY_VERSION) {
            return Err(PolicyError::Version { given: self.version });
        }
        if self.xids.len() > OWN_MAX {
            return Err(PolicyError::TooMany);
        }
        let ranges =
            [("nvlink_errors_max", self.nvlink_errors_max, u64::MAX), ("nvlink_window_seconds", self.nvlink_window_seconds, 604_800)];
        for (field, value, max) in ranges {
            if !(1..=max).contains(&value) {
                return Err(PolicyError::OutOfRange { field, value, max });
            }
        }
        Ok(())
    }

    /// The response to an error, and its description.
    pub fn xid(&self, number: u32) -> (Response, &'static str) {
        let known = XIDS.iter().find(|(numbers, ..)| numbers.contains(&number));
        let (response, what) = known.map_or((self.unknown_xid, "not in the table"), |(_, response, what)| (*response, what));
        (self.xids.get(&number).copied().unwrap_or(response), what)
    }

    /// The response to the recovery that a driver asks for.
    fn recovery(recovery: GpuRecovery) -> Option<(Response, &'static str)> {
        match recovery {
            GpuRecovery::None => None,
            GpuRecovery::Reset => Some((Response::Reset, "its driver asks for a reset")),
            GpuRecovery::Reboot => Some((Response::Drain, "its driver asks for a restart of the machine")),
            GpuRecovery::DrainP2p => Some((Response::Drain, "its driver asks that all traffic between GPUs ends")),
            GpuRecovery::DrainAndReset => Some((Response::Reset, "its driver asks for a reset when nothing runs on it")),
        }
    }

    /// The version for people, and whether the site changed any response.
    pub fn shown(&self) -> String {
        let own = if self.has_own() { ", with the site's own responses" } else { "" };
        format!("{POLICY_VERSION}{own}")
    }

    fn has_own(&self) -> bool {
        *self != Self { version: self.version, ..Self::default() }
    }
}

/// Whether a GPU is present.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Presence {
    Yes,
    /// The GPU is not on the bus.
    OffBus,
    /// The GPU is on the bus, and its driver has lost it.
    Lost(String),
    /// The GPU is on the bus, and no driver reports it.
    Silent(String),
}

#[derive(Clone, Debug)]
struct Gpu {
    presence: Presence,
    /// The last time of each error, by number.
    xids: BTreeMap<u32, Timestamp>,
    /// The numbers of errors from before the first look; empty once the driver has answered.
    replayed: BTreeSet<u32>,
    reading: GpuReading,
    /// The most links that were up at once.
    links: u32,
    /// The errors of the links within the window.
    link_errors: (Window, u64),
}

impl Gpu {
    fn new(policy: &Policy) -> Self {
        let window = Window::new(policy.nvlink_window_seconds.saturating_mul(1000));
        Self {
            presence: Presence::Yes,
            xids: BTreeMap::new(),
            replayed: BTreeSet::new(),
            reading: GpuReading::default(),
            links: 0,
            link_errors: (window, 0),
        }
    }

    fn apply_reading(&mut self, now: Timestamp, reading: &GpuReading) {
        let wanted = |reading: &GpuReading| reading.recovery.and_then(Policy::recovery).is_some();
        // The driver asked for a recovery and no longer does: it was done.
        if wanted(&self.reading) && !wanted(reading) {
            self.xids.clear();
        }
        let replayed = std::mem::take(&mut self.replayed);
        if reading.recovery == Some(GpuRecovery::None) {
            self.xids.retain(|number, _| !replayed.contains(number));
        }
        self.links = self.links.max(reading.nvlinks_up.unwrap_or(0));
        if let Some(errors) = reading.nvlink_errors {
            self.link_errors.1 = self.link_errors.0.counted(now, errors);
        }
        self.reading = reading.clone();
    }
}

/// The state of one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuStatus {
    /// Why the GPU is lost: the work that had it has lost it.
    pub lost: Option<String>,
    /// The GPU's problems and their responses, the severest first.
    pub problems: Vec<(Response, String)>,
}

impl GpuStatus {
    /// Whether work may get the GPU.
    pub fn is_allocatable(&self) -> bool {
        self.lost.is_none() && self.problems.iter().all(|(response, _)| !response.withholds())
    }

    /// Whether the GPU is well. An error that only hit a program does not count.
    pub fn is_healthy(&self) -> bool {
        self.lost.is_none() && self.problems.iter().all(|(response, _)| *response == Response::RestartApplication)
    }

    /// The problems, for people; empty if there are none.
    pub fn why(&self) -> String {
        let problems = self.problems.iter().map(|(response, what)| format!("{what}: {response}"));
        self.lost.iter().map(|why| format!("lost: {why}")).chain(problems).collect::<Vec<_>>().join("; ")
    }
}

/// All GPUs that this agent has seen since it started.
#[derive(Clone, Debug)]
pub struct Gpus {
    policy: Policy,
    /// Whether there has been a look: errors that the first look reports are older than it.
    looked: bool,
    gpus: BTreeMap<String, Gpu>,
    unsupported: Vec<String>,
}

impl Gpus {
    /// No GPU has been seen yet.
    pub fn new(policy: Policy) -> Self {
        Self { policy, looked: false, gpus: BTreeMap::new(), unsupported: Vec::new() }
    }

    /// The policy in force.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Applies one look at the bus and the kernel's log.
    pub fn looked(&mut self, now: Timestamp, look: &GpuLook) {
        let is_first = !std::mem::replace(&mut self.looked, true);
        for key in &look.on_bus {
            let fresh = Gpu::new(&self.policy);
            let gpu = self.gpus.entry(key.clone()).or_insert_with(|| fresh.clone());
            if gpu.presence == Presence::OffBus {
                *gpu = fresh;
            }
        }
        for (key, gpu) in &mut self.gpus {
            if !look.on_bus.contains(key) {
                gpu.presence = Presence::OffBus;
            }
        }
        for (key, event) in &look.events {
            let Some(gpu) = self.gpus.get_mut(key).filter(|gpu| gpu.presence != Presence::OffBus) else { continue };
            match event {
                GpuEvent::Found => gpu.xids.clear(),
                GpuEvent::Xid { number, ago_ms } => {
                    gpu.xids.insert(*number, Timestamp(now.0.saturating_sub(*ago_ms)));
                    if is_first {
                        gpu.replayed.insert(*number);
                    } else {
                        gpu.replayed.remove(number);
                    }
                    let least = |(number, at): &(&u32, &Timestamp)| (self.policy.xid(**number).0.withholds(), **at);
                    if gpu.xids.len() > XIDS_MAX
                        && let Some(number) = gpu.xids.iter().min_by_key(least).map(|(number, _)| *number)
                    {
                        gpu.xids.remove(&number);
                        gpu.replayed.remove(&number);
                    }
                }
            }
        }
    }

    /// Applies the drivers' answers.
    pub fn read(&mut self, now: Timestamp, reads: &GpuReads) {
        self.unsupported.clone_from(&reads.unsupported);
        for (key, read) in &reads.gpus {
            // An answer from before the GPU left the bus says nothing about it.
            let Some(gpu) = self.gpus.get_mut(key).filter(|gpu| gpu.presence != Presence::OffBus) else { continue };
            match read {
                GpuRead::Reading(reading) => {
                    if matches!(gpu.presence, Presence::Lost(_)) {
                        *gpu = Gpu::new(&self.policy);
                    }
                    gpu.presence = Presence::Yes;
                    gpu.apply_reading(now, reading);
                }
                GpuRead::Lost(why) => gpu.presence = Presence::Lost(why.clone()),
                GpuRead::Silent(why) => gpu.presence = Presence::Silent(why.clone()),
            }
        }
    }

    /// The state of each GPU, by key.
    pub fn statuses(&self, now: Timestamp) -> BTreeMap<String, GpuStatus> {
        self.gpus.iter().map(|(key, gpu)| (key.clone(), self.status(now, gpu))).collect()
    }

    fn status(&self, now: Timestamp, gpu: &Gpu) -> GpuStatus {
        let lost = match &gpu.presence {
            Presence::OffBus => return GpuStatus { lost: Some("the bus does not show it any more".to_owned()), problems: Vec::new() },
            Presence::Lost(why) => Some(why.clone()),
            Presence::Yes | Presence::Silent(_) => None,
        };
        let mut problems: Vec<(Response, String)> = Vec::new();
        match &gpu.presence {
            Presence::Lost(why) => {
                problems.push((self.policy.xid(FALLEN_OFF).0, format!("the bus shows it, its driver has lost it: {why}")));
            }
            Presence::Silent(why) => problems.push((self.policy.silent, format!("the bus shows it, its driver does not: {why}"))),
            Presence::Yes | Presence::OffBus => {}
        }
        for (number, at) in &gpu.xids {
            let (response, what) = self.policy.xid(*number);
            if response.withholds() || now.0.saturating_sub(at.0) <= XID_REPORT_MS {
                problems.push((response, format!("XID {number} ({what})")));
            }
        }
        let (policy, reading) = (&self.policy, &gpu.reading);
        let mut found = |is: bool, response, what: String| {
            if is {
                problems.push((response, what));
            }
        };
        let errors = reading.ecc_uncorrected.unwrap_or(0);
        found(errors > 0, policy.ecc_uncorrected, format!("{errors} memory errors that could not be corrected"));
        found(reading.remap_pending == Some(true), policy.remap_pending, "a row of memory is replaced at its next reset".to_owned());
        found(reading.remap_failed == Some(true), policy.remap_failed, "a row of memory cannot be replaced".to_owned());
        let down = gpu.links.saturating_sub(reading.nvlinks_up.unwrap_or(gpu.links));
        found(down > 0, policy.nvlink_down, format!("{down} of {} NVLinks are down", gpu.links));
        let recent_errors = gpu.link_errors.1;
        found(recent_errors > policy.nvlink_errors_max, policy.nvlink_errors, format!("{recent_errors} NVLink errors lately"));
        if let Some(degrees) = reading.temperature_c {
            let reached = |limit: Option<u32>| limit.is_some_and(|limit| limit > 0 && degrees >= limit);
            if reached(reading.shutdown_c) {
                found(true, policy.too_hot, format!("{degrees} °C, at which it switches itself off"));
            } else {
                found(reached(reading.slowdown_c), policy.hot, format!("{degrees} °C, at which it slows itself down"));
            }
        }
        found(!reading.throttled.is_empty(), policy.throttled, format!("its clocks are held down: {}", reading.throttled.join(", ")));
        if let Some((response, what)) = reading.recovery.and_then(Policy::recovery) {
            found(true, response, what.to_owned());
        }
        problems.retain(|(response, _)| *response != Response::None);
        // The sort is stable: equally severe problems stay in the order in which they were found.
        problems.sort_by_key(|(response, _)| std::cmp::Reverse(*response));
        GpuStatus { lost, problems }
    }

    /// The findings of the node's checks. `devices`: the GPUs that the drivers offer and that work
    /// can get; `expected`: how many of them the node must have at least.
    pub fn findings(&self, now: Timestamp, expected: u64, devices: &[GpuDevice]) -> Vec<(String, Finding)> {
        let statuses = self.statuses(now);
        let is_lost = |key: &str| statuses.get(key).is_some_and(|s| s.lost.is_some());
        let there = devices.iter().filter(|device| !is_lost(gpu_key(device))).count();
        let all = if there as u64 >= expected {
            match (statuses.is_empty(), self.unsupported.as_slice()) {
                (true, []) => Finding::Unsupported("there is none on this machine".to_owned()),
                (false, []) => Finding::Ok,
                (_, what) => Finding::Unsupported(what.join("; ")),
            }
        } else {
            let (missing, on_bus): (Vec<&str>, Vec<&str>) = statuses.keys().map(String::as_str).partition(|key| is_lost(key));
            let unknown = on_bus.into_iter().filter(|key| devices.iter().all(|device| gpu_key(device) != *key)).collect();
            let each = [(missing, "is missing"), (unknown, "is on the bus, no driver offers it")];
            let named = each.iter().filter(|(keys, _)| !keys.is_empty()).map(|(keys, what)| format!("{} {what}", keys.join(", ")));
            let all: Vec<String> = std::iter::once(format!("{there} of {expected} GPUs")).chain(named).collect();
            Finding::Critical(all.join(": "))
        };
        let each = statuses.into_iter().map(|(key, status)| {
            let why = status.why();
            // The severest comes first.
            let finding = match status.problems.first().map(|(response, _)| response) {
                Some(Response::Fail) => Finding::Failure(why),
                Some(Response::Drain) => Finding::Drain(why),
                Some(_) | None if why.is_empty() => Finding::Ok,
                Some(_) | None => Finding::Warning(why),
            };
            (format!("gpu {key}"), finding)
        });
        std::iter::once(("gpus".to_owned(), all)).chain(each).collect()
    }
}

#[cfg(test)]
#[path = "device_health_tests.rs"]
mod tests;
