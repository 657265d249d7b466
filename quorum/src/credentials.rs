//! What a process shows of itself and whom it believes, for both ends of a connection.
//!
//! ```text
//!   configured files ──written anew──────────▶ ┌──────────┐
//!                                              │ Material │ ──watch──▶ each connection made from then on
//!   kept file ◀── the quorum's authority ────▶ └──────────┘
//!                 signs a new key's request at two thirds of the life
//! ```
//!
//! Connections that stand are not touched. No TLS session is resumed: a certificate is looked at in each handshake.
//! The kept file counts as long as the configured certificate is the one that it was renewed from, and itself holds:
//! another configured certificate is an operator's word.

use crate::identity::{Caller, CallerError, QUORUM_NAME, Shown, member_name};
use crate::pack::with_causes;
use crate::refused::{Cause, Refused};
use crate::revoked::RevocationList;
use crate::tls::{ClientTls, TlsError, TlsFiles, replace_file};
use futures::future::BoxFuture;
use hyper_util::rt::TokioIo;
use lattice_model::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint, Uri};
use x509_parser::prelude::{FromDer, X509Certificate};

/// A peer that does not answer a ping for as long as this is taken for dead.
const PING_TIMEOUT: Duration = Duration::from_secs(1);
/// A connection on which somebody waits is pinged after so long a silence.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// One that has messages of its own every now and then: ten thousand sessions are not pinged every second.
const PING_INTERVAL_SESSION: Duration = Duration::from_secs(30);
/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How often the files and the clock are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Pauses between tries to renew: a thirtieth of the life, within these.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(3600);
/// HTTP/2, as TLS names it.
const H2: &[u8] = b"h2";
/// The version of the kept file.
const KEPT_VERSION: u32 = 1;

/// Asks the quorum's authority for a certificate: a request (PKCS#10, DER) goes out, a certificate (PEM) comes back, or
/// why there is none.
pub type AskAuthority = Box<dyn Fn(Vec<u8>) -> BoxFuture<'static, Result<String, String>> + Send + Sync>;

/// From and until when a certificate is valid, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    pub from: i64,
    pub until: i64,
}

impl Validity {
    /// How long it lives in all.
    pub fn life(self) -> Duration {
        Duration::from_secs(u64::try_from(self.until - self.from).unwrap_or_default())
    }

    /// Whether it holds already. One that does not was signed while a clock was ahead: nobody else takes it.
    fn has_begun(self) -> bool {
        self.from <= now()
    }

    /// How long it still holds; `None` when it is over.
    pub fn left(self) -> Option<Duration> {
        u64::try_from(self.until - now()).ok().filter(|left| *left > 0).map(Duration::from_secs)
    }

    /// Whether two thirds of its life are over.
    pub fn is_due(self) -> bool {
        now() >= self.due()
    }

    fn due(self) -> i64 {
        self.from + (self.until - self.from) / 3 * 2
    }
}

/// Made from one reading of the files.
pub struct Material {
    /// As it was read.
    pub pem: ClientTls,
    /// Whom the certificate names.
    pub own: Caller,
    pub valid: Validity,
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    grpc_server: Arc<ServerConfig>,
    grpc_client: Arc<ClientConfig>,
}

impl std::fmt::Debug for Material {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Material").field("own", &self.own).field("valid", &self.valid).finish_non_exhaustive()
    }
}

impl Material {
    /// Decodes it, and checks that key and certificate belong together.
    pub fn new(pem: ClientTls) -> Result<Self, TlsError> {
        let bad = |what, why: String| TlsError::Pem { what, why };
        let mut roots = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(pem.ca.as_bytes()) {
            roots.add(root.map_err(|e| bad("authority's certificate", e.to_string()))?)?;
        }
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.cert.as_bytes()).collect();
        let chain = chain.map_err(|e| bad("certificate", e.to_string()))?;
        if chain.is_empty() || roots.is_empty() {
            return Err(bad(if chain.is_empty() { "certificate" } else { "authority's certificate" }, "the file holds none".to_owned()));
        }
        let key = PrivateKeyDer::from_pem_slice(pem.key.as_bytes()).map_err(|e| bad("key", e.to_string()))?;
        let own = Caller::from_certificates(&chain)?;
        let (_, leaf) = X509Certificate::from_der(&chain[0]).map_err(|_| CallerError::Unreadable)?;
        let valid = Validity { from: leaf.validity().not_before.timestamp(), until: leaf.validity().not_after.timestamp() };
        let roots = Arc::new(roots);
        let grpc_server = Arc::new(server(&roots, &chain, &key, H2)?);
        let grpc_client = Arc::new(client(&roots, &chain, &key, H2)?);
        Ok(Self { pem, own, valid, roots, chain, key, grpc_server, grpc_client })
    }

    /// For listening: clients must show a certificate of the authority.
    pub fn server(&self, protocol: &[u8]) -> Result<ServerConfig, TlsError> {
        server(&self.roots, &self.chain, &self.key, protocol)
    }

    /// For dialling.
    pub fn client(&self, protocol: &[u8]) -> Result<ClientConfig, TlsError> {
        client(&self.roots, &self.chain, &self.key, protocol)
    }

    /// The certificate itself.
    pub(crate) fn leaf(&self) -> &CertificateDer<'static> {
        &self.chain[0]
    }

    /// Whether those who trust the same authority would take it now.
    pub fn verified(&self) -> Result<(), TlsError> {
        self.verify(self.leaf(), &self.chain[1..])
    }

    /// Whether the trusted authority has issued this certificate, and it is valid now.
    pub(crate) fn verify(&self, certificate: &CertificateDer<'_>, chain: &[CertificateDer<'_>]) -> Result<(), TlsError> {
        let leaf = ParsedCertificate::try_from(certificate)?;
        let algorithms = provider().signature_verification_algorithms.all;
        Ok(verify_server_cert_signed_by_trust_anchor(&leaf, &self.roots, chain, UnixTime::now(), algorithms)?)
    }
}

fn server(
    roots: &Arc<RootCertStore>,
    chain: &[CertificateDer<'static>],
    key: &PrivateKeyDer<'static>,
    protocol: &[u8],
) -> Result<ServerConfig, TlsError> {
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), provider()).build()?;
    let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&rustls::version::TLS13])?;
    let mut config = builder.with_client_cert_verifier(verifier).with_single_cert(chain.to_vec(), key.clone_key())?;
    config.alpn_protocols = vec![protocol.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn client(
    roots: &Arc<RootCertStore>,
    chain: &[CertificateDer<'static>],
    key: &PrivateKeyDer<'static>,
    protocol: &[u8],
) -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&rustls::version::TLS13])?;
    let mut config = builder.with_root_certificates(Arc::clone(roots)).with_client_auth_cert(chain.to_vec(), key.clone_key())?;
    config.alpn_protocols = vec![protocol.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Where credentials come from.
#[derive(Clone, Debug)]
struct Places {
    files: TlsFiles,
    /// Where a renewed certificate is kept.
    kept: PathBuf,
}

/// A renewed certificate on disk, mode 0600.
#[derive(Serialize, Deserialize)]
struct Kept {
    version: u32,
    /// SHA-256 of the configured certificate that it was renewed from, in hexadecimal digits.
    instead_of: String,
    /// The authority that was trusted then: for a start without the configured files.
    ca: String,
    cert: String,
    key: String,
}

/// What there is at the places.
struct Found {
    material: Material,
    /// See [`Kept::instead_of`].
    instead_of: String,
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Used {
    /// Calls and watches: somebody waits, and notices within two seconds that nobody answers.
    Calls,
    /// Sessions: their heartbeats are answered, or the session is over.
    Session,
}

/// The member that is wanted at the other end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wanted {
    Member(u64),
    AnyMember,
}

/// The credentials of this process. Clones share them.
#[derive(Clone, Debug)]
pub struct Credentials(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    material: watch::Sender<Arc<Material>>,
    places: Option<Places>,
    instead_of: Mutex<String>,
    trouble: Mutex<Option<String>>,
    refused: Refused,
    revoked: RevocationList,
}

impl Credentials {
    /// This, for ever.
    pub fn new(pem: ClientTls) -> Result<Self, TlsError> {
        Ok(Self::of(Material::new(pem)?, None, String::new()))
    }

    /// What the files say, or what was renewed from them and is kept at `kept`; see [`Credentials::tend`].
    pub fn open(files: &TlsFiles, kept: &Path) -> Result<Self, TlsError> {
        let places = Places { files: files.clone(), kept: kept.to_owned() };
        let Found { material, instead_of } = find(&places)?;
        if let Err(error) = material.verified() {
            tracing::error!(error = with_causes(&error), "nobody will take this process's certificate as it is");
        }
        Ok(Self::of(material, Some(places), instead_of))
    }

    fn of(material: Material, places: Option<Places>, instead_of: String) -> Self {
        let material = watch::Sender::new(Arc::new(material));
        let instead_of = Mutex::new(instead_of);
        let (trouble, refused, revoked) = (Mutex::default(), Refused::default(), RevocationList::default());
        Self(Arc::new(Inner { material, places, instead_of, trouble, refused, revoked }))
    }

    /// What is in force now; hears of each change.
    pub fn material(&self) -> watch::Receiver<Arc<Material>> {
        self.0.material.subscribe()
    }

    /// Connections that were refused for their certificates' sake, by this process at either end.
    pub fn refused(&self) -> &Refused {
        &self.0.refused
    }

    /// Which certificates of others count no more.
    pub fn revoked(&self) -> &RevocationList {
        &self.0.revoked
    }

    /// Why the certificate in force cannot be followed by another, where that is so.
    pub fn trouble(&self) -> Option<String> {
        let valid = self.present().valid;
        let told = lock(&self.0.trouble).clone();
        match valid.left() {
            None => Some(format!("ended {} ago{}", rough(now() - valid.until), told.map(|t| format!(": {t}")).unwrap_or_default())),
            Some(left) => told.map(|told| format!("{told}; the present one holds for {}", rough(left.as_secs().cast_signed()))),
        }
    }

    /// When the present certificate ends.
    pub(crate) fn until(&self) -> Timestamp {
        Timestamp(u64::try_from(self.present().valid.until).unwrap_or_default() * 1000)
    }

    fn present(&self) -> Arc<Material> {
        Arc::clone(&self.0.material.borrow())
    }

    /// Takes what is new in the files, if it is this process's (name and role stay), and asks for another certificate at
    /// two thirds of the life of the present one; until `stop`. Where either fails, the present one stays in force.
    pub async fn tend(self, ask: AskAuthority, stop: CancellationToken) {
        let Some(places) = self.0.places.clone() else { return };
        let mut tick = tokio::time::interval(LOOK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut seen = None;
        let mut due = due(self.present().valid);
        // Pauses are told from the clock that nobody sets: a try that failed in a wrong year must not be the last one.
        let mut paused_until = Instant::now();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = tick.tick() => {}
            }
            let stamps = stamps(&places.files);
            // What was renewed while the clock was ahead is left for the configured one, once the clock is right.
            let is_early = !self.present().valid.has_begun() && Instant::now() >= paused_until;
            if is_early || seen.as_ref() != Some(&stamps) {
                match self.reload(&places) {
                    Ok(true) => {
                        due = self::due(self.present().valid);
                        self.is_well();
                        tracing::info!(cert = %places.files.cert.display(), "a new certificate is in force");
                    }
                    // As before, or so again.
                    Ok(false) => self.is_well(),
                    Err(error) => self.is_troubled(format!("the files of `tls` are not used: {}", with_causes(&error))),
                }
                seen = Some(stamps);
            }
            let valid = self.present().valid;
            if (now() < due && valid.has_begun()) || Instant::now() < paused_until {
                continue;
            }
            let renewed = tokio::select! {
                () = stop.cancelled() => return,
                renewed = self.renew(&places, &ask) => renewed,
            };
            match renewed {
                Ok(valid) => {
                    self.is_well();
                    tracing::info!(until = valid.until, "the certificate is renewed");
                    due = self::due(valid);
                }
                Err(why) => {
                    self.is_troubled(format!("no new certificate: {why}"));
                    paused_until = Instant::now() + (valid.life() / 30).clamp(RETRY_MIN, RETRY_MAX);
                }
            }
        }
    }

    fn is_well(&self) {
        *lock(&self.0.trouble) = None;
    }

    fn is_troubled(&self, why: String) {
        tracing::error!(%why, "the certificate in force stays in force");
        *lock(&self.0.trouble) = Some(why);
    }

    fn reload(&self, places: &Places) -> Result<bool, TlsError> {
        let Found { material, instead_of } = find(places)?;
        if material.pem == self.present().pem {
            return Ok(false);
        }
        self.take(material)?;
        *lock(&self.0.instead_of) = instead_of;
        Ok(true)
    }

    fn take(&self, material: Material) -> Result<(), TlsError> {
        let own = self.present().own.clone();
        if material.own != own {
            return Err(TlsError::Foreign { name: material.own.name, role: material.own.role, own: own.name, own_role: own.role });
        }
        material.verified()?;
        self.0.material.send_replace(Arc::new(material));
        Ok(())
    }

    async fn renew(&self, places: &Places, ask: &AskAuthority) -> Result<Validity, String> {
        let make = |e: rcgen::Error| format!("a key cannot be made: {e}");
        let key = KeyPair::generate().map_err(make)?;
        let mut params = CertificateParams::default();
        // The authority takes everything but the key from the present certificate.
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&key).map_err(make)?.der().to_vec();
        let cert = ask(request).await?;
        let pem = ClientTls { ca: self.present().pem.ca.clone(), cert, key: key.serialize_pem() };
        let kept = Kept {
            version: KEPT_VERSION,
            instead_of: lock(&self.0.instead_of).clone(),
            ca: pem.ca.clone(),
            cert: pem.cert.clone(),
            key: pem.key.clone(),
        };
        let material = Material::new(pem).map_err(|e| with_causes(&e))?;
        let valid = material.valid;
        // It is kept before it is shown: a process that dies now has one of the two.
        material.verified().map_err(|e| with_causes(&e))?;
        kept.write(&places.kept).map_err(|e| format!("{}: {e}", places.kept.display()))?;
        self.take(material).map_err(|e| with_causes(&e))?;
        Ok(valid)
    }

    /// For accepting a connection now.
    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.present().grpc_server)
    }

    /// Connections to a member, made when one is first used and again after each loss.
    pub(crate) fn channel(&self, endpoint: &str, wanted: Wanted, used: Used) -> Result<Channel, TlsError> {
        let name = match wanted {
            Wanted::Member(id) => member_name(id),
            Wanted::AnyMember => QUORUM_NAME.to_owned(),
        };
        let name = ServerName::try_from(name).map_err(|e| TlsError::Pem { what: "name", why: e.to_string() })?;
        let address = endpoint.to_owned();
        let endpoint = http2(endpoint, used)?;
        let this = self.clone();
        Ok(endpoint.connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
            let (this, address, name) = (this.clone(), address.clone(), name.clone());
            async move {
                let stream = TcpStream::connect(&address).await?;
                stream.set_nodelay(true)?;
                this.secure(stream, &address, name, wanted).await.map(TokioIo::new)
            }
        })))
    }

    /// The same with any member, over bytes that somebody carries there from here: TLS is with the member at their other end, so
    /// who carries them can neither read nor change nor repeat any. Made once: when it ends, so does the channel.
    pub(crate) fn channel_over<S>(&self, stream: S, address: &str) -> Result<Channel, TlsError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let name = ServerName::try_from(QUORUM_NAME).map_err(|e| TlsError::Pem { what: "name", why: e.to_string() })?;
        let endpoint = http2(address, Used::Session)?;
        let (this, address, once) = (self.clone(), address.to_owned(), Arc::new(Mutex::new(Some(stream))));
        Ok(endpoint.connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
            let (this, address, name, stream) = (this.clone(), address.clone(), name.clone(), lock(&once).take());
            async move {
                let stream = stream.ok_or_else(|| io::Error::other("it is not carried any more"))?;
                this.secure(stream, &address, name, Wanted::AnyMember).await.map(TokioIo::new)
            }
        })))
    }

    async fn secure<S>(
        &self,
        stream: S,
        address: &str,
        name: ServerName<'static>,
        wanted: Wanted,
    ) -> io::Result<tokio_rustls::client::TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let config = Arc::clone(&self.present().grpc_client);
        let mut stream = TlsConnector::from(config).connect(name, stream).await.inspect_err(|error| {
            if let Some(cause) = Cause::of(error) {
                self.0.refused.count(cause, &format_args!("{address}: {error}"));
            }
        })?;
        let peer = Shown::from_certificates(stream.get_ref().1.peer_certificates().unwrap_or_default());
        if let Ok(peer) = &peer
            && let Err(revoked) = self.0.revoked.check(peer)
        {
            self.0.refused.count(Cause::Revoked, &format_args!("{address}: {revoked}"));
            return Err(io::Error::other(revoked));
        }
        let fits = peer.as_ref().ok().and_then(|peer| peer.caller.member()).is_some_and(|id| match wanted {
            Wanted::Member(wanted) => wanted == id,
            Wanted::AnyMember => true,
        });
        if !fits {
            let who = |peer: Shown| format!("it is {} (role {})", peer.caller.name, peer.caller.role);
            let who = peer.map_or_else(|error| error.to_string(), who);
            let why = format!("what answers at {address} is not the member that is wanted: {who}");
            self.0.refused.count(Cause::Name, &why);
            return Err(io::Error::other(why));
        }
        // In TLS 1.3 the peer looks at our certificate when we are through already. Its first bytes say that it takes it, and
        // an alert why not: once HTTP/2 has the stream, nobody hears that.
        let refused =
            |why: String| io::Error::other(format!("{address} does not take the certificate of {}: {why}", self.present().own.name));
        match stream.fill_buf().await {
            Ok([]) => Err(refused("it closed the connection".to_owned())),
            Ok(_) => Ok(stream),
            Err(error) => Err(refused(alert_in_words(&error))),
        }
    }
}

/// TLS is the connector's: to tonic it is plain HTTP/2.
fn http2(address: &str, used: Used) -> Result<Endpoint, TlsError> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|source| TlsError::Endpoint { endpoint: address.to_owned(), source })?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(match used {
            Used::Calls => PING_INTERVAL,
            Used::Session => PING_INTERVAL_SESSION,
        })
        .keep_alive_timeout(PING_TIMEOUT)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20);
    Ok(endpoint)
}

fn alert_in_words(error: &io::Error) -> String {
    let alert = match error.get_ref().and_then(|e| e.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::AlertReceived(alert)) => Cause::of_alert(u8::from(*alert)),
        _ => return error.to_string(),
    };
    match alert {
        Cause::Expired => "it has ended (or the clocks differ): `lattice doctor` shows until when it holds".to_owned(),
        Cause::Authority => "it is of another authority".to_owned(),
        Cause::Name | Cause::Role | Cause::Revoked | Cause::Handshake | Cause::Generation | Cause::Replayed => error.to_string(),
    }
}

/// What is at the places now.
fn find(places: &Places) -> Result<Found, TlsError> {
    let kept = Kept::read(&places.kept);
    let pem = match (places.files.read(), kept) {
        (Ok(pem), Some(kept)) if kept.instead_of == digest(&pem.cert) => {
            match Material::new(ClientTls { ca: pem.ca.clone(), cert: kept.cert, key: kept.key }) {
                Ok(material) if material.valid.has_begun() && material.valid.left().is_some() => {
                    return Ok(Found { material, instead_of: kept.instead_of });
                }
                Ok(_) => {}
                Err(error) => {
                    let error = with_causes(&error);
                    tracing::warn!(%error, file = %places.kept.display(), "the renewed certificate cannot be used; the configured one is");
                }
            }
            pem
        }
        (Ok(pem), _) => pem,
        (Err(error @ TlsError::Open { .. }), _) => return Err(error),
        (Err(_), Some(kept)) => {
            let material = Material::new(ClientTls { ca: kept.ca, cert: kept.cert, key: kept.key })?;
            return Ok(Found { material, instead_of: kept.instead_of });
        }
        (Err(error), None) => return Err(error),
    };
    let instead_of = digest(&pem.cert);
    Ok(Found { material: Material::new(pem)?, instead_of })
}

impl Kept {
    fn read(path: &Path) -> Option<Self> {
        let kept = match std::fs::read(path) {
            Ok(bytes) => serde_json::from_slice::<Self>(&bytes).map_err(|e| e.to_string()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => Err(error.to_string()),
        };
        let of_this_version = kept.and_then(|kept| match kept.version {
            KEPT_VERSION => Ok(kept),
            version => Err(format!("it is of version {version}")),
        });
        of_this_version.inspect_err(|error| tracing::warn!(%error, file = %path.display(), "the renewed certificate cannot be read")).ok()
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        replace_file(path, &serde_json::to_vec(self).map_err(io::Error::other)?, 0o600)
    }
}

/// When to renew: at two thirds of the life, and a little later by chance, so that not all ask at once.
fn due(valid: Validity) -> i64 {
    valid.due() + rand::random_range(0..=(valid.life() / 24).as_secs()).cast_signed()
}

fn now() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs().cast_signed()
}

/// A number of seconds in words.
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

fn digest(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What tells that a file was written anew: its place, size and time.
fn stamps(files: &TlsFiles) -> [Option<(u64, u64, i64, i64)>; 3] {
    [&files.ca, &files.cert, &files.key].map(|path| std::fs::metadata(path).ok().map(|m| (m.ino(), m.len(), m.mtime(), m.mtime_nsec())))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
