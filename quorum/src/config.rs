//! The configuration of a member.

use crate::ca::{LIFETIME_MAX, LIFETIME_MIN};
use crate::ledger::{LEVEL_FIRST, LEVEL_KNOWN};
use crate::raft::Peer;
use crate::tls::TlsFiles;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;

/// One member's configuration. Who the members are is agreed upon and changes; `members` is what a cluster is made of
/// by `--bootstrap`, and where this member itself is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QuorumConfig {
    /// This member's id, at least 1.
    pub id: u64,
    /// The cluster's name, 1 to 63 bytes.
    pub cluster: String,
    /// Where log, snapshots and audit file lie. One member's for ever.
    pub data_dir: PathBuf,
    /// Where agents are served.
    pub service_listen: SocketAddr,
    /// Where members are served.
    pub raft_listen: SocketAddr,
    /// The members at the beginning, this one among them. A member that joins later needs to name itself alone.
    pub members: Vec<MemberAddress>,
    /// Certificate (CN `member-<id>`, OU `quorum`), key and authority.
    pub tls: TlsFiles,
    /// The authority's key, mode 0600; its certificate must be one of those in `tls.ca`. With it this member signs the next
    /// certificates of members and agents. Empty: it signs none, and others must.
    pub ca_key: PathBuf,
    /// How long a certificate lives that this member signs, in seconds. 10 to ten years.
    pub certificate_seconds: u64,
    /// How often the leader shows that it lives, in milliseconds. 10 to 10,000.
    pub heartbeat_ms: u64,
    /// How long a leader is missed before another is elected, in milliseconds; up to half as much is added at random.
    /// At least five times `heartbeat_ms`.
    pub election_ms: u64,
    /// How often agents are told to show that they live, in milliseconds.
    pub node_heartbeat_ms: u64,
    /// A node that was silent for so long is Degraded, in milliseconds. More than `node_heartbeat_ms`.
    pub node_degraded_after_ms: u64,
    /// A node that was silent for so much longer is Down, in milliseconds.
    pub node_down_after_ms: u64,
    /// A snapshot is made when so many entries were applied since the last one. At least 10.
    pub snapshot_entries: u64,
    /// Changes of nodes, allocations, tenants and leases that are kept in memory, in MiB: an agent that was away goes on with
    /// them, and reads the whole list again where they do not reach back far enough. 1 to 4,096.
    pub watch_history_mib: u32,
    /// The key with which this member signs the audit log: Ed25519, PKCS#8 in PEM, mode 0600. Read at the start; another
    /// file and a restart rotate it. Empty: a key that the member makes for itself in `data_dir`.
    pub audit_signing_key_path: PathBuf,
    /// How long audit records wait for a signature at most, in seconds. 1 to 3,600.
    pub audit_sign_seconds: u64,
    /// The object store that the audit log is archived to: `file:///DIR`, `s3://BUCKET/PREFIX`, `gs://…`, `az://…`. The
    /// same for all members. Empty: none.
    pub audit_archive: String,
    /// The store's own settings (`endpoint`, `region`, `allow_http`, …).
    pub audit_archive_options: BTreeMap<String, String>,
    /// A file of mode 0600 with further such settings (`access_key_id`, `secret_access_key`, …); empty: none.
    pub audit_archive_credentials: PathBuf,
    /// How long audit records wait to be archived at most, in seconds. 1 to 86,400.
    pub audit_archive_seconds: u64,
    /// Where backups go: `file:///DIR`, `s3://BUCKET/PREFIX`, `gs://…`, `az://…`; the same for every member. Empty: none are made.
    pub backup: String,
    /// The store's own settings (`endpoint`, `region`, `allow_http`, …).
    pub backup_options: BTreeMap<String, String>,
    /// A file of mode 0600 with further such settings (`access_key_id`, `secret_access_key`, …); empty: none.
    pub backup_credentials: PathBuf,
    /// How old the newest backup is when the leader makes the next one, in seconds. 10 to 604,800.
    pub backup_seconds: u64,
    /// Bytes of the disk of `data_dir` that this member keeps for itself, in a file of that size there. When less than as much
    /// is free beside it, the member takes nothing new, and goes on by itself when there is room. 4 MiB to 1 TiB.
    pub disk_reserve_bytes: u64,
    /// The highest cluster level that this member says it can follow. Lower than what its version knows, it keeps the way
    /// back to an older version open: the cluster stays at the lowest level that any member says. 1 to that version's own.
    pub level_max: u32,
}

/// Where one member is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberAddress {
    /// Its id.
    pub id: u64,
    /// By agents, `host:port`.
    pub service: String,
    /// By members, `host:port`.
    pub raft: String,
}

impl MemberAddress {
    /// As the Raft membership has it.
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
            service_listen: SocketAddr::from(([0, 0, 0, 0], 50051)),
            raft_listen: SocketAddr::from(([0, 0, 0, 0], 9000)),
            members: Vec::new(),
            tls: TlsFiles::default(),
            ca_key: PathBuf::new(),
            certificate_seconds: 90 * 86_400,
            heartbeat_ms: 100,
            election_ms: 500,
            node_heartbeat_ms: 10_000,
            node_degraded_after_ms: 30_000,
            node_down_after_ms: 60_000,
            snapshot_entries: 10_000,
            watch_history_mib: 32,
            audit_signing_key_path: PathBuf::new(),
            audit_sign_seconds: 10,
            audit_archive: String::new(),
            audit_archive_options: BTreeMap::new(),
            audit_archive_credentials: PathBuf::new(),
            audit_archive_seconds: 600,
            backup: String::new(),
            backup_options: BTreeMap::new(),
            backup_credentials: PathBuf::new(),
            backup_seconds: 3600,
            disk_reserve_bytes: 32 << 20,
            level_max: LEVEL_KNOWN,
        }
    }
}

/// A value that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{field}: {why}")]
pub struct InvalidConfig {
    /// The key in the file.
    pub field: &'static str,
    /// What would be right.
    pub why: String,
}

impl QuorumConfig {
    /// Checks ranges and relations.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        let invalid = |field, why: &str| Err(InvalidConfig { field, why: why.to_owned() });
        if self.id == 0 {
            return invalid("id", "members are counted from 1");
        }
        if self.cluster.is_empty() || self.cluster.len() > 63 || self.cluster.chars().any(char::is_control) {
            return invalid("cluster", "1 to 63 bytes without control characters");
        }
        if !(LEVEL_FIRST..=LEVEL_KNOWN).contains(&self.level_max) {
            return Err(InvalidConfig { field: "level_max", why: format!("{LEVEL_FIRST} to {LEVEL_KNOWN}") });
        }
        if self.members.is_empty() {
            return invalid("members", "at least this member itself must be named");
        }
        let ids: BTreeSet<u64> = self.members.iter().map(|m| m.id).collect();
        if ids.len() != self.members.len() || ids.contains(&0) {
            return invalid("members", "each needs an id of its own, counted from 1");
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
        if self.snapshot_entries < 10 {
            return invalid("snapshot_entries", "at least 10");
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
        if !(10..=604_800).contains(&self.backup_seconds) {
            return invalid("backup_seconds", "10 to 604800");
        }
        if !(4 << 20..=1 << 40).contains(&self.disk_reserve_bytes) {
            return invalid("disk_reserve_bytes", "4194304 (4 MiB) to 1099511627776 (1 TiB)");
        }
        Ok(())
    }

    /// Where this member is reached.
    pub fn this_member(&self) -> Option<&MemberAddress> {
        self.members.iter().find(|m| m.id == self.id)
    }
}

/// Whether the text is `host:port`.
pub fn is_address(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|p| p != 0))
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
        refused(&|c| c.cluster = String::new(), "cluster");
        refused(&|c| c.certificate_seconds = 9, "certificate_seconds");
        refused(&|c| c.watch_history_mib = 0, "watch_history_mib");
        refused(&|c| c.audit_sign_seconds = 0, "audit_sign_seconds");
        refused(&|c| c.audit_archive_seconds = 0, "audit_archive_seconds");
        refused(&|c| c.backup_seconds = 9, "backup_seconds");
        refused(&|c| c.disk_reserve_bytes = 1 << 20, "disk_reserve_bytes");
        let error = lattice_model::config::parse::<QuorumConfig>("q.yaml", "data_dri: x\n").unwrap_err();
        assert!(error.to_string().contains("data_dir"), "{error}");
    }
}
