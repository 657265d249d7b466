//! `lattice dev`: one quorum member and one agent with all roles in one process, with all files in
//! one directory, on loopback only.

use crate::doctor::{self, Finding, Health};
use crate::recovery::Unusable;
use anyhow::{Context, bail};
use lattice_agent_common::config::cgroup::CgroupSettings;
use lattice_agent_common::config::data::ScratchSettings;
use lattice_agent_common::config::logs::{LogSettings, StoreSettings};
use lattice_agent_common::config::network::{GossipSettings, MeshSettings};
use lattice_agent_common::config::work::WorkSettings;
use lattice_agent_common::config::{AgentConfig, Role};
use lattice_model::MemberId;
use lattice_pki::ca;
use lattice_pki::identity::{Role as CertificateRole, member_name};
use lattice_pki::tls::TlsFiles;
use lattice_quorum::config::{MemberAddress, NodeAdmission, QuorumConfig};
use lattice_quorum::member::{self, MemberError};
use lattice_telemetry::settings::TelemetrySettings;
use serde::{Deserialize, Serialize};
use std::fs;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

const MEMBER: MemberId = MemberId(1);
/// The interval at which the start checks whether the agent answers.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// The ports that this cluster chose at its first start. They are stored, because members know each
/// other by them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Ports {
    service: u16,
    raft: u16,
    mesh: u16,
    gossip: u16,
    /// The ports of the agent's and the member's metrics.
    metrics: [u16; 2],
}

/// Runs until `stop`. A cluster that is already in `dir` continues.
pub async fn run(
    dir: Option<PathBuf>,
    scratch_dir: Option<PathBuf>,
    memory_bytes_max: Option<u64>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let uid = nix::unistd::geteuid();
    let dir = dir.unwrap_or_else(|| std::env::temp_dir().join(format!("lattice-dev-{uid}")));
    let dir = prepare_dir(&dir, uid.as_raw())?;
    let ports = ports(&dir)?;
    let tls = certificates(&dir)?;
    let mut agent = agent_config(&dir, ports, &tls);
    agent.scratch.dir = scratch_dir.unwrap_or_default();
    agent.validate().context("--scratch-dir")?;
    let quorum = quorum_config(&dir, ports, &tls);

    eprint!("{}", shortcomings(&doctor::examine(&agent)));
    eprintln!("lattice dev: one node, one member, everything in {}", dir.display());
    let [of_agent, of_member] = ports.metrics;
    eprintln!("  metrics: http://127.0.0.1:{of_agent}/metrics (agent), http://127.0.0.1:{of_member}/metrics (member)");
    let socket = agent.socket.clone();
    let mut welcome = pin!(async {
        until_served(&socket).await;
        // Printed last, so that it stays visible on the screen.
        eprintln!("  in another shell:  export LATTICE_ENDPOINT=unix:{}", socket.display());
        eprintln!("                     lattice submit -- hostname && lattice logs -f @last");
        eprintln!("  Ctrl-C ends it; what runs then goes on and is found again at the next start.");
        std::future::pending::<()>().await;
    });

    // The member ends after the agent, which returns its lease when it ends.
    let member_stop = CancellationToken::new();
    let mut member = pin!(run_member(quorum, member_stop.clone()));
    let mut agent = pin!(crate::run(agent, Unusable::Refuse, memory_bytes_max, stop.clone()));
    tokio::select! {
        () = &mut welcome => unreachable!("it waits for ever"),
        ended = &mut member => {
            stop.cancel();
            let agent = agent.await;
            ended.context("the quorum member")?;
            agent?;
            bail!("the quorum member ended by itself");
        }
        ended = &mut agent => {
            member_stop.cancel();
            let member = member.await;
            ended?;
            member.context("the quorum member")
        }
    }
}

/// What this machine lacks: one line for each thing without which no work is possible, and one line
/// for all limitations.
fn shortcomings(findings: &[Finding]) -> String {
    let of = |health| findings.iter().filter(move |finding| finding.health == health);
    let mut text: String =
        of(Health::Missing).map(|finding| format!("{:<9} {}: {}\n", finding.health, finding.subject, finding.text)).collect();
    let mut degraded: Vec<&str> = of(Health::Degraded).map(|finding| finding.subject).collect();
    degraded.dedup();
    if !degraded.is_empty() {
        text += &format!("{:<9} {} (`lattice doctor` shows why, and what to do)\n", Health::Degraded, degraded.join(", "));
    }
    text
}

/// Waits until the agent answers on its socket.
async fn until_served(socket: &Path) {
    while tokio::net::UnixStream::connect(socket).await.is_err() {
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// A member that forms its cluster unless it already has: a crash in the middle of the first start
/// does no harm.
async fn run_member(config: QuorumConfig, stop: CancellationToken) -> Result<(), MemberError> {
    match member::run(config.clone(), true, stop.clone()).await {
        Err(MemberError::Bootstrapped { .. }) => member::run(config, false, stop).await,
        other => other,
    }
}

/// Makes the directory accessible to this user only. A directory in a place where others can write
/// is used only if this user already owns it.
fn prepare_dir(dir: &Path, uid: u32) -> anyhow::Result<PathBuf> {
    use std::os::unix::fs::MetadataExt;
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let about = fs::symlink_metadata(dir)?;
    if !about.is_dir() || about.uid() != uid {
        bail!("{} is not a directory of this user: choose another with --dir", dir.display());
    }
    fs::set_permissions(dir, fs::Permissions::from_mode(0o711))?;
    Ok(fs::canonicalize(dir)?)
}

fn ports(dir: &Path) -> anyhow::Result<Ports> {
    let path = dir.join("ports.json");
    match fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).with_context(|| format!("{} is damaged: remove {}", path.display(), dir.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let (a, b) = (TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?, TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?);
            let (e, f) = (TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?, TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?);
            let (c, d) = (UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?, UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?);
            let ports = Ports {
                service: a.local_addr()?.port(),
                raft: b.local_addr()?.port(),
                mesh: c.local_addr()?.port(),
                gossip: d.local_addr()?.port(),
                metrics: [e.local_addr()?.port(), f.local_addr()?.port()],
            };
            fs::write(&path, serde_json::to_vec(&ports)?)?;
            Ok(ports)
        }
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

fn certificates(dir: &Path) -> anyhow::Result<PathBuf> {
    let tls = dir.join("tls");
    if !tls.join("ca.crt").exists() {
        ca::init(&tls)?;
    }
    let hosts = ["127.0.0.1".to_owned()];
    for (name, role) in [(member_name(MEMBER.0), CertificateRole::Quorum), ("dev".to_owned(), CertificateRole::Api)] {
        if !tls.join(format!("{name}.crt")).exists() {
            ca::issue(&tls, &name, role, &hosts, &tls, ca::LIFETIME)?;
        }
    }
    let operator = dir.join("operator.pem");
    if !operator.exists() {
        let account = nix::unistd::User::from_uid(nix::unistd::geteuid())?.map(|user| user.name);
        let name = account.filter(|name| name.parse::<lattice_model::NodeId>().is_ok()).unwrap_or_else(|| "operator".to_owned());
        ca::issue_operator(&tls, &name, &operator, ca::LIFETIME)?;
    }
    let key = dir.join("gossip.key");
    if !key.exists() {
        let hex: String = rand::random::<[u8; 32]>().iter().map(|b| format!("{b:02x}")).collect();
        let mut file = fs::OpenOptions::new().create_new(true).write(true).mode(0o600).open(&key)?;
        std::io::Write::write_all(&mut file, hex.as_bytes())?;
    }
    Ok(tls)
}

fn files(tls: &Path, name: &str) -> TlsFiles {
    TlsFiles { ca: tls.join("ca.crt"), cert: tls.join(format!("{name}.crt")), key: tls.join(format!("{name}.key")) }
}

fn agent_config(dir: &Path, ports: Ports, tls: &Path) -> AgentConfig {
    let cgroup = format!("lattice-dev-{}", nix::unistd::geteuid());
    AgentConfig {
        node_id: "dev".to_owned(),
        cluster: "dev".to_owned(),
        state_dir: dir.join("node"),
        socket: dir.join("agent.sock"),
        quorum: vec![format!("127.0.0.1:{}", ports.service)],
        tls: files(tls, "dev"),
        mesh: MeshSettings { listen: format!("127.0.0.1:{}", ports.mesh), ..MeshSettings::default() },
        gossip: GossipSettings {
            listen: format!("127.0.0.1:{}", ports.gossip),
            key_file: dir.join("gossip.key"),
            timers: lattice_gossip::Config::lab(),
            ..GossipSettings::default()
        },
        roles: vec![Role::Api, Role::Scheduler],
        work: WorkSettings { allow_root: true, ..WorkSettings::default() },
        cgroup: CgroupSettings { root: format!("{cgroup}/workload.slice").into(), delegated: cgroup.into(), ..CgroupSettings::default() },
        logs: LogSettings {
            store: StoreSettings { url: format!("file://{}", dir.join("objects").display()), ..StoreSettings::default() },
            ..LogSettings::default()
        },
        scratch: ScratchSettings { tmpfs_dir: dir.join("scratch"), ..ScratchSettings::default() },
        telemetry: telemetry(ports.metrics[0]),
        ..AgentConfig::default()
    }
}

fn telemetry(port: u16) -> TelemetrySettings {
    TelemetrySettings { metrics_listen: Some(format!("127.0.0.1:{port}")), ..TelemetrySettings::default() }
}

fn quorum_config(dir: &Path, ports: Ports, tls: &Path) -> QuorumConfig {
    let (service, raft) = (format!("127.0.0.1:{}", ports.service), format!("127.0.0.1:{}", ports.raft));
    QuorumConfig {
        id: MEMBER.0,
        cluster: "dev".to_owned(),
        data_dir: dir.join("quorum"),
        service_listen: Some((Ipv4Addr::LOCALHOST, ports.service).into()),
        raft_listen: Some((Ipv4Addr::LOCALHOST, ports.raft).into()),
        members: vec![MemberAddress { id: MEMBER.0, service, raft }],
        tls: files(tls, &member_name(MEMBER.0)),
        ca_key: tls.join("ca.key"),
        node_admission: NodeAdmission::Automatic,
        telemetry: telemetry(ports.metrics[1]),
        ..QuorumConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn degraded_rows_share_one_line_and_missing_rows_have_one_each() {
        let finding = |subject, health, text: &str| Finding { subject, health, text: text.to_owned() };
        let findings = [
            finding("privilege", Health::Missing, "not root"),
            finding("cgroup limits", Health::Degraded, "no cpu"),
            finding("cgroup limits", Health::Degraded, "no memory"),
            finding("disk", Health::Ok, "fast"),
            finding("CUPTI", Health::Unsupported, "none"),
            finding("BPF", Health::Degraded, "no program could be attached"),
        ];
        let want = "missing   privilege: not root\ndegraded  cgroup limits, BPF (`lattice doctor` shows why, and what to do)\n";
        assert_eq!(shortcomings(&findings), want);
        assert_eq!(shortcomings(&findings[3..5]), "");
    }
}
