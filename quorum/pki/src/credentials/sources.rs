//! The files that credentials come from: the configured ones, and the file that stores a renewed
//! certificate.

use super::material::Material;
use crate::tls::{ClientTls, TlsError, TlsFiles, replace_file};
use lattice_model::with_causes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The format version of the stored file.
pub(super) const RENEWAL_VERSION: u32 = 1;

/// The paths of credentials.
#[derive(Clone, Debug)]
pub(super) struct CredentialPaths {
    pub(super) files: TlsFiles,
    /// The path of the file with the renewed certificate.
    pub(super) renewed: PathBuf,
}

/// A renewed certificate on disk, mode 0600.
#[derive(Serialize, Deserialize)]
pub(super) struct StoredRenewal {
    pub(super) version: u32,
    /// SHA-256 of the configured certificate from which it was renewed, in hexadecimal digits.
    pub(super) instead_of: String,
    /// The authority trusted at that time: for a start without the configured files.
    pub(super) ca: String,
    pub(super) cert: String,
    pub(super) key: String,
}

/// The credentials found.
pub(super) struct Found {
    pub(super) material: Material,
    /// See [`StoredRenewal::instead_of`].
    pub(super) instead_of: String,
}

/// Reads the current credentials.
pub(super) fn find(paths: &CredentialPaths) -> Result<Found, TlsError> {
    let stored = StoredRenewal::read(&paths.renewed);
    let pem = match (paths.files.read(), stored) {
        (Ok(pem), Some(stored)) if stored.instead_of == digest(&pem.cert) => {
            match Material::new(ClientTls { ca: pem.ca.clone(), cert: stored.cert, key: stored.key }) {
                Ok(material) if material.valid.has_begun() && material.valid.left().is_some() => {
                    return Ok(Found { material, instead_of: stored.instead_of });
                }
                Ok(_) => {}
                Err(error) => {
                    let error = with_causes(&error);
                    tracing::warn!(%error, file = %paths.renewed.display(), "the renewed certificate cannot be used; the configured one is used");
                }
            }
            pem
        }
        (Ok(pem), _) => pem,
        (Err(error @ TlsError::Open { .. }), _) => return Err(error),
        (Err(_), Some(stored)) => {
            let material = Material::new(ClientTls { ca: stored.ca, cert: stored.cert, key: stored.key })?;
            return Ok(Found { material, instead_of: stored.instead_of });
        }
        (Err(error), None) => return Err(error),
    };
    let instead_of = digest(&pem.cert);
    Ok(Found { material: Material::new(pem)?, instead_of })
}

impl StoredRenewal {
    fn read(path: &Path) -> Option<Self> {
        let stored = match std::fs::read(path) {
            Ok(bytes) => serde_json::from_slice::<Self>(&bytes).map_err(|e| e.to_string()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => Err(error.to_string()),
        };
        let of_this_version = stored.and_then(|stored| match stored.version {
            RENEWAL_VERSION => Ok(stored),
            version => Err(format!("it is of version {version}")),
        });
        of_this_version.inspect_err(|error| tracing::warn!(%error, file = %path.display(), "the renewed certificate cannot be read")).ok()
    }

    pub(super) fn write(&self, path: &Path) -> io::Result<()> {
        replace_file(path, &serde_json::to_vec(self).map_err(io::Error::other)?, 0o600)
    }
}

fn digest(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Detects rewritten files: inode, size and modification time of each.
pub(super) fn stamps(files: &TlsFiles) -> [Option<(u64, u64, i64, i64)>; 3] {
    [&files.ca, &files.cert, &files.key].map(|path| std::fs::metadata(path).ok().map(|m| (m.ino(), m.len(), m.mtime(), m.mtime_nsec())))
}
