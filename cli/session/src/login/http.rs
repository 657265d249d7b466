//! HTTP for a login: no redirects, bounded answers, and the same trust as for calls.

use crate::failure::{Exit, Failure};
use lattice_api::client::Access;
use lattice_model::with_causes;
use oauth2::{HttpRequest, HttpResponse};
use reqwest::redirect::Policy;
use reqwest::{Certificate, ClientBuilder, Identity, Response, StatusCode};
use serde::de::DeserializeOwned;
use std::path::Path;
use std::time::Duration;
use thiserror::Error;

/// Timeout of a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of a request with its answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest answer, in bytes.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// Why a request failed.
#[derive(Debug, Error)]
pub enum HttpError {
    /// It could not be sent, or the answer did not arrive.
    #[error("no answer")]
    Exchange(#[from] reqwest::Error),
    /// The answer is longer than [`ANSWER_BYTES_MAX`].
    #[error("the answer is longer than {} KiB", ANSWER_BYTES_MAX / 1024)]
    TooLong,
    /// The answer is not HTTP.
    #[error("the answer cannot be read")]
    Form(#[from] oauth2::http::Error),
}

/// A client for HTTP.
#[derive(Clone, Debug)]
pub struct Http(reqwest::Client);

impl Http {
    /// For requests to an agent: it trusts only the authorities in the file of `access`, if there is one. Like calls,
    /// it uses no proxy.
    pub fn to_agent(access: &Access) -> Result<Self, Failure> {
        Self::new(access, |builder, authorities| {
            let builder = builder.no_proxy();
            if authorities.is_empty() { builder } else { builder.tls_certs_only(authorities) }
        })
    }

    /// For requests to an identity provider: it trusts the authorities of this machine, and those in the file of
    /// `access`, and uses the proxy of the environment.
    pub fn to_provider(access: &Access) -> Result<Self, Failure> {
        Self::new(&Access { certificate: None, ..access.clone() }, |builder, authorities| builder.tls_certs_merge(authorities))
    }

    fn new(access: &Access, trusting: impl FnOnce(ClientBuilder, Vec<Certificate>) -> ClientBuilder) -> Result<Self, Failure> {
        // Another part of this process may have installed it already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = reqwest::Client::builder().redirect(Policy::none()).connect_timeout(CONNECT_TIMEOUT).timeout(ANSWER_TIMEOUT);
        let authorities = match &access.ca {
            Some(path) => Certificate::from_pem_bundle(&read(path)?).map_err(|error| unusable(path, &error))?,
            None => Vec::new(),
        };
        let builder = trusting(builder, authorities);
        let builder = match &access.certificate {
            Some(path) => builder.identity(Identity::from_pem(&read(path)?).map_err(|error| unusable(path, &error))?),
            None => builder,
        };
        builder.build().map(Self).map_err(|error| Failure::other(format!("TLS cannot be set up: {}", with_causes(&error))))
    }

    /// The JSON document at this URL; `what` names it in errors.
    pub async fn get_json<T: DeserializeOwned>(&self, what: &str, url: &str) -> Result<T, Failure> {
        let about = |exit, why: String| Failure::new(exit, format!("{what} at {url} cannot be read: {why}"));
        let response = self.0.get(url).header("accept", "application/json").send().await.map_err(HttpError::from);
        let response = response.map_err(|error| about(Exit::Unavailable, with_causes(&error)))?;
        let status = response.status();
        if status != StatusCode::OK {
            return Err(about(Exit::Unavailable, format!("the answer is {status}")));
        }
        let body = body_of(response).await.map_err(|error| about(Exit::Unavailable, with_causes(&error)))?;
        serde_json::from_slice(&body).map_err(|error| about(Exit::Other, error.to_string()))
    }

    /// Sends a request of OAuth.
    pub async fn send(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let response = self.0.execute(request.try_into()?).await?;
        let mut answer = oauth2::http::Response::builder().status(response.status());
        for (name, value) in response.headers() {
            answer = answer.header(name, value);
        }
        let body = body_of(response).await?;
        Ok(answer.body(body)?)
    }
}

async fn body_of(mut response: Response) -> Result<Vec<u8>, HttpError> {
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await? {
        if body.len() + piece.len() > ANSWER_BYTES_MAX {
            return Err(HttpError::TooLong);
        }
        body.extend_from_slice(&piece);
    }
    Ok(body)
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))
}

fn unusable(path: &Path, error: &reqwest::Error) -> Failure {
    Failure::usage(format!("{} cannot be used for TLS: {}", path.display(), with_causes(error)))
}
