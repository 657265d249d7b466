//! Fuzz targets: frames from an agent whose certificate was stolen. `docs/fuzzing.md` lists all
//! targets.

use super::branch::{BranchOpen, Down, Up};
use super::checkpoint::{CheckpointItem, FromSaver, SavingNow, ToSaver};
use super::conformance::{FingerprintAnswer, WireConformance};
use super::diagnosis::{DiagnosisAnswer, DiagnosisOpen, WireDiagnosis};
use super::fact::{FactAnswer, WireFact};
use super::frame::{self, Frame};
use super::gpu_usage::WireGpus;
use super::history::HistoryOpen;
use super::input::{WireInputAck, WireInputChunk};
use super::launch::{ToHead, WireLaunch};
use super::monitor::MonitorItem;
use super::open::{HeadAnswer, LaunchItem, LaunchOpen, LogItem, Open};
use super::ranks::WireRanks;
use super::shape::{WireDistribution, WireLaunchOptions, WireShape};
use super::signal::SignalAnswer;
use super::steps::WireSteps;
use super::terminal::{FromTerminal, ToTerminal};
use super::usage::WireUsage;
use lattice_fuzz::{Target, numbered};
use lattice_model::binding::BindingRequest;
use lattice_model::call::Call;
use lattice_model::layout::ShapeRequest;
use rkyv::api::high::{HighDeserializer, HighSerializer, HighValidator};
use rkyv::rancor::Error;
use rkyv::ser::allocator::ArenaHandle;
use rkyv::util::AlignedVec;
use rkyv::{Archive, Deserialize, Serialize};

/// A frame with this body. Reading from memory never blocks.
fn framed(body: &[u8]) -> Frame {
    let mut bytes = vec![frame::VERSION, 0, 0, 0];
    bytes.extend_from_slice(&u32::try_from(body.len()).unwrap().to_le_bytes());
    bytes.extend_from_slice(body);
    read(&bytes).unwrap()
}

fn read(bytes: &[u8]) -> Result<Frame, frame::FrameError> {
    let mut bytes = bytes;
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(Frame::read(&mut bytes)).poll(&mut context) {
        std::task::Poll::Ready(read) => read,
        std::task::Poll::Pending => panic!("reading from memory waits"),
    }
}

/// The encoded messages, without frame headers.
fn bodies<T: for<'a> Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, Error>>>(messages: &[T]) -> Vec<Vec<u8>> {
    messages.iter().map(|message| rkyv::to_bytes::<Error>(message).unwrap().to_vec()).collect()
}

fn message<T>(body: &[u8]) -> Option<T>
where
    T: Archive,
    T::Archived: for<'a> rkyv::bytecheck::CheckBytes<HighValidator<'a, Error>> + Deserialize<T, HighDeserializer<Error>>,
{
    framed(body).message().ok()
}

fn launch() -> WireLaunch {
    WireLaunch {
        id: [1; 16],
        number: 1,
        allocation: [2; 16],
        epoch: 3,
        argv: vec!["true".into(), "x".into()],
        env: vec![("A".into(), "b".into())],
        working_dir: "/".into(),
        nodes: vec![("n1".into(), 0, 2), ("n2".into(), 2, 2)],
        pty: Some((24, 80)),
        binding: Default::default(),
    }
}

fn shape() -> WireShape {
    WireShape { distribution: WireDistribution::Plane(2), programs: vec![(2, vec!["a".into()])], cpus_per_task: 1, slurm_env: true }
}

fn ask() -> WireLaunchOptions {
    WireLaunchOptions {
        distribution: Some(WireDistribution::Explicit(vec![])),
        listed: vec![("n1".into(), 2)],
        programs: vec![(1, vec!["b".into()])],
        cpus_per_task: 1,
        slurm_env: false,
        kill_on_bad_exit: Some(true),
        nodes: 1,
        exits: true,
    }
}

fn launch_open() -> LaunchOpen {
    LaunchOpen {
        id: [1; 16],
        allocation: [2; 16],
        epoch: 3,
        argv: vec!["true".into()],
        ranks: 2,
        tasks_per_node: 1,
        binding: Default::default(),
        working_dir: "/".into(),
        env: vec![("A".into(), "b".into())],
        pty: Some((24, 80)),
        ask: ask(),
        uid: 1,
        user: "u".into(),
    }
}

/// Runs what the first frame of a stream causes before the node is involved.
fn opened(open: Open) {
    match open {
        Open::Launch(launch) => {
            drop(BindingRequest::try_from(launch.binding));
            drop(ShapeRequest::try_from(launch.ask));
        }
        Open::Branch(branch) => {
            if let Ok((subtree, fanout)) = branch.subtree() {
                assert!(subtree.children(fanout).all(|child| subtree.contains(child)));
            }
            drop(branch.shape.of(branch.launch));
        }
        Open::History(HistoryOpen::Query(query)) => drop(query.checked()),
        _ => {}
    }
}

#[test]
fn streams() {
    let branch = BranchOpen { launch: launch(), shape: shape(), fanout: 8, first: 0, end: 2 };
    let seeds = bodies(&[Open::Launch(Box::new(launch_open())), Open::Branch(Box::new(branch)), Open::RelaySession, Open::Fingerprint]);
    let shapes = bodies(&[ask()]);
    Target::new("agent-mesh-streams", numbered([seeds, shapes, vec![vec![frame::VERSION, 0, 0, 0, 1, 0, 0, 0, 7]]])).fuzz(|bytes| {
        let Some((which, body)) = bytes.split_first() else { return };
        match which {
            0 => {
                if let Some(open) = message(body) {
                    opened(open);
                }
            }
            1 => drop(message::<WireLaunchOptions>(body).map(ShapeRequest::try_from)),
            _ => drop(read(body)),
        }
    });
}

/// The frames after the first one.
#[test]
fn messages() {
    let call =
        || super::call::WireCall { from: 0, to: 1, service: super::call::WireService::Names, is_reply: false, number: 1, body: vec![1] };
    let to_head = || ToHead::Fence { number: 1, blob: vec![1, 2] };
    let seeds = [
        bodies(&[Down::FenceDone { number: 1, blob: vec![1], packed_from: Some(3) }, Down::Call(Box::new(call()))]),
        bodies(&[to_head(), ToHead::Absent { ranks: vec![1] }, ToHead::Call(Box::new(call()))]),
        bodies(&[Up::FromPart { part: 1, message: to_head() }, Up::UnreachableParts { parts: vec![1] }]),
        bodies(&[LogItem::Chunk { rank: 1, stderr: true, data: vec![1], segment: 0, end: 1 }, LogItem::Notice("n".into())]),
        bodies(&[LaunchItem::Started { number: 1, nodes: vec![("n1".into(), 0, 1)] }]),
        bodies(&[HeadAnswer::Refused { why: "w".into() }]),
    ];
    // The other message types start from zeros: mutation finds the few lengths that they have.
    let others = (6..=26).map(|which| [&[which][..], &[0; 64]].concat());
    Target::new("agent-mesh-messages", numbered(seeds).into_iter().chain(others).collect()).fuzz(|bytes| {
        let Some((which, body)) = bytes.split_first() else { return };
        match which {
            0 => {
                if let Some(Down::Call(call)) = message(body) {
                    drop(Call::try_from(*call));
                }
            }
            1 => drop(message::<ToHead>(body)),
            2 => drop(message::<Up>(body)),
            3 => drop(message::<LogItem>(body)),
            4 => drop(message::<LaunchItem>(body)),
            5 => drop(message::<HeadAnswer>(body)),
            6 => drop(message::<WireFact>(body).map(|fact| fact.of(&"n1".parse().unwrap()))),
            7 => drop(message::<FactAnswer>(body)),
            8 => drop(message::<ToSaver>(body)),
            9 => drop(message::<FromSaver>(body)),
            10 => drop(message::<CheckpointItem>(body)),
            11 => drop(message::<SavingNow>(body)),
            12 => drop(message::<MonitorItem>(body).map(MonitorItem::checked)),
            13 => drop(message::<WireRanks>(body).map(WireRanks::checked)),
            14 => drop(message::<WireUsage>(body).map(WireUsage::checked)),
            15 => drop(message::<WireGpus>(body).map(WireGpus::checked)),
            16 => drop(message::<DiagnosisAnswer>(body)),
            17 => drop(message::<DiagnosisOpen>(body)),
            18 => drop(message::<WireConformance>(body)),
            19 => drop(message::<FingerprintAnswer>(body)),
            20 => drop(message::<SignalAnswer>(body)),
            21 => drop(message::<ToTerminal>(body)),
            22 => drop(message::<FromTerminal>(body)),
            23 => drop(message::<WireInputChunk>(body)),
            24 => drop(message::<WireInputAck>(body)),
            25 => drop(message::<WireSteps>(body).map(WireSteps::checked)),
            _ => drop(message::<WireDiagnosis>(body).map(WireDiagnosis::checked)),
        }
    });
}
