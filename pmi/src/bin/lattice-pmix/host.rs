//! The launch that this process serves, for the library's callbacks.

use crate::abi::{self, ModexCallback};
use crate::questions::{Questions, Waiting};
use lattice_pmi::bridge::{FromBridge, Question, encode};
use std::ffi::c_void;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The state shared with the callbacks, which run on the library's own thread.
pub struct Host {
    pub shim: Mutex<UnixStream>,
    pub size: u32,
    pub fence: Mutex<Option<WaitingFence>>,
    /// Ranks that finalized or aborted, until the shim has acknowledged that.
    pub leaving: Mutex<Vec<(u32, Leaving)>>,
    pub namespace: String,
    pub questions: Mutex<Questions>,
}

/// The library's callback for the end of the fence in which the ranks wait.
pub struct WaitingFence {
    pub done: ModexCallback,
    pub cbdata: *mut c_void,
}

// SAFETY: the pointer belongs to the library, is only handed back to it, and is used by nobody
// else.
unsafe impl Send for WaitingFence {}

/// The library's callback for the acknowledged end of a rank.
pub struct Leaving {
    pub done: abi::OpCallback,
    pub cbdata: *mut c_void,
}

// SAFETY: the pointer belongs to the library, is only handed back to it, and is used by nobody
// else.
unsafe impl Send for Leaving {}

pub static HOST: OnceLock<Host> = OnceLock::new();

/// Sends a message to the shim. Errors are ignored: if the shim is gone, the main thread reads the
/// end of the socket, and this process ends.
pub fn send(message: &FromBridge) {
    let Some(host) = HOST.get() else { return };
    // A message that is too large for a frame must end the launch, not be dropped.
    if let Ok(frame) = encode(message).or_else(|error| encode(&FromBridge::Failed { why: error.to_string() })) {
        let _ = host.shim.lock().unwrap_or_else(PoisonError::into_inner).write_all(&frame);
    }
}

/// Forwards a rank's question to the shim, and stores how to deliver the answer. `false`: too many
/// questions are unanswered.
pub fn ask(waiting: Waiting, question: Question) -> bool {
    let Some(host) = HOST.get() else { return false };
    let id = host.questions.lock().unwrap_or_else(PoisonError::into_inner).add(waiting);
    if let Some(id) = id {
        send(&FromBridge::Ask { id, question });
    }
    id.is_some()
}
