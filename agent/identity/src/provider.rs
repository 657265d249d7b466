//! The provider's keys: fetched at the start, each hour, and when a token names an unknown one, at
//! most once a minute. The latest keys stay in use while the provider cannot be reached.

use crate::account_hook::AccountHookError;
use crate::identified::Refused;
use crate::key_set::{KeySet, KeySetError, WantedKey};
use jsonwebtoken::DecodingKey;
use lattice_agent_common::config::oidc::{OidcSettings, OidcSettingsError, is_loopback};
use lattice_model::{Backoff, with_causes};
use parking_lot::Mutex;
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, StatusCode, Url};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Interval between two fetches.
const REFRESH_INTERVAL: Duration = Duration::from_secs(3600);
/// Pauses between attempts of the task.
const RETRY_PAUSES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// Shortest interval between an attempt and a fetch for a token that names an unknown key.
const UNKNOWN_KEY_INTERVAL_MIN: Duration = Duration::from_secs(60);
/// The same while there are no keys at all.
const NO_KEYS_INTERVAL_MIN: Duration = Duration::from_secs(5);
/// Timeout of one answer of the provider.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// Largest answer of the provider, in bytes.
const ANSWER_BYTES_MAX: usize = 256 * 1024;

/// Why tokens cannot be checked with this configuration.
#[derive(Debug, Error)]
pub enum IdentityError {
    #[error(transparent)]
    Settings(#[from] OidcSettingsError),
    #[error("api.oidc.issuer: {0:?} is not a URL")]
    Url(String),
    #[error("api.oidc.ca {}: {why}", path.display())]
    File { path: PathBuf, why: String },
    #[error("api.oidc.account_hook {}", path.display())]
    Hook { path: PathBuf, source: AccountHookError },
    #[error("the client for the identity provider cannot be created")]
    Client(#[source] reqwest::Error),
}

/// Why there are no new keys.
#[derive(Debug, Error)]
enum FetchError {
    #[error("no answer from {url}")]
    Unreached { url: Url, source: reqwest::Error },
    #[error("{url} answers {status}")]
    Status { url: Url, status: StatusCode },
    #[error("{url} redirects, and redirects are not followed")]
    Redirected { url: Url },
    #[error("the answer of {url} is longer than {ANSWER_BYTES_MAX} bytes")]
    TooLong { url: Url },
    #[error("its configuration document cannot be read: {0}")]
    Document(serde_json::Error),
    #[error("its configuration document names the issuer {0:?}; api.oidc.issuer has to be exactly that")]
    Issuer(String),
    #[error("its configuration document names keys at {0:?}, which is not an https:// address")]
    Address(String),
    #[error(transparent)]
    Keys(#[from] KeySetError),
}

/// The part of the configuration document (OpenID Connect Discovery 1.0) that is used.
#[derive(Deserialize)]
struct Document {
    issuer: String,
    jwks_uri: String,
}

/// The provider as a source of keys.
pub(crate) struct Provider {
    issuer: String,
    document: Url,
    client: Client,
    state: Mutex<State>,
    /// The task that holds this lock fetches; the others wait, and then use what was fetched.
    fetching: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
struct State {
    keys: Option<Arc<KeySet>>,
    tried_at: Option<Instant>,
    /// Why the latest attempt failed.
    problem: Option<String>,
}

impl Provider {
    /// `settings`: must be valid. Connects to nobody yet.
    pub(crate) fn new(settings: &OidcSettings) -> Result<Self, IdentityError> {
        let address = format!("{}/.well-known/openid-configuration", settings.issuer.trim_end_matches('/'));
        let document = address.parse::<Url>().ok().filter(is_private).ok_or_else(|| IdentityError::Url(settings.issuer.clone()))?;
        let client = client(&settings.ca)?;
        let fetching = Arc::default();
        Ok(Self { issuer: settings.issuer.clone(), document, client, state: Mutex::default(), fetching })
    }

    /// Keeps the keys fresh until it is stopped.
    pub(crate) async fn run(&self, stop: &CancellationToken) {
        let mut pauses = RETRY_PAUSES;
        loop {
            let pause = match stop.run_until_cancelled(self.refresh_in_turn()).await {
                Some(true) => {
                    pauses.reset();
                    REFRESH_INTERVAL
                }
                Some(false) => pauses.next_pause(),
                None => return,
            };
            if stop.run_until_cancelled(sleep(pause)).await.is_none() {
                return;
            }
        }
    }

    async fn refresh_in_turn(&self) -> bool {
        let _turn = self.fetching.lock().await;
        self.refresh().await
    }

    /// The key that a token names. Asks the provider if it is unknown here.
    pub(crate) async fn key(self: &Arc<Self>, wanted: &WantedKey) -> Result<Arc<DecodingKey>, Refused> {
        if let Some(key) = self.known(wanted) {
            return Ok(key);
        }
        let turn = Arc::clone(&self.fetching).lock_owned().await;
        if self.may_refresh() {
            // A task of its own: otherwise callers who go away could make the agent ask again and again.
            let this = Arc::clone(self);
            let fetching = tokio::spawn(async move {
                this.refresh().await;
                drop(turn);
            });
            // The state has the result.
            let _ = fetching.await;
        } else {
            drop(turn);
        }
        if let Some(key) = self.known(wanted) {
            return Ok(key);
        }
        // The key may be a new one.
        match self.problem() {
            Some(problem) => Err(Refused::Unavailable(problem)),
            None => Err(Refused::UnknownKey),
        }
    }

    /// Why the latest keys were not fetched.
    pub(crate) fn problem(&self) -> Option<String> {
        let state = self.state.lock();
        let is_waiting = state.keys.is_none() && state.problem.is_none();
        let waiting = is_waiting.then(|| format!("the keys of the identity provider {} have not been fetched yet", self.issuer));
        state.problem.clone().or(waiting)
    }

    fn known(&self, wanted: &WantedKey) -> Option<Arc<DecodingKey>> {
        let keys = self.state.lock().keys.clone();
        keys?.find(wanted)
    }

    fn may_refresh(&self) -> bool {
        let state = self.state.lock();
        let interval_min = if state.keys.is_some() { UNKNOWN_KEY_INTERVAL_MIN } else { NO_KEYS_INTERVAL_MIN };
        state.tried_at.is_none_or(|tried_at| tried_at.elapsed() >= interval_min)
    }

    /// Fetches the keys; returns whether that succeeded.
    async fn refresh(&self) -> bool {
        let fetched = self.fetch().await;
        let mut state = self.state.lock();
        state.tried_at = Some(Instant::now());
        match fetched {
            Ok(keys) => {
                if state.problem.take().is_some() {
                    tracing::info!(issuer = %self.issuer, "the keys of the identity provider were fetched again");
                }
                state.keys = Some(Arc::new(keys));
                true
            }
            Err(error) => {
                let problem = format!("the keys of the identity provider {} cannot be fetched: {}", self.issuer, with_causes(&error));
                if state.problem.as_ref() != Some(&problem) {
                    let has_keys = state.keys.is_some();
                    tracing::warn!(has_keys, "{problem}");
                }
                state.problem = Some(problem);
                false
            }
        }
    }

    async fn fetch(&self) -> Result<KeySet, FetchError> {
        let document: Document = serde_json::from_slice(&self.get(&self.document).await?).map_err(FetchError::Document)?;
        if document.issuer != self.issuer {
            return Err(FetchError::Issuer(document.issuer));
        }
        let address = document.jwks_uri.parse::<Url>().ok().filter(is_private);
        let address = address.ok_or(FetchError::Address(document.jwks_uri))?;
        Ok(KeySet::parse(&self.get(&address).await?)?)
    }

    async fn get(&self, url: &Url) -> Result<Vec<u8>, FetchError> {
        let unreached = |source: reqwest::Error| FetchError::Unreached { url: url.clone(), source: source.without_url() };
        let mut answer = self.client.get(url.clone()).send().await.map_err(unreached)?;
        if answer.status().is_redirection() {
            return Err(FetchError::Redirected { url: url.clone() });
        }
        if answer.status() != StatusCode::OK {
            return Err(FetchError::Status { url: url.clone(), status: answer.status() });
        }
        let mut body = Vec::new();
        while let Some(chunk) = answer.chunk().await.map_err(unreached)? {
            if body.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(FetchError::TooLong { url: url.clone() });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }
}

/// Whether nobody on the network can change what is fetched from this address.
fn is_private(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    match url.scheme() {
        "https" => !host.is_empty(),
        "http" => is_loopback(host),
        _ => false,
    }
}

fn client(ca: &Path) -> Result<Client, IdentityError> {
    // If another caller was first, that is just as good: this program has only one provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut client = Client::builder().timeout(ANSWER_TIME_MAX).connect_timeout(ANSWER_TIME_MAX).redirect(Policy::none());
    if !ca.as_os_str().is_empty() {
        let failed = |why: String| IdentityError::File { path: ca.to_owned(), why };
        let pem = std::fs::read(ca).map_err(|error| failed(error.to_string()))?;
        let authorities = Certificate::from_pem_bundle(&pem).map_err(|error| failed(with_causes(&error)))?;
        if authorities.is_empty() {
            return Err(failed("it has no certificate".to_owned()));
        }
        client = client.tls_certs_only(authorities);
    }
    client.build().map_err(IdentityError::Client)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_provider::{Signer, TestProvider};
    use jsonwebtoken::Algorithm;

    fn provider(server: &TestProvider) -> Arc<Provider> {
        Arc::new(Provider::new(&server.settings()).unwrap())
    }

    fn wanted(id: &str) -> WantedKey {
        WantedKey { id: Some(id.to_owned()), algorithm: Algorithm::ES256 }
    }

    /// Makes the latest attempt an old one.
    fn age(provider: &Provider, by: Duration) {
        let mut state = provider.state.lock();
        state.tried_at = state.tried_at.and_then(|tried_at| tried_at.checked_sub(by));
    }

    #[tokio::test]
    async fn an_unknown_key_is_fetched_at_most_once_a_minute() {
        let server = TestProvider::start().await;
        let (first, second) = (Signer::new(Algorithm::ES256, "1"), Signer::new(Algorithm::ES256, "2"));
        server.serve_keys(&[&first]);
        let provider = provider(&server);
        let (one, two) = (wanted("1"), wanted("2"));
        assert!(provider.problem().unwrap().ends_with("have not been fetched yet"));
        assert!(provider.key(&one).await.is_ok());
        assert_eq!((server.fetches(), provider.problem()), (1, None));
        server.serve_keys(&[&first, &second]);
        let refused = futures::future::join_all((0..20).map(|_| provider.key(&two))).await;
        assert!(refused.iter().all(|key| matches!(key, Err(Refused::UnknownKey))));
        assert_eq!(server.fetches(), 1, "the keys were fetched less than a minute before");
        age(&provider, UNKNOWN_KEY_INTERVAL_MIN);
        let found = futures::future::join_all((0..20).map(|_| provider.key(&two))).await;
        assert!(found.iter().all(Result::is_ok));
        assert_eq!(server.fetches(), 2);
        // A key that the provider has removed is gone with the next fetch.
        server.serve_keys(&[&second]);
        assert!(provider.refresh().await);
        assert!(matches!(provider.key(&one).await, Err(Refused::UnknownKey)));
    }

    #[tokio::test]
    async fn callers_who_go_away_do_not_make_the_agent_ask_again() {
        let server = TestProvider::start().await;
        server.serve_keys(&[&Signer::new(Algorithm::ES256, "1")]);
        let provider = provider(&server);
        let (one, two) = (wanted("1"), wanted("2"));
        {
            let mut leaving = std::pin::pin!(provider.key(&two));
            assert!(futures::poll!(leaving.as_mut()).is_pending(), "the provider is being asked");
        }
        assert!(provider.key(&one).await.is_ok(), "by the fetch of the caller who went away");
        assert!(matches!(provider.key(&two).await, Err(Refused::UnknownKey)));
        assert_eq!(server.fetches(), 1);
    }

    #[tokio::test]
    async fn keys_stay_in_use_while_the_provider_is_away_and_a_new_key_is_then_unavailable() {
        let server = TestProvider::start().await;
        server.serve_keys(&[&Signer::new(Algorithm::ES256, "1")]);
        let provider = provider(&server);
        assert!(provider.refresh().await);
        server.answer("/keys", "503 Service Unavailable", "", "");
        assert!(!provider.refresh().await);
        assert!(provider.key(&wanted("1")).await.is_ok());
        let Err(Refused::Unavailable(why)) = provider.key(&wanted("2")).await else { panic!("a key that may exist") };
        assert!(why.contains("answers 503 Service Unavailable"), "{why}");
        assert_eq!(provider.problem(), Some(why));
    }

    #[tokio::test]
    async fn without_any_keys_tokens_can_neither_be_accepted_nor_refused() {
        let server = TestProvider::start().await;
        let provider = provider(&server);
        let one = wanted("1");
        assert!(matches!(provider.key(&one).await, Err(Refused::Unavailable(_))));
        server.serve_keys(&[&Signer::new(Algorithm::ES256, "1")]);
        assert!(matches!(provider.key(&one).await, Err(Refused::Unavailable(_))), "the last attempt was just now");
        age(&provider, NO_KEYS_INTERVAL_MIN);
        assert!(provider.key(&one).await.is_ok());
    }

    #[tokio::test]
    async fn what_a_provider_must_not_answer_is_refused() {
        let server = TestProvider::start().await;
        let problem = async |path: &str, status: &str, headers: &str, body: &str| {
            server.serve_keys(&[&Signer::new(Algorithm::ES256, "1")]);
            server.answer(path, status, headers, body);
            let provider = provider(&server);
            assert!(!provider.refresh().await);
            provider.problem().unwrap()
        };
        let document = "/.well-known/openid-configuration";
        let of = |issuer: &str, keys: &str| format!(r#"{{"issuer":"{issuer}","jwks_uri":"{keys}"}}"#);
        let redirected = problem("/keys", "302 Found", "location: /elsewhere\r\n", "").await;
        assert!(redirected.contains("/keys redirects, and redirects are not followed"), "{redirected}");
        let long = problem("/keys", "200 OK", "", &" ".repeat(ANSWER_BYTES_MAX + 1)).await;
        assert!(long.contains("is longer than 262144 bytes"), "{long}");
        let other = problem(document, "200 OK", "", &of("https://elsewhere", "https://elsewhere/keys")).await;
        assert!(other.contains("names the issuer \"https://elsewhere\""), "{other}");
        for keys in ["http://elsewhere/keys", "file:///keys", "keys"] {
            let plain = problem(document, "200 OK", "", &of(&server.issuer, keys)).await;
            assert!(plain.contains("which is not an https:// address"), "{plain}");
        }
        let none = problem("/keys", "200 OK", "", r#"{"keys":[{"kty":"oct","k":"AA"}]}"#).await;
        assert!(none.contains("no key that can verify a signature"), "{none}");
        let page = problem("/keys", "200 OK", "", "<html>").await;
        assert!(page.contains("are not a JSON Web Key Set"), "{page}");
    }

    #[tokio::test]
    async fn the_task_fetches_at_once_and_ends_when_it_is_stopped() {
        let server = TestProvider::start().await;
        server.serve_keys(&[&Signer::new(Algorithm::ES256, "1")]);
        let (provider, stop) = (provider(&server), CancellationToken::new());
        let task = tokio::spawn({
            let (provider, stop) = (Arc::clone(&provider), stop.clone());
            async move { provider.run(&stop).await }
        });
        while provider.problem().is_some() {
            tokio::task::yield_now().await;
        }
        stop.cancel();
        task.await.unwrap();
        assert_eq!(server.fetches(), 1);
    }

    #[tokio::test]
    async fn a_file_of_authorities_must_have_some() {
        let server = TestProvider::start().await;
        let dir = std::env::temp_dir().join(format!("lattice-identity-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let ca = dir.join("ca.crt");
        let refused = |ca: &Path| Provider::new(&OidcSettings { ca: ca.to_owned(), ..server.settings() }).err().unwrap().to_string();
        assert!(refused(&ca).starts_with(&format!("api.oidc.ca {}: ", ca.display())));
        std::fs::write(&ca, "no certificate").unwrap();
        assert!(refused(&ca).ends_with("it has no certificate"), "{}", refused(&ca));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
