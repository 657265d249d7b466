//! The file of `lattice dag submit`: a list of steps, each with the options of a submission under their long names.
//!
//! ```text
//!   YAML ──▶ entries with their lines ──▶ words such as --nodes=4 ──▶ the parser of a script's lines ──▶ flags
//! ```
//!
//! Options may also be in sections, as in the design documents (`resources: {nodes: 4}`): [`sections`] turns them into
//! options.
//!
//! Whether the steps are a graph is checked by the agent, which knows the other allocations that they may name.

mod sections;
mod values;

use crate::UsageError;
use crate::dependency::named;
use crate::directives::words::split_words;
use crate::directives::{Line, parse};
use crate::flags::SubmitFlags;
use crate::scaling::ScalingFlags;
use crate::tasks::TaskFlags;
use lattice_api::v1;
use lattice_model::config::{self, Spanned};
use lattice_model::dag::DagSize;
use lattice_model::dependency::SINGLETON;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use values::{Entry, Node, Value};

/// A file of steps.
#[derive(Debug, PartialEq, Eq)]
pub struct Workflow {
    /// Its name, if it has one.
    pub name: Option<String>,
    /// The steps, as written.
    pub steps: Vec<WorkflowStep>,
}

/// One step.
#[derive(Debug, PartialEq, Eq)]
pub struct WorkflowStep {
    /// Where it is in the file, for messages.
    pub place: String,
    /// Its name.
    pub name: String,
    /// Its options; dependencies are named by steps or ids.
    pub flags: SubmitFlags,
    /// Its tasks, if it is to be a task group.
    pub tasks: TaskFlags,
    /// How it scales, if it is to be a service that does.
    pub scaling: ScalingFlags,
    /// What it runs.
    pub program: StepProgram,
}

/// What a step runs.
#[derive(Debug, PartialEq, Eq)]
pub enum StepProgram {
    /// A program and its arguments.
    Command(Vec<String>),
    /// A script's file, and the script's arguments.
    Script {
        /// The path, as written.
        path: String,
        /// The arguments.
        args: Vec<String>,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    name: Option<String>,
    allocations: Option<Vec<Spanned<StepEntries>>>,
    dag: Option<Steps>,
}

/// The steps in a section of their own, as the design documents also have them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Steps {
    name: Option<String>,
    allocations: Vec<Spanned<StepEntries>>,
}

/// The entries of a step.
#[derive(Default)]
struct StepEntries {
    name: Option<String>,
    depends_on: Option<Vec<v1::Dependency>>,
    sections: Vec<(String, Spanned<Node>)>,
    others: Vec<Entry>,
}

/// What a step depends on: `- NAME: CONDITION`, `- NAME`, `{ref: NAME, condition: CONDITION}`, or `- singleton`.
struct DependencyEntry(v1::Dependency);

impl<'de> Deserialize<'de> for DependencyEntry {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(DependencyVisitor).map(Self)
    }
}

struct DependencyVisitor;

impl<'de> Visitor<'de> for DependencyVisitor {
    type Value = v1::Dependency;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NAME: CONDITION, such as preprocess: success")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<v1::Dependency, E> {
        named(name, None).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<v1::Dependency, A::Error> {
        let mut pairs: BTreeMap<String, String> = BTreeMap::new();
        while let Some((key, value)) = map.next_entry()? {
            pairs.insert(key, value);
        }
        let (name, condition) = match pairs.remove("ref") {
            Some(name) => (name, pairs.remove("condition")),
            None => pairs.pop_first().map(|(name, condition)| (name, Some(condition))).unwrap_or_default(),
        };
        if let Some((key, _)) = pairs.first_key_value() {
            return Err(A::Error::custom(format!("{key:?}: begin each dependency with a dash of its own, such as - preprocess: success")));
        }
        named(&name, condition.as_deref()).map_err(A::Error::custom)
    }
}

impl<'de> Deserialize<'de> for StepEntries {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(StepVisitor)
    }
}

struct StepVisitor;

impl<'de> Visitor<'de> for StepVisitor {
    type Value = StepEntries;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a step: name, entrypoint or script, and options of `lattice submit`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<StepEntries, A::Error> {
        let mut step = StepEntries::default();
        while let Some(key) = map.next_key::<String>()? {
            // Some options in the design documents have underscores, as those of other schedulers do.
            match key.replace('_', "-").as_str() {
                "name" | "id" => {
                    if step.name.replace(map.next_value()?).is_some() {
                        return Err(A::Error::custom("a step has a name or an id, not both"));
                    }
                }
                "depends-on" => {
                    let all: Vec<DependencyEntry> = map.next_value()?;
                    if step.depends_on.replace(all.into_iter().map(|entry| entry.0).collect()).is_some() {
                        return Err(A::Error::custom("a step has depends_on or depends-on, not both"));
                    }
                }
                section if sections::NAMES.contains(&section) => {
                    step.sections.push((section.to_owned(), map.next_value()?));
                }
                plain => {
                    let value: Spanned<Value> = map.next_value()?;
                    step.others.push(Entry { key: plain.to_owned(), line: value.referenced.line(), value: value.value });
                }
            }
        }
        Ok(step)
    }
}

/// Reads the text of `file`.
///
/// # Errors
/// No YAML of this form, or an unknown or invalid option. The error names its line and a remedy.
pub fn read(file: &str, text: &str) -> Result<Workflow, UsageError> {
    let document: Document = config::parse(file, text).map_err(|error| UsageError::new(error.to_string()))?;
    let (name, allocations) = match document {
        Document { name, allocations: Some(allocations), dag: None } => (name, allocations),
        Document { name: None, allocations: None, dag: Some(Steps { name, allocations }) } => (name, allocations),
        Document { allocations: None, dag: None, .. } => {
            return Err(UsageError::new(format!("{file}: it has no steps")).with_hint("list them under allocations:"));
        }
        Document { dag: Some(_), .. } => {
            let what = format!("{file}: beside dag:, which has the steps, there is nothing else");
            return Err(UsageError::new(what).with_hint("write its name and its allocations under dag:"));
        }
    };
    let most = DagSize::STEPS_MAX as usize;
    if allocations.len() > most {
        let what = format!("{file}: it has {} steps; a DAG can have {most} at most", allocations.len());
        return Err(UsageError::new(what).with_hint("split the workflow into smaller DAGs"));
    }
    // Many steps have the same options, and parsing them takes time.
    let mut known = BTreeMap::new();
    let mut steps = Vec::with_capacity(allocations.len());
    for entries in allocations {
        steps.push(step(file, entries.referenced.line(), entries.value, &mut known)?);
    }
    Ok(Workflow { name, steps })
}

fn step(file: &str, line: u64, mut entries: StepEntries, known: &mut BTreeMap<Vec<String>, Line>) -> Result<WorkflowStep, UsageError> {
    let place = format!("{file} line {line}");
    let Some(name) = entries.name else {
        return Err(UsageError::new(format!("{place}: a step without a name")).with_hint("begin it with - name: NAME"));
    };
    let marker = format!("step {name}");
    let refused = |line: u64, what: &str| UsageError::new(format!("{file} line {line}: {marker}: {what}"));
    if name == SINGLETON {
        return Err(UsageError::new(format!("{place}: {marker}: that is a condition of depends_on")).with_hint("choose another name"));
    }
    add_sections(std::mem::take(&mut entries.sections), &mut entries.others)
        .map_err(|sections::Refused { line, what }| refused(line, &what))?;
    let (mut program, mut args, mut words) = (None, Vec::new(), Vec::new());
    for Entry { key, line, value } in &entries.others {
        match (key.as_str(), value) {
            ("entrypoint" | "script", _) if program.is_some() => return Err(refused(*line, "give an entrypoint or a script, not both")),
            ("entrypoint", Value::Text(command)) => {
                let argv = split_words(command).map_err(|why| refused(*line, &format!("entrypoint: {why}")))?;
                if argv.is_empty() {
                    return Err(refused(*line, "entrypoint: there is no program in it"));
                }
                program = Some(StepProgram::Command(argv));
            }
            ("entrypoint", Value::List(list)) if !list.is_empty() => match texts(list) {
                Some(argv) => program = Some(StepProgram::Command(argv)),
                None => return Err(refused(*line, "entrypoint: a program and its arguments, each a text; write numbers in quotes")),
            },
            ("script", Value::Text(path)) => program = Some(StepProgram::Script { path: path.clone(), args: Vec::new() }),
            ("args", Value::List(list)) => match texts(list) {
                Some(texts) => args = texts,
                None => return Err(refused(*line, "args: a list of texts; write numbers in quotes")),
            },
            ("entrypoint" | "script" | "args", _) => {
                return Err(refused(*line, &format!("{key} has another form, as `lattice dag --help` shows")));
            }
            (_, value) => words.extend(option_words(key, value).map_err(|what| refused(*line, &what))?),
        }
    }
    let program = match program {
        Some(StepProgram::Script { path, args: _ }) => StepProgram::Script { path, args },
        Some(StepProgram::Command(_)) if !args.is_empty() => {
            return Err(refused(line, "args belong to a script; an entrypoint contains its own"));
        }
        Some(command) => command,
        None => return Err(refused(line, "it has neither an entrypoint nor a script")),
    };
    let Line { flags, tasks, scaling } = match known.get(&words) {
        Some(line) => line.clone(),
        None => {
            let line = parse(&place, &marker, words.clone()).map_err(|error| with_line(file, &marker, &entries.others, error))?;
            known.insert(words, line.clone());
            line
        }
    };
    let flags = SubmitFlags { depends_on: entries.depends_on.unwrap_or_default(), ..flags };
    Ok(WorkflowStep { place, name, flags, tasks, scaling, program })
}

/// Adds the options of sections to the others, and refuses one that is given twice, or under two of its names.
fn add_sections(sections: Vec<(String, Spanned<Node>)>, others: &mut Vec<Entry>) -> Result<(), sections::Refused> {
    let refused = |line: u64, what: String| Err(sections::Refused { line, what });
    for (section, Spanned { value: node, referenced, .. }) in sections {
        for option in sections::options(&section, referenced.line(), node)? {
            let is_same = |entry: &&Entry| sections::one_name(&entry.key) == sections::one_name(&option.key);
            let there = others.iter().find(is_same).filter(|_| !sections::may_be_repeated(&option.key));
            match there.map(|entry| (&entry.key, &entry.value, &option.value)) {
                None => others.push(option),
                Some((_, Value::Flag(false), Value::Flag(false))) => {}
                Some((key, _, Value::Flag(false))) if section == "lifecycle" => {
                    return refused(option.line, format!("lifecycle.type bounded contradicts {key}: leave one of them out"));
                }
                Some((key, ..)) if *key == option.key => {
                    return refused(option.line, format!("{key} is given twice, once in {section}"));
                }
                Some((key, ..)) => {
                    return refused(option.line, format!("{} of {section} and {key} are the same: give one of them", option.key));
                }
            }
        }
    }
    same_option(others).map_or(Ok(()), Err)
}

/// Two entries that are one option under two names.
fn same_option(entries: &[Entry]) -> Option<sections::Refused> {
    let mut known: BTreeMap<&str, &str> = BTreeMap::new();
    entries.iter().find_map(|Entry { key, line, .. }| {
        let first = *known.entry(sections::one_name(key)).or_insert(key);
        let is_same = first != key && !sections::may_be_repeated(key);
        is_same.then(|| sections::Refused { line: *line, what: format!("{first} and {key} are the same: give one of them") })
    })
}

/// The error of the first option that is wrong by itself, with its line; else the error of all options together.
fn with_line(file: &str, marker: &str, entries: &[Entry], of_all: UsageError) -> UsageError {
    let single = entries.iter().filter(|entry| !["entrypoint", "script", "args"].contains(&entry.key.as_str())).find_map(|entry| {
        let words = option_words(&entry.key, &entry.value).ok()?;
        parse(&format!("{file} line {}", entry.line), marker, words).err()
    });
    single.unwrap_or(of_all)
}

/// An option as words of a command line; a list is the option several times.
fn option_words(key: &str, value: &Value) -> Result<Vec<String>, String> {
    match value {
        Value::Nothing => Err(format!("{key} has no value")),
        Value::Flag(true) => Ok(vec![format!("--{key}")]),
        Value::Flag(false) => Ok(Vec::new()),
        Value::Number(text) | Value::Text(text) => Ok(vec![format!("--{key}={text}")]),
        Value::List(list) => {
            let word = |item: &Value| match item {
                Value::Number(text) | Value::Text(text) => Ok(format!("--{key}={text}")),
                Value::Nothing | Value::Flag(_) | Value::List(_) | Value::Pairs(_) => {
                    Err(format!("{key}: a list of texts or numbers is expected"))
                }
            };
            list.iter().map(word).collect()
        }
        Value::Pairs(pairs) => Ok(pairs.iter().map(|(name, value)| format!("--{key}={name}={value}")).collect()),
    }
}

/// The texts of a list; `None`: it contains something else. A number is not taken as a text, because the program would
/// get different digits, such as 255 for 0xFF.
fn texts(list: &[Value]) -> Option<Vec<String>> {
    let text = |value: &Value| match value {
        Value::Text(text) => Some(text.clone()),
        Value::Nothing | Value::Flag(_) | Value::Number(_) | Value::List(_) | Value::Pairs(_) => None,
    };
    list.iter().map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::Topology;

    fn refused(text: &str) -> String {
        let error = read("w.yaml", text).unwrap_err();
        format!("{}{}", error.what, error.hint.map(|hint| format!(" | {hint}")).unwrap_or_default())
    }

    #[test]
    fn the_documented_file_is_read() {
        let text = "\
name: training-pipeline
allocations:
  - name: preprocess
    entrypoint: \"python 'pre process.py'\"
    nodes: 2
    walltime: \"2h\"
  - id: train
    entrypoint: [torchrun, train.py]
    tasks_per_node: 4
    exclusive: true
    env:
      A: b
    depends_on:
      - preprocess: success
  - name: report
    script: report.sh
    args: [-v]
    depends_on:
      - train
      - {ref: 1f0c9a4e, condition: any}
      - preprocess: after+90m
      - singleton
";
        let read = read("w.yaml", text).unwrap();
        assert_eq!(read.name.as_deref(), Some("training-pipeline"));
        let names: Vec<&str> = read.steps.iter().map(|step| step.name.as_str()).collect();
        assert_eq!(names, ["preprocess", "train", "report"]);
        let [first, second, third] = &read.steps[..] else { panic!("{read:?}") };
        assert_eq!(first.program, StepProgram::Command(vec!["python".into(), "pre process.py".into()]));
        assert_eq!(first.flags.nodes.map(|nodes| nodes.least), Some(2));
        assert_eq!(first.flags.walltime.map(|time| time.as_secs()), Some(7200));
        assert_eq!((second.flags.tasks_per_node, second.flags.exclusive), (Some(4), Some(crate::flags::Exclusive::Nodes)));
        assert_eq!(second.flags.env, [("A".to_owned(), "b".to_owned())]);
        let on = |step: &WorkflowStep| step.flags.depends_on.iter().map(|d| format!("{}:{}", d.r#ref, d.condition)).collect::<Vec<_>>();
        assert_eq!(on(second), ["preprocess:success"]);
        assert_eq!(on(third), ["train:success", "1f0c9a4e:any", "preprocess:after+90m", ":singleton"]);
        assert_eq!(third.program, StepProgram::Script { path: "report.sh".into(), args: vec!["-v".into()] });
    }

    #[test]
    fn an_unknown_or_invalid_option_is_refused_with_its_line() {
        let with = |lines: &str| refused(&format!("allocations:\n  - name: a\n    entrypoint: x\n{lines}"));
        assert_eq!(with("    nodse: 4\n"), "w.yaml line 4: step a --nodse: there is no such option | did you mean --nodes?");
        let invalid = with("    walltime: 1h\n    nodes: many\n");
        assert!(invalid.starts_with("w.yaml line 5: step a: invalid value 'many'"), "{invalid}");
        assert!(with("    nodes:\n").contains("step a: nodes has no value"));
        assert!(with("    mem: 1.5\n").contains("write it in quotes"));
        assert!(with("    script: y.sh\n").contains("line 4: step a: give an entrypoint or a script"));
        assert!(with("    depends_on:\n      - b: maybe\n").contains("\"maybe\" is no condition"));
        assert!(with("    depends_on:\n      - b: after+soon\n").contains("\"after+soon\" has no valid delay"));
        assert!(with("    depends_on:\n      - b: success\n        c: any\n").contains("a dash of its own"));
        let twice = with("    depends_on: [b]\n    depends-on: [c]\n");
        assert!(twice.contains("a step has depends_on or depends-on, not both"), "{twice}");
    }

    #[test]
    fn the_sections_of_the_design_documents_are_read() {
        let text = "\
dag:
  allocations:
    - id: \"stage-data\"
      entrypoint: \"python stage.py\"
      resources: { nodes: 1 }
      lifecycle: { type: \"bounded\", walltime: \"2h\" }
    - id: \"train\"
      tenant: ml-team
      entrypoint: \"torchrun train.py\"
      resources:
        nodes: {min: 32, max: 128}
        constraints: { topology: \"tight\", gpu_type: GH200, features: [nvme_scratch, ib], require_unified_memory: true }
      lifecycle: { type: \"bounded\", walltime: \"72h\", preemption_class: 2 }
      data:
        mounts:
          - {source: /sets/imagenet, target: /data/input, access: read-only}
        defaults: false
      connectivity:
        network_domain: ml-workspace
        expose:
          - {name: metrics, port: 9090}
      telemetry: { mode: prod }
      depends_on: [{ ref: \"stage-data\", condition: \"success\" }]
    - id: serve
      entrypoint: ./serve
      resources: {nodes: 2-4, tasks_per_node: 2}
      lifecycle: {type: unbounded}
";
        let read = read("w.yaml", text).unwrap();
        let [stage, train, serve] = &read.steps[..] else { panic!("{read:?}") };
        assert_eq!((stage.flags.nodes.map(|n| n.least), stage.flags.walltime.map(|t| t.as_secs())), (Some(1), Some(7200)));
        let flags = &train.flags;
        assert_eq!(flags.nodes.map(|nodes| (nodes.least, nodes.most)), Some((32, Some(128))));
        assert_eq!(flags.constraint, ["gpu_type=GH200", "nvme_scratch", "ib", "require_unified_memory"]);
        assert_eq!((flags.topology, flags.preemption_class, flags.tenant.as_deref()), (Some(Topology::Tight), Some(2), Some("ml-team")));
        let mount = &flags.data.data_mount[0];
        assert_eq!((mount.source.as_str(), mount.target.as_str(), mount.access.as_str()), ("/sets/imagenet", "/data/input", "read-only"));
        assert!(flags.data.no_data_defaults);
        assert_eq!(flags.network.network_domain.as_deref(), Some("ml-workspace"));
        assert_eq!((flags.network.expose[0].name.as_str(), flags.network.expose[0].port), ("metrics", 9090));
        assert_eq!((serve.flags.service, serve.flags.tasks_per_node, serve.flags.nodes.and_then(|n| n.most)), (true, Some(2), Some(4)));
    }

    #[test]
    fn what_a_section_does_not_have_is_refused_by_its_name_and_line() {
        let with = |lines: &str| refused(&format!("allocations:\n  - name: a\n    entrypoint: x\n{lines}"));
        for (lines, wanted) in [
            ("    resources: {nodse: 4}\n", "line 4: step a: resources has no nodse: it has nodes, constraints,"),
            ("    resources:\n      nodes: 1\n      constraints: {colour: red}\n", "line 6: step a: resources.constraints has no colour"),
            ("    resources: 4\n", "line 4: step a: resources: names with values are expected"),
            ("    resources: {nodes: {min: 1}}\n", "line 4: step a: resources.nodes: write a number, N-MAX"),
            ("    resources:\n      nodes: many\n", "line 5: step a: invalid value 'many'"),
            ("    nodes: 2\n    resources: {nodes: 4}\n", "line 5: step a: nodes is given twice, once in resources"),
            ("    lifecycle: {type: elastic}\n", "line 4: step a: lifecycle.type elastic: write bounded, unbounded or reactive"),
            (
                "    lifecycle:\n      type: reactive\n      scale_policy: {least: 4}\n",
                "line 6: step a: lifecycle.scale_policy has no least: it has min, max, metric, target",
            ),
            ("    environment: {image: a/b}\n", "line 4: step a: environment.image is not built yet"),
            ("    data:\n      mounts: [{source: /a, target: /b, tier_hint: hot}]\n", "step a: data.mounts.tier_hint is not built yet"),
            ("    data: {mounts: [{source: /a}]}\n", "line 4: step a: data.mounts: a mount has a source and a target"),
            ("    connectivity: {expose: [{name: a}]}\n", "line 4: step a: connectivity.expose: a port is missing"),
            ("    checkpoint: {strategy: auto}\n", "line 4: step a: checkpoint.strategy is not built yet"),
            ("    checkpoint: [signal]\n", "line 4: step a: checkpoint: write the value of the option --checkpoint"),
            ("    telemetry: {mode: debug}\n", "line 4: step a: telemetry.mode debug is not built yet"),
        ] {
            let error = with(lines);
            assert!(error.contains(wanted), "{wanted}: {error}");
        }
        assert!(refused("name: a\ndag: {allocations: []}\n").contains("under dag:"));
    }

    #[test]
    fn a_service_that_scales_is_read_in_both_forms_of_the_design_documents() {
        let long = "    lifecycle:\n      type: reactive\n      min_nodes: 2\n      max_nodes: 6\n      metric: q\n      target: \"0.8\"\n";
        let short = "    lifecycle: {type: reactive, scale_policy: {min: 2, max: 6, metric: q, target: \"0.8\"}}\n";
        for form in [long, short] {
            let read = read("w.yaml", &format!("allocations:\n  - name: a\n    entrypoint: x\n{form}")).unwrap();
            let scaling = read.steps[0].scaling.to_message(false).unwrap().unwrap();
            let policy = scaling.policy.unwrap();
            assert_eq!((scaling.replicas_min, scaling.replicas_max), (2, 6));
            assert_eq!((policy.metric.as_str(), policy.target.as_str()), ("q", "0.8"));
        }
    }

    #[test]
    fn a_step_may_be_a_service_that_scales() {
        let text = "\
allocations:
  - name: serve
    script: serve.sh
    reactive: true
    min_nodes: 2
    max-nodes: 6
    scale_metric: 'q{a=\"b\"}'
    scale_target: \"0.8\"
    scale_up_window: 90s
";
        let scaling = read("w.yaml", text).unwrap().steps[0].scaling.to_message(false).unwrap().unwrap();
        let policy = scaling.policy.unwrap();
        assert_eq!((scaling.replicas_min, scaling.replicas_max, policy.metric.as_str()), (2, 6, "q{a=\"b\"}"));
        assert_eq!((policy.target.as_str(), policy.up_window_ms), ("0.8", 90_000));
    }

    #[test]
    fn an_option_has_one_value_under_all_of_its_names() {
        let step = |lines: &str| format!("allocations:\n  - name: a\n    entrypoint: x\n{lines}");
        for (lines, expected) in [
            ("    mem: 1G\n    resources: {memory: 2G}\n", "line 5: step a: memory of resources and mem are the same: give one of them"),
            ("    resources: {cores: 1, cpus: 2}\n", "line 4: step a: cpus of resources and cores are the same: give one of them"),
            (
                "    time: 1h\n    lifecycle: {walltime: 2h}\n",
                "line 5: step a: walltime of lifecycle and time are the same: give one of them",
            ),
            ("    time: 1h\n    walltime: 2h\n", "line 5: step a: time and walltime are the same: give one of them"),
            ("    cores: 1\n    resources: {cores: 2}\n", "line 5: step a: cores is given twice, once in resources"),
        ] {
            assert_eq!(refused(&step(lines)), format!("w.yaml {expected}"));
        }
        let tags = read("w.yaml", &step("    tag: a=1\n    tags: b=1\n")).unwrap();
        assert_eq!(tags.steps[0].flags.tags.len(), 2, "these add up");
    }

    #[test]
    fn bounded_work_is_no_service() {
        let step = |lines: &str| format!("allocations:\n  - name: a\n    entrypoint: x\n{lines}    lifecycle: {{type: bounded}}\n");
        for key in ["service", "reactive"] {
            let wanted = format!("w.yaml line 5: step a: lifecycle.type bounded contradicts {key}: leave one of them out");
            assert_eq!(refused(&step(&format!("    {key}: true\n"))), wanted);
            assert!(read("w.yaml", &step(&format!("    {key}: false\n"))).is_ok());
        }
        let plain = read("w.yaml", &step("    walltime: 1h\n")).unwrap();
        assert!(!plain.steps[0].flags.service && !plain.steps[0].scaling.reactive);
    }

    #[test]
    fn a_step_has_not_the_name_of_a_condition() {
        let refused = refused("allocations:\n  - name: singleton\n    entrypoint: x\n");
        assert_eq!(refused, "w.yaml line 2: step singleton: that is a condition of depends_on | choose another name");
    }

    #[test]
    fn a_step_needs_a_name_and_a_program() {
        assert!(refused("allocations:\n  - entrypoint: x\n").contains("line 2: a step without a name"));
        assert!(refused("allocations:\n  - name: a\n").contains("step a: it has neither an entrypoint nor a script"));
        assert!(refused("allocations:\n  - name: a\n    entrypoint: \"'x\"\n").contains("entrypoint: a '"));
        assert!(refused("steps: []\n").contains("steps"), "{}", refused("steps: []\n"));
    }

    #[test]
    fn a_program_gets_the_digits_that_were_written() {
        let step = |lines: &str| format!("allocations:\n  - name: a\n{lines}");
        for number in ["0xFF", "12", "-1"] {
            let entrypoint = refused(&step(&format!("    entrypoint: [./sim, {number}]\n")));
            let wanted = "w.yaml line 3: step a: entrypoint: a program and its arguments, each a text; write numbers in quotes";
            assert_eq!(entrypoint, wanted, "{number}");
        }
        let args = refused(&step("    script: sim.sh\n    args: [5]\n"));
        assert_eq!(args, "w.yaml line 4: step a: args: a list of texts; write numbers in quotes");
        let kept = read("w.yaml", &step("    entrypoint: [./sim, \"0xFF\"]\n    nodes: 4\n")).unwrap();
        assert_eq!(kept.steps[0].program, StepProgram::Command(vec!["./sim".into(), "0xFF".into()]));
        assert_eq!(kept.steps[0].flags.nodes.map(|nodes| nodes.least), Some(4));
    }

    /// A billion laughs.
    #[test]
    fn a_file_whose_aliases_multiply_is_refused() {
        let mut text = "allocations:\n  - name: a\n    entrypoint: x\n    l0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..10 {
            text += &format!("    l{level}: &a{level} [{}]\n", vec![format!("*a{}", level - 1); 10].join(", "));
        }
        let error = refused(&text);
        assert!(!error.contains("there is no such option"), "it was read as a whole: {error}");
    }
}
