//! The files that the tasks of a lane write to.
//!
//! A task writes to two files in the shim's directory. A file moves to the log files, under its task's name, when the
//! task ends and has written to it, or when the task has run for a while. A file that stays empty is used by the next
//! task. So thousands of short silent tasks make no log files.

use crate::log_files;
use crate::shim_log::log_line;
use lattice_model::Principal;
use lattice_runtime::process::NotStarted;
use lattice_runtime::shim::{LogStream, ShimDir, task_launch};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use std::fs::{self, File};
use std::io::Write;

/// Which files become log files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All.
    All,
    /// Those that have content.
    Written,
}

/// The files of the present task, or of the next one.
pub struct TaskOutput {
    out: OutputFile,
    err: OutputFile,
    /// The launch number whose directory of log files was made last.
    directory: Option<u32>,
}

struct OutputFile {
    stream: LogStream,
    state: State,
}

enum State {
    Absent,
    /// In the shim's directory.
    Pending(File),
    /// Among the log files.
    Moved(File),
}

impl State {
    fn file(&self) -> Option<&File> {
        match self {
            Self::Absent => None,
            Self::Pending(file) | Self::Moved(file) => Some(file),
        }
    }
}

impl OutputFile {
    /// An empty file for the next task.
    fn begin(&mut self, dir: &ShimDir, owner: &Principal) -> Result<(), NotStarted> {
        let path = dir.task_output(self.stream);
        let ready = match &self.state {
            // The last task shared our open file, and may have changed its flags.
            State::Pending(file) => fcntl(file, FcntlArg::F_SETFL(OFlag::O_APPEND)).map(drop).map_err(std::io::Error::from),
            State::Absent | State::Moved(_) => log_files::open_owned(&path, owner).map(|file| self.state = State::Pending(file)),
        };
        ready.map_err(|e| NotStarted { code: 126, why: format!("its output file {}: {e}", path.display()) })
    }

    fn is_pending_with_content(&self) -> bool {
        match &self.state {
            State::Pending(file) => !file.metadata().is_ok_and(|metadata| metadata.len() == 0),
            State::Absent | State::Moved(_) => false,
        }
    }

    /// Moves the file to the log files.
    fn move_to(&mut self, dir: &ShimDir, ordinal: u32) -> Result<(), String> {
        let path = dir.log(task_launch(ordinal), ordinal, self.stream);
        fs::rename(dir.task_output(self.stream), &path).map_err(|e| format!("its log file {}: {e}", path.display()))?;
        self.state = match std::mem::replace(&mut self.state, State::Absent) {
            State::Absent => State::Absent,
            State::Pending(file) | State::Moved(file) => State::Moved(file),
        };
        Ok(())
    }

    fn remove(&mut self, dir: &ShimDir) {
        if let State::Pending(_) = self.state {
            self.state = State::Absent;
            let _ = fs::remove_file(dir.task_output(self.stream));
        }
    }
}

impl TaskOutput {
    /// No file was made yet.
    pub fn new() -> Self {
        let absent = |stream| OutputFile { stream, state: State::Absent };
        Self { out: absent(LogStream::Out), err: absent(LogStream::Err), directory: None }
    }

    /// Empty files for the next task.
    pub fn begin(&mut self, dir: &ShimDir, owner: &Principal) -> Result<(), NotStarted> {
        self.out.begin(dir, owner)?;
        self.err.begin(dir, owner)
    }

    /// The files for standard output and error of the task; `None`: it has none.
    pub fn files(&self) -> Option<[&File; 2]> {
        Some([self.out.state.file()?, self.err.state.file()?])
    }

    /// Moves files to the log files of the task. Tries both, and returns the first error.
    pub fn move_to_logs(&mut self, dir: &ShimDir, ordinal: u32, which: Which) -> Result<(), String> {
        let (number, mut result) = (task_launch(ordinal), Ok(()));
        for file in [&mut self.out, &mut self.err] {
            let is_wanted = match which {
                Which::All => matches!(file.state, State::Pending(_)),
                Which::Written => file.is_pending_with_content(),
            };
            if !is_wanted {
                continue;
            }
            if self.directory != Some(number) {
                match log_files::create_directory(dir, number) {
                    Ok(()) => self.directory = Some(number),
                    Err(NotStarted { why, .. }) => {
                        result = result.and(Err(why));
                        continue;
                    }
                }
            }
            result = result.and(file.move_to(dir, ordinal));
        }
        result
    }

    /// The task has ended, and nothing of it is left that could write: its output becomes its log files. If that fails,
    /// its error log says so if possible, otherwise the shim's own log does.
    pub fn end(&mut self, dir: &ShimDir, ordinal: u32) {
        let Err(first) = self.move_to_logs(dir, ordinal, Which::Written) else { return };
        self.note(&format!("some of its output is lost: {first}"));
        if let Err(why) = self.move_to_logs(dir, ordinal, Which::Written) {
            log_line(&format!("output of task {ordinal} of the group is lost: {why}"));
        }
        for file in [&mut self.out, &mut self.err] {
            if file.is_pending_with_content() {
                file.remove(dir);
            }
        }
    }

    /// Writes to the task's log of errors why it did not start or was killed: its user looks there first.
    pub fn note(&self, why: &str) {
        let written = self.err.state.file().is_some_and(|mut file| writeln!(file, "lattice: {why}").is_ok());
        if !written {
            log_line(why);
        }
    }

    /// Removes the files that no task needs any more.
    pub fn remove(mut self, dir: &ShimDir) {
        self.out.remove(dir);
        self.err.remove(dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_dir(name: &str, test: impl FnOnce(&ShimDir, &Principal)) {
        let dir = ShimDir(std::env::temp_dir().join(format!("lattice-task-output-{name}-{}", std::process::id())));
        let _ = fs::remove_dir_all(&dir.0);
        fs::create_dir_all(dir.logs()).unwrap();
        let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        test(&dir, &Principal { name: "me".into(), uid, gid, groups: vec![] });
        fs::remove_dir_all(&dir.0).unwrap();
    }

    fn write(output: &TaskOutput, stream: usize, text: &str) {
        let mut file = output.files().unwrap()[stream];
        file.write_all(text.as_bytes()).unwrap();
    }

    fn logs(dir: &ShimDir) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for launch in fs::read_dir(dir.logs()).unwrap().flatten() {
            for file in fs::read_dir(launch.path()).unwrap().flatten() {
                let name = format!("{}/{}", launch.file_name().display(), file.file_name().display());
                found.push((name, fs::read_to_string(file.path()).unwrap()));
            }
        }
        found.sort();
        found
    }

    #[test]
    fn silent_tasks_make_no_files_and_others_only_those_they_write_to() {
        with_dir("silent", |dir, owner| {
            let mut output = TaskOutput::new();
            for ordinal in 0..3 {
                output.begin(dir, owner).unwrap();
                output.end(dir, ordinal);
            }
            assert_eq!(logs(dir), []);
            output.begin(dir, owner).unwrap();
            write(&output, 0, "hello");
            output.end(dir, 1003);
            output.begin(dir, owner).unwrap();
            output.note("why");
            output.end(dir, 4);
            let want = [("1/4.err", "lattice: why\n"), ("2/1003.out", "hello")];
            assert_eq!(logs(dir), want.map(|(name, text)| (name.to_owned(), text.to_owned())));
            output.begin(dir, owner).unwrap();
            output.remove(dir);
            assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 1, "the log files alone are left");
        });
    }

    #[test]
    fn a_task_that_runs_for_long_has_its_files_while_it_runs() {
        with_dir("long", |dir, owner| {
            let mut output = TaskOutput::new();
            output.begin(dir, owner).unwrap();
            output.move_to_logs(dir, 0, Which::All).unwrap();
            write(&output, 1, "late");
            output.end(dir, 0);
            let want = [("1/0.err", "late"), ("1/0.out", "")];
            assert_eq!(logs(dir), want.map(|(name, text)| (name.to_owned(), text.to_owned())));
        });
    }

    #[test]
    fn output_that_cannot_become_a_log_file_is_not_mixed_with_the_next_tasks() {
        with_dir("blocked", |dir, owner| {
            let mut output = TaskOutput::new();
            output.begin(dir, owner).unwrap();
            write(&output, 0, "lost");
            // A directory of this name has content, so no file can take its place.
            fs::create_dir_all(dir.log(1, 0, LogStream::Out).join("x")).unwrap();
            output.end(dir, 0);
            let err = fs::read_to_string(dir.log(1, 0, LogStream::Err)).unwrap();
            assert!(err.starts_with("lattice: some of its output is lost: its log file "), "{err}");
            fs::remove_dir_all(dir.log(1, 0, LogStream::Out)).unwrap();
            output.begin(dir, owner).unwrap();
            write(&output, 0, "next");
            output.end(dir, 1);
            assert_eq!(fs::read_to_string(dir.log(1, 1, LogStream::Out)).unwrap(), "next");
            assert!(!dir.log(1, 0, LogStream::Out).exists());
        });
    }
}
