//! The program that a submission runs: a script that is read here, or a command.

use crate::failure::Failure;
pub use lattice_cli_syntax::specification::Program;
use lattice_model::spec::SCRIPT_BYTES_MAX;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The script name that means standard input.
pub const STDIN: &str = "-";

/// Whether standard input is a file or a pipe, so that it may contain a script.
pub fn is_piped() -> bool {
    use std::os::unix::fs::FileTypeExt;
    let about = std::fs::metadata("/dev/stdin").map(|about| about.file_type());
    about.is_ok_and(|of| of.is_file() || of.is_fifo())
}

/// The failure of a submission with neither a script nor a command.
pub fn nothing_to_run() -> Failure {
    Failure::usage("nothing to run")
        .hint("`lattice submit SCRIPT`, or `lattice submit -- COMMAND ARGS...`; `lattice submit --help` has examples")
}

/// Reads a script. The path `-` is standard input, and that script's name is `stdin`.
///
/// # Errors
/// The file cannot be read, is too large, or is not a script.
pub fn read_script(path: &OsStr, args: Vec<String>) -> Result<Program, Failure> {
    let (name, text) = read_text(path, &args)?;
    if !text.starts_with("#!") {
        let shown = shown(path);
        return Err(Failure::usage(format!("{shown} does not begin with an interpreter line such as #!/bin/bash"))
            .hint(format!("add one, or submit a program as `lattice submit -- {shown}`")));
    }
    Ok(Program::Script { name, text, args })
}

/// Reads the name and the text of a script, which may have no interpreter line. `args` are for messages.
///
/// # Errors
/// The file cannot be read, is too large, or is not text.
pub fn read_text(path: &OsStr, args: &[String]) -> Result<(String, String), Failure> {
    let is_stdin = path == STDIN;
    let shown = shown(path);
    let path = Path::new(if is_stdin { OsStr::new("stdin") } else { path });
    let cannot = |error: std::io::Error| {
        let failure = Failure::usage(format!("cannot read the script {shown}: {error}"));
        let command = std::iter::once(shown.clone()).chain(args.iter().cloned()).collect::<Vec<_>>().join(" ");
        failure.hint(format!("a program and its arguments go after --: `lattice submit -- {command}`"))
    };
    let most = u64::try_from(SCRIPT_BYTES_MAX).unwrap_or(u64::MAX);
    let source: Box<dyn Read> = if is_stdin { Box::new(std::io::stdin()) } else { Box::new(File::open(path).map_err(cannot)?) };
    let mut bytes = Vec::new();
    source.take(most + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if is_stdin && bytes.is_empty() {
        return Err(nothing_to_run());
    }
    if bytes.len() > SCRIPT_BYTES_MAX {
        return Err(Failure::usage(format!("the script {shown} has more than {SCRIPT_BYTES_MAX} bytes"))
            .hint("a program is submitted as `lattice submit -- PROGRAM`"));
    }
    let not_a_script = |what: &str| {
        Failure::usage(format!("{shown} is not a script: {what}")).hint(format!("a program is submitted as `lattice submit -- {shown}`"))
    };
    let text = String::from_utf8(bytes).map_err(|_| not_a_script("it is not text in UTF-8"))?;
    if text.contains('\0') {
        return Err(not_a_script("it has NUL bytes"));
    }
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    Ok((name, text))
}

/// The script as messages show it.
fn shown(path: &OsStr) -> String {
    Path::new(if path == STDIN { OsStr::new("stdin") } else { path }).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env;

    #[test]
    fn files_that_are_not_scripts_are_refused() {
        for (contents, expected) in [(&b"\x7fELF\xff"[..], "is not a script"), (b"echo", "interpreter line"), (b"#!/bin/sh\n\0", "NUL")] {
            let path = env::temp_dir().join(format!("lattice-script-{}", uuid::Uuid::new_v4()));
            std::fs::write(&path, contents).unwrap();
            let refused = read_script(path.as_os_str(), vec![]);
            std::fs::remove_file(&path).unwrap();
            match refused {
                Err(failure) => assert!(failure.text().contains(expected) && failure.exit() == 2, "{}", failure.text()),
                Ok(_) => panic!("{expected}"),
            }
        }
        let missing = read_script(OsStr::new("python3-is-no-file"), vec!["busy.py".into()]).err().unwrap();
        assert!(missing.text().contains("`lattice submit -- python3-is-no-file busy.py`"), "{}", missing.text());
    }
}
