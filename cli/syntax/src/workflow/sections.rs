//! The sections of a step, as the design documents have them: `resources: {nodes: 4}`. Each part becomes an option of
//! `lattice submit`, and is checked as such; what is not built is refused by its name.

use super::values::{Entry, Node, Part, Value};

/// The sections. `checkpoint` and `telemetry` are also options.
pub(super) const NAMES: [&str; 7] = ["resources", "lifecycle", "data", "connectivity", "environment", "checkpoint", "telemetry"];

/// Parts that are options of the same name, by section.
const OPTIONS: [(&str, &[&str]); 5] = [
    (
        "resources",
        &[
            "tasks-per-node",
            "ntasks",
            "nodelist",
            "exclude",
            "exclusive",
            "cores",
            "cpus",
            "mem",
            "memory",
            "memory-gb",
            "gpus",
            "topology",
            "topology-wait",
            "spread",
        ],
    ),
    ("lifecycle", &["walltime", "preemption-class", "min-nodes", "max-nodes"]),
    ("data", &["scratch-per-node"]),
    ("connectivity", &["network-domain"]),
    ("environment", &["uenv"]),
];

/// Parts that become options of another form, by section.
const TRANSLATED: [(&str, &[&str]); 5] = [
    ("resources", &["nodes", "constraints"]),
    ("lifecycle", &["type", "metric", "target", "scale-policy"]),
    ("data", &["mounts", "defaults"]),
    ("connectivity", &["expose"]),
    ("telemetry", &["mode"]),
];

/// Documented parts that are not built.
const NOT_BUILT: [(&str, &str); 3] = [("environment", "image"), ("environment", "view"), ("checkpoint", "strategy")];

/// Constraints with a value. Others are features: `features: [nvme_scratch]`.
const VALUED_CONSTRAINTS: [&str; 4] = ["gpu_type", "gpu_count", "core_count", "socket_count"];
/// Constraints that are `true`.
const PLAIN_CONSTRAINTS: [&str; 4] = ["require_unified_memory", "allow_cxl_memory", "prefer_same_numa", "prefer_local_memory"];

/// Why a section is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused {
    /// The line of the part that is wrong.
    pub(super) line: u64,
    pub(super) what: String,
}

fn refused<T>(line: u64, what: impl Into<String>) -> Result<T, Refused> {
    Err(Refused { line, what: what.into() })
}

/// Whether several options of this name add up.
pub(super) fn may_be_repeated(option: &str) -> bool {
    matches!(option, "constraint" | "constraints" | "data-mount" | "expose" | "env" | "tag" | "tags")
}

/// The main name of an option that has several names.
pub(super) fn one_name(option: &str) -> &str {
    match option {
        "cpus" | "cpu-cores" => "cores",
        "memory" => "mem",
        "gpus-per-node" | "gpu-count" => "gpus",
        "ntasks-per-node" => "tasks-per-node",
        "mem-per-cpu" => "mem-per-core",
        "time" => "walltime",
        "mpi" => "pmi",
        other => other,
    }
}

/// A section as options.
///
/// # Errors
/// [`Refused`]: it has another form, or a part that is unknown or not built.
pub(super) fn options(section: &str, line: u64, node: Node) -> Result<Vec<Entry>, Refused> {
    let parts = match (section, node) {
        (_, Node::Parts(parts)) => parts,
        ("checkpoint" | "telemetry", Node::Value(value)) => return Ok(vec![option(section, line, value)]),
        ("checkpoint", Node::Items(_)) => {
            return refused(line, "checkpoint: write the value of the option --checkpoint, such as checkpoint: signal");
        }
        (_, Node::Value(_) | Node::Items(_)) => {
            return refused(line, format!("{section}: names with values are expected, such as {section}: {{{}: …}}", first_part(section)));
        }
    };
    let mut found = Vec::new();
    for Part { key, line, node } in parts {
        let name = key.replace('_', "-");
        match (section, name.as_str()) {
            ("resources", "nodes") => found.push(option("nodes", line, nodes(line, node)?)),
            ("resources", "constraints") => found.extend(constraints(line, node)?),
            ("lifecycle", "type") => found.extend(lifecycle(line, &text(line, "lifecycle.type", node)?)?),
            ("lifecycle", "metric") => found.push(option("scale-metric", line, Value::Text(text(line, "lifecycle.metric", node)?))),
            ("lifecycle", "target") => found.push(option("scale-target", line, Value::Text(text(line, "lifecycle.target", node)?))),
            ("lifecycle", "scale-policy") => found.extend(scale_policy(line, node)?),
            ("data", "mounts") => {
                for mount in items(line, "data.mounts", node)? {
                    found.push(option("data-mount", mount.line, self::mount(mount.line, mount.node)?));
                }
            }
            ("data", "defaults") => match node {
                Node::Value(Value::Flag(true)) => {}
                Node::Value(Value::Flag(false)) => found.push(option("no-data-defaults", line, Value::Flag(true))),
                Node::Value(_) | Node::Parts(_) | Node::Items(_) => return refused(line, "data.defaults: write true or false"),
            },
            ("connectivity", "expose") => {
                for port in items(line, "connectivity.expose", node)? {
                    found.push(option("expose", port.line, expose(port.line, port.node)?));
                }
            }
            ("telemetry", "mode") => match text(line, "telemetry.mode", node)?.as_str() {
                "prod" => {}
                mode => return refused(line, format!("telemetry.mode {mode} is not built yet: measure the work while it runs")),
            },
            (_, name) if NOT_BUILT.contains(&(section, name)) => return refused(line, format!("{section}.{key} is not built yet")),
            (_, name) if names(&OPTIONS, section).contains(&name) => match node {
                Node::Value(value) => found.push(option(name, line, value)),
                Node::Parts(_) | Node::Items(_) => return refused(line, format!("{section}.{key}: one value is expected")),
            },
            _ => return refused(line, unknown(section, &key)),
        }
    }
    Ok(found)
}

fn option(key: &str, line: u64, value: Value) -> Entry {
    Entry { key: key.to_owned(), line, value }
}

fn names(table: &[(&str, &'static [&'static str])], section: &str) -> &'static [&'static str] {
    match table.iter().find(|(of, _)| *of == section) {
        Some(&(_, names)) => names,
        None => &[],
    }
}

fn known(section: &str) -> Vec<String> {
    let all = [names(&TRANSLATED, section), names(&OPTIONS, section)].concat();
    all.into_iter().map(|name| name.replace('-', "_")).collect()
}

fn first_part(section: &str) -> String {
    known(section).into_iter().next().unwrap_or_default()
}

fn unknown(section: &str, key: &str) -> String {
    match known(section) {
        parts if parts.is_empty() => format!("{section} has no {key}: write `{section}` with the value of the option --{section}"),
        parts => format!("{section} has no {key}: it has {}", parts.join(", ")),
    }
}

fn text(line: u64, what: &str, node: Node) -> Result<String, Refused> {
    match node {
        Node::Value(Value::Text(text) | Value::Number(text)) => Ok(text),
        Node::Value(_) | Node::Parts(_) | Node::Items(_) => refused(line, format!("{what}: a text is expected")),
    }
}

fn items(line: u64, what: &str, node: Node) -> Result<Vec<Part>, Refused> {
    match node {
        Node::Items(items) => Ok(items),
        Node::Value(_) | Node::Parts(_) => refused(line, format!("{what}: a list is expected")),
    }
}

/// The values of these names, in this order; `None`: the name is missing.
fn fields<const N: usize>(line: u64, what: &str, node: Node, names: [&str; N]) -> Result<[Option<String>; N], Refused> {
    let Node::Parts(parts) = node else { return refused(line, format!("{what}: names with values are expected")) };
    let mut found = [const { None::<String> }; N];
    for Part { key, line, node } in parts {
        match names.iter().position(|name| *name == key) {
            Some(at) => found[at] = Some(text(line, &format!("{what}.{key}"), node)?),
            None => return refused(line, format!("{what} has no {key}: it has {}", names.join(", "))),
        }
    }
    Ok(found)
}

/// A number of nodes, or the limits of one.
fn nodes(line: u64, node: Node) -> Result<Value, Refused> {
    let form = "resources.nodes: write a number, N-MAX or {min: N, max: MAX}";
    match node {
        Node::Value(value) => Ok(value),
        Node::Items(_) => refused(line, form),
        Node::Parts(_) => match fields(line, "resources.nodes", node, ["min", "max"])? {
            [Some(least), Some(most)] => Ok(Value::Text(format!("{least}-{most}"))),
            [_, _] => refused(line, form),
        },
    }
}

/// Constraints, which are a list, a text, or names with values.
fn constraints(line: u64, node: Node) -> Result<Vec<Entry>, Refused> {
    let what = "resources.constraints";
    let parts = match node {
        Node::Parts(parts) => parts,
        Node::Value(value) => return Ok(vec![option("constraint", line, value)]),
        Node::Items(items) => return features(what, items),
    };
    let mut found = Vec::new();
    for Part { key, line, node } in parts {
        match key.as_str() {
            "topology" => found.push(option("topology", line, Value::Text(text(line, "resources.constraints.topology", node)?))),
            "features" => found.extend(features("resources.constraints.features", items(line, "resources.constraints.features", node)?)?),
            name if VALUED_CONSTRAINTS.contains(&name) => {
                let value = text(line, &format!("{what}.{name}"), node)?;
                found.push(option("constraint", line, Value::Text(format!("{name}={value}"))));
            }
            name if PLAIN_CONSTRAINTS.contains(&name) => match node {
                Node::Value(Value::Flag(true)) => found.push(option("constraint", line, Value::Text(name.to_owned()))),
                Node::Value(Value::Flag(false)) => {}
                Node::Value(_) | Node::Parts(_) | Node::Items(_) => return refused(line, format!("{what}.{name}: write true or false")),
            },
            name => {
                let known = [&["features", "topology"][..], &VALUED_CONSTRAINTS, &PLAIN_CONSTRAINTS].concat().join(", ");
                return refused(line, format!("{what} has no {name}: it has {known}; what a site defines is a feature"));
            }
        }
    }
    Ok(found)
}

fn features(what: &str, items: Vec<Part>) -> Result<Vec<Entry>, Refused> {
    let feature = |Part { line, node, .. }: Part| text(line, what, node).map(|name| option("constraint", line, Value::Text(name)));
    items.into_iter().map(feature).collect()
}

/// The values of `service` and `reactive` for a type of work.
fn lifecycle(line: u64, kind: &str) -> Result<Vec<Entry>, Refused> {
    let options = |all: &[(&str, bool)]| all.iter().map(|(name, given)| option(name, line, Value::Flag(*given))).collect::<Vec<_>>();
    match kind {
        "bounded" => Ok(options(&[("service", false), ("reactive", false)])),
        "unbounded" => Ok(options(&[("service", true)])),
        "reactive" => Ok(options(&[("reactive", true)])),
        other => refused(line, format!("lifecycle.type {other}: write bounded, unbounded or reactive")),
    }
}

/// How a service scales: `{min: 4, max: 16, metric: cpu_utilization, target: "0.8"}`.
fn scale_policy(line: u64, node: Node) -> Result<Vec<Entry>, Refused> {
    let given = fields(line, "lifecycle.scale_policy", node, ["min", "max", "metric", "target"])?;
    let options = ["min-nodes", "max-nodes", "scale-metric", "scale-target"];
    let given = options.into_iter().zip(given).filter_map(|(name, value)| Some((name, value?)));
    Ok(given.map(|(name, value)| option(name, line, Value::Text(value))).collect())
}

/// `SOURCE:TARGET[:ACCESS]`
fn mount(line: u64, node: Node) -> Result<Value, Refused> {
    match fields(line, "data.mounts", node, ["source", "target", "access", "tier_hint"])? {
        [.., Some(_)] => refused(line, "data.mounts.tier_hint is not built yet"),
        [Some(source), Some(target), access, None] => {
            let access = access.map_or_else(String::new, |access| format!(":{access}"));
            Ok(Value::Text(format!("{source}:{target}{access}")))
        }
        [_, _, _, None] => refused(line, "data.mounts: a mount has a source and a target"),
    }
}

/// `[NAME:]PORT[/PROTOCOL]`
fn expose(line: u64, node: Node) -> Result<Value, Refused> {
    let [name, port, protocol] = fields(line, "connectivity.expose", node, ["name", "port", "protocol"])?;
    let Some(port) = port else { return refused(line, "connectivity.expose: a port is missing") };
    let name = name.map_or_else(String::new, |name| format!("{name}:"));
    let protocol = protocol.map_or_else(String::new, |protocol| format!("/{protocol}"));
    Ok(Value::Text(format!("{name}{port}{protocol}")))
}
