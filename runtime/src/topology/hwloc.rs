//! The machine's topology from hwloc, for programs that use hwloc. MPI libraries read it in every rank: hundreds of
//! files and, on many machines, each PCI device's configuration (9 s with 128 ranks on a node: openpmix#2036).
//!
//! The few needed functions of hwloc 2 (`hwloc.h`, `hwloc/export.h`) are loaded if the library is installed, like those
//! of the GPU vendors' libraries.

use libloading::{Library, Symbol};
use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::ptr;
use thiserror::Error;

/// hwloc 2, every minor version of it.
pub const LIBRARY: &str = "libhwloc.so.15";
/// `HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED`: each reader of the file applies its own restrictions.
const INCLUDE_DISALLOWED: c_ulong = 1;
/// `HWLOC_TYPE_FILTER_KEEP_ALL`: readers leave out what they do not need.
const KEEP_ALL: c_int = 0;
/// `HWLOC_TOPOLOGY_EXPORT_XML_FLAG_V1`: hwloc 1 reads only this, hwloc 2 reads both.
const VERSION_1: c_ulong = 1;

type Init = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
type Destroy = unsafe extern "C" fn(*mut c_void);
type SetFlags = unsafe extern "C" fn(*mut c_void, c_ulong) -> c_int;
type SetFilter = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
type Load = unsafe extern "C" fn(*mut c_void) -> c_int;
type Export = unsafe extern "C" fn(*mut c_void, *mut *mut c_char, *mut c_int, c_ulong) -> c_int;
type Free = unsafe extern "C" fn(*mut c_void, *mut c_char);

/// What hwloc could not do.
#[derive(Debug, Error)]
pub enum ExportError {
    /// Usually the library is not installed.
    #[error("{LIBRARY} cannot be loaded ({0}): install hwloc 2")]
    LoadLibrary(#[source] libloading::Error),
    /// The library lacks a function.
    #[error("{LIBRARY}: {0}")]
    FindFunction(#[source] libloading::Error),
    /// Creating a topology.
    #[error("hwloc_topology_init failed")]
    Init,
    /// Choosing the objects that the topology has.
    #[error("hwloc refuses the topology filters")]
    Configure,
    /// Reading the machine.
    #[error("hwloc_topology_load failed")]
    Load,
    /// Writing the XML.
    #[error("hwloc_topology_export_xmlbuffer failed")]
    Export,
}

/// Reads the machine, and returns it as XML of hwloc's version 1. Takes tens of milliseconds and the library's memory:
/// call it in a process of its own. Errors: there is no such library, or one of its functions failed.
pub fn export() -> Result<Vec<u8>, ExportError> {
    // SAFETY: it is the system's own library; what it does when it is loaded is its makers' responsibility.
    let library = unsafe { Library::new(LIBRARY) }.map_err(ExportError::LoadLibrary)?;
    let init = function::<Init>(&library, "hwloc_topology_init")?;
    let destroy = function::<Destroy>(&library, "hwloc_topology_destroy")?;
    let mut topology = ptr::null_mut();
    // SAFETY: declared so by the header; it gives a topology that is ours to destroy.
    if unsafe { init(&mut topology) } != 0 {
        return Err(ExportError::Init);
    }
    let exported = read(&library, topology);
    // SAFETY: created above, and no longer used.
    unsafe { destroy(topology) };
    exported
}

fn read(library: &Library, topology: *mut c_void) -> Result<Vec<u8>, ExportError> {
    let set_flags = function::<SetFlags>(library, "hwloc_topology_set_flags")?;
    let set_filter = function::<SetFilter>(library, "hwloc_topology_set_all_types_filter")?;
    let load = function::<Load>(library, "hwloc_topology_load")?;
    let export = function::<Export>(library, "hwloc_topology_export_xmlbuffer")?;
    let free = function::<Free>(library, "hwloc_free_xmlbuffer")?;
    let (mut text, mut bytes) = (ptr::null_mut(), 0);
    // SAFETY: a topology that was initialised, in the order that the header asks for; the buffer is given by the last
    // call alone, and is a text that ends with a zero byte.
    unsafe {
        if set_flags(topology, INCLUDE_DISALLOWED) != 0 || set_filter(topology, KEEP_ALL) != 0 {
            return Err(ExportError::Configure);
        }
        if load(topology) != 0 {
            return Err(ExportError::Load);
        }
        if export(topology, &mut text, &mut bytes, VERSION_1) != 0 || text.is_null() {
            return Err(ExportError::Export);
        }
        let xml = CStr::from_ptr(text).to_bytes().to_vec();
        free(topology, text);
        Ok(xml)
    }
}

fn function<'l, F>(library: &'l Library, name: &str) -> Result<Symbol<'l, F>, ExportError> {
    // SAFETY: the types are those above, each named there after its function.
    unsafe { library.get::<F>(name.as_bytes()) }.map_err(ExportError::FindFunction)
}
