//! Statements in the SQL that both databases have in common, with their values; each driver only sends them.

/// A value of a statement or a row; `None`: NULL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Text(Option<String>),
    Number(Option<i64>),
}

impl Value {
    /// Text without character 0, which PostgreSQL refuses.
    pub(crate) fn text(text: impl Into<String>) -> Self {
        let text: String = text.into();
        Self::Text(Some(text.replace('\0', "\u{fffd}")))
    }

    /// A number; one that the databases cannot hold becomes the largest that they can.
    pub(crate) fn number(number: u64) -> Self {
        Self::Number(Some(i64::try_from(number).unwrap_or(i64::MAX)))
    }

    /// About how many bytes the value takes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.as_ref().map_or(0, String::len),
            Self::Number(_) => size_of::<i64>(),
        }
    }
}

/// The type of a column of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    Text,
    Number,
}

/// One row of an answer.
pub(crate) type Row = Vec<Value>;

/// A statement with its values, which the text names `$1`, `$2` and so on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Statement {
    pub(crate) sql: String,
    pub(crate) values: Vec<Value>,
    /// How many rows it must change; another number fails the whole transaction.
    pub(crate) changes: Option<u64>,
}

impl Statement {
    pub(crate) fn new(sql: impl Into<String>) -> Self {
        Self { sql: sql.into(), ..Self::default() }
    }

    /// Appends SQL text. Text that a user chose is bound as a value instead.
    pub(crate) fn push(&mut self, sql: &str) -> &mut Self {
        self.sql += sql;
        self
    }

    /// Appends a placeholder for a value.
    pub(crate) fn bind(&mut self, value: Value) -> &mut Self {
        self.values.push(value);
        self.sql += &format!("${}", self.values.len());
        self
    }

    /// As [`Self::bind`], for several values with commas between them.
    pub(crate) fn bind_all(&mut self, values: impl IntoIterator<Item = Value>) -> &mut Self {
        for (at, value) in values.into_iter().enumerate() {
            if at > 0 {
                self.push(", ");
            }
            self.bind(value);
        }
        self
    }
}

/// How many connections run queries, each one query at a time.
pub(crate) const READERS_MAX: u32 = 3;

/// The purpose of a statement. Each lane has connections of its own: many slow queries never delay the storing of ended
/// work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Storing,
    Questions,
}

/// A statement that must change one row did not: another writer was faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the database was changed by another agent at the same time")]
pub(crate) struct OtherWriter;

/// Why a driver failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DriverError {
    #[error(transparent)]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    OtherWriter(#[from] OtherWriter),
    /// The database is not the one that was opened.
    #[error("the database was replaced or removed")]
    Replaced,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_numbered_in_their_order() {
        let mut statement = Statement::new("SELECT a FROM b WHERE c = ");
        statement.bind(Value::text("x")).push(" AND d IN (").bind_all([1, u64::MAX].map(Value::number)).push(")");
        assert_eq!(statement.sql, "SELECT a FROM b WHERE c = $1 AND d IN ($2, $3)");
        assert_eq!(statement.values, [Value::text("x"), Value::Number(Some(1)), Value::Number(Some(i64::MAX))]);
        assert_eq!(Value::text("a\0b"), Value::Text(Some("a\u{fffd}b".to_owned())));
    }
}
