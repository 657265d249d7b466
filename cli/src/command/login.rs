//! `lattice login`.

use lattice_api::client::{Access, Client, normalize};
use lattice_api::v1;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::login::http::Http;
use lattice_cli_session::login::provider::{Provider, Sends, Tokens};
use lattice_cli_session::login::store::{Login, Store};
use lattice_cli_session::login::{browser, device, discovery, manual};
use lattice_cli_session::output::{Format, print_names};
use lattice_cli_session::session::{Session, answer, now};
use lattice_cli_syntax::args::login::{Flow, Login as Args};
use lattice_model::time::Timestamp;

pub async fn run(session: &Session, args: Args) -> Result<(), Failure> {
    let server = find_server(session, args.server)?;
    let access = session.access();
    // The client's errors say what is wrong with a name or a certificate.
    Client::connect_with(&server, &access).await?;
    let issuer = discovery::discover(&server, &access).await?;
    let provider = Provider::discover(Http::to_provider(&access)?, issuer).await?;
    let tokens = match args.flow.unwrap_or_else(|| usual_flow(browser::has_display(), provider.has_device_flow())) {
        Flow::Browser => Box::pin(browser::log_in(&provider)).await?,
        Flow::Device => Box::pin(device::log_in(&provider)).await?,
        Flow::Manual => Box::pin(manual::log_in(&provider)).await?,
    };
    let (login, account) = accepted(&server, &access, &provider, tokens).await?;
    let store = Store::of_user()?;
    let lock = store.lock().await?;
    let mut logins = store.read()?;
    let until = Timestamp(login.expires_at_ms);
    let is_renewed = login.refresh_token.is_some();
    logins.insert(server.clone(), login);
    store.write(&lock, logins)?;
    session.note(&format!("logged in at {server} as {account}{}", life(until, is_renewed)));
    if !session.settings.endpoints.iter().any(|endpoint| normalize(endpoint).as_ref() == Some(&server)) {
        session.note(&format!("to use it: `--endpoint {server}`, or `endpoint: {server}` in ~/.config/lattice/config.yaml"));
    }
    if session.settings.token.is_some() {
        session.warn("commands use another token than this login's: LATTICE_TOKEN, or `token` in config.yaml, is set");
    }
    match session.format() {
        Format::Table => Ok(()),
        Format::Data(notation) => notation.print(&serde_json::json!({
            "server": server, "account": account, "expires_at": until.to_string(), "renewed": is_renewed,
        })),
        Format::Name => print_names([account.as_str()]),
    }
}

/// The whole URL of the server that was named, else of the first agent on the network in the settings.
pub(super) fn find_server(session: &Session, named: Option<String>) -> Result<String, Failure> {
    match named {
        // A name alone is enough here.
        Some(named) => normalize(&named)
            .or_else(|| normalize(&format!("https://{named}")))
            .ok_or_else(|| Failure::usage(format!("--server {named}: not an agent on the network")).hint("write https://host:port")),
        None => session.settings.endpoints.iter().find_map(|endpoint| normalize(endpoint)).ok_or_else(|| {
            Failure::usage("no server is named: on a machine of the cluster no login is needed")
                .hint("name an agent on the network: `--server https://host:port`")
        }),
    }
}

fn usual_flow(has_display: bool, has_device_flow: bool) -> Flow {
    match (has_display, has_device_flow) {
        (true, _) => Flow::Browser,
        (false, true) => Flow::Device,
        (false, false) => Flow::Manual,
    }
}

fn life(until: Timestamp, is_renewed: bool) -> String {
    if is_renewed { "; the login is renewed by itself".to_owned() } else { format!(" until {until}") }
}

/// The login with the first token that the agent accepts, and the account as which it knows the user. Only the agent
/// knows which of a provider's tokens it accepts.
async fn accepted(server: &str, access: &Access, provider: &Provider, tokens: Tokens) -> Result<(Login, String), Failure> {
    let mut refused = None;
    for sends in tokens.candidates() {
        let Some((token, expires_at)) = tokens.token(sends, now()) else { continue };
        match who_am_i(server, access, &token).await {
            Ok(account) => return Ok((stored_login(provider, sends, token, expires_at, tokens.refresh), account)),
            Err(failure) if failure.is_refused_token() => {
                refused.get_or_insert(failure);
            }
            Err(failure) => return Err(failure),
        }
    }
    let failure = refused.unwrap_or_else(|| Failure::new(Exit::Refused, "the identity provider gave no token"));
    Err(failure.about(&format!("you have logged in at {}, but the agent refuses its token", provider.issuer.issuer)))
}

fn stored_login(provider: &Provider, sends: Sends, token: String, expires_at: Timestamp, refresh_token: Option<String>) -> Login {
    Login {
        issuer: provider.issuer.issuer.clone(),
        client_id: provider.issuer.client_id.clone(),
        token_endpoint: provider.token_endpoint().to_owned(),
        revocation_endpoint: provider.revocation_endpoint().map(str::to_owned),
        sends,
        token,
        expires_at_ms: expires_at.0,
        refresh_token,
    }
}

async fn who_am_i(server: &str, access: &Access, token: &str) -> Result<String, Failure> {
    let client = Client::connect_with(server, &Access { token: Some(token.to_owned()), ..access.clone() }).await?;
    Ok(answer(client.admin().who_am_i(v1::WhoAmIRequest {})).await?.account)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_is_used_where_its_user_sees_it() {
        assert_eq!(usual_flow(true, true), Flow::Browser);
        assert_eq!((usual_flow(false, true), usual_flow(false, false)), (Flow::Device, Flow::Manual));
    }

    #[test]
    fn a_login_that_is_not_renewed_says_when_it_ends() {
        assert_eq!(life(Timestamp(0), true), "; the login is renewed by itself");
        assert_eq!(life(Timestamp(0), false), " until 1970-01-01T00:00:00.000Z");
    }
}
