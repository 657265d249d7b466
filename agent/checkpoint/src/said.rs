//! What applications say in calls, checked: the same whether they call their agent or it calls them.

use super::directory::{Answer, Claims, Listed, is_blake3, reason};
use super::simulated::{NoTime, SimulatedTime};
use lattice_api::v1;
use lattice_node::Progress;
use thiserror::Error;

/// The longest deferral that is written down, and the longest time that one says that it will take, in milliseconds: more is never granted.
const TIME_MS_MAX: u64 = 24 * 60 * 60 * 1000;

/// The most that is said in one message: the names of files have 64 KiB at most, their BLAKE3 among them.
pub const MESSAGE_BYTES_MAX: usize = 128 * 1024;
/// More files than have room in an answer: a line of it has 11 bytes at least.
const FILES_MAX: usize = 64 * 1024 / 11;

/// What is wrong with a message of an application.
#[derive(Debug, Error)]
pub enum AppMessageError {
    #[error("percent: {0}; 0 to 100 are possible")]
    Percent(u32),
    #[error("the names of its files have more than 64 KiB: tell how many files and bytes there are instead, or pack them, with tar")]
    TooManyFiles,
    #[error(transparent)]
    Time(#[from] NoTime),
    #[error("{path:?}: a path with these characters cannot be told: tell how many files and bytes there are instead")]
    PathCharacters { path: String },
    #[error("{path:?}: its BLAKE3 has to be 64 hexadecimal digits")]
    Blake3 { path: String },
    #[error("{path:?}: it is told twice")]
    ListedTwice { path: String },
}

/// How far it is.
///
/// # Errors
/// What it says that cannot be.
pub fn progress(said: &v1::SaveProgress) -> Result<Progress, AppMessageError> {
    let percent = said.percent.map(|percent| u8::try_from(percent).ok().filter(|percent| *percent <= 100).ok_or(percent)).transpose();
    let percent = percent.map_err(AppMessageError::Percent)?;
    Ok(Progress { percent, left_ms: said.left_ms.map(|left| left.min(TIME_MS_MAX)) })
}

/// It wants to be asked again later.
pub fn deferral(said: &v1::SaveDeferral) -> Answer {
    Answer::Deferred { for_ms: said.for_ms.min(TIME_MS_MAX) }
}

/// It cannot.
pub fn failure(said: &v1::SaveFailure) -> Answer {
    Answer::Failed { why: reason(&said.why) }
}

/// It has, with what it says of that.
///
/// # Errors
/// What it says that cannot be.
pub fn done(said: v1::SaveDone) -> Result<Answer, AppMessageError> {
    let v1::SaveDone { token: _, step, files, bytes, list, time_seconds } = said;
    if list.len() > FILES_MAX {
        return Err(AppMessageError::TooManyFiles);
    }
    let time = time_seconds.map(SimulatedTime::try_from).transpose()?;
    let mut claims = Claims { step, time, files, bytes, ..Claims::default() };
    for v1::SavedFile { path, bytes, blake3 } in list {
        let short = || path.chars().take(80).collect::<String>();
        // They are lines of a file.
        if path.is_empty() || path.trim() != path || path.chars().any(char::is_control) {
            return Err(AppMessageError::PathCharacters { path: short() });
        }
        if !blake3.is_empty() && !is_blake3(&blake3) {
            return Err(AppMessageError::Blake3 { path: short() });
        }
        let blake3 = (!blake3.is_empty()).then(|| blake3.to_ascii_lowercase());
        if claims.listed.insert(path.clone(), Listed { bytes, blake3 }).is_some() {
            return Err(AppMessageError::ListedTwice { path: short() });
        }
    }
    Ok(Answer::Done(claims))
}
