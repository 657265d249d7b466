//! The file of `lattice dag submit`: a list of steps, each with the options of a submission under their long names.
//!
//! ```text
//!   YAML ──▶ entries with their lines ──▶ words such as --nodes=4 ──▶ the parser of a script's lines ──▶ flags
//! ```
//!
//! Whether the steps are a graph is checked by the agent, which knows the other allocations that they may name.

use crate::UsageError;
use crate::dependency::DependencyError;
use crate::directives::words::split_words;
use crate::directives::{Line, parse};
use crate::flags::SubmitFlags;
use crate::scaling::ScalingFlags;
use crate::tasks::TaskFlags;
use lattice_api::v1;
use lattice_model::DependencyCondition;
use lattice_model::config::{self, Spanned};
use lattice_model::dag::DagSize;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;

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
    /// Its options; what it depends on is named by steps or ids.
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
    allocations: Vec<Spanned<StepEntries>>,
}

/// The entries of a step.
#[derive(Default)]
struct StepEntries {
    name: Option<String>,
    depends_on: Option<Vec<v1::Dependency>>,
    others: Vec<Entry>,
}

/// An option, or what a step runs.
struct Entry {
    key: String,
    line: u64,
    value: Value,
}

/// A value of an option.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Nothing,
    Flag(bool),
    /// A whole number in decimal digits, however it was written.
    Number(String),
    Text(String),
    List(Vec<Value>),
    Pairs(Vec<(String, String)>),
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a number, true, false, or a list of these")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Nothing)
    }

    fn visit_none<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Nothing)
    }

    fn visit_bool<E: Error>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Flag(flag))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Number(number.to_string()))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number.to_string()))
    }

    // Its digits would not be those that were written.
    fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
        Err(E::custom(format!("{number} is read as a number with a fraction: write it in quotes")))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(Value::Pairs(pairs))
    }
}

/// What a step depends on: `- NAME: CONDITION`, `- NAME`, or `{ref: NAME, condition: CONDITION}`.
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
        dependency(name.to_owned(), None).map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<v1::Dependency, A::Error> {
        let mut pairs: BTreeMap<String, String> = BTreeMap::new();
        while let Some((key, value)) = map.next_entry()? {
            pairs.insert(key, value);
        }
        let (named, condition) = match pairs.remove("ref") {
            Some(named) => (named, pairs.remove("condition")),
            None => pairs.pop_first().map(|(named, condition)| (named, Some(condition))).unwrap_or_default(),
        };
        if let Some((key, _)) = pairs.first_key_value() {
            return Err(A::Error::custom(format!("{key:?}: begin each dependency with a dash of its own, such as - preprocess: success")));
        }
        dependency(named, condition).map_err(A::Error::custom)
    }
}

fn dependency(named: String, condition: Option<String>) -> Result<v1::Dependency, DependencyError> {
    if named.is_empty() {
        return Err(DependencyError::NoId);
    }
    let condition = condition.map_or(Ok(DependencyCondition::Success), |name| name.parse())?;
    Ok(v1::Dependency { r#ref: named, condition: condition.name().to_owned() })
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
            // As the options of other schedulers, some of the documents' have underscores.
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
    let most = DagSize::STEPS_MAX as usize;
    if document.allocations.len() > most {
        let what = format!("{file}: it has {} steps; a DAG can have {most} at most", document.allocations.len());
        return Err(UsageError::new(what).with_hint("split the workflow into smaller DAGs"));
    }
    // Many steps have the same options, and parsing them takes time.
    let mut known = BTreeMap::new();
    let mut steps = Vec::with_capacity(document.allocations.len());
    for entries in document.allocations {
        steps.push(step(file, entries.referenced.line(), entries.value, &mut known)?);
    }
    Ok(Workflow { name: document.name, steps })
}

fn step(file: &str, line: u64, entries: StepEntries, known: &mut BTreeMap<Vec<String>, Line>) -> Result<WorkflowStep, UsageError> {
    let place = format!("{file} line {line}");
    let Some(name) = entries.name else {
        return Err(UsageError::new(format!("{place}: a step without a name")).with_hint("begin it with - name: NAME"));
    };
    let marker = format!("step {name}");
    let refused = |line: u64, what: &str| UsageError::new(format!("{file} line {line}: {marker}: {what}"));
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

/// The error of the first option that is wrong by itself, which has its line; else the error of all
/// of them together.
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

/// The texts of a list; `None`: it contains something else. A number is no text here: a program would
/// get other digits than those that were written, such as 255 for 0xFF.
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
";
        let read = read("w.yaml", text).unwrap();
        assert_eq!(read.name.as_deref(), Some("training-pipeline"));
        let names: Vec<&str> = read.steps.iter().map(|step| step.name.as_str()).collect();
        assert_eq!(names, ["preprocess", "train", "report"]);
        let [first, second, third] = &read.steps[..] else { panic!("{read:?}") };
        assert_eq!(first.program, StepProgram::Command(vec!["python".into(), "pre process.py".into()]));
        assert_eq!(first.flags.nodes.map(|nodes| nodes.least), Some(2));
        assert_eq!(first.flags.walltime.map(|time| time.as_secs()), Some(7200));
        assert_eq!((second.flags.tasks_per_node, second.flags.exclusive), (Some(4), true));
        assert_eq!(second.flags.env, [("A".to_owned(), "b".to_owned())]);
        let on = |step: &WorkflowStep| step.flags.depends_on.iter().map(|d| format!("{}:{}", d.r#ref, d.condition)).collect::<Vec<_>>();
        assert_eq!((on(second), on(third)), (vec!["preprocess:success".into()], vec!["train:success".into(), "1f0c9a4e:any".into()]));
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
        assert!(with("    depends_on:\n      - b: success\n        c: any\n").contains("a dash of its own"));
        let twice = with("    depends_on: [b]\n    depends-on: [c]\n");
        assert!(twice.contains("a step has depends_on or depends-on, not both"), "{twice}");
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
        let scaling = read("w.yaml", text).unwrap().steps[0].scaling.to_message().unwrap().unwrap();
        let policy = scaling.policy.unwrap();
        assert_eq!((scaling.replicas_min, scaling.replicas_max, policy.metric.as_str()), (2, 6, "q{a=\"b\"}"));
        assert_eq!((policy.target.as_str(), policy.up_window_ms), ("0.8", 90_000));
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
