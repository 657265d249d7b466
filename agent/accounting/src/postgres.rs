//! PostgreSQL: a database on a server, which several agents with the role may name.

use crate::statement::{Column, DriverError, Lane, OtherWriter, READERS_MAX, Row, Statement, Value};
use futures::TryStreamExt;
use sqlx::postgres::{PgArguments, PgConnectOptions, PgPoolOptions, PgRow};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgPool, Postgres, Row as _};
use std::fmt;
use std::time::Duration;

/// An unused connection is closed after this time.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// The settings of each connection. The server ends a statement that takes longer, and a transaction whose agent is gone:
/// otherwise a machine that lost its power could keep others from storing for hours.
const SESSION: [&str; 2] = ["SET statement_timeout = '5s'", "SET idle_in_transaction_session_timeout = '30s'"];

#[derive(Clone)]
pub(crate) struct PostgresDriver {
    writer: PgPool,
    readers: PgPool,
    options: PgConnectOptions,
    wait_max: Duration,
}

/// Leaves out the options, which have the password.
impl fmt::Debug for PostgresDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PostgresDriver")
    }
}

impl PostgresDriver {
    /// Prepares connections to the server and opens none.
    pub(crate) fn new(url: &str, password: Option<&str>, wait_max: Duration) -> Result<Self, DriverError> {
        let options: PgConnectOptions = url.parse()?;
        let mut options = options.application_name("lattice-accounting").disable_statement_logging();
        if let Some(password) = password {
            options = options.password(password);
        }
        let pool = |connections| {
            let pool = PgPoolOptions::new().max_connections(connections).idle_timeout(IDLE_MAX).acquire_timeout(wait_max);
            let pool = pool.after_connect(|connection, _| {
                Box::pin(async move {
                    for setting in SESSION {
                        sqlx::query(setting).execute(&mut *connection).await?;
                    }
                    Ok(())
                })
            });
            pool.connect_lazy_with(options.clone())
        };
        Ok(Self { writer: pool(1), readers: pool(READERS_MAX), options, wait_max })
    }

    /// The server's address, without a user or a password.
    pub(crate) fn address(&self) -> String {
        match self.options.get_socket() {
            Some(socket) => format!("PostgreSQL at {}", socket.display()),
            None => format!("PostgreSQL at {}:{}", self.options.get_host(), self.options.get_port()),
        }
    }

    /// See [`crate::sqlite::SqliteDriver::read`]. The server ends a statement that takes longer than 5 s.
    pub(crate) async fn read(
        &self,
        lane: Lane,
        statement: Statement,
        columns: &[Column],
        bytes_max: usize,
    ) -> Result<(Vec<Row>, bool), DriverError> {
        let pool = match lane {
            Lane::Storing => &self.writer,
            Lane::Questions => &self.readers,
        };
        let mut connection = match pool.acquire().await {
            Ok(connection) => connection,
            Err(error) => return Err(self.cause(error).await.into()),
        };
        let (mut rows, mut bytes) = (Vec::new(), 0);
        let mut found = bound(statement).fetch(&mut *connection);
        while let Some(row) = found.try_next().await? {
            if bytes > bytes_max {
                return Ok((rows, true));
            }
            let row = values(&row, columns)?;
            bytes += row.iter().map(Value::bytes).sum::<usize>();
            rows.push(row);
        }
        Ok((rows, false))
    }

    /// Executes all of these in one transaction, or none.
    pub(crate) async fn write(&self, statements: Vec<Statement>) -> Result<(), DriverError> {
        let mut transaction = match self.writer.begin().await {
            Ok(transaction) => transaction,
            Err(error) => return Err(self.cause(error).await.into()),
        };
        for statement in statements {
            let wanted = statement.changes;
            let changed = bound(statement).execute(&mut *transaction).await?.rows_affected();
            if wanted.is_some_and(|wanted| wanted != changed) {
                return Err(OtherWriter.into());
            }
        }
        Ok(transaction.commit().await?)
    }

    /// Why there was no connection in time. The pool retries until its timeout, and does not report the cause.
    async fn cause(&self, error: sqlx::Error) -> sqlx::Error {
        let sqlx::Error::PoolTimedOut = error else { return error };
        match tokio::time::timeout(self.wait_max, self.options.connect()).await {
            Ok(Err(cause)) => cause,
            Ok(Ok(connection)) => {
                let _ = connection.close().await;
                error
            }
            Err(_) => error,
        }
    }
}

fn bound(statement: Statement) -> sqlx::query::Query<'static, Postgres, PgArguments> {
    let query = sqlx::query::<Postgres>(AssertSqlSafe(statement.sql));
    statement.values.into_iter().fold(query, |query, value| match value {
        Value::Text(text) => query.bind(text),
        Value::Number(number) => query.bind(number),
    })
}

fn values(row: &PgRow, columns: &[Column]) -> Result<Row, sqlx::Error> {
    let value = |(at, column): (usize, &Column)| match column {
        Column::Text => row.try_get(at).map(Value::Text),
        Column::Number => row.try_get(at).map(Value::Number),
    };
    columns.iter().enumerate().map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_is_named_without_its_user_and_password() {
        let address = |url: &str| PostgresDriver::new(url, Some("geheim"), Duration::from_secs(1)).unwrap().address();
        assert_eq!(address("postgres://lattice@db.example.org/lattice"), "PostgreSQL at db.example.org:5432");
        assert_eq!(address("postgres://u@10.0.0.7:5433/d"), "PostgreSQL at 10.0.0.7:5433");
    }
}
