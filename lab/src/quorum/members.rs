//! Three members as processes, and clients for them.

use crate::cluster::Cluster;
use crate::up;
use anyhow::{Context, Result, bail, ensure};
use lattice_ledger::AuditHead;
use lattice_model::Revision;
use lattice_pki::ca;
use lattice_pki::credentials::Credentials;
use lattice_pki::identity::Role;
use lattice_pki::tls::{ClientTls, TlsFiles};
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::wire::{Answer, QuorumStatus, Request};
use nix::sys::signal::Signal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the members may take to recover.
const PATIENCE: Duration = Duration::from_secs(20);
/// The name in the certificate of the lab's own clients.
pub const NAME: &str = "lab";

/// Heartbeat interval and election timeout, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Timers {
    /// Interval of a leader's heartbeats.
    pub heartbeat_ms: u64,
    /// Silence of a leader until an election.
    pub election_ms: u64,
}

/// Running members.
pub struct Members {
    /// The cluster's record.
    pub cluster: Cluster,
    /// The lab's certificate: role api.
    pub tls: ClientTls,
    options: up::Options,
}

impl Members {
    /// Starts three members in `dir` and waits for a leader.
    pub async fn start(dir: &Path, timers: Timers, lines: &str) -> Result<Self> {
        Self::start_as(Self::options(dir, timers, lines)).await
    }

    /// The options that [`Self::start`] uses.
    pub fn options(dir: &Path, timers: Timers, lines: &str) -> up::Options {
        up::Options {
            build: false,
            raft_heartbeat_ms: timers.heartbeat_ms,
            raft_election_ms: timers.election_ms,
            member_lines: lines.to_owned(),
            // Nodes whose simulated agents are gone must not become Degraded meanwhile.
            heartbeat_ms: 10_000,
            degraded_after_ms: 3_600_000,
            ..up::Options::new(0, 3, dir)
        }
    }

    /// Starts members with these options and waits for a leader.
    pub async fn start_as(options: up::Options) -> Result<Self> {
        let cluster = up::up(&options)?;
        let tls = certificate(&cluster, NAME, Role::Api)?;
        let members = Self { cluster, tls, options };
        members.leader().await?;
        Ok(members)
    }

    /// A client with its own connections.
    pub fn client(&self) -> Result<QuorumClient> {
        self.client_as(self.tls.clone())
    }

    /// A client with its own connections and this certificate.
    pub fn client_as(&self, tls: ClientTls) -> Result<QuorumClient> {
        client_of(&self.cluster, tls)
    }

    /// The status as one member reports it.
    pub async fn status(&self, id: u64) -> Result<QuorumStatus> {
        match self.client_at(id)?.call(&Request::Status, Duration::from_secs(1)).await? {
            Answer::Status(status) => Ok(status),
            other => bail!("a status was asked for: {other:?}"),
        }
    }

    /// The leading member, once every living member names it and it commits.
    pub async fn leader(&self) -> Result<u64> {
        let living = self.cluster.members.iter().filter(|m| m.daemon.alive()).map(|m| m.id);
        self.leader_of(&living.collect::<Vec<_>>()).await
    }

    /// The same for some members that reach each other.
    pub async fn leader_of(&self, members: &[u64]) -> Result<u64> {
        let end = Instant::now() + PATIENCE;
        loop {
            let mut leaders = Vec::new();
            for member in members {
                leaders.push(self.status(*member).await.ok().and_then(|s| s.leader).map(|l| l.0));
            }
            if let Some(Some(leader)) = leaders.first()
                && members.contains(leader)
                && leaders.iter().all(|l| *l == Some(*leader))
                && self.client_at(*leader)?.call(&Request::ListNodes, Duration::from_secs(1)).await.is_ok()
            {
                return Ok(*leader);
            }
            ensure!(Instant::now() < end, "the members agree on no leader after {} s: {leaders:?}", PATIENCE.as_secs());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The pids of the running members.
    pub fn pids(&self) -> Vec<i32> {
        self.cluster.members.iter().filter_map(|m| m.daemon.process.as_ref()).filter(|p| p.alive()).map(|p| p.pid).collect()
    }

    /// The process of one member.
    pub fn pid(&self, id: u64) -> Result<i32> {
        Ok(self.cluster.member(id)?.daemon.process.as_ref().context("it was never started")?.pid)
    }

    /// Sends a signal to a member.
    pub fn signal(&self, id: u64, signal: Signal) -> Result<()> {
        let process = self.cluster.member(id)?.daemon.process.as_ref().context("it was never started")?;
        ensure!(process.signal(signal)?, "member {id} does not run");
        Ok(())
    }

    /// Starts a member that was killed.
    pub fn start_again(&mut self, id: u64) -> Result<()> {
        if let Some(process) = &self.cluster.member(id)?.daemon.process {
            process.kill()?;
        }
        self.start_daemon(&format!("member-{id}"))
    }

    fn start_daemon(&mut self, name: &str) -> Result<()> {
        let switch = self.power_switch();
        up::start(&mut self.cluster, name, &[], &[("LATTICE_POWER_LOSS", &switch.to_string_lossy())])
    }

    /// When this file exists, members that were restarted lose what they have not synced, and die.
    pub fn power_switch(&self) -> PathBuf {
        self.cluster.dir.join("power-loss")
    }

    /// The hash of one member's applied state, and its revision.
    pub async fn state_hash(&self, id: u64) -> Result<(Revision, String)> {
        match self.client_at(id)?.call(&Request::StateHash, PATIENCE).await? {
            Answer::StateHash { revision, hash } => Ok((revision, hash)),
            other => bail!("a hash was asked for: {other:?}"),
        }
    }

    /// Fails unless all members have the same state. Nobody may be committing.
    pub async fn assert_same(&self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            let mut hashes = Vec::new();
            for member in &self.cluster.members {
                hashes.push((member.id, self.state_hash(member.id).await?));
            }
            let (_, (revision, hash)) = &hashes[0];
            if hashes.iter().all(|(_, (r, _))| r == revision) {
                ensure!(hashes.iter().all(|(_, (_, h))| h == hash), "the members' states differ: {hashes:?}");
                return Ok(());
            }
            ensure!(Instant::now() < end, "the members do not come to the same revision: {hashes:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Fails unless the audit chain on each member's disk is valid and the same. Nobody may be committing.
    pub async fn assert_audited(&self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            let mut heads = Vec::new();
            for member in &self.cluster.members {
                heads.push((member.id, self.audit_head(member.id).await?));
            }
            let (_, first) = &heads[0];
            if heads.iter().all(|(_, head)| head == first) {
                ensure!(first.seq > 0, "nothing was audited");
                return Ok(());
            }
            // The leader signs the chain from time to time: one record may not have arrived everywhere yet.
            ensure!(Instant::now() < end, "the members' audit chains differ: {heads:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The last record of the audit chain on a member's disk, after every link and signature before it was checked.
    async fn audit_head(&self, id: u64) -> Result<AuditHead> {
        let client = self.client_at(id)?;
        let mut from = None;
        loop {
            match client.call(&Request::VerifyAudit { from: from.take() }, PATIENCE).await? {
                Answer::AuditVerified(walk) if walk.done => return Ok(walk.head),
                Answer::AuditVerified(walk) => from = Some(walk),
                other => bail!("the audit chain was to be verified: {other:?}"),
            }
        }
    }

    /// Kills all members with SIGKILL; then starts all with these timers and these lines in their configuration.
    pub fn restart(&mut self, timers: Timers, lines: &str) -> Result<()> {
        for process in self.cluster.members.iter().filter_map(|m| m.daemon.process.as_ref()) {
            process.kill()?;
        }
        (self.options.raft_heartbeat_ms, self.options.raft_election_ms) = (timers.heartbeat_ms, timers.election_ms);
        lines.clone_into(&mut self.options.member_lines);
        up::configure_members(&self.cluster, &self.options)?;
        let names: Vec<String> = self.cluster.members.iter().map(|m| m.daemon.name.clone()).collect();
        let _never = std::fs::remove_file(self.power_switch());
        names.iter().try_for_each(|name| self.start_daemon(name))
    }

    /// Waits until every member has applied what the leader has applied.
    pub async fn caught_up(&self) -> Result<()> {
        let leader = self.leader().await?;
        let wanted = self.status(leader).await?.revision;
        let end = Instant::now() + PATIENCE;
        for member in &self.cluster.members {
            while self.status(member.id).await.is_ok_and(|s| s.revision < wanted) {
                ensure!(Instant::now() < end, "member {} does not catch up", member.id);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        Ok(())
    }

    /// The numbers of nodes and allocations.
    pub async fn counts(&self) -> Result<(usize, usize)> {
        let status = self.status(self.leader().await?).await?;
        let sum = |counts: Vec<u32>| counts.into_iter().map(|c| c as usize).sum();
        Ok((sum(status.nodes.iter().map(|n| n.1).collect()), sum(status.allocations.iter().map(|a| a.1).collect())))
    }

    /// A client of only one member.
    pub fn client_at(&self, id: u64) -> Result<QuorumClient> {
        Ok(QuorumClient::new(vec![self.cluster.member(id)?.service.clone()], Credentials::new(self.tls.clone())?)?)
    }

    /// The directory of a member's log and snapshots.
    pub fn data_dir(&self, id: u64) -> PathBuf {
        self.cluster.dir.join(format!("member-{id}/data"))
    }
}

/// A client of all members with its own connections and this certificate.
pub fn client_of(cluster: &Cluster, tls: ClientTls) -> Result<QuorumClient> {
    Ok(QuorumClient::new(cluster.members.iter().map(|m| m.service.clone()).collect(), Credentials::new(tls)?)?)
}

/// Issues and reads a certificate of the cluster's authority.
pub fn certificate(cluster: &Cluster, name: &str, role: Role) -> Result<ClientTls> {
    let (ca, out) = (cluster.dir.join("ca"), cluster.dir.join("clients"));
    let issued = ca::issue(&ca, name, role, &[], &out, ca::LIFETIME)?;
    Ok(TlsFiles { ca: ca.join("ca.crt"), cert: issued.cert, key: issued.key }.read()?)
}
