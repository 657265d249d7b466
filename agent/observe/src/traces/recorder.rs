//! Records what one mode asks for, for the requested time. The measuring thread has the recorder of
//! debug mode, `agent::audit` that of audit mode.
//!
//! The time counts from when this node learned of the request, by the clock since boot, and that
//! moment is stored in a file: so neither a wrong clock nor a restart of the agent makes it longer.
//! The quorum removes the request from the list when its time is over by the leader's clock, even
//! if this node learned of it late.

use super::chunk::{Chunk, Declared, Header, MetricName, VERSION};
use super::folders::folders;
use super::pending::{PENDING_BYTES_MAX, Pending};
use super::{CHUNK_BYTES, TraceCounts, Traces, name};
use crate::kernel_counts::Key;
use lattice_agent_common::node_problems::NodeProblems;
use lattice_agent_common::node_view::NodeView;
use lattice_mesh::usage::Shown;
use lattice_model::{DesiredShare, NodeId, TelemetryMode, TelemetryOrder};
use lattice_runtime::shim::boottime_ms;
use nix::sys::statvfs::statvfs;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::watch;
use uuid::Uuid;

/// What audit lines contain, as their header says.
const OF_AUDITS: &str = "open, openat, openat2, creat, connect and accept, with the arguments as the process gave them and the result; io_uring's \
    without one, 32-bit calls without arguments; not datagrams without a connection, nor descriptors inherited or passed on; lost events, and \
    times without an agent, have lines of their own; `ended` is the last line if the agent recorded to the end";
/// Extension of the file while it is incomplete.
const UNFINISHED: &str = "json.new";
/// Free space that is left to others: this many bytes, or a twentieth of the disk if that is less.
const SPARE_BYTES: u64 = 256 << 20;
/// The subject in this node's problems.
const SUBJECT: &str = "raw measurements on this disk";

/// The recorder of one mode; one for each node.
pub struct Recorder {
    pub(super) traces: Traces,
    pub(super) mode: TelemetryMode,
    pub(super) me: NodeId,
    view: watch::Receiver<Arc<NodeView>>,
    problems: NodeProblems,
    /// The headers' text about the lines.
    about: String,
    pub(super) recordings: BTreeMap<Key, Recording>,
    /// Ended recordings with lines that still wait for the disk.
    pub(super) unfinished: Vec<(Key, Recording)>,
    /// Whether lines were lost because too many waited, since lines were last written.
    pub(super) dropping: bool,
    /// Whether the folders of an earlier run were checked.
    swept: bool,
    troubled: bool,
}

/// The recording of one allocation.
pub(super) struct Recording {
    order: TelemetryOrder,
    tenant: String,
    project: String,
    /// When this node learned of it, by the clock since boot, in milliseconds.
    since_ms: u64,
    /// Until when an earlier run of the agent was recording.
    before: Option<SystemTime>,
    about: String,
    pub(super) over: bool,
    chunk: Option<Chunk>,
    /// Lines that could not be written yet.
    pub(super) pending: Pending,
}

/// What is stored across restarts of the agent.
#[derive(Serialize, Deserialize)]
struct Saved {
    version: u32,
    order: Uuid,
    since_boottime_ms: u64,
}

impl Traces {
    /// The recorder of this mode: create only one for each mode.
    pub fn recorder(&self, mode: TelemetryMode, me: NodeId, view: watch::Receiver<Arc<NodeView>>, problems: NodeProblems) -> Recorder {
        Recorder::new(self.clone(), mode, me, view, problems)
    }
}

impl Recorder {
    pub(super) fn new(
        traces: Traces,
        mode: TelemetryMode,
        me: NodeId,
        view: watch::Receiver<Arc<NodeView>>,
        problems: NodeProblems,
    ) -> Self {
        let about = if mode == TelemetryMode::Audit { OF_AUDITS.to_owned() } else { String::new() };
        let (recordings, unfinished) = (BTreeMap::new(), Vec::new());
        Self { traces, mode, me, view, problems, about, recordings, unfinished, dropping: false, swept: false, troubled: false }
    }

    /// Adds to the headers what this node's lines lack, besides what such lines lack on every node.
    pub fn lacks(&mut self, what: &[String]) {
        if !what.is_empty() {
            self.about = format!("{}; HERE NOTHING OF: {}", self.about, what.join(", "));
        }
    }

    /// Starts and ends recordings as the list says, and ends those whose time is over. Returns
    /// those that start now.
    pub fn follow(&mut self) -> Vec<Key> {
        let view = Arc::clone(&self.view.borrow());
        self.follow_at(&view, boottime_ms())
    }

    /// As [`Self::follow`], with this list and this time since boot.
    pub fn follow_at(&mut self, view: &NodeView, now_ms: u64) -> Vec<Key> {
        let mut begun = Vec::new();
        let asked: BTreeMap<Key, (&DesiredShare, &TelemetryOrder)> =
            closely(view, self.mode).map(|(key, share, order)| (key, (share, order))).collect();
        if !self.swept {
            self.swept = true;
            self.sweep(&asked.keys().map(|(allocation, epoch)| name(*allocation, *epoch)).collect());
        }
        let stands = |key: &Key, recording: &mut Recording| asked.get(key).is_some_and(|(_, order)| order.id == recording.order.id);
        for (key, mut recording) in self.recordings.extract_if(.., |key, recording| !stands(key, recording)) {
            forget(&self.traces.dir(key), self.mode);
            if recording.pending.is_empty() {
                recording.close(&self.traces);
            } else {
                self.unfinished.push((key, recording));
            }
        }
        for (key, (share, order)) in asked {
            let (traces, mode, about) = (&self.traces, self.mode, &self.about);
            let mut is_new = false;
            let recording = self.recordings.entry(key).or_insert_with(|| {
                let (since_ms, before) = known_since(&traces.dir(key).join(file(mode)), order.id, now_ms);
                begun.push(key);
                is_new = true;
                tracing::info!(allocation = %key.0, by = order.by, %mode, "its work is recorded in this mode");
                Recording {
                    order: order.clone(),
                    tenant: share.spec.tenant.clone(),
                    project: share.spec.project.clone(),
                    since_ms,
                    before,
                    about: about.clone(),
                    over: false,
                    chunk: None,
                    pending: Pending::default(),
                }
            });
            // If an earlier run was recording this audit, its record must first state since when
            // nothing was recorded. The caller writes that when the next `ending` returns it.
            let waits = is_new && mode == TelemetryMode::Audit && recording.before.is_some();
            if recording.has_lasted(now_ms) && !waits {
                tracing::info!(allocation = %key.0, %mode, "its time in this mode is over");
                recording.over = true;
            }
            let old = recording.chunk.as_ref().is_some_and(|chunk| chunk.size().1.elapsed() >= traces.0.flush);
            if (recording.over && recording.pending.is_empty()) || old {
                recording.close(traces);
            }
        }
        let tally = self.traces.of(self.mode);
        let mut kept = tally.kept();
        if !kept.is_empty() {
            // If this mode is requested again for the same work, its earlier losses still count.
            let here: BTreeSet<Key> = view.locals.iter().map(|local| (local.share.allocation, local.share.epoch)).collect();
            kept.retain(|key, _| here.contains(key));
        }
        for key in self.recordings.keys() {
            kept.entry(*key).or_default();
        }
        tally.dropped().retain(|key, _| kept.contains_key(key));
        drop(kept);
        let open: BTreeSet<Key> = self.wanted().collect();
        let none = open.is_empty();
        *tally.open() = open;
        if none && !self.has_pending() {
            self.end_trouble();
        }
        begun
    }

    /// Removes the files of an earlier run about requests that have ended. Files that wait for the
    /// store stay.
    fn sweep(&self, asked: &BTreeSet<String>) {
        for folder in folders(&self.traces.0.dir).unwrap_or_default() {
            if folder.file_name().and_then(|name| name.to_str()).is_none_or(|name| !asked.contains(name)) {
                forget(&folder, self.mode);
            }
        }
    }

    /// The recordings that the next call of `follow` will end: their last lines must be written
    /// before it.
    pub fn ending(&self, view: &NodeView, now_ms: u64) -> Vec<Key> {
        let asked: BTreeMap<Key, Uuid> = closely(view, self.mode).map(|(key, _, order)| (key, order.id)).collect();
        let ends = |(key, recording): &(&Key, &Recording)| {
            !recording.over && (asked.get(key) != Some(&recording.order.id) || recording.has_lasted(now_ms))
        };
        self.recordings.iter().filter(ends).map(|(key, _)| *key).collect()
    }

    /// Whether this work is being recorded.
    pub fn is_recording(&self, key: Key) -> bool {
        self.recordings.get(&key).is_some_and(|recording| !recording.over)
    }

    /// The counts of a recording, while it lasts.
    pub fn kept(&self, key: Key) -> Option<TraceCounts> {
        self.is_recording(key).then(|| self.traces.of(self.mode).kept().get(&key).copied().unwrap_or_default())
    }

    /// All recordings that are going on.
    pub fn wanted(&self) -> impl Iterator<Item = Key> {
        self.recordings.iter().filter(|(_, recording)| !recording.over).map(|(key, _)| *key)
    }

    /// Until when an earlier run of the agent was recording; returned once.
    pub fn take_earlier_end(&mut self, key: Key) -> Option<SystemTime> {
        self.recordings.get_mut(&key).and_then(|recording| recording.before.take())
    }

    /// Stores until when this run was recording: the next run reports the gap since then.
    pub fn store_recorded_until(&self, key: Key, until: SystemTime) {
        let file = File::options().append(true).open(self.traces.dir(key).join(file(self.mode)));
        if let Err(error) = file.and_then(|file| file.set_modified(until)) {
            tracing::debug!(allocation = %key.0, %error, "the time until which it was recorded cannot be stored");
        }
    }

    /// Counts events that could not be recorded, for example because a look had no rates.
    pub fn count_lost(&self, key: Key, count: u64) {
        self.traces.lost(self.mode, key, count);
    }

    /// Events that were written, and lost when whole files were removed for lack of space; returned
    /// once. They count as lost already.
    pub fn take_dropped(&self, key: Key) -> u64 {
        self.traces.of(self.mode).dropped().remove(&key).unwrap_or_default()
    }

    /// The subject of this mode's lines in this node's problems.
    fn subject(&self) -> &'static str {
        match self.mode {
            TelemetryMode::Audit => "audits on this disk",
            TelemetryMode::Debug | TelemetryMode::Prod => SUBJECT,
        }
    }

    /// Records a look: the values of the work, and of each of its GPUs. A look that cannot be
    /// written is lost.
    pub fn take(&mut self, key: Key, at_ms: u64, shown: &[Shown], gpus: &[(String, Vec<Shown>)]) {
        let Some(recording) = self.recordings.get_mut(&key).filter(|recording| !recording.over) else { return };
        match recording.write_look(&self.traces, self.mode, &self.me, key, at_ms, |declared| lines(declared, at_ms, shown, gpus)) {
            Ok(()) => {
                self.traces.of(self.mode).wrote(key, 1);
                self.end_trouble();
            }
            Err(error) => {
                self.traces.lost(self.mode, key, 1);
                self.begin_trouble(&error);
            }
        }
    }

    /// Reports once that records cannot be written, and again only after they could be.
    pub(super) fn begin_trouble(&mut self, error: &io::Error) {
        if std::mem::replace(&mut self.troubled, true) {
            return;
        }
        let (dir, mode) = (self.traces.0.dir.display(), self.mode);
        let what = match self.mode {
            TelemetryMode::Audit => format!("wait in memory, {} KiB at most, and beyond are lost", PENDING_BYTES_MAX >> 10),
            TelemetryMode::Debug | TelemetryMode::Prod => "are lost".to_owned(),
        };
        tracing::warn!(%dir, %mode, %error, "records cannot be written and {what}");
        self.problems.set(self.subject(), format!("{what}: {dir}: {error}"));
    }

    pub(super) fn end_trouble(&mut self) {
        if std::mem::take(&mut self.troubled) {
            self.problems.clear(self.subject());
        }
    }
}

impl Recording {
    /// Whether its time is over although it has not been ended yet.
    fn has_lasted(&self, now_ms: u64) -> bool {
        !self.over && self.order.duration_ms().is_some_and(|all_ms| now_ms.saturating_sub(self.since_ms) >= all_ms)
    }

    fn write_look(
        &mut self,
        traces: &Traces,
        mode: TelemetryMode,
        me: &NodeId,
        key: Key,
        at_ms: u64,
        lines: impl FnOnce(&Declared) -> io::Result<(Vec<u8>, Declared)>,
    ) -> io::Result<()> {
        let chunk = self.chunk(traces, mode, me, key, at_ms)?;
        let (lines, declared) = lines(&chunk.declared)?;
        chunk.append(&lines)?;
        chunk.declared.extend(declared);
        self.close_if_large(traces);
        Ok(())
    }

    /// The present file, begun if there is none; an error if there is no space for more.
    pub(super) fn chunk(&mut self, traces: &Traces, mode: TelemetryMode, me: &NodeId, key: Key, at_ms: u64) -> io::Result<&mut Chunk> {
        if traces.0.store.is_none() {
            return Err(io::Error::other("logs.store, which would store them, is no longer configured"));
        }
        let dir = traces.dir(key);
        has_room(&traces.0.dir)?;
        if self.chunk.as_ref().is_some_and(Chunk::is_torn) {
            self.close(traces);
        }
        let there = self.chunk.take();
        let chunk = match there {
            Some(chunk) => chunk,
            None => self.begin_chunk(&dir, mode, me, key, at_ms)?,
        };
        Ok(self.chunk.insert(chunk))
    }

    fn begin_chunk(&self, dir: &Path, mode: TelemetryMode, me: &NodeId, key: Key, at_ms: u64) -> io::Result<Chunk> {
        let (order, by) = (self.order.id, self.order.by.clone());
        let (tenant, project) = (self.tenant.clone(), self.project.clone());
        let (about, node) = (self.about.clone(), me.clone());
        let (version, (allocation, epoch)) = (VERSION, key);
        let header = Header { version, allocation, epoch, node, tenant, project, order, by, mode, about };
        Chunk::begin(dir, at_ms, &header)
    }

    /// Completes the present file once it is large enough.
    pub(super) fn close_if_large(&mut self, traces: &Traces) {
        if self.chunk.as_ref().is_some_and(|chunk| chunk.size().0 >= CHUNK_BYTES) {
            self.close(traces);
        }
    }

    /// Completes the present file, so that it can be stored.
    pub(super) fn close(&mut self, traces: &Traces) {
        let Some(chunk) = self.chunk.take() else { return };
        match chunk.close() {
            Ok(()) => {
                traces.0.closed.notify_one();
                traces.0.more.notify_one();
            }
            // The next run of the agent completes it.
            Err(error) => tracing::warn!(%error, "raw measurements or audits stay on this node for now"),
        }
    }
}

/// A look as a line. Before it, a line with unit and source of those metrics whose `declared`
/// source differs.
fn lines(declared: &Declared, at_ms: u64, shown: &[Shown], gpus: &[(String, Vec<Shown>)]) -> io::Result<(Vec<u8>, Declared)> {
    let mut anew = Declared::new();
    let mut declare = |gpu: Option<&String>, shown: &[Shown]| {
        let mut metrics = Map::new();
        for one in shown {
            let metric: MetricName = (gpu.cloned(), one.name.clone());
            if declared.get(&metric) != Some(&one.source) {
                anew.insert(metric, one.source.clone());
                metrics.insert(one.name.clone(), serde_json::json!({ "unit": one.unit, "source": one.source }));
            }
        }
        metrics
    };
    let metrics = declare(None, shown);
    let of_gpus = gpus.iter().map(|(id, shown)| (id, declare(Some(id), shown))).filter(|(_, metrics)| !metrics.is_empty());
    let of_gpus: Map<_, _> = of_gpus.map(|(id, metrics)| (id.clone(), Value::from(metrics))).collect();
    let mut lines = Vec::new();
    if !metrics.is_empty() || !of_gpus.is_empty() {
        let mut line = serde_json::json!({ "metrics": metrics });
        if !of_gpus.is_empty() {
            line["gpus"] = Value::from(of_gpus);
        }
        serde_json::to_writer(&mut lines, &line)?;
        lines.push(b'\n');
    }
    let values = |shown: &[Shown]| shown.iter().map(|one| (one.name.clone(), Value::from(one.now))).collect::<Map<_, _>>();
    // The time comes first: that distinguishes looks from other lines.
    write!(lines, "{{\"at_ms\":{at_ms},\"values\":")?;
    serde_json::to_writer(&mut lines, &values(shown))?;
    if !gpus.is_empty() {
        let gpus: Map<_, _> = gpus.iter().map(|(id, shown)| (id.clone(), Value::from(values(shown)))).collect();
        lines.extend_from_slice(b",\"gpus\":");
        serde_json::to_writer(&mut lines, &gpus)?;
    }
    lines.extend_from_slice(b"}\n");
    Ok((lines, anew))
}

/// Work here that the list says to record in this mode.
fn closely(view: &NodeView, mode: TelemetryMode) -> impl Iterator<Item = (Key, &DesiredShare, &TelemetryOrder)> {
    view.locals.iter().filter_map(move |local| {
        let share = &local.share;
        let order = share.telemetry.as_ref().filter(|order| order.mode == mode)?;
        Some(((share.allocation, share.epoch), share, order))
    })
}

/// The file that stores since when a mode lasts.
fn file(mode: TelemetryMode) -> &'static str {
    match mode {
        TelemetryMode::Audit => "audit.json",
        TelemetryMode::Debug | TelemetryMode::Prod => "mode.json",
    }
}

/// Since when this node has known of a request, and until when an earlier run was recording, from
/// the file; without it, since now.
fn known_since(file: &Path, order: Uuid, now_ms: u64) -> (u64, Option<SystemTime>) {
    let known = fs::read(file).ok().and_then(|bytes| serde_json::from_slice::<Saved>(&bytes).ok());
    if let Some(known) = known.filter(|known| known.version == VERSION && known.order == order && known.since_boottime_ms <= now_ms) {
        return (known.since_boottime_ms, fs::metadata(file).and_then(|about| about.modified()).ok());
    }
    let saved = Saved { version: VERSION, order, since_boottime_ms: now_ms };
    let write = || {
        DirBuilder::new().recursive(true).mode(0o700).create(file.parent().unwrap_or(file))?;
        let unfinished = file.with_extension(UNFINISHED);
        let mut saving = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&unfinished)?;
        saving.write_all(&serde_json::to_vec(&saved)?)?;
        fs::rename(unfinished, file)
    };
    if let Err(error) = write() {
        tracing::warn!(file = %file.display(), %error, "the beginning of this recording cannot be stored: only the quorum ends it");
    }
    (now_ms, None)
}

/// The request has ended: removes its file, and the folder once everything in it is stored.
fn forget(dir: &Path, mode: TelemetryMode) {
    let saved = dir.join(file(mode));
    for file in [saved.with_extension(UNFINISHED), saved] {
        let _there_was_none = fs::remove_file(file);
    }
    let _still_needed = fs::remove_dir(dir);
}

/// An error if recording would take space that others need.
fn has_room(dir: &Path) -> io::Result<()> {
    let there = dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
    let stat = statvfs(there)?;
    let of = |blocks: u64| blocks.saturating_mul(stat.fragment_size());
    if of(stat.blocks_available()) < SPARE_BYTES.min(of(stat.blocks()) / 20) {
        return Err(io::Error::other("there is too little free space"));
    }
    Ok(())
}
