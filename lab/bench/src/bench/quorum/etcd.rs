//! etcd on loopback, for comparison: three members with TLS between them and to their clients, with their default
//! syncing and certificates from the lab's own authority. The clients use the same gRPC stack as Lattice's.

use super::load::Client;
use anyhow::{Context, Result, bail, ensure};
use lattice_lab::cluster::Cluster;
use lattice_lab::ports::Ports;
use lattice_lab::process::{Identity, spawn_detached, tail};
use lattice_lab::quorum::members::Timers;
use lattice_pki::tls::ClientTls;
use nix::sys::signal::Signal;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity as TlsIdentity};
use tonic_prost::ProstCodec;

/// Bytes of a value: about the size of a claim of one node.
const VALUE_BYTES: usize = 256;
/// Keys that one client writes in turn.
const KEYS: u64 = 1000;
/// How long it may take until it answers.
const START_MAX: Duration = Duration::from_secs(20);

/// A running etcd; ended on drop.
pub struct Etcd {
    dir: PathBuf,
    program: PathBuf,
    tls: ClientTls,
    members: Vec<Member>,
    timers: Timers,
}

struct Member {
    name: String,
    client: u16,
    peer: u16,
    process: Option<Identity>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PutResponse {}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusRequest {}

#[derive(Clone, PartialEq, prost::Message)]
struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<ResponseHeader>,
    #[prost(uint64, tag = "4")]
    leader: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ResponseHeader {
    #[prost(uint64, tag = "2")]
    member_id: u64,
}

impl Etcd {
    /// Starts three members with the certificates of a cluster's members, and waits until they have a leader.
    pub async fn start(program: PathBuf, cluster: &Cluster, tls: ClientTls, timers: Timers) -> Result<Self> {
        let mut ports = Ports::new(u64::from(std::process::id()) * 67 + 11);
        let mut members = Vec::new();
        for member in &cluster.members {
            members.push(Member { name: member.daemon.name.clone(), client: ports.take()?, peer: ports.take()?, process: None });
        }
        let dir = cluster.dir.join("etcd");
        std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let mut etcd = Self { dir, program, tls, members, timers };
        for at in 0..etcd.members.len() {
            etcd.start_member(at, "new")?;
        }
        etcd.leader().await?;
        Ok(etcd)
    }

    fn start_member(&mut self, at: usize, state: &str) -> Result<()> {
        let members: Vec<String> = self.members.iter().map(|m| format!("{}=https://127.0.0.1:{}", m.name, m.peer)).collect();
        let member = &mut self.members[at];
        let url = |port: u16| format!("https://127.0.0.1:{port}");
        let lab = self.dir.parent().context("etcd's folder")?;
        let file = |end: &str| lab.join(&member.name).join(format!("{}.{end}", member.name)).to_string_lossy().into_owned();
        let ca = lab.join("ca/ca.crt").to_string_lossy().into_owned();
        let options = [
            ("name", member.name.clone()),
            ("data-dir", self.dir.join(&member.name).to_string_lossy().into_owned()),
            ("listen-client-urls", url(member.client)),
            ("advertise-client-urls", url(member.client)),
            ("listen-peer-urls", url(member.peer)),
            ("initial-advertise-peer-urls", url(member.peer)),
            ("initial-cluster", members.join(",")),
            ("initial-cluster-state", state.to_owned()),
            ("heartbeat-interval", self.timers.heartbeat_ms.to_string()),
            ("election-timeout", self.timers.election_ms.to_string()),
            ("cert-file", file("crt")),
            ("key-file", file("key")),
            ("trusted-ca-file", ca.clone()),
            ("client-cert-auth", "true".to_owned()),
            ("peer-cert-file", file("crt")),
            ("peer-key-file", file("key")),
            ("peer-trusted-ca-file", ca),
            ("peer-client-cert-auth", "true".to_owned()),
            ("log-outputs", "stderr".to_owned()),
            ("logger", "zap".to_owned()),
            ("log-level", "warn".to_owned()),
        ];
        let args: Vec<String> = options.iter().map(|(name, value)| format!("--{name}={value}")).collect();
        member.process = Some(spawn_detached(&self.program, &args, &[], &self.dir.join(format!("{}.log", member.name)))?);
        Ok(())
    }

    fn channel(&self, at: usize) -> Result<Channel> {
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&self.tls.ca))
            .identity(TlsIdentity::from_pem(&self.tls.cert, &self.tls.key))
            .domain_name("127.0.0.1");
        let endpoint = Endpoint::from_shared(format!("https://127.0.0.1:{}", self.members[at].client))?;
        Ok(endpoint.tls_config(tls)?.tcp_nodelay(true).connect_lazy())
    }

    /// A client of the member with this index.
    pub fn client(&self, at: usize, number: usize) -> Result<Putter> {
        Ok(Putter { grpc: Grpc::new(self.channel(at)?), number, next: 0 })
    }

    /// The index of the leading member, once it is known and commits.
    pub async fn leader(&self) -> Result<usize> {
        let end = Instant::now() + START_MAX;
        loop {
            for at in 0..self.members.len() {
                let Ok(Ok(status)) = tokio::time::timeout(Duration::from_secs(1), self.status(at)).await else { continue };
                let id = status.header.map_or(0, |h| h.member_id);
                if status.leader != 0 && status.leader == id && self.client(at, 0)?.commit().await.is_ok() {
                    return Ok(at);
                }
            }
            if Instant::now() >= end {
                bail!("etcd has no leader after {} s: {}", START_MAX.as_secs(), tail(&self.dir.join("member-1.log"), 5));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn status(&self, at: usize) -> Result<StatusResponse> {
        let mut grpc = Grpc::new(self.channel(at)?);
        unary(&mut grpc, "/etcdserverpb.Maintenance/Status", StatusRequest {}).await
    }

    /// The number of members.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// The pids of the running members.
    pub fn pids(&self) -> Vec<i32> {
        self.members.iter().filter_map(|m| m.process.as_ref()).map(|p| p.pid).collect()
    }

    /// SIGKILL to the member with this index.
    pub fn kill(&self, at: usize) -> Result<()> {
        let process = self.members[at].process.as_ref().context("it was never started")?;
        ensure!(process.signal(Signal::SIGKILL)?, "{} does not run", self.members[at].name);
        Ok(())
    }

    /// Starts the member with this index again and waits until it follows.
    pub async fn restart(&mut self, at: usize) -> Result<()> {
        if let Some(process) = &self.members[at].process {
            process.kill()?;
        }
        self.start_member(at, "existing")?;
        let end = Instant::now() + START_MAX;
        while self.client(at, 0)?.commit().await.is_err() {
            ensure!(Instant::now() < end, "{} does not come back", self.members[at].name);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for process in self.members.iter().filter_map(|m| m.process.as_ref()) {
            // It has nothing that must be saved.
            let _ended = process.kill();
        }
    }
}

/// Puts a small value under one of its keys.
#[derive(Clone)]
pub struct Putter {
    grpc: Grpc<Channel>,
    number: usize,
    next: u64,
}

impl Client for Putter {
    async fn commit(&mut self) -> Result<()> {
        self.next += 1;
        let key = format!("k{}/{}", self.number, self.next % KEYS).into_bytes();
        let _put: PutResponse = unary(&mut self.grpc, "/etcdserverpb.KV/Put", PutRequest { key, value: vec![b'x'; VALUE_BYTES] }).await?;
        Ok(())
    }
}

async fn unary<Q, A>(grpc: &mut Grpc<Channel>, path: &'static str, question: Q) -> Result<A>
where
    Q: prost::Message + Send + Sync + 'static,
    A: prost::Message + Default + Send + Sync + 'static,
{
    grpc.ready().await?;
    let reply = grpc.unary(tonic::Request::new(question), PathAndQuery::from_static(path), ProstCodec::<Q, A>::default()).await?;
    Ok(reply.into_inner())
}
