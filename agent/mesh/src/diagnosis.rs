//! The wire form of a diagnosis of an allocation's work on a node.

use super::frame::FrameError;
use rkyv::{Archive, Deserialize, Serialize};

/// Processes that one node reports at most.
pub const PROCESSES_MAX: usize = 256;
/// Functions of one kernel stack at most; also notes about one process.
pub const STACK_MAX: usize = 32;
/// Facts that one node reports at most.
pub const FACTS_MAX: usize = 512;
/// GPUs that one node reports at most.
pub const GPUS_MAX: usize = 64;
const TEXT_BYTES_MAX: usize = 512;

/// A request for a diagnosis: the work, and the parts that are wanted.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct DiagnosisOpen {
    pub allocation: [u8; 16],
    pub epoch: u64,
    /// The user who asks; the calling agent vouches for them.
    pub uid: u32,
    pub user: String,
    pub processes: bool,
    pub stacks: bool,
    pub network: bool,
    pub storage: bool,
}

/// The answer to [`DiagnosisOpen`].
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub enum DiagnosisAnswer {
    Refused { why: String },
    Answered(WireDiagnosis),
}

/// The newest measurement of the GPUs that the work has on this node.
#[derive(Clone, Debug, Default, PartialEq, Archive, Serialize, Deserialize)]
pub struct DiagnosisGpus {
    /// How many of the GPU part's facts are from that measurement; they are its first ones.
    pub facts: u32,
    /// Age of that measurement.
    pub age_ms: u64,
    /// How busy each GPU is, 0 to 1.
    pub busy: Vec<(String, f64)>,
    pub source: String,
}

impl DiagnosisGpus {
    /// See [`WireDiagnosis::checked`].
    fn are_plain(&self) -> bool {
        let plain = |text: &String| text.len() <= TEXT_BYTES_MAX && !text.chars().any(char::is_control);
        self.busy.len() <= GPUS_MAX && plain(&self.source) && self.busy.iter().all(|(id, busy)| plain(id) && busy.is_finite())
    }
}

/// The findings of one node.
#[derive(Clone, Debug, Default, PartialEq, Archive, Serialize, Deserialize)]
pub struct WireDiagnosis {
    pub processes: Vec<WireProcess>,
    /// How many processes beyond [`PROCESSES_MAX`] are missing.
    pub omitted: u32,
    pub facts: Vec<WireFact>,
    /// Facts that were found before the request: index in `facts`, and age in milliseconds.
    pub ages: Vec<(u32, u64)>,
    pub gpus: DiagnosisGpus,
}

/// One process of the work.
#[derive(Clone, Debug, Default, PartialEq, Archive, Serialize, Deserialize)]
pub struct WireProcess {
    pub pid: i32,
    /// The launch's number; 0 is the script; `None`: the process belongs to an attached terminal.
    pub launch: Option<u32>,
    pub rank: Option<u32>,
    pub name: String,
    /// The kernel's state letter, of a thread in uninterruptible sleep if there is one, else of the
    /// first thread.
    pub state: String,
    pub threads: u32,
    /// The kernel function in which it waits; empty: none, or unknown.
    pub wchan: String,
    /// Time since the thread of `state` last ran.
    pub off_cpu_ms: Option<u64>,
    pub cpu_seconds: f64,
    pub memory_bytes: u64,
    pub open_files: Option<u64>,
    pub open_files_max: Option<u64>,
    /// Functions of the kernel stack, innermost first; names only.
    pub stack: Vec<String>,
    /// What is wrong or unknown about the process, for people.
    pub notes: Vec<String>,
}

/// One finding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct WireFact {
    /// `work`, `gpus`, `network` or `storage`.
    pub part: String,
    /// The subject within the part, such as an interface or a mount.
    pub subject: String,
    pub text: String,
    pub source: String,
    /// Whether the fact is a problem that somebody should look at.
    pub problem: bool,
}

impl WireDiagnosis {
    /// Checks the bounds and refuses control characters: the texts are printed on users' terminals.
    pub fn checked(self) -> Result<Self, FrameError> {
        let plain = |text: &String| text.len() <= TEXT_BYTES_MAX && !text.chars().any(char::is_control);
        let process = |p: &WireProcess| {
            let texts = [&p.name, &p.state, &p.wchan].into_iter().chain(&p.stack).chain(&p.notes);
            p.stack.len() <= STACK_MAX && p.notes.len() <= STACK_MAX && p.cpu_seconds.is_finite() && texts.into_iter().all(plain)
        };
        let fact = |f: &WireFact| [&f.part, &f.subject, &f.text, &f.source].into_iter().all(plain);
        let good = self.processes.len() <= PROCESSES_MAX
            && self.facts.len() <= FACTS_MAX
            && self.ages.len() <= FACTS_MAX
            && self.processes.iter().all(process)
            && self.facts.iter().all(fact)
            && self.gpus.are_plain();
        if good { Ok(self) } else { Err(FrameError::Malformed) }
    }
}

/// Makes a text acceptable to [`WireDiagnosis::checked`]: replaces control characters and cuts a
/// long text, because users choose the names of processes and mounts.
pub fn plain(text: &str) -> String {
    let mut plain: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    let mut end = plain.len().min(TEXT_BYTES_MAX);
    while !plain.is_char_boundary(end) {
        end -= 1;
    }
    plain.truncate(end);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_process_names_are_accepted_and_others_are_refused() {
        let process = |name: &str| WireProcess { name: name.into(), ..WireProcess::default() };
        let diagnosis = |processes: Vec<WireProcess>| WireDiagnosis { processes, ..WireDiagnosis::default() };
        for name in ["a\u{1b}[2J".to_owned(), "ü".repeat(600)] {
            assert!(diagnosis(vec![process(&name)]).checked().is_err());
            assert!(diagnosis(vec![process(&plain(&name))]).checked().is_ok());
        }
        assert!(diagnosis(vec![process("a"); PROCESSES_MAX + 1]).checked().is_err());
    }
}
