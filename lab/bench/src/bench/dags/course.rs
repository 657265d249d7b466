//! The course of one DAG: it is submitted, all of its steps end with success, and their records have the times.
//!
//! At each of these times the leader proposed the report of a node, by the clock on which the members agree: on one
//! machine, its clock. So a step starts when the leader has the report that its node is prepared, and ends when the
//! leader has the report of its end.

use crate::bench::surroundings::wait_all_free;
use anyhow::{Context, Result, ensure};
use lattice_lab::interrupt;
use lattice_lab::lattice::{Lattice, rows, text};
use lattice_model::Timestamp;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long `dag submit` may take.
const SUBMIT_LIMIT: Duration = Duration::from_secs(60);
/// How long all steps of a DAG may take.
const DAG_LIMIT: Duration = Duration::from_secs(300);
/// Interval of checks whether the DAG has ended. The figures are from records, so it need not be short.
const ASK_INTERVAL: Duration = Duration::from_millis(100);

/// What was measured of one DAG.
#[derive(Clone, Debug, PartialEq)]
pub struct Course {
    /// The command `dag submit`, in milliseconds.
    pub submit_ms: f64,
    /// From the start of that command until the end of the last step, with which the DAG is Completed; in seconds.
    pub took_s: f64,
    /// The wait of each step that depends on others.
    pub waits: Vec<Wait>,
}

/// The time from the last end of a step's parents, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wait {
    /// Until a node was claimed for the step.
    pub until_claimed_ms: f64,
    /// Until the step started.
    pub until_started_ms: f64,
}

/// When a step got its node, started and ended, in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Times {
    claimed_ms: u64,
    started_ms: u64,
    ended_ms: u64,
}

/// Submits the DAG of this file, which has `steps` steps, and waits for its end. No other DAG runs meanwhile.
pub fn run(lattice: &Lattice, file: &Path, steps: usize) -> Result<Course> {
    let file = file.to_string_lossy();
    let began_ms = SystemTime::now().duration_since(UNIX_EPOCH).context("the machine's clock")?.as_secs_f64() * 1e3;
    let (submitted, id) = lattice.timed(&["dag", "submit", "-o", "name", &*file], SUBMIT_LIMIT)?;
    let id = id.trim();
    wait_completed(lattice, id, steps)?;
    let dag = lattice.json(&["dag", "status", id])?;
    // The newest allocations are the DAG's.
    let answer = lattice.json(&["status", "--state", "completed", "--limit", &steps.to_string()])?;
    let times = times_of(rows(&answer, "allocations").context("`lattice status -o json` is not a list")?)?;
    let (waits, ended_ms) = (waits_of(&dag, &times)?, last_end_ms(&dag, &times)?);
    // The next DAG must not wait for the nodes of these steps.
    wait_all_free(lattice)?;
    Ok(Course { submit_ms: submitted.as_secs_f64() * 1e3, took_s: (ended_ms as f64 - began_ms) / 1e3, waits })
}

/// Waits until all steps of the newest DAG, which has this id, are Completed.
fn wait_completed(lattice: &Lattice, id: &str, steps: usize) -> Result<()> {
    let began = Instant::now();
    let dag = loop {
        interrupt::check()?;
        // The list has counts instead of each step.
        let answer = lattice.json(&["dag", "list", "--limit", "1"])?;
        let newest = rows(&answer, "dags").and_then(|dags| dags.first()).context("`lattice dag list -o json` shows no DAG")?;
        ensure!(text(newest, "id") == id, "DAG {id} is not the newest: {newest}");
        if text(newest, "state") != "Running" {
            break newest.clone();
        }
        ensure!(began.elapsed() < DAG_LIMIT, "the DAG has not ended after {} s: {newest}", DAG_LIMIT.as_secs());
        std::thread::sleep(ASK_INTERVAL);
    };
    let are_completed = dag["counts"]["completed"].as_u64() == u64::try_from(steps).ok();
    ensure!(text(&dag, "state") == "Completed" && are_completed, "{steps} steps did not all succeed: {dag}");
    Ok(())
}

/// The times of each allocation, by its id.
fn times_of(allocations: &[Value]) -> Result<BTreeMap<String, Times>> {
    let of_one = |allocation: &Value| -> Result<(String, Times)> {
        let id = text(allocation, "id");
        let at = |key: &str| {
            let at = text(allocation, key);
            Timestamp::from_rfc_3339(&at).map(|at| at.0).with_context(|| format!("{key} of allocation {id} is no time: {at:?}"))
        };
        let times = Times { claimed_ms: at("claimed_at")?, started_ms: at("started_at")?, ended_ms: at("ended_at")? };
        Ok((id, times))
    };
    allocations.iter().map(of_one).collect()
}

/// The steps of a DAG as `dag status` shows them.
fn steps_of(dag: &Value) -> Result<&Vec<Value>> {
    dag["steps"].as_array().with_context(|| format!("a DAG without steps: {dag}"))
}

/// The times of a step, or of one that a step depends on.
fn times_in(times: &BTreeMap<String, Times>, step: &Value) -> Result<Times> {
    let id = text(step, "allocation");
    times.get(&id).copied().with_context(|| format!("there is no record of allocation {id}"))
}

/// The wait of each step that depends on others.
fn waits_of(dag: &Value, times: &BTreeMap<String, Times>) -> Result<Vec<Wait>> {
    let mut waits = Vec::new();
    for step in steps_of(dag)? {
        let child = times_in(times, step)?;
        let parents = step["depends_on"].as_array().with_context(|| format!("a step without its edges: {step}"))?;
        let ends = parents.iter().map(|parent| Ok(times_in(times, parent)?.ended_ms)).collect::<Result<Vec<u64>>>()?;
        let Some(ended_ms) = ends.into_iter().max() else { continue };
        let since = |at_ms: u64| {
            let waited_ms = at_ms.checked_sub(ended_ms).map(|ms| ms as f64);
            waited_ms.with_context(|| format!("step {} began before all that it depends on had ended", text(step, "name")))
        };
        waits.push(Wait { until_claimed_ms: since(child.claimed_ms)?, until_started_ms: since(child.started_ms)? });
    }
    Ok(waits)
}

/// The end of the last step, in milliseconds since 1970.
fn last_end_ms(dag: &Value, times: &BTreeMap<String, Times>) -> Result<u64> {
    let ends = steps_of(dag)?.iter().map(|step| Ok(times_in(times, step)?.ended_ms)).collect::<Result<Vec<u64>>>()?;
    ends.into_iter().max().context("a DAG has no step")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn allocation(id: &str, claimed: &str, started: &str, ended: &str) -> Value {
        let at = |seconds: &str| format!("2026-03-05T10:00:{seconds}Z");
        json!({ "id": id, "claimed_at": at(claimed), "started_at": at(started), "ended_at": at(ended) })
    }

    fn step(allocation: &str, parents: &[&str]) -> Value {
        let edges: Vec<Value> =
            parents.iter().map(|parent| json!({ "step": parent, "allocation": parent, "condition": "success" })).collect();
        json!({ "name": format!("step {allocation}"), "allocation": allocation, "depends_on": edges })
    }

    #[test]
    fn a_step_waits_from_the_last_end_of_those_that_it_depends_on() {
        let records = [
            allocation("a", "00.000", "00.010", "01.000"),
            allocation("b", "00.000", "00.010", "01.200"),
            allocation("c", "01.205", "01.230", "02.000"),
            allocation("d", "02.001", "02.002", "02.002"),
            allocation("of another DAG", "00.000", "00.010", "09.000"),
        ];
        let times = times_of(&records).unwrap();
        let dag = json!({ "steps": [step("a", &[]), step("b", &[]), step("c", &["a", "b"]), step("d", &["c"])] });
        let wait = |until_claimed_ms: f64, until_started_ms: f64| Wait { until_claimed_ms, until_started_ms };
        assert_eq!(waits_of(&dag, &times).unwrap(), [wait(5.0, 30.0), wait(1.0, 2.0)]);
        let end = Timestamp::from_rfc_3339("2026-03-05T10:00:02.002Z").unwrap();
        assert_eq!(last_end_ms(&dag, &times).unwrap(), end.0);
    }

    #[test]
    fn records_from_which_nothing_follows_are_errors() {
        let whole = allocation("a", "00.000", "00.010", "01.000");
        let mut unstarted = whole.clone();
        unstarted["started_at"] = Value::Null;
        assert_eq!(times_of(&[unstarted]).unwrap_err().to_string(), "started_at of allocation a is no time: \"\"");
        let times = times_of(&[whole, allocation("b", "00.900", "01.010", "02.000")]).unwrap();
        let error = |dag: Value| waits_of(&dag, &times).unwrap_err().to_string();
        let early = json!({ "steps": [step("a", &[]), step("b", &["a"])] });
        assert_eq!(error(early), "step step b began before all that it depends on had ended");
        assert_eq!(error(json!({ "steps": [step("c", &[])] })), "there is no record of allocation c");
        assert!(error(json!({})).starts_with("a DAG without steps"));
        assert!(last_end_ms(&json!({ "steps": [] }), &times).is_err());
    }
}
