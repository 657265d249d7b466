//! Pages of lists: `next_page_token` in the body, and the same as a link (RFC 8288).

use axum::Json;
use axum::http::header::LINK;
use axum::http::{HeaderValue, Uri};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// The parameter that the next request has.
const PAGE_TOKEN: &str = "page_token";

/// The answer to a request for a page. `next`: the token of the next one; empty: there is none.
pub(crate) fn paged(uri: &Uri, next: &str, body: &impl Serialize) -> Response {
    let mut response = Json(body).into_response();
    if !next.is_empty()
        && let Ok(link) = HeaderValue::from_str(&next_link(uri, next))
    {
        response.headers_mut().insert(LINK, link);
    }
    response
}

/// The same request with another token.
fn next_link(uri: &Uri, next: &str) -> String {
    let others = uri.query().unwrap_or_default().split('&');
    let others = others.filter(|pair| !pair.is_empty() && pair.split('=').next() != Some(PAGE_TOKEN));
    let query: Vec<String> = others.map(str::to_owned).chain([format!("{PAGE_TOKEN}={}", encoded(next))]).collect();
    format!("<{}?{}>; rel=\"next\"", uri.path(), query.join("&"))
}

/// Text as a value of a query: all but unreserved characters as `%XX`.
fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_the_same_request_with_its_token() {
        let uri: Uri = "/api/v1/allocations?limit=2&page_token=old&state=Running%2CPending".parse().unwrap();
        let link = next_link(&uri, "a/b=");
        assert_eq!(link, "</api/v1/allocations?limit=2&state=Running%2CPending&page_token=a%2Fb%3D>; rel=\"next\"");
        let response = paged(&"/api/v1/dags".parse().unwrap(), "", &serde_json::json!({}));
        assert!(response.headers().get(LINK).is_none());
    }
}
