//! `lattice compat`: links with the names of Slurm's commands.

use lattice_cli_session::failure::{Exit, Failure};
use lattice_cli_session::output::print;
use lattice_cli_syntax::args::compat::{CompatCommand, Install, Uninstall};
use lattice_slurm::commands::COMMANDS;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

pub fn run(command: CompatCommand) -> Result<(), Failure> {
    let program = std::env::current_exe().map_err(|error| Failure::other(format!("cannot find this program: {error}")))?;
    match command {
        CompatCommand::Install(Install { dir, force }) => {
            let made = install(&program, &dir, force)?;
            print(&format!("{} commands in {} are links to {}: {made} are new\n", COMMANDS.len(), dir.display(), program.display()))
        }
        CompatCommand::Uninstall(Uninstall { dir }) => {
            let removed = uninstall(&program, &dir)?;
            print(&format!("Removed {removed} links in {}\n", dir.display()))
        }
    }
}

/// What exists under a command's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    /// A link to this program.
    Ours,
    Foreign,
}

fn look(program: &Path, path: &Path) -> Result<Found, Failure> {
    match fs::symlink_metadata(path) {
        Ok(about) if about.is_symlink() && fs::read_link(path).is_ok_and(|target| target == program) => Ok(Found::Ours),
        Ok(_) => Ok(Found::Foreign),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Found::Nothing),
        Err(error) => Err(cannot("look at", path, &error)),
    }
}

fn cannot(what: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::other(format!("cannot {what} {}: {error}", path.display()))
}

/// Makes the links that are missing; all of them, or none if a foreign file has one of the names. Returns how many.
fn install(program: &Path, dir: &Path, force: bool) -> Result<usize, Failure> {
    if !dir.is_dir() {
        return Err(Failure::new(Exit::NotFound, format!("{} is not a directory", dir.display())).hint("make it first: mkdir -p DIR"));
    }
    let mut missing: Vec<PathBuf> = Vec::new();
    let mut foreign: Vec<&str> = Vec::new();
    for name in COMMANDS {
        let path = dir.join(name);
        match look(program, &path)? {
            Found::Ours => {}
            Found::Nothing => missing.push(path),
            Found::Foreign if force && !path.is_dir() => missing.push(path),
            Found::Foreign => foreign.push(name),
        }
    }
    if !foreign.is_empty() {
        return Err(Failure::new(Exit::Refused, format!("{} has other files of these names: {}", dir.display(), foreign.join(", ")))
            .hint("choose another directory, or replace them with --force"));
    }
    for path in &missing {
        // A rename replaces the file, so that it is never missing.
        let fresh = path.with_extension(format!("lattice-{}", std::process::id()));
        symlink(program, &fresh)
            .and_then(|()| fs::rename(&fresh, path))
            .inspect_err(|_| drop(fs::remove_file(&fresh)))
            .map_err(|error| cannot("make the link", path, &error))?;
    }
    Ok(missing.len())
}

/// Removes the links to this program. Returns how many.
fn uninstall(program: &Path, dir: &Path) -> Result<usize, Failure> {
    let mut removed = 0;
    for path in COMMANDS.map(|name| dir.join(name)) {
        if look(program, &path)? == Found::Ours {
            fs::remove_file(&path).map_err(|error| cannot("remove", &path, &error))?;
            removed += 1;
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Dir(PathBuf);

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn links_are_made_once_and_other_files_stay_without_force() {
        let dir = Dir(std::env::temp_dir().join(format!("lattice-compat-{}", uuid::Uuid::new_v4())));
        let program = Path::new("/opt/lattice");
        assert_eq!(install(program, &dir.0, false).unwrap_err().exit(), 3);
        fs::create_dir_all(&dir.0).unwrap();
        fs::write(dir.0.join("srun"), "of Slurm").unwrap();
        let refused = install(program, &dir.0, false).unwrap_err();
        assert!(refused.exit() == 4 && refused.text().contains("of these names: srun\nhint: "), "{}", refused.text());
        assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 1, "nothing was made");
        assert_eq!(install(program, &dir.0, true).ok(), Some(COMMANDS.len()));
        assert_eq!(install(program, &dir.0, false).ok(), Some(0));
        assert_eq!(fs::read_link(dir.0.join("srun")).unwrap(), program);
        fs::remove_file(dir.0.join("sacct")).unwrap();
        fs::write(dir.0.join("sacct"), "foreign").unwrap();
        assert_eq!(uninstall(program, &dir.0).ok(), Some(COMMANDS.len() - 1));
        assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 1);
    }
}
