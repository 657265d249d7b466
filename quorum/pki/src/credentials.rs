//! The credentials of a process: the certificate that it presents, and the authority that it
//! trusts.
//!
//! ```text
//!   configured files ──rewritten─────────────▶ ┌──────────┐
//!                                              │ Material │ ──watch──▶ each new connection
//!   stored file ◀─ the quorum's authority ────▶ └──────────┘
//!                 signs a new key's request at two thirds of the life
//! ```
//!
//! Existing connections are not changed. TLS sessions are not resumed, so each handshake checks the
//! certificates. We do the handshakes ourselves (tokio-rustls), because tonic keeps one certificate
//! for the life of a server or channel. A client waits for the server's first bytes: with TLS 1.3
//! only these show that its certificate was accepted. Connections are not closed when their
//! certificate expires, because the peer will have renewed it.
//!
//! The stored file (the renewed certificate) is used while it is valid and the configured
//! certificate is the one from which it was renewed, and whenever the configured files cannot be
//! read. If an operator configures another certificate, that one is used.

mod connections;
mod material;
mod sources;

pub use connections::{RelayedStream, Used, Wanted};
pub use material::{Material, Validity};

use crate::refused::Refused;
use crate::revoked::RevocationList;
use crate::tls::{ClientTls, TlsError, TlsFiles};
use futures::future::BoxFuture;
use lattice_model::{Timestamp, with_causes};
use material::now;
use parking_lot::{Mutex, MutexGuard};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use rustls::ServerConfig;
use sources::{CredentialPaths, Found, RENEWAL_VERSION, StoredRenewal, find, stamps};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

/// How often the files and the clock are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Pauses between attempts to renew: a thirtieth of the validity, within these limits.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(3600);

/// Requests a certificate from the quorum's authority: takes a request (PKCS#10, DER), returns a
/// certificate (PEM).
pub type AskAuthority = Box<dyn Fn(Vec<u8>) -> BoxFuture<'static, Result<String, AskError>> + Send + Sync>;
/// Why the authority issued no certificate: a member and an agent ask in different ways.
pub type AskError = Box<dyn std::error::Error + Send + Sync>;

/// Why the certificate is not renewed.
#[derive(Debug, Error)]
enum RenewError {
    #[error("a key cannot be made")]
    Key(#[source] rcgen::Error),
    #[error(transparent)]
    Ask(AskError),
    #[error(transparent)]
    Unusable(#[from] TlsError),
    #[error("{}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// The credentials of this process. Clones share them.
#[derive(Clone, Debug)]
pub struct Credentials(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    material: watch::Sender<Arc<Material>>,
    paths: Option<CredentialPaths>,
    instead_of: Mutex<String>,
    problem: Mutex<Option<String>>,
    refused: Refused,
    revoked: RevocationList,
}

impl Credentials {
    /// Credentials that never change.
    pub fn new(pem: ClientTls) -> Result<Self, TlsError> {
        Ok(Self::of(Material::new(pem)?, None, String::new()))
    }

    /// Credentials from the files, or renewed ones from the file `renewed`; see
    /// [`Credentials::keep_current`].
    pub fn open(files: &TlsFiles, renewed: &Path) -> Result<Self, TlsError> {
        let paths = CredentialPaths { files: files.clone(), renewed: renewed.to_owned() };
        let Found { material, instead_of } = find(&paths)?;
        if let Err(error) = material.verified() {
            tracing::error!(error = with_causes(&error), "peers will refuse this process's certificate");
        }
        Ok(Self::of(material, Some(paths), instead_of))
    }

    fn of(material: Material, paths: Option<CredentialPaths>, instead_of: String) -> Self {
        let material = watch::Sender::new(Arc::new(material));
        let instead_of = Mutex::new(instead_of);
        let (problem, refused, revoked) = (Mutex::default(), Refused::default(), RevocationList::default());
        Self(Arc::new(Inner { material, paths, instead_of, problem, refused, revoked }))
    }

    /// The current credentials, as a watch that notifies of changes.
    pub fn material(&self) -> watch::Receiver<Arc<Material>> {
        self.0.material.subscribe()
    }

    /// Counts of connections that this process refused because of certificates.
    pub fn refused(&self) -> &Refused {
        &self.0.refused
    }

    /// The revoked certificates of others.
    pub fn revoked(&self) -> &RevocationList {
        &self.0.revoked
    }

    /// What is wrong with the current certificate, for people: it has expired, or it could not be
    /// renewed or replaced.
    pub fn problem(&self) -> Option<String> {
        let valid = self.present().valid;
        let problem = lock(&self.0.problem).clone();
        match valid.left() {
            None => Some(format!("expired {} ago{}", rough(now() - valid.until), problem.map(|t| format!(": {t}")).unwrap_or_default())),
            Some(left) => problem.map(|problem| format!("{problem}; the present one is valid for {}", rough(left.as_secs().cast_signed()))),
        }
    }

    /// When the current certificate expires.
    pub fn until(&self) -> Timestamp {
        Timestamp(u64::try_from(self.present().valid.until).unwrap_or_default() * 1000)
    }

    fn present(&self) -> Arc<Material> {
        Arc::clone(&self.0.material.borrow())
    }

    /// Runs until `stop`: adopts rewritten files if their name and role are those of this process,
    /// and renews the certificate after two thirds of its validity. If either fails, the current
    /// certificate stays in use.
    pub async fn keep_current(self, ask: AskAuthority, stop: CancellationToken) {
        let Some(paths) = self.0.paths.clone() else { return };
        let mut tick = tokio::time::interval(CHECK_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen = None;
        let mut due = due(self.present().valid);
        // Pauses use the monotonic clock: a failed attempt while the wall clock was wrong must not
        // be the last one.
        let mut paused_until = Instant::now();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = tick.tick() => {}
            }
            let stamps = stamps(&paths.files);
            // A certificate renewed while the clock was ahead is replaced by the configured one,
            // once the clock is right.
            let is_early = !self.present().valid.has_begun() && Instant::now() >= paused_until;
            if is_early || seen.as_ref() != Some(&stamps) {
                match self.reload(&paths) {
                    Ok(true) => {
                        due = self::due(self.present().valid);
                        self.clear_problem();
                        tracing::info!(cert = %paths.files.cert.display(), "a new certificate is in use");
                    }
                    // Unchanged, or the same content again.
                    Ok(false) => self.clear_problem(),
                    Err(error) => self.set_problem(format!("the files of `tls` are not used: {}", with_causes(&error))),
                }
                seen = Some(stamps);
            }
            let valid = self.present().valid;
            if (now() < due && valid.has_begun()) || Instant::now() < paused_until {
                continue;
            }
            let renewed = tokio::select! {
                () = stop.cancelled() => return,
                renewed = self.renew(&paths, &ask) => renewed,
            };
            match renewed {
                Ok(valid) => {
                    self.clear_problem();
                    tracing::info!(until = valid.until, "the certificate is renewed");
                    due = self::due(valid);
                }
                Err(error) => {
                    self.set_problem(format!("no new certificate: {}", with_causes(&error)));
                    paused_until = Instant::now() + (valid.life() / 30).clamp(RETRY_MIN, RETRY_MAX);
                }
            }
        }
    }

    fn clear_problem(&self) {
        *lock(&self.0.problem) = None;
    }

    fn set_problem(&self, why: String) {
        tracing::error!(%why, "the present certificate stays in use");
        *lock(&self.0.problem) = Some(why);
    }

    fn reload(&self, paths: &CredentialPaths) -> Result<bool, TlsError> {
        let Found { material, instead_of } = find(paths)?;
        if material.pem == self.present().pem {
            return Ok(false);
        }
        self.adopt(material)?;
        *lock(&self.0.instead_of) = instead_of;
        Ok(true)
    }

    fn adopt(&self, material: Material) -> Result<(), TlsError> {
        let own = self.present().own.clone();
        if material.own != own {
            return Err(TlsError::Foreign { name: material.own.name, role: material.own.role, own: own.name, own_role: own.role });
        }
        material.verified()?;
        self.0.material.send_replace(Arc::new(material));
        Ok(())
    }

    async fn renew(&self, paths: &CredentialPaths, ask: &AskAuthority) -> Result<Validity, RenewError> {
        let key = KeyPair::generate().map_err(RenewError::Key)?;
        let mut params = CertificateParams::default();
        // The authority copies everything except the key from the current certificate.
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&key).map_err(RenewError::Key)?.der().to_vec();
        let cert = ask(request).await.map_err(RenewError::Ask)?;
        let pem = ClientTls { ca: self.present().pem.ca.clone(), cert, key: key.serialize_pem() };
        let stored = StoredRenewal {
            version: RENEWAL_VERSION,
            instead_of: lock(&self.0.instead_of).clone(),
            ca: pem.ca.clone(),
            cert: pem.cert.clone(),
            key: pem.key.clone(),
        };
        let material = Material::new(pem)?;
        let valid = material.valid;
        // Stored before it is used: if the process dies in between, the next start finds one of the
        // two certificates complete.
        material.verified()?;
        stored.write(&paths.renewed).map_err(|source| RenewError::Write { path: paths.renewed.clone(), source })?;
        self.adopt(material)?;
        Ok(valid)
    }

    /// The TLS configuration for accepting a connection now.
    pub fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.present().grpc_server)
    }
}

/// When to renew: at two thirds of the validity, plus a random delay, so that not all renew at the
/// same time.
fn due(valid: Validity) -> i64 {
    valid.due() + rand::random_range(0..=(valid.life() / 24).as_secs()).cast_signed()
}

/// A rough duration for people, from a number of seconds.
pub fn rough(seconds: i64) -> String {
    match seconds {
        s if s >= 2 * 86_400 => format!("{} days", s / 86_400),
        s if s >= 2 * 3600 => format!("{} hours", s / 3600),
        s if s >= 120 => format!("{} minutes", s / 60),
        s => format!("{s} seconds"),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}
