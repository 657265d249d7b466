//! One run of the command: its settings, its way to talk, its connection.

use crate::args::Global;
use crate::failure::{Exit, Failure};
use crate::last;
use crate::output::{Format, TableSize, Width};
use crate::settings::Settings;
use crate::terminal;
use lattice_api::client::Client;
use lattice_model::time::Timestamp;
use std::future::Future;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tonic::{Response, Status};

/// How long one question may take. A submission waits for a majority's disks, a listing may be long.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// What every command is given.
pub struct Session {
    /// The settings in force.
    pub settings: Settings,
    quiet: bool,
}

impl Session {
    /// Reads the settings; connects to nobody yet.
    pub fn new(global: &Global) -> Result<Self, Failure> {
        Ok(Self { settings: Settings::read(global)?, quiet: global.quiet })
    }

    /// How to show things.
    pub fn format(&self) -> Format {
        self.settings.format
    }

    /// How much of a table to show.
    pub fn width(&self) -> Width {
        self.settings.width
    }

    /// How large a table may be.
    pub fn table_size(&self) -> TableSize {
        TableSize { width: self.settings.width, columns: terminal::columns() }
    }

    /// A connection to the agent.
    pub async fn connect(&self) -> Result<Client, Failure> {
        Ok(Client::connect(&self.settings.endpoint).await?)
    }

    /// Says something on stderr, unless `-q` was given.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            eprint!("lattice: {text}{}", terminal::line_end());
        }
    }

    /// What the server is to look up: a key as typed, or the last submission's id for `@last`.
    pub fn key(&self, typed: &str) -> Result<String, Failure> {
        if typed == "@last" { last::recall() } else { Ok(typed.to_owned()) }
    }

    /// Remembers `id` as `@last`.
    pub fn remember(&self, id: &str) {
        if let Err(why) = last::remember(id) {
            self.note(&format!("warning: @last will not know this allocation: {why}"));
        }
    }
}

/// One question and its answer.
pub async fn answer<T>(call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Failure> {
    match tokio::time::timeout(ANSWER_TIMEOUT, call).await {
        Ok(answered) => Ok(answered?.into_inner()),
        Err(_) => Err(Failure::new(Exit::Unavailable, format!("the agent did not answer within {} s", ANSWER_TIMEOUT.as_secs()))
            .hint("`lattice doctor` looks at this machine's agent")),
    }
}

/// The wall clock.
pub fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
