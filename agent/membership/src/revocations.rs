//! The quorum's last list of revoked certificates, on disk: an agent that starts without a quorum
//! refuses them as well.

use lattice_agent_common::files;
use lattice_agent_common::troubles::Troubles;
use lattice_model::Timestamp;
use lattice_pki::revoked::RevocationList;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

const VERSION: u32 = 1;
/// The subject in this node's problems.
const SUBJECT: &str = "revoked certificates";

#[derive(Serialize, Deserialize)]
struct StoredList {
    version: u32,
    /// By name on the certificate: certificates issued before this time are revoked.
    names: BTreeMap<String, Timestamp>,
}

/// The revocation list that the mesh and the sessions check, and its file.
pub struct Revocations {
    path: PathBuf,
    list: RevocationList,
    stored: BTreeMap<String, Timestamp>,
    troubles: Troubles,
}

impl Revocations {
    /// Loads the stored list. An unusable file is set aside and reported in `notes`: until the
    /// quorum has sent the list again, this node accepts revoked certificates.
    pub fn open(state_dir: &Path, list: RevocationList, troubles: Troubles, notes: &mut Vec<String>) -> Self {
        let path = state_dir.join("revocations.json");
        let stored = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice::<StoredList>(&bytes).map_err(|e| e.to_string()).and_then(|list| match list.version {
                VERSION => Ok(list.names),
                version => Err(format!("its version is {version}, this agent's {VERSION}")),
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(error) => Err(format!("it cannot be read: {error}")),
        };
        let stored = stored.unwrap_or_else(|why| {
            let moved = match files::set_file_aside(&path) {
                Ok(aside) => format!("It is kept as {}; remove it when nobody needs it", aside.display()),
                Err(error) => format!("It cannot be moved aside ({error})"),
            };
            let note = format!(
                "revoked certificates: {} is not usable ({why}). {moved}. Until the quorum has sent the list again, this node accepts them",
                path.display()
            );
            tracing::error!("{note}");
            notes.push(note);
            BTreeMap::new()
        });
        list.learn(stored.clone());
        Self { path, list, stored, troubles }
    }

    /// Applies the quorum's list, then writes it to disk.
    pub fn learn(&mut self, names: Vec<(String, Timestamp)>) {
        self.list.learn(names);
        self.keep();
    }

    /// Writes the list to disk if it has changed. After a failure a later call tries again.
    pub fn keep(&mut self) {
        let names = self.list.names();
        if names == self.stored {
            return;
        }
        let written = serde_json::to_vec(&StoredList { version: VERSION, names: names.clone() }).map_err(io::Error::other);
        match written.and_then(|text| files::replace(&self.path, &text)) {
            Ok(()) => {
                self.stored = names;
                self.troubles.over(SUBJECT);
            }
            Err(error) => {
                let why = format!(
                    "{} cannot be written ({error}): after a restart without a quorum, this node accepts the certificates that were revoked last",
                    self.path.display()
                );
                tracing::warn!(why, "revoked certificates");
                self.troubles.set(SUBJECT, why);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revoked_certificates_are_known_after_a_restart_and_damage_is_reported() {
        let dir = std::env::temp_dir().join(format!("lattice-revocations-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let mut notes = Vec::new();
        let mut open = || {
            let list = RevocationList::default();
            (Revocations::open(&dir, list.clone(), Troubles::default(), &mut notes), list)
        };
        let names = BTreeMap::from([("n7".to_owned(), Timestamp(9))]);
        let (mut first, _) = open();
        first.learn(names.clone().into_iter().collect());
        let (_, again) = open();
        assert_eq!(again.names(), names);
        std::fs::write(dir.join("revocations.json"), b"{").unwrap();
        let (_, damaged) = open();
        assert!(damaged.names().is_empty());
        assert!(notes.len() == 1 && notes[0].contains("is kept as"), "{notes:?}");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
