//! The statement that answers a question, in the dialect of a database. The dialects differ in the search for names and
//! tags.
//!
//! The work that somebody may see has parts: the account's own work, and the work of each tenant. One index has each
//! part, newest or oldest first. The database merges the parts, and reads no more rows than the page needs.

use crate::record::{COLUMN_TYPES, COLUMNS, SUM_TYPES};
use crate::statement::{Column, Statement, Value};
use lattice_model::Timestamp;
use lattice_model::history::{HistoryCursor, HistoryKind, HistoryQuery, PAGE_LEN_MAX, Visible};

/// Up to how many tenants have a part each. The work of more tenants is one part, which is read in the order of the ends.
/// SQLite merges at most 500 parts.
const TENANT_PARTS_MAX: usize = 32;
/// The columns that sums need.
const SUMMED_COLUMNS: &str = "account, tenant, project, node_ms, gpu_ms, core_ms";
/// PostgreSQL sums big integers to another type.
const SUMS: &str = "account, tenant, project, COUNT(*), CAST(SUM(node_ms) AS BIGINT), CAST(SUM(gpu_ms) AS BIGINT), \
    CAST(SUM(core_ms) AS BIGINT)";

/// The database for which SQL is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    Sqlite,
    Postgres,
}

/// The query for one page. It asks for one row more than the page may have.
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
        let (mut statement, of_part, columns, tail) = match query.kind {
            HistoryKind::NewestFirst => (Statement::default(), COLUMNS, COLUMN_TYPES, " ORDER BY ended_at DESC, sequence DESC LIMIT "),
            HistoryKind::OldestFirst => (Statement::default(), COLUMNS, COLUMN_TYPES, " ORDER BY ended_at, sequence LIMIT "),
            HistoryKind::Sums => (
                Statement::new(format!("SELECT {SUMS} FROM (")),
                SUMMED_COLUMNS,
                SUM_TYPES,
                ") AS ended GROUP BY account, tenant, project ORDER BY account, tenant, project LIMIT ",
            ),
        };
        for (at, part) in parts(query).iter().enumerate() {
            statement.push(if at > 0 { " UNION ALL SELECT " } else { "SELECT " }).push(of_part).push(" FROM ended_work WHERE ");
            part.condition(&mut statement, query);
            filter(&mut statement, query, dialect);
            after(&mut statement, query);
        }
        statement.push(tail).bind(Value::number(u64::from(limit) + 1));
        Self { statement, columns, limit: limit as usize }
    }
}

/// An account: its name and user id.
type Account = (String, u32);

/// A part of the ended work that somebody may see. No record is in two parts of one question.
#[derive(Debug)]
enum Part<'a> {
    All,
    Nothing,
    Own(&'a Account),
    /// The work of tenants that ended after these times, without the work of an account that is a part of its own.
    OfTenants {
        tenants: Vec<(&'a String, Timestamp)>,
        without: Option<&'a Account>,
    },
}

/// The visible parts in which the question can find anything; at least one.
fn parts(query: &HistoryQuery) -> Vec<Part<'_>> {
    let Visible::Only { own, tenants } = &query.visible else { return vec![Part::All] };
    let own = own.as_ref().filter(|(name, _)| query.user.is_empty() || query.user == *name);
    let asked = tenants.iter().filter(|(tenant, _)| query.tenant.is_empty() || query.tenant == **tenant);
    let tenants: Vec<_> = asked.map(|(tenant, since)| (tenant, *since)).collect();
    let per_part = if tenants.len() > TENANT_PARTS_MAX { tenants.len() } else { 1 };
    let by_tenant = tenants.chunks(per_part).map(|some| Part::OfTenants { tenants: some.to_vec(), without: own });
    let parts: Vec<_> = own.map(Part::Own).into_iter().chain(by_tenant).collect();
    if parts.is_empty() { vec![Part::Nothing] } else { parts }
}

impl Part<'_> {
    fn condition(&self, statement: &mut Statement, query: &HistoryQuery) {
        let (mut from, mut until) = (query.from.0, query.until.0);
        // The search in an index begins at the last record of the previous page, not at the beginning of the period.
        match (&query.after, query.kind) {
            (Some(HistoryCursor::Work { ended_at, .. }), HistoryKind::NewestFirst) => until = until.min(ended_at.0.saturating_add(1)),
            (Some(HistoryCursor::Work { ended_at, .. }), HistoryKind::OldestFirst) => from = from.max(ended_at.0),
            (Some(_) | None, _) => {}
        }
        if let Self::OfTenants { tenants, .. } = self
            && let [(_, since)] = tenants.as_slice()
        {
            from = from.max(since.0.saturating_add(1));
        }
        statement.push("ended_at >= ").bind(Value::number(from)).push(" AND ended_at < ").bind(Value::number(until));
        match self {
            Self::All => {}
            Self::Nothing => {
                statement.push(" AND 1 = 0");
            }
            Self::Own(account) => of_account(statement.push(" AND "), account),
            Self::OfTenants { tenants, without } => {
                of_tenants(statement.push(" AND "), tenants);
                if let Some(account) = without {
                    of_account(statement.push(" AND NOT "), account);
                }
            }
        }
    }
}

fn of_account(statement: &mut Statement, (name, uid): &Account) {
    statement.push("(account = ").bind(Value::text(name)).push(" AND uid = ").bind(Value::number((*uid).into())).push(")");
}

fn of_tenants(statement: &mut Statement, tenants: &[(&String, Timestamp)]) {
    if let [(tenant, _)] = tenants {
        statement.push("tenant = ").bind(Value::text(*tenant));
        return;
    }
    // An expression, so that the database uses the index of ends. With the index of tenants it would sort all their work.
    statement.push("(tenant || '') IN (").bind_all(tenants.iter().map(|(tenant, _)| Value::text(*tenant)));
    statement.push(") AND ended_at > CASE tenant");
    for (tenant, since) in tenants {
        statement.push(" WHEN ").bind(Value::text(*tenant)).push(" THEN ").bind(Value::number(since.0));
    }
    statement.push(" END");
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
    if !query.jobs.is_empty() {
        statement.push(" AND job IN (").bind_all(query.jobs.iter().map(|job| Value::number(*job))).push(")");
    }
    if let Some(whole) = query.part_of {
        statement.push(" AND part_of = ").bind(Value::text(whole.to_string()));
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

/// Continues after the query's position. A position of another kind of answer is ignored: the caller checks its form.
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

/// Converts a name with `*` for any text to a pattern of SQLite's `GLOB`, in which `?` and `[` mean themselves.
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
    use lattice_model::AllocationState;
    use std::collections::BTreeMap;

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
            jobs: Vec::new(),
            part_of: None,
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
        let sums = Question::of(&HistoryQuery { kind: HistoryKind::Sums, ..query() }, Dialect::Postgres).statement.sql;
        let inner = "FROM (SELECT account, tenant, project, node_ms, gpu_ms, core_ms FROM ended_work WHERE ended_at >= $1 AND";
        let outer = ") AS ended GROUP BY account, tenant, project ORDER BY account, tenant, project LIMIT $3";
        assert!(sums.contains(inner) && sums.ends_with(outer), "{sums}");
    }

    #[test]
    fn the_parts_of_visible_work_have_no_record_in_common() {
        let tenants = [("physics".to_owned(), Timestamp(5)), ("x' OR '1'='1".to_owned(), Timestamp(0))].into();
        let both = Visible::Only { own: Some(("eve".to_owned(), 7)), tenants };
        let of = |asked: HistoryQuery| {
            let question = Question::of(&HistoryQuery { visible: both.clone(), project: "higgs".to_owned(), ..asked }, Dialect::Sqlite);
            question.statement.sql.replace(&format!("SELECT {COLUMNS} FROM ended_work WHERE "), "SELECT ")
        };
        assert_eq!(
            of(query()),
            "SELECT ended_at >= $1 AND ended_at < $2 AND (account = $3 AND uid = $4) AND project = $5 \
             UNION ALL SELECT ended_at >= $6 AND ended_at < $7 AND tenant = $8 AND NOT (account = $9 AND uid = $10) AND project = $11 \
             UNION ALL SELECT ended_at >= $12 AND ended_at < $13 AND tenant = $14 AND NOT (account = $15 AND uid = $16) \
             AND project = $17 ORDER BY ended_at DESC, sequence DESC LIMIT $18"
        );
        let since = Question::of(&HistoryQuery { visible: both.clone(), ..query() }, Dialect::Sqlite).statement.values;
        assert_eq!((&since[4], &since[9]), (&Value::number(6), &Value::number(1)), "after the tenant was created");
        // Parts in which a question finds nothing are left out.
        let of_ada = of(HistoryQuery { user: "ada".to_owned(), tenant: "physics".to_owned(), ..query() });
        assert_eq!(
            of_ada,
            "SELECT ended_at >= $1 AND ended_at < $2 AND tenant = $3 AND account = $4 AND tenant = $5 AND project = $6 \
             ORDER BY ended_at DESC, sequence DESC LIMIT $7"
        );
        let nothing = of(HistoryQuery { user: "ada".to_owned(), tenant: "biology".to_owned(), ..query() });
        assert!(nothing.starts_with("SELECT ended_at >= $1 AND ended_at < $2 AND 1 = 0 AND "), "{nothing}");
    }

    #[test]
    fn the_work_of_many_tenants_is_one_part_however_many_they_are() {
        let tenants: BTreeMap<_, _> = (0..10_000).map(|n| (format!("t{n}"), Timestamp(n))).collect();
        let asked = HistoryQuery { visible: Visible::Only { own: Some(("eve".to_owned(), 7)), tenants }, ..query() };
        let Statement { sql, values, .. } = Question::of(&asked, Dialect::Sqlite).statement;
        assert_eq!((sql.matches("UNION ALL").count(), values.len()), (1, 4 + 2 + 3 * 10_000 + 2 + 1), "SQLite takes 32,766 values");
        assert!(sql.contains("(tenant || '') IN ($7, $8, ") && sql.contains("AND ended_at > CASE tenant WHEN $10007 THEN $10008 WHEN "));
    }

    #[test]
    fn names_and_tags_are_searched_in_the_dialect_of_the_database() {
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
    fn job_numbers_become_a_condition() {
        let asked = HistoryQuery { jobs: vec![12, 14], user: "ada".to_owned(), ..query() };
        assert!(sql(&asked, Dialect::Postgres).contains(" AND account = $3 AND job IN ($4, $5) ORDER BY"));
    }

    #[test]
    fn a_page_begins_after_the_last_row_of_the_previous_page() {
        let work = Some(HistoryCursor::Work { ended_at: Timestamp(9), sequence: 3 });
        let of = |kind, after: &Option<HistoryCursor>| sql(&HistoryQuery { kind, after: after.clone(), ..query() }, Dialect::Sqlite);
        assert!(of(HistoryKind::NewestFirst, &work).contains("AND (ended_at, sequence) < ($3, $4) ORDER BY"));
        // The search in the index begins there, so that each page of a long answer costs the same.
        let values = |kind| Question::of(&HistoryQuery { kind, after: work.clone(), ..query() }, Dialect::Sqlite).statement.values;
        let bounds = [values(HistoryKind::NewestFirst)[..2].to_vec(), values(HistoryKind::OldestFirst)[..2].to_vec()];
        let last = Value::number(i64::MAX as u64);
        assert_eq!(bounds, [vec![Value::number(0), Value::number(10)], vec![Value::number(9), last]]);
        assert!(of(HistoryKind::OldestFirst, &work).contains("AND (ended_at, sequence) > ($3, $4) ORDER BY"));
        let sum = Some(HistoryCursor::Sum { of: ["ada", "", ""].map(str::to_owned) });
        assert!(of(HistoryKind::Sums, &sum).contains("AND (account, tenant, project) > ($3, $4, $5)) AS ended GROUP BY"));
        assert!(!of(HistoryKind::Sums, &work).contains("AND ("), "a position of another answer");
    }
}
