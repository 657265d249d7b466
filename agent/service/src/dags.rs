//! `DagService`: submissions of whole graphs, their states, and their cancellation.
//!
//! ```text
//!   names, edges ──dag_graph::order──▶ order ─╮
//!   other allocations ──looked up──▶ ids ─────┼─▶ specifications of the model ──▶ quorum: all steps or none
//!   images ──read once each──▶ digests ───────╯         any fault: all faults are named, nothing is submitted
//! ```

use super::Api;
use super::allocations::LIST_MAX;
use super::api::QUORUM_TIMEOUT;
use super::dag_graph::{self, GraphFault, NamedStep};
use super::dependencies::whole_id;
use super::images;
use super::mail;
use super::niceness;
use super::privacy::Viewer;
use super::refusal::{status, unexpected};
use super::servable::servable;
use futures::{StreamExt, stream};
use lattice_api::dag::{StepNow, counts_to_proto, to_proto};
use lattice_api::spec::{ImageRequest, is_singleton, singleton};
use lattice_api::v1;
use lattice_api::v1::dag_service_server::DagService;
use lattice_ledger::Action;
use lattice_model::spec::SPEC_BYTES_MAX;
use lattice_model::{AllocationId, AllocationState, Dag, DagId, DagStep, DagSubmission, Principal, Step, Timestamp};
use lattice_quorum_client::CallError;
use lattice_quorum_client::wire::{Answer, DagCursor, DagFilter, DagStatus, DagSummary, Refusal, Request as Ask};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;
use tonic::{Code, Request, Response, Status};

/// Timeout of a submission: one command makes thousands of allocations.
const SUBMIT_TIMEOUT: Duration = Duration::from_secs(15);
/// How many faults an answer names.
const FAULTS_SHOWN_MAX: usize = 20;
/// How many other allocations the steps of a DAG may name in all.
const OTHERS_MAX: usize = 1000;
/// Requests to the quorum at once.
const LOOKUPS_AT_ONCE: usize = 16;

#[tonic::async_trait]
impl DagService for Api {
    async fn submit(&self, request: Request<v1::SubmitDagRequest>) -> Result<Response<v1::SubmitDagResponse>, Status> {
        let owner = self.user(&request).await?;
        self.may_own_work(&owner)?;
        let caller = self.caller(&request).await?;
        let viewer = self.viewer(&caller).await;
        let request = request.into_inner();
        let dry_run = request.dry_run;
        let id: DagId = request.id.parse().map_err(|e: lattice_model::ids::IdError| Status::invalid_argument(e.to_string()))?;
        let most = self.dag_size().await?;
        if request.steps.len() > most as usize {
            return Err(status(&CallError::Refused(Refusal::DagSize { steps: request.steps.len() as u64, most })));
        }
        let (submission, mut warnings) = Submission { api: self, viewer, owner: &owner }.read(request).await?;
        self.check_tenants(&caller, submission.steps.iter().map(|step| step.spec.tenant.clone()).collect()).await?;
        niceness::check(self, &caller, submission.steps.iter().map(|step| step.spec.nice).min().unwrap_or_default()).await?;
        if let Some(step) = submission.steps.iter().find(|step| step.spec.mail.is_some()) {
            warnings.extend(Some(mail::warning(self, &step.spec).await?).filter(|text| !text.is_empty()));
        }
        let ask = match dry_run {
            true => Ask::CheckDag { owner: owner.clone(), dag: Box::new(submission.clone()), login_tenants: caller.login_tenants() },
            false => {
                let submit = Action::SubmitDag { id, owner: owner.clone(), dag: Box::new(submission.clone()) };
                Ask::from(submit.by_login(caller.login_tenants()))
            }
        };
        match self.quorum.call(&ask, SUBMIT_TIMEOUT).await.map_err(|e| status(&e))? {
            Answer::Done { .. } => {}
            other => return Err(unexpected(&other)),
        }
        let mut dag = submitted(id, &owner, submission);
        if dry_run {
            dag.id = String::new();
        }
        Ok(Response::new(v1::SubmitDagResponse { dag: Some(dag), warnings }))
    }

    async fn get(&self, request: Request<v1::GetDagRequest>) -> Result<Response<v1::Dag>, Status> {
        let caller = self.caller(&request).await?;
        let v1::GetDagRequest { key, stale } = request.into_inner();
        let (answer, age_ms) = self.ask(Ask::GetDag { key }, stale).await?;
        let found = dag_of(answer)?;
        self.check_dag(&caller, &found.dag, &found.tenant).await?;
        Ok(Response::new(v1::Dag { age_ms, ..shown(found) }))
    }

    async fn list(&self, request: Request<v1::ListDagsRequest>) -> Result<Response<v1::ListDagsResponse>, Status> {
        let viewer = self.viewer_if(&self.caller(&request).await?, request.get_ref().all_users).await;
        let user = self.user(&request).await?;
        let request = request.into_inner();
        let states: Result<Vec<AllocationState>, _> = request.states.iter().map(|s| lattice_api::allocation::state_from_name(s)).collect();
        let states = states.map_err(|e| Status::invalid_argument(e.to_string()))?;
        let uid = if request.all_users && viewer.sees_all() { None } else { Some(user.uid) };
        let limit = if request.limit == 0 { 100 } else { request.limit.min(LIST_MAX) };
        let before = cursor(&request.page_token)?;
        let filter = DagFilter { uid, user: Some(request.user).filter(|user| !user.is_empty()), states };
        let question = Ask::ListDags { filter, limit, before };
        let (dags, more) = match self.quorum.call(&question, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
            Answer::DagPage { dags, more } => (dags, more),
            other => return Err(unexpected(&other)),
        };
        let next_page_token = dags.last().filter(|_| more).map_or(String::new(), |dag| format!("{}:{}", dag.submitted_at.0, dag.id));
        Ok(Response::new(v1::ListDagsResponse { dags: dags.iter().map(summary).collect(), next_page_token }))
    }

    async fn cancel(&self, request: Request<v1::CancelDagRequest>) -> Result<Response<v1::CancelDagResponse>, Status> {
        let caller = self.caller(&request).await?;
        let v1::CancelDagRequest { key } = request.into_inner();
        let (answer, _) = self.ask(Ask::GetDag { key }, false).await?;
        let DagStatus { dag, tenant, .. } = dag_of(answer)?;
        self.check_dag(&caller, &dag, &tenant).await?;
        let counts = dag.counts();
        self.done(&Ask::from(Action::CancelDag { id: dag.id, by: caller.principal })).await?;
        let state = if counts.unended == 0 { counts.state().to_string() } else { String::new() };
        Ok(Response::new(v1::CancelDagResponse { id: dag.id.to_string(), steps: counts.unended, state }))
    }
}

impl Api {
    /// How many steps a DAG may have.
    async fn dag_size(&self) -> Result<u32, Status> {
        match self.quorum.call(&Ask::GetLimits, QUORUM_TIMEOUT).await.map_err(|e| status(&e))? {
            Answer::Limits(now) => Ok(now.limits.dag_size.steps()),
            other => Err(unexpected(&other)),
        }
    }
}

fn dag_of(answer: Answer) -> Result<DagStatus, Status> {
    match answer {
        Answer::Dag(found) => Ok(*found),
        other => Err(unexpected(&other)),
    }
}

fn shown(found: DagStatus) -> v1::Dag {
    let now = found.steps.into_iter().map(|step| StepNow { state: step.state.to_string(), reason: step.reason, others: step.others });
    to_proto(&found.dag, &now.collect::<Vec<_>>())
}

fn summary(dag: &DagSummary) -> v1::Dag {
    v1::Dag {
        id: dag.id.to_string(),
        name: dag.name.clone(),
        owner: dag.owner.name.clone(),
        state: dag.counts.state().to_string(),
        submitted_at_ms: dag.submitted_at.0,
        counts: Some(counts_to_proto(dag.counts)),
        ..Default::default()
    }
}

/// A DAG as it was submitted just now.
fn submitted(id: DagId, owner: &Principal, submission: DagSubmission) -> v1::Dag {
    let caught = submission.caught();
    let step = |DagStep { name, allocation, spec, .. }: DagStep| {
        let is_caught = caught.contains(&allocation);
        Step { name, allocation, depends_on: spec.depends_on, is_caught, end: None }
    };
    let steps: Vec<Step> = submission.steps.into_iter().map(step).collect();
    let now = vec![StepNow { state: AllocationState::Pending.to_string(), ..StepNow::default() }; steps.len()];
    let at = lattice_agent_common::clock::now();
    // The digest is the ledger's: it is not shown.
    to_proto(&Dag { id, name: submission.name, owner: owner.clone(), submitted_at: at, steps, records: 0, digest: [0; 32] }, &now)
}

fn cursor(token: &str) -> Result<Option<DagCursor>, Status> {
    if token.is_empty() {
        return Ok(None);
    }
    let parsed =
        token.split_once(':').and_then(|(at, id)| Some(DagCursor { submitted_at: Timestamp(at.parse().ok()?), id: id.parse().ok()? }));
    parsed.map(Some).ok_or_else(|| Status::invalid_argument("page_token: it is not from an earlier answer"))
}

/// A submission that is being read.
struct Submission<'a> {
    api: &'a Api,
    viewer: Viewer,
    owner: &'a Principal,
}

impl Submission<'_> {
    /// The submission for the quorum, in order, and warnings.
    async fn read(&self, request: v1::SubmitDagRequest) -> Result<(DagSubmission, Vec<String>), Status> {
        let v1::SubmitDagRequest { id: _, name, mut steps, mut env, dry_run: _ } = request;
        if !steps.iter().any(|step| step.takes_env) {
            env.clear();
        }
        check_env(&env)?;
        let mut specs = Vec::with_capacity(steps.len());
        for (number, step) in (1..).zip(&mut steps) {
            let spec = step.spec.take();
            specs.push(spec.ok_or_else(|| Status::invalid_argument(format!("step {number}: a specification is needed")))?);
        }
        let mut faults = Faults::default();
        let order = self.resolve(&steps, &mut specs, &mut faults).await?;
        self.read_images(&steps, &mut specs, &mut faults).await?;
        let (mut made, mut warnings) = (Vec::with_capacity(steps.len()), BTreeSet::new());
        for (step, spec) in steps.into_iter().zip(specs) {
            let name = step.name.clone();
            match self.step(step, spec, &env) {
                Ok((step, warning)) => {
                    warnings.extend(Some(warning).filter(|text| !text.is_empty()));
                    made.push(Some(step));
                }
                Err(refused) => {
                    faults.add(|| format!("step {name:?}: {}", without_hint(refused.message())));
                    made.push(None);
                }
            }
            // Each copies the environment of all steps: let other requests run in between.
            tokio::task::yield_now().await;
        }
        faults.none()?;
        let steps = order.into_iter().filter_map(|number| made.get_mut(number).and_then(Option::take)).collect();
        Ok((DagSubmission { name, env: env.into_iter().collect(), steps }, warnings.into_iter().collect()))
    }

    /// Replaces what the steps depend on by ids. Returns the order of the steps.
    async fn resolve(&self, steps: &[v1::DagStep], specs: &mut [v1::AllocationSpec], faults: &mut Faults) -> Result<Vec<usize>, Status> {
        // A singleton names nothing.
        let singletons: Vec<bool> = specs.iter_mut().map(take_singleton).collect();
        let named: Vec<NamedStep<'_>> = steps
            .iter()
            .zip(&*specs)
            .map(|(step, spec)| NamedStep { name: &step.name, depends_on: spec.depends_on.iter().map(|on| on.r#ref.as_str()).collect() })
            .collect();
        if let Err(fault) = dag_graph::check_sizes(&named) {
            faults.add(|| fault.to_string());
            faults.none()?;
        }
        let order = dag_graph::order(&named).unwrap_or_else(|found| {
            found.iter().for_each(|fault| faults.add(|| fault.to_string()));
            Vec::new()
        });
        let inner: BTreeMap<&str, &str> = steps.iter().map(|step| (step.name.as_str(), step.id.as_str())).collect();
        let others: BTreeSet<&str> = named.iter().flat_map(|step| &step.depends_on).copied().filter(|on| !inner.contains_key(on)).collect();
        let found = self.look_up(others.into_iter().filter(|on| looks_like_id(on)).map(str::to_owned).collect()).await?;
        let unknown = |step: &NamedStep<'_>, on: &str| !inner.contains_key(on) && !found.contains_key(on) && !step.name.is_empty();
        for step in &named {
            let of_step = step.depends_on.iter().filter(|on| unknown(step, on));
            of_step.for_each(|on| faults.add(|| GraphFault::unknown(step.name, on, &named).to_string()));
        }
        let id = |on: &&str| inner.get(*on).map(|id| (*id).to_owned()).or_else(|| found.get(*on).map(ToString::to_string));
        let ids: Vec<Vec<Option<String>>> = named.iter().map(|step| step.depends_on.iter().map(id).collect()).collect();
        drop(named);
        for ((spec, ids), is_singleton) in specs.iter_mut().zip(ids).zip(singletons) {
            let edges = std::mem::take(&mut spec.depends_on).into_iter().zip(ids);
            // An unknown reference is already reported as a fault, and the specification is
            // refused.
            let edges = edges.filter_map(|(edge, id)| Some(v1::Dependency { r#ref: id?, ..edge }));
            spec.depends_on = edges.chain(is_singleton.then(singleton)).collect();
        }
        Ok(order)
    }

    /// The ids of other allocations, by the prefixes that the submitter wrote. Those that the submitter
    /// may not see, and those that do not exist, are left out.
    async fn look_up(&self, keys: Vec<String>) -> Result<BTreeMap<String, AllocationId>, Status> {
        if keys.len() > OTHERS_MAX {
            let text = format!("the steps depend on {} allocations that are no steps of the DAG; {OTHERS_MAX} are possible", keys.len());
            return Err(Status::invalid_argument(text));
        }
        let asked: Vec<_> = keys.into_iter().map(|key| async move { (key.clone(), whole_id(self.api, &self.viewer, key).await) }).collect();
        let mut answers = stream::iter(asked).buffered(LOOKUPS_AT_ONCE);
        let mut found = BTreeMap::new();
        while let Some((key, answer)) = answers.next().await {
            match answer {
                Ok(id) => {
                    found.insert(key, id);
                }
                Err(refused) if refused.code() == Code::NotFound => {}
                Err(refused) => return Err(refused),
            }
        }
        Ok(found)
    }

    /// Records the digests of the images that the steps name. Each image is read once.
    async fn read_images(&self, steps: &[v1::DagStep], specs: &mut [v1::AllocationSpec], faults: &mut Faults) -> Result<(), Status> {
        let mut known: BTreeMap<String, String> = BTreeMap::new();
        for (step, spec) in steps.iter().zip(specs) {
            let image: Option<ImageRequest> = match lattice_api::spec::image_request(spec) {
                Ok(image) => image,
                Err(error) => {
                    faults.add(|| format!("step {:?}: {error}", step.name));
                    continue;
                }
            };
            let (Some(image), Some(environment)) = (image, &mut spec.environment) else { continue };
            if !known.contains_key(&environment.uenv) {
                match images::digest(self.api, self.owner, image).await {
                    Ok(sha256) => {
                        known.insert(environment.uenv.clone(), sha256);
                    }
                    Err(refused) if refused.code() == Code::Unavailable => return Err(refused),
                    Err(refused) => {
                        faults.add(|| format!("step {:?}: {}", step.name, refused.message()));
                        // No digest: the reason is named once.
                        known.insert(environment.uenv.clone(), String::new());
                    }
                }
            }
            environment.sha256 = known.get(&environment.uenv).cloned().unwrap_or_default();
            if environment.sha256.is_empty() {
                spec.environment = None;
            }
        }
        Ok(())
    }

    /// One step for the quorum, and a warning; an empty text: there is nothing to warn of.
    fn step(&self, step: v1::DagStep, mut spec: v1::AllocationSpec, env: &HashMap<String, String>) -> Result<(DagStep, String), Status> {
        let v1::DagStep { name, id, spec: _, takes_env, wait_for_nodes } = step;
        let allocation: AllocationId = id.parse().map_err(|e: lattice_model::ids::IdError| Status::invalid_argument(e.to_string()))?;
        if takes_env {
            env.iter().for_each(|(name, value)| {
                spec.env.entry(name.clone()).or_insert_with(|| value.clone());
            });
        }
        let mut model = lattice_api::spec::to_model(&spec).map_err(|e| lattice_api::spec::status(&e))?;
        let warning = match self.api.context.work.directory.knows_all() {
            true => servable(&self.api.cluster.borrow(), &model, wait_for_nodes)?,
            // The quorum refuses the submissions of such an agent.
            false => String::new(),
        };
        if takes_env {
            // The quorum adds these variables again.
            model.env.retain(|name, value| env.get(name) != Some(value));
        }
        Ok((DagStep { name, allocation, takes_env, spec: Box::new(model) }, warning))
    }
}

/// Removes the singleton entry from a step's dependencies. Returns whether there was one.
fn take_singleton(spec: &mut v1::AllocationSpec) -> bool {
    let before = spec.depends_on.len();
    spec.depends_on.retain(|dependency| !is_singleton(dependency));
    spec.depends_on.len() < before
}

/// Whether the text may be a job number, an id or a prefix of one.
fn looks_like_id(text: &str) -> bool {
    let is_number = text.parse::<u64>().is_ok() && !text.starts_with(['0', '+']);
    is_number || ((4..=36).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-'))
}

/// A message of a status without the hint that may follow it.
fn without_hint(message: &str) -> &str {
    message.split_once("\nhint: ").map_or(message, |(what, _)| what)
}

/// Refuses an environment that no specification could contain, before it is copied into each of them.
fn check_env(env: &HashMap<String, String>) -> Result<(), Status> {
    // Counted as a specification counts them.
    let bytes: usize = env.iter().map(|(name, value)| name.len() + value.len() + 8).sum();
    if bytes > SPEC_BYTES_MAX {
        let text = format!("the environment of the steps has {bytes} bytes; {SPEC_BYTES_MAX} are possible");
        return Err(Status::invalid_argument(text + "\nhint: unset variables, or write export: none in each step"));
    }
    Ok(())
}

/// What is wrong with a DAG: the first faults, and how many there are.
#[derive(Default)]
struct Faults {
    shown: Vec<String>,
    count: usize,
}

impl Faults {
    /// One more. Its text is made only if it will be shown.
    fn add(&mut self, text: impl FnOnce() -> String) {
        self.count += 1;
        if self.shown.len() < FAULTS_SHOWN_MAX {
            self.shown.push(text());
        }
    }

    /// Checks that there is none.
    ///
    /// # Errors
    /// All of them, as far as they are shown: the DAG is refused.
    fn none(&self) -> Result<(), Status> {
        if self.count == 0 { Ok(()) } else { Err(Status::invalid_argument(self.text())) }
    }

    fn text(&self) -> String {
        if let [only] = &self.shown[..] {
            return format!("the DAG is refused: {only}");
        }
        let shown: String = self.shown.iter().map(|fault| format!("\n  {fault}")).collect();
        let more = match self.count.saturating_sub(self.shown.len()) {
            0 => String::new(),
            more => format!("\n  and {more} more"),
        };
        format!("the DAG is refused for {} reasons:{shown}{more}", self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_fault_is_a_sentence_and_many_are_a_list_with_an_end() {
        let text = |count: usize| {
            let mut faults = Faults::default();
            (0..count).for_each(|number| faults.add(|| format!("fault {number}")));
            faults.text()
        };
        assert_eq!(text(1), "the DAG is refused: fault 0");
        assert_eq!(text(2), "the DAG is refused for 2 reasons:\n  fault 0\n  fault 1");
        let many = text(30);
        assert!(many.starts_with("the DAG is refused for 30 reasons:\n") && many.ends_with("\n  fault 19\n  and 10 more"), "{many}");
        assert!(Faults::default().none().is_ok());
        assert_eq!(without_hint("a\nhint: b"), "a");
    }

    #[test]
    fn the_texts_of_faults_that_are_not_shown_are_not_made() {
        let (mut faults, mut made) = (Faults::default(), 0);
        for _ in 0..1_000_000 {
            faults.add(|| {
                made += 1;
                String::new()
            });
        }
        assert_eq!((made, faults.count), (FAULTS_SHOWN_MAX, 1_000_000));
        let refused = faults.none().unwrap_err();
        assert!(refused.code() == Code::InvalidArgument && refused.message().ends_with("\n  and 999980 more"), "{refused}");
    }

    #[test]
    fn an_environment_that_no_specification_could_contain_is_refused() {
        let env = |bytes: usize| HashMap::from([("A".to_owned(), "x".repeat(bytes - 9))]);
        assert!(check_env(&env(SPEC_BYTES_MAX)).is_ok());
        let refused = check_env(&env(SPEC_BYTES_MAX + 1)).unwrap_err();
        assert_eq!(without_hint(refused.message()), "the environment of the steps has 65537 bytes; 65536 are possible");
    }

    #[test]
    fn a_position_in_the_list_survives_its_text() {
        let id = DagId(uuid::Uuid::from_u128(7));
        assert_eq!(cursor(&format!("5:{id}")).unwrap(), Some(DagCursor { submitted_at: Timestamp(5), id }));
        assert_eq!(cursor("").unwrap(), None);
        assert!(cursor("5").is_err() && cursor("x:y").is_err());
        assert!(looks_like_id("1f0c") && !looks_like_id("1f0") && !looks_like_id("train"));
        assert!(looks_like_id("7") && !looks_like_id("07") && !looks_like_id(""), "a job number");
    }
}
