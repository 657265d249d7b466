//! The network between members is cut, in both directions and in one, at the leader and at a follower. Clients reach
//! all members, because the answers of a member without a majority are part of the test.

use crate::harness::{Need, alone};
use crate::hosts::{Load, between, on_hosts, others, submission, term};
use lattice_lab::quorum::agents::Session;
use lattice_lab::quorum::hosts::{Hosts, Party};
use lattice_lab::quorum::members::{Members, NAME};
use lattice_model::AllocationId;
use lattice_quorum_client::CallError;
use lattice_quorum_client::wire::{Answer, Request};
use libtest_mimic::Trial;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// A dead connection is given up after two seconds; then there is an election.
const MAJORITY_MAX: Duration = Duration::from_secs(5);
/// Two seconds without a leader, plus the time until a connection that is cut in one direction is given up.
const SENT_AWAY_MAX: Duration = Duration::from_secs(8);

pub fn trials() -> Vec<Trial> {
    let trial = |name: &str, way: Way| {
        alone(&format!("partitions::{name}"), &[Need::Hosts], move || {
            on_hosts("partitions", |_| {}, async |hosts, members| lost_and_found(hosts, members, way).await);
        })
    };
    vec![
        trial("a_member_that_is_cut_off_both_ways_stalls_alone", Way::Both),
        trial("a_member_that_nobody_hears_stalls_alone", Way::Outgoing),
        trial("a_member_that_hears_nobody_stalls_alone", Way::Incoming),
    ]
}

/// The direction of the lost packets of a member.
#[derive(Clone, Copy, Debug)]
enum Way {
    Both,
    Outgoing,
    Incoming,
}

impl Way {
    fn pairs(self, member: u64) -> Vec<(Party, Party)> {
        let this = Party::Member(member);
        let mut pairs = between(member, &others(member));
        pairs.retain(|(from, to)| match self {
            Self::Both => true,
            Self::Outgoing => *from == this,
            Self::Incoming => *to == this,
        });
        pairs
    }
}

async fn lost_and_found(hosts: &Hosts, members: &Members, way: Way) {
    let load = Load::begin(members);
    load.goes_on(5).await;
    let leader = members.leader().await.unwrap();
    cut_off(hosts, members, &load, way, leader).await;
    let leader = members.leader().await.unwrap();
    let before = term(members, leader).await;
    let follower = others(leader)[0];
    let majority = cut_off(hosts, members, &load, way, follower).await;
    assert_eq!(majority, (leader, before), "a follower's loss is not noticed");
    let longest = load.end(members).await;
    assert!(longest < MAJORITY_MAX, "a client waited for {longest:?}");
}

/// Returns who led the majority meanwhile, and in which term.
async fn cut_off(hosts: &Hosts, members: &Members, load: &Load, way: Way, member: u64) -> (u64, u64) {
    let at_it = members.client_at(member).unwrap();
    let mut session = Session::open(&at_it, NAME).await.unwrap();
    hosts.cut(&way.pairs(member)).unwrap();
    let cut = Instant::now();

    let leader = members.leader_of(&others(member)).await.unwrap();
    let took = cut.elapsed();
    assert!(took < MAJORITY_MAX, "{way:?}: the majority went on after {took:?}");
    let majority = (leader, term(members, leader).await);

    let why = tokio::time::timeout(SENT_AWAY_MAX, session.sent_away()).await;
    let why = why.unwrap_or_else(|_| panic!("{way:?}: member {member} keeps its session")).unwrap();
    assert!(why.contains("has no leader"), "{why}");
    assert!(cut.elapsed() > Duration::from_millis(1900), "{way:?}: sent away after {:?}", cut.elapsed());
    eprintln!("{way:?}, member {member}: the majority went on after {took:?}, the session ended after {:?}", cut.elapsed());

    // The member refuses at once every request that needs a majority, and still shows its own state.
    for (what, request) in [("a submission", submission(AllocationId(Uuid::new_v4()))), ("a question", Request::ListNodes)] {
        let asked = Instant::now();
        let refused = at_it.call_once(&request, Duration::from_secs(2)).await;
        let reason = match refused {
            Err(CallError::Unavailable { why }) => why,
            Err(CallError::Refused(refusal)) => refusal.to_string(),
            Ok(answer) => panic!("{way:?}: member {member} alone answered {what} with {answer:?}"),
        };
        let known = ["no member leads", "no majority of the members answers", "has no leader"].iter().any(|text| reason.contains(text));
        assert!(known, "{way:?}: member {member} says {reason:?} to {what} after {:?}", asked.elapsed());
    }
    let stale = at_it.call_once(&Request::Stale(Box::new(Request::ListNodes)), Duration::from_secs(2)).await;
    assert!(matches!(stale, Ok(Answer::Stale { .. })), "{stale:?}");
    load.goes_on(20).await;

    hosts.join().unwrap();
    let joined = Instant::now();
    members.caught_up().await.unwrap();
    eprintln!("{way:?}, member {member}: all agree {:?} after the network was whole again", joined.elapsed());
    majority
}
