//! The limit on a caller's program and environment.

use lattice_model::spec::SPEC_BYTES_MAX;
use std::collections::HashMap;
use thiserror::Error;

/// Largest size of the arguments and environment of one launch, in bytes: each of its nodes stores
/// them as long as the launch runs.
const BYTES_MAX: usize = 4 * SPEC_BYTES_MAX;

/// Why a launch cannot carry its command or environment.
#[derive(Debug, Error)]
pub(super) enum CarriedError {
    #[error("command: a program is needed after --")]
    NoProgram,
    #[error("command: a NUL byte cannot be passed to a program")]
    NulByte,
    #[error("env: {variable:?} cannot be an environment variable")]
    Variable { variable: String },
    #[error("command: arguments and environment have {bytes} bytes, and the limit is {BYTES_MAX}: put long lists into a file")]
    LongCommand { bytes: usize },
    #[error(
        "env: arguments and environment have {bytes} bytes, and the limit is {BYTES_MAX}: export less of the environment (--export NONE or \
         --env)"
    )]
    LongEnvironment { bytes: usize },
}

/// Checks the programs and environment that a launch sends to each of its nodes. The rules are
/// those of a specification, with a larger size limit.
pub(super) fn check<'a>(programs: impl Iterator<Item = &'a Vec<String>>, env: &HashMap<String, String>) -> Result<(), CarriedError> {
    let mut command = 0;
    for argv in programs {
        if argv.first().is_none_or(String::is_empty) {
            return Err(CarriedError::NoProgram);
        }
        if argv.iter().any(|a| a.contains('\0')) {
            return Err(CarriedError::NulByte);
        }
        command += argv.iter().map(|a| a.len() + 4).sum::<usize>();
    }
    if let Some((key, _)) = env.iter().find(|(k, v)| k.is_empty() || k.contains(['=', '\0']) || v.contains('\0')) {
        return Err(CarriedError::Variable { variable: key.chars().take(40).collect() });
    }
    let environment: usize = env.iter().map(|(k, v)| k.len() + v.len() + 8).sum();
    if command + environment > BYTES_MAX {
        let bytes = command + environment;
        return Err(if command > environment { CarriedError::LongCommand { bytes } } else { CarriedError::LongEnvironment { bytes } });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(argv: &[&str], env: &[(&str, &str)]) -> Result<(), CarriedError> {
        let argv: Vec<String> = argv.iter().map(|a| (*a).to_owned()).collect();
        check(std::iter::once(&argv), &env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
    }

    #[test]
    fn launch_fields_are_bounded_and_refused_by_name() {
        let (much, most) = ("x".repeat(BYTES_MAX), "x".repeat(BYTES_MAX - 32));
        of(&["a", "b"], &[("K", "v=w")]).unwrap();
        of(&["a"], &[("K", most.as_str())]).unwrap();
        for (argv, env, field) in [
            (&[][..], &[][..], "command:"),
            (&[""], &[], "command:"),
            (&["a", "b\0"], &[], "command:"),
            (&["a", &much], &[], "command:"),
            (&["a"], &[("K", much.as_str())], "env:"),
            (&["a", &most], &[("K", "v"), ("L", "0123456789")], "command:"),
            (&["a"], &[("", "v")], "env:"),
            (&["a"], &[("K=", "v")], "env:"),
            (&["a"], &[("K\0", "v")], "env:"),
            (&["a"], &[("K", "\0")], "env:"),
        ] {
            let why = of(argv, env).unwrap_err().to_string();
            assert!(why.starts_with(field), "{why}");
        }
    }
}
