//! The token for a call: that of the login, or a new one when it ends.

use super::http::Http;
use super::provider;
use super::store::{Login, Logins, Store};
use crate::failure::{Exit, Failure};
use crate::message::write_message_line;
use lattice_api::client::{Access, normalize};
use lattice_model::time::Timestamp;

/// A token that ends within this time is replaced: a call takes a while, and clocks differ.
const RENEWED_BEFORE_MS: u64 = 30_000;

/// The token for the agent at `endpoint`, a new one if the present one ends soon. A login at another one of
/// `endpoints` counts too: the user has named them as agents of the same cluster.
///
/// # Errors
/// The user has not logged in, or the login has ended.
pub async fn token(endpoint: &str, endpoints: &[String], access: &Access, now: Timestamp) -> Result<String, Failure> {
    let store = Store::of_user()?;
    let Some((server, login)) = find(&store.read()?, endpoint, endpoints) else { return Err(not_logged_in(endpoint)) };
    if !ends_soon(&login, now) {
        return Ok(login.token);
    }
    match renew(&store, &server, access, now).await {
        Ok(token) => Ok(token),
        // The provider may be unavailable for a while, and the present token is still valid.
        Err(_) if login.expires_at_ms > now.0 => Ok(login.token),
        Err(failure) => Err(failure.about(&format!("the login at {server} has ended"))),
    }
}

/// As [`token`], without a call to the identity provider.
///
/// # Errors
/// The user has not logged in, or the login has ended.
pub fn stored_token(endpoint: &str, endpoints: &[String], now: Timestamp) -> Result<String, Failure> {
    let found = find(&Store::of_user()?.read()?, endpoint, endpoints);
    found
        .map(|(_, login)| login)
        .filter(|login| login.expires_at_ms > now.0)
        .map(|login| login.token)
        .ok_or_else(|| not_logged_in(endpoint))
}

/// Whether the user has logged in at this endpoint, even if the login has ended. Without a home there is no login.
pub fn has_login(endpoint: &str, endpoints: &[String]) -> bool {
    let logins = Store::of_user().and_then(|store| store.read());
    logins.is_ok_and(|logins| find(&logins, endpoint, endpoints).is_some())
}

fn ends_soon(login: &Login, now: Timestamp) -> bool {
    login.expires_at_ms <= now.0.saturating_add(RENEWED_BEFORE_MS)
}

/// The login at `endpoint`, else the first at one of `endpoints`, with the URL of its server.
fn find(logins: &Logins, endpoint: &str, endpoints: &[String]) -> Option<(String, Login)> {
    let servers = std::iter::once(endpoint).chain(endpoints.iter().map(String::as_str)).filter_map(normalize);
    servers.filter_map(|server| logins.get_key_value(&server)).map(|(server, login)| (server.clone(), login.clone())).next()
}

/// Gets new tokens, unless another command has just done it.
async fn renew(store: &Store, server: &str, access: &Access, now: Timestamp) -> Result<String, Failure> {
    let again = || format!("`lattice login --server {server}`");
    let lock = store.lock().await?;
    let mut logins = store.read()?;
    let login = logins.get(server).cloned().ok_or_else(|| not_logged_in(server))?;
    if !ends_soon(&login, now) {
        return Ok(login.token);
    }
    let Some(refresh_token) = &login.refresh_token else {
        return Err(Failure::new(Exit::Refused, "the identity provider renews no logins").hint(again()));
    };
    let http = Http::to_provider(access)?;
    let renewed = Box::pin(provider::refresh(&http, &login.client_id, &login.token_endpoint, refresh_token)).await;
    let tokens = renewed.map_err(|failure| if failure.exit() == Exit::Refused as u8 { failure.hint(again()) } else { failure })?;
    let Some((token, expires_at)) = tokens.token(login.sends, now) else {
        return Err(Failure::new(Exit::Refused, "the identity provider gives no ID token when it renews a login").hint(again()));
    };
    // A provider that does not replace the refresh token still accepts the present one.
    let refresh_token = tokens.refresh.or(login.refresh_token);
    logins.insert(server.to_owned(), Login { token: token.clone(), expires_at_ms: expires_at.0, refresh_token, ..login });
    // The new token is valid nevertheless. The stored refresh token may be valid too: not every provider replaces it.
    if let Err(failure) = store.write(&lock, logins) {
        write_message_line(format_args!("warning: the renewed login is not stored, so it may have to be repeated: {}", failure.what()));
    }
    Ok(token)
}

fn not_logged_in(server: &str) -> Failure {
    Failure::new(Exit::Refused, format!("not logged in at {server}"))
        .hint(format!("`lattice login --server {server}` first; a program gets a token in LATTICE_TOKEN"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::login::provider::Sends;

    fn login(token: &str, expires_at_ms: u64) -> Login {
        Login {
            issuer: "https://idp".into(),
            client_id: "lattice".into(),
            token_endpoint: "https://idp/token".into(),
            revocation_endpoint: None,
            sends: Sends::AccessToken,
            token: token.into(),
            expires_at_ms,
            refresh_token: None,
        }
    }

    #[test]
    fn a_login_counts_at_its_server_and_at_those_that_are_named_with_it() {
        let logins = Logins::from([("https://a:50051".to_owned(), login("at-a", 9)), ("https://b:1".to_owned(), login("at-b", 9))]);
        let of = |endpoint: &str, endpoints: &[&str]| {
            let endpoints: Vec<String> = endpoints.iter().map(|endpoint| (*endpoint).to_owned()).collect();
            find(&logins, endpoint, &endpoints).map(|(server, login)| format!("{server} {}", login.token))
        };
        assert_eq!(of("https://a", &["https://a"]).as_deref(), Some("https://a:50051 at-a"));
        assert_eq!(of("https://b:1/", &["https://a", "https://b:1/"]).as_deref(), Some("https://b:1 at-b"));
        assert_eq!(of("https://c", &["unix:/run/a.sock", "https://c", "b:1"]).as_deref(), Some("https://b:1 at-b"));
        assert_eq!(of("https://a:1", &["https://a:1"]), None, "another port is another server");
    }

    #[test]
    fn a_token_is_replaced_before_it_ends() {
        let at = |now| ends_soon(&login("x", 100_000), Timestamp(now));
        assert_eq!([at(0), at(69_999), at(70_000), at(100_001)], [false, false, true, true]);
    }

    #[test]
    fn who_is_not_logged_in_reads_how_to() {
        assert_eq!(
            not_logged_in("https://head:50051").text(),
            "error: not logged in at https://head:50051\n\
             hint: `lattice login --server https://head:50051` first; a program gets a token in LATTICE_TOKEN\n"
        );
    }
}
