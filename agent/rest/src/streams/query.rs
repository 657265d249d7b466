//! Queries of these resources.

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use tonic::Status;

/// The parameters of a query; unknown ones are refused by name.
pub(super) fn parsed<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, Status> {
    query.map(|Query(query)| query).map_err(|rejection| Status::invalid_argument(rejection.body_text()))
}

/// The values of a parameter that may have several, with commas.
pub(super) fn list(values: Option<&str>) -> Vec<String> {
    values.into_iter().flat_map(|values| values.split(',')).filter(|value| !value.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Uri;
    use serde::Deserialize;

    #[derive(Debug, Default, PartialEq, Eq, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Sample {
        tail: Option<u64>,
        follow: bool,
    }

    fn sample(uri: &str) -> Result<Sample, String> {
        let uri: Uri = uri.parse().unwrap();
        parsed(Query::<Sample>::try_from_uri(&uri)).map_err(|status| status.message().to_owned())
    }

    #[test]
    fn unknown_parameters_and_wrong_values_are_refused_by_name() {
        assert_eq!(sample("/x?follow=true&tail=5"), Ok(Sample { tail: Some(5), follow: true }));
        assert_eq!(sample("/x"), Ok(Sample::default()));
        let refused = sample("/x?folow=true").unwrap_err();
        assert!(refused.contains("unknown field `folow`") && refused.contains("`follow`"), "{refused}");
        let refused = sample("/x?tail=many").unwrap_err();
        assert!(refused.contains("tail") && refused.contains("invalid digit"), "{refused}");
    }

    #[test]
    fn several_values_are_separated_by_commas() {
        assert_eq!(list(Some("cpu_cores,memory_used")), ["cpu_cores", "memory_used"]);
        assert_eq!((list(Some("")), list(None)), (Vec::<String>::new(), Vec::new()));
    }
}
