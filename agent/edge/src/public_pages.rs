//! Pages that need no token: whether this agent can serve, and how to log in. (REST serves the third one, the description
//! of the API.)

use super::answers::json;
use axum::body::Body;
use axum::http::{Method, Response, StatusCode};
use lattice_agent_common::session_state::SessionState;
use lattice_identity::{Discovery, Identities};
use lattice_rest::OPENAPI_PATH;
use tokio::sync::watch;

/// A request that needs no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PublicPage {
    Health,
    Discovery,
    /// Answered by REST.
    OpenApi,
}

impl PublicPage {
    /// The page with this path; `None`: a token is needed.
    pub(super) fn of(method: &Method, path: &str) -> Option<Self> {
        match path {
            _ if !matches!(*method, Method::GET | Method::HEAD) => None,
            "/healthz" => Some(Self::Health),
            "/api/v1/auth/discovery" => Some(Self::Discovery),
            OPENAPI_PATH => Some(Self::OpenApi),
            _ => None,
        }
    }
}

/// 200 if this agent has a session with the quorum; else 503. Anybody who can connect may ask, so the reason is left out.
/// Operators find it in `lattice node status`, and on the page of this name beside the metrics.
pub(super) fn health(session: &watch::Receiver<SessionState>) -> Response<Body> {
    match session.borrow().ready() {
        Ok(()) => json(StatusCode::OK, &serde_json::json!({"status": "ok"})),
        Err(_) => json(StatusCode::SERVICE_UNAVAILABLE, &serde_json::json!({"status": "degraded"})),
    }
}

/// What `lattice login` has to know.
pub(super) fn discovery(identities: &Identities, cluster: &str) -> Response<Body> {
    json(StatusCode::OK, &discovered(identities.discovery(), cluster))
}

fn discovered(provider: Option<Discovery>, cluster: &str) -> serde_json::Value {
    let (issuer, client_id, scopes) = match provider {
        Some(Discovery { issuer, client_id, scopes }) => (Some(issuer), Some(client_id), scopes),
        None => (None, None, Vec::new()),
    };
    serde_json::json!({"issuer": issuer, "client_id": client_id, "scopes": scopes, "token_login": true, "cluster": cluster})
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn three_pages_need_no_token() {
        let of = |path: &str| PublicPage::of(&Method::GET, path);
        assert_eq!(of("/healthz"), Some(PublicPage::Health));
        assert_eq!(of("/api/v1/auth/discovery"), Some(PublicPage::Discovery));
        assert_eq!(of(OPENAPI_PATH), Some(PublicPage::OpenApi));
        for path in ["/", "/healthz/", "/metrics", "/api/v1/auth/discovery/x", "/api/v1/allocations", "/lattice.v1.AdminService/WhoAmI"] {
            assert_eq!(of(path), None, "{path}");
        }
        assert_eq!(PublicPage::of(&Method::POST, "/healthz"), None);
    }

    #[test]
    fn without_a_session_it_cannot_serve() {
        let connected = SessionState::Connected { member: "member-1".to_owned(), relay_node: None };
        let (out, session) = watch::channel(connected);
        assert_eq!(health(&session).status(), 200);
        out.send_replace(SessionState::Lost { since: Instant::now(), why: "no answer".to_owned() });
        assert_eq!(health(&session).status(), 503);
    }

    #[test]
    fn discovery_names_the_provider_or_none() {
        let none = serde_json::json!({"issuer": null, "client_id": null, "scopes": [], "token_login": true, "cluster": "hpc"});
        assert_eq!(discovered(None, "hpc"), none);
        let provider = Discovery { issuer: "https://idp".to_owned(), client_id: "lattice".to_owned(), scopes: vec!["openid".to_owned()] };
        let found = discovered(Some(provider), "hpc");
        assert_eq!((&found["issuer"], &found["client_id"]), (&"https://idp".into(), &"lattice".into()));
        assert_eq!(found["scopes"], serde_json::json!(["openid"]));
    }
}
