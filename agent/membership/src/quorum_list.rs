//! The quorum's last list of its members, on disk: an agent that was down can still find a quorum
//! that has moved meanwhile.

use lattice_agent_common::files;
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::wire::MemberList;
use std::path::{Path, PathBuf};

/// The list of members and its file.
pub struct QuorumList {
    client: QuorumClient,
    path: PathBuf,
}

impl QuorumList {
    /// Loads the stored list into `client`. If the file cannot be read, the client uses the
    /// configured members.
    pub fn open(client: QuorumClient, state_dir: &Path) -> Self {
        let path = state_dir.join("quorum.json");
        let unused = |why: String| {
            tracing::warn!(file = %path.display(), why, "the list of the quorum's members cannot be used; the configured ones are asked");
        };
        match std::fs::read(&path).map(|bytes| serde_json::from_slice::<MemberList>(&bytes)) {
            Ok(Ok(list)) => drop(client.learn(&list)),
            Ok(Err(error)) => unused(error.to_string()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => unused(error.to_string()),
        }
        Self { client, path }
    }

    /// Takes a member's list, unless a newer one is known. If the file cannot be written, the next
    /// start uses the configured members.
    pub fn learn(&self, list: &MemberList) {
        if !self.client.learn(list) {
            return;
        }
        tracing::info!(members = %list.services.join(", "), "the quorum's members");
        let written = serde_json::to_vec(list).map_err(|e| e.to_string());
        if let Err(why) = written.and_then(|text| files::replace(&self.path, &text).map_err(|e| e.to_string())) {
            tracing::warn!(why, "the list of the quorum's members cannot be stored");
        }
    }
}
