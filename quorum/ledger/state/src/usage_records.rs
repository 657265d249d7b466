//! The use of nodes over time, recorded by tenant, project and user.
//!
//! The records of tenants that exist are always kept: their budgets depend on them, and there are
//! few. All others are bounded in bytes: beyond the bound, the record that was used longest ago is
//! dropped. A record that has nothing within the budget period is dropped too, a few with each
//! command.

use crate::record_bytes::{USAGE_DAY_BYTES, USAGE_RECORD_BYTES, text_bytes};
use imbl::{OrdMap, OrdSet};
use lattice_model::{BudgetPeriod, DailyUse, NodeUse, Timestamp};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How many outdated records one command drops at most.
const DROPPED_AT_ONCE_MAX: usize = 16;

/// Whose use is recorded.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Consumer {
    /// The tenant of this name, whether or not it exists.
    Tenant(String),
    /// A project of a tenant; work without a tenant has the empty name.
    Project { tenant: String, project: String },
    /// The user with this id.
    User(u32),
}

/// The use of one consumer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageRecord {
    /// The user's name; empty for other consumers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// By days.
    pub days: DailyUse,
}

/// A span of time in which work ran.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub node_use: NodeUse,
    pub from: Timestamp,
    pub to: Timestamp,
}

/// Memory of a record of use.
pub fn usage_record_bytes(consumer: &Consumer, UsageRecord { user, days }: &UsageRecord) -> usize {
    let names = match consumer {
        Consumer::Tenant(name) => text_bytes(name),
        Consumer::Project { tenant, project } => text_bytes(tenant) + text_bytes(project),
        Consumer::User(_) => 0,
    };
    // Names are in the map of the records and in the order of those that may be dropped; a user's
    // name is in the record and in the index.
    USAGE_RECORD_BYTES + 2 * names + 2 * text_bytes(user) + days.len() * USAGE_DAY_BYTES
}

/// All records. Only they are part of the replicated state; the order of the droppable ones, their
/// size, and the index of users are derived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageRecords {
    records: OrdMap<Consumer, Arc<UsageRecord>>,
    /// Records that may be dropped, by the last day with use.
    droppable: OrdSet<(u32, Consumer)>,
    droppable_bytes: usize,
    /// The users with a record, by name; several may have one name. A user's record may always be
    /// dropped.
    users: OrdSet<(String, u32)>,
}

impl UsageRecords {
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub fn get(&self, consumer: &Consumer) -> Option<&Arc<UsageRecord>> {
        self.records.get(consumer)
    }

    /// The records of the users with this name.
    pub fn of_users(&self, name: &str) -> impl Iterator<Item = &UsageRecord> {
        let named = self.users.range((name.to_owned(), 0_u32)..).take_while(move |(of, _)| of == name);
        named.filter_map(move |(_, uid)| self.records.get(&Consumer::User(*uid)).map(|record| &**record))
    }

    /// All records, by consumer.
    pub fn iter(&self) -> impl Iterator<Item = (&Consumer, &Arc<UsageRecord>)> {
        self.records.iter()
    }

    /// Adds a use. Then drops outdated records, and the oldest ones while all droppable records together
    /// exceed `bytes_max`. `kept`: the record is never dropped. Returns the first day that has more than before.
    pub fn add(&mut self, consumer: Consumer, user: &str, span: Span, period: BudgetPeriod, kept: bool, bytes_max: usize) -> Option<u32> {
        let mut record = self.records.get(&consumer).cloned().unwrap_or_default();
        self.unindex(&consumer, &record);
        let changed = Arc::make_mut(&mut record);
        if changed.user != user {
            user.clone_into(&mut changed.user);
        }
        let first_day = changed.days.add(span.node_use, span.from, span.to, period);
        if record.days.is_empty() {
            self.records.remove(&consumer);
        } else {
            if !kept {
                self.index(&consumer, &record);
            }
            self.records.insert(consumer, record);
        }
        self.drop_outdated(period.first_day(span.to));
        self.drop_excess(bytes_max);
        first_day
    }

    /// Sets whether the consumer's record may be dropped.
    pub fn set_droppable(&mut self, consumer: &Consumer, droppable: bool, bytes_max: usize) {
        let Some(record) = self.records.get(consumer).cloned() else { return };
        self.unindex(consumer, &record);
        if droppable {
            self.index(consumer, &record);
            self.drop_excess(bytes_max);
        }
    }

    /// Derives what is not part of the replicated state. `is_kept`: whether a consumer's record is never dropped.
    pub fn build_index(&mut self, is_kept: impl Fn(&Consumer) -> bool) {
        (self.droppable, self.droppable_bytes, self.users) = (OrdSet::new(), 0, OrdSet::new());
        for (consumer, record) in self.records.clone().iter().filter(|(consumer, _)| !is_kept(consumer)) {
            self.index(consumer, record);
        }
    }

    fn place(consumer: &Consumer, record: &UsageRecord) -> (u32, Consumer) {
        (record.days.last_day().unwrap_or_default(), consumer.clone())
    }

    fn index(&mut self, consumer: &Consumer, record: &UsageRecord) {
        if self.droppable.insert(Self::place(consumer, record)).is_none() {
            self.droppable_bytes += usage_record_bytes(consumer, record);
        }
        if let Consumer::User(uid) = consumer {
            self.users.insert((record.user.clone(), *uid));
        }
    }

    fn unindex(&mut self, consumer: &Consumer, record: &UsageRecord) {
        if self.droppable.remove(&Self::place(consumer, record)).is_some() {
            self.droppable_bytes -= usage_record_bytes(consumer, record);
        }
        if let Consumer::User(uid) = consumer {
            self.users.remove(&(record.user.clone(), *uid));
        }
    }

    fn drop_outdated(&mut self, first_kept: u32) {
        for _ in 0..DROPPED_AT_ONCE_MAX {
            if self.droppable.get_min().is_none_or(|(day, _)| *day >= first_kept) {
                return;
            }
            self.drop_oldest();
        }
    }

    fn drop_excess(&mut self, bytes_max: usize) {
        while self.droppable_bytes > bytes_max && !self.droppable.is_empty() {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        let Some((_, oldest)) = self.droppable.get_min().cloned() else { return };
        if let Some(record) = self.records.get(&oldest).cloned() {
            self.unindex(&oldest, &record);
            self.records.remove(&oldest);
        }
    }
}

impl Serialize for UsageRecords {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.records.iter())
    }
}

impl<'de> Deserialize<'de> for UsageRecords {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Entry by entry: the announced number of entries is not trusted.
        let records: BTreeMap<Consumer, Arc<UsageRecord>> = BTreeMap::deserialize(deserializer)?;
        Ok(Self { records: records.into_iter().collect(), ..Self::default() })
    }
}
