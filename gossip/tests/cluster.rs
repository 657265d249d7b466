//! Clusters of cores in virtual time.

mod sim;

use lattice_gossip::{Config, Core, Event, Fact, Liveness, News};
use proptest::prelude::*;
use sim::{Sim, fact, keys};

#[test]
fn a_hundred_find_each_other_lose_one_and_get_it_back() {
    let mut sim = Sim::up(1, 100, Config::default());
    sim.run_until("everybody sees everybody", 10_000, |sim| sim.all_agree() && sim.all_facts_known());
    assert_eq!(sim.downs(), 0);

    sim.kill(42);
    let id = sim.nodes[42].id.clone();
    let took = sim.run_until("the dead one is Down everywhere", 20_000, |sim| {
        sim.living().all(|(_, core)| core.member(&id).unwrap().liveness == Liveness::Down)
    });
    assert!(took > 2_000, "it was given time to refute: {took}");
    assert!(sim.living().all(|(_, core)| !core.is_alive(&id) && core.members().count() == 100));
    assert_eq!(sim.downs(), 99, "nobody else was declared Down");

    sim.start(42);
    sim.run_until("its next life is Alive everywhere", 5_000, |sim| sim.all_agree() && sim.all_facts_known());
    assert!(sim.living().filter(|(n, _)| *n != 42).all(|(n, _)| {
        let news = &sim.nodes[n].news;
        news.iter().any(|(_, news)| *news == News::Restarted(id.clone()))
    }));
}

#[test]
fn three_on_one_machine_notice_within_three_seconds() {
    for seed in 0..10 {
        let mut sim = Sim::up(seed, 3, Config::lab());
        sim.run_until("three see three", 3_000, Sim::all_agree);
        sim.run(1_000 + seed * 37);
        sim.kill(1);
        let id = sim.nodes[1].id.clone();
        sim.run_until("two see that one is gone", 3_000, |sim| sim.living().all(|(_, core)| !core.is_alive(&id)));
        sim.start(1);
        sim.run_until("three see three again", 2_000, Sim::all_agree);
    }
}

#[test]
fn a_restart_that_nobody_noticed_is_news_and_never_a_death() {
    let mut sim = Sim::up(3, 10, Config::default());
    sim.run_until("ten see ten", 5_000, Sim::all_agree);
    sim.kill(5);
    sim.start(5);
    sim.run_until("ten see the new life", 5_000, Sim::all_agree);
    sim.run(30_000);
    assert!(sim.all_agree());
    assert_eq!(sim.downs(), 0);
}

#[test]
fn a_node_suspended_for_seconds_refutes_and_declares_nobody_down() {
    for (seed, nodes) in [(20, 3), (21, 3), (22, 5), (23, 40)] {
        let mut sim = Sim::up(seed, nodes, Config::default());
        sim.run_until("all see all", 10_000, Sim::all_agree);
        for round in 0..20 {
            sim.stop(1);
            sim.run(1_000 + round * 150);
            sim.cont(1);
            sim.run(4_000);
        }
        assert_eq!(sim.downs(), 0, "of {nodes}, seed {seed}");
        let counters = sim.core(1).counters();
        assert!(counters.timers_late > 0 && counters.refutations > 0, "else this proves nothing: {counters:?}");
        sim.run_until("it trusts itself again", 60_000, |sim| sim.core(1).health() == 0);
        assert!(sim.all_agree());
    }
}

#[test]
fn a_suspect_of_several_nodes_is_declared_down_sooner() {
    let mut sim = Sim::up(24, 30, Config::default());
    sim.run_until("all see all", 10_000, Sim::all_agree);
    sim.kill(9);
    let id = sim.nodes[9].id.clone();
    sim.run_until("it is seen as suspect by several", 10_000, |sim| {
        sim.living().any(|(_, core)| core.member(&id).is_some_and(|m| m.liveness == Liveness::Suspect && m.accusers >= 2))
    });
    let took = sim.run_until("it is Down everywhere", 20_000, |sim| sim.living().all(|(_, core)| !core.is_alive(&id)));
    // Without confirmation it would have taken 4 s × 2 × log10(30).
    assert!(took < 8_000, "{took}");
    assert!(sim.nodes.iter().flat_map(|node| &node.news).any(|(_, news)| *news == News::Confirmed(id.clone())));
}

#[test]
fn without_its_seeds_a_cluster_continues_and_a_restarted_node_joins_by_any_other() {
    let mut sim = Sim::up(25, 20, Config::default());
    sim.run_until("twenty see twenty", 10_000, Sim::all_agree);
    for n in [0, 1, 2, 10] {
        sim.kill(n);
    }
    let gone: Vec<_> = [0, 1, 2, 10].iter().map(|n| sim.nodes[*n].id.clone()).collect();
    sim.run_until("four are Down everywhere", 30_000, |sim| sim.living().all(|(_, core)| gone.iter().all(|id| !core.is_alive(id))));
    sim.start_by(10, &[0, 1, 2, 15]);
    sim.run_until("seventeen see seventeen", 10_000, |sim| sim.all_agree() && sim.all_facts_known());
    sim.run(60_000);
    assert!(sim.all_agree(), "and it stays so");
    assert_eq!(sim.core(10).counters().rejoins, 0, "a higher incarnation is enough");
    sim.start_by(1, &[10]);
    sim.run_until("the seed is back by one that was never a seed", 10_000, |sim| sim.all_agree() && sim.all_facts_known());
}

#[test]
fn a_living_node_that_was_declared_down_comes_back() {
    let mut sim = Sim::up(26, 8, Config::default());
    sim.run_until("eight see eight", 10_000, Sim::all_agree);
    sim.stop(4);
    let id = sim.nodes[4].id.clone();
    sim.run_until("it is Down everywhere", 30_000, |sim| sim.living().all(|(n, core)| n == 4 || !core.is_alive(&id)));
    sim.cont(4);
    sim.run_until("it is back, and nobody else was lost", 20_000, Sim::all_agree);
    assert!(sim.core(4).counters().rejoins > 0);
    assert_eq!(sim.downs(), 7);
}

#[test]
fn a_node_that_leaves_is_down_at_once() {
    let mut sim = Sim::up(4, 10, Config::default());
    sim.run_until("ten see ten", 5_000, Sim::all_agree);
    sim.handle(7, Event::Leave);
    let id = sim.nodes[7].id.clone();
    sim.run_until("nine know", 2_000, |sim| sim.living().all(|(_, core)| !core.is_alive(&id)));
    sim.run(20_000);
    assert!(!sim.core(7).is_alive(&id) && sim.living().all(|(_, core)| !core.is_alive(&id)), "it stays away");
}

#[test]
fn a_node_that_left_returns_with_the_fact_and_the_keys_that_it_got_meanwhile() {
    let mut sim = Sim::up(4, 10, Config::default());
    sim.run_until("ten see ten", 5_000, |sim| sim.all_agree() && sim.all_facts_known());
    sim.handle(7, Event::Return);
    assert!(sim.all_agree(), "it has not left");
    sim.handle(7, Event::Leave);
    let id = sim.nodes[7].id.clone();
    sim.run_until("nine know", 2_000, |sim| sim.living().all(|(_, core)| !core.is_alive(&id)));
    let sent = sim.core(7).counters().datagrams_out;
    let held = Fact { held: true, ..sim.core(7).member(&id).unwrap().fact.unwrap() };
    sim.handle(7, Event::SetFact(held));
    sim.run(60_000);
    assert_eq!(sim.core(7).counters().datagrams_out, sent, "it sends nothing");
    assert!(sim.living().all(|(_, core)| !core.is_alive(&id)));
    sim.handle(7, Event::Return);
    let knows = |core: &Core| core.member(&id).and_then(|member| member.fact) == Some(held);
    sim.run_until("ten see ten again", 10_000, |sim| sim.all_agree() && sim.living().all(|(_, core)| knows(core)));
    sim.run(60_000);
    assert!(sim.all_agree(), "and it stays so");
    sim.handle(7, Event::Leave);
    sim.run_until("nine know again", 2_000, |sim| sim.living().all(|(_, core)| !core.is_alive(&id)));
}

#[test]
fn a_tenth_of_the_datagrams_lost_kills_nobody() {
    let mut sim = Sim::up(5, 20, Config::default());
    sim.loss_per_mille = 100;
    sim.run_until("twenty see twenty", 20_000, Sim::all_agree);
    sim.run(180_000);
    assert_eq!(sim.downs(), 0);
    let suspected = sim.nodes.iter().flat_map(|node| &node.news).any(|(_, news)| matches!(news, News::Suspect(_)));
    assert!(suspected, "else this proves nothing");
}

/// Two hundred nodes no longer compare their views in one datagram.
#[test]
fn at_rest_a_node_sends_only_probes_and_comparisons() {
    let mut sim = Sim::up(31, 200, Config::default());
    sim.run_until("all see all", 30_000, |sim| sim.all_agree() && sim.all_facts_known());
    sim.run(30_000);
    let sent = |sim: &Sim| sim.living().map(|(_, core)| core.counters().datagrams_out).sum::<u64>();
    let before = sent(&sim);
    sim.run(30_000);
    let per_second = (sent(&sim) - before) as f64 / 200.0 / 30.0;
    // A ping and an ack every 0.6 s, a pull and its answer every 5 s: 3.7.
    assert!((3.5..3.85).contains(&per_second), "{per_second}");
}

#[test]
fn a_partition_heals() {
    for seed in [6, 110, 111, 112, 113] {
        let mut sim = Sim::up(seed, 20, Config::default());
        sim.loss_per_mille = 20;
        sim.run_until("twenty see twenty", 20_000, Sim::all_agree);
        for n in 0..20 {
            sim.side.insert(sim.nodes[n].addr, u8::from(n >= 12));
        }
        sim.run_until("each side sees the other Down", 60_000, |sim| {
            sim.living().all(|(n, core)| (0..20).all(|o| core.is_alive(&sim.nodes[o].id) == ((n >= 12) == (o >= 12))))
        });
        sim.side.clear();
        sim.run_until("all are one again", 60_000, |sim| sim.all_agree() && sim.all_facts_known());
        assert!(sim.living().any(|(_, core)| core.counters().rejoins > 0));
        // No node mistakes the death of its earlier identity for its own.
        assert!(sim.living().all(|(n, core)| core.is_alive(&sim.nodes[n].id)));
        sim.loss_per_mille = 0;
        sim.run(30_000);
        assert!(sim.all_agree(), "and it stays so");
    }
}

/// After a cut of 2 to 40 s: the others may have declared the lone node Down, it may have declared
/// them Down, or neither.
#[test]
fn a_node_cut_off_for_some_seconds_and_the_others_soon_see_each_other_alive() {
    for (seed, nodes, cut_s) in
        [(40, 3), (41, 5), (42, 20), (43, 100)].iter().flat_map(|(s, n)| [2, 5, 8, 13, 20, 40].map(|c| (s * c, *n, c)))
    {
        let mut sim = Sim::up(seed, nodes, Config::default());
        sim.loss_per_mille = if nodes == 20 { 20 } else { 0 };
        sim.run_until("all see all", 30_000, |sim| sim.all_agree() && sim.all_facts_known());
        sim.run(seed * 17 % 1_000);
        let cut = sim.nodes[1].addr;
        sim.side.insert(cut, 1);
        sim.run(cut_s * 1_000);
        let suspects = sim.core(1).members().filter(|m| m.liveness == Liveness::Suspect).count();
        assert!(!(5..=20).contains(&cut_s) || suspects > 0, "else this proves nothing: {nodes} nodes, {cut_s} s");
        sim.side.clear();
        // The lone node pings its suspects at every tick; if both sides see each other Down, the
        // others try again in turn.
        let limit_ms = if cut_s <= 20 { 10_000 } else { 30_000 };
        sim.run_until(&format!("all of {nodes} see all after {cut_s} s"), limit_ms, |sim| sim.all_agree() && sim.all_facts_known());
        sim.loss_per_mille = 0;
        sim.run(60_000);
        assert!(sim.all_agree(), "and it stays so");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// After any cuts, all nodes see each other alive again.
    #[test]
    fn after_any_cuts_all_see_each_other_alive(
        seed: u64, nodes in 2usize..12, loss in 0u64..50, cuts in proptest::collection::vec((any::<u16>(), 500u64..30_000, 0u64..10_000), 1..6),
    ) {
        let mut sim = Sim::up(seed, nodes, Config::default());
        sim.run_until("all see all", 30_000, Sim::all_agree);
        sim.loss_per_mille = loss;
        for (apart, cut_ms, healed_ms) in cuts {
            for n in 0..nodes {
                sim.side.insert(sim.nodes[n].addr, u8::from(apart >> n & 1 == 1));
            }
            sim.run(cut_ms);
            sim.side.clear();
            sim.run(healed_ms);
        }
        // A node that was declared Down several times in a minute pauses for at most half a minute
        // before it comes back.
        sim.run_until("all see all again", 60_000, |sim| sim.all_agree() && sim.all_facts_known());
        sim.loss_per_mille = 0;
        sim.run(60_000);
        prop_assert!(sim.all_agree(), "and it stays so");
        // For each cut: one rejoin at once, and a few with growing pauses.
        prop_assert!(sim.living().all(|(_, core)| core.counters().rejoins <= 6 * 6), "rejoins are bounded");
    }
}

/// A node that was declared Down comes back through a node that it suspects, and both other nodes
/// die then.
#[test]
fn a_suspect_that_died_meanwhile_is_down_and_not_suspect_for_ever() {
    let mut sim = Sim::up(45, 3, Config::default());
    sim.run_until("three see three", 10_000, Sim::all_agree);
    let cut = sim.nodes[1].addr;
    sim.side.insert(cut, 1);
    sim.run(10_000);
    let suspected = |sim: &Sim| sim.core(1).members().filter(|m| m.liveness == Liveness::Suspect).count();
    assert_eq!(suspected(&sim), 2, "else this proves nothing");
    sim.side.clear();
    sim.run_until("it learns that it was declared Down", 5_000, |sim| sim.core(1).counters().rejoins > 0);
    sim.kill(0);
    sim.kill(2);
    sim.run_until("it knows that it is alone", 120_000, |sim| sim.core(1).members().filter(|m| m.liveness == Liveness::Down).count() == 2);
    assert!(!sim.core(1).is_joined());
    sim.start(0);
    sim.run_until("two see two", 10_000, Sim::all_agree);
}

#[test]
fn everybody_cut_off_from_everybody_heals() {
    let mut sim = Sim::up(7, 3, Config::lab());
    sim.run_until("three see three", 5_000, Sim::all_agree);
    for n in 0..3 {
        sim.side.insert(sim.nodes[n].addr, n as u8);
    }
    sim.run_until("all are alone", 10_000, |sim| sim.living().all(|(_, core)| !core.is_joined()));
    sim.run(30_000);
    sim.side.clear();
    sim.run_until("three see three again", 10_000, Sim::all_agree);
}

#[test]
fn two_halves_that_started_apart_find_each_other() {
    let mut sim = Sim::new(8, 6, Config::lab());
    for n in 0..6 {
        sim.side.insert(sim.nodes[n].addr, (n % 2) as u8);
    }
    (0..6).for_each(|n| sim.start(n));
    sim.run(10_000);
    assert!(!sim.all_agree());
    sim.side.clear();
    sim.run_until("six see six", 10_000, Sim::all_agree);
}

#[test]
fn a_new_fact_spreads_and_a_node_that_missed_it_catches_up() {
    let mut sim = Sim::up(9, 30, Config::default());
    sim.run_until("thirty see thirty", 10_000, |sim| sim.all_agree() && sim.all_facts_known());
    sim.handle(3, Event::SetFact(fact(999)));
    let sent = sim.sent;
    sim.handle(3, Event::SetFact(fact(999)));
    assert_eq!(sim.sent, sent, "setting the same fact sends nothing");
    let id = sim.nodes[3].id.clone();
    let knows = |sim: &Sim| sim.living().all(|(_, core)| core.member(&id).and_then(|m| m.fact) == Some(fact(999)));
    sim.run_until("thirty know the new fact", 3_000, knows);

    // One node is cut off for less time than it takes to be suspected, while a fact is gossiped to
    // all.
    sim.side.insert(sim.nodes[20].addr, 1);
    sim.handle(3, Event::SetFact(fact(1_000)));
    sim.run(2_500);
    sim.side.clear();
    let knows = |sim: &Sim| sim.living().all(|(_, core)| core.member(&id).and_then(|m| m.fact) == Some(fact(1_000)));
    assert!(!knows(&sim));
    sim.run_until("the one that missed it knows it too", 30_000, knows);
    assert_eq!(sim.downs(), 0);
}

#[test]
fn the_long_dead_are_forgotten_and_stay_so() {
    let mut sim = Sim::up(10, 5, Config { forget_down_after_ms: 60_000, ..Config::lab() });
    sim.run_until("five see five", 5_000, Sim::all_agree);
    sim.kill(4);
    sim.run(50_000);
    assert!(sim.living().all(|(_, core)| core.members().count() == 5));
    sim.run(30_000);
    assert!(sim.living().all(|(_, core)| core.members().count() == 4));
    sim.run(60_000);
    assert!(sim.living().all(|(_, core)| core.members().count() == 4));
    sim.start(4);
    sim.run_until("five see five", 5_000, Sim::all_agree);
}

#[test]
fn two_machines_with_one_name_do_not_storm() {
    let mut sim = Sim::new(11, 4, Config::default());
    sim.nodes[3].id = sim.nodes[2].id.clone();
    (0..4).for_each(|n| sim.start(n));
    sim.run(120_000);
    assert!(sim.sent < 120 * 4 * 60, "{} datagrams", sim.sent);
    assert!(sim.core(0).is_alive(&sim.nodes[1].id) && sim.core(1).is_alive(&sim.nodes[0].id));
}

/// Gives these keys to one node after the other, `apart_ms` milliseconds apart.
fn one_by_one(sim: &mut Sim, apart_ms: u64, ids: &[u8], seals: u32) {
    for n in 0..sim.nodes.len() {
        sim.rekey(n, &keys(ids, seals));
        sim.run(apart_ms);
    }
}

fn refused_keys(sim: &Sim) -> u64 {
    sim.living().map(|(_, core)| core.counters().refused.unknown_key + core.counters().refused.not_sealed).sum()
}

#[test]
fn a_change_of_keys_costs_no_datagram_and_makes_nobody_suspect() {
    for seed in [14, 114, 214] {
        let mut sim = Sim::up(seed, 20, Config::default());
        sim.loss_per_mille = 20;
        sim.run_until("twenty see twenty", 20_000, Sim::all_agree);
        sim.nodes.iter_mut().for_each(|node| node.news.clear());
        for (old, new) in [(0, 1), (1, 2), (2, 3)] {
            one_by_one(&mut sim, 700, &[old, new], u32::from(old));
            one_by_one(&mut sim, 700, &[old, new], u32::from(new));
            // One node is restarted in the middle, with the keys that it had.
            sim.kill(7);
            sim.start(7);
            sim.run(1_000);
            one_by_one(&mut sim, 700, &[new], u32::from(new));
            assert_eq!(refused_keys(&sim), 0, "seed {seed}: all nodes can open every datagram");
        }
        let gone: Vec<_> =
            sim.nodes.iter().flat_map(|node| &node.news).filter(|(_, news)| matches!(news, News::Suspect(_) | News::Down(_))).collect();
        assert_eq!(gone, Vec::<&(u64, News)>::new(), "seed {seed}");
        assert!(sim.all_agree());
    }
}

#[test]
fn a_key_that_seals_before_all_have_it_makes_nodes_down() {
    let mut sim = Sim::up(15, 5, Config::lab());
    sim.run_until("five see five", 5_000, Sim::all_agree);
    sim.rekey(0, &keys(&[0, 1], 1));
    sim.run(5_000);
    assert!(refused_keys(&sim) > 0 && sim.downs() > 0, "else the test above proves nothing");
    one_by_one(&mut sim, 0, &[0, 1], 1);
    sim.run_until("five see five again", 10_000, Sim::all_agree);
}

#[test]
fn a_seed_determines_the_run() {
    let run = |seed| {
        let mut sim = Sim::up(seed, 12, Config::default());
        sim.loss_per_mille = 50;
        sim.run(20_000);
        sim.kill(3);
        sim.run(20_000);
        (sim.sent, sim.trace, sim.nodes.into_iter().map(|node| node.news).collect::<Vec<_>>())
    };
    assert_eq!(run(12), run(12));
    assert_ne!(run(12).1, run(13).1);
}
