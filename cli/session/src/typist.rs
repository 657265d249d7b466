//! Connects the user's terminal to the first rank of a launch or of an inline command (`lattice launch --pty`).

use crate::failure::Failure;
use crate::keyboard::{self, Key};
use crate::terminal::{self, RawMode};
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_api::v1::launch_input_request::{Start, What};
use lattice_model::Backoff;
use std::convert::Infallible;
use std::io::IsTerminal;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;

/// Pieces of input that may wait for the agent.
const INPUT_QUEUE_LEN_MAX: usize = 16;
/// The shortest and longest pause between two attempts to reach the launch. Each attempt on another
/// user's launch is audited.
const RETRY_DELAY_MIN: Duration = Duration::from_millis(50);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(5);

/// Sends keys and sizes to the launch. The terminal is raw while this lives, except between `restore_terminal` and
/// `resume`.
pub struct Typist {
    keys: mpsc::Receiver<Key>,
    resized: Signal,
    raw: Option<RawMode>,
}

/// SIGTERM and SIGHUP: they end this process, after it has restored the terminal.
pub struct EndSignals {
    /// `None`: this process was started with SIGTERM ignored (`trap '' TERM`).
    terminate: Option<Signal>,
    /// `None`: this process was started with SIGHUP ignored (`nohup`).
    hangup: Option<Signal>,
}

/// The size for the launch's terminal, if both input and output of this process are a terminal.
pub fn terminal_size() -> Result<v1::TerminalSize, Failure> {
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        return Err(Failure::usage("--pty: standard input and output must be a terminal").hint("leave --pty out where they are pipes"));
    }
    Ok(current_size())
}

fn current_size() -> v1::TerminalSize {
    let (rows, columns) = terminal::size().unwrap_or_default();
    v1::TerminalSize { rows, columns }
}

fn listen(kind: SignalKind) -> Result<Signal, Failure> {
    signal(kind).map_err(|error| Failure::other(format!("cannot handle signals: {error}")))
}

fn enter_raw_mode() -> Result<Option<RawMode>, Failure> {
    RawMode::enter().map_err(|error| Failure::other(format!("cannot set this terminal to raw mode: {error}")))
}

impl Typist {
    /// Makes the terminal raw and starts to read it.
    pub fn begin() -> Result<Self, Failure> {
        let resized = listen(SignalKind::window_change())?;
        let raw = enter_raw_mode()?;
        let (to, keys) = mpsc::channel(INPUT_QUEUE_LEN_MAX);
        keyboard::read(to, |key| key);
        Ok(Self { keys, resized, raw })
    }

    /// Restores the terminal until [`Self::resume`]: Ctrl-C is a signal again.
    pub fn restore_terminal(&mut self) {
        self.raw = None;
    }

    /// Makes the terminal raw again.
    pub fn resume(&mut self) -> Result<(), Failure> {
        if self.raw.is_none() {
            self.raw = enter_raw_mode()?;
        }
        Ok(())
    }

    /// Waits until the launch has begun, then sends input until the future is dropped.
    pub async fn send_input(&mut self, client: &Client, launch: &Start, begun: &mut watch::Receiver<bool>) -> Infallible {
        let mut pauses = Backoff::new(RETRY_DELAY_MIN, RETRY_DELAY_MAX);
        loop {
            if begun.wait_for(|begun| *begun).await.is_err() {
                return std::future::pending().await;
            }
            let (requests, stream) = mpsc::channel(INPUT_QUEUE_LEN_MAX);
            for first in [What::Start(launch.clone()), What::Size(current_size())] {
                let _ = requests.try_send(v1::LaunchInputRequest { what: Some(first) });
            }
            let mut service = client.allocations();
            // Input waits until the head accepts it, and while the head is unavailable.
            if let Ok(taken) = service.launch_input(ReceiverStream::new(stream)).await {
                let mut taken = taken.into_inner();
                if let Ok(Some(_)) = taken.message().await {
                    pauses.reset();
                    tokio::select! {
                        _ = taken.message() => {}
                        () = self.forward(&requests) => std::future::pending().await,
                    }
                }
            }
            sleep(pauses.next_pause()).await;
        }
    }

    /// Forwards keys and sizes. Returns when no more input will follow.
    async fn forward(&mut self, to: &mpsc::Sender<v1::LaunchInputRequest>) {
        loop {
            let Ok(room) = to.reserve().await else { return std::future::pending().await };
            let what = tokio::select! {
                key = self.keys.recv() => match key {
                    Some(Key::Bytes(bytes)) => What::Input(bytes),
                    Some(Key::End | Key::Broken(_)) | None => return,
                },
                _ = self.resized.recv() => What::Size(current_size()),
            };
            room.send(v1::LaunchInputRequest { what: Some(what) });
        }
    }
}

impl EndSignals {
    /// From now on these signals do not end this process by themselves.
    pub fn listen() -> Result<Self, Failure> {
        let ignored = ignored_signals();
        let unless_ignored = |kind: SignalKind| {
            if ignored >> (kind.as_raw_value() - 1) & 1 == 1 { Ok(None) } else { listen(kind).map(Some) }
        };
        Ok(Self { terminate: unless_ignored(SignalKind::terminate())?, hangup: unless_ignored(SignalKind::hangup())? })
    }

    /// Waits for a signal that ends this process, and returns a shell's exit code for it.
    pub async fn recv(&mut self) -> u8 {
        let kind = tokio::select! {
            () = recv_or_pend(&mut self.terminate) => SignalKind::terminate(),
            () = recv_or_pend(&mut self.hangup) => SignalKind::hangup(),
        };
        128 + u8::try_from(kind.as_raw_value()).unwrap_or(0)
    }
}

async fn recv_or_pend(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// The signals that were ignored when this process was started, one bit each.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok()).unwrap_or_default()
}
