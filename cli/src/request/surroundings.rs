//! The environment and the working directory that a submission takes along.

use crate::failure::Failure;
use lattice_cli_syntax::flags::Export;
use lattice_model::spec::is_wireup_variable;
use std::collections::HashMap;
use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

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

fn exported(variables: impl Iterator<Item = (OsString, OsString)>) -> HashMap<String, String> {
    let texts = variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    texts.filter(|(name, _)| !name.is_empty() && !is_wireup_variable(name) && !name.starts_with("LATTICE_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_launchers_are_not_exported() {
        let variables = ["PATH", "PMI_RANK", "SLURM_JOB_ID", "LATTICE_ALLOC_ID", "PMIX_RANK", "HOME"].map(|n| (n.into(), "x".into()));
        let mut kept: Vec<_> = exported(variables.into_iter()).into_keys().collect();
        kept.sort();
        assert_eq!(kept, ["HOME", "PATH"]);
    }
}
