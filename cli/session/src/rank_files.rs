//! Writes each rank's output to its own files (`lattice launch -o per-rank`).

use crate::failure::Failure;
use crate::label::Source;
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

/// `lattice-<allocation>-<launch>.<rank>.out` and `.err` in a directory. A file is made when a rank first writes, and
/// replaces the one of an earlier launch.
#[derive(Debug)]
pub struct RankFiles {
    dir: PathBuf,
    allocation: String,
    begun: BTreeSet<Source>,
}

impl RankFiles {
    /// In `dir`; `allocation` is the id in the form that people see.
    pub fn new(dir: &Path, allocation: &str) -> Self {
        Self { dir: dir.to_owned(), allocation: allocation.to_owned(), begun: BTreeSet::new() }
    }

    /// Writes a rank's output. The file is not kept open: there may be more ranks than a process may have open files.
    pub fn write(&mut self, source: &Source, data: &[u8]) -> Result<(), Failure> {
        let Source { launch, rank, stderr } = source;
        let path = self.dir.join(format!("lattice-{}-{launch}.{rank}.{}", self.allocation, if *stderr { "err" } else { "out" }));
        let is_new = self.begun.insert(source.clone());
        let file = OpenOptions::new().create(true).write(true).append(!is_new).truncate(is_new).open(&path);
        file.and_then(|mut file| file.write_all(data))
            .map_err(|error| Failure::other(format!("cannot write rank {rank}'s output to {}: {error}", path.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stream_has_a_file_of_its_own_and_an_old_one_is_written_over() {
        let dir = std::env::temp_dir().join(format!("lattice-rank-files-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = |name: &str| dir.join(format!("lattice-1f0c9a4e-2.{name}"));
        std::fs::write(path("0.out"), "of an earlier one").unwrap();
        let mut files = RankFiles::new(&dir, "1f0c9a4e");
        let source = |rank, stderr| Source { launch: 2, rank, stderr };
        for (rank, stderr, data) in [(0, false, &b"a\n"[..]), (1, true, b"x"), (0, false, b"\xff")] {
            files.write(&source(rank, stderr), data).unwrap();
        }
        assert_eq!(std::fs::read(path("0.out")).unwrap(), b"a\n\xff");
        assert_eq!(std::fs::read(path("1.err")).unwrap(), b"x");
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 2);
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(files.write(&source(3, false), b"").unwrap_err().text().contains("rank 3"));
    }
}
