//! The environment and the working directory that a submission takes along.

use crate::failure::Failure;
use lattice_cli_syntax::flags::Export;
use lattice_model::spec::is_wireup_variable;
use std::collections::HashMap;
use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

/// The index of the task that a process belongs to.
const TASK_INDEX_VARIABLE: &str = "LATTICE_TASK_INDEX";

/// This process's environment and working directory.
pub struct Surroundings {
    /// Variables with text values.
    pub env: HashMap<String, String>,
    /// The working directory.
    pub dir: PathBuf,
}

impl Surroundings {
    /// Reads them. Leaves out wire-up variables, Lattice's own variables, and values that are not UTF-8.
    pub fn read(export: Option<Export>) -> Result<Self, Failure> {
        let dir = env::current_dir().map_err(|error| Failure::other(format!("cannot find the working directory: {error}")))?;
        let env = match export {
            None | Some(Export::All) => exported(env::vars_os()),
            Some(Export::None) => HashMap::new(),
        };
        Ok(Self { env, dir })
    }
}

/// The variables that name the task in which this process runs, for its launches: their ranks belong to
/// the same task. A submission does not get them.
pub fn task_variables() -> impl Iterator<Item = (String, String)> {
    of_task(env::var(TASK_INDEX_VARIABLE).ok())
}

fn of_task(index: Option<String>) -> impl Iterator<Item = (String, String)> {
    index.into_iter().flat_map(|index| [TASK_INDEX_VARIABLE, "SLURM_ARRAY_TASK_ID"].map(|name| (name.to_owned(), index.clone())))
}

fn exported(variables: impl Iterator<Item = (OsString, OsString)>) -> HashMap<String, String> {
    let texts = variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    texts.filter(|(name, _)| !name.is_empty() && !is_wireup_variable(name) && !name.starts_with("LATTICE_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_launchers_are_not_exported() {
        let launchers = ["PATH", "PMI_RANK", "SLURM_JOB_ID", "LATTICE_ALLOC_ID", "PMIX_RANK", "HOME"];
        let of_tasks = ["LATTICE_TASK_INDEX", "LATTICE_TASK_GROUP_ID", "SLURM_ARRAY_TASK_ID"];
        let variables = launchers.into_iter().chain(of_tasks).map(|name| (name.into(), "x".into()));
        let mut kept: Vec<_> = exported(variables).into_keys().collect();
        kept.sort();
        assert_eq!(kept, ["HOME", "PATH"]);
    }

    #[test]
    fn a_launch_in_a_task_gets_the_index() {
        let index = |name: &str| (name.to_owned(), "7".to_owned());
        assert_eq!(of_task(Some("7".to_owned())).collect::<Vec<_>>(), [index("LATTICE_TASK_INDEX"), index("SLURM_ARRAY_TASK_ID")]);
        assert_eq!(of_task(None).count(), 0);
    }
}
