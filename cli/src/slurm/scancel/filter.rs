//! The filters of `scancel`.

use super::options::Options;
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::listing;
use lattice_cli_syntax::compat::Compat;
use lattice_cli_syntax::layout::parse_nodelist;
use lattice_model::AllocationState;

/// Lists work that matches and has not ended. An error names a job if only a part of it matches, such as single tasks of
/// an array.
pub async fn list(client: &Client, options: &Options, compat: &Compat) -> Result<Vec<Result<v1::Allocation, (String, Failure)>>, Failure> {
    let class = match &options.qos {
        Some(qos) => Some(u32::from(compat.class_of(qos).ok_or_else(|| Failure::usage(format!("the site has no QOS {qos:?}")))?)),
        None => None,
    };
    let request = request(options, compat)?;
    let mut found: Vec<v1::Allocation> = Vec::new();
    match &options.nodelist {
        None => found = listing::fetch_all(client, request, usize::MAX).await?.allocations,
        Some(list) => {
            for node in parse_nodelist(list)? {
                let on_node = v1::ListAllocationsRequest { node: node.to_string(), ..request.clone() };
                found.extend(listing::fetch_all(client, on_node, usize::MAX).await?.allocations);
            }
        }
    }
    found.sort_by(|one, other| (one.number, &one.id).cmp(&(other.number, &other.id)));
    found.dedup_by(|one, other| one.id == other.id);
    found.retain(|allocation| class.is_none_or(|class| allocation.preemption_class == Some(class)));
    Ok(found.into_iter().map(whole).collect())
}

/// Refuses an allocation that is only a part of other work, whose id is in the error.
fn whole(allocation: v1::Allocation) -> Result<v1::Allocation, (String, Failure)> {
    let of = if allocation.lane_of.is_empty() { &allocation.replica_of } else { &allocation.lane_of };
    if of.is_empty() {
        return Ok(allocation);
    }
    let failure = Failure::usage("only a part of it is on that node").hint("cancel it as a whole, or its tasks by their indices");
    Err((of.clone(), failure))
}

fn request(options: &Options, compat: &Compat) -> Result<v1::ListAllocationsRequest, Failure> {
    let text = |given: &Option<String>| given.clone().unwrap_or_default();
    Ok(v1::ListAllocationsRequest {
        all_users: options.user.is_some() && !options.me,
        user: if options.me { String::new() } else { text(&options.user) },
        name: text(&options.name),
        vcluster: options.partition.as_deref().map(|partition| compat.vcluster_of(partition).to_owned()).unwrap_or_default(),
        tenant: options.account.as_deref().map(|account| compat.tenant_of(account).to_owned()).unwrap_or_default(),
        states: states(options.state.as_deref())?.iter().map(ToString::to_string).collect(),
        ..Default::default()
    })
}

/// The states of Lattice for one of Slurm. Held or preempted work waits, as Slurm's pending jobs do.
fn states(named: Option<&str>) -> Result<&'static [AllocationState], Failure> {
    use AllocationState::{Pending, Running, Staging, Suspended};
    let Some(named) = named else { return Ok(&[Pending, Staging, Running, Suspended]) };
    match named.to_ascii_uppercase().as_str() {
        "PENDING" | "PD" => Ok(&[Pending, Suspended]),
        "RUNNING" | "R" => Ok(&[Running, Staging]),
        "SUSPENDED" | "S" => Ok(&[Suspended]),
        _ => {
            Err(Failure::usage(format!("Invalid job state specified: {named}"))
                .hint("Valid job states are PENDING, RUNNING, and SUSPENDED"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn filters_become_those_of_a_list_under_the_sites_names() {
        let compat = Compat::parse("partition_mapping: {long: batch}\naccount_mapping: {phys: physics}\n").unwrap();
        let of = |line: &str| {
            let options = Options::try_parse_from(std::iter::once("scancel").chain(line.split_whitespace())).unwrap();
            request(&options, &compat).map_err(|failure| failure.what())
        };
        let all = of("-u ada -p long -A phys -n sim -t r").unwrap();
        assert_eq!((all.all_users, all.user.as_str(), all.vcluster.as_str(), all.tenant.as_str()), (true, "ada", "batch", "physics"));
        assert_eq!((all.name.as_str(), all.states), ("sim", vec!["Running".to_owned(), "Staging".to_owned()]));
        let mine = of("--me").unwrap();
        assert_eq!((mine.all_users, mine.user.as_str(), mine.states.len()), (false, "", 4));
        assert!(of("-t done").unwrap_err().contains("done"));
    }

    #[test]
    fn a_part_of_other_work_is_not_cancelled_by_its_node() {
        let lane = v1::Allocation { id: "2".into(), lane_of: "1f0c".into(), ..Default::default() };
        assert_eq!(whole(lane).unwrap_err().0, "1f0c");
        assert!(whole(v1::Allocation { id: "2".into(), ..Default::default() }).is_ok());
    }
}
