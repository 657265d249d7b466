//! What a specification cannot be, whatever the state of the cluster: the checks of [`AllocationSpec::validate`], but for
//! those that have a file of their own.

use super::{
    AllocationSpec, Entrypoint, HOST_BYTES_MAX, Image, NODES_MAX, REQUEUES_MAX, SCRIPT_BYTES_MAX, SPEC_BYTES_MAX, TAG_BYTES_MAX, TAGS_MAX,
    WALLTIME_MAX, invalid,
};
use crate::count::counted;
use crate::dependency::DEPENDENCIES_MAX;
use crate::input::STDIN_VARIABLE;
use crate::layout::TASKS_PER_NODE_MAX;
use crate::resources::Resources;
use crate::spec_error::SpecError;
use crate::task_group::task_walltime;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

/// Refuses a walltime of a task of which a lane could not have several. It is no rule of every
/// specification: that of a lane has its own walltime beside the tasks.
///
/// # Errors
/// [`SpecError::Invalid`].
pub fn check_task_walltime(walltime: Option<Duration>) -> Result<(), SpecError> {
    let most = task_walltime(WALLTIME_MAX);
    if walltime.is_some_and(|walltime| walltime > most) {
        let why = format!("a task may have at most {} days", most.as_secs() / 86_400);
        return Err(invalid("walltime", why));
    }
    Ok(())
}

fn check_label(field: &'static str, label: &str) -> Result<(), SpecError> {
    if label.len() > 128 || label.chars().any(char::is_control) {
        return Err(invalid(field, "at most 128 bytes without control characters"));
    }
    Ok(())
}

/// Checks a project and tags: people change them in records of ended work, too.
///
/// # Errors
/// [`SpecError::Invalid`].
pub fn check_project_and_tags(project: &str, tags: &BTreeMap<String, String>) -> Result<(), SpecError> {
    check_label("project", project)?;
    if tags.len() > TAGS_MAX {
        return Err(invalid("tag", format!("{} tags given; at most {TAGS_MAX} are possible", tags.len())));
    }
    let is_text = |text: &String| text.len() <= TAG_BYTES_MAX && !text.chars().any(char::is_control);
    let bad = |(name, value): &(&String, &String)| name.is_empty() || name.contains('=') || !is_text(name) || !is_text(value);
    match tags.iter().find(bad) {
        Some((name, _)) => {
            let name: String = name.chars().take(40).collect();
            let why = format!("{name:?}: name and value have at most {TAG_BYTES_MAX} bytes without control characters, the name no =");
            Err(invalid("tag", why))
        }
        None => Ok(()),
    }
}

impl AllocationSpec {
    /// Checks everything that does not depend on the state of the cluster.
    pub fn validate(&self) -> Result<(), SpecError> {
        if self.name.is_empty() || self.name.len() > 128 || self.name.chars().any(char::is_control) {
            return Err(invalid("name", "1 to 128 bytes without control characters"));
        }
        for (field, label) in [("tenant", &self.tenant), ("vcluster", &self.vcluster)] {
            check_label(field, label)?;
        }
        check_project_and_tags(&self.project, &self.tags)?;
        if self.nodes == 0 || self.nodes > NODES_MAX {
            return Err(invalid("nodes", format!("{} given; 1 to {NODES_MAX} are possible", self.nodes)));
        }
        self.validate_range()?;
        if self.share == Some(Resources::default()) {
            return Err(invalid("shared", "how much of each node? Say --cores, --mem or --gpus"));
        }
        if self.tasks_per_node == 0 || self.tasks_per_node > TASKS_PER_NODE_MAX {
            return Err(invalid("tasks-per-node", format!("{} given; 1 to {TASKS_PER_NODE_MAX} are possible", self.tasks_per_node)));
        }
        let gpus = self.binding.gpus_per_task.saturating_mul(self.tasks_per_node);
        if let Some(share) = self.share.filter(|s| s.gpus < gpus) {
            return Err(invalid(
                "gpus-per-task",
                format!("its tasks want {} of each node, and --gpus asks for {}", counted(gpus, "GPU"), share.gpus),
            ));
        }
        self.validate_launch()?;
        if self.walltime.is_some_and(|time| time.is_zero() || time > WALLTIME_MAX) {
            return Err(invalid("walltime", "more than 0 and at most 365 days"));
        }
        self.validate_entrypoint()?;
        if self.session && self.walltime.is_none() {
            return Err(invalid("walltime", "a session needs one: it would hold its nodes for ever"));
        }
        absolute("working directory", &self.working_dir)?;
        if let Some(dir) = &self.submit_dir {
            absolute("submit directory", dir)?;
        }
        if self.submit_host.len() > HOST_BYTES_MAX || self.submit_host.contains(char::is_control) {
            return Err(invalid("submit host", format!("a name has at most {HOST_BYTES_MAX} bytes, and no control characters")));
        }
        if let Some(image) = &self.uenv {
            image.validate()?;
        }
        for (key, value) in &self.env {
            if key.is_empty() || key.contains('=') || key.contains('\0') || value.contains('\0') {
                return Err(invalid("env", format!("{:?} cannot be an environment variable", key.chars().take(40).collect::<String>())));
            }
        }
        if self.requeues_max > REQUEUES_MAX {
            return Err(invalid("requeue", format!("at most {REQUEUES_MAX} requeues are possible")));
        }
        if self.preemption_class > 10 {
            return Err(invalid("preemption-class", format!("{} given; it must be 0 to 10", self.preemption_class)));
        }
        self.constraints.validate()?;
        if self.constraints.cxl_memory && self.share.is_some() {
            let why = "allow_cxl_memory is for whole nodes: leave it out, or --cores, --mem and --gpus";
            return Err(invalid("constraint", why));
        }
        self.validate_nodelist()?;
        self.validate_node_choice()?;
        self.validate_spread()?;
        self.validate_dependencies()?;
        self.validate_tasks()?;
        self.validate_scaling()?;
        self.validate_timing()?;
        self.data.validate()?;
        self.connectivity.validate()?;
        if let Some(probe) = &self.liveness_probe {
            probe.validate()?;
        }
        self.validate_output_files()?;
        if let Some(warning) = &self.end_warning {
            warning.validate(self.walltime)?;
            if warning.script_only && self.script().is_none() {
                return Err(invalid("signal", "B: is for the process of a script, and this is a command: leave B: out"));
            }
        }
        let bytes = self.bytes_without_script();
        if bytes > SPEC_BYTES_MAX {
            return Err(invalid(
                "env",
                format!(
                    "the specification has {bytes} bytes, at most {SPEC_BYTES_MAX} are committed: export less of the environment (--export NONE or --env)"
                ),
            ));
        }
        Ok(())
    }

    fn validate_entrypoint(&self) -> Result<(), SpecError> {
        match &self.entrypoint {
            Entrypoint::Script { text, args } => {
                if text.len() > SCRIPT_BYTES_MAX {
                    return Err(invalid("script", format!("{} bytes; at most {SCRIPT_BYTES_MAX} are carried", text.len())));
                }
                if !text.starts_with("#!") {
                    return Err(invalid("script", "it must begin with an interpreter line such as #!/bin/bash"));
                }
                without_nul("script arguments", args)?;
                if self.pty.is_some() {
                    return Err(invalid("pty", "a script has no terminal, the launches in it may have: `lattice launch --pty`"));
                }
                Ok(())
            }
            Entrypoint::Command { argv } => {
                if argv.first().is_none_or(String::is_empty) {
                    return Err(invalid("command", "a program is needed after --"));
                }
                without_nul("command", argv)
            }
        }
    }

    fn validate_output_files(&self) -> Result<(), SpecError> {
        let Some(files) = &self.output_files else { return Ok(()) };
        files.validate()?;
        if self.session {
            return Err(invalid("output", "a session has no output of its own: its user's terminal shows it"));
        }
        if !files.stdin.is_empty() && self.pty.is_some() {
            return Err(invalid("input", "standard input of work on a terminal is the terminal: leave --input or --pty out"));
        }
        if !files.stdin.is_empty() && self.env.contains_key(STDIN_VARIABLE) {
            return Err(invalid("input", "standard input comes from the file, or from `lattice launch`: leave one of them out"));
        }
        Ok(())
    }

    fn validate_dependencies(&self) -> Result<(), SpecError> {
        let count = self.depends_on.len();
        if count > DEPENDENCIES_MAX {
            return Err(invalid("depends-on", format!("{count} allocations given; at most {DEPENDENCIES_MAX} are possible")));
        }
        if let Some(bad) = self.depends_on.iter().find(|dependency| !dependency.condition.has_valid_delay()) {
            return Err(invalid("depends-on", format!("{}: a delay has 1 second to 365 days", bad.condition)));
        }
        let mut named = BTreeSet::new();
        match self.depends_on.iter().find(|dependency| !named.insert(dependency.on)) {
            Some(twice) => Err(invalid("depends-on", format!("allocation {} is named twice: give one condition", twice.on.short()))),
            None => Ok(()),
        }
    }

    fn validate_range(&self) -> Result<(), SpecError> {
        let Some(most) = self.nodes_max else { return Ok(()) };
        let refuse = |why: String| Err(invalid("nodes", why));
        if most <= self.nodes || most > NODES_MAX {
            return refuse(format!("{}-{most} is not a range of numbers from 1 to {NODES_MAX}", self.nodes));
        }
        if self.launch.ranks > 0 && most > self.launch.ranks {
            return refuse(format!("of {most} nodes some would have none of its {}", counted(self.launch.ranks, "rank")));
        }
        if !self.constraints.nodes.is_empty() {
            return refuse("a range, and a list of the exact nodes: give one of them".to_owned());
        }
        Ok(())
    }

    fn validate_nodelist(&self) -> Result<(), SpecError> {
        let listed = self.constraints.nodes.len();
        if listed > 0 && u32::try_from(listed) != Ok(self.nodes) {
            let why = format!("nodes named: {listed}, asked for: {}; leave -N out, or name as many", self.nodes);
            return Err(invalid("nodelist", why));
        }
        Ok(())
    }
}

impl Image {
    /// Checks the syntax of path and digest.
    pub fn validate(&self) -> Result<(), SpecError> {
        absolute("uenv", &self.path)?;
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if self.sha256.len() != 64 || !self.sha256.bytes().all(hex) {
            return Err(invalid("uenv", "its digest must be 64 hexadecimal digits in lower case"));
        }
        Ok(())
    }
}

fn absolute(field: &'static str, path: &Path) -> Result<(), SpecError> {
    let text = path.to_string_lossy();
    if !path.is_absolute() || text.contains('\0') || text.len() > 4096 {
        return Err(invalid(field, format!("{text:?} must be an absolute path of at most 4096 bytes")));
    }
    Ok(())
}

pub(super) fn without_nul(field: &'static str, texts: &[String]) -> Result<(), SpecError> {
    if texts.iter().any(|t| t.contains('\0')) { Err(invalid(field, "a NUL byte cannot be passed to a program")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_builders::spec;
    use crate::{AllocationId, Dependency, DependencyCondition, TerminalSize};
    use uuid::Uuid;

    #[test]
    fn each_range_is_kept() {
        assert_eq!(spec().validate(), Ok(()));
        let refused = |change: &dyn Fn(&mut AllocationSpec), field: &str| {
            let mut changed = spec();
            change(&mut changed);
            match changed.validate() {
                Err(SpecError::Invalid { field: f, .. }) => assert_eq!(f, field),
                other => panic!("{field}: {other:?}"),
            }
        };
        refused(&|s| s.nodes = 0, "nodes");
        refused(&|s| s.tasks_per_node = 0, "tasks-per-node");
        refused(&|s| s.share = Some(Resources::default()), "shared");
        refused(&|s| s.walltime = Some(Duration::ZERO), "walltime");
        refused(&|s| s.entrypoint = Entrypoint::Command { argv: vec![] }, "command");
        refused(&|s| s.entrypoint = Entrypoint::Script { text: "echo".into(), args: vec![] }, "script");
        refused(
            &|s| {
                s.entrypoint = Entrypoint::Script { text: "#!/bin/sh".into(), args: vec![] };
                s.pty = Some(TerminalSize::default());
            },
            "pty",
        );
        refused(
            &|s| {
                s.session = true;
                s.walltime = None;
            },
            "walltime",
        );
        refused(&|s| s.working_dir = "here".into(), "working directory");
        refused(&|s| s.submit_host = "x".repeat(HOST_BYTES_MAX + 1), "submit host");
        refused(&|s| s.submit_host = "a\nb".into(), "submit host");
        refused(&|s| s.uenv = Some(Box::new(Image { path: "/a".into(), sha256: "AB".into() })), "uenv");
        refused(&|s| drop(s.env.insert("A=B".into(), String::new())), "env");
        refused(&|s| drop(s.env.insert("A".into(), "x".repeat(SPEC_BYTES_MAX))), "env");
        refused(&|s| s.name = "a\nb".into(), "name");
        for (name, value) in [("", "a"), ("a=b", "c"), ("a", "b\n"), ("a", "x".repeat(TAG_BYTES_MAX + 1).as_str())] {
            refused(&|s| drop(s.tags.insert(name.to_owned(), value.to_owned())), "tag");
        }
        refused(&|s| s.tags = (0..=TAGS_MAX).map(|number| (number.to_string(), String::new())).collect(), "tag");
        let on = |number| Dependency { on: AllocationId(Uuid::from_u128(number)), condition: DependencyCondition::Any };
        refused(&|s| s.depends_on = vec![on(1), on(2), on(1)], "depends-on");
        refused(&|s| s.depends_on = (0..=DEPENDENCIES_MAX as u128).map(on).collect(), "depends-on");
        for seconds in [0, 31_536_001] {
            refused(&|s| s.depends_on = vec![Dependency { condition: DependencyCondition::AfterDelay { seconds }, ..on(1) }], "depends-on");
        }
        let mut many = spec();
        many.depends_on = (0..DEPENDENCIES_MAX as u128).map(on).collect();
        assert_eq!(many.validate(), Ok(()));
        let shared = |s: &mut AllocationSpec| s.share = Some(Resources { cores: 1, ..Resources::default() });
        refused(
            &|s| {
                shared(s);
                s.constraints.cxl_memory = true;
            },
            "constraint",
        );
        let mut whole = spec();
        (whole.share, whole.constraints.cxl_memory) = (None, true);
        assert_eq!(whole.validate(), Ok(()));
    }
}
