//! The built-in certificate authority: one key, one certificate for each member and agent.

use crate::identity::{ANY_NAME, QUORUM_NAME, Role, member_name};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType, date_time_ymd,
};
use std::fs::OpenOptions;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use thiserror::Error;

const CA_NAME: &str = "Lattice CA";
const DAY: Duration = Duration::from_secs(86_400);
/// How long the authority is valid.
const CA_LIFETIME: Duration = Duration::from_secs(10 * 365 * 86_400);
/// How long an issued certificate is valid.
const LIFETIME: Duration = Duration::from_secs(2 * 365 * 86_400);

/// Why nothing was made.
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
    #[error("{host:?} is neither a host name nor an IP address")]
    Host { host: String },
    #[error("{}: this key is not one of `lattice-quorum ca init`", path.display())]
    Foreign { path: PathBuf },
    #[error("making a certificate")]
    Make(#[source] rcgen::Error),
}

/// What [`issue`] wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issued {
    /// The certificate, PEM.
    pub cert: PathBuf,
    /// Its key, PEM, mode 0600.
    pub key: PathBuf,
}

/// Makes an authority: `ca.crt` and `ca.key` (0600) in `dir`, which is made where it is missing.
pub fn init(dir: &Path) -> Result<Issued, CaError> {
    make_dir(dir)?;
    let files = Issued { cert: dir.join("ca.crt"), key: dir.join("ca.key") };
    refuse_existing(&files)?;
    let key = KeyPair::generate().map_err(CaError::Make)?;
    let certificate = authority().self_signed(&key).map_err(CaError::Make)?;
    write(&files.key, &key.serialize_pem(), 0o600)?;
    write(&files.cert, &certificate.pem(), 0o644)?;
    Ok(files)
}

/// Issues `NAME.crt` and `NAME.key` (0600) in `out`, signed by the authority in `dir`. The certificate is known by
/// `hosts` (names or addresses), by its own name, and as `lattice`; a member's as `quorum.lattice` as well.
pub fn issue(dir: &Path, name: &str, role: Role, hosts: &[String], out: &Path) -> Result<Issued, CaError> {
    check_name(name, role)?;
    make_dir(out)?;
    let files = Issued { cert: out.join(format!("{name}.crt")), key: out.join(format!("{name}.key")) };
    refuse_existing(&files)?;
    let ca_key = dir.join("ca.key");
    let pem = std::fs::read_to_string(&ca_key).map_err(|source| CaError::File {
        path: ca_key.clone(),
        what: "the authority's key cannot be read",
        source,
    })?;
    let ca_key = KeyPair::from_pem(&pem).map_err(|_| CaError::Foreign { path: ca_key })?;
    let authority = authority();
    let issuer = Issuer::from_params(&authority, ca_key);

    let mut params = CertificateParams::default();
    params.is_ca = IsCa::ExplicitNoCa;
    valid_for(&mut params, LIFETIME);
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.distinguished_name.push(DnType::OrganizationalUnitName, role.to_string());
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    params.subject_alt_names = vec![dns(name)?, dns(ANY_NAME)?];
    if role == Role::Quorum {
        params.subject_alt_names.push(dns(QUORUM_NAME)?);
    }
    for host in hosts {
        params.subject_alt_names.push(match host.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => dns(host)?,
        });
    }
    let key = KeyPair::generate().map_err(CaError::Make)?;
    let certificate = params.signed_by(&key, &issuer).map_err(CaError::Make)?;
    write(&files.key, &key.serialize_pem(), 0o600)?;
    write(&files.cert, &certificate.pem(), 0o644)?;
    Ok(files)
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

/// From a day ago (clocks differ) until `lifetime` from now.
fn valid_for(params: &mut CertificateParams, lifetime: Duration) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let epoch = date_time_ymd(1970, 1, 1);
    params.not_before = epoch + now.saturating_sub(DAY);
    params.not_after = epoch + now + lifetime;
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
        return refuse("that name is kept for the quorum");
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
    use crate::identity::Caller;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn certificates_carry_name_and_role_and_nothing_is_overwritten() {
        let dir = std::env::temp_dir().join(format!("lattice-ca-{}", std::process::id()));
        init(&dir).unwrap();
        assert!(matches!(init(&dir), Err(CaError::Exists { .. })));
        let issued = issue(&dir, "n1", Role::Node, &["h1".to_owned(), "10.0.0.1".to_owned()], &dir).unwrap();
        let der = CertificateDer::from_pem_file(&issued.cert).unwrap();
        assert_eq!(Caller::from_certificates(&[der]), Ok(Caller { name: "n1".to_owned(), role: Role::Node }));
        for key in [dir.join("ca.key"), issued.key] {
            assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
        }
        for (name, role) in [("member-1", Role::Api), ("n1", Role::Quorum), ("quorum.lattice", Role::Node), ("a/b", Role::Node)] {
            assert!(matches!(issue(&dir, name, role, &[], &dir), Err(CaError::Name { .. })), "{name} as {role}");
        }
        assert!(matches!(issue(&dir, "n2", Role::Node, &["a b".to_owned()], &dir), Err(CaError::Host { .. })));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
