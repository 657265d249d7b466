//! Shares beside a plain list of them.

use super::*;
use proptest::prelude::*;

const PHASES: [SharePhase; 3] = [SharePhase::Claimed, SharePhase::Prepared, SharePhase::Released];

fn share(number: u32, phase: SharePhase) -> Share {
    // Two kinds of nodes.
    let resources = Resources { cores: 1 + number / 64 % 2, memory_bytes: 7, gpus: 0 };
    Share { node: format!("n{number}").parse().unwrap(), resources, phase }
}

#[test]
fn the_cores_of_nodes_are_runs() {
    let shares: Shares = [0, 1, 64, 128, 129].map(|number| share(number, SharePhase::Claimed)).into_iter().collect();
    assert_eq!(shares.list().core_runs(), [(2, 1), (1, 2), (2, 1)]);
    assert_eq!(Shares::default().list().core_runs(), []);
}

fn owned(shares: &Shares) -> Vec<Share> {
    shares.iter().map(|s| Share { node: s.node.clone(), resources: s.resources, phase: s.phase }).collect()
}

/// Up to 100 distinct nodes, in any order.
fn some_shares() -> impl Strategy<Value = Vec<Share>> {
    let numbers = prop::collection::btree_set(0..200u32, 0..100).prop_map(|numbers| numbers.into_iter().collect::<Vec<_>>());
    numbers.prop_shuffle().prop_flat_map(|numbers| {
        let phases = prop::collection::vec(prop::sample::select(&PHASES[..]), numbers.len());
        phases.prop_map(move |phases| numbers.iter().zip(phases).map(|(number, phase)| share(*number, phase)).collect())
    })
}

fn equals(shares: &Shares, list: &[Share]) -> Result<(), TestCaseError> {
    prop_assert_eq!(&owned(shares), list);
    prop_assert_eq!((shares.len(), shares.is_empty(), shares.iter().len()), (list.len(), list.is_empty(), list.len()));
    prop_assert_eq!(shares.head(), list.first().map(|s| &s.node));
    prop_assert!(shares.nodes().eq(list.iter().map(|s| &s.node)));
    for phase in PHASES {
        prop_assert_eq!(shares.count(phase), list.iter().filter(|s| s.phase == phase).count());
    }
    prop_assert_eq!(shares.all_prepared(), list.iter().all(|s| s.phase == SharePhase::Prepared));
    prop_assert_eq!(shares.all_released(), list.iter().all(|s| s.phase == SharePhase::Released));
    for number in 0..200 {
        let node = share(number, SharePhase::Claimed).node;
        let rank = list.iter().position(|s| s.node == node);
        prop_assert_eq!(shares.rank_of(&node), rank.map(|rank| u32::try_from(rank).unwrap()));
        prop_assert_eq!(shares.phase_of(&node), rank.map(|rank| list[rank].phase));
    }
    Ok(())
}

proptest! {
    #[test]
    fn they_are_as_a_list_whatever_phases_are_set(
        mut list in some_shares(), sets in prop::collection::vec((0..120u32, prop::sample::select(&PHASES[..])), 0..50),
    ) {
        let mut shares: Shares = list.iter().cloned().collect();
        equals(&shares, &list)?;
        for (number, phase) in sets {
            // Usually a node that has a share.
            let node = match list.get(number as usize) {
                Some(share) => share.node.clone(),
                None => share(number, phase).node,
            };
            let there = list.iter_mut().find(|s| s.node == node);
            let differs = there.as_ref().is_some_and(|s| s.phase != phase);
            there.into_iter().for_each(|s| s.phase = phase);
            prop_assert_eq!(shares.set_phase(&node, phase), differs);
        }
        equals(&shares, &list)?;
        prop_assert_eq!(&shares, &list.iter().cloned().collect::<Shares>(), "the same, in whatever way it came about");
        shares.clear();
        equals(&shares, &[])?;
    }

    #[test]
    fn they_are_read_as_they_were_written(list in some_shares()) {
        let shares: Shares = list.iter().cloned().collect();
        let text = serde_json::to_string(&shares).unwrap();
        prop_assert_eq!(&serde_json::from_str::<Shares>(&text).unwrap(), &shares);
    }
}

#[test]
fn a_copy_shares_the_nodes() {
    let shares: Shares = (0..1000).map(|number| share(number, SharePhase::Claimed)).collect();
    let mut copy = shares.clone();
    assert!(copy.set_phase(&share(7, SharePhase::Claimed).node, SharePhase::Prepared) && copy != shares);
    assert!(std::ptr::eq(copy.head().unwrap(), shares.head().unwrap()));
}

#[test]
fn wide_shares_are_small_when_written() {
    let shares: Shares = (0..10_000).map(|number| share(number, PHASES[number as usize / 4000])).collect();
    let names: usize = shares.nodes().map(|node| node.as_str().len() + 3).sum();
    let written = serde_json::to_string(&shares).unwrap();
    assert!(written.len() < names + 160 * 50, "{} bytes", written.len());
}

#[test]
fn no_shares_of_a_node_twice_are_accepted_and_no_counts_that_differ() {
    let read = |nodes: &str, amounts: &str, phases: &str| {
        let text = format!(r#"{{"nodes":"{nodes}","amounts":{amounts},"phases":{phases}}}"#);
        serde_json::from_str::<Shares>(&text).map_err(|error| error.to_string())
    };
    let one = r#"[2,{"cores":1}]"#;
    assert_eq!(read("b,a", &format!("[{one}]"), r#"[[1,"Prepared"],[1,"Claimed"]]"#).unwrap().count(SharePhase::Prepared), 1);
    assert_eq!(read("", "[]", "[]").unwrap(), Shares::default());
    for (nodes, amounts, phases, expected) in [
        ("b,a,b", r#"[[3,{"cores":1}]]"#, r#"[[3,"Claimed"]]"#, "node b has more than one share"),
        ("a,a", r#"[[2,{"cores":1}]]"#, r#"[[2,"Claimed"]]"#, "node a has more than one share"),
        ("a,b", r#"[[1,{"cores":1}]]"#, r#"[[2,"Claimed"]]"#, "the amounts of 1 shares are given for 2 nodes"),
        ("a,b", r#"[[2,{"cores":1}]]"#, r#"[[2,"Claimed"],[1,"Prepared"]]"#, "the phases of 3 shares are given for 2 nodes"),
        ("a", r#"[[1,{"cores":1}]]"#, r#"[[4294967295,"Claimed"],[4294967295,"Claimed"]]"#, "the phases of 8589934590 shares"),
        ("", "[]", r#"[[4294967295,"Released"]]"#, "the phases of 4294967295 shares are given for 0 nodes"),
        ("../a", r#"[[1,{"cores":1}]]"#, r#"[[1,"Claimed"]]"#, "cannot name a node"),
    ] {
        let error = read(nodes, amounts, phases).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}
