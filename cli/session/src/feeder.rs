//! Sends this process's standard input to ranks of a launch.
//!
//! Bytes that the ranks have not acknowledged stay in a window and are sent again on each new connection, because an
//! agent may be restarted. When the window is full, nothing more is read, and the process that writes to us waits.

use crate::keyboard::{self, Key};
use crate::message::write_message_line;
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_api::v1::launch_input_request::{Start, What};
use lattice_model::Backoff;
use lattice_model::Stdin;
use lattice_model::input::{Place, Taken, Window};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::pending;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

/// The most pieces that are read ahead, and the most that wait for the agent.
const QUEUE_LEN_MAX: usize = 4;
/// The shortest and longest pause between two attempts to reach the launch. Each attempt on another
/// user's launch is audited.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(50);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(5);

/// The ranks that get standard input: those of `asked`, else the first rank, if there is input to read and the launch
/// has no terminal (`pty`).
pub fn choose_readers(asked: Option<Stdin>, pty: bool) -> Stdin {
    match asked {
        Some(asked) => asked,
        None if !pty && has_input() => Stdin::Rank(0),
        None => Stdin::None,
    }
}

/// Whether to read standard input if the user did not ask for it: only if it is neither `/dev/null` nor a terminal.
/// Text that is typed at a terminal is for the program that runs next.
fn has_input() -> bool {
    is_readable() && !std::io::stdin().is_terminal()
}

/// Whether `srun` sends standard input to its ranks if the user did not ask for it: also what is typed at a terminal, unless
/// this process is in the background and would be stopped when it reads.
pub fn has_input_for_srun() -> bool {
    let stdin = std::io::stdin();
    let is_in_foreground = || nix::unistd::tcgetpgrp(stdin.as_fd()).is_ok_and(|group| group == nix::unistd::getpgrp());
    is_readable() && (!stdin.is_terminal() || is_in_foreground())
}

/// Whether standard input is open, and not `/dev/null`.
fn is_readable() -> bool {
    let Ok(file) = nix::sys::stat::fstat(std::io::stdin().as_fd()) else { return false };
    let is_device = file.st_mode & libc::S_IFMT == libc::S_IFCHR;
    !(is_device && file.st_rdev == libc::makedev(1, 3))
}

/// Feeds standard input to a launch; see the module.
#[derive(Default)]
pub struct Feeder {
    /// The input, once the launch accepts some.
    keys: Option<mpsc::Receiver<Key>>,
    window: Window<v1::InputChunk>,
    /// The number of bytes that were read.
    read: u64,
    /// The number of bytes that all ranks have acknowledged.
    acknowledged: u64,
    /// Whether the input has ended.
    ended: bool,
    /// Whether nothing is left to do.
    over: bool,
}

impl Feeder {
    /// Waits until the launch has begun, then feeds it until the future is dropped.
    pub async fn feed(&mut self, client: &Client, launch: &Start, begun: &mut watch::Receiver<bool>) -> Infallible {
        let mut pauses = Backoff::new(RETRY_DELAY_MIN, RETRY_DELAY_MAX);
        while !self.over {
            if begun.wait_for(|begun| *begun).await.is_err() {
                break;
            }
            let (requests, stream) = mpsc::channel(QUEUE_LEN_MAX);
            let start = What::Start(Start { standard: true, ..launch.clone() });
            let _ = requests.try_send(v1::LaunchInputRequest { what: Some(start) });
            match client.allocations().launch_input(ReceiverStream::new(stream)).await {
                Ok(answers) => {
                    if self.transfer(&requests, answers.into_inner()).await {
                        pauses.reset();
                    }
                }
                Err(status) if status.code() == Code::Unimplemented => self.give_up(status.message()),
                // Input waits until the head accepts it, and while the head is unavailable.
                Err(_) => {}
            }
            if !self.over {
                sleep(pauses.next_pause()).await;
            }
        }
        pending().await
    }

    /// Runs until the connection breaks, or nothing is left to do. Returns whether the head answered.
    async fn transfer(
        &mut self,
        to: &mpsc::Sender<v1::LaunchInputRequest>,
        mut answers: tonic::Streaming<v1::LaunchInputResponse>,
    ) -> bool {
        let Ok(Some(v1::LaunchInputResponse { taken: Some(first) })) = answers.message().await else { return false };
        let first = decode_acknowledgement(first);
        self.handle_acknowledgement(first);
        let mut unsent: VecDeque<v1::InputChunk> = self.window.beyond(first).cloned().collect();
        while !self.over {
            tokio::select! {
                answer = answers.message() => match answer {
                    Ok(Some(v1::LaunchInputResponse { taken: Some(now) })) => self.handle_acknowledgement(decode_acknowledgement(now)),
                    Ok(_) | Err(_) => return true,
                },
                permit = to.reserve(), if !unsent.is_empty() => match (permit, unsent.pop_front()) {
                    (Ok(permit), Some(piece)) => permit.send(v1::LaunchInputRequest { what: Some(What::Piece(piece)) }),
                    _ => return true,
                },
                piece = self.next_piece(), if unsent.is_empty() => unsent.push_back(piece),
            }
        }
        true
    }

    /// The next piece, once the window has space for it.
    async fn next_piece(&mut self) -> v1::InputChunk {
        if self.ended || !self.window.has_room() {
            return pending().await;
        }
        let keys = self.keys.get_or_insert_with(|| {
            let (to, keys) = mpsc::channel(QUEUE_LEN_MAX);
            keyboard::read(to, |key| key);
            keys
        });
        let data = match keys.recv().await {
            Some(Key::Bytes(bytes)) => bytes,
            Some(Key::End) | None => Vec::new(),
            Some(Key::Broken(why)) => {
                // No end is sent, because ranks would mistake truncated input for complete input.
                write_message_line(format_args!(
                    "standard input cannot be read: {why}; the ranks that read it wait until the launch is ended"
                ));
                self.stop();
                return pending().await;
            }
        };
        self.ended = data.is_empty();
        self.push(data)
    }

    fn push(&mut self, data: Vec<u8>) -> v1::InputChunk {
        let place = Place { offset: self.read, bytes: data.len(), last: self.ended };
        let piece = v1::InputChunk { offset: place.offset, data, last: place.last };
        self.read = place.end();
        self.window.push(place, piece.clone());
        piece
    }

    /// Handles an acknowledgement of the ranks. If it is lower than before, another attempt of the job has begun. The
    /// discarded bytes cannot be sent to that attempt, so its input ends here, with a message.
    fn handle_acknowledgement(&mut self, now: Taken) {
        self.window.let_go(now);
        match now {
            Taken::Closed => self.over = true,
            Taken::UpTo(bytes) if bytes < self.acknowledged => {
                write_message_line(format_args!(
                    "the job starts again, but {} bytes of standard input cannot be sent again: its input ends here",
                    self.acknowledged - bytes
                ));
                self.stop();
                (self.window, self.read, self.acknowledged) = (Window::default(), bytes, bytes);
                self.push(Vec::new());
            }
            Taken::UpTo(bytes) => self.acknowledged = bytes,
        }
        if self.over {
            self.stop();
        }
    }

    /// Stops reading.
    fn stop(&mut self) {
        (self.keys, self.ended) = (None, true);
    }

    fn give_up(&mut self, why: &str) {
        write_message_line(format_args!("standard input is not sent to the job: {why}; use --stdin=none"));
        self.over = true;
        self.stop();
    }
}

fn decode_acknowledgement(v1::InputAck { bytes, closed }: v1::InputAck) -> Taken {
    if closed { Taken::Closed } else { Taken::UpTo(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fed(pieces: &[&str]) -> Feeder {
        let mut feeder = Feeder::default();
        for piece in pieces {
            feeder.push(piece.as_bytes().to_vec());
        }
        feeder
    }

    fn kept(feeder: &Feeder) -> Vec<(u64, &[u8], bool)> {
        feeder.window.beyond(Taken::UpTo(0)).map(|piece| (piece.offset, piece.data.as_slice(), piece.last)).collect()
    }

    #[test]
    fn unacknowledged_bytes_are_kept_and_discarded_ones_end_the_input_of_another_attempt() {
        let mut feeder = fed(&["abc", "def"]);
        feeder.handle_acknowledgement(Taken::UpTo(4));
        assert_eq!(kept(&feeder), [(3, &b"def"[..], false)]);
        assert!(!feeder.ended);
        feeder.handle_acknowledgement(Taken::UpTo(0));
        assert_eq!(kept(&feeder), [(0, &b""[..], true)], "nothing but the end");
        assert!(feeder.ended && !feeder.over);
        feeder.handle_acknowledgement(Taken::Closed);
        assert!(feeder.over && kept(&feeder).is_empty());
    }

    #[test]
    fn the_option_wins_and_a_launch_with_a_terminal_gets_no_standard_input() {
        assert_eq!(choose_readers(Some(Stdin::All), false), Stdin::All);
        assert_eq!(choose_readers(Some(Stdin::None), false), Stdin::None);
        assert_eq!(choose_readers(None, true), Stdin::None);
    }
}
