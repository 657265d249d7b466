//! Callers on the network: which methods their tokens or certificates open, how many streams one account may have, and that
//! a stream ends when its token or certificate expires, or its token is revoked. A terminal of a person who logged in lasts
//! longer than the token.

use super::connections::{Authentication, NetworkPeer};
use super::revocations::{Revocations, Revoked};
use futures::FutureExt;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use lattice_agent_common::user_quota::{UserQuota, UserSlot};
use lattice_model::Timestamp;
use lattice_model::access::{Rule, Scope, Scopes, rule};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{Bytes, http};

/// The method of terminals: nobody can continue one in another connection.
const TERMINALS: &str = "AllocationService/Attach";
/// How long a terminal of a person who logged in may last, if the token expires earlier. Providers' tokens often last
/// some minutes alone.
const TERMINAL_TIME_MAX: Duration = Duration::from_secs(12 * 60 * 60);

/// The limits of callers on the network. Cloneable; all clones share the counts.
#[derive(Clone)]
pub(super) struct NetworkCallers {
    streams: UserQuota,
    streams_max: usize,
    revocations: Revocations,
}

/// What a call holds until its answer has ended.
pub(super) struct Admitted {
    /// The stream's place in the account's limit.
    slot: Option<UserSlot>,
    /// How long the answer may last.
    left: Duration,
    /// For the stream of a token that can be revoked.
    revoked: Option<Revoked>,
    /// The status with which the stream ends once `left` is over.
    expired: fn() -> Status,
}

impl NetworkCallers {
    /// `streams` counts the streams of each account, at most `streams_max`.
    pub(super) fn new(streams: UserQuota, streams_max: usize, revocations: Revocations) -> Self {
        Self { streams, streams_max, revocations }
    }

    /// Refuses a call that the caller's token does not open, and a stream beyond the account's limit.
    pub(super) fn admit(&self, peer: &NetworkPeer, method: &str, is_stream: bool, now: Timestamp) -> Result<Admitted, Status> {
        let expired: fn() -> Status = match &peer.authentication {
            Authentication::Token { .. } | Authentication::Oidc { .. } => token_expired,
            Authentication::Certificate { .. } => certificate_expired,
        };
        if now >= peer.expires_at {
            return Err(expired());
        }
        // A method without a row is in no scope.
        let rule = rule(method).ok_or_else(|| Status::unimplemented(format!("the API has no method {method}")))?;
        if !peer.scopes.allow(rule) {
            return Err(Status::permission_denied(not_in_scopes(peer, rule)));
        }
        let left = Duration::from_millis(peer.expires_at.0.saturating_sub(now.0));
        if !is_stream {
            return Ok(Admitted { slot: None, left, revoked: None, expired });
        }
        let most = self.streams_max;
        let slot = self.streams.take(peer.principal.uid, most).ok_or_else(|| {
            let text = format!("{} has {most} streams on this node already: try again when one of them has ended", peer.principal.name);
            Status::resource_exhausted(text)
        })?;
        let (left, revoked) = match &peer.authentication {
            Authentication::Token { id, .. } => (left, Some(self.revocations.of(*id))),
            Authentication::Oidc { .. } if method == TERMINALS => (left.max(TERMINAL_TIME_MAX), None),
            // A token of a provider holds until it expires. The edge cuts the connection of a revoked certificate.
            Authentication::Oidc { .. } | Authentication::Certificate { .. } => (left, None),
        };
        Ok(Admitted { slot: Some(slot), left, revoked, expired })
    }
}

fn token_expired() -> Status {
    Status::unauthenticated("the token has expired\nhint: `lattice login`, or another token")
}

fn certificate_expired() -> Status {
    Status::unauthenticated("the certificate has expired\nhint: an admin issues another one: `lattice quorum ca service`")
}

fn revoked() -> Status {
    Status::unauthenticated("the token was revoked\nhint: have a new token issued: `lattice admin token issue`")
}

fn not_in_scopes(NetworkPeer { scopes, authentication, .. }: &NetworkPeer, rule: &Rule) -> String {
    let opens = |scope: &Scope| scope.name().parse::<Scopes>().is_ok_and(|alone| alone.allow(rule));
    let needed = Scope::ALL.into_iter().find(opens).map_or("admin", Scope::name);
    let hint = match authentication {
        Authentication::Token { .. } | Authentication::Oidc { .. } => "use a token",
        Authentication::Certificate { .. } => "send a token of the account besides,",
    };
    let noun = authentication.noun();
    format!("{} needs the scope {needed}, and this {noun} has {scopes}\nhint: {hint} with the scope {needed}", rule.method)
}

/// A stream of a caller on the network. It ends when its time is over or the token is revoked, with the status
/// `unauthenticated`.
pub(super) struct Expiring {
    body: Body,
    _slot: Option<UserSlot>,
    expiry: Pin<Box<Sleep>>,
    revoked: Option<Revoked>,
    expired: fn() -> Status,
}

impl Expiring {
    pub(super) fn new(body: Body, admitted: Admitted) -> Self {
        let Admitted { slot, left, revoked, expired } = admitted;
        Self { body, _slot: slot, expiry: Box::pin(sleep(left)), revoked, expired }
    }

    /// Why the caller's token or certificate is no longer valid; `None`: it is valid.
    fn over(&mut self, cx: &mut Context<'_>) -> Option<Status> {
        if self.expiry.as_mut().poll(cx).is_ready() {
            return Some((self.expired)());
        }
        self.revoked.as_mut()?.poll_unpin(cx).is_ready().then(revoked)
    }
}

impl HttpBody for Expiring {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let over = if self.body.is_end_stream() { None } else { self.over(cx) };
        if let Some(why) = over {
            // The handler loses its reader and ends.
            self.body = Body::empty();
            let mut trailers = http::HeaderMap::new();
            return Poll::Ready(Some(why.add_header(&mut trailers).map(|()| Frame::trailers(trailers))));
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::Principal;
    use lattice_model::access_token::TokenId;
    use std::future::poll_fn;
    use tonic::Code;

    fn peer(scopes: &str) -> NetworkPeer {
        NetworkPeer {
            principal: Principal { name: "alice".to_owned(), uid: 7, gid: 7, groups: vec![7] },
            scopes: scopes.parse().unwrap(),
            tenants: [].into(),
            authentication: Authentication::Token { id: TokenId(1), name: "ci".to_owned() },
            expires_at: Timestamp(10_000),
        }
    }

    /// `exists`: whether the quorum has the records of tokens.
    fn callers_with(streams_max: usize, exists: bool) -> NetworkCallers {
        let exists = Box::new(move |_: TokenId| std::future::ready(Some(exists)).boxed());
        NetworkCallers::new(UserQuota::default(), streams_max, Revocations::new(exists, Duration::ZERO, Duration::from_secs(8)))
    }

    fn callers(streams_max: usize) -> NetworkCallers {
        callers_with(streams_max, true)
    }

    #[tokio::test]
    async fn a_terminal_outlasts_the_token_of_a_login_and_nothing_else_does() {
        let login = Authentication::Oidc { issuer: "https://idp".to_owned(), subject: "7".to_owned() };
        let left = |authentication: Authentication, method: &str| {
            let peer = NetworkPeer { authentication, ..peer("read,work") };
            callers(1).admit(&peer, method, true, Timestamp(9_000)).unwrap().left
        };
        assert_eq!(left(login.clone(), TERMINALS), TERMINAL_TIME_MAX);
        assert_eq!(left(login, "AllocationService/Logs"), Duration::from_secs(1));
        assert_eq!(left(peer("read").authentication, TERMINALS), Duration::from_secs(1));
    }

    fn refusal(scopes: &str, method: &str, now: u64) -> Option<(Code, String)> {
        let admitted = callers(1).admit(&peer(scopes), method, false, Timestamp(now));
        admitted.err().map(|status| (status.code(), status.message().to_owned()))
    }

    #[test]
    fn a_token_opens_the_methods_of_its_scopes_until_it_expires() {
        assert_eq!(refusal("read", "AllocationService/Get", 9_999), None);
        assert_eq!(refusal("admin", "AdminService/GrantRole", 0), None);
        let denied = |text: &str| Some((Code::PermissionDenied, text.to_owned()));
        assert_eq!(
            refusal("read", "AllocationService/Submit", 0),
            denied("AllocationService/Submit needs the scope work, and this token has read\nhint: use a token with the scope work")
        );
        assert_eq!(
            refusal("read,work", "AdminService/GrantRole", 0),
            denied("AdminService/GrantRole needs the scope admin, and this token has read,work\nhint: use a token with the scope admin")
        );
        assert!(refusal("work", "AllocationService/Get", 0).unwrap().1.starts_with("AllocationService/Get needs the scope read, "));
        assert_eq!(refusal("admin", "AllocationService/Nothing", 0).unwrap().0, Code::Unimplemented);
        assert_eq!(refusal("admin", "AllocationService/Get", 10_000).unwrap().0, Code::Unauthenticated);
    }

    #[tokio::test]
    async fn a_certificate_is_called_one() {
        let authentication = Authentication::Certificate { name: "account-ci".to_owned() };
        let peer = NetworkPeer { authentication, ..peer("read,work") };
        let denied = callers(1).admit(&peer, "AdminService/GrantRole", false, Timestamp(0)).err().unwrap();
        assert_eq!(
            denied.message(),
            "AdminService/GrantRole needs the scope admin, and this certificate has read,work\n\
             hint: send a token of the account besides, with the scope admin"
        );
        let late = callers(1).admit(&peer, "AllocationService/Get", false, Timestamp(10_000)).err().unwrap();
        assert!(late.message().starts_with("the certificate has expired\n"), "{late}");
        assert_eq!(end_of_stream(&callers(1), &peer, 9_980).await, "the certificate has expired");
    }

    #[test]
    fn one_stream_too_many_is_refused_and_other_calls_are_not_counted() {
        let (callers, peer) = (callers(1), peer("admin"));
        let admit = |is_stream| callers.admit(&peer, "AllocationService/Logs", is_stream, Timestamp(0));
        let held = admit(true).unwrap();
        assert_eq!(admit(true).err().unwrap().code(), Code::ResourceExhausted);
        assert!(admit(false).is_ok());
        drop(held);
        assert!(admit(true).is_ok());
    }

    /// A stream that never has anything to send.
    struct Silent;

    impl HttpBody for Silent {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Poll::Pending
        }
    }

    /// How a silent stream ends that begins at this time.
    async fn end_of_stream(callers: &NetworkCallers, peer: &NetworkPeer, now: u64) -> String {
        let admitted = callers.admit(peer, "AllocationService/Logs", true, Timestamp(now)).unwrap();
        let mut body = Box::pin(Expiring::new(Body::new(Silent), admitted));
        let frame = poll_fn(|cx| body.as_mut().poll_frame(cx)).await.unwrap().unwrap();
        assert!(poll_fn(|cx| body.as_mut().poll_frame(cx)).await.is_none() && body.is_end_stream());
        let status = Status::from_header_map(frame.trailers_ref().unwrap()).unwrap();
        assert_eq!(status.code(), Code::Unauthenticated);
        status.message().lines().next().unwrap_or_default().to_owned()
    }

    #[tokio::test]
    async fn a_stream_ends_when_its_token_expires_or_is_revoked() {
        assert_eq!(end_of_stream(&callers(1), &peer("read"), 9_980).await, "the token has expired");
        assert_eq!(end_of_stream(&callers_with(1, false), &peer("read"), 0).await, "the token was revoked");
        // Nobody can revoke a token of a provider here.
        let authentication = Authentication::Oidc { issuer: "https://idp".to_owned(), subject: "s-1".to_owned() };
        let person = NetworkPeer { authentication, ..peer("read") };
        assert_eq!(end_of_stream(&callers_with(1, false), &person, 9_980).await, "the token has expired");
    }
}
