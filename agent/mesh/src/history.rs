//! The wire forms of questions about ended work, and of their answers.

use super::frame::FrameError;
use lattice_model::ended_work::EndedWork;
use lattice_model::history::{HistoryCursor, HistoryKind, HistoryPage, HistoryQuery, JOBS_MAX, PAGE_LEN_MAX, UseSum, Visible};
use lattice_model::{AllocationId, AllocationState, Timestamp, Used};
use rkyv::{Archive, Deserialize, Serialize};
use uuid::Uuid;

/// How many tags and tenants a question may have.
const TAGS_MAX: usize = 64;
const TENANTS_MAX: usize = 10_000;

/// A question about ended work; the calling agent decides what its user may see.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum HistoryOpen {
    /// For one page.
    Query(Box<WireHistoryQuery>),
    /// Only which database the store is, and what is wrong with it.
    Status,
}

/// The answer to [`HistoryOpen`].
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum HistoryAnswer {
    /// It cannot be answered now.
    Refused { why: String },
    /// One page.
    Page(WireHistoryPage),
    /// `kind`: `sqlite` or `postgresql`; empty: it was not opened yet. `problem`: why nothing is stored at present; empty:
    /// nothing is wrong.
    Status { kind: String, problem: String, sinks: Vec<WireSinkStatus> },
}

/// How far a sink of the asked agent is; `kind`: `http` or `file`, `problem`: empty if nothing is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct WireSinkStatus {
    pub kind: String,
    pub target: String,
    /// The sequence number up to which it has all records.
    pub delivered: u64,
    pub waiting: u64,
    pub lag_ms: u64,
    pub problem: String,
}

/// The wire form of [`HistoryQuery`].
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct WireHistoryQuery {
    /// Whose work is visible; `None`: everybody's.
    pub visible: Option<WireVisible>,
    pub kind: WireHistoryKind,
    pub user: String,
    pub tenant: String,
    pub project: String,
    pub vcluster: String,
    pub name: String,
    pub states: Vec<WireEndState>,
    pub jobs: Vec<u64>,
    pub part_of: Option<[u8; 16]>,
    pub tags: Vec<(String, String)>,
    /// Milliseconds since 1970.
    pub from_ms: u64,
    pub until_ms: u64,
    pub limit: u32,
    pub after: Option<WireHistoryCursor>,
}

/// The wire form of [`Visible::Only`]: an account, and tenants with the times of their creation.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct WireVisible {
    pub own: Option<(String, u32)>,
    pub tenants: Vec<(String, u64)>,
}

/// The wire form of [`HistoryKind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum WireHistoryKind {
    NewestFirst,
    OldestFirst,
    Sums,
}

/// How work ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum WireEndState {
    Completed,
    Failed,
    Cancelled,
}

/// The wire form of [`HistoryCursor`].
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub enum WireHistoryCursor {
    Work { ended_at_ms: u64, sequence: u64 },
    Sum { of: [String; 3] },
}

/// The wire form of [`HistoryPage`].
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct WireHistoryPage {
    pub work: Vec<WireEndedWork>,
    pub sums: Vec<WireUseSum>,
    pub next: Option<WireHistoryCursor>,
}

/// The wire form of [`EndedWork`]; times in milliseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct WireEndedWork {
    pub sequence: u64,
    pub allocation: [u8; 16],
    pub job: u64,
    pub name: String,
    pub tenant: String,
    pub project: String,
    pub vcluster: String,
    pub user: String,
    pub uid: u32,
    pub tags: Vec<(String, String)>,
    pub state: WireEndState,
    pub reason: String,
    pub exit_code: Option<i32>,
    pub nodes: String,
    pub node_count: u32,
    pub submitted_at_ms: u64,
    pub claimed_at_ms: Option<u64>,
    pub started_at_ms: Option<u64>,
    pub ended_at_ms: u64,
    pub requeue_count: u32,
    pub preempted_count: u32,
    pub node_ms: u64,
    pub gpu_ms: u64,
    pub core_ms: u64,
    pub part_of: Option<[u8; 16]>,
}

/// The wire form of [`UseSum`].
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct WireUseSum {
    pub user: String,
    pub tenant: String,
    pub project: String,
    pub count: u64,
    pub node_ms: u64,
    pub gpu_ms: u64,
    pub core_ms: u64,
}

impl WireEndState {
    /// `None`: this is not the state of ended work.
    fn of(state: AllocationState) -> Option<Self> {
        match state {
            AllocationState::Completed => Some(Self::Completed),
            AllocationState::Failed => Some(Self::Failed),
            AllocationState::Cancelled => Some(Self::Cancelled),
            AllocationState::Pending | AllocationState::Staging | AllocationState::Running | AllocationState::Suspended => None,
        }
    }
}

impl From<WireEndState> for AllocationState {
    fn from(state: WireEndState) -> Self {
        match state {
            WireEndState::Completed => Self::Completed,
            WireEndState::Failed => Self::Failed,
            WireEndState::Cancelled => Self::Cancelled,
        }
    }
}

impl From<HistoryCursor> for WireHistoryCursor {
    fn from(cursor: HistoryCursor) -> Self {
        match cursor {
            HistoryCursor::Work { ended_at, sequence } => Self::Work { ended_at_ms: ended_at.0, sequence },
            HistoryCursor::Sum { of } => Self::Sum { of },
        }
    }
}

impl From<WireHistoryCursor> for HistoryCursor {
    fn from(cursor: WireHistoryCursor) -> Self {
        match cursor {
            WireHistoryCursor::Work { ended_at_ms, sequence } => Self::Work { ended_at: Timestamp(ended_at_ms), sequence },
            WireHistoryCursor::Sum { of } => Self::Sum { of },
        }
    }
}

impl From<HistoryQuery> for WireHistoryQuery {
    fn from(query: HistoryQuery) -> Self {
        let HistoryQuery { visible, kind, user, tenant, project, vcluster, name, states, jobs, part_of, tags, from, until, limit, after } =
            query;
        let visible = match visible {
            Visible::All => None,
            Visible::Only { own, tenants } => {
                Some(WireVisible { own, tenants: tenants.into_iter().map(|(tenant, since)| (tenant, since.0)).collect() })
            }
        };
        let kind = match kind {
            HistoryKind::NewestFirst => WireHistoryKind::NewestFirst,
            HistoryKind::OldestFirst => WireHistoryKind::OldestFirst,
            HistoryKind::Sums => WireHistoryKind::Sums,
        };
        Self {
            visible,
            kind,
            user,
            tenant,
            project,
            vcluster,
            name,
            // Nothing has ended in another state.
            states: states.into_iter().filter_map(WireEndState::of).collect(),
            jobs,
            part_of: part_of.map(|id| *id.as_bytes()),
            tags: tags.into_iter().collect(),
            from_ms: from.0,
            until_ms: until.0,
            limit,
            after: after.map(WireHistoryCursor::from),
        }
    }
}

impl WireHistoryQuery {
    /// Checks the bounds.
    pub fn checked(self) -> Result<HistoryQuery, FrameError> {
        let Self { visible, kind, user, tenant, project, vcluster, name, states, jobs, part_of, tags, from_ms, until_ms, limit, after } =
            self;
        let tenants_count = visible.as_ref().map_or(0, |visible| visible.tenants.len());
        if limit > PAGE_LEN_MAX || tags.len() > TAGS_MAX || states.len() > TAGS_MAX || tenants_count > TENANTS_MAX || jobs.len() > JOBS_MAX
        {
            return Err(FrameError::Malformed);
        }
        let visible = match visible {
            None => Visible::All,
            Some(WireVisible { own, tenants }) => {
                Visible::Only { own, tenants: tenants.into_iter().map(|(tenant, since)| (tenant, Timestamp(since))).collect() }
            }
        };
        let kind = match kind {
            WireHistoryKind::NewestFirst => HistoryKind::NewestFirst,
            WireHistoryKind::OldestFirst => HistoryKind::OldestFirst,
            WireHistoryKind::Sums => HistoryKind::Sums,
        };
        Ok(HistoryQuery {
            visible,
            kind,
            user,
            tenant,
            project,
            vcluster,
            name,
            states: states.into_iter().map(AllocationState::from).collect(),
            jobs,
            part_of: part_of.map(Uuid::from_bytes),
            tags: tags.into_iter().collect(),
            from: Timestamp(from_ms),
            until: Timestamp(until_ms),
            limit,
            after: after.map(HistoryCursor::from),
        })
    }
}

impl From<EndedWork> for WireEndedWork {
    fn from(work: EndedWork) -> Self {
        Self {
            sequence: work.sequence,
            allocation: *work.allocation.0.as_bytes(),
            job: work.job,
            name: work.name,
            tenant: work.tenant,
            project: work.project,
            vcluster: work.vcluster,
            user: work.user,
            uid: work.uid,
            tags: work.tags.into_iter().collect(),
            // An end has no other state.
            state: WireEndState::of(work.state).unwrap_or(WireEndState::Failed),
            reason: work.reason,
            exit_code: work.exit_code,
            nodes: work.nodes,
            node_count: work.node_count,
            submitted_at_ms: work.submitted_at.0,
            claimed_at_ms: work.claimed_at.map(|at| at.0),
            started_at_ms: work.started_at.map(|at| at.0),
            ended_at_ms: work.ended_at.0,
            requeue_count: work.requeue_count,
            preempted_count: work.preempted_count,
            node_ms: work.used.node_ms,
            gpu_ms: work.used.gpu_ms,
            core_ms: work.core_ms,
            part_of: work.part_of.map(|id| *id.as_bytes()),
        }
    }
}

impl From<WireEndedWork> for EndedWork {
    fn from(work: WireEndedWork) -> Self {
        Self {
            sequence: work.sequence,
            allocation: AllocationId(Uuid::from_bytes(work.allocation)),
            job: work.job,
            name: work.name,
            tenant: work.tenant,
            project: work.project,
            vcluster: work.vcluster,
            user: work.user,
            uid: work.uid,
            tags: work.tags.into_iter().collect(),
            state: work.state.into(),
            reason: work.reason,
            exit_code: work.exit_code,
            nodes: work.nodes,
            node_count: work.node_count,
            submitted_at: Timestamp(work.submitted_at_ms),
            claimed_at: work.claimed_at_ms.map(Timestamp),
            started_at: work.started_at_ms.map(Timestamp),
            ended_at: Timestamp(work.ended_at_ms),
            requeue_count: work.requeue_count,
            preempted_count: work.preempted_count,
            used: Used { node_ms: work.node_ms, gpu_ms: work.gpu_ms },
            core_ms: work.core_ms,
            part_of: work.part_of.map(Uuid::from_bytes),
            // Pages contain only records, with all corrections applied.
            corrects: None,
        }
    }
}

impl From<HistoryPage> for WireHistoryPage {
    fn from(HistoryPage { work, sums, next }: HistoryPage) -> Self {
        let sum = |UseSum { user, tenant, project, count, used, core_ms }: UseSum| WireUseSum {
            user,
            tenant,
            project,
            count,
            node_ms: used.node_ms,
            gpu_ms: used.gpu_ms,
            core_ms,
        };
        Self {
            work: work.into_iter().map(WireEndedWork::from).collect(),
            sums: sums.into_iter().map(sum).collect(),
            next: next.map(WireHistoryCursor::from),
        }
    }
}

impl WireHistoryPage {
    /// Checks the number of records.
    pub fn checked(self) -> Result<HistoryPage, FrameError> {
        let Self { work, sums, next } = self;
        if work.len().max(sums.len()) > PAGE_LEN_MAX as usize {
            return Err(FrameError::Malformed);
        }
        let sum = |WireUseSum { user, tenant, project, count, node_ms, gpu_ms, core_ms }: WireUseSum| UseSum {
            user,
            tenant,
            project,
            count,
            used: Used { node_ms, gpu_ms },
            core_ms,
        };
        Ok(HistoryPage {
            work: work.into_iter().map(EndedWork::from).collect(),
            sums: sums.into_iter().map(sum).collect(),
            next: next.map(HistoryCursor::from),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame;

    fn query() -> HistoryQuery {
        HistoryQuery {
            visible: Visible::Only { own: Some(("ada".into(), 7)), tenants: [("physics".into(), Timestamp(5))].into() },
            kind: HistoryKind::OldestFirst,
            user: "eve".into(),
            tenant: "physics".into(),
            project: "higgs".into(),
            vcluster: "batch".into(),
            name: "night-*".into(),
            states: vec![AllocationState::Failed],
            jobs: vec![12],
            part_of: Some(Uuid::from_u128(5)),
            tags: [("run".into(), "4".into())].into(),
            from: Timestamp(1),
            until: Timestamp(9),
            limit: 10,
            after: Some(HistoryCursor::Work { ended_at: Timestamp(3), sequence: 2 }),
        }
    }

    fn page() -> HistoryPage {
        let work = EndedWork {
            sequence: 3,
            allocation: AllocationId(Uuid::from_u128(9)),
            job: 12,
            name: "night-3".into(),
            tenant: "physics".into(),
            project: String::new(),
            vcluster: "batch".into(),
            user: "eve".into(),
            uid: 8,
            tags: [("run".into(), "4".into())].into(),
            state: AllocationState::Cancelled,
            reason: "by eve".into(),
            exit_code: Some(-1),
            nodes: "n[1-2]".into(),
            node_count: 2,
            submitted_at: Timestamp(1),
            claimed_at: Some(Timestamp(2)),
            started_at: None,
            ended_at: Timestamp(4),
            requeue_count: 1,
            preempted_count: 2,
            used: Used { node_ms: 5, gpu_ms: 6 },
            core_ms: 7,
            part_of: Some(Uuid::from_u128(1)),
            corrects: None,
        };
        let sum = UseSum { user: "eve".into(), count: 2, used: Used { node_ms: 1, gpu_ms: 2 }, core_ms: 3, ..UseSum::default() };
        HistoryPage { work: vec![work], sums: vec![sum], next: Some(HistoryCursor::Sum { of: ["eve", "", ""].map(str::to_owned) }) }
    }

    #[tokio::test]
    async fn questions_and_pages_are_the_same_behind_the_wire() {
        for asked in [query(), HistoryQuery { visible: Visible::All, kind: HistoryKind::Sums, after: None, ..query() }] {
            let mut bytes = Vec::new();
            frame::write(&mut bytes, &HistoryOpen::Query(Box::new(asked.clone().into()))).await.unwrap();
            let read = frame::read::<HistoryOpen, _>(&mut bytes.as_slice()).await.unwrap();
            let HistoryOpen::Query(read) = read else { panic!("{read:?}") };
            assert_eq!(read.checked().unwrap(), asked);
        }
        let mut bytes = Vec::new();
        frame::write(&mut bytes, &HistoryAnswer::Page(page().into())).await.unwrap();
        let read = frame::read::<HistoryAnswer, _>(&mut bytes.as_slice()).await.unwrap();
        let HistoryAnswer::Page(read) = read else { panic!("{read:?}") };
        assert_eq!(read.checked().unwrap(), page());
    }

    #[test]
    fn a_question_or_a_page_that_is_too_large_is_refused() {
        assert!(WireHistoryQuery::from(HistoryQuery { limit: PAGE_LEN_MAX + 1, ..query() }).checked().is_err());
        let tags = (0..=TAGS_MAX).map(|n| (n.to_string(), String::new())).collect();
        assert!(WireHistoryQuery::from(HistoryQuery { tags, ..query() }).checked().is_err());
        let jobs = vec![1; JOBS_MAX + 1];
        assert!(WireHistoryQuery::from(HistoryQuery { jobs, ..query() }).checked().is_err());
        let sums = vec![UseSum::default(); PAGE_LEN_MAX as usize + 1];
        assert!(WireHistoryPage::from(HistoryPage { sums, ..HistoryPage::default() }).checked().is_err());
    }
}
