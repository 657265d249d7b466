//! Wide allocations: first one of all nodes, then a hundred at once, each of a tenth of the nodes.
//!
//! ```text
//!   submit, claim ─▶ each agent has its share ─▶ all prepared ─▶ its head ends it ─▶ all released
//!   ├─────── until each has its share ───────┤                                                 │
//!   ├─────── log entries, the members' memory, what a follower receives ───────────────────────┤
//! ```
//!
//! The bench is the scheduler. A simulated agent reports a share as prepared as soon as it has it, and as released as
//! soon as it is no longer wanted.

use super::crowd::Crowd;
use super::memory::Growth;
use super::reached::{Reached, seconds_between};
use crate::bench::quorum::commits::{PATIENCE, owner, spec};
use anyhow::{Context, Result, bail};
use lattice_lab::interrupt;
use lattice_lab::machine;
use lattice_lab::quorum::agents::{Progress, monotonic_ns};
use lattice_lab::quorum::members::Members;
use lattice_ledger::Action;
use lattice_model::claim::ClaimShare;
use lattice_model::{AllocationId, AllocationSpec, Claim, Node, Principal};
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::wire::{Answer, Request};
use std::time::{Duration, Instant};
use tokio::task::{JoinHandle, JoinSet};
use uuid::Uuid;

/// Time limits from the submission until each agent has its share, and until all agents have released theirs.
const LISTED_MAX: Duration = Duration::from_secs(30);
const RELEASED_MAX: Duration = Duration::from_secs(40);
/// A member with more memory than this ends the measurement, before the machine's memory is used up.
const MEMBER_MB_MAX: f64 = 3000.0;
/// Time limit for the release of allocations that were given up.
const QUIET_MAX: Duration = Duration::from_secs(15);
/// Interval between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// The allocations that are submitted at once, and the part of the nodes that each gets.
const MANY: usize = 100;
const PARTS: usize = 10;
/// Clients that submit and claim.
const CLIENTS: usize = 8;
/// Characters of a failure's text that are printed: a refused claim names 16 nodes.
const FAILURE_CHARS_MAX: usize = 160;

/// The measurements.
#[derive(Debug)]
pub struct Wide {
    /// One allocation of all nodes.
    pub one: Course,
    /// A hundred allocations, each of a tenth of the nodes.
    pub many: Course,
}

/// Some allocations from their submission to their end.
#[derive(Debug)]
pub struct Course {
    /// From the submission until each agent had all its shares in its list.
    pub listed: Reached,
    /// From the submission until all shares were released.
    pub released: Reached,
    /// `None`: the course was not begun.
    pub counted: Option<Counted>,
    /// What was unusual.
    pub troubles: Vec<String>,
}

/// What was counted during a course.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counted {
    /// The growth of the member that grew most, in MB.
    pub grown_mb: f64,
    /// Entries of the log.
    pub entries: u64,
    /// Bytes that one follower received for one change of a share; `None`: there is no follower, or nothing changed.
    pub change_bytes: Option<f64>,
    /// Bytes that one agent of role node received over its watch for one change of a share.
    pub own_change_bytes: Option<f64>,
    /// Processor time of all members together, and of all simulated agents, in seconds.
    pub members_s: f64,
    pub agents_s: f64,
}

impl Course {
    fn not_begun(why: &str) -> Self {
        let not = || Reached::Not(why.to_owned());
        Self { listed: not(), released: not(), counted: None, troubles: Vec::new() }
    }
}

/// Measures both courses. The bench has the scheduler's lease with this token.
pub async fn measure(members: &Members, crowd: &mut Crowd, token: u64) -> Result<Wide> {
    if let Some(why) = crowd.missing_ready(members).await? {
        return Ok(Wide { one: Course::not_begun(&why), many: Course::not_begun(&why) });
    }
    let clients = (0..CLIENTS).map(|_| members.client()).collect::<Result<Vec<_>>>()?;
    let mut field = Field { members, crowd, clients, token };
    let nodes = field.nodes().await?;
    let agents = nodes.len();
    let (one, is_quiet) = field.run(vec![nodes]).await?;
    eprintln!("bench: {agents} agents: one wide allocation: shares {:?}, released {:?}", one.listed, one.released);
    let many = if is_quiet {
        let wanted = parts(&field.nodes().await?);
        field.run(wanted).await?.0
    } else {
        Course::not_begun(&format!("not begun: the allocation before it was not gone {} s after it was given up", QUIET_MAX.as_secs()))
    };
    eprintln!("bench: {agents} agents: {MANY} allocations at once: shares {:?}, released {:?}", many.listed, many.released);
    Ok(Wide { one, many })
}

/// The nodes of the allocations that are submitted at once: each takes the next tenth, and starts again after the last
/// node.
fn parts(nodes: &[ClaimShare]) -> Vec<Vec<ClaimShare>> {
    let width = (nodes.len() / PARTS).max(1);
    (0..MANY).map(|number| nodes.iter().cycle().skip(number * width % nodes.len()).take(width).cloned().collect()).collect()
}

/// The request of an allocation of this many nodes: one core of each.
fn spec_of(nodes: usize) -> Result<AllocationSpec> {
    Ok(AllocationSpec { nodes: u32::try_from(nodes).context("the nodes of an allocation")?, ..spec() })
}

/// An allocation that is to be submitted and claimed.
#[derive(Clone)]
struct Wanted {
    id: AllocationId,
    owner: Principal,
    shares: Vec<ClaimShare>,
}

struct Field<'a> {
    members: &'a Members,
    crowd: &'a mut Crowd,
    clients: Vec<QuorumClient>,
    token: u64,
}

impl Field<'_> {
    /// A share of each simulated node.
    async fn nodes(&self) -> Result<Vec<ClaimShare>> {
        let Answer::Nodes(nodes) = self.clients[0].call(&Request::ListNodes, PATIENCE).await? else {
            bail!("the answer is not a list of nodes")
        };
        let real: Vec<&str> = self.members.cluster.nodes.iter().map(|node| node.id.as_str()).collect();
        let simulated = nodes.iter().filter(|node| !real.contains(&node.id.as_str()));
        let share =
            |node: &Node| ClaimShare { node: node.id.clone(), resources: spec().amount_of(&node.size), hold_revision: node.hold_revision };
        Ok(simulated.map(share).collect())
    }

    /// Submits the allocations, and measures until all are over; also returns whether all their shares are released.
    async fn run(&mut self, wanted: Vec<Vec<ClaimShare>>) -> Result<(Course, bool)> {
        let wanted: Vec<Wanted> =
            wanted.into_iter().map(|shares| Wanted { id: AllocationId(Uuid::new_v4()), owner: owner(), shares }).collect();
        let all: u64 = wanted.iter().map(|one| one.shares.len() as u64).sum();
        let before = Reading::take(self).await?;
        let mut growth = Growth::begin(self.members.pids());
        let mut submitting = Submitting::begin(&self.clients, self.token, wanted.clone());
        let (listed, released) = self.follow(&before, all, &mut growth, &mut submitting).await?;
        let after = Reading::take(self).await?;
        let counted = counted(&before, &after, growth.grown_mb(), self.crowd);
        let is_quiet = match &released {
            Reached::After(_) => true,
            Reached::Not(_) => self.give_up(&wanted, &before, all).await?,
        };
        let lost = after.progress.lost_sessions - before.progress.lost_sessions;
        // The first one is the reason of the course's end.
        let mut troubles: Vec<String> = submitting.failures.into_iter().skip(1).collect();
        if lost > 0 {
            troubles.push(format!("{lost} sessions were lost and opened again"));
        }
        Ok((Course { listed, released, counted: Some(counted), troubles }, is_quiet))
    }

    /// Looks at the agents and the members until all shares are released, or it takes too long.
    async fn follow(&mut self, before: &Reading, all: u64, growth: &mut Growth, submitting: &mut Submitting) -> Result<(Reached, Reached)> {
        let mut listed = None;
        loop {
            interrupt::check()?;
            submitting.look().await?;
            growth.look();
            let now = self.crowd.progress()?;
            if now.shares.count - before.progress.shares.count >= all {
                listed.get_or_insert(seconds_between(before.at_ns, now.shares.last_ns));
            }
            if now.releases.count - before.progress.releases.count >= all {
                // An allocation that ended early is released by agents that never had it in their list.
                let never = || Reached::Not("it ended before each agent had its share".to_owned());
                let listed = listed.map_or_else(never, Reached::After);
                return Ok((listed, Reached::After(seconds_between(before.at_ns, now.releases.last_ns))));
            }
            let look = Look { elapsed: before.at.elapsed(), listed, member_mb: growth.largest_mb(), failures: &submitting.failures };
            if let Some(given_up) = look.give_up() {
                return Ok(given_up);
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Cancels the allocations; returns whether all shares are released soon.
    async fn give_up(&mut self, wanted: &[Wanted], before: &Reading, all: u64) -> Result<bool> {
        let began = Instant::now();
        let mut cancelling = JoinSet::new();
        for (Wanted { id, owner, .. }, client) in wanted.iter().zip(self.clients.iter().cycle()) {
            let (client, request) = (client.clone(), Request::from(Action::Cancel { id: *id, by: owner.clone() }));
            // An allocation that was never submitted or has ended cannot be cancelled; its shares are counted below.
            cancelling.spawn(async move { client.call(&request, QUIET_MAX).await.is_ok() });
        }
        cancelling.join_all().await;
        while began.elapsed() < QUIET_MAX {
            interrupt::check()?;
            let now = self.crowd.progress()?;
            if now.releases.count - before.progress.releases.count >= all {
                return Ok(true);
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
        Ok(false)
    }
}

/// What is known at one moment of a course.
struct Look<'a> {
    elapsed: Duration,
    listed: Option<f64>,
    member_mb: f64,
    failures: &'a [String],
}

impl Look<'_> {
    /// Why the course is given up now, for both times; `None`: it continues.
    fn give_up(&self) -> Option<(Reached, Reached)> {
        let why = if let Some(failure) = self.failures.first() {
            Reached::Not(format!("not reached: {failure}"))
        } else if self.member_mb > MEMBER_MB_MAX {
            Reached::Not(format!("not reached in {:.0} s: a member has more than {MEMBER_MB_MAX} MB", self.elapsed.as_secs_f64()))
        } else if self.listed.is_none() && self.elapsed >= LISTED_MAX {
            Reached::not_in(LISTED_MAX)
        } else if self.elapsed >= RELEASED_MAX {
            Reached::not_in(RELEASED_MAX)
        } else {
            return None;
        };
        Some((self.listed.map_or_else(|| why.clone(), Reached::After), why))
    }
}

/// The values that are read before and after a course.
struct Reading {
    at: Instant,
    at_ns: u64,
    progress: Progress,
    revision: u64,
    members: Duration,
    agents: Duration,
}

impl Reading {
    async fn take(field: &mut Field<'_>) -> Result<Self> {
        let revision = revision(field.members).await?;
        let progress = field.crowd.progress()?;
        let time = |pids: Vec<i32>| pids.into_iter().map(machine::processor_time).sum::<Result<Duration>>();
        let (members, agents) = (time(field.members.pids())?, time(field.crowd.pids())?);
        Ok(Self { at: Instant::now(), at_ns: monotonic_ns(), progress, revision, members, agents })
    }
}

/// The last entry that a member has applied: the largest of all members that answer.
async fn revision(members: &Members) -> Result<u64> {
    let mut newest = None;
    let began = Instant::now();
    while newest.is_none() && began.elapsed() < PATIENCE {
        for member in &members.cluster.members {
            let applied = members.status(member.id).await.ok().map(|status| status.revision.0);
            newest = newest.max(applied);
        }
    }
    newest.context("no member answers")
}

fn counted(before: &Reading, after: &Reading, grown_mb: f64, crowd: &Crowd) -> Counted {
    let (then, now) = (&before.progress, &after.progress);
    let changes = (now.shares.count - then.shares.count) + (now.acknowledged_reports - then.acknowledged_reports);
    Counted {
        grown_mb,
        entries: after.revision - before.revision,
        change_bytes: change_bytes(now.followed_bytes - then.followed_bytes, crowd.followers, changes),
        own_change_bytes: change_bytes(now.own_bytes - then.own_bytes, crowd.agents - crowd.followers, changes),
        members_s: (after.members.saturating_sub(before.members)).as_secs_f64(),
        agents_s: (after.agents.saturating_sub(before.agents)).as_secs_f64(),
    }
}

/// Bytes that one of the agents received for one change: a share that is claimed, prepared, ended or released.
fn change_bytes(received: u64, agents: usize, changes: u64) -> Option<f64> {
    (agents > 0 && changes > 0).then(|| received as f64 / agents as f64 / changes as f64)
}

/// The submissions and claims under way.
struct Submitting {
    task: Option<JoinHandle<Vec<String>>>,
    /// Why some failed.
    failures: Vec<String>,
}

impl Submitting {
    fn begin(clients: &[QuorumClient], token: u64, wanted: Vec<Wanted>) -> Self {
        let mut each = JoinSet::new();
        for (wanted, client) in wanted.into_iter().zip(clients.iter().cycle()) {
            each.spawn(submit_and_claim(client.clone(), token, wanted));
        }
        let short = |failure: anyhow::Error| format!("{failure:#}").chars().take(FAILURE_CHARS_MAX).collect::<String>();
        let task = tokio::spawn(async move { each.join_all().await.into_iter().filter_map(Result::err).map(short).collect() });
        Self { task: Some(task), failures: Vec::new() }
    }

    /// Reads the failures once all are answered.
    async fn look(&mut self) -> Result<()> {
        if let Some(task) = self.task.take_if(|task| task.is_finished()) {
            self.failures = task.await.context("the submissions' task")?;
        }
        Ok(())
    }
}

async fn submit_and_claim(client: QuorumClient, token: u64, Wanted { id, owner, shares }: Wanted) -> Result<()> {
    let spec = Box::new(spec_of(shares.len())?);
    client
        .call(&Request::Submit { id, spec, owner, claim: None, life: None, login_tenants: [].into() }, PATIENCE)
        .await
        .context("a submission")?;
    let claim = Claim { allocation: id, requeue_count: 0, lease_token: token, shares, after: None, by: None, walltime: None };
    match client.call(&Request::Claims(vec![claim]), PATIENCE).await.context("a claim")? {
        Answer::Claims(outcomes) if outcomes.iter().all(Result::is_ok) => Ok(()),
        other => bail!("unexpected answer to a claim: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::{NodeId, Revision};
    use std::collections::BTreeMap;

    fn nodes(count: usize) -> Vec<ClaimShare> {
        let node = |number| lattice_lab::quorum::agents::name_of(number).parse::<NodeId>().unwrap();
        let share = |number| ClaimShare { node: node(number), resources: spec().share.unwrap(), hold_revision: Revision(1) };
        (0..count).map(share).collect()
    }

    #[test]
    fn each_node_takes_part_in_ten_of_the_hundred_and_in_none_twice() {
        for (count, width) in [(100, 10), (1000, 100), (10, 1)] {
            let parts = parts(&nodes(count));
            let mut shares: BTreeMap<&NodeId, usize> = BTreeMap::new();
            for share in parts.iter().flatten() {
                *shares.entry(&share.node).or_default() += 1;
            }
            assert!(parts.iter().all(|part| part.len() == width) && parts.len() == 100, "{count}");
            assert!(shares.len() == count && shares.values().all(|shares| *shares == 10), "{count}: {shares:?}");
        }
        let odd = parts(&nodes(25));
        assert!(odd.iter().all(|part| part.len() == 2 && part[0].node != part[1].node));
        assert_eq!((spec_of(25).unwrap().nodes, spec_of(25).unwrap().validate().is_ok()), (25, true));
    }

    #[test]
    fn a_course_is_given_up_when_it_takes_too_long_or_too_much_memory_or_failed() {
        let look = |s, listed, member_mb| Look { elapsed: Duration::from_secs(s), listed, member_mb, failures: &[] }.give_up();
        assert_eq!(look(29, None, 100.0), None);
        assert_eq!(look(39, Some(2.0), 100.0), None);
        let not = |why: &str| Reached::Not(why.to_owned());
        assert_eq!(look(30, None, 100.0), Some((not("not reached in 30 s"), not("not reached in 30 s"))));
        assert_eq!(look(40, Some(2.0), 100.0), Some((Reached::After(2.0), not("not reached in 40 s"))));
        assert!(look(3, None, 3001.0).is_some_and(|(listed, _)| listed == not("not reached in 3 s: a member has more than 3000 MB")));
        let failures = ["a claim: refused".to_owned()];
        let failed = Look { elapsed: Duration::ZERO, listed: None, member_mb: 1.0, failures: &failures }.give_up();
        assert!(failed.is_some_and(|(listed, _)| listed == not("not reached: a claim: refused")));
    }

    #[test]
    fn a_follower_without_changes_received_nothing_for_one() {
        assert_eq!(change_bytes(6000, 2, 30), Some(100.0));
        assert_eq!((change_bytes(6000, 0, 30), change_bytes(6000, 2, 0)), (None, None));
    }
}
