//! The part of alerts that outlives the agent: raised alerts, and since when launches are idle.
//!
//! One small file with a checksum. A thread of its own writes it when something has changed, so
//! that the measuring thread waits for no disk. An unreadable file counts as missing: alerts are
//! then raised again after their time.

use super::{AlertState, Alerts};
use lattice_agent_common::files;
use lattice_model::{AllocationId, Epoch};
use lattice_telemetry::alert::idle::Idle;
use lattice_telemetry::alert::rules::{HANG, Severity};
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

const VERSION: u32 = 1;
/// Bytes of the file that are read at most.
const BYTES_MAX: u64 = 16 << 20;
/// Pause between attempts to write it.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// An allocation under one claim.
pub type Key = (AllocationId, Epoch);

/// The file. Dropping it writes the last state, if that is possible.
#[derive(Debug)]
pub struct SavedAlerts {
    /// The last state that was given to the writer.
    last: Option<Contents>,
    desk: Arc<Desk>,
    writer: Option<JoinHandle<()>>,
}

/// The newest state, between the measuring thread and the writer.
#[derive(Debug, Default)]
struct Desk {
    wanted: Mutex<Wanted>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Wanted {
    contents: Option<Contents>,
    over: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Contents {
    version: u32,
    allocations: Vec<Saved>,
}

/// The stored state of one allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved {
    allocation: String,
    epoch: u64,
    /// Name of the alert, and since when it is raised.
    raised: Vec<(String, u64)>,
    /// Launch, and since when it hangs.
    hung: Vec<(u32, u64)>,
    /// Launch, its processor time in microseconds, when that was read, and since when it is idle.
    idle: Vec<(u32, u64, u64, u64)>,
}

impl Alerts {
    /// The state to store; `None`: nothing. `idle_ms`: how long a launch must have been idle to be
    /// stored.
    pub fn saved(&self, (allocation, epoch): Key, idle_ms: u64) -> Option<Saved> {
        let raised: Vec<_> = self.states.iter().filter_map(|(name, s)| Some((name.clone(), s.raised_since()?))).collect();
        let hung: Vec<_> = self.hung.iter().map(|(launch, since)| (*launch, *since)).collect();
        let idle = self.idle.iter().filter(|(_, idle)| idle.idle_ms() >= idle_ms);
        let idle: Vec<_> = idle.map(|(launch, idle)| (*launch, idle.used_us, idle.at_ms, idle.since_ms)).collect();
        let nothing = raised.is_empty() && hung.is_empty() && idle.is_empty();
        (!nothing).then(|| Saved { allocation: allocation.to_string(), epoch: epoch.0, raised, hung, idle })
    }

    /// Restores the stored alerts. Times in the future, after the clock was set back, become the
    /// present. `hangs`: whether the site still wants hang alerts; otherwise they would stay raised
    /// for ever, because nobody checks.
    pub fn restored(mut saved: Saved, now_ms: u64, hangs: bool, severity_of: impl Fn(&str) -> Option<Severity>) -> Self {
        if !hangs {
            (saved.hung, saved.idle) = (Vec::new(), Vec::new());
        }
        let mut alerts = Self { looked_at: vec!["cpu"], ..Self::default() };
        for (name, since_ms) in saved.raised {
            // A rule that the site has removed raises nothing any more.
            if let Some(severity) = severity_of(&name) {
                alerts.ever.insert(name.clone(), severity);
                alerts.states.insert(name, AlertState::Raised { since_ms: since_ms.min(now_ms) });
            }
        }
        for (launch, since_ms) in saved.hung {
            alerts.ever.insert(HANG.to_owned(), Severity::Warning);
            alerts.hung.insert(launch, since_ms.min(now_ms));
        }
        for (launch, used_us, at_ms, since_ms) in saved.idle {
            let at_ms = at_ms.min(now_ms);
            alerts.idle.insert(launch, Idle { used_us, at_ms, since_ms: since_ms.min(at_ms), moved: false });
        }
        alerts
    }
}

/// Whether two states are equal, except for the time of the newest check of an idle launch.
fn same(a: &Contents, b: &Contents) -> bool {
    let timeless = |contents: &Contents| {
        let of = |saved: &Saved| {
            let idle: Vec<_> = saved.idle.iter().map(|(launch, _, _, since)| (*launch, *since)).collect();
            (saved.allocation.clone(), saved.epoch, saved.raised.clone(), saved.hung.clone(), idle)
        };
        contents.allocations.iter().map(of).collect::<Vec<_>>()
    };
    timeless(a) == timeless(b)
}

impl SavedAlerts {
    /// The file in the agent's state folder, and its content.
    pub fn open(state_dir: &Path) -> (Self, BTreeMap<Key, Saved>) {
        let path = state_dir.join("alerts.json");
        let there = match read(&path) {
            Ok(there) => there,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the stored alerts cannot be read; alerts are raised again after their time");
                None
            }
        };
        let known = there.iter().flat_map(|contents| &contents.allocations);
        let known = known.filter_map(|saved| Some(((saved.allocation.parse().ok()?, Epoch(saved.epoch)), saved.clone()))).collect();
        let desk = Arc::<Desk>::default();
        let of_writer = Arc::clone(&desk);
        let writer = std::thread::Builder::new().name("alerts-file".to_owned()).spawn(move || of_writer.serve(&path));
        let writer = writer
            .inspect_err(|error| tracing::warn!(%error, "alerts cannot be stored: a restart of this agent forgets those that are raised"));
        (Self { last: there, desk, writer: writer.ok() }, known)
    }

    /// Stores this state, if it differs from the last one.
    pub fn store(&mut self, allocations: Vec<Saved>) {
        let contents = Contents { version: VERSION, allocations };
        let nothing = self.last.is_none() && contents.allocations.is_empty();
        if nothing || self.last.as_ref().is_some_and(|last| same(last, &contents)) {
            return;
        }
        self.last = Some(contents.clone());
        self.desk.with(|wanted| wanted.contents = Some(contents));
    }
}

impl Drop for SavedAlerts {
    fn drop(&mut self) {
        self.desk.with(|wanted| wanted.over = true);
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

impl Desk {
    fn with(&self, change: impl FnOnce(&mut Wanted)) {
        change(&mut self.wanted.lock());
        self.changed.notify_one();
    }

    /// Writes new states until it is stopped. A failed write is retried, unless there is a newer
    /// state by then: an agent with a full disk must still report alerts.
    fn serve(&self, path: &Path) {
        let mut wanted = self.wanted.lock();
        loop {
            if let Some(contents) = wanted.contents.take() {
                drop(wanted);
                let written = write(path, &contents);
                wanted = self.wanted.lock();
                if let Err(error) = written {
                    tracing::debug!(path = %path.display(), %error, "alerts cannot be stored now");
                    wanted.contents.get_or_insert(contents);
                    if !wanted.over {
                        self.changed.wait_for(&mut wanted, RETRY_INTERVAL);
                        continue;
                    }
                    return;
                }
            } else if wanted.over {
                return;
            } else {
                self.changed.wait(&mut wanted);
            }
        }
    }
}

fn write(path: &Path, contents: &Contents) -> io::Result<()> {
    let body = serde_json::to_string(contents).map_err(io::Error::other)?;
    files::replace(path, format!("{:08x} {body}\n", crc32fast::hash(body.as_bytes())).as_bytes())
}

fn read(path: &Path) -> io::Result<Option<Contents>> {
    let mut text = String::new();
    match File::open(path) {
        Ok(file) => file.take(BYTES_MAX).read_to_string(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "it is damaged");
    let (crc, body) = text.trim_end_matches('\n').split_once(' ').ok_or_else(damaged)?;
    if u32::from_str_radix(crc, 16).ok() != Some(crc32fast::hash(body.as_bytes())) {
        return Err(damaged());
    }
    let contents: Contents = serde_json::from_str(body)?;
    if contents.version == VERSION { Ok(Some(contents)) } else { Err(io::Error::other("it is of another version")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_telemetry::alert::AlertSettings;
    use lattice_telemetry::alert::idle::{IdleReport, Verdict};
    use lattice_telemetry::alert::rules::Rule;
    use lattice_telemetry::readers::{Part, Parts};
    use std::fs;

    #[test]
    fn raised_alerts_survive_a_restart_and_idle_time_includes_it() {
        let dir = std::env::temp_dir().join(format!("lattice-alerts-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        let rules = vec![Rule { for_ms: 0, ..Rule::above("busy", "cpu_cores", 1.0, 0.5) }];
        let settings = AlertSettings { hang_ms: Some(10_000), rules };
        let key = (AllocationId(uuid::Uuid::from_u128(7)), Epoch(3));
        let mut alerts = Alerts::default();
        let part = |launch, used_us| Part { launch, used_us, processes: 1 };
        let of = |parts: &[Part]| Parts { all: parts.to_vec(), cut: false };
        alerts.look(&settings, 1000, |_| Some(2.0));
        alerts.look_at_launches(0, &of(&[part(1, 5), part(2, 5)]), &[]);
        alerts.look_at_launches(20_000, &of(&[part(1, 5), part(2, 5)]), &[]);
        alerts.decide(1, Verdict::Hangs, 20_000, 10_000);
        let (mut file, nothing) = SavedAlerts::open(&dir);
        assert!(nothing.is_empty());
        file.store(vec![]);
        assert!(!dir.join("alerts.json").exists(), "of nothing there is no file");
        file.store(alerts.saved(key, 10_000).into_iter().collect());
        drop(file);
        let bytes = fs::read(dir.join("alerts.json")).unwrap();
        let (_, mut known) = SavedAlerts::open(&dir);
        let severity = |name: &str| (name == "busy").then_some(Severity::Warning);
        let off = Alerts::restored(known[&key].clone(), 40_000, false, severity);
        assert_eq!(off.raised(&settings).iter().map(|c| c.alert.as_str()).collect::<Vec<_>>(), ["busy"], "hangs are not told any more");
        let mut again = Alerts::restored(known.remove(&key).unwrap(), 40_000, true, severity);
        assert_eq!(again.raised(&settings).iter().map(|c| c.since_ms).collect::<Vec<_>>(), [1000, 20_000]);
        assert_eq!(again.since(0), Some(vec![]), "nothing changed: it is told to who asks what is raised");
        // The first launch moved meanwhile.
        again.look_at_launches(40_000, &of(&[part(1, 9_000_000), part(2, 6)]), &[]);
        assert_eq!(again.report(1), IdleReport::There { idle_ms: 0, moved: true });
        assert_eq!(again.report(2), IdleReport::There { idle_ms: 40_000, moved: false });
        // An alert is not cleared before its measure has a value.
        assert!(!again.look(&settings, 41_000, |_| None));
        assert!(again.look(&settings, 42_000, |_| Some(0.1)));
        for damage in [&bytes[..bytes.len() / 2], b"x", b"00000000 {}\n"] {
            fs::write(dir.join("alerts.json"), damage).unwrap();
            assert!(SavedAlerts::open(&dir).1.is_empty());
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}
