//! `scontrol update JobId=… KEY=VALUE` and `scontrol update NodeName=… State=…`.

use super::change::{keys, reported};
use super::reservation;
use crate::slurm::cluster::{expanded, fetch_nodes};
use crate::slurm::command_line::SCONTROL;
use crate::slurm::surroundings::Surroundings;
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_api::v1::update_allocation_request::Walltime;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::session::{Session, answer};
use lattice_cli_syntax::slurm::nice_of_priority;
use lattice_slurm::time::{Side, parse_limit};

/// The kinds of holds that `State=RESUME` lifts.
const LIFTED: [&str; 3] = ["drain", "cordon", "disable"];

pub async fn run(session: &Session, words: &[String], surroundings: &Surroundings) -> Result<u8, Failure> {
    let pairs: Option<Vec<(String, &str)>> =
        words.iter().map(|word| word.split_once('=').map(|(key, value)| (key.to_ascii_lowercase(), value))).collect();
    // `update job 12 Name=x` is written without `JobId=`, too.
    let pairs = match (pairs, words) {
        (Some(pairs), _) => pairs,
        (None, [entity, id, rest @ ..]) if "jobs".starts_with(&entity.to_ascii_lowercase()) && !id.contains('=') => {
            let mut pairs = vec![("jobid".to_owned(), id.as_str())];
            for word in rest {
                let (key, value) = word.split_once('=').ok_or_else(|| Failure::other(format!("Invalid input: {word}")))?;
                pairs.push((key.to_ascii_lowercase(), value));
            }
            pairs
        }
        (None, _) => return Err(Failure::other("write KEY=VALUE, such as JobId=12 TimeLimit=30")),
    };
    // Beside a job's number it is the job's new reservation.
    let of_job = |key: &str| pairs.iter().any(|(key, _)| key == "jobid") && ["reservationname", "reservation"].contains(&key);
    let (what, changes): (Vec<_>, Vec<_>) = pairs.iter().cloned().partition(|(key, _)| is_subject(key) && !of_job(key));
    match what.first() {
        Some((key, value)) if key == "jobid" || key == "jobname" || key == "name" => {
            if let Some((other, _)) = what.iter().find(|(key, _)| !["jobid", "jobname", "name"].contains(&key.as_str())) {
                return Err(Failure::other(format!("{other}= cannot be changed for a job")).hint("cancel it, and submit it again"));
            }
            // A name beside an id is the new name.
            let id = what.iter().find(|(key, _)| key == "jobid").map(|(_, id)| *id);
            let names = what.iter().filter(|(key, _)| key != "jobid").map(|(_, name)| ("jobname".to_owned(), *name));
            match id {
                Some(id) => job(session, id, &names.chain(changes).collect::<Vec<_>>(), surroundings).await,
                None => job(session, &format!("jobname={value}"), &changes, surroundings).await,
            }
        }
        Some((key, value)) if key == "nodename" => node(session, value, &changes).await,
        Some((key, value)) if key == "reservationname" || key == "reservation" => {
            reservation::update(session, value, &changes, surroundings).await
        }
        Some((key, _)) => {
            Err(Failure::other(format!("{key}= cannot be changed"))
                .hint("`lattice admin vcluster` changes queues, and steps have no settings"))
        }
        None => Err(Failure::other("No valid entity in update command").hint("Input line must include \"JobId=\" or \"NodeName=\"")),
    }
}

/// Whether a key names what is changed.
fn is_subject(key: &str) -> bool {
    const SUBJECTS: [&str; 9] =
        ["jobid", "jobname", "name", "nodename", "partitionname", "reservationname", "reservation", "stepid", "frontendname"];
    SUBJECTS.contains(&key)
}

/// Changes jobs.
async fn job(session: &Session, ids: &str, changes: &[(String, &str)], surroundings: &Surroundings) -> Result<u8, Failure> {
    let mut request = v1::UpdateAllocationRequest::default();
    let mut hold = None;
    let invalid = |key: &str, value: &str| Failure::other(format!("Invalid {key}: {value}"));
    for (key, value) in changes {
        let time = |side| surroundings.with(|context| context.clock.parse(value, side)).ok_or_else(|| invalid(key, value));
        match key.as_str() {
            "timelimit" => request.walltime = Some(walltime(value).ok_or_else(|| invalid(key, value))?),
            "jobname" => request.name = Some((*value).to_owned()),
            "reservationname" | "reservation" => request.reservation = Some((*value).to_owned()),
            "comment" => request.comment = Some((*value).to_owned()),
            "nice" => request.nice = Some(if value.is_empty() { 100 } else { value.parse().map_err(|_| invalid(key, value))? }),
            "starttime" | "eligibletime" => request.begin_ms = Some(time(Side::Future)?),
            "deadline" => request.deadline_ms = Some(time(Side::Future)?),
            "qos" => {
                let class = surroundings
                    .compat
                    .class_of(value)
                    .ok_or_else(|| invalid("qos", value).hint("the site's lattice-compat.yaml maps QOS to preemption classes"))?;
                request.preemption_class = Some(class.into());
            }
            "priority" if *value == "0" => hold = Some(true),
            "priority" => {
                let hint = "Priority=TOP puts it first, for operators, and 1 last; 0 holds it; Nice= and QOS= change its place";
                request.nice = Some(nice_of_priority(value).ok_or_else(|| invalid("priority", value).hint(hint))?);
            }
            "partition" | "account" => {
                return Err(Failure::other(format!("{key}= cannot be changed: a job stays in its queue and account"))
                    .hint("cancel it, and submit it again"));
            }
            _ => {
                return Err(Failure::other(format!("{key}= cannot be changed"))
                    .hint("these can: TimeLimit, JobName, Comment, Nice, StartTime, Deadline, ReservationName, QOS and Priority"));
            }
        }
    }
    let client = session.connect().await?;
    let has_changes = request != v1::UpdateAllocationRequest::default();
    let mut code = 0;
    for key in keys(&client, &[ids.to_owned()]).await? {
        if has_changes {
            let request = v1::UpdateAllocationRequest { key: key.clone(), ..request.clone() };
            code |= reported(&key, answer(client.allocations().update(request)).await.map(drop));
        }
        if hold == Some(true) {
            let request = v1::HoldAllocationRequest { key: key.clone() };
            code |= reported(&key, answer(client.allocations().hold(request)).await.map(drop));
        }
    }
    Ok(code)
}

/// A new time limit: `30`, `+1:00:00`, `-10`.
fn walltime(text: &str) -> Option<Walltime> {
    let more = |text: &str| parse_limit(text).and_then(|seconds| i64::try_from(seconds).ok());
    match (text.strip_prefix('+'), text.strip_prefix('-')) {
        (Some(longer), _) => more(longer).map(Walltime::WalltimeMoreSeconds),
        (_, Some(shorter)) => more(shorter).map(|seconds| Walltime::WalltimeMoreSeconds(-seconds)),
        (None, None) => parse_limit(text).filter(|seconds| *seconds > 0).map(Walltime::WalltimeSeconds),
    }
}

/// Changes nodes.
async fn node(session: &Session, hostlist: &str, changes: &[(String, &str)]) -> Result<u8, Failure> {
    let (mut state, mut reason) = (None, String::new());
    for (key, value) in changes {
        match key.as_str() {
            "state" => state = Some(value.to_ascii_lowercase()),
            "reason" => (*value).clone_into(&mut reason),
            _ => {
                return Err(Failure::other(format!("{key}= cannot be changed"))
                    .hint("these can: State=DRAIN, DOWN, RESUME or UNDRAIN, and Reason=; agent.yaml has the features of nodes"));
            }
        }
    }
    let Some(state) = state else { return Err(Failure::other("State= is needed: DRAIN, DOWN, RESUME or UNDRAIN")) };
    let client = session.connect().await?;
    let mut code = 0;
    for name in expanded(&[hostlist.to_owned()])? {
        let done = match state.as_str() {
            "drain" | "down" if reason.is_empty() => {
                return Err(Failure::other("You must specify a reason when DOWNING or DRAINING a node: Reason=\"…\""));
            }
            "drain" => set_hold(&client, &name, "drain", &reason).await,
            "down" => set_hold(&client, &name, "disable", &reason).await,
            "undrain" => lift(&client, &name, &LIFTED[..1]).await,
            "resume" | "idle" => lift(&client, &name, &LIFTED).await,
            _ => {
                return Err(Failure::other(format!("Invalid input: state={state}"))
                    .hint("give DRAIN, DOWN, RESUME or UNDRAIN; `lattice node --help` lists other commands"));
            }
        };
        if let Err(failure) = done {
            SCONTROL.report(format_args!("node {name}: {}", failure.what()));
            code = 1;
        }
    }
    Ok(code)
}

async fn set_hold(client: &Client, node: &str, kind: &str, reason: &str) -> Result<(), Failure> {
    let (node, kind, reason) = (node.to_owned(), kind.to_owned(), reason.to_owned());
    answer(client.nodes().set_hold(v1::SetHoldRequest { node, kind, reason, ..Default::default() })).await.map(drop)
}

/// Lifts the holds of these kinds that the node has.
async fn lift(client: &Client, node: &str, kinds: &[&str]) -> Result<(), Failure> {
    let nodes = fetch_nodes(client).await?;
    let known = nodes.iter().find(|known| known.id == node).ok_or_else(|| Failure::other("Invalid node name specified"))?;
    let held = known.holds.iter().filter_map(|hold| hold.split(' ').next()).filter(|kind| kinds.contains(kind));
    for kind in held {
        let request = v1::LiftHoldRequest { node: node.to_owned(), kind: kind.to_owned() };
        answer(client.nodes().lift_hold(request)).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_limits_are_whole_or_differences() {
        assert_eq!(walltime("30"), Some(Walltime::WalltimeSeconds(1800)));
        assert_eq!(walltime("+1:00:00"), Some(Walltime::WalltimeMoreSeconds(3600)));
        assert_eq!(walltime("-10"), Some(Walltime::WalltimeMoreSeconds(-600)));
        assert_eq!([walltime("UNLIMITED"), walltime("0")], [None, None]);
    }
}
