//! The types whose bytes come from outside, each with valid values.

use crate::peers::{AuditPage, AuditPageRequest, HeartbeatSummary, SummaryAnswer};
use crate::service::{Forward, Forwarded};
use lattice_api::pack::{from_bytes, to_bytes};
use lattice_ledger::keyring::Secret;
use lattice_ledger::test_builders::{allocation, command, components, full_ledger, node, vcluster_change};
use lattice_ledger::{Action, AuditHead, ClusterLimits, ScalingStep, UsageOf, WhichTasks};
use lattice_model::access_token::TokenId;
use lattice_model::ended_work::AccountedUntil;
use lattice_model::lifecycle::{Event, Illegal};
use lattice_model::network::NoVni;
use lattice_model::scaling::Step;
use lattice_model::shares::PhaseRun;
use lattice_model::{
    AllocationState, Amount, DayUse, EndedTasks, Epoch, Generation, HoldKind, Incarnation, LaneReport, MemberId, NodeState, PhasesChange,
    Revision, SharePhase, TaskOutcome, Timestamp, Used, VniPool, When, WorkUsage,
};
use lattice_quorum_client::wire::{
    Answer, AuditFound, Change, ClockAlarm, Conflict, Down, EndedWorkPage, HeldKeys, ListFilter, NodeHealth, Proof, Refusal, RefusedClaim,
    Request, Up, WatchAllocations, WatchCursor, WatchMessage, WatchRequest,
};
use lattice_store::raft::{Entry, LogId, Peer, Proposal, SnapshotMeta, TypeConfig, Vote};
use openraft::error::{InstallSnapshotError, RaftError};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, InstallSnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{CommittedLeaderId, EntryPayload, Membership};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The decoder of a type whose bytes come from outside.
pub(crate) struct Decoder {
    pub name: &'static str,
    /// Encoded valid values.
    pub samples: Vec<Vec<u8>>,
    /// Whether the bytes can be decoded. Panics if a decoded value cannot be encoded and decoded
    /// again.
    pub decode: fn(&[u8]) -> bool,
}

fn decoder<T: Serialize + DeserializeOwned>(name: &'static str, samples: &[T]) -> Decoder {
    let samples = samples.iter().map(|t| to_bytes(t).unwrap()).collect();
    let decode = |bytes: &[u8]| {
        let Ok(value) = from_bytes::<T>(bytes) else { return false };
        assert!(from_bytes::<T>(&to_bytes(&value).unwrap()).is_ok());
        true
    };
    Decoder { name, samples, decode }
}

pub(crate) fn decoders() -> Vec<Decoder> {
    let mut all = vec![requests(), answers()];
    all.extend(streams());
    all.extend(of_members());
    all.extend(stored_or_of_raft());
    all
}

fn requests() -> Decoder {
    let allocation = allocation();
    let list = Request::ListAllocations {
        uid: Some(7),
        states: vec![lattice_model::AllocationState::Running],
        limit: 3,
        before: None,
        filter: ListFilter { name: Some("a".into()), node: Some("n1".parse().unwrap()), ..ListFilter::default() },
    };
    let submit = Request::Submit {
        id: allocation.id,
        spec: Box::new((*allocation.spec).clone()),
        owner: allocation.owner.clone(),
        claim: None,
        life: None,
        login_tenants: [].into(),
    };
    let create = Request::from(Action::CreateSession { id: allocation.id.0, allocation: allocation.id, by: allocation.owner.clone() });
    let lookup = Request::LookupService { name: "api".into(), tenants: Some(vec!["physics".into()]) };
    let ended = vec![EndedTasks { outcome: TaskOutcome::Exited(1), tasks: [1, 2, 7].into_iter().collect() }];
    let report = LaneReport { ended, mean_us: 9, returned: None };
    let step = |step| {
        let metric = "q{a=\"b\"}".parse().unwrap();
        Request::from(Action::StepScaling(ScalingStep { service: allocation.id, lease_token: 3, metric, step }))
    };
    let found = |found| step(Step::Note { found });
    let more = Step::Want { replicas: 3, value: Amount(950_000) };
    let advance = Request::AdvanceLane { id: allocation.id, epoch: Epoch(3), node: node(1), report };
    let vouched = Proof::Account { by: allocation.owner.clone(), method: "NodeService/SetHold".into() };
    decoder(
        "Request",
        &[
            list,
            submit,
            Request::Status,
            Request::from(Action::SetHold {
                node: node(1),
                kind: HoldKind::Drain,
                by: "root".into(),
                reason: "disk".into(),
                until: None,
                deadline: Some(When::AfterMs(9)),
            }),
            Request::from(Action::AddKey { secret: Secret([7; 32]), by: "root".into() }),
            Request::from(Action::Revoke { name: "n1".into(), by: "root".into(), reason: "stolen".into() }),
            Request::from(Action::SetVCluster { change: vcluster_change(), by: "u".into() }),
            create,
            lookup,
            Request::GetUsage { of: UsageOf::Project { tenant: "physics".into(), project: "higgs".into() }, days: Some(9) },
            Request::from(Action::ConfirmDead { node: node(1), by: "root".into(), reason: "r".into() }),
            advance,
            Request::from(Action::Scale { id: allocation.id, replicas: 3, by: allocation.owner.clone() }),
            found(Ok(Amount(7))),
            found(Err("no series".into())),
            step(more),
            Request::EndedWork { after: 3, limit: 9 },
            Request::from(Action::Account { until: AccountedUntil { store: allocation.id.0, sequence: 7 }, node: node(1), lease_token: 3 }),
            Request::GetTasks { id: allocation.id, which: WhichTasks::Ranges { most: 3 } },
            Request::AsOperator { proof: vouched, request: Box::new(Request::ListRoles) },
            Request::from(Action::RevokeToken { id: TokenId(7), by: allocation.owner.clone(), as_operator: false }),
            Request::TokenRecord { id: TokenId(7) },
            Request::GetAllocations { keys: vec!["42".into(), allocation.id.to_string()], node: Some("n1".into()) },
        ],
    )
}

fn answers() -> Decoder {
    let (ledger, records) = full_ledger();
    let (holder, allocation) = (node(1), allocation());
    let session = lattice_model::InteractiveSession {
        id: allocation.id.0,
        allocation: allocation.id,
        user: "u".into(),
        uid: 1,
        node: node(1),
        since: Timestamp(3),
    };
    let domains = ledger.domain_statuses(None, None, Timestamp(99));
    let endpoints = ledger.endpoints("api", None, 9);
    let work: Vec<_> = ledger.ended_work_after(0).map(|work| (**work).clone()).collect();
    assert!(!work.is_empty(), "the full ledger has ended work");
    let ended_work = EndedWorkPage { work, accounted: ledger.ends_status().accounted, ended: 1, waiting: 1, dropped: 0 };
    decoder::<Result<Answer, Refusal>>(
        "Answer",
        &[
            Ok(Answer::Allocation(Box::new(allocation.clone()))),
            Ok(Answer::Usage(Box::new(ledger.usage_report(&UsageOf::User("u1".into()), None, ledger.time()).unwrap()))),
            Ok(Answer::VClusters(ledger.vcluster_statuses())),
            Ok(Answer::Reservations(ledger.reservations().map(|r| (**r).clone()).collect())),
            Ok(Answer::Sessions(vec![session])),
            Ok(Answer::Standing(Box::default())),
            Ok(Answer::TokenRecord(ledger.access_token(TokenId(7)).cloned().map(Box::new))),
            Ok(Answer::Tokens(ledger.access_tokens(None))),
            Ok(Answer::Audit(AuditFound { records, upto: 4, end: 4, begins: 1, archive: "a".into() })),
            Err(Refusal::LeaseHeld { name: "l".into(), holder, user: None, token: Some(3) }),
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
            Ok(Answer::Keyring(crate::rotation::keyring_status(&ledger, &crate::rotation::KeysHeld::default()))),
            Ok(Answer::Domains(domains)),
            Ok(Answer::EndedWork(Box::new(ended_work))),
            Ok(Answer::Endpoints { endpoints, more: false }),
            Ok(Answer::Allocations(vec![
                Ok(Arc::new(allocation.clone())),
                Err(Refusal::NoSuchAllocation { key: "42".into(), forgotten: None }),
            ])),
            Err(Refusal::NoVni(NoVni::Exhausted { domain: "ml".into(), used: 1, size: 1 })),
        ],
    )
}

/// The messages of sessions and watches.
fn streams() -> Vec<Decoder> {
    let ((ledger, _), allocation) = (full_ledger(), allocation());
    let (keys, health) = held_keys_and_health();
    let changes = vec![
        Change::Allocation(Box::new(allocation.clone())),
        Change::Allocation(ledger.allocations().find(|a| !a.shares.is_empty()).map(|a| Box::new((**a).clone())).unwrap()),
        Change::Allocation(ledger.allocations().find(|a| a.scaling.is_some()).map(|a| Box::new((**a).clone())).unwrap()),
        Change::Allocation(ledger.allocations().find(|a| a.replica.is_some()).map(|a| Box::new((**a).clone())).unwrap()),
        Change::Phases(Box::new(PhasesChange {
            id: allocation.id,
            epoch: Epoch(1),
            state: AllocationState::Staging,
            previous_revision: Some(Revision(8)),
            revision: Revision(9),
            phases: vec![PhaseRun { first: 1, len: 2, phase: SharePhase::Prepared }],
            usage: Some(WorkUsage { nodes: 1, memory_peak_bytes: Some(7), cpu_ms: None }),
        })),
        Change::LeaseEnded("l".into()),
        Change::VCluster(Box::new((**ledger.vcluster("v").unwrap()).clone())),
        Change::Reservation(Box::new((**ledger.reservation("course").unwrap()).clone())),
        Change::Domain { tenant: "physics".into(), name: "ml".into(), vni: 1000 },
        Change::VniPool(VniPool::default()),
        Change::Limits(ClusterLimits::default()),
        Change::TenantUse { tenant: "physics".into(), days: vec![DayUse { day: 20_000, used: Used { node_ms: 9, gpu_ms: 36 } }] },
    ];
    vec![
        decoder(
            "Up",
            &[
                Up::Heartbeat {
                    incarnation: Incarnation(2),
                    seq: 9,
                    keys: Some(keys),
                    health: Some(health),
                    conformance: Some(components()),
                    stale: true,
                    running: Some(7),
                },
                Up::Wiped { order: 9, failed: Some("disk".into()) },
                Up::AliveInGossip { alive: vec!["n2".parse().unwrap()] },
            ],
        ),
        decoder(
            "Down",
            &[
                Down::HeartbeatAck { seq: 3 },
                Down::RegisterAgain { incarnation: Incarnation(2) },
                Down::Acked { incarnation: Incarnation(2), seq: 3, superseded: vec![(allocation.id, Epoch(4))] },
                Down::Desired(lattice_model::DesiredList::default()),
                Down::Keyring { generation: Generation(1), ring: ledger.keyring().clone() },
                Down::QueryGossip { nodes: vec!["n2".parse().unwrap()] },
                Down::Revoked { names: vec![("n2".to_owned(), Timestamp(9))] },
            ],
        ),
        decoder(
            "WatchRequest",
            &[WatchRequest {
                nodes: true,
                allocations: WatchAllocations::Live,
                since: Some(WatchCursor { generation: Generation(2), revision: Revision(9) }),
                ..WatchRequest::nothing()
            }],
        ),
        decoder(
            "WatchMessage",
            &[
                WatchMessage::Start { generation: Generation(2), revision: Revision(9) },
                WatchMessage::Changes { revision: Revision(9), changes, complete: true },
                WatchMessage::Resync { why: "w".into() },
            ],
        ),
    ]
}

/// The messages between members, except Raft's own.
fn of_members() -> Vec<Decoder> {
    let (_, records) = full_ledger();
    let (keys, health) = held_keys_and_health();
    vec![
        decoder(
            "HeartbeatSummary",
            &[HeartbeatSummary {
                from: MemberId(2),
                heartbeats: vec![("n1".parse().unwrap(), Incarnation(1), 20)],
                keys: vec![("n1".parse().unwrap(), keys)],
                health: vec![("n1".parse().unwrap(), health)],
                level: 2,
                certificate_until: Timestamp(3),
                shortage: None,
                alive_in_gossip: vec![("n3".parse().unwrap(), "n1".parse().unwrap())],
            }],
        ),
        decoder(
            "SummaryAnswer",
            &[SummaryAnswer {
                shortages: BTreeMap::default(),
                silent: vec!["n2".parse().unwrap()],
                clocks: Some(ClockAlarm::Skewed([(MemberId(2), -7_000)].into())),
            }],
        ),
        decoder("AuditPageRequest", &[AuditPageRequest { after: 7 }]),
        decoder("AuditPage", &[AuditPage { head: AuditHead::default(), generation: Generation(1), base: AuditHead::default(), records }]),
        decoder(
            "Forward",
            &[
                Forward::Propose(vec![command().action, Action::SealWithKey { id: 1 }, Action::RetireKey { id: 0 }]),
                Forward::Answer(Box::new(Request::ListNodes)),
            ],
        ),
        decoder("Forwarded", &[Forwarded::Unserved("why".into())]),
    ]
}

fn stored_or_of_raft() -> Vec<Decoder> {
    let (ledger, records) = full_ledger();
    let vote = Vote { leader_id: openraft::LeaderId::new(3, 1), committed: true };
    let meta = SnapshotMeta { last_log_id: Some(log_id(3)), snapshot_id: "3-1-3".into(), ..SnapshotMeta::default() };
    let append =
        |entries| AppendEntriesRequest::<TypeConfig> { vote, prev_log_id: Some(log_id(1)), entries, leader_commit: Some(log_id(1)) };
    let install = InstallSnapshotRequest::<TypeConfig> { vote, meta: meta.clone(), offset: 7, data: vec![1, 2, 3], done: false };
    let (appended, voted): (Result<_, RaftError<u64>>, Result<_, RaftError<u64>>) =
        (Ok(AppendEntriesResponse::<u64>::Success), Ok(VoteResponse::new(vote, Some(log_id(3)), true)));
    let installed: Result<_, RaftError<u64, InstallSnapshotError>> = Ok(InstallSnapshotResponse { vote });
    vec![
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

fn held_keys_and_health() -> (HeldKeys, NodeHealth) {
    (HeldKeys { opens: vec![0, 1], seals: 0 }, NodeHealth::Failed { why: "supply: none".into() })
}

fn log_id(index: u64) -> LogId {
    LogId::new(CommittedLeaderId::new(3, 1), index)
}

fn entries() -> Vec<Entry> {
    let members: BTreeMap<u64, Peer> = (1..=3).map(|id| (id, Peer { service: format!("h{id}:1"), raft: format!("h{id}:2") })).collect();
    vec![
        Entry { log_id: log_id(1), payload: EntryPayload::Membership(Membership::new(vec![members.keys().copied().collect()], members)) },
        Entry { log_id: log_id(2), payload: EntryPayload::Blank },
        Entry { log_id: log_id(3), payload: EntryPayload::Normal(Proposal::new(vec![command()]).unwrap()) },
    ]
}
