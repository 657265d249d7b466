//! Opens the node's state at the start, whatever is on the disk.
//!
//! | on the disk | action |
//! |---|---|
//! | nothing | begin; ask the shims that run here |
//! | a torn last record | cut it: nothing of it was acted on |
//! | damage elsewhere; a file missing, too short, or of an older version | move it aside, log its new name; begin from the shims |
//! | written by a newer version, or of another node | refuse it; with `--recover`, move it aside like a damaged one |
//!
//! After a restart of the machine, the journal is cut at the first invalid record, wherever that
//! is: any unsynced page may be missing then, and the work does not outlive the restart.
//!
//! The shims know enough to continue: each has its allocation's share in its `shim.json`, and
//! reports its launches and ends. The allocations in a damaged state are not used, because its
//! unreadable part may have ended them. At the next registration the agent reports to the quorum
//! what it found. The quorum treats everything else of this node as lost, so that nothing is begun
//! twice. Without the quorum the found work continues.

use crate::journal::{JournalError, Opened, Salvaged, StateDir, life_after};
use lattice_model::{AllocationId, Assignment, Boot, DesiredShare, Epoch, NodeId, with_causes};
use lattice_node::{Brain, Local, Phase};
use lattice_runtime::shim::{Decoder, FromShim, Living, PROTOCOL_MAJOR, ShimConfig, ShimDir, ToShim, connect_shim, encode};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use thiserror::Error;

/// What to do with a state that only an operator may discard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// Do not start.
    Refuse,
    /// The operator gave `--recover`: move it aside and begin from the shims.
    SetAside,
}

/// How long a shim may take to report everything.
const REPORT_WAIT: Duration = Duration::from_secs(1);

/// Opens the state, or begins anew from the shims that run here. Adds to `notes` what the operator
/// should know.
pub fn open(
    dir: &StateDir,
    state_dir: &Path,
    me: &NodeId,
    boot: Boot,
    unusable: Unusable,
    notes: &mut Vec<String>,
) -> Result<Opened, JournalError> {
    let why = match dir.open(me, boot) {
        Ok(Some(opened)) => return Ok(opened),
        Ok(None) => None,
        Err(error @ JournalError::Damaged { .. }) => Some(error),
        Err(error @ (JournalError::Newer { .. } | JournalError::ForeignNode { .. })) if unusable == Unusable::SetAside => Some(error),
        Err(error) => return Err(error),
    };
    let salvaged = dir.salvage(me);
    let found = look_for_shims(state_dir, me, boot);
    if let Some(why) = why {
        let kept = dir.set_aside()?;
        let note = describe(&why, &kept, &salvaged, &found);
        tracing::error!("{note}");
        notes.push(note);
    }
    for found in &found.unknown {
        let note = format!("{}: {}", found.dir.display(), found.why);
        tracing::error!("work that cannot be taken up again: {note}");
        notes.push(note);
    }
    let brain = Brain::recovered(me.clone(), salvaged.incarnation, found.locals, salvaged.outbox);
    let journal = dir.begin(&brain, boot, life_after(salvaged.life))?;
    Ok(Opened { journal, brain, same_boot: true, torn_bytes: 0 })
}

fn describe(why: &JournalError, kept: &[PathBuf], salvaged: &Salvaged, found: &Found) -> String {
    let paths: Vec<String> = kept.iter().map(|p| p.display().to_string()).collect();
    format!(
        "the node's state was not usable ({}). It is kept as {}. Begun anew from the shims: {} allocation(s) found, {} unsent \
         report(s) saved. What is not among them is reported lost. Remove the kept files when nobody needs them",
        with_causes(why),
        paths.join(" and "),
        found.locals.len(),
        salvaged.outbox.len()
    )
}

/// What the shims' directories contain.
#[derive(Debug, Default)]
struct Found {
    locals: Vec<Local>,
    unknown: Vec<Unknown>,
}

/// Work that was begun here and cannot continue, because its files are not enough.
#[derive(Debug)]
struct Unknown {
    dir: PathBuf,
    why: String,
}

fn look_for_shims(state_dir: &Path, me: &NodeId, boot: Boot) -> Found {
    let mut found = Found::default();
    for entry in fs::read_dir(state_dir.join("alloc")).into_iter().flatten().flatten() {
        let dir = ShimDir(entry.path());
        let text = match fs::read(dir.config()) {
            Ok(text) => text,
            // Only log files are left of it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                found.unknown.push(Unknown { dir: dir.0, why: format!("its shim.json cannot be read: {error}") });
                continue;
            }
        };
        match parse_config(&dir, &text, me) {
            Ok(Written { by_boot, share, assignment }) => {
                let phase = phase_of(&dir, &share, by_boot == Some(boot));
                found.locals.push(Local { share, phase, assignment });
            }
            Err(error) => found.unknown.push(Unknown { dir: dir.0, why: error.to_string() }),
        }
    }
    // Of two epochs of one allocation only the later can be wanted; the earlier is swept as a
    // stray.
    found.locals.sort_by_key(|l| (l.share.allocation, l.share.epoch));
    found.locals.reverse();
    found.locals.dedup_by_key(|l| l.share.allocation);
    found
}

/// What an agent stored with the shim for a later agent without a journal.
struct Written {
    by_boot: Option<Boot>,
    share: DesiredShare,
    assignment: Option<Assignment>,
}

/// Why work cannot continue from its shim.json.
#[derive(Debug, Error)]
enum UnusableConfig {
    #[error("its shim.json cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    #[error("it is of node {node}")]
    OfAnotherNode { node: String },
    #[error("its shim.json does not describe the allocation")]
    NoShare,
    #[error("its shim.json speaks of another allocation")]
    OfAnotherAllocation,
}

fn parse_config(dir: &ShimDir, text: &[u8], me: &NodeId) -> Result<Written, UnusableConfig> {
    let config: ShimConfig = serde_json::from_slice(text)?;
    if config.node != me.as_str() {
        return Err(UnusableConfig::OfAnotherNode { node: config.node });
    }
    let share = *config.share.ok_or(UnusableConfig::NoShare)?;
    let named = ShimDir::of(Path::new(""), share.allocation, share.epoch);
    let same = (share.allocation, share.epoch) == (config.allocation, config.epoch) && named.0.file_name() == dir.0.file_name();
    let assignment = config.assignment.map(|a| *a);
    same.then_some(Written { by_boot: config.boot, share, assignment }).ok_or(UnusableConfig::OfAnotherAllocation)
}

/// The phase of the work. A shim that gets a request again starts nothing twice. Work of a dead
/// shim ends as its `exits` file says, or as lost.
fn phase_of(dir: &ShimDir, share: &DesiredShare, same_boot: bool) -> Phase {
    if !same_boot {
        return Phase::Undoing;
    }
    match ask_shim(dir, share.allocation, share.epoch) {
        // It has not started: the other nodes may not be ready.
        Ok(ShimReport { going: false }) => Phase::Preparing,
        // If the shim cannot be reached now, the allocation's task retries, and finds out whether
        // it is dead or busy.
        Ok(ShimReport { going: true }) | Err(_) => Phase::Running,
    }
}

/// What a shim reports about itself.
struct ShimReport {
    going: bool,
}

fn ask_shim(dir: &ShimDir, allocation: AllocationId, epoch: Epoch) -> io::Result<ShimReport> {
    let mut stream = connect_shim(dir)?;
    Living::check(dir, None, &stream).map_err(io::Error::other)?;
    stream.write_all(&encode(&ToShim::Hello { protocol: PROTOCOL_MAJOR }).map_err(io::Error::other)?)?;
    let (until, mut report) = (Instant::now() + REPORT_WAIT, ShimReport { going: false });
    let mut decoder = Decoder::default();
    loop {
        while let Some(message) = decoder.next().map_err(io::Error::other)? {
            match message {
                FromShim::Hello { allocation: a, epoch: e, .. } if (a, e) != (allocation, epoch) => {
                    return Err(io::Error::other("another allocation's shim answers"));
                }
                FromShim::Going => report.going = true,
                FromShim::Synced => return Ok(report),
                _ => {}
            }
        }
        read_some(&mut stream, &mut decoder, until)?;
    }
}

fn read_some(stream: &mut UnixStream, decoder: &mut Decoder<FromShim>, until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    stream.set_read_timeout(Some(left))?;
    let mut chunk = vec![0; 16 * 1024];
    match stream.read(&mut chunk)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        n => {
            decoder.push(&chunk[..n]);
            Ok(())
        }
    }
}
