//! The one question of the API's edge: whom does this token identify?

use crate::account_hook::AccountHook;
use crate::cluster_tokens::ClusterTokens;
use crate::identified::{Discovery, Identified, Refused};
use crate::jwt::{Account, Expected};
use crate::memberships::Memberships;
use crate::provider::{IdentityError, Provider};
use crate::recent::Recent;
use crate::signature;
use lattice_agent_common::config::oidc::OidcSettings;
use lattice_model::access_token::{PREFIX, Token};
use lattice_model::{Principal, Timestamp};
use lattice_quorum_client::QuorumClient;
use parking_lot::Mutex;
use ring::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Largest token, in bytes.
const TOKEN_BYTES_MAX: usize = 16 * 1024;
/// Number of a provider's tokens that are cached as verified.
const VERIFIED_MAX: usize = 10_000;
/// How long the verification of a provider's token is cached, at most.
const VERIFIED_TIME_MAX: Duration = Duration::from_secs(300);

/// Identifies bearers of tokens. All clones share one cache.
#[derive(Clone)]
pub struct Identities(Arc<Inner>);

struct Inner {
    tokens: ClusterTokens,
    memberships: Memberships,
    oidc: Option<Oidc>,
}

/// The provider's tokens.
struct Oidc {
    expected: Expected,
    provider: Arc<Provider>,
    hook: Option<AccountHook>,
    /// By the SHA-256 of the token: memory that is read out contains no tokens.
    verified: Mutex<Recent<[u8; SHA256_OUTPUT_LEN], Identified>>,
}

impl Identities {
    /// Checks the settings, and reads the file of authorities; connects to nobody. Without settings
    /// only tokens of the cluster are accepted.
    pub fn new(settings: Option<OidcSettings>, quorum: QuorumClient) -> Result<Self, IdentityError> {
        let memberships = Memberships::of_quorum(quorum.clone());
        Self::with(settings, ClusterTokens::of_quorum(quorum), memberships)
    }

    fn with(settings: Option<OidcSettings>, tokens: ClusterTokens, memberships: Memberships) -> Result<Self, IdentityError> {
        let oidc = settings.map(Oidc::new).transpose()?;
        Ok(Self(Arc::new(Inner { tokens, memberships, oidc })))
    }

    /// The tenants to which the requests of an account count, as the quorum had them at most a
    /// minute ago. Empty while the quorum does not answer.
    pub async fn tenants_of(&self, account: &Principal) -> Arc<BTreeSet<String>> {
        self.0.memberships.of(account).await
    }

    /// Keeps the provider's keys fresh until it is stopped.
    pub async fn run(self, stop: CancellationToken) {
        match &self.0.oidc {
            Some(oidc) => oidc.provider.run(&stop).await,
            None => stop.cancelled().await,
        }
    }

    /// Whom a token identifies. `now` is the wall clock. Waits at most some seconds for the quorum
    /// or the provider.
    pub async fn identify(&self, bearer: &str, now: Timestamp) -> Result<Identified, Refused> {
        if bearer.len() > TOKEN_BYTES_MAX {
            return Err(Refused::Malformed);
        }
        if bearer.starts_with(PREFIX) {
            let token: Token = bearer.parse().map_err(|_| Refused::Malformed)?;
            return self.0.tokens.identify(&token, now).await;
        }
        match &self.0.oidc {
            Some(oidc) => oidc.identify(bearer, now).await,
            None => Err(Refused::Malformed),
        }
    }

    /// The provider, for people who want to log in.
    pub fn discovery(&self) -> Option<Discovery> {
        let settings = self.0.oidc.as_ref()?.expected.settings();
        let (issuer, client_id) = (settings.issuer.clone(), settings.client_id.clone());
        Some(Discovery { issuer, client_id, scopes: settings.scopes.clone() })
    }

    /// Why tokens of the provider, or those with a new key, cannot be checked at present.
    pub fn problem(&self) -> Option<String> {
        self.0.oidc.as_ref()?.provider.problem()
    }
}

impl Oidc {
    fn new(settings: OidcSettings) -> Result<Self, IdentityError> {
        settings.validate()?;
        signature::install();
        let provider = Arc::new(Provider::new(&settings)?);
        let hook =
            AccountHook::of(&settings).map_err(|error| IdentityError::Hook { path: settings.account_hook.clone(), source: error })?;
        Ok(Self { expected: Expected::new(settings), provider, hook, verified: Mutex::new(Recent::new(VERIFIED_MAX)) })
    }

    async fn identify(&self, text: &str, now: Timestamp) -> Result<Identified, Refused> {
        let mut hash = [0; SHA256_OUTPUT_LEN];
        hash.copy_from_slice(digest(&SHA256, text.as_bytes()).as_ref());
        if let Some(identified) = self.known(&hash, now) {
            return Ok(identified);
        }
        let unverified = self.expected.read(text, now)?;
        let key = self.provider.key(unverified.key()).await?;
        let claimed = unverified.verify(&key)?;
        let (account, holds_for) = match (&claimed.account, &self.hook) {
            (Account::Named(account), _) => (account.clone(), VERIFIED_TIME_MAX),
            (Account::ByHook(claims), Some(hook)) => {
                let _turn = hook.turn().await?;
                // Whoever had a turn before may have asked about the same token.
                if let Some(identified) = self.known(&hash, now) {
                    return Ok(identified);
                }
                (hook.account(claims).await?, hook.answer_time)
            }
            (Account::ByHook(_), None) => return Err(Refused::NoAccount),
        };
        let identified = claimed.identified(account);
        let left = Duration::from_millis(identified.expires_at.since_ms(now));
        let at = Instant::now();
        self.verified.lock().insert(hash, identified.clone(), at + left.min(holds_for), at);
        Ok(identified)
    }

    fn known(&self, hash: &[u8; SHA256_OUTPUT_LEN], now: Timestamp) -> Option<Identified> {
        let known = self.verified.lock().get(hash, Instant::now());
        known.filter(|identified| now < identified.expires_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identified::IdentifiedBy;
    use crate::test_provider::{NOW, Signer, TestProvider, claims};
    use futures::FutureExt;
    use jsonwebtoken::Algorithm;
    use lattice_model::access_token::TokenId;
    use serde_json::json;

    fn no_memberships() -> Memberships {
        Memberships::new(Box::new(|_| async { None }.boxed()))
    }

    /// A checker without tokens of the cluster.
    fn identities(settings: Option<OidcSettings>) -> Identities {
        let tokens = ClusterTokens::new(Box::new(|_| async { Ok(None) }.boxed()));
        Identities::with(settings, tokens, no_memberships()).unwrap()
    }

    #[tokio::test]
    async fn a_person_logs_in_and_the_second_check_asks_nobody() {
        let server = TestProvider::start().await;
        let signer = Signer::new(Algorithm::ES256, "1");
        server.serve_keys(&[&signer]);
        let identities = identities(Some(server.settings()));
        let token = signer.token(&claims(&[("iss", json!(server.issuer))]));
        let first = identities.identify(&token, NOW).await.unwrap();
        assert_eq!(first.account, "alice");
        assert_eq!(first.kind, IdentifiedBy::Oidc { issuer: server.issuer.clone(), subject: "s-1".to_owned() });
        // Without its keys the provider's token is still known.
        server.answer("/keys", "503 Service Unavailable", "", "");
        assert_eq!(identities.identify(&token, NOW).await, Ok(first.clone()));
        assert_eq!(server.fetches(), 1);
        // The token still expires.
        assert_eq!(identities.identify(&token, first.expires_at).await, Err(Refused::Expired));
        let forged = Signer::new(Algorithm::ES256, "1").token(&claims(&[("iss", json!(server.issuer))]));
        assert_eq!(identities.identify(&forged, NOW).await, Err(Refused::BadSignature));
    }

    #[tokio::test]
    async fn tokens_of_others_never_make_the_agent_ask_the_provider() {
        let server = TestProvider::start().await;
        let identities = identities(Some(server.settings()));
        let signer = Signer::new(Algorithm::ES256, "1");
        assert_eq!(identities.identify(&signer.token(&claims(&[])), NOW).await, Err(Refused::WrongIssuer));
        let expired = claims(&[("iss", json!(server.issuer)), ("exp", json!(1))]);
        assert_eq!(identities.identify(&signer.token(&expired), NOW).await, Err(Refused::Expired));
        assert_eq!(server.fetches(), 0);
    }

    #[tokio::test]
    async fn what_is_no_token_is_refused_before_anything_is_looked_up() {
        let identities = identities(None);
        let token = Token { id: TokenId(1), secret: [1; 32] }.text();
        assert_eq!(identities.identify(&token, NOW).await, Err(Refused::Revoked));
        for text in ["", "a.b.c", &token[..token.len() - 1], &"a".repeat(TOKEN_BYTES_MAX + 1)] {
            assert_eq!(identities.identify(text, NOW).await, Err(Refused::Malformed), "{text}");
        }
        assert_eq!((identities.discovery(), identities.problem()), (None, None));
    }

    #[tokio::test]
    async fn invalid_settings_are_refused_and_valid_ones_shown_to_people_who_log_in() {
        let server = TestProvider::start().await;
        let invalid = OidcSettings { client_id: String::new(), ..server.settings() };
        let tokens = ClusterTokens::new(Box::new(|_| async { Ok(None) }.boxed()));
        let refused = Identities::with(Some(invalid), tokens, no_memberships()).err().unwrap().to_string();
        assert_eq!(refused, "api.oidc.client_id: it must not be empty");
        let identities = identities(Some(server.settings()));
        let scopes = ["openid", "profile", "offline_access"].map(str::to_owned).into();
        let want = Discovery { issuer: server.issuer.clone(), client_id: "lattice".to_owned(), scopes };
        assert_eq!(identities.discovery(), Some(want));
        assert!(identities.problem().is_some(), "no keys yet");
    }
}
