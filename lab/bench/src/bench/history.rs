//! `bench history`: how long the usual questions about ended work take, in this process, from a SQLite store with a million
//! records: a year of a busy cluster.

use super::figures::{Figure, Report, Samples, Target};
use super::options::Options;
use anyhow::{Context, Result, ensure};
use lattice_accounting::Store;
use lattice_agent_common::config::accounting::StoreAddress;
use lattice_lab::interrupt;
use lattice_lab::machine::{self, Machine};
use lattice_model::ended_work::EndedWork;
use lattice_model::history::{HistoryCursor, HistoryKind, HistoryQuery, PAGE_LEN, PAGE_LEN_MAX, Visible};
use lattice_model::{AllocationId, AllocationState, Timestamp, Used};
use std::path::Path;
use std::time::Instant;
use uuid::Uuid;

const RECORDS: u64 = 1_000_000;
/// How many records one transaction stores, as the role does.
const BATCH: u64 = 1000;
const USERS: u64 = 500;
const TENANTS: u64 = 20;
/// The time between two ends: all records together span a year.
const BETWEEN_ENDS_MS: u64 = 31_500;
const BEGIN: Timestamp = Timestamp(1_700_000_000_000);
const DAY_MS: u64 = 86_400_000;
/// Limit of a page of records, in milliseconds.
const PAGE_MS: f64 = 100.0;

/// Fills the store, and measures.
pub fn run(dir: Option<&Path>, options: &Options) -> Result<Report> {
    options.validate()?;
    let machine = Machine::look();
    interrupt::watch();
    let before = machine::cpu_pressure();
    let own = dir.map_or_else(std::env::temp_dir, Path::to_owned).join(format!("lattice-bench-history-{}", std::process::id()));
    std::fs::create_dir_all(&own).with_context(|| format!("cannot make {}", own.display()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("the runtime")?;
    let measured = runtime.block_on(Box::pin(measure(&own, options)));
    // The store's connections are threads, which close their files.
    drop(runtime);
    let removed = std::fs::remove_dir_all(&own).with_context(|| format!("cannot remove {}", own.display()));
    let figures = measured?;
    removed?;
    let profile = if cfg!(debug_assertions) { "debug" } else { "release" };
    let mut notes = vec![format!("{RECORDS} ends in a year, of {USERS} users in {TENANTS} tenants")];
    if cfg!(debug_assertions) {
        notes.push("this is a debug binary: run the bench with --release before believing a miss".to_owned());
    }
    let cpu_pressure = [before, machine::cpu_pressure()];
    Ok(Report { bench: "history", machine, profile: profile.to_owned(), cpu_pressure, figures, notes })
}

async fn measure(dir: &Path, options: &Options) -> Result<Vec<Figure>> {
    let store = Store::open(&StoreAddress::Sqlite(dir.join("accounting.db")), Path::new("")).await?;
    let mut batches = Vec::new();
    for first in (0..RECORDS).step_by(usize::try_from(BATCH)?) {
        interrupt::check()?;
        let work: Vec<EndedWork> = (first + 1..=first + BATCH).map(ended).collect();
        let begun = Instant::now();
        store.append(first, &work, first + BATCH).await?;
        batches.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    let questions = questions();
    let mut times = vec![Vec::new(); questions.len()];
    for _ in 0..options.rounds() {
        for (question, times) in questions.iter().zip(&mut times) {
            interrupt::check()?;
            let begun = Instant::now();
            let page = store.query(&question.query).await?;
            times.push(begun.elapsed().as_secs_f64() * 1e3);
            ensure!(!page.work.is_empty() || !page.sums.is_empty(), "{}: nothing was found", question.name);
        }
    }
    let samples = |values| Samples::of(values, 0).context("nothing was measured");
    let mut figures = vec![Figure::new(&format!("storing {BATCH} ends in one transaction"), "ms", samples(batches)?, vec![], None)];
    for (question, times) in questions.into_iter().zip(times) {
        let target = (question.query.kind != HistoryKind::Sums)
            .then(|| Target::AtMost { value: PAGE_MS, why: "somebody waits for the page".to_owned() });
        figures.push(Figure::new(question.name, "ms", samples(times)?, vec![], target));
    }
    Ok(figures)
}

struct Question {
    name: &'static str,
    query: HistoryQuery,
}

fn questions() -> Vec<Question> {
    let (week, month) = (days_before_the_end(7), days_before_the_end(30));
    let own = || Some((user(7), uid(7)));
    let of_own = || Visible::Only { own: own(), tenants: [].into() };
    let of_tenants = |own| Visible::Only { own, tenants: [8, 9].map(|n| (tenant(n), BEGIN)).into() };
    let middle = RECORDS / 2;
    let after = Some(HistoryCursor::Work { ended_at: ended_at(middle), sequence: middle });
    let newest = |visible, from| HistoryQuery { visible, from, ..everything(HistoryKind::NewestFirst) };
    let sums = |visible, from| HistoryQuery { visible, from, ..everything(HistoryKind::Sums) };
    let rare = HistoryQuery { name: "night-run-98*".to_owned(), ..newest(of_own(), month) };
    let export = HistoryQuery { after, limit: PAGE_LEN_MAX, ..everything(HistoryKind::OldestFirst) };
    vec![
        Question { name: "own work of the last week", query: newest(of_own(), week) },
        Question { name: "own work of the last month, by a part of its name", query: rare },
        Question { name: "own work and that of two tenants, the last month", query: newest(of_tenants(own()), month) },
        Question { name: "the work of two tenants, the last month", query: newest(of_tenants(None), month) },
        Question { name: "everybody's work of the last month", query: newest(Visible::All, month) },
        Question { name: "a page of an export, 1,000 records from the middle", query: export },
        Question { name: "sums of own work, the last month", query: sums(of_own(), month) },
        Question { name: "sums of two tenants, the last month", query: sums(of_tenants(None), month) },
        Question { name: "sums of everybody, the last month", query: sums(Visible::All, month) },
        Question { name: "sums of everybody, the whole year", query: sums(Visible::All, BEGIN) },
    ]
}

/// The first page of all ended work.
fn everything(kind: HistoryKind) -> HistoryQuery {
    HistoryQuery {
        visible: Visible::All,
        kind,
        user: String::new(),
        tenant: String::new(),
        project: String::new(),
        vcluster: String::new(),
        name: String::new(),
        states: Vec::new(),
        jobs: Vec::new(),
        part_of: None,
        tags: [].into(),
        from: BEGIN,
        until: Timestamp(u64::MAX),
        limit: PAGE_LEN,
        after: None,
    }
}

fn ended_at(sequence: u64) -> Timestamp {
    Timestamp(BEGIN.0 + sequence * BETWEEN_ENDS_MS)
}

fn days_before_the_end(days: u64) -> Timestamp {
    Timestamp(ended_at(RECORDS).0 - days * DAY_MS)
}

fn user(number: u64) -> String {
    format!("user{number}")
}

fn uid(number: u64) -> u32 {
    10_000 + u32::try_from(number).unwrap_or(0)
}

fn tenant(number: u64) -> String {
    format!("tenant{number}")
}

fn ended(sequence: u64) -> EndedWork {
    // Neighbours in time are of different users: a prime, so that every user has work in every week.
    let number = sequence * 7919 % USERS;
    let ended_at = ended_at(sequence);
    EndedWork {
        sequence,
        allocation: AllocationId(Uuid::from_u128(sequence.into())),
        job: sequence,
        name: format!("night-run-{sequence}"),
        tenant: tenant(number % TENANTS),
        project: format!("project{}", number % 3),
        vcluster: "batch".to_owned(),
        user: user(number),
        uid: uid(number),
        tags: [("campaign".to_owned(), (sequence % 97).to_string())].into(),
        state: AllocationState::Completed,
        reason: String::new(),
        exit_code: Some(0),
        nodes: "node[0001-0004]".to_owned(),
        node_count: 4,
        submitted_at: Timestamp(ended_at.0 - 3_600_000),
        claimed_at: Some(Timestamp(ended_at.0 - 1_800_000)),
        started_at: Some(Timestamp(ended_at.0 - 1_790_000)),
        ended_at,
        requeue_count: 0,
        preempted_count: 0,
        used: Used { node_ms: 4 * 1_790_000, gpu_ms: 16 * 1_790_000 },
        core_ms: 256 * 1_790_000,
        part_of: None,
        corrects: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_and_tenant_has_work_in_the_last_week() {
        let week = days_before_the_end(7);
        let last = || (1..=RECORDS).rev().map(ended).take_while(|work| work.ended_at >= week);
        assert!(last().any(|work| work.user == user(7) && work.uid == uid(7)));
        assert!(last().any(|work| work.tenant == tenant(8)) && last().any(|work| work.tenant == tenant(9)));
    }
}
