//! Certificates: which are refused and counted; new ones are adopted and renewed without closing
//! connections.

use crate::lab::{Agent, Lab, PATIENCE, eventually, status, submit};
use lattice_pki::ca::{self, Issued};
use lattice_pki::credentials::Credentials;
use lattice_pki::identity::Role;
use lattice_pki::tls::TlsFiles;
use lattice_quorum::config::QuorumConfig;
use lattice_quorum::member::{Listeners, Member, MemberError};
use lattice_quorum_client::wire::{Down, Refusal, Request, Up};
use lattice_quorum_client::{CallError, QuorumClient};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

fn issue(lab: &Lab, name: &str, role: Role, out: &Path, lifetime: Duration) -> TlsFiles {
    let dir = lab.scratch.0.join("ca");
    let issued = ca::issue(&dir, name, role, &["127.0.0.1".to_owned()], out, lifetime).unwrap();
    TlsFiles { ca: dir.join("ca.crt"), cert: issued.cert, key: issued.key }
}

/// A process with these files and no renewed certificate yet.
fn credentials(files: &TlsFiles) -> Credentials {
    Credentials::open(files, &files.cert.with_extension("json")).unwrap()
}

fn client_with(lab: &Lab, credentials: &Credentials) -> QuorumClient {
    let endpoints = lab.configs.iter().map(|c| c.listens().0).collect();
    QuorumClient::new(endpoints, credentials.clone()).unwrap()
}

fn client(lab: &Lab, files: &TlsFiles) -> QuorumClient {
    client_with(lab, &credentials(files))
}

/// Why the request is not answered.
async fn why(client: &QuorumClient, request: &Request) -> String {
    let refused = async || match client.call(request, ANSWER_TIMEOUT).await {
        Err(error) => error.to_string(),
        Ok(answer) => panic!("{answer:?}"),
    };
    // A busy machine may not answer in time.
    eventually("a refusal", refused, |why| !why.contains("no answer in time")).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_certificates_are_refused_with_a_reason_and_counted() {
    let mut lab = Lab::new(1, |_| {});
    let member = lab.start(1, true).await;
    tokio::time::timeout(PATIENCE, member.ready()).await.unwrap();
    let good = lab.api(&[1]);
    let at = |name: &str| lab.scratch.0.join(name);

    // It expires in the second in which it was issued.
    let expired = issue(&lab, "n1", Role::Api, &at("expired"), Duration::ZERO);
    let refused = async || client(&lab, &expired).call(&Request::Status, ANSWER_TIMEOUT).await.err().map(|e| e.to_string());
    // A busy machine may not answer in time.
    let names_certificate = |refusal: &Option<String>| refusal.as_ref().is_some_and(|refusal| refusal.contains("certificate"));
    let refusal = eventually("the certificate to end", refused, names_certificate).await.unwrap();
    assert!(refusal.contains("does not accept the certificate of n1: it has expired"), "{refusal}");
    assert!(credentials(&expired).problem().unwrap().starts_with("expired "));

    // A certificate of another authority, whose holder trusts ours.
    let other = Lab::new(1, |_| {});
    let mut foreign = issue(&other, "n1", Role::Api, &at("foreign"), PATIENCE);
    foreign.ca = at("ca/ca.crt");
    let refusal = why(&client(&lab, &foreign), &Request::Status).await;
    assert!(refusal.contains("does not accept the certificate of n1: another authority issued it"), "{refusal}");

    // The wrong role, the wrong name.
    let node = lab.client(&[1], "n2", Role::Node);
    let refusal = why(&node, &Request::VerifyAudit { from: None }).await;
    assert!(refusal.contains("needs the certificate role api; the caller's is node"), "{refusal}");
    let (_up, mut down) = node.session(Agent::registration("n1", lattice_model::Boot(uuid::Uuid::nil()), 0)).await.unwrap();
    let refusal = down.next().await.unwrap_err().to_string();
    assert!(refusal.contains("the certificate is n2's, the registration n1's"), "{refusal}");

    let counts = status(&good).await.refused;
    for what in
        ["expired certificates", "certificates of another authority", "certificates of another role", "certificates of another name"]
    {
        assert!(counts.iter().any(|(w, count)| w == what && *count > 0), "{what}: {counts:?}");
    }

    // The client checks just as strictly: who answers, and which authority signed the certificate.
    let distrustful = credentials(&TlsFiles { ca: other.scratch.0.join("ca/ca.crt"), ..issue(&lab, "n3", Role::Api, &at("n3"), PATIENCE) });
    assert!(why(&client_with(&lab, &distrustful), &Request::Status).await.contains("invalid peer certificate"));
    assert_eq!(distrustful.refused().counts()[0].0, "certificates of another authority");
    member.stop().await;

    // A member refuses to start with another member's certificate, or with a key that is not the
    // authority's.
    let start = async |change: &dyn Fn(&mut QuorumConfig)| {
        let mut config = lab.config(1).clone();
        change(&mut config);
        let listeners = Listeners::bind(&config).await.unwrap();
        Member::start(config, false, listeners).await.err().unwrap()
    };
    let two = issue(&lab, "member-2", Role::Quorum, &at("two"), PATIENCE);
    let error = start(&|config| config.tls = two.clone()).await;
    assert!(matches!(error, MemberError::Certificate { .. }), "{error}");
    let error = start(&|config| config.ca_key = other.scratch.0.join("ca/ca.key")).await;
    assert!(matches!(error, MemberError::Authority(ca::CaError::Foreign { .. })), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_files_are_adopted_under_load_and_nothing_is_closed() {
    let mut lab = Lab::new(1, |_| {});
    let member = lab.start(1, true).await;
    tokio::time::timeout(PATIENCE, member.ready()).await.unwrap();
    let loaded = lab.api(&[1]);
    let mut agent = Agent::register(&lab.client(&[1], "n1", Role::Api), "n1").await;
    let stop = Arc::new(AtomicBool::new(false));
    let load = {
        let stop = Arc::clone(&stop);
        tokio::spawn(async move {
            let mut done = 0;
            while !stop.load(Ordering::Relaxed) {
                // Fails if a call fails.
                submit(&loaded, 1).await;
                done += 1;
            }
            done
        })
    };
    // A new authority issues certificates for everybody; for a while both authorities are trusted.
    // Key and certificate arrive one after the other.
    let next = Lab::new(1, |_| {});
    let files = lab.config(1).tls.clone();
    let fresh = issue(&next, "member-1", Role::Quorum, &lab.scratch.0.join("fresh"), PATIENCE * 10);
    let both = std::fs::read_to_string(&files.ca).unwrap() + &std::fs::read_to_string(&fresh.ca).unwrap();
    std::fs::copy(&fresh.key, &files.key).unwrap();
    std::fs::copy(&fresh.cert, &files.cert).unwrap();
    std::fs::write(&files.ca, &both).unwrap();
    // A client that trusts only the new authority reaches the member, with a certificate of the new
    // authority.
    let newcomer = issue(&next, "n9", Role::Api, &lab.scratch.0.join("newcomer"), PATIENCE * 10);
    let reaches = async || client(&lab, &newcomer).call(&Request::Status, ANSWER_TIMEOUT).await.is_ok();
    eventually("the new certificate to be in use", reaches, |ok| *ok).await;
    stop.store(true, Ordering::Relaxed);
    assert!(load.await.unwrap() > 0);
    // The earlier session is still alive.
    agent
        .up
        .send(Up::Heartbeat {
            incarnation: agent.incarnation,
            seq: 1,
            keys: None,
            health: None,
            conformance: None,
            stale: false,
            running: None,
        })
        .await
        .unwrap();
    assert_eq!(agent.next().await, Down::HeartbeatAck { seq: 1 });
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_renewed_by_the_member_that_has_the_key_and_outlive_the_configured_ones() {
    const LIFE: Duration = Duration::from_secs(12);
    let mut lab = Lab::new(3, |config| config.certificate_seconds = LIFE.as_secs());
    let ca = lab.scratch.0.join("ca");
    // At first only member 2 has the key, and the others do not ask it first.
    lab.configs[1].ca_key = ca.join("ca.key");
    for config in &lab.configs {
        ca::reissue(&ca, &Issued { cert: config.tls.cert.clone(), key: config.tls.key.clone() }, LIFE).unwrap();
    }
    let files = issue(&lab, "n1", Role::Api, &lab.scratch.0.join("n1"), LIFE);
    let began = Instant::now();
    let members = [lab.start(1, true).await, lab.start(2, false).await, lab.start(3, false).await];
    for member in &members {
        tokio::time::timeout(PATIENCE, member.ready()).await.unwrap();
    }
    let own = credentials(&files);
    let client = client_with(&lab, &own);
    let stop = CancellationToken::new();
    let keeping = tokio::spawn(own.clone().keep_current(client.authority(), stop.clone()));
    let mut agent = Agent::register(&client, "n1").await;
    let mut kept: Vec<PathBuf> = lab.configs.iter().map(|c| c.data_dir.join("certificate.json")).collect();
    kept.push(files.cert.with_extension("json"));

    // Wait until each file has had two certificates, and the first ones have expired: every new
    // connection now depends on renewed certificates.
    let mut seen = vec![Vec::new(); kept.len()];
    let deadline = began + LIFE * 4;
    let mut beats = 0;
    while seen.iter().any(|s: &Vec<Vec<u8>>| s.len() < 2) || began.elapsed() < LIFE + Duration::from_secs(1) {
        assert!(Instant::now() < deadline, "renewals: {:?}", seen.iter().map(Vec::len).collect::<Vec<_>>());
        for (path, seen) in kept.iter().zip(&mut seen) {
            if let Ok(bytes) = std::fs::read(path)
                && !seen.contains(&bytes)
            {
                seen.push(bytes);
            }
        }
        submit(&client, 1).await;
        beats += 1;
        agent
            .up
            .send(Up::Heartbeat {
                incarnation: agent.incarnation,
                seq: beats,
                keys: None,
                health: None,
                conformance: None,
                stale: false,
                running: None,
            })
            .await
            .unwrap();
        while agent.next().await != (Down::HeartbeatAck { seq: beats }) {}
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(own.problem(), None);
    assert!(client_with(&lab, &own).call(&Request::ListNodes, PATIENCE).await.is_ok(), "new connections");
    // The configured certificates have expired meanwhile; a restarted process uses the stored ones.
    assert!(lattice_pki::credentials::Material::new(files.read().unwrap()).unwrap().valid.left().is_none());
    let again = credentials(&files);
    assert!(again.material().borrow().valid.left().is_some());
    // The stored one is also used without the configured files, but a different configured certificate
    // takes precedence over it.
    let gone = TlsFiles { ca: "/none".into(), cert: "/none".into(), key: "/none".into() };
    assert!(Credentials::open(&gone, &kept[3]).is_ok());
    let replaced = issue(&lab, "n1", Role::Api, &lab.scratch.0.join("again"), LIFE);
    let configured = Credentials::open(&replaced, &kept[3]).unwrap();
    assert_eq!(configured.material().borrow().pem.cert, std::fs::read_to_string(&replaced.cert).unwrap());
    stop.cancel();
    keeping.await.unwrap();

    // Nobody gets a certificate under another's name, and an invalid request gets none.
    match client.call(&Request::RenewCertificate { request: vec![0; 100_000] }, PATIENCE).await {
        Err(CallError::Refused(Refusal::TooLarge { .. })) => {}
        other => panic!("{other:?}"),
    }
    for member in members {
        member.stop().await;
    }
}
