//! Executes a plan: submits its jobs and causes its faults, each in a thread of its own, and records the results.

use super::facts::{Allocation, Asked, Broken, Call};
use super::fault::{Fault, Hit};
use super::job::{self, Job, Kind};
use super::plan::Plan;
use super::stage::Stage;
use super::traces::now_ms;
use crate::interrupt;
use crate::lattice::Lattice;
use crate::process::run;
use anyhow::Result;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// While this many allocations wait or run, planned jobs are left out.
const LIVE_MAX: usize = 24;
/// While this many jobs have a command that still runs, planned jobs are left out.
const BUSY_MAX: usize = 60;
/// Timeout of a submission or a cancellation.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval of checks of a job's state, and of attempts to cancel it.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// How long a launch from outside waits until the job runs.
const RUN_TIMEOUT: Duration = Duration::from_secs(20);

/// The state of an execution.
#[derive(Debug)]
pub struct Driver<'a> {
    stage: &'a Stage,
    began_ms: u64,
    /// When every command that still runs is killed.
    deadline_ms: u64,
    asked: Mutex<Vec<Asked>>,
    broken: Mutex<Vec<Broken>>,
    /// Number of allocations that have not ended.
    live: AtomicUsize,
    /// Number of jobs whose threads have not finished.
    busy: AtomicUsize,
    faults_are_over: AtomicBool,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Driver<'a> {
    /// Starts the clock. Every command ends at most `limit_ms` after the beginning.
    pub fn new(stage: &'a Stage, limit_ms: u64) -> Self {
        let began_ms = now_ms();
        Self {
            stage,
            began_ms,
            deadline_ms: began_ms + limit_ms,
            asked: Mutex::default(),
            broken: Mutex::default(),
            live: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            faults_are_over: AtomicBool::new(false),
        }
    }

    /// Executes the plan. Calls `then` when all faults have ended and the plan's time is over; commands that still run
    /// continue meanwhile.
    pub fn carry_out(&self, plan: &Plan, then: impl FnOnce()) {
        std::thread::scope(|scope| {
            scope.spawn(|| self.watch_load());
            scope.spawn(|| {
                for job in &plan.jobs {
                    if !self.wait_until(job.at_ms) {
                        break;
                    }
                    if self.live.load(Ordering::Relaxed) >= LIVE_MAX || self.busy.load(Ordering::Relaxed) >= BUSY_MAX {
                        locked(&self.asked).push(Asked { job: job.clone(), submission: None, id: None, cancellation: None, outside: None });
                        continue;
                    }
                    self.busy.fetch_add(1, Ordering::Relaxed);
                    scope.spawn(|| {
                        let asked = self.drive(job);
                        locked(&self.asked).push(asked);
                        self.busy.fetch_sub(1, Ordering::Relaxed);
                    });
                }
            });
            std::thread::scope(|faults| {
                for fault in &plan.faults {
                    if !self.wait_until(fault.at_ms) {
                        break;
                    }
                    faults.spawn(|| {
                        let broken = self.break_it(fault);
                        locked(&self.broken).push(broken);
                    });
                }
            });
            self.wait_until(plan.scale.length_ms);
            self.faults_are_over.store(true, Ordering::Relaxed);
            then();
        });
    }

    /// Whether every job's thread has finished.
    pub fn is_idle(&self) -> bool {
        self.busy.load(Ordering::Relaxed) == 0
    }

    /// When it began.
    pub fn began_ms(&self) -> u64 {
        self.began_ms
    }

    /// The jobs submitted and the faults caused so far.
    pub fn record(&self) -> (Vec<Asked>, Vec<Broken>) {
        let (mut asked, mut broken) = (locked(&self.asked).clone(), locked(&self.broken).clone());
        asked.sort_by_key(|asked| asked.job.number);
        broken.sort_by_key(|broken| broken.fault.number);
        (asked, broken)
    }

    /// Waits for a time of the plan. `false`: a signal arrived.
    fn wait_until(&self, at_ms: u64) -> bool {
        let until_ms = self.began_ms + at_ms;
        loop {
            let left_ms = until_ms.saturating_sub(now_ms());
            if interrupt::came().is_some() {
                return false;
            }
            if left_ms == 0 {
                return true;
            }
            std::thread::sleep(Duration::from_millis(left_ms.min(200)));
        }
    }

    /// Counts each second how many allocations wait or run.
    fn watch_load(&self) {
        let count = |number| -> Result<usize> {
            let live = ["status", "--all", "--state", "pending,staging,running,suspended", "--limit", "1000", "-o", "name"];
            let found = self.stage.lattice(number)?.run(&live, Duration::from_secs(5))?;
            anyhow::ensure!(found.code() == 0, "no answer");
            Ok(found.out().lines().count())
        };
        for number in (1..=super::plan::NODES).cycle() {
            if self.faults_are_over.load(Ordering::Relaxed) || interrupt::came().is_some() {
                return;
            }
            // If a node does not answer, the next one is asked a second later.
            if let Ok(live) = count(number) {
                self.live.store(live, Ordering::Relaxed);
            }
            std::thread::sleep(Duration::from_secs(1));
        }
    }

    fn call(&self, lattice: &Lattice, arguments: &[String], limit: Duration) -> Call {
        let called_ms = now_ms();
        let limit = limit.min(Duration::from_millis(self.deadline_ms.saturating_sub(called_ms)));
        match run(lattice.command(arguments).current_dir("/"), limit) {
            Ok(done) => {
                let (code, timed_out, out, err) = (done.code(), done.timed_out, done.out(), done.err());
                Call { called_ms, returned_ms: now_ms(), code, timed_out, out, err }
            }
            Err(error) => Call { called_ms, returned_ms: now_ms(), code: -1, err: format!("{error:#}"), ..Call::default() },
        }
    }

    fn drive(&self, job: &Job) -> Asked {
        let mut asked = Asked { job: job.clone(), submission: None, id: None, cancellation: None, outside: None };
        if let Some((path, text)) = job.script_text(&self.stage.place)
            && let Err(error) = std::fs::write(&path, text)
        {
            asked.submission = Some(Call { code: -1, err: format!("{}: {error}", path.display()), ..Call::default() });
            return asked;
        }
        let arguments = job.arguments(&self.stage.place);
        let lattice = match self.stage.lattice(job.via) {
            Ok(lattice) => lattice,
            Err(error) => {
                let now_ms = now_ms();
                asked.submission =
                    Some(Call { called_ms: now_ms, returned_ms: now_ms, code: -1, err: error.to_string(), ..Call::default() });
                return asked;
            }
        };
        let limit = if job.kind == Kind::Foreground { Duration::MAX } else { ANSWER_TIMEOUT };
        let submission = self.call(&lattice, &arguments, limit);
        let id = submission.out.trim().to_owned();
        if job.kind != Kind::Foreground && submission.code == 0 {
            asked.id = Some(id.clone());
            match job.kind {
                Kind::Cancelled => asked.cancellation = Some(self.cancel(job, &id)),
                Kind::Outside => asked.outside = self.launch_into(job, &id),
                Kind::Command | Kind::Script | Kind::Ring | Kind::Image | Kind::Walltime | Kind::Foreground => {}
            }
        }
        asked.submission = Some(submission);
        asked
    }

    /// Repeats the request until it succeeds, as a user would.
    fn cancel(&self, job: &Job, id: &str) -> Call {
        std::thread::sleep(Duration::from_millis(job.cancel_after_ms.unwrap_or(0)));
        let called_ms = now_ms();
        loop {
            let arguments = ["cancel", id].map(str::to_owned);
            let call = match self.stage.lattice(job.via) {
                Ok(lattice) => self.call(&lattice, &arguments, ANSWER_TIMEOUT),
                Err(error) => Call { returned_ms: now_ms(), code: -1, err: error.to_string(), ..Call::default() },
            };
            if call.code == 0 || now_ms() >= self.deadline_ms || interrupt::came().is_some() {
                return Call { called_ms, ..call };
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
    }

    /// Cancels the jobs that were to be cancelled but whose submission was not answered: until now, their ids were
    /// unknown.
    pub fn cancel_unanswered(&self, allocations: &[Allocation]) {
        let is_missed = |asked: &Asked| asked.job.kind == Kind::Cancelled && asked.cancellation.is_none() && asked.submission.is_some();
        let missed: Vec<Job> = locked(&self.asked).iter().filter(|asked| is_missed(asked)).map(|asked| asked.job.clone()).collect();
        for job in missed {
            let Some(allocation) = allocations.iter().find(|a| a.name == job.name() && !a.has_ended()) else { continue };
            let call = self.cancel(&Job { cancel_after_ms: None, ..job.clone() }, &allocation.id);
            if let Some(asked) = locked(&self.asked).iter_mut().find(|asked| asked.job.number == job.number) {
                asked.cancellation = Some(call);
            }
        }
    }

    /// Waits until the job runs, and launches into it from outside.
    fn launch_into(&self, job: &Job, id: &str) -> Option<Call> {
        let until_ms = now_ms() + u64::try_from(RUN_TIMEOUT.as_millis()).unwrap_or(0);
        loop {
            let lattice = self.stage.lattice(job.via);
            let state =
                lattice.as_ref().ok().and_then(|lattice| lattice.allocation(id).ok()).map(|now| crate::lattice::text(&now, "state"));
            match (state.as_deref(), lattice) {
                (Some("Running"), Ok(lattice)) => return Some(self.call(&lattice, &job::outside(&self.stage.place, id), Duration::MAX)),
                (Some("Completed" | "Failed" | "Cancelled"), _) => return None,
                _ if now_ms() >= until_ms || interrupt::came().is_some() => return None,
                _ => std::thread::sleep(RETRY_INTERVAL),
            }
        }
    }

    fn break_it(&self, fault: &Fault) -> Broken {
        let dir = &self.stage.dir;
        let mut broken = Broken { fault: fault.clone(), began_ms: now_ms(), ended_ms: 0, hit: Hit::default(), error: None };
        match fault.what.begin(dir) {
            Ok(hit) => {
                broken.hit = hit;
                self.wait_until(broken.began_ms - self.began_ms + fault.for_ms);
                broken.error = fault.what.end(dir, &broken.hit).err().map(|error| format!("it could not be ended: {error:#}"));
            }
            Err(error) => broken.error = Some(format!("it could not be caused: {error:#}")),
        }
        broken.ended_ms = now_ms();
        broken
    }

    /// Daemons that do not run although every fault has ended. The subjects of faults that failed are left out: such a
    /// fault may have killed its daemon without starting it again.
    pub fn ended_by_themselves(&self) -> Result<BTreeSet<String>> {
        let (_, broken) = self.record();
        let failed: BTreeSet<String> = broken.iter().filter(|b| b.error.is_some()).flat_map(|b| b.fault.what.hits()).collect();
        let cluster = self.stage.cluster()?;
        let dead = cluster.daemons().filter(|d| !d.alive()).map(|d| d.name.clone());
        let by_a_fault = |name: &String| failed.contains(name) || (name.starts_with("member-") && failed.contains("quorum"));
        Ok(dead.filter(|name| !by_a_fault(name)).collect())
    }
}
