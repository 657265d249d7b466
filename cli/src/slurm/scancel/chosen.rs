//! The jobs that `scancel` acts on: the named jobs that match the filters, or all jobs that match
//! if none is named.

use super::filter;
use super::options::Options;
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_syntax::compat::Compat;
use lattice_slurm::job_id::JobId;

/// A job, and its name and partition if they are known.
pub struct Chosen {
    pub id: JobId,
    /// The name and partition, if they were requested.
    shown: Option<(String, String)>,
}

/// A text that names no job, and why.
pub type Unknown = (String, Failure);

impl Chosen {
    fn of(allocation: &v1::Allocation, compat: &Compat) -> Self {
        let key = if allocation.number == 0 { allocation.id.clone() } else { allocation.number.to_string() };
        let id = JobId { key, tasks: None, step: None, het: None };
        Self { id, shown: Some((allocation.name.clone(), compat.partition_of(&allocation.vcluster).to_owned())) }
    }

    /// ` name=sim partition=long`, if that is known.
    pub fn about(&self) -> String {
        self.shown.as_ref().map(|(name, partition)| format!(" name={name} partition={partition}")).unwrap_or_default()
    }
}

/// The jobs, in the order in which they were named.
pub async fn list(session: &Session, client: &Client, options: &Options, compat: &Compat) -> Result<Vec<Result<Chosen, Unknown>>, Failure> {
    let matching = if options.has_filter() { Some(filter::list(client, options, compat).await?) } else { None };
    if options.jobs.is_empty() {
        let all = matching.unwrap_or_default();
        return Ok(all.into_iter().map(|found| found.map(|allocation| Chosen::of(&allocation, compat))).collect());
    }
    let matching: Option<Vec<v1::Allocation>> = matching.map(|all| all.into_iter().filter_map(Result::ok).collect());
    let mut chosen = Vec::new();
    for typed in &options.jobs {
        let id = match typed.parse::<JobId>() {
            Ok(id) => id,
            Err(_) => {
                chosen.push(Err((typed.clone(), Failure::new(Exit::NotFound, "it is not a job id"))));
                continue;
            }
        };
        let key = session.resolve_key(&id.key)?;
        if matching.as_ref().is_some_and(|all| !all.iter().any(|allocation| is_named(allocation, &key))) {
            continue;
        }
        let id = JobId { key, ..id };
        let shown = if options.interactive { about(client, &id, compat).await? } else { None };
        chosen.push(Ok(Chosen { id, shown }));
    }
    Ok(chosen)
}

/// The name and the partition of a job, to ask about it; `None`: there is no such job.
async fn about(client: &Client, id: &JobId, compat: &Compat) -> Result<Option<(String, String)>, Failure> {
    match answer(client.allocations().get(v1::GetAllocationRequest { key: id.key.clone(), stale: false })).await {
        Ok(allocation) => Ok(Chosen::of(&allocation, compat).shown),
        Err(Failure::Reported { exit: Exit::NotFound, .. }) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Whether a key names this allocation: its number, or the beginning of its id.
fn is_named(allocation: &v1::Allocation, key: &str) -> bool {
    match key.parse::<u64>() {
        Ok(number) if number == allocation.number => true,
        Ok(_) | Err(_) => key.len() >= 4 && allocation.id.starts_with(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_named_by_its_number_or_its_id() {
        let allocation =
            v1::Allocation { id: "1234abcd-5b7d".into(), number: 12, name: "sim".into(), vcluster: "q".into(), ..Default::default() };
        let named = ["12", "1234", "1234abcd", "123", "13"].map(|key| is_named(&allocation, key));
        assert_eq!(named, [true, true, true, false, false]);
        let chosen = Chosen::of(&allocation, &Compat::default());
        assert_eq!((chosen.id.to_string().as_str(), chosen.about().as_str()), ("12", " name=sim partition=q"));
    }
}
