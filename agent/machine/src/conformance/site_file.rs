//! Reads a file of the site, with a timeout: it may be a pipe that nobody writes, or lie on a file
//! system that does not answer.
//!
//! A read that hangs in the kernel cannot be interrupted. It has a thread of its own, and no second
//! thread reads the same file until the first has ended.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::oneshot;

/// How many bytes of a file are read, to find its first line.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Why a file's content is unknown.
#[derive(Debug, Error)]
pub(super) enum SiteFileError {
    #[error("{}: {source}", .file.display())]
    Read { file: PathBuf, source: io::Error },
    #[error("{}: it could not be read within {limit_s} s: does its file system answer?", .file.display())]
    Hangs { file: PathBuf, limit_s: u64 },
}

/// The files that are being read.
#[derive(Debug, Default)]
pub(super) struct SiteFiles(Arc<Mutex<BTreeSet<PathBuf>>>);

impl SiteFiles {
    /// The first line of a file; `None`: there is no such file.
    pub async fn first_line(&self, file: &Path, limit: Duration) -> Result<Option<String>, SiteFileError> {
        self.first_line_by(file, limit, read).await
    }

    async fn first_line_by(
        &self,
        file: &Path,
        limit: Duration,
        read: impl FnOnce(&Path) -> io::Result<Vec<u8>> + Send + 'static,
    ) -> Result<Option<String>, SiteFileError> {
        let hangs = || SiteFileError::Hangs { file: file.to_owned(), limit_s: limit.as_secs() };
        let failed = |source| SiteFileError::Read { file: file.to_owned(), source };
        if !self.0.lock().insert(file.to_owned()) {
            return Err(hangs());
        }
        let (done, ended) = oneshot::channel();
        let (reading, path) = (Arc::clone(&self.0), file.to_owned());
        let thread = std::thread::Builder::new().name("site file".to_owned()).spawn(move || {
            let bytes = read(&path);
            reading.lock().remove(&path);
            // The look may have given up.
            let _ = done.send(bytes);
        });
        if let Err(source) = thread {
            self.0.lock().remove(file);
            return Err(failed(source));
        }
        match tokio::time::timeout(limit, ended).await {
            Ok(Ok(Ok(bytes))) => Ok(Some(String::from_utf8_lossy(&bytes).lines().next().unwrap_or_default().to_owned())),
            Ok(Ok(Err(error))) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Ok(Ok(Err(source))) => Err(failed(source)),
            Ok(Err(broke)) => Err(failed(io::Error::other(broke))),
            Err(_) => Err(hangs()),
        }
    }
}

/// Reads the beginning of a regular file. A pipe that nobody writes does not block the open.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::sync::mpsc;

    #[tokio::test]
    async fn a_file_that_hangs_is_reported_and_read_by_one_thread_until_it_answers() {
        let (files, path) = (SiteFiles::default(), PathBuf::from("/site/image"));
        let (answer, answers) = mpsc::channel::<()>();
        let limit = Duration::from_millis(10);
        let why = files.first_line_by(&path, limit, move |_| answers.recv().map(|()| b"6\n".to_vec()).map_err(io::Error::other)).await;
        assert!(why.unwrap_err().to_string().starts_with("/site/image: it could not be read within 0 s"));
        let again = files.first_line_by(&path, limit, |_| panic!("a second thread reads it")).await;
        assert!(matches!(again, Err(SiteFileError::Hangs { .. })));
        answer.send(()).unwrap();
        // The thread ends, and the next look reads the file again.
        while files.0.lock().contains(&path) {
            tokio::task::yield_now().await;
        }
        let limit = Duration::from_secs(60);
        assert_eq!(files.first_line_by(&path, limit, |_| Ok(b"7\nx".to_vec())).await.unwrap(), Some("7".to_owned()));
    }

    #[tokio::test]
    async fn only_regular_files_are_read() {
        let dir = std::env::temp_dir().join(format!("lattice-site-file-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (files, limit) = (SiteFiles::default(), Duration::from_secs(60));
        let pipe = dir.join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for odd in [&pipe, &dir] {
            let why = files.first_line(odd, limit).await.unwrap_err().to_string();
            assert!(why.ends_with("it is not a regular file"), "{why}");
        }
        assert_eq!(files.first_line(&dir.join("none"), limit).await.unwrap(), None);
        fs::write(dir.join("image"), "site 6\nmore\n").unwrap();
        assert_eq!(files.first_line(&dir.join("image"), limit).await.unwrap().as_deref(), Some("site 6"));
        fs::remove_dir_all(dir).unwrap();
    }
}
