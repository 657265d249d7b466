//! Which web pages may call the API. A browser names the page's origin in each request that a page makes to another
//! server. A page of an unlisted origin could abuse the browser's position in the network, so its requests are refused.

use super::answers::Refusal;
use axum::body::Body;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS,
    ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_METHOD, HeaderValue, ORIGIN, VARY,
};
use axum::http::{HeaderMap, Method, Response, StatusCode};
use std::collections::BTreeSet;

/// The request headers that pages may send.
const REQUEST_HEADERS: &str = "authorization, content-type, idempotency-key, if-match, last-event-id";
/// The headers of answers that pages may read.
const ANSWER_HEADERS: &str = "etag, link, retry-after, www-authenticate";
/// The methods that pages may use.
const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE";

/// The origins of pages that may call.
#[derive(Clone, Debug, Default)]
pub(super) struct Origins(BTreeSet<String>);

/// The origin of a page that may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin(HeaderValue);

impl Origins {
    pub(super) fn new(origins: &[String]) -> Self {
        Self(origins.iter().cloned().collect())
    }

    /// The origin of the page that sends a request; `None`: no page sent it.
    pub(super) fn check(&self, headers: &HeaderMap) -> Result<Option<Origin>, Refusal> {
        let mut given = headers.get_all(ORIGIN).iter();
        let Some(origin) = given.next() else { return Ok(None) };
        let is_listed = origin.to_str().is_ok_and(|origin| self.0.contains(origin));
        if !is_listed || given.next().is_some() {
            let text = "pages of this origin may not call the API";
            return Err(Refusal::denied(format!("{text}\nhint: an administrator lists allowed origins in api.origins of agent.yaml")));
        }
        Ok(Some(Origin(origin.clone())))
    }
}

impl Origin {
    /// The answer to a preflight, by which a browser asks whether a page may make a request; `None`: it is no preflight.
    pub(super) fn preflight(&self, method: &Method, headers: &HeaderMap) -> Option<Response<Body>> {
        if method != Method::OPTIONS || !headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD) {
            return None;
        }
        let mut answer = Response::new(Body::empty());
        *answer.status_mut() = StatusCode::NO_CONTENT;
        let headers = answer.headers_mut();
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(REQUEST_HEADERS));
        headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
        Some(answer)
    }

    /// Lets the page read the answer.
    pub(super) fn allow(&self, headers: &mut HeaderMap) {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, self.0.clone());
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(ANSWER_HEADERS));
        headers.append(VARY, HeaderValue::from_static("origin"));
    }
}

#[cfg(test)]
mod tests {
    use super::super::answers::Form;
    use super::*;

    fn headers(origins: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for &origin in origins {
            headers.append(ORIGIN, HeaderValue::from_static(origin));
        }
        headers
    }

    #[test]
    fn only_pages_of_listed_origins_may_call() {
        let origins = Origins::new(&["https://portal".to_owned()]);
        assert_eq!(origins.check(&headers(&[])), Ok(None), "no page sent it");
        let origin = origins.check(&headers(&["https://portal"])).unwrap().unwrap();
        let mut answer = HeaderMap::new();
        origin.allow(&mut answer);
        assert_eq!(answer[ACCESS_CONTROL_ALLOW_ORIGIN], "https://portal");
        for given in [&["https://portal.evil"][..], &["null"], &["http://portal"], &["https://portal/"], &["https://portal"; 2]] {
            assert_eq!(origins.check(&headers(given)).unwrap_err().answer(Form::Rest).status(), 403, "{given:?}");
        }
        assert!(Origins::default().check(&headers(&["https://portal"])).is_err(), "none are listed");
    }

    #[test]
    fn a_preflight_is_answered() {
        let origin = Origin(HeaderValue::from_static("https://portal"));
        let mut asked = HeaderMap::new();
        assert!(origin.preflight(&Method::OPTIONS, &asked).is_none());
        asked.insert(ACCESS_CONTROL_REQUEST_METHOD, HeaderValue::from_static("POST"));
        assert!(origin.preflight(&Method::POST, &asked).is_none());
        let answer = origin.preflight(&Method::OPTIONS, &asked).unwrap();
        assert_eq!(answer.status(), 204);
        assert!(answer.headers()[ACCESS_CONTROL_ALLOW_HEADERS].to_str().unwrap().contains("authorization"));
    }
}
