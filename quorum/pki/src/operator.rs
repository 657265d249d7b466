//! Verification of the operator behind a request: an agent only forwards the proof.
//!
//! ```text
//!   token ──▶ certificate: our authority, role operator, valid now ──▶ signature ──▶ method, time ──▶ name
//! ```
//!
//! A compromised agent cannot create a token. It can replay one for the same method until the token
//! is too old: five minutes, or an hour for an export of the audit log.

use crate::credentials::Credentials;
use crate::identity::{CallerError, Revoked, Role, Shown};
use crate::tls::TlsError;
use lattice_model::operator_token::{CLOCK_SKEW_MAX, EXPORT_AUDIT, EXPORT_MAX, signed_bytes};
use lattice_model::{OperatorToken, Timestamp};
use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use rustls::pki_types::CertificateDer;
use std::time::Duration;
use thiserror::Error;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The operator of a valid token, and the method that the token allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operator {
    /// The name in their certificate.
    pub name: String,
    /// The API method that the token allows, such as `NodeService/SetHold`.
    pub method: String,
}

/// Why a token is not valid.
#[derive(Debug, Error)]
pub enum TokenError {
    #[error("the certificate in it identifies nobody")]
    Nobody(#[from] CallerError),
    #[error("the certificate in it is for role {0}, not operator")]
    Role(Role),
    #[error("the certificate in it is not valid")]
    Certificate(#[from] TlsError),
    #[error(transparent)]
    Revoked(#[from] Revoked),
    #[error("its signature was not made with the certificate's key")]
    Signature,
    #[error("it was signed {} s {} this machine's clock, at most {} s are accepted: compare the clocks", .by.as_secs(), if *.ahead { "ahead of" } else { "behind" }, .most.as_secs())]
    Clock { by: Duration, ahead: bool, most: Duration },
}

/// Verifies a token against the authority and the revocations in `trusted`.
///
/// # Errors
/// See [`TokenError`].
pub fn verify(token: &OperatorToken, trusted: &Credentials, now: Timestamp) -> Result<Operator, TokenError> {
    let certificate = CertificateDer::from(token.certificate.as_slice());
    let shown = Shown::from_certificates(std::slice::from_ref(&certificate))?;
    let who = &shown.caller;
    if who.role != Role::Operator {
        return Err(TokenError::Role(who.role));
    }
    trusted.material().borrow().verify(&certificate, &[])?;
    trusted.revoked().check(&shown)?;
    let (_, read) = X509Certificate::from_der(&certificate).map_err(|_| CallerError::Unreadable)?;
    let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &read.public_key().subject_public_key.data);
    key.verify(&signed_bytes(&token.method, token.signed_at), &token.signature).map_err(|_| TokenError::Signature)?;
    let by = Duration::from_millis(now.0.abs_diff(token.signed_at.0));
    let ahead = token.signed_at > now;
    let most = if token.method == EXPORT_AUDIT && !ahead { EXPORT_MAX } else { CLOCK_SKEW_MAX };
    if by > most {
        return Err(TokenError::Clock { by, ahead, most });
    }
    Ok(Operator { name: who.name.clone(), method: token.method.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ca;
    use crate::tls::TlsFiles;
    use lattice_api::operator::Credential;
    use std::path::{Path, PathBuf};

    struct Dir(PathBuf);

    impl Dir {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("lattice-operator-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&dir).unwrap();
            Self(dir)
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _gone = std::fs::remove_dir_all(&self.0);
        }
    }

    fn authority(dir: &Path) -> Credentials {
        ca::init(dir).unwrap();
        ca::issue(dir, "n1", Role::Api, &[], dir, ca::LIFETIME).unwrap();
        authority_again(dir)
    }

    fn authority_again(dir: &Path) -> Credentials {
        let files = TlsFiles { ca: dir.join("ca.crt"), cert: dir.join("n1.crt"), key: dir.join("n1.key") };
        Credentials::new(files.read().unwrap()).unwrap()
    }

    fn operator(dir: &Path, name: &str, lifetime: Duration) -> Credential {
        let file = dir.join(format!("{name}.pem"));
        ca::issue_operator(dir, name, &file, lifetime).unwrap();
        Credential::read(&file).unwrap()
    }

    #[test]
    fn only_an_operators_key_of_this_authority_makes_a_token_for_one_method_and_a_few_minutes() {
        let dir = Dir::new("tokens");
        let (ours, theirs) = (dir.0.join("ours"), dir.0.join("theirs"));
        let (trusted, _other) = (authority(&ours), authority(&theirs));
        let now = Timestamp(1_000_000_000_000);
        let anna = operator(&ours, "anna", ca::OPERATOR_LIFETIME);
        let token = anna.sign("NodeService/SetHold", now).unwrap();
        let proven = Operator { name: "anna".into(), method: "NodeService/SetHold".into() };
        assert_eq!(verify(&token, &trusted, now).unwrap(), proven);
        let skew = u64::try_from(CLOCK_SKEW_MAX.as_millis()).unwrap();
        for (then, holds) in [(now.0 + skew, true), (now.0 - skew, true), (now.0 + skew + 1, false), (now.0 - skew - 1, false)] {
            assert_eq!(verify(&token, &trusted, Timestamp(then)).is_ok(), holds, "{then}");
        }

        // A revocation of the name invalidates a token that was signed before it, but no
        // certificate that is issued after it.
        let revoking = authority_again(&ours);
        let issued = Shown::from_certificates(&[CertificateDer::from(token.certificate.as_slice())]).unwrap().issued;
        revoking.revoked().learn([("anna".to_owned(), issued)]);
        assert!(verify(&token, &revoking, now).is_ok());
        revoking.revoked().learn([("anna".to_owned(), Timestamp(issued.0 + 1))]);
        assert!(matches!(verify(&token, &revoking, now), Err(TokenError::Revoked(_))));
        std::fs::remove_file(ours.join("anna.pem")).unwrap();
        let again = operator(&ours, "anna", ca::OPERATOR_LIFETIME).sign("NodeService/SetHold", now).unwrap();
        assert_eq!(verify(&again, &revoking, now).unwrap(), proven);

        // With a changed method, time or signature the token is not valid.
        for forged in [
            OperatorToken { method: "AdminService/ChangeMembers".into(), ..token.clone() },
            OperatorToken { signed_at: Timestamp(now.0 + 1), ..token.clone() },
            OperatorToken { signature: operator(&ours, "bert", ca::LIFETIME).sign(&token.method, now).unwrap().signature, ..token.clone() },
        ] {
            assert!(matches!(verify(&forged, &trusted, now), Err(TokenError::Signature)), "{forged:?}");
        }
        let foreign = operator(&theirs, "anna", ca::LIFETIME).sign(&token.method, now).unwrap();
        assert!(matches!(verify(&foreign, &trusted, now), Err(TokenError::Certificate(_))));
        let over = operator(&ours, "carl", Duration::ZERO).sign(&token.method, now).unwrap();
        std::thread::sleep(Duration::from_millis(1100));
        assert!(matches!(verify(&over, &trusted, now), Err(TokenError::Certificate(_))));

        // An agent's key cannot sign tokens.
        let api = std::fs::read(ours.join("n1.crt")).unwrap();
        let pem = [api, std::fs::read(ours.join("n1.key")).unwrap()].concat();
        let file = ours.join("n1.pem");
        std::fs::write(&file, pem).unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let agent = Credential::read(&file).unwrap().sign(&token.method, now).unwrap();
        assert!(matches!(verify(&agent, &trusted, now), Err(TokenError::Role(Role::Api))));
    }

    #[test]
    fn a_credential_that_others_may_read_or_that_is_damaged_is_refused_with_the_reason() {
        let dir = Dir::new("files");
        authority(&dir.0);
        let file = dir.0.join("anna.pem");
        ca::issue_operator(&dir.0, "anna", &file, ca::LIFETIME).unwrap();
        assert!(matches!(ca::issue_operator(&dir.0, "anna", &file, ca::LIFETIME), Err(ca::CaError::Exists { .. })));
        assert!(matches!(ca::issue(&dir.0, "anna", Role::Operator, &[], &dir.0, ca::LIFETIME), Err(ca::CaError::Operator)));
        let set = |mode| std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        set(0o640);
        let refused = Credential::read(&file).err().unwrap().to_string();
        assert!(refused.contains("(mode 640): run chmod 600"), "{refused}");
        set(0o600);
        std::fs::write(&file, "nothing").unwrap();
        let refused = Credential::read(&file).err().unwrap().to_string();
        assert!(refused.contains("it has no certificate in PEM"), "{refused}");
    }
}
