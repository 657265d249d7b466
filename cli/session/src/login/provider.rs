//! An identity provider (OpenID Connect): its endpoints, and the tokens that it gives.

use super::claims;
use super::discovery::Issuer;
use super::http::{Http, HttpError};
use super::redirect::{is_same_issuer, printable};
use crate::failure::{Exit, Failure};
use lattice_model::time::Timestamp;
use lattice_model::with_causes;
use oauth2::basic::{BasicErrorResponse, BasicRevocationErrorResponse, BasicTokenIntrospectionResponse, BasicTokenType};
use oauth2::url::{Host, Url};
use oauth2::{
    AccessToken, AuthUrl, AuthorizationCode, ClientId, CsrfToken, DeviceAuthorizationUrl, EndpointNotSet, EndpointSet, ErrorResponse,
    ExtraTokenFields, PkceCodeChallenge, PkceCodeVerifier, RedirectUrl, RefreshToken, RequestTokenError, RevocationUrl, Scope,
    StandardDeviceAuthorizationResponse, StandardRevocableToken, StandardTokenResponse, TokenResponse, TokenUrl,
};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// The path of the provider's own description, below its URL (OpenID Connect Discovery).
const DESCRIPTION_PATH: &str = "/.well-known/openid-configuration";
/// Life of a token that does not say when it expires.
const LIFETIME_DEFAULT: Duration = Duration::from_secs(300);
/// The shortest pause between two polls of the device flow, and the longest time of polling.
const POLL_INTERVAL_MIN: Duration = Duration::from_secs(1);
const POLL_TIME_MAX: Duration = Duration::from_secs(1800);

/// The ID token beside an access token.
#[derive(Serialize, Deserialize)]
struct IdToken {
    #[serde(default)]
    id_token: Option<String>,
}

impl fmt::Debug for IdToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdToken")
    }
}

impl ExtraTokenFields for IdToken {}

type Answer = StandardTokenResponse<IdToken, BasicTokenType>;
type OAuth<Auth = EndpointNotSet, Device = EndpointNotSet, Revocation = EndpointNotSet, Token = EndpointNotSet> = oauth2::Client<
    BasicErrorResponse,
    Answer,
    BasicTokenIntrospectionResponse,
    StandardRevocableToken,
    BasicRevocationErrorResponse,
    Auth,
    Device,
    EndpointNotSet,
    Revocation,
    Token,
>;

/// Which of a provider's tokens agents accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sends {
    AccessToken,
    IdToken,
}

/// The tokens that the provider gave.
pub struct Tokens {
    access: String,
    id: Option<String>,
    /// The provider exchanges it for new tokens.
    pub refresh: Option<String>,
    expires_in: Option<Duration>,
}

impl Tokens {
    /// The tokens to try with an agent, the likelier one first: agents verify only JWTs.
    pub fn candidates(&self) -> Vec<Sends> {
        let of = |sends, is_one: bool| is_one.then_some(sends);
        let jwts = [of(Sends::AccessToken, claims::is_jwt(&self.access)), of(Sends::IdToken, self.id.is_some())];
        let jwts: Vec<Sends> = jwts.into_iter().flatten().collect();
        if jwts.is_empty() { vec![Sends::AccessToken] } else { jwts }
    }

    /// This token, and when it expires by the clock of this machine: that of the provider may differ.
    pub fn token(&self, sends: Sends, now: Timestamp) -> Option<(String, Timestamp)> {
        let after = |life: Duration| Timestamp(now.0.saturating_add(lattice_model::millis(life)));
        let (token, life) = match sends {
            Sends::AccessToken => (self.access.clone(), self.expires_in),
            Sends::IdToken => (self.id.clone()?, None),
        };
        let expires_at = match life.or_else(|| claims::life(&token)) {
            Some(life) => after(life),
            None => claims::expiry(&token).unwrap_or_else(|| after(LIFETIME_DEFAULT)),
        };
        Some((token, expires_at))
    }
}

impl From<&Answer> for Tokens {
    fn from(answer: &Answer) -> Self {
        Self {
            access: answer.access_token().secret().clone(),
            id: answer.extra_fields().id_token.clone(),
            refresh: answer.refresh_token().map(|token| token.secret().clone()),
            expires_in: answer.expires_in(),
        }
    }
}

/// The provider's description of itself.
#[derive(Debug, Deserialize)]
struct Description {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    device_authorization_endpoint: Option<String>,
    revocation_endpoint: Option<String>,
}

/// A login that a browser has to confirm.
pub struct Authorization {
    /// The page to open.
    pub url: String,
    /// A value that the provider must send back.
    pub state: String,
    verifier: PkceCodeVerifier,
    redirect: RedirectUrl,
}

/// A provider.
#[derive(Debug)]
pub struct Provider {
    http: Http,
    /// Its URL, and the identity of `lattice` there.
    pub issuer: Issuer,
    description: Description,
}

impl Provider {
    /// Reads the provider's description.
    pub async fn discover(http: Http, issuer: Issuer) -> Result<Self, Failure> {
        check_url("the identity provider's address", &issuer.issuer)?;
        let url = format!("{}{DESCRIPTION_PATH}", issuer.issuer.trim_end_matches('/'));
        let description: Description = http.get_json("the identity provider's description", &url).await?;
        check(&description, &issuer)?;
        Ok(Self { http, issuer, description })
    }

    /// The endpoint for new tokens.
    pub fn token_endpoint(&self) -> &str {
        &self.description.token_endpoint
    }

    /// The endpoint that ends tokens, if there is one.
    pub fn revocation_endpoint(&self) -> Option<&str> {
        self.description.revocation_endpoint.as_deref()
    }

    /// Whether it has the device flow.
    pub fn has_device_flow(&self) -> bool {
        self.description.device_authorization_endpoint.is_some()
    }

    /// A login by a browser, which the provider then sends to `redirect`.
    pub fn authorization(&self, redirect: &str) -> Result<Authorization, Failure> {
        authorize(&self.issuer, &self.description.authorization_endpoint, redirect)
    }

    /// The tokens for a code that the provider has sent to the redirect address.
    pub async fn exchange(&self, code: String, authorization: Authorization) -> Result<Tokens, Failure> {
        let client = tokens_client(&self.issuer.client_id, &self.description.token_endpoint)?.set_redirect_uri(authorization.redirect);
        let send = |request| self.http.send(request);
        let request = client.exchange_code(AuthorizationCode::new(code)).set_pkce_verifier(authorization.verifier);
        let answer = request.request_async(&send).await.map_err(|error| failed("the login was not completed", error))?;
        Ok(Tokens::from(&answer))
    }

    /// Begins the device flow (RFC 8628).
    pub async fn begin_device(&self) -> Result<StandardDeviceAuthorizationResponse, Failure> {
        let Some(endpoint) = &self.description.device_authorization_endpoint else {
            return Err(Failure::new(Exit::Refused, format!("{} has no device flow", self.issuer.issuer))
                .hint("`lattice login --flow manual` needs a browser on any machine"));
        };
        let endpoint = DeviceAuthorizationUrl::new(endpoint.clone()).map_err(|error| bad_url("device", &error))?;
        let client = OAuth::new(ClientId::new(self.issuer.client_id.clone())).set_device_authorization_url(endpoint);
        let send = |request| self.http.send(request);
        let request = client.exchange_device_code().add_scopes(scopes(&self.issuer));
        let begun = request.request_async(&send).await.map_err(|error| failed("the login could not begin", error))?;
        check_interval(&begun)?;
        Ok(begun)
    }

    /// Waits until the user has confirmed the login, or has refused it, or the code has expired.
    pub async fn wait_for_device(&self, begun: &StandardDeviceAuthorizationResponse) -> Result<Tokens, Failure> {
        let client = tokens_client(&self.issuer.client_id, &self.description.token_endpoint)?;
        let send = |request| self.http.send(request);
        // The provider says how often it may be asked.
        let pause = |interval: Duration| tokio::time::sleep(interval.max(POLL_INTERVAL_MIN));
        let request = client.exchange_device_access_token(begun).set_max_backoff_interval(Duration::from_secs(30));
        let time = time_for_device(begun);
        let answer = tokio::time::timeout(time, request.request_async(&send, pause, Some(time))).await.map_err(|_| {
            let text = format!("nobody has confirmed the login within {} minutes", minutes(time));
            Failure::new(Exit::Unavailable, text).hint("`lattice login` begins again")
        })?;
        Ok(Tokens::from(&answer.map_err(|error| failed("the login was not completed", error))?))
    }
}

/// How long the user may take to confirm a login of the device flow.
pub fn time_for_device(begun: &StandardDeviceAuthorizationResponse) -> Duration {
    begun.expires_in().min(POLL_TIME_MAX)
}

/// Whole minutes, as a user reads them.
pub fn minutes(time: Duration) -> u64 {
    time.as_secs().div_ceil(60)
}

/// Refuses a pause longer than the time of polling, which could also overflow.
fn check_interval(begun: &StandardDeviceAuthorizationResponse) -> Result<(), Failure> {
    let seconds = begun.interval().as_secs();
    if begun.interval() > POLL_TIME_MAX {
        return Err(Failure::other(format!("the login could not begin: the identity provider wants to be asked every {seconds} s"))
            .hint("`lattice login --flow manual` needs a browser on any machine"));
    }
    Ok(())
}

/// Begins a login with PKCE (RFC 7636, S256).
fn authorize(issuer: &Issuer, endpoint: &str, redirect: &str) -> Result<Authorization, Failure> {
    let redirect = RedirectUrl::new(redirect.to_owned()).map_err(|error| bad_url("redirect", &error))?;
    let endpoint = AuthUrl::new(endpoint.to_owned()).map_err(|error| bad_url("authorization", &error))?;
    let client = OAuth::new(ClientId::new(issuer.client_id.clone())).set_auth_uri(endpoint).set_redirect_uri(redirect.clone());
    let (challenge, verifier) = PkceCodeChallenge::new_random_sha256();
    let request = client.authorize_url(CsrfToken::new_random).add_scopes(scopes(issuer)).set_pkce_challenge(challenge);
    let (url, state) = request.url();
    Ok(Authorization { url: url.to_string(), state: state.into_secret(), verifier, redirect })
}

fn scopes(issuer: &Issuer) -> impl Iterator<Item = Scope> {
    issuer.scopes.iter().cloned().map(Scope::new)
}

/// New tokens for a refresh token.
pub async fn refresh(http: &Http, client_id: &str, token_endpoint: &str, refresh_token: &str) -> Result<Tokens, Failure> {
    let client = tokens_client(client_id, token_endpoint)?;
    let token = RefreshToken::new(refresh_token.to_owned());
    let send = |request| http.send(request);
    let answer = client.exchange_refresh_token(&token).request_async(&send).await;
    Ok(Tokens::from(&answer.map_err(|error| failed("the login could not be renewed", error))?))
}

/// Revokes a token at the provider (RFC 7009). Revoking a refresh token ends its whole login.
pub async fn revoke(http: &Http, client_id: &str, endpoint: &str, token: Revoked<'_>) -> Result<(), Failure> {
    let endpoint = RevocationUrl::new(endpoint.to_owned()).map_err(|error| bad_url("revocation", &error))?;
    let client = OAuth::new(ClientId::new(client_id.to_owned())).set_revocation_url(endpoint);
    let token = match token {
        Revoked::Refresh(token) => StandardRevocableToken::RefreshToken(RefreshToken::new(token.to_owned())),
        Revoked::Access(token) => StandardRevocableToken::AccessToken(AccessToken::new(token.to_owned())),
    };
    let request = client.revoke_token(token).map_err(|error| Failure::other(error.to_string()))?;
    let send = |request| http.send(request);
    request.request_async(&send).await.map_err(|error| failed("the token was not revoked", error))
}

/// The token to revoke.
pub enum Revoked<'a> {
    Refresh(&'a str),
    Access(&'a str),
}

type TokensClient = OAuth<EndpointNotSet, EndpointNotSet, EndpointNotSet, EndpointSet>;

fn tokens_client(client_id: &str, endpoint: &str) -> Result<TokensClient, Failure> {
    let endpoint = TokenUrl::new(endpoint.to_owned()).map_err(|error| bad_url("token", &error))?;
    Ok(OAuth::new(ClientId::new(client_id.to_owned())).set_token_uri(endpoint))
}

/// Refuses a description of another provider, and endpoints that would send tokens in the clear.
fn check(description: &Description, issuer: &Issuer) -> Result<(), Failure> {
    let Description { issuer: named, authorization_endpoint, token_endpoint, device_authorization_endpoint, revocation_endpoint } =
        description;
    if !is_same_issuer(named, &issuer.issuer) {
        let text = format!("the identity provider at {} calls itself {}", issuer.issuer, printable(named));
        return Err(Failure::new(Exit::Refused, text).hint("`api.oidc.issuer` of the agents must be the provider's own name for itself"));
    }
    check_url("the identity provider's page for logins", authorization_endpoint)?;
    check_url("the identity provider's address for tokens", token_endpoint)?;
    for optional in [device_authorization_endpoint, revocation_endpoint].into_iter().flatten() {
        check_url("an address of the identity provider", optional)?;
    }
    Ok(())
}

/// Only `https`, except on this machine.
fn check_url(what: &str, url: &str) -> Result<(), Failure> {
    let parsed = Url::parse(url).map_err(|error| Failure::other(format!("{what} is not a URL: {error}")))?;
    let is_here = match parsed.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    };
    match parsed.scheme() {
        "https" => Ok(()),
        "http" if is_here => Ok(()),
        _ => Err(Failure::new(Exit::Refused, format!("{what} is not https: {}", printable(url)))),
    }
}

fn bad_url(which: &str, error: &oauth2::url::ParseError) -> Failure {
    Failure::other(format!("the {which} address of the identity provider is not a URL: {error}"))
}

/// The failure of a request to the provider. Its answer is never shown as a whole, because it may contain a token.
fn failed<T: ErrorResponse + 'static>(what: &str, error: RequestTokenError<HttpError, T>) -> Failure {
    match error {
        RequestTokenError::ServerResponse(refusal) => {
            Failure::new(Exit::Refused, format!("{what}: the identity provider refused: {}", printable(&refusal.to_string())))
        }
        RequestTokenError::Request(error) => {
            Failure::new(Exit::Unavailable, format!("{what}: the identity provider: {}", with_causes(&error)))
        }
        RequestTokenError::Parse(_, _) => Failure::other(format!("{what}: the identity provider's answer cannot be read")),
        RequestTokenError::Other(why) => Failure::other(format!("{what}: {}", printable(&why))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCESS: &str = "eyJhbGciOiJub25lIn0.eyJleHAiOjE3NjcyMjU2MDAsInN1YiI6IsOkPyJ9.x";

    fn tokens(access: &str, id: Option<&str>) -> Tokens {
        let id = id.map_or_else(String::new, |id| format!(r#", "id_token": {id:?}"#));
        let text = format!(r#"{{"access_token": {access:?}, "token_type": "Bearer", "expires_in": 60, "refresh_token": "r"{id}}}"#);
        Tokens::from(&serde_json::from_str::<Answer>(&text).unwrap())
    }

    fn description(token_endpoint: &str) -> Description {
        let text = format!(
            r#"{{"issuer": "https://idp/", "authorization_endpoint": "https://idp/auth", "token_endpoint": {token_endpoint:?}, "x": 1}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn issuer() -> Issuer {
        Issuer { issuer: "https://idp".into(), client_id: "lattice".into(), scopes: vec!["openid".into(), "profile".into()] }
    }

    #[test]
    fn agents_get_a_jwt_if_the_provider_gives_one() {
        assert_eq!(tokens(ACCESS, Some(ACCESS)).candidates(), [Sends::AccessToken, Sends::IdToken]);
        assert_eq!(tokens("opaque", Some(ACCESS)).candidates(), [Sends::IdToken]);
        assert_eq!(tokens("opaque", None).candidates(), [Sends::AccessToken]);
        let both = tokens("opaque", Some(ACCESS));
        assert_eq!(both.token(Sends::AccessToken, Timestamp(1000)), Some(("opaque".to_owned(), Timestamp(61_000))));
        assert_eq!(both.token(Sends::IdToken, Timestamp(0)), Some((ACCESS.to_owned(), Timestamp(1_767_225_600_000))));
        assert_eq!(tokens("opaque", None).token(Sends::IdToken, Timestamp(0)), None);
        // Issued 300 s before it ends, by whatever clock.
        let issued = "eyJhbGciOiJub25lIn0.eyJpYXQiOjE3NjcyMjUzMDAsImV4cCI6MTc2NzIyNTYwMH0.x";
        assert_eq!(tokens("opaque", Some(issued)).token(Sends::IdToken, Timestamp(5)).unwrap().1, Timestamp(300_005));
    }

    #[test]
    fn another_provider_and_addresses_in_the_clear_are_refused() {
        check(&description("https://idp/token"), &issuer()).unwrap();
        check(&description("http://127.0.0.1:8080/token"), &issuer()).unwrap();
        for token_endpoint in ["http://idp/token", "ftp://127.0.0.1/token", "token"] {
            assert!(check(&description(token_endpoint), &issuer()).is_err(), "{token_endpoint}");
        }
        let other = Issuer { issuer: "https://other".into(), ..issuer() };
        let refused = check(&description("https://idp/token"), &other).unwrap_err().text();
        assert!(refused.contains("https://other calls itself https://idp/"), "{refused}");
    }

    #[test]
    fn a_login_by_a_browser_has_pkce_and_a_state_of_its_own() {
        let begin = || authorize(&issuer(), "https://idp/auth", "http://127.0.0.1:4711/").unwrap();
        let one = begin();
        let url = Url::parse(&one.url).unwrap();
        let value = |name: &str| url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned()).unwrap_or_default();
        assert_eq!((value("response_type"), value("client_id")), ("code".to_owned(), "lattice".to_owned()));
        assert_eq!((value("scope"), value("redirect_uri")), ("openid profile".to_owned(), "http://127.0.0.1:4711/".to_owned()));
        assert_eq!((value("code_challenge_method"), value("code_challenge").len()), ("S256".to_owned(), 43));
        assert_eq!(value("state"), one.state);
        assert_ne!(one.state, begin().state);
    }

    #[test]
    fn the_device_flow_has_bounds_whatever_the_provider_says() {
        let of = |expires_in: u64, interval: u64| {
            let text = format!(
                r#"{{"device_code": "d", "user_code": "u", "verification_uri": "https://idp/device", "expires_in": {expires_in},
                    "interval": {interval}}}"#
            );
            serde_json::from_str::<StandardDeviceAuthorizationResponse>(&text).unwrap()
        };
        assert_eq!((time_for_device(&of(601, 5)), time_for_device(&of(u64::MAX, 5))), (Duration::from_secs(601), POLL_TIME_MAX));
        assert_eq!((minutes(Duration::from_secs(600)), minutes(Duration::from_secs(601))), (10, 11));
        check_interval(&of(600, 1800)).unwrap();
        assert!(check_interval(&of(600, u64::MAX)).is_err());
    }

    #[test]
    fn a_refusal_shows_the_providers_words() {
        let refusal: BasicErrorResponse =
            serde_json::from_str(r#"{"error": "invalid_grant", "error_description": "ended\u001b[0m"}"#).unwrap();
        let failure = failed::<BasicErrorResponse>("the login could not be renewed", RequestTokenError::ServerResponse(refusal));
        assert_eq!(failure.text(), "error: the login could not be renewed: the identity provider refused: invalid_grant: ended[0m\n");
    }
}
