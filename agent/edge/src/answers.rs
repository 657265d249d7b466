//! Refusals of the edge: a status of gRPC, or a problem of REST (RFC 9457), with the same words.

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{Response, StatusCode};
use axum::response::IntoResponse;
use lattice_rest::Problem;
use std::time::Duration;
use tonic::{Code, Status};

/// The protocol that a caller uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Grpc,
    Rest,
}

/// Why a request is refused before a handler sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    code: Code,
    status: StatusCode,
    /// For people, in the CLI's form: what failed, and `\nhint: …` what to do next.
    text: String,
    /// When to try again.
    retry_after: Option<Duration>,
    /// What `WWW-Authenticate` says (RFC 6750, section 3).
    challenge: Option<&'static str>,
}

impl Refusal {
    fn new(code: Code, status: StatusCode, text: impl Into<String>) -> Self {
        Self { code, status, text: text.into(), retry_after: None, challenge: None }
    }

    /// No token, or one in a form that is not accepted.
    pub(super) fn no_token(text: impl Into<String>) -> Self {
        let challenge = Some("Bearer realm=\"lattice\"");
        Self { challenge, ..Self::new(Code::Unauthenticated, StatusCode::UNAUTHORIZED, text) }
    }

    /// A token that identifies nobody.
    pub(super) fn invalid_token(text: impl Into<String>) -> Self {
        let challenge = Some("Bearer realm=\"lattice\", error=\"invalid_token\"");
        Self { challenge, ..Self::new(Code::Unauthenticated, StatusCode::UNAUTHORIZED, text) }
    }

    /// A caller who may not call here.
    pub(super) fn denied(text: impl Into<String>) -> Self {
        Self::new(Code::PermissionDenied, StatusCode::FORBIDDEN, text)
    }

    /// A request that can neither be accepted nor refused for good at present.
    pub(super) fn unavailable(text: impl Into<String>) -> Self {
        let retry_after = Some(Duration::from_secs(1));
        Self { retry_after, ..Self::new(Code::Unavailable, StatusCode::SERVICE_UNAVAILABLE, text) }
    }

    /// Too many requests; the next one is accepted after `wait`. `hint`: further advice, may be empty.
    pub(super) fn too_many(what: &str, wait: Duration, hint: &str) -> Self {
        let hint = if hint.is_empty() { String::new() } else { format!("\nhint: {hint}") };
        let text = format!("{what}: try again in {} s{hint}", whole_seconds(wait));
        Self { retry_after: Some(wait), ..Self::new(Code::ResourceExhausted, StatusCode::TOO_MANY_REQUESTS, text) }
    }

    /// A body of more bytes than any request needs.
    pub(super) fn too_large(bytes_max: u64) -> Self {
        let text = format!("the request's body may have {bytes_max} bytes: make it smaller");
        Self::new(Code::ResourceExhausted, StatusCode::PAYLOAD_TOO_LARGE, text)
    }

    /// A request that no version of the API has.
    pub(super) fn malformed(text: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, StatusCode::BAD_REQUEST, text)
    }

    /// The refusal for a failed lookup of an account.
    pub(super) fn of_account(status: &Status) -> Self {
        match status.code() {
            Code::PermissionDenied | Code::Unauthenticated => Self::denied(status.message()),
            _ => Self::unavailable(status.message()),
        }
    }

    /// Whether the same request may be answered later.
    pub(super) fn is_unavailable(&self) -> bool {
        self.code == Code::Unavailable
    }

    /// The answer.
    pub(super) fn answer(&self, form: Form) -> Response<Body> {
        match form {
            Form::Grpc => Status::new(self.code, self.text.as_str()).into_http(),
            Form::Rest => self.problem(),
        }
    }

    fn problem(&self) -> Response<Body> {
        let status = Status::new(self.code, self.text.as_str());
        let mut answer = Problem::from(status).with_status(self.status).into_response();
        let headers = answer.headers_mut();
        if let Some(challenge) = self.challenge {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        if let Some(wait) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(wait)));
        }
        answer
    }
}

/// The time in whole seconds, at least 1.
fn whole_seconds(wait: Duration) -> u64 {
    u64::try_from(wait.as_millis().div_ceil(1000)).unwrap_or(u64::MAX).max(1)
}

/// An answer in JSON that no cache may store.
pub(super) fn json(status: StatusCode, value: &serde_json::Value) -> Response<Body> {
    let mut answer = Response::new(Body::from(format!("{value}\n")));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn problem(refusal: &Refusal) -> (u16, serde_json::Value) {
        let answer = refusal.answer(Form::Rest);
        assert_eq!(answer.headers()[CONTENT_TYPE], "application/problem+json");
        let status = answer.status().as_u16();
        let body = axum::body::to_bytes(answer.into_body(), 4096).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap())
    }

    #[tokio::test]
    async fn a_problem_has_the_words_of_the_cli() {
        let refusal = Refusal::denied("root never comes by a token\nhint: use another account");
        let expected = serde_json::json!({
            "type": "about:blank",
            "title": "Forbidden",
            "status": 403,
            "code": "permission_denied",
            "detail": "root never comes by a token",
            "hint": "use another account",
        });
        assert_eq!(problem(&refusal).await, (403, expected));
        let (status, without) = problem(&Refusal::too_large(10)).await;
        assert!(status == 413 && without["status"] == 413 && without["hint"].is_null(), "{without}");
    }

    #[test]
    fn headers_say_how_to_authenticate_and_when_to_try_again() {
        let header = |refusal: &Refusal, name| {
            let answer = refusal.answer(Form::Rest);
            answer.headers().get(name).map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(header(&Refusal::no_token("a"), WWW_AUTHENTICATE).unwrap(), "Bearer realm=\"lattice\"");
        let invalid = header(&Refusal::invalid_token("a"), WWW_AUTHENTICATE).unwrap();
        assert_eq!(invalid, "Bearer realm=\"lattice\", error=\"invalid_token\"");
        assert_eq!(header(&Refusal::denied("a"), WWW_AUTHENTICATE), None);
        for (ms, seconds) in [(0, "1"), (20, "1"), (1000, "1"), (1001, "2")] {
            assert_eq!(header(&Refusal::too_many("a", Duration::from_millis(ms), ""), RETRY_AFTER).unwrap(), seconds);
        }
    }

    #[test]
    fn grpc_gets_a_status_without_a_body() {
        let answer = Refusal::too_many("alice submits too often", Duration::from_secs(3), "wait").answer(Form::Grpc);
        let status = Status::from_header_map(answer.headers()).unwrap();
        assert_eq!((answer.status(), status.code()), (StatusCode::OK, Code::ResourceExhausted));
        assert_eq!(status.message(), "alice submits too often: try again in 3 s\nhint: wait");
        assert_eq!(answer.headers()[CONTENT_TYPE], "application/grpc");
    }
}
