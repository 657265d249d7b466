//! Where a trace is written: stdout, or a file that appears when it is complete and replaces no other.

use lattice_cli_session::failure::{Exit, Failure};
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// See the module documentation.
#[derive(Debug)]
pub enum Target {
    Stdout,
    File(PathBuf),
}

impl Target {
    /// `-` is stdout.
    ///
    /// # Errors
    /// The file exists.
    pub fn of(file: &Path) -> Result<Self, Failure> {
        if file == Path::new("-") {
            return Ok(Self::Stdout);
        }
        if file.symlink_metadata().is_ok() {
            return Err(exists(file));
        }
        Ok(Self::File(file.to_owned()))
    }

    /// The file, if it is one.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::Stdout => None,
            Self::File(file) => Some(file),
        }
    }

    /// Writes all of it. After a failure no file is left.
    pub fn write(&self, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
        let Self::File(file) = self else {
            let mut out = BufWriter::new(io::stdout().lock());
            content(&mut out)?;
            return Ok(out.flush()?);
        };
        let mut name: OsString = file.into();
        name.push(format!(".{}.partial", std::process::id()));
        let partial = PathBuf::from(name);
        let written = write_new(&partial, content).and_then(|()| std::fs::hard_link(&partial, file));
        // Also after success: the file has another name now.
        let removed = std::fs::remove_file(&partial);
        match written {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(exists(file)),
            Err(error) => Err(Failure::other(format!("cannot write {}: {error}", file.display()))),
            Ok(()) => removed.map_err(|error| Failure::other(format!("cannot remove {}: {error}", partial.display()))),
        }
    }
}

/// A trace shows what everybody runs: only its owner reads it.
fn write_new(path: &Path, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::new(OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?);
    content(&mut out)?;
    out.flush()?;
    out.get_ref().sync_all()
}

fn exists(file: &Path) -> Failure {
    Failure::new(Exit::Refused, format!("{} exists already", file.display())).hint("give another --file; no file is overwritten")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_file_appears_complete_and_replaces_none() {
        let dir = std::env::temp_dir().join(format!("lattice-trace-target-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let file = dir.join("t.jsonl");
        let target = Target::of(&file).unwrap();
        let failed = target.write(|out| {
            out.write_all(b"half")?;
            Err(io::Error::other("the disk is gone"))
        });
        assert!(failed.unwrap_err().what().contains("the disk is gone"));
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);

        target.write(|out| out.write_all(b"all\n")).unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"all\n");
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1);
        assert!(Target::of(&file).unwrap_err().what().contains("exists already"));
        assert!(target.write(|out| out.write_all(b"other")).unwrap_err().what().contains("exists already"));
        assert_eq!(std::fs::read(&file).unwrap(), b"all\n");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
