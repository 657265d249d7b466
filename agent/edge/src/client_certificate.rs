//! Certificates of service accounts, which programs present instead of a token or beside one. The cluster's authority
//! issued them (`lattice quorum ca service`).

use super::answers::Refusal;
use lattice_model::Timestamp;
use lattice_pki::credentials::Validity;
use lattice_pki::identity::Shown;
use lattice_pki::revoked::RevocationList;
use rustls::pki_types::CertificateDer;
use std::future::pending;

/// The certificate of a service account, which TLS has verified.
#[derive(Debug)]
pub(super) struct ServiceCertificate {
    shown: Shown,
    /// The account's name.
    pub account: String,
    pub expires_at: Timestamp,
    revoked: RevocationList,
}

impl ServiceCertificate {
    /// Reads the certificate of a chain that TLS has verified; `None`: it is not a service account's.
    pub(super) fn of(chain: &[CertificateDer<'_>], revoked: RevocationList) -> Option<Self> {
        let shown = Shown::from_certificates(chain).ok()?;
        let account = shown.caller.account()?.to_owned();
        let until = Validity::of(chain.first()?).ok()?.until;
        let expires_at = Timestamp(u64::try_from(until).unwrap_or_default().saturating_mul(1000));
        Some(Self { shown, account, expires_at, revoked })
    }

    /// The name in the certificate.
    pub(super) fn name(&self) -> &str {
        &self.shown.caller.name
    }

    /// Refuses a certificate that is revoked, or that has expired since the connection was opened.
    pub(super) fn check(&self, now: Timestamp) -> Result<(), Refusal> {
        let hint = "an admin issues another one: `lattice quorum ca service`";
        if self.revoked.check(&self.shown).is_err() {
            return Err(Refusal::invalid_token(format!("the certificate {} is revoked\nhint: {hint}", self.name())));
        }
        if now >= self.expires_at {
            return Err(Refusal::invalid_token(format!("the certificate {} has expired\nhint: {hint}", self.name())));
        }
        Ok(())
    }

    /// Refuses a token of another account.
    pub(super) fn check_token_of(&self, account: &str) -> Result<(), Refusal> {
        if account == self.account {
            return Ok(());
        }
        let text = format!("the token is for account {account}, but the certificate {} is for account {}", self.name(), self.account);
        Err(Refusal::denied(format!("{text}\nhint: send a token of {}, or none", self.account)))
    }

    /// Returns when the certificate is revoked; never, if it is revoked already: then [`Self::check`] refuses each request.
    pub(super) async fn until_revoked(&self) {
        if self.revoked.check(&self.shown).is_err() {
            pending::<()>().await;
        }
        self.revoked.until_revoked(&self.shown).await;
    }
}

/// The refusal of a caller without a certificate, where each caller needs one.
pub(super) fn none_presented() -> Refusal {
    Refusal::denied(
        "a certificate of a service account is needed here\n\
         hint: an admin issues one: `lattice quorum ca service`; name it in LATTICE_CERTIFICATE",
    )
}

#[cfg(test)]
mod tests {
    use super::super::answers::Form;
    use super::*;
    use futures::FutureExt;
    use lattice_pki::ca;
    use lattice_pki::identity::Role;
    use rustls::pki_types::pem::PemObject;
    use std::time::Duration;

    #[tokio::test]
    async fn a_service_accounts_certificate_names_the_account_until_it_is_revoked() {
        let dir = std::env::temp_dir().join(format!("lattice-edge-service-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        ca::init(&dir).unwrap();
        ca::issue_service(&dir, "builder", &dir.join("builder.pem"), Duration::from_secs(3600)).unwrap();
        ca::issue(&dir, "n1", Role::Api, &[], &dir, ca::LIFETIME).unwrap();
        let revoked = RevocationList::default();
        let read = |file: &str| {
            let chain = [CertificateDer::from_pem_file(dir.join(file)).unwrap()];
            ServiceCertificate::of(&chain, revoked.clone())
        };
        assert!(read("n1.crt").is_none(), "an agent is no account");
        let builder = read("builder.pem").unwrap();
        assert_eq!((builder.account.as_str(), builder.name()), ("builder", "account-builder"));
        let status = |result: Result<(), Refusal>| result.map_err(|refusal| refusal.answer(Form::Rest).status().as_u16());
        let before = Timestamp(builder.expires_at.0 - 1);
        assert_eq!([builder.check(before), builder.check(builder.expires_at)].map(status), [Ok(()), Err(401)]);
        assert_eq!([builder.check_token_of("builder"), builder.check_token_of("eve")].map(status), [Ok(()), Err(403)]);
        assert!(builder.until_revoked().now_or_never().is_none());
        revoked.learn([("account-builder".to_owned(), Timestamp(u64::MAX))]);
        assert_eq!(status(builder.check(before)), Err(401));
        assert!(builder.until_revoked().now_or_never().is_none(), "its calls are refused in words");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
