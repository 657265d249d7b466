//! The members of the quorum as it last said, kept on disk: an agent that was away finds a quorum that moved meanwhile.

use lattice_agent_common::files;
use lattice_quorum_client::QuorumClient;
use lattice_quorum_client::wire::MemberList;
use std::path::{Path, PathBuf};

/// The list and its file.
pub struct QuorumList {
    client: QuorumClient,
    path: PathBuf,
}

impl QuorumList {
    /// Reads the list of the last time into `client`. One that cannot be read counts for nothing: the configured
    /// members are asked.
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

    /// Takes what a member says, unless a newer list is known. Without the file the next start asks the configured members.
    pub fn learn(&self, list: &MemberList) {
        if !self.client.learn(list) {
            return;
        }
        tracing::info!(members = %list.services.join(", "), "the quorum's members");
        let written = serde_json::to_vec(list).map_err(|e| e.to_string());
        if let Err(why) = written.and_then(|text| files::replace(&self.path, &text).map_err(|e| e.to_string())) {
            tracing::warn!(why, "the list of the quorum's members is not kept");
        }
    }
}
