//! The program and the environment that a caller has run: what is carried is bounded.

use lattice_model::spec::SPEC_BYTES_MAX;
use std::collections::HashMap;

/// Bytes of arguments and environment of one launch: each of its nodes keeps them for as long as it runs.
const BYTES_MAX: usize = 4 * SPEC_BYTES_MAX;

/// What a launch carries to each of its nodes, by the rules of a specification.
pub(super) fn check<'a>(programs: impl Iterator<Item = &'a Vec<String>>, env: &HashMap<String, String>) -> Result<(), String> {
    let mut command = 0;
    for argv in programs {
        if argv.first().is_none_or(String::is_empty) {
            return Err("command: a program is needed after --".to_owned());
        }
        if argv.iter().any(|a| a.contains('\0')) {
            return Err("command: a NUL byte cannot be passed to a program".to_owned());
        }
        command += argv.iter().map(|a| a.len() + 4).sum::<usize>();
    }
    if let Some((key, _)) = env.iter().find(|(k, v)| k.is_empty() || k.contains(['=', '\0']) || v.contains('\0')) {
        return Err(format!("env: {:?} cannot be an environment variable", key.chars().take(40).collect::<String>()));
    }
    let environment: usize = env.iter().map(|(k, v)| k.len() + v.len() + 8).sum();
    if command + environment > BYTES_MAX {
        let (field, remedy) = if command > environment {
            ("command", "put long lists into a file")
        } else {
            ("env", "export less of the environment (--export NONE or --env)")
        };
        return Err(format!(
            "{field}: {} bytes of arguments and environment, at most {BYTES_MAX} are carried: {remedy}",
            command + environment
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(argv: &[&str], env: &[(&str, &str)]) -> Result<(), String> {
        let argv: Vec<String> = argv.iter().map(|a| (*a).to_owned()).collect();
        check(std::iter::once(&argv), &env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
    }

    #[test]
    fn what_a_launch_carries_is_bounded_and_refused_by_its_fields_name() {
        let (much, most) = ("x".repeat(BYTES_MAX), "x".repeat(BYTES_MAX - 32));
        assert_eq!(of(&["a", "b"], &[("K", "v=w")]), Ok(()));
        assert_eq!(of(&["a"], &[("K", most.as_str())]), Ok(()));
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
            let why = of(argv, env).unwrap_err();
            assert!(why.starts_with(field), "{why}");
        }
    }
}
