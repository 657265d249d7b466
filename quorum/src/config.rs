//! The configuration of a member.

use lattice_ledger::clocks::{Limits, Patience};
use lattice_ledger::{DriftLimits, LEVEL_FIRST, LEVEL_KNOWN, LEVEL_MAX};
use lattice_model::config::is_address;
use lattice_pki::ca::{LIFETIME_MAX, LIFETIME_MIN};
use lattice_pki::tls::TlsFiles;
use lattice_store::raft::Peer;
use lattice_telemetry::settings::TelemetrySettings;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;

/// Largest number of entries between two snapshots.
const SNAPSHOT_ENTRIES_MAX: u64 = 1_000_000_000;
/// Longest run lease: a week.
const RUN_LEASE_MS_MAX: u64 = 7 * 24 * 3_600_000;

/// One member's configuration. The membership is agreed upon and changes; `members` is used to
/// create a cluster with `--bootstrap`, and for this member's own addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QuorumConfig {
    /// This member's id, at least 1.
    pub id: u64,
    /// The cluster's name, 1 to 63 bytes.
    pub cluster: String,
    /// The directory of log, snapshots and audit chain. It belongs to one member permanently.
    pub data_dir: PathBuf,
    /// Listening address for agents. Unset: only this member's `service` in `members`.
    pub service_listen: Option<SocketAddr>,
    /// Listening address for members. Unset: only this member's `raft` in `members`.
    pub raft_listen: Option<SocketAddr>,
    /// The initial members, including this one. A member that joins later only needs to name
    /// itself.
    pub members: Vec<MemberAddress>,
    /// Certificate (CN `member-<id>`, OU `quorum`), key and authority.
    pub tls: TlsFiles,
    /// The authority's key, mode 0600; its certificate must be one of those in `tls.ca`. With it,
    /// this member signs the renewed certificates of members and agents. Empty: it signs none, and
    /// other members must.
    pub ca_key: PathBuf,
    /// Validity of a certificate signed by this member, in seconds. 10 to ten years.
    pub certificate_seconds: u64,
    /// Interval of the leader's heartbeats to the other members, in milliseconds. 10 to 10,000.
    pub heartbeat_ms: u64,
    /// Time without a leader after which another one is elected, in milliseconds; up to half of it
    /// is added at random. At least five times `heartbeat_ms`.
    pub election_ms: u64,
    /// Interval of the agents' heartbeats, in milliseconds.
    pub node_heartbeat_ms: u64,
    /// Silence after which a node is Degraded, in milliseconds. More than `node_heartbeat_ms`.
    pub node_degraded_after_ms: u64,
    /// Further silence after which a node is Down, in milliseconds.
    pub node_down_after_ms: u64,
    /// The same two limits for nodes claimed for sensitive work, which are not given up because of
    /// a short silence.
    pub sensitive_degraded_after_ms: u64,
    pub sensitive_down_after_ms: u64,
    /// The limit for Down for nodes with work of a vCluster to which they no longer belong: it may be
    /// shorter, because the vCluster that owns them waits for them.
    pub borrowed_down_after_ms: u64,
    /// How much longer a node stays Degraded if it is silent here but other agents reach it, in
    /// milliseconds: it has lost its connection to the quorum, but is alive. 0: other agents are
    /// not asked. At most a week.
    pub node_cut_off_ms: u64,
    /// Timeout of a boot (`lattice node boot`), in milliseconds: a node that has not registered
    /// with a new boot id by then is Failed. At least 1,000.
    pub node_boot_ms: u64,
    /// Which unknown nodes may register: `listed`, those that an operator admitted (`lattice node
    /// admit`); or `automatic`, each node with a certificate. The leader's value applies: set the
    /// same on every member.
    pub node_admission: NodeAdmission,
    /// How long work with `--on-isolation=stop` continues without an acknowledged heartbeat, in
    /// milliseconds, for future claims. The leader's value applies: set the same on every member.
    /// 0: the time after which a silent node is Down. At least three times `node_heartbeat_ms`, at
    /// most a week.
    pub run_lease_ms: u64,
    /// A program that ensures that a silent node is dead (for example by switching off its power):
    /// see `docs/how-to/operators/silent-nodes.md`. The same on every member; the leader runs it.
    /// Empty: none.
    pub fencing_hook: PathBuf,
    /// Timeout of the hook, in seconds. 1 to 3,600.
    pub fencing_hook_seconds: u64,
    /// How long a node that drifted from its expected configuration stays in service, in seconds;
    /// then it is quarantined, and an operator must check it. The leader's value applies. 1 to
    /// 31,536,000 (a year).
    pub drift_remediation_seconds: u64,
    /// The same for a node that has had sensitive work since it drifted.
    pub drift_remediation_sensitive_seconds: u64,
    /// The URL to which events of nodes are sent with HTTP POST: `https://…` or `http://…`, see
    /// `docs/how-to/operators/notifications.md`. The same on every member; the leader sends. Empty:
    /// none.
    pub notify_url: String,
    /// The file with the secret for signing these requests: mode 0600, at least 16 bytes. Required
    /// with `notify_url`.
    pub notify_secret_file: PathBuf,
    /// The authorities for the server's certificate, PEM. Empty: the system's.
    pub notify_ca: PathBuf,
    /// A program that is run for each event. Empty: none.
    pub notify_hook: PathBuf,
    /// Timeout of the server or the program for one event, in seconds. 1 to 600.
    pub notify_seconds: u64,
    /// A program that is run for each mail about an allocation (`--mail-type`), see
    /// `docs/how-to/operators/mail.md`. The same on every member; the leader runs it. Empty: none, and whoever submits
    /// work with `--mail-type` gets a warning.
    pub mail_hook: PathBuf,
    /// The user that runs `mail_hook`, if this member runs as root. It must exist on the machine.
    pub mail_hook_user: String,
    /// Timeout of the program for one mail, in seconds. 1 to 600.
    pub mail_hook_seconds: u64,
    /// Number of applied entries after which the next snapshot is made. The first one after a start
    /// is made earlier or later, at an entry specific to this member. 10 to 1,000,000,000.
    pub snapshot_entries: u64,
    /// Size of the recent changes of nodes, allocations, tenants and leases kept in memory, in MiB:
    /// an agent that was offline resumes from them, or reads the complete list if they do not reach
    /// back far enough. 1 to 4,096.
    pub watch_history_mib: u32,
    /// The key with which this member signs the audit log: Ed25519, PKCS#8 in PEM, mode 0600. Read
    /// at the start: to rotate it, replace the file and restart. Empty: a key that the member
    /// creates in `data_dir`.
    pub audit_signing_key_path: PathBuf,
    /// Longest time that audit records wait for a signature, in seconds. 1 to 3,600.
    pub audit_sign_seconds: u64,
    /// The object store for archiving the audit log: `file:///DIR`, `s3://BUCKET/PREFIX`, `gs://…`,
    /// `az://…`. The same for all members. Empty: none.
    pub audit_archive: String,
    /// Store-specific settings (`endpoint`, `region`, `allow_http`, …).
    pub audit_archive_options: BTreeMap<String, String>,
    /// A file of mode 0600 with further such settings (`access_key_id`, `secret_access_key`, …);
    /// empty: none.
    pub audit_archive_credentials: PathBuf,
    /// Longest time that audit records wait to be archived, in seconds. 1 to 86,400.
    pub audit_archive_seconds: u64,
    /// Number of complete segments of the audit log (32,768 records, about 20 MB each) that this member
    /// keeps at least. It deletes older ones once the leader has read them back from the archive.
    /// Without `audit_archive` it deletes none. 1 to 1,000,000.
    pub audit_kept_segments: u32,
    /// The store for backups: `file:///DIR`, `s3://BUCKET/PREFIX`, `gs://…`, `az://…`; the same for
    /// every member. Empty: no backups.
    pub backup: String,
    /// Store-specific settings (`endpoint`, `region`, `allow_http`, …).
    pub backup_options: BTreeMap<String, String>,
    /// A file of mode 0600 with further such settings (`access_key_id`, `secret_access_key`, …);
    /// empty: none.
    pub backup_credentials: PathBuf,
    /// Age of the newest backup at which the leader makes the next one, in seconds. 10 to 604,800.
    pub backup_seconds: u64,
    /// Size of the file in `data_dir` with which this member reserves disk space, in bytes. While
    /// less than this amount is free beside that file, the member accepts nothing new. 4 MiB to
    /// 1 TiB.
    pub disk_reserve_bytes: u64,
    /// The highest cluster level that this member reports as supported. A value below the version's
    /// own level keeps a downgrade possible: the cluster stays at the lowest level that any member
    /// reports. 1 to the version's own level, which is the default.
    pub level_max: u32,
    /// The metrics of this member and where they are sent, see [`TelemetrySettings`].
    pub telemetry: TelemetrySettings,
}

/// Who decides which nodes belong to the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeAdmission {
    /// Operators, by name: `lattice node admit`.
    #[default]
    Listed,
    /// Whoever issues certificates: each node with a certificate may register.
    Automatic,
}

/// The addresses of one member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberAddress {
    /// Its id.
    pub id: u64,
    /// For agents, `host:port`.
    pub service: String,
    /// For members, `host:port`.
    pub raft: String,
}

impl MemberAddress {
    /// In the form of the Raft membership.
    pub(crate) fn peer(&self) -> Peer {
        Peer { service: self.service.clone(), raft: self.raft.clone() }
    }
}

impl Default for QuorumConfig {
    fn default() -> Self {
        Self {
            id: 1,
            cluster: "lattice".to_owned(),
            data_dir: PathBuf::from("/var/lib/lattice/quorum"),
            service_listen: None,
            raft_listen: None,
            members: Vec::new(),
            tls: TlsFiles::default(),
            ca_key: PathBuf::new(),
            certificate_seconds: 90 * 86_400,
            heartbeat_ms: 100,
            election_ms: 500,
            node_heartbeat_ms: 10_000,
            node_degraded_after_ms: 30_000,
            node_down_after_ms: 60_000,
            sensitive_degraded_after_ms: 120_000,
            sensitive_down_after_ms: 300_000,
            borrowed_down_after_ms: 30_000,
            node_cut_off_ms: 300_000,
            node_boot_ms: 600_000,
            node_admission: NodeAdmission::Listed,
            run_lease_ms: 0,
            fencing_hook: PathBuf::new(),
            fencing_hook_seconds: 60,
            drift_remediation_seconds: 24 * 3600,
            drift_remediation_sensitive_seconds: 4 * 3600,
            notify_url: String::new(),
            notify_secret_file: PathBuf::new(),
            notify_ca: PathBuf::new(),
            notify_hook: PathBuf::new(),
            notify_seconds: 10,
            mail_hook: PathBuf::new(),
            mail_hook_user: "nobody".to_owned(),
            mail_hook_seconds: 30,
            snapshot_entries: 10_000,
            watch_history_mib: 32,
            audit_signing_key_path: PathBuf::new(),
            audit_sign_seconds: 10,
            audit_archive: String::new(),
            audit_archive_options: BTreeMap::new(),
            audit_archive_credentials: PathBuf::new(),
            audit_archive_seconds: 600,
            audit_kept_segments: 64,
            backup: String::new(),
            backup_options: BTreeMap::new(),
            backup_credentials: PathBuf::new(),
            backup_seconds: 3600,
            disk_reserve_bytes: 32 << 20,
            level_max: LEVEL_KNOWN,
            telemetry: TelemetrySettings::default(),
        }
    }
}

/// An invalid value.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}: {why}")]
pub struct InvalidConfig {
    /// The key in the file.
    pub field: &'static str,
    /// Why the value is invalid, or which values are valid.
    pub why: String,
}

fn invalid(field: &'static str, why: &str) -> Result<(), InvalidConfig> {
    Err(InvalidConfig { field, why: why.to_owned() })
}

fn validate_hook(field: &'static str, hook: &Path) -> Result<(), InvalidConfig> {
    if hook.as_os_str().is_empty() || is_program(hook) {
        return Ok(());
    }
    Err(InvalidConfig { field, why: format!("{} is no executable file with an absolute path", hook.display()) })
}

impl QuorumConfig {
    /// Checks the ranges and relations of all values.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        self.validate_members()?;
        self.validate_clocks()?;
        self.validate_hooks()?;
        self.validate_storage()
    }

    fn validate_members(&self) -> Result<(), InvalidConfig> {
        if self.id == 0 {
            return invalid("id", "a member's id is at least 1");
        }
        if self.cluster.is_empty() || self.cluster.len() > 63 || self.cluster.chars().any(char::is_control) {
            return invalid("cluster", "1 to 63 bytes without control characters");
        }
        if !(LEVEL_FIRST..=LEVEL_MAX).contains(&self.level_max) {
            return Err(InvalidConfig { field: "level_max", why: format!("{LEVEL_FIRST} to {LEVEL_MAX}") });
        }
        if let Err(error) = self.telemetry.validate() {
            return Err(InvalidConfig { field: "telemetry", why: error.to_string() });
        }
        if self.members.is_empty() {
            return invalid("members", "at least this member itself must be named");
        }
        let ids: BTreeSet<u64> = self.members.iter().map(|m| m.id).collect();
        if ids.len() != self.members.len() || ids.contains(&0) {
            return invalid("members", "each member needs an id of its own, at least 1");
        }
        if !ids.contains(&self.id) {
            return Err(InvalidConfig { field: "members", why: format!("this member ({}) is not among them", self.id) });
        }
        if let Some(member) = self.members.iter().find(|m| !is_address(&m.service) || !is_address(&m.raft)) {
            return Err(InvalidConfig { field: "members", why: format!("member {} needs service and raft as host:port", member.id) });
        }
        if !(LIFETIME_MIN..=LIFETIME_MAX).contains(&Duration::from_secs(self.certificate_seconds)) {
            let why = format!("{} to {}", LIFETIME_MIN.as_secs(), LIFETIME_MAX.as_secs());
            return Err(InvalidConfig { field: "certificate_seconds", why });
        }
        Ok(())
    }

    fn validate_clocks(&self) -> Result<(), InvalidConfig> {
        if !(10..=10_000).contains(&self.heartbeat_ms) {
            return invalid("heartbeat_ms", "10 to 10000");
        }
        if self.election_ms < 5 * self.heartbeat_ms || self.election_ms > 100_000 {
            return invalid("election_ms", "at least five times heartbeat_ms and at most 100000");
        }
        if self.node_heartbeat_ms < 50 {
            return invalid("node_heartbeat_ms", "at least 50");
        }
        if self.node_degraded_after_ms <= self.node_heartbeat_ms {
            return invalid("node_degraded_after_ms", "more than node_heartbeat_ms");
        }
        if self.sensitive_degraded_after_ms <= self.node_heartbeat_ms {
            return invalid("sensitive_degraded_after_ms", "more than node_heartbeat_ms");
        }
        if self.node_cut_off_ms > RUN_LEASE_MS_MAX {
            return invalid("node_cut_off_ms", "at most 604800000 (a week)");
        }
        if self.node_boot_ms < 1000 {
            return invalid("node_boot_ms", "at least 1000");
        }
        if self.run_lease_ms != 0 && !(self.node_heartbeat_ms.saturating_mul(3)..=RUN_LEASE_MS_MAX).contains(&self.run_lease_ms) {
            return invalid("run_lease_ms", "0, or at least three times node_heartbeat_ms and at most 604800000 (a week)");
        }
        Ok(())
    }

    fn validate_hooks(&self) -> Result<(), InvalidConfig> {
        validate_hook("fencing_hook", &self.fencing_hook)?;
        if !(1..=3600).contains(&self.fencing_hook_seconds) {
            return invalid("fencing_hook_seconds", "1 to 3600");
        }
        for (field, seconds) in [
            ("drift_remediation_seconds", self.drift_remediation_seconds),
            ("drift_remediation_sensitive_seconds", self.drift_remediation_sensitive_seconds),
        ] {
            if !(1..=31_536_000).contains(&seconds) {
                return invalid(field, "1 to 31536000 (a year)");
            }
        }
        if !self.notify_url.is_empty() && self.notify_secret_file.as_os_str().is_empty() {
            return invalid("notify_secret_file", "requests to notify_url are signed: name a file with the secret");
        }
        validate_hook("notify_hook", &self.notify_hook)?;
        if !(1..=600).contains(&self.notify_seconds) {
            return invalid("notify_seconds", "1 to 600");
        }
        validate_hook("mail_hook", &self.mail_hook)?;
        if !(1..=600).contains(&self.mail_hook_seconds) {
            return invalid("mail_hook_seconds", "1 to 600");
        }
        Ok(())
    }

    fn validate_storage(&self) -> Result<(), InvalidConfig> {
        if !(10..=SNAPSHOT_ENTRIES_MAX).contains(&self.snapshot_entries) {
            return invalid("snapshot_entries", "10 to 1,000,000,000");
        }
        if !(1..=4096).contains(&self.watch_history_mib) {
            return invalid("watch_history_mib", "1 to 4096");
        }
        if !(1..=3600).contains(&self.audit_sign_seconds) {
            return invalid("audit_sign_seconds", "1 to 3600");
        }
        if !(1..=86_400).contains(&self.audit_archive_seconds) {
            return invalid("audit_archive_seconds", "1 to 86400");
        }
        if !(1..=1_000_000).contains(&self.audit_kept_segments) {
            return invalid("audit_kept_segments", "1 to 1000000");
        }
        if !(10..=604_800).contains(&self.backup_seconds) {
            return invalid("backup_seconds", "10 to 604800");
        }
        if !(4 << 20..=1 << 40).contains(&self.disk_reserve_bytes) {
            return invalid("disk_reserve_bytes", "4194304 (4 MiB) to 1099511627776 (1 TiB)");
        }
        Ok(())
    }

    /// The listening addresses for agents and for members.
    pub fn listens(&self) -> (String, String) {
        let own = self.members.iter().find(|member| member.id == self.id);
        let at =
            |listen: Option<SocketAddr>, own: Option<&String>| listen.map_or_else(|| own.cloned().unwrap_or_default(), |at| at.to_string());
        (at(self.service_listen, own.map(|own| &own.service)), at(self.raft_listen, own.map(|own| &own.raft)))
    }

    /// The limits for silent nodes.
    pub fn limits(&self) -> Limits {
        let patience = |degraded, down| {
            let (degraded_after, down_after) = (Duration::from_millis(degraded), Duration::from_millis(down));
            Patience { degraded_after, down_after }
        };
        Limits {
            own: patience(self.node_degraded_after_ms, self.node_down_after_ms),
            sensitive: patience(self.sensitive_degraded_after_ms, self.sensitive_down_after_ms),
            borrowed: patience(self.node_degraded_after_ms, self.borrowed_down_after_ms),
            cut_off_after: Duration::from_millis(self.node_cut_off_ms),
        }
    }

    /// How long drifted nodes stay in service.
    pub fn drift_limits(&self) -> DriftLimits {
        let ms = |seconds: u64| seconds.saturating_mul(1000);
        DriftLimits { ordinary_ms: ms(self.drift_remediation_seconds), sensitive_ms: ms(self.drift_remediation_sensitive_seconds) }
    }

    /// The length of run leases, in milliseconds.
    pub fn run_lease_ms(&self) -> u64 {
        let until_down = self.node_degraded_after_ms.saturating_add(self.node_down_after_ms);
        if self.run_lease_ms == 0 { until_down.min(RUN_LEASE_MS_MAX) } else { self.run_lease_ms }
    }

    /// This member's addresses.
    pub fn this_member(&self) -> Option<&MemberAddress> {
        self.members.iter().find(|m| m.id == self.id)
    }
}

fn is_program(path: &Path) -> bool {
    path.is_absolute() && std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> QuorumConfig {
        let text = "id: 2\nmembers:\n  - {id: 1, service: \"h1:50051\", raft: \"h1:9000\"}\n  - {id: 2, service: \"h2:50051\", raft: \"h2:9000\"}\n";
        lattice_model::config::parse("quorum.yaml", text).unwrap()
    }

    #[test]
    fn the_documented_file_is_read_and_checked() {
        assert_eq!(config().validate(), Ok(()));
        let refused = |change: &dyn Fn(&mut QuorumConfig), field: &str| {
            let mut changed = config();
            change(&mut changed);
            assert_eq!(changed.validate().unwrap_err().field, field);
        };
        refused(&|c| c.id = 3, "members");
        refused(&|c| c.members.clear(), "members");
        refused(&|c| c.members[1].id = 1, "members");
        refused(&|c| c.members[0].raft = "h1".to_owned(), "members");
        refused(&|c| c.election_ms = 400, "election_ms");
        refused(&|c| c.node_degraded_after_ms = 10_000, "node_degraded_after_ms");
        refused(&|c| c.sensitive_degraded_after_ms = 10_000, "sensitive_degraded_after_ms");
        refused(&|c| c.node_cut_off_ms = u64::MAX, "node_cut_off_ms");
        refused(&|c| c.node_boot_ms = 999, "node_boot_ms");
        refused(&|c| c.run_lease_ms = 29_999, "run_lease_ms");
        refused(&|c| c.fencing_hook = "bin/sh".into(), "fencing_hook");
        refused(&|c| c.fencing_hook_seconds = 0, "fencing_hook_seconds");
        refused(&|c| c.drift_remediation_seconds = 0, "drift_remediation_seconds");
        refused(&|c| c.notify_url = "https://h/".into(), "notify_secret_file");
        refused(&|c| c.notify_hook = "bin/sh".into(), "notify_hook");
        refused(&|c| c.notify_seconds = 0, "notify_seconds");
        refused(&|c| c.mail_hook = "bin/mail".into(), "mail_hook");
        refused(&|c| c.mail_hook_seconds = 601, "mail_hook_seconds");
        assert_eq!(config().run_lease_ms(), 90_000);
        refused(&|c| c.cluster = String::new(), "cluster");
        refused(&|c| c.certificate_seconds = 9, "certificate_seconds");
        refused(&|c| c.watch_history_mib = 0, "watch_history_mib");
        refused(&|c| c.audit_sign_seconds = 0, "audit_sign_seconds");
        refused(&|c| c.audit_archive_seconds = 0, "audit_archive_seconds");
        refused(&|c| c.audit_kept_segments = 0, "audit_kept_segments");
        refused(&|c| c.backup_seconds = 9, "backup_seconds");
        refused(&|c| c.disk_reserve_bytes = 1 << 20, "disk_reserve_bytes");
        refused(&|c| c.level_max = LEVEL_FIRST - 1, "level_max");
        refused(&|c| c.level_max = LEVEL_MAX + 1, "level_max");
        assert_eq!(config().level_max, LEVEL_KNOWN);
        assert_eq!(QuorumConfig { level_max: LEVEL_MAX, ..config() }.validate(), Ok(()));
        let error = lattice_model::config::parse::<QuorumConfig>("q.yaml", "data_dri: x\n").unwrap_err();
        assert!(error.to_string().contains("data_dir"), "{error}");
    }
}
