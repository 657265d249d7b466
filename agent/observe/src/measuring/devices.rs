//! The numbers of each GPU that an allocation has, for `lattice top --per-gpu`.

use super::gpu_numbers::{Mine, shown};
use super::{Known, Measuring, UsageError};
use crate::kernel_counts::Key;
use lattice_mesh::UnansweredNode;
use lattice_mesh::frame::{self, FrameError};
use lattice_mesh::gpu_usage::{GpusAnswer, WireGpu, WireGpus};
use lattice_mesh::open::Open;
use lattice_mesh::usage::UsageOpen;
use lattice_model::gpu_look::gpu_key;
use lattice_model::{AllocationId, Epoch, NodeId, millis};
use quinn::SendStream;
use std::time::Duration;
use uuid::Uuid;

/// How long another agent may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

impl Known {
    /// Stores a reading of an allocation's GPUs. The allocation's other numbers must be stored
    /// first.
    pub(super) fn take_devices(&mut self, allocation: AllocationId, mine: Option<Mine>, at_ms: u64) {
        if let Some(of) = self.running.get_mut(&allocation) {
            of.devices.take(mine, at_ms);
        }
    }
}

impl Measuring {
    /// The newest numbers of each GPU that an allocation has on this node.
    fn wire_gpus(&self, (allocation, epoch): Key) -> WireGpus {
        let assigned: Vec<String> = {
            let view = self.0.handles.view.borrow();
            let of = view.locals.iter().find(|local| local.share.allocation == allocation && local.share.epoch == epoch);
            of.and_then(|local| local.assignment.as_ref()).map(|a| a.gpus.iter().cloned().collect()).unwrap_or_default()
        };
        let newest = self.known().running.get(&allocation).filter(|of| of.share.epoch == epoch).and_then(|of| of.devices.newest().cloned());
        let age_ms = newest.as_ref().map_or(0, |mine| millis(mine.at.elapsed()));
        let topology = self.0.handles.topology.borrow().clone();
        let gpus = assigned.into_iter().map(|id| {
            let device = topology.gpu.by_id(&id);
            let model = device.map(|gpu| gpu.model.clone()).unwrap_or_default();
            match newest.iter().flat_map(|mine| &mine.gpus).find(|gpu| gpu.id == id) {
                Some(gpu) => {
                    let throttled = gpu.load.throttled.clone().unwrap_or_default();
                    WireGpu { id, model, error: String::new(), shown: shown(gpu), throttled }
                }
                None => {
                    // A lost GPU is not read at all: its problem explains more.
                    let why = device.map(|gpu| self.0.handles.gpus.borrow().why(gpu_key(gpu))).unwrap_or_default();
                    let error =
                        if why.is_empty() { self.0.handles.gpu_readings.why_silent(&id, device.map(|gpu| gpu.vendor)) } else { why };
                    WireGpu { id, model, error, shown: Vec::new(), throttled: Vec::new() }
                }
            }
        });
        WireGpus { age_ms, gpus: gpus.collect() }
    }
}

/// The numbers of an allocation's GPUs on `node`, for a user who may see them.
pub async fn gpus_of_node(measuring: &Measuring, node: &NodeId, address: Option<String>, open: UsageOpen) -> Result<WireGpus, UsageError> {
    let key = (AllocationId(Uuid::from_bytes(open.allocation)), Epoch(open.epoch));
    if *node == measuring.0.handles.me {
        if measuring.0.handles.allocations.of_epoch(key.0, key.1).is_none() {
            return Err(UsageError::NotHere { allocation: key.0 });
        }
        return measuring.wire_gpus(key).checked().map_err(|_| UsageError::OddGpuReadings);
    }
    let address = address.ok_or(UnansweredNode::NoAddress)?;
    let conversation = async {
        let (mut send, mut recv) = measuring.0.handles.mesh.open(node, &address).await?;
        frame::write(&mut send, &Open::UsageGpus(Box::new(open))).await.map_err(UnansweredNode::Ask)?;
        frame::read::<GpusAnswer, _>(&mut recv).await.map_err(UnansweredNode::reading)
    };
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, conversation).await.map_err(|_| UnansweredNode::Timeout)??;
    match answer {
        GpusAnswer::Answered(gpus) => Ok(gpus.checked().map_err(|_| UnansweredNode::UnknownForm)?),
        GpusAnswer::Refused { why } => {
            let why = why.chars().map(|c| if c.is_control() { ' ' } else { c }).take(500).collect();
            Err(UnansweredNode::Refused { why }.into())
        }
    }
}

/// Answers the request of another agent.
pub async fn answer_gpus(measuring: &Measuring, open: &UsageOpen, send: &mut SendStream) -> Result<(), FrameError> {
    let key = (AllocationId(Uuid::from_bytes(open.allocation)), Epoch(open.epoch));
    let answer = match measuring.0.handles.allocations.of_epoch(key.0, key.1) {
        Some(_) => GpusAnswer::Answered(measuring.wire_gpus(key)),
        None => GpusAnswer::Refused { why: UsageError::NotHere { allocation: key.0 }.to_string() },
    };
    frame::write(send, &answer).await
}
