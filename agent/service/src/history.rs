//! `AccountingService`: ended work of any age, from the agent with the store. What a caller may see is decided here.
//!
//! ```text
//!   caller ──roles──▶ own work │ that of its tenants │ all ──question──▶ this agent's store, or over the mesh that of the
//!                                                                        agent with the lease `accounting`
//! ```

use super::Api;
use super::api::{QUORUM_TIMEOUT, Streamed};
use super::caller::Caller;
use super::refusal::{status, unexpected};
use super::tasks::{EndedTask, ended_task};
use lattice_accounting::SinkStatus;
use lattice_api::v1;
use lattice_api::v1::accounting_service_server::AccountingService;
use lattice_ledger::{ACCOUNTING_LEASE, Action};
use lattice_meshd::history as stores;
use lattice_model::access::{Reach, Roles, rule};
use lattice_model::ended_work::EndedWork;
use lattice_model::history::{
    HistoryCursor, HistoryCursorError, HistoryKind, HistoryPage, HistoryQuery, JOBS_MAX, PAGE_LEN, PAGE_LEN_MAX, UseSum, Visible,
};
use lattice_model::{AllocationState, NodeId, Principal, Timestamp};
use lattice_quorum_client::wire::{Answer, EndedWorkPage, Request as Ask};
use std::collections::BTreeMap;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

/// How many pages of an export are queued for a slow caller.
const PAGES_QUEUE_LEN: usize = 2;
/// How many tags a question may have, and how long a name may be, in bytes.
const TAGS_MAX: usize = 16;
const NAME_BYTES_MAX: usize = 1024;
/// How many single tasks a question may name: the quorum is asked about each.
const TASKS_MAX: usize = 16;

#[tonic::async_trait]
impl AccountingService for Api {
    async fn history(&self, request: Request<v1::HistoryRequest>) -> Result<Response<v1::HistoryResponse>, Status> {
        let caller = self.caller(&request).await?;
        let user = self.user(&request).await?;
        let asked = request.into_inner();
        let visible = if asked.user.is_empty() && !asked.all_users {
            of_account(&user)
        } else {
            // Work of an allocation has no roles.
            let roles = if caller.within.is_some() { Roles::default() } else { self.standing(&caller).await?.roles };
            shows(&visible(&roles, &caller.method, Some(&user)), &asked, &user)?
        };
        let kind = if asked.sum { HistoryKind::Sums } else { HistoryKind::NewestFirst };
        let tasks = asked.tasks.clone();
        let query = question(asked, visible, kind)?;
        let mut work = if query.after.is_none() { self.ended_tasks(user.uid, &query, &tasks).await? } else { Vec::new() };
        let names_tasks_alone = !tasks.is_empty() && query.jobs.is_empty();
        let page = if names_tasks_alone { HistoryPage::default() } else { self.ended_page(user.uid, query).await? };
        let page = page_to_proto(page);
        work.extend(page.work);
        let behind = self.ends().await?.waiting;
        Ok(Response::new(v1::HistoryResponse { behind, work, ..page }))
    }

    type ExportStream = Streamed<v1::HistoryResponse>;

    async fn export(&self, request: Request<v1::HistoryRequest>) -> Result<Response<Self::ExportStream>, Status> {
        let caller = self.caller(&request).await?;
        let visible = if self.operator_by_token(&request).await?.is_some() {
            Visible::All
        } else {
            self.operator(&request).await?;
            let roles = self.standing(&caller).await?.roles;
            shows(&visible(&roles, &caller.method, None), request.get_ref(), &caller.principal)?
        };
        let asked = v1::HistoryRequest { limit: PAGE_LEN_MAX, ..request.into_inner() };
        let kind = if asked.sum { HistoryKind::Sums } else { HistoryKind::OldestFirst };
        let mut query = question(asked, visible, kind)?;
        // So that a refusal is the answer to the call, and not the end of an empty stream.
        let uid = caller.principal.uid;
        let mut page = self.ended_page(uid, query.clone()).await?;
        let (out, pages) = mpsc::channel(PAGES_QUEUE_LEN);
        let (tasks, api) = (&self.context.work.tasks, self.clone());
        tasks.spawn(async move {
            loop {
                query.after = page.next.clone();
                if out.send(Ok(page_to_proto(page))).await.is_err() || query.after.is_none() {
                    return;
                }
                page = match api.ended_page(uid, query.clone()).await {
                    Ok(page) => page,
                    Err(error) => {
                        // A caller that is gone needs no error.
                        let _ = out.send(Err(error)).await;
                        return;
                    }
                };
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(pages))))
    }

    async fn status(&self, request: Request<v1::AccountingStatusRequest>) -> Result<Response<v1::AccountingStatusResponse>, Status> {
        self.user(&request).await?;
        let caller = self.caller(&request).await?;
        let mut shown = self.accounting_status().await?;
        let has_causes = !shown.problem.is_empty() || !shown.sinks.is_empty();
        if has_causes && !self.sees_causes(&caller, &request).await? {
            without_causes(&mut shown);
        }
        Ok(Response::new(shown))
    }

    async fn move_store(&self, request: Request<v1::MoveStoreRequest>) -> Result<Response<v1::AccountingStatusResponse>, Status> {
        let operator = self.operator(&request).await?;
        let (by, force) = (operator.name.clone(), request.into_inner().force);
        self.done(&operator.asks(Action::MoveAccounting { by, force })).await?;
        self.accounting_status().await.map(Response::new)
    }
}

impl Api {
    /// Whether the caller runs the cluster: causes name machines and what lies there.
    async fn sees_causes<T>(&self, caller: &Caller, request: &Request<T>) -> Result<bool, Status> {
        if caller.within.is_some() {
            return Ok(false);
        }
        // A credential that proves nothing shows nothing: the call itself is everybody's.
        if self.operator_by_token(request).await.is_ok_and(|operator| operator.is_some()) {
            return Ok(true);
        }
        let roles = self.standing(caller).await?.roles;
        Ok(roles.operator || roles.system_admin || roles.root)
    }

    /// How far accounting is, without any record.
    async fn ends(&self) -> Result<EndedWorkPage, Status> {
        let ask = Ask::EndedWork { after: u64::MAX, limit: 0 };
        match self.quorum.call(&ask, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
            Answer::EndedWork(page) => Ok(*page),
            other => Err(unexpected(&other)),
        }
    }

    /// The node of the agent that stores ended work now.
    async fn storing_node(&self) -> Result<Option<NodeId>, Status> {
        let leases = self.leases().await?;
        Ok(leases.into_iter().find(|lease| lease.name == ACCOUNTING_LEASE).map(|lease| lease.holder))
    }

    /// One page from the store, wherever it is. A user's questions wait for those that this user asked before.
    pub(super) async fn ended_page(&self, uid: u32, query: HistoryQuery) -> Result<HistoryPage, Status> {
        let _turn = self.limits.own_questions.of(uid).acquire_owned().await.expect("never closed");
        let Some(node) = self.storing_node().await? else {
            return Err(no_store(self.ends().await?.accounted.is_some()));
        };
        let address = self.mesh_address(&node).await;
        stores::page(&self.context, &node, address, query)
            .await
            .map_err(|error| Status::unavailable(format!("the store of ended work, at node {node}: {error}")))
    }

    /// The records of single tasks: each is that of its group with what the quorum knows of the task. A group that the
    /// store does not have, or whose record the query does not select, has none.
    async fn ended_tasks(&self, uid: u32, query: &HistoryQuery, tasks: &[v1::TaskOfJob]) -> Result<Vec<v1::HistoryRecord>, Status> {
        let mut records = Vec::new();
        for v1::TaskOfJob { job, index } in tasks {
            // The states are those of the tasks.
            let of_group = HistoryQuery { jobs: vec![*job], states: Vec::new(), limit: 1, ..query.clone() };
            let Some(group) = self.ended_page(uid, of_group).await?.work.into_iter().next() else { continue };
            let Some(task) = ended_task(self, group.allocation, *index).await? else { return Err(task_forgotten(*job, *index)) };
            let record = of_task(work_to_proto(group), *index, task);
            if query.states.is_empty() || query.states.iter().any(|state| state.to_string() == record.state) {
                records.push(record);
            }
        }
        Ok(records)
    }

    async fn accounting_status(&self) -> Result<v1::AccountingStatusResponse, Status> {
        let EndedWorkPage { accounted, ended, waiting, dropped, .. } = self.ends().await?;
        let node = self.storing_node().await?;
        let report = match &node {
            Some(node) => {
                let report = stores::status(&self.context, node, self.mesh_address(node).await).await;
                report.unwrap_or_else(|error| problem(format!("the agent of node {node} does not say how its store is: {error}")))
            }
            None if accounted.is_some() => problem(no_store(true).message().to_owned()),
            None => stores::StoreReport::default(),
        };
        Ok(v1::AccountingStatusResponse {
            is_on: accounted.is_some(),
            store: accounted.map(|until| until.store.to_string()).unwrap_or_default(),
            kind: report.kind,
            node: node.map(|node| node.to_string()).unwrap_or_default(),
            ended,
            stored: accounted.map_or(0, |until| until.sequence),
            waiting,
            dropped,
            problem: report.problem,
            sinks: report.sinks.into_iter().map(sink_to_proto).collect(),
        })
    }
}

/// What everybody sees of a problem.
const DEGRADED: &str = "degraded: ended work is not stored at present, and waits; operators see why";
/// What everybody sees of a sink's problem.
const SINK_DEGRADED: &str = "degraded: the latest delivery failed; operators see why";

/// Leaves what everybody may know: where a sink is, and why something fails, is for those who run the cluster.
fn without_causes(shown: &mut v1::AccountingStatusResponse) {
    if !shown.problem.is_empty() {
        DEGRADED.clone_into(&mut shown.problem);
    }
    for sink in &mut shown.sinks {
        sink.target.clear();
        if !sink.problem.is_empty() {
            SINK_DEGRADED.clone_into(&mut sink.problem);
        }
    }
}

fn problem(problem: String) -> stores::StoreReport {
    stores::StoreReport { problem, ..stores::StoreReport::default() }
}

fn sink_to_proto(sink: SinkStatus) -> v1::AccountingSink {
    let SinkStatus { kind, target, delivered, waiting, lag_ms, problem } = sink;
    v1::AccountingSink { kind, target, delivered, waiting, lag_ms, problem }
}

/// `is_on`: whether ended work is stored in this cluster at all.
fn no_store(is_on: bool) -> Status {
    if is_on {
        let text = "no agent with the role accounting has its lease now, so ended work waits in the quorum";
        return Status::unavailable(format!("{text}\nhint: `lattice node status NODE` of that agent shows why"));
    }
    let text = "ended work is not stored in this cluster";
    Status::failed_precondition(format!("{text}\nhint: `lattice status --all` shows work that ended a short time ago"))
}

fn of_account(user: &Principal) -> Visible {
    Visible::Only { own: Some((user.name.clone(), user.uid)), tenants: BTreeMap::new() }
}

/// Whose ended work these roles show by a method. `own`: whose own work is part of it.
fn visible(roles: &Roles, method: &str, own: Option<&Principal>) -> Visible {
    let own = own.map(|user| (user.name.clone(), user.uid));
    let since = |tenant: &String| (tenant.clone(), roles.admin_since.get(tenant).copied().unwrap_or_default());
    match rule(method).map_or(Reach::Nothing, |rule| roles.reach(rule)) {
        Reach::Everything => Visible::All,
        Reach::OwnTenant => Visible::Only { own, tenants: roles.admin_of.iter().map(since).collect() },
        Reach::Nothing | Reach::Own => Visible::Only { own, tenants: BTreeMap::new() },
    }
}

/// What is visible, unless the question names a user or a tenant of which nothing is.
fn shows(visible: &Visible, asked: &v1::HistoryRequest, by: &Principal) -> Result<Visible, Status> {
    if let Visible::Only { own, tenants } = visible {
        let is_own = own.is_some() && (asked.user.is_empty() || asked.user == by.name);
        let of_tenant = if asked.tenant.is_empty() { !tenants.is_empty() } else { tenants.contains_key(&asked.tenant) };
        if !is_own && !of_tenant {
            let whose = match (asked.user.as_str(), asked.tenant.as_str()) {
                ("", tenant) => format!("tenant {tenant:?}"),
                (user, "") => format!("user {user}"),
                (user, tenant) => format!("user {user} in tenant {tenant:?}"),
            };
            let text = format!("ended work of {whose} is shown to operators, and to admins of its tenant");
            return Err(Status::permission_denied(format!("{text}\nhint: `lattice whoami` shows which roles you have")));
        }
    }
    Ok(visible.clone())
}

/// The question, once its form is checked.
fn question(asked: v1::HistoryRequest, visible: Visible, kind: HistoryKind) -> Result<HistoryQuery, Status> {
    let names = [&asked.user, &asked.tenant, &asked.project, &asked.vcluster, &asked.name];
    let tags_fit = asked.tags.len() <= TAGS_MAX && asked.tags.iter().all(|(key, value)| key.len().max(value.len()) <= NAME_BYTES_MAX);
    if names.iter().any(|name| name.len() > NAME_BYTES_MAX) || !tags_fit {
        return Err(Status::invalid_argument(format!("a name or tag has at most {NAME_BYTES_MAX} bytes, and a question {TAGS_MAX} tags")));
    }
    if asked.jobs.len() > JOBS_MAX {
        return Err(Status::invalid_argument(format!("a question has at most {JOBS_MAX} job numbers: ask several times")));
    }
    if asked.tasks.len() > TASKS_MAX {
        return Err(Status::invalid_argument(format!("a question has at most {TASKS_MAX} single tasks: ask several times")));
    }
    if !asked.tasks.is_empty() && kind != HistoryKind::NewestFirst {
        let text = "single tasks have no sums and are in no export";
        return Err(Status::invalid_argument(format!("{text}\nhint: name the whole job: its use is in the records of its lanes")));
    }
    let states = asked.states.iter().map(|name| state(name)).collect::<Result<Vec<_>, _>>()?;
    let after = match asked.page_token.as_str() {
        "" => None,
        token => {
            let cursor = token.parse::<HistoryCursor>().ok().filter(|cursor| cursor.is_of(kind)).ok_or(HistoryCursorError);
            Some(cursor.map_err(|error| Status::invalid_argument(format!("page_token: {error}")))?)
        }
    };
    Ok(HistoryQuery {
        visible,
        kind,
        states,
        jobs: asked.jobs,
        part_of: None,
        after,
        user: asked.user,
        tenant: asked.tenant,
        project: asked.project,
        vcluster: asked.vcluster,
        name: asked.name,
        tags: asked.tags.into_iter().collect(),
        from: Timestamp(asked.from_ms),
        until: Timestamp(if asked.until_ms == 0 { u64::MAX } else { asked.until_ms }),
        limit: if asked.limit == 0 { PAGE_LEN } else { asked.limit.min(PAGE_LEN_MAX) },
    })
}

fn state(name: &str) -> Result<AllocationState, Status> {
    let states = [AllocationState::Completed, AllocationState::Failed, AllocationState::Cancelled];
    let found = states.into_iter().find(|state| state.to_string().eq_ignore_ascii_case(name));
    found.ok_or_else(|| Status::invalid_argument(format!("{name:?} is not a state of ended work: Completed, Failed or Cancelled")))
}

fn page_to_proto(page: HistoryPage) -> v1::HistoryResponse {
    v1::HistoryResponse {
        work: page.work.into_iter().map(work_to_proto).collect(),
        sums: page.sums.into_iter().map(sum_to_proto).collect(),
        next_page_token: page.next.map(|next| next.to_string()).unwrap_or_default(),
        behind: 0,
    }
}

fn work_to_proto(work: EndedWork) -> v1::HistoryRecord {
    let time = |time: Option<Timestamp>| time.map_or(0, |time| time.0);
    v1::HistoryRecord {
        sequence: work.sequence,
        id: work.allocation.to_string(),
        job: work.job,
        task: None,
        name: work.name,
        user: work.user,
        uid: work.uid,
        tenant: work.tenant,
        project: work.project,
        vcluster: work.vcluster,
        tags: work.tags.into_iter().collect(),
        state: work.state.to_string(),
        reason: work.reason,
        exit_code: work.exit_code,
        nodes: work.nodes,
        node_count: work.node_count,
        submitted_at_ms: work.submitted_at.0,
        claimed_at_ms: time(work.claimed_at),
        started_at_ms: time(work.started_at),
        ended_at_ms: work.ended_at.0,
        requeue_count: work.requeue_count,
        preempted_count: work.preempted_count,
        node_ms: work.used.node_ms,
        gpu_ms: work.used.gpu_ms,
        core_ms: work.core_ms,
        part_of: work.part_of.map(|id| id.to_string()).unwrap_or_default(),
    }
}

/// The record of one task, of that of its group.
fn of_task(group: v1::HistoryRecord, index: u32, task: EndedTask) -> v1::HistoryRecord {
    let EndedTask { range, ordinal, node_count } = task;
    v1::HistoryRecord {
        task: Some(index),
        id: format!("{}[{index}]", group.id),
        job: group.job + u64::from(ordinal),
        state: range.state,
        reason: range.reason,
        exit_code: range.exit_code,
        // The head node of the lane that ran it last.
        nodes: range.nodes.into_iter().next_back().unwrap_or_default(),
        node_count,
        claimed_at_ms: 0,
        started_at_ms: 0,
        ended_at_ms: 0,
        requeue_count: range.restarts,
        preempted_count: 0,
        node_ms: 0,
        gpu_ms: 0,
        core_ms: 0,
        ..group
    }
}

fn task_forgotten(job: u64, index: u32) -> Status {
    let text = format!("how task {index} of job {job} ended is not known any more: the store has the record of the whole job");
    Status::not_found(format!("{text}\nhint: `lattice history --job {job}` shows that"))
}

fn sum_to_proto(UseSum { user, tenant, project, count, used, core_ms }: UseSum) -> v1::UseSum {
    v1::UseSum { user, tenant, project, count, node_ms: used.node_ms, gpu_ms: used.gpu_ms, core_ms }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ada() -> Principal {
        Principal { name: "ada".into(), uid: 7, gid: 7, groups: vec![] }
    }

    fn since() -> BTreeMap<String, Timestamp> {
        [("physics".to_owned(), Timestamp(5))].into()
    }

    fn asks(user: &str, tenant: &str) -> v1::HistoryRequest {
        v1::HistoryRequest { user: user.to_owned(), tenant: tenant.to_owned(), ..Default::default() }
    }

    #[test]
    fn users_see_their_own_admins_of_tenants_theirs_and_operators_all() {
        let admin = Roles { admin_of: ["physics".to_owned()].into(), admin_since: since(), ..Roles::default() };
        let operator = Roles { operator: true, ..Roles::default() };
        let root = Roles { root: true, ..Roles::default() };
        let of = |roles: &Roles, method: &str| visible(roles, method, Some(&ada()));
        let own = Some(("ada".to_owned(), 7));
        assert_eq!(of(&Roles::default(), "AccountingService/History"), of_account(&ada()));
        assert_eq!(of(&root, "AccountingService/History"), of_account(&ada()));
        assert_eq!(of(&admin, "AccountingService/History"), Visible::Only { own: own.clone(), tenants: since() });
        assert_eq!(of(&operator, "AccountingService/History"), Visible::All);
        assert_eq!(of(&operator, "AccountingService/Export"), Visible::All);
        assert_eq!(of(&Roles::default(), "AccountingService/Export"), Visible::Only { own, tenants: BTreeMap::new() });
    }

    #[test]
    fn causes_and_where_sinks_are_are_for_those_who_run_the_cluster() {
        let sink = |problem: &str| v1::AccountingSink {
            kind: "http".into(),
            target: "https://billing.example.org/x".into(),
            delivered: 8,
            problem: problem.into(),
            ..Default::default()
        };
        let mut shown = v1::AccountingStatusResponse {
            problem: "/var/lib/lattice: disk full".into(),
            sinks: vec![sink("401 of 10.0.0.7"), sink("")],
            ended: 9,
            ..Default::default()
        };
        without_causes(&mut shown);
        assert_eq!((shown.problem.as_str(), shown.ended), (DEGRADED, 9));
        let sinks: Vec<_> = shown.sinks.iter().map(|sink| (sink.target.as_str(), sink.problem.as_str(), sink.delivered)).collect();
        assert_eq!(sinks, [("", SINK_DEGRADED, 8), ("", "", 8)]);
        let mut none = v1::AccountingStatusResponse::default();
        without_causes(&mut none);
        assert_eq!(none, v1::AccountingStatusResponse::default());
    }

    #[test]
    fn a_question_about_somebody_else_is_refused_and_not_answered_by_nothing() {
        let may = |visible: &Visible, user: &str, tenant: &str| shows(visible, &asks(user, tenant), &ada()).is_ok();
        let own = of_account(&ada());
        assert!(may(&own, "", "") && may(&own, "ada", "") && may(&own, "ada", "biology") && may(&own, "", "biology"));
        let refused = shows(&own, &asks("eve", ""), &ada()).unwrap_err();
        assert_eq!(
            (refused.code(), refused.message()),
            (
                tonic::Code::PermissionDenied,
                "ended work of user eve is shown to operators, and to admins of its tenant\n\
                 hint: `lattice whoami` shows which roles you have"
            )
        );
        let admin = Visible::Only { own: None, tenants: since() };
        assert!(may(&admin, "", "") && may(&admin, "eve", "") && may(&admin, "eve", "physics"));
        assert!(!may(&admin, "", "biology") && !may(&admin, "ada", "biology"));
        assert!(may(&Visible::All, "eve", "biology"));
    }

    #[test]
    fn a_malformed_question_is_refused_by_what_is_wrong_with_it() {
        let asked = |request: v1::HistoryRequest| question(request, Visible::All, HistoryKind::NewestFirst);
        let wrong = [
            (v1::HistoryRequest { states: vec!["running".into()], ..Default::default() }, "is not a state of ended work"),
            (v1::HistoryRequest { page_token: "x".into(), ..Default::default() }, "page_token: "),
            (v1::HistoryRequest { page_token: "s.61.61.61".into(), ..Default::default() }, "page_token: "),
            (asks(&"x".repeat(2000), ""), "at most 1024 bytes"),
            (v1::HistoryRequest { jobs: vec![1; 1001], ..Default::default() }, "at most 1000 job numbers"),
            (v1::HistoryRequest { tasks: vec![v1::TaskOfJob::default(); 17], ..Default::default() }, "at most 16 single tasks"),
        ];
        for (request, piece) in wrong {
            let refused = asked(request).unwrap_err();
            assert!(refused.code() == tonic::Code::InvalidArgument && refused.message().contains(piece), "{refused}");
        }
        let plain = asked(v1::HistoryRequest { states: vec!["failed".into()], page_token: "w.9.3".into(), ..Default::default() }).unwrap();
        assert_eq!((plain.states, plain.limit, plain.until), (vec![AllocationState::Failed], 100, Timestamp(u64::MAX)));
        assert_eq!(plain.after, Some(HistoryCursor::Work { ended_at: Timestamp(9), sequence: 3 }));
        assert_eq!(asked(v1::HistoryRequest { limit: 9999, ..Default::default() }).unwrap().limit, 1000);
        let of_task = v1::HistoryRequest { tasks: vec![v1::TaskOfJob { job: 42, index: 7 }], ..Default::default() };
        assert!(asked(of_task.clone()).is_ok());
        let refused = question(of_task, Visible::All, HistoryKind::Sums).unwrap_err();
        assert!(refused.message().starts_with("single tasks have no sums"), "{refused}");
    }

    #[test]
    fn the_record_of_a_task_is_that_of_its_group_with_its_own_end() {
        let group = v1::HistoryRecord {
            id: "1f0c".into(),
            job: 42,
            name: "sweep".into(),
            state: "Failed".into(),
            submitted_at_ms: 5,
            ended_at_ms: 9,
            node_ms: 7,
            ..Default::default()
        };
        let nodes = vec!["n1".to_owned(), "n2".to_owned()];
        let range = v1::TaskRange { state: "Completed".into(), exit_code: Some(0), nodes, restarts: 1, ..Default::default() };
        let record = of_task(group, 30, EndedTask { range, ordinal: 3, node_count: 1 });
        assert_eq!((record.id.as_str(), record.job, record.task, record.name.as_str()), ("1f0c[30]", 45, Some(30), "sweep"));
        assert_eq!((record.state.as_str(), record.exit_code, record.nodes.as_str()), ("Completed", Some(0), "n2"));
        assert_eq!((record.submitted_at_ms, record.ended_at_ms, record.node_ms, record.requeue_count), (5, 0, 0, 1));
    }
}
