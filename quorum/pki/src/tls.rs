//! The files of keys and certificates, and why they may be unusable.

use crate::identity::{CallerError, Role};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// One identity and the authority that it trusts, as PEM texts.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientTls {
    /// The authority's certificate.
    pub ca: String,
    /// This process's certificate (chain).
    pub cert: String,
    /// Its key.
    pub key: String,
}

impl std::fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientTls").finish_non_exhaustive()
    }
}

/// Why TLS files, or an address, cannot be used.
#[derive(Debug, Error)]
pub enum TlsError {
    #[error("{}: cannot be read", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{endpoint:?} is not an address (host:port)")]
    Endpoint {
        endpoint: String,
        #[source]
        source: tonic::transport::Error,
    },
    #[error("{}: others can read the certificate's key (mode {mode:o}); chmod 600, and issue another certificate if somebody may have read the key", path.display())]
    Open { path: PathBuf, mode: u32 },
    #[error("the {what} cannot be used: {why}")]
    Pem { what: &'static str, why: String },
    #[error("certificate, key or authority cannot be used")]
    Material(#[from] rustls::Error),
    #[error("the authority's certificate cannot be used")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
    #[error("the certificate identifies nobody")]
    Nobody(#[from] CallerError),
    #[error("the certificate is {name}'s (role {role}), not {own}'s (role {own_role})")]
    Foreign { name: String, role: Role, own: String, own_role: Role },
}

/// The paths of certificate, key and authority. Rewritten files are used for every later
/// connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsFiles {
    /// The authority's certificate, PEM.
    pub ca: PathBuf,
    /// This process's certificate, PEM.
    pub cert: PathBuf,
    /// Its key, PEM, mode 0600.
    pub key: PathBuf,
}

impl TlsFiles {
    /// Reads all three. A key to which its group or others have any access is refused.
    pub fn read(&self) -> Result<ClientTls, TlsError> {
        let about = std::fs::metadata(&self.key).map_err(|source| TlsError::Read { path: self.key.clone(), source })?;
        let mode = about.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(TlsError::Open { path: self.key.clone(), mode });
        }
        let read = |path: &PathBuf| std::fs::read_to_string(path).map_err(|source| TlsError::Read { path: path.clone(), source });
        Ok(ClientTls { ca: read(&self.ca)?, cert: read(&self.cert)?, key: read(&self.key)? })
    }
}

/// Replaces a small file. After a crash there is either the old or the new one, complete. Only those
/// who may read the final file can ever read the temporary one.
pub fn replace_file(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let temporary = path.with_extension("new");
    match std::fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    File::open(path.parent().unwrap_or(path))?.sync_all()
}
