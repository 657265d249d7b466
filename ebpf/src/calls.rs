//! The numbers of the audited system calls in this machine's kernel.

use crate::layout::{CALL_ACCEPT, CALL_COMPAT, CALL_CONNECT, CALL_CREAT, CALL_OPEN, CALL_OPENAT, CALL_OPENAT2, COMPAT};

/// Calls of native programs: number, kind, name.
#[cfg(target_arch = "x86_64")]
const CALLS: &[(u32, u32, &str)] = &[
    (2, CALL_OPEN, "open"),
    (42, CALL_CONNECT, "connect"),
    (43, CALL_ACCEPT, "accept"),
    (85, CALL_CREAT, "creat"),
    (257, CALL_OPENAT, "openat"),
    (288, CALL_ACCEPT, "accept4"),
    (437, CALL_OPENAT2, "openat2"),
];
#[cfg(target_arch = "aarch64")]
const CALLS: &[(u32, u32, &str)] = &[
    (56, CALL_OPENAT, "openat"),
    (202, CALL_ACCEPT, "accept"),
    (203, CALL_CONNECT, "connect"),
    (242, CALL_ACCEPT, "accept4"),
    (437, CALL_OPENAT2, "openat2"),
];

/// Calls of 32-bit programs. `socketcall` is one number for all socket operations.
#[cfg(target_arch = "x86_64")]
const CALLS_32: &[(u32, &str)] =
    &[(5, "open"), (8, "creat"), (102, "socketcall"), (295, "openat"), (362, "connect"), (364, "accept4"), (437, "openat2")];
#[cfg(target_arch = "aarch64")]
const CALLS_32: &[(u32, &str)] =
    &[(5, "open"), (8, "creat"), (283, "connect"), (285, "accept"), (322, "openat"), (366, "accept4"), (437, "openat2")];

/// Flag in a call's number: an x32 call. For these calls, x32 has the same numbers and registers.
#[cfg(target_arch = "x86_64")]
const X32: u32 = 1 << 30;

/// Each number with its kind, for the kernel programs.
pub fn kinds() -> Vec<(u32, u32)> {
    let own = CALLS.iter().map(|(number, kind, _)| (*number, *kind));
    #[cfg(target_arch = "x86_64")]
    let own = own.clone().chain(own.map(|(number, kind)| (number | X32, kind)));
    own.chain(CALLS_32.iter().map(|(number, _)| (number | COMPAT, CALL_COMPAT))).collect()
}

/// The name of a call; `kind` is its value in [`kinds`].
pub fn name(kind: u32, number: u32) -> Option<&'static str> {
    if kind == CALL_COMPAT {
        return CALLS_32.iter().find(|(of, _)| *of == number).map(|(_, name)| *name);
    }
    #[cfg(target_arch = "x86_64")]
    let number = number & !X32;
    CALLS.iter().find(|(of, ..)| *of == number).map(|(.., name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::CALLS_MAX;
    use std::collections::BTreeMap;

    #[test]
    fn every_number_is_listed_once_with_a_name_and_32_bit_calls_are_kept_apart() {
        let kinds = kinds();
        let by_number: BTreeMap<u32, u32> = kinds.iter().copied().collect();
        assert_eq!(by_number.len(), kinds.len());
        assert!(kinds.len() <= CALLS_MAX as usize);
        for (number, kind) in kinds {
            assert!(name(kind, number & !COMPAT).is_some(), "{number}");
            assert_eq!(number & COMPAT != 0, kind == CALL_COMPAT);
        }
        // The same number is `fstat` for one ABI and `open` for the other.
        assert_eq!((by_number.get(&5), by_number.get(&(5 | COMPAT))), (None, Some(&CALL_COMPAT)));
    }
}
