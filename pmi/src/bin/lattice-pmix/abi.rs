//! The parts of libpmix's C interface that are used, written by hand after its headers. A test
//! compares sizes and offsets with those of a C compiler.
//!
//! Sources: `pmix_common.h` (types, statuses, attributes) and `pmix_server.h` (the server's module
//! and calls) of OpenPMIx 4.2.2 and 5.0.0, which agree on everything used here; in 5.0 the module
//! has one more callback at its end.

use std::ffi::{c_char, c_int, c_void};
use thiserror::Error;

/// `pmix_status_t`
pub type Status = c_int;
pub const SUCCESS: Status = 0;
/// A process ended by a signal, with a code other than 0, or without finalize.
pub const ERR_PROC_ABORTED: Status = -7;
pub const ERR_NOT_SUPPORTED: Status = -47;
pub const ERR_NOT_FOUND: Status = -46;
pub const ERR_PARTIAL_SUCCESS: Status = -52;
pub const ERR_DUPLICATE_KEY: Status = -53;
pub const ERR_OUT_OF_RESOURCE: Status = -29;
/// A process's connection ended before it sent finalize.
pub const ERR_LOST_CONNECTION: Status = -61;
/// The handler has processed an event, and no further handler needs it.
pub const EVENT_ACTION_COMPLETE: Status = -334;
/// Completed synchronously: the callback is not called.
pub const OPERATION_SUCCEEDED: Status = -157;

/// `PMIX_INFO_REQD`: the caller wants an error if the attribute is not supported, instead of having
/// it ignored.
pub const INFO_REQUIRED: u32 = 1;
/// `PMIX_RANGE_NAMESPACE`: the ranks of one launch.
pub const RANGE_NAMESPACE: u8 = 3;
/// `PMIX_RANGE_UNDEF`, `PMIX_RANGE_NAMESPACE`, `PMIX_RANGE_SESSION`
pub const RANGES: [u8; 3] = [0, RANGE_NAMESPACE, 4];
/// `PMIX_PERSIST_INDEF`, `PMIX_PERSIST_APP`, `PMIX_PERSIST_SESSION`
pub const PERSISTENCES: [u8; 3] = [0, 3, 4];
/// `PMIX_RANK_WILDCARD`
pub const RANK_WILDCARD: u32 = u32::MAX - 1;
/// `PMIX_MAX_NSLEN` + 1
pub const NAMESPACE_BYTES: usize = 256;
/// `PMIX_MAX_KEYLEN` + 1
pub const KEY_BYTES: usize = 512;

/// `pmix_data_type_t`
pub mod data_type {
    pub const BOOL: u16 = 1;
    pub const STRING: u16 = 3;
    pub const INT: u16 = 6;
    pub const UINT16: u16 = 13;
    pub const UINT32: u16 = 14;
    pub const DOUBLE: u16 = 17;
    pub const PROC: u16 = 22;
    pub const INFO: u16 = 24;
    pub const BYTE_OBJECT: u16 = 27;
    pub const PERSIST: u16 = 30;
    pub const DATA_RANGE: u16 = 33;
    pub const DATA_ARRAY: u16 = 39;
    pub const PROC_RANK: u16 = 40;
}

/// `pmix_proc_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Proc {
    pub namespace: [c_char; NAMESPACE_BYTES],
    pub rank: u32,
}

/// `pmix_data_array_t`
#[repr(C)]
pub struct DataArray {
    pub data_type: u16,
    pub size: usize,
    pub array: *mut c_void,
}

/// `pmix_byte_object_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ByteObject {
    pub bytes: *const c_char,
    pub size: usize,
}

/// The used members of the union in `pmix_value_t`. Its largest member is `pmix_envar_t`, two
/// pointers and a character.
#[repr(C)]
#[derive(Clone, Copy)]
pub union Data {
    pub flag: bool,
    pub string: *const c_char,
    pub uint16: u16,
    pub uint32: u32,
    pub array: *mut DataArray,
    pub proc: *const Proc,
    pub byte: u8,
    pub object: ByteObject,
    pub widest: [u64; 3],
}

/// `pmix_value_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Value {
    pub data_type: u16,
    pub data: Data,
}

/// `pmix_info_t`
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Info {
    pub key: [c_char; KEY_BYTES],
    pub flags: u32,
    pub value: Value,
}

/// `pmix_pdata_t`
#[repr(C)]
pub struct Found {
    pub publisher: Proc,
    pub key: [c_char; KEY_BYTES],
    pub value: Value,
}

/// `pmix_op_cbfunc_t`
pub type OpCallback = Option<unsafe extern "C" fn(Status, *mut c_void)>;
/// `pmix_release_cbfunc_t`
pub type ReleaseCallback = Option<unsafe extern "C" fn(*mut c_void)>;
/// `pmix_modex_cbfunc_t`
pub type ModexCallback = Option<unsafe extern "C" fn(Status, *const c_char, usize, *mut c_void, ReleaseCallback, *mut c_void)>;

/// `pmix_server_client_connected_fn_t`, `pmix_server_client_finalized_fn_t`
pub type ClientFn = unsafe extern "C" fn(*const Proc, *mut c_void, OpCallback, *mut c_void) -> Status;
/// `pmix_server_abort_fn_t`
pub type AbortFn =
    unsafe extern "C" fn(*const Proc, *mut c_void, c_int, *const c_char, *mut Proc, usize, OpCallback, *mut c_void) -> Status;
/// `pmix_server_fencenb_fn_t`
pub type FenceFn = unsafe extern "C" fn(*const Proc, usize, *const Info, usize, *mut c_char, usize, ModexCallback, *mut c_void) -> Status;

/// `pmix_server_dmodex_req_fn_t`
pub type ModexFn = unsafe extern "C" fn(*const Proc, *const Info, usize, ModexCallback, *mut c_void) -> Status;
/// `pmix_dmodex_response_fn_t`
pub type ModexResponse = Option<unsafe extern "C" fn(Status, *mut c_char, usize, *mut c_void)>;
/// `PMIx_server_dmodex_request`
pub type RequestModex = unsafe extern "C" fn(*const Proc, ModexResponse, *mut c_void) -> Status;
/// `pmix_lookup_cbfunc_t`
pub type LookupCallback = Option<unsafe extern "C" fn(Status, *mut Found, usize, *mut c_void)>;
/// `pmix_server_publish_fn_t`
pub type PublishFn = unsafe extern "C" fn(*const Proc, *const Info, usize, OpCallback, *mut c_void) -> Status;
/// `pmix_server_lookup_fn_t`
pub type LookupFn = unsafe extern "C" fn(*const Proc, *mut *mut c_char, *const Info, usize, LookupCallback, *mut c_void) -> Status;
/// `pmix_server_unpublish_fn_t`
pub type UnpublishFn = unsafe extern "C" fn(*const Proc, *mut *mut c_char, *const Info, usize, OpCallback, *mut c_void) -> Status;

/// Number of callbacks left null: 20 in 4.2, 21 in 5.0, and space for as many again.
pub const NOT_GIVEN: usize = 48;

/// `pmix_server_module_t`: the callbacks that we provide; the others are null, and the library
/// refuses their requests with `PMIX_ERR_NOT_SUPPORTED`.
#[repr(C)]
pub struct Module {
    pub client_connected: Option<ClientFn>,
    pub client_finalized: Option<ClientFn>,
    pub abort: Option<AbortFn>,
    pub fence_nb: Option<FenceFn>,
    pub direct_modex: Option<ModexFn>,
    pub publish: Option<PublishFn>,
    pub lookup: Option<LookupFn>,
    pub unpublish: Option<UnpublishFn>,
    /// The callbacks from spawn on.
    pub not_given: [*const c_void; NOT_GIVEN],
}

/// `PMIx_Get_version`
pub type GetVersion = unsafe extern "C" fn() -> *const c_char;
/// `PMIx_Error_string`
pub type ErrorString = unsafe extern "C" fn(Status) -> *const c_char;
/// `PMIx_server_init`
pub type ServerInit = unsafe extern "C" fn(*mut Module, *mut Info, usize) -> Status;
/// `PMIx_generate_regex`, `PMIx_generate_ppn`
pub type Generate = unsafe extern "C" fn(*const c_char, *mut *mut c_char) -> Status;
/// `PMIx_server_register_nspace`
pub type RegisterNamespace = unsafe extern "C" fn(*const c_char, c_int, *mut Info, usize, OpCallback, *mut c_void) -> Status;
/// `PMIx_server_register_client`
pub type RegisterClient = unsafe extern "C" fn(*const Proc, libc::uid_t, libc::gid_t, *mut c_void, OpCallback, *mut c_void) -> Status;
/// `PMIx_Notify_event`
pub type NotifyEvent = unsafe extern "C" fn(Status, *const Proc, u8, *const Info, usize, OpCallback, *mut c_void) -> Status;
/// `pmix_event_notification_cbfunc_fn_t`
pub type EventHandled = Option<unsafe extern "C" fn(Status, *mut Info, usize, OpCallback, *mut c_void, *mut c_void)>;
/// `pmix_notification_fn_t`: the handler's number, the event, its source, its attributes, other
/// handlers' results, and the callback for when it is handled.
pub type EventHandler = unsafe extern "C" fn(usize, Status, *const Proc, *mut Info, usize, *mut Info, usize, EventHandled, *mut c_void);
/// `PMIx_Register_event_handler`. Without a callback it returns the handler's number, or an error,
/// which is negative.
pub type RegisterEventHandler =
    unsafe extern "C" fn(*mut Status, usize, *mut Info, usize, EventHandler, *const c_void, *mut c_void) -> Status;
/// `PMIx_server_setup_fork`
pub type SetupFork = unsafe extern "C" fn(*const Proc, *mut *mut *mut c_char) -> Status;

/// A namespace's name that does not fit into the library's type.
#[derive(Debug, Error)]
#[error("the name {0} is too long")]
pub struct NameTooLong(String);

/// The library's identifier of a rank in a namespace.
pub fn proc_of(namespace: &str, rank: u32) -> Result<Proc, NameTooLong> {
    let mut made = Proc { namespace: [0; _], rank };
    if namespace.len() >= made.namespace.len() {
        return Err(NameTooLong(namespace.to_owned()));
    }
    for (to, from) in made.namespace.iter_mut().zip(namespace.bytes()) {
        *to = from.cast_signed();
    }
    Ok(made)
}

/// A rank's number, in a callback on the library's thread.
///
/// # Safety
/// `who` is null or points to a rank.
pub unsafe fn rank_of(who: *const Proc) -> Option<u32> {
    // SAFETY: see above.
    unsafe { who.as_ref() }.map(|who| who.rank)
}

/// Passes bytes to the library; they live until it calls `release`.
///
/// # Safety
/// `cbdata` is what came with the callback.
pub unsafe fn pass_bytes(
    done: unsafe extern "C" fn(Status, *const c_char, usize, *mut c_void, ReleaseCallback, *mut c_void),
    status: Status,
    data: Vec<u8>,
    cbdata: *mut c_void,
) {
    let data = Box::new(data);
    let (bytes, count) = (data.as_ptr().cast::<c_char>(), data.len());
    // SAFETY: see above.
    unsafe { done(status, bytes, count, cbdata, Some(release), Box::into_raw(data).cast()) };
}

/// # Safety
/// `data` was passed by [`pass_bytes`] and is released once.
unsafe extern "C" fn release(data: *mut c_void) {
    if !data.is_null() {
        // SAFETY: see above.
        drop(unsafe { Box::from_raw(data.cast::<Vec<u8>>()) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::mem::{offset_of, size_of};
    use std::process::{Command, Stdio};

    /// A C program that prints the values from the installed headers.
    const PROGRAM: &str = r#"
#include <stddef.h>
#include <stdio.h>
#include <pmix_server.h>
int main(void) {
    printf("%zu\n", sizeof(pmix_server_module_t));
    printf("%zu %zu\n", sizeof(pmix_proc_t), offsetof(pmix_proc_t, rank));
    printf("%zu %zu %zu\n", sizeof(pmix_data_array_t), offsetof(pmix_data_array_t, size), offsetof(pmix_data_array_t, array));
    printf("%zu %zu\n", sizeof(pmix_value_t), offsetof(pmix_value_t, data));
    printf("%zu %zu %zu\n", sizeof(pmix_info_t), offsetof(pmix_info_t, flags), offsetof(pmix_info_t, value));
    printf("%zu %zu\n", offsetof(pmix_server_module_t, abort), offsetof(pmix_server_module_t, fence_nb));
    printf("%zu %zu\n", offsetof(pmix_server_module_t, publish), offsetof(pmix_server_module_t, unpublish));
    printf("%zu %zu %zu\n", sizeof(pmix_pdata_t), offsetof(pmix_pdata_t, key), offsetof(pmix_pdata_t, value));
    printf("%zu %zu\n", sizeof(pmix_byte_object_t), offsetof(pmix_byte_object_t, size));
    printf("%d %d %d %d %d\n", PMIX_ERR_NOT_FOUND, PMIX_ERR_PARTIAL_SUCCESS, PMIX_ERR_DUPLICATE_KEY, PMIX_ERR_OUT_OF_RESOURCE, PMIX_INFO_REQD);
    printf("%d %d %d\n", PMIX_INT, PMIX_PROC, PMIX_ERR_PROC_ABORTED);
    printf("%d %d\n", PMIX_ERR_LOST_CONNECTION, PMIX_EVENT_ACTION_COMPLETE);
    printf("%d %d %d %d\n", PMIX_DOUBLE, PMIX_BYTE_OBJECT, PMIX_PERSIST, PMIX_DATA_RANGE);
    printf("%d %d %d\n", PMIX_RANGE_UNDEF, PMIX_RANGE_NAMESPACE, PMIX_RANGE_SESSION);
    printf("%d %d %d\n", PMIX_PERSIST_INDEF, PMIX_PERSIST_APP, PMIX_PERSIST_SESSION);
    printf("%d %d %d %u\n", PMIX_SUCCESS, PMIX_ERR_NOT_SUPPORTED, PMIX_OPERATION_SUCCEEDED, (unsigned)PMIX_RANK_WILDCARD);
    printf("%d %d %d %d %d %d %d\n", PMIX_BOOL, PMIX_STRING, PMIX_UINT16, PMIX_UINT32, PMIX_INFO, PMIX_DATA_ARRAY, PMIX_PROC_RANK);
    return 0;
}
"#;

    #[test]
    fn the_declarations_match_the_installed_headers() {
        let folder = std::env::temp_dir().join(format!("lattice-pmix-abi-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let program = folder.join("abi");
        let flags = Command::new("pkg-config").args(["--cflags", "pmix"]).output();
        let flags = flags.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned()).unwrap_or_default();
        let compiler =
            Command::new("cc").args(flags.split_whitespace()).args(["-x", "c", "-", "-o"]).arg(&program).stdin(Stdio::piped()).spawn();
        let compiled = compiler.and_then(|mut child| {
            child.stdin.take().expect("it was piped").write_all(PROGRAM.as_bytes())?;
            child.wait()
        });
        if !compiled.is_ok_and(|status| status.success()) {
            let _ = std::fs::remove_dir_all(&folder);
            assert!(std::env::var_os("LATTICE_TEST_REQUIRE_ALL").is_none(), "no C compiler with the headers of PMIx: libpmix-dev");
            return eprintln!("cannot run here: no C compiler with the headers of PMIx");
        }
        let output = Command::new(&program).output().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let ours = format!(
            "{} {}\n{} {} {}\n{} {}\n{} {} {}\n{} {}\n{} {}\n{} {} {}\n{} {}\n{} {} {} {} {}\n{} {} {}\n{} {}\n{} {} {} {}\n{}\n{}\n{} {} {} {}\n{} {} {} {} {} {} {}\n",
            size_of::<Proc>(),
            offset_of!(Proc, rank),
            size_of::<DataArray>(),
            offset_of!(DataArray, size),
            offset_of!(DataArray, array),
            size_of::<Value>(),
            offset_of!(Value, data),
            size_of::<Info>(),
            offset_of!(Info, flags),
            offset_of!(Info, value),
            offset_of!(Module, abort),
            offset_of!(Module, fence_nb),
            offset_of!(Module, publish),
            offset_of!(Module, unpublish),
            size_of::<Found>(),
            offset_of!(Found, key),
            offset_of!(Found, value),
            size_of::<ByteObject>(),
            offset_of!(ByteObject, size),
            ERR_NOT_FOUND,
            ERR_PARTIAL_SUCCESS,
            ERR_DUPLICATE_KEY,
            ERR_OUT_OF_RESOURCE,
            INFO_REQUIRED,
            data_type::INT,
            data_type::PROC,
            ERR_PROC_ABORTED,
            ERR_LOST_CONNECTION,
            EVENT_ACTION_COMPLETE,
            data_type::DOUBLE,
            data_type::BYTE_OBJECT,
            data_type::PERSIST,
            data_type::DATA_RANGE,
            RANGES.map(|range| range.to_string()).join(" "),
            PERSISTENCES.map(|persistence| persistence.to_string()).join(" "),
            SUCCESS,
            ERR_NOT_SUPPORTED,
            OPERATION_SUCCEEDED,
            RANK_WILDCARD,
            data_type::BOOL,
            data_type::STRING,
            data_type::UINT16,
            data_type::UINT32,
            data_type::INFO,
            data_type::DATA_ARRAY,
            data_type::PROC_RANK,
        );
        let output = String::from_utf8_lossy(&output.stdout);
        let (module_bytes, output) = output.split_once('\n').expect("several lines");
        assert_eq!(output, ours);
        // The library reads only the callbacks that it knows.
        assert!(module_bytes.parse::<usize>().is_ok_and(|bytes| bytes <= size_of::<Module>()), "{module_bytes} bytes of callbacks");
    }
}
