//! Members on their own hosts, with faults of network, clocks and disks, and clients that continue meanwhile.

use crate::harness::{Folder, binaries, fresh_dir};
use lattice_lab::down::Guard;
use lattice_lab::process::tail;
use lattice_lab::quorum::hosts::{Hosts, Party};
use lattice_lab::quorum::members::{Members, Timers};
use lattice_lab::up::Options;
use lattice_model::{AllocationId, AllocationSpec, Entrypoint, Principal};
use lattice_quorum_client::wire::{Answer, Request};
use lattice_quorum_client::{CallError, QuorumClient};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use uuid::Uuid;

pub const TIMERS: Timers = Timers { heartbeat_ms: 50, election_ms: 300 };
pub const MEMBERS: u64 = 3;
/// How long a client that retries waits for an answer in total.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// Three members, each on its own host, and `body` with a runtime beside them.
pub fn on_hosts(name: &str, tweak: impl FnOnce(&mut Options) + Send, body: impl AsyncFnOnce(&Hosts, &mut Members) + Send) {
    binaries();
    let folder = Folder::new(&format!("{name}-hosts"));
    let dir = fresh_dir(name);
    let guard = Guard::new(&dir);
    let ended = catch_unwind(AssertUnwindSafe(|| {
        Hosts::around(MEMBERS, &folder.0, |hosts| {
            let mut options = Options { hosts: hosts.places(), ..Members::options(&dir, TIMERS, "") };
            tweak(&mut options);
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            runtime.block_on(async {
                let mut members = Members::start_as(options).await?;
                body(hosts, &mut members).await;
                Ok(())
            })
        })
    }));
    match ended {
        Ok(ended) => ended.unwrap_or_else(|e| panic!("{e:#}")),
        Err(panic) => {
            for id in 1..=MEMBERS {
                eprintln!("--- the end of member {id}'s log\n{}", tail(&dir.join(format!("member-{id}/log")), 25));
            }
            resume_unwind(panic);
        }
    }
    guard.down(Duration::ZERO).unwrap();
}

/// The other members.
pub fn others(member: u64) -> Vec<u64> {
    (1..=MEMBERS).filter(|id| *id != member).collect()
}

/// Both directions between a member and these others.
pub fn between(member: u64, these: &[u64]) -> Vec<(Party, Party)> {
    let pairs = these.iter().map(|other| (Party::Member(member), Party::Member(*other)));
    pairs.flat_map(|(a, b)| [(a, b), (b, a)]).collect()
}

/// A submission that stays in the queue.
pub fn submission(id: AllocationId) -> Request {
    let spec = AllocationSpec::new("faults", Entrypoint::Command { argv: vec!["/bin/true".into()] }, Path::new("/"));
    let owner = Principal { name: "alice".into(), uid: 1000, gid: 1000, groups: vec![] };
    Request::Submit { id, spec: Box::new(spec), owner, claim: None, life: None, login_tenants: [].into() }
}

/// Submits, with retries for a while; returns how long that took.
pub async fn submit(client: &QuorumClient) -> Result<(AllocationId, Duration), CallError> {
    let (id, began) = (AllocationId(Uuid::new_v4()), Instant::now());
    match client.call(&submission(id), ANSWER_TIMEOUT).await? {
        Answer::Done { .. } => Ok((id, began.elapsed())),
        other => panic!("a submission was answered with {other:?}"),
    }
}

/// A client that submits all the time, at any member.
pub struct Load {
    stop: Arc<AtomicBool>,
    taken: Arc<AtomicUsize>,
    task: JoinHandle<(Vec<AllocationId>, Duration)>,
}

impl Load {
    pub fn begin(members: &Members) -> Self {
        let client = members.client().unwrap();
        let (stop, taken) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (ended, count) = (Arc::clone(&stop), Arc::clone(&taken));
        let task = tokio::spawn(async move {
            let (mut ids, mut longest) = (Vec::new(), Duration::ZERO);
            while !ended.load(Ordering::Relaxed) {
                let (id, took) = submit(&client).await.unwrap_or_else(|e| panic!("a client that tries again sees an error: {e}"));
                ids.push(id);
                longest = longest.max(took);
                count.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            (ids, longest)
        });
        Self { stop, taken, task }
    }

    /// Waits for this many further acknowledgements.
    pub async fn goes_on(&self, further: usize) {
        let wanted = self.taken.load(Ordering::Relaxed) + further;
        let end = Instant::now() + ANSWER_TIMEOUT;
        while self.taken.load(Ordering::Relaxed) < wanted {
            assert!(Instant::now() < end && !self.task.is_finished(), "submissions stopped");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Ends the load, and checks that the healed members agree and that nothing acknowledged is missing. Returns how long the
    /// longest submission took.
    pub async fn end(self, members: &Members) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        let (ids, longest) = self.task.await.unwrap();
        members.caught_up().await.unwrap();
        members.assert_same().await.unwrap();
        members.assert_audited().await.unwrap();
        let client = members.client().unwrap();
        for id in &ids {
            let there = client.call(&Request::GetAllocation { key: id.to_string() }, ANSWER_TIMEOUT).await;
            assert!(matches!(there, Ok(Answer::Allocation(_))), "acknowledged and missing: {id}: {there:?}");
        }
        eprintln!("{} submissions, the longest took {longest:?}", ids.len());
        longest
    }
}

/// The term of a member: another one means that there was an election.
pub async fn term(members: &Members, member: u64) -> u64 {
    members.status(member).await.unwrap().term
}
