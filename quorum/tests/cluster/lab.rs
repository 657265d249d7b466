//! Members on the loopback interface, with certificates of a new authority for each test.

use lattice_api::operator::Credential;
use lattice_ledger::SCHEDULER_LEASE;
use lattice_model::{
    AllocationId, AllocationSpec, Boot, Claim, Epoch, Incarnation, Locality, NodeAddresses, NodeId, NodeReport, Principal, ReportItem,
    Resources, Timestamp, test_builders,
};
use lattice_pki::ca;
use lattice_pki::credentials::Credentials;
use lattice_pki::identity::Role;
use lattice_pki::tls::TlsFiles;
use lattice_quorum::config::{MemberAddress, NodeAdmission, QuorumConfig};
use lattice_quorum::member::{Listeners, Member};
use lattice_quorum::permission::{Person, person};
use lattice_quorum_client::wire::{Answer, Claimed, Down, HeldKeys, NodeHealth, Proof, QuorumStatus, Request, Up};
use lattice_quorum_client::{CallError, DownStream, QuorumClient};
use lattice_telemetry::settings::TelemetrySettings;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use uuid::Uuid;

pub const PATIENCE: Duration = Duration::from_secs(60);

/// A directory that is removed after the test.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("lattice-quorum-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

/// The configurations and certificates of a cluster. It starts the members.
pub struct Lab {
    pub scratch: Scratch,
    pub configs: Vec<QuorumConfig>,
    /// Bound sockets of members that were not started yet.
    listeners: Vec<Option<(std::net::TcpListener, std::net::TcpListener)>>,
}

impl Lab {
    pub fn new(members: u64, change: impl Fn(&mut QuorumConfig)) -> Self {
        let scratch = Scratch::new();
        let dir = scratch.0.join("ca");
        ca::init(&dir).unwrap();
        let mut listeners = Vec::new();
        let mut addresses = Vec::new();
        for id in 1..=members {
            let bind = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let (service, raft) = (bind(), bind());
            let text = |l: &std::net::TcpListener| l.local_addr().unwrap().to_string();
            addresses.push(MemberAddress { id, service: text(&service), raft: text(&raft) });
            listeners.push(Some((service, raft)));
        }
        let configs = addresses
            .iter()
            .map(|member| {
                let name = format!("member-{}", member.id);
                let issued = ca::issue(&dir, &name, Role::Quorum, &["127.0.0.1".to_owned()], &dir, ca::LIFETIME).unwrap();
                let mut config = QuorumConfig {
                    id: member.id,
                    cluster: "test".to_owned(),
                    data_dir: scratch.0.join(&name),
                    service_listen: Some(member.service.parse().unwrap()),
                    raft_listen: Some(member.raft.parse().unwrap()),
                    members: addresses.clone(),
                    tls: TlsFiles { ca: dir.join("ca.crt"), cert: issued.cert, key: issued.key },
                    heartbeat_ms: 50,
                    election_ms: 500,
                    node_admission: NodeAdmission::Automatic,
                    // Tests that compare states must not wait for a signature.
                    audit_sign_seconds: 3600,
                    telemetry: TelemetrySettings { metrics_listen: Some(String::new()), ..TelemetrySettings::default() },
                    ..QuorumConfig::default()
                };
                change(&mut config);
                config
            })
            .collect();
        Self { scratch, configs, listeners }
    }

    /// Starts member `id` in this process.
    pub async fn start(&mut self, id: u64, bootstrap: bool) -> Member {
        let config = self.config(id).clone();
        let listeners = match self.listeners[usize::try_from(id - 1).unwrap()].take() {
            Some((service, raft)) => {
                let to_tokio = |l: std::net::TcpListener| {
                    l.set_nonblocking(true).unwrap();
                    tokio::net::TcpListener::from_std(l).unwrap()
                };
                Listeners { service: to_tokio(service), raft: to_tokio(raft) }
            }
            None => Listeners::bind(&config).await.unwrap(),
        };
        Member::start(config, bootstrap, listeners).await.unwrap()
    }

    /// Releases the ports, so that a process can bind them.
    pub fn release_ports(&mut self) {
        self.listeners.iter_mut().for_each(|l| *l = None);
    }

    pub fn config(&self, id: u64) -> &QuorumConfig {
        &self.configs[usize::try_from(id - 1).unwrap()]
    }

    /// A certificate with this name and role.
    pub fn agent(&self, name: &str, role: Role) -> Credentials {
        let dir = self.scratch.0.join("ca");
        let out = self.scratch.0.join(format!("{name}-{role}"));
        let files = |cert: &Path| TlsFiles {
            ca: dir.join("ca.crt"),
            cert: cert.join(format!("{name}.crt")),
            key: cert.join(format!("{name}.key")),
        };
        if role == Role::Operator {
            let file = self.scratch.0.join(format!("{name}.pem"));
            if !file.exists() {
                ca::issue_operator(&dir, name, &file, ca::LIFETIME).unwrap();
            }
            return Credentials::new(TlsFiles { ca: dir.join("ca.crt"), cert: file.clone(), key: file }.read().unwrap()).unwrap();
        }
        if !out.exists() {
            ca::issue(&dir, name, role, &[], &out, ca::LIFETIME).unwrap();
        }
        Credentials::new(files(&out).read().unwrap()).unwrap()
    }

    /// A request of the operator with this name, signed for the first of the methods that allow it.
    pub fn as_operator(&self, name: &str, mut request: Request) -> Request {
        let file = self.scratch.0.join(format!("{name}.pem"));
        if !file.exists() {
            ca::issue_operator(&self.scratch.0.join("ca"), name, &file, ca::LIFETIME).unwrap();
        }
        let Ok(Person::Operator(methods) | Person::UserOrOperator(methods)) = person(&mut request) else {
            panic!("no operator may make the request {request:?}")
        };
        let now = Timestamp(std::time::UNIX_EPOCH.elapsed().unwrap().as_millis().try_into().unwrap());
        let token = Credential::read(&file).unwrap().sign(methods[0], now).unwrap();
        Request::AsOperator { proof: Proof::Token(token), request: Box::new(request) }
    }

    pub fn client(&self, members: &[u64], name: &str, role: Role) -> QuorumClient {
        let endpoints = members.iter().map(|id| self.config(*id).members[usize::try_from(id - 1).unwrap()].service.clone()).collect();
        QuorumClient::new(endpoints, self.agent(name, role)).unwrap()
    }

    pub fn api(&self, members: &[u64]) -> QuorumClient {
        self.client(members, "n1", Role::Api)
    }
}

pub fn spec(nodes: u32) -> AllocationSpec {
    AllocationSpec { nodes, ..test_builders::spec() }
}

pub fn owner() -> Principal {
    Principal { name: "alice".into(), uid: 1000, gid: 1000, groups: vec![] }
}

/// A request of an account that called this API method. The sender vouches for the account.
pub fn as_account(by: &Principal, method: &str, request: Request) -> Request {
    Request::AsOperator { proof: Proof::Account { by: by.clone(), method: method.to_owned() }, request: Box::new(request) }
}

pub fn size() -> Resources {
    Resources { cores: 8, memory_bytes: 1 << 30, gpus: 0 }
}

pub async fn submit(client: &QuorumClient, nodes: u32) -> AllocationId {
    submit_spec(client, spec(nodes)).await
}

/// An allocation whose record has more than 50 KiB.
pub async fn submit_large(client: &QuorumClient) -> AllocationId {
    let mut large = spec(1);
    large.env.insert("LARGE".to_owned(), "x".repeat(50 * 1024));
    submit_spec(client, large).await
}

async fn submit_spec(client: &QuorumClient, spec: AllocationSpec) -> AllocationId {
    let id = AllocationId(Uuid::new_v4());
    let request = Request::Submit { id, spec: Box::new(spec), owner: owner(), claim: None, life: None, login_tenants: [].into() };
    let answer = client.call(&request, PATIENCE).await.unwrap();
    assert!(matches!(answer, Answer::Done { .. }), "{answer:?}");
    id
}

pub async fn lease(client: &QuorumClient, holder: &str) -> u64 {
    let request = Request::AcquireLease { name: SCHEDULER_LEASE.to_owned(), holder: holder.parse().unwrap(), ttl_ms: 60_000, user: None };
    match client.call(&request, PATIENCE).await.unwrap() {
        Answer::Lease { token, .. } => token,
        other => panic!("{other:?}"),
    }
}

pub async fn claim(client: &QuorumClient, allocation: AllocationId, token: u64, nodes: &[&str]) -> Result<Claimed, CallError> {
    let Answer::Nodes(known) = client.call(&Request::ListNodes, PATIENCE).await? else { panic!("the answer has no nodes") };
    let share = |name: &&str| {
        let node = known.iter().find(|n| n.id.as_str() == *name).unwrap();
        lattice_model::claim::ClaimShare { node: node.id.clone(), resources: node.size, hold_revision: node.hold_revision }
    };
    let shares = nodes.iter().map(share).collect();
    let claim = Claim { allocation, requeue_count: 0, lease_token: token, shares, after: None, by: None, walltime: None };
    let Answer::Claims(mut outcomes) = client.call(&Request::Claims(vec![claim]), PATIENCE).await? else { panic!("claims were made") };
    Ok(outcomes.remove(0)?)
}

pub async fn status(client: &QuorumClient) -> QuorumStatus {
    match client.call(&Request::Status, PATIENCE).await.unwrap() {
        Answer::Status(status) => status,
        other => panic!("{other:?}"),
    }
}

/// Repeats the query until the condition holds; fails with the last value.
pub async fn eventually<T: std::fmt::Debug>(what: &str, mut ask: impl AsyncFnMut() -> T, holds: impl Fn(&T) -> bool) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        let last = ask().await;
        if holds(&last) {
            return last;
        }
        assert!(Instant::now() < end, "{what}: {last:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A session as used by an agent.
pub struct Agent {
    pub node: NodeId,
    pub up: mpsc::Sender<Up>,
    pub down: DownStream,
    pub incarnation: Incarnation,
    /// Claims that were reported as superseded.
    pub superseded: Vec<(AllocationId, Epoch)>,
    seq: u64,
}

impl Agent {
    pub fn registration(name: &str, boot: Boot, incarnation: u64) -> Up {
        Up::Register {
            node: name.parse().unwrap(),
            boot,
            size: size(),
            addresses: NodeAddresses { mesh: format!("{name}:9401"), gossip: format!("{name}:9402") },
            schedulable: true,
            incarnation: Incarnation(incarnation),
            new_life: true,
            replaces: None,
            unenforced_limits: vec![],
            features: vec![],
            topology_group: None,
            locality: Locality::default(),
            found: None,
            keys: HeldKeys { opens: vec![0], seals: 0 },
            relay_node: None,
            has_wipe_hook: false,
            health: NodeHealth::Well,
            conformance: None,
        }
    }

    pub async fn register(client: &QuorumClient, name: &str) -> Self {
        let end = Instant::now() + PATIENCE;
        loop {
            // A session that was closed because there is no leader is opened again, as an agent does.
            let opened = client.session(Self::registration(name, Boot(Uuid::nil()), 0)).await;
            if let Ok((up, mut down)) = opened
                && let Ok(Down::Registered { incarnation, .. }) = down.next().await
            {
                assert!(matches!(down.next().await, Ok(Down::Desired(_))));
                return Self::opened(name.parse().unwrap(), up, down, incarnation);
            }
            assert!(Instant::now() < end, "{name} cannot register");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// From a session that has registered.
    pub fn opened(node: NodeId, up: mpsc::Sender<Up>, down: DownStream, incarnation: Incarnation) -> Self {
        Self { node, up, down, incarnation, superseded: vec![], seq: 0 }
    }

    /// Reports, and waits for the acknowledgement. Returns the messages that arrived before it.
    pub async fn report(&mut self, item: ReportItem) -> Vec<Down> {
        self.seq += 1;
        let report = NodeReport { node: self.node.clone(), incarnation: self.incarnation, seq: self.seq, item };
        self.up.send(Up::Report(report)).await.unwrap();
        let mut meanwhile = Vec::new();
        loop {
            match self.next().await {
                Down::Acked { seq, superseded, .. } => {
                    self.superseded.extend(superseded);
                    if seq == self.seq {
                        return meanwhile;
                    }
                }
                other => meanwhile.push(other),
            }
        }
    }

    /// The next message, except questions about silent nodes.
    pub async fn next(&mut self) -> Down {
        loop {
            let message = tokio::time::timeout(PATIENCE, self.down.next()).await.expect("a message arrives").unwrap();
            if !matches!(message, Down::QueryGossip { .. }) {
                return message;
            }
        }
    }
}
