//! A member's signing key for the audit chain and its exports: Ed25519 (RFC 8032).
//!
//! The key is a PKCS#8 file as written by `openssl genpkey -algorithm ed25519`. If none is
//! configured, the member creates one in its data directory. The member reads it once, at its
//! start: to rotate it, replace the file and restart.
//!
//! Signatures and keys are records of the chain that they sign: a separate file would need
//! replication, backup, archive and export of its own. If there are new records, the leader
//! proposes `SignHead` for the last one that it has applied; `apply` has no secrets and checks no
//! signatures. A key is recorded (`SigningKeySet`) before it signs, and each member has its own, so
//! a change of the leader needs no rotation. The last few seconds of the chain are not signed yet.

use lattice_model::MemberId;
use rcgen::{KeyPair, PKCS_ED25519};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use std::fmt;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The file name of a key that the member created itself, in its data directory.
const OWN_KEY: &str = "audit-signing.key";

/// Why there is no usable key.
#[derive(Debug, Error)]
pub enum SignerError {
    #[error("the audit log's signing key {}: it cannot be read", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the audit log's signing key {}: others can read it (mode {mode:o}); chmod 600", path.display())]
    Open { path: PathBuf, mode: u32 },
    #[error(
        "the audit log's signing key {}: it is not an Ed25519 key in PEM (PKCS#8); `openssl genpkey -algorithm ed25519 -out FILE` creates one",
        path.display()
    )]
    Foreign { path: PathBuf },
    #[error("the audit log's signing key {}: it cannot be created", path.display())]
    Make {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// A member's key.
pub struct Signer {
    member: MemberId,
    key: Ed25519KeyPair,
    public: String,
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer").field("member", &self.member).field("public", &self.public).finish_non_exhaustive()
    }
}

impl Signer {
    /// Reads the key at `path`; if that is empty, the member's own key in `data_dir`, which is
    /// created if missing.
    pub fn open(path: &Path, data_dir: &Path, member: MemberId) -> Result<Self, SignerError> {
        if !path.as_os_str().is_empty() {
            return Self::read(path, member);
        }
        let own = data_dir.join(OWN_KEY);
        if !own.exists() {
            make(&own).map_err(|source| SignerError::Make { path: own.clone(), source })?;
            tracing::info!(file = %own.display(), "created a key for the audit log's signatures; to use another one, set audit_signing_key_path");
        }
        Self::read(&own, member)
    }

    fn read(path: &Path, member: MemberId) -> Result<Self, SignerError> {
        let cannot = |source| SignerError::Read { path: path.to_owned(), source };
        let mode = std::fs::metadata(path).map_err(cannot)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(SignerError::Open { path: path.to_owned(), mode });
        }
        let pem = std::fs::read(path).map_err(cannot)?;
        let foreign = || SignerError::Foreign { path: path.to_owned() };
        let der = PrivatePkcs8KeyDer::from_pem_slice(&pem).map_err(|_| foreign())?;
        let key = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der.secret_pkcs8_der()).map_err(|_| foreign())?;
        let public = hex(key.public_key().as_ref());
        Ok(Self { member, key, public })
    }

    /// The member that signs with this key.
    pub fn member(&self) -> MemberId {
        self.member
    }

    /// The public key, 64 hexadecimal digits.
    pub fn public(&self) -> &str {
        &self.public
    }

    /// The signature of `message`, 128 hexadecimal digits.
    pub fn sign(&self, message: &[u8]) -> String {
        hex(self.key.sign(message).as_ref())
    }
}

/// Whether `signature` is a valid signature of `message` by the public key `key`; both are
/// hexadecimal digits.
pub fn verifies(key: &str, message: &[u8], signature: &str) -> bool {
    let (Some(key), Some(signature)) = (bytes(key), bytes(signature)) else { return false };
    UnparsedPublicKey::new(&ED25519, key).verify(message, &signature).is_ok()
}

fn make(path: &Path) -> io::Result<()> {
    let key = KeyPair::generate_for(&PKCS_ED25519).map_err(io::Error::other)?;
    // The key file is complete or absent: after a crash the next start overwrites the temporary
    // file.
    let temporary = path.with_extension("key-new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(key.serialize_pem().as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    std::fs::File::open(path.parent().unwrap_or(path))?.sync_all()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string cannot fail");
        text
    })
}

fn bytes(hex: &str) -> Option<Vec<u8>> {
    let even = hex.len().is_multiple_of(2) && hex.is_ascii();
    even.then(|| (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).ok()).collect()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("lattice-signer-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _gone = std::fs::remove_dir_all(&self.0);
        }
    }

    /// RFC 8032, 7.1, test 2, in the format of `openssl genpkey`.
    const KEY: &str =
        "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIEzNCJso/5banbbDRuwRTg9bijGfNaumJNqM9u1PuKb7\n-----END PRIVATE KEY-----\n";
    const PUBLIC: &str = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c";
    const SIGNATURE: &str =
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00";

    #[test]
    fn a_signature_equals_the_example_in_rfc_8032() {
        let dir = Dir::new("standard");
        let path = dir.0.join("key.pem");
        std::fs::write(&path, KEY).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let signer = Signer::open(&path, &dir.0, MemberId(1)).unwrap();
        assert_eq!((signer.public(), signer.sign(&[0x72]).as_str()), (PUBLIC, SIGNATURE));
        assert!(verifies(PUBLIC, &[0x72], SIGNATURE) && !verifies(PUBLIC, &[0x73], SIGNATURE));
        assert!(!verifies(PUBLIC, &[0x72], "é") && !verifies("", &[0x72], SIGNATURE));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(Signer::open(&path, &dir.0, MemberId(1)), Err(SignerError::Open { mode: 0o640, .. })));
    }

    #[test]
    fn a_member_without_a_key_creates_one_and_uses_it_again() {
        let dir = Dir::new("own");
        let none = Path::new("");
        let first = Signer::open(none, &dir.0, MemberId(1)).unwrap();
        assert_eq!(Signer::open(none, &dir.0, MemberId(1)).unwrap().public(), first.public());
        let own = dir.0.join(OWN_KEY);
        assert_eq!(std::fs::metadata(&own).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::write(&own, "not a key").unwrap();
        assert!(matches!(Signer::open(none, &dir.0, MemberId(1)), Err(SignerError::Foreign { .. })));
        assert!(matches!(Signer::open(&dir.0.join("missing"), &dir.0, MemberId(1)), Err(SignerError::Read { .. })));
    }
}
