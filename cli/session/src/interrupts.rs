//! Ctrl-C as an event, where it must not simply end this process.

use crate::failure::Failure;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Presses of Ctrl-C. While this lives, Ctrl-C does not end this process.
pub struct Interrupts(Signal);

impl Interrupts {
    /// Handles Ctrl-C from now on.
    pub fn listen() -> Result<Self, Failure> {
        signal(SignalKind::interrupt()).map(Self).map_err(|error| Failure::other(format!("cannot handle Ctrl-C: {error}")))
    }

    /// Waits for the next press.
    pub async fn pressed(&mut self) {
        self.0.recv().await;
    }
}
