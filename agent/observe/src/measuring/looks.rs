//! The measuring thread. A look reads all counters of some or all allocations.

use super::early_looks::{self, EarlyLooks};
use super::handles::Handles;
use super::histories::export_delay;
use super::{ALLOCATIONS_MAX, LOOK_INTERVAL, Measuring, gpu_numbers};
use crate::alerting::saved::{Key, Saved, SavedAlerts};
use crate::alerting::{IDLE_CHECK_INTERVAL, NetworkErrors};
use crate::measuring::energy::Energy;
use crate::traces::Recorder;
use lattice_model::{AllocationId, DesiredShare, TelemetryMode, millis};
use lattice_registry::AllocationHandle;
use lattice_telemetry::readers::{CgroupPaths, Listeners, Meter, Pass, Reclaim, Text};
use nix::time::{ClockId, clock_gettime};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The pause after a look is at least this many times the processor time that the look took.
const PAUSE_TIMES: u32 = 20;
/// How many processes one look lists, over all allocations.
const PROCESSES_MAX: usize = 16_384;

impl Measuring {
    /// Starts the measuring thread, which runs until `stop`. `ended_for`: how long the last numbers
    /// of ended work are exported.
    pub fn begin(&self, ended_for: Duration, tasks: &TaskTracker, stop: CancellationToken) -> io::Result<()> {
        let (measuring, view, stopped) = (self.clone(), self.0.handles.view.clone(), stop.clone());
        let ended_for = ended_for + export_delay(self.0.smoothing);
        let run = move || Looks::new(&measuring, &measuring.0.handles, ended_for).run(&stop);
        let thread = std::thread::Builder::new().name("measuring".to_owned()).spawn(run)?;
        tasks.spawn(async move {
            early_looks::wake(thread.thread().clone(), view, stopped).await;
            // If the thread panicked, the panic hook has printed that.
            let _ended = tokio::task::spawn_blocking(move || thread.join()).await;
        });
        Ok(())
    }
}

/// The state of the thread.
struct Looks<'a> {
    measuring: &'a Measuring,
    handles: &'a Handles,
    /// How long numbers of ended work are exported.
    ended_for: Duration,
    meters: BTreeMap<Key, Meter>,
    text: Text,
    reclaim: Reclaim,
    listeners: Listeners,
    /// The same moment by the monotonic clock and the wall clock. So windows of different nodes are
    /// aligned, and setting the wall clock moves no window of this agent.
    began: (Instant, u64),
    next_idle: Instant,
    network: NetworkErrors,
    file: SavedAlerts,
    /// Alerts that the agent's earlier run stored, of work without a look since then.
    saved: BTreeMap<Key, Saved>,
    energy: Energy,
    recorder: Recorder,
    early_looks: EarlyLooks,
}

impl<'a> Looks<'a> {
    fn new(measuring: &'a Measuring, handles: &'a Handles, ended_for: Duration) -> Self {
        let began = (Instant::now(), lattice_agent_common::clock::now().0);
        let (file, saved) = SavedAlerts::open(&handles.state_dir);
        Self {
            measuring,
            handles,
            ended_for,
            meters: BTreeMap::new(),
            text: Text::default(),
            reclaim: Reclaim::default(),
            listeners: Listeners::default(),
            began,
            next_idle: began.0,
            network: NetworkErrors::default(),
            file,
            saved,
            energy: Energy::open(Path::new("/"), &handles.state_dir),
            recorder: handles.traces.recorder(TelemetryMode::Debug, handles.me.clone(), handles.view.clone(), handles.problems.clone()),
            early_looks: EarlyLooks::default(),
        }
    }

    /// Looks until `stop`.
    fn run(mut self, stop: &CancellationToken) {
        let mut next = Instant::now();
        while !stop.is_cancelled() {
            self.early_looks.note(self.recorder.follow(), Instant::now());
            let (now, before) = (Instant::now(), processor_time());
            let used = || processor_time().saturating_sub(before).saturating_mul(PAUSE_TIMES);
            if now >= next {
                self.early_looks.clear();
                self.look_at_all(now);
                // Missed looks are skipped.
                next = (now + LOOK_INTERVAL).max(Instant::now() + used());
                continue;
            }
            let (due, later) = self.early_looks.due(now, |key| self.measuring.known().looked(key));
            if !due.is_empty() {
                self.look_at_some(&due, now);
                // An early look delays the next regular one by its share of the budget.
                next += used();
                continue;
            }
            // Waits in short steps, so that `stop` is noticed.
            let until = later.into_iter().fold(next.min(now + LOOK_INTERVAL), Instant::min);
            std::thread::park_timeout(until.saturating_duration_since(now));
        }
    }

    /// Looks at all allocations.
    fn look_at_all(&mut self, now: Instant) {
        let Self { measuring, handles, .. } = *self;
        // Read before the running allocations: an allocation that is prepared in between is not in
        // this list, so its counts are not removed.
        let mut gone = measuring.0.kernel.tracked();
        let mut allocations = handles.allocations.all();
        let left_out = allocations.len().saturating_sub(ALLOCATIONS_MAX);
        // Allocations that are not measured are still counted in the kernel.
        let run: BTreeSet<Key> = allocations.iter().map(|handle| (handle.share.allocation, handle.share.epoch)).collect();
        gone.retain(|key| !run.contains(key));
        allocations.truncate(ALLOCATIONS_MAX);
        measuring.0.left_out.store(left_out as u64, Ordering::Relaxed);
        let present: BTreeSet<Key> = allocations.iter().map(|handle| (handle.share.allocation, handle.share.epoch)).collect();
        self.meters.retain(|key, _| present.contains(key));
        for (key, last) in measuring.0.kernel.end(gone) {
            measuring.known().last_of_kernel(key, &last);
        }
        measuring.known().retain_recent(now, (self.ended_for, measuring.0.smoothing), |tracked| {
            present.contains(&(tracked.share.allocation, tracked.share.epoch))
        });
        self.saved.retain(|key, _| present.contains(key));
        let measures = !allocations.is_empty();
        let looks_at_launches = measures && now >= self.next_idle;
        if looks_at_launches {
            self.next_idle = now + IDLE_CHECK_INTERVAL;
            self.network.look(&mut self.text);
            measuring.known().network_errors = self.network.ratio();
        }
        self.look(&allocations, now, looks_at_launches);
        self.energy.retain(handles.slice.as_ref(), |key| present.contains(key));
        if measures {
            measuring.0.seconds.observe(now.elapsed());
        }
        measuring.0.kernel.account(Instant::now());
        measuring.0.looked.send_modify(|looked| *looked += 1);
    }

    /// Looks at these allocations only.
    fn look_at_some(&mut self, keys: &BTreeSet<Key>, now: Instant) {
        let mut allocations = self.handles.allocations.all();
        allocations.truncate(ALLOCATIONS_MAX);
        allocations.retain(|handle| keys.contains(&(handle.share.allocation, handle.share.epoch)));
        self.look(&allocations, now, false);
    }

    fn look(&mut self, allocations: &[AllocationHandle], now: Instant, looks_at_launches: bool) {
        let Self { measuring, handles, .. } = *self;
        let scanned = if allocations.is_empty() { None } else { self.reclaim.scanned(&mut self.text) };
        let mut pass = Pass { processes_left: PROCESSES_MAX, scanned };
        let (mut looks, mut cgroups) = (Vec::new(), BTreeSet::new());
        self.energy.look(now, !allocations.is_empty(), &mut self.text);
        let gpus = handles.gpu_readings.newest();
        for handle in allocations {
            let share = &handle.share;
            let meter = self.meters.entry((share.allocation, share.epoch)).or_insert_with(|| meter(measuring, handles, share));
            // `None`: its cgroup does not exist yet, or is being removed. Earlier numbers are shown
            // until its task ends.
            if let Some(mut look) = meter.look(&mut self.text, &mut pass) {
                let mine = gpus.as_deref().and_then(|looked| gpu_numbers::mine(looked, share.allocation));
                self.energy.add(share, mine.as_ref(), &mut look.usage);
                meter.add_cgroups(&mut cgroups);
                let at_ms = self.began.1 + millis(look.at - self.began.0);
                let parts = if looks_at_launches { meter.parts(&mut self.text).cloned() } else { None };
                looks.push((Arc::clone(share), look, mine, at_ms, parts));
            }
        }
        let queues = if looks.is_empty() { None } else { self.listeners.look(now, &cgroups) };
        for (share, look, ..) in &mut looks {
            if let Some(meter) = self.meters.get(&(share.allocation, share.epoch)) {
                meter.add_accept_queue(queues.as_ref(), &mut look.usage);
            }
        }
        // Counts are stored before they are shown, so that no counter decreases after a kill.
        measuring.0.kernel.store();
        self.energy.store();
        measuring.known().node_energy.clone_from(self.energy.node());
        for (share, look, mine, at_ms, parts) in looks {
            let restored = self.saved.remove(&(share.allocation, share.epoch));
            let mut known = measuring.known();
            known.take(&share, look, at_ms);
            known.take_devices(share.allocation, mine, at_ms);
            known.alert(&measuring.0.alerts, share.allocation, at_ms, parts.as_ref(), restored);
            drop(known);
            measuring.record(&mut self.recorder, &handles.traces, (share.allocation, share.epoch), at_ms);
        }
        let keep = measuring.known().decided(&measuring.0.alerts).chain(self.saved.values().cloned()).collect();
        self.file.store(keep);
    }
}

fn meter(measuring: &Measuring, handles: &Handles, share: &DesiredShare) -> Meter {
    let paths = cgroup_paths(handles, share.allocation);
    let counted = paths.v2.is_some().then(|| measuring.0.kernel.reader((share.allocation, share.epoch)));
    Meter::new(paths, counted)
}

/// The cgroups of an allocation's work on this node.
fn cgroup_paths(handles: &Handles, allocation: AllocationId) -> CgroupPaths {
    CgroupPaths {
        v2: handles.slice.as_ref().map(|slice| slice.scope(allocation).work().path().to_owned()),
        v1: handles.bounds.controllers.v1_groups(allocation).iter().map(|group| group.path()).collect(),
    }
}

/// The processor time of this thread: on a busy machine, a look takes long but costs little.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}
