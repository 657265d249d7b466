//! `lattice admin accounting …`.

mod parquet_file;

use super::audit::{Out, next_part};
use super::history::message;
use lattice_api::json::{AccountingStatusJson, HistoryJson};
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::{Format, TableSize, Width, print, print_names};
use lattice_cli_session::session::{self, Session, answer};
use lattice_cli_session::shown::time;
use lattice_cli_session::table::{block, wrapped};
use lattice_cli_syntax::args::accounting::{AccountingCommand, ExportFormat, ExportHistory};
use parquet_file::ParquetFile;
use std::io::{IsTerminal, Write};

/// The head of a CSV file.
const CSV_HEAD: &str = "sequence,id,name,user,uid,tenant,project,vcluster,tags,state,reason,exit_code,nodes,node_count,submitted_at,\
claimed_at,started_at,ended_at,requeue_count,preempted_count,node_seconds,gpu_seconds,core_seconds,part_of,job";

/// The characters before the values: the longest label, `Ends of this cluster`, with its colon and two spaces.
const LABEL_COLUMNS: usize = 23;
/// The least characters of a line of the problem.
const PROBLEM_COLUMNS_MIN: usize = 24;

pub async fn run(session: &Session, command: AccountingCommand) -> Result<(), Failure> {
    match command {
        AccountingCommand::Status => {
            let client = session.connect().await?;
            let status = answer(client.accounting().status(v1::AccountingStatusRequest {})).await?;
            show(session, &status)
        }
        AccountingCommand::Move(args) => {
            let client = session.connect().await?;
            let status = answer(client.accounting().move_store(v1::MoveStoreRequest { force: args.force })).await?;
            session.note("the next agent with the role accounting and another store continues");
            show(session, &status)
        }
        AccountingCommand::Export(args) => export(session, *args).await,
    }
}

fn show(session: &Session, status: &v1::AccountingStatusResponse) -> Result<(), Failure> {
    match session.format() {
        Format::Table => print(&text(status, session.table_size())),
        Format::Data(notation) => notation.print(&AccountingStatusJson::from(status)),
        Format::Name => print_names([status.store.as_str()]),
    }
}

fn text(status: &v1::AccountingStatusResponse, size: TableSize) -> String {
    if !status.is_on {
        let why = if status.ended == 0 { String::new() } else { format!("{} ends so far are not kept for it", status.ended) };
        return block(&[("Accounting", "no store has been seen, or accounting was moved away from it".to_owned()), ("Note", why)]);
    }
    let dropped = if status.dropped == 0 { String::new() } else { format!("{}: too much waited in the quorum", status.dropped) };
    let columns = match size.width {
        Width::Terse => size.columns,
        Width::Wide => None,
    };
    let most = columns.map_or(usize::MAX, |columns| columns.saturating_sub(LABEL_COLUMNS).max(PROBLEM_COLUMNS_MIN));
    let mut pairs = vec![
        ("Store", status.store.clone()),
        ("Database", status.kind.clone()),
        ("Node", status.node.clone()),
        ("Ends of this cluster", status.ended.to_string()),
        ("Stored up to", status.stored.to_string()),
        ("Waiting", status.waiting.to_string()),
        ("Dropped", dropped),
    ];
    let problem = wrapped(&status.problem, most);
    pairs.extend(problem.into_iter().enumerate().map(|(at, line)| (if at == 0 { "Problem" } else { "" }, line)));
    for sink in &status.sinks {
        let has = if sink.waiting == 0 {
            format!("{}: delivered up to {}", sink.kind, sink.delivered)
        } else {
            format!("{}: delivered up to {}; {} wait, the oldest for {} s", sink.kind, sink.delivered, sink.waiting, sink.lag_ms / 1000)
        };
        pairs.extend([("Sink", has), ("", sink.target.clone())]);
        pairs.extend(wrapped(&sink.problem, most).into_iter().map(|line| ("", line)));
    }
    block(&pairs)
}

async fn export(session: &Session, args: ExportHistory) -> Result<(), Failure> {
    let ExportHistory { filter, format, file } = args;
    if format == ExportFormat::Parquet && file.is_none() && std::io::stdout().is_terminal() {
        return Err(Failure::usage("--format parquet: the file is binary").hint("give --file FILE, or redirect stdout"));
    }
    let request = v1::HistoryRequest { all_users: true, ..message(filter, session::now())? };
    let client = session.connect().await?;
    let mut pages = answer(client.accounting().export(request)).await?;
    let mut out = Out::open(file.as_deref())?;
    if format == ExportFormat::Parquet {
        let mut table = ParquetFile::begin(&mut *out.to)?;
        let mut count = 0;
        while let Some(page) = next_part(pages.message()).await? {
            count += page.work.len();
            table.add(page.work)?;
        }
        table.end()?;
        out.finish()?;
        session.note(&format!("{count} records"));
        return Ok(());
    }
    if format == ExportFormat::Csv {
        out.to.write_all(CSV_HEAD.as_bytes())?;
        out.to.write_all(b"\r\n")?;
    }
    let mut count = 0;
    while let Some(page) = next_part(pages.message()).await? {
        count += page.work.len();
        let text: String = match format {
            ExportFormat::Csv => page.work.iter().map(csv_line).collect(),
            ExportFormat::Json => json_lines(&page)?,
            // Written above.
            ExportFormat::Parquet => String::new(),
        };
        out.to.write_all(text.as_bytes())?;
    }
    out.finish()?;
    session.note(&format!("{count} records"));
    Ok(())
}

/// The records of a page as `lattice history -o json` has them, one in each line.
fn json_lines(page: &v1::HistoryResponse) -> Result<String, Failure> {
    let whole = serde_json::to_value(HistoryJson::from(page)).map_err(|error| Failure::other(error.to_string()))?;
    let records = whole["work"].as_array().into_iter().flatten();
    Ok(records.map(|record| format!("{record}\n")).collect())
}

fn csv_line(work: &v1::HistoryRecord) -> String {
    let at = |ms: u64| time(ms).unwrap_or_default();
    let mut tags: Vec<String> = work.tags.iter().map(|(name, value)| format!("{name}={value}")).collect();
    tags.sort();
    let cells = [
        work.sequence.to_string(),
        work.id.clone(),
        work.name.clone(),
        work.user.clone(),
        work.uid.to_string(),
        work.tenant.clone(),
        work.project.clone(),
        work.vcluster.clone(),
        tags.join(" "),
        work.state.clone(),
        work.reason.clone(),
        work.exit_code.map(|code| code.to_string()).unwrap_or_default(),
        work.nodes.clone(),
        work.node_count.to_string(),
        at(work.submitted_at_ms),
        at(work.claimed_at_ms),
        at(work.started_at_ms),
        at(work.ended_at_ms),
        work.requeue_count.to_string(),
        work.preempted_count.to_string(),
        seconds(work.node_ms),
        seconds(work.gpu_ms),
        seconds(work.core_ms),
        work.part_of.clone(),
        if work.job > 0 { work.job.to_string() } else { String::new() },
    ];
    cells.map(|cell| csv_cell(&cell)).join(",") + "\r\n"
}

/// A cell as RFC 4180 has it: in quotes if it contains any of its separators.
fn csv_cell(text: &str) -> String {
    if text.contains([',', '"', '\r', '\n']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

/// Seconds with three decimals, such as `90.500`.
fn seconds(ms: u64) -> String {
    format!("{}.{:03}", ms / 1000, ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> v1::HistoryRecord {
        v1::HistoryRecord {
            sequence: 7,
            job: 12,
            id: "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".into(),
            name: "a \"b\", c".into(),
            user: "ada".into(),
            uid: 1000,
            tags: [("run".to_owned(), "4".to_owned()), ("a".to_owned(), "b".to_owned())].into(),
            state: "Failed".into(),
            exit_code: Some(-9),
            nodes: "n[1-2]".into(),
            node_count: 2,
            ended_at_ms: 1_772_704_812_034,
            node_ms: 90_500,
            ..Default::default()
        }
    }

    #[test]
    fn a_record_is_a_line_of_csv_with_a_cell_for_each_name_of_the_head() {
        assert_eq!(
            csv_line(&record()),
            "7,1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88,\"a \"\"b\"\", c\",ada,1000,,,,a=b run=4,Failed,,-9,n[1-2],2,,,,\
             2026-03-05T10:00:12.034Z,0,0,90.500,0.000,0.000,,12\r\n"
        );
        let plain = csv_line(&v1::HistoryRecord::default());
        assert_eq!(plain.split(',').count(), CSV_HEAD.split(',').count());
    }

    #[test]
    fn each_record_is_a_line_of_json() {
        let page = v1::HistoryResponse { work: vec![record(), record()], ..Default::default() };
        let lines = json_lines(&page).unwrap();
        let parsed: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((parsed.len(), &parsed[1]["sequence"], &parsed[1]["exit_code"]), (2, &7.into(), &(-9).into()));
    }

    #[test]
    fn the_status_says_what_waits_and_why() {
        let status = v1::AccountingStatusResponse {
            is_on: true,
            store: "5d3f".into(),
            kind: "sqlite".into(),
            node: "n1".into(),
            ended: 12,
            stored: 10,
            waiting: 2,
            problem: "disk full".into(),
            ..Default::default()
        };
        let want = "\
Store:                 5d3f
Database:              sqlite
Node:                  n1
Ends of this cluster:  12
Stored up to:          10
Waiting:               2
Problem:               disk full
";
        let size = TableSize { width: Width::Terse, columns: Some(80) };
        assert_eq!(text(&status, size), want);
        assert!(text(&v1::AccountingStatusResponse { ended: 3, ..Default::default() }, size).contains("3 ends so far"));
        let sink = v1::AccountingSink { kind: "http".into(), target: "https://h/x".into(), delivered: 8, ..Default::default() };
        let waits = v1::AccountingSink { waiting: 2, lag_ms: 61_500, problem: "no answer".into(), ..sink.clone() };
        let shown = text(&v1::AccountingStatusResponse { sinks: vec![sink, waits], ..status.clone() }, size);
        let want = "\
Sink:                  http: delivered up to 8
                       https://h/x
Sink:                  http: delivered up to 8; 2 wait, the oldest for 61 s
                       https://h/x
                       no answer
";
        assert!(shown.ends_with(want), "{shown}");
        let long = text(&v1::AccountingStatusResponse { problem: "no answer ".repeat(30), ..status }, size);
        assert!(long.lines().count() > 8 && long.lines().all(|line| line.chars().count() <= 80), "{long}");
    }
}
