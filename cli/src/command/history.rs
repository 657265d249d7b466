//! `lattice history`: ended work of any age, from the accounting store.

use super::usage::hours_text;
use lattice_api::json::HistoryJson;
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::output::{Format, TableSize, print, print_names};
use lattice_cli_session::session::{self, Session, answer};
use lattice_cli_session::shown::{filled, short};
use lattice_cli_session::table::{Fit, Table};
use lattice_cli_syntax::UsageError;
use lattice_cli_syntax::args::history::{History, HistoryFilter};
use lattice_cli_syntax::tasks::JobOrTask;
use lattice_cli_syntax::time::parse_past;
use lattice_model::Timestamp;
use lattice_model::history::PAGE_LEN_MAX;

/// How the tables fit on a narrow screen.
const FIT: Fit<'_> =
    Fit { left_out: &["EXIT", "GPU-HOURS", "TENANT", "JOB"], shortened: &[("NAME", 8), ("USER", 8)], wrapped: &[], left_out_last: &[] };
const SUM_FIT: Fit<'_> = Fit { left_out: &[], shortened: &[("PROJECT", 8), ("TENANT", 8), ("USER", 8)], wrapped: &[], left_out_last: &[] };

/// How far back a question without `--since` looks.
const SINCE: &str = "7d";

pub async fn run(session: &Session, args: History) -> Result<(), Failure> {
    let History { mut filter, all, sum, limit } = args;
    if filter.job.is_empty() {
        filter.since.get_or_insert_with(|| SINCE.to_owned());
    }
    let mut request = v1::HistoryRequest { all_users: all, sum, ..message(filter, session::now())? };
    let client = session.connect().await?;
    let mut whole = v1::HistoryResponse::default();
    loop {
        let have = u32::try_from(whole.work.len().max(whole.sums.len())).unwrap_or(u32::MAX);
        request.limit = limit.saturating_sub(have).min(PAGE_LEN_MAX);
        let page = answer(client.accounting().history(request.clone())).await?;
        let is_empty = page.work.is_empty() && page.sums.is_empty();
        whole.work.extend(page.work);
        whole.sums.extend(page.sums);
        (whole.behind, whole.next_page_token) = (page.behind, page.next_page_token);
        request.page_token.clone_from(&whole.next_page_token);
        if whole.next_page_token.is_empty() || is_empty || whole.work.len().max(whole.sums.len()) >= limit as usize {
            break;
        }
    }
    match session.format() {
        Format::Table if sum => print(&sums_table(&whole.sums, session.table_size()))?,
        Format::Table => print(&table(&whole.work, session.table_size()))?,
        Format::Data(notation) => notation.print(&HistoryJson::from(&whole))?,
        Format::Name => print_names(whole.work.iter().map(|work| work.id.as_str()))?,
    }
    if !whole.next_page_token.is_empty() {
        session.note("there may be more: --limit N shows more, --since and --until choose a time");
    }
    if whole.behind > 0 {
        session.note(&format!("{} ends are not in the store yet: `lattice admin accounting status` shows why", whole.behind));
    }
    Ok(())
}

/// The filter as a message.
pub(super) fn message(filter: HistoryFilter, now: Timestamp) -> Result<v1::HistoryRequest, UsageError> {
    let HistoryFilter { since, until, user, tenant, project, vcluster, state, name, job, tags } = filter;
    let (jobs, tasks) = JobOrTask::divided(&job);
    Ok(v1::HistoryRequest {
        user: user.unwrap_or_default(),
        tenant: tenant.unwrap_or_default(),
        project: project.unwrap_or_default(),
        vcluster: vcluster.unwrap_or_default(),
        name: name.unwrap_or_default(),
        states: state.iter().map(ToString::to_string).collect(),
        jobs,
        tasks,
        tags: tags.into_iter().collect(),
        from_ms: since.map(|since| parse_past("--since", &since, now)).transpose()?.unwrap_or_default(),
        until_ms: until.map(|until| parse_past("--until", &until, now)).transpose()?.unwrap_or_default(),
        ..Default::default()
    })
}

fn table(work: &[v1::HistoryRecord], size: TableSize) -> String {
    let mut table =
        Table::new(&["ID", "JOB", "NAME", "USER", "TENANT", "STATE", "EXIT", "NODES", "NODE-HOURS", "GPU-HOURS", "ENDED (UTC)"]);
    for work in work {
        // The store has no use and no times of single tasks.
        let of_job = |text: String| if work.task.is_some() { String::new() } else { text };
        table.row(vec![
            work.task.map_or_else(|| short(&work.id).to_owned(), |index| format!("{}[{index}]", short(&work.id))),
            if work.job > 0 { work.job.to_string() } else { String::new() },
            work.name.clone(),
            work.user.clone(),
            work.tenant.clone(),
            work.state.clone(),
            work.exit_code.map(|code| code.to_string()).unwrap_or_default(),
            work.node_count.to_string(),
            of_job(hours_text(work.node_ms)),
            if work.gpu_ms == 0 { String::new() } else { hours_text(work.gpu_ms) },
            of_job(minute(work.ended_at_ms)),
        ]);
    }
    table.on_screen(&["JOB", "NAME", "TENANT", "EXIT", "GPU-HOURS"], &FIT, size)
}

fn sums_table(sums: &[v1::UseSum], size: TableSize) -> String {
    let mut table = Table::new(&["USER", "TENANT", "PROJECT", "ENDED", "NODE-HOURS", "GPU-HOURS", "CORE-HOURS"]);
    for sum in sums {
        table.row(vec![
            sum.user.clone(),
            sum.tenant.clone(),
            sum.project.clone(),
            sum.count.to_string(),
            hours_text(sum.node_ms),
            hours_text(sum.gpu_ms),
            hours_text(sum.core_ms),
        ]);
    }
    table.on_screen(&["TENANT", "PROJECT"], &SUM_FIT, size)
}

/// Such as `2026-03-05 10:00`.
fn minute(ms: u64) -> String {
    let text = Timestamp(ms).to_string();
    filled(text.get(..16).unwrap_or_default()).unwrap_or(&text).replace('T', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_cli_session::output::Width;
    use lattice_model::usage::HOUR_MS;

    fn record(name: &str, gpu_ms: u64) -> v1::HistoryRecord {
        v1::HistoryRecord {
            id: "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".into(),
            job: 12,
            name: name.into(),
            user: "ada".into(),
            tenant: "physics".into(),
            state: "Completed".into(),
            exit_code: Some(0),
            node_count: 128,
            ended_at_ms: 1_772_704_812_034,
            node_ms: 90 * HOUR_MS,
            gpu_ms,
            ..Default::default()
        }
    }

    #[test]
    fn ended_work_is_a_line_each_within_80_columns() {
        let size = TableSize { width: Width::Terse, columns: Some(80) };
        let want = "\
ID        JOB  NAME  USER  TENANT   STATE      EXIT  NODES  NODE-HOURS  ENDED (UTC)
1f0c9a4e  12   a     ada   physics  Completed  0     128    90.00       2026-03-05 10:00
";
        let wide = TableSize { width: Width::Terse, columns: None };
        assert_eq!(table(&[record("a", 0)], wide), want);
        let task = v1::HistoryRecord {
            id: "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88[7]".into(),
            job: 19,
            task: Some(7),
            exit_code: Some(1),
            node_count: 1,
            node_ms: 0,
            ended_at_ms: 0,
            ..record("a", 0)
        };
        let shown = table(&[task], wide);
        assert_eq!(
            shown.lines().nth(1).unwrap().trim_end(),
            "1f0c9a4e[7]  19   a     ada   physics  Completed  1     1      —           —"
        );
        let narrow = table(&[record(&"x".repeat(128), HOUR_MS)], size);
        assert!(narrow.lines().all(|line| line.chars().count() <= 80), "{narrow}");
        assert!(narrow.contains("2026-03-05 10:00") && narrow.contains("90.00"), "{narrow}");
    }

    #[test]
    fn sums_are_in_hours() {
        let sum = v1::UseSum { user: "ada".into(), count: 3, node_ms: HOUR_MS / 2, core_ms: 32 * HOUR_MS, ..Default::default() };
        let want = "USER  ENDED  NODE-HOURS  GPU-HOURS  CORE-HOURS\nada   3      0.50        0.00       32.00\n";
        assert_eq!(sums_table(&[sum], TableSize { width: Width::Terse, columns: Some(80) }), want);
    }

    #[test]
    fn a_filter_becomes_a_message_and_a_wrong_time_names_its_option() {
        let filter = |since: &str| HistoryFilter {
            since: Some(since.to_owned()),
            until: Some("2026-03-05".to_owned()),
            user: None,
            tenant: Some("physics".to_owned()),
            project: None,
            vcluster: None,
            state: vec![lattice_model::AllocationState::Failed],
            name: None,
            job: vec![JobOrTask { job: 12, task: None }, JobOrTask { job: 42, task: Some(7) }],
            tags: vec![("run".to_owned(), "4".to_owned())],
        };
        let now = Timestamp(1_772_704_812_034);
        let asked = message(filter("7d"), now).unwrap();
        assert_eq!((asked.from_ms, asked.until_ms), (now.0 - 7 * 86_400_000, 1_772_668_800_000));
        assert_eq!((asked.tenant.as_str(), asked.states, asked.tags.len()), ("physics", vec!["Failed".to_owned()], 1));
        assert_eq!((asked.jobs, asked.tasks), (vec![12], vec![v1::TaskOfJob { job: 42, index: 7 }]));
        assert!(message(filter("soon"), now).unwrap_err().to_string().starts_with("--since: "));
    }
}
