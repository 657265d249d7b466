//! Who writes raw measurements down, and for how long: a part of the measuring thread.
//!
//! How long is counted from when this node heard of the request, by the clock since the boot, and written down in `mode.json`: neither a
//! clock that is wrong nor an agent that is started again makes it longer. The quorum takes the request out of the list when its
//! time is over by the leader's clock, also where this node heard of it late.

use super::chunk::{Chunk, Declared, Header, VERSION};
use super::{CHUNK_BYTES, Traces, folders, name};
use crate::driver::NodeView;
use crate::kernel_counts::Key;
use crate::mesh::usage::Shown;
use crate::troubles::Troubles;
use lattice_model::{DesiredShare, NodeId, TelemetryMode, TelemetryOrder};
use lattice_runtime::shim::boottime_ms;
use nix::sys::statvfs::statvfs;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::watch;
use uuid::Uuid;

const FILE: &str = "mode.json";
/// Free room that is left to others: so many bytes, or a twentieth of the disk where that is less.
const SPARE_BYTES: u64 = 256 << 20;
/// The subject of what is the matter.
const SUBJECT: &str = "raw measurements on this disk";

/// What debug mode has kept of an allocation in this life of the agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    pub points: u64,
    pub lost: u64,
}

/// One for each node.
pub struct Recorder {
    traces: Traces,
    me: NodeId,
    view: watch::Receiver<Arc<NodeView>>,
    troubles: Troubles,
    recordings: BTreeMap<Key, Recording>,
    /// Whether folders that a former life left were looked at.
    swept: bool,
    troubled: bool,
}

/// One allocation's.
struct Recording {
    order: TelemetryOrder,
    tenant: String,
    project: String,
    /// When this node heard of it, by the clock since the boot.
    since_ms: u64,
    over: bool,
    chunk: Option<Chunk>,
    kept: Kept,
}

/// What outlives the agent.
#[derive(Serialize, Deserialize)]
struct Saved {
    version: u32,
    order: Uuid,
    since_boottime_ms: u64,
}

impl Recorder {
    pub(super) fn new(traces: Traces, me: NodeId, view: watch::Receiver<Arc<NodeView>>, troubles: Troubles) -> Self {
        Self { traces, me, view, troubles, recordings: BTreeMap::new(), swept: false, troubled: false }
    }

    /// Whether other work is to be measured closely than at the last look: then the next one is due.
    pub fn is_asked_anew(&mut self) -> bool {
        if !self.view.has_changed().unwrap_or(false) {
            return false;
        }
        let view = Arc::clone(&self.view.borrow_and_update());
        let mut asked: Vec<(Key, Uuid)> = closely(&view).map(|(key, _, order)| (key, order.id)).collect();
        asked.sort();
        asked != self.recordings.iter().map(|(key, recording)| (*key, recording.order.id)).collect::<Vec<_>>()
    }

    /// Begins and ends as the list says, and ends what has lasted long enough.
    pub fn follow(&mut self) {
        let view = Arc::clone(&self.view.borrow_and_update());
        self.follow_at(&view, boottime_ms());
    }

    pub(super) fn follow_at(&mut self, view: &NodeView, now_ms: u64) {
        let asked: BTreeMap<Key, (&DesiredShare, &TelemetryOrder)> =
            closely(view).map(|(key, share, order)| (key, (share, order))).collect();
        if !self.swept {
            self.swept = true;
            self.sweep(&asked.keys().map(|(allocation, epoch)| name(*allocation, *epoch)).collect());
        }
        let stands = |key: &Key, recording: &mut Recording| asked.get(key).is_some_and(|(_, order)| order.id == recording.order.id);
        for (key, mut recording) in self.recordings.extract_if(.., |key, recording| !stands(key, recording)) {
            recording.close(&self.traces);
            forget(&self.traces.dir(key));
        }
        for (key, (share, order)) in asked {
            let traces = &self.traces;
            let recording = self.recordings.entry(key).or_insert_with(|| {
                let since_ms = heard(&traces.dir(key), order.id, now_ms);
                tracing::info!(allocation = %key.0, by = order.by, "its work is measured in debug mode");
                Recording {
                    order: order.clone(),
                    tenant: share.spec.tenant.clone(),
                    project: share.spec.project.clone(),
                    since_ms,
                    over: false,
                    chunk: None,
                    kept: Kept::default(),
                }
            });
            if !recording.over && now_ms.saturating_sub(recording.since_ms) >= order.duration_ms() {
                tracing::info!(allocation = %key.0, "its time in debug mode is over");
                recording.over = true;
            }
            let old = recording.chunk.as_ref().is_some_and(|chunk| chunk.size().1.elapsed() >= traces.0.flush);
            if recording.over || old {
                recording.close(traces);
            }
        }
        let open = self.recordings.values().filter(|recording| !recording.over).count();
        self.traces.0.recording.store(open as u64, Ordering::Relaxed);
        if open == 0 && self.troubled {
            self.troubled = false;
            self.troubles.over(SUBJECT);
        }
    }

    /// Lets go what a former life knew of work that is not measured closely any more; what is to be put stays until it is.
    fn sweep(&self, asked: &BTreeSet<String>) {
        for folder in folders(&self.traces.0.dir).unwrap_or_default() {
            if folder.file_name().and_then(|name| name.to_str()).is_none_or(|name| !asked.contains(name)) {
                forget(&folder);
            }
        }
    }

    /// Whether a look at this work is to be kept.
    pub fn wants(&self, key: Key) -> bool {
        self.recordings.get(&key).is_some_and(|recording| !recording.over)
    }

    /// What was kept, while it is.
    pub fn kept(&self, key: Key) -> Option<Kept> {
        self.recordings.get(&key).filter(|recording| !recording.over).map(|recording| recording.kept)
    }

    /// Keeps a look: what was measured of all of it, and of each of its GPUs.
    pub fn take(&mut self, key: Key, at_ms: u64, shown: &[Shown], gpus: &[(String, Vec<Shown>)]) {
        let Some(recording) = self.recordings.get_mut(&key).filter(|recording| !recording.over) else { return };
        let written = recording.write(&self.traces, &self.me, key, at_ms, (shown, gpus));
        match written {
            Ok(()) => {
                recording.kept.points += 1;
                self.traces.0.points.fetch_add(1, Ordering::Relaxed);
                if self.troubled {
                    self.troubled = false;
                    self.troubles.over(SUBJECT);
                }
            }
            Err(error) => {
                recording.kept.lost += 1;
                self.traces.lost(1);
                if !self.troubled {
                    self.troubled = true;
                    let dir = self.traces.0.dir.display();
                    tracing::warn!(%dir, %error, "raw measurements of debug mode are lost");
                    self.troubles.say(SUBJECT, format!("of debug mode, are lost: {dir}: {error}"));
                }
            }
        }
    }
}

impl Recording {
    fn write(
        &mut self,
        traces: &Traces,
        me: &NodeId,
        key: Key,
        at_ms: u64,
        (shown, gpus): (&[Shown], &[(String, Vec<Shown>)]),
    ) -> io::Result<()> {
        if traces.0.store.is_none() {
            return Err(io::Error::other("there is no log_store any more to take them"));
        }
        let dir = traces.dir(key);
        has_room(&traces.0.dir)?;
        if self.chunk.is_none() {
            let (order, by) = (self.order.id, self.order.by.clone());
            let (tenant, project) = (self.tenant.clone(), self.project.clone());
            let header = Header { version: VERSION, allocation: key.0, epoch: key.1, node: me.clone(), tenant, project, order, by };
            self.chunk = Some(Chunk::begin(&dir, at_ms, &header)?);
        }
        let Some(chunk) = &mut self.chunk else { return Ok(()) };
        let (lines, declared) = lines(&chunk.declared, at_ms, shown, gpus)?;
        chunk.append(&lines)?;
        chunk.declared.extend(declared);
        if chunk.size().0 >= CHUNK_BYTES {
            self.close(traces);
        }
        Ok(())
    }

    /// What is written is whole: it is put next.
    fn close(&mut self, traces: &Traces) {
        let Some(chunk) = self.chunk.take() else { return };
        match chunk.close() {
            Ok(()) => traces.0.closed.notify_one(),
            // The next life of the agent takes it up.
            Err(error) => tracing::warn!(%error, "raw measurements of debug mode stay on this node for now"),
        }
    }
}

/// A look as a line, and before it the units and sources that are not `declared` yet.
fn lines(declared: &[Declared], at_ms: u64, shown: &[Shown], gpus: &[(String, Vec<Shown>)]) -> io::Result<(Vec<u8>, Vec<Declared>)> {
    let mut anew: Vec<Declared> = Vec::new();
    let mut metrics = Map::new();
    for one in shown.iter().chain(gpus.iter().flat_map(|(_, shown)| shown)) {
        let is = |(name, source): &Declared| *name == one.name && *source == one.source;
        if !declared.iter().any(is) && !anew.iter().any(is) {
            anew.push((one.name.clone(), one.source.clone()));
            metrics.insert(one.name.clone(), serde_json::json!({ "unit": one.unit, "source": one.source }));
        }
    }
    let mut lines = Vec::new();
    if !metrics.is_empty() {
        serde_json::to_writer(&mut lines, &serde_json::json!({ "metrics": metrics }))?;
        lines.push(b'\n');
    }
    let numbers = |shown: &[Shown]| shown.iter().map(|one| (one.name.clone(), Value::from(one.now))).collect::<Map<_, _>>();
    // The time is first: that is how a look is told from other lines.
    write!(lines, "{{\"at_ms\":{at_ms},\"numbers\":")?;
    serde_json::to_writer(&mut lines, &numbers(shown))?;
    if !gpus.is_empty() {
        let gpus: Map<_, _> = gpus.iter().map(|(id, shown)| (id.clone(), Value::from(numbers(shown)))).collect();
        lines.extend_from_slice(b",\"gpus\":");
        serde_json::to_writer(&mut lines, &gpus)?;
    }
    lines.extend_from_slice(b"}\n");
    Ok((lines, anew))
}

/// Work here that the list says is to be measured closely.
fn closely(view: &NodeView) -> impl Iterator<Item = (Key, &DesiredShare, &TelemetryOrder)> {
    view.locals.iter().filter_map(|local| {
        let share = &local.share;
        let order = share.telemetry.as_ref().filter(|order| order.mode == TelemetryMode::Debug)?;
        Some(((share.allocation, share.epoch), share, order))
    })
}

/// Since when this node knows of a request: as a former life wrote it down, or from now on.
fn heard(dir: &Path, order: Uuid, now_ms: u64) -> u64 {
    let known = fs::read(dir.join(FILE)).ok().and_then(|bytes| serde_json::from_slice::<Saved>(&bytes).ok());
    if let Some(known) = known.filter(|known| known.version == VERSION && known.order == order && known.since_boottime_ms <= now_ms) {
        return known.since_boottime_ms;
    }
    let saved = Saved { version: VERSION, order, since_boottime_ms: now_ms };
    let write = || {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let unfinished = dir.join("mode.json.new");
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&unfinished)?;
        file.write_all(&serde_json::to_vec(&saved)?)?;
        fs::rename(unfinished, dir.join(FILE))
    };
    if let Err(error) = write() {
        tracing::warn!(dir = %dir.display(), %error, "since when work is measured in debug mode cannot be written down: the quorum ends it");
    }
    now_ms
}

/// The request is over; the folder goes when all in it is put.
fn forget(dir: &Path) {
    for file in [FILE, "mode.json.new"] {
        let _there_was_none = fs::remove_file(dir.join(file));
    }
    let _still_needed = fs::remove_dir(dir);
}

/// Refuses to take the room that others need.
fn has_room(dir: &Path) -> io::Result<()> {
    let there = dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("/"));
    let stat = statvfs(there)?;
    let of = |blocks: u64| blocks.saturating_mul(stat.fragment_size());
    if of(stat.blocks_available()) < SPARE_BYTES.min(of(stat.blocks()) / 20) {
        return Err(io::Error::other("there is too little room"));
    }
    Ok(())
}
