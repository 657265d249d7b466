//! Errors as `application/problem+json` (RFC 9457).

use axum::Json;
use axum::extract::rejection::{BytesRejection, JsonRejection, PathRejection, QueryRejection};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use lattice_cli_syntax::UsageError;
use serde::Serialize;
use tonic::{Code, Status};
use utoipa::ToSchema;

/// How long a client that is refused for now waits, in seconds.
const RETRY_AFTER_SECONDS: &str = "1";
/// What the handlers of `lattice.v1` write before the remedy.
const HINT: &str = "\nhint: ";

/// A refused or failed request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Problem {
    /// Always `about:blank`: the status and the code say what kind of problem it is.
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    kind: &'static str,
    /// The words of the status.
    #[schema(value_type = String)]
    title: &'static str,
    /// The status of HTTP.
    status: u16,
    /// The status of gRPC, such as `not_found`: what programs decide by.
    #[schema(value_type = String)]
    code: &'static str,
    /// What failed, on what, and why.
    detail: String,
    /// What to do next.
    hint: Option<String>,
}

impl Problem {
    /// A problem with this status; `code` is one of gRPC's names, such as `permission_denied`.
    pub fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or("Error");
        Self { kind: "about:blank", title, status: status.as_u16(), code, detail: detail.into(), hint: None }
    }

    /// The same with a remedy.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// The same with another status of HTTP, where that says more than the code.
    #[must_use]
    pub fn with_status(self, status: StatusCode) -> Self {
        Self { title: status.canonical_reason().unwrap_or("Error"), status: status.as_u16(), ..self }
    }

    /// The same, with its subject in front.
    pub(crate) fn about(self, what: &str) -> Self {
        Self { detail: format!("{what}: {}", self.detail), ..self }
    }

    /// The request itself is wrong.
    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_argument", detail)
    }

    /// There is nothing of this name.
    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", detail)
    }

    /// This agent is at fault.
    pub(crate) fn internal(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
    }

    /// The status of HTTP.
    fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.status();
        let mut response = (status, Json(self)).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            headers.insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECONDS));
        }
        response
    }
}

/// The status of HTTP, and the name that programs decide by.
fn of_code(code: Code) -> (StatusCode, &'static str) {
    match code {
        Code::Ok => (StatusCode::OK, "ok"),
        // The caller went away: nobody reads this.
        Code::Cancelled => (StatusCode::SERVICE_UNAVAILABLE, "cancelled"),
        Code::InvalidArgument => (StatusCode::BAD_REQUEST, "invalid_argument"),
        Code::OutOfRange => (StatusCode::BAD_REQUEST, "out_of_range"),
        Code::Unauthenticated => (StatusCode::UNAUTHORIZED, "unauthenticated"),
        Code::PermissionDenied => (StatusCode::FORBIDDEN, "permission_denied"),
        Code::NotFound => (StatusCode::NOT_FOUND, "not_found"),
        Code::AlreadyExists => (StatusCode::CONFLICT, "already_exists"),
        Code::FailedPrecondition => (StatusCode::CONFLICT, "failed_precondition"),
        Code::Aborted => (StatusCode::CONFLICT, "aborted"),
        Code::ResourceExhausted => (StatusCode::TOO_MANY_REQUESTS, "resource_exhausted"),
        Code::Unimplemented => (StatusCode::NOT_IMPLEMENTED, "unimplemented"),
        Code::Unavailable => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        Code::DeadlineExceeded => (StatusCode::GATEWAY_TIMEOUT, "deadline_exceeded"),
        Code::DataLoss => (StatusCode::INTERNAL_SERVER_ERROR, "data_loss"),
        Code::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal"),
        Code::Unknown => (StatusCode::INTERNAL_SERVER_ERROR, "unknown"),
    }
}

impl From<Status> for Problem {
    fn from(status: Status) -> Self {
        let (http, code) = of_code(status.code());
        match status.message().split_once(HINT) {
            Some((detail, hint)) => Self::new(http, code, detail).with_hint(hint),
            None => Self::new(http, code, status.message()),
        }
    }
}

impl From<UsageError> for Problem {
    fn from(error: UsageError) -> Self {
        let problem = Self::invalid(error.what);
        match error.hint {
            Some(hint) => problem.with_hint(hint),
            None => problem,
        }
    }
}

impl From<QueryRejection> for Problem {
    fn from(rejection: QueryRejection) -> Self {
        Self::invalid(rejection.body_text())
    }
}

impl From<PathRejection> for Problem {
    fn from(rejection: PathRejection) -> Self {
        Self::invalid(rejection.body_text())
    }
}

impl From<BytesRejection> for Problem {
    fn from(rejection: BytesRejection) -> Self {
        let code = if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE { "out_of_range" } else { "invalid_argument" };
        Self::new(rejection.status(), code, rejection.body_text())
    }
}

impl From<JsonRejection> for Problem {
    fn from(rejection: JsonRejection) -> Self {
        match rejection {
            JsonRejection::BytesRejection(rejection) => rejection.into(),
            JsonRejection::MissingJsonContentType(_) => {
                Self::new(rejection.status(), "invalid_argument", rejection.body_text()).with_hint("send Content-Type: application/json")
            }
            _ => Self::invalid(rejection.body_text()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_a_problem_with_the_words_and_the_remedy_of_the_command_line() {
        let status = Status::not_found("allocation 1f0c not found\nhint: `lattice status` shows them");
        let problem = Problem::from(status);
        assert_eq!(
            serde_json::to_value(&problem).unwrap(),
            serde_json::json!({
                "type": "about:blank", "title": "Not Found", "status": 404, "code": "not_found", "detail": "allocation 1f0c not found",
                "hint": "`lattice status` shows them",
            })
        );
        let response = problem.into_response();
        assert_eq!((response.status(), response.headers().get(RETRY_AFTER)), (StatusCode::NOT_FOUND, None));
        assert_eq!(response.headers()[CONTENT_TYPE], "application/problem+json");
    }

    #[test]
    fn what_may_be_repeated_says_when() {
        for (status, http) in [
            (Status::unavailable("no quorum"), StatusCode::SERVICE_UNAVAILABLE),
            (Status::resource_exhausted("too many"), StatusCode::TOO_MANY_REQUESTS),
        ] {
            let response = Problem::from(status).into_response();
            assert_eq!(response.status(), http);
            assert_eq!(response.headers()[RETRY_AFTER], "1");
        }
    }

    #[test]
    fn every_code_has_a_status_that_is_no_success() {
        for number in 1..=16 {
            let (http, name) = of_code(Code::from_i32(number));
            assert!(http.is_client_error() || http.is_server_error(), "{name}");
        }
    }
}
