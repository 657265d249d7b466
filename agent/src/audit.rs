//! What audited work opens and which hosts it connects to, from the kernel's ring buffer to the
//! allocation's place in the object store.
//!
//! ```text
//!   desired list ──▶ Recorder (audit) ──▶ begin, end ──▶ programs in the kernel, attached while work is audited
//!                                                             │ ring buffer, read every 100 ms,
//!                                                             │ or when a quarter is full
//!                                                             ▼
//!                                                   lines ──▶ Recorder ──▶ lattice_observe::traces
//! ```
//!
//! When the agent is killed, the events in the buffer are lost, and all further events until the next
//! agent has attached its programs: a line in the record has the begin and end of this gap. The
//! kernel counts the events that did not fit into the buffer, and a line has that number too. While
//! the disk accepts no writes, at most a mebibyte of lines waits in memory; a line has the number of
//! events that were dropped.

mod line;

use lattice_agent_common::readiness::readable;
use lattice_ebpf::Events;
use lattice_meshd::context::Shared;
use lattice_model::{TelemetryMode, millis};
use lattice_observe::kernel_counts::{KernelCounts, Key};
use lattice_observe::traces::Recorder;
use lattice_runtime::shim::boottime_ms;
use line::{Clocks, Owner};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::io::unix::AsyncFd;
use tokio_util::sync::CancellationToken;

/// The interval between two reads of the buffer; a buffer that is a quarter full is read at once.
const READ_INTERVAL: Duration = Duration::from_millis(100);
/// The interval at which the time up to which the record is complete is saved.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);
/// How many bytes of lines are written at once.
const BATCH_BYTES: usize = 256 << 10;
/// How many events one round reads: work that makes events as fast as they are read must not delay
/// the rest.
const EVENTS_MAX: usize = 16_384;
/// The subject under which problems are reported.
const SUBJECT: &str = "audits";

/// Records audits until `stop`.
pub async fn run(context: Shared, stop: CancellationToken) {
    let kernel = context.work.measuring.kernel().clone();
    let events = match kernel.audit(|audit| audit.events()) {
        Ok(Some(events)) => events,
        Ok(None) => return refuse(&context, "another reader of the kernel's events is active", &stop).await,
        Err(error) => return refuse(&context, &error.to_string(), &stop).await,
    };
    let ready = events.ready().and_then(readable);
    let ready: Option<AsyncFd<OwnedFd>> =
        ready.inspect_err(|error| tracing::warn!(%error, "the buffer of audits cannot be watched: it is read at intervals only")).ok();
    let mut view = context.work.view.clone();
    let mut recorder =
        context.traces.recorder(TelemetryMode::Audit, context.setup.me.clone(), context.work.view.clone(), context.work.problems.clone());
    recorder.lacks(&kernel.audit_lacks());
    let (refusing, programs) = (Shared::clone(&context), kernel.clone());
    let (audited, is_at, whole) = (BTreeMap::new(), Instant::now(), SystemTime::now());
    let mut auditor = Auditor { context, kernel, events, recorder, audited, is_at, whole, troubled: false };
    while !stop.is_cancelled() {
        let round = tokio::task::spawn_blocking(move || {
            let begins = Instant::now();
            auditor.run_once();
            (auditor, begins.elapsed())
        });
        let took;
        (auditor, took) = match round.await {
            Ok(done) => done,
            // The agent is stopping; the kernel programs end with it.
            Err(error) if error.is_cancelled() => return,
            Err(error) => {
                tracing::error!(%error, "the recorder of audits panicked: nothing more is audited");
                let _gone = programs.audit(|audit| audit.end_all());
                return refuse(&refusing, "the recorder of audits panicked: restart the agent", &stop).await;
            }
        };
        let waits = auditor.recorder.wanted().next().is_some() || auditor.recorder.has_pending();
        // At most a quarter of one processor's time; the kernel counts the events that do not fit
        // meanwhile.
        let _stopped = stop.run_until_cancelled(tokio::time::sleep(took * 3)).await;
        tokio::select! {
            () = stop.cancelled() => {}
            changed = view.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(READ_INTERVAL), if waits => {}
            () = wait_until_filled(ready.as_ref()), if waits => {}
        }
    }
    // Reads what is in the buffer now, so that less is lost, and saves the time up to which the
    // record is complete.
    let _last = tokio::task::spawn_blocking(move || auditor.stop()).await;
}

/// Reports, until `stop`, that audits are not recorded, as long as an audit is requested.
async fn refuse(context: &Shared, why: &str, stop: &CancellationToken) {
    let mut view = context.work.view.clone();
    loop {
        let asked = {
            let view = view.borrow_and_update();
            let mut orders = view.locals.iter().filter_map(|local| local.share.telemetry.as_ref());
            orders.any(|order| order.mode == TelemetryMode::Audit)
        };
        match asked {
            true => context.work.problems.set(SUBJECT, format!("audit requested, but not recorded: {why}")),
            false => context.work.problems.clear(SUBJECT),
        }
        match stop.run_until_cancelled(view.changed()).await {
            Some(Ok(())) => {}
            Some(Err(_)) | None => return,
        }
    }
}

async fn wait_until_filled(ready: Option<&AsyncFd<OwnedFd>>) {
    match ready {
        Some(ready) => match ready.readable().await {
            Ok(mut guard) => guard.clear_ready(),
            Err(_) => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}

struct Auditor {
    context: Shared,
    kernel: KernelCounts,
    events: Events,
    recorder: Recorder,
    audited: BTreeMap<Key, Audited>,
    /// When the time up to which the record is complete was last saved.
    is_at: Instant,
    /// The time up to which all events of the kernel have been read.
    whole: SystemTime,
    /// Whether an audit could not begin.
    troubled: bool,
}

/// The audit of one allocation.
struct Audited {
    cgroup: u64,
    owner: Owner,
    /// How many of its events the kernel had lost at the last query.
    lost_in_kernel: u64,
    /// Lost events that no line reports yet.
    unreported: u64,
}

/// Lines of one allocation to be written.
#[derive(Default)]
struct Batch {
    lines: Vec<u8>,
    events: u64,
}

impl Auditor {
    /// Reads pending events and follows the desired list.
    fn run_once(&mut self) {
        if self.recorder.has_pending() {
            self.recorder.retry(lattice_agent_common::clock::now().0);
        }
        self.read_and_save(SAVE_INTERVAL);
        self.follow();
        let kernel = &self.kernel;
        for (_, audited) in self.audited.extract_if(.., |key, _| !self.recorder.is_recording(*key)) {
            let _gone = kernel.audit(|audit| audit.end(audited.cgroup));
        }
        let begin: Vec<Key> = self.recorder.wanted().filter(|key| !self.audited.contains_key(key)).collect();
        for key in begin {
            self.begin(key);
        }
        if self.troubled && self.recorder.wanted().all(|key| self.audited.contains_key(&key)) {
            self.troubled = false;
            self.context.work.problems.clear(SUBJECT);
        }
    }

    /// Follows the desired list, and writes the last line of each audit that ends.
    fn follow(&mut self) {
        let (view, boottime_ms) = (Arc::clone(&self.context.work.view.borrow()), boottime_ms());
        loop {
            for key in self.recorder.ending(&view, boottime_ms) {
                self.finish(key);
            }
            // An audit that an earlier run began may have ended by now.
            if self.recorder.follow_at(&view, boottime_ms).is_empty() {
                break;
            }
        }
    }

    fn finish(&mut self, key: Key) {
        let now_ms = lattice_agent_common::clock::now().0;
        let before = self.recorder.take_earlier_end(key);
        let lines = match self.audited.get(&key) {
            Some(audited) => {
                let lost = if audited.unreported > 0 { line::lost(now_ms, audited.unreported) } else { Vec::new() };
                [lost, line::ended(ms(self.whole))].concat()
            }
            // The audit ended before this run of the agent had begun it again.
            None => match before {
                Some(until) => [line::gap(ms(until), now_ms), line::ended(now_ms)].concat(),
                None => return,
            },
        };
        self.recorder.take_mark(key, now_ms, lines);
    }

    /// The last read of this run of the agent.
    fn stop(&mut self) {
        self.read_and_save(Duration::ZERO);
        self.recorder.retry(lattice_agent_common::clock::now().0);
        let events = self.recorder.events_pending();
        if events > 0 {
            tracing::warn!(events, "the agent stops: audited events that waited for the disk are lost");
        }
    }

    /// Reads pending events. Saves, at most once in `every`, the time up to which the record is
    /// complete: if the agent is killed, the gap begins there.
    fn read_and_save(&mut self, every: Duration) {
        let now = SystemTime::now();
        if !self.read() {
            return;
        }
        self.whole = now;
        if self.is_at.elapsed() >= every {
            self.is_at = Instant::now();
            // Not for allocations with unreported losses, or with lines that wait for the disk: a
            // restart would forget these.
            let complete = self.audited.iter().filter(|(key, audited)| audited.unreported == 0 && !self.recorder.is_behind(**key));
            complete.for_each(|(key, _)| self.recorder.store_recorded_until(*key, now));
        }
    }

    fn begin(&mut self, key: Key) {
        let slice = self.context.machine.slice.as_ref();
        // `None`: the allocation's scope does not exist yet.
        let Some(work) = slice.and_then(|slice| slice.scope(key.0).work().path().metadata().ok()) else { return };
        let owner = {
            let view = self.context.work.view.borrow();
            let of = view.locals.iter().find(|local| (local.share.allocation, local.share.epoch) == key);
            let Some(owner) = of.map(|local| &local.share.owner) else { return };
            Owner { uid: owner.uid, name: owner.name.clone() }
        };
        let cgroup = work.ino();
        let failed = match self.kernel.audit(|audit| audit.begin(cgroup)) {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(why) = failed {
            let text = format!("files and connections of allocation {} are not recorded: {why}", key.0.short());
            self.troubled = true;
            return self.context.work.problems.set(SUBJECT, text);
        }
        self.audited.insert(key, Audited { cgroup, owner, lost_in_kernel: 0, unreported: 0 });
        let now_ms = lattice_agent_common::clock::now().0;
        let line = match self.recorder.take_earlier_end(key) {
            Some(until) => line::gap(ms(until), now_ms),
            None => line::begun(now_ms),
        };
        self.recorder.take_mark(key, now_ms, line);
        if !self.recorder.is_behind(key) {
            self.recorder.store_recorded_until(key, SystemTime::now());
        }
    }

    /// Reads the buffer and writes the events. Returns whether the buffer is empty.
    fn read(&mut self) -> bool {
        if self.audited.is_empty() {
            // Discards events of an audit that has ended.
            while self.events.next(|_, _| ()).is_some() {}
            return true;
        }
        let clocks = Clocks { now_ms: lattice_agent_common::clock::now().0, boottime_ms: boottime_ms() };
        let by_cgroup: BTreeMap<u64, Key> = self.audited.iter().map(|(key, audited)| (audited.cgroup, *key)).collect();
        let mut batches: BTreeMap<Key, Batch> = BTreeMap::new();
        let mut is_all = false;
        for _ in 0..EVENTS_MAX {
            let audited = &self.audited;
            let read = self.events.next(|event, data| {
                let key = *by_cgroup.get(&event.cgroup)?;
                Some((key, line::of(event, data, clocks, &audited.get(&key)?.owner)))
            });
            let Some(read) = read else {
                is_all = true;
                break;
            };
            let Some((key, line)) = read.flatten() else { continue };
            let batch = batches.entry(key).or_default();
            batch.lines.extend(line);
            batch.events += 1;
            if batch.lines.len() >= BATCH_BYTES {
                let batch = std::mem::take(batch);
                self.write(key, clocks.now_ms, batch);
            }
        }
        for (key, audited) in &mut self.audited {
            let lost = self.kernel.audit(|audit| audit.lost(audited.cgroup)).unwrap_or(audited.lost_in_kernel);
            let more = lost.saturating_sub(audited.lost_in_kernel);
            if more > 0 {
                audited.lost_in_kernel = lost;
                audited.unreported += more;
                self.recorder.count_lost(*key, more);
            }
            audited.unreported += self.recorder.take_dropped(*key);
            // Losses are also reported if no more events come.
            if audited.unreported > 0 {
                batches.entry(*key).or_default();
            }
        }
        for (key, batch) in batches {
            self.write(key, clocks.now_ms, batch);
        }
        is_all
    }

    fn write(&mut self, key: Key, now_ms: u64, batch: Batch) {
        let Batch { mut lines, events } = batch;
        let Some(audited) = self.audited.get_mut(&key) else { return };
        let unreported = audited.unreported;
        if unreported > 0 {
            lines.extend(line::lost(now_ms, unreported));
        }
        if lines.is_empty() {
            return;
        }
        // Taken: the lines are written, or wait for the disk.
        let taken = self.recorder.take_lines(key, now_ms, events, lines);
        audited.unreported = if taken { 0 } else { unreported + events };
    }
}

fn ms(at: SystemTime) -> u64 {
    at.duration_since(SystemTime::UNIX_EPOCH).map_or(0, millis)
}
