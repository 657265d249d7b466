//! What happens to each request before a handler sees it.
//!
//! ```text
//!   origin ─▶ shape ─┬▶ public page
//!                    └▶ token or certificate ─▶ identity ─▶ account of this machine ─▶ rates ─▶ Peer in the extensions ─┬▶ gRPC
//!                       └ too many wrong ones from this address: an unknown one is refused first                        └▶ REST
//! ```

use super::access_log::{AccessLog, Begun, Ended, Entry};
use super::activity::OpenRequest;
use super::answer_body::AnswerBody;
use super::answers::{Form, Refusal};
use super::bearer;
use super::client_certificate::{self, ServiceCertificate};
use super::counts::Counts;
use super::known_tokens::KnownTokens;
use super::origins::{Origin, Origins};
use super::places::Source;
use super::public_pages::{self, PublicPage};
use super::rates::{Rates, is_submission};
use super::request_body::RequestBody;
use super::unread_body::UnreadBody;
use axum::body::Body;
use axum::http::header::{AUTHORIZATION, CONTENT_LENGTH, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderMap, Method, Request, Response, Version};
use hyper::body::{Body as HttpBody, Bytes};
use lattice_agent_common::clock;
use lattice_agent_common::config::api::ClientCertificates;
use lattice_agent_common::session_state::SessionState;
use lattice_identity::{Identified, IdentifiedBy, Identities, Refused};
use lattice_model::Principal;
use lattice_model::access::{Scopes, rule};
use lattice_rest::BODY_BYTES_MAX;
use lattice_service::{Authentication, NetworkPeer, Peer, account_named};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;
use tonic::Status;
use tonic::service::Routes;
use tower::ServiceExt;

/// The prefix of gRPC's paths.
const GRPC_PREFIX: &str = "/lattice.v1.";

/// Checks each request and passes it to its handler.
pub(super) struct Gate {
    pub grpc: Routes,
    pub rest: axum::Router,
    pub identities: Identities,
    pub session: watch::Receiver<SessionState>,
    /// The cluster's name.
    pub cluster: String,
    pub client_certificates: ClientCertificates,
    pub origins: Origins,
    pub rates: Rates,
    pub known_tokens: KnownTokens,
    pub log: AccessLog,
    pub counts: Counts,
    /// The tasks that the agent waits for when it stops.
    pub tasks: TaskTracker,
}

impl Gate {
    /// Answers a request from this address. `certificate`: the one that the client presented.
    pub(super) async fn answer<B>(
        &self,
        request: Request<B>,
        (from, certificate): (IpAddr, Option<&ServiceCertificate>),
        open: OpenRequest,
    ) -> Response<AnswerBody>
    where
        B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        let (form, path) = (form_of(&request), request.uri().path());
        let mut entry = self.log.entry(Begun::new(from, request.method().as_str(), path, may_change(request.method(), path)));
        let origin = self.origins.check(request.headers());
        let mut answer = match &origin {
            Ok(origin) => {
                let request = request.map(|body| UnreadBody::new(body, self.tasks.clone()));
                let from = (Source::of(from), certificate);
                let responded = self.respond(request, form, origin.as_ref(), &mut entry, from).await;
                responded.unwrap_or_else(|refusal| refusal.answer(form))
            }
            Err(refusal) => refusal.answer(form),
        };
        if let Ok(Some(origin)) = &origin {
            origin.allow(answer.headers_mut());
        }
        if form == Form::Rest {
            answer.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        }
        let grpc_status = Status::from_header_map(answer.headers()).map(|status| status.code().into());
        entry.ended = Ended { status: answer.status().as_u16(), grpc_status, bytes: 0 };
        answer.map(|body| AnswerBody::new(body, open, entry))
    }

    async fn respond<B>(
        &self,
        mut request: Request<B>,
        form: Form,
        origin: Option<&Origin>,
        entry: &mut Entry,
        (from, certificate): (Source, Option<&ServiceCertificate>),
    ) -> Result<Response<Body>, Refusal>
    where
        B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        let now = Instant::now();
        if let Some(answer) = origin.and_then(|origin| origin.preflight(request.method(), request.headers())) {
            return self.rates.public(from, now).map(|()| answer);
        }
        check_shape(form, request.uri().path(), request.headers())?;
        if let Some(page) = PublicPage::of(request.method(), request.uri().path()) {
            self.rates.public(from, now)?;
            return Ok(match page {
                PublicPage::Health => public_pages::health(&self.session),
                PublicPage::Discovery => public_pages::discovery(&self.identities, &self.cluster),
                PublicPage::OpenApi => self.rest(request).await,
            });
        }
        let peer = self.caller(request.headers(), from, certificate).await?;
        entry.identified(&peer.principal.name, token_name(&peer.authentication));
        let is_submission = is_submission(request.method().as_str(), request.uri().path());
        self.rates.request(&peer.principal, is_submission, now)?;
        if self.rates.limits_tenants() {
            let known = self.identities.tenants_of(&peer.principal).await;
            self.rates.request_of_tenants(known.union(&peer.tenants), now)?;
        }
        // Nothing behind the gate needs the secret.
        request.headers_mut().remove(AUTHORIZATION);
        request.extensions_mut().insert(Peer::Network(Arc::new(peer)));
        Ok(match form {
            Form::Grpc => self.grpc(request).await,
            Form::Rest => self.rest(request).await,
        })
    }

    /// Identifies the caller by a certificate, a token, or both. Both must belong to the same account; then the token's
    /// scopes apply.
    async fn caller(&self, headers: &HeaderMap, from: Source, certificate: Option<&ServiceCertificate>) -> Result<NetworkPeer, Refusal> {
        match certificate {
            Some(certificate) => {
                let now = clock::now();
                let result = if now >= certificate.expires_at { "expired" } else { "revoked" };
                certificate.check(now).inspect_err(|_| self.counts.authenticated("certificate", result))?;
                if !headers.contains_key(AUTHORIZATION) {
                    return self.service(certificate).await;
                }
                let peer = self.by_token(headers, from).await?;
                certificate.check_token_of(&peer.principal.name)?;
                Ok(peer)
            }
            None if self.client_certificates == ClientCertificates::Required => Err(client_certificate::none_presented()),
            None => self.by_token(headers, from).await,
        }
    }

    /// The service account of a certificate, as this machine knows it.
    async fn service(&self, certificate: &ServiceCertificate) -> Result<NetworkPeer, Refusal> {
        let found = account_named(&certificate.account).await.map_err(|status| Refusal::of_account(&status));
        let principal = found.inspect_err(|_| self.counts.authenticated("certificate", "no_account"))?;
        self.counts.authenticated("certificate", "ok");
        let authentication = Authentication::Certificate { name: certificate.name().to_owned() };
        let expires_at = certificate.expires_at;
        Ok(NetworkPeer { principal, scopes: Scopes::work(), tenants: [].into(), authentication, expires_at })
    }

    async fn by_token(&self, headers: &HeaderMap, from: Source) -> Result<NetworkPeer, Refusal> {
        let (given, now) = (bearer::token(headers), Instant::now());
        let is_known = || given.as_ref().is_ok_and(|token| self.known_tokens.contains(token, now));
        let check = self.rates.begin_check(from, now, is_known)?;
        let token = given.inspect_err(|_| self.counts.authenticated("none", "missing"))?;
        match self.bearer_of(token).await {
            Ok(peer) => {
                check.forgive();
                self.known_tokens.insert(token, now);
                Ok(peer)
            }
            Err(refusal) if refusal.is_unavailable() => {
                check.forgive();
                Err(refusal)
            }
            Err(refusal) => {
                self.known_tokens.remove(token);
                Err(refusal)
            }
        }
    }

    /// The caller that a token identifies, with its account on this machine.
    async fn bearer_of(&self, token: &str) -> Result<NetworkPeer, Refusal> {
        let kind = bearer::kind(token);
        let identified = self.identities.identify(token, clock::now()).await.map_err(|refused| {
            self.counts.authenticated(kind, result_of(&refused));
            refusal_of(&refused)
        })?;
        let principal = account_of(&identified).await.inspect_err(|_| self.counts.authenticated(kind, "no_account"))?;
        self.counts.authenticated(kind, "ok");
        let Identified { scopes, tenants, kind, expires_at, .. } = identified;
        let authentication = match kind {
            IdentifiedBy::Oidc { issuer, subject } => Authentication::Oidc { issuer, subject },
            IdentifiedBy::Token { id, name } => Authentication::Token { id, name },
        };
        Ok(NetworkPeer { principal, scopes, tenants, authentication, expires_at })
    }

    async fn grpc<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        let Ok(answer) = self.grpc.clone().oneshot(request.map(tonic::body::Body::new)).await;
        answer.map(Body::new)
    }

    async fn rest<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: HttpBody<Data = Bytes> + Send + Unpin + 'static,
        B::Error: std::error::Error + Send + Sync + 'static,
    {
        let request = request.map(|body| Body::new(RequestBody::new(body)));
        let Ok(answer) = self.rest.clone().oneshot(request).await;
        answer
    }
}

/// In which form a request is answered. gRPC needs HTTP/2.
fn form_of<B>(request: &Request<B>) -> Form {
    let is_grpc = request.version() == Version::HTTP_2 && request.uri().path().starts_with(GRPC_PREFIX);
    if is_grpc { Form::Grpc } else { Form::Rest }
}

/// Refuses what no handler could answer, before its body is read.
fn check_shape(form: Form, path: &str, headers: &HeaderMap) -> Result<(), Refusal> {
    if form == Form::Grpc {
        return Ok(());
    }
    if path.starts_with(GRPC_PREFIX) {
        return Err(Refusal::malformed("gRPC needs HTTP/2\nhint: over HTTP/1.1, call REST at /api/v1"));
    }
    let announced = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()).and_then(|length| length.parse::<u64>().ok());
    let most = BODY_BYTES_MAX as u64;
    if announced.is_some_and(|bytes| bytes > most) { Err(Refusal::too_large(most)) } else { Ok(()) }
}

/// Whether a request may change something.
fn may_change(method: &Method, path: &str) -> bool {
    match path.strip_prefix(GRPC_PREFIX) {
        Some(method) => rule(method).is_none_or(|rule| rule.changes),
        None => !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS),
    }
}

/// The account on this machine under which the bearer of a token acts.
async fn account_of(identified: &Identified) -> Result<Principal, Refusal> {
    let principal = account_named(&identified.account).await.map_err(|status| Refusal::of_account(&status))?;
    check_uid(identified.uid, &principal)?;
    Ok(principal)
}

/// `issued_for`: the account's user id when its token was issued, if the token names it.
fn check_uid(issued_for: Option<u32>, account: &Principal) -> Result<(), Refusal> {
    match issued_for {
        Some(uid) if uid != account.uid => {
            let Principal { name, uid: here, .. } = account;
            let text = format!("the token was issued for {name} with uid {uid}, but on this machine {name} has uid {here}");
            Err(Refusal::denied(format!("{text}\nhint: have a new token issued, or use the API of another machine")))
        }
        Some(_) | None => Ok(()),
    }
}

/// The name of a token or certificate in the access log.
fn token_name(authentication: &Authentication) -> String {
    match authentication {
        Authentication::Oidc { issuer, .. } => issuer.clone(),
        Authentication::Token { id, .. } => id.to_string(),
        Authentication::Certificate { name } => name.clone(),
    }
}

fn refusal_of(refused: &Refused) -> Refusal {
    match refused {
        Refused::Unavailable(_) => Refusal::unavailable(refused.to_string()),
        Refused::NoAccount | Refused::ByHook(_) => Refusal::denied(refused.to_string()),
        _ => Refusal::invalid_token(refused.to_string()),
    }
}

/// The name of a result in the metrics.
fn result_of(refused: &Refused) -> &'static str {
    match refused {
        Refused::Malformed => "malformed",
        Refused::Expired => "expired",
        Refused::NotYet => "not_yet",
        Refused::WrongAudience => "audience",
        Refused::WrongIssuer => "issuer",
        Refused::Algorithm => "algorithm",
        Refused::UnknownKey => "unknown_key",
        Refused::BadSignature => "signature",
        Refused::NoAccount | Refused::ByHook(_) => "no_account",
        Refused::Revoked => "revoked",
        Refused::Unavailable(_) => "unavailable",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(version: Version, path: &str) -> Request<()> {
        let mut request = Request::new(());
        *request.version_mut() = version;
        *request.uri_mut() = path.parse().unwrap();
        request
    }

    #[test]
    fn the_form_is_that_of_the_path_and_grpc_needs_http_2() {
        let get = "/lattice.v1.AllocationService/Get";
        assert_eq!(form_of(&request(Version::HTTP_2, get)), Form::Grpc);
        assert_eq!(form_of(&request(Version::HTTP_2, "/api/v1/allocations")), Form::Rest);
        assert_eq!(form_of(&request(Version::HTTP_11, get)), Form::Rest);
        let refused = check_shape(Form::Rest, get, &HeaderMap::new()).unwrap_err().answer(Form::Rest);
        assert_eq!(refused.status(), 400);
    }

    #[test]
    fn a_body_that_is_announced_too_long_is_refused_before_it_is_read() {
        let shape = |length: &str| {
            let headers: HeaderMap = [(CONTENT_LENGTH, length.parse::<HeaderValue>().unwrap())].into_iter().collect();
            check_shape(Form::Rest, "/api/v1/allocations", &headers).map_err(|refused| refused.answer(Form::Rest).status().as_u16())
        };
        assert_eq!([shape("2097152"), shape("2097153"), shape("1073741824")], [Ok(()), Err(413), Err(413)]);
    }

    #[test]
    fn changes_are_distinguished_from_reads() {
        let of = |method: Method, path: &str| may_change(&method, path);
        assert!(of(Method::POST, "/lattice.v1.AllocationService/Submit") && of(Method::DELETE, "/api/v1/allocations/a"));
        assert!(of(Method::POST, "/lattice.v1.AllocationService/Nothing"));
        assert!(!of(Method::POST, "/lattice.v1.AllocationService/Get") && !of(Method::GET, "/api/v1/allocations"));
    }

    #[test]
    fn a_token_of_another_uid_than_this_machines_is_refused() {
        let account = Principal { name: "alice".to_owned(), uid: 7, gid: 7, groups: vec![7] };
        assert_eq!([check_uid(None, &account), check_uid(Some(7), &account)], [Ok(()), Ok(())]);
        let refused = check_uid(Some(8), &account).unwrap_err();
        assert_eq!(refused.answer(Form::Rest).status(), 403);
    }

    #[test]
    fn an_unavailable_identity_provider_does_not_make_a_token_wrong() {
        let away = Refused::Unavailable("no answer".to_owned());
        let is_unavailable = |refused: &Refused| refusal_of(refused).is_unavailable();
        assert!(is_unavailable(&away) && !is_unavailable(&Refused::BadSignature) && !is_unavailable(&Refused::NoAccount));
        let status = |refused: &Refused| refusal_of(refused).answer(Form::Rest).status().as_u16();
        assert_eq!([status(&away), status(&Refused::NoAccount), status(&Refused::Expired)], [503, 403, 401]);
    }
}
