//! Answers that several requests about allocations share.

use axum::Json;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use lattice_api::json::DryRunJson;
use lattice_api::v1;
use serde::Serialize;
use utoipa::ToSchema;

/// A submission that was made, or only checked.
#[derive(Serialize, ToSchema)]
pub(super) struct Submitted {
    /// Null: nothing was submitted.
    id: Option<String>,
    /// Its job number. Null: nothing was submitted.
    job: Option<u64>,
    /// What was ignored of a script's lines, and why it waits for nodes that are not registered.
    warnings: Vec<String>,
    /// Of a dry run: what would be submitted.
    would_submit: Option<DryRunJson>,
}

impl Submitted {
    /// The answer to a submission of the quorum.
    pub(super) fn of(done: v1::SubmitResponse, mut warnings: Vec<String>) -> Self {
        warnings.extend(Some(done.warning).filter(|warning| !warning.is_empty()));
        let would_submit = done.checked.as_ref().map(|spec| DryRunJson::from(spec).expected(done.expected.as_ref()));
        let job = Some(done.number).filter(|number| *number > 0);
        Self { id: would_submit.is_none().then_some(done.id), job, warnings, would_submit }
    }

    /// The response, with the path of the new allocation.
    pub(super) fn respond(self) -> Response {
        match self.id.clone() {
            Some(id) => (StatusCode::CREATED, [(LOCATION, format!("/api/v1/allocations/{id}"))], Json(self)).into_response(),
            None => Json(self).into_response(),
        }
    }
}

/// An allocation, and its state.
#[derive(Serialize, ToSchema)]
pub(super) struct AllocationState {
    pub(super) id: String,
    pub(super) state: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_submission_that_was_only_checked_has_no_place() {
        let done = v1::SubmitResponse { id: "1f".into(), warning: "it waits".into(), checked: None, number: 12, expected: None };
        let made = Submitted::of(done.clone(), vec!["ignored".into()]);
        assert_eq!((made.id.as_deref(), made.job, made.warnings.len()), (Some("1f"), Some(12), 2));
        let response = made.respond();
        assert_eq!((response.status(), &response.headers()[LOCATION]), (StatusCode::CREATED, &"/api/v1/allocations/1f".parse().unwrap()));
        let checked = Submitted::of(v1::SubmitResponse { checked: Some(v1::AllocationSpec::default()), number: 0, ..done }, vec![]);
        assert_eq!((checked.id.as_deref(), checked.job), (None, None));
        assert_eq!(checked.respond().status(), StatusCode::OK);
    }
}
