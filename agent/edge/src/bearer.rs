//! `Authorization: Bearer TOKEN`, the only way to present a token (RFC 6750, section 2.1): no cookie, no parameter.

use super::answers::Refusal;
use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;

/// The token of a request. A refusal contains no part of the header.
pub(super) fn token(headers: &HeaderMap) -> Result<&str, Refusal> {
    let mut given = headers.get_all(AUTHORIZATION).iter();
    let (first, second) = (given.next(), given.next());
    let Some(first) = first else {
        let text = "a token is needed: Authorization: Bearer TOKEN";
        return Err(Refusal::no_token(format!("{text}\nhint: `lattice login`, or `lattice admin token issue` for a program")));
    };
    if second.is_some() {
        return Err(Refusal::no_token("there are several Authorization headers: send one"));
    }
    let scheme_and_token = first.to_str().ok().and_then(|text| text.split_once(' '));
    let token = scheme_and_token.filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer")).map(|(_, token)| token.trim());
    let is_token = |token: &&str| !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    token.filter(is_token).ok_or_else(|| Refusal::no_token("the Authorization header does not have the form: Bearer TOKEN"))
}

/// The kind of a token by its prefix, for metrics.
pub(super) fn kind(token: &str) -> &'static str {
    if token.starts_with(lattice_model::access_token::PREFIX) { "token" } else { "oidc" }
}

#[cfg(test)]
mod tests {
    use super::super::answers::Form;
    use super::*;

    fn read(values: &[&'static str]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, value.parse().unwrap());
        }
        match token(&headers) {
            Ok(token) => Some(token.to_owned()),
            Err(refusal) => {
                assert_eq!(refusal.answer(Form::Rest).status(), 401);
                assert!(!format!("{refusal:?}").contains("secret"), "{refusal:?}");
                None
            }
        }
    }

    #[test]
    fn one_bearer_token_is_read_and_nothing_else() {
        assert_eq!(read(&["Bearer secret"]).as_deref(), Some("secret"));
        assert_eq!(read(&["bEARER  secret "]).as_deref(), Some("secret"));
        for values in [&[][..], &["secret"], &["Basic secret"], &["Bearer "], &["Bearer a secret"], &["Bearer secret", "Bearer secret"]] {
            assert_eq!(read(values), None, "{values:?}");
        }
    }

    #[test]
    fn the_kind_follows_from_the_prefix() {
        assert_eq!([kind("lattice_0123"), kind("eyJhbGciOi")], ["token", "oidc"]);
    }
}
