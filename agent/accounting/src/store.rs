//! The accounting store: a database, and the queries of it.

mod sinks;

use crate::postgres::PostgresDriver;
use crate::question::{Dialect, Question};
use crate::record::{self, DamagedRow};
use crate::schema::{STEPS, STORE_TABLE, version};
use crate::sqlite::SqliteDriver;
use crate::statement::{Column, DriverError, Lane, Row, Statement, Value};
use lattice_agent_common::config::accounting::StoreAddress;
use lattice_model::ended_work::EndedWork;
use lattice_model::history::{HistoryCursor, HistoryKind, HistoryPage, HistoryQuery};
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;
use tokio::time::timeout;
use uuid::Uuid;

/// How long a query may take, including the wait for a connection; then the database interrupts it.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the agent waits for a query: longer than [`READ_TIMEOUT`], so that the database interrupts it first.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(12);
/// How long the agent waits until a batch is written.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long to wait for a connection or a lock.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(5);
/// A page ends after about this many bytes, so that an answer fits into one message.
const PAGE_BYTES_MAX: usize = 2 << 20;

/// Why a store cannot be used now.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The database refused or did not answer.
    #[error("{store}: {why}")]
    Database { store: String, why: String },
    /// It did not answer in time.
    #[error("{store}: no answer within {} s", after.as_secs())]
    Timeout { store: String, after: Duration },
    /// A later version wrote it.
    #[error("{store}: its tables are of version {found}, and this agent knows {}: upgrade the agent", version())]
    Newer { store: String, found: i64 },
    /// The row about the store is missing or not of this form.
    #[error("{store}: the table accounting_store is damaged: restore the database from a backup")]
    Damaged { store: String },
    /// A record cannot be read.
    #[error("{store}: {source}")]
    Row {
        store: String,
        #[source]
        source: DamagedRow,
    },
    /// The position in the database is not the one that the batch expects.
    #[error("{store}: another agent wrote to it at the same time")]
    OtherWriter { store: String },
    /// It was removed or replaced since it was opened.
    #[error("{store}: the database that this agent opened was replaced or removed")]
    Replaced { store: String },
    /// The password cannot be read.
    #[error("accounting.password_file {}: {why}", path.display())]
    Password { path: PathBuf, why: String },
}

#[derive(Clone, Debug)]
enum Driver {
    Sqlite(SqliteDriver),
    Postgres(Box<PostgresDriver>),
}

/// An open store. Cheap to clone; clones share the connections.
#[derive(Clone, Debug)]
pub struct Store {
    driver: Driver,
    /// Its name in messages, without user and password.
    name: String,
    id: Uuid,
}

impl Store {
    /// Opens the database, and creates or upgrades its tables. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`StoreError`]: it cannot be opened now.
    pub async fn open(address: &StoreAddress, password_file: &Path) -> Result<Self, StoreError> {
        let (name, driver) = match address {
            StoreAddress::Sqlite(path) => {
                (path.display().to_string(), SqliteDriver::open(path, CONNECTION_TIMEOUT).await.map(Driver::Sqlite))
            }
            StoreAddress::Postgres(url) => {
                let password = password(password_file)?;
                let driver = PostgresDriver::new(url, password.as_deref(), CONNECTION_TIMEOUT);
                let name = driver.as_ref().map_or_else(|_| "PostgreSQL".to_owned(), PostgresDriver::address);
                (name, driver.map(|driver| Driver::Postgres(Box::new(driver))))
            }
        };
        let driver = driver.map_err(|error| failed(&name, error))?;
        let mut store = Self { driver, name, id: Uuid::nil() };
        store.id = store.migrate().await?;
        Ok(store)
    }

    /// The store's own id, which it got when its tables were created.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// `sqlite` or `postgresql`.
    pub fn kind(&self) -> &'static str {
        match self.driver {
            Driver::Sqlite(_) => "sqlite",
            Driver::Postgres(_) => "postgresql",
        }
    }

    /// Creates or upgrades the tables, each step in one transaction; returns the store's id.
    async fn migrate(&self) -> Result<Uuid, StoreError> {
        let mut first = Statement::new("INSERT INTO accounting_store (row_number, store, version, stored_until) VALUES (1, ");
        first.bind(Value::text(Uuid::new_v4().to_string())).push(", 0, 0) ON CONFLICT DO NOTHING");
        self.write(vec![Statement::new(STORE_TABLE), first]).await?;
        loop {
            let (id, found, _) = self.about().await?;
            if found > version() {
                return Err(StoreError::Newer { store: self.name.clone(), found });
            }
            let Some(step) = usize::try_from(found).ok().and_then(|found| STEPS.get(found)) else { return Ok(id) };
            let mut upgrade = Statement::new("UPDATE accounting_store SET version = ");
            upgrade.bind(Value::Number(Some(found + 1))).push(" WHERE version = ").bind(Value::Number(Some(found)));
            upgrade.changes = Some(1);
            let mut statements = vec![upgrade];
            statements.extend(step.iter().map(|sql| Statement::new(*sql)));
            match self.write(statements).await {
                // `OtherWriter`: another agent took this step at the same time.
                Ok(()) | Err(StoreError::OtherWriter { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The store's id, the version of its tables, and its position.
    async fn about(&self) -> Result<(Uuid, i64, u64), StoreError> {
        let statement = Statement::new("SELECT store, version, stored_until FROM accounting_store WHERE row_number = 1");
        let (rows, _) = self.read(Lane::Storing, statement, &[Column::Text, Column::Number, Column::Number]).await?;
        let damaged = || StoreError::Damaged { store: self.name.clone() };
        match rows.first().map(Vec::as_slice) {
            Some([Value::Text(Some(id)), Value::Number(Some(version)), Value::Number(Some(until))]) => {
                let id = id.parse().map_err(|_| damaged())?;
                Ok((id, *version, u64::try_from(*until).map_err(|_| damaged())?))
            }
            _ => Err(damaged()),
        }
    }

    /// The sequence number up to which the store has all records that the ledger gave it.
    ///
    /// # Errors
    /// [`StoreError`]: it cannot be read now.
    pub async fn position(&self) -> Result<u64, StoreError> {
        let (id, _, until) = self.about().await?;
        if id == self.id { Ok(until) } else { Err(StoreError::Replaced { store: self.name.clone() }) }
    }

    /// Adds ended work and moves the position from `from` to `until`, all or nothing.
    ///
    /// # Errors
    /// [`StoreError`]: if no answer came, only [`Self::position`] shows whether it was written.
    pub async fn append(&self, from: u64, work: &[EndedWork], until: u64) -> Result<(), StoreError> {
        let mut position = Statement::new("UPDATE accounting_store SET stored_until = ");
        position.bind(Value::number(until)).push(" WHERE row_number = 1 AND store = ").bind(Value::text(self.id.to_string()));
        position.push(" AND stored_until = ").bind(Value::number(from));
        position.changes = Some(1);
        let mut statements = vec![position];
        statements.extend(record::statements(work));
        self.write(statements).await
    }

    /// Answers a question with one page.
    ///
    /// # Errors
    /// [`StoreError`]: it cannot be answered now.
    pub async fn query(&self, query: &HistoryQuery) -> Result<HistoryPage, StoreError> {
        let dialect = match self.driver {
            Driver::Sqlite(_) => Dialect::Sqlite,
            Driver::Postgres(_) => Dialect::Postgres,
        };
        let Question { statement, columns, limit } = Question::of(query, dialect);
        let (mut rows, cut) = self.read(Lane::Questions, statement, columns).await?;
        let has_more = cut || rows.len() > limit;
        rows.truncate(limit);
        let damaged = |source| StoreError::Row { store: self.name.clone(), source };
        let mut page = HistoryPage::default();
        match query.kind {
            HistoryKind::NewestFirst | HistoryKind::OldestFirst => {
                page.work = rows.into_iter().map(record::work).collect::<Result<_, _>>().map_err(damaged)?;
                page.next = page.work.last().map(|last| HistoryCursor::Work { ended_at: last.ended_at, sequence: last.sequence });
            }
            HistoryKind::Sums => {
                page.sums = rows.into_iter().map(record::sum).collect::<Result<_, _>>().map_err(damaged)?;
                page.next =
                    page.sums.last().map(|last| HistoryCursor::Sum { of: [last.user.clone(), last.tenant.clone(), last.project.clone()] });
            }
        }
        page.next = page.next.filter(|_| has_more);
        Ok(page)
    }

    async fn read(&self, lane: Lane, statement: Statement, columns: &[Column]) -> Result<(Vec<Row>, bool), StoreError> {
        let reading = async {
            match &self.driver {
                Driver::Sqlite(driver) => driver.read(lane, statement, columns, PAGE_BYTES_MAX, READ_TIMEOUT).await,
                Driver::Postgres(driver) => driver.read(lane, statement, columns, PAGE_BYTES_MAX).await,
            }
        };
        self.in_time(ANSWER_TIMEOUT, Box::pin(reading)).await
    }

    async fn write(&self, statements: Vec<Statement>) -> Result<(), StoreError> {
        let writing = async {
            match &self.driver {
                Driver::Sqlite(driver) => driver.write(statements).await,
                Driver::Postgres(driver) => driver.write(statements).await,
            }
        };
        self.in_time(WRITE_TIMEOUT, Box::pin(writing)).await
    }

    async fn in_time<T>(&self, after: Duration, work: impl Future<Output = Result<T, DriverError>>) -> Result<T, StoreError> {
        match timeout(after, work).await {
            Ok(answer) => answer.map_err(|error| failed(&self.name, error)),
            Err(_) => Err(StoreError::Timeout { store: self.name.clone(), after }),
        }
    }
}

fn failed(store: &str, error: DriverError) -> StoreError {
    let store = store.to_owned();
    match error {
        DriverError::Database(error) => StoreError::Database { store, why: error.to_string() },
        DriverError::OtherWriter(_) => StoreError::OtherWriter { store },
        DriverError::Replaced => StoreError::Replaced { store },
    }
}

/// The password in a file of mode 0600; `None`: no file is configured.
fn password(path: &Path) -> Result<Option<String>, StoreError> {
    use std::os::unix::fs::PermissionsExt;
    if path.as_os_str().is_empty() {
        return Ok(None);
    }
    let failed = |why: String| StoreError::Password { path: path.to_owned(), why };
    let mode = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(failed(format!("others can read it (mode {:o}); chmod 600", mode & 0o777)));
    }
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::question::tests::query;
    use crate::record::tests::ended;
    use lattice_model::history::Visible;
    use lattice_model::{AllocationState, Timestamp, Used};

    /// A directory that is removed in the end.
    pub(crate) struct Directory(pub(crate) PathBuf);

    impl Directory {
        pub(crate) fn new() -> Self {
            let path = std::env::temp_dir().join(format!("lattice-accounting-{}", Uuid::new_v4()));
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }

        pub(crate) async fn open(&self) -> Result<Store, StoreError> {
            Store::open(&StoreAddress::Sqlite(self.0.join("accounting.db")), Path::new("")).await
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn numbers(page: &HistoryPage) -> Vec<u64> {
        page.work.iter().map(|work| work.sequence).collect()
    }

    /// Five ended allocations: the odd ones belong to ada, the even ones to eve in another tenant.
    async fn five(directory: &Directory) -> Store {
        let store = directory.open().await.unwrap();
        let work = |n: u64| match n % 2 {
            0 => EndedWork { user: "eve".into(), uid: 7, tenant: "biology".into(), state: AllocationState::Completed, ..ended(n) },
            _ => ended(n),
        };
        store.append(0, &(1..=5).map(work).collect::<Vec<_>>(), 5).await.unwrap();
        store
    }

    #[tokio::test]
    async fn a_store_keeps_its_id_and_position_and_accepts_each_batch_once() {
        use std::os::unix::fs::PermissionsExt;
        let directory = Directory::new();
        let store = directory.open().await.unwrap();
        assert_eq!((store.kind(), store.position().await.unwrap()), ("sqlite", 0));
        store.append(0, &[ended(1), ended(2)], 2).await.unwrap();
        let again = directory.open().await.unwrap();
        assert_eq!((again.id(), again.position().await.unwrap()), (store.id(), 2));
        let twice = again.append(0, &[ended(1), ended(2)], 2).await;
        assert!(matches!(twice, Err(StoreError::OtherWriter { .. })), "{twice:?}");
        // The position is right, but one record exists already: the whole batch is refused.
        assert!(again.append(2, &[ended(3), ended(2)], 3).await.is_err());
        assert_eq!((again.position().await.unwrap(), numbers(&again.query(&query()).await.unwrap())), (2, vec![2, 1]));
        let mode = std::fs::metadata(directory.0.join("accounting.db")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[tokio::test]
    async fn records_come_back_as_they_were_and_page_after_page() {
        let directory = Directory::new();
        let store = five(&directory).await;
        let all = store.query(&query()).await.unwrap();
        assert_eq!((numbers(&all), &all.next), (vec![5, 4, 3, 2, 1], &None));
        assert_eq!(all.work[0], ended(5));
        for (kind, order) in [(HistoryKind::NewestFirst, vec![5, 4, 3, 2, 1]), (HistoryKind::OldestFirst, vec![1, 2, 3, 4, 5])] {
            let (mut got, mut after) = (Vec::new(), None);
            loop {
                let page = store.query(&HistoryQuery { kind, limit: 2, after, ..query() }).await.unwrap();
                got.extend(numbers(&page));
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(got, order);
        }
    }

    #[tokio::test]
    async fn each_filter_finds_what_it_says() {
        let directory = Directory::new();
        let store = five(&directory).await;
        let found = async |query: HistoryQuery| numbers(&store.query(&query).await.unwrap());
        assert_eq!(found(HistoryQuery { user: "eve".into(), ..query() }).await, [4, 2]);
        assert_eq!(found(HistoryQuery { tenant: "physics".into(), ..query() }).await, [5, 3, 1]);
        assert_eq!(found(HistoryQuery { project: "none".into(), ..query() }).await, [] as [u64; 0]);
        assert_eq!(found(HistoryQuery { name: "night-*".into(), vcluster: "batch".into(), ..query() }).await.len(), 5);
        assert_eq!(found(HistoryQuery { name: "*-3".into(), ..query() }).await, [3]);
        assert_eq!(found(HistoryQuery { name: "NIGHT*".into(), ..query() }).await, [] as [u64; 0]);
        assert_eq!(found(HistoryQuery { states: vec![AllocationState::Completed], ..query() }).await, [4, 2]);
        assert_eq!(found(HistoryQuery { tags: [("run".into(), "4".into())].into(), ..query() }).await, [4]);
        assert_eq!(found(HistoryQuery { jobs: vec![102, 105, 9], ..query() }).await, [5, 2]);
        let (from, until) = (ended(2).ended_at, ended(4).ended_at);
        assert_eq!(found(HistoryQuery { from, until, ..query() }).await, [3, 2]);
        let own = Visible::Only { own: Some(("eve".into(), 7)), tenants: [].into() };
        assert_eq!(found(HistoryQuery { visible: own, ..query() }).await, [4, 2]);
        let another = Visible::Only { own: Some(("eve".into(), 8)), tenants: [].into() };
        assert_eq!(found(HistoryQuery { visible: another, ..query() }).await, [] as [u64; 0], "another account of that name");
        let since = |n| Visible::Only { own: None, tenants: [("physics".into(), ended(n).ended_at)].into() };
        assert_eq!(found(HistoryQuery { visible: since(1), ..query() }).await, [5, 3], "not the work of a deleted tenant of the same name");
    }

    #[tokio::test]
    async fn sums_are_those_of_the_records() {
        let directory = Directory::new();
        let store = five(&directory).await;
        let of = |limit, after| HistoryQuery { kind: HistoryKind::Sums, limit, after, ..query() };
        let first = store.query(&of(1, None)).await.unwrap();
        let shown = |page: &HistoryPage| {
            page.sums.iter().map(|sum| (sum.user.clone(), sum.tenant.clone(), sum.count, sum.used, sum.core_ms)).collect::<Vec<_>>()
        };
        let used = |n: u64| Used { node_ms: 2000 * n, gpu_ms: 8000 * n };
        assert_eq!(shown(&first), [("ada".into(), "physics".into(), 3, used(3), 192_000)]);
        let second = store.query(&of(1, first.next)).await.unwrap();
        assert_eq!(shown(&second), [("eve".into(), "biology".into(), 2, used(2), 128_000)]);
        assert_eq!(second.next, None);
    }

    #[tokio::test]
    async fn a_file_that_is_no_database_and_one_of_a_later_version_are_refused_by_name() {
        let directory = Directory::new();
        let path = directory.0.join("accounting.db");
        std::fs::write(&path, "not a database, and longer than the head of one would have to be\n".repeat(30)).unwrap();
        let refused = directory.open().await.unwrap_err().to_string();
        assert!(refused.starts_with(&path.display().to_string()), "{refused}");
        std::fs::remove_file(&path).unwrap();
        let store = directory.open().await.unwrap();
        store.write(vec![Statement::new("UPDATE accounting_store SET version = 99")]).await.unwrap();
        assert!(matches!(directory.open().await, Err(StoreError::Newer { found: 99, .. })));
        let missing = Store::open(&StoreAddress::Sqlite(directory.0.join("no/such/file")), Path::new("")).await;
        assert!(matches!(missing, Err(StoreError::Database { .. })), "{missing:?}");
    }

    #[tokio::test]
    async fn a_store_from_before_job_numbers_gets_their_column() {
        let directory = Directory::new();
        let store = five(&directory).await;
        let former = [
            "DROP TABLE accounting_sink",
            "DROP INDEX ended_work_by_change",
            "DROP INDEX ended_work_by_whole",
            "ALTER TABLE ended_work DROP COLUMN changed",
            "DROP INDEX ended_work_by_job",
            "ALTER TABLE ended_work DROP COLUMN job",
            "UPDATE accounting_store SET version = 1",
        ];
        store.write(former.map(Statement::new).into()).await.unwrap();
        let upgraded = directory.open().await.unwrap();
        assert_eq!(upgraded.query(&query()).await.unwrap().work[0], EndedWork { job: 0, ..ended(5) });
        upgraded.append(5, &[ended(6)], 6).await.unwrap();
        assert_eq!(numbers(&upgraded.query(&HistoryQuery { jobs: vec![106], ..query() }).await.unwrap()), [6]);
    }

    #[tokio::test]
    async fn a_file_that_was_removed_is_not_written_to() {
        let directory = Directory::new();
        let store = five(&directory).await;
        let away = directory.0.with_extension("away");
        std::fs::rename(&directory.0, &away).unwrap();
        let removed = store.append(5, &[ended(6)], 6).await;
        assert!(matches!(removed, Err(StoreError::Replaced { .. })), "{removed:?}");
        std::fs::rename(&away, &directory.0).unwrap();
        store.append(5, &[ended(6)], 6).await.unwrap();
        store.write(vec![Statement::new("UPDATE accounting_store SET store = '00000000-0000-0000-0000-000000000001'")]).await.unwrap();
        assert!(matches!(store.append(6, &[ended(7)], 7).await, Err(StoreError::OtherWriter { .. })));
        assert!(matches!(store.position().await, Err(StoreError::Replaced { .. })), "another store in its place");
    }

    #[tokio::test]
    async fn slow_queries_do_not_delay_writes() {
        let directory = Directory::new();
        let store = five(&directory).await;
        let Driver::Sqlite(driver) = &store.driver else { panic!("{store:?}") };
        let _taken = driver.take_readers().await;
        store.append(5, &[ended(6)], 6).await.unwrap();
        assert_eq!(store.position().await.unwrap(), 6);
    }

    #[tokio::test]
    async fn large_records_end_a_page_before_its_limit() {
        let directory = Directory::new();
        let store = directory.open().await.unwrap();
        let large = |n| EndedWork { nodes: "n".repeat(600 << 10), ..ended(n) };
        store.append(0, &(1..=8).map(large).collect::<Vec<_>>(), 8).await.unwrap();
        let page = store.query(&query()).await.unwrap();
        assert!(page.work.len() < 8 && page.next.is_some(), "{}", page.work.len());
        let rest = store.query(&HistoryQuery { after: page.next.clone(), ..query() }).await.unwrap();
        assert_eq!(numbers(&page).into_iter().chain(numbers(&rest)).collect::<Vec<_>>(), [8, 7, 6, 5, 4, 3, 2, 1]);
    }

    #[test]
    fn a_password_that_others_can_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let directory = Directory::new();
        let path = directory.0.join("password");
        std::fs::write(&path, "geheim\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(password(&path).unwrap_err().to_string().ends_with("others can read it (mode 640); chmod 600"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!((password(&path).unwrap().as_deref(), password(Path::new("")).unwrap()), (Some("geheim"), None));
    }

    #[tokio::test]
    async fn the_usual_questions_are_answered_by_an_index_in_its_order() {
        let directory = Directory::new();
        let store = five(&directory).await;
        let own = Visible::Only { own: Some(("ada".into(), 1000)), tenants: [].into() };
        let tenants = |count| (0..count).map(|n| (format!("t{n}"), Timestamp(0))).collect();
        let of_tenant = Visible::Only { own: None, tenants: tenants(1) };
        let both = Visible::Only { own: Some(("ada".into(), 1000)), tenants: tenants(3) };
        let many = Visible::Only { own: None, tenants: tenants(10_000) };
        let after = Some(HistoryCursor::Work { ended_at: ended(2).ended_at, sequence: 2 });
        for (asked, indexes) in [
            (query(), "ended_work_by_end".to_owned()),
            (HistoryQuery { kind: HistoryKind::OldestFirst, ..query() }, "ended_work_by_end".to_owned()),
            (HistoryQuery { user: "ada".into(), ..query() }, "ended_work_by_account".to_owned()),
            (HistoryQuery { visible: own, ..query() }, "ended_work_by_account".to_owned()),
            (HistoryQuery { visible: of_tenant, ..query() }, "ended_work_by_tenant".to_owned()),
            (HistoryQuery { visible: both.clone(), ..query() }, format!("ended_work_by_account{}", " ended_work_by_tenant".repeat(3))),
            (HistoryQuery { visible: both, after, ..query() }, format!("ended_work_by_account{}", " ended_work_by_tenant".repeat(3))),
            (HistoryQuery { visible: many, ..query() }, "ended_work_by_end".to_owned()),
        ] {
            let mut statement = Question::of(&asked, Dialect::Sqlite).statement;
            statement.sql.insert_str(0, "EXPLAIN QUERY PLAN ");
            let columns = [Column::Number, Column::Number, Column::Number, Column::Text];
            let (plan, _) = store.read(Lane::Questions, statement, &columns).await.unwrap();
            let plan = format!("{plan:?}");
            let used = plan.split("USING INDEX ").skip(1).filter_map(|rest| rest.split(' ').next()).collect::<Vec<_>>().join(" ");
            assert_eq!(used, indexes, "{plan}");
            assert!(!plan.contains("TEMP B-TREE"), "it sorts: {plan}");
        }
    }
}
