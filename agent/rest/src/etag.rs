//! Entity tags of what PATCH and PUT change. `If-Match` refuses a change of something else than the client has read;
//! `If-None-Match: *` refuses a change of what exists.
//!
//! A tag is of the settings alone: it does not change while an allocation makes progress. A change says which version
//! was read, and the quorum compares that in the same step in which it makes the change. So of two changes of what was
//! read, one is made.

use super::calls::Grpc;
use super::problem::Problem;
use axum::Json;
use axum::extract::FromRequestParts;
use axum::http::header::{ETAG, IF_MATCH, IF_NONE_MATCH};
use axum::http::request::Parts;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use ring::digest::{SHA256, digest};
use serde::Serialize;
use std::fmt::Write;
use tonic::{Code, Status};

/// Bytes of the hash that are in a tag.
const TAG_BYTES: usize = 16;

/// A tag, in its quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tag(String);

impl Tag {
    /// The tag of these settings.
    pub(crate) fn of(settings: &impl Serialize) -> Result<Self, Problem> {
        let bytes = serde_json::to_vec(settings).map_err(|error| Problem::internal(format!("cannot write JSON: {error}")))?;
        let hash = digest(&SHA256, &bytes);
        let mut tag = String::with_capacity(2 + 2 * TAG_BYTES);
        tag.push('"');
        for byte in hash.as_ref().iter().take(TAG_BYTES) {
            // Writing to a String does not fail.
            let _ = write!(tag, "{byte:02x}");
        }
        tag.push('"');
        Ok(Self(tag))
    }

    /// An answer with this tag.
    pub(crate) fn on(self, body: &impl Serialize) -> Response {
        let mut response = Json(body).into_response();
        if let Ok(tag) = HeaderValue::from_str(&self.0) {
            response.headers_mut().insert(ETAG, tag);
        }
        response
    }
}

/// What must be there before a change.
#[derive(Default)]
pub(crate) struct IfMatch {
    /// One of these tags, of `If-Match`; `None`: there is no such header.
    tags: Option<Vec<String>>,
    /// Nothing: `If-None-Match: *`.
    must_be_new: bool,
}

impl FromRequestParts<Grpc> for IfMatch {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Grpc) -> Result<Self, Problem> {
        let mut tags = Vec::new();
        for value in parts.headers.get_all(IF_MATCH) {
            let text = value.to_str().map_err(|_| Problem::invalid("If-Match is not text"))?;
            tags.extend(text.split(',').map(|tag| tag.trim().to_owned()));
        }
        let none_match = parts.headers.get_all(IF_NONE_MATCH);
        if none_match.iter().any(|value| value.as_bytes() != b"*") {
            return Err(Problem::invalid("If-None-Match: a change has only * there: nothing that exists is changed")
                .with_hint("send If-Match with the ETag that was read, to change what exists"));
        }
        let must_be_new = none_match.iter().next().is_some();
        Ok(Self { tags: parts.headers.contains_key(IF_MATCH).then_some(tags), must_be_new })
    }
}

impl IfMatch {
    /// Whether the present tag is needed.
    pub(crate) fn is_given(&self) -> bool {
        self.tags.is_some() || self.must_be_new
    }

    /// Whether it names what was read, and not only that it exists.
    pub(crate) fn names_a_tag(&self) -> bool {
        self.tags.as_ref().is_some_and(|tags| tags.iter().all(|tag| tag != "*"))
    }

    /// Refuses the change if what there is now has another tag; `None`: there is nothing.
    pub(crate) fn check(&self, now: Option<&Tag>) -> Result<(), Problem> {
        if self.must_be_new && now.is_some() {
            return Err(Self::exists_already());
        }
        let Some(tags) = &self.tags else { return Ok(()) };
        if now.is_some_and(|now| tags.iter().any(|tag| tag == "*" || *tag == now.0)) {
            return Ok(());
        }
        Err(Self::changed_meanwhile())
    }

    /// The answer to a change for which the quorum compared what this needs: somebody else may have been faster.
    pub(crate) fn made<T>(&self, answer: Result<T, Status>) -> Result<T, Problem> {
        answer.map_err(|refused| match refused.code() {
            Code::Aborted => Self::changed_meanwhile(),
            Code::AlreadyExists if self.must_be_new => Self::exists_already(),
            _ => refused.into(),
        })
    }

    fn changed_meanwhile() -> Problem {
        let text = "it has changed since it was read: none of the tags in If-Match is its tag now";
        Problem::new(StatusCode::PRECONDITION_FAILED, "failed_precondition", text).with_hint("read it again and repeat the change")
    }

    fn exists_already() -> Problem {
        let text = "it exists already, and If-None-Match: * changes nothing that exists";
        Problem::new(StatusCode::PRECONDITION_FAILED, "failed_precondition", text).with_hint("send If-Match to change it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_needs_the_tag_of_what_there_is() {
        let (tag, other) = (Tag::of(&("sim", 5)).unwrap(), Tag::of(&("sim", 6)).unwrap());
        assert_eq!((tag.0.len(), tag == other), (2 + 2 * TAG_BYTES, false));
        let with = |tags: &[&str]| IfMatch { tags: Some(tags.iter().map(|tag| (*tag).to_owned()).collect()), must_be_new: false };
        assert_eq!(with(&["\"x\"", &tag.0]).check(Some(&tag)), Ok(()));
        assert_eq!(with(&["*"]).check(Some(&tag)), Ok(()));
        assert_eq!([with(&[&tag.0]), with(&["*"]), IfMatch::default()].map(|needed| needed.names_a_tag()), [true, false, false]);
        assert_eq!(IfMatch::default().check(None), Ok(()));
        let new = IfMatch { must_be_new: true, ..IfMatch::default() };
        assert_eq!((new.is_given(), new.check(None)), (true, Ok(())));
        let weak = with(&[&format!("W/{}", tag.0)]);
        for refused in [with(&[&other.0]).check(Some(&tag)), with(&["*"]).check(None), weak.check(Some(&tag)), new.check(Some(&tag))] {
            assert_eq!(refused.unwrap_err().into_response().status(), StatusCode::PRECONDITION_FAILED);
        }
        assert_eq!(tag.clone().on(&()).headers()[ETAG], tag.0);
    }

    #[test]
    fn who_was_slower_is_refused_like_who_read_something_else() {
        let status = |needed: &IfMatch, refused: Status| needed.made::<()>(Err(refused)).unwrap_err().into_response().status();
        let (any, new) = (IfMatch::default(), IfMatch { must_be_new: true, ..IfMatch::default() });
        assert_eq!(status(&any, Status::aborted("version 3")), StatusCode::PRECONDITION_FAILED);
        assert_eq!(status(&new, Status::already_exists("x")), StatusCode::PRECONDITION_FAILED);
        assert_eq!(status(&any, Status::already_exists("x")), StatusCode::CONFLICT);
        assert_eq!(any.made(Ok(7)), Ok(7));
    }
}
