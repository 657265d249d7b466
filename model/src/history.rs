//! Queries about ended work to the store that has it, and the answers.
//!
//! An answer has one page. The next page begins at a position in the order of the answer, so that work that ends in
//! between moves no record to another page.

use crate::allocation_state::AllocationState;
use crate::ended_work::EndedWork;
use crate::time::Timestamp;
use crate::usage::Used;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;
use uuid::Uuid;

/// The most records in one page.
pub const PAGE_LEN_MAX: u32 = 1000;
/// The most job numbers in one query.
pub const JOBS_MAX: usize = 1000;
/// The records in a page, if the query has no limit.
pub const PAGE_LEN: u32 = 100;

/// A query about ended work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryQuery {
    /// The ended work that the caller may see.
    pub visible: Visible,
    /// The content and the order of the answer.
    pub kind: HistoryKind,
    /// Only work of this user's account; empty: of all.
    pub user: String,
    /// Only work of this tenant; empty: of all.
    pub tenant: String,
    /// Only work of this project; empty: of all.
    pub project: String,
    /// Only work of this vCluster; empty: of all.
    pub vcluster: String,
    /// Only work of this name, in which `*` stands for any text; empty: of any name.
    pub name: String,
    /// Only work in these states; empty: in all.
    pub states: Vec<AllocationState>,
    /// Only work with these job numbers, at most [`JOBS_MAX`]; empty: with any.
    pub jobs: Vec<u64>,
    /// Only parts of this task group, scaled service or DAG; `None`: all.
    pub part_of: Option<Uuid>,
    /// Only work with all of these tags.
    pub tags: BTreeMap<String, String>,
    /// Only work that ended at this time or after it.
    pub from: Timestamp,
    /// Only work that ended before this time.
    pub until: Timestamp,
    /// At most this many records, and at most [`PAGE_LEN_MAX`].
    pub limit: u32,
    /// Only records after this position, which an earlier page of the same query gave.
    pub after: Option<HistoryCursor>,
}

/// Whose ended work the caller may see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Visible {
    /// Everybody's.
    All,
    /// That of one account and of some tenants.
    Only {
        /// The caller's account; `None`: the query is not about its own work.
        own: Option<(String, u32)>,
        /// Tenants, each with its creation time: work that had ended by then is that of a former tenant of its name.
        tenants: BTreeMap<String, Timestamp>,
    },
}

/// The content and the order of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryKind {
    /// Ended work, the newest first.
    NewestFirst,
    /// Ended work, the oldest first.
    OldestFirst,
    /// The sums of each user, tenant and project, by their names.
    Sums,
}

/// A position in the order of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HistoryCursor {
    /// That of an ended allocation.
    Work {
        /// When it ended.
        ended_at: Timestamp,
        /// Its place in the order of all ends.
        sequence: u64,
    },
    /// That of a sum.
    Sum {
        /// Its user, tenant and project.
        of: [String; 3],
    },
}

/// The answer to a [`HistoryQuery`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistoryPage {
    /// Ended work, unless sums are asked for.
    pub work: Vec<EndedWork>,
    /// Sums, if they are asked for.
    pub sums: Vec<UseSum>,
    /// Where the next page begins; `None`: there is nothing more.
    pub next: Option<HistoryCursor>,
}

/// What the ended work of one user in one tenant and project used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UseSum {
    /// The user's account.
    pub user: String,
    /// The tenant; empty: none.
    pub tenant: String,
    /// The project; empty: none.
    pub project: String,
    /// How many allocations ended.
    pub count: u64,
    /// What they used.
    pub used: Used,
    /// Cores × milliseconds.
    pub core_ms: u64,
}

impl HistoryCursor {
    /// Whether it is a position in an answer of this kind.
    pub fn is_of(&self, kind: HistoryKind) -> bool {
        match (self, kind) {
            (Self::Work { .. }, HistoryKind::NewestFirst | HistoryKind::OldestFirst) | (Self::Sum { .. }, HistoryKind::Sums) => true,
            (Self::Work { .. }, HistoryKind::Sums) | (Self::Sum { .. }, HistoryKind::NewestFirst | HistoryKind::OldestFirst) => false,
        }
    }
}

/// A text that is no position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the page token is none of an earlier answer: ask without one for the first page")]
pub struct HistoryCursorError;

/// The page token, of letters, digits and dots alone: `w.MS.SEQUENCE`, or `s.` and three names in hexadecimal digits.
impl fmt::Display for HistoryCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Work { ended_at, sequence } => write!(f, "w.{}.{sequence}", ended_at.0),
            Self::Sum { of } => {
                f.write_str("s")?;
                for name in of {
                    f.write_str(".")?;
                    name.bytes().try_for_each(|byte| write!(f, "{byte:02x}"))?;
                }
                Ok(())
            }
        }
    }
}

impl FromStr for HistoryCursor {
    type Err = HistoryCursorError;

    fn from_str(text: &str) -> Result<Self, HistoryCursorError> {
        let mut parts = text.split('.');
        let kind = parts.next();
        let parts: Vec<&str> = parts.take(4).collect();
        let cursor = match (kind, parts.as_slice()) {
            (Some("w"), [ended_at, sequence]) => {
                number(ended_at).zip(number(sequence)).map(|(ended_at, sequence)| Self::Work { ended_at: Timestamp(ended_at), sequence })
            }
            (Some("s"), [user, tenant, project]) => match (name(user), name(tenant), name(project)) {
                (Some(user), Some(tenant), Some(project)) => Some(Self::Sum { of: [user, tenant, project] }),
                _ => None,
            },
            _ => None,
        };
        cursor.ok_or(HistoryCursorError)
    }
}

fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn name(hex: &str) -> Option<String> {
    if !hex.len().is_multiple_of(2) || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let bytes: Option<Vec<u8>> = (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).ok()).collect();
    String::from_utf8(bytes?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_token_is_read_as_it_is_written_and_nothing_else_is_read() {
        let work = HistoryCursor::Work { ended_at: Timestamp(1_772_704_812_034), sequence: 7 };
        assert_eq!(work.to_string(), "w.1772704812034.7");
        let sum = HistoryCursor::Sum { of: ["ada", "", "hi.ggs é"].map(str::to_owned) };
        assert_eq!(sum.to_string(), "s.616461..68692e67677320c3a9");
        for cursor in [work, sum] {
            assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }
        let sum = HistoryCursor::Sum { of: Default::default() };
        assert!(sum.is_of(HistoryKind::Sums) && !sum.is_of(HistoryKind::NewestFirst));
        for damaged in ["", "w", "w.1", "w.1.x", "w.+1.1", "w.1.2.3", "s.6.6.6", "s.61.61", "s.61.61.61.61", "s.ff.61.61", "x.1.1"] {
            assert_eq!(damaged.parse::<HistoryCursor>(), Err(HistoryCursorError), "{damaged}");
        }
    }
}
