//! The launch that this process serves, as the library's callbacks reach it.

use crate::abi::{self, ModexCallback};
use crate::questions::{Questions, Waiting};
use lattice_pmi::bridge::{FromBridge, Question, encode};
use std::ffi::c_void;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, OnceLock, PoisonError};

/// What the callbacks, on the library's own thread, know of the launch.
pub struct Host {
    pub shim: Mutex<UnixStream>,
    pub size: u32,
    pub fence: Mutex<Option<WaitingFence>>,
    /// Ranks whose part in it is over, until the shim has heard so, and ranks that abort.
    pub leaving: Mutex<Vec<(u32, Leaving)>>,
    pub namespace: String,
    pub questions: Mutex<Questions>,
}

/// How the library is told the end of the fence in which the ranks wait.
pub struct WaitingFence {
    pub done: ModexCallback,
    pub cbdata: *mut c_void,
}

// SAFETY: the pointer is the library's own, handed back to it and used by nobody else.
unsafe impl Send for WaitingFence {}

/// How the library is told that the end of a rank's part was heard.
pub struct Leaving {
    pub done: abi::OpCallback,
    pub cbdata: *mut c_void,
}

// SAFETY: the pointer is the library's own, handed back to it and used by nobody else.
unsafe impl Send for Leaving {}

pub static HOST: OnceLock<Host> = OnceLock::new();

/// Tells the shim. That it is gone ends this process by the other thread; the ranks are ended with it.
pub fn tell(message: &FromBridge) {
    let Some(host) = HOST.get() else { return };
    // What is too large for a frame ends the launch, and is not kept to ourselves.
    if let Ok(frame) = encode(message).or_else(|error| encode(&FromBridge::Failed { why: error.to_string() })) {
        let _ = host.shim.lock().unwrap_or_else(PoisonError::into_inner).write_all(&frame);
    }
}

/// Asks the shim for a rank, and keeps how that is answered. `false`: too much waits.
pub fn ask(waiting: Waiting, question: Question) -> bool {
    let Some(host) = HOST.get() else { return false };
    let id = host.questions.lock().unwrap_or_else(PoisonError::into_inner).add(waiting);
    if let Some(id) = id {
        tell(&FromBridge::Ask { id, question });
    }
    id.is_some()
}
