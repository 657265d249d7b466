//! Ctrl-C, turned into something that loops can see, so that a half-run demo still cleans up behind itself.

use anyhow::{Result, bail};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::sync::atomic::{AtomicI32, Ordering};

static SIGNAL: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(signal: libc::c_int) {
    // The second one means it: back to the default action, so that the third ends the process.
    if SIGNAL.swap(signal, Ordering::Relaxed) != 0 {
        // SAFETY: signal(2) with SIG_DFL is async-signal-safe and touches no memory of ours.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// From now on SIGINT, SIGTERM and SIGHUP are noted instead of ending the process.
pub fn watch() {
    let action = SigAction::new(SigHandler::Handler(note), SaFlags::empty(), SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler only stores to an atomic and calls signal(2), both async-signal-safe.
        let _ = unsafe { sigaction(signal, &action) };
    }
}

/// The signal that came, if one did.
pub fn came() -> Option<i32> {
    match SIGNAL.load(Ordering::Relaxed) {
        0 => None,
        signal => Some(signal),
    }
}

/// An error once a signal came: loops call it at each turn.
pub fn check() -> Result<()> {
    match came() {
        Some(signal) => bail!("interrupted by signal {signal}"),
        None => Ok(()),
    }
}
