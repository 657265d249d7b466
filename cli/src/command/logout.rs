//! `lattice logout`.

use super::login::find_server;
use lattice_api::client::Access;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::login::http::Http;
use lattice_cli_session::login::provider::{self, Revoked};
use lattice_cli_session::login::store::{Login, Store};
use lattice_cli_session::session::Session;
use lattice_cli_syntax::args::login::Logout;

pub async fn run(session: &Session, args: Logout) -> Result<(), Failure> {
    let server = find_server(session, args.server)?;
    let store = Store::of_user()?;
    let lock = store.lock().await?;
    let mut logins = store.read()?;
    let Some(login) = logins.remove(&server) else {
        return Err(Failure::new(Exit::NotFound, format!("not logged in at {server}")));
    };
    // First here: a provider that does not answer must not keep the login alive on this machine.
    store.write(&lock, logins)?;
    drop(lock);
    session.note(&format!("logged out from {server}"));
    if let Err(failure) = Box::pin(end_at_provider(&session.access(), &login)).await {
        session.warn(&format!("the login may live on at {} until it expires there: {}", login.issuer, failure.what()));
    }
    Ok(())
}

/// Ends the login at the provider, so that nobody can renew it.
async fn end_at_provider(access: &Access, login: &Login) -> Result<(), Failure> {
    let Some(endpoint) = &login.revocation_endpoint else {
        return Err(Failure::other("the identity provider cannot end logins"));
    };
    let token = match &login.refresh_token {
        Some(token) => Revoked::Refresh(token),
        None => Revoked::Access(&login.token),
    };
    provider::revoke(&Http::to_provider(access)?, &login.client_id, endpoint, token).await
}
