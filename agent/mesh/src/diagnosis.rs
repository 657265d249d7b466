//! What is the matter with an allocation's work on a node, on the wire.

use super::frame::FrameError;
use rkyv::{Archive, Deserialize, Serialize};

/// Processes that one node tells of.
pub const PROCESSES_MAX: usize = 256;
/// Calls of one kernel stack.
pub const STACK_MAX: usize = 32;
/// Facts that one node tells.
pub const FACTS_MAX: usize = 512;
/// GPUs that one node tells of.
pub const GPUS_MAX: usize = 64;
const TEXT_BYTES_MAX: usize = 512;

/// Whose work, and what is wanted of it.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct DiagnosisOpen {
    pub allocation: [u8; 16],
    pub epoch: u64,
    /// The user for whom the calling agent vouches.
    pub uid: u32,
    pub user: String,
    pub processes: bool,
    pub stacks: bool,
    pub network: bool,
    pub storage: bool,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Archive, Serialize, Deserialize)]
pub enum DiagnosisAnswer {
    Refused { why: String },
    Told(WireDiagnosis),
}

/// Of GPUs that the work has there, as they were at the newest look.
#[derive(Clone, Debug, Default, PartialEq, Archive, Serialize, Deserialize)]
pub struct DiagnosisGpus {
    /// How many of the facts about them are of that look, the first ones.
    pub facts: u32,
    /// How long ago that was.
    pub age_ms: u64,
    /// How busy each is, 0 to 1.
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

/// What one node finds.
#[derive(Clone, Debug, Default, PartialEq, Archive, Serialize, Deserialize)]
pub struct WireDiagnosis {
    pub processes: Vec<WireProcess>,
    /// Processes beyond [`PROCESSES_MAX`].
    pub left_out: u32,
    pub facts: Vec<WireFact>,
    /// Of facts that were looked at before somebody asked: which one, and how many milliseconds before.
    pub ages: Vec<(u32, u64)>,
    pub gpus: DiagnosisGpus,
}

/// One process of the work.
#[derive(Clone, Debug, Default, PartialEq, Archive, Serialize, Deserialize)]
pub struct WireProcess {
    pub pid: i32,
    /// 0 is the script; `None`: an attached terminal's.
    pub launch: Option<u32>,
    pub rank: Option<u32>,
    pub name: String,
    /// The kernel's letter, of its first thread or of one that waits uninterruptibly.
    pub state: String,
    pub threads: u32,
    /// What it waits for in the kernel; empty: nothing, or it cannot be told.
    pub waits_in: String,
    /// How long ago that thread last ran.
    pub still_ms: Option<u64>,
    pub cpu_seconds: f64,
    pub memory_bytes: u64,
    pub open_files: Option<u64>,
    pub open_files_max: Option<u64>,
    /// The kernel's calls, innermost first; names alone.
    pub stack: Vec<String>,
    /// What is wrong or cannot be told, for people.
    pub notes: Vec<String>,
}

/// Something that was found out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub struct WireFact {
    /// `work`, `gpus`, `network` or `storage`.
    pub part: String,
    /// Such as an interface or a mount.
    pub about: String,
    pub text: String,
    pub source: String,
    /// Whether somebody should look at it.
    pub wrong: bool,
}

impl WireDiagnosis {
    /// What a node can say; its words go to people's terminals.
    pub fn checked(self) -> Result<Self, FrameError> {
        let plain = |text: &String| text.len() <= TEXT_BYTES_MAX && !text.chars().any(char::is_control);
        let process = |p: &WireProcess| {
            let texts = [&p.name, &p.state, &p.waits_in].into_iter().chain(&p.stack).chain(&p.notes);
            p.stack.len() <= STACK_MAX && p.notes.len() <= STACK_MAX && p.cpu_seconds.is_finite() && texts.into_iter().all(plain)
        };
        let fact = |f: &WireFact| [&f.part, &f.about, &f.text, &f.source].into_iter().all(plain);
        let good = self.processes.len() <= PROCESSES_MAX
            && self.facts.len() <= FACTS_MAX
            && self.ages.len() <= FACTS_MAX
            && self.processes.iter().all(process)
            && self.facts.iter().all(fact)
            && self.gpus.are_plain();
        if good { Ok(self) } else { Err(FrameError::Malformed) }
    }
}

/// A text as [`WireDiagnosis::checked`] takes it: names of processes and mounts are whatever somebody called them.
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
    fn what_is_made_plain_is_taken_and_what_is_not_is_refused() {
        let process = |name: &str| WireProcess { name: name.into(), ..WireProcess::default() };
        let told = |processes: Vec<WireProcess>| WireDiagnosis { processes, ..WireDiagnosis::default() };
        for name in ["a\u{1b}[2J".to_owned(), "ü".repeat(600)] {
            assert!(told(vec![process(&name)]).checked().is_err());
            assert!(told(vec![process(&plain(&name))]).checked().is_ok());
        }
        assert!(told(vec![process("a"); PROCESSES_MAX + 1]).checked().is_err());
    }
}
