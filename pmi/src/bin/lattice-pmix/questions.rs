//! The library's questions that are not answered yet.

use crate::abi::{self, ByteObject, Data, Found, LookupCallback, ModexCallback, OpCallback, Status, Value, data_type, pass_bytes, proc_of};
use lattice_pmi::bridge::{AnswerStatus, Published};
use std::collections::BTreeMap;
use std::ffi::{CString, c_void};

/// Largest number of unanswered questions.
const QUESTIONS_MAX: usize = 4096;

/// The unanswered questions of the library.
#[derive(Default)]
pub struct Questions {
    last: u64,
    waiting: BTreeMap<u64, Waiting>,
}

impl Questions {
    /// Adds a question and returns its id; `None`: there are too many.
    pub fn add(&mut self, waiting: Waiting) -> Option<u64> {
        if self.waiting.len() >= QUESTIONS_MAX {
            return None;
        }
        self.last += 1;
        self.waiting.insert(self.last, waiting);
        Some(self.last)
    }

    pub fn take(&mut self, id: u64) -> Option<Waiting> {
        self.waiting.remove(&id)
    }
}

/// How to deliver an answer to the library.
pub struct Waiting {
    pub done: Done,
    pub cbdata: *mut c_void,
}

/// The callback, by kind.
pub enum Done {
    Operation(OpCallback),
    Lookup(LookupCallback),
    Modex(ModexCallback),
}

// SAFETY: the pointer belongs to the library, is only handed back to it, and is used by nobody
// else.
unsafe impl Send for Waiting {}

impl Waiting {
    pub fn answer(self, status: AnswerStatus, found: &[Published], namespace: &str) {
        let status = match status {
            AnswerStatus::Done => abi::SUCCESS,
            AnswerStatus::Partly => abi::ERR_PARTIAL_SUCCESS,
            AnswerStatus::NotFound => abi::ERR_NOT_FOUND,
            AnswerStatus::Duplicate => abi::ERR_DUPLICATE_KEY,
            AnswerStatus::Full => abi::ERR_OUT_OF_RESOURCE,
            AnswerStatus::NotSupported => abi::ERR_NOT_SUPPORTED,
        };
        match self.done {
            Done::Operation(Some(done)) => {
                // SAFETY: `cbdata` is what came with the callback.
                unsafe { done(status, self.cbdata) };
            }
            Done::Lookup(Some(done)) => {
                let texts: Vec<CString> = found.iter().map(|one| CString::new(one.value.clone()).unwrap_or_default()).collect();
                let made = found.iter().zip(&texts).map(|(one, text)| found_of(one, text, namespace)).collect::<Option<Vec<_>>>();
                let (status, mut made) = made.map_or((abi::ERR_NOT_SUPPORTED, Vec::new()), |made| (status, made));
                // SAFETY: `cbdata` came with the callback; the library copies the data before the
                // callback returns.
                unsafe { done(status, made.as_mut_ptr(), made.len(), self.cbdata) };
            }
            Done::Operation(None) | Done::Lookup(None) | Done::Modex(_) => {}
        }
    }

    pub fn answer_modex(self, status: Status, data: Vec<u8>) {
        if let Done::Modex(Some(done)) = self.done {
            // SAFETY: `cbdata` is what came with the callback.
            unsafe { pass_bytes(done, status, data, self.cbdata) };
        }
    }
}

/// A found value in the library's representation. It points into `one` and `text`. `None`: it has
/// none, because its number has another length, or its namespace's name is too long.
fn found_of(one: &Published, text: &CString, namespace: &str) -> Option<Found> {
    let data = match one.data_type {
        data_type::STRING => Data { string: text.as_ptr() },
        data_type::BYTE_OBJECT => Data { object: ByteObject { bytes: one.value.as_ptr().cast(), size: one.value.len() } },
        _ => {
            let bytes = one.value.as_slice().try_into().ok()?;
            Data { widest: [u64::from_ne_bytes(bytes), 0, 0] }
        }
    };
    let publisher = proc_of(namespace, one.rank).ok()?;
    let mut found = Found { publisher, key: [0; abi::KEY_BYTES], value: Value { data_type: one.data_type, data } };
    for (to, from) in found.key[..abi::KEY_BYTES - 1].iter_mut().zip(one.key.bytes()) {
        *to = from.cast_signed();
    }
    Some(found)
}
