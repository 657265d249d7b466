//! Records to a site's server: `POST` with a signature, until it answers 2xx.
//!
//! | header | value |
//! |---|---|
//! | `X-Lattice-Delivery` | `STORE/FIRST-LAST`: the same whenever this batch is sent |
//! | `X-Lattice-Timestamp` | when it was sent, in milliseconds since 1970 |
//! | `X-Lattice-Signature` | `sha256=` and HMAC-SHA256 over the timestamp, a point and the body, in hexadecimal digits |

use super::record::SinkRecord;
use lattice_agent_common::clock;
use lattice_agent_common::config::accounting::HttpSinkSettings;
use lattice_model::ended_work::EndedWork;
use lattice_model::with_causes;
use reqwest::header::CONTENT_TYPE;
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Response, StatusCode, Url};
use ring::hmac;
use serde::Serialize;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;
use uuid::Uuid;

/// Smallest size of a key, in bytes.
const KEY_BYTES_MIN: usize = 16;
/// How much of a refusal is shown (characters) and read (bytes).
const DETAIL_CHARS_MAX: usize = 200;
const DETAIL_BYTES_MAX: usize = 4096;

/// Why a batch was not accepted.
#[derive(Debug, Error)]
pub(crate) enum HttpSinkError {
    #[error("accounting.http_sink.{setting} {}: {why}", path.display())]
    File { setting: &'static str, path: PathBuf, why: String },
    #[error("accounting.http_sink.url is not a URL")]
    Url,
    #[error("the client for the server cannot be created")]
    Client(#[source] reqwest::Error),
    #[error("the records cannot be encoded")]
    Encode(#[source] serde_json::Error),
    #[error("no answer from {server}")]
    Unreached {
        server: String,
        #[source]
        source: reqwest::Error,
    },
    #[error("{server} answers {status}{detail}")]
    Status { server: String, status: StatusCode, detail: String },
}

/// The body of a request.
#[derive(Serialize)]
struct Batch<'a> {
    delivery: &'a str,
    /// The store's id.
    store: Uuid,
    records: Vec<SinkRecord<'a>>,
}

pub(crate) struct HttpSink {
    settings: HttpSinkSettings,
    /// `None`: it is made before the next delivery, with the certificates of that moment.
    client: Option<(Url, Client)>,
}

impl HttpSink {
    pub(crate) fn new(settings: HttpSinkSettings) -> Self {
        Self { settings, client: None }
    }

    /// The most records in one batch.
    pub(crate) fn batch_records(&self) -> u32 {
        self.settings.batch_records
    }

    /// The URL without its query, which may contain a secret.
    pub(crate) fn target(&self) -> String {
        self.settings.url.split(['?', '#']).next().unwrap_or_default().to_owned()
    }

    /// Posts a batch.
    ///
    /// # Errors
    /// [`HttpSinkError`]: it was not accepted, or the answer was lost; the same batch is to be sent again.
    pub(crate) async fn deliver(&mut self, store: Uuid, work: &[EndedWork]) -> Result<(), HttpSinkError> {
        let (first, last) = (work.first().map_or(0, |work| work.sequence), work.last().map_or(0, |work| work.sequence));
        let delivery = format!("{store}/{first}-{last}");
        let records = work.iter().map(SinkRecord::from).collect();
        let body = serde_json::to_vec(&Batch { delivery: &delivery, store, records }).map_err(HttpSinkError::Encode)?;
        let key = key(&self.settings.key_file)?;
        // After a failure the client is not put back, so the next delivery makes a new one.
        let (url, client) = match self.client.take() {
            Some(made) => made,
            None => client(&self.settings)?,
        };
        let at = clock::now().0;
        let request = client
            .post(url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header("x-lattice-delivery", &delivery)
            .header("x-lattice-timestamp", at)
            .header("x-lattice-signature", signature(&key, at, &body))
            .body(body);
        let server = self.target();
        match request.send().await {
            Err(source) => Err(HttpSinkError::Unreached { server, source: source.without_url() }),
            Ok(answer) if answer.status().is_success() => {
                self.client = Some((url, client));
                Ok(())
            }
            Ok(answer) => Err(HttpSinkError::Status { server, status: answer.status(), detail: detail(answer).await }),
        }
    }
}

/// What the server says about its refusal, if it does.
async fn detail(mut answer: Response) -> String {
    let mut body = Vec::new();
    while body.len() < DETAIL_BYTES_MAX
        && let Ok(Some(chunk)) = answer.chunk().await
    {
        body.extend_from_slice(&chunk);
    }
    let text: String = String::from_utf8_lossy(&body).chars().filter(|c| !c.is_control()).take(DETAIL_CHARS_MAX).collect();
    if text.is_empty() { text } else { format!(": {text}") }
}

fn client(settings: &HttpSinkSettings) -> Result<(Url, Client), HttpSinkError> {
    let url = settings.url.parse::<Url>().map_err(|_| HttpSinkError::Url)?;
    // If another caller was first, that is just as good: this program has only one provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let limit = Duration::from_secs(settings.timeout_seconds);
    let mut client = Client::builder().timeout(limit).connect_timeout(limit).redirect(Policy::none());
    let ca = &settings.ca;
    if !ca.as_os_str().is_empty() {
        let failed = |why: String| HttpSinkError::File { setting: "ca", path: ca.clone(), why };
        let pem = fs::read(ca).map_err(|error| failed(error.to_string()))?;
        let authorities = Certificate::from_pem_bundle(&pem).map_err(|error| failed(with_causes(&error)))?;
        if authorities.is_empty() {
            return Err(failed("it has no certificate".to_owned()));
        }
        client = client.tls_certs_only(authorities);
    }
    Ok((url, client.build().map_err(HttpSinkError::Client)?))
}

/// The key of the signatures. Nobody else may know it: whoever knows it can forge records.
fn key(path: &Path) -> Result<hmac::Key, HttpSinkError> {
    let failed = |why: String| HttpSinkError::File { setting: "key_file", path: path.to_owned(), why };
    let read = |error: std::io::Error| failed(error.to_string());
    let (file, me) = (fs::metadata(path).map_err(read)?, fs::metadata("/proc/self").map_err(read)?.uid());
    if file.uid() != 0 && file.uid() != me {
        return Err(failed(format!("it belongs to uid {}; chown it to root", file.uid())));
    }
    if file.mode() & 0o077 != 0 {
        return Err(failed(format!("others can read it (mode {:o}); chmod 600", file.mode() & 0o777)));
    }
    let text = fs::read(path).map_err(read)?;
    let text = text.trim_ascii();
    if text.len() < KEY_BYTES_MIN {
        return Err(failed(format!("it has {} bytes; a key needs at least {KEY_BYTES_MIN}", text.len())));
    }
    Ok(hmac::Key::new(hmac::HMAC_SHA256, text))
}

/// `sha256=` and HMAC-SHA256 (RFC 2104) over the time, a point and the body, in hexadecimal digits.
fn signature(key: &hmac::Key, at_ms: u64, body: &[u8]) -> String {
    let tag = hmac::sign(key, &[format!("{at_ms}.").as_bytes(), body].concat());
    tag.as_ref().iter().fold("sha256=".to_owned(), |mut hex, byte| {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::Directory;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_body_is_signed_with_its_time() {
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"0123456789abcdef");
        let whole = hmac::sign(&key, b"7.{}");
        let hex: String = whole.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(signature(&key, 7, b"{}"), format!("sha256={hex}"));
        assert_ne!(signature(&key, 8, b"{}"), format!("sha256={hex}"));
    }

    #[test]
    fn a_key_is_long_and_nobody_elses() {
        let directory = Directory::new();
        let path = directory.0.join("key");
        let write = |text: &str, mode: u32| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            key(&path).map(|_| ()).map_err(|error| error.to_string())
        };
        assert!(write("0123456789abcdef\n", 0o644).unwrap_err().contains("chmod 600"));
        assert!(write("short\n", 0o600).unwrap_err().contains("it has 5 bytes"));
        assert_eq!(write("0123456789abcdef\n", 0o600), Ok(()));
        assert!(key(&directory.0.join("none")).unwrap_err().to_string().starts_with("accounting.http_sink.key_file /"));
    }

    #[test]
    fn people_see_the_url_without_its_query() {
        let settings = HttpSinkSettings { url: "https://h/x?token=geheim".to_owned(), ..HttpSinkSettings::default() };
        assert_eq!(HttpSink::new(settings).target(), "https://h/x");
    }
}
