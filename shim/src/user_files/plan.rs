//! Which files of the user belong to the script, to a rank, and to a task. Pure.
//!
//! A file is emptied once in an attempt, and never after somebody has written to it:
//!
//! | file of | is emptied |
//! |---|---|
//! | the script; an inline command on one node | when it is opened |
//! | one rank (`%t`), or one node (`%N`, `%n`) | when it is opened |
//! | an inline command on several nodes | before any of them begins, by the first node |
//! | one task (`%a`, `%j`, `%J`) | when the task begins |
//! | several tasks | never: they add to it |

use lattice_model::output_files::{NameFacts, has_pattern};
use lattice_model::{DesiredShare, Entrypoint, OutputFiles};
use lattice_runtime::shim::LogStream;
use std::path::PathBuf;

/// The number of the launch of an inline command.
const ENTRY_LAUNCH: u32 = 1;

/// The files of one allocation on one node.
#[derive(Clone, Debug)]
pub struct Plan {
    files: OutputFiles,
    working_dir: PathBuf,
    name: String,
    user: String,
    node: String,
    node_index: u32,
    job: u64,
    kind: Kind,
}

/// Who writes to the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Script,
    Command { on_several_nodes: bool },
    Tasks { are_commands: bool },
}

/// A file that output is written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputFile {
    /// The log that is copied to it.
    pub stream: LogStream,
    /// The option that names it, for messages.
    pub option: &'static str,
    /// Its path.
    pub path: PathBuf,
    /// Whether it is emptied when it is opened.
    pub is_emptied: bool,
}

/// The files of the script, of one rank, or of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// Where its output is written.
    pub outputs: Vec<OutputFile>,
    /// Its standard input.
    pub input: Option<PathBuf>,
}

impl Plan {
    /// The files that a share asks for, on the node with this name; `None`: there are none.
    pub fn of(share: &DesiredShare, node: &str) -> Option<Self> {
        let files = share.spec.output_files.as_deref()?.clone();
        let node_index = share.nodes.iter().position(|one| one.as_str() == node)?;
        let is_command = matches!(share.spec.entrypoint, Entrypoint::Command { .. });
        let kind = match (share.lane.is_some(), is_command) {
            (true, are_commands) => Kind::Tasks { are_commands },
            (false, true) => Kind::Command { on_several_nodes: share.nodes.len() > 1 },
            (false, false) => Kind::Script,
        };
        Some(Self {
            files,
            working_dir: share.spec.working_dir.clone(),
            name: share.spec.name.clone(),
            user: share.owner.name.clone(),
            node: node.to_owned(),
            node_index: u32::try_from(node_index).unwrap_or(u32::MAX),
            job: share.number,
            kind,
        })
    }

    /// The files of the script; `None`: it has none.
    pub fn of_script(&self) -> Option<Files> {
        (self.kind == Kind::Script).then(|| self.named(&self.facts(0, None), |_| true))
    }

    /// The files of a rank of this launch; `None`: it has none.
    pub fn of_rank(&self, launch_number: u32, rank: u32) -> Option<Files> {
        match self.kind {
            Kind::Command { on_several_nodes } if launch_number == ENTRY_LAUNCH => {
                Some(self.named(&self.facts(rank, Some(0)), |name| !on_several_nodes || is_of_one_node(name)))
            }
            Kind::Command { .. } | Kind::Script | Kind::Tasks { .. } => None,
        }
    }

    /// The files of a task; `None`: it has none.
    pub fn of_task(&self, ordinal: u32, index: u32) -> Option<Files> {
        let Kind::Tasks { are_commands } = self.kind else { return None };
        let job = self.job.saturating_add(ordinal.into());
        let facts = NameFacts { job, index: Some(index), ..self.facts(0, are_commands.then_some(0)) };
        Some(self.named(&facts, |name| has_pattern(name, &['a', 'j', 'J'])))
    }

    /// The files that this node empties before the work begins anywhere.
    pub fn emptied_before(&self) -> Vec<PathBuf> {
        if self.files.append || self.node_index != 0 || self.kind != (Kind::Command { on_several_nodes: true }) {
            return Vec::new();
        }
        let outputs = self.named(&self.facts(0, Some(0)), is_of_one_node).outputs;
        outputs.into_iter().filter(|file| !file.is_emptied).map(|file| file.path).collect()
    }

    fn facts(&self, rank: u32, step: Option<u32>) -> NameFacts<'_> {
        NameFacts {
            job: self.job,
            group: self.job,
            index: None,
            name: &self.name,
            user: &self.user,
            node: &self.node,
            node_index: self.node_index,
            rank,
            step,
        }
    }

    fn named(&self, facts: &NameFacts<'_>, may_be_emptied: impl Fn(&str) -> bool) -> Files {
        let path = |name: &str| self.working_dir.join(facts.resolve(name));
        let option = if self.files.stderr.is_empty() { "output" } else { "error" };
        let named = [(LogStream::Out, "output", self.files.stdout.as_str()), (LogStream::Err, option, self.files.stderr())];
        let outputs = named.into_iter().filter(|(_, _, name)| !name.is_empty()).map(|(stream, option, name)| OutputFile {
            stream,
            option,
            path: path(name),
            is_emptied: !self.files.append && may_be_emptied(name),
        });
        let input = (!self.files.stdin.is_empty()).then(|| path(&self.files.stdin));
        Files { outputs: outputs.collect(), input }
    }
}

/// Whether ranks of one node alone write to the file.
fn is_of_one_node(name: &str) -> bool {
    has_pattern(name, &['t', 'N', 'n'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(stdout: &str, stderr: &str, kind: Kind) -> Plan {
        let files = OutputFiles { stdout: stdout.to_owned(), stderr: stderr.to_owned(), ..OutputFiles::default() };
        let (name, user, node) = ("sim".to_owned(), "ada".to_owned(), "n2".to_owned());
        Plan { files, working_dir: "/work".into(), name, user, node, node_index: 1, job: 40, kind }
    }

    fn shown(files: Option<Files>) -> Vec<(String, bool)> {
        let shown = |file: OutputFile| (format!("{} {} {}", file.stream.suffix(), file.option, file.path.display()), file.is_emptied);
        files.map(|files| files.outputs.into_iter().map(shown).collect()).unwrap_or_default()
    }

    fn own(text: &str, is_emptied: bool) -> (String, bool) {
        (text.to_owned(), is_emptied)
    }

    #[test]
    fn a_script_writes_both_streams_to_one_file_unless_errors_have_their_own() {
        let script = plan("%x-%j.out", "", Kind::Script);
        assert_eq!(shown(script.of_script()), [own("out output /work/sim-40.out", true), own("err output /work/sim-40.out", true)]);
        assert_eq!((script.of_rank(1, 0), script.of_task(0, 0)), (None, None), "its launches write to its own output");
        let errors = plan("", "/var/e.%s", Kind::Script);
        assert_eq!(shown(errors.of_script()), [own("err error /var/e.batch", true)]);
    }

    #[test]
    fn a_file_that_several_nodes_write_to_is_emptied_by_the_first_one_before_they_begin() {
        let kind = Kind::Command { on_several_nodes: true };
        let mut shared = plan("out", "e.%t", kind);
        assert_eq!(shown(shared.of_rank(1, 3)), [own("out output /work/out", false), own("err error /work/e.3", true)]);
        assert_eq!((shared.of_rank(2, 0), shared.of_script()), (None, None));
        assert_eq!(shared.emptied_before(), Vec::<PathBuf>::new(), "it is not the first node");
        shared.node_index = 0;
        assert_eq!(shared.emptied_before(), [PathBuf::from("/work/out")]);
        shared.files.append = true;
        assert_eq!(shared.emptied_before(), Vec::<PathBuf>::new());
        assert_eq!(shown(shared.of_rank(1, 3)), [own("out output /work/out", false), own("err error /work/e.3", false)]);
        let alone = plan("out", "", Kind::Command { on_several_nodes: false });
        assert_eq!(shown(alone.of_rank(1, 3))[0], own("out output /work/out", true));
        assert_eq!(alone.emptied_before(), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_task_has_its_index_and_its_own_job_number() {
        let kind = Kind::Tasks { are_commands: false };
        let tasks = plan("%A_%a.%j", "all", kind);
        assert_eq!(shown(tasks.of_task(2, 7)), [own("out output /work/40_7.42", true), own("err error /work/all", false)]);
        assert_eq!((tasks.of_script(), tasks.of_rank(1, 0)), (None, None));
    }
}
