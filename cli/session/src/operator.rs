//! Finds an operator's credential.

use crate::failure::Failure;
use crate::settings::user_dir;
use lattice_api::operator::{Credential, CredentialError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Its file name, beside an agent's socket and in a user's configuration directory.
const FILE: &str = "operator.pem";

/// The named credential; else the one beside the agent's socket, if this user may read it; else the user's own.
///
/// # Errors
/// The named credential cannot be used, or a found one is damaged or readable by others.
pub fn find_credential(named: Option<&Path>, endpoint: &str) -> Result<Option<Credential>, Failure> {
    if let Some(path) = named {
        return Credential::read(path).map(Some).map_err(credential_failure);
    }
    let socket = endpoint.strip_prefix("unix:").map(|path| path.strip_prefix("//").unwrap_or(path));
    let beside = socket.and_then(|socket| Path::new(socket).parent()).map(|dir| dir.join(FILE));
    let own = user_dir("XDG_CONFIG_HOME", ".config").map(|dir| dir.join("lattice").join(FILE));
    for path in [beside, own].into_iter().flatten() {
        if let Some(credential) = read_if_present(path)? {
            return Ok(Some(credential));
        }
    }
    Ok(None)
}

fn read_if_present(path: PathBuf) -> Result<Option<Credential>, Failure> {
    match Credential::read(&path) {
        Ok(credential) => Ok(Some(credential)),
        // It does not exist, or this user may not read it.
        Err(CredentialError::File { source, .. })
            if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::PermissionDenied) =>
        {
            Ok(None)
        }
        Err(error) => Err(credential_failure(error)),
    }
}

fn credential_failure(error: CredentialError) -> Failure {
    let why = std::error::Error::source(&error).map_or_else(String::new, |source| format!(": {source}"));
    Failure::usage(format!("{error}{why}"))
}
