//! Validation of applications' messages about checkpoints, for calls in both directions: to their
//! agent and from it.

use super::directory::{Answer, Claims, Listed, is_blake3, reason};
use super::simulated::{NoTime, SimulatedTime};
use lattice_api::v1;
use lattice_node::Progress;
use thiserror::Error;

/// Longest deferral and longest announced duration, in milliseconds; larger values are cut, because
/// more is never granted.
const TIME_MS_MAX: u64 = 24 * 60 * 60 * 1000;

/// Largest size of one message, in bytes. The files that it lists become an answer file, which has
/// at most 64 KiB.
pub const MESSAGE_BYTES_MAX: usize = 128 * 1024;
/// Most files that fit into an answer file of 64 KiB: a line has at least 11 bytes.
const FILES_MAX: usize = 64 * 1024 / 11;

/// Why a message of an application is refused.
#[derive(Debug, Error)]
pub enum AppMessageError {
    #[error("percent is {0}, and must be 0 to 100")]
    Percent(u32),
    #[error("the names of its files have more than 64 KiB: give the number of files and bytes instead, or pack them with tar")]
    TooManyFiles,
    #[error(transparent)]
    Time(#[from] NoTime),
    #[error("{path:?}: a path with these characters cannot be listed: report the number of files and bytes instead")]
    PathCharacters { path: String },
    #[error("{path:?}: its BLAKE3 has to be 64 hexadecimal digits")]
    Blake3 { path: String },
    #[error("file {path:?} is listed twice")]
    ListedTwice { path: String },
}

/// The application's progress.
///
/// # Errors
/// A value out of range.
pub fn progress(message: &v1::SaveProgress) -> Result<Progress, AppMessageError> {
    let percent = message.percent.map(|percent| u8::try_from(percent).ok().filter(|percent| *percent <= 100).ok_or(percent)).transpose();
    let percent = percent.map_err(AppMessageError::Percent)?;
    Ok(Progress { percent, left_ms: message.left_ms.map(|left| left.min(TIME_MS_MAX)) })
}

/// The application wants to be asked again later.
pub fn deferral(message: &v1::SaveDeferral) -> Answer {
    Answer::Deferred { for_ms: message.for_ms.min(TIME_MS_MAX) }
}

/// The application cannot save.
pub fn failure(message: &v1::SaveFailure) -> Answer {
    Answer::Failed { why: reason(&message.why) }
}

/// The application has saved; with its claims about the files.
///
/// # Errors
/// A value out of range, or an unusable path.
pub fn done(message: v1::SaveDone) -> Result<Answer, AppMessageError> {
    let v1::SaveDone { token: _, step, files, bytes, list, time_seconds } = message;
    if list.len() > FILES_MAX {
        return Err(AppMessageError::TooManyFiles);
    }
    let time = time_seconds.map(SimulatedTime::try_from).transpose()?;
    let mut claims = Claims { step, time, files, bytes, ..Claims::default() };
    for v1::SavedFile { path, bytes, blake3 } in list {
        let short = || path.chars().take(80).collect::<String>();
        // Paths become lines of a file.
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
