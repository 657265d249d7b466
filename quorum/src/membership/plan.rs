//! Plans the next step of a membership change from the state of the members, without side effects.
//! The change is requested again until it is done, so each step must be correct regardless of which
//! leader took the previous one.
//!
//! The ledger does not record a change in progress: that would duplicate Raft's membership, and the
//! two could differ. A replacement is one (joint) change of votes, so the number of members is
//! never even while one of them is dead. A removed member marks its data directory and exits: an id
//! is used once, because a member that lost its votes could vote twice.
//!
//! For the transfer of the leadership, see `handover`.

use lattice_quorum_client::wire::MembersChange;
use lattice_store::raft::Peer;
use lattice_store::roster::Roster;
use std::collections::{BTreeMap, BTreeSet};

/// Largest number of voting members.
pub const VOTERS_MAX: usize = 5;
/// A learner has caught up if it lags by no more entries than this: then it receives new entries
/// together with all others.
pub const LAG_MAX: u64 = 200;

/// The state of the members as seen by the leader.
#[derive(Clone, Debug, Default)]
pub struct MembersState {
    /// The leader.
    pub leader: u64,
    /// The current membership.
    pub roster: Roster,
    /// The leader's last log index.
    pub last: u64,
    /// For each other member, the last log index known to match.
    pub matched: BTreeMap<u64, u64>,
    /// The members that answered recently, including the leader itself.
    pub answering: BTreeSet<u64>,
    /// The members whose disks have too little space.
    pub short: BTreeSet<u64>,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The change is complete.
    Done(String),
    /// The change is not possible.
    Refuse(String),
    /// Something must happen by itself first.
    Wait(String),
    /// Add this member as a learner.
    Learn(u64, Peer),
    /// Make these the voters.
    Vote(BTreeSet<u64>),
    /// Remove this member, which has no vote.
    Forget(u64),
    /// Transfer the leadership to this member.
    HandOver(u64),
}

/// The next step of `change`.
pub fn next(state: &MembersState, change: &MembersChange) -> Step {
    let roster = &state.roster;
    let Some(voters) = roster.votes.last() else { return Step::Refuse("no membership is known here".to_owned()) };
    if roster.votes.len() > 1 {
        // Complete a change of votes that is in progress first.
        return Step::Vote(voters.clone());
    }
    match change {
        MembersChange::Add { id, service, raft } => add(state, voters, *id, &Peer { service: service.clone(), raft: raft.clone() }),
        MembersChange::Remove { id } => remove(state, voters, *id),
        MembersChange::Replace { old, id, service, raft } => {
            replace(state, voters, *old, *id, &Peer { service: service.clone(), raft: raft.clone() })
        }
        MembersChange::Transfer { to } => transfer(state, voters, *to),
    }
}

/// Whether the change is complete once this member leads. Otherwise the new leader continues with
/// it, whoever that is.
pub fn is_done_by(change: &MembersChange, leader: u64) -> bool {
    match change {
        MembersChange::Transfer { to } => to.is_none_or(|to| to == leader),
        MembersChange::Add { .. } | MembersChange::Remove { .. } | MembersChange::Replace { .. } => false,
    }
}

fn add(state: &MembersState, voters: &BTreeSet<u64>, id: u64, peer: &Peer) -> Step {
    if let Some(step) = step_before_vote(state, id, peer) {
        return step;
    }
    if voters.contains(&id) {
        return Step::Done(format!("member {id} votes"));
    }
    let new: BTreeSet<u64> = voters.iter().copied().chain([id]).collect();
    if new.len() > VOTERS_MAX {
        return Step::Refuse(format!("{VOTERS_MAX} members vote already: more make each commit slower and no data safer"));
    }
    match why_no_majority(state, &new) {
        Some(why) => Step::Wait(why),
        None => Step::Vote(new),
    }
}

fn remove(state: &MembersState, voters: &BTreeSet<u64>, id: u64) -> Step {
    if !state.roster.members.contains_key(&id) {
        return Step::Done(format!("member {id} is not in the cluster"));
    }
    if !voters.contains(&id) {
        return Step::Forget(id);
    }
    let rest: BTreeSet<u64> = voters.iter().copied().filter(|v| *v != id).collect();
    if rest.is_empty() {
        return Step::Refuse(format!("member {id} is the only one that votes: add another first"));
    }
    if let Some(why) = why_no_majority(state, &rest) {
        return Step::Refuse(format!("without member {id}, {why}: start them, or remove one of those first"));
    }
    if state.leader == id { hand_over(state, &rest) } else { Step::Vote(rest) }
}

fn replace(state: &MembersState, voters: &BTreeSet<u64>, old: u64, id: u64, peer: &Peer) -> Step {
    let known = &state.roster.members;
    if old == id {
        return Step::Refuse("the new member needs an id of its own".to_owned());
    }
    if !known.contains_key(&old) {
        return if voters.contains(&id) {
            Step::Done(format!("member {id} votes in the place of member {old}"))
        } else {
            Step::Refuse(format!("there is no member {old}: use `add`"))
        };
    }
    if let Some(step) = step_before_vote(state, id, peer) {
        return step;
    }
    if !voters.contains(&old) && voters.contains(&id) {
        return Step::Forget(old);
    }
    let new: BTreeSet<u64> = voters.iter().copied().filter(|v| *v != old).chain([id]).collect();
    if new.len() > VOTERS_MAX {
        return Step::Refuse(format!("{VOTERS_MAX} members vote already, and member {old} does not"));
    }
    match why_no_majority(state, &new) {
        Some(why) => Step::Wait(why),
        None if state.leader == old => hand_over(state, &new.into_iter().filter(|v| voters.contains(v)).collect()),
        None => Step::Vote(new),
    }
}

fn transfer(state: &MembersState, voters: &BTreeSet<u64>, to: Option<u64>) -> Step {
    let others: BTreeSet<u64> = voters.iter().copied().filter(|v| *v != state.leader).collect();
    match to {
        Some(to) if to == state.leader => Step::Done(format!("member {to} leads")),
        Some(to) if !voters.contains(&to) => Step::Refuse(format!("member {to} has no vote, so it cannot lead")),
        Some(to) if !state.answering.contains(&to) => Step::Refuse(format!("member {to} does not answer")),
        Some(to) => hand_over(state, &BTreeSet::from([to])),
        None => hand_over(state, &others),
    }
}

/// What is needed before a member can vote: it is unknown, known with other addresses, or lags
/// behind. `None`: nothing.
fn step_before_vote(state: &MembersState, id: u64, peer: &Peer) -> Option<Step> {
    let Some(known) = state.roster.members.get(&id) else {
        let taken = |p: &Peer| p.raft == peer.raft || p.service == peer.service;
        if let Some((other, _)) = state.roster.members.iter().find(|(_, p)| taken(p)) {
            return Some(Step::Refuse(format!("member {other} has that address")));
        }
        let votes = state.roster.votes.last().map_or(0, BTreeSet::len);
        if state.roster.members.len() > votes + 1 {
            return Some(Step::Refuse("two members are learning already: let them have their vote, or remove them".to_owned()));
        }
        return Some(Step::Learn(id, peer.clone()));
    };
    if known != peer {
        let (service, raft) = (&known.service, &known.raft);
        return Some(Step::Refuse(format!("member {id} is known at {service} and {raft}: remove it first, then add it anew")));
    }
    if state.roster.has_vote(id) {
        return None;
    }
    if !state.answering.contains(&id) {
        return Some(Step::Wait(format!("member {id} does not answer at {}", known.raft)));
    }
    let matched = state.matched.get(&id).copied().unwrap_or(0);
    let behind = state.last.saturating_sub(matched);
    (behind > LAG_MAX).then(|| Step::Wait(format!("member {id} catches up: it has {matched} of {} entries", state.last)))
}

/// The transfer to the best of the `candidates` that answer: one with enough disk space if possible,
/// and among those the one with most of the log.
fn hand_over(state: &MembersState, candidates: &BTreeSet<u64>) -> Step {
    let matched = |id: &u64| state.matched.get(id).copied().unwrap_or(0);
    let answering = candidates.iter().filter(|id| state.answering.contains(id) && **id != state.leader);
    match answering.max_by_key(|id| (!state.short.contains(id), matched(id), std::cmp::Reverse(**id))) {
        None => Step::Refuse("no other member that votes answers, so none can lead".to_owned()),
        Some(to) if state.last.saturating_sub(matched(to)) > LAG_MAX => {
            Step::Wait(format!("member {to} has {} of {} entries", matched(to), state.last))
        }
        Some(to) => Step::HandOver(*to),
    }
}

/// Why these voters could not commit anything: too few of them answer. `None`: they could.
fn why_no_majority(state: &MembersState, voters: &BTreeSet<u64>) -> Option<String> {
    let answering = voters.iter().filter(|v| state.answering.contains(v)).count();
    if answering > voters.len() / 2 {
        return None;
    }
    let silent: Vec<String> = voters.iter().filter(|v| !state.answering.contains(v)).map(u64::to_string).collect();
    Some(format!("only {answering} of {} members would answer (silent: {})", voters.len(), silent.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(id: u64) -> Peer {
        Peer { service: format!("h{id}:1"), raft: format!("h{id}:2") }
    }

    /// Member 1 is the leader; all of `voters` have everything and answer.
    fn state(voters: &[u64], learners: &[u64]) -> MembersState {
        let all = voters.iter().chain(learners).copied();
        MembersState {
            leader: 1,
            roster: Roster {
                since: None,
                members: all.clone().map(|id| (id, peer(id))).collect(),
                votes: vec![voters.iter().copied().collect()],
            },
            last: 1000,
            matched: voters.iter().map(|id| (*id, 1000)).collect(),
            answering: all.collect(),
            short: BTreeSet::new(),
        }
    }

    fn set(ids: &[u64]) -> BTreeSet<u64> {
        ids.iter().copied().collect()
    }

    fn addition(id: u64) -> MembersChange {
        MembersChange::Add { id, service: peer(id).service, raft: peer(id).raft }
    }

    #[test]
    fn a_member_learns_then_votes() {
        let change = addition(2);
        assert_eq!(next(&state(&[1], &[]), &change), Step::Learn(2, peer(2)));
        let mut learns = state(&[1], &[2]);
        assert!(matches!(next(&learns, &change), Step::Wait(why) if why.contains("0 of 1000")));
        learns.matched.insert(2, 900);
        assert_eq!(next(&learns, &change), Step::Vote(set(&[1, 2])));
        learns.answering.remove(&2);
        assert!(matches!(next(&learns, &change), Step::Wait(why) if why.contains("does not answer")));
        assert!(matches!(next(&state(&[1, 2], &[]), &change), Step::Done(_)));
    }

    #[test]
    fn an_impossible_addition_is_refused_before_the_first_step() {
        let refused = |state: &MembersState, change: &MembersChange, expected: &str| match next(state, change) {
            Step::Refuse(why) => assert!(why.contains(expected), "{why}"),
            other => panic!("{other:?}"),
        };
        let elsewhere = MembersChange::Add { id: 2, service: "x:1".to_owned(), raft: "x:2".to_owned() };
        refused(&state(&[1, 2], &[]), &elsewhere, "remove it first");
        let taken = MembersChange::Add { id: 3, service: "x:1".to_owned(), raft: peer(2).raft };
        refused(&state(&[1, 2], &[]), &taken, "member 2 has that address");
        let mut six = state(&[1, 2, 3, 4, 5], &[6]);
        six.matched.insert(6, 1000);
        refused(&six, &addition(6), "5 members vote already");
        refused(&state(&[1], &[2, 3]), &addition(4), "are learning already");
    }

    #[test]
    fn a_removal_keeps_a_majority_and_moves_the_leadership_first() {
        let remove = |id| MembersChange::Remove { id };
        assert_eq!(next(&state(&[1, 2, 3], &[]), &remove(3)), Step::Vote(set(&[1, 2])));
        assert_eq!(next(&state(&[1, 2], &[3]), &remove(3)), Step::Forget(3));
        assert!(matches!(next(&state(&[1, 2], &[]), &remove(3)), Step::Done(_)));
        assert!(matches!(next(&state(&[1], &[]), &remove(1)), Step::Refuse(_)));
        let mut three = state(&[1, 2, 3], &[]);
        three.matched.insert(2, 990);
        assert_eq!(next(&three, &remove(1)), Step::HandOver(3));
        three.answering.remove(&3);
        assert!(matches!(next(&three, &remove(2)), Step::Refuse(why) if why.contains("only 1 of 2")));
        assert_eq!(next(&three, &remove(3)), Step::Vote(set(&[1, 2])), "the dead one can go");
    }

    #[test]
    fn a_replacement_is_one_change_of_votes() {
        let change = MembersChange::Replace { old: 3, id: 4, service: peer(4).service, raft: peer(4).raft };
        let mut now = state(&[1, 2, 3], &[]);
        now.answering.remove(&3);
        assert_eq!(next(&now, &change), Step::Learn(4, peer(4)));
        let mut now = state(&[1, 2, 3], &[4]);
        now.answering.remove(&3);
        now.matched.insert(4, 1000);
        assert_eq!(next(&now, &change), Step::Vote(set(&[1, 2, 4])));
        assert_eq!(next(&state(&[1, 2, 4], &[3]), &change), Step::Forget(3));
        assert!(matches!(next(&state(&[1, 2, 4], &[]), &change), Step::Done(_)));
        assert!(matches!(next(&state(&[1, 2], &[]), &change), Step::Refuse(_)));
        let mut leads = state(&[1, 2, 3], &[4]);
        leads.leader = 3;
        leads.matched.insert(4, 1000);
        assert_eq!(next(&leads, &change), Step::HandOver(1));
    }

    #[test]
    fn the_leadership_goes_to_one_that_votes_answers_and_has_the_log() {
        let to = |to| MembersChange::Transfer { to };
        let mut three = state(&[1, 2, 3], &[4]);
        three.matched.insert(3, 999);
        assert_eq!(next(&three, &to(None)), Step::HandOver(2));
        assert_eq!(next(&three, &to(Some(3))), Step::HandOver(3));
        let short = MembersState { short: set(&[2]), ..three.clone() };
        assert_eq!(next(&short, &to(None)), Step::HandOver(3), "member 2 could take nothing new either");
        assert!(matches!(next(&three, &to(Some(1))), Step::Done(_)));
        assert!(matches!(next(&three, &to(Some(4))), Step::Refuse(_)));
        three.matched.insert(3, 1);
        assert!(matches!(next(&three, &to(Some(3))), Step::Wait(_)));
        three.answering.remove(&3);
        assert!(matches!(next(&three, &to(Some(3))), Step::Refuse(_)));
        assert!(matches!(next(&state(&[1], &[]), &to(None)), Step::Refuse(_)));
    }

    #[test]
    fn each_new_leader_continues_the_change() {
        let remove = MembersChange::Remove { id: 1 };
        assert_eq!(next(&state(&[1, 2, 3], &[]), &remove), Step::HandOver(2));
        for elected in [2, 3] {
            assert!(!is_done_by(&remove, elected));
            let now = MembersState { leader: elected, ..state(&[1, 2, 3], &[]) };
            assert_eq!(next(&now, &remove), Step::Vote(set(&[2, 3])));
        }
        let transfer = |to| MembersChange::Transfer { to };
        assert!(is_done_by(&transfer(None), 3) && is_done_by(&transfer(Some(3)), 3) && !is_done_by(&transfer(Some(2)), 3));
        let three = MembersState { leader: 3, ..state(&[1, 2, 3], &[]) };
        assert_eq!(next(&three, &transfer(Some(2))), Step::HandOver(2), "the order is repeated");
    }

    #[test]
    fn a_change_of_votes_in_progress_is_completed_first() {
        let mut joint = state(&[1, 2, 3], &[4]);
        joint.roster.votes.push(set(&[1, 2, 4]));
        assert_eq!(next(&joint, &MembersChange::Remove { id: 1 }), Step::Vote(set(&[1, 2, 4])));
    }
}
