//! The certificate of the API on the network: files of the site, or else the agent's own. New connections use the
//! present contents of the files.
//!
//! ```text
//!   files of `api`, or the agent's credentials ──changed──▶ keep_current ──watch──▶ each new connection
//!                                                └ unusable: a problem of the node, and the present one stays
//! ```

use super::client_certificate::ServiceCertificate;
use lattice_agent_common::config::api::{ApiSettings, ClientCertificates};
use lattice_agent_common::node_problems::NodeProblems;
use lattice_model::with_causes;
use lattice_pki::credentials::{Credentials, Validity, rough};
use lattice_pki::tls::TlsError;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// How often the files are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// HTTP/2 and HTTP/1.1 as ALPN protocol names.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];
/// The subject of the node's problem.
const PROBLEM: &str = "certificate of the API on the network";

/// A usable certificate.
pub struct Certificate {
    /// How long it is valid.
    pub valid: Validity,
    config: Arc<ServerConfig>,
}

/// Reads the certificate, its key, and the authorities of clients.
pub fn certificate(settings: &ApiSettings, credentials: &Credentials) -> Result<Certificate, TlsError> {
    let (cert, key) = texts(settings, credentials)?;
    let bad = |what, why: String| TlsError::Pem { what, why };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(cert.as_bytes()).collect();
    let chain = chain.map_err(|e| bad("certificate of api.tls_cert", e.to_string()))?;
    let leaf = chain.first().ok_or_else(|| bad("certificate of api.tls_cert", "the file holds none".to_owned()))?;
    let valid = Validity::of(leaf)?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|e| bad("key of api.tls_key", e.to_string()))?;
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = match client_verifier(settings, credentials)? {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key)?;
    config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
    // Sessions are not resumed, so that each handshake checks the client's certificate.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Certificate { valid, config: Arc::new(config) })
}

/// Who checks the certificates of clients; `None`: clients are not asked for any.
fn client_verifier(settings: &ApiSettings, credentials: &Credentials) -> Result<Option<Arc<dyn ClientCertVerifier>>, TlsError> {
    let of = |roots: RootCertStore| WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
    if !settings.client_ca.as_os_str().is_empty() {
        let roots = authorities(&read(&settings.client_ca)?, "authority of api.client_ca")?;
        return Ok(Some(of(roots).build()?));
    }
    let own = || authorities(&credentials.material().borrow().pem.ca, "authority of the cluster");
    Ok(match settings.client_certificates {
        ClientCertificates::Off => None,
        ClientCertificates::Allowed => Some(of(own()?).allow_unauthenticated().build()?),
        ClientCertificates::Required => Some(of(own()?).build()?),
    })
}

/// Certificate and key as PEM texts.
fn texts(settings: &ApiSettings, credentials: &Credentials) -> Result<(String, String), TlsError> {
    if settings.tls_cert.as_os_str().is_empty() {
        let own = Arc::clone(&credentials.material().borrow());
        return Ok((own.pem.cert.clone(), own.pem.key.clone()));
    }
    let about = std::fs::metadata(&settings.tls_key).map_err(|source| TlsError::Read { path: settings.tls_key.clone(), source })?;
    let mode = about.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(TlsError::Open { path: settings.tls_key.clone(), mode });
    }
    Ok((read(&settings.tls_cert)?, read(&settings.tls_key)?))
}

fn read(path: &Path) -> Result<String, TlsError> {
    std::fs::read_to_string(path).map_err(|source| TlsError::Read { path: path.to_owned(), source })
}

fn authorities(pem: &str, what: &'static str) -> Result<RootCertStore, TlsError> {
    let bad = |why: String| TlsError::Pem { what, why };
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        roots.add(root.map_err(|e| bad(e.to_string()))?)?;
    }
    if roots.is_empty() { Err(bad("the file holds none".to_owned())) } else { Ok(roots) }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The present certificate, for new connections. Cloneable; all clones share it.
#[derive(Clone)]
pub(super) struct Tls {
    settings: Arc<ApiSettings>,
    credentials: Credentials,
    present: watch::Sender<Arc<Certificate>>,
}

impl Tls {
    /// Reads the certificate for the first time.
    pub(super) fn open(settings: &ApiSettings, credentials: &Credentials) -> Result<Self, TlsError> {
        let present = watch::Sender::new(Arc::new(certificate(settings, credentials)?));
        Ok(Self { settings: Arc::new(settings.clone()), credentials: credentials.clone(), present })
    }

    /// The configuration for accepting a connection now.
    pub(super) fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.present.borrow().config)
    }

    /// The service account whose certificate a client has presented; `None`: it has presented none, or one of another kind.
    pub(super) fn service_certificate(&self, chain: Option<&[CertificateDer<'_>]>) -> Option<ServiceCertificate> {
        match self.settings.client_certificates {
            ClientCertificates::Off => None,
            ClientCertificates::Allowed | ClientCertificates::Required => {
                ServiceCertificate::of(chain?, self.credentials.revoked().clone())
            }
        }
    }

    /// Watches the files, and uses changed ones, until `stop`.
    pub(super) async fn keep_current(self, problems: NodeProblems, stop: CancellationToken) {
        let mut own = self.credentials.material();
        let mut tick = tokio::time::interval(CHECK_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut seen, mut unusable) = (None, None);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = tick.tick() => {}
            }
            let this = self.clone();
            // Files may lie on a file system that does not answer.
            let Ok(stamps) = tokio::task::spawn_blocking(move || this.stamps()).await else { return };
            let is_renewed = own.has_changed().unwrap_or(false);
            if is_renewed || seen.as_ref() != Some(&stamps) {
                own.mark_unchanged();
                seen = Some(stamps);
                unusable = self.reload().await.err();
            }
            match unusable.clone().or_else(|| self.expired()) {
                Some(why) => problems.set(PROBLEM, why),
                None => problems.clear(PROBLEM),
            }
        }
    }

    /// Reads the files again. The error is why they cannot be used, for people.
    async fn reload(&self) -> Result<(), String> {
        let this = self.clone();
        let read = tokio::task::spawn_blocking(move || certificate(&this.settings, &this.credentials)).await;
        match read.map_err(|error| error.to_string())? {
            Ok(certificate) => {
                self.present.send_replace(Arc::new(certificate));
                Ok(())
            }
            Err(error) => {
                let error = with_causes(&error);
                tracing::error!(%error, "the files of the API's certificate cannot be used; the present one stays");
                Err(format!("its files are not used: {error}"))
            }
        }
    }

    fn expired(&self) -> Option<String> {
        let valid = self.present.borrow().valid;
        valid.left().is_none().then(|| format!("expired at {}: clients refuse it", shown(valid.until)))
    }

    /// Inode, size and time of the last change of each file: one of them differs once a file, its owner or its mode changed.
    fn stamps(&self) -> Vec<Option<(u64, u64, i64, i64)>> {
        let stamp = |path: &PathBuf| std::fs::metadata(path).ok().map(|m| (m.ino(), m.len(), m.ctime(), m.ctime_nsec()));
        [&self.settings.tls_cert, &self.settings.tls_key, &self.settings.client_ca].map(stamp).into()
    }
}

fn shown(seconds: i64) -> String {
    lattice_model::Timestamp(u64::try_from(seconds).unwrap_or_default().saturating_mul(1000)).to_string()
}

impl Certificate {
    /// How long it is still valid, in words; `None`: it has expired.
    pub fn left(&self) -> Option<String> {
        self.valid.left().map(|left| rough(left.as_secs().cast_signed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_pki::ca;
    use lattice_pki::identity::Role;
    use lattice_pki::tls::TlsFiles;

    /// An authority with a certificate of an agent, in a folder that is removed at the end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("lattice-edge-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&dir);
            ca::init(&dir).unwrap();
            for name in ["n1", "other"] {
                ca::issue(&dir, name, Role::Api, &["127.0.0.1".to_owned()], &dir, ca::LIFETIME).unwrap();
            }
            Self(dir)
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }

        fn credentials(&self) -> Credentials {
            let files = TlsFiles { ca: self.path("ca.crt"), cert: self.path("n1.crt"), key: self.path("n1.key") };
            Credentials::new(files.read().unwrap()).unwrap()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_agents_own_certificate_serves_where_the_site_sets_none() {
        let dir = Folder::new("own");
        let own = certificate(&ApiSettings::default(), &dir.credentials()).unwrap();
        assert_eq!(own.config.alpn_protocols, [b"h2".to_vec(), b"http/1.1".to_vec()]);
        assert!(own.left().is_some());
    }

    #[test]
    fn unusable_files_are_refused_with_what_is_wrong() {
        let dir = Folder::new("bad");
        let credentials = dir.credentials();
        let refused = |settings: &ApiSettings| match certificate(settings, &credentials) {
            Ok(_) => String::new(),
            Err(error) => with_causes(&error),
        };
        let (tls_cert, tls_key) = (dir.path("other.crt"), dir.path("other.key"));
        let good = ApiSettings { tls_cert, tls_key, client_ca: dir.path("ca.crt"), ..ApiSettings::default() };
        assert_eq!(refused(&good), "");
        let other_key = refused(&ApiSettings { tls_key: dir.path("n1.key"), ..good.clone() });
        assert!(other_key.starts_with("certificate, key or authority cannot be used"), "{other_key}");
        assert!(refused(&ApiSettings { tls_cert: dir.path("none"), ..good.clone() }).contains("none: cannot be read"));
        std::fs::write(dir.path("empty"), "").unwrap();
        let empty = refused(&ApiSettings { client_ca: dir.path("empty"), ..good.clone() });
        assert_eq!(empty, "the authority of api.client_ca cannot be used: the file holds none");
        std::fs::set_permissions(dir.path("other.key"), std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(refused(&good).contains("others can read the certificate's key (mode 644)"), "{}", refused(&good));
    }

    #[tokio::test]
    async fn changed_files_are_used_and_unusable_ones_are_a_problem_of_the_node() {
        let dir = Folder::new("changed");
        let settings = ApiSettings { tls_cert: dir.path("other.crt"), tls_key: dir.path("other.key"), ..ApiSettings::default() };
        let tls = Tls::open(&settings, &dir.credentials()).unwrap();
        let first = tls.server();
        std::fs::copy(dir.path("n1.crt"), dir.path("other.crt")).unwrap();
        assert!(tls.reload().await.unwrap_err().starts_with("its files are not used: "));
        assert!(Arc::ptr_eq(&first, &tls.server()), "the present one stays");
        std::fs::copy(dir.path("n1.key"), dir.path("other.key")).unwrap();
        tls.reload().await.unwrap();
        assert!(!Arc::ptr_eq(&first, &tls.server()));
        let (problems, stop) = (NodeProblems::default(), CancellationToken::new());
        std::fs::write(dir.path("other.crt"), "").unwrap();
        let keeping = tokio::spawn(tls.keep_current(problems.clone(), stop.clone()));
        while problems.lines().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(problems.lines()[0].starts_with("certificate of the API on the network: its files are not used: "));
        stop.cancel();
        keeping.await.unwrap();
    }
}
