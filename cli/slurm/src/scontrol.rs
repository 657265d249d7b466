//! The records of `scontrol show`.

use crate::context::Context;
use crate::job::{Job, Part, is_array};
use crate::job_fields::{dependency_text, eligible_ms};
use crate::node::{self, State};
use crate::partition::Partition;
use crate::sinfo::Group;
use crate::state::JobState;
use crate::time::{UNKNOWN, long_duration};
use crate::units::{self, folded, memory_text, or_null};
use lattice_api::v1;
use std::rc::Rc;

/// A record of several lines as text; `one_line`: all of it in one line.
pub fn record_text(lines: &[String], one_line: bool) -> String {
    let lines: Vec<String> = lines.iter().map(|line| units::one_line(line.clone())).collect();
    if one_line { lines.join(" ") + "\n" } else { lines.join("\n   ") + "\n\n" }
}

/// The lines about a job. `details`: also what it has on each node.
pub fn job_lines(job: &Job, details: bool, c: &Context<'_>) -> Vec<String> {
    let a = &job.allocation;
    let array = match &job.part {
        Part::Whole if !is_array(a) => String::new(),
        Part::Whole | Part::Waiting { .. } | Part::Task(_) => {
            format!(" ArrayJobId={} ArrayTaskId={}", job.base_number(), job.indices_text())
        }
    };
    let uid = c.uid_text(&a.owner);
    let timing = |value: fn(&v1::Timing) -> u64| a.timing.as_ref().map(value).filter(|value| *value > 0);
    let waits = matches!(job.state(), JobState::Pending | JobState::Suspended);
    let elapsed = job.elapsed_ms(c.clock.now_ms).unwrap_or(0) / 1000;
    let limit = job.limit_seconds().map_or_else(|| "UNLIMITED".to_owned(), long_duration);
    let least = timing(|timing| timing.walltime_min_seconds).map_or_else(|| "N/A".to_owned(), long_duration);
    let nodes = job.nodes_text();
    let cpus = job.cpus(c);
    let memory = a.share.as_ref().map_or_else(|| "0".to_owned(), |share| memory_text(share.memory_bytes));
    let files = job.files();
    let command = if a.script.is_empty() { a.command.join(" ") } else { String::new() };
    let mut lines = vec![
        format!("JobId={}{array} JobName={}", job.number(), a.name),
        format!("UserId={}({uid}) GroupId={}({uid}) MCS_label=N/A", a.owner, a.owner),
        format!("Priority={} Nice={} Account={} QOS={}", job.priority(), a.nice, or_null(job.account(c)), job.qos(c)),
        format!("JobState={} Reason={} Dependency={}", job.state().name(), job.reason(c.clock.now_ms), or_null(&dependency_text(job))),
        format!(
            "Requeue=1 Restarts={} BatchFlag={} Reboot=0 ExitCode={}",
            a.requeue_count,
            u8::from(!a.script.is_empty() || a.command.is_empty()),
            job.exit_text()
        ),
        format!("RunTime={} TimeLimit={limit} TimeMin={least}", long_duration(elapsed)),
        format!("SubmitTime={} EligibleTime={}", c.clock.text(a.submitted_at_ms), c.clock.text(eligible_ms(job))),
        format!("AccrueTime={}", c.clock.text(eligible_ms(job))),
        format!(
            "StartTime={} EndTime={} Deadline={}",
            c.clock.text_or(job.start_ms(), UNKNOWN),
            c.clock.text_or(job.end_ms(), UNKNOWN),
            c.clock.text_or(timing(|timing| timing.deadline_ms), "N/A")
        ),
        "SuspendTime=None SecsPreSuspend=0".to_owned(),
        format!("Partition={}", job.partition(c)),
        format!("ReqNodeList={} ExcNodeList={}", or_null(&a.nodelist), or_null(&a.exclude)),
        format!("NodeList={}", if waits { "(null)" } else { nodes.as_str() }),
    ];
    if let Some(head) = job.node_names().first() {
        lines.push(format!("BatchHost={head}"));
    }
    let per_task = (cpus / u64::from(job.task_count().max(1))).max(1);
    lines.extend([
        format!("NumNodes={} NumCPUs={cpus} NumTasks={} CPUs/Task={per_task} ReqB:S:C:T=0:0:*:*", job.node_count(), job.task_count()),
        format!("TRES={}", job.tres_text(c)),
        format!("Socks/Node=* NtasksPerN:B:S:C={}:0:*:* CoreSpec=*", a.tasks_per_node),
    ]);
    if details {
        lines.extend(job.node_names().iter().map(|node| format!("  Nodes={node} CPUs={}", cpus / u64::from(job.node_count().max(1)))));
    }
    let shares = if a.share.is_some() { "OK" } else { "NO" };
    lines.extend([
        format!("MinCPUsNode={} MinMemoryNode={memory} MinTmpDiskNode=0", a.tasks_per_node.max(1)),
        format!("Features={} DelayBoot=00:00:00", or_null(&a.features)),
        format!("OverSubscribe={shares} Contiguous={} Licenses=(null) Network=(null)", u8::from(job.is_contiguous())),
        format!("Command={}", or_null(&command)),
        format!("WorkDir={}", or_null(&a.working_dir)),
    ]);
    if !a.reservation.is_empty() {
        lines.push(format!("Reservation={}", a.reservation));
    }
    if !a.comment.is_empty() {
        lines.push(format!("Comment={}", a.comment));
    }
    if a.output_files.is_some() {
        let stdin = if files.stdin.is_empty() { "/dev/null" } else { files.stdin.as_str() };
        lines.extend([format!("StdErr={}", files.stderr), format!("StdIn={stdin}"), format!("StdOut={}", files.stdout)]);
    }
    lines.push(format!("LatticeId={}", a.id));
    lines
}

/// The lines about a node. `partitions`: those that may use it.
pub fn node_lines(node: &v1::Node, partitions: &[&str], c: &Context<'_>) -> Vec<String> {
    let sockets = node::sockets(node);
    let used = node.committed.unwrap_or_default();
    let features = if node.features.is_empty() { "(null)".to_owned() } else { node.features.join(",") };
    let tres = |cores: u32, bytes: u64, gpus: u32| {
        let gpus = if gpus == 0 { String::new() } else { format!(",gres/gpu={gpus}") };
        format!("cpu={cores},mem={}M,billing={cores}{gpus}", bytes >> 20)
    };
    let allocated = if node.allocations.is_empty() { String::new() } else { tres(used.cores, used.memory_bytes, used.gpus) };
    let mut lines = vec![
        format!("NodeName={} CoresPerSocket={}", node.id, (node.cores / sockets).max(1)),
        format!("CPUAlloc={} CPUEfctv={} CPUTot={} CPULoad=N/A", used.cores, node.cores, node.cores),
        format!("AvailableFeatures={features}"),
        format!("ActiveFeatures={features}"),
        format!("Gres={}", node::gres(node.gpus)),
        format!("NodeAddr={} NodeHostName={} Version={}", node.id, node.id, crate::commands::SLURM_VERSION),
        format!("RealMemory={} AllocMem={} FreeMem=N/A Sockets={sockets} Boards=1", node.memory_bytes >> 20, used.memory_bytes >> 20),
        format!("State={} ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A", State::of(node).flags()),
    ];
    if !partitions.is_empty() {
        lines.push(format!("Partitions={}", partitions.join(",")));
    }
    lines.extend([format!("CfgTRES={}", tres(node.cores, node.memory_bytes, node.gpus)), format!("AllocTRES={allocated}")]);
    let reason = node::reason(node);
    if !reason.is_empty() {
        let by = node::drained_by(node).unwrap_or("lattice");
        lines.push(format!("Reason={reason} [{by}@{}]", c.clock.text(node.state_since_ms)));
    }
    lines
}

/// The lines about a reservation.
pub fn reservation_lines(r: &v1::Reservation, c: &Context<'_>) -> Vec<String> {
    let accounts: Vec<&str> = r.tenants.iter().map(|tenant| c.compat.account_of(tenant)).collect();
    let (users, accounts) = (or_null(&r.users.join(",")), or_null(&accounts.join(",")));
    let state = if r.state == "Open" { "ACTIVE" } else { "INACTIVE" };
    let flags = if r.maintenance { "MAINT,SPEC_NODES" } else { "SPEC_NODES" };
    let mut lines = vec![
        format!(
            "ReservationName={} StartTime={} EndTime={} Duration={}",
            r.name,
            c.clock.text(r.start_ms),
            c.clock.text(r.end_ms),
            long_duration(r.end_ms.saturating_sub(r.start_ms) / 1000)
        ),
        format!("Nodes={} NodeCnt={} CoreCnt=(null) Features=(null) PartitionName=(null) Flags={flags}", r.nodes, r.node_count),
        "TRES=(null)".to_owned(),
        format!("Users={users} Groups=(null) Accounts={accounts} Licenses=(null) State={state}"),
    ];
    if !r.comment.is_empty() {
        lines.push(format!("Comment={}", r.comment));
    }
    lines
}

/// The table of `sinfo -T`, without reservations that are over.
pub fn reservation_table(all: &[v1::Reservation], c: &Context<'_>) -> String {
    let mut text = format!("{:<12} {:>8} {:>19} {:>19} {:>11} NODELIST\n", "RESV_NAME", "STATE", "START_TIME", "END_TIME", "DURATION");
    for r in all.iter().filter(|r| r.state != "Over") {
        let state = if r.state == "Open" { "ACTIVE" } else { "INACTIVE" };
        let duration = long_duration(r.end_ms.saturating_sub(r.start_ms) / 1000);
        let (start, end) = (c.clock.text(r.start_ms), c.clock.text(r.end_ms));
        text.push_str(&format!("{:<12} {state:>8} {start:>19} {end:>19} {duration:>11} {}\n", r.name, r.nodes));
    }
    text
}

/// The lines about a partition.
pub fn partition_lines(partition: &Partition, c: &Context<'_>) -> Vec<String> {
    let tenant = &partition.vcluster.tenant;
    let accounts = if tenant.is_empty() { "ALL" } else { c.compat.account_of(tenant) };
    let yes = if partition.is_default { "YES" } else { "NO" };
    let group = Group { partition: None, nodes: partition.nodes.clone() };
    let [.., cpus] = group.cpu_counts();
    let count = partition.nodes.len();
    let sum = |of: fn(&Rc<v1::Node>) -> u64| partition.nodes.iter().map(of).sum::<u64>();
    let (memory, gpus) = (sum(|node| node.memory_bytes) >> 20, sum(|node| u64::from(node.gpus)));
    let gpus = if gpus == 0 { String::new() } else { format!(",gres/gpu={gpus}") };
    let nodes = folded(partition.nodes.iter().map(|node| &node.id));
    vec![
        format!("PartitionName={}", partition.name),
        format!("AllowGroups=ALL AllowAccounts={accounts} AllowQos=ALL"),
        format!("AllocNodes=ALL Default={yes} QoS=N/A"),
        "DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO".to_owned(),
        "MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED".to_owned(),
        format!("Nodes={}", or_null(&nodes)),
        "PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO".to_owned(),
        "OverTimeLimit=NONE PreemptMode=REQUEUE".to_owned(),
        format!("State=UP TotalCPUs={cpus} TotalNodes={count} SelectTypeParameters=NONE"),
        "JobDefaults=(null)".to_owned(),
        "DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED".to_owned(),
        format!("TRES=cpu={cpus},mem={memory}M,node={count},billing={cpus}{gpus}"),
    ]
}

/// The lines of `scontrol show config`. `kept_seconds`: how long the quorum keeps ended work.
pub fn config_text(kept_seconds: u64, has_store: bool, c: &Context<'_>) -> String {
    let storage = if has_store { "accounting_storage/slurmdbd" } else { "accounting_storage/none" };
    let rows = [
        ("AccountingStorageType", storage.to_owned()),
        ("ClusterName", c.compat.cluster().to_owned()),
        ("EnforcePartLimits", "NO".to_owned()),
        ("JobRequeue", "1".to_owned()),
        ("MaxArraySize", (u64::from(lattice_model::task_group::INDEX_MAX) + 1).to_string()),
        ("MinJobAge", format!("{kept_seconds} sec")),
        ("PreemptMode", "REQUEUE".to_owned()),
        ("PriorityType", "priority/multifactor".to_owned()),
        ("SchedulerType", "sched/backfill".to_owned()),
        ("SelectType", "select/cons_tres".to_owned()),
        ("SLURM_VERSION", crate::commands::SLURM_VERSION.to_owned()),
        ("TaskPlugin", "task/cgroup".to_owned()),
    ];
    let lines: String = rows.iter().map(|(name, value)| format!("{name:<23} = {value}\n")).collect();
    format!("Configuration data as of {}\n{lines}", c.clock.text(c.clock.now_ms))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::rows;
    use crate::partition::partitions;
    use crate::time::{Clock, Utc};
    use lattice_cli_syntax::compat::Compat;
    use std::collections::BTreeMap;

    /// 2026-03-05T10:00:12.034Z
    const NOW: u64 = 1_772_704_812_034;

    fn with(test: impl FnOnce(&Context<'_>)) {
        let (compat, clock, nodes) = (Compat::default(), Clock::new(NOW, &Utc, None), BTreeMap::new());
        test(&Context { compat: &compat, clock: &clock, uid_of: &|_| Some(1000), nodes: &nodes });
    }

    #[test]
    fn a_reservation_is_a_record_and_a_line_of_a_table() {
        let course = v1::Reservation {
            name: "course".into(),
            nodes: "n[1-2]".into(),
            node_count: 2,
            start_ms: NOW - 34,
            end_ms: NOW - 34 + 3_600_000,
            users: vec!["ada".into()],
            state: "Open".into(),
            ..Default::default()
        };
        let over = v1::Reservation { name: "old".into(), state: "Over".into(), ..course.clone() };
        with(|c| {
            let want = [
                "ReservationName=course StartTime=2026-03-05T10:00:12 EndTime=2026-03-05T11:00:12 Duration=01:00:00",
                "Nodes=n[1-2] NodeCnt=2 CoreCnt=(null) Features=(null) PartitionName=(null) Flags=SPEC_NODES",
                "TRES=(null)",
                "Users=ada Groups=(null) Accounts=(null) Licenses=(null) State=ACTIVE",
            ];
            assert_eq!(reservation_lines(&course, c), want);
            let table = reservation_table(&[course, over], c);
            let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
            let line = ["course", "ACTIVE", "2026-03-05T10:00:12", "2026-03-05T11:00:12", "01:00:00", "n[1-2]"];
            assert_eq!((lines.len(), lines[1].as_slice()), (2, &line[..]));
        });
    }

    #[test]
    fn a_job_is_a_record_in_one_line_or_several() {
        let job = v1::Allocation {
            id: "1f0c9a4e".into(),
            number: 12,
            name: "train".into(),
            state: "Running".into(),
            owner: "ada".into(),
            tenant: "physics".into(),
            nodes: vec!["n1".into()],
            nodes_requested: 1,
            tasks_per_node: 2,
            walltime_seconds: 3600,
            submitted_at_ms: NOW - 70_000,
            started_at_ms: NOW - 60_000,
            script: "#!/bin/sh\n".into(),
            working_dir: "/home/ada".into(),
            ..Default::default()
        };
        with(|c| {
            let lines = job_lines(&rows(job, &[], false)[0], false, c);
            let text = record_text(&lines, false);
            let begin = "\
JobId=12 JobName=train
   UserId=ada(1000) GroupId=ada(1000) MCS_label=N/A
   Priority=4294901760 Nice=0 Account=physics QOS=normal
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:01:00 TimeLimit=01:00:00 TimeMin=N/A
   SubmitTime=2026-03-05T09:59:02 EligibleTime=2026-03-05T09:59:02
";
            assert!(text.starts_with(begin) && text.ends_with("\n\n"), "{text}");
            assert!(text.contains("\n   NodeList=n1\n   BatchHost=n1\n   NumNodes=1 NumCPUs=2 NumTasks=2 CPUs/Task=1 "), "{text}");
            assert_eq!(record_text(&lines, true).lines().count(), 1);
        });
    }

    #[test]
    fn nodes_and_partitions_have_what_programs_look_for() {
        let node = v1::Node {
            id: "n1".into(),
            state: "Ready".into(),
            cores: 64,
            memory_bytes: 1 << 30,
            features: vec!["a100".into(), "nvme".into()],
            schedulable: true,
            gossip: "alive".into(),
            holds: vec!["drain by op since 2026-03-05T10:00:12.034Z: fan".into()],
            state_since_ms: NOW,
            ..Default::default()
        };
        let vcluster = v1::VCluster { name: "default".into(), ..Default::default() };
        with(|c| {
            let text = record_text(&node_lines(&node, &["default"], c), true);
            for piece in [
                "NodeName=n1 ",
                " ActiveFeatures=a100,nvme ",
                " State=IDLE+DRAIN ",
                " Partitions=default ",
                " Reason=fan [op@2026-03-05T10:00:12]\n",
                " RealMemory=1024 ",
            ] {
                assert!(text.contains(piece), "{piece}: {text}");
            }
            let found = partitions(&[vcluster], &[Rc::new(node)], c.compat);
            let text = record_text(&partition_lines(&found[0], c), true);
            assert!(text.starts_with("PartitionName=default AllowGroups=ALL ") && text.contains(" Default=YES "), "{text}");
            assert!(text.contains(" Nodes=n1 ") && text.contains(" TotalCPUs=64 TotalNodes=1 "), "{text}");
            let text = config_text(300, false, c);
            assert!(text.contains("\nMinJobAge               = 300 sec\n"), "{text}");
        });
    }
}
