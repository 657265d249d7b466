//! The built-in certificate authority: one key, one certificate for each member and agent.
//!
//! The key stays where `init` wrote it (mode 0600). `issue` signs first certificates with it. If a
//! member has the key (`ca_key`), members and agents renew their certificates automatically
//! ([`Authority::renew`], [`crate::credentials`]).

use crate::identity::{ACCOUNT_PREFIX, ANY_NAME, Caller, CallerError, QUORUM_NAME, Role, member_name, serial};
use crate::tls::replace_file;
use lattice_model::{Timestamp, millis};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PublicKeyData, SanType, SerialNumber, date_time_ymd,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateSigningRequestDer};
use std::fs::OpenOptions;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use thiserror::Error;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

const CA_NAME: &str = "Lattice CA";
const DAY: Duration = Duration::from_secs(86_400);
/// The validity of the authority's certificate.
const CA_LIFETIME: Duration = Duration::from_secs(10 * 365 * 86_400);
/// The default validity of an issued certificate.
pub const LIFETIME: Duration = Duration::from_secs(2 * 365 * 86_400);
/// The validity of an operator's certificate.
pub const OPERATOR_LIFETIME: Duration = Duration::from_secs(90 * 86_400);
/// The shortest and the longest validity of a certificate.
pub const LIFETIME_MIN: Duration = Duration::from_secs(10);
pub const LIFETIME_MAX: Duration = CA_LIFETIME;
/// Largest accepted size of a certificate request, in bytes.
pub const REQUEST_BYTES_MAX: usize = 16 * 1024;

/// Why nothing was issued.
#[derive(Debug, Error)]
pub enum CaError {
    #[error("{} exists already: nothing is overwritten", path.display())]
    Exists { path: PathBuf },
    #[error("{}: {what}", path.display())]
    File {
        path: PathBuf,
        what: &'static str,
        #[source]
        source: std::io::Error,
    },
    #[error("{name:?} cannot be the name of a certificate of role {role}: {why}")]
    Name { name: String, role: Role, why: &'static str },
    #[error("`ca operator` makes operators' credentials, each in one file; no agent or member can use them")]
    Operator,
    #[error("`ca service` makes the certificates of service accounts, each in one file; no agent or member can use them")]
    Service,
    #[error("{host:?} is neither a host name nor an IP address")]
    Host { host: String },
    #[error("{host:?} is reserved for members of the quorum: a certificate of role {role} cannot have it")]
    QuorumHost { host: String, role: Role },
    #[error("{}: others can read the authority's key (mode {mode:o}); chmod 600", path.display())]
    Open { path: PathBuf, mode: u32 },
    #[error("{}: this is not a key in PEM (PKCS#8)", path.display())]
    Key { path: PathBuf },
    #[error("{}: this is not the key of any of the authorities' certificates", path.display())]
    Foreign { path: PathBuf },
    #[error("the authority's own certificate has expired: make another authority")]
    Over,
    #[error("the present certificate cannot be read: {why}")]
    Present { why: String },
    #[error("the present certificate identifies nobody")]
    Nobody(#[from] CallerError),
    #[error("making a certificate")]
    Make(#[from] rcgen::Error),
}

/// The files written by [`issue`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issued {
    /// The certificate, PEM.
    pub cert: PathBuf,
    /// Its key, PEM, mode 0600.
    pub key: PathBuf,
}

/// Creates an authority: `ca.crt` and `ca.key` (0600) in `dir`, which is created if missing.
pub fn init(dir: &Path) -> Result<Issued, CaError> {
    make_dir(dir)?;
    let files = Issued { cert: dir.join("ca.crt"), key: dir.join("ca.key") };
    refuse_existing(&files)?;
    let key = KeyPair::generate()?;
    let certificate = authority().self_signed(&key)?;
    write(&files.key, &key.serialize_pem(), 0o600)?;
    write(&files.cert, &certificate.pem(), 0o644)?;
    Ok(files)
}

/// Issues `NAME.crt` and `NAME.key` (0600) in `out`, signed by the authority in `dir`. The
/// certificate contains `hosts` (names or addresses), its own name, and `lattice` as DNS names; a
/// member's also `quorum.lattice`.
pub fn issue(dir: &Path, name: &str, role: Role, hosts: &[String], out: &Path, lifetime: Duration) -> Result<Issued, CaError> {
    match role {
        Role::Operator => return Err(CaError::Operator),
        Role::Service => return Err(CaError::Service),
        Role::Quorum | Role::Node | Role::Api => {}
    }
    check_name(name, role)?;
    make_dir(out)?;
    let files = Issued { cert: out.join(format!("{name}.crt")), key: out.join(format!("{name}.key")) };
    refuse_existing(&files)?;
    let authority = Authority::of(dir)?;
    let mut names = vec![dns(name)?, dns(ANY_NAME)?];
    if role == Role::Quorum {
        names.push(dns(QUORUM_NAME)?);
    }
    for host in hosts {
        if role != Role::Quorum && (host == QUORUM_NAME || host.starts_with("member-")) {
            return Err(CaError::QuorumHost { host: host.clone(), role });
        }
        names.push(match host.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => dns(host)?,
        });
    }
    let key = KeyPair::generate()?;
    let subject = Subject { who: Caller { name: name.to_owned(), role }, names };
    let certificate = authority.sign(subject, &key, lifetime, issued_now())?;
    write(&files.key, &key.serialize_pem(), 0o600)?;
    write(&files.cert, &certificate, 0o644)?;
    Ok(files)
}

/// Issues an operator's credential: certificate and key in one file (PEM, 0600), signed by the
/// authority in `dir`. It contains no DNS name for TLS servers.
pub fn issue_operator(dir: &Path, name: &str, out: &Path, lifetime: Duration) -> Result<(), CaError> {
    issue_file(dir, Caller { name: name.to_owned(), role: Role::Operator }, out, lifetime)
}

/// Issues the certificate with which a program calls the API on the network as `account`: certificate
/// and key in one file (PEM, 0600). Its name is `account-` and the account.
pub fn issue_service(dir: &Path, account: &str, out: &Path, lifetime: Duration) -> Result<(), CaError> {
    issue_file(dir, Caller { name: format!("{ACCOUNT_PREFIX}{account}"), role: Role::Service }, out, lifetime)
}

fn issue_file(dir: &Path, who: Caller, out: &Path, lifetime: Duration) -> Result<(), CaError> {
    check_name(&who.name, who.role)?;
    if out.exists() {
        return Err(CaError::Exists { path: out.to_owned() });
    }
    if let Some(folder) = out.parent() {
        make_dir(folder)?;
    }
    let key = KeyPair::generate()?;
    let subject = Subject { who, names: Vec::new() };
    let certificate = Authority::of(dir)?.sign(subject, &key, lifetime, issued_now())?;
    write(out, &format!("{certificate}{}", key.serialize_pem()), 0o600)
}

/// Replaces `files` by a new certificate and key with the same name, role and hosts, signed by the
/// authority in `dir`. A running process that uses the files adopts them.
pub fn reissue(dir: &Path, files: &Issued, lifetime: Duration) -> Result<(), CaError> {
    let present =
        CertificateDer::from_pem_file(&files.cert).map_err(|e| CaError::Present { why: format!("{}: {e}", files.cert.display()) })?;
    let key = KeyPair::generate()?;
    let certificate = Authority::of(dir)?.sign(Subject::of(&present)?, &key, lifetime, issued_now())?;
    for (path, text, mode) in [(&files.key, key.serialize_pem(), 0o600), (&files.cert, certificate, 0o644)] {
        let fail = |source| CaError::File { path: path.clone(), what: "cannot be replaced", source };
        replace_file(path, text.as_bytes(), mode).map_err(fail)?;
    }
    Ok(())
}

/// An authority's key and certificate.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// When its certificate expires, in seconds since 1970.
    until: i64,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("until", &self.until).finish_non_exhaustive()
    }
}

impl Authority {
    fn of(dir: &Path) -> Result<Self, CaError> {
        let path = dir.join("ca.crt");
        let read = std::fs::read_to_string(&path);
        let trusted = read.map_err(|source| CaError::File { path, what: "the authority's certificate cannot be read", source })?;
        Self::open(&dir.join("ca.key"), &trusted)
    }

    /// Reads the key, which must belong to one of the `trusted` certificates (PEM).
    pub fn open(key: &Path, trusted: &str) -> Result<Self, CaError> {
        let cannot = |source| CaError::File { path: key.to_owned(), what: "the authority's key cannot be read", source };
        let mode = std::fs::metadata(key).map_err(cannot)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(CaError::Open { path: key.to_owned(), mode });
        }
        let pair = KeyPair::from_pem(&std::fs::read_to_string(key).map_err(cannot)?);
        let pair = pair.map_err(|_| CaError::Key { path: key.to_owned() })?;
        let public = pair.subject_public_key_info();
        for certificate in CertificateDer::pem_slice_iter(trusted.as_bytes()).flatten() {
            let Ok((_, read)) = X509Certificate::from_der(&certificate) else { continue };
            if read.tbs_certificate.subject_pki.raw == public {
                let until = read.validity().not_after.timestamp();
                return Ok(Self { issuer: Issuer::from_ca_cert_der(&certificate, pair)?, until });
            }
        }
        Err(CaError::Foreign { path: key.to_owned() })
    }

    /// Issues the next certificate for the peer with certificate `present`, which TLS has verified:
    /// the same name, role and hosts, for the key that signed `request` (PKCS#10, DER). `issued` is
    /// the time of issue for revocations. Everything else in the request is ignored.
    pub fn renew(&self, request: &[u8], present: &CertificateDer<'_>, lifetime: Duration, issued: Timestamp) -> Result<String, CaError> {
        let request = CertificateSigningRequestParams::from_der(&CertificateSigningRequestDer::from(request))?;
        self.sign(Subject::of(present)?, &request.public_key, lifetime, issued)
    }

    /// Signs a certificate (PEM). It expires no later than the authority's own.
    fn sign(&self, subject: Subject, key: &impl PublicKeyData, lifetime: Duration, issued: Timestamp) -> Result<String, CaError> {
        let left = u64::try_from(self.until - now().as_secs().cast_signed()).map_err(|_| CaError::Over)?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::ExplicitNoCa;
        params.serial_number = Some(SerialNumber::from(serial(issued)));
        valid_for(&mut params, lifetime.min(Duration::from_secs(left)));
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, subject.who.name);
        params.distinguished_name.push(DnType::OrganizationalUnitName, subject.who.role.to_string());
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = match subject.who.role {
            Role::Service => vec![ExtendedKeyUsagePurpose::ClientAuth],
            Role::Quorum | Role::Node | Role::Api | Role::Operator => {
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth]
            }
        };
        params.subject_alt_names = subject.names;
        Ok(params.signed_by(key, &self.issuer)?.pem())
    }
}

/// The subject of a certificate.
struct Subject {
    who: Caller,
    names: Vec<SanType>,
}

impl Subject {
    fn of(certificate: &CertificateDer<'_>) -> Result<Self, CaError> {
        let who = Caller::from_certificates(std::slice::from_ref(certificate))?;
        let unreadable = |why: String| CaError::Present { why };
        let (_, read) = X509Certificate::from_der(certificate).map_err(|e| unreadable(e.to_string()))?;
        let extension = read.subject_alternative_name().map_err(|e| unreadable(e.to_string()))?;
        let general = extension.map(|e| e.value.general_names.as_slice()).unwrap_or_default();
        let names = general.iter().map(alternative).collect::<Option<Vec<_>>>();
        Ok(Self { who, names: names.ok_or_else(|| unreadable("it has a name that is no host, address or URI".to_owned()))? })
    }
}

fn alternative(name: &GeneralName<'_>) -> Option<SanType> {
    Some(match name {
        GeneralName::DNSName(name) => SanType::DnsName((*name).try_into().ok()?),
        GeneralName::URI(uri) => SanType::URI((*uri).try_into().ok()?),
        GeneralName::IPAddress(octets) => SanType::IpAddress(match octets.len() {
            4 => Ipv4Addr::from(<[u8; 4]>::try_from(*octets).ok()?).into(),
            _ => Ipv6Addr::from(<[u8; 16]>::try_from(*octets).ok()?).into(),
        }),
        _ => return None,
    })
}

fn authority() -> CertificateParams {
    let mut params = CertificateParams::default();
    valid_for(&mut params, CA_LIFETIME);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, CA_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    params
}

fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

fn issued_now() -> Timestamp {
    Timestamp(millis(now()))
}

/// Sets the validity. It ends `lifetime` from now; because clocks differ, it begins a day ago, or a
/// tenth of the lifetime ago if that is less.
fn valid_for(params: &mut CertificateParams, lifetime: Duration) {
    let epoch = date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now().saturating_sub(DAY.min(lifetime / 10));
    params.not_after = epoch + now() + lifetime;
}

fn check_name(name: &str, role: Role) -> Result<(), CaError> {
    let refuse = |why| Err(CaError::Name { name: name.chars().take(80).collect(), role, why });
    if name.parse::<lattice_model::NodeId>().is_err() {
        return refuse("1 to 63 of a-z, A-Z, 0-9, '-', '_' and '.', beginning with a letter or digit");
    }
    let is_member = name.strip_prefix("member-").and_then(|id| id.parse().ok()).is_some_and(|id| member_name(id) == name);
    if role == Role::Quorum && !is_member {
        return refuse("a member is called member-<id>");
    }
    if role != Role::Quorum && (name.starts_with("member-") || name == QUORUM_NAME || name == "ca") {
        return refuse("that name is reserved for the quorum");
    }
    match name.strip_prefix(ACCOUNT_PREFIX) {
        Some("root") => return refuse("root may not call from the network: name another account"),
        Some(account) if role == Role::Service && (account.is_empty() || account.bytes().all(|byte| byte.is_ascii_digit())) => {
            return refuse("the name of an account is needed, and no user id");
        }
        Some(_) if role != Role::Service => return refuse("that name is reserved for service accounts"),
        None if role == Role::Service => return refuse("a service account is called account-<name>"),
        Some(_) | None => {}
    }
    Ok(())
}

fn dns(name: &str) -> Result<SanType, CaError> {
    let refuse = || CaError::Host { host: name.chars().take(80).collect() };
    let plain = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    if !plain {
        return Err(refuse());
    }
    Ok(SanType::DnsName(name.to_owned().try_into().map_err(|_| refuse())?))
}

fn make_dir(dir: &Path) -> Result<(), CaError> {
    std::fs::create_dir_all(dir).map_err(|source| CaError::File { path: dir.to_owned(), what: "the folder cannot be made", source })
}

fn refuse_existing(files: &Issued) -> Result<(), CaError> {
    match [&files.cert, &files.key].into_iter().find(|p| p.exists()) {
        Some(path) => Err(CaError::Exists { path: path.clone() }),
        None => Ok(()),
    }
}

fn write(path: &Path, text: &str, mode: u32) -> Result<(), CaError> {
    let fail = |source| CaError::File { path: path.to_owned(), what: "cannot be written", source };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(fail)?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(fail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::Shown;

    #[test]
    fn certificates_carry_name_and_role_and_nothing_is_overwritten() {
        let dir = std::env::temp_dir().join(format!("lattice-ca-{}", std::process::id()));
        init(&dir).unwrap();
        assert!(matches!(init(&dir), Err(CaError::Exists { .. })));
        let issued = issue(&dir, "n1", Role::Node, &["h1".to_owned(), "10.0.0.1".to_owned()], &dir, DAY).unwrap();
        let der = CertificateDer::from_pem_file(&issued.cert).unwrap();
        assert_eq!(Caller::from_certificates(&[der]), Ok(Caller { name: "n1".to_owned(), role: Role::Node }));
        for key in [dir.join("ca.key"), issued.key] {
            assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
        }
        for (name, role) in [("member-1", Role::Api), ("n1", Role::Quorum), ("quorum.lattice", Role::Node), ("a/b", Role::Node)] {
            assert!(matches!(issue(&dir, name, role, &[], &dir, DAY), Err(CaError::Name { .. })), "{name} as {role}");
        }
        for (account, is_usable) in [("builder", true), ("root", false), ("", false), ("1000", false), ("a b", false), ("a@b", false)] {
            let issued = issue_service(&dir, account, &dir.join("service.pem"), DAY);
            assert_eq!(issued.is_ok(), is_usable, "{account:?}: {issued:?}");
        }
        let der = CertificateDer::from_pem_file(dir.join("service.pem")).unwrap();
        let service = Caller::from_certificates(std::slice::from_ref(&der)).unwrap();
        assert_eq!((service.role, service.account()), (Role::Service, Some("builder")));
        let (_, read) = X509Certificate::from_der(&der).unwrap();
        let usages = read.extended_key_usage().unwrap().unwrap().value;
        assert!(usages.client_auth && !usages.server_auth && read.subject_alternative_name().unwrap().is_none(), "it serves nothing");
        assert!(matches!(issue(&dir, "account-n3", Role::Node, &[], &dir, DAY), Err(CaError::Name { .. })));
        assert!(matches!(issue(&dir, "account-a", Role::Service, &[], &dir, DAY), Err(CaError::Service)));
        assert!(matches!(issue(&dir, "n2", Role::Node, &["a b".to_owned()], &dir, DAY), Err(CaError::Host { .. })));
        for host in ["quorum.lattice", "member-1"] {
            let asked = issue(&dir, "n2", Role::Api, &[host.to_owned()], &dir, DAY);
            assert!(matches!(asked, Err(CaError::QuorumHost { .. })), "{host}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_renewal_changes_only_the_key_and_the_times() {
        let dir = std::env::temp_dir().join(format!("lattice-ca-renew-{}", std::process::id()));
        init(&dir).unwrap();
        let hosts = ["h1".to_owned(), "10.0.0.1".to_owned(), "fd00::1".to_owned()];
        let issued = issue(&dir, "n1", Role::Node, &hosts, &dir, DAY).unwrap();
        let present = CertificateDer::from_pem_file(&issued.cert).unwrap();
        let authority = Authority::of(&dir).unwrap();
        let key = KeyPair::generate().unwrap();
        // Everything in the request except the key is ignored.
        let mut asked = CertificateParams::new(vec![QUORUM_NAME.to_owned()]).unwrap();
        asked.distinguished_name.push(DnType::CommonName, "member-1");
        asked.distinguished_name.push(DnType::OrganizationalUnitName, "quorum");
        let request = asked.serialize_request(&key).unwrap();
        let pem = authority.renew(request.der(), &present, LIFETIME_MIN, Timestamp(7)).unwrap();
        let renewed = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        assert_eq!(Caller::from_certificates(std::slice::from_ref(&renewed)), Caller::from_certificates(std::slice::from_ref(&present)));
        assert_eq!(Subject::of(&renewed).unwrap().names, Subject::of(&present).unwrap().names);
        let issue_time = |of: &CertificateDer<'_>| Shown::from_certificates(std::slice::from_ref(of)).unwrap().issued;
        assert_eq!(issue_time(&renewed), Timestamp(7), "the quorum's time");
        assert!(issued_now().0 - issue_time(&present).0 < 60_000, "this machine's");
        let (_, read) = X509Certificate::from_der(&renewed).unwrap();
        assert_eq!(read.tbs_certificate.subject_pki.raw, key.subject_public_key_info());
        let seconds = read.validity().not_after.timestamp() - read.validity().not_before.timestamp();
        assert!((10..=12).contains(&seconds), "{seconds}");
        // A request that was not signed by its key.
        let mut forged = request.der().to_vec();
        *forged.last_mut().unwrap() ^= 1;
        assert!(matches!(authority.renew(&forged, &present, DAY, Timestamp(7)), Err(CaError::Make(_))));
        assert!(authority.renew(b"no request", &present, DAY, Timestamp(7)).is_err());

        // Another authority's key does not work with this one's certificate, and a key that others
        // can read is always refused.
        let other = dir.join("other");
        init(&other).unwrap();
        let trusted = std::fs::read_to_string(dir.join("ca.crt")).unwrap();
        assert!(matches!(Authority::open(&other.join("ca.key"), &trusted), Err(CaError::Foreign { .. })));
        std::fs::set_permissions(other.join("ca.key"), std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(Authority::open(&other.join("ca.key"), &trusted), Err(CaError::Open { .. })));

        // The files are replaced in place.
        let before = std::fs::read(&issued.key).unwrap();
        reissue(&dir, &issued, DAY).unwrap();
        assert_ne!(std::fs::read(&issued.key).unwrap(), before);
        assert_eq!(std::fs::metadata(&issued.key).unwrap().permissions().mode() & 0o777, 0o600);
        let der = CertificateDer::from_pem_file(&issued.cert).unwrap();
        assert_eq!(Subject::of(&der).unwrap().names, Subject::of(&present).unwrap().names);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
