//! Local time, by this machine's zone or `TZ`.

use lattice_slurm::time::Zone;
use std::mem::MaybeUninit;

/// The zone of this process.
#[derive(Clone, Copy, Debug)]
pub struct LocalZone;

impl Zone for LocalZone {
    fn offset_seconds(&self, unix_seconds: i64) -> i64 {
        let mut parts = MaybeUninit::<libc::tm>::zeroed();
        // SAFETY: both pointers are valid for the call, and all zeros are a valid `tm`.
        let found = unsafe { libc::localtime_r(&raw const unix_seconds, parts.as_mut_ptr()) };
        if found.is_null() {
            return 0;
        }
        // SAFETY: it was zeroed, and the call has filled it in.
        unsafe { parts.assume_init() }.tm_gmtoff
    }
}
