//! Fuzz targets for what members, agents and certificate holders send, and for the contents of
//! backups. `docs/fuzzing.md` lists all targets.

use crate::hostile::{Decoder, decoders};
use lattice_fuzz::{Target, numbered};
use lattice_model::{OperatorToken, Timestamp};
use lattice_pki::ca::{self, Authority};
use lattice_pki::credentials::Credentials;
use lattice_pki::identity::{Role, Shown};
use lattice_pki::operator;
use lattice_pki::tls::TlsFiles;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Fuzzes the [`decoders`] with these names; an input starts with the decoder's index.
fn fuzz_messages(target: &'static str, names: &[&str]) {
    let wanted: Vec<Decoder> = decoders().into_iter().filter(|decoder| names.contains(&decoder.name)).collect();
    assert_eq!(wanted.len(), names.len());
    let seeds = numbered(wanted.iter().map(|decoder| decoder.samples.clone()));
    Target::new(target, seeds).fuzz(|bytes| {
        let Some((which, bytes)) = bytes.split_first() else { return };
        if let Some(decoder) = wanted.get(usize::from(*which)) {
            let _is_read = (decoder.decode)(bytes);
        }
    });
}

/// Messages that a member reads from a peer with a certificate of role `node` or `api`.
#[test]
fn requests() {
    fuzz_messages("quorum-requests", &["Request", "Up", "WatchRequest"]);
}

/// Messages that an agent reads from a peer with a member's certificate.
#[test]
fn answers() {
    fuzz_messages("quorum-answers", &["Answer", "Down", "WatchMessage"]);
}

/// Messages between members.
#[test]
fn members() {
    let of_raft = ["AppendEntriesRequest", "AppendEntriesResponse", "VoteRequest", "VoteResponse"];
    let of_snapshots = ["InstallSnapshotRequest", "InstallSnapshotResponse", "commands of an entry"];
    let others = ["HeartbeatSummary", "SummaryAnswer", "AuditPageRequest", "AuditPage", "Forward", "Forwarded"];
    fuzz_messages("quorum-members", &[&of_raft[..], &of_snapshots, &others].concat());
}

/// Contents of a backup in the object store: the ledger, audit records, the snapshot's description.
#[test]
fn stored() {
    fuzz_messages("quorum-stored", &["Ledger", "AuditRecord", "SnapshotMeta"]);
}

/// Certificates of connections and of operators' tokens, and certificate requests. TLS verifies the
/// certificate of a connection before its name and role are read; a token's certificate is verified
/// only after its name and role were read.
#[test]
fn certificates() {
    let dir = std::env::temp_dir().join(format!("lattice-fuzz-certificates-{}", std::process::id()));
    ca::init(&dir).unwrap();
    let hosts = ["h1".to_owned(), "10.0.0.1".to_owned(), "fd00::1".to_owned()];
    let issued = ca::issue(&dir, "n1", Role::Node, &hosts, &dir, ca::LIFETIME).unwrap();
    let operator = dir.join("anna.pem");
    ca::issue_operator(&dir, "anna", &operator, ca::OPERATOR_LIFETIME).unwrap();
    let files = TlsFiles { ca: dir.join("ca.crt"), cert: issued.cert.clone(), key: issued.key };
    let trusted = Credentials::new(files.read().unwrap()).unwrap();
    let authority = Authority::open(&dir.join("ca.key"), &std::fs::read_to_string(dir.join("ca.crt")).unwrap()).unwrap();
    let present = CertificateDer::from_pem_file(&issued.cert).unwrap();
    let operator = CertificateDer::from_pem_file(&operator).unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    let request = CertificateParams::new(hosts.to_vec()).unwrap().serialize_request(&KeyPair::generate().unwrap()).unwrap();
    let seeds = [
        vec![present.to_vec(), operator.to_vec()],
        vec![request.der().to_vec()],
        vec![present.to_vec()],
        vec![operator.to_vec(), present.to_vec()],
    ];
    let now = Timestamp(1_800_000_000_000);
    Target::new("quorum-certificates", numbered(seeds)).fuzz(|bytes| {
        let Some((which, bytes)) = bytes.split_first() else { return };
        let certificate = CertificateDer::from(bytes);
        match which {
            0 => drop(Shown::from_certificates(&[certificate])),
            1 => drop(authority.renew(bytes, &present, ca::LIFETIME, now)),
            2 => drop(authority.renew(request.der(), &certificate, ca::LIFETIME, now)),
            _ => {
                let token = OperatorToken { certificate: bytes.to_vec(), method: "A/B".into(), signed_at: now, signature: vec![1; 70] };
                assert!(operator::verify(&token, &trusted, now).is_err(), "a token with a false signature proves somebody");
            }
        }
    });
}
