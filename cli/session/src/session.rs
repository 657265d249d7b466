//! The context of one run of `lattice`: its settings, messages and connection.

use crate::colour;
use crate::failure::{Exit, Failure};
use crate::last;
use crate::login::renew;
use crate::message::{self, write_message_line};
use crate::operator;
use crate::output::{Format, TableSize, Width};
use crate::settings::Settings;
use crate::terminal;
use lattice_api::client::{Access, Client, ConnectError, normalize};
use lattice_cli_syntax::args::Global;
use lattice_model::millis;
use lattice_model::time::Timestamp;
use std::any::type_name;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tonic::{Response, Status};

/// Timeout of one request. A submission waits for a majority's disks, and a list may be long.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Timeout of a connection to one agent; the next agent is tried after that. Connections over the
/// network also have a timeout of their own, with a more precise error.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(6);

/// The context of every command.
pub struct Session {
    /// The settings in force.
    pub settings: Settings,
    quiet: bool,
    /// Whether a login that ends soon is renewed at its identity provider.
    may_renew: bool,
    /// The index, in the settings' list, of the endpoint that answered last.
    answered: AtomicUsize,
}

impl Session {
    /// Reads the settings; does not connect yet.
    pub fn new(global: &Global) -> Result<Self, Failure> {
        if global.verbose {
            message::set_verbose();
        }
        let settings = Settings::read(global)?;
        colour::set_up(settings.color);
        Ok(Self { settings, quiet: global.quiet, may_renew: true, answered: AtomicUsize::new(0) })
    }

    /// As [`Self::new`], for commands that must not contact an identity provider.
    pub fn without_renewal(global: &Global) -> Result<Self, Failure> {
        Ok(Self { may_renew: false, ..Self::new(global)? })
    }

    /// The output format.
    pub fn format(&self) -> Format {
        self.settings.format
    }

    /// How much of a table is shown.
    pub fn width(&self) -> Width {
        self.settings.width
    }

    /// Whether messages are not wanted.
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// The size limits of a table.
    pub fn table_size(&self) -> TableSize {
        TableSize { width: self.settings.width, columns: terminal::columns() }
    }

    /// Connects to the first endpoint in the settings whose agent answers.
    ///
    /// # Errors
    /// An endpoint is invalid, no agent answers, or the operator's credential cannot be used.
    pub async fn connect(&self) -> Result<Client, Failure> {
        let mut unanswered = None;
        for (place, endpoint) in self.settings.endpoints.iter().enumerate() {
            let access = match self.access_with_token(endpoint).await {
                Ok(access) => access,
                Err(failure) => {
                    unanswered.get_or_insert(failure);
                    continue;
                }
            };
            let since = Instant::now();
            let connected = tokio::time::timeout(CONNECT_TIMEOUT, Client::connect_with(endpoint, &access)).await;
            let failure = match connected {
                Ok(Ok(client)) => {
                    message::write_detail(format_args!("{endpoint} answers, after {}", ms_text(since)));
                    self.answered.store(place, Ordering::Relaxed);
                    return Ok(match operator::find_credential(self.settings.operator.as_deref(), endpoint)? {
                        Some(credential) => client.with_operator(credential),
                        None => client,
                    });
                }
                Ok(Err(error @ ConnectError::Endpoint { .. })) => return Err(error.into()),
                Ok(Err(error)) => error.into(),
                Err(_) => Failure::new(Exit::Unavailable, format!("the agent at {endpoint} does not accept the connection")),
            };
            message::write_detail(format_args!("{endpoint} is not used: {}", failure.what()));
            unanswered.get_or_insert(failure);
        }
        let failure = unanswered.unwrap_or_else(|| Failure::usage("no endpoint is given"));
        match self.settings.endpoints.as_slice() {
            [_, .., last] => {
                Err(failure.about(&format!("none of {} agents, up to {last}, answers; the first", self.settings.endpoints.len())))
            }
            _ => Err(failure),
        }
    }

    /// How agents on the network are reached, without a token.
    pub fn access(&self) -> Access {
        let Settings { ca, certificate, .. } = &self.settings;
        Access { ca: ca.clone(), certificate: certificate.clone(), token: None }
    }

    /// As [`Self::access`], with the token for one agent: the token in the settings, or else the
    /// token of a login at that agent.
    async fn access_with_token(&self, endpoint: &str) -> Result<Access, Failure> {
        // On a socket the kernel identifies the caller. The client refuses an invalid endpoint.
        if normalize(endpoint).is_none() {
            return Ok(Access::default());
        }
        let access = self.access();
        let token = match &self.settings.token {
            Some(token) => token.clone(),
            // A service account's certificate may identify the caller. If it does not, the agent's
            // answer says so.
            None if access.certificate.is_some() && !renew::has_login(endpoint, &self.settings.endpoints) => return Ok(access),
            None if !self.may_renew => renew::stored_token(endpoint, &self.settings.endpoints, now())?,
            None => Box::pin(renew::token(endpoint, &self.settings.endpoints, &access, now())).await?,
        };
        Ok(Access { token: Some(token), ..access })
    }

    /// Whether a new connection may use another token: the token of a login is renewed.
    pub fn renews_tokens(&self) -> bool {
        self.settings.token.is_none() && normalize(self.endpoint()).is_some()
    }

    /// The endpoint that answered last.
    fn endpoint(&self) -> &str {
        self.settings.endpoints.get(self.answered.load(Ordering::Relaxed)).map_or("", String::as_str)
    }

    /// Writes a message to stderr, unless `-q` was given.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            write_message_line(text);
        }
    }

    /// Writes a warning to stderr, also with `-q`.
    pub fn warn(&self, text: &str) {
        write_message_line(format_args!("warning: {text}"));
    }

    /// The key to send to the server: `typed`, or for `@last` the id of this terminal session's last submission to
    /// these agents.
    pub fn resolve_key(&self, typed: &str) -> Result<String, Failure> {
        last::resolve(typed, &self.settings.endpoints)
    }

    /// Remembers `id` as `@last` of this terminal session and of the agent that accepted it.
    pub fn remember(&self, id: &str) {
        if let Err(why) = last::remember(self.endpoint(), id) {
            self.note(&format!("warning: this allocation cannot be stored as @last: {why}"));
        }
    }
}

/// Sends one request and waits for its answer.
pub async fn answer<T>(call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Failure> {
    answer_within(ANSWER_TIMEOUT, call).await
}

/// As [`answer`], for a request with a timeout of its own.
pub async fn answer_within<T>(limit: Duration, call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Failure> {
    let since = Instant::now();
    let answered = tokio::time::timeout(limit, call).await;
    let outcome = if answered.as_ref().is_ok_and(Result::is_ok) { "after" } else { "failed after" };
    message::write_detail(format_args!("{} {outcome} {}", answer_name::<T>(), ms_text(since)));
    match answered {
        Ok(answered) => Ok(answered?.into_inner()),
        Err(_) => Err(Failure::new(Exit::Unavailable, format!("the agent did not answer within {} s", limit.as_secs()))
            .hint("`lattice doctor` on the agent's machine checks it")),
    }
}

/// The name of an answer's type, without its path.
fn answer_name<T>() -> &'static str {
    let name = type_name::<T>();
    let whole = name.split_once('<').map_or(name, |(name, _)| name);
    whole.rsplit("::").next().unwrap_or(whole)
}

fn ms_text(since: Instant) -> String {
    format!("{:.1} ms", since.elapsed().as_secs_f64() * 1e3)
}

/// The wall clock.
pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(millis(since))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_api::v1;

    #[test]
    fn an_answer_is_named_after_its_type() {
        assert_eq!(answer_name::<v1::ListNodesResponse>(), "ListNodesResponse");
        assert_eq!(answer_name::<tonic::Streaming<v1::WatchEvent>>(), "Streaming");
    }
}
