//! The user's terminal as that of a launch's first rank (`lattice launch --pty`).

use crate::failure::Failure;
use crate::keyboard::{self, Key};
use crate::terminal::{self, Raw};
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_api::v1::launch_input_request::{Start, What};
use std::convert::Infallible;
use std::io::IsTerminal;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;

/// Pieces of input that wait for the agent.
const QUEUE: usize = 16;
/// Between two tries to reach the launch.
const AGAIN: Duration = Duration::from_millis(50);

/// Keys and sizes on their way to the launch. The terminal is raw for as long as this lives.
pub struct Typist {
    keys: mpsc::Receiver<Key>,
    resized: Signal,
    _raw: Option<Raw>,
}

/// What ends this process from outside; the terminal is the user's own again by then.
pub struct Farewell {
    terminate: Signal,
    hangup: Signal,
}

/// The size for the launch's terminal, where this process has one at both ends.
pub fn size() -> Result<v1::TerminalSize, Failure> {
    if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
        return Err(Failure::usage("--pty: standard input and output must be a terminal").hint("leave --pty out where they are pipes"));
    }
    Ok(now())
}

fn now() -> v1::TerminalSize {
    let (rows, columns) = terminal::size().unwrap_or_default();
    v1::TerminalSize { rows, columns }
}

/// Makes the terminal raw and begins to read it.
pub fn begin() -> Result<(Typist, Farewell), Failure> {
    let take = |kind| signal(kind).map_err(|error| Failure::other(format!("cannot take signals: {error}")));
    let farewell = Farewell { terminate: take(SignalKind::terminate())?, hangup: take(SignalKind::hangup())? };
    let resized = take(SignalKind::window_change())?;
    let raw = Raw::enter().map_err(|error| Failure::other(format!("this terminal cannot be made raw: {error}")))?;
    let (to, keys) = mpsc::channel(QUEUE);
    keyboard::read(to, |key| key);
    Ok((Typist { keys, resized, _raw: raw }, farewell))
}

impl Typist {
    /// Types from the time that the launch is known to have begun, for as long as it is asked to.
    pub async fn type_on(&mut self, client: &Client, launch: &v1::LaunchRequest, begun: &mut watch::Receiver<bool>) -> Infallible {
        loop {
            if begun.wait_for(|begun| *begun).await.is_err() {
                return std::future::pending().await;
            }
            let (requests, stream) = mpsc::channel(QUEUE);
            let start = Start { id: launch.id.clone(), allocation: launch.allocation.clone() };
            for first in [What::Start(start), What::Size(now())] {
                let _ = requests.try_send(v1::LaunchInputRequest { what: Some(first) });
            }
            let mut service = client.allocations();
            let call = service.launch_input(ReceiverStream::new(stream));
            tokio::select! {
                // The launch's head is away, for one: what is typed waits meanwhile.
                _ = call => sleep(AGAIN).await,
                () = self.carry(&requests) => std::future::pending().await,
            }
        }
    }

    /// Ends when nothing will be typed any more.
    async fn carry(&mut self, to: &mpsc::Sender<v1::LaunchInputRequest>) {
        loop {
            let Ok(room) = to.reserve().await else { return std::future::pending().await };
            let what = tokio::select! {
                key = self.keys.recv() => match key {
                    Some(Key::Bytes(bytes)) => What::Input(bytes),
                    Some(Key::End) | None => return,
                },
                _ = self.resized.recv() => What::Size(now()),
            };
            room.send(v1::LaunchInputRequest { what: Some(what) });
        }
    }
}

impl Farewell {
    /// Waits for a signal that ends us, and gives what a shell says of that; without one of these, for ever.
    pub async fn came(farewell: &mut Option<Self>) -> u8 {
        let Some(farewell) = farewell else { return std::future::pending().await };
        let kind = tokio::select! {
            _ = farewell.terminate.recv() => SignalKind::terminate(),
            _ = farewell.hangup.recv() => SignalKind::hangup(),
        };
        128 + u8::try_from(kind.as_raw_value()).unwrap_or(0)
    }
}
