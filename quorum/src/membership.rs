//! Membership changes, step by step, on the leader; and how a member learns that it was removed.
//!
//! ```text
//!   change (an operator, repeated until done) ──▶ plan::next ──▶ audited, then executed ──▶ plan::next …
//!   member without leader ──roster?──▶ the others: it exits if a newer committed list lacks it
//! ```
//!
//! A change has no state besides the membership itself: any leader continues from there. Each step
//! is recorded in the audit log before it happens, with the name of the operator.

pub mod plan;

use crate::core::Core;
use crate::peers::{RosterAnswer, RosterQuestion};
use crate::proposer::{unserved, until_result_lost};
use lattice_ledger::{Action, MembersStep};
use lattice_model::{Principal, with_causes};
use lattice_quorum_client::wire::{Answer, MembersOrder, Refusal};
use lattice_store::raft::Peer;
use lattice_store::roster::Roster;
use openraft::ChangeMembers;
use plan::{MembersState, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long one call works on a change before it reports its progress.
const CALL_MAX: Duration = Duration::from_secs(2);
/// How often to check for an awaited condition.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Largest number of audit records by which a learner may lag: more are applied while it is asked.
const HISTORY_LAG_MAX: u64 = 1000;
/// A member that has not answered for this long is unreachable.
pub const UNREACHABLE_AFTER: Duration = Duration::from_secs(2);
/// Timeout for a membership question to another member.
pub const QUESTION_MAX: Duration = Duration::from_secs(1);

/// Works on a change, on the leader. Longer steps continue in the background; the order is repeated
/// to learn the result.
pub(crate) async fn change(core: &Arc<Core>, order: MembersOrder) -> Result<Answer, Refusal> {
    let begun = |text: &str| Ok(Answer::Changed { done: false, text: text.to_owned() });
    let Ok(turn) = Arc::clone(&core.status.changing).try_lock_owned() else {
        return begun("a step of a change is under way");
    };
    let working = {
        let core = Arc::clone(core);
        let tasks = core.tasks.clone();
        tasks.spawn(async move {
            let result = work(&core, &order).await;
            drop(turn);
            result
        })
    };
    // The step continues even if the caller is gone, because a half-finished change of Raft's
    // membership helps nobody.
    match tokio::time::timeout(CALL_MAX + POLL_INTERVAL, working).await {
        Ok(Ok(result)) => result,
        Ok(Err(error)) => Err(Refusal::Unavailable { why: error.to_string() }),
        Err(_) => begun("waiting for a majority of the members to accept the change"),
    }
}

async fn work(core: &Arc<Core>, order: &MembersOrder) -> Result<Answer, Refusal> {
    let end = Instant::now() + CALL_MAX;
    // Not before everything committed is applied here: otherwise an outdated membership would be
    // evaluated.
    core.reads.pass().await.map_err(unserved)?;
    loop {
        let state = members_state(core);
        match plan::next(&state, &order.change) {
            Step::Done(text) => return Ok(Answer::Changed { done: true, text }),
            Step::Refuse(why) => return Err(Refusal::Members { why }),
            Step::Wait(text) => {
                if Instant::now() > end {
                    return Ok(Answer::Changed { done: false, text });
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            Step::Learn(id, peer) => {
                check_newcomer(core, id, &peer).await?;
                let (service, raft) = (peer.service.clone(), peer.raft.clone());
                audit(core, &order.by, MembersStep::Learn { id, service, raft }).await?;
                let nodes = BTreeMap::from([(id, peer)]);
                change_raft_membership(core, ChangeMembers::AddNodes(nodes)).await?;
            }
            Step::Vote(voters) => {
                let new = voters.iter().find(|id| !state.roster.has_vote(**id));
                if let Some(text) = lacks_history(core, new.copied()).await {
                    if Instant::now() > end {
                        return Ok(Answer::Changed { done: false, text });
                    }
                    tokio::time::sleep(POLL_INTERVAL).await;
                    continue;
                }
                audit(core, &order.by, MembersStep::Vote { voters: voters.iter().copied().collect() }).await?;
                change_raft_membership(core, ChangeMembers::ReplaceAllVoters(voters)).await?;
            }
            Step::Forget(id) => {
                let peer = state.roster.members.get(&id).cloned();
                audit(core, &order.by, MembersStep::Forget { id }).await?;
                change_raft_membership(core, ChangeMembers::RemoveNodes(BTreeSet::from([id]))).await?;
                if let Some(peer) = peer {
                    notify_removed(core, id, peer);
                }
            }
            Step::HandOver(to) => {
                let leader = transfer(core, &order.by, to).await?;
                let done = plan::is_done_by(&order.change, leader);
                return Ok(Answer::Changed { done, text: format!("member {leader} leads") });
            }
        }
    }
}

/// Transfers the leadership to another member, and returns the member that was elected.
pub(crate) async fn transfer(core: &Core, by: &Principal, to: u64) -> Result<u64, Refusal> {
    audit(core, by, MembersStep::HandOver { to }).await?;
    crate::handover::transfer_to(core, to).await
}

fn members_state(core: &Core) -> MembersState {
    let metrics = core.raft.metrics().borrow().clone();
    let roster = Roster::of(&metrics.membership_config);
    let this = core.config.id;
    let answers = |id: &u64| *id == this || core.peers.silence(*id).is_some_and(|s| s < UNREACHABLE_AFTER);
    let replicated = metrics.replication.unwrap_or_default();
    MembersState {
        leader: this,
        last: metrics.last_log_index.unwrap_or(0),
        matched: replicated.into_iter().filter_map(|(id, matched)| Some((id, matched?.index))).collect(),
        answering: roster.members.keys().copied().filter(answers).collect(),
        short: core.shortages().into_keys().collect(),
        roster,
    }
}

/// Checks that the process at the address is the intended member of this cluster, and has no other
/// history.
async fn check_newcomer(core: &Core, id: u64, peer: &Peer) -> Result<(), Refusal> {
    let refuse = |why: String| Err(Refusal::Members { why });
    let answer = match core.peers.roster(id, peer, &question(core), QUESTION_MAX).await {
        Ok(answer) => answer,
        Err(error) => return refuse(format!("member {id} does not answer at {}: {}", peer.raft, with_causes(&error))),
    };
    if answer.cluster != core.config.cluster {
        return refuse(format!("the member at {} is of cluster {:?}, this is {:?}", peer.raft, answer.cluster, core.config.cluster));
    }
    if answer.member != id {
        return refuse(format!("at {} is member {}, not {id}", peer.raft, answer.member));
    }
    if !answer.pristine {
        return refuse(format!("member {id} has a log already: start it with an empty data_dir, without --bootstrap"));
    }
    Ok(())
}

/// Why a learner may not vote yet: it must have the audit chain before it votes.
async fn lacks_history(core: &Core, learner: Option<u64>) -> Option<String> {
    let id = learner?;
    let want = core.agreed.ledger().audit_head().seq;
    // The head of its applied state; it has the records up to there.
    match core.peers.audit_page(id, u64::MAX).await {
        Ok(page) if page.head.seq + HISTORY_LAG_MAX >= want => None,
        Ok(page) => Some(format!("member {id} catches up: it has {} of {want} audit records", page.head.seq)),
        Err(error) => Some(format!("member {id}: {}", with_causes(&error))),
    }
}

async fn audit(core: &Core, by: &Principal, step: MembersStep) -> Result<(), Refusal> {
    tracing::info!(by = by.name, "the membership: {step}");
    let results = core.propose_here(vec![Action::Members { by: by.clone(), step }]).await.map_err(unserved)?;
    results.into_iter().try_for_each(|result| result.map(drop))
}

async fn change_raft_membership(core: &Core, change: ChangeMembers<u64, Peer>) -> Result<(), Refusal> {
    // Members that lose their vote stay learners until they are removed, so that they learn of the
    // loss.
    let changed = tokio::select! {
        changed = core.raft.change_membership(change, true) => changed,
        () = until_result_lost(&core.raft) => {
            let why = "this member is no longer the leader; the change may have been committed: see `lattice quorum status`".to_owned();
            return Err(Refusal::Unavailable { why });
        }
    };
    changed.map(drop).map_err(|error| Refusal::Unavailable { why: error.to_string() })
}

/// Informs a removed member as soon as the removal is applied here, at the latest after
/// [`UNREACHABLE_AFTER`]. A member that misses this asks by itself.
fn notify_removed(core: &Arc<Core>, id: u64, peer: Peer) {
    let (tasks, core) = (&core.tasks, Arc::clone(core));
    tasks.spawn(async move {
        let farewell = async {
            let until = Instant::now() + UNREACHABLE_AFTER;
            while core.agreed.roster().members.contains_key(&id) && Instant::now() < until {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            if let Err(error) = core.peers.roster(id, &peer, &question(&core), QUESTION_MAX).await {
                tracing::info!(member = id, error = %with_causes(&error), "the removed member could not be notified now");
            }
            core.peers.forget(id);
        };
        core.stop.run_until_cancelled(farewell).await;
    });
}

fn question(core: &Core) -> RosterQuestion {
    RosterQuestion { cluster: core.config.cluster.clone(), from: core.config.id, roster: (*core.agreed.roster()).clone() }
}

/// Answers another member's question, and evaluates the membership in that question.
pub(crate) fn answer(core: &Core, question: &RosterQuestion) -> RosterAnswer {
    if question.cluster == core.config.cluster {
        core.peers.introduce(core.config.id, question.roster.members.iter().map(|(id, peer)| (*id, peer)));
        stop_if_removed(core, &question.roster);
    }
    RosterAnswer {
        cluster: core.config.cluster.clone(),
        member: core.config.id,
        pristine: core.raft.metrics().borrow().last_log_index.is_none(),
        roster: (*core.agreed.roster()).clone(),
    }
}

fn stop_if_removed(core: &Core, roster: &Roster) {
    let known = Roster::of(&core.raft.metrics().borrow().membership_config);
    if !roster.expels(core.config.id, &known) {
        return;
    }
    if let Err(error) = write_removed(&core.config.data_dir, roster.index()) {
        tracing::error!(error = %with_causes(&error), "the removal of this member cannot be written to its disk");
    }
    core.status.removed.send_replace(true);
}

/// While this member has no leader, asks the others once a second whether it was removed without
/// noticing.
pub(crate) async fn watch(core: Arc<Core>) {
    loop {
        tokio::select! {
            () = core.stop.cancelled() => return,
            () = tokio::time::sleep(QUESTION_MAX) => {}
        }
        if core.has_leader() {
            continue;
        }
        let known = Roster::of(&core.raft.metrics().borrow().membership_config);
        let others = known.members.iter().filter(|(id, _)| **id != core.config.id && known.members.contains_key(&core.config.id));
        let question = question(&core);
        let asked = others.map(|(id, peer)| core.peers.roster(*id, peer, &question, QUESTION_MAX));
        for answer in futures::future::join_all(asked).await.into_iter().flatten() {
            if answer.cluster == core.config.cluster {
                stop_if_removed(&core, &answer.roster);
            }
        }
    }
}

fn removed_file(dir: &Path) -> PathBuf {
    dir.join("removed")
}

fn write_removed(dir: &Path, index: u64) -> Result<(), lattice_store::StoreError> {
    lattice_store::directory::replace(&removed_file(dir), format!("the membership of log index {index} lacks this member\n").as_bytes())
}

/// Whether the member of this data directory was removed from its cluster.
pub(crate) fn was_removed(dir: &Path) -> bool {
    removed_file(dir).exists()
}
