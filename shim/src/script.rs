//! The allocation's script: launch 0, rank 0, on the first node.
//!
//! It is written to the shim's directory, mode 0400, owned by the user. The directories above belong to root, so the
//! shim opens it and passes it on as descriptor 3: its interpreter reads `/proc/self/fd/3`, which checks only the
//! file's own permissions. The shim reads the interpreter line, not the kernel, so a state directory that is mounted
//! `noexec` does not matter.

use crate::log_files;
use lattice_model::Principal;
use lattice_runtime::process::NotStarted;
use lattice_runtime::shim::ShimDir;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;

/// Used if the script names no interpreter.
const INTERPRETER_DEFAULT: &str = "/bin/sh";

/// Program and arguments that run the script on descriptor 3.
pub fn argv(text: &str, args: &[String]) -> Vec<String> {
    let (interpreter, option) = interpreter(text);
    let mut argv = vec![interpreter.to_owned()];
    argv.extend(option.map(str::to_owned));
    argv.push("/proc/self/fd/3".to_owned());
    argv.extend_from_slice(args);
    argv
}

/// As the kernel reads it (execve(2), "Interpreter scripts"): a path, and the rest of the line as one argument.
fn interpreter(text: &str) -> (&str, Option<&str>) {
    let line = text.lines().next().and_then(|line| line.strip_prefix("#!")).unwrap_or_default().trim();
    match line.split_once([' ', '\t']) {
        Some((interpreter, option)) => (interpreter, Some(option.trim())),
        None if line.is_empty() => (INTERPRETER_DEFAULT, None),
        None => (line, None),
    }
}

/// Makes the script's files for this node, so that a full disk is detected while the work can still begin on another
/// node.
pub fn make_files(dir: &ShimDir, text: &str, owner: &Principal) -> Result<(), NotStarted> {
    log_files::create_directory(dir, 0)?;
    log_files::create(dir, 0, 0, owner)?;
    write(dir, text, owner).map(drop)
}

/// Writes the script, unless it is there already, and opens it for reading.
pub fn write(dir: &ShimDir, text: &str, owner: &Principal) -> Result<File, NotStarted> {
    let path = dir.script();
    let written = || -> io::Result<File> {
        if std::fs::read(&path).is_ok_and(|present| present == text.as_bytes()) {
            return File::open(&path);
        }
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut file = OpenOptions::new().create_new(true).write(true).mode(0o400).open(&path)?;
        file.write_all(text.as_bytes())?;
        log_files::set_owner(&file, owner)?;
        File::open(&path)
    };
    written().map_err(|e| NotStarted { code: 126, why: format!("writing the script to {}: {e}", path.display()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interpreter_line_is_read_as_the_kernel_does() {
        for (text, want) in [
            ("#!/bin/bash\necho", ("/bin/bash", None)),
            ("#! /usr/bin/env  -S python3 -u \n", ("/usr/bin/env", Some("-S python3 -u"))),
            ("#!/bin/sh\t-e\r\n", ("/bin/sh", Some("-e"))),
            ("echo hello\n", ("/bin/sh", None)),
            ("#!\n", ("/bin/sh", None)),
            ("", ("/bin/sh", None)),
            ("\n#!/bin/bash\n", ("/bin/sh", None)),
        ] {
            assert_eq!(interpreter(text), want, "{text:?}");
        }
        assert_eq!(argv("#!/bin/sh -e\n", &["a b".into()]), ["/bin/sh", "-e", "/proc/self/fd/3", "a b"]);
    }
}
