//! Renewal of certificates: members that have the authority's key sign the next certificates of
//! members and agents. A member without that key requests its own from another member.
//!
//! The request contains a public key and the proof that the sender has the private key; everything
//! else in it is ignored. The identity of the requester comes from the current certificate,
//! verified by TLS. A renewal changes no agreed state, so it is not a command in the log. See
//! `lattice_pki::credentials` for the handshakes.

use crate::core::{AskLeader, Core};
use futures::FutureExt;
use lattice_api::pack::{PackError, pack, unpack};
use lattice_model::{Timestamp, with_causes};
use lattice_pki::ca::REQUEST_BYTES_MAX;
use lattice_pki::credentials::AskAuthority;
use lattice_pki::identity::{Caller, Role, Shown};
use lattice_pki::refused::Cause;
use lattice_pki::tls::TlsError;
use lattice_quorum_client::status_text;
use lattice_quorum_client::wire::{Answer, Refusal, Request};
use rustls::pki_types::CertificateDer;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;

/// The file name of a member's renewed certificate in its data directory.
pub(crate) const RENEWED_FILE: &str = "certificate.json";
/// Timeout for one other member.
const ASK_TIMEOUT: Duration = Duration::from_secs(3);

/// Issues the caller's next certificate. `present`: its current one, verified by TLS.
pub(crate) async fn renew(
    core: &Arc<Core>,
    caller: &Caller,
    present: Option<&CertificateDer<'_>>,
    request: &[u8],
    ask_leader: AskLeader,
) -> Result<Answer, Refusal> {
    let gone = caller.role == Role::Quorum && !caller.member().is_some_and(|id| core.roster().members.contains_key(&id));
    if gone {
        let why = format!("{} is not a member of this cluster", caller.name);
        core.identity.credentials.refused().count(Cause::Name, &why);
        return Err(Refusal::CertificateRefused { why });
    }
    if request.len() > REQUEST_BYTES_MAX {
        let what = "the request for a certificate".to_owned();
        return Err(Refusal::TooLarge { what, bytes: request.len() as u64, most: REQUEST_BYTES_MAX as u64 });
    }
    let present = present.ok_or_else(|| Refusal::CertificateRefused { why: "the connection carries no client certificate".to_owned() })?;
    let pem = sign(core, request, present, ask_leader).await?;
    tracing::info!(name = caller.name, role = %caller.role, "a certificate was renewed");
    Ok(Answer::Certificate { pem })
}

/// The time of issue of the certificate that follows `present`: no earlier than the newest
/// revocation. The leader is asked, because this member may lag behind. For a member's certificate
/// this member's own state must suffice: there is no leader if all members' certificates have
/// expired.
async fn issue_time(core: &Arc<Core>, present: &CertificateDer<'_>, ask_leader: AskLeader) -> Result<Timestamp, Refusal> {
    let shown =
        Shown::from_certificates(std::slice::from_ref(present)).map_err(|error| Refusal::CertificateRefused { why: error.to_string() })?;
    let issued = if shown.caller.role == Role::Quorum {
        core.agreed.ledger().issue_time()
    } else {
        match ask_leader(Arc::clone(core), Request::ListRevocations).await? {
            Answer::Revocations { revoked, issue_time } => {
                core.identity.credentials.revoked().learn(revoked.into_iter().map(|(name, revocation)| (name, revocation.before)));
                issue_time
            }
            other => return Err(Refusal::Unavailable { why: format!("the leader answered something else: {other:?}") }),
        }
    };
    core.identity.credentials.revoked().check(&shown).map_err(|revoked| Refusal::CertificateRefused { why: revoked.to_string() })?;
    Ok(issued)
}

async fn sign(core: &Arc<Core>, request: &[u8], present: &CertificateDer<'_>, ask_leader: AskLeader) -> Result<String, Refusal> {
    let Some(authority) = &core.identity.authority else {
        // Another member may have the key.
        let why = format!("member {} has no ca_key to sign certificates with", core.config.id);
        return Err(Refusal::Unavailable { why });
    };
    let issued = issue_time(core, present, ask_leader).await?;
    let lifetime = Duration::from_secs(core.config.certificate_seconds);
    authority.renew(request, present, lifetime, issued).map_err(|error| Refusal::Malformed { why: with_causes(&error) })
}

/// How a member renews its own certificate: signed here, or by the first other member that can.
pub(crate) fn own(core: &Arc<Core>, ask_leader: AskLeader) -> AskAuthority {
    let core = Arc::clone(core);
    Box::new(move |request| {
        let asked = ask(Arc::clone(&core), request, ask_leader);
        async move { Ok(asked.await?) }.boxed()
    })
}

/// Why no member issued this member's certificate: the last member's reason.
#[derive(Debug, Error)]
enum NoCertificate {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Request(#[from] PackError),
    #[error(transparent)]
    Connection(#[from] TlsError),
    #[error("member {member} has no ca_key, and there is no other member")]
    NoOther { member: u64 },
    /// The member's own text for its [`Refusal::Unavailable`].
    #[error("{why}")]
    Unavailable { why: String },
    #[error("member {member} answered something else")]
    Unexpected { member: u64 },
    #[error("member {member}: {}", status_text(status))]
    Status { member: u64, status: Box<tonic::Status> },
    #[error("member {member}: no answer in time")]
    Timeout { member: u64 },
}

async fn ask(core: Arc<Core>, request: Vec<u8>, ask_leader: AskLeader) -> Result<String, NoCertificate> {
    if core.identity.authority.is_some() {
        let present = Arc::clone(&core.identity.credentials.material().borrow());
        return Ok(sign(&core, &request, present.leaf(), ask_leader).await?);
    }
    let body = pack(&Request::RenewCertificate { request })?;
    let mut failed = NoCertificate::NoOther { member: core.config.id };
    for (member, peer) in core.roster().members {
        if member == core.config.id {
            continue;
        }
        let mut client = core.peers.service(member, &peer)?;
        failed = match tokio::time::timeout(ASK_TIMEOUT, client.call(body.clone())).await {
            Ok(Ok(reply)) => match unpack::<Result<Answer, Refusal>>(reply.get_ref()) {
                Ok(Ok(Answer::Certificate { pem })) => return Ok(pem),
                Ok(Ok(_)) => NoCertificate::Unexpected { member },
                Ok(Err(Refusal::Unavailable { why })) => NoCertificate::Unavailable { why },
                Ok(Err(refusal)) => refusal.into(),
                Err(error) => error.into(),
            },
            Ok(Err(status)) => NoCertificate::Status { member, status: Box::new(status) },
            Err(_) => NoCertificate::Timeout { member },
        };
    }
    Err(failed)
}
