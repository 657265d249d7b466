//! Submissions in JSON: the fields of a step of `lattice dag submit`, by the same parser.
//!
//! ```text
//!   JSON ──▶ YAML (JSON is YAML) ──▶ workflow ──▶ options ──▶ specification
//! ```
//!
//! A script is its text here, and not the name of a file. Nothing of a submission is read from this machine.

use super::idempotency::hashed;
use super::problem::Problem;
use super::time::now;
use lattice_api::v1;
use lattice_cli_syntax::UsageError;
use lattice_cli_syntax::civil::Clock;
use lattice_cli_syntax::compat::Compat;
use lattice_cli_syntax::directives::{self, Directives};
use lattice_cli_syntax::flags::{Export, SubmitFlags};
use lattice_cli_syntax::layout;
use lattice_cli_syntax::specification::{self, Context, Program};
use lattice_cli_syntax::workflow::{self, StepProgram, WorkflowStep};
use lattice_model::spec::SCRIPT_BYTES_MAX;
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};
use serde_json::{Map, Value, json};
use std::fmt::Display;
use std::io::{self, Write};
use std::path::Path;
use uuid::Uuid;

/// How messages call the JSON.
const BODY: &str = "body";
/// The name of a step without a given name.
const UNNAMED: &str = "submission";
/// The name of a script, for people.
const SCRIPT: &str = "script";
/// The working directory of work that names none: an agent does not know its caller's.
const DIRECTORY: &str = "/";

/// An allocation that is to be submitted.
#[derive(Debug)]
pub(crate) struct Submission {
    /// What it is.
    pub(crate) spec: v1::AllocationSpec,
    /// Whether it may wait for nodes that are not registered.
    pub(crate) wait_for_nodes: bool,
    /// What was ignored of its script's lines.
    pub(crate) warnings: Vec<String>,
}

/// Reads a body where it delays no other request: a large one takes a while.
pub(crate) async fn read<T: Send + 'static>(reading: impl FnOnce() -> Result<T, Problem> + Send + 'static) -> Result<T, Problem> {
    let done = tokio::task::spawn_blocking(reading).await;
    done.map_err(|error| Problem::internal(format!("the body was not read: {error}")))?
}

/// Reads the body of a submission of one allocation. Two fields are no options of a step: `hold`, and `session`.
pub(crate) fn allocation(mut body: Map<String, Value>) -> Result<Submission, Problem> {
    let hold = flag(&mut body, "hold")?;
    let is_session = flag(&mut body, "session")?;
    let is_named = ["name", "id"].iter().any(|key| body.contains_key(*key));
    if !is_named {
        body.insert("name".to_owned(), UNNAMED.into());
    }
    if is_session {
        for key in ["entrypoint", "script"] {
            if body.contains_key(key) {
                return Err(Problem::invalid(format!("session: a session has no {key}: its user opens a terminal")));
            }
        }
        body.insert("entrypoint".to_owned(), json!(["session"]));
    }
    let name = body.get("name").or_else(|| body.get("id")).and_then(Value::as_str).unwrap_or_default().to_owned();
    let about = |error: UsageError| Problem::from(UsageError { what: without_place(&error.what, &name), ..error });
    let text = yaml(&json!({ "allocations": [body] }))?;
    let mut steps = workflow::read(BODY, &text).map_err(about)?.steps;
    let Some(step) = steps.pop() else { return Err(Problem::internal("the body has no allocation")) };
    if is_session && step.flags.walltime.is_none() {
        return Err(Problem::invalid("a session needs a walltime: after that time its nodes are given back in any case"));
    }
    if is_named && step.flags.name.is_some() {
        return Err(Problem::invalid("name and job-name are the same: give one of them"));
    }
    let given_name = step.name.clone();
    let mut submission = of_step(step, is_named)?;
    submission.spec.hold = hold;
    if is_named {
        // As on the command line, what the submission says wins over a line of its script.
        submission.spec.name = given_name;
    }
    if is_session {
        submission.spec.session = true;
        submission.spec.entrypoint = None;
    }
    Ok(submission)
}

/// Reads the body of a submission of a DAG. `id` is the DAG's: the ids of its allocations follow from it, so that a
/// repeated request is the same.
pub(crate) fn dag(body: Map<String, Value>, id: Uuid, dry_run: bool) -> Result<(v1::SubmitDagRequest, Vec<String>), Problem> {
    let text = yaml(&Value::Object(body))?;
    let read = workflow::read(BODY, &text)?;
    let (mut steps, mut warnings) = (Vec::with_capacity(read.steps.len()), Vec::new());
    for step in read.steps {
        let name = step.name.clone();
        let about = |problem: Problem| problem.about(&format!("step {name}"));
        let submission = of_step(step, true).map_err(about)?;
        warnings.extend(submission.warnings.into_iter().map(|warning| format!("step {name}: {warning}")));
        let allocation = hashed(&[&id.to_string(), "step", &name]).to_string();
        let (spec, wait_for_nodes) = (Some(submission.spec), submission.wait_for_nodes);
        steps.push(v1::DagStep { name, id: allocation, spec, takes_env: false, wait_for_nodes });
    }
    let name = read.name.unwrap_or_else(|| "dag".to_owned());
    Ok((v1::SubmitDagRequest { id: id.to_string(), name, steps, env: Default::default(), dry_run }, warnings))
}

/// A step as a specification. `is_named`: its name is that of the allocation, unless an option gives another.
fn of_step(step: WorkflowStep, is_named: bool) -> Result<Submission, Problem> {
    let WorkflowStep { place: _, name, flags, tasks, scaling, program } = step;
    let (flags, tasks, scaling, program, mut warnings) = match program {
        StepProgram::Command(argv) => (flags, tasks, scaling, Program::Command(argv), Vec::new()),
        StepProgram::Script { path: text, args } => {
            check_script(&text)?;
            let Directives { flags, tasks, scaling, warnings, .. } =
                directives::read(SCRIPT, &text, &Compat::default())?.under(flags, tasks, scaling);
            (flags, tasks, scaling, Program::Script { name: SCRIPT.to_owned(), text, args }, warnings)
        }
    };
    if flags.export == Some(Export::All) {
        warnings.push("--export=all is ignored: an agent does not have your environment; give variables in env".to_owned());
    }
    let flags = if is_named { SubmitFlags { name: Some(flags.name.clone().unwrap_or(name)), ..flags } } else { flags };
    if let Some(uenv) = flags.uenv.as_deref().filter(|uenv| !Path::new(uenv).is_absolute()) {
        return Err(Problem::invalid(format!("uenv: {uenv:?} is not an absolute path"))
            .with_hint("give the path of a SquashFS file on the nodes: names in a registry are not built yet"));
    }
    let nodelist = flags.nodelist.as_deref().map(layout::nodes_of_list).transpose()?.unwrap_or_default();
    let exclude = flags.exclude.as_deref().map(layout::nodes_of_exclude).transpose()?.unwrap_or_default();
    // Times without a zone are in UTC: the zone of the caller is not known.
    let clock = Clock { now: now(), ..Clock::default() };
    let context = Context { dir: DIRECTORY.into(), nodelist, exclude, clock, ..Context::default() };
    let mut spec = specification::build(&flags, program, context)?;
    spec.task_group = tasks.to_message()?;
    spec.output_files = tasks.files.to_message();
    specification::apply_scaling(&mut spec, &flags, &scaling)?;
    Ok(Submission { spec, wait_for_nodes: flags.wait_for_nodes, warnings })
}

/// Refuses a script that the command line refuses.
fn check_script(text: &str) -> Result<(), Problem> {
    if text.len() > SCRIPT_BYTES_MAX {
        return Err(Problem::invalid(format!("the script has more than {SCRIPT_BYTES_MAX} bytes")));
    }
    if !text.starts_with("#!") {
        return Err(Problem::invalid("script: it does not begin with an interpreter line such as #!/bin/bash")
            .with_hint("give the text of the script, not the name of a file"));
    }
    if text.contains('\0') {
        return Err(Problem::invalid("script: it has NUL bytes"));
    }
    Ok(())
}

/// Takes a field that is true or false out of the body.
fn flag(body: &mut Map<String, Value>, key: &str) -> Result<bool, Problem> {
    match body.remove(key) {
        None => Ok(false),
        Some(Value::Bool(value)) => Ok(value),
        Some(_) => Err(Problem::invalid(format!("{key}: true or false is expected"))),
    }
}

/// JSON that YAML reads as the same: YAML refuses some characters, and knows an escape for each.
fn yaml(value: &Value) -> Result<String, Problem> {
    let mut json = Vec::new();
    let cannot = |error: &dyn Display| Problem::internal(format!("cannot write JSON: {error}"));
    value.serialize(&mut Serializer::with_formatter(&mut json, Spaced)).map_err(|error| cannot(&error))?;
    let json = String::from_utf8(json).map_err(|error| cannot(&error))?;
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        // JSON has characters beyond ASCII only in its strings.
        match u32::from(c) {
            0x20..=0x7e => text.push(c),
            code @ 0..=0xffff => text.push_str(&format!("\\u{code:04x}")),
            code => text.push_str(&format!("\\U{code:08x}")),
        }
    }
    Ok(text)
}

/// JSON with a space behind each colon, as YAML wants it.
struct Spaced;

impl Formatter for Spaced {
    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}

/// A message about the only step, without the step's place.
fn without_place(what: &str, name: &str) -> String {
    let rest = what.strip_prefix("body line 1: ").unwrap_or(what);
    let rest = rest.strip_prefix(&format!("step {name}")).map_or(rest, |rest| rest.trim_start_matches([':', ' ']));
    rest.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(value: Value) -> Map<String, Value> {
        let Value::Object(body) = value else { panic!("an object") };
        body
    }

    fn refused(value: Value) -> String {
        format!("{:?}", allocation(body(value)).unwrap_err())
    }

    #[test]
    fn the_fields_are_those_of_a_step() {
        let submission = allocation(body(json!({
            "entrypoint": ["/bin/echo", "grün 🚀 \u{85}\u{7f}"], "resources": {"nodes": 2}, "walltime": "2h",
            "tenant": "physics", "env": {"A": "b"},
            "tag": ["campaign=42"], "hold": true, "gpus": 1,
        })))
        .unwrap();
        let spec = submission.spec;
        assert_eq!((spec.name.as_str(), spec.tenant.as_str(), spec.working_dir.as_str(), spec.hold), ("echo", "physics", "/", true));
        let Some(v1::entrypoint::What::Command(command)) = spec.entrypoint.and_then(|entry| entry.what) else { panic!("a command") };
        assert_eq!(command.argv, ["/bin/echo", "grün 🚀 \u{85}\u{7f}"]);
        let resources = spec.resources.unwrap();
        assert_eq!((resources.nodes, resources.gpus, spec.env["A"].as_str()), (2, 1, "b"));
        assert_eq!((spec.lifecycle.unwrap().walltime_seconds, spec.tags["campaign"].as_str()), (7200, "42"));
    }

    #[test]
    fn a_script_is_a_text_with_its_own_lines() {
        let text = "#!/bin/sh\n#LATTICE --nodes=3 --walltime=1h\n#SBATCH --mail-user=x\necho\n";
        let submission = allocation(body(json!({ "name": "run", "script": text, "args": ["-v"], "nodes": 2 }))).unwrap();
        let spec = submission.spec;
        assert_eq!((spec.name.as_str(), spec.resources.unwrap().nodes, spec.lifecycle.unwrap().walltime_seconds), ("run", 2, 3600));
        let Some(v1::entrypoint::What::Script(script)) = spec.entrypoint.and_then(|entry| entry.what) else { panic!("a script") };
        assert_eq!((script.text.as_str(), script.args), (text, vec!["-v".to_owned()]));
        assert!(refused(json!({ "script": "/etc/shadow" })).contains("not the name of a file"));
    }

    #[test]
    fn the_body_wins_over_the_script_and_nothing_is_dropped_silently() {
        let text = "#!/bin/sh\n#SBATCH --job-name=of-the-script --export=ALL\n";
        let named = |value: Value| allocation(body(value)).unwrap();
        let by_body = named(json!({ "name": "of-the-body", "script": text }));
        assert_eq!(by_body.spec.name, "of-the-body");
        assert!(by_body.warnings.iter().any(|warning| warning.starts_with("--export=all is ignored")), "{:?}", by_body.warnings);
        let by_script = named(json!({ "script": text }));
        assert_eq!(by_script.spec.name, "of-the-script");
        assert!(named(json!({ "entrypoint": "true", "export": "none" })).warnings.is_empty());
        assert!(refused(json!({ "name": "a", "job_name": "b", "entrypoint": "true" })).contains("name and job-name are the same"));
    }

    #[test]
    fn what_is_not_known_is_refused_without_a_place() {
        let unknown = allocation(body(json!({ "entrypoint": "true", "nodse": 2 }))).unwrap_err();
        let wanted = Problem::invalid("--nodse: there is no such option").with_hint("did you mean --nodes?");
        assert_eq!(unknown, wanted);
        assert!(refused(json!({ "entrypoint": "true", "nodes": "many" })).contains("\"invalid value 'many'"));
        assert!(refused(json!({ "nodes": 1 })).contains("neither an entrypoint nor a script"));
        assert!(refused(json!({ "entrypoint": "true", "hold": "yes" })).contains("hold: true or false is expected"));
    }

    #[test]
    fn nothing_is_read_from_this_machine() {
        let listed = refused(json!({ "entrypoint": "true", "nodelist": "/etc/shadow" }));
        assert!(listed.contains("--nodelist") && !listed.contains("cannot read"), "{listed}");
        let excluded = refused(json!({ "entrypoint": "true", "exclude": "/etc/shadow" }));
        assert!(excluded.contains("--exclude") && !excluded.contains("cannot read"), "{excluded}");
        assert!(refused(json!({ "entrypoint": "true", "uenv": "prgenv-gnu" })).contains("not an absolute path"));
    }

    #[test]
    fn a_session_has_no_program_and_a_walltime() {
        let session = allocation(body(json!({ "session": true, "walltime": "1h" }))).unwrap().spec;
        assert_eq!((session.session, session.entrypoint), (true, None));
        assert!(refused(json!({ "session": true })).contains("needs a walltime"));
        assert!(refused(json!({ "session": true, "walltime": "1h", "script": "#!/bin/sh\n" })).contains("has no script"));
    }

    #[test]
    fn a_dag_has_the_same_ids_each_time() {
        let steps = json!({ "name": "flow", "allocations": [
            { "name": "a", "entrypoint": "true" },
            { "name": "b", "entrypoint": "true", "depends_on": [{ "a": "success" }] },
        ] });
        let read = |id| dag(body(steps.clone()), Uuid::from_u128(id), false).unwrap().0;
        assert_eq!(read(1), read(1));
        assert_ne!(read(1).steps[0].id, read(2).steps[0].id);
        assert_ne!(read(1).steps[0].id, read(1).steps[1].id);
        assert_eq!((read(1).name.as_str(), read(1).steps[1].spec.as_ref().unwrap().depends_on[0].r#ref.as_str()), ("flow", "a"));
        let wrong = json!({ "allocations": [{ "name": "a", "script": "x" }] });
        assert!(format!("{:?}", dag(body(wrong), Uuid::from_u128(1), false).unwrap_err()).contains("step a: script"));
    }
}
