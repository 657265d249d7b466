//! The site's program that names the account of a person: it gets the token's claims on its standard input, as JSON, and
//! prints the account's name. It is asked only about tokens whose signature is right.
//!
//! ```text
//!   exit code 0, one name ──▶ the account         exit code ≠ 0 ──▶ refused, with the last line of standard error
//!   not started, killed, too slow, too long an answer ──▶ the account is unknown for now
//! ```

use crate::identified::Refused;
use crate::jwt::is_account_name;
use lattice_agent_common::config::oidc::OidcSettings;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{Pid, User, geteuid};
use serde_json::{Map, Value};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

/// Largest size of each of the program's outputs, in bytes.
const OUTPUT_BYTES_MAX: usize = 4096;
/// How many programs run at a time.
const RUNNING_MAX: usize = 4;
/// Longest text of the program that a caller gets, in characters.
const REASON_CHARS_MAX: usize = 200;

/// Why the program cannot be used.
#[derive(Debug, Error)]
pub enum AccountHookError {
    #[error("the file cannot be examined")]
    Inspect(#[source] io::Error),
    #[error("it is no executable file")]
    NoProgram,
    #[error("it does not belong to root, or others can write to it: `chown root` and `chmod go-w` it")]
    OthersWrite,
    #[error("others can change {0:?}, a folder above it: `chown root` and `chmod go-w` it")]
    Folder(PathBuf),
    #[error("api.oidc.account_hook_user: there is no user {0:?} on this machine")]
    NoUser(String),
    #[error("api.oidc.account_hook_user: user {0:?} cannot be looked up")]
    LookUp(String, #[source] nix::Error),
    #[error("api.oidc.account_hook_user: the program gets what people write, so it does not run as root: name another user")]
    Root,
}

/// Why a run has no result.
#[derive(Debug, Error)]
enum RunError {
    #[error(transparent)]
    File(#[from] AccountHookError),
    #[error("it cannot be started")]
    Start(#[source] io::Error),
    #[error("its exit code cannot be read")]
    Watch(#[source] io::Error),
    #[error("it took longer than {} s (api.oidc.account_hook_seconds) and was killed", .0.as_secs())]
    TooSlow(Duration),
    #[error("it was killed by signal {0}")]
    Killed(i32),
    #[error("it prints more than {OUTPUT_BYTES_MAX} bytes, or no name of an account")]
    Output,
}

/// The program, ready to run.
#[derive(Debug)]
pub(crate) struct AccountHook {
    program: PathBuf,
    limit: Duration,
    /// How long an answer counts.
    pub answer_time: Duration,
    /// The user id that must own the file.
    owner: u32,
    /// Its user and group; `None`: those of this process, which is not root.
    runs_as: Option<(u32, u32)>,
    running: Semaphore,
}

/// What a program printed and how it ended.
struct Done {
    output: Vec<u8>,
    errors: Vec<u8>,
    status: ExitStatus,
}

impl AccountHook {
    /// `settings`: must be valid. `None`: no program is configured.
    pub(crate) fn of(settings: &OidcSettings) -> Result<Option<Self>, AccountHookError> {
        Self::of_owner(settings, 0)
    }

    fn of_owner(settings: &OidcSettings, owner: u32) -> Result<Option<Self>, AccountHookError> {
        if settings.account_hook.as_os_str().is_empty() {
            return Ok(None);
        }
        let runs_as = if geteuid().is_root() { Some(ids_of(&settings.account_hook_user)?) } else { None };
        let hook = Self {
            program: settings.account_hook.clone(),
            limit: Duration::from_secs(settings.account_hook_seconds),
            answer_time: Duration::from_secs(settings.account_hook_cache_seconds),
            owner,
            runs_as,
            running: Semaphore::new(RUNNING_MAX),
        };
        hook.check_file()?;
        Ok(Some(hook))
    }

    /// Waits until the program may run once more, but no longer than one run may take.
    pub(crate) async fn turn(&self) -> Result<SemaphorePermit<'_>, Refused> {
        match timeout(self.limit, self.running.acquire()).await {
            Ok(Ok(turn)) => Ok(turn),
            Ok(Err(_)) | Err(_) => Err(self.unavailable(&"too many people are looked up at once")),
        }
    }

    /// The account of the person with these claims.
    pub(crate) async fn account(&self, claims: &Map<String, Value>) -> Result<String, Refused> {
        match self.run(claims).await {
            Ok(Done { output, status, .. }) if status.success() => {
                let name = String::from_utf8(output).unwrap_or_default().trim_end().to_owned();
                if is_account_name(&name) { Ok(name) } else { Err(self.unavailable(&RunError::Output)) }
            }
            Ok(Done { status, .. }) if status.signal().is_some() => {
                Err(self.unavailable(&RunError::Killed(status.signal().unwrap_or_default())))
            }
            Ok(Done { errors, .. }) => Err(Refused::ByHook(reason(&errors))),
            Err(error) => Err(self.unavailable(&lattice_model::with_causes(&error))),
        }
    }

    fn unavailable(&self, why: &dyn std::fmt::Display) -> Refused {
        let program = self.program.display();
        tracing::warn!(%program, "the program that names accounts gives no answer: {why}");
        Refused::Unavailable(format!("api.oidc.account_hook {program}: {why}"))
    }

    /// Before each run: a file that anybody but root could have changed must not name accounts.
    fn check_file(&self) -> Result<(), AccountHookError> {
        let about = self.program.metadata().map_err(AccountHookError::Inspect)?;
        if !about.is_file() || about.mode() & 0o111 == 0 {
            return Err(AccountHookError::NoProgram);
        }
        if about.uid() != self.owner || about.mode() & 0o022 != 0 {
            return Err(AccountHookError::OthersWrite);
        }
        self.check_folders()
    }

    /// Whoever can rename a folder or link on the path can put another program of root in its place, such as a shell.
    fn check_folders(&self) -> Result<(), AccountHookError> {
        let real = fs::canonicalize(&self.program).map_err(AccountHookError::Inspect)?;
        for path in self.program.ancestors().chain(real.ancestors()) {
            let about = path.symlink_metadata().map_err(AccountHookError::Inspect)?;
            let is_owned = about.uid() == 0 || about.uid() == self.owner;
            // In a sticky folder, others cannot rename root's files.
            let others_rename = about.is_dir() && about.mode() & 0o022 != 0 && about.mode() & 0o1000 == 0;
            if !is_owned || others_rename {
                return Err(AccountHookError::Folder(path.to_owned()));
            }
        }
        Ok(())
    }

    async fn run(&self, claims: &Map<String, Value>) -> Result<Done, RunError> {
        self.check_file()?;
        let mut child = self.command().spawn().map_err(RunError::Start)?;
        let input = Value::Object(claims.clone()).to_string();
        let conversed = timeout(self.limit, converse(&mut child, input)).await;
        match conversed {
            Ok(Ok(done)) if done.output.len() > OUTPUT_BYTES_MAX || done.errors.len() > OUTPUT_BYTES_MAX => Err(RunError::Output),
            Ok(done) => done.map_err(RunError::Watch),
            Err(_) => {
                // Kills its children, too. The program was not reaped yet, so the process id is still its own.
                if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
                    let _gone = killpg(Pid::from_raw(pid), Signal::SIGKILL);
                }
                Err(RunError::TooSlow(self.limit))
            }
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin").current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
        if let Some((uid, gid)) = self.runs_as {
            // This drops the supplementary groups of root, too.
            command.uid(uid).gid(gid);
        }
        command
    }
}

async fn converse(child: &mut Child, input: String) -> io::Result<Done> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let write = async move {
        if let Some(mut stdin) = stdin {
            // A program that reads no input may answer as well.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
    };
    let ((), output, errors, status) = tokio::join!(write, read(stdout), read(stderr), child.wait());
    Ok(Done { output: output?, errors: errors?, status: status? })
}

/// Reads to the end, or one byte more than an output may have.
async fn read(stream: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    if let Some(stream) = stream {
        stream.take(OUTPUT_BYTES_MAX as u64 + 1).read_to_end(&mut text).await?;
    }
    Ok(text)
}

/// The last line that the program printed, for people.
fn reason(errors: &[u8]) -> String {
    let text = String::from_utf8_lossy(errors);
    let last = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("no reason is given");
    last.chars().filter(|c| !c.is_control()).take(REASON_CHARS_MAX).collect()
}

fn ids_of(user: &str) -> Result<(u32, u32), AccountHookError> {
    let found = User::from_name(user).map_err(|error| AccountHookError::LookUp(user.to_owned(), error))?;
    let found = found.ok_or_else(|| AccountHookError::NoUser(user.to_owned()))?;
    if found.uid.is_root() {
        return Err(AccountHookError::Root);
    }
    Ok((found.uid.as_raw(), found.gid.as_raw()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_provider::settings;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::time::Instant;

    /// A folder with a program of this shell script.
    struct Script(PathBuf);

    impl Script {
        fn new(name: &str, body: &str) -> Self {
            let dir = std::env::temp_dir().join(format!("lattice-account-hook-{}-{name}", std::process::id()));
            fs::create_dir_all(&dir).unwrap();
            fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
            fs::write(dir.join("hook"), format!("#!/bin/sh\n{body}\n")).unwrap();
            let script = Self(dir);
            script.chmod(0o755);
            script
        }

        fn chmod(&self, mode: u32) {
            fs::set_permissions(self.0.join("hook"), fs::Permissions::from_mode(mode)).unwrap();
        }

        fn settings(&self) -> OidcSettings {
            OidcSettings { account_hook: self.0.join("hook"), account_hook_seconds: 2, ..settings() }
        }

        fn hook(&self) -> Result<AccountHook, AccountHookError> {
            AccountHook::of_owner(&self.settings(), geteuid().as_raw()).map(Option::unwrap)
        }
    }

    impl Drop for Script {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn claims() -> Map<String, Value> {
        [("sub".to_owned(), Value::from("s-1")), ("email".to_owned(), Value::from("alice@example.org"))].into_iter().collect()
    }

    #[tokio::test]
    async fn a_program_gets_the_claims_and_prints_the_account() {
        let script = Script::new("named", r#"case $(cat) in *'"sub":"s-1"'*) echo a-smith ;; *) exit 3 ;; esac"#);
        let hook = script.hook().unwrap();
        assert_eq!(hook.account(&claims()).await, Ok("a-smith".to_owned()));
        assert_eq!(hook.account(&Map::new()).await, Err(Refused::ByHook("no reason is given".to_owned())));
    }

    #[tokio::test]
    async fn a_refusal_has_the_last_line_of_what_it_printed() {
        let script = Script::new("refused", "echo alice; echo trace >&2; printf 'ask \\033the help desk\\n\\n' >&2; exit 1");
        assert_eq!(script.hook().unwrap().account(&claims()).await, Err(Refused::ByHook("ask the help desk".to_owned())));
    }

    #[tokio::test]
    async fn a_program_that_does_not_answer_refuses_nobody() {
        let unknown = async |name: &str, body: &str| {
            let script = Script::new(name, body);
            match script.hook().unwrap().account(&claims()).await {
                Err(Refused::Unavailable(why)) => why,
                other => panic!("{other:?}"),
            }
        };
        let began = Instant::now();
        assert!(unknown("slow", "sleep 60 & sleep 60").await.contains("took longer than 2 s"));
        assert!(began.elapsed() < Duration::from_secs(30));
        for (name, body) in [("long", "yes alice"), ("root", "echo root"), ("none", "true"), ("two", "echo a; echo b"), ("uid", "echo 7")] {
            assert!(unknown(name, body).await.contains("no name of an account"), "{name}");
        }
        assert!(unknown("killed", "kill -9 $$").await.contains("killed by signal 9"));
    }

    #[tokio::test]
    async fn a_program_that_others_can_change_names_nobody() {
        let script = Script::new("writable", "echo alice");
        let hook = script.hook().unwrap();
        script.chmod(0o775);
        let Err(Refused::Unavailable(why)) = hook.account(&claims()).await else { panic!("it ran") };
        assert!(why.contains("others can write to it"), "{why}");
        assert!(matches!(script.hook(), Err(AccountHookError::OthersWrite)));
        script.chmod(0o644);
        assert!(matches!(script.hook(), Err(AccountHookError::NoProgram)));
        script.chmod(0o755);
        let of_another = AccountHook::of_owner(&script.settings(), geteuid().as_raw() + 1);
        assert!(matches!(of_another, Err(AccountHookError::OthersWrite)));
        let missing = OidcSettings { account_hook: script.0.join("missing"), ..settings() };
        assert!(matches!(AccountHook::of(&missing), Err(AccountHookError::Inspect(_))));
        assert!(AccountHook::of(&settings()).unwrap().is_none());
    }

    #[test]
    fn a_folder_or_a_link_that_others_can_change_names_nobody() {
        let script = Script::new("folder", "echo alice");
        let chmod = |mode: u32| fs::set_permissions(&script.0, fs::Permissions::from_mode(mode)).unwrap();
        chmod(0o777);
        assert!(matches!(script.hook(), Err(AccountHookError::Folder(path)) if path == script.0));
        symlink(script.0.join("hook"), script.0.join("link")).unwrap();
        let linked = OidcSettings { account_hook: script.0.join("link"), ..script.settings() };
        let hook = || AccountHook::of_owner(&linked, geteuid().as_raw());
        assert!(matches!(hook(), Err(AccountHookError::Folder(_))));
        chmod(0o1777);
        assert!(hook().is_ok_and(|hook| hook.is_some()), "sticky");
        chmod(0o755);
        assert!(script.hook().is_ok());
    }

    #[test]
    fn it_never_runs_as_root() {
        assert!(matches!(ids_of("root"), Err(AccountHookError::Root)));
        assert!(matches!(ids_of("no-such-user-of-lattice"), Err(AccountHookError::NoUser(_))));
    }
}
