//! Where the output of ranks goes.

use crate::failure::Failure;
use crate::label::{Labeller, Marks, Source};
use crate::rank_files::RankFiles;
use crate::received::Received;
use crate::redirection::{Redirection, Route};
use crate::session::Session;
use lattice_api::v1;
use lattice_model::Timestamp;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;

/// Where ranks' output goes: stdout to stdout and stderr to stderr, or each to its own files.
#[derive(Debug)]
pub struct Screen {
    marks: Marks,
    labeller: Option<Labeller>,
    files: Option<RankFiles>,
    /// The files that `srun` was given.
    redirection: Option<Redirection>,
    received: Received,
}

impl Screen {
    /// Each line begins with these marks.
    pub fn new(marks: Marks) -> Self {
        let labeller = (marks != Marks::default()).then(|| Labeller::new(marks));
        Self { marks, labeller, files: None, redirection: None, received: Received::default() }
    }

    /// Each rank's output goes to its own files.
    pub fn per_rank(files: RankFiles) -> Self {
        Self { files: Some(files), ..Self::new(Marks::default()) }
    }

    /// Output goes into the files that `srun` was given.
    pub fn redirected(self, redirection: Option<Redirection>) -> Self {
        Self { redirection, ..self }
    }

    /// The files for output that `srun` was given, if any.
    pub fn redirection_mut(&mut self) -> Option<&mut Redirection> {
        self.redirection.as_mut()
    }

    /// Whether the names of files need the job's number, which is not known yet.
    pub fn lacks_number(&self) -> bool {
        self.redirection.as_ref().is_some_and(Redirection::lacks_number)
    }

    /// Whether the names of files need the order of the job's nodes, which is not known yet.
    pub fn lacks_nodes(&self) -> bool {
        self.redirection.as_ref().is_some_and(Redirection::lacks_nodes)
    }

    /// Shows a chunk.
    pub fn show(&mut self, session: &Session, chunk: &v1::LogChunk) -> Result<(), Failure> {
        if !chunk.notice.is_empty() {
            session.note(&if chunk.node.is_empty() { chunk.notice.clone() } else { format!("{}: {}", chunk.node, chunk.notice) });
        }
        let source = Source { launch: chunk.launch, rank: chunk.rank, stderr: chunk.stderr };
        self.received.record(chunk);
        if let Some(redirection) = &mut self.redirection {
            match redirection.route(&source) {
                Route::Own => {}
                Route::Nowhere => return Ok(()),
                Route::File if chunk.data.is_empty() => return Ok(()),
                Route::File => return redirection.write(&source, chunk),
            }
        }
        if let Some(files) = &mut self.files {
            return if chunk.data.is_empty() { Ok(()) } else { files.write(&source, &chunk.data) };
        }
        if self.marks.time && !chunk.data.is_empty() && chunk.written_ms == 0 {
            let text = format!("node {} does not report when its output was written: its agent is older than this program", chunk.node);
            return Err(Failure::other(text).hint("leave --timestamps out, or upgrade that agent"));
        }
        match &mut self.labeller {
            Some(labeller) => write(chunk.stderr, &labeller.feed(&source, Timestamp(chunk.written_ms), &chunk.data)),
            None => write(chunk.stderr, &chunk.data),
        }
    }

    /// The positions up to which output was shown, for a request on a new connection.
    pub fn positions(&self) -> Vec<v1::Received> {
        self.received.positions()
    }

    /// The request for a new connection: it continues after what was shown. `tail` is only for the first request.
    pub fn continued_request(&self, request: &v1::LogsRequest) -> v1::LogsRequest {
        let tail = request.tail.filter(|_| self.received.is_empty());
        v1::LogsRequest { received: self.positions(), tail, ..request.clone() }
    }

    /// Shows the incomplete last lines.
    pub fn finish(&mut self) -> Result<(), Failure> {
        if let Some(redirection) = &mut self.redirection {
            redirection.finish()?;
        }
        let Some(labeller) = &mut self.labeller else { return Ok(()) };
        let (stdout, stderr) = labeller.finish();
        write(false, &stdout)?;
        write(true, &stderr)
    }
}

fn write(stderr: bool, bytes: &[u8]) -> Result<(), Failure> {
    if bytes.is_empty() {
        return Ok(());
    }
    if stderr {
        let mut err = io::stderr();
        return err.write_all(bytes).map_err(|error| write_failure(err.as_fd(), error));
    }
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(|error| write_failure(out.as_fd(), error))
}

/// Why output could not be written. A terminal that was closed fails with EIO: its reader is gone. A file's EIO is an
/// error of its disk.
fn write_failure(to: BorrowedFd<'_>, error: io::Error) -> Failure {
    let is_device = || to.try_clone_to_owned().and_then(|fd| File::from(fd).metadata()).is_ok_and(|m| m.file_type().is_char_device());
    if error.raw_os_error() == Some(libc::EIO) && is_device() { Failure::ReaderGone } else { error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_closed_terminal_or_pipe_is_a_reader_that_is_gone() {
        let (device, file) = (File::open("/dev/null").unwrap(), File::open("/proc/self/status").unwrap());
        let is_gone = |to: &File, errno| matches!(write_failure(to.as_fd(), io::Error::from_raw_os_error(errno)), Failure::ReaderGone);
        assert!(is_gone(&device, libc::EIO) && is_gone(&file, libc::EPIPE));
        assert!(!is_gone(&file, libc::EIO) && !is_gone(&device, libc::ENOSPC));
    }
}
