//! Reads standard input: typed keys, or a file or pipe.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, FromRawFd};
use tokio::sync::mpsc;

/// Bytes read at a time.
const CHUNK_BYTES: usize = 16 * 1024;

/// A piece of input.
#[derive(Debug, PartialEq, Eq)]
pub enum Key {
    Bytes(Vec<u8>),
    /// The end of the input.
    End,
    /// A read error, which is not the end.
    Broken(String),
}

/// Reads standard input in a separate thread, which ends with this process, because a read from a terminal cannot be
/// cancelled. Each piece goes through `wrap` to `to`; a full queue blocks the thread.
pub fn read<T: Send + 'static>(to: mpsc::Sender<T>, wrap: impl Fn(Key) -> T + Send + 'static) {
    std::thread::spawn(move || {
        // Not through the standard library's buffer, which reads ahead.
        // SAFETY: descriptor 0 is standard input for as long as this process lives; it is not closed here.
        let mut stdin = ManuallyDrop::new(unsafe { File::from_raw_fd(0) });
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let key = match stdin.read(&mut chunk) {
                Ok(n) if n > 0 => Key::Bytes(chunk[..n].to_vec()),
                Ok(_) => Key::End,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // Another process that has the file open made it non-blocking.
                Err(error) if error.kind() == ErrorKind::WouldBlock && wait_for_input(&stdin) => continue,
                Err(error) => Key::Broken(error.to_string()),
            };
            let over = !matches!(key, Key::Bytes(_));
            if to.blocking_send(wrap(key)).is_err() || over {
                return;
            }
        }
    });
}

/// Waits until input can be read. `false`: waiting is not possible.
fn wait_for_input(file: &File) -> bool {
    matches!(poll(&mut [PollFd::new(file.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE), Ok(_) | Err(Errno::EINTR))
}
