//! Who writes raw measurements down, and for how long: a part of the measuring thread.
//!
//! How long is counted from when this node heard of the request, by the clock since the boot, and written down in `mode.json`: neither a
//! clock that is wrong nor an agent that is started again makes it longer. The quorum takes the request out of the list when its
//! time is over by the leader's clock, also where this node heard of it late.

use super::chunk::{Chunk, Declared, Header, Number, VERSION};
use super::{CHUNK_BYTES, Kept, Traces, folders, name};
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

    /// Begins and ends as the list says, and ends what has lasted long enough.
    pub fn follow(&mut self) {
        let view = Arc::clone(&self.view.borrow());
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
        let mut kept = self.traces.kept();
        if !kept.is_empty() {
            // Who asks anew, for a longer time, still sees what was lost before.
            let here: BTreeSet<Key> = view.locals.iter().map(|local| (local.share.allocation, local.share.epoch)).collect();
            kept.retain(|key, _| here.contains(key));
        }
        for key in self.recordings.keys() {
            kept.entry(*key).or_default();
        }
        drop(kept);
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
        self.wants(key).then(|| self.traces.kept().get(&key).copied().unwrap_or_default())
    }

    /// A look that is to be kept says nothing.
    pub fn missed(&self, key: Key) {
        self.traces.lost(key, 1);
    }

    /// Keeps a look: what was measured of all of it, and of each of its GPUs.
    pub fn take(&mut self, key: Key, at_ms: u64, shown: &[Shown], gpus: &[(String, Vec<Shown>)]) {
        let Some(recording) = self.recordings.get_mut(&key).filter(|recording| !recording.over) else { return };
        let written = recording.write(&self.traces, &self.me, key, at_ms, (shown, gpus));
        match written {
            Ok(()) => {
                self.traces.wrote(key);
                if self.troubled {
                    self.troubled = false;
                    self.troubles.over(SUBJECT);
                }
            }
            Err(error) => {
                self.traces.lost(key, 1);
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

/// A look as a line, and before it the units and sources of numbers for which not the same was `declared` last.
fn lines(declared: &Declared, at_ms: u64, shown: &[Shown], gpus: &[(String, Vec<Shown>)]) -> io::Result<(Vec<u8>, Declared)> {
    let mut anew = Declared::new();
    let mut declare = |gpu: Option<&String>, shown: &[Shown]| {
        let mut metrics = Map::new();
        for one in shown {
            let number: Number = (gpu.cloned(), one.name.clone());
            if declared.get(&number) != Some(&one.source) {
                anew.insert(number, one.source.clone());
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
