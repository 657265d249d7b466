//! `--json` of squeue, sacct and sinfo: the main fields of Slurm's data parser.

use crate::account::Line;
use crate::context::Context;
use crate::job::{Job, is_array};
use crate::job_fields::{dependency_text, eligible_ms};
use crate::node::State;
use crate::sinfo::Group;
use crate::step::StepRow;
use serde_json::{Value, json};

/// A number that may be absent.
fn number(value: Option<u64>) -> Value {
    json!({ "set": value.is_some(), "infinite": false, "number": value.unwrap_or(0) })
}

/// A time in seconds since 1970.
fn seconds(ms: Option<u64>) -> Value {
    number(ms.map(|ms| ms / 1000))
}

fn limit(seconds: Option<u64>) -> Value {
    json!({ "set": true, "infinite": seconds.is_none(), "number": seconds.map_or(0, |seconds| seconds.div_ceil(60)) })
}

fn exit_code(job: &Job) -> Value {
    let (code, signal) = job.exit();
    let status = match (job.state().is_final(), code, signal) {
        (false, ..) => "PENDING",
        (true, 0, 0) => "SUCCESS",
        (true, _, 0) => "ERROR",
        (true, ..) => "SIGNALED",
    };
    json!({ "status": [status], "return_code": number(u64::try_from(code).ok()), "signal": { "id": number(u64::try_from(signal).ok().filter(|signal| *signal > 0)), "name": "" } })
}

/// The answer of a command: its records under this key.
fn answer(key: &str, records: Vec<Value>, command: &str, context: &Context<'_>) -> Value {
    let release = crate::commands::SLURM_VERSION;
    let mut parts = release.split('.');
    let (major, minor, micro) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    json!({
        key: records,
        "meta": {
            "command": [command],
            "slurm": {
                "version": { "major": major, "minor": minor, "micro": micro },
                "release": release,
                "cluster": context.compat.cluster(),
            },
        },
        "errors": [],
        "warnings": [],
    })
}

/// `squeue --json`, and `scontrol show job --json`.
pub fn queue(jobs: &[Job], command: &str, context: &Context<'_>) -> Value {
    answer("jobs", jobs.iter().map(|job| queued(job, context)).collect(), command, context)
}

fn queued(job: &Job, context: &Context<'_>) -> Value {
    let a = &job.allocation;
    let array = is_array(a);
    let files = job.files();
    // One macro call with all fields would expand too deeply.
    let first = json!({
        "account": job.account(context),
        "array_job_id": number(Some(if array { job.base_number() } else { 0 })),
        "array_task_id": number(job.task().map(|task| u64::from(task.index))),
        "array_task_string": if array && job.task().is_none() { job.indices_text() } else { String::new() },
        "batch_host": job.node_names().first().cloned().unwrap_or_default(),
        "cluster": context.compat.cluster(),
        "command": a.command.join(" "),
        "comment": a.comment,
        "cpus": number(Some(job.cpus(context))),
        "current_working_directory": a.working_dir,
        "deadline": seconds(a.timing.as_ref().map(|timing| timing.deadline_ms).filter(|ms| *ms > 0)),
        "dependency": dependency_text(job),
        "eligible_time": seconds(Some(eligible_ms(job))),
        "end_time": seconds(job.end_ms()),
        "exit_code": exit_code(job),
        "hold": a.held,
        "job_id": job.number(),
        "job_state": [job.state().name()],
    });
    let second = json!({
        "lattice_id": a.id,
        "memory_per_node": number(a.share.as_ref().map(|share| share.memory_bytes >> 20)),
        "name": a.name,
        "nice": a.nice,
        "node_count": number(Some(u64::from(job.node_count()))),
        "nodes": job.nodes_text(),
        "partition": job.partition(context),
        "priority": number(Some(job.priority())),
        "qos": job.qos(context),
        "restart_cnt": a.requeue_count,
        "standard_error": files.stderr,
        "standard_input": files.stdin,
        "standard_output": files.stdout,
        "start_time": seconds(job.start_ms()),
        "state_description": a.status_message,
        "state_reason": job.reason(context.clock.now_ms),
        "submit_time": seconds(Some(a.submitted_at_ms)),
        "tasks": number(Some(u64::from(job.task_count()))),
        "time_limit": limit(job.limit_seconds()),
        "tres_req_str": job.tres_text(context),
        "user_id": (context.uid_of)(&a.owner),
        "user_name": a.owner,
    });
    merged(first, second)
}

/// The fields of two objects in one.
fn merged(mut first: Value, second: Value) -> Value {
    if let (Value::Object(fields), Value::Object(more)) = (&mut first, second) {
        fields.extend(more);
    }
    first
}

/// `sacct --json`: each job with its steps.
pub fn accounts(lines: &[Line], context: &Context<'_>) -> Value {
    let mut records: Vec<Value> = Vec::new();
    for line in lines {
        match records.last_mut().and_then(|record| record.get_mut("steps")).and_then(Value::as_array_mut) {
            Some(steps) if line.step.is_some() => steps.extend(line.step.as_ref().map(|row| step(row, context))),
            _ => records.push(accounted(&line.job, context)),
        }
    }
    answer("jobs", records, "sacct", context)
}

fn times(job: &Job, context: &Context<'_>) -> Value {
    json!({
        "elapsed": job.elapsed_ms(context.clock.now_ms).unwrap_or(0) / 1000,
        "eligible": eligible_ms(job) / 1000,
        "end": job.ended_ms().unwrap_or(0) / 1000,
        "start": job.start_ms().unwrap_or(0) / 1000,
        "submission": job.allocation.submitted_at_ms / 1000,
        "suspended": 0,
        "limit": limit(job.limit_seconds()),
        "total": { "seconds": job.allocation.cpu_ms.unwrap_or(0) / 1000, "microseconds": job.allocation.cpu_ms.unwrap_or(0) % 1000 * 1000 },
    })
}

fn accounted(job: &Job, context: &Context<'_>) -> Value {
    let a = &job.allocation;
    let array = is_array(a);
    let indices = if array && job.task().is_none() { job.indices_text() } else { String::new() };
    json!({
        "account": job.account(context),
        "allocation_nodes": job.node_count(),
        "array": {
            "job_id": if array { job.base_number() } else { 0 },
            "task_id": number(job.task().map(|task| u64::from(task.index))),
            "task": indices,
        },
        "association": {
            "account": job.account(context),
            "cluster": context.compat.cluster(),
            "partition": job.partition(context),
            "user": a.owner,
        },
        "cluster": context.compat.cluster(),
        "comment": { "administrator": "", "job": a.comment, "system": "" },
        "derived_exit_code": exit_code(job),
        "exit_code": exit_code(job),
        "job_id": job.number(),
        "lattice_id": a.id,
        "name": a.name,
        "nodes": job.nodes_text(),
        "partition": job.partition(context),
        "priority": number(Some(job.priority())),
        "qos": job.qos(context),
        "required": { "CPUs": job.cpus(context), "memory_per_node": number(a.share.as_ref().map(|share| share.memory_bytes >> 20)) },
        "restart_cnt": a.requeue_count,
        "state": { "current": [job.state().name()], "reason": job.reason(context.clock.now_ms) },
        "steps": [],
        "time": times(job, context),
        "user": a.owner,
        "working_directory": a.working_dir,
    })
}

fn step(row: &StepRow, context: &Context<'_>) -> Value {
    let job = &row.job;
    // Measurements are of the whole job.
    let peak = job.allocation.memory_peak_bytes.filter(|_| row.step.is_entry).unwrap_or(0);
    let time = match row.step.is_entry {
        true => times(job, context),
        false => json!({
            "elapsed": row.elapsed_ms(context.clock.now_ms).unwrap_or(0) / 1000,
            "end": row.ended_ms().unwrap_or(0) / 1000,
            "start": row.began_ms().unwrap_or(0) / 1000,
        }),
    };
    json!({
        "exit_code": step_exit_code(row),
        "nodes": { "count": row.step.node_count, "range": row.nodes_text(), "list": row.node_names() },
        "state": [row.state().name()],
        "step": { "id": row.id_text(), "name": row.step.name },
        "tasks": { "count": row.step.ranks },
        "time": time,
        "tres": { "requested": { "max": [{ "type": "mem", "count": peak }] } },
    })
}

fn step_exit_code(row: &StepRow) -> Value {
    if row.step.is_entry {
        return exit_code(&row.job);
    }
    let code = row.step.exit_code;
    let status = match (row.state().is_final(), code) {
        (false, _) => "PENDING",
        (true, Some(0)) => "SUCCESS",
        (true, _) => "ERROR",
    };
    json!({ "status": [status], "return_code": number(code.and_then(|code| u64::try_from(code).ok())), "signal": { "id": number(None), "name": "" } })
}

/// `sinfo --json`.
pub fn nodes(groups: &[Group], context: &Context<'_>) -> Value {
    let record = |group: &Group| {
        let [allocated, idle, other, total] = group.node_counts();
        let [cpus_allocated, cpus_idle, cpus_other, cpus_total] = group.cpu_counts();
        let names: Vec<&str> = group.nodes.iter().map(|node| node.id.as_str()).collect();
        let states: Vec<String> = group.nodes.first().map(|node| State::of(node).flags()).into_iter().collect();
        let states: Vec<&str> = states.iter().flat_map(|flags| flags.trim_end_matches('*').split('+')).collect();
        let partition = group.partition.as_ref();
        json!({
            "cluster": context.compat.cluster(),
            "cpus": { "allocated": cpus_allocated, "idle": cpus_idle, "other": cpus_other, "total": cpus_total },
            "memory": {
                "minimum": group.nodes.iter().map(|node| node.memory_bytes >> 20).min().unwrap_or(0),
                "maximum": group.nodes.iter().map(|node| node.memory_bytes >> 20).max().unwrap_or(0),
            },
            "gres": { "total": group.nodes.first().map(|node| crate::node::gres(node.gpus)).unwrap_or_default() },
            "features": { "total": group.nodes.first().map(|node| node.features.join(",")).unwrap_or_default() },
            "node": { "state": states },
            "nodes": { "allocated": allocated, "idle": idle, "other": other, "total": total, "nodes": names },
            "partition": {
                "name": partition.map(|partition| partition.name.as_str()),
                "partition": { "state": ["UP"] },
                "flags": if partition.is_some_and(|partition| partition.is_default) { vec!["DEFAULT"] } else { vec![] },
            },
            "reason": { "description": group.nodes.first().map(|node| crate::node::reason(node)).unwrap_or_default() },
        })
    };
    answer("sinfo", groups.iter().map(record).collect(), "sinfo", context)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::lines;
    use crate::array::rows;
    use crate::time::{Clock, Utc};
    use lattice_api::v1;
    use lattice_cli_syntax::compat::Compat;
    use std::collections::BTreeMap;

    #[test]
    fn jobs_have_the_fields_of_slurms_data_parser() {
        let (compat, clock, sizes) = (Compat::default(), Clock::new(1_772_704_812_034, &Utc, None), BTreeMap::new());
        let context = Context { compat: &compat, clock: &clock, uid_of: &|_| Some(1000), nodes: &sizes };
        let job = || v1::Allocation {
            number: 12,
            state: "Failed".into(),
            reason: "exit_code 3".into(),
            exit_code: Some(3),
            owner: "ada".into(),
            nodes: vec!["n1".into()],
            started_at_ms: 1_772_704_800_000,
            ended_at_ms: 1_772_704_810_000,
            walltime_seconds: 3600,
            ..Default::default()
        };
        let shown = queue(&rows(job(), &[], false), "squeue", &context);
        let first = &shown["jobs"][0];
        assert_eq!((&first["job_id"], &first["job_state"], &first["user_id"]), (&json!(12), &json!(["FAILED"]), &json!(1000)));
        assert_eq!((&first["exit_code"]["return_code"]["number"], &first["time_limit"]["number"]), (&json!(3), &json!(60)));
        assert_eq!((&first["array_task_id"]["set"], &first["nodes"]), (&json!(false), &json!("n1")));
        let shown = accounts(&lines(rows(job(), &[], false), true, |_| None), &context);
        let first = &shown["jobs"][0];
        assert_eq!((&first["state"]["current"], &first["time"]["elapsed"]), (&json!(["FAILED"]), &json!(10)));
        assert_eq!(first["steps"][0]["step"]["id"], json!("12.batch"));
        assert_eq!(shown["errors"], json!([]));
    }
}
