//! `@last`: the id of this user's last submission in this terminal session to these agents. It is the target of a
//! symlink in `$XDG_STATE_HOME/lattice/submissions`; the symlink's name identifies user, session and agent. It is no
//! file, because ext4 writes the blocks of a file that replaces another at once, and a launch would wait for that.

use crate::failure::{Exit, Failure};
use crate::settings::user_dir;
use lattice_model::AllocationId;
use nix::unistd::{geteuid, getsid};
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use thiserror::Error;

/// Submissions that are remembered, of all sessions and agents together.
const REMEMBERED_MAX: usize = 100;

fn directory() -> Option<PathBuf> {
    Some(user_dir("XDG_STATE_HOME", ".local/state")?.join("lattice/submissions"))
}

/// The terminal session. The leader's process id alone may be reused later, or on another machine.
fn terminal_session() -> String {
    let leader = getsid(None).map_or(0, nix::unistd::Pid::as_raw);
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let started = fs::read_to_string(format!("/proc/{leader}/stat")).ok().and_then(|stat| start_time(&stat)).unwrap_or_default();
    format!("{}-{}-{leader}-{started}", geteuid().as_raw(), boot.split('-').next().unwrap_or_default().trim())
}

/// Start time of a process, in clock ticks since boot, from its `stat`: its name, in parentheses, may contain anything.
fn start_time(stat: &str) -> Option<String> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    // proc_pid_stat(5): field 22; the name is field 2.
    behind_name.split_whitespace().nth(19).map(str::to_owned)
}

/// FNV-1a: the same in every version of this program, and short enough for a file name.
fn fingerprint(text: &str) -> String {
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}

fn entry_name(session: &str, endpoint: &str) -> String {
    format!("{session}-{}", fingerprint(endpoint))
}

/// Why an id is not stored.
#[derive(Debug, Error)]
pub enum RememberError {
    #[error("neither HOME nor XDG_STATE_HOME is set")]
    NoDirectory,
    // It is shown on one line, so the cause is in the text.
    #[error("{}: {error}", .directory.display())]
    Write { directory: PathBuf, error: io::Error },
}

/// Stores `id`, which the agent at `endpoint` accepted. A reader sees the old id or the new one, never a part of it.
pub fn remember(endpoint: &str, id: &str) -> Result<(), RememberError> {
    let directory = directory().ok_or(RememberError::NoDirectory)?;
    remember_in(&directory, &terminal_session(), endpoint, id).map_err(|error| RememberError::Write { directory, error })
}

fn remember_in(directory: &Path, session: &str, endpoint: &str, id: &str) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let path = directory.join(entry_name(session, endpoint));
    let fresh = path.with_extension(format!("{}.new", std::process::id()));
    let _ = fs::remove_file(&fresh);
    symlink(id, &fresh).and_then(|()| fs::rename(&fresh, &path)).inspect_err(|_| drop(fs::remove_file(&fresh)))?;
    forget_oldest(directory)
}

/// Removes the oldest entries beyond [`REMEMBERED_MAX`], because nothing reports the end of a session.
fn forget_oldest(directory: &Path) -> io::Result<()> {
    let mut entries: Vec<(SystemTime, PathBuf)> = fs::read_dir(directory)?
        .filter_map(Result::ok)
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    if entries.len() > REMEMBERED_MAX {
        entries.sort_unstable();
        let surplus = entries.len() - REMEMBERED_MAX;
        // Another process may have removed the same entry just now.
        entries.iter().take(surplus).for_each(|(_, path)| drop(fs::remove_file(path)));
    }
    Ok(())
}

/// The key to send to one of these agents: `typed`, in which `@last` is the id of this terminal session's last submission
/// to them; it may be followed by the number of a replica, as in `@last[3]`.
pub fn resolve(typed: &str, endpoints: &[String]) -> Result<String, Failure> {
    match typed.strip_prefix("@last") {
        Some(replica) if replica.is_empty() || replica.starts_with('[') => Ok(recall(endpoints)? + replica),
        Some(_) | None => Ok(typed.to_owned()),
    }
}

/// The newest id that this terminal session stored for one of these agents.
fn recall(endpoints: &[String]) -> Result<String, Failure> {
    let kept = directory().and_then(|directory| recall_in(&directory, &terminal_session(), endpoints));
    kept.ok_or_else(|| {
        let through = endpoints.join(", ");
        Failure::new(Exit::NotFound, format!("@last: nothing was submitted from this terminal session through {through} yet"))
            .hint("`lattice status` lists your allocations")
    })
}

fn recall_in(directory: &Path, session: &str, endpoints: &[String]) -> Option<String> {
    let kept = |endpoint: &String| {
        let path = directory.join(entry_name(session, endpoint));
        let id = fs::read_link(&path).ok()?.to_string_lossy().parse::<AllocationId>().ok()?;
        Some((fs::symlink_metadata(&path).ok()?.modified().ok()?, id.to_string()))
    };
    endpoints.iter().filter_map(kept).max().map(|(_, id)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Dir(PathBuf);

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn id(n: u32) -> String {
        format!("00000000-0000-4000-8000-{n:012x}")
    }

    #[test]
    fn each_session_and_each_agent_has_its_own_last_submission() {
        let dir = Dir(std::env::temp_dir().join(format!("lattice-last-{}", uuid::Uuid::new_v4())));
        let of =
            |session: &str, endpoints: &[&str]| recall_in(&dir.0, session, &endpoints.iter().map(|e| (*e).to_owned()).collect::<Vec<_>>());
        assert_eq!(of("a", &["unix:/1"]), None);
        remember_in(&dir.0, "a", "unix:/1", &id(1)).unwrap();
        remember_in(&dir.0, "b", "unix:/1", &id(2)).unwrap();
        remember_in(&dir.0, "a", "unix:/2", &id(3)).unwrap();
        assert_eq!((of("a", &["unix:/1"]), of("b", &["unix:/1"]), of("a", &["unix:/2"])), (Some(id(1)), Some(id(2)), Some(id(3))));
        assert_eq!(of("b", &["unix:/2"]), None, "what another session submitted is not this one's");
        assert_eq!(of("a", &["unix:/1", "unix:/2"]), Some(id(3)), "the newest of the agents that are asked");
        remember_in(&dir.0, "a", "unix:/1", &id(4)).unwrap();
        assert_eq!(of("a", &["unix:/1"]), Some(id(4)));
        symlink("no id", dir.0.join(entry_name("c", "unix:/1"))).unwrap();
        assert_eq!(of("c", &["unix:/1"]), None);
    }

    #[test]
    fn only_the_whole_name_is_replaced() {
        for key in ["1f0c", "1f0c[3]", "@lastly", "@las", ""] {
            assert_eq!(resolve(key, &[]).ok().as_deref(), Some(key));
        }
        for last in ["@last", "@last[3]"] {
            assert_eq!(resolve(last, &[]).unwrap_err().exit(), Exit::NotFound as u8, "{last}: there are no agents");
        }
    }

    #[test]
    fn the_number_of_remembered_submissions_is_bounded() {
        let dir = Dir(std::env::temp_dir().join(format!("lattice-last-{}", uuid::Uuid::new_v4())));
        for n in 0..u32::try_from(REMEMBERED_MAX).unwrap() + 5 {
            remember_in(&dir.0, &format!("s{n}"), "unix:/1", &id(n)).unwrap();
        }
        assert_eq!(fs::read_dir(&dir.0).unwrap().count(), REMEMBERED_MAX);
    }

    #[test]
    fn the_start_time_of_a_process_is_the_22nd_field() {
        let stat = "12 (a) b (c)) S 1 12 12 34816 12 4194304 1 0 0 0 0 0 0 0 20 0 1 0 987654 1 2";
        assert_eq!(start_time(stat).as_deref(), Some("987654"));
        assert_eq!(start_time("12 (a"), None);
        assert!(terminal_session().split('-').count() >= 4);
    }
}
