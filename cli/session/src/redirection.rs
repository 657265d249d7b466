//! Where `srun` writes the output of ranks: to its own output, to files, or nowhere (`srun -o` and `-e`).

use crate::failure::Failure;
use crate::label::{Labeller, Marks, Source};
use lattice_api::v1;
use lattice_model::Timestamp;
use lattice_slurm::file_name::{FileName, JobValues, RankValues};
use lattice_slurm::job_id::step_of_launch;
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

/// Where one of the two streams of all ranks goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// To the same stream of this process.
    Own,
    /// Nowhere.
    Nowhere,
    /// The output of one rank to the same stream of this process, the output of the others nowhere.
    Rank(u32),
    /// To files.
    File(FileName),
}

impl Target {
    /// What `all`, `none`, a rank or a name stands for.
    pub fn parse(text: &str) -> Self {
        match text {
            "all" => Self::Own,
            "none" => Self::Nowhere,
            text => text.parse::<u32>().map_or_else(|_| Self::File(FileName::parse(text)), Self::Rank),
        }
    }

    fn file(&self) -> Option<&FileName> {
        match self {
            Self::File(name) => Some(name),
            Self::Own | Self::Nowhere | Self::Rank(_) => None,
        }
    }
}

/// Where a chunk goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// To this process's own streams.
    Own,
    Nowhere,
    File,
}

/// The targets of both streams, and the files that were begun. Relative names begin at `dir`.
#[derive(Debug)]
pub struct Redirection {
    stdout: Target,
    stderr: Target,
    append: bool,
    dir: PathBuf,
    job: JobValues,
    /// For files that several ranks share, if lines begin with their rank.
    labeller: Option<Labeller>,
    begun: BTreeSet<PathBuf>,
    /// The number of the launch, once it is known.
    launch: Option<u32>,
}

impl Redirection {
    /// `append`: keeps the contents of files that exist. `label`: lines in files that ranks share begin with their rank.
    pub fn new(stdout: Target, stderr: Target, append: bool, label: bool, dir: PathBuf, job: JobValues) -> Self {
        let labeller = label.then(|| Labeller::new(Marks { time: false, rank: true }));
        Self { stdout, stderr, append, dir, job, labeller, begun: BTreeSet::new(), launch: None }
    }

    /// Sets the number of the launch.
    pub fn set_launch(&mut self, number: u32) {
        self.launch = Some(number);
    }

    /// Whether a file's name has this property.
    fn has(&self, property: fn(&FileName) -> bool) -> bool {
        [&self.stdout, &self.stderr].into_iter().filter_map(|target| target.file()).any(property)
    }

    /// Whether the job's number is needed and not known yet.
    pub fn lacks_number(&self) -> bool {
        self.job.number == 0 && self.has(FileName::needs_number)
    }

    /// Whether the job's name is needed and not known yet.
    pub fn lacks_job_name(&self) -> bool {
        self.job.name.is_empty() && self.has(FileName::needs_job_name)
    }

    /// Whether the job's nodes are needed and not known yet.
    pub fn lacks_nodes(&self) -> bool {
        self.job.nodes.is_empty() && self.has(FileName::needs_nodes)
    }

    /// The values of the job, to complete them.
    pub fn job_mut(&mut self) -> &mut JobValues {
        &mut self.job
    }

    fn target(&self, stderr: bool) -> &Target {
        if stderr { &self.stderr } else { &self.stdout }
    }

    /// Where output of this rank goes.
    pub fn route(&self, source: &Source) -> Route {
        match self.target(source.stderr) {
            Target::Own => Route::Own,
            Target::Nowhere => Route::Nowhere,
            Target::Rank(rank) if *rank == source.rank => Route::Own,
            Target::Rank(_) => Route::Nowhere,
            Target::File(_) => Route::File,
        }
    }

    /// Writes a chunk to its file.
    pub fn write(&mut self, source: &Source, chunk: &v1::LogChunk) -> Result<(), Failure> {
        let Some(name) = self.target(source.stderr).file() else { return Ok(()) };
        let shared = !name.is_split();
        let path = self.path(name, source.launch, source.rank, &chunk.node);
        match self.labeller.as_mut().filter(|_| shared) {
            Some(labeller) => {
                let lines = labeller.feed(source, Timestamp(chunk.written_ms), &chunk.data);
                self.append_to(path, &lines)
            }
            None => self.append_to(path, &chunk.data),
        }
    }

    fn path(&self, name: &FileName, launch: u32, rank: u32, node: &str) -> PathBuf {
        let step = step_of_launch(launch).unwrap_or_default();
        self.dir.join(name.resolve(&self.job, &RankValues { step, rank, node }))
    }

    /// The file is not kept open: there may be more ranks than a process may have open files.
    fn append_to(&mut self, path: PathBuf, data: &[u8]) -> Result<(), Failure> {
        let empties = !self.begun.contains(&path) && !self.append;
        let file = OpenOptions::new().create(true).write(true).append(!empties).truncate(empties).open(&path);
        file.and_then(|mut file| file.write_all(data))
            .map_err(|error| Failure::other(format!("cannot write the output to {}: {error}", path.display())))?;
        self.begun.insert(path);
        Ok(())
    }

    /// Makes the files of a rank that wrote nothing.
    pub fn touch(&mut self, rank: u32, node: &str) -> Result<(), Failure> {
        let launch = self.launch.unwrap_or(1);
        for stderr in [false, true] {
            let path = self.target(stderr).file().map(|name| self.path(name, launch, rank, node));
            if let Some(path) = path.filter(|path| !self.begun.contains(path)) {
                self.append_to(path, b"")?;
            }
        }
        Ok(())
    }

    /// Writes incomplete last lines, and makes the files to which no rank wrote, unless their names depend on a rank.
    pub fn finish(&mut self) -> Result<(), Failure> {
        let rest = self.labeller.as_mut().map(Labeller::finish).unwrap_or_default();
        for (stderr, rest) in [(false, rest.0), (true, rest.1)] {
            let known = |name: &&FileName| !name.is_split() && (!name.needs_step() || self.launch.is_some()) && !self.lacks_number();
            let whole = self.target(stderr).file().filter(known);
            let Some(path) = whole.map(|name| self.path(name, self.launch.unwrap_or(1), 0, "")) else { continue };
            if !rest.is_empty() || !self.begun.contains(&path) {
                self.append_to(path, &rest)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    struct Dir(PathBuf);

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn dir() -> Dir {
        let dir = std::env::temp_dir().join(format!("lattice-redirection-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }

    fn with(stdout: &str, stderr: &str, label: bool, dir: &Path) -> Redirection {
        let job = JobValues { number: 12, group: 12, ..Default::default() };
        Redirection::new(Target::parse(stdout), Target::parse(stderr), false, label, dir.to_owned(), job)
    }

    fn write(to: &mut Redirection, rank: u32, stderr: bool, data: &str) {
        let chunk = v1::LogChunk { node: "n1".into(), launch: 1, rank, stderr, data: data.into(), ..Default::default() };
        to.write(&Source { launch: 1, rank, stderr }, &chunk).unwrap();
    }

    #[test]
    fn a_word_or_a_number_is_no_file() {
        assert_eq!(["all", "none", "3"].map(Target::parse), [Target::Own, Target::Nowhere, Target::Rank(3)]);
        assert_eq!(Target::parse("./3"), Target::File(FileName::parse("./3")));
        let dir = dir();
        let to = with("2", "none", false, &dir.0);
        let route = |rank, stderr| to.route(&Source { launch: 1, rank, stderr });
        assert_eq!((route(2, false), route(1, false), route(2, true)), (Route::Own, Route::Nowhere, Route::Nowhere));
    }

    #[test]
    fn each_rank_has_its_file_and_an_old_one_is_emptied() {
        let dir = dir();
        let read = |name: &str| std::fs::read_to_string(dir.0.join(name)).unwrap();
        std::fs::write(dir.0.join("12_0.out"), "old").unwrap();
        let mut to = with("%j_%t.out", "%J.err", false, &dir.0);
        write(&mut to, 0, false, "a\n");
        write(&mut to, 0, false, "b\n");
        write(&mut to, 1, true, "e\n");
        to.set_launch(1);
        to.touch(1, "n1").unwrap();
        to.finish().unwrap();
        assert_eq!((read("12_0.out").as_str(), read("12_1.out").as_str(), read("12.0.err").as_str()), ("a\nb\n", "", "e\n"));
    }

    #[test]
    fn a_shared_file_has_labels_and_exists_without_output() {
        let dir = dir();
        let mut to = with("all.out", "all.err", true, &dir.0);
        write(&mut to, 1, false, "a\nb");
        to.finish().unwrap();
        let read = |name: &str| std::fs::read_to_string(dir.0.join(name)).unwrap();
        assert_eq!((read("all.out").as_str(), read("all.err").as_str()), ("1: a\n1: b\n", ""));
    }

    #[test]
    fn it_says_what_it_must_know() {
        let dir = dir();
        let mut to = with("%j-%x-%n", "all", false, &dir.0);
        to.job_mut().number = 0;
        assert_eq!((to.lacks_number(), to.lacks_job_name(), to.lacks_nodes()), (true, true, true));
        let plain = with("out", "err", false, &dir.0);
        assert_eq!((plain.lacks_number(), plain.lacks_job_name(), plain.lacks_nodes()), (false, false, false));
    }
}
