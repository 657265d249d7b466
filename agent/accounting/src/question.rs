//! The statement that answers a question, in the dialect of a database. They differ in the search for names and tags.

use crate::record::{COLUMN_TYPES, COLUMNS, SUM_TYPES};
use crate::statement::{Column, Statement, Value};
use lattice_model::history::{HistoryCursor, HistoryKind, HistoryQuery, PAGE_LEN_MAX, Visible};

/// Whose SQL it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Sqlite,
    Postgres,
}

/// What is asked of the database for one page: one row more than the page may have, if there are that many.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) statement: Statement,
    pub(crate) columns: &'static [Column],
    /// The rows of the page.
    pub(crate) limit: usize,
}

impl Question {
    pub(crate) fn of(query: &HistoryQuery, dialect: Dialect) -> Self {
        let limit = query.limit.clamp(1, PAGE_LEN_MAX);
        let (head, columns, tail) = match query.kind {
            HistoryKind::NewestFirst => (COLUMNS, COLUMN_TYPES, " ORDER BY ended_at DESC, sequence DESC LIMIT "),
            HistoryKind::OldestFirst => (COLUMNS, COLUMN_TYPES, " ORDER BY ended_at, sequence LIMIT "),
            HistoryKind::Sums => (
                // PostgreSQL sums big integers to another type.
                "account, tenant, project, COUNT(*), CAST(SUM(node_ms) AS BIGINT), CAST(SUM(gpu_ms) AS BIGINT), \
                 CAST(SUM(core_ms) AS BIGINT)",
                SUM_TYPES,
                " GROUP BY account, tenant, project ORDER BY account, tenant, project LIMIT ",
            ),
        };
        let mut statement = Statement::new(format!("SELECT {head} FROM ended_work WHERE ended_at >= "));
        statement.bind(Value::number(query.from.0)).push(" AND ended_at < ").bind(Value::number(query.until.0));
        visible(&mut statement, &query.visible);
        filter(&mut statement, query, dialect);
        after(&mut statement, query);
        statement.push(tail).bind(Value::number(u64::from(limit) + 1));
        Self { statement, columns, limit: limit as usize }
    }
}

fn visible(statement: &mut Statement, visible: &Visible) {
    let Visible::Only { own, tenants } = visible else { return };
    statement.push(" AND (");
    let mut between = "";
    if let Some((name, uid)) = own {
        statement.push("(account = ").bind(Value::text(name)).push(" AND uid = ").bind(Value::number((*uid).into())).push(")");
        between = " OR ";
    }
    for (tenant, since) in tenants {
        statement.push(between).push("(tenant = ").bind(Value::text(tenant));
        statement.push(" AND ended_at > ").bind(Value::number(since.0)).push(")");
        between = " OR ";
    }
    statement.push(if between.is_empty() { "1 = 0)" } else { ")" });
}

fn filter(statement: &mut Statement, query: &HistoryQuery, dialect: Dialect) {
    let equal = [("account", &query.user), ("tenant", &query.tenant), ("project", &query.project), ("vcluster", &query.vcluster)];
    for (column, value) in equal {
        if !value.is_empty() {
            statement.push(" AND ").push(column).push(" = ").bind(Value::text(value));
        }
    }
    if !query.name.is_empty() {
        match dialect {
            Dialect::Sqlite => statement.push(" AND name GLOB ").bind(Value::text(glob(&query.name))),
            Dialect::Postgres => statement.push(" AND name LIKE ").bind(Value::text(like(&query.name))),
        };
    }
    if !query.states.is_empty() {
        statement.push(" AND state IN (").bind_all(query.states.iter().map(|state| Value::text(state.to_string()))).push(")");
    }
    for (key, value) in &query.tags {
        match dialect {
            Dialect::Sqlite => statement
                .push(" AND EXISTS (SELECT 1 FROM json_each(ended_work.tags) AS tag WHERE tag.key = ")
                .bind(Value::text(key))
                .push(" AND tag.value = ")
                .bind(Value::text(value))
                .push(")"),
            Dialect::Postgres => statement.push(" AND ((tags::jsonb) ->> ").bind(Value::text(key)).push(") = ").bind(Value::text(value)),
        };
    }
}

/// A position of another kind of answer is none: the caller checks its form, and this page begins at the beginning.
fn after(statement: &mut Statement, query: &HistoryQuery) {
    match (&query.after, query.kind) {
        (Some(HistoryCursor::Work { ended_at, sequence }), HistoryKind::NewestFirst | HistoryKind::OldestFirst) => {
            let beyond = if query.kind == HistoryKind::NewestFirst { "<" } else { ">" };
            statement.push(" AND (ended_at, sequence) ").push(beyond).push(" (");
            statement.bind_all([Value::number(ended_at.0), Value::number(*sequence)]).push(")");
        }
        (Some(HistoryCursor::Sum { of }), HistoryKind::Sums) => {
            statement.push(" AND (account, tenant, project) > (").bind_all(of.iter().map(Value::text)).push(")");
        }
        (Some(_) | None, _) => {}
    }
}

/// A name with `*` for any text, as SQLite's `GLOB` has it: `?` and `[` mean themselves.
fn glob(name: &str) -> String {
    let character = |c: char| match c {
        '?' | '[' => format!("[{c}]"),
        other => other.to_string(),
    };
    name.chars().map(character).collect()
}

/// As [`glob`], for `LIKE`, whose escape character is `\`.
fn like(name: &str) -> String {
    let character = |c: char| match c {
        '*' => "%".to_owned(),
        '%' | '_' | '\\' => format!("\\{c}"),
        other => other.to_string(),
    };
    name.chars().map(character).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use lattice_model::{AllocationState, Timestamp};

    /// The newest of all ended work.
    pub(crate) fn query() -> HistoryQuery {
        HistoryQuery {
            visible: Visible::All,
            kind: HistoryKind::NewestFirst,
            user: String::new(),
            tenant: String::new(),
            project: String::new(),
            vcluster: String::new(),
            name: String::new(),
            states: Vec::new(),
            tags: [].into(),
            from: Timestamp(0),
            until: Timestamp(i64::MAX as u64),
            limit: 1000,
            after: None,
        }
    }

    fn sql(query: &HistoryQuery, dialect: Dialect) -> String {
        let sql = Question::of(query, dialect).statement.sql;
        sql.split_once(" WHERE ").expect("a condition").1.to_owned()
    }

    #[test]
    fn a_question_of_an_operator_is_answered_by_the_index_of_ends() {
        let all = HistoryQuery { limit: 5000, ..query() };
        let question = Question::of(&all, Dialect::Sqlite);
        assert_eq!(question.statement.values.last(), Some(&Value::Number(Some(1001))), "a page and one row more");
        assert_eq!(sql(&all, Dialect::Sqlite), "ended_at >= $1 AND ended_at < $2 ORDER BY ended_at DESC, sequence DESC LIMIT $3");
        let sums = sql(&HistoryQuery { kind: HistoryKind::Sums, ..query() }, Dialect::Postgres);
        assert!(sums.ends_with("GROUP BY account, tenant, project ORDER BY account, tenant, project LIMIT $3"), "{sums}");
    }

    #[test]
    fn what_somebody_may_see_is_a_condition_of_its_own() {
        let tenants = [("physics".to_owned(), Timestamp(5)), ("x' OR '1'='1".to_owned(), Timestamp(0))].into();
        let of = |visible| sql(&HistoryQuery { visible, user: "ada".to_owned(), ..query() }, Dialect::Sqlite);
        assert_eq!(
            of(Visible::Only { own: Some(("eve".to_owned(), 7)), tenants }),
            "ended_at >= $1 AND ended_at < $2 AND ((account = $3 AND uid = $4) OR (tenant = $5 AND ended_at > $6) \
             OR (tenant = $7 AND ended_at > $8)) AND account = $9 ORDER BY ended_at DESC, sequence DESC LIMIT $10"
        );
        assert!(of(Visible::Only { own: None, tenants: [].into() }).contains(" AND (1 = 0) AND "), "nothing at all");
    }

    #[test]
    fn names_and_tags_are_searched_in_the_words_of_the_database() {
        let states = vec![AllocationState::Failed, AllocationState::Cancelled];
        let asked = HistoryQuery { name: "a*_%?[".to_owned(), tags: [("k".to_owned(), "v".to_owned())].into(), states, ..query() };
        assert_eq!(
            sql(&asked, Dialect::Sqlite),
            "ended_at >= $1 AND ended_at < $2 AND name GLOB $3 AND state IN ($4, $5) AND EXISTS (SELECT 1 FROM \
             json_each(ended_work.tags) AS tag WHERE tag.key = $6 AND tag.value = $7) ORDER BY ended_at DESC, sequence DESC LIMIT $8"
        );
        let postgres = sql(&asked, Dialect::Postgres);
        assert!(postgres.contains("name LIKE $3 AND state IN ($4, $5) AND ((tags::jsonb) ->> $6) = $7"), "{postgres}");
        assert_eq!((glob(&asked.name), like(&asked.name)), ("a*_%[?][[]".to_owned(), "a%\\_\\%?[".to_owned()));
    }

    #[test]
    fn a_page_begins_after_the_position_of_the_one_before() {
        let work = Some(HistoryCursor::Work { ended_at: Timestamp(9), sequence: 3 });
        let of = |kind, after: &Option<HistoryCursor>| sql(&HistoryQuery { kind, after: after.clone(), ..query() }, Dialect::Sqlite);
        assert!(of(HistoryKind::NewestFirst, &work).contains("AND (ended_at, sequence) < ($3, $4) ORDER BY"));
        assert!(of(HistoryKind::OldestFirst, &work).contains("AND (ended_at, sequence) > ($3, $4) ORDER BY"));
        let sum = Some(HistoryCursor::Sum { of: ["ada", "", ""].map(str::to_owned) });
        assert!(of(HistoryKind::Sums, &sum).contains("AND (account, tenant, project) > ($3, $4, $5) GROUP BY"));
        assert!(!of(HistoryKind::Sums, &work).contains("AND ("), "a position of another answer");
    }
}
