//! SQLite: one file on a local disk.

use crate::statement::{Column, DriverError, Lane, OtherWriter, READERS_MAX, Row, Statement, Value};
use futures::TryStreamExt;
use sqlx::sqlite::{SqliteArguments, SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteRow, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions, Row as _, Sqlite, SqlitePool};
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// An unused connection is closed after this time. While it is open, it has a thread and a cache of 2 MiB.
const IDLE_MAX: Duration = Duration::from_secs(60);
/// How many steps SQLite's machine makes between two checks whether a question took too long; about a millisecond.
const STEPS_PER_CHECK: i32 = 10_000;

#[derive(Clone, Debug)]
pub(crate) struct SqliteDriver {
    path: PathBuf,
    /// Which file was opened.
    identity: FileIdentity,
    writer: SqlitePool,
    readers: SqlitePool,
}

/// Identifies a file independently of its name: device and inode.
type FileIdentity = (u64, u64);

async fn identity(path: &Path) -> Result<FileIdentity, DriverError> {
    match tokio::fs::metadata(path).await {
        Ok(metadata) => Ok((metadata.dev(), metadata.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(DriverError::Replaced),
        Err(error) => Err(sqlx::Error::Io(error).into()),
    }
}

impl SqliteDriver {
    /// Opens the file, or creates it for this agent's user alone, because it shows who ran what.
    pub(crate) async fn open(path: &Path, wait_max: Duration) -> Result<Self, DriverError> {
        // The file is closed before SQLite opens it: closing it later would end SQLite's locks on it.
        if let Err(error) = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
            && error.kind() != ErrorKind::AlreadyExists
        {
            return Err(sqlx::Error::Io(error).into());
        }
        // SQLite makes its other files with the mode of this one.
        let options = SqliteConnectOptions::new()
            .filename(path)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(wait_max)
            .disable_statement_logging();
        let pool = |connections| SqlitePoolOptions::new().max_connections(connections).idle_timeout(IDLE_MAX).acquire_timeout(wait_max);
        let identity = identity(path).await?;
        let writer = pool(1).connect_with(options.clone()).await?;
        Ok(Self { path: path.to_owned(), identity, writer, readers: pool(READERS_MAX).connect_lazy_with(options) })
    }

    /// Reads rows until they have about `bytes_max` together; also returns whether there are more. A question that takes
    /// longer than `time_max` is interrupted.
    pub(crate) async fn read(
        &self,
        lane: Lane,
        statement: Statement,
        columns: &[Column],
        bytes_max: usize,
        time_max: Duration,
    ) -> Result<(Vec<Row>, bool), DriverError> {
        let pool = match lane {
            Lane::Storing => &self.writer,
            Lane::Questions => &self.readers,
        };
        let mut connection = pool.acquire().await?;
        let until = Instant::now() + time_max;
        connection.lock_handle().await?.set_progress_handler(STEPS_PER_CHECK, move || Instant::now() < until);
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

    /// All connections that answer questions.
    #[cfg(test)]
    pub(crate) async fn take_readers(&self) -> Vec<sqlx::pool::PoolConnection<Sqlite>> {
        let mut taken = Vec::new();
        for _ in 0..READERS_MAX {
            taken.push(self.readers.acquire().await.unwrap());
        }
        taken
    }

    /// Executes all of these in one transaction, or none. Refuses if the file was removed or replaced: SQLite would
    /// still write to the old file, and the records would be lost.
    pub(crate) async fn write(&self, statements: Vec<Statement>) -> Result<(), DriverError> {
        if identity(&self.path).await? != self.identity {
            return Err(DriverError::Replaced);
        }
        let mut transaction = self.writer.begin_with("BEGIN IMMEDIATE").await?;
        transaction.lock_handle().await?.remove_progress_handler();
        for statement in statements {
            let wanted = statement.changes;
            let changed = bound(statement).execute(&mut *transaction).await?.rows_affected();
            if wanted.is_some_and(|wanted| wanted != changed) {
                return Err(OtherWriter.into());
            }
        }
        Ok(transaction.commit().await?)
    }
}

fn bound(statement: Statement) -> sqlx::query::Query<'static, Sqlite, SqliteArguments> {
    let query = sqlx::query::<Sqlite>(AssertSqlSafe(without_numbers(&statement.sql)));
    statement.values.into_iter().fold(query, |query, value| match value {
        Value::Text(text) => query.bind(text),
        Value::Number(number) => query.bind(number),
    })
}

fn values(row: &SqliteRow, columns: &[Column]) -> Result<Row, sqlx::Error> {
    let value = |(at, column): (usize, &Column)| match column {
        Column::Text => row.try_get(at).map(Value::Text),
        Column::Number => row.try_get(at).map(Value::Number),
    };
    columns.iter().enumerate().map(value).collect()
}

/// The same text with `?` for `$1`, `$2` and so on, which are in the order of the values. SQLite compares each numbered
/// placeholder with all others: 30,000 of them took ten seconds.
fn without_numbers(sql: &str) -> String {
    let mut parts = sql.split('$');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + "?" + part.trim_start_matches(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_have_no_numbers() {
        assert_eq!(without_numbers("SELECT a WHERE b = $1 AND c IN ($2, $10) LIMIT $11"), "SELECT a WHERE b = ? AND c IN (?, ?) LIMIT ?");
        assert_eq!(without_numbers("COMMIT"), "COMMIT");
    }
}
