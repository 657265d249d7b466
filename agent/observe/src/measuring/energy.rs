//! Energy of this node and of each allocation in joules. It is stored before it is shown, so that
//! no counter decreases when the agent is killed. The next agent counts the energy that was used
//! while none ran.
//!
//! It is stored in one small file, with a checksum and the machine's boot id. The file is not
//! synced, because no work survives a crash of the machine either.

use super::gpu_numbers::Mine;
use crate::kernel_counts::{self, Key};
use lattice_model::{DesiredShare, Epoch};
use lattice_runtime::cgroup::Slice;
use lattice_runtime::identity;
use lattice_runtime::shim::boottime_ms;
use lattice_telemetry::energy::{Account, Mark, NodeMeter};
use lattice_telemetry::readers::{Rapl, Text};
use lattice_telemetry::usage::{Measure, Source, Usage};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The file in the state folder.
const FILE: &str = "energy";
const VERSION: u32 = 1;
/// Largest number of bytes of the file that are read.
const BYTES_MAX: u64 = 16 << 20;
/// How often meters are read while no work runs: much sooner than a meter wraps.
const IDLE_READ_INTERVAL: Duration = Duration::from_secs(10);

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Contents {
    version: u32,
    boot: String,
    node: NodeMeter,
    allocations: Vec<(String, u64, Account)>,
}

/// All energy meters of this node.
pub struct Energy {
    rapl: Rapl,
    processors: u32,
    node: NodeMeter,
    accounts: BTreeMap<Key, Account>,
    read_at: Option<Instant>,
    boot: String,
    file: PathBuf,
    written: Vec<u8>,
    cannot_write: bool,
}

impl Energy {
    /// The meters below `root`, continuing from the values stored in `state_dir`.
    pub fn open(root: &Path, state_dir: &Path) -> Self {
        let boot = identity::boot_id().map(|boot| boot.to_string()).unwrap_or_default();
        let file = state_dir.join(FILE);
        let kept = match read(&file) {
            Ok(kept) => kept.filter(|kept| kept.version == VERSION && kept.boot == boot).unwrap_or_default(),
            Err(error) => {
                tracing::warn!("{}: {error}: energy counters start from 0 again", file.display());
                Contents::default()
            }
        };
        let accounts = kept.allocations.into_iter().filter_map(|(id, epoch, account)| Some(((id.parse().ok()?, Epoch(epoch)), account)));
        Self {
            rapl: Rapl::below(root),
            processors: processors(root),
            node: kept.node,
            accounts: accounts.collect(),
            read_at: None,
            boot,
            file,
            written: Vec::new(),
            cannot_write: false,
        }
    }

    /// The node's energy.
    pub fn node(&self) -> &NodeMeter {
        &self.node
    }

    /// Reads the node's meters; less often while no work runs (`works`).
    pub fn look(&mut self, now: Instant, works: bool, text: &mut Text) {
        let is_due = works || self.read_at.is_none_or(|at| now.saturating_duration_since(at) >= IDLE_READ_INTERVAL);
        if is_due && self.rapl.names().next().is_some() {
            self.read_at = Some(now);
            self.node.take(&self.rapl.read(text));
        }
    }

    /// Adds an allocation's energy to its numbers.
    pub fn add(&mut self, share: &DesiredShare, mine: Option<&Mine>, usage: &mut Usage) {
        let key = (share.allocation, share.epoch);
        let drawn = mine.iter().flat_map(|mine| &mine.gpus).filter_map(|gpu| {
            let joules = gpu.load.energy_joules?;
            Some((gpu.id.clone(), (joules * 1e6) as u64))
        });
        let gpu_microjoules: BTreeMap<String, u64> = drawn.collect();
        let node_microjoules = self.node.microjoules();
        if node_microjoules.is_none() && gpu_microjoules.is_empty() && !self.accounts.contains_key(&key) {
            return;
        }
        let cpu_us = usage.cpu_seconds().map(|(seconds, _)| (seconds * 1e6) as u64);
        let is_whole = share.spec.share.is_none();
        let account = self.accounts.entry(key).or_default();
        account.take(Mark { at_ms: boottime_ms(), node_microjoules, cpu_us, gpu_microjoules }, self.processors, is_whole);
        usage.offer(Measure::EnergyCpu, account.cpu_joules(), if is_whole { Source::Rapl } else { Source::RaplShare });
        usage.offer(Measure::EnergyGpu, account.gpu_joules(), Source::Gpu);
    }

    /// Forgets allocations that have ended: those that are not present and have no scope that waits
    /// for adoption.
    pub fn retain(&mut self, slice: Option<&Slice>, present: impl Fn(&Key) -> bool) {
        let has_scope = |key: &Key| slice.is_some_and(|slice| slice.scope(key.0).work().path().exists());
        self.accounts.retain(|key, _| present(key) || has_scope(key));
    }

    /// Stores new values, before anybody sees them.
    pub fn store(&mut self) {
        if self.node.microjoules().is_none() && self.accounts.is_empty() && self.written.is_empty() {
            return;
        }
        let allocations = self.accounts.iter().map(|((id, epoch), account)| (id.to_string(), epoch.0, account.clone())).collect();
        let contents = Contents { version: VERSION, boot: self.boot.clone(), node: self.node.clone(), allocations };
        let bytes = encoded(&contents);
        if bytes == self.written {
            return;
        }
        match kernel_counts::write(&self.file, &bytes) {
            Ok(()) => (self.written, self.cannot_write) = (bytes, false),
            Err(error) => {
                if !self.cannot_write {
                    tracing::warn!("{}: {error}: energy counters start from 0 again when the agent is restarted", self.file.display());
                }
                self.cannot_write = true;
            }
        }
    }
}

fn encoded(contents: &Contents) -> Vec<u8> {
    // Encoding maps of strings to numbers cannot fail.
    let body = serde_json::to_string(contents).unwrap_or_default();
    format!("{:08x} {body}\n", crc32fast::hash(body.as_bytes())).into_bytes()
}

fn read(file: &Path) -> io::Result<Option<Contents>> {
    let mut text = String::new();
    match File::open(file) {
        Ok(file) => file.take(BYTES_MAX).read_to_string(&mut text)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let damaged = || io::Error::new(io::ErrorKind::InvalidData, "the file is damaged");
    let (crc, body) = text.trim_end_matches('\n').split_once(' ').ok_or_else(damaged)?;
    if u32::from_str_radix(crc, 16).ok() != Some(crc32fast::hash(body.as_bytes())) {
        return Err(damaged());
    }
    Ok(Some(serde_json::from_str(body)?))
}

/// The number of the machine's processors: the meters count them together.
fn processors(root: &Path) -> u32 {
    let stat = fs::read_to_string(root.join("proc/stat")).unwrap_or_default();
    let is_one = |line: &&str| line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    u32::try_from(stat.lines().filter(is_one).count()).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with one package whose meter shows this value.
    fn machine(root: &Path, microjoules: u64) {
        let zone = root.join("sys/class/powercap/intel-rapl:0");
        fs::create_dir_all(&zone).unwrap();
        fs::create_dir_all(root.join("proc")).unwrap();
        fs::write(root.join("proc/stat"), "cpu 1\ncpu0 1\ncpu1 1\nctxt 5\n").unwrap();
        fs::write(zone.join("name"), "package-0\n").unwrap();
        fs::write(zone.join("max_energy_range_uj"), "1000000000\n").unwrap();
        fs::write(zone.join("energy_uj"), format!("{microjoules}\n")).unwrap();
    }

    #[test]
    fn energy_counters_continue_after_a_restart_and_include_the_time_without_an_agent() {
        let root = std::env::temp_dir().join(format!("lattice-energy-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        machine(&root, 999_000_000);
        let share = super::super::tests::share(1, 1);
        let drawn = |energy: &mut Energy| {
            let (mut usage, mut text) = (Usage::default(), Text::default());
            energy.look(Instant::now(), true, &mut text);
            energy.add(&share, None, &mut usage);
            energy.store();
            usage.get(Measure::EnergyCpu)
        };
        let mut energy = Energy::open(&root, &root);
        assert_eq!((energy.processors, drawn(&mut energy)), (2, Some((0.0, Source::Rapl))));
        machine(&root, 1_000_000);
        assert_eq!(drawn(&mut energy), Some((2.0, Source::Rapl)), "the meter wrapped in between");
        drop(energy);
        machine(&root, 4_000_000);
        let mut energy = Energy::open(&root, &root);
        assert_eq!(drawn(&mut energy), Some((5.0, Source::Rapl)));
        assert_eq!(energy.node().domains().collect::<Vec<_>>(), [("package-0", 5.0)]);
        // A file of another boot, or a damaged one, counts as missing.
        let mut contents = read(&root.join(FILE)).unwrap().unwrap();
        "another".clone_into(&mut contents.boot);
        fs::write(root.join(FILE), encoded(&contents)).unwrap();
        assert_eq!(drawn(&mut Energy::open(&root, &root)), Some((0.0, Source::Rapl)));
        fs::write(root.join(FILE), "00000000 {}\n").unwrap();
        assert_eq!(drawn(&mut Energy::open(&root, &root)), Some((0.0, Source::Rapl)));
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_machine_without_meters_stores_nothing() {
        let root = std::env::temp_dir().join(format!("lattice-no-energy-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let mut energy = Energy::open(&root, &root);
        let mut usage = Usage::default();
        energy.look(Instant::now(), true, &mut Text::default());
        energy.add(&super::super::tests::share(1, 1), None, &mut usage);
        energy.store();
        assert_eq!((usage.get(Measure::EnergyCpu), root.join(FILE).exists()), (None, false));
        fs::remove_dir_all(&root).unwrap();
    }
}
