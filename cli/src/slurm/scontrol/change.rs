//! `scontrol hold`, `release`, `requeue`, `wait_job`. Each continues after a failure.

use crate::slurm::command_line::SCONTROL;
use crate::slurm::jobs::job_ids;
use lattice_api::allocation::state_from_name;
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::listing;
use lattice_cli_session::session::{Session, answer};
use lattice_model::AllocationState;

/// The keys of jobs: numbers, or `jobname=NAME` for all with this name that have not ended.
pub(super) async fn keys(client: &Client, words: &[String]) -> Result<Vec<String>, Failure> {
    let mut keys = Vec::new();
    for word in words {
        let named = word.split_once('=').filter(|(key, _)| ["name", "jobname"].contains(&key.to_ascii_lowercase().as_str()));
        if let Some((_, name)) = named {
            let states = ["Pending", "Staging", "Running", "Suspended"].map(str::to_owned).to_vec();
            let request = v1::ListAllocationsRequest { name: name.to_owned(), states, ..Default::default() };
            let found = listing::fetch_all(client, request, usize::MAX).await?.allocations;
            keys.extend(found.into_iter().map(|a| a.id));
            continue;
        }
        for id in job_ids(std::slice::from_ref(word))? {
            if id.tasks.is_some() || id.step.is_some() {
                return Err(Failure::other(format!("{word}: tasks and steps are not changed one by one"))
                    .hint(format!("job {} as a whole can be; `lattice cancel '{}[INDEX]'` cancels a task", id.number, id.number)));
            }
            keys.push(id.number.to_string());
        }
    }
    if keys.is_empty() { Err(Failure::other("no job is given, such as 12")) } else { Ok(keys) }
}

/// Reports a failure about a job, and returns the exit code.
pub(super) fn reported(key: &str, done: Result<(), Failure>) -> u8 {
    match done {
        Ok(()) => 0,
        Err(failure) => {
            SCONTROL.report(format_args!("job {key}: {}", failure.what()));
            1
        }
    }
}

pub async fn hold(session: &Session, words: &[String]) -> Result<u8, Failure> {
    let client = session.connect().await?;
    let mut code = 0;
    for key in keys(&client, words).await? {
        let done = answer(client.allocations().hold(v1::HoldAllocationRequest { key: key.clone() })).await;
        code |= reported(&key, done.map(drop));
    }
    Ok(code)
}

pub async fn release(session: &Session, words: &[String]) -> Result<u8, Failure> {
    let client = session.connect().await?;
    let mut code = 0;
    for key in keys(&client, words).await? {
        let done = answer(client.allocations().resume(v1::ResumeRequest { key: key.clone() })).await;
        code |= reported(&key, done.map(drop));
    }
    Ok(code)
}

pub async fn requeue(session: &Session, words: &[String], and_hold: bool) -> Result<u8, Failure> {
    let is_option = |word: &&String| ["incomplete"].contains(&word.to_ascii_lowercase().as_str());
    if let Some(option) = words.iter().find(is_option) {
        return Err(Failure::other(format!("{option} is not possible: work that has ended is not begun again"))
            .hint("`lattice retry` runs the failed tasks of an array again"));
    }
    let ids: Vec<String> = words.iter().filter(|word| !word.to_ascii_lowercase().starts_with("state=")).cloned().collect();
    let client = session.connect().await?;
    let mut code = 0;
    for key in keys(&client, &ids).await? {
        let request = v1::RequeueRequest { key: key.clone(), reason: "scontrol requeue".to_owned() };
        let mut done = answer(client.allocations().requeue(request)).await.map(drop);
        if done.is_ok() && and_hold {
            done = answer(client.allocations().hold(v1::HoldAllocationRequest { key: key.clone() })).await.map(drop);
        }
        code |= reported(&key, done);
    }
    Ok(code)
}

/// Waits until a job runs. Returns 1 if it ends without that.
pub async fn wait(session: &Session, words: &[String]) -> Result<u8, Failure> {
    let client = session.connect().await?;
    let keys = keys(&client, words).await?;
    let [key] = keys.as_slice() else { return Err(Failure::other("wait_job takes one job")) };
    let request = v1::WatchAllocationRequest { key: key.clone(), ..Default::default() };
    let mut changes = answer(client.allocations().watch(request)).await?;
    while let Some(now) = changes.message().await? {
        match state_from_name(&now.state) {
            Ok(AllocationState::Running) => return Ok(0),
            Ok(state) if state.is_terminal() => return Ok(1),
            _ => {}
        }
    }
    Ok(1)
}
