//! Raft's messages: only from members, each in its own name.

use crate::clock::now;
use crate::core::Core;
use crate::heartbeats::Heartbeat;
use crate::network::{CLOCK_HEADER, GENERATION_HEADER, REVISION_HEADER};
use crate::peers::{AuditPageRequest, HeartbeatSummary, RosterQuestion, SummaryAnswer};
use crate::permission::{self, Call};
use crate::service::file_source::FileSource;
use crate::witnesses::ANSWERS_MAX;
use crate::{chain, membership};
use lattice_api::pack::{pack, unpack};
use lattice_api::v1::Packed;
use lattice_api::v1::raft_server::Raft;
use lattice_ledger::shortage::RefusedCommands;
use lattice_model::with_causes;
use lattice_pki::identity::Caller;
use lattice_pki::refused::Cause;
use lattice_quorum_client::wire::{HeldKeys, NodeHealth};
use lattice_store::raft::TypeConfig;
use openraft::error::RaftError;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, InstallSnapshotRequest, VoteRequest};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::{Request, Response, Status};

pub(super) struct RaftService {
    pub(super) core: Arc<Core>,
    pub(super) source: FileSource,
}

type Appended = Result<AppendEntriesResponse<u64>, RaftError<u64>>;

impl RaftService {
    async fn append_here(&self, rpc: AppendEntriesRequest<TypeConfig>) -> Appended {
        let answer = self.core.raft.append_entries(rpc).await;
        if matches!(answer, Ok(AppendEntriesResponse::Success | AppendEntriesResponse::PartialSuccess(_) | AppendEntriesResponse::Conflict))
        {
            self.core.record_leader_contact();
        }
        answer
    }

    /// Accepts a request of the leader as a heartbeat, and refuses its entries. If the others are a
    /// majority, they commit the entries; otherwise nothing is committed. The leader sends no
    /// entries once it knows of the shortage.
    async fn accept_without_entries(&self, mut rpc: AppendEntriesRequest<TypeConfig>) -> Result<Appended, Status> {
        rpc.entries.clear();
        rpc.leader_commit = rpc.leader_commit.min(rpc.prev_log_id);
        match self.append_here(rpc).await {
            Ok(AppendEntriesResponse::Success) => Err(disk_full("its entries are")),
            answer => Ok(answer),
        }
    }
    /// The id in the caller's certificate, which must be a member's.
    fn member<T>(&self, call: Call, request: &Request<T>) -> Result<u64, Status> {
        let caller = Caller::of(request).map_err(|error| {
            self.core.identity.credentials.refused().count(error.cause(), &error);
            Status::unauthenticated(error.to_string())
        })?;
        permission::granted(call, &caller).map_err(|refusal| {
            let why = format!("{}: {refusal}", caller.name);
            self.core.identity.credentials.refused().count(Cause::Role, &why);
            Status::permission_denied(why)
        })?;
        caller.member().ok_or_else(|| {
            let why = format!("{:?} is no member's name", caller.name);
            self.core.identity.credentials.refused().count(Cause::Name, &why);
            Status::permission_denied(why)
        })
    }

    /// Refuses Raft messages of a member with files of another generation: each recovery of the quorum
    /// begins a new generation. A member without files gets all of them from one: see [`FileSource`].
    fn same_generation(&self, member: u64, theirs: Option<u64>, stores: bool) -> Result<(), Status> {
        let Some(theirs) = theirs else { return Ok(()) };
        let differs = match self.core.agreed.generation() {
            Some(ours) if ours.0 == theirs => Ok(()),
            Some(ours) => Err(ours.0),
            None => self.source.accept(theirs, stores),
        };
        differs.map_err(|ours| {
            let older = if theirs < ours { member } else { self.core.config.id };
            let why = format!(
                "member {member} is of generation {theirs}, and member {} of generation {ours}: the quorum was recovered, and member {older} still has the state from before. Stop it, move its data_dir away, and start it with an empty one",
                self.core.config.id
            );
            self.core.identity.credentials.refused().count(Cause::Generation, &why);
            Status::failed_precondition(why)
        })
    }

    /// Refuses a message in another member's name.
    fn speaks_for(&self, member: u64, claimed: u64) -> Result<(), Status> {
        if member == claimed {
            return Ok(());
        }
        let why = format!("member-{member} sends in the name of member {claimed}");
        self.core.identity.credentials.refused().count(Cause::Name, &why);
        Err(Status::permission_denied(why))
    }
}

/// The generation of the sender's files, if it has any.
fn generation_of<T>(request: &Request<T>) -> Option<u64> {
    request.metadata().get(GENERATION_HEADER).and_then(|g| g.to_str().ok()).and_then(|g| g.parse().ok())
}

/// An answer with the time of this member's clock.
fn with_clock(answer: Packed) -> Response<Packed> {
    let mut answer = Response::new(answer);
    answer.metadata_mut().insert(CLOCK_HEADER, now().0.into());
    answer
}

fn disk_full(what: &str) -> Status {
    Status::resource_exhausted(format!("this member's disk is full: {what} not accepted"))
}

#[tonic::async_trait]
impl Raft for RaftService {
    async fn append(&self, request: Request<Packed>) -> Result<Response<Packed>, Status> {
        let member = self.member(Call::Append, &request)?;
        let rpc: AppendEntriesRequest<TypeConfig> = unpack(request.get_ref())?;
        self.same_generation(member, generation_of(&request), !rpc.entries.is_empty())?;
        self.speaks_for(member, rpc.vote.leader_id.node_id)?;
        let is_full = !rpc.entries.is_empty() && self.core.disk.reserve.check_shortage().is_some_and(|s| s.refuses == RefusedCommands::All);
        let answer = if is_full { self.accept_without_entries(rpc).await? } else { self.append_here(rpc).await };
        Ok(with_clock(pack(&answer)?))
    }

    async fn vote(&self, request: Request<Packed>) -> Result<Response<Packed>, Status> {
        let member = self.member(Call::Vote, &request)?;
        self.same_generation(member, generation_of(&request), false)?;
        let vote: VoteRequest<u64> = unpack(request.get_ref())?;
        self.speaks_for(member, vote.vote.leader_id.node_id)?;
        let answer = self.core.raft.vote(vote).await;
        Ok(with_clock(pack(&answer)?))
    }

    async fn install_snapshot(&self, request: Request<Packed>) -> Result<Response<Packed>, Status> {
        let member = self.member(Call::InstallSnapshot, &request)?;
        self.same_generation(member, generation_of(&request), true)?;
        let part: InstallSnapshotRequest<TypeConfig> = unpack(request.get_ref())?;
        self.speaks_for(member, part.vote.leader_id.node_id)?;
        self.core.record_leader_contact();
        if self.core.disk.reserve.check_shortage().is_some() {
            // openraft sends no heartbeats during a snapshot transfer; without heartbeats this
            // member would start an election.
            let (vote, none) = (part.vote, None);
            let _answer =
                self.append_here(AppendEntriesRequest { vote, prev_log_id: none, entries: Vec::new(), leader_commit: none }).await;
            return Err(disk_full("a snapshot is"));
        }
        // A joining member does not know the others yet.
        let members = part.meta.last_membership.membership().nodes().map(|(id, peer)| (*id, peer));
        self.core.peers.introduce(self.core.config.id, members);
        if !self.core.chain.is_ready_for(&part.meta.snapshot_id, part.vote.leader_id.node_id) {
            return Err(Status::unavailable("the audit records that the snapshot relies on are fetched first"));
        }
        let answer = self.core.raft.install_snapshot(part).await;
        Ok(with_clock(pack(&answer)?))
    }

    async fn audit(&self, request: Request<Packed>) -> Result<Response<Packed>, Status> {
        self.member(Call::Audit, &request)?;
        let AuditPageRequest { after } = unpack(request.get_ref())?;
        let agreed = Arc::clone(&self.core.agreed);
        let page = tokio::task::spawn_blocking(move || chain::page(&agreed, after)).await;
        let page = page.map_err(|e| Status::internal(e.to_string()))?.map_err(|e| Status::data_loss(with_causes(&e)))?;
        Ok(Response::new(pack(&page)?))
    }

    async fn heartbeats(&self, request: Request<Packed>) -> Result<Response<Packed>, Status> {
        let member = self.member(Call::Heartbeats, &request)?;
        if !self.core.leads() {
            return Err(Status::failed_precondition("this member does not lead"));
        }
        let summary: HeartbeatSummary = unpack(request.get_ref())?;
        self.speaks_for(member, summary.from.0)?;
        let now = Instant::now();
        self.core.leading.levels.record(summary.from.0, summary.level);
        self.core.leading.certificate_ends.record(summary.from.0, summary.certificate_until);
        let mut keys: HashMap<_, _> = summary.keys.into_iter().collect();
        let mut health: HashMap<_, _> = summary.health.into_iter().collect();
        for (node, incarnation, ago_ms) in summary.heartbeats {
            let at = now.checked_sub(Duration::from_millis(ago_ms)).unwrap_or(now);
            let keys = keys.remove(&node).map(HeldKeys::bounded);
            let health = health.remove(&node).map(NodeHealth::bounded);
            self.core.leading.heartbeats.record(node, Heartbeat { incarnation, at, keys, health });
        }
        self.core.disk.shortages.record(summary.from.0, summary.shortage);
        for (node, by) in summary.alive_in_gossip.into_iter().take(ANSWERS_MAX) {
            self.core.leading.witnesses.record(&by, vec![node]);
        }
        // The answer extends run leases, so it may be given only while this member is the leader.
        self.core.reads.pass().await.map_err(|_| Status::unavailable("this member does not know whether it is still the leader"))?;
        let (shortages, silent) = (self.core.shortages(), self.core.leading.silent.borrow().clone());
        let answer = SummaryAnswer { shortages, silent, clocks: self.core.timekeeper.alarm() };
        let mut answer = Response::new(pack(&answer)?);
        let revision = self.core.agreed.ledger().revision();
        answer.metadata_mut().insert(REVISION_HEADER, revision.0.into());
        Ok(answer)
    }

    async fn roster(&self, request: Request<Packed>) -> Result<Response<Packed>, Status> {
        let member = self.member(Call::Roster, &request)?;
        let question: RosterQuestion = unpack(request.get_ref())?;
        self.speaks_for(member, question.from)?;
        Ok(Response::new(pack(&membership::answer(&self.core, &question))?))
    }

    async fn campaign(&self, request: Request<Packed>) -> Result<Response<Packed>, Status> {
        let member = self.member(Call::Campaign, &request)?;
        if self.core.leader() != Some(member) {
            return Err(Status::failed_precondition(format!("member {member} is not the leader, so it cannot hand over the leadership")));
        }
        self.core.raft.trigger().elect().await.map_err(|e| Status::unavailable(e.to_string()))?;
        Ok(Response::new(Packed::default()))
    }
}
