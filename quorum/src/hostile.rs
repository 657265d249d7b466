//! Bytes that come from a network or a disk and are not what they should be: no decoder panics, none believes a length
//! that the bytes do not have, and none takes what it refuses. `PROPTEST_CASES` makes it longer.

use crate::ledger::keyring::Secret;
use crate::ledger::{
    Action, AuditHead, ClusterLimits, Command, LEVEL_MAX, Ledger, QuotaChange, SCHEDULER_LEASE, UserLimitsChange, VClusterChange,
};
use crate::pack::{from_bytes, to_bytes};
use crate::raft::{Entry, LogId, Peer, Proposal, SnapshotMeta, TypeConfig, Vote};
use crate::service::{Forward, Forwarded};
use crate::store::audit::AuditChain;
use crate::store::record::{self, Ending};
use crate::store::segments::Segments;
use crate::store::snapshot_file::{self, About};
use crate::wire::{
    Answer, AuditFound, AuditPage, AuditPageRequest, Change, ClockAlarm, Conflict, Down, HeartbeatSummary, HeldKeys, ListFilter,
    NodeHealth, Refusal, RefusedClaim, Request, SummaryAnswer, Up, VniPoolChange, WatchAllocations, WatchMessage, WatchPlace, WatchRequest,
};
use lattice_model::claim::ClaimShare;
use lattice_model::lifecycle::{Event, Illegal};
use lattice_model::network::NoVni;
use lattice_model::{
    Allocation, AllocationId, AllocationSpec, AuditRecord, Claim, Connectivity, Epoch, Exposed, Generation, HoldKind, Incarnation,
    MemberId, NodeReport, NodeState, ReportItem, Revision, Timestamp, VniPool, When,
};
use openraft::error::{InstallSnapshotError, RaftError};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{CommittedLeaderId, EntryPayload, Membership};
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// What is done to true bytes.
#[derive(Clone, Debug)]
enum Harm {
    Flip {
        at: prop::sample::Index,
        by: u8,
    },
    Cut {
        at: prop::sample::Index,
    },
    Insert {
        at: prop::sample::Index,
        bytes: Vec<u8>,
    },
    /// A MessagePack length that promises far more than there is.
    Boast {
        at: prop::sample::Index,
        kind: usize,
    },
}

fn harm() -> impl Strategy<Value = Harm> {
    prop_oneof![
        (any::<prop::sample::Index>(), 1..=255u8).prop_map(|(at, by)| Harm::Flip { at, by }),
        any::<prop::sample::Index>().prop_map(|at| Harm::Cut { at }),
        (any::<prop::sample::Index>(), prop::collection::vec(any::<u8>(), 1..16)).prop_map(|(at, bytes)| Harm::Insert { at, bytes }),
        (any::<prop::sample::Index>(), 0..4usize).prop_map(|(at, kind)| Harm::Boast { at, kind }),
    ]
}

fn harmed(bytes: &[u8], harms: &[Harm]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for harm in harms {
        match harm {
            Harm::Flip { at, by } if !bytes.is_empty() => {
                let at = at.index(bytes.len());
                bytes[at] ^= by;
            }
            Harm::Flip { .. } => {}
            Harm::Cut { at } => bytes.truncate(at.index(bytes.len() + 1)),
            Harm::Insert { at, bytes: more } => {
                let at = at.index(bytes.len() + 1);
                bytes.splice(at..at, more.iter().copied());
            }
            Harm::Boast { at, kind } => {
                // str 32, bin 32, array 32, map 32: four billion of them.
                let head = [0xdb, 0xc6, 0xdd, 0xdf][*kind];
                let at = at.index(bytes.len() + 1);
                bytes.splice(at..at, [head, 0xff, 0xff, 0xff, 0xff]);
            }
        }
    }
    bytes
}

/// One type that is read from outside, with true values of it.
pub(crate) struct Decoder {
    pub name: &'static str,
    pub truths: Vec<Vec<u8>>,
    /// Whether they are read. Panics where what was read cannot be written, and read again.
    pub decode: fn(&[u8]) -> bool,
}

fn decoder<T: Serialize + DeserializeOwned>(name: &'static str, truths: &[T]) -> Decoder {
    let truths = truths.iter().map(|t| to_bytes(t).unwrap()).collect();
    let decode = |bytes: &[u8]| {
        let Ok(value) = from_bytes::<T>(bytes) else { return false };
        assert!(from_bytes::<T>(&to_bytes(&value).unwrap()).is_ok());
        true
    };
    Decoder { name, truths, decode }
}

fn log_id(index: u64) -> LogId {
    LogId::new(CommittedLeaderId::new(3, 1), index)
}

fn command() -> Command {
    Command { at: Timestamp(5), action: Action::GrantLease { name: "l".into(), holder: "n1".parse().unwrap(), ttl_ms: 1000, user: None } }
}

fn entries() -> Vec<Entry> {
    let members: BTreeMap<u64, Peer> = (1..=3).map(|id| (id, Peer { service: format!("h{id}:1"), raft: format!("h{id}:2") })).collect();
    vec![
        Entry { log_id: log_id(1), payload: EntryPayload::Membership(Membership::new(vec![members.keys().copied().collect()], members)) },
        Entry { log_id: log_id(2), payload: EntryPayload::Blank },
        Entry { log_id: log_id(3), payload: EntryPayload::Normal(Proposal::new(vec![command()]).unwrap()) },
    ]
}

fn allocation() -> Allocation {
    let spec = crate::ledger::scenarios::spec(2, lattice_model::RequeuePolicy::Always, 1);
    Allocation::submitted(AllocationId(uuid::Uuid::from_u128(7)), spec, crate::ledger::scenarios::user(1), Timestamp(9))
}

fn vcluster() -> VClusterChange {
    let nodes = Some([crate::ledger::scenarios::node(1)].into());
    VClusterChange { name: "v".into(), create: Some(lattice_model::SchedulerKind::InteractiveFifo), tenant: Some("t".into()), nodes }
}

/// The revision at which the node was last made another one: see the actions below.
const CONFORMED: u64 = 12;

fn components() -> lattice_model::conformance::Components {
    [("kernel".to_owned(), "6.1".to_owned())].into()
}

/// A ledger with something in every part, and the audit records that it made.
fn ledger() -> (Ledger, Vec<AuditRecord>) {
    use crate::ledger::scenarios::{node, registration};
    let mut ledger = Ledger::default();
    let mut records = Vec::new();
    let allocation = allocation();
    // One in a network domain, with a port that it offers.
    let id = AllocationId(uuid::Uuid::from_u128(8));
    let expose = vec![Exposed { name: "api".into(), port: 80, protocol: "tcp".into() }];
    let connectivity = Connectivity { network_domain: "ml".into(), expose };
    let spec = AllocationSpec { connectivity, nodes: 1, ..allocation.spec.clone() };
    let serving = Action::Submit { id, spec: Box::new(spec), owner: allocation.owner.clone(), claim: None };
    let share = ClaimShare { node: node(1), resources: registration(1, 1, 0, true).size, hold_revision: Revision(CONFORMED) };
    let claim = Claim { allocation: id, requeue_count: 0, lease_token: 2, shares: vec![share], by: None };
    let prepared = ReportItem::Prepared { allocation: id, epoch: Epoch(1) };
    let (node_1, reason, deadline) = (node(1), "disk".to_owned(), Some(When::At(Timestamp(99))));
    let drain = Action::SetHold { node: node_1, kind: HoldKind::Drain, by: "root".into(), reason, until: None, deadline };
    let actions = [
        Action::Bootstrap { cluster: "c".into() },
        Action::Register(registration(1, 1, 0, true)),
        Action::Submit { id: allocation.id, spec: Box::new(allocation.spec.clone()), owner: allocation.owner.clone(), claim: None },
        Action::GrantLease { name: "l".into(), holder: node(1), ttl_ms: 1000, user: None },
        Action::RaiseLevel { level: LEVEL_MAX },
        Action::AddKey { secret: Secret([7; 32]), by: "root".into() },
        Action::SetVniPool { change: VniPoolChange { end: Some(2000), ..VniPoolChange::default() }, by: "root".into() },
        Action::SetLimits { sensitive_pool_size: QuotaChange::AtMost(3), users: UserLimitsChange::default(), by: "root".into() },
        Action::SetRunLease { ms: 90_000 },
        Action::Conforms { node: node(1), incarnation: Incarnation(1), components: components() },
        Action::Conforms { node: node(1), incarnation: Incarnation(1), components: [("kernel".to_owned(), "6.6".to_owned())].into() },
        Action::ConformanceStale { node: node(1), incarnation: Incarnation(1), stale: true },
        Action::Notified { way: crate::ledger::NotifyWay::Webhook, upto: 2 },
        Action::Fence { node: node(1), incarnation: Incarnation(1), silent_ms: 99_000 },
        Action::GrantLease { name: SCHEDULER_LEASE.into(), holder: node(1), ttl_ms: 1000, user: None },
        serving,
        Action::AdvanceTime,
        Action::Claim(claim),
        Action::Report(NodeReport { node: node(1), incarnation: Incarnation(1), seq: 1, item: prepared }),
        // Behind the claim: it would be refused under a hold.
        Action::SetHold {
            node: node(1),
            kind: HoldKind::Maintenance,
            by: "root".into(),
            reason: "fan".into(),
            until: Some(When::AfterMs(9)),
            deadline: None,
        },
        drain,
        Action::Register(crate::ledger::Registration { wipes: true, conformance: Some(components()), ..registration(1, 1, 1, false) }),
        Action::Wipe { node: node(1), by: "root".into(), reason: "x".into(), force: false },
        Action::Admit { node: node(7), by: "anna".into(), reason: "rack 4".into() },
        Action::AskDrain { node: node(1), incarnation: Incarnation(1), asked: Timestamp(7), reason: "gpu 0: XID 79".into() },
        // Last: the claim was made while the node was of the default's.
        Action::SetVCluster { change: vcluster(), by: "u".into() },
        Action::Revoke { name: "n1".into(), by: "root".into(), reason: "stolen".into() },
    ];
    for (index, action) in (1..).zip(actions) {
        let applied = ledger.apply(Revision(index), &Command { at: Timestamp(index), action });
        applied.result.unwrap();
        records.extend(applied.audit);
    }
    assert!(ledger.domains().count() == 1 && ledger.endpoints("api", None, 9).len() == 1);
    (ledger, records)
}

pub(crate) fn decoders() -> Vec<Decoder> {
    let (ledger, records) = ledger();
    let (node, allocation) = ("n1".parse().unwrap(), allocation());
    let keys = HeldKeys { opens: vec![0, 1], seals: 0 };
    let health = NodeHealth::Failed { why: "supply: none".into() };
    let list = Request::ListAllocations {
        uid: Some(7),
        states: vec![lattice_model::AllocationState::Running],
        limit: 3,
        before: None,
        filter: ListFilter { name: Some("a".into()), node: Some("n1".parse().unwrap()), ..ListFilter::default() },
    };
    let submit = Request::Submit {
        id: allocation.id,
        spec: Box::new(allocation.spec.clone()),
        owner: allocation.owner.clone(),
        claim: None,
        life: None,
    };
    let create = Request::from(Action::CreateSession { id: allocation.id.0, allocation: allocation.id, by: allocation.owner.clone() });
    let session = lattice_model::InteractiveSession {
        id: allocation.id.0,
        allocation: allocation.id,
        user: "u".into(),
        uid: 1,
        node: crate::ledger::scenarios::node(1),
        since: Timestamp(3),
    };
    let lookup = Request::LookupService { name: "api".into(), tenants: Some(vec!["physics".into()]) };
    let domains = ledger.domain_standings(None, None, Timestamp(99));
    let endpoints = ledger.endpoints("api", None, 9);
    let changes = vec![
        Change::Allocation(Box::new(allocation.clone())),
        Change::LeaseEnded("l".into()),
        Change::VCluster(Box::new((**ledger.vcluster("v").unwrap()).clone())),
        Change::Domain { tenant: "physics".into(), name: "ml".into(), vni: 1000 },
        Change::VniPool(VniPool::default()),
        Change::Limits(ClusterLimits::default()),
    ];
    let vote = Vote { leader_id: openraft::LeaderId::new(3, 1), committed: true };
    let meta = SnapshotMeta { last_log_id: Some(log_id(3)), snapshot_id: "3-1-3".into(), ..SnapshotMeta::default() };
    let append =
        |entries| AppendEntriesRequest::<TypeConfig> { vote, prev_log_id: Some(log_id(1)), entries, leader_commit: Some(log_id(1)) };
    let install = InstallSnapshotRequest::<TypeConfig> { vote, meta: meta.clone(), offset: 7, data: vec![1, 2, 3], done: false };
    let (appended, voted): (Result<_, RaftError<u64>>, Result<_, RaftError<u64>>) =
        (Ok(AppendEntriesResponse::<u64>::Success), Ok(VoteResponse::new(vote, Some(log_id(3)), true)));
    let installed: Result<_, RaftError<u64, InstallSnapshotError>> = Ok(InstallSnapshotResponse { vote });
    vec![
        decoder(
            "Request",
            &[
                list,
                submit,
                Request::Status,
                Request::from(Action::SetHold {
                    node: crate::ledger::scenarios::node(1),
                    kind: HoldKind::Drain,
                    by: "root".into(),
                    reason: "disk".into(),
                    until: None,
                    deadline: Some(When::AfterMs(9)),
                }),
                Request::from(Action::AddKey { secret: Secret([7; 32]), by: "root".into() }),
                Request::from(Action::Revoke { name: "n1".into(), by: "root".into(), reason: "stolen".into() }),
                Request::from(Action::SetVCluster { change: vcluster(), by: "u".into() }),
                create,
                lookup,
                Request::from(Action::ConfirmDead { node: crate::ledger::scenarios::node(1), by: "root".into(), reason: "r".into() }),
            ],
        ),
        decoder::<Result<Answer, Refusal>>(
            "Answer",
            &[
                Ok(Answer::Allocation(Box::new(allocation.clone()))),
                Ok(Answer::VClusters(ledger.vcluster_standings())),
                Ok(Answer::Sessions(vec![session])),
                Ok(Answer::Audit(AuditFound { records: records.clone(), upto: 4, end: 4 })),
                Err(Refusal::LeaseHeld { name: "l".into(), holder: node, user: None, token: Some(3) }),
                Ok(Answer::RefusedClaim(Some(RefusedClaim {
                    allocation: allocation.id,
                    at: Timestamp(4),
                    conflicts: vec![Conflict { node: "n2".parse().unwrap(), holder: Some(allocation.id), why: "w".into() }],
                }))),
                Err(Refusal::NotLeader { leader: Some(MemberId(2)) }),
                Ok(Answer::Nodes(ledger.nodes().map(|n| (**n).clone()).collect())),
                Err(Refusal::NodeState {
                    node: "n2".parse().unwrap(),
                    illegal: Illegal { state: NodeState::Draining, event: Event::BootBegun },
                }),
                Ok(Answer::Keyring(crate::rotation::standing(&ledger, &crate::rotation::KeysHeld::default()))),
                Ok(Answer::Domains(domains)),
                Ok(Answer::Endpoints { endpoints, more: false }),
                Err(Refusal::NoVni(NoVni::Exhausted { domain: "ml".into(), used: 1, size: 1 })),
            ],
        ),
        decoder(
            "Up",
            &[
                Up::Heartbeat {
                    incarnation: Incarnation(2),
                    seq: 9,
                    keys: Some(keys.clone()),
                    health: Some(health.clone()),
                    conformance: Some(components()),
                    stale: true,
                    running: Some(7),
                },
                Up::Wiped { order: 9, failed: Some("disk".into()) },
                Up::Hears { alive: vec!["n2".parse().unwrap()] },
            ],
        ),
        decoder(
            "Down",
            &[
                Down::HeartbeatAck { seq: 3 },
                Down::Acked { incarnation: Incarnation(2), seq: 3, superseded: vec![(allocation.id, lattice_model::Epoch(4))] },
                Down::Desired(lattice_model::DesiredList::default()),
                Down::Keyring { generation: Generation(1), ring: ledger.keyring().clone() },
                Down::Hear { nodes: vec!["n2".parse().unwrap()] },
                Down::Revoked { names: vec![("n2".to_owned(), Timestamp(9))] },
            ],
        ),
        decoder(
            "WatchRequest",
            &[WatchRequest {
                nodes: true,
                allocations: WatchAllocations::Live,
                since: Some(WatchPlace { generation: Generation(2), revision: Revision(9) }),
                ..WatchRequest::nothing()
            }],
        ),
        decoder(
            "WatchMessage",
            &[
                WatchMessage::Start { generation: Generation(2), revision: Revision(9) },
                WatchMessage::Changes { revision: Revision(9), changes, complete: true },
                WatchMessage::StartAgain { why: "w".into() },
            ],
        ),
        decoder(
            "HeartbeatSummary",
            &[HeartbeatSummary {
                from: MemberId(2),
                heard: vec![("n1".parse().unwrap(), Incarnation(1), 20)],
                keys: vec![("n1".parse().unwrap(), keys)],
                health: vec![("n1".parse().unwrap(), health)],
                level: 2,
                certificate_until: Timestamp(3),
                shortage: None,
                words: vec![("n3".parse().unwrap(), "n1".parse().unwrap())],
            }],
        ),
        decoder(
            "SummaryAnswer",
            &[SummaryAnswer {
                shortages: BTreeMap::default(),
                silent: vec!["n2".parse().unwrap()],
                clocks: Some(ClockAlarm::Apart([(MemberId(2), -7_000)].into())),
            }],
        ),
        decoder("AuditPageRequest", &[AuditPageRequest { after: 7 }]),
        decoder("AuditPage", &[AuditPage { head: AuditHead::default(), records: records.clone() }]),
        decoder(
            "Forward",
            &[
                Forward::Propose(vec![command().action, Action::SealWithKey { id: 1 }, Action::RetireKey { id: 0 }]),
                Forward::Answer(Request::ListNodes),
            ],
        ),
        decoder("Forwarded", &[Forwarded::Unserved("why".into())]),
        decoder("commands of an entry", &[vec![command(), command()]]),
        decoder("Entry", &entries()),
        decoder("Vote", &[vote]),
        decoder("LogId", &[log_id(7)]),
        decoder("SnapshotMeta", &[meta]),
        decoder("Ledger", &[ledger]),
        decoder("AuditRecord", &records),
        decoder("AppendEntriesRequest", &[append(entries()), append(vec![])]),
        decoder("AppendEntriesResponse", &[appended]),
        decoder("VoteRequest", &[VoteRequest { vote, last_log_id: Some(log_id(3)) }]),
        decoder("VoteResponse", &[voted]),
        decoder("InstallSnapshotRequest", &[install]),
        decoder("InstallSnapshotResponse", &[installed]),
    ]
}

#[test]
fn every_decoder_reads_what_is_written() {
    for decoder in decoders() {
        for truth in &decoder.truths {
            assert!((decoder.decode)(truth), "{}", decoder.name);
        }
    }
}

#[test]
fn depth_is_bounded() {
    // Arrays within arrays, where a field is ignored and where one is read.
    for head in [&[][..], &[0x81, 0xa1, b'x'][..], &[0x81, 0xa6, b'S', b't', b'a', b't', b'u', b's'][..]] {
        let mut bytes = head.to_vec();
        bytes.resize(head.len() + 1_000_000, 0x91);
        for decoder in decoders() {
            assert!(!(decoder.decode)(&bytes), "{}", decoder.name);
        }
    }
}

proptest! {
    #[test]
    fn messages(bytes in prop::collection::vec(any::<u8>(), 0..256), which in any::<prop::sample::Index>(), harms in prop::collection::vec(harm(), 1..4)) {
        for decoder in decoders() {
            let _read = (decoder.decode)(&bytes);
            let truth = &decoder.truths[which.index(decoder.truths.len())];
            let _read = (decoder.decode)(&harmed(truth, &harms));
        }
    }

    #[test]
    fn a_log_segment_is_cut_or_refused_and_gives_no_entry_that_was_not_written(
        harms in prop::collection::vec(harm(), 1..4), lengths in prop::collection::vec(0..300usize, 1..8), noted: bool
    ) {
        let scratch = Scratch::new();
        let written: Vec<Vec<u8>> = lengths.iter().map(|length| vec![0x5a; *length]).collect();
        let mut segments = Segments::open(&scratch.0, |_| Ok(())).unwrap();
        for (index, payload) in (1..).zip(&written) {
            segments.append(index, std::slice::from_ref(payload)).unwrap();
            segments.sync().unwrap();
        }
        if noted {
            segments.note_synced();
        }
        drop(segments);
        let file = scratch.0.join(format!("{:020}.log", 1));
        let whole = std::fs::read(&file).unwrap();
        let end = whole.iter().rposition(|b| *b != 0).unwrap() + 1;
        let bytes = harmed(&whole[..end], &harms);
        std::fs::write(&file, &bytes).unwrap();
        let mut found = Vec::new();
        let opened = Segments::open(&scratch.0, |stored| {
            found.push(stored.payload);
            Ok(())
        });
        prop_assert!(found.len() <= written.len() && found == written[..found.len()], "another entry than was written");
        match opened {
            // What is left is read again and goes on.
            Ok(mut segments) => {
                prop_assert!(!noted || found.len() == written.len(), "an entry that was noted as synced is gone");
                segments.append(found.len() as u64 + 1, &[b"more".to_vec()]).unwrap();
                segments.sync().unwrap();
            }
            Err(_) => prop_assert_eq!(std::fs::read(&file).unwrap(), bytes, "what is refused is left as it is"),
        }
    }

    #[test]
    fn records(bytes in prop::collection::vec(any::<u8>(), 0..512), start in 0..64usize) {
        let (found, ending) = record::scan(&bytes, start);
        for record in found {
            prop_assert!(record.offset + record::HEADER + record.length <= bytes.len());
        }
        match ending {
            Ending::Clean => {}
            Ending::Torn { offset } | Ending::Damaged { offset } => prop_assert!(offset <= bytes.len().max(start)),
        }
        let _payload = record::payload(&bytes);
    }
}

/// A folder that goes away with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("lattice-hostile-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

/// The chain in a folder of its own, and its one segment's file.
fn written_chain(scratch: &Scratch, records: &[AuditRecord]) -> PathBuf {
    let mut chain = AuditChain::open(&scratch.0).unwrap();
    chain.append(records).unwrap();
    std::fs::read_dir(&scratch.0).unwrap().next().unwrap().unwrap().path()
}

#[test]
fn no_room_is_made_for_four_billion_entries_that_a_ledger_promises() {
    let bytes = to_bytes(&Ledger::default()).unwrap();
    for at in 0..bytes.len() {
        for head in [0xdb, 0xc6, 0xdd, 0xdf] {
            let mut boasts = bytes.clone();
            boasts.splice(at..=at, [head, 0xff, 0xff, 0xff, 0xff]);
            // Whatever comes of it: who believes it ends here for want of memory.
            let _read = from_bytes::<Ledger>(&boasts);
        }
    }
}

proptest! {
    #[test]
    fn a_snapshot_is_whole_or_refused(harms in prop::collection::vec(harm(), 1..4)) {
        let scratch = Scratch::new();
        let meta = SnapshotMeta { last_log_id: Some(log_id(4)), snapshot_id: "4".into(), ..SnapshotMeta::default() };
        let (ledger, _) = ledger();
        let path = snapshot_file::write(&scratch.0, &About::of(meta, &ledger, Timestamp(1)), &ledger).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let bytes = harmed(&whole, &harms);
        std::fs::write(&path, &bytes).unwrap();
        prop_assert!(snapshot_file::load(&path).is_err() || bytes == whole);
    }

    #[test]
    fn an_audit_segment_gives_no_record_that_was_not_written(harms in prop::collection::vec(harm(), 1..4)) {
        let scratch = Scratch::new();
        let (_, written) = ledger();
        let path = written_chain(&scratch, &written);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, harmed(&whole, &harms)).unwrap();
        if let Ok(chain) = AuditChain::open(&scratch.0) {
            let found: Vec<AuditRecord> = chain.records(0, u64::MAX).map_while(Result::ok).collect();
            prop_assert!(found.len() <= written.len() && found == written[..found.len()]);
        }
    }
}
