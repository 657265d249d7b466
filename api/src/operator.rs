//! An operator's credential (one file with a certificate of role `operator` and its key), and the
//! tokens signed with it.
//!
//! ```text
//!   operator.pem ──Credential::read──▶ sign(method) ──metadata──▶ agent: verifies ──▶ quorum member: verifies again
//! ```

use crate::v1;
use lattice_model::operator_token::signed_bytes;
use lattice_model::time::Timestamp;
use lattice_model::{OperatorToken, millis};
use prost::Message;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{SystemTime, UNIX_EPOCH};
use thiserror::Error;
use tonic::codegen::http::HeaderValue;
use tonic::codegen::http::header::AUTHORIZATION;
use tonic::codegen::{Service, http};
use tonic::metadata::{MetadataMap, MetadataValue};

/// The metadata key of a call that carries an [`OperatorToken`].
pub const METADATA: &str = "lattice-operator-bin";
/// The methods for operators and admins, and those that every account may call, but that reach
/// further with an operator's signature: `AccountingService/History`, `AdminService/ListRoles`,
/// `AdminService/ListTokens`, `AdminService/QueryAudit`, `AdminService/RevokeToken` and
/// `AllocationService/Update`. A client with a credential signs its calls of all these methods. An
/// account with a role that suffices calls them without a signature.
pub const METHODS: [&str; 51] = [
    "AccountingService/Export",
    "AccountingService/History",
    "AccountingService/MoveStore",
    "AdminService/AddProjectMember",
    "AdminService/AddTenantMember",
    "AdminService/ChangeMembers",
    "AdminService/CreateProject",
    "AdminService/CreateTenant",
    "AdminService/DeleteProject",
    "AdminService/DeleteTenant",
    "AdminService/ExportAudit",
    "AdminService/GrantRole",
    "AdminService/IssueToken",
    "AdminService/ListProjects",
    "AdminService/ListRoles",
    "AdminService/ListTenantMembers",
    "AdminService/ListTokens",
    "AdminService/ListTracedWork",
    "AdminService/QueryAudit",
    "AdminService/RemoveProjectMember",
    "AdminService/RemoveTenantMember",
    "AdminService/RevokeCertificates",
    "AdminService/RevokeRole",
    "AdminService/RevokeToken",
    "AdminService/RotateGossipKeys",
    "AdminService/SetLimits",
    "AdminService/SetNetworkGrace",
    "AdminService/SetVniPool",
    "AdminService/StoreTrace",
    "AdminService/UpdateTenant",
    "AdminService/VerifyAudit",
    "AllocationService/Update",
    "LeaseService/Revoke",
    "NodeService/AcceptDrift",
    "NodeService/Admit",
    "NodeService/Boot",
    "NodeService/ConfirmDead",
    "NodeService/Fingerprint",
    "NodeService/LiftHold",
    "NodeService/ListAdmissions",
    "NodeService/Remove",
    "NodeService/SetHold",
    "NodeService/Wipe",
    "NodeService/WithdrawAdmission",
    "ReservationService/Create",
    "ReservationService/Delete",
    "ReservationService/Update",
    "VClusterService/Create",
    "VClusterService/Delete",
    "VClusterService/SetConfig",
    "VClusterService/SetWeights",
];
/// The prefix of a call's path before the method.
const PACKAGE: &str = "/lattice.v1.";
/// The object identifier of the curve P-256 (`prime256v1`, RFC 5480), as it is in a key.
const P256: [u8; 8] = [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
/// Largest size of an encoded token, in bytes.
const TOKEN_BYTES_MAX: usize = 8 * 1024;

/// Why reading a credential, or creating or decoding a token, failed.
#[derive(Debug, Error)]
pub enum CredentialError {
    /// The file cannot be read.
    #[error("the operator's credential {} cannot be read", path.display())]
    File {
        /// The file's path.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// Other users may read the key.
    #[error("the operator's credential {} may be read by others (mode {mode:o}): run chmod 600", path.display())]
    Open {
        /// The file's path.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The file is not one that `lattice quorum ca operator` wrote.
    #[error("{} is not an operator's credential: {what}", path.display())]
    Content {
        /// The file's path.
        path: PathBuf,
        /// What is missing or damaged.
        what: &'static str,
    },
    /// Signing failed.
    #[error("signing with the operator's key failed")]
    Sign,
    /// The metadata of a call is not a valid token.
    #[error("the operator's token cannot be read")]
    Token,
}

/// A certificate and its key. The key is decoded only when something is signed: most calls need no
/// signature, and decoding takes longer than everything else that a client does before its call.
#[derive(Debug)]
pub struct Credential {
    certificate: Vec<u8>,
    key: PrivatePkcs8KeyDer<'static>,
}

impl Credential {
    /// Reads a file written by `lattice quorum ca operator`.
    ///
    /// # Errors
    /// See [`CredentialError`].
    pub fn read(path: &Path) -> Result<Self, CredentialError> {
        let cannot = |source| CredentialError::File { path: path.to_owned(), source };
        let bytes = std::fs::read(path).map_err(cannot)?;
        let mode = std::fs::metadata(path).map_err(cannot)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(CredentialError::Open { path: path.to_owned(), mode });
        }
        let bad = |what| CredentialError::Content { path: path.to_owned(), what };
        let certificate = CertificateDer::from_pem_slice(&bytes).map_err(|_| bad("it has no certificate in PEM"))?;
        let key = PrivatePkcs8KeyDer::from_pem_slice(&bytes).map_err(|_| bad("it has no key in PEM (PKCS#8)"))?;
        if !key.secret_pkcs8_der().windows(P256.len()).any(|bytes| bytes == P256) {
            return Err(bad("its key is not an ECDSA key over P-256"));
        }
        Ok(Self { certificate: certificate.to_vec(), key })
    }

    /// A token for one method, such as `NodeService/SetHold`.
    ///
    /// # Errors
    /// [`CredentialError::Sign`]: the key is damaged, or the system provides no randomness.
    pub fn sign(&self, method: &str, now: Timestamp) -> Result<OperatorToken, CredentialError> {
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, self.key.secret_pkcs8_der(), &SystemRandom::new());
        let signature = key.map_err(|_| CredentialError::Sign)?.sign(&SystemRandom::new(), &signed_bytes(method, now));
        let signature = signature.map_err(|_| CredentialError::Sign)?.as_ref().to_vec();
        Ok(self.token(method, now, signature))
    }

    fn token(&self, method: &str, signed_at: Timestamp, signature: Vec<u8>) -> OperatorToken {
        OperatorToken { certificate: self.certificate.clone(), method: method.to_owned(), signed_at, signature }
    }
}

/// A channel that signs calls of operator methods if it has a credential, and adds the caller's token if it has one.
#[derive(Clone, Debug)]
pub struct Signed<S> {
    channel: S,
    credential: Option<Arc<Credential>>,
    bearer: Option<HeaderValue>,
}

impl<S: Clone> Signed<S> {
    pub(crate) fn new(channel: S) -> Self {
        Self { channel, credential: None, bearer: None }
    }

    pub(crate) fn with(&self, credential: Credential) -> Self {
        Self { credential: Some(Arc::new(credential)), ..self.clone() }
    }

    /// The same channel, with this value of the header `authorization` in each call.
    pub(crate) fn with_bearer(self, bearer: Option<HeaderValue>) -> Self {
        Self { bearer, ..self }
    }
}

impl<S, B> Service<http::Request<B>> for Signed<S>
where
    S: Service<http::Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.channel.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<B>) -> S::Future {
        let method = request.uri().path().strip_prefix(PACKAGE).filter(|method| METHODS.contains(method));
        if let Some((credential, method)) = self.credential.as_ref().zip(method) {
            // A damaged key cannot sign. The agent refuses a token without a signature, and the user sees that.
            let unsigned = |_| credential.token(method, now(), Vec::new());
            let token = credential.sign(method, now()).unwrap_or_else(unsigned);
            let mut metadata = MetadataMap::new();
            attach(&mut metadata, &token);
            request.headers_mut().extend(metadata.into_headers());
        }
        if let Some(bearer) = &self.bearer {
            request.headers_mut().insert(AUTHORIZATION, bearer.clone());
        }
        self.channel.call(request)
    }
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(millis(since))
}

/// Adds a token to the metadata of a call.
pub fn attach(metadata: &mut MetadataMap, token: &OperatorToken) {
    let token = v1::OperatorToken {
        certificate: token.certificate.clone(),
        method: token.method.clone(),
        signed_at_ms: token.signed_at.0,
        signature: token.signature.clone(),
    };
    metadata.insert_bin(METADATA, MetadataValue::from_bytes(&token.encode_to_vec()));
}

/// The token in the metadata of a call, if any; it is not verified.
///
/// # Errors
/// [`CredentialError::Token`]: it is too long or damaged.
pub fn token_of(metadata: &MetadataMap) -> Result<Option<OperatorToken>, CredentialError> {
    let Some(value) = metadata.get_bin(METADATA) else { return Ok(None) };
    let bytes = value.to_bytes().map_err(|_| CredentialError::Token)?;
    if bytes.len() > TOKEN_BYTES_MAX {
        return Err(CredentialError::Token);
    }
    let token = v1::OperatorToken::decode(bytes).map_err(|_| CredentialError::Token)?;
    let v1::OperatorToken { certificate, method, signed_at_ms, signature } = token;
    Ok(Some(OperatorToken { certificate, method, signed_at: Timestamp(signed_at_ms), signature }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::access::{self, Reach};

    #[test]
    fn calls_are_signed_where_users_may_not_call_or_reach_only_their_own() {
        let further = [
            "AccountingService/History",
            "AdminService/ListRoles",
            "AdminService/ListTokens",
            "AdminService/QueryAudit",
            "AdminService/RevokeToken",
            "AllocationService/Update",
        ];
        let for_roles = access::methods().filter(|rule| rule.user == Reach::Nothing).map(|rule| rule.method);
        let mut signed: Vec<&str> = for_roles.chain(further).collect();
        signed.sort_unstable();
        assert_eq!(METHODS.as_slice(), signed);
        for method in further {
            assert_eq!(access::rule(method).map(|rule| rule.user), Some(Reach::Own), "{method}");
        }
    }

    #[test]
    fn a_token_survives_the_metadata_and_garbage_is_refused() {
        let token = OperatorToken { certificate: vec![1; 700], method: "A/B".into(), signed_at: Timestamp(7), signature: vec![2; 70] };
        let mut metadata = MetadataMap::new();
        assert!(token_of(&metadata).unwrap().is_none());
        attach(&mut metadata, &token);
        assert_eq!(token_of(&metadata).unwrap(), Some(token.clone()));
        for garbage in [vec![0xff; 40], vec![0; TOKEN_BYTES_MAX + 1]] {
            metadata.insert_bin(METADATA, MetadataValue::from_bytes(&garbage));
            assert!(token_of(&metadata).is_err());
        }
    }
}
