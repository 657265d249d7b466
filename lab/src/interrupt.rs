//! Turns Ctrl-C into a flag that loops check, so that an interrupted demo still cleans up.

use anyhow::{Result, bail};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::process::ExitCode;
use std::sync::atomic::{AtomicI32, Ordering};

static SIGNAL: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(signal: libc::c_int) {
    // The second signal restores the default action, so that the third ends the process.
    if SIGNAL.swap(signal, Ordering::Relaxed) != 0 {
        // SAFETY: signal(2) with SIG_DFL is async-signal-safe and touches no memory of ours.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// From now on SIGINT, SIGTERM and SIGHUP are recorded and do not end the process.
pub fn watch() {
    let action = SigAction::new(SigHandler::Handler(note), SaFlags::empty(), SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler only stores to an atomic and calls signal(2), both async-signal-safe.
        let _ = unsafe { sigaction(signal, &action) };
    }
}

/// The received signal, if there was one.
pub fn came() -> Option<i32> {
    match SIGNAL.load(Ordering::Relaxed) {
        0 => None,
        signal => Some(signal),
    }
}

/// The exit code of a program that failed: 128 and the number of the signal that interrupted it, otherwise 1.
pub fn exit_code() -> ExitCode {
    match came() {
        Some(signal) => ExitCode::from(u8::try_from(128 + signal).unwrap_or(1)),
        None => ExitCode::FAILURE,
    }
}

/// An error once a signal arrived: loops call it in each iteration.
pub fn check() -> Result<()> {
    match came() {
        Some(signal) => bail!("interrupted by signal {signal}"),
        None => Ok(()),
    }
}
