//! The file with a user's logins: `tokens.json` beside `config.yaml`, for its owner alone. Whoever changes it holds the
//! lock, so that two commands do not use one refresh token at once: many providers end a login whose refresh token comes
//! twice.

use super::provider::Sends;
use crate::failure::{Exit, Failure};
use crate::message::write_message_line;
use crate::settings::user_dir;
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Largest size of the file, in bytes.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// How long another command may hold the lock: longer than its request to the provider takes.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between two tries to get the lock.
const LOCK_RETRY_DELAY: Duration = Duration::from_millis(50);

/// A login at one server.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Login {
    /// The identity provider.
    pub issuer: String,
    /// The name of `lattice` there.
    pub client_id: String,
    /// Where the provider gives new tokens.
    pub token_endpoint: String,
    /// Where it revokes tokens, if it can.
    pub revocation_endpoint: Option<String>,
    /// Which token agents get.
    pub sends: Sends,
    /// That token.
    pub token: String,
    /// When it expires; milliseconds since 1970.
    pub expires_at_ms: u64,
    /// The provider exchanges it for a new token.
    pub refresh_token: Option<String>,
}

/// The logins of a user, by the whole URL of the server.
pub type Logins = BTreeMap<String, Login>;

#[derive(Default, Serialize, Deserialize)]
struct Content {
    logins: Logins,
}

/// The file.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
}

/// The right to change the file, until it is dropped.
pub struct Lock {
    /// The kernel holds the lock for as long as the file is open.
    _file: File,
}

impl Store {
    /// The file of this user, which may not exist yet.
    pub fn of_user() -> Result<Self, Failure> {
        let directory = user_dir("XDG_CONFIG_HOME", ".config");
        let homeless = || {
            Failure::usage("there is no place for logins: neither HOME nor XDG_CONFIG_HOME is set")
                .hint("set HOME; a program gets a token in LATTICE_TOKEN instead")
        };
        Ok(Self { path: directory.ok_or_else(homeless)?.join("lattice/tokens.json") })
    }

    /// All logins. Takes away the rights of others to read the file, with a warning.
    pub fn read(&self) -> Result<Logins, Failure> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(Logins::new()),
            Err(error) => return Err(self.failure("cannot be read", &error)),
        };
        let metadata = file.metadata().map_err(|error| self.failure("cannot be read", &error))?;
        if metadata.uid() != geteuid().as_raw() {
            let text = format!("{} belongs to another user", self.path.display());
            return Err(Failure::new(Exit::Refused, text).hint("log in as the user whose logins you want to use"));
        }
        if metadata.mode() & 0o077 != 0 {
            file.set_permissions(Permissions::from_mode(0o600)).map_err(|error| self.failure("can be read by others", &error))?;
            let path = self.path.display();
            write_message_line(format_args!(
                "warning: others could read {path}: its mode is 0600 now. If they may have, log out (`lattice logout`) and in again"
            ));
        }
        let mut text = String::new();
        file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(|error| self.failure("cannot be read", &error))?;
        let content: Content = serde_json::from_str(&text).map_err(|error| {
            let text = format!("{} is damaged: {error}", self.path.display());
            Failure::other(text).hint("remove the file, and log in again: `lattice login`")
        })?;
        Ok(content.logins)
    }

    /// Waits for the lock.
    pub async fn lock(&self) -> Result<Lock, Failure> {
        let cannot = |error: &io::Error| self.failure("cannot be changed", error);
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(|error| cannot(&error))?;
        let lock = self.path.with_extension("lock");
        let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(lock).map_err(|error| cannot(&error))?;
        let deadline = Instant::now() + LOCK_TIMEOUT;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Lock { _file: file }),
                Err(TryLockError::Error(error)) => return Err(cannot(&error)),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => sleep(LOCK_RETRY_DELAY).await,
                Err(TryLockError::WouldBlock) => {
                    let text = format!("another `lattice` has been changing {} for {} s", self.path.display(), LOCK_TIMEOUT.as_secs());
                    return Err(Failure::new(Exit::Unavailable, text).hint("try again when it has ended"));
                }
            }
        }
    }

    /// Replaces all logins. A reader sees the old file or the new one.
    pub fn write(&self, _lock: &Lock, logins: Logins) -> Result<(), Failure> {
        let cannot = |error: io::Error| self.failure("cannot be written", &error);
        let text = serde_json::to_string_pretty(&Content { logins }).map_err(|error| cannot(error.into()))?;
        let fresh = self.path.with_extension("new");
        // A killed command may have left it.
        let _ = fs::remove_file(&fresh);
        let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&fresh).map_err(cannot)?;
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&fresh, &self.path));
        written.inspect_err(|_| drop(fs::remove_file(&fresh))).map_err(cannot)
    }

    fn failure(&self, what: &str, error: &io::Error) -> Failure {
        Failure::other(format!("{} {what}: {error}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Dir(PathBuf);

    impl Dir {
        fn new() -> Self {
            let dir = std::env::temp_dir().join(format!("lattice-tokens-{}", uuid::Uuid::new_v4()));
            Self(dir)
        }

        fn store(&self) -> Store {
            Store { path: self.0.join("lattice/tokens.json") }
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn login(token: &str) -> Login {
        Login {
            issuer: "https://idp".into(),
            client_id: "lattice".into(),
            token_endpoint: "https://idp/token".into(),
            revocation_endpoint: None,
            sends: Sends::IdToken,
            token: token.into(),
            expires_at_ms: 7,
            refresh_token: Some("r".into()),
        }
    }

    fn block<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn logins_are_stored_for_their_owner_alone() {
        let dir = Dir::new();
        let store = dir.store();
        assert!(store.read().unwrap().is_empty());
        let logins = Logins::from([("https://head:50051".to_owned(), login("a"))]);
        block(async { store.write(&store.lock().await.unwrap(), logins.clone()).unwrap() });
        assert!(store.read().unwrap() == logins);
        assert_eq!((mode(&store.path), mode(&dir.0.join("lattice"))), (0o600, 0o700));
        // Others got the right to read it: the next command takes it away.
        fs::set_permissions(&store.path, Permissions::from_mode(0o644)).unwrap();
        assert!(store.read().unwrap() == logins);
        assert_eq!(mode(&store.path), 0o600);
        let others: Vec<_> = fs::read_dir(dir.0.join("lattice")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(others.len(), 2, "the file and its lock: {others:?}");
    }

    #[test]
    fn a_damaged_file_is_refused_with_a_remedy() {
        let dir = Dir::new();
        let store = dir.store();
        fs::create_dir_all(dir.0.join("lattice")).unwrap();
        fs::write(&store.path, "{\"logins\": {").unwrap();
        let text = store.read().err().unwrap().text();
        assert!(text.contains("tokens.json is damaged") && text.contains("hint: remove the file"), "{text}");
    }

    #[test]
    fn only_one_command_at_a_time_has_the_lock() {
        let dir = Dir::new();
        let store = dir.store();
        block(async {
            let first = store.lock().await.unwrap();
            assert!(tokio::time::timeout(Duration::from_millis(200), store.lock()).await.is_err(), "a second lock");
            drop(first);
            store.lock().await.unwrap();
        });
    }
}
