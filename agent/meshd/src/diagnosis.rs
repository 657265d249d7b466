//! `lattice diag` finds what is wrong with an allocation's work on this node, when a user asks;
//! `lattice top --per-rank` is here too.
//!
//! Everything is read on a thread that no task waits for without a limit. Reads that may block for
//! ever, because they touch a process's memory or a mount, are made by helper threads that are
//! abandoned if they block ([`lattice_machine::questions`]): at most a few of them.
//!
//! Of a kernel stack, which only root can read, the work's owner gets the names of the functions:
//! they show where a rank waits, and everybody finds them in `/proc/kallsyms`. Addresses, offsets
//! and modules would help to attack the kernel.

mod fact;
pub mod gpus;
mod network;
mod processes;
pub mod ranks;
pub mod storage;

use crate::context::{Context, Shared};
use crate::diagnosis_slots::NoFreeSlot;
use fact::fact;
use lattice_machine::features::has_cxi;
use lattice_machine::gpu_loads::{GpuReadings, Looked};
use lattice_machine::unsupported;
use lattice_mesh::UnansweredNode;
use lattice_mesh::diagnosis::{DiagnosisAnswer, DiagnosisOpen, FACTS_MAX, WireDiagnosis, WireFact, plain};
use lattice_mesh::frame::{self, FrameError};
use lattice_mesh::open::Open;
use lattice_model::{AllocationId, Epoch, NodeId, NodeTopology, millis};
use lattice_observe::measuring::disks::DiskReport;
use quinn::SendStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::task::JoinError;
use tokio::time::timeout;
use uuid::Uuid;

/// How long one node may take to answer, locally and over the mesh.
const LOCAL_TIMEOUT: Duration = Duration::from_secs(8);
const MESH_TIMEOUT: Duration = Duration::from_secs(12);

/// Why the work on a node cannot be diagnosed.
#[derive(Debug, Error)]
pub enum DiagnosisError {
    #[error("allocation {} is not running on this node", .allocation.short())]
    NotHere { allocation: AllocationId },
    #[error("there is no cgroup for its work on this node: which processes are its own is not known")]
    NoCgroup,
    #[error(transparent)]
    Busy(#[from] NoFreeSlot),
    #[error(transparent)]
    Broke(#[from] JoinError),
    #[error("its kernel does not answer in time: reading /proc takes too long")]
    KernelTimeout,
    #[error(transparent)]
    Node(#[from] UnansweredNode),
}

/// The findings on `node`, for a user who has been authorized.
pub async fn of_node(
    context: &Shared,
    node: &NodeId,
    address: Option<String>,
    open: DiagnosisOpen,
) -> Result<WireDiagnosis, DiagnosisError> {
    if *node == context.setup.me {
        return diagnose_locally(context, &open).await;
    }
    let address = address.ok_or(UnansweredNode::NoAddress)?;
    let conversation = async {
        let (mut send, mut recv) = context.work.mesh.open(node, &address).await?;
        frame::write(&mut send, &Open::Diagnosis(Box::new(open))).await.map_err(UnansweredNode::Ask)?;
        frame::read::<DiagnosisAnswer, _>(&mut recv).await.map_err(UnansweredNode::reading)
    };
    let answer = timeout(MESH_TIMEOUT, conversation).await.map_err(|_| UnansweredNode::Timeout)??;
    match answer {
        DiagnosisAnswer::Answered(diagnosis) => Ok(diagnosis.checked().map_err(|_| UnansweredNode::UnknownForm)?),
        DiagnosisAnswer::Refused { why } => Err(UnansweredNode::Refused { why: plain(&why) }.into()),
    }
}

/// Answers the request of another agent.
pub async fn answer(context: &Shared, open: &DiagnosisOpen, send: &mut SendStream) -> Result<(), FrameError> {
    let answer = match diagnose_locally(context, open).await {
        Ok(diagnosis) => DiagnosisAnswer::Answered(diagnosis),
        Err(error) => DiagnosisAnswer::Refused { why: error.to_string() },
    };
    frame::write(send, &answer).await
}

/// The work that a request is about.
type Key = (AllocationId, Epoch);

fn key(open: &DiagnosisOpen) -> Key {
    (AllocationId(Uuid::from_bytes(open.allocation)), Epoch(open.epoch))
}

/// The cgroup of work that runs on this node.
fn running(context: &Context, (allocation, epoch): Key) -> Result<PathBuf, DiagnosisError> {
    if context.work.allocations.of_epoch(allocation, epoch).is_none() {
        return Err(DiagnosisError::NotHere { allocation });
    }
    let slice = context.machine.slice.as_ref().ok_or(DiagnosisError::NoCgroup)?;
    Ok(slice.scope(allocation).work().path().to_owned())
}

/// The findings on this node.
async fn diagnose_locally(context: &Shared, open: &DiagnosisOpen) -> Result<WireDiagnosis, DiagnosisError> {
    let of = key(open);
    let work = running(context, of)?;
    let place = context.diagnosis_slots.take(LOCAL_TIMEOUT).await?;
    let open = open.clone();
    let known = Known {
        disks: if open.storage { context.work.measuring.disks_of(of) } else { Vec::new() },
        topology: context.machine.topology(),
        gpus: gpus::of_work(context, of),
        newest: context.machine.gpu_readings.newest(),
        readings: context.machine.gpu_readings.clone(),
    };
    let finding = tokio::task::spawn_blocking(move || {
        let _place = place;
        find(&work, &open, &known)
    });
    match timeout(LOCAL_TIMEOUT, finding).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(error)) => Err(error.into()),
        Err(_) => Err(DiagnosisError::KernelTimeout),
    }
}

/// What this node knew before the request came.
struct Known {
    disks: Vec<DiskReport>,
    topology: Arc<NodeTopology>,
    gpus: Vec<gpus::WorkGpu>,
    /// The newest GPU readings, and the source of the next ones.
    newest: Option<Arc<Looked>>,
    readings: GpuReadings,
}

fn find(work: &Path, open: &DiagnosisOpen, known: &Known) -> WireDiagnosis {
    let listed = processes::list(work);
    let mut found = WireDiagnosis::default();
    let at = |facts: &[WireFact]| u32::try_from(facts.len()).unwrap_or(u32::MAX);
    let of_work = open.processes || open.stacks;
    if of_work {
        (found.processes, found.omitted) = processes::read(work, &listed, open.stacks);
        found.facts.extend(processes::pressure(work));
        found.facts.push(unsupported_fact("gpus", "CUPTI", unsupported::cupti(&known.topology.gpu)));
    }
    if open.network {
        found.facts.extend(network::interfaces());
        found.facts.extend(network::fabrics());
        found.facts.extend(network::tcp(&listed));
        found.facts.push(unsupported_fact("network", "CSIG", unsupported::csig(has_cxi())));
    }
    if open.storage {
        found.facts.extend(storage::mounts(&listed));
        for DiskReport { about, text, age } in &known.disks {
            found.ages.push((at(&found.facts), millis(*age)));
            found.facts.push(fact("storage", about, "ebpf", text.clone(), false));
        }
    }
    if of_work || open.network {
        let (facts, gpus) = gpus::read(&known.gpus, known.newest.as_ref(), &known.readings, of_work);
        let first = at(&found.facts);
        found.ages.extend((0..gpus.facts).map(|which| (first.saturating_add(which), gpus.age_ms)));
        found.facts.extend(facts);
        found.gpus = gpus;
    }
    found.facts.truncate(FACTS_MAX);
    found.ages.truncate(FACTS_MAX);
    found
}

/// A fact that this machine cannot provide, and why.
fn unsupported_fact(part: &str, about: &str, why: &str) -> WireFact {
    fact(part, about, "none", format!("unsupported: {why}"), false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(processes: bool, network: bool, storage: bool) -> DiagnosisOpen {
        DiagnosisOpen { allocation: [1; 16], epoch: 1, uid: 1000, user: "u".into(), processes, stacks: false, network, storage }
    }

    fn known(disks: Vec<DiskReport>) -> Known {
        Known { disks, topology: Arc::default(), gpus: vec![], newest: None, readings: GpuReadings::default() }
    }

    fn parts(found: &WireDiagnosis) -> std::collections::BTreeSet<&str> {
        found.facts.iter().map(|fact| fact.part.as_str()).collect()
    }

    #[test]
    fn a_diagnosis_has_the_parts_that_were_asked_for() {
        let nothing_runs = Path::new("/nonexistent");
        let find = |processes, network, storage| find(nothing_runs, &open(processes, network, storage), &known(vec![]));
        assert_eq!(parts(&find(false, false, false)), [].into());
        assert_eq!(parts(&find(true, false, false)), ["gpus"].into(), "CUPTI is unsupported, and says so");
        assert!(parts(&find(false, true, false)).contains("network") && !parts(&find(false, true, false)).contains("storage"));
        let storage = find(false, false, true);
        assert_eq!(storage.facts.len(), 1);
        assert_eq!(storage.facts[0].text, "the work has no process here: its mounts are unknown");
    }

    #[test]
    fn a_reading_of_before_names_its_age_beside_its_fact_and_too_many_facts_are_cut_with_their_ages() {
        let report = |age_ms| DiskReport { about: "sda".into(), text: "slow".into(), age: Duration::from_millis(age_ms) };
        let found = find(Path::new("/nonexistent"), &open(false, false, true), &known(vec![report(5), report(7)]));
        assert_eq!(found.ages, [(1, 5), (2, 7)]);
        assert!(found.facts[1..].iter().all(|fact| (fact.subject.as_str(), fact.text.as_str()) == ("sda", "slow")));
        let found = find(Path::new("/nonexistent"), &open(false, false, true), &known((0..2 * FACTS_MAX as u64).map(report).collect()));
        assert_eq!((found.facts.len(), found.ages.len()), (FACTS_MAX, FACTS_MAX));
    }
}
