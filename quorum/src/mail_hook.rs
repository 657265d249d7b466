//! The site's mail hook: a program that gets each mail about an allocation, one after another.
//!
//! ```text
//!   record MailDue ──▶ PROGRAM TO EVENT, JSON on its standard input ──▶ 0: sent
//!                                                  ├──▶ 75, or it does not start: not now, the same mail again later
//!                                                  ├──▶ too slow: again, thirty times in total; then it is given up
//!                                                  └──▶ anything else: again, five times in total; then it is given up
//! ```
//!
//! Mail programs exit with 75 for a temporary failure. A mail that can never be sent, because its address does not exist
//! or the server never answers, must not delay other people's mails for ever.

use crate::fencing_hook::{ProgramError, run_with_input, site_command};
use lattice_ledger::MailNotice;
use lattice_model::{AuditRecord, Timestamp};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use thiserror::Error;

/// The exit code for a temporary failure: `EX_TEMPFAIL`.
const TEMPORARY: i32 = 75;
/// Number of tries after which a mail is given up.
const TRIES_MAX: u32 = 5;
/// The same for a program that takes too long: these tries and their pauses last more than half an hour.
const SLOW_TRIES_MAX: u32 = 30;

/// The user as whom the hook should run is not usable.
#[derive(Debug, Error)]
pub enum NoSuchUser {
    #[error("mail_hook_user: there is no user {0:?} on this machine")]
    Unknown(String),
    #[error("mail_hook_user: user {0:?} cannot be looked up")]
    LookUp(String, #[source] nix::Error),
    #[error("mail_hook_user: the hook gets what users write, so it does not run as root: name another user")]
    Root,
}

/// The hook, ready to run.
pub struct MailHook {
    program: PathBuf,
    /// `None`: as this process, which is not root.
    runs_as: Option<(u32, u32)>,
    limit: Duration,
}

/// A mail as the program gets it.
#[derive(Debug, Serialize)]
struct Mail<'a> {
    /// The program gets the same id when it gets the mail again.
    mail_id: String,
    cluster: &'a str,
    /// When the event happened.
    at: Timestamp,
    #[serde(flatten)]
    notice: &'a MailNotice,
}

impl MailHook {
    /// From the configuration.
    pub fn open(program: &Path, user: &str, limit: Duration) -> Result<Self, NoSuchUser> {
        let runs_as = if nix::unistd::geteuid().is_root() { Some(ids_of(user)?) } else { None };
        Ok(Self { program: program.to_owned(), runs_as, limit })
    }

    /// Gives the record's mail to the program. Returns at once if the record is not about a mail.
    pub async fn send(&self, cluster: &str, mail_id: String, record: &AuditRecord) -> Result<(), ProgramError> {
        let Some(notice) = MailNotice::of(record) else { return Ok(()) };
        let mail = Mail { mail_id, cluster, at: record.at, notice: &notice };
        let mut command = site_command(&self.program, cluster);
        command.arg(&notice.to).arg(&notice.event).env("LATTICE_MAIL_ID", &mail.mail_id).stdin(Stdio::piped());
        if let Some((uid, gid)) = self.runs_as {
            // This drops the supplementary groups of root, too.
            command.uid(uid).gid(gid);
        }
        let text = serde_json::to_vec(&mail).unwrap_or_default();
        run_with_input(command, text, self.limit, "mail_hook_seconds").await
    }
}

/// Whether a mail is given up after `tries` tries, the last one with this error.
pub fn is_given_up(error: &ProgramError, tries: u32) -> bool {
    match error {
        ProgramError::Start(_) | ProgramError::Wait(_) => false,
        ProgramError::Timeout { .. } => tries >= SLOW_TRIES_MAX,
        ProgramError::Exit(_) | ProgramError::ExitWithOutput { .. } => tries >= TRIES_MAX && error.exit_code() != Some(TEMPORARY),
    }
}

fn ids_of(user: &str) -> Result<(u32, u32), NoSuchUser> {
    let found = nix::unistd::User::from_name(user).map_err(|error| NoSuchUser::LookUp(user.to_owned(), error))?;
    let found = found.ok_or_else(|| NoSuchUser::Unknown(user.to_owned()))?;
    if found.uid.is_root() {
        return Err(NoSuchUser::Root);
    }
    Ok((found.uid.as_raw(), found.gid.as_raw()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    #[test]
    fn a_mail_that_is_refused_is_given_up_and_one_that_cannot_be_sent_now_is_not() {
        let exits = |code: i32| ProgramError::Exit(ExitStatus::from_raw(code << 8));
        assert_eq!([4, 5, 6].map(|tries| is_given_up(&exits(1), tries)), [false, true, true]);
        assert!(!is_given_up(&exits(TEMPORARY), 500), "the mail server is away");
        let timeout = ProgramError::Timeout { limit: Duration::from_secs(1), setting: "mail_hook_seconds" };
        assert_eq!([5, 29, 30].map(|tries| is_given_up(&timeout, tries)), [false, false, true], "its server never answers");
        let killed = ProgramError::Exit(ExitStatus::from_raw(11));
        assert_eq!([4, 5].map(|tries| is_given_up(&killed, tries)), [false, true], "the program fails with this mail");
        let missing = ProgramError::Start(std::io::Error::from(std::io::ErrorKind::NotFound));
        assert!(!is_given_up(&missing, 500));
    }

    #[test]
    fn the_hook_never_runs_as_root() {
        assert!(matches!(ids_of("root"), Err(NoSuchUser::Root)));
        assert!(matches!(ids_of("no-such-user-of-lattice"), Err(NoSuchUser::Unknown(_))));
    }
}
