//! The functions for C; `include/lattice_checkpoint.h` documents each one.

use crate::{Done, Listener, Request};
use std::ffi::{CStr, c_char, c_int};
use std::io;
use std::panic::catch_unwind;
use std::ptr;
use std::time::Duration;

/// Bytes of a directory's path with its zero.
const PATH_BYTES: usize = 4096;
/// Bytes of a token with its zero.
const TOKEN_BYTES: usize = crate::layout::TOKEN_BYTES;

/// `struct lattice_checkpoint_request`.
#[repr(C)]
pub struct CRequest {
    deadline_ms: u64,
    number: u32,
    token: [c_char; TOKEN_BYTES],
    directory: [c_char; PATH_BYTES],
}

fn set_errno(error: &io::Error) {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() = error.raw_os_error().unwrap_or(libc::EINVAL) };
}

/// Null, with `errno` set, if listening is not possible.
#[unsafe(no_mangle)]
pub extern "C" fn lattice_checkpoint_open() -> *mut Listener {
    opened(catch_unwind(Listener::from_env).unwrap_or_else(|_| Err(io::Error::from_raw_os_error(libc::EINVAL))))
}

fn opened(opened: io::Result<Option<Listener>>) -> *mut Listener {
    match opened {
        Ok(Some(listener)) => Box::into_raw(Box::new(listener)),
        Ok(None) => {
            set_errno(&io::Error::from_raw_os_error(libc::ENOENT));
            ptr::null_mut()
        }
        // This error must only mean that the work has no checkpoints: a missing page gets another error.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            set_errno(&io::Error::from_raw_os_error(libc::ENXIO));
            ptr::null_mut()
        }
        Err(error) => {
            set_errno(&error);
            ptr::null_mut()
        }
    }
}

/// # Safety
/// `listener` came from [`lattice_checkpoint_open`] and is not used again, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lattice_checkpoint_close(listener: *mut Listener) {
    if !listener.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(listener) });
    }
}

/// # Safety
/// `listener` came from [`lattice_checkpoint_open`]; `into` is a request that can be written, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lattice_checkpoint_asked(listener: *const Listener, into: *mut CRequest) -> c_int {
    // SAFETY: the caller's promise.
    let Some(listener) = (unsafe { listener.as_ref() }) else { return 0 };
    // SAFETY: the caller's promise.
    unsafe { write_request(listener.asked(), into) }
}

/// # Safety
/// As for [`lattice_checkpoint_asked`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lattice_checkpoint_wait(listener: *const Listener, at_most_ms: u64, into: *mut CRequest) -> c_int {
    // SAFETY: the caller's promise.
    let Some(listener) = (unsafe { listener.as_ref() }) else { return 0 };
    // SAFETY: the caller's promise.
    unsafe { write_request(listener.wait(Duration::from_millis(at_most_ms)), into) }
}

/// # Safety
/// `into` is a request that can be written, or null.
unsafe fn write_request(request: Option<Request<'_>>, into: *mut CRequest) -> c_int {
    let (Some(request), false) = (request, into.is_null()) else { return 0 };
    let directory = request.directory.as_os_str().as_encoded_bytes();
    if directory.len() >= PATH_BYTES || request.token.len() >= TOKEN_BYTES {
        set_errno(&io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        return -1;
    }
    // SAFETY: the caller's promise; every field is written before anybody reads it, and the zeros of `write_bytes` end
    // the texts.
    unsafe {
        ptr::write_bytes(into, 0, 1);
        (*into).deadline_ms = request.deadline_ms;
        (*into).number = request.number;
        ptr::copy_nonoverlapping(request.token.as_ptr().cast(), (&raw mut (*into).token).cast::<c_char>(), request.token.len());
        ptr::copy_nonoverlapping(directory.as_ptr().cast(), (&raw mut (*into).directory).cast::<c_char>(), directory.len());
    }
    1
}

/// The request that a call from C answers.
///
/// # Safety
/// Both are null, or as for [`lattice_checkpoint_asked`].
unsafe fn request<'a>(listener: *const Listener, c_request: *const CRequest) -> Option<Request<'a>> {
    // SAFETY: the caller's promise.
    let (listener, c_request) = unsafe { (listener.as_ref()?, c_request.as_ref()?) };
    Some(Request {
        token: String::new(),
        directory: std::path::PathBuf::new(),
        deadline_ms: c_request.deadline_ms,
        number: c_request.number,
        listener,
    })
}

/// # Safety
/// As for [`lattice_checkpoint_asked`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lattice_checkpoint_progress(listener: *const Listener, c_request: *const CRequest, percent: u32, left_ms: i64) {
    // SAFETY: the caller's promise.
    if let Some(request) = unsafe { request(listener, c_request) } {
        request.progress(percent, u64::try_from(left_ms).ok().map(Duration::from_millis));
    }
}

/// # Safety
/// As for [`lattice_checkpoint_asked`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lattice_checkpoint_done(listener: *const Listener, c_request: *const CRequest, step: i64, files: i64, bytes: i64) {
    let number = |value: i64| u64::try_from(value).ok();
    // SAFETY: the caller's promise.
    if let Some(request) = unsafe { request(listener, c_request) } {
        request.done(Done { step: number(step), files: number(files), bytes: number(bytes), time_seconds: None });
    }
}

/// # Safety
/// As for [`lattice_checkpoint_asked`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lattice_checkpoint_done_at(
    listener: *const Listener,
    c_request: *const CRequest,
    time_seconds: f64,
    step: i64,
    files: i64,
    bytes: i64,
) {
    let number = |value: i64| u64::try_from(value).ok();
    // SAFETY: the caller's promise.
    if let Some(request) = unsafe { request(listener, c_request) } {
        request.done(Done { step: number(step), files: number(files), bytes: number(bytes), time_seconds: Some(time_seconds) });
    }
}

/// # Safety
/// As for [`lattice_checkpoint_asked`]; `why` is a text that ends with a zero, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lattice_checkpoint_failed(listener: *const Listener, c_request: *const CRequest, why: *const c_char) {
    // SAFETY: the caller's promise.
    let why = if why.is_null() { String::new() } else { unsafe { CStr::from_ptr(why) }.to_string_lossy().into_owned() };
    // SAFETY: the caller's promise.
    if let Some(request) = unsafe { request(listener, c_request) } {
        request.failed(&why);
    }
}

/// # Safety
/// As for [`lattice_checkpoint_asked`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lattice_checkpoint_defer(listener: *const Listener, c_request: *const CRequest, time_ms: u64) {
    // SAFETY: the caller's promise.
    if let Some(request) = unsafe { request(listener, c_request) } {
        request.defer(Duration::from_millis(time_ms));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_missing_page_is_not_reported_as_work_without_checkpoints() {
        let errno = || io::Error::last_os_error().raw_os_error();
        assert!(opened(Ok(None)).is_null() && errno() == Some(libc::ENOENT));
        let missing = Path::new("/nonexistent/page");
        assert!(opened(Listener::open(missing, missing).map(Some)).is_null() && errno() == Some(libc::ENXIO));
    }
}
