//! What sinks ask of the store: their positions, and the records that follow. They use the connection that stores, so
//! that slow questions delay no delivery.

use super::{Store, StoreError};
use crate::record::{self, COLUMN_TYPES, COLUMNS};
use crate::sink_progress::SinkPosition;
use crate::statement::{Column, Lane, Statement, Value};
use lattice_model::ended_work::EndedWork;

impl Store {
    /// The position of a sink; a new one begins before the first record.
    ///
    /// # Errors
    /// [`StoreError`]: it cannot be read now.
    pub(crate) async fn sink_position(&self, sink: &str) -> Result<SinkPosition, StoreError> {
        let mut select = Statement::new("SELECT delivered_until, sending_until FROM accounting_sink WHERE sink = ");
        select.bind(Value::text(sink));
        let (rows, _) = self.read(Lane::Storing, select, &[Column::Number, Column::Number]).await?;
        let Some(row) = rows.first() else {
            let mut first = Statement::new("INSERT INTO accounting_sink (sink, delivered_until, sending_until) VALUES (");
            first.bind(Value::text(sink)).push(", 0, 0) ON CONFLICT DO NOTHING");
            self.write(vec![first]).await?;
            return Ok(SinkPosition::default());
        };
        let number = |at: usize| match row.get(at) {
            Some(Value::Number(Some(number))) => u64::try_from(*number).ok(),
            _ => None,
        };
        match (number(0), number(1)) {
            (Some(delivered), Some(sending)) => Ok(SinkPosition { delivered, sending }),
            _ => Err(StoreError::Damaged { store: self.name.clone() }),
        }
    }

    /// Moves a sink from one position to another.
    ///
    /// # Errors
    /// [`StoreError::OtherWriter`]: it is no longer at `from`. If no answer came, only [`Self::sink_position`] shows
    /// whether it was moved.
    pub(crate) async fn move_sink(&self, sink: &str, from: SinkPosition, to: SinkPosition) -> Result<(), StoreError> {
        let mut update = Statement::new("UPDATE accounting_sink SET delivered_until = ");
        update.bind(Value::number(to.delivered)).push(", sending_until = ").bind(Value::number(to.sending));
        update.push(" WHERE sink = ").bind(Value::text(sink));
        update.push(" AND delivered_until = ").bind(Value::number(from.delivered));
        update.push(" AND sending_until = ").bind(Value::number(from.sending));
        update.changes = Some(1);
        self.write(vec![update]).await
    }

    /// The records that ended or were corrected after the number `after` and up to `until`, in that order, at most
    /// `limit`. A corrected record is there once, in its latest form.
    ///
    /// # Errors
    /// [`StoreError`]: they cannot be read now.
    pub(crate) async fn work_after(&self, after: u64, until: u64, limit: u32) -> Result<Vec<EndedWork>, StoreError> {
        let mut select = Statement::new(format!("SELECT {COLUMNS}, changed FROM ended_work WHERE changed > "));
        select.bind(Value::number(after)).push(" AND changed <= ").bind(Value::number(until));
        select.push(" ORDER BY changed LIMIT ").bind(Value::number(limit.into()));
        let columns = [COLUMN_TYPES, &[Column::Number]].concat();
        let (rows, _) = self.read(Lane::Storing, select, &columns).await?;
        let damaged = |source| StoreError::Row { store: self.name.clone(), source };
        rows.into_iter().map(record::changed_work).collect::<Result<_, _>>().map_err(damaged)
    }
}

#[cfg(test)]
mod tests {
    use crate::question::tests::query;
    use crate::record::tests::ended;
    use crate::sink_progress::SinkPosition;
    use crate::store::StoreError;
    use crate::store::tests::Directory;
    use lattice_model::ended_work::EndedWork;
    use std::collections::BTreeMap;

    #[tokio::test]
    async fn a_sink_moves_only_from_where_it_is() {
        let directory = Directory::new();
        let store = directory.open().await.unwrap();
        let begin = SinkPosition::default();
        assert_eq!(store.sink_position("http").await.unwrap(), begin);
        let sending = SinkPosition { delivered: 0, sending: 2 };
        store.move_sink("http", begin, sending).await.unwrap();
        let twice = store.move_sink("http", begin, sending).await;
        assert!(matches!(twice, Err(StoreError::OtherWriter { .. })), "{twice:?}");
        let again = directory.open().await.unwrap();
        assert_eq!((again.sink_position("http").await.unwrap(), again.sink_position("file").await.unwrap()), (sending, begin));
    }

    #[tokio::test]
    async fn records_follow_in_the_order_of_their_ends() {
        let directory = Directory::new();
        let store = directory.open().await.unwrap();
        store.append(0, &(1..=5).map(ended).collect::<Vec<_>>(), 5).await.unwrap();
        let after = async |after, until, limit| {
            let work = store.work_after(after, until, limit).await.unwrap();
            work.iter().map(|work| work.sequence).collect::<Vec<_>>()
        };
        assert_eq!(after(0, u64::MAX, 2).await, [1, 2]);
        assert_eq!(after(2, 4, 9).await, [3, 4]);
        assert_eq!(after(5, u64::MAX, 9).await, [] as [u64; 0]);
    }

    #[tokio::test]
    async fn a_correction_changes_only_its_record_which_then_follows_again() {
        let directory = Directory::new();
        let store = directory.open().await.unwrap();
        store.append(0, &(1..=2).map(ended).collect::<Vec<_>>(), 2).await.unwrap();
        let tags: BTreeMap<String, String> = [("a".to_owned(), "b".to_owned())].into();
        let correct = |sequence: u64, corrects: u64, project: &str| EndedWork {
            sequence,
            corrects: Some(corrects),
            project: project.to_owned(),
            tags: tags.clone(),
            ..ended(corrects)
        };
        // Also of a record of the same batch, and of one that this store never had.
        let batch = [ended(3), correct(4, 1, "first"), correct(5, 3, "x"), correct(6, 3, "second"), correct(7, 99, "none")];
        store.append(2, &batch, 7).await.unwrap();
        let all = store.query(&query()).await.unwrap().work;
        let projects: Vec<_> = all.iter().map(|work| (work.sequence, work.project.as_str())).collect();
        assert_eq!(projects, [(3, "second"), (2, "higgs"), (1, "first")]);
        assert_eq!((&all[2].tags, all[2].corrects, &all[2].name), (&tags, None, &ended(1).name));
        let changed: Vec<_> = store.work_after(1, u64::MAX, 9).await.unwrap().iter().map(|work| (work.sequence, work.corrects)).collect();
        assert_eq!(changed, [(2, None), (4, Some(1)), (6, Some(3))]);
    }
}
