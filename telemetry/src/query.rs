//! Queries in PromQL to the metrics store.

use crate::push::{self, StoreError};
use reqwest::{Client, Url, header};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use thiserror::Error;

/// Largest answer in bytes; a larger one is an error.
const RESPONSE_BYTES_MAX: usize = 4 << 20;
/// Largest number of points of one series, and of series in an answer; further ones are ignored.
const SERIES_POINTS_MAX: usize = 1000;
/// How long a store may take to answer.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// A store that answers PromQL.
#[derive(Clone, Debug)]
pub struct Query {
    client: Client,
    base: Url,
    authorization: Option<header::HeaderValue>,
}

/// A query without an answer.
#[derive(Debug, Error)]
pub enum QueryError {
    #[error("the store does not answer: {0}")]
    Unreachable(String),
    #[error("the store refuses the query ({status}): {why}")]
    Refused { status: u16, why: String },
    #[error("the store's answer is not in Prometheus's format")]
    Malformed,
}

/// A time in seconds since 1970, and the value at that time.
pub type Point = (f64, f64);

#[derive(Deserialize)]
struct Answer {
    data: Option<Data>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Data {
    result: Vec<Series>,
}

#[derive(Deserialize)]
struct Series {
    #[serde(default)]
    metric: BTreeMap<String, String>,
    values: Option<Vec<(f64, String)>>,
    value: Option<(f64, String)>,
}

/// Checks that an address can be a store's, and contains no secret.
pub fn check(address: &str) -> Result<(), QueryAddressError> {
    push::address(address).map(drop).map_err(|_| QueryAddressError)
}

/// See [`check`]. The address is not repeated: it may contain a secret.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("it is not an http:// or https:// address such as http://victoriametrics:8428, or has a user, a password or a token in it")]
pub struct QueryAddressError;

impl Query {
    /// `address`: the part before `/api/v1/query_range`. The process must have a TLS provider.
    pub fn new(address: &str, token_file: &Path, ca: &Path) -> Result<Self, StoreError> {
        let base = push::address(address)?;
        let authorization = if token_file.as_os_str().is_empty() { None } else { Some(push::bearer(token_file)?) };
        Ok(Self { client: push::client(ca)?, base, authorization })
    }

    /// The store's address without parameters, for people.
    pub fn url(&self) -> String {
        push::without_parameters(&self.base)
    }

    /// The points of an expression's first series, from `start` to `end` at each `step`; all in seconds.
    pub async fn range(&self, expression: &str, start: f64, end: f64, step: f64) -> Result<Vec<Point>, QueryError> {
        let answer = self.ask("query_range", expression, &range(start, end, step)).await?;
        let series = answer.into_iter().next().and_then(|series| series.values).unwrap_or_default();
        series.into_iter().take(SERIES_POINTS_MAX).map(point).collect()
    }

    /// The value of an expression at one time; `None`: it has none.
    pub async fn at(&self, expression: &str, time: f64) -> Result<Option<f64>, QueryError> {
        let answer = self.ask("query", expression, &[("time", time.to_string())]).await?;
        let value = answer.into_iter().next().and_then(|series| series.value);
        value.map(point).transpose().map(|point| point.map(|(_, value)| value))
    }

    /// The value of each series of an expression at one time, by the value of a label. Series without that label, or
    /// without a number at that time, are left out.
    pub async fn each(&self, expression: &str, time: f64, label: &str) -> Result<BTreeMap<String, f64>, QueryError> {
        let answer = self.ask("query", expression, &[("time", time.to_string())]).await?;
        by_label(answer, label)
    }

    async fn ask(&self, what: &str, expression: &str, more: &[(&str, String)]) -> Result<Vec<Series>, QueryError> {
        let url = query_url(&self.base, what, expression, more);
        let mut request = self.client.get(url).timeout(RESPONSE_TIMEOUT);
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization.clone());
        }
        let unreachable = |error: reqwest::Error| QueryError::Unreachable(error.without_url().to_string());
        let mut response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
            if body.len() + chunk.len() > RESPONSE_BYTES_MAX {
                return Err(QueryError::Malformed);
            }
            body.extend_from_slice(&chunk);
        }
        let answer: Result<Answer, _> = serde_json::from_slice(&body);
        if !status.is_success() {
            let why = answer.ok().and_then(|answer| answer.error).unwrap_or_default();
            let why = why.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect();
            return Err(QueryError::Refused { status: status.as_u16(), why });
        }
        answer.ok().and_then(|answer| answer.data).map(|data| data.result).ok_or(QueryError::Malformed)
    }
}

/// `nocache`: from 50 points on `VictoriaMetrics` otherwise rounds start and end to whole steps, so that points would
/// not be aligned to the allocation's start. Prometheus ignores it.
fn range(start: f64, end: f64, step: f64) -> [(&'static str, String); 4] {
    [("start", start.to_string()), ("end", end.to_string()), ("step", step.to_string()), ("nocache", "1".to_owned())]
}

fn query_url(base: &Url, what: &str, expression: &str, more: &[(&str, String)]) -> Url {
    let mut url = base.clone();
    url.set_path(&format!("{}/api/v1/{what}", base.path().trim_end_matches('/')));
    url.query_pairs_mut().append_pair("query", expression).extend_pairs(more);
    url
}

fn by_label(answer: Vec<Series>, label: &str) -> Result<BTreeMap<String, f64>, QueryError> {
    let mut found = BTreeMap::new();
    // The answer's size is bounded.
    for mut series in answer {
        let (Some(name), Some(value)) = (series.metric.remove(label), series.value) else { continue };
        let (_, value) = point(value)?;
        if value.is_finite() {
            found.insert(name, value);
        }
    }
    Ok(found)
}

fn point((at, value): (f64, String)) -> Result<Point, QueryError> {
    let value: f64 = value.parse().map_err(|_| QueryError::Malformed)?;
    if at.is_finite() { Ok((at, value)) } else { Err(QueryError::Malformed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_begins_at_the_requested_time() {
        let base = Url::parse("http://store:8428/prometheus/").unwrap();
        let url = query_url(&base, "query_range", r#"up{a="b"}"#, &range(12.5, 42.5, 30.0));
        let expected = "http://store:8428/prometheus/api/v1/query_range?query=up%7Ba%3D%22b%22%7D&start=12.5&end=42.5&step=30&nocache=1";
        assert_eq!(url.as_str(), expected);
    }

    #[test]
    fn answers_are_read_as_prometheus_writes_them() {
        let range = r#"{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1.5,"2"],[31.5,"NaN"]]}]}}"#;
        let answer: Answer = serde_json::from_str(range).unwrap();
        let values = answer.data.unwrap().result.remove(0).values.unwrap();
        let points: Vec<Point> = values.into_iter().map(|value| point(value).unwrap()).collect();
        assert!(points[0] == (1.5, 2.0) && points[1].1.is_nan());
        let instant = r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"7"]}]}}"#;
        let answer: Answer = serde_json::from_str(instant).unwrap();
        assert_eq!(answer.data.unwrap().result.remove(0).value, Some((1.0, "7".to_owned())));
        assert!(point((1.0, "x".to_owned())).is_err());
        let vector = r#"{"data":{"result":[{"metric":{"node_id":"n1"},"value":[1,"7"]},{"metric":{"node_id":"n2"},"value":[1,"NaN"]},
            {"metric":{},"value":[1,"8"]}]}}"#;
        let answer: Answer = serde_json::from_str(vector).unwrap();
        assert_eq!(by_label(answer.data.unwrap().result, "node_id").unwrap(), [("n1".to_owned(), 7.0)].into());
    }
}
