//! Ended work as a row.

use crate::statement::{Column, Row, Statement, Value};
use lattice_model::ended_work::EndedWork;
use lattice_model::history::UseSum;
use lattice_model::{AllocationState, Timestamp, Used};
use std::collections::BTreeMap;
use thiserror::Error;

/// The columns, in the order of the rows here.
pub(crate) const COLUMNS: &str = "sequence, allocation, name, tenant, project, vcluster, account, uid, tags, state, reason, exit_code, \
    nodes, node_count, submitted_at, claimed_at, started_at, ended_at, requeue_count, preempted_count, node_ms, gpu_ms, core_ms, part_of, job";
/// The types of the columns.
pub(crate) const COLUMN_TYPES: &[Column] = {
    use Column::{Number as N, Text as T};
    &[N, T, T, T, T, T, T, N, T, T, T, N, T, N, N, N, N, N, N, N, N, N, N, T, N]
};
/// The types of the columns of sums: user, tenant, project, then numbers.
pub(crate) const SUM_TYPES: &[Column] = {
    use Column::{Number as N, Text as T};
    &[T, T, T, N, N, N, N]
};
/// How many records one statement inserts: 2,600 values, and SQLite has at most 32,766 in a statement.
const RECORDS_PER_INSERT: usize = 100;

/// A row that no version of this program wrote.
#[derive(Debug, Error)]
#[error("the row of record {sequence} is damaged: its column {column} cannot be read")]
pub struct DamagedRow {
    sequence: i64,
    column: &'static str,
}

/// The statements that store ended work: they insert records, then correct records.
pub(crate) fn statements(work: &[EndedWork]) -> Vec<Statement> {
    let insert = |part: &[&EndedWork]| {
        let mut statement = Statement::new(format!("INSERT INTO ended_work ({COLUMNS}, changed) VALUES "));
        for (at, work) in part.iter().enumerate() {
            let values = row(work).into_iter().chain([Value::number(work.sequence)]);
            statement.push(if at > 0 { ", (" } else { "(" }).bind_all(values).push(")");
        }
        statement.changes = Some(part.len() as u64);
        statement
    };
    let (corrections, ends): (Vec<&EndedWork>, Vec<&EndedWork>) = work.iter().partition(|work| work.corrects.is_some());
    ends.chunks(RECORDS_PER_INSERT).map(insert).chain(corrections.into_iter().filter_map(correction)).collect()
}

/// Corrects a record. A store that began later and lacks the record changes nothing.
fn correction(work: &EndedWork) -> Option<Statement> {
    let mut update = Statement::new("UPDATE ended_work SET project = ");
    update.bind(Value::text(&work.project)).push(", tags = ").bind(tags(work));
    update.push(", changed = ").bind(Value::number(work.sequence));
    update.push(" WHERE sequence = ").bind(Value::number(work.corrects?));
    update.push(" AND allocation = ").bind(Value::text(work.allocation.to_string()));
    Some(update)
}

/// The tags in JSON, without character 0: PostgreSQL refuses its escape sequence as well.
fn tags(work: &EndedWork) -> Value {
    let tags: BTreeMap<String, String> =
        work.tags.iter().map(|(key, value)| (key.replace('\0', "\u{fffd}"), value.replace('\0', "\u{fffd}"))).collect();
    Value::text(serde_json::json!(tags).to_string())
}

fn row(work: &EndedWork) -> Row {
    let time = |time: Option<Timestamp>| time.map_or(Value::Number(None), |time| Value::number(time.0));
    vec![
        Value::number(work.sequence),
        Value::text(work.allocation.to_string()),
        Value::text(&work.name),
        Value::text(&work.tenant),
        Value::text(&work.project),
        Value::text(&work.vcluster),
        Value::text(&work.user),
        Value::number(work.uid.into()),
        tags(work),
        Value::text(work.state.to_string()),
        Value::text(&work.reason),
        Value::Number(work.exit_code.map(i64::from)),
        Value::text(&work.nodes),
        Value::number(work.node_count.into()),
        Value::number(work.submitted_at.0),
        time(work.claimed_at),
        time(work.started_at),
        Value::number(work.ended_at.0),
        Value::number(work.requeue_count.into()),
        Value::number(work.preempted_count.into()),
        Value::number(work.used.node_ms),
        Value::number(work.used.gpu_ms),
        Value::number(work.core_ms),
        Value::Text(work.part_of.map(|id| id.to_string())),
        Value::number(work.job),
    ]
}

/// Takes a row apart, column by column.
struct Reader {
    row: std::vec::IntoIter<Value>,
    sequence: i64,
}

impl Reader {
    fn damaged(&self, column: &'static str) -> DamagedRow {
        DamagedRow { sequence: self.sequence, column }
    }

    fn number(&mut self, column: &'static str) -> Result<u64, DamagedRow> {
        self.number_if(column)?.ok_or_else(|| self.damaged(column))
    }

    fn number_if(&mut self, column: &'static str) -> Result<Option<u64>, DamagedRow> {
        match self.row.next() {
            Some(Value::Number(number)) => number.map(|number| u64::try_from(number).map_err(|_| self.damaged(column))).transpose(),
            _ => Err(self.damaged(column)),
        }
    }

    fn small(&mut self, column: &'static str) -> Result<u32, DamagedRow> {
        u32::try_from(self.number(column)?).map_err(|_| self.damaged(column))
    }

    fn signed_if(&mut self, column: &'static str) -> Result<Option<i32>, DamagedRow> {
        match self.row.next() {
            Some(Value::Number(number)) => number.map(|number| i32::try_from(number).map_err(|_| self.damaged(column))).transpose(),
            _ => Err(self.damaged(column)),
        }
    }

    fn text_if(&mut self, column: &'static str) -> Result<Option<String>, DamagedRow> {
        match self.row.next() {
            Some(Value::Text(text)) => Ok(text),
            _ => Err(self.damaged(column)),
        }
    }

    fn text(&mut self, column: &'static str) -> Result<String, DamagedRow> {
        self.text_if(column)?.ok_or_else(|| self.damaged(column))
    }
}

/// The record of a row with [`COLUMNS`].
pub(crate) fn work(row: Row) -> Result<EndedWork, DamagedRow> {
    let sequence = match row.first() {
        Some(Value::Number(Some(sequence))) => *sequence,
        _ => 0,
    };
    let mut r = Reader { row: row.into_iter(), sequence };
    Ok(EndedWork {
        sequence: r.number("sequence")?,
        allocation: r.text("allocation")?.parse().map_err(|_| r.damaged("allocation"))?,
        name: r.text("name")?,
        tenant: r.text("tenant")?,
        project: r.text("project")?,
        vcluster: r.text("vcluster")?,
        user: r.text("account")?,
        uid: r.small("uid")?,
        tags: serde_json::from_str(&r.text("tags")?).map_err(|_| r.damaged("tags"))?,
        state: state(&r.text("state")?).ok_or_else(|| r.damaged("state"))?,
        reason: r.text("reason")?,
        exit_code: r.signed_if("exit_code")?,
        nodes: r.text("nodes")?,
        node_count: r.small("node_count")?,
        submitted_at: Timestamp(r.number("submitted_at")?),
        claimed_at: r.number_if("claimed_at")?.map(Timestamp),
        started_at: r.number_if("started_at")?.map(Timestamp),
        ended_at: Timestamp(r.number("ended_at")?),
        requeue_count: r.small("requeue_count")?,
        preempted_count: r.small("preempted_count")?,
        used: Used { node_ms: r.number("node_ms")?, gpu_ms: r.number("gpu_ms")? },
        core_ms: r.number("core_ms")?,
        part_of: match r.text_if("part_of")? {
            Some(id) => Some(id.parse().map_err(|_| r.damaged("part_of"))?),
            None => None,
        },
        job: r.number("job")?,
        corrects: None,
    })
}

/// The record of a row with [`COLUMNS`] and `changed`, or its latest correction, if it was corrected.
pub(crate) fn changed_work(mut row: Row) -> Result<EndedWork, DamagedRow> {
    let changed = row.pop();
    let record = work(row)?;
    let damaged = DamagedRow { sequence: i64::try_from(record.sequence).unwrap_or(i64::MAX), column: "changed" };
    match changed {
        Some(Value::Number(Some(changed))) => match u64::try_from(changed) {
            Ok(changed) if changed == record.sequence => Ok(record),
            Ok(changed) => Ok(EndedWork { corrects: Some(record.sequence), sequence: changed, ..record }),
            Err(_) => Err(damaged),
        },
        _ => Err(damaged),
    }
}

fn state(name: &str) -> Option<AllocationState> {
    [AllocationState::Completed, AllocationState::Failed, AllocationState::Cancelled].into_iter().find(|state| state.to_string() == name)
}

/// The sum of a row with the columns of [`SUM_TYPES`].
pub(crate) fn sum(row: Row) -> Result<UseSum, DamagedRow> {
    let mut r = Reader { row: row.into_iter(), sequence: 0 };
    Ok(UseSum {
        user: r.text("account")?,
        tenant: r.text("tenant")?,
        project: r.text("project")?,
        count: r.number("count")?,
        used: Used { node_ms: r.number("node_ms")?, gpu_ms: r.number("gpu_ms")? },
        core_ms: r.number("core_ms")?,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use lattice_model::AllocationId;
    use uuid::Uuid;

    /// An end of ada's work in physics, an hour after the previous one.
    pub(crate) fn ended(sequence: u64) -> EndedWork {
        let ended_at = Timestamp(1_772_704_812_034 + sequence * 3_600_000);
        EndedWork {
            sequence,
            allocation: AllocationId(Uuid::from_u128(sequence.into())),
            job: 100 + sequence,
            name: format!("night-{sequence}"),
            tenant: "physics".to_owned(),
            project: "higgs".to_owned(),
            vcluster: "batch".to_owned(),
            user: "ada".to_owned(),
            uid: 1000,
            tags: [("run".to_owned(), sequence.to_string())].into(),
            state: AllocationState::Failed,
            reason: "exit code 3".to_owned(),
            exit_code: Some(-3),
            nodes: "n[1-2]".to_owned(),
            node_count: 2,
            submitted_at: Timestamp(ended_at.0 - 3000),
            claimed_at: Some(Timestamp(ended_at.0 - 2000)),
            started_at: Some(Timestamp(ended_at.0 - 1000)),
            ended_at,
            requeue_count: 1,
            preempted_count: 0,
            used: Used { node_ms: 2000, gpu_ms: 8000 },
            core_ms: 64_000,
            part_of: Some(Uuid::from_u128(7)),
            corrects: None,
        }
    }

    #[test]
    fn a_record_survives_as_a_row_and_characters_that_no_database_stores_are_replaced() {
        let never = EndedWork { exit_code: None, claimed_at: None, started_at: None, part_of: None, ..ended(2) };
        for record in [ended(1), never] {
            assert_eq!(work(row(&record)).unwrap(), record);
        }
        let odd = EndedWork { reason: "a\0b".to_owned(), core_ms: u64::MAX, ..ended(3) };
        let read = work(row(&odd)).unwrap();
        assert_eq!((read.reason.as_str(), read.core_ms), ("a\u{fffd}b", i64::MAX as u64));
        assert_eq!((row(&odd).len(), COLUMNS.split(", ").count()), (COLUMN_TYPES.len(), COLUMN_TYPES.len()));
    }

    #[test]
    fn a_damaged_row_names_its_end_and_column() {
        let mut damaged = row(&ended(9));
        damaged[9] = Value::text("Running");
        assert_eq!(work(damaged).unwrap_err().to_string(), "the row of record 9 is damaged: its column state cannot be read");
        assert!(work(Vec::new()).is_err());
    }

    #[test]
    fn many_records_are_inserted_in_parts() {
        let many: Vec<_> = (1..=250).map(ended).collect();
        let parts: Vec<_> = statements(&many).iter().map(|insert| (insert.changes, insert.values.len())).collect();
        assert_eq!(parts, [(Some(100), 2600), (Some(100), 2600), (Some(50), 1300)]);
        let one = &statements(&many[..1])[0];
        assert!(one.sql.starts_with("INSERT INTO ended_work (sequence, allocation, ") && one.sql.ends_with(", $26)"), "{}", one.sql);
    }
}
