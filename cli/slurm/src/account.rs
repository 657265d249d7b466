//! The rows and fields of sacct.

use crate::context::Context;
use crate::job::Job;
use crate::job_fields::eligible_ms;
use crate::listing::{ListField, field};
use crate::state::JobState;
use crate::step::StepRow;
use crate::time::{UNKNOWN, cpu_duration, long_duration};
use crate::units::{kibibytes_text, memory_text};
use lattice_api::v1;

/// The fields of sacct without options.
pub const DEFAULT: &str = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode";
/// The fields of `sacct --brief`.
pub const BRIEF: &str = "JobID,State,ExitCode";
/// The fields of `sacct --long`.
pub const LONG: &str = "JobID,JobIDRaw,JobName,Partition,MaxVMSize,MaxVMSizeNode,MaxVMSizeTask,AveVMSize,MaxRSS,MaxRSSNode,MaxRSSTask,AveRSS,\
MaxPages,MaxPagesNode,MaxPagesTask,AvePages,MinCPU,MinCPUNode,MinCPUTask,AveCPU,NTasks,AllocCPUS,Elapsed,State,ExitCode,AveCPUFreq,\
ReqCPUFreqMin,ReqCPUFreqMax,ReqCPUFreqGov,ReqMem,ConsumedEnergy,MaxDiskRead,MaxDiskReadNode,MaxDiskReadTask,AveDiskRead,MaxDiskWrite,\
MaxDiskWriteNode,MaxDiskWriteTask,AveDiskWrite,ReqTRES,AllocTRES,TRESUsageInAve,TRESUsageInMax,TRESUsageInMaxNode,TRESUsageInMaxTask,\
TRESUsageInMin,TRESUsageInMinNode,TRESUsageInMinTask,TRESUsageInTot,TRESUsageOutMax,TRESUsageOutMaxNode,TRESUsageOutMaxTask,\
TRESUsageOutAve,TRESUsageOutTot";

/// A line of sacct: a job, or one of its steps.
#[derive(Clone, Debug)]
pub struct Line {
    /// The job.
    pub job: Job,
    /// The step; `None`: the job itself.
    pub step: Option<StepRow>,
}

/// Whether a job has begun, so that it has steps.
pub fn has_steps(job: &Job) -> bool {
    !matches!(job.state(), JobState::Pending | JobState::Suspended | JobState::Configuring)
        && (job.start_ms().is_some() || job.task().is_some())
}

/// The lines of these jobs. `with_steps`: also the steps of each job that has begun. `known`: the steps of a job; `None`:
/// they are unknown, and there is a line for its script.
pub fn lines(jobs: Vec<Job>, with_steps: bool, known: impl Fn(&Job) -> Option<Vec<v1::JobStep>>) -> Vec<Line> {
    let mut lines = Vec::with_capacity(jobs.len());
    for job in jobs {
        let rows: Vec<StepRow> = match (with_steps && has_steps(&job)).then(|| known(&job)) {
            None => Vec::new(),
            Some(None) => vec![StepRow::of_unknown(&job)],
            Some(Some(steps)) => steps.into_iter().map(|step| StepRow { job: job.clone(), step }).collect(),
        };
        lines.push(Line { job: job.clone(), step: None });
        lines.extend(rows.into_iter().map(|row| Line { job: job.clone(), step: Some(row) }));
    }
    lines
}

impl Line {
    fn with_step(&self, id: String) -> String {
        match &self.step {
            Some(row) => format!("{id}.{}", row.step.step),
            None => id,
        }
    }

    /// Whether the job's measurements are about this line: single launches are not measured.
    fn is_measured(&self) -> bool {
        self.job.task().is_none() && self.step.as_ref().is_none_or(|row| row.step.is_entry)
    }

    /// A field that steps do not have.
    fn of_job(&self, text: impl FnOnce(&Job) -> String) -> String {
        if self.step.is_some() { String::new() } else { text(&self.job) }
    }

    /// A field that only steps have.
    fn of_step(&self, text: impl FnOnce(&StepRow) -> String) -> String {
        self.step.as_ref().map(text).unwrap_or_default()
    }

    /// Its state, such as `COMPLETED` or `CANCELLED by 1000`.
    fn state_text(&self, context: &Context<'_>) -> String {
        if let Some(row) = &self.step {
            return row.state().name().to_owned();
        }
        let state = self.job.state();
        match self.job.cancelled_by().filter(|_| state == JobState::Cancelled) {
            Some(by) => format!("CANCELLED by {}", context.uid_text(by)),
            None if state == JobState::Configuring => JobState::Pending.name().to_owned(),
            None => state.name().to_owned(),
        }
    }

    fn elapsed_seconds(&self, context: &Context<'_>) -> u64 {
        let now_ms = context.clock.now_ms;
        self.step.as_ref().map_or_else(|| self.job.elapsed_ms(now_ms), |row| row.elapsed_ms(now_ms)).unwrap_or(0) / 1000
    }

    fn cpu_seconds(&self, context: &Context<'_>) -> u64 {
        match &self.job.recorded {
            Some(recorded) if self.is_measured() => recorded.core_ms / 1000,
            _ => self.elapsed_seconds(context).saturating_mul(self.cpus(context)),
        }
    }

    fn cpus(&self, context: &Context<'_>) -> u64 {
        self.step.as_ref().map_or_else(|| self.job.cpus(context), |row| row.cpus(context))
    }

    fn allocated_cpus(&self, context: &Context<'_>) -> u64 {
        if matches!(self.job.state(), JobState::Pending | JobState::Suspended) { 0 } else { self.cpus(context) }
    }

    fn node_count(&self) -> u32 {
        self.step.as_ref().map_or_else(|| self.job.node_count(), |row| row.step.node_count)
    }

    /// What it has, as Slurm lists trackable resources.
    fn tres_text(&self, context: &Context<'_>) -> String {
        match &self.step {
            Some(row) if !row.step.is_entry => format!("cpu={},node={}", row.cpus(context), row.step.node_count),
            _ => self.job.tres_text(context),
        }
    }

    fn ended_ms(&self) -> Option<u64> {
        self.step.as_ref().map_or_else(|| self.job.ended_ms(), StepRow::ended_ms)
    }

    fn exit_text(&self) -> String {
        self.step.as_ref().map_or_else(|| self.job.exit_text(), StepRow::exit_text)
    }

    fn used_cpu(&self) -> String {
        cpu_duration(self.job.allocation.cpu_ms.filter(|_| self.is_measured()).unwrap_or(0))
    }

    fn peak_memory(&self) -> String {
        let peak = self.job.allocation.memory_peak_bytes.filter(|_| self.is_measured());
        self.of_step(|_| peak.map(kibibytes_text).unwrap_or_default())
    }

    fn nodes(&self) -> String {
        let nodes = self.step.as_ref().map_or_else(|| self.job.nodes_text(), StepRow::nodes_text);
        if nodes.is_empty() { "None assigned".to_owned() } else { nodes }
    }
}

/// A field that Lattice has nothing for.
const fn empty(name: &'static str, width: usize) -> ListField<Line> {
    field(name, width, |_, _| String::new())
}

/// The fields of sacct, in its order. Fields that Lattice does not know are empty.
pub const ACCOUNT_FIELDS: &[ListField<Line>] = &[
    field("Account", 10, |line, c| line.job.account(c).to_owned()),
    empty("AdminComment", 19),
    field("AllocCPUS", 10, |line, c| line.allocated_cpus(c).to_string()),
    field("AllocNodes", 10, |line, c| if line.allocated_cpus(c) == 0 { "0".to_owned() } else { line.node_count().to_string() }),
    field("AllocTRES", 10, |line, c| if line.allocated_cpus(c) == 0 { String::new() } else { line.tres_text(c) }),
    field("AssocID", 7, |line, _| line.of_job(|_| "0".to_owned())),
    field("AveCPU", 10, |line, _| line.of_step(|_| line.used_cpu())),
    empty("AveCPUFreq", 10),
    empty("AveDiskRead", 14),
    empty("AveDiskWrite", 14),
    empty("AvePages", 10),
    field("AveRSS", 10, |line, _| line.peak_memory()),
    empty("AveVMSize", 10),
    empty("BlockID", 16),
    field("Cluster", 10, |_, c| c.compat.cluster().to_owned()),
    field("Comment", 14, |line, _| line.of_job(|job| job.allocation.comment.clone())),
    empty("Constraints", 19),
    empty("ConsumedEnergy", 14),
    empty("ConsumedEnergyRaw", 17),
    empty("Container", 20),
    field("CPUTime", 10, |line, c| long_duration(line.cpu_seconds(c))),
    field("CPUTimeRAW", 10, |line, c| line.cpu_seconds(c).to_string()),
    field("DBIndex", 10, |line, _| line.of_job(|job| job.number().to_string())),
    field("DerivedExitCode", 15, |line, _| line.of_job(Job::exit_text)),
    field("Elapsed", 10, |line, c| long_duration(line.elapsed_seconds(c))),
    field("ElapsedRaw", 10, |line, c| line.elapsed_seconds(c).to_string()),
    field("Eligible", 19, |line, c| c.clock.text(eligible_ms(&line.job))),
    field("End", 19, |line, c| c.clock.text_or(line.ended_ms(), UNKNOWN)),
    field("ExitCode", 8, |line, _| line.exit_text()),
    empty("Flags", 20),
    empty("GID", 6),
    empty("Group", 9),
    ListField { name: "JobID", width: 12, is_left: true, value: |line, _| line.with_step(line.job.id_text()) },
    ListField { name: "JobIDRaw", width: 12, is_left: true, value: |line, _| line.with_step(line.job.number().to_string()) },
    field("JobName", 10, |line, _| line.step.as_ref().map_or_else(|| line.job.allocation.name.clone(), |row| row.step.name.clone())),
    empty("Layout", 9),
    empty("MaxDiskRead", 12),
    empty("MaxDiskReadNode", 15),
    empty("MaxDiskReadTask", 15),
    empty("MaxDiskWrite", 12),
    empty("MaxDiskWriteNode", 16),
    empty("MaxDiskWriteTask", 16),
    empty("MaxPages", 8),
    empty("MaxPagesNode", 12),
    empty("MaxPagesTask", 14),
    field("MaxRSS", 10, |line, _| line.peak_memory()),
    empty("MaxRSSNode", 10),
    empty("MaxRSSTask", 10),
    empty("MaxVMSize", 10),
    empty("MaxVMSizeNode", 14),
    empty("MaxVMSizeTask", 14),
    empty("McsLabel", 7),
    empty("MinCPU", 10),
    empty("MinCPUNode", 10),
    empty("MinCPUTask", 10),
    field("NCPUS", 10, |line, c| line.cpus(c).to_string()),
    field("NNodes", 8, |line, _| line.node_count().to_string()),
    field("NodeList", 15, |line, _| line.nodes()),
    field("NTasks", 8, |line, _| line.of_step(|row| row.step.ranks.to_string())),
    field("Partition", 10, |line, c| line.of_job(|job| job.partition(c).to_owned())),
    field("Planned", 10, |line, c| line.of_job(|job| long_duration(planned_seconds(job, c)))),
    field("Priority", 10, |line, _| line.of_job(|job| job.priority().to_string())),
    field("QOS", 10, |line, c| line.of_job(|job| job.qos(c).to_owned())),
    empty("QOSRAW", 6),
    field("Reason", 22, |line, c| line.of_job(|job| job.reason(c.clock.now_ms).to_owned())),
    empty("ReqCPUFreq", 10),
    empty("ReqCPUFreqGov", 13),
    empty("ReqCPUFreqMax", 13),
    empty("ReqCPUFreqMin", 13),
    field("ReqCPUS", 8, |line, c| line.cpus(c).to_string()),
    field("ReqMem", 10, |line, c| line.of_job(|job| memory_text(job.memory_bytes(c)))),
    field("ReqNodes", 8, |line, _| line.of_job(|job| job.allocation.nodes_requested.to_string())),
    field("ReqTRES", 10, |line, c| line.of_job(|job| job.tres_text(c))),
    empty("Reservation", 20),
    empty("ReservationId", 15),
    field("Reserved", 10, |line, c| line.of_job(|job| long_duration(planned_seconds(job, c)))),
    field("ResvCPU", 10, |line, c| line.of_job(|job| long_duration(planned_seconds(job, c).saturating_mul(job.cpus(c))))),
    field("ResvCPURAW", 10, |line, c| line.of_job(|job| planned_seconds(job, c).saturating_mul(job.cpus(c)).to_string())),
    field("Start", 19, |line, c| match line.job.state() {
        _ if line.step.as_ref().is_some_and(|row| !row.step.is_entry) => {
            c.clock.text_or(line.step.as_ref().and_then(StepRow::began_ms), UNKNOWN)
        }
        JobState::Pending | JobState::Suspended => UNKNOWN.to_owned(),
        state if state.is_final() && line.job.task().is_none() => c.clock.text_or(line.job.start_ms(), "None"),
        _ => c.clock.text_or(line.job.start_ms(), UNKNOWN),
    }),
    field("State", 10, |line, c| line.state_text(c)),
    field("Submit", 19, |line, c| c.clock.text(line.job.allocation.submitted_at_ms)),
    empty("SubmitLine", 20),
    field("Suspended", 10, |_, _| long_duration(0)),
    empty("SystemComment", 19),
    empty("SystemCPU", 10),
    field("Timelimit", 10, |line, _| line.of_job(|job| job.limit_seconds().map_or_else(|| "UNLIMITED".to_owned(), long_duration))),
    field("TimelimitRaw", 12, |line, _| {
        line.of_job(|job| job.limit_seconds().map_or_else(|| "UNLIMITED".to_owned(), |seconds| seconds.div_ceil(60).to_string()))
    }),
    field("TotalCPU", 10, |line, _| line.used_cpu()),
    empty("TRESUsageInAve", 15),
    field("TRESUsageInMax", 15, |line, _| {
        Some(line.peak_memory()).filter(|peak| !peak.is_empty()).map(|peak| format!("mem={peak}")).unwrap_or_default()
    }),
    empty("TRESUsageInMaxNode", 18),
    empty("TRESUsageInMaxTask", 18),
    empty("TRESUsageInMin", 15),
    empty("TRESUsageInMinNode", 18),
    empty("TRESUsageInMinTask", 18),
    empty("TRESUsageInTot", 15),
    empty("TRESUsageOutAve", 15),
    empty("TRESUsageOutMax", 15),
    empty("TRESUsageOutMaxNode", 19),
    empty("TRESUsageOutMaxTask", 19),
    empty("TRESUsageOutMin", 15),
    empty("TRESUsageOutMinNode", 19),
    empty("TRESUsageOutMinTask", 19),
    empty("TRESUsageOutTot", 15),
    field("UID", 6, |line, c| {
        line.of_job(|job| job.recorded.as_ref().map_or_else(|| c.uid_text(&job.allocation.owner), |known| known.uid.to_string()))
    }),
    field("User", 9, |line, _| line.of_job(|job| job.allocation.owner.clone())),
    empty("UserCPU", 10),
    empty("WCKey", 10),
    empty("WCKeyID", 8),
    field("WorkDir", 20, |line, _| line.of_job(|job| job.allocation.working_dir.clone())),
];

/// How long it waited for its nodes, in seconds.
fn planned_seconds(job: &Job, context: &Context<'_>) -> u64 {
    let until = if job.state() == JobState::Pending { None } else { job.start_ms().or(job.ended_ms()) };
    until.unwrap_or(context.clock.now_ms).saturating_sub(eligible_ms(job)) / 1000
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::rows;
    use crate::listing::{Form, Listing};
    use crate::time::{Clock, Utc};
    use lattice_cli_syntax::compat::Compat;
    use lattice_model::Resources;
    use std::collections::BTreeMap;

    /// 2026-03-05T10:00:12.034Z
    const NOW: u64 = 1_772_704_812_034;

    fn ended(number: u64, state: &str, reason: &str, exit_code: Option<i32>) -> v1::Allocation {
        v1::Allocation {
            number,
            name: "train".into(),
            state: state.into(),
            reason: reason.into(),
            exit_code,
            owner: "ada".into(),
            tenant: "physics".into(),
            vcluster: "batch".into(),
            nodes: vec!["n1".into()],
            nodes_requested: 1,
            tasks_per_node: 1,
            submitted_at_ms: NOW - 200_000,
            started_at_ms: NOW - 100_000,
            ended_at_ms: NOW - 10_000,
            share: Some(v1::Amount { cores: 4, memory_bytes: 8 << 30, gpus: 1 }),
            memory_peak_bytes: Some(53_739_520),
            cpu_ms: Some(5120),
            walltime_seconds: 3600,
            ..Default::default()
        }
    }

    fn shown(jobs: Vec<Job>, format: &str, form: Form, steps: bool) -> String {
        let compat = Compat::parse("account_mapping: {phys: physics}").unwrap();
        let nodes = BTreeMap::from([("n1".to_owned(), Resources { cores: 64, memory_bytes: 512 << 30, gpus: 4 })]);
        let clock = Clock::new(NOW, &Utc, None);
        let context = Context { compat: &compat, clock: &clock, uid_of: &|user| (user == "ada").then_some(1000), nodes: &nodes };
        let listing = Listing::new(format, ACCOUNT_FIELDS, form).unwrap();
        listing.heading() + &lines(jobs, steps, |_| None).iter().map(|line| listing.line(line, &context)).collect::<String>()
    }

    fn separated() -> Form {
        Form::Separated { delimiter: "|".to_owned(), ends: false }
    }

    #[test]
    fn the_default_list_has_a_line_for_the_batch_step() {
        let jobs = rows(ended(12, "Completed", "completed", Some(0)), &[], false);
        let want = "\
JobID           JobName  Partition    Account  AllocCPUS      State ExitCode 
------------ ---------- ---------- ---------- ---------- ---------- -------- 
12                train      batch       phys          4  COMPLETED      0:0 
12.batch          batch                  phys          4  COMPLETED      0:0 
";
        assert_eq!(shown(jobs, DEFAULT, Form::Columns, true), want);
    }

    #[test]
    fn formats_of_programs_have_their_fields() {
        let job = || rows(ended(12, "Failed", "exit_code 3", Some(3)), &[], false);
        let text = shown(job(), "jobid,state,exitcode,end,nodelist", separated(), true);
        let want = "JobID|State|ExitCode|End|NodeList\n12|FAILED|3:0|2026-03-05T10:00:02|n1\n12.batch|FAILED|3:0|2026-03-05T10:00:02|n1\n";
        assert_eq!(text, want);
        let text = shown(job(), "JobID,JobName,Comment,Elapsed,TotalCPU,NNodes,NCPUS,MaxRSS,ReqMem", separated(), true);
        let want = "12|train||00:01:30|00:05.120|1|4||8G\n12.batch|batch||00:01:30|00:05.120|1|4|52480K|\n";
        assert_eq!(text.split_once('\n').unwrap().1, want);
        let text = shown(job(), "AllocTRES,CPUTimeRAW,Timelimit,Submit,Start,Reserved,UID", separated(), false);
        let want = "cpu=4,mem=8G,node=1,billing=4,gres/gpu=1|360|01:00:00|2026-03-05T09:56:52|2026-03-05T09:58:32|00:01:40|1000\n";
        assert_eq!(text.split_once('\n').unwrap().1, want);
    }

    #[test]
    fn each_launch_is_a_line_with_its_own_state_and_times() {
        let jobs = rows(ended(12, "Completed", "completed", Some(0)), &[], false);
        let batch =
            v1::JobStep { step: "batch".into(), name: "batch".into(), ranks: 1, node_count: 1, is_entry: true, ..Default::default() };
        let failed = v1::JobStep {
            step: "0".into(),
            name: "sim".into(),
            state: "Failed".into(),
            exit_code: Some(2),
            ranks: 3,
            nodes: "n1".into(),
            node_count: 1,
            began_at_ms: NOW - 90_000,
            ended_at_ms: NOW - 60_000,
            ..Default::default()
        };
        let compat = Compat::default();
        let (clock, nodes) = (Clock::new(NOW, &Utc, None), BTreeMap::new());
        let context = Context { compat: &compat, clock: &clock, uid_of: &|_| None, nodes: &nodes };
        let listing = Listing::new("JobID,JobName,State,ExitCode,Elapsed,NTasks,MaxRSS,NCPUS", ACCOUNT_FIELDS, separated()).unwrap();
        let lines = lines(jobs, true, |_| Some(vec![batch.clone(), failed.clone()]));
        let text: String = lines.iter().map(|line| listing.line(line, &context)).collect();
        let want =
            "12|train|COMPLETED|0:0|00:01:30|||4\n12.batch|batch|COMPLETED|0:0|00:01:30|1|52480K|4\n12.0|sim|FAILED|2:0|00:00:30|3||4\n";
        assert_eq!(text, want);
    }

    #[test]
    fn who_cancelled_it_is_a_number() {
        let job = v1::Allocation { started_at_ms: 0, nodes: vec![], ..ended(13, "Cancelled", "cancelled by ada", None) };
        let text = shown(rows(job, &[], false), "JobIdRaw,State,Start,NodeList,ExitCode", separated(), true);
        assert_eq!(text, "JobIDRaw|State|Start|NodeList|ExitCode\n13|CANCELLED by 1000|None|None assigned|0:0\n");
        let array = v1::Allocation { task_group: "0-1".into(), ..ended(20, "Cancelled", "cancelled by ada", None) };
        let indices = Some(v1::IndexRun { first: 0, last: 1, step: 1 });
        let tasks = v1::TaskRange { indices, state: "Cancelled".into(), reason: "cancelled".into(), ..Default::default() };
        let text = shown(rows(array, &[tasks], false), "JobID,State", separated(), false);
        assert_eq!(text, "JobID|State\n20_0|CANCELLED by 1000\n20_1|CANCELLED by 1000\n");
    }

    #[test]
    fn tasks_of_an_array_have_a_line_each_and_waiting_ones_share_one() {
        let group = v1::Allocation { task_group: "0-9".into(), ended_at_ms: 0, ..ended(20, "Running", "", None) };
        let range = |first, last, state: &str| v1::TaskRange {
            indices: Some(v1::IndexRun { first, last, step: 1 }),
            state: state.into(),
            nodes: vec!["n1".into()],
            ..Default::default()
        };
        let ranges = [range(0, 1, "Completed"), range(2, 9, "Pending")];
        let text = shown(rows(group, &ranges, false), "JobID,State,NodeList", separated(), false);
        assert_eq!(text, "JobID|State|NodeList\n20_[2-9]|PENDING|None assigned\n20_0|COMPLETED|n1\n20_1|COMPLETED|n1\n");
    }

    #[test]
    fn a_record_of_the_store_has_its_numbers() {
        let record = v1::HistoryRecord {
            name: "old".into(),
            user: "bo".into(),
            uid: 1001,
            state: "Completed".into(),
            exit_code: Some(0),
            nodes: "n[1-2]".into(),
            node_count: 2,
            started_at_ms: NOW - 70_000,
            ended_at_ms: NOW - 10_000,
            core_ms: 8 * 60_000,
            ..Default::default()
        };
        let text = shown(vec![Job::of_record(record, 7)], "JobID,UID,NNodes,NCPUS,CPUTimeRAW,NodeList", separated(), false);
        assert_eq!(text.split_once('\n').unwrap().1, "7|1001|2|8|480|n[1-2]\n");
    }

    #[test]
    fn the_long_list_is_possible() {
        Listing::new(LONG, ACCOUNT_FIELDS, Form::Columns).unwrap();
        assert_eq!(BRIEF.split(',').count(), 3);
    }
}
