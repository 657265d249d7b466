//! `steps.jsonl`: the steps of an allocation, beside its output on its head. A line for each event.
//!
//! ```text
//!   head of a launch ── began, ended ──▶ steps.jsonl ── at the allocation's end ──▶ LogStore: steps/<epoch>.jsonl
//! ```
//!
//! The file survives the agent and is bounded: above [`FILE_BYTES_MAX`] it is replaced by what its events add
//! up to. Lines are not synced one by one, because a launch must not wait for the disk: after a power failure the
//! newest may be missing, and the allocation is lost as well. It is kept as long as the output, and not in the
//! ledger, which would have to hold the steps of all work that has ended.

use lattice_model::{JobStepEvent, JobSteps};
use lattice_runtime::shim::ShimDir;
use parking_lot::Mutex;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// The size at which the file is replaced by a shorter one, in bytes. The longest list of steps is shorter.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The file of one allocation, for those who write to it. All clones write one after another.
#[derive(Clone, Debug)]
pub struct StepFile {
    dir: ShimDir,
    writing: Arc<Mutex<()>>,
}

impl StepFile {
    /// The file in this directory, which need not exist.
    pub fn new(dir: ShimDir) -> Self {
        Self { dir, writing: Arc::default() }
    }

    /// Adds an event. Blocks.
    ///
    /// # Errors
    /// The file cannot be written. Where the allocation's directory has been removed, nothing is written.
    pub fn append(&self, event: &JobStepEvent) -> io::Result<()> {
        let mut line = line(event)?;
        let _one = self.writing.lock();
        let mut file = match OpenOptions::new().create(true).read(true).append(true).open(self.dir.steps()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened?,
        };
        let length = file.metadata()?.len();
        if !ends_with_line(&file, length)? {
            line.insert(0, b'\n');
        }
        if let Err(error) = file.write_all(&line) {
            // A line cut by a full disk would make the next line unreadable as well.
            let _ = file.set_len(length);
            return Err(error);
        }
        if length + line.len() as u64 > FILE_BYTES_MAX { self.shorten() } else { Ok(()) }
    }

    /// Replaces the file by what its events add up to.
    fn shorten(&self) -> io::Result<()> {
        let lines = encode(&read(&self.dir)?)?;
        let (path, new) = (self.dir.steps(), self.dir.steps().with_extension("new"));
        fs::write(&new, lines)?;
        fs::rename(new, path)
    }
}

/// Whether a line that is appended begins behind a whole one. An agent that is killed may leave the beginning of one.
fn ends_with_line(file: &File, length: u64) -> io::Result<bool> {
    let Some(last) = length.checked_sub(1) else { return Ok(true) };
    let mut byte = [0];
    file.read_exact_at(&mut byte, last)?;
    Ok(byte == [b'\n'])
}

fn line(event: &JobStepEvent) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    Ok(line)
}

/// The steps in this directory; none if no launch began. Blocks.
///
/// # Errors
/// The file exists and cannot be read. A damaged line is left out: a full disk may have cut it.
pub fn read(dir: &ShimDir) -> io::Result<JobSteps> {
    let bytes = match fs::read(dir.steps()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(JobSteps::default()),
        read => read?,
    };
    Ok(decode(&bytes))
}

/// The steps of a file's lines.
pub fn decode(bytes: &[u8]) -> JobSteps {
    let mut steps = JobSteps::default();
    let events = bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<JobStepEvent>(line).ok());
    events.for_each(|event| steps.apply(event));
    steps
}

/// The lines of these steps.
///
/// # Errors
/// They cannot be encoded.
pub fn encode(steps: &JobSteps) -> io::Result<Vec<u8>> {
    Ok(steps.events().map(|event| line(&event)).collect::<io::Result<Vec<_>>>()?.concat())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::{EndReason, JobStep, JobStepEnd, LaunchId, Timestamp};
    use std::path::PathBuf;

    fn began(launch_number: u32) -> JobStepEvent {
        JobStepEvent::Began(JobStep {
            launch_number,
            launch: LaunchId(uuid::Uuid::from_u128(launch_number.into())),
            name: "a".repeat(64),
            ranks: 1,
            nodes: "n".repeat(500),
            node_count: 1,
            began_at: Timestamp(1),
            end: None,
        })
    }

    fn ended(launch_number: u32) -> JobStepEvent {
        JobStepEvent::Ended { launch_number, end: JobStepEnd::of(&EndReason::Exited { code: 0 }, 0, Timestamp(2)) }
    }

    fn dir(name: &str) -> ShimDir {
        let path: PathBuf = std::env::temp_dir().join(format!("lattice-steps-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        ShimDir(path)
    }

    #[test]
    fn events_add_up_and_a_cut_line_is_left_out() {
        let dir = dir("add");
        assert_eq!(read(&dir).unwrap(), JobSteps::default());
        let file = StepFile::new(dir.clone());
        for event in [began(1), began(2), ended(1)] {
            file.append(&event).unwrap();
        }
        let known = read(&dir).unwrap();
        assert_eq!((known.totals().begun, known.totals().completed), (2, 1));
        assert_eq!(decode(&encode(&known).unwrap()), known);
        let bytes = fs::read(dir.steps()).unwrap();
        fs::write(dir.steps(), &bytes[..bytes.len() - 5]).unwrap();
        assert_eq!(read(&dir).unwrap().totals().completed, 0);
        // The agent that was killed in the middle of a line runs again.
        StepFile::new(dir.clone()).append(&ended(2)).unwrap();
        let known = read(&dir).unwrap();
        assert_eq!(known.steps.iter().map(|step| step.end.is_some()).collect::<Vec<_>>(), [false, true]);
        fs::remove_dir_all(&dir.0).unwrap();
        file.append(&began(3)).unwrap();
        assert!(!dir.0.exists(), "what was removed is not made again");
    }

    #[test]
    fn a_long_file_is_replaced_by_a_shorter_one() {
        let dir = dir("long");
        let file = StepFile::new(dir.clone());
        let count = u32::try_from(FILE_BYTES_MAX / 600).unwrap();
        for number in 1..=count {
            file.append(&began(number)).unwrap();
            file.append(&ended(number)).unwrap();
        }
        assert!(fs::metadata(dir.steps()).unwrap().len() <= FILE_BYTES_MAX);
        let totals = read(&dir).unwrap().totals();
        assert_eq!((totals.begun, totals.completed), (count.into(), count.into()));
        fs::remove_dir_all(&dir.0).unwrap();
    }
}
