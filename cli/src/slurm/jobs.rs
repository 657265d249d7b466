//! Asks for jobs, and for the tasks of arrays.

use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::listing;
use lattice_cli_session::session::answer;
use lattice_model::TaskIndices;
use lattice_slurm::array::{has_begun, number_count, rows};
use lattice_slurm::job::{Job, Part};
use lattice_slurm::job_id::{JobId, Step};
use lattice_slurm::state::States;
use lattice_slurm::units::listed;
use std::ops::Range;
use tokio::task::JoinSet;

/// Up to this many jobs are requested one by one; for more, all jobs are listed.
const ASKED_ONE_BY_ONE_MAX: usize = 8;
/// Waiting jobs of one page: they have no nodes, so that an answer has space for many.
const WAITING_PAGE_LEN: u32 = 5000;
/// Requests that are on their way at the same time.
pub const REQUESTS_MAX: usize = 16;
/// The most ranges of tasks that an agent sends.
const TASK_RANGES_MAX: u32 = 10_000;
/// Tasks of arrays whose nodes are requested, one request each. The nodes of further tasks are not shown.
const TASK_NODES_MAX: usize = 256;

/// A job that was asked for by its number.
#[derive(Clone, Debug)]
pub struct AskedJob {
    /// Its number.
    pub number: u64,
    /// Only these tasks of an array; `None`: all.
    pub tasks: Option<TaskIndices>,
    /// Only this step; `None`: all.
    pub step: Option<Step>,
}

/// Which jobs are wanted.
#[derive(Default)]
pub struct Wanted {
    /// Only these; `None`: all.
    pub ids: Option<Vec<AskedJob>>,
    /// Only of these users; empty: of all.
    pub users: Vec<String>,
    /// Only the caller's own, whatever this machine calls the caller: the agent chooses them.
    pub only_own: bool,
    /// Only with these names; empty: with any.
    pub names: Vec<String>,
    /// Only of these vClusters; empty: of all.
    pub vclusters: Vec<String>,
    /// Only of these tenants; empty: of all.
    pub tenants: Vec<String>,
    /// Reasons, places in the queue and expected starts are not shown, so that they need not be computed.
    pub without_outlook: bool,
}

/// The job numbers of an allocation.
fn numbers(a: &v1::Allocation) -> Range<u64> {
    a.number..a.number + number_count(a)
}

/// Reads lists of ids.
///
/// # Errors
/// One of them is no id of a job.
pub fn job_ids(texts: &[String]) -> Result<Vec<AskedJob>, Failure> {
    // Commas within brackets separate tasks.
    let mut parts: Vec<String> = Vec::new();
    for part in listed(texts) {
        match parts.last_mut() {
            Some(open) if open.contains('[') && !open.contains(']') => {
                open.push(',');
                open.push_str(&part);
            }
            _ => parts.push(part),
        }
    }
    let asked = |part: &String| {
        let id = part.parse::<JobId>().map_err(|error| Failure::other(error.to_string()))?;
        match (id.number(), id.het) {
            (Some(number), None) => Ok(AskedJob { number, tasks: id.tasks, step: id.step }),
            _ => Err(Failure::other(format!("Invalid job id specified: {part}")).hint("`lattice status` takes the ids of Lattice")),
        }
    };
    parts.iter().map(asked).collect()
}

impl Wanted {
    /// Whether this allocation is wanted: the request for a list cannot express all conditions.
    pub fn wants(&self, a: &v1::Allocation) -> bool {
        let among = |names: &[String], name: &str| names.is_empty() || names.iter().any(|wanted| wanted == name);
        let vcluster = if a.vcluster.is_empty() { lattice_model::DEFAULT_VCLUSTER } else { a.vcluster.as_str() };
        let is_named = self.ids.as_ref().is_none_or(|ids| {
            let numbers = numbers(a);
            ids.iter().any(|id| numbers.contains(&id.number))
        });
        is_named
            && a.number > 0
            && among(&self.users, &a.owner)
            && among(&self.names, &a.name)
            && among(&self.vclusters, vcluster)
            && among(&self.tenants, &a.tenant)
    }

    /// Whether this row of a wanted allocation is wanted.
    pub fn wants_row(&self, job: &Job) -> bool {
        let Some(ids) = &self.ids else { return true };
        let numbers = numbers(&job.allocation);
        ids.iter().any(|id| match (&id.tasks, &job.part) {
            (None, _) if id.number == job.base_number() => true,
            // A row of the whole array stands for the numbers of all its tasks; a task's row has its own number.
            (None, Part::Whole | Part::Waiting { .. }) => numbers.contains(&id.number),
            (None, Part::Task(_)) => id.number == job.number(),
            (Some(_), _) if id.number != job.base_number() => false,
            (Some(tasks), Part::Task(task)) => tasks.ordinal_of(task.index).is_some(),
            (Some(_), Part::Waiting { .. } | Part::Whole) => true,
        })
    }

    /// Whether this allocation needs a row for each task: `ids` names tasks of it by their indices, or by the numbers that
    /// follow the array's.
    fn is_about_tasks(&self, a: &v1::Allocation) -> bool {
        let numbers = numbers(a);
        let is_task = |id: &AskedJob| numbers.contains(&id.number) && (id.tasks.is_some() || id.number > a.number);
        self.ids.as_ref().is_some_and(|ids| ids.iter().any(is_task))
    }

    fn request(&self, states: Vec<String>, only_own: bool) -> v1::ListAllocationsRequest {
        let one = |names: &[String]| match names {
            [one] => one.clone(),
            _ => String::new(),
        };
        v1::ListAllocationsRequest {
            all_users: !only_own,
            states,
            user: if only_own { String::new() } else { one(&self.users) },
            name: one(&self.names),
            vcluster: one(&self.vclusters),
            tenant: one(&self.tenants),
            without_outlook: self.without_outlook,
            ..Default::default()
        }
    }

    /// The allocations that are wanted, in these states.
    ///
    /// # Errors
    /// The agent refuses or does not answer, or the only job that is wanted does not exist.
    pub async fn fetch(&self, client: &Client, states: &States) -> Result<Vec<v1::Allocation>, Failure> {
        if states.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(found) = self.fetch_by_number(client).await? {
            return Ok(found);
        }
        // Most programs ask for the caller's own jobs, and these are fewer than the jobs of all users.
        if let Some(ids) = self.ids.as_ref().filter(|_| !self.only_own && self.users.is_empty()) {
            let found = Box::pin(self.list(client, states, true)).await?;
            let numbers: Vec<Range<u64>> = found.iter().map(numbers).collect();
            if ids.iter().all(|id| numbers.iter().any(|numbers| numbers.contains(&id.number))) {
                return Ok(found);
            }
        }
        Box::pin(self.list(client, states, self.only_own)).await
    }

    /// The wanted allocations in the list of the caller's own work, or of all work.
    async fn list(&self, client: &Client, states: &States, only_own: bool) -> Result<Vec<v1::Allocation>, Failure> {
        // Waiting and other work are listed at the same time, because the pages of one list must follow each other.
        let (waiting, others): (Vec<String>, Vec<String>) = states.lattice_names().into_iter().partition(|state| state == "Pending");
        let part = async |states: Vec<String>, limit: u32| match states.is_empty() {
            true => Ok(Vec::new()),
            false => {
                let request = v1::ListAllocationsRequest { limit, ..self.request(states, only_own) };
                listing::fetch_all(client, request, usize::MAX).await.map(|found| found.allocations)
            }
        };
        let (waiting, others) = tokio::join!(part(waiting, WAITING_PAGE_LEN), part(others, 0));
        let mut found = waiting?;
        found.extend(others?);
        // Work that began between the two answers is in both.
        found.sort_by(|a, b| (a.number, &a.id).cmp(&(b.number, &b.id)));
        found.dedup_by(|a, b| a.id == b.id);
        found.retain(|a| self.wants(a));
        Ok(found)
    }

    /// Requests each of a few jobs by its number. `None`: they are too many, or perhaps not the caller's.
    async fn fetch_by_number(&self, client: &Client) -> Result<Option<Vec<v1::Allocation>>, Failure> {
        let is_few = |ids: &&Vec<AskedJob>| !self.only_own && !ids.is_empty() && ids.len() <= ASKED_ONE_BY_ONE_MAX;
        let Some(ids) = self.ids.as_ref().filter(is_few) else { return Ok(None) };
        let mut found: Vec<v1::Allocation> = Vec::new();
        for id in ids {
            let request = v1::GetAllocationRequest { key: id.number.to_string(), stale: false };
            match answer(client.allocations().get(request)).await {
                Ok(a) if !found.iter().any(|known| known.id == a.id) => found.push(a),
                Ok(_) => {}
                Err(failure) if failure.exit() == Exit::NotFound as u8 => {}
                // Only the list shows the visible part of others' work, and finds a number that is also the beginning of an id.
                Err(failure) if [Exit::Refused as u8, Exit::Usage as u8].contains(&failure.exit()) => return Ok(None),
                Err(failure) => return Err(failure),
            }
        }
        found.retain(|a| self.wants(a));
        Ok(Some(found))
    }
}

/// The rows of these allocations. `each`: also a row for each task of an array that waits.
///
/// # Errors
/// The agent refuses or does not answer.
pub async fn expand(client: &Client, allocations: Vec<v1::Allocation>, wanted: &Wanted, each: bool) -> Result<Vec<Job>, Failure> {
    let each = |allocation: &v1::Allocation| each || wanted.is_about_tasks(allocation);
    let mut jobs = Vec::with_capacity(allocations.len());
    let mut begun: Vec<v1::Allocation> = Vec::new();
    for allocation in allocations {
        // A list shortens many separate ranges of indices.
        if has_begun(&allocation) || allocation.task_group.contains("...") {
            begun.push(allocation);
        } else {
            let each = each(&allocation);
            jobs.extend(rows(allocation, &[], each));
        }
    }
    while !begun.is_empty() {
        let rest = begun.split_off(begun.len().min(REQUESTS_MAX));
        let mut requests = JoinSet::new();
        for allocation in std::mem::replace(&mut begun, rest) {
            let client = client.clone();
            requests.spawn(async move {
                let request = v1::GetTasksRequest { key: allocation.id.clone(), index: None, limit: TASK_RANGES_MAX, stale: false };
                let tasks = answer(client.allocations().get_tasks(request)).await;
                (allocation, tasks)
            });
        }
        while let Some(done) = requests.join_next().await {
            let (allocation, tasks) = done.map_err(|error| Failure::other(error.to_string()))?;
            let each = each(&allocation);
            match tasks {
                Ok(tasks) => jobs.extend(rows(allocation, &tasks.ranges, each)),
                // Others' tasks may be hidden: the array is shown as a whole.
                Err(failure) if failure.exit() == Exit::Refused as u8 => jobs.extend(rows(allocation, &[], each)),
                Err(failure) if failure.exit() == Exit::NotFound as u8 => {}
                Err(failure) => return Err(failure),
            }
        }
    }
    jobs.retain(|job| wanted.wants_row(job));
    Ok(jobs)
}

/// Requests the nodes of the first `TASK_NODES_MAX` array tasks that run or have ended.
///
/// # Errors
/// The agent refuses or does not answer.
pub async fn add_task_nodes(client: &Client, jobs: &mut [Job]) -> Result<(), Failure> {
    let mut places: Vec<(usize, String, u32)> = Vec::new();
    for (at, job) in jobs.iter().enumerate() {
        if let Part::Task(task) = &job.part
            && task.nodes.is_empty()
            && task.state != "Pending"
            && places.len() < TASK_NODES_MAX
        {
            places.push((at, job.allocation.id.clone(), task.index));
        }
    }
    for some in places.chunks(REQUESTS_MAX) {
        let mut requests = JoinSet::new();
        for (at, key, index) in some.iter().cloned() {
            let client = client.clone();
            requests.spawn(async move {
                let request = v1::GetTasksRequest { key, index: Some(index), limit: 1, stale: false };
                (at, answer(client.allocations().get_tasks(request)).await)
            });
        }
        while let Some(done) = requests.join_next().await {
            let (at, tasks) = done.map_err(|error| Failure::other(error.to_string()))?;
            let Ok(tasks) = tasks else { continue };
            if let (Some(Job { part: Part::Task(task), .. }), Some(range)) = (jobs.get_mut(at), tasks.ranges.into_iter().next()) {
                task.nodes = range.nodes;
            }
        }
    }
    Ok(())
}
