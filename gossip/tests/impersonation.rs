//! A holder of the key impersonates a node: that node is alive for all others within seconds.

mod sim;

use lattice_gossip::{Config, Core, Event, Identity, Output};
use sim::{Sim, keys};
use std::net::SocketAddr;

/// The node that the thief impersonates.
const VICTIM: usize = 1;

/// The thief's address, at which no node is.
fn thief_addr() -> SocketAddr {
    SocketAddr::from(([10, 9, 9, 9], 7946))
}

/// Announces the victim in this life from the thief's address, and then leaves in its name.
fn impersonate(sim: &mut Sim, life: u64) {
    let me = Identity { node: sim.nodes[VICTIM].id.clone(), addr: thief_addr(), mesh: thief_addr(), incarnation: life };
    let mut thief = Core::new(me, sim.config.clone(), &keys(&[0], 0), "lab", life);
    // The thief sets its clock as it likes.
    thief.set_clock(sim.now_ms, life);
    let others: Vec<SocketAddr> = sim.nodes.iter().enumerate().filter(|(n, _)| *n != VICTIM).map(|(_, node)| node.addr).collect();
    sim.strayed.clear();
    for addr in &others {
        play(sim, &mut thief, Event::Join(*addr));
    }
    sim.run(20);
    for (_, from, bytes) in std::mem::take(&mut sim.strayed) {
        play(sim, &mut thief, Event::Datagram { from, bytes: &bytes });
    }
    play(sim, &mut thief, Event::Leave);
}

fn play(sim: &mut Sim, thief: &mut Core, event: Event<'_>) {
    let mut out = Vec::new();
    thief.handle(sim.now_ms, event, &mut out);
    for output in out {
        if let Output::Datagram { to, bytes } = output
            && let Some(n) = sim.nodes.iter().position(|node| node.addr == to)
        {
            sim.handle(n, Event::Datagram { from: thief_addr(), bytes: &bytes });
        }
    }
}

/// Whether all nodes see the victim alive at its own address, with its own fact.
fn is_well(sim: &Sim) -> bool {
    let (id, addr) = (&sim.nodes[VICTIM].id, sim.nodes[VICTIM].addr);
    sim.living().all(|(_, core)| core.is_alive(id) && core.member(id).unwrap().addr == addr) && sim.all_facts_known()
}

/// Whether every node shows (or, if false, no node shows) that the victim is contradicted.
fn all_show(sim: &Sim, contradicted: bool) -> bool {
    let id = &sim.nodes[VICTIM].id;
    sim.living().all(|(_, core)| core.member(id).unwrap().contradicted_since_ms.is_some() == contradicted)
}

fn ten() -> Sim {
    let mut sim = Sim::up(40, 10, Config::default());
    sim.run_until("ten see ten", 10_000, |sim| sim.all_agree() && sim.all_facts_known());
    sim
}

#[test]
fn the_highest_life_is_refused_and_mutes_nobody() {
    let mut sim = ten();
    impersonate(&mut sim, u64::MAX);
    for _ in 0..300 {
        sim.run(100);
        assert!(sim.all_agree() && is_well(&sim), "not for a moment");
    }
    assert!(sim.living().filter(|(n, _)| *n != VICTIM).all(|(_, core)| core.counters().refused.life_ahead > 0), "else this proves nothing");
    assert_eq!((sim.downs(), all_show(&sim, false)), (0, true));
}

#[test]
fn a_forged_later_life_is_outranked_and_shown_until_the_key_changes() {
    let mut sim = ten();
    let forged = sim.now_ms + 3_600_000;
    // The victim is suspended while the others mistake the thief for it.
    sim.stop(VICTIM);
    impersonate(&mut sim, forged);
    sim.run(1_000);
    sim.cont(VICTIM);
    assert!(!is_well(&sim), "else this proves nothing");
    sim.run_until("the victim is well", 10_000, is_well);
    sim.run_until("all show it", 5_000, |sim| all_show(sim, true));
    sim.run(60_000);
    assert!(is_well(&sim), "and it stays so");
    let rejoins = sim.core(VICTIM).counters().rejoins;
    assert!(rejoins <= 2, "one is enough, or nearly: {rejoins}");
    // The victim's next start does not know the forged life, and its own life is an earlier one.
    sim.kill(VICTIM);
    sim.start(VICTIM);
    sim.run_until("its next start is well", 10_000, is_well);

    for ring in [keys(&[0, 1], 0), keys(&[0, 1], 1), keys(&[1], 1)] {
        (0..10).for_each(|n| sim.rekey(n, &ring));
        sim.run(2_000);
    }
    sim.run_until("nobody shows it any more", 5_000, |sim| all_show(sim, false));
    impersonate(&mut sim, forged + 9_000_000);
    for _ in 0..100 {
        sim.run(100);
        assert!(is_well(&sim) && all_show(&sim, false), "the thief has no key any more");
    }
}
