//! How agents receive gossip keys, and how their reports about keys reach the leader.

use crate::lab::{Agent, Lab, PATIENCE, eventually};
use lattice_ledger::keyring::Secret;
use lattice_ledger::{Action, Keyring};
use lattice_model::Boot;
use lattice_pki::identity::Role;
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::wire::{Answer, Down, HeldKeys, KeyRole, KeyringStatus, Request, Up};
use std::sync::atomic::{AtomicU64, Ordering};
use uuid::Uuid;

fn held(opens: &[u32], seals: u32) -> HeldKeys {
    HeldKeys { opens: opens.to_vec(), seals }
}

async fn keyring_status(client: &QuorumClient) -> KeyringStatus {
    match client.call(&Request::ListKeys, PATIENCE).await.unwrap() {
        Answer::Keyring(status) => status,
        other => panic!("{other:?}"),
    }
}

/// Registers an agent with the configured key; returns the keyring that it received at its
/// registration.
async fn register(client: &QuorumClient, name: &str) -> (Agent, Option<Keyring>) {
    let (up, mut down) = client.session(Agent::registration(name, Boot(Uuid::nil()), 0)).await.unwrap();
    let Ok(Down::Registered { incarnation, .. }) = down.next().await else { panic!("it is registered") };
    let ring = match down.next().await.unwrap() {
        Down::Keyring { ring, .. } => {
            assert!(matches!(down.next().await, Ok(Down::Desired(_))), "the keys come before all else");
            Some(ring)
        }
        Down::Desired(_) => None,
        other => panic!("{other:?}"),
    };
    (Agent::opened(name.parse().unwrap(), up, down, incarnation), ring)
}

async fn ring(agent: &mut Agent) -> Keyring {
    loop {
        match agent.next().await {
            Down::Keyring { ring, .. } => return ring,
            Down::HeartbeatAck { .. } | Down::Members(_) | Down::Desired(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

async fn report_keys(agent: &Agent, keys: HeldKeys) {
    // Shared by all agents, so that each one's numbers increase.
    static LAST_SEQ: AtomicU64 = AtomicU64::new(0);
    let seq = LAST_SEQ.fetch_add(1, Ordering::Relaxed) + 1;
    let (incarnation, keys) = (agent.incarnation, Some(keys));
    agent.up.send(Up::Heartbeat { incarnation, seq, keys, health: None, conformance: None, stale: false, running: None }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotation_waits_for_an_agent_that_has_not_reported_the_key() {
    let mut lab = Lab::new(3, |c| {
        c.node_heartbeat_ms = 100;
        // The leader's periodic duties run four times in this time.
        c.node_degraded_after_ms = 800;
    });
    let members = [lab.start(1, true).await, lab.start(2, false).await, lab.start(3, false).await];
    let any = lab.api(&[1, 2, 3]);
    // On a follower: its agents' reports reach the leader in a summary.
    eventually("a leader", async || members[0].leader(), Option::is_some).await;
    let follower = (1..=3).find(|id| members[0].leader().is_some_and(|l| l != *id)).unwrap();
    let (first, second) = (lab.client(&[follower], "n1", Role::Api), lab.client(&[follower], "n2", Role::Api));
    // Registered before the rotation starts: without a node to wait for, the rotation would take its
    // next step at once.
    let mut old = Agent::register(&first, "n1").await;
    let added = eventually(
        "the level that has key rotations",
        async || {
            let rotate = Request::from(Action::AddKey { secret: Secret([7; 32]), by: "root".into() });
            any.call(&lab.as_operator("root", rotate), PATIENCE).await
        },
        Result::is_ok,
    )
    .await;
    assert_eq!(added, Ok(Answer::KeyAdded { id: 1 }));
    let (mut new, sent) = register(&second, "n2").await;
    assert_eq!(sent.map(|ring| (ring.newest(), ring.seals)), Some((1, 0)));
    report_keys(&new, held(&[0, 1], 0)).await;
    assert_eq!(ring(&mut old).await.newest(), 1);
    report_keys(&old, held(&[0], 0)).await;
    let waits = |s: &KeyringStatus| s.awaited == ["n1".parse().unwrap()] && s.keys[1].decrypting_nodes == 1;
    eventually("that agent alone is waited for", async || keyring_status(&any).await, waits).await;

    // It registers again, with another incarnation.
    let (mut again, sent) = register(&first, "n1").await;
    assert_eq!(sent.map(|ring| ring.seals), Some(0));
    drop(old);
    report_keys(&again, held(&[0, 1], 0)).await;
    for agent in [&mut new, &mut again] {
        assert_eq!(ring(agent).await.seals, 1, "all have it");
        report_keys(agent, held(&[0, 1], 1)).await;
    }
    for agent in [&mut new, &mut again] {
        let ring = ring(agent).await;
        assert_eq!((ring.keys.len(), ring.newest(), ring.seals), (1, 1, 1), "all seal with it");
        report_keys(agent, held(&[1], 1)).await;
    }
    let over = |s: &KeyringStatus| s.keys.len() == 1 && s.keys[0].role == KeyRole::Encrypt && s.keys[0].encrypting_nodes == 2;
    eventually("it is over", async || keyring_status(&any).await, over).await;
    for member in members {
        member.stop().await;
    }
}
