//! The fields of squeue, and the order of its rows.

use crate::context::Context;
use crate::format::{Field, SortKey};
use crate::job::Job;
use crate::state::JobState;
use crate::time::short_duration;
use crate::units::{NULL, memory_text, or_null};
use lattice_api::v1;
use std::cmp::Ordering;

/// The columns of squeue without options.
pub const DEFAULT: &str = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R";
/// The columns of `squeue --long`.
pub const LONG: &str = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R";
/// The columns of `squeue --start`.
pub const START: &str = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R";
/// The order of squeue's rows without `--sort`.
pub const SORT: &str = "P,t,-p";
/// The same order without places in the queue, for columns that do not need them either.
pub const SORT_BY_NUMBER: &str = "P,t,i";

/// A time that is not known.
const NOT_KNOWN: &str = "N/A";

/// A field with a letter and a name.
const fn both(letter: char, name: &'static str, heading: &'static str, value: fn(&Job, &Context<'_>) -> String) -> Field<Job> {
    Field { letter: Some(letter), name, heading, value }
}

/// A field with a name alone.
const fn named(name: &'static str, heading: &'static str, value: fn(&Job, &Context<'_>) -> String) -> Field<Job> {
    Field { letter: None, name, heading, value }
}

/// The fields of squeue. A value that Lattice does not have, or a site hides, is shown as Slurm shows an unset one, because
/// programs count columns.
pub const JOB_FIELDS: &[Field<Job>] = &[
    both('a', "Account", "ACCOUNT", |job, c| or_null(job.account(c))),
    both('A', "JobID", "JOBID", |job, _| job.number().to_string()),
    both('B', "BatchHost", "EXEC_HOST", |job, _| job.node_names().into_iter().next().unwrap_or_else(|| "n/a".to_owned())),
    both('c', "MinCpus", "MIN_CPUS", |job, _| (job.task_count() / job.node_count().max(1)).max(1).to_string()),
    both('C', "NumCPUs", "CPUS", |job, c| job.cpus(c).to_string()),
    both('d', "MinTmpDisk", "MIN_TMP_DISK", |_, _| "0".to_owned()),
    both('D', "NumNodes", "NODES", |job, _| job.node_count().to_string()),
    both('e', "EndTime", "END_TIME", |job, c| c.clock.text_or(job.end_ms(), NOT_KNOWN)),
    both('E', "Dependency", "DEPENDENCY", |job, _| or_null(&dependency_text(job))),
    both('f', "Feature", "FEATURES", |job, _| or_null(&job.allocation.features)),
    both('F', "ArrayJobID", "ARRAY_JOB_ID", |job, _| job.base_number().to_string()),
    both('g', "GroupName", "GROUP", |_, _| NULL.to_owned()),
    both('G', "GroupID", "GROUP", |_, _| NULL.to_owned()),
    both('h', "OverSubscribe", "OVER_SUBSCRIBE", |job, _| String::from(if job.allocation.share.is_some() { "OK" } else { "NO" })),
    both('H', "Sockets", "SOCKETS_PER_NODE", |_, _| "*".to_owned()),
    both('i', "JobArrayID", "JOBID", |job, _| job.id_text()),
    both('I', "Cores", "CORES_PER_SOCKET", |_, _| "*".to_owned()),
    both('j', "Name", "NAME", |job, _| or_null(&job.allocation.name)),
    both('J', "Threads", "THREADS_PER_CORE", |_, _| "*".to_owned()),
    both('k', "Comment", "COMMENT", |job, _| or_null(&job.allocation.comment)),
    both('K', "ArrayTaskID", "ARRAY_TASK_ID", |job, _| {
        Some(job.indices_text()).filter(|text| !text.is_empty()).unwrap_or_else(|| NOT_KNOWN.to_owned())
    }),
    both('l', "TimeLimit", "TIME_LIMIT", |job, _| job.limit_seconds().map_or_else(|| "UNLIMITED".to_owned(), short_duration)),
    both('L', "TimeLeft", "TIME_LEFT", time_left),
    both('m', "MinMemory", "MIN_MEMORY", |job, _| memory_text(job.allocation.share.as_ref().map_or(0, |share| share.memory_bytes))),
    both('M', "TimeUsed", "TIME", |job, c| time_used(job, c.clock.now_ms)),
    both('n', "ReqNodes", "REQ_NODES", |job, _| job.allocation.nodelist.clone()),
    both('N', "NodeList", "NODELIST", |job, _| job.nodes_text()),
    both('o', "Command", "COMMAND", |job, _| or_null(&job.allocation.command.join(" "))),
    both('O', "Contiguous", "CONTIGUOUS", |job, _| u8::from(job.is_contiguous()).to_string()),
    both('p', "Priority", "PRIORITY", |job, _| format!("{:.14}", job.priority() as f64 / f64::from(u32::MAX))),
    both('P', "Partition", "PARTITION", |job, c| job.partition(c).to_owned()),
    both('q', "QOS", "QOS", |job, c| job.qos(c).to_owned()),
    both('Q', "PriorityLong", "PRIORITY", |job, _| job.priority().to_string()),
    both('r', "Reason", "REASON", |job, c| job.reason(c.clock.now_ms).to_owned()),
    both('R', "ReasonList", "NODELIST(REASON)", reason_list),
    both('s', "SelectJobInfo", "SELECT_JOBINFO", |_, _| String::new()),
    both('S', "StartTime", "START_TIME", |job, c| c.clock.text_or(job.start_ms(), NOT_KNOWN)),
    both('t', "StateCompact", "ST", |job, _| job.state().code().to_owned()),
    both('T', "State", "STATE", |job, _| job.state().name().to_owned()),
    both('u', "UserName", "USER", |job, _| or_null(&job.allocation.owner)),
    both('U', "UserID", "UID", |job, c| {
        job.recorded.as_ref().map_or_else(|| or_null(&c.uid_text(&job.allocation.owner)), |known| known.uid.to_string())
    }),
    both('v', "Reservation", "RESERVATION", |job, _| or_null(&job.allocation.reservation)),
    both('V', "SubmitTime", "SUBMIT_TIME", |job, c| c.clock.text(job.allocation.submitted_at_ms)),
    both('w', "WCKey", "WCKEY", |_, _| NULL.to_owned()),
    both('W', "Licenses", "LICENSES", |_, _| NULL.to_owned()),
    both('x', "ExcNodes", "EXC_NODES", |job, _| job.allocation.exclude.clone()),
    both('X', "CoreSpec", "CORE_SPEC", |_, _| NOT_KNOWN.to_owned()),
    both('y', "Nice", "NICE", |job, _| job.allocation.nice.to_string()),
    both('Y', "SchedNodes", "SCHEDNODES", |_, _| NULL.to_owned()),
    both('z', "SCT", "S:C:T", |_, _| "*:*:*".to_owned()),
    both('Z', "WorkDir", "WORK_DIR", |job, _| or_null(&job.allocation.working_dir)),
    named("AccrueTime", "ACCRUE_TIME", |job, c| c.clock.text(job.allocation.submitted_at_ms)),
    named("AdminComment", "ADMIN_COMMENT", |_, _| NULL.to_owned()),
    named("AllocNodes", "ALLOC_NODES", |_, _| NULL.to_owned()),
    named("AllocSID", "ALLOC_SID", |_, _| "0".to_owned()),
    named("AssocID", "ASSOC_ID", |_, _| "0".to_owned()),
    named("BatchFlag", "BATCH_FLAG", |_, _| "1".to_owned()),
    named("BoardsPerNode", "BOARDS_PER_NODE", |_, _| NOT_KNOWN.to_owned()),
    named("BurstBuffer", "BURST_BUFFER", |_, _| NULL.to_owned()),
    named("BurstBufferState", "BURST_BUFFER_STATE", |_, _| NULL.to_owned()),
    named("Cluster", "CLUSTER", |_, c| c.compat.cluster().to_owned()),
    named("ClusterFeature", "CLUSTER_FEATURES", |_, _| NULL.to_owned()),
    named("Container", "CONTAINER", |_, _| NULL.to_owned()),
    named("CPUFreq", "CPU_FREQ", |_, _| NOT_KNOWN.to_owned()),
    named("cpus-per-task", "CPUS_PER_TASK", |job, c| (job.cpus(c) / u64::from(job.task_count().max(1))).max(1).to_string()),
    named("cpus-per-tres", "CPUS_PER_TRES", |_, _| NOT_KNOWN.to_owned()),
    named("Deadline", "DEADLINE", |job, c| c.clock.text_or(timed(job, |timing| timing.deadline_ms), NOT_KNOWN)),
    named("DelayBoot", "DELAY_BOOT", |_, _| "0:00".to_owned()),
    named("DerivedEC", "DERIVED_EC", |job, _| job.exit().0.to_string()),
    named("EligibleTime", "ELIGIBLE_TIME", |job, c| c.clock.text(eligible_ms(job))),
    named("ExitCode", "EXIT_CODE", |job, _| job.exit().0.to_string()),
    named("HetJobID", "HET_JOB_ID", |_, _| NOT_KNOWN.to_owned()),
    named("HetJobIDSet", "HET_JOB_ID_SET", |_, _| NOT_KNOWN.to_owned()),
    named("HetJobOffset", "HET_JOB_OFFSET", |_, _| NOT_KNOWN.to_owned()),
    named("LastSchedEval", "LAST_SCHED_EVAL", |_, _| NOT_KNOWN.to_owned()),
    named("MaxCPUs", "MAX_CPUS", |_, _| "0".to_owned()),
    named("MaxNodes", "MAX_NODES", |job, _| job.allocation.nodes_requested_max.to_string()),
    named("MCSLabel", "MCSLABEL", |_, _| NULL.to_owned()),
    named("mem-per-tres", "MEM_PER_TRES", |_, _| NOT_KNOWN.to_owned()),
    named("MinTime", "MIN_TIME", |job, _| {
        timed(job, |timing| timing.walltime_min_seconds).map_or_else(|| "0:00".to_owned(), short_duration)
    }),
    named("Network", "NETWORK", |_, _| NULL.to_owned()),
    named("Nodes", "NODES", |job, _| job.nodes_text()),
    named("NTPerBoard", "NTASKS_PER_BOARD", |_, _| "0".to_owned()),
    named("NTPerCore", "NTASKS_PER_CORE", |_, _| NOT_KNOWN.to_owned()),
    named("NTPerNode", "NTASKS_PER_NODE", |job, _| job.allocation.tasks_per_node.to_string()),
    named("NTPerSocket", "NTASKS_PER_SOCKET", |_, _| NOT_KNOWN.to_owned()),
    named("NumTasks", "TASKS", |job, _| job.task_count().to_string()),
    named("Origin", "ORIGIN", |_, _| NULL.to_owned()),
    named("OriginRaw", "ORIGIN_RAW", |_, _| "0".to_owned()),
    named("PendingTime", "PENDING_TIME", |job, c| {
        let until = if job.state() == JobState::Pending { None } else { job.start_ms() }.unwrap_or(c.clock.now_ms);
        (until.saturating_sub(job.allocation.submitted_at_ms) / 1000).to_string()
    }),
    named("PreemptTime", "PREEMPT_TIME", |_, _| NOT_KNOWN.to_owned()),
    named("Prefer", "PREFER", |_, _| NULL.to_owned()),
    named("Profile", "PROFILE", |_, _| NOT_KNOWN.to_owned()),
    named("Reboot", "REBOOT", |_, _| "0".to_owned()),
    named("ReqSwitch", "REQ_SWITCH", |_, _| "0".to_owned()),
    named("Requeue", "REQUEUE", |_, _| "1".to_owned()),
    named("ResizeTime", "RESIZE_TIME", |_, _| NOT_KNOWN.to_owned()),
    named("RestartCnt", "RESTART_COUNT", |job, _| job.allocation.requeue_count.to_string()),
    named("ResvPort", "RESV_PORTS", |_, _| NULL.to_owned()),
    named("SiblingsActive", "ACTIVE_SIBLINGS", |_, _| NULL.to_owned()),
    named("SiblingsActiveRaw", "ACTIVE_SIBLINGS_RAW", |_, _| "0".to_owned()),
    named("SiblingsViable", "VIABLE_SIBLINGS", |_, _| NULL.to_owned()),
    named("SiblingsViableRaw", "VIABLE_SIBLINGS_RAW", |_, _| "0".to_owned()),
    named("SPerBoard", "SOCKETS_PER_BOARD", |_, _| NOT_KNOWN.to_owned()),
    named("STDERR", "STDERR", |job, _| or_null(&job.files().stderr)),
    named("STDIN", "STDIN", |job, _| or_null(&job.files().stdin)),
    named("STDOUT", "STDOUT", |job, _| or_null(&job.files().stdout)),
    named("SystemComment", "SYSTEM_COMMENT", |_, _| NULL.to_owned()),
    named("tres-alloc", "TRES_ALLOC", |job, c| job.tres_text(c)),
    named("tres-bind", "TRES_BIND", |_, _| NOT_KNOWN.to_owned()),
    named("tres-freq", "TRES_FREQ", |_, _| NOT_KNOWN.to_owned()),
    named("tres-per-job", "TRES_PER_JOB", |_, _| NOT_KNOWN.to_owned()),
    named("tres-per-node", "TRES_PER_NODE", |job, _| match job.allocation.share.as_ref().map_or(0, |share| share.gpus) {
        0 => NOT_KNOWN.to_owned(),
        gpus => format!("gres:gpu:{gpus}"),
    }),
    named("tres-per-socket", "TRES_PER_SOCKET", |_, _| NOT_KNOWN.to_owned()),
    named("tres-per-step", "TRES_PER_STEP", |_, _| NOT_KNOWN.to_owned()),
    named("tres-per-task", "TRES_PER_TASK", |_, _| NOT_KNOWN.to_owned()),
    named("Wait4Switch", "WAIT4SWITCH", |_, _| "0:00".to_owned()),
];

/// The fields of waiting jobs that need the scheduler's outlook: reasons, priorities and expected times.
pub const OUTLOOK_LETTERS: [char; 6] = ['r', 'R', 'p', 'Q', 'S', 'e'];
/// The fields that an agent sends only for a single job: lists do not have them.
pub const DETAIL_LETTERS: [char; 3] = ['o', 'Z', 'E'];
/// The same among the fields without a letter.
pub const DETAIL_NAMES: [&str; 3] = ["STDOUT", "STDERR", "STDIN"];

fn timed(job: &Job, value: impl Fn(&v1::Timing) -> u64) -> Option<u64> {
    job.allocation.timing.as_ref().map(value).filter(|value| *value > 0)
}

/// When it could begin at the earliest.
pub fn eligible_ms(job: &Job) -> u64 {
    timed(job, |timing| timing.begin_ms).unwrap_or(0).max(job.allocation.submitted_at_ms)
}

/// Its unmet dependencies, as Slurm writes them: `afterok:12(unfulfilled)`. Lattice names other work by its id.
pub fn dependency_text(job: &Job) -> String {
    let open = job.allocation.dependencies.iter().filter(|on| !on.met);
    let texts = open.map(|on| {
        let id = on.id.get(..8).unwrap_or(&on.id);
        let kind = match on.condition.split('+').next().unwrap_or_default() {
            "success" => "afterok",
            "failure" => "afternotok",
            "any" => "afterany",
            "corresponding" => "aftercorr",
            "singleton" => return "singleton(unfulfilled)".to_owned(),
            other => other,
        };
        format!("{kind}:{id}(unfulfilled)")
    });
    texts.collect::<Vec<_>>().join(",")
}

fn time_used(job: &Job, now_ms: u64) -> String {
    match job.elapsed_ms(now_ms) {
        Some(ms) => short_duration(ms / 1000),
        None if job.task().is_some() && job.state() != JobState::Pending => NOT_KNOWN.to_owned(),
        None => short_duration(0),
    }
}

fn time_left(job: &Job, context: &Context<'_>) -> String {
    match (job.limit_seconds(), job.elapsed_ms(context.clock.now_ms)) {
        (None, _) => "UNLIMITED".to_owned(),
        (Some(_), None) if job.task().is_some() && job.state() != JobState::Pending => NOT_KNOWN.to_owned(),
        (Some(limit), elapsed) => short_duration(limit.saturating_sub(elapsed.unwrap_or(0) / 1000)),
    }
}

fn reason_list(job: &Job, context: &Context<'_>) -> String {
    let reason = job.reason(context.clock.now_ms);
    match job.state() {
        JobState::Pending | JobState::Suspended => format!("({reason})"),
        state if state.is_final() && reason != "None" => format!("({reason})"),
        _ => job.nodes_text(),
    }
}

/// Sorts rows.
pub fn sort(jobs: &mut [Job], keys: &[SortKey], context: &Context<'_>) {
    jobs.sort_by(|a, b| keys.iter().map(|key| compared(a, b, *key, context)).find(|order| order.is_ne()).unwrap_or(Ordering::Equal));
}

fn compared(a: &Job, b: &Job, key: SortKey, context: &Context<'_>) -> Ordering {
    let numbers = |number: fn(&Job) -> u64| number(a).cmp(&number(b));
    let order = match key.letter {
        'A' | 'i' => numbers(Job::number),
        'F' => numbers(Job::base_number),
        't' | 'T' => a.state().cmp(&b.state()),
        'p' | 'Q' => numbers(Job::priority),
        'D' => numbers(|job| u64::from(job.node_count())),
        'C' => a.cpus(context).cmp(&b.cpus(context)),
        'l' => numbers(|job| job.limit_seconds().unwrap_or(u64::MAX)),
        'S' => numbers(|job| job.start_ms().unwrap_or(u64::MAX)),
        'e' => numbers(|job| job.end_ms().unwrap_or(u64::MAX)),
        'V' => numbers(|job| job.allocation.submitted_at_ms),
        'y' => a.allocation.nice.cmp(&b.allocation.nice),
        'M' | 'L' => {
            let elapsed = |job: &Job| job.elapsed_ms(context.clock.now_ms);
            if key.letter == 'M' { elapsed(a).cmp(&elapsed(b)) } else { elapsed(b).cmp(&elapsed(a)) }
        }
        'P' => a.partition(context).cmp(b.partition(context)),
        letter => match JOB_FIELDS.iter().find(|field| field.letter == Some(letter)) {
            Some(field) => (field.value)(a, context).cmp(&(field.value)(b, context)),
            None => Ordering::Equal,
        },
    };
    if key.is_descending { order.reverse() } else { order }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::rows;
    use crate::format::{Layout, sort_keys};
    use crate::time::{Clock, Utc};
    use lattice_cli_syntax::compat::Compat;
    use std::collections::BTreeMap;

    /// 2026-03-05T10:00:12.034Z
    const NOW: u64 = 1_772_704_812_034;

    fn shown(allocations: Vec<v1::Allocation>, layout: &Layout<Job>, keys: &str) -> Vec<String> {
        let compat =
            Compat::parse("partition_mapping: {normal: batch}\naccount_mapping: {phys: physics}\nqos_mapping: {high: 7}\n").unwrap();
        let (clock, nodes) = (Clock::new(NOW, &Utc, None), BTreeMap::new());
        let context = Context { compat: &compat, clock: &clock, uid_of: &|_| Some(1000), nodes: &nodes };
        let mut jobs: Vec<Job> = allocations.into_iter().flat_map(|a| rows(a, &[], false)).collect();
        sort(&mut jobs, &sort_keys(keys, |_| true).unwrap(), &context);
        std::iter::once(layout.heading()).chain(jobs.iter().map(|job| layout.line(job, &context))).collect()
    }

    fn running(number: u64) -> v1::Allocation {
        v1::Allocation {
            number,
            name: "a-long-name".into(),
            state: "Running".into(),
            owner: "ada".into(),
            nodes: vec!["n1".into(), "n2".into()],
            nodes_requested: 2,
            tasks_per_node: 4,
            walltime_seconds: 3600,
            submitted_at_ms: NOW - 100_000,
            started_at_ms: NOW - 65_000,
            tenant: "physics".into(),
            vcluster: "batch".into(),
            preemption_class: Some(7),
            ..Default::default()
        }
    }

    fn pending(number: u64, queue_position: u32) -> v1::Allocation {
        let started_at_ms = 0;
        v1::Allocation { state: "Pending".into(), nodes: vec![], started_at_ms, queue_position, ..running(number) }
    }

    #[test]
    fn the_default_columns_are_those_of_slurm() {
        let array = v1::Allocation { task_group: "0-9%2".into(), held: true, ..pending(20, 0) };
        let lines =
            shown(vec![running(12), pending(13, 2), array, pending(14, 1)], &Layout::of_letters(DEFAULT, JOB_FIELDS).unwrap(), SORT);
        let want = [
            "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)",
            "                14    normal a-long-n      ada PD       0:00      2 (Resources)",
            "                13    normal a-long-n      ada PD       0:00      2 (Priority)",
            "        20_[0-9%2]    normal a-long-n      ada PD       0:00      2 (JobHeldUser)",
            "                12    normal a-long-n      ada  R       1:05      2 n[1-2]",
        ];
        assert_eq!(lines, want);
    }

    #[test]
    fn formats_of_programs_are_understood() {
        let of = |format: &str| shown(vec![running(12)], &Layout::of_letters(format, JOB_FIELDS).unwrap(), "i").remove(1);
        assert_eq!(of("%i %t"), "12 R");
        assert_eq!(of("%i|%T|%N|%r"), "12|RUNNING|n[1-2]|None");
        assert_eq!(of("%a %q %U %l %L %S %e %C"), "phys high 1000 1:00:00 58:55 2026-03-05T09:59:07 2026-03-05T10:59:07 8");
        let asks = v1::Allocation {
            nodelist: "n[1-2]".into(),
            exclude: "n9".into(),
            features: "gpu&(a|b)".into(),
            topology: "contiguous".into(),
            ..running(12)
        };
        assert_eq!(shown(vec![asks], &Layout::of_letters("%n %x %f %O", JOB_FIELDS).unwrap(), "i")[1], "n[1-2] n9 gpu&(a|b) 1");
        let names = Layout::of_names("JobArrayID,StateCompact,Reason", JOB_FIELDS).unwrap();
        assert_eq!(shown(vec![running(12)], &names, "i")[1].split_whitespace().collect::<Vec<_>>(), ["12", "R", "None"]);
        Layout::of_letters("%all", JOB_FIELDS).unwrap();
    }

    #[test]
    fn every_letter_and_name_is_there_once() {
        for field in JOB_FIELDS {
            assert_eq!(JOB_FIELDS.iter().filter(|other| other.name.eq_ignore_ascii_case(field.name)).count(), 1, "{}", field.name);
            if let Some(letter) = field.letter {
                assert_eq!(JOB_FIELDS.iter().filter(|other| other.letter == Some(letter)).count(), 1, "{letter}");
            }
        }
    }

    #[test]
    fn sooner_starts_come_first_and_unknown_ones_last() {
        let later = v1::Allocation { expected_start_ms: Some(NOW + 60_000), ..pending(14, 1) };
        let sooner = v1::Allocation { expected_start_ms: Some(NOW), ..pending(15, 2) };
        let lines = shown(vec![pending(13, 3), later, sooner], &Layout::of_letters("%i %S", JOB_FIELDS).unwrap(), "S");
        assert_eq!(lines[1..], ["15 2026-03-05T10:00:12", "14 2026-03-05T10:01:12", "13 N/A"]);
    }
}
