//! The allocation's script: launch 0, rank 0, on the first node.
//!
//! It is written to the shim's directory, mode 0444, owned by root. Nobody else may enter the directories above, so the
//! shim opens it and passes it on as descriptor 3: its interpreter reads `/proc/self/fd/3`, which checks only the
//! file's own permissions. If its user owned it, work could make it writable there, and fill the disk of the state
//! directory beside all limits of output. The shim reads the interpreter line, not the kernel, so a state directory that
//! is mounted `noexec` does not matter.

use crate::log_files;
use lattice_model::Principal;
use lattice_runtime::process::NotStarted;
use lattice_runtime::shim::ShimDir;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;

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
    write(dir, text).map(drop)
}

/// Writes the script, unless it is there already, and opens it for reading.
pub fn write(dir: &ShimDir, text: &str) -> Result<File, NotStarted> {
    let path = dir.script();
    let written = || -> io::Result<File> {
        if std::fs::read(&path).is_ok_and(|present| present == text.as_bytes()) {
            return File::open(&path);
        }
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut file = OpenOptions::new().create_new(true).write(true).open(&path)?;
        // Whatever our umask is; before the text, because a file with all of it is used as it is.
        file.set_permissions(Permissions::from_mode(0o444))?;
        file.write_all(text.as_bytes())?;
        File::open(&path)
    };
    written().map_err(|e| NotStarted { code: 126, why: format!("writing the script to {}: {e}", path.display()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_stays_the_shims_own_and_its_user_may_read_it() {
        use std::os::unix::fs::MetadataExt;
        let dir = ShimDir(std::env::temp_dir().join(format!("lattice-script-{}", std::process::id())));
        let _ = std::fs::remove_dir_all(&dir.0);
        std::fs::create_dir_all(dir.logs()).unwrap();
        let me = nix::unistd::geteuid().as_raw();
        // Only root may give files away.
        let user = if me == 0 { 65_534 } else { me };
        let owner = Principal { name: "user".into(), uid: user, gid: nix::unistd::getegid().as_raw(), groups: vec![] };
        make_files(&dir, "#!/bin/sh\n", &owner).unwrap();
        let script = std::fs::metadata(dir.script()).unwrap();
        assert_eq!((script.uid(), script.mode() & 0o004, script.mode() & 0o222), (me, 0o004, 0));
        std::fs::remove_dir_all(&dir.0).unwrap();
    }

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
