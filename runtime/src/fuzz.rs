//! Fuzz targets of the shim's socket and of its file of exits: a shim has its user's rights. `docs/fuzzing.md` has all
//! targets.

use crate::exits::{self, ExitRecord};
use crate::shim::{Decoder, FromShim, LaneSpec, StopReason, ToShim, encode};
use lattice_fuzz::{Target, numbered};
use lattice_model::call::{Call, CallKind, Service};
use lattice_model::{
    AllocationId, EndedTasks, Entrypoint, Epoch, LaneReport, LaneReturn, LaneWork, LaunchId, LaunchSpec, NodeRanks, RankOutcome,
    TaskIndices, TaskOutcome, TaskSet,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

fn launch() -> LaunchId {
    "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".parse().unwrap()
}

fn spec() -> LaunchSpec {
    LaunchSpec {
        id: launch(),
        number: 1,
        allocation: AllocationId(launch().0),
        epoch: Epoch(2),
        argv: vec!["true".into()],
        env: [("A".to_owned(), "b".to_owned())].into(),
        working_dir: "/".into(),
        nodes: vec![NodeRanks { node: "n1".parse().unwrap(), first: 0, count: 2 }],
        shape: Default::default(),
        kill_on_bad_exit: false,
        pty: None,
        binding: Default::default(),
    }
}

fn lane() -> LaneSpec {
    LaneSpec {
        indices: TaskIndices::parse("0-98:2").unwrap(),
        program: Entrypoint::Command { argv: vec!["true".into()] },
        env: vec![("A".to_owned(), "b".to_owned())],
        working_dir: "/".into(),
        walltime_ms: Some(1000),
        slurm_number: Some(12),
    }
}

fn ended() -> EndedTasks {
    EndedTasks { outcome: TaskOutcome::Exited(3), tasks: TaskSet::first(2) }
}

/// Whatever can be decoded from arbitrary bytes can be encoded, and is then decoded as the same value.
fn read_stream<T: DeserializeOwned + Serialize + PartialEq + Debug>(stream: &[u8]) {
    let mut decoder = Decoder::<T>::default();
    for fragment in stream.chunks(50) {
        decoder.push(fragment);
        while let Ok(Some(message)) = decoder.next() {
            let mut again = Decoder::<T>::default();
            again.push(&encode(&message).unwrap());
            assert_eq!(again.next().unwrap(), Some(message));
        }
    }
}

fn streams<T: Serialize>(messages: &[T]) -> Vec<Vec<u8>> {
    let mut streams: Vec<Vec<u8>> = messages.iter().map(|message| encode(message).unwrap()).collect();
    streams.push(streams.concat());
    streams
}

#[test]
fn shim_frames() {
    let call = Call { from: 0, to: 1, service: Service::Names, kind: CallKind::Request, number: 3, body: vec![1] };
    let to = streams(&[
        ToShim::Hello { protocol: 1 },
        ToShim::StartScript { text: "#!/bin/sh\n".into(), args: vec!["a".into()], env: vec![], working_dir: "/".into() },
        ToShim::StartLaunch { launch: spec() },
        ToShim::OpenLane { lane: Box::new(lane()) },
        ToShim::LeaseTasks { work: LaneWork { leased: TaskSet::first(9), is_last: true, returns: 1 } },
        ToShim::Call { launch: launch(), call: call.clone() },
        ToShim::Stop { why: StopReason::Requested, grace_ms: 30_000 },
        ToShim::Quit,
    ]);
    let from = streams(&[
        FromShim::Hello { protocol: 1, allocation: AllocationId(launch().0), epoch: Epoch(2), pid: 3 },
        FromShim::Ready { failed: Some("why".into()) },
        FromShim::LaunchStarted { launch: spec() },
        FromShim::RankEnded { launch: launch(), rank: 1, outcome: RankOutcome::Exited { code: 1 } },
        FromShim::Fence { launch: launch(), number: 1, blob: vec![1, 2, 3] },
        FromShim::Absent { launch: launch(), ranks: vec![1, 2] },
        FromShim::LaneOpened,
        FromShim::LanePaused { why: Some("why".into()) },
        FromShim::FilesLate { why: Some("why".into()) },
        FromShim::TasksEnded {
            report: LaneReport { ended: vec![ended()], mean_us: 7, returned: Some(LaneReturn { number: 1, tasks: TaskSet::first(3) }) },
            left: 2,
        },
        FromShim::Call { launch: launch(), call },
        FromShim::Aborted { launch: launch(), code: 1, why: "why".into() },
        FromShim::Stopped { why: StopReason::Walltime },
    ]);
    Target::new("runtime-shim-frames", numbered([to, from])).fuzz(|bytes| match bytes.split_first() {
        Some((0, stream)) => read_stream::<ToShim>(stream),
        Some((_, stream)) => read_stream::<FromShim>(stream),
        None => {}
    });
}

/// Reads the bytes both as they are in the file, and with a correct checksum.
#[test]
fn exits() {
    let records = [
        ExitRecord::Rank { launch: launch(), rank: 3, outcome: RankOutcome::Signalled { signal: 9 } },
        ExitRecord::Aborted { launch: launch(), code: 7, why: "rank 3 ended before finalize".into() },
        ExitRecord::Script { outcome: RankOutcome::Exited { code: 2 } },
        ExitRecord::Task { ordinal: 7, outcome: TaskOutcome::Exited(3) },
        ExitRecord::Stopped { why: StopReason::Walltime },
    ];
    let bodies: Vec<Vec<u8>> = records.iter().map(|record| rmp_serde::to_vec_named(record).unwrap()).collect();
    let files = vec![bodies.iter().flat_map(|body| framed(body)).collect::<Vec<u8>>()];
    Target::new("runtime-exits", numbered([files, bodies])).fuzz(|bytes| match bytes.split_first() {
        Some((0, file)) => {
            let (records, whole) = exits::whole_records(file);
            assert!(whole <= file.len() && records.len() * 8 <= whole);
        }
        Some((_, body)) => drop(exits::whole_records(&framed(body))),
        None => {}
    });
}

fn framed(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_le_bytes();
    [&length, &crc32fast::hash(body).to_le_bytes(), body].concat()
}
