//! `scontrol show` and `scontrol write`.

use crate::slurm::cluster::{expanded, fetch_nodes, fetch_partitions, fetch_reservations, fetch_sizes};
use crate::slurm::jobs::{Wanted, add_task_nodes, expand, job_ids};
use crate::slurm::steps::rows as fetch_rows;
use crate::slurm::surroundings::Surroundings;
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::{Notation, print};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_syntax::slurm_args::scontrol::Scontrol;
use lattice_model::{NodeId, hostlist};
use lattice_slurm::json;
use lattice_slurm::partition::natural;
use lattice_slurm::scontrol::{config_text, job_lines, node_lines, partition_lines, record_text, reservation_lines};
use lattice_slurm::state::States;
use lattice_slurm::step::StepRow;
use std::fs;

/// The time for which ended work is kept, in seconds, that is printed if the quorum does not report it.
const KEPT_SECONDS_DEFAULT: u64 = 300;

/// What can be shown, each with the least letters of its name.
const ENTITIES: [(&str, usize); 11] = [
    ("jobs", 1),
    ("nodes", 1),
    ("partitions", 1),
    ("reservations", 1),
    ("steps", 3),
    ("config", 1),
    ("hostnames", 5),
    ("hostlist", 5),
    ("hostlistsorted", 9),
    ("licenses", 2),
    ("daemons", 1),
];

pub async fn run(session: &Session, args: &Scontrol, words: &[String], surroundings: Surroundings) -> Result<u8, Failure> {
    let Some((first, rest)) = words.split_first() else { return Err(Failure::other("show what? such as `scontrol show job 12`")) };
    let (entity, id) = first.split_once('=').map_or((first.as_str(), None), |(entity, id)| (entity, Some(id.to_owned())));
    let ids: Vec<String> = id.into_iter().chain(rest.iter().cloned()).collect();
    let entity = entity.to_ascii_lowercase();
    let found = ENTITIES.iter().find(|(name, least)| entity.len() >= *least && name.starts_with(&entity)).map(|(name, _)| *name);
    match found {
        Some("hostnames") => hostnames(&ids),
        Some("hostlist") => folded(&ids, false),
        Some("hostlistsorted") => folded(&ids, true),
        Some("jobs") => Box::pin(jobs(session, args, &ids, surroundings)).await,
        Some("nodes") => nodes(session, args, &ids, &surroundings).await,
        Some("partitions") => partitions(session, args, &ids, &surroundings).await,
        Some("config") => config(session, &surroundings).await,
        Some("reservations") => reservations(session, args, &ids, &surroundings).await,
        Some("licenses") => empty("No licenses configured in Slurm.\n"),
        Some("daemons") => empty("slurmctld slurmd\n"),
        Some("steps") => Box::pin(steps(session, args, &ids, surroundings)).await,
        _ => Err(Failure::other(format!("invalid entity:{entity} for keyword:show"))
            .hint("job, step, node, partition, config, hostnames, hostlist, hostlistsorted, reservation and licenses can be shown")),
    }
}

fn empty(text: &str) -> Result<u8, Failure> {
    print(text)?;
    Ok(0)
}

/// One name in each line. Without a list, the nodes of the job in which this runs.
fn hostnames(lists: &[String]) -> Result<u8, Failure> {
    let lists = match lists {
        [] => std::env::var("SLURM_JOB_NODELIST").or_else(|_| std::env::var("SLURM_NODELIST")).into_iter().collect(),
        lists => lists.to_vec(),
    };
    if lists.is_empty() {
        return Err(Failure::other("a hostlist is needed: SLURM_JOB_NODELIST is not set"));
    }
    print(&expanded(&lists)?.iter().map(|name| format!("{name}\n")).collect::<String>())?;
    Ok(0)
}

/// A hostlist of names, which may be in a file.
fn folded(lists: &[String], sorted: bool) -> Result<u8, Failure> {
    let read = |list: &String| -> Result<String, Failure> {
        if !list.starts_with('/') {
            return Ok(list.clone());
        }
        let text = fs::read_to_string(list).map_err(|error| Failure::other(format!("cannot read {list}: {error}")))?;
        Ok(text.split([' ', '\n', '\t', ',']).filter(|name| !name.is_empty()).collect::<Vec<_>>().join(","))
    };
    let lists: Vec<String> = lists.iter().map(read).collect::<Result<_, _>>()?;
    let mut names = expanded(&lists)?;
    if names.is_empty() {
        return Err(Failure::other("a list of hosts is needed"));
    }
    if sorted {
        names.sort_by(|a, b| natural(a).cmp(&natural(b)));
    }
    let ids: Result<Vec<NodeId>, _> = names.iter().map(|name| name.parse()).collect();
    let ids = ids.map_err(|error| Failure::other(error.to_string()))?;
    print(&(hostlist::fold_in_order(&ids) + "\n"))?;
    Ok(0)
}

async fn jobs(session: &Session, args: &Scontrol, ids: &[String], mut surroundings: Surroundings) -> Result<u8, Failure> {
    let wanted = Wanted { ids: Some(job_ids(ids)?).filter(|ids| !ids.is_empty()), ..Default::default() };
    let client = session.connect().await?;
    fetch_sizes(&client, &mut surroundings).await?;
    let found = Box::pin(wanted.fetch(&client, &States::all())).await?;
    let mut jobs = expand(&client, found, &wanted, false).await?;
    add_task_nodes(&client, &mut jobs).await?;
    jobs.sort_by_key(|job| (job.base_number(), job.number(), job.task().is_some()));
    if jobs.is_empty() && wanted.ids.is_some() {
        return Err(Failure::other("slurm_load_jobs error: Invalid job id specified"));
    }
    surroundings.with(|context| {
        if args.data.json.is_some() {
            return Notation::Json.print(&json::queue(&jobs, "scontrol", context));
        }
        if args.data.yaml.is_some() {
            return Notation::Yaml.print(&json::queue(&jobs, "scontrol", context));
        }
        let text = |job| record_text(&job_lines(job, args.details, context), args.oneliner);
        print(&if jobs.is_empty() { "No jobs in the system\n".to_owned() } else { jobs.iter().map(text).collect::<String>() })
    })?;
    Ok(0)
}

/// The steps of these jobs, or these steps; without any, those that run.
async fn steps(session: &Session, args: &Scontrol, ids: &[String], mut surroundings: Surroundings) -> Result<u8, Failure> {
    let named = job_ids(ids)?;
    let wanted = Wanted { ids: Some(named.clone()).filter(|ids| !ids.is_empty()), without_outlook: true, ..Default::default() };
    let client = session.connect().await?;
    fetch_sizes(&client, &mut surroundings).await?;
    let mut found = fetch_rows(&client, &wanted, &named).await?;
    if named.is_empty() {
        found.retain(StepRow::is_running);
    } else if found.is_empty() {
        return Err(
            Failure::other("Invalid job id specified: it has no such step").hint("`scontrol show step JOB` lists the steps of a job")
        );
    }
    surroundings.with(|context| {
        let text = |row: &StepRow| record_text(&row.lines(context), args.oneliner);
        print(&if found.is_empty() { "No job steps in the system\n".to_owned() } else { found.iter().map(text).collect::<String>() })
    })?;
    Ok(0)
}

async fn nodes(session: &Session, args: &Scontrol, lists: &[String], surroundings: &Surroundings) -> Result<u8, Failure> {
    let wanted = expanded(lists)?;
    let client = session.connect().await?;
    let mut nodes = fetch_nodes(&client).await?;
    let partitions = fetch_partitions(&client, &nodes, surroundings).await?;
    nodes.sort_by(|a, b| natural(&a.id).cmp(&natural(&b.id)));
    let mut code = 0;
    for name in wanted.iter().filter(|name| !nodes.iter().any(|node| node.id == **name)) {
        print(&format!("Node {name} not found\n"))?;
        code = 1;
    }
    nodes.retain(|node| wanted.is_empty() || wanted.contains(&node.id));
    let text = surroundings.with(|context| {
        let of = |node: &std::rc::Rc<v1::Node>| {
            let of_node = partitions.iter().filter(|one| one.nodes.iter().any(|other| other.id == node.id));
            let names: Vec<&str> = of_node.map(|one| one.name.as_str()).collect();
            record_text(&node_lines(node, &names, context), args.oneliner)
        };
        nodes.iter().map(of).collect::<String>()
    });
    print(&text)?;
    Ok(code)
}

async fn partitions(session: &Session, args: &Scontrol, names: &[String], surroundings: &Surroundings) -> Result<u8, Failure> {
    let names = lattice_slurm::units::listed(names);
    let client = session.connect().await?;
    let nodes = fetch_nodes(&client).await?;
    let mut partitions = fetch_partitions(&client, &nodes, surroundings).await?;
    if let Some(unknown) = names.iter().find(|name| !partitions.iter().any(|one| one.name == **name)) {
        return Err(Failure::other(format!("Partition {unknown} not found")).hint("`sinfo` lists the partitions"));
    }
    partitions.retain(|one| names.is_empty() || names.contains(&one.name));
    let text = surroundings
        .with(|context| partitions.iter().map(|one| record_text(&partition_lines(one, context), args.oneliner)).collect::<String>());
    print(&text)?;
    Ok(0)
}

async fn reservations(session: &Session, args: &Scontrol, names: &[String], surroundings: &Surroundings) -> Result<u8, Failure> {
    let names = lattice_slurm::units::listed(names);
    let mut all = fetch_reservations(&session.connect().await?).await?;
    if let Some(unknown) = names.iter().find(|name| !all.iter().any(|one| one.name == **name)) {
        return Err(Failure::other(format!("Reservation {unknown} not found")).hint("`sinfo -T` lists the reservations"));
    }
    if all.is_empty() {
        return empty("No reservations in the system\n");
    }
    all.retain(|one| names.is_empty() || names.contains(&one.name));
    let text =
        surroundings.with(|context| all.iter().map(|one| record_text(&reservation_lines(one, context), args.oneliner)).collect::<String>());
    print(&text)?;
    Ok(0)
}

async fn config(session: &Session, surroundings: &Surroundings) -> Result<u8, Failure> {
    let client = session.connect().await?;
    let status = answer(client.admin().quorum_status(v1::QuorumStatusRequest::default())).await;
    let kept = status.ok().and_then(|status| status.ended).map_or(KEPT_SECONDS_DEFAULT, |ended| ended.kept_ms / 1000);
    let store = answer(client.accounting().status(v1::AccountingStatusRequest {})).await;
    let has_store = store.is_ok_and(|store| store.is_on);
    print(&surroundings.with(|context| config_text(kept, has_store, context)))?;
    Ok(0)
}

/// `scontrol write batch_script JOB [FILE]`.
pub async fn write(session: &Session, words: &[String]) -> Result<u8, Failure> {
    let (job, file) = match words {
        [what, job] if "batch_script".starts_with(&what.to_ascii_lowercase()) => (job, None),
        [what, job, file] if "batch_script".starts_with(&what.to_ascii_lowercase()) => (job, Some(file.clone())),
        _ => return Err(Failure::other("write batch_script JOB [FILE] is possible; there is no slurm.conf")),
    };
    let ids = job_ids(std::slice::from_ref(job))?;
    let [id] = ids.as_slice() else { return Err(Failure::other("one job is needed")) };
    let client = session.connect().await?;
    let request = v1::GetAllocationRequest { key: id.number.to_string(), stale: false };
    let script = answer(client.allocations().get(request)).await?.script;
    if script.is_empty() {
        return Err(Failure::other(format!("job {} has no script", id.number)));
    }
    let file = file.unwrap_or_else(|| format!("slurm-{}.sh", id.number));
    if file == "-" {
        return empty(&script);
    }
    fs::write(&file, script).map_err(|error| Failure::other(format!("cannot write {file}: {error}")))?;
    empty(&format!("batch script for job {} written to {file}\n", id.number))
}
