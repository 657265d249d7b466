//! Fuzz targets for what ranks, servers of other nodes and the PMIx server send. `docs/fuzzing.md`
//! lists all targets.

use crate::bridge::{self, Frames, FromBridge, Published, Question, ToBridge};
use crate::names::{Answered, Ask};
use crate::{Action, Event, Job, PmixEvent, PmixServer, Server, blob};
use lattice_fuzz::{Input, Target, numbered, piece};
use lattice_model::call::{Call, CallKind, Service};

/// A launch of three ranks: two on the first node, one on the second.
fn job(first: u32, count: u32) -> Job {
    Job {
        number: 1,
        kvsname: "kvs".into(),
        size: 3,
        first,
        count,
        ranks: vec![],
        appnums: vec![],
        mapping: "(vector,(0,1,2),(1,1,1))".into(),
        part: u32::from(first > 0),
        nodes: vec![],
        runs: vec![],
    }
}

fn server() -> Server {
    Server::new(job(0, 2))
}

/// The meaning of a leading byte of an input; used to decode and encode inputs.
const BYTES: u8 = 0;
const CLOSED: u8 = 1;
const EXITED: u8 = 2;
const FENCE_DONE: u8 = 3;

fn spoken(local: u8, text: &[u8]) -> Vec<u8> {
    [&[BYTES, local], piece(text).as_slice()].concat()
}

/// A PMI-2 message with its length prefix.
fn message(body: &str) -> Vec<u8> {
    format!("{:6}{body}", body.len()).into_bytes()
}

fn pairs() -> Vec<u8> {
    let mut pairs = Vec::new();
    blob::append(&mut pairs, b"key", b"value");
    blob::append(&mut pairs, b"k", b"");
    pairs
}

fn conversations() -> Vec<Vec<u8>> {
    const INIT: &[u8] = b"cmd=init pmi_version=1 pmi_subversion=1\n";
    let done = [&[FENCE_DONE, 1], piece(&pairs()).as_slice()].concat();
    let exited = |local, code| vec![EXITED, local, code];
    let bodies = [
        "cmd=fullinit;pmijobid=1;threaded=FALSE;",
        "cmd=kvs-put;key=k;value=v;",
        "cmd=kvs-get;jobid=;srcid=-1;key=k;",
        "cmd=info-putnodeattr;key=k;value=v;",
        "cmd=info-getnodeattr;key=k;wait=TRUE;thrid=1;",
        "cmd=name-publish;name=n;port=p;",
        "cmd=name-lookup;name=n;",
        "cmd=job-getid;",
        "cmd=info-getjobattr;key=PMI_process_mapping;",
    ];
    let messages: Vec<u8> = bodies.iter().flat_map(|body| message(body)).collect();
    let init_2 = [b"cmd=init pmi_version=2 pmi_subversion=0\n".as_slice(), &messages].concat();
    let fence_2 = [init_2.as_slice(), &message("cmd=kvs-fence;")].concat();
    let ring = [init_2.as_slice(), &message("cmd=ring;ring-count=1;ring-left=x;ring-right=x;")].concat();
    let abort = [init_2.as_slice(), &message("cmd=abort;isworld=TRUE;msg=m;")].concat();
    let line = |rest: &[u8]| [INIT, rest].concat();
    let barrier = line(b"cmd=get_maxes\ncmd=get_appnum\ncmd=put kvsname=kvs key=k value=v\ncmd=barrier_in\n");
    vec![
        [spoken(0, &barrier), spoken(1, &barrier), done.clone(), spoken(0, b"cmd=finalize\n"), exited(0, 0)].concat(),
        [spoken(0, &fence_2), spoken(1, &fence_2), done.clone(), spoken(1, &message("cmd=finalize;")), exited(1, 0)].concat(),
        [spoken(0, &ring), spoken(1, &ring), done].concat(),
        spoken(0, &line(b"cmd=get kvsname=kvs key=PMI_process_mapping\ncmd=get_my_kvsname\ncmd=publish_name service=n port=p\n")),
        spoken(0, &line(b"cmd=lookup_name service=n\ncmd=unpublish_name service=n\n")),
        [spoken(0, &line(b"mcmd=spawn\nnprocs=1\ntotspawns=1\nspawnssofar=1\nendcmd\n")), vec![CLOSED, 0]].concat(),
        [spoken(0, &line(b"cmd=abort exitcode=3\n")), exited(1, 9)].concat(),
        [spoken(1, &abort), exited(1, 139)].concat(),
    ]
}

/// What ranks write to their sockets, with the head's answers to their fences.
#[test]
fn ranks() {
    Target::new("pmi-ranks", conversations()).fuzz(|bytes| {
        let (mut input, mut server, mut out) = (Input(bytes), server(), Vec::new());
        while !input.is_empty() {
            let (what, local) = (input.byte(), u32::from(input.byte()));
            let event = match what {
                BYTES => Event::Bytes { local, data: input.piece() },
                CLOSED => Event::Closed { local },
                EXITED => Event::Exited { local, code: input.byte().into() },
                FENCE_DONE => Event::FenceDone { number: local, blob: input.piece() },
                _ => continue,
            };
            server.handle(event, &mut out);
        }
        let aborts = out.iter().filter(|action| matches!(action, Action::Abort { .. })).count();
        assert!(aborts == 0 || aborts == 1 && matches!(out.last(), Some(Action::Abort { .. })), "{out:?}");
        let fences = out.iter().filter_map(|action| if let Action::Fence { blob, .. } = action { Some(blob) } else { None });
        assert!(fences.into_iter().all(|fence| blob::check(fence).is_ok()), "a blob is sent that the others refuse");
    });
}

fn call(what: u8, part: u8, number: u8, body: &[u8]) -> Vec<u8> {
    [&[what, part, number], piece(body).as_slice()].concat()
}

/// Calls and answers from servers of other nodes: their shims run as the user and are not trusted.
#[test]
fn calls() {
    let name = || b"name".to_vec();
    let asks = vec![Ask::Publish { name: name(), value: name() }, Ask::Lookup { name: name() }, Ask::Unpublish { name: name() }];
    let asks = rmp_serde::to_vec_named(&asks).unwrap();
    let answers = rmp_serde::to_vec_named(&vec![Answered::Done, Answered::Found(name())]).unwrap();
    let services = |kind: u8, body: &[u8]| (0..4).map(|service| call(service << 1 | kind, 1, 1, body)).collect::<Vec<_>>();
    let mut seeds = vec![services(0, &asks).concat(), services(1, &answers).concat()];
    seeds.extend(services(0, &2u32.to_le_bytes()));
    seeds.extend(services(1, &[0, 0, 0, 0, 1, 2, 3]));
    Target::new("pmi-calls", seeds).fuzz(|bytes| {
        let mut input = Input(bytes);
        let (mut directory, mut asker) = (server(), Server::new(job(2, 1)));
        let mut pmix = [PmixServer::new(&[0, 1], vec![0, 0, 1], 0), PmixServer::new(&[2], vec![0, 0, 1], 1)];
        let (mut out, mut pmix_out) = (Vec::new(), Vec::new());
        let ask = b"cmd=init pmi_version=1 pmi_subversion=1\ncmd=lookup_name service=n\n";
        asker.handle(Event::Bytes { local: 0, data: ask }, &mut out);
        pmix[1].handle(PmixEvent::Message(FromBridge::Joined { rank: 2 }), &mut pmix_out);
        let questions = [Question::Modex { rank: 0 }, Question::Lookup { keys: vec!["n".into()] }];
        for (id, question) in (1..).zip(questions) {
            pmix[1].handle(PmixEvent::Message(FromBridge::Ask { id, question }), &mut pmix_out);
        }
        while !input.is_empty() {
            let (what, part, number) = (input.byte(), u32::from(input.byte()), u64::from(input.byte()));
            let service = [Service::Names, Service::Published, Service::Modex, Service::Deaths][usize::from(what >> 1 & 3)];
            let kind = [CallKind::Request, CallKind::Reply][usize::from(what & 1)];
            let call = Call { from: part, to: 1 - part.min(1), service, kind, number, body: input.piece().to_vec() };
            if service == Service::Names {
                directory.handle(Event::Called(&call), &mut out);
                asker.handle(Event::Called(&call), &mut out);
            } else {
                pmix.iter_mut().for_each(|server| server.handle(PmixEvent::Called(&call), &mut pmix_out));
            }
        }
    });
}

/// The stream between the shim and `lattice-pmix`, which runs as the user, in both directions.
#[test]
fn bridge() {
    let published = || Published { key: "k".into(), rank: 1, data_type: 3, value: b"v".to_vec() };
    let stream = |messages: &[FromBridge]| messages.iter().flat_map(|message| bridge::encode(message).unwrap()).collect::<Vec<_>>();
    let from = vec![
        stream(&[FromBridge::Ready { library: "5".into(), env: vec![vec![("a".into(), "b".into())]] }, FromBridge::Joined { rank: 0 }]),
        stream(&[FromBridge::Joined { rank: 1 }, FromBridge::Ask { id: 1, question: Question::Publish(published()) }]),
        stream(&[FromBridge::Ask { id: 2, question: Question::Lookup { keys: vec!["k".into()] } }]),
        stream(&[FromBridge::Ask { id: 3, question: Question::Unpublish { keys: vec!["k".into()] } }]),
        stream(&[FromBridge::Ask { id: 4, question: Question::Modex { rank: 2 } }, FromBridge::Fence { data: b"d".to_vec() }]),
        stream(&[FromBridge::Modex { from: 1, number: 1, status: 0, data: vec![1] }, FromBridge::Lost { rank: 0 }]),
        stream(&[FromBridge::Aborted { rank: 0, code: 3, message: "m".into() }, FromBridge::Finalized { rank: 1 }]),
        stream(&[FromBridge::Failed { why: "w".into() }]),
    ];
    let to = vec![
        bridge::encode(&ToBridge::Fenced { data: vec![1, 2] }).unwrap(),
        bridge::encode(&ToBridge::Answered { id: 1, status: bridge::AnswerStatus::Done, found: vec![published()] }).unwrap(),
        bridge::encode(&ToBridge::GiveModex { from: 1, number: 2, rank: 0 }).unwrap(),
    ];
    Target::new("pmi-bridge", numbered([from, to])).fuzz(|bytes| {
        let Some((which, bytes)) = bytes.split_first() else { return };
        if which & 1 == 1 {
            let _refused = Frames::<ToBridge>::default().push(bytes);
            return;
        }
        let (mut frames, mut out) = (Frames::<FromBridge>::default(), Vec::new());
        let mut server = PmixServer::new(&[0, 1], vec![0, 0, 1], 0);
        for fragment in bytes.chunks(100) {
            let Ok(messages) = frames.push(fragment) else { return };
            messages.into_iter().for_each(|message| server.handle(PmixEvent::Message(message), &mut out));
        }
    });
}
