//! `lattice usage`.

use lattice_api::client::Client;
use lattice_api::json::{UsageJson, UsageOf};
use lattice_api::v1;
use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::output::{Format, TableSize, print, print_names};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::table::{Fit, Table};
use lattice_cli_syntax::args::usage::Usage;
use lattice_model::usage::HOUR_MS;

/// How the table fits on a narrow screen.
const FIT: Fit<'_> = Fit { left_out: &["MARKS"], shortened: &[("WHOSE", 12)], wrapped: &[], left_out_last: &[] };

/// One answer, and what it is about.
struct Row {
    of: UsageOf,
    usage: v1::Usage,
}

pub async fn run(session: &Session, args: Usage) -> Result<(), Failure> {
    let Usage { tenant, project, user, days } = args;
    let days = days.unwrap_or_default();
    let of_settings = Some(session.settings.tenant.clone()).filter(|name| !name.is_empty());
    let is_of_caller = tenant.is_none() && project.is_none() && user.is_none();
    let client = session.connect().await?;
    let mut rows = Vec::new();
    if is_of_caller || user.is_some() {
        let request = v1::GetUserUsageRequest { user: user.unwrap_or_default(), days };
        rows.push(Row { of: UsageOf::User, usage: answer(client.admin().get_user_usage(request)).await? });
    }
    match project {
        Some(project) => {
            let tenant = tenant.or(of_settings).unwrap_or_default();
            rows.push(Row { of: UsageOf::Project, usage: of_tenant(&client, tenant, project, days).await? });
        }
        None => {
            if let Some(name) = tenant.clone().or_else(|| of_settings.filter(|_| is_of_caller)) {
                match of_tenant(&client, name.clone(), String::new(), days).await {
                    Ok(usage) => rows.push(Row { of: UsageOf::Tenant, usage }),
                    // The settings name an unknown tenant; the user's own use is still shown.
                    Err(failure) if tenant.is_none() && failure.exit() == Exit::NotFound as u8 => session.note(&failure.what()),
                    Err(failure) => return Err(failure),
                }
            }
        }
    }
    match session.format() {
        Format::Table => print(&table(&rows, session.table_size())),
        Format::Data(notation) => notation.print(&rows.iter().map(|row| UsageJson::of(row.of, &row.usage)).collect::<Vec<_>>()),
        Format::Name => print_names(rows.iter().map(|row| row.usage.name.as_str())),
    }
}

async fn of_tenant(client: &Client, tenant: String, project: String, days: u32) -> Result<v1::Usage, Failure> {
    answer(client.admin().get_tenant_usage(v1::GetTenantUsageRequest { tenant, project, days })).await
}

fn table(rows: &[Row], size: TableSize) -> String {
    let mut table = Table::new(&["WHOSE", "DAYS", "NODE-HOURS", "GPU-HOURS", "NODE BUDGET", "GPU BUDGET", "USED", "MARKS"]);
    for Row { of, usage } in rows {
        let name = if *of == UsageOf::Project { &usage.project } else { &usage.name };
        let budget = |hours: Option<u64>| hours.map_or_else(String::new, |hours| hours.to_string());
        table.row(vec![
            format!("{} {name}", of.name()),
            usage.days.to_string(),
            hours_text(usage.node_ms),
            hours_text(usage.gpu_ms),
            budget(usage.node_hours_budget),
            budget(usage.gpu_hours_budget),
            usage.budget_percent.map_or_else(String::new, |percent| format!("{percent} %")),
            marks_text(&usage.budget_marks),
        ]);
    }
    table.on_screen(&["NODE BUDGET", "GPU BUDGET", "USED", "MARKS"], &FIT, size)
}

/// The budgets and their marks, such as `node_hours 80 %`.
fn marks_text(marks: &[v1::BudgetMark]) -> String {
    let texts: Vec<String> = marks.iter().map(|mark| format!("{} {} %", mark.budget, mark.percent)).collect();
    texts.join(", ")
}

/// Hours with two decimals, rounded down, so that no more is shown than was used. 36 seconds of a node are 0.01.
pub(super) fn hours_text(ms: u64) -> String {
    let hundredths = u128::from(ms) * 100 / u128::from(HOUR_MS);
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_cli_session::output::Width;

    fn row(of: UsageOf, name: &str, project: &str, node_ms: u64, budget_percent: Option<u64>) -> Row {
        let (gpu_ms, days, budget_period_days) = (node_ms * 4, 90, 90);
        let gpu_hours_budget = budget_percent.map(|_| 1000);
        let (name, project, node_hours_budget) = (name.to_owned(), project.to_owned(), None);
        let mark = |percent| v1::BudgetMark { budget: "gpu_hours".into(), percent, since_ms: 1_772_704_812_034 };
        let usage = v1::Usage {
            name,
            project,
            days,
            node_ms,
            gpu_ms,
            budget_period_days,
            gpu_hours_budget,
            node_hours_budget,
            budget_percent,
            budget_marks: budget_percent.filter(|percent| *percent >= 80).map(|_| mark(80)).into_iter().collect(),
        };
        Row { of, usage }
    }

    #[test]
    fn usage_is_shown_in_hours_and_fits_into_80_columns() {
        let size = TableSize { width: Width::Terse, columns: Some(80) };
        let user = row(UsageOf::User, "ada", "", 90 * 60_000, None);
        let want = "WHOSE     DAYS  NODE-HOURS  GPU-HOURS\nuser ada  90    1.50        6.00\n";
        assert_eq!(table(&[user], size), want, "columns of budgets are left out where there are none");
        let rows = [
            row(UsageOf::User, "ada", "", 35_999, None),
            row(UsageOf::Tenant, "physics", "", 225 * HOUR_MS, Some(90)),
            row(UsageOf::Project, "physics", &"x".repeat(128), 1_000_000_000_000_000, None),
        ];
        let text = table(&rows, size);
        let cells: Vec<&str> = text.lines().nth(2).unwrap_or_default().split_whitespace().collect();
        assert_eq!(cells, ["tenant", "physics", "90", "225.00", "900.00", "1000", "90", "%"], "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let wide = table(&rows, TableSize { width: Width::Wide, columns: None });
        assert!(wide.lines().nth(2).unwrap_or_default().ends_with("90 %  gpu_hours 80 %"), "{wide}");
        assert_eq!(hours_text(36_000), "0.01");
    }

    #[test]
    fn json_has_hours_as_numbers_and_null_where_there_is_no_budget() {
        let json = |Row { of, usage }: Row| serde_json::json!(UsageJson::of(of, &usage));
        let shown = json(row(UsageOf::Tenant, "physics", "", HOUR_MS / 2, Some(12)));
        assert_eq!((&shown["node_hours"], &shown["gpu_hours"]), (&serde_json::json!(0.5), &serde_json::json!(2.0)));
        assert!(shown["node_hours_budget"].is_null() && shown["project"].is_null());
        assert_eq!((&shown["gpu_hours_budget"], &shown["budget_percent"]), (&serde_json::json!(1000), &serde_json::json!(12)));
        assert_eq!(shown["budget_marks"], serde_json::json!([]), "12 % is below all marks");
        let marked = json(row(UsageOf::Tenant, "physics", "", HOUR_MS / 2, Some(90)));
        let want = serde_json::json!([{ "budget": "gpu_hours", "percent": 80, "since": "2026-03-05T10:00:12.034Z" }]);
        assert_eq!(marked["budget_marks"], want);
    }
}
