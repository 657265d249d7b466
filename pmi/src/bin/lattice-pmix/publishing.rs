//! The library's callbacks for publish, lookup and unpublish, and for the data of a rank of another
//! node.
//!
//! Published data is visible within the launch. Other ranges, other persistences and lookups that
//! wait are refused as not supported.

use crate::abi::{self, ByteObject, Info, LookupCallback, ModexCallback, OpCallback, Proc, Status, Value, data_type, rank_of};
use crate::host::ask;
use crate::questions::{Done, Waiting};
use lattice_pmi::bridge::{Published, Question};
use std::ffi::{CStr, c_char, c_void};

/// Largest number of keys in one question.
const KEYS_MAX: usize = 256;
/// The prefix of the library's own attributes.
const OWN_KEY_PREFIX: &str = "pmix.";

/// The bytes of a value that can be published: a string, bytes or a number. `None`: another type.
///
/// # Safety
/// The data of `value` matches its type.
unsafe fn bytes_of(value: &Value) -> Option<Vec<u8>> {
    // SAFETY: see above.
    unsafe {
        match value.data_type {
            data_type::STRING if !value.data.string.is_null() => Some(CStr::from_ptr(value.data.string).to_bytes().to_vec()),
            data_type::BYTE_OBJECT if value.data.object.size == 0 => Some(Vec::new()),
            data_type::BYTE_OBJECT if !value.data.object.bytes.is_null() => {
                let ByteObject { bytes, size } = value.data.object;
                Some(std::slice::from_raw_parts(bytes.cast::<u8>(), size).to_vec())
            }
            data_type::STRING | 0 => None,
            // All of these have at most eight bytes; the remaining bytes of the union are zero or
            // arbitrary.
            1..=data_type::DOUBLE => Some(value.data.widest[0].to_ne_bytes().to_vec()),
            _ => None,
        }
    }
}

/// A range or a persistence; Open MPI 4 passes it as an int.
fn small_number(value: &Value) -> Option<u8> {
    // SAFETY: the type determines which member is read.
    unsafe {
        match value.data_type {
            data_type::DATA_RANGE | data_type::PERSIST => Some(value.data.byte),
            data_type::INT => value.data.uint32.try_into().ok(),
            _ => None,
        }
    }
}

/// The attributes of a question without the library's own; `None` if one of the library's own is
/// not supported.
///
/// # Safety
/// `infos` points to `count` elements, or is null.
unsafe fn read<'a>(infos: *const Info, count: usize) -> Option<Vec<(String, &'a Value)>> {
    // SAFETY: see above.
    let infos = if infos.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(infos, count) } };
    let mut others = Vec::new();
    for info in infos {
        let bytes: Vec<u8> = info.key.iter().map(|byte| byte.cast_unsigned()).take_while(|byte| *byte != 0).collect();
        let key = String::from_utf8(bytes).ok()?;
        let is_done = match (key.as_str(), small_number(&info.value)) {
            ("pmix.range", Some(range)) => abi::RANGES.contains(&range),
            ("pmix.persist", Some(persistence)) => abi::PERSISTENCES.contains(&persistence),
            ("pmix.range" | "pmix.persist" | "pmix.wait", _) => false,
            // Has no effect: the answer comes without waiting.
            ("pmix.timeout" | "pmix.euid" | "pmix.egid", _) => true,
            (own, _) if own.starts_with(OWN_KEY_PREFIX) => info.flags & abi::INFO_REQUIRED == 0,
            (_, _) => {
                others.push((key, &info.value));
                true
            }
        };
        if !is_done {
            return None;
        }
    }
    Some(others)
}

pub unsafe extern "C" fn publish(who: *const Proc, infos: *const Info, count: usize, done: OpCallback, cbdata: *mut c_void) -> Status {
    // SAFETY: the library passes a valid rank and `count` attributes.
    let (rank, read) = unsafe { (rank_of(who), read(infos, count)) };
    // Only one key: with several, some might exist already, and the question would be half done.
    let (Some(rank), Some([(key, value)])) = (rank, read.as_deref()) else { return abi::ERR_NOT_SUPPORTED };
    // SAFETY: the data of the library's values matches their types.
    let Some(bytes) = (unsafe { bytes_of(value) }) else { return abi::ERR_NOT_SUPPORTED };
    let published = Published { key: key.clone(), rank, data_type: value.data_type, value: bytes };
    begun_status(ask(Waiting { done: Done::Operation(done), cbdata }, Question::Publish(published)))
}

pub unsafe extern "C" fn lookup(
    _: *const Proc,
    keys: *mut *mut c_char,
    infos: *const Info,
    count: usize,
    done: LookupCallback,
    cbdata: *mut c_void,
) -> Status {
    // SAFETY: the library's arrays are valid.
    let (keys, read) = unsafe { (keys_of(keys), read(infos, count)) };
    let (Some(keys), Some(_)) = (keys, read) else { return abi::ERR_NOT_SUPPORTED };
    begun_status(ask(Waiting { done: Done::Lookup(done), cbdata }, Question::Lookup { keys }))
}

pub unsafe extern "C" fn unpublish(
    _: *const Proc,
    keys: *mut *mut c_char,
    infos: *const Info,
    count: usize,
    done: OpCallback,
    cbdata: *mut c_void,
) -> Status {
    // SAFETY: the library's arrays are valid.
    let (keys, read) = unsafe { (keys_of(keys), read(infos, count)) };
    let (Some(keys), Some(_)) = (keys, read) else { return abi::ERR_NOT_SUPPORTED };
    begun_status(ask(Waiting { done: Done::Operation(done), cbdata }, Question::Unpublish { keys }))
}

/// Requests the data of a rank of another node before any fence.
pub unsafe extern "C" fn direct_modex(who: *const Proc, _: *const Info, _: usize, done: ModexCallback, cbdata: *mut c_void) -> Status {
    // SAFETY: the library names a rank.
    let Some(rank) = (unsafe { rank_of(who) }) else { return abi::ERR_NOT_SUPPORTED };
    begun_status(ask(Waiting { done: Done::Modex(done), cbdata }, Question::Modex { rank }))
}

fn begun_status(is_asked: bool) -> Status {
    if is_asked { abi::SUCCESS } else { abi::ERR_OUT_OF_RESOURCE }
}

/// `None`: no keys (for an unpublish this would mean all of the rank's keys), too many, or one that
/// is not UTF-8.
///
/// # Safety
/// `keys` is null or a null-terminated array of strings.
unsafe fn keys_of(mut keys: *mut *mut c_char) -> Option<Vec<String>> {
    let mut all = Vec::new();
    // SAFETY: see above; the terminating null is not passed.
    while let Some(key) = unsafe { keys.as_ref() }.filter(|key| !key.is_null()) {
        // SAFETY: each is a string that ends with a zero byte.
        all.push(unsafe { CStr::from_ptr(*key) }.to_str().ok()?.to_owned());
        if all.len() > KEYS_MAX {
            return None;
        }
        // SAFETY: the terminating null was not reached yet.
        keys = unsafe { keys.add(1) };
    }
    (!all.is_empty()).then_some(all)
}
