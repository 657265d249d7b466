//! `lattice dag`.

mod graph;

use crate::compat;
use lattice_api::client::Client;
use lattice_api::json::{DagJson, DagSummaryJson};
use lattice_api::v1;
use lattice_cli_session::failure::Failure;
use lattice_cli_session::listing::report_age;
use lattice_cli_session::output::{Format, TableSize, Width, print, print_names};
use lattice_cli_session::request::{self, Program, Surroundings};
use lattice_cli_session::session::{Session, answer};
use lattice_cli_session::shown::{filled, short, time};
use lattice_cli_session::table::{Fit, Table, block};
use lattice_cli_syntax::args::dag::{CancelDags, DagCommand, DagStatus, ListDags, ShowDag, SubmitDag};
use lattice_cli_syntax::directives::{self, Directives};
use lattice_cli_syntax::flags::{Export, SubmitFlags};
use lattice_cli_syntax::workflow::{self, StepProgram, Workflow, WorkflowStep};
use lattice_model::count::counted;
use lattice_model::dag::DAG_BYTES_MAX;
use serde_json::json;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// DAGs of one page.
const PAGE_LEN_MAX: u32 = 1000;

/// How the tables are made narrower.
const LIST_FIT: Fit<'_> =
    Fit { left_out: &[], shortened: &[("NAME", 8), ("OWNER", 8)], wrapped: &[("STEPS", 12)], left_out_last: &["SUBMITTED"] };
const STATES_FIT: Fit<'_> = Fit { left_out: &[], shortened: &[("STEP", 24)], wrapped: &[("REASON", 16)], left_out_last: &[] };
const EDGES_FIT: Fit<'_> = Fit { left_out: &[], shortened: &[("STEP", 24)], wrapped: &[("DEPENDS ON", 24)], left_out_last: &[] };

pub async fn run(session: &Session, command: DagCommand) -> Result<u8, Failure> {
    let success = |()| 0;
    match command {
        DagCommand::Submit(args) => submit(session, args).await.map(success),
        DagCommand::List(args) => list(session, args).await.map(success),
        DagCommand::Status(args) => status(session, args).await.map(success),
        DagCommand::Show(args) => show(session, args).await.map(success),
        DagCommand::Cancel(args) => cancel(session, args).await,
    }
}

async fn submit(session: &Session, args: SubmitDag) -> Result<(), Failure> {
    let (file, text) = read_file(&args.file)?;
    let Workflow { name, steps } = workflow::read(&file, &text)?;
    let default_name = || Path::new(&file).file_stem().map_or_else(|| file.clone(), |stem| stem.to_string_lossy().into_owned());
    let around = Surroundings::read(None)?;
    let env = around.env.clone();
    let steps = steps.into_iter().map(|step| message(session, step, &around)).collect::<Result<Vec<_>, _>>()?;
    let request = v1::SubmitDagRequest {
        id: uuid::Uuid::new_v4().to_string(),
        name: name.unwrap_or_else(default_name),
        steps,
        env,
        dry_run: args.dry_run,
    };
    let client = session.connect().await?;
    let submitted = Box::pin(answer(client.dags().submit(request))).await?;
    for warning in &submitted.warnings {
        session.warn(warning);
    }
    let dag = submitted.dag.unwrap_or_default();
    match session.format() {
        Format::Table if args.dry_run => print(&format!(
            "Nothing was submitted; this would be submitted:\n{} with {}\n{}",
            dag.name,
            counted(dag.steps.len(), "step"),
            graph::text(&dag)
        )),
        Format::Table => print(&format!("Submitted DAG {} ({}) with {}\n", short(&dag.id), dag.name, counted(dag.steps.len(), "step"))),
        Format::Name => print(&format!("{}\n", if args.dry_run { &dag.name } else { &dag.id })),
        Format::Data(notation) => notation.print(&DagJson::from(&dag)),
    }
}

/// The file's name for people, and its text.
fn read_file(path: &OsStr) -> Result<(String, String), Failure> {
    let is_stdin = path == request::STDIN;
    let shown = if is_stdin { "stdin".to_owned() } else { path.to_string_lossy().into_owned() };
    let cannot = |error: std::io::Error| Failure::usage(format!("cannot read {shown}: {error}"));
    let source: Box<dyn Read> = if is_stdin { Box::new(std::io::stdin()) } else { Box::new(File::open(path).map_err(cannot)?) };
    let mut bytes = Vec::new();
    source.take(DAG_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() > DAG_BYTES_MAX {
        return Err(Failure::usage(format!("{shown} has more than {DAG_BYTES_MAX} bytes")).hint("split the workflow into smaller DAGs"));
    }
    let text = String::from_utf8(bytes).map_err(|_| Failure::usage(format!("{shown} is not text in UTF-8")))?;
    Ok((shown, text))
}

/// A step as `lattice submit` would submit it, under its name.
fn message(session: &Session, step: WorkflowStep, around: &Surroundings) -> Result<v1::DagStep, Failure> {
    let WorkflowStep { place, name, flags, tasks, scaling, program } = step;
    let about = |failure: Failure| failure.about(&format!("{place}: step {name}"));
    let (flags, tasks, scaling, program) = match program {
        StepProgram::Command(argv) => (flags, tasks, scaling, Program::Command(argv)),
        StepProgram::Script { path, args } => {
            let program = request::read_script(OsStr::new(&path), args).map_err(about)?;
            let Program::Script { name: script, text, .. } = &program else { unreachable!("a script was read") };
            let compat = compat::of_script(text).map_err(about)?;
            let parsed = directives::read(script, text, &compat).map_err(|error| about(error.into()))?.under(flags, tasks, scaling);
            for warning in &parsed.warnings {
                session.warn(warning);
            }
            let Directives { flags, tasks, scaling, .. } = parsed;
            (flags, tasks, scaling, program)
        }
    };
    let flags = SubmitFlags { name: Some(flags.name.clone().unwrap_or_else(|| name.clone())), ..flags };
    let takes_env = flags.export != Some(Export::None);
    let env = if takes_env { around.env.clone() } else { HashMap::new() };
    let here = Surroundings { env, dir: around.dir.clone() };
    let mut spec = request::build_specification(&flags, program, &session.settings, here).map_err(about)?;
    spec.task_group = tasks.to_message().map_err(|error| about(error.into()))?;
    spec.output_files = tasks.files.to_message();
    request::apply_scaling(&mut spec, &flags, &scaling).map_err(about)?;
    if takes_env {
        // The agent adds them again: they are in the message once for all steps.
        spec.env.retain(|name, value| around.env.get(name) != Some(value));
    }
    let id = uuid::Uuid::new_v4().to_string();
    Ok(v1::DagStep { name, id, spec: Some(spec), takes_env, wait_for_nodes: flags.wait_for_nodes })
}

async fn list(session: &Session, args: ListDags) -> Result<(), Failure> {
    let client = session.connect().await?;
    let mut request = v1::ListDagsRequest {
        all_users: args.all || args.user.is_some(),
        user: args.user.unwrap_or_default(),
        states: args.state.iter().map(ToString::to_string).collect(),
        ..Default::default()
    };
    let most = args.limit as usize;
    let mut dags: Vec<v1::Dag> = Vec::new();
    let more = loop {
        request.limit = args.limit.saturating_sub(u32::try_from(dags.len()).unwrap_or(u32::MAX)).min(PAGE_LEN_MAX);
        let page = answer(client.dags().list(request.clone())).await?;
        dags.extend(page.dags);
        if dags.len() >= most || page.next_page_token.is_empty() {
            break !page.next_page_token.is_empty();
        }
        request.page_token = page.next_page_token;
    };
    match session.format() {
        Format::Table => print(&table(&dags, request.all_users, session.table_size()))?,
        Format::Data(notation) => notation.print(&dags.iter().map(DagSummaryJson::from).collect::<Vec<_>>())?,
        Format::Name => print_names(dags.iter().map(|dag| dag.id.as_str()))?,
    }
    if more {
        session.note(&format!("{} shown; --limit N shows more", counted(dags.len(), "DAG")));
    }
    Ok(())
}

async fn fetch(client: &Client, key: String, stale: bool) -> Result<v1::Dag, Failure> {
    answer(client.dags().get(v1::GetDagRequest { key, stale })).await
}

async fn status(session: &Session, args: DagStatus) -> Result<(), Failure> {
    let client = session.connect().await?;
    let dag = fetch(&client, args.id, args.stale).await?;
    report_age(session, dag.age_ms);
    match session.format() {
        Format::Table if args.graph => print(&graph::text(&dag)),
        Format::Table => print(&format!("{}\n{}", head(&dag), states_table(&dag, session.table_size()))),
        Format::Data(notation) => notation.print(&DagJson::from(&dag)),
        Format::Name => print_names(dag.steps.iter().map(|step| step.allocation.as_str())),
    }
}

async fn show(session: &Session, args: ShowDag) -> Result<(), Failure> {
    let client = session.connect().await?;
    let dag = fetch(&client, args.id, false).await?;
    if args.dot {
        return print(&graph::dot(&dag));
    }
    match session.format() {
        Format::Table if args.graph => print(&graph::text(&dag)),
        Format::Table => print(&format!("{}\n{}", head(&dag), edges_table(&dag, session.table_size()))),
        Format::Data(notation) => notation.print(&DagJson::from(&dag)),
        Format::Name => print_names(dag.steps.iter().map(|step| step.name.as_str())),
    }
}

/// After a failure it continues with the next DAG; the exit code is that of the first failure.
async fn cancel(session: &Session, args: CancelDags) -> Result<u8, Failure> {
    let client = session.connect().await?;
    let (mut cancelled, mut exit) = (Vec::new(), 0);
    for key in args.ids {
        match answer(client.dags().cancel(v1::CancelDagRequest { key })).await {
            Ok(done) => cancelled.push(done),
            Err(failure) => {
                let code = failure.exit();
                failure.report();
                exit = if exit == 0 { code } else { exit };
            }
        }
    }
    match session.format() {
        Format::Table => print(&cancelled.iter().map(cancelled_line).collect::<String>())?,
        Format::Name => print_names(cancelled.iter().map(|done| done.id.as_str()))?,
        Format::Data(notation) => {
            let list = cancelled.iter().map(|done| json!({ "id": done.id, "steps": done.steps, "state": filled(&done.state) }));
            notation.print(&list.collect::<Vec<_>>())?;
        }
    }
    Ok(exit)
}

fn cancelled_line(done: &v1::CancelDagResponse) -> String {
    match done.steps {
        0 => format!("DAG {} had ended before: it is {}\n", short(&done.id), done.state),
        steps => format!("DAG {} is cancelled: {} had not ended\n", short(&done.id), counted(steps, "step")),
    }
}

fn counts(dag: &v1::Dag) -> v1::StepCounts {
    dag.counts.unwrap_or_default()
}

/// `3 completed, 1 not needed, 2 not ended`.
fn progress(counts: v1::StepCounts) -> String {
    let v1::StepCounts { unended, completed, failed, cancelled, not_needed } = counts;
    let parts =
        [(completed, "completed"), (failed, "failed"), (cancelled, "cancelled"), (not_needed, "not needed"), (unended, "not ended")];
    let parts: Vec<String> = parts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    parts.join(", ")
}

fn table(dags: &[v1::Dag], with_owner: bool, size: TableSize) -> String {
    let mut table = Table::new(&["DAG", "NAME", "OWNER", "STATE", "STEPS", "SUBMITTED"]);
    for dag in dags {
        let owner = if with_owner { dag.owner.clone() } else { String::new() };
        let submitted = time(dag.submitted_at_ms).unwrap_or_default();
        table.row(vec![short(&dag.id).to_owned(), dag.name.clone(), owner, dag.state.clone(), progress(counts(dag)), submitted]);
    }
    table.on_screen(&["OWNER"], &LIST_FIT, size)
}

fn head(dag: &v1::Dag) -> String {
    block(&[
        ("DAG", dag.id.clone()),
        ("Name", dag.name.clone()),
        ("Owner", dag.owner.clone()),
        ("State", dag.state.clone()),
        ("Steps", progress(counts(dag))),
        ("Submitted", time(dag.submitted_at_ms).unwrap_or_default()),
    ])
}

fn states_table(dag: &v1::Dag, size: TableSize) -> String {
    let mut table = Table::new(&["STEP", "ID", "STATE", "REASON"]);
    for step in &dag.steps {
        let reason = if step.not_needed { "not needed".to_owned() } else { step.reason.clone() };
        table.row(vec![step.name.clone(), short(&step.allocation).to_owned(), step.state.clone(), reason]);
    }
    table.on_screen(&["REASON"], &STATES_FIT, size)
}

fn edges_table(dag: &v1::Dag, size: TableSize) -> String {
    let most = if size.width == Width::Terse && size.columns.is_some() { graph::NAMED_MAX } else { usize::MAX };
    let mut table = Table::new(&["STEP", "ID", "DEPENDS ON"]);
    for step in &dag.steps {
        let edges = step.depends_on.iter().take(most).map(|edge| format!("{} of {}", edge.condition, parent(edge)));
        let more = match step.depends_on.len().saturating_sub(most) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let on = edges.collect::<Vec<_>>().join(", ") + &more;
        table.row(vec![step.name.clone(), short(&step.allocation).to_owned(), on]);
    }
    table.on_screen(&["DEPENDS ON"], &EDGES_FIT, size)
}

/// The step that an edge comes from, or the allocation.
fn parent(edge: &v1::DagEdge) -> String {
    match (filled(&edge.step), filled(&edge.name)) {
        (Some(step), _) => step.to_owned(),
        (None, Some(name)) => format!("{} ({name})", short(&edge.allocation)),
        (None, None) => short(&edge.allocation).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(step: &str, allocation: &str, name: &str, condition: &str) -> v1::DagEdge {
        v1::DagEdge { step: step.into(), allocation: allocation.into(), name: name.into(), condition: condition.into() }
    }

    fn sample() -> v1::Dag {
        let step = |name: &str, allocation: &str, state: &str, reason: &str, depends_on| v1::DagStepStatus {
            name: name.into(),
            allocation: allocation.into(),
            state: state.into(),
            reason: reason.into(),
            not_needed: name == "notify",
            depends_on,
        };
        let others = vec![edge("", "5f0c9a4e-5b7d", "data", "any"), edge("", "6f0c9a4e-5b7d", "", "success")];
        v1::Dag {
            id: "1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88".into(),
            name: "flow".into(),
            owner: "ada".into(),
            state: "Running".into(),
            submitted_at_ms: 1_772_704_800_000,
            counts: Some(v1::StepCounts { unended: 1, completed: 1, not_needed: 1, ..Default::default() }),
            steps: vec![
                step("train", "2f0c9a4e-5b7d", "Completed", "", others),
                step("eval", "3f0c9a4e-5b7d", "Pending", "", vec![edge("train", "2f0c9a4e-5b7d", "", "success")]),
                step("notify", "4f0c9a4e-5b7d", "Cancelled", "dependency_unmet", vec![edge("train", "2f0c9a4e-5b7d", "", "failure")]),
            ],
            age_ms: None,
        }
    }

    #[test]
    fn a_dag_is_shown_with_its_steps() {
        let want = "\
DAG:        1f0c9a4e-5b7d-4c39-9a54-0f3c2b1d7e88
Name:       flow
Owner:      ada
State:      Running
Steps:      1 completed, 1 not needed, 1 not ended
Submitted:  2026-03-05T10:00:00.000Z
";
        assert_eq!(head(&sample()), want);
        let states = "\
STEP    ID        STATE      REASON
train   2f0c9a4e  Completed  —
eval    3f0c9a4e  Pending    —
notify  4f0c9a4e  Cancelled  not needed
";
        assert_eq!(states_table(&sample(), TableSize::default()), states);
        let edges = "\
STEP    ID        DEPENDS ON
train   2f0c9a4e  any of 5f0c9a4e (data), success of 6f0c9a4e
eval    3f0c9a4e  success of train
notify  4f0c9a4e  failure of train
";
        assert_eq!(edges_table(&sample(), TableSize::default()), edges);
        let list = "\
DAG       NAME  STATE    STEPS                                   SUBMITTED
1f0c9a4e  flow  Running  1 completed, 1 not needed, 1 not ended  2026-03-05T10:00:00.000Z
";
        assert_eq!(table(&[sample()], false, TableSize::default()), list);
    }

    #[test]
    fn on_a_screen_no_line_is_wider() {
        let screen = TableSize { width: Width::Terse, columns: Some(80) };
        let list = "\
DAG       NAME  STATE    STEPS                          SUBMITTED
1f0c9a4e  flow  Running  1 completed, 1 not needed, 1   2026-03-05T10:00:00.000Z
                         not ended
";
        assert_eq!(table(&[sample()], false, screen), list);
        let mut dag = sample();
        dag.name = "n".repeat(128);
        dag.owner = "o".repeat(32);
        dag.state = "Cancelled".into();
        dag.steps[0].name = "s".repeat(128);
        dag.steps[1].reason = format!("dependency_unmet: success of 2f0c9a4e ({}), which is Failed", "s".repeat(128));
        dag.steps[1].depends_on = vec![edge("train", "2f0c9a4e-5b7d", "", "any"); 256];
        let (states, edges) = (states_table(&dag, screen), edges_table(&dag, screen));
        for text in [&table(std::slice::from_ref(&dag), true, screen), &states, &edges] {
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        }
        assert!(table(std::slice::from_ref(&dag), true, screen).contains("2026-03-05T10:00:00.000Z"));
        assert!(edges.contains("any of train, any of train, any of train"), "{edges}");
        assert!(edges.contains("253 more"), "{edges}");
        assert_eq!(edges_table(&dag, TableSize { width: Width::Wide, columns: Some(80) }).matches("any of train").count(), 256);
        assert_eq!(edges_table(&dag, TableSize::default()).matches("any of train").count(), 256);
    }

    #[test]
    fn the_data_has_every_edge() {
        let data = json!(DagJson::from(&sample()));
        assert_eq!((&data["state"], &data["counts"]["unended"]), (&json!("Running"), &json!(1)));
        assert_eq!(data["steps"][2]["not_needed"], true);
        let wanted = json!([{ "step": "train", "allocation": "2f0c9a4e-5b7d", "name": null, "condition": "success" }]);
        assert_eq!(data["steps"][1]["depends_on"], wanted);
        assert_eq!((&data["steps"][1]["reason"], &data["submitted_at"]), (&json!(null), &json!("2026-03-05T10:00:00.000Z")));
    }

    #[test]
    fn a_cancellation_says_how_many_steps_had_not_ended() {
        let done = |steps, state: &str| v1::CancelDagResponse { id: sample().id, steps, state: state.into() };
        assert_eq!(cancelled_line(&done(1, "")), "DAG 1f0c9a4e is cancelled: 1 step had not ended\n");
        assert_eq!(cancelled_line(&done(0, "Completed")), "DAG 1f0c9a4e had ended before: it is Completed\n");
    }
}
