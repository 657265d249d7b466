//! Which owners' shares may be on a node together.

use crate::backfill_tests::{HALF, began, lasting, placed, reason, starts, summary};
use crate::span::Span;
use crate::tests::{NOW, id, owned_by, pending, shared, view, with_plan};
use crate::{State, View, WhyNot, explain, place_newcomer, plan};
use lattice_model::test_builders::spec_of;
use lattice_model::{Allocation, AllocationId, Epoch, Leaving, NodeId, Resources, SharePolicy, WorkOwner};
use proptest::prelude::*;
use std::collections::BTreeMap;

const PHYSICS: u8 = 0;
const OTHER_USER_OF_PHYSICS: u8 = 1;
const CHEMISTRY: u8 = 2;

fn under(share_policy: SharePolicy, view: View) -> View {
    View { share_policy, ..view }
}

/// A core of one node, for this many minutes.
fn core(n: u64, owner: u8, minutes: u64) -> Allocation {
    lasting(owned_by(owner, shared(n, 1, n, 1)), minutes)
}

fn why(view: &View, n: u64) -> Vec<String> {
    explain(view, &view.allocations[&id(n)], NOW).nodes.iter().map(|(node, why)| format!("{node} {why}")).collect()
}

#[test]
fn a_share_waits_for_the_end_of_work_that_the_policy_keeps_it_from_and_says_so() {
    // n1 has a free core. The first waiting work is of the same user as the work there, under another tenant.
    let there = began(core(9, PHYSICS, 30), "n1", 10);
    let v = view(1, vec![there, core(11, CHEMISTRY, 60), core(12, OTHER_USER_OF_PHYSICS, 20)]);
    let v = under(SharePolicy::Anyone, v);
    assert_eq!((placed(&v), starts(&v)), (vec![(id(11), vec!["n1".into()])], vec![(id(12), Some(20))]));
    assert_eq!(why(&v, 11), Vec::<String>::new());

    let v = under(SharePolicy::Tenant, v);
    assert_eq!((placed(&v), starts(&v)), (vec![(id(12), vec!["n1".into()])], vec![(id(11), Some(20))]));
    assert_eq!(reason(&v, 11), "starts ~01:20Z: work of another tenant");
    let want = "wants 1 core of one node, 0 are free: it is next; expected to start at 1970-01-01T01:20:00.000Z on n1; 1 node has enough \
                free and holds work of another tenant: by the share policy a node holds shares of one tenant at a time";
    assert_eq!(summary(&v, 11), want);
    let holds = |work: &str| format!("n1 holds {work} (allocation {}), and the share policy keeps the two apart", id(9).short());
    assert_eq!(why(&v, 11), [holds("work of another tenant")]);

    let v = under(SharePolicy::User, v);
    assert_eq!((placed(&v), starts(&v)), (vec![(id(11), vec!["n1".into()])], vec![(id(12), Some(60))]));
    assert_eq!(reason(&v, 12), "starts ~02:00Z: work of another user");
    assert_eq!(why(&v, 12), [holds("work of another user")]);
}

#[test]
fn without_a_walltime_on_the_node_the_reason_is_the_policy_too() {
    let v = under(SharePolicy::Tenant, view(1, vec![began(core(9, PHYSICS, 0), "n1", 10), core(11, CHEMISTRY, 60)]));
    assert_eq!(starts(&v), [(id(11), None)]);
    assert_eq!(reason(&v, 11), "waits for work of another tenant");
}

#[test]
fn a_full_node_is_full_whoever_has_it() {
    let v = view(1, vec![began(core(8, PHYSICS, 30), "n1", 0), began(core(9, PHYSICS, 30), "n1", 0), core(11, CHEMISTRY, 60)]);
    let v = under(SharePolicy::Tenant, v);
    assert_eq!(reason(&v, 11), "starts ~01:30Z: next, 0 of 1 free");
    assert!(why(&v, 11)[0].starts_with("n1 has too little free: 1 core is wanted"), "{:?}", why(&v, 11));
}

#[test]
fn waiting_work_of_one_owner_does_not_stop_work_of_another() {
    let whole = began(lasting(owned_by(CHEMISTRY, pending(8, 1, 1)), 20), "n2", 10);
    let v = view(2, vec![began(core(9, PHYSICS, 30), "n1", 10), whole, core(11, CHEMISTRY, 60), core(12, PHYSICS, 60)]);
    let v = under(SharePolicy::Tenant, v);
    assert_eq!((placed(&v), starts(&v)), (vec![(id(12), vec!["n1".into()])], vec![(id(11), Some(10))]));
}

#[test]
fn exclusive_work_shares_nodes_with_its_users_alone() {
    let exclusive = |mut allocation: Allocation| {
        spec_of(&mut allocation).exclusive_user = true;
        allocation
    };
    // n1 has a free core. Work of the same user, under another tenant, gets it before work of another user.
    let v = view(1, vec![exclusive(began(core(9, PHYSICS, 30), "n1", 10)), core(11, OTHER_USER_OF_PHYSICS, 60), core(12, CHEMISTRY, 15)]);
    assert_eq!((placed(&v), starts(&v)), (vec![(id(12), vec!["n1".into()])], vec![(id(11), Some(20))]));
    let holds = |work: &str| format!("n1 holds {work} (allocation {}), and --exclusive=user keeps the two apart", id(9).short());
    assert_eq!(why(&v, 11), [holds("work that shares a node only with its user's")]);
    let clause = "; 1 node has enough free and holds work that shares a node only with its user's: --exclusive=user keeps the two apart";
    assert!(summary(&v, 11).ends_with(clause), "{}", summary(&v, 11));
    let v = view(1, vec![began(core(9, PHYSICS, 30), "n1", 10), exclusive(core(11, OTHER_USER_OF_PHYSICS, 60))]);
    assert_eq!((placed(&v), why(&v, 11)), (vec![], vec![holds("work of another user")]));
    // A state that followed from a view without such work decides like a new one.
    let mut state = State::from(view(1, vec![began(core(9, PHYSICS, 30), "n1", 10)]));
    state.apply(v);
    assert_eq!(plan(&state, NOW).claims(|_| Some(1)), []);
    // So does a state that places such work, which is not submitted yet.
    let v = view(1, vec![began(core(9, PHYSICS, 30), "n1", 10)]);
    let mut state = State::from(v.clone());
    let mut placed = |work: Allocation| place_newcomer(&mut state, v.clone(), work, 1).map(|claim| claim.allocation);
    assert_eq!(placed(exclusive(core(11, OTHER_USER_OF_PHYSICS, 60))), None);
    assert_eq!(placed(core(12, OTHER_USER_OF_PHYSICS, 60)), Some(id(12)));
}

#[test]
fn work_goes_where_its_owner_has_a_share_already() {
    let mut v = view(2, vec![began(core(9, PHYSICS, 30), "n1", 0), core(11, PHYSICS, 60), core(12, CHEMISTRY, 60)]);
    // n1 has a larger remainder than n2.
    v.nodes.values_mut().next().unwrap().size = Resources { cores: 8, memory_bytes: 8 << 30, gpus: 0 };
    let [n1, n2] = ["n1", "n2"].map(|node| vec![node.to_owned()]);
    assert_eq!(placed(&v), [(id(11), n2.clone()), (id(12), n2.clone())]);
    let v = under(SharePolicy::Tenant, v);
    assert_eq!(placed(&v), [(id(11), n1), (id(12), n2)]);
}

#[test]
fn a_leaving_share_without_a_record_belongs_to_its_owner_or_to_somebody_unknown() {
    let mut v = view(1, vec![core(11, PHYSICS, 60)]);
    let n1: NodeId = "n1".parse().unwrap();
    let leaving = Leaving { allocation: id(99), epoch: Epoch(4), resources: HALF, fenced: false, owner: None };
    v.nodes.get_mut(&n1).unwrap().leaving = vec![leaving];
    assert_eq!(placed(&v).len(), 1);
    let mut v = under(SharePolicy::User, v);
    assert_eq!(placed(&v), []);
    let why = explain(&v, &v.allocations[&id(11)], NOW).nodes;
    assert_eq!(why, [(n1.clone(), WhyNot::Apart { by: id(99), work: "work whose owner is not known" })]);
    // The user of the waiting work, and another user.
    for (uid, is_placed) in [(1, true), (2, false)] {
        v.nodes.get_mut(&n1).unwrap().leaving[0].owner = Some(WorkOwner { uid, tenant: "chemistry".into(), is_exclusive: false });
        assert_eq!(placed(&v).len(), usize::from(is_placed), "user {uid}");
        let why = explain(&v, &v.allocations[&id(11)], NOW).nodes;
        let kept_apart = WhyNot::Apart { by: id(99), work: "work of another user" };
        assert_eq!(why, if is_placed { vec![] } else { vec![(n1.clone(), kept_apart)] });
    }
    v.share_policy = SharePolicy::Tenant;
    assert_eq!(placed(&v), [], "work of another tenant");
    v.nodes.get_mut(&n1).unwrap().leaving.clear();
    assert_eq!(placed(&v).len(), 1);
}

/// Work of random owners that holds cores of nodes, and work that waits. Nodes may hold work of several
/// owners, from before the policy was set.
fn a_view() -> impl Strategy<Value = View> {
    let held = (0..5_u8, 1..4_u64, 0..40_u64);
    let waiting = (0..5_u8, 1..3_u32, 0..3_u32, 0..60_u64);
    (prop::collection::vec(held, 0..4), prop::collection::vec(waiting, 1..12)).prop_map(|(held, waiting)| {
        let held = held.into_iter().zip(1..).map(|((owner, node, minutes), n)| began(core(n, owner, minutes), &format!("n{node}"), 0));
        let waiting = waiting.into_iter().zip(100..).map(|((owner, nodes, cores, minutes), n)| {
            let wants = if cores > 0 { shared(n, nodes, n, cores) } else { pending(n, nodes, n) };
            lasting(owned_by(owner, wants), minutes)
        });
        let mut v = view(3, held.chain(waiting).collect());
        v.nodes.values_mut().for_each(|node| node.size = Resources { cores: 4, memory_bytes: 2 << 30, gpus: 0 });
        v
    })
}

fn is_apart(view: &View, one: AllocationId, other: AllocationId) -> bool {
    let policy = view.share_policy;
    policy.keeps_apart(&view.allocations[&one], view.allocations.get(&other).map(|other| policy.owner_of(other))).is_some()
}

/// Checks each claim against the work on its nodes, as the quorum does.
fn assert_claims_are_accepted(view: &View) -> Result<(), TestCaseError> {
    let mut holders: BTreeMap<NodeId, Vec<AllocationId>> = BTreeMap::new();
    for allocation in view.allocations.values() {
        allocation.nodes().for_each(|node| holders.entry(node.clone()).or_default().push(allocation.id));
    }
    for claim in with_plan(view, NOW, |plan| plan.claims(|_| Some(1))) {
        for share in claim.shares {
            let there = holders.entry(share.node).or_default();
            prop_assert!(!there.iter().any(|holder| is_apart(view, claim.allocation, *holder)));
            there.push(claim.allocation);
        }
    }
    Ok(())
}

/// No two owners whom the policy keeps apart have a node at the same time, if the work of at least one
/// begins now or has begun. A reservation whose start is not known blocks no work that has an end.
fn assert_never_together(view: &View) -> Result<(), TestCaseError> {
    let state = State::from(view.clone());
    for spans in &plan(&state, NOW).state.spans {
        for (at, one) in spans.iter().enumerate() {
            for other in &spans[at + 1..] {
                let meet = one.start_ms < other.end_ms && other.start_ms < one.end_ms;
                let begins = |span: &Span| span.start_ms <= NOW.0;
                let are_planned = (one.is_planned || other.is_planned) && (begins(one) || begins(other));
                prop_assert!(!(meet && are_planned && is_apart(view, one.by, other.by)), "{one:?} {other:?}");
            }
        }
    }
    Ok(())
}

fn decisions(view: &View) -> String {
    with_plan(view, NOW, |plan| format!("{:?} {:?}", plan.claims(|_| Some(1)), plan.expected_starts().collect::<Vec<_>>()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_plan_puts_work_together_that_the_policy_keeps_apart(v in a_view(), is_by_user: bool) {
        let v = under(if is_by_user { SharePolicy::User } else { SharePolicy::Tenant }, v);
        assert_claims_are_accepted(&v)?;
        assert_never_together(&v)?;
    }

    /// If the policy keeps nobody apart, a plan does not depend on owners.
    #[test]
    fn without_a_policy_owners_do_not_matter(v in a_view()) {
        let mut of_one = v.clone();
        for allocation in of_one.allocations.values_mut() {
            allocation.owner.uid = 1;
            spec_of(allocation).tenant.clear();
        }
        prop_assert_eq!(decisions(&v), decisions(&of_one));
    }
}

#[test]
fn random_views_have_work_that_only_the_policy_keeps_waiting() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let views: Vec<View> = (0..50).map(|_| a_view().new_tree(&mut runner).unwrap().current()).collect();
    let begins_less = |view: &&View| placed(&under(SharePolicy::Tenant, (*view).clone())).len() < placed(view).len();
    let count = views.iter().filter(begins_less).count();
    assert!(count > 5, "the policy matters in {count} of 50 views");
}
