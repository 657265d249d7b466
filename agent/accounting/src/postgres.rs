//! PostgreSQL: a database on a server, which several agents with the role may name.

use crate::statement::{Column, DriverError, OtherWriter, Row, Statement, Value};
use futures::TryStreamExt;
use sqlx::postgres::{PgArguments, PgConnectOptions, PgPoolOptions, PgRow};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgPool, Postgres, Row as _};
use std::fmt;
use std::time::Duration;

/// One writes and the others read.
const CONNECTIONS_MAX: u32 = 4;
/// An unused connection is closed after this time.
const IDLE_MAX: Duration = Duration::from_secs(60);

#[derive(Clone)]
pub(crate) struct PostgresDriver {
    pool: PgPool,
    options: PgConnectOptions,
    wait_max: Duration,
}

/// Without the options: they have the password.
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
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS_MAX)
            .idle_timeout(IDLE_MAX)
            .acquire_timeout(wait_max)
            .after_connect(|connection, _| {
                Box::pin(async move {
                    // As the limits of this crate say; the server ends what takes longer.
                    sqlx::query("SET statement_timeout = 5000").execute(connection).await?;
                    Ok(())
                })
            })
            .connect_lazy_with(options.clone());
        Ok(Self { pool, options, wait_max })
    }

    /// See [`crate::sqlite::SqliteDriver::read`]. The server ends a statement that takes longer than 5 s.
    pub(crate) async fn read(&self, statement: Statement, columns: &[Column], bytes_max: usize) -> Result<(Vec<Row>, bool), DriverError> {
        let mut connection = match self.pool.acquire().await {
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
        let mut transaction = match self.pool.begin().await {
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

    /// Why there was no connection in time: the pool tries again until then, and does not say.
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
