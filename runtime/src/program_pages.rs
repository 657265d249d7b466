//! The resident pages of a program's own code.
//!
//! A start uses most of a program, and the kernel maps 64 KiB around each used page. Hardly any of
//! that is needed again, but the kernel reclaims mapped program pages last, and a node's memory is
//! for its work. So a daemon unmaps them once, after its start. They remain in the page cache while
//! there is free memory, and a page that is needed again is mapped at its next use.

use std::io;
use std::ops::Range;

/// Unmaps this program's own text. Returns the size of the unmapped address ranges, in bytes.
///
/// # Errors
/// `/proc/self` cannot be read, or madvise(2) fails.
pub fn unmap() -> io::Result<usize> {
    let program = std::fs::read_link("/proc/self/exe")?;
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let texts = program_text(&maps, &program.to_string_lossy());
    for text in &texts {
        // SAFETY: an executable, private, unwritable mapping of this process has the contents of
        // its file, and its pages are read from there again after this call. Only the kernel's page
        // tables change, not the contents of any address.
        if unsafe { libc::madvise(std::ptr::with_exposed_provenance_mut(text.start), text.len(), libc::MADV_DONTNEED) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(texts.iter().map(Range::len).sum())
}

/// The ranges with this program's code in `maps` (proc_pid_maps(5)): executable and not writable.
/// The program's other read-only mappings may have been written while it was loaded.
fn program_text(maps: &str, program: &str) -> Vec<Range<usize>> {
    let text = |line: &str| {
        // Fields: address, permissions, offset, device, inode, then the path, which may contain
        // spaces.
        let mut words = line.split_ascii_whitespace();
        let (addresses, permissions) = (words.next()?, words.next()?);
        let path = line.get(line.find('/')?..)?;
        let (start, end) = addresses.split_once('-')?;
        let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
        (permissions == "r-xp" && path == program).then_some(range)
    };
    maps.lines().filter_map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_programs_code_is_unmapped() {
        let maps = "1000-2000 r--p 00000000 fe:00 7                          /usr/bin/an agent\n\
                    2000-5000 r-xp 00001000 fe:00 7                          /usr/bin/an agent\n\
                    5000-6000 r--p 00004000 fe:00 7                          /usr/bin/an agent\n\
                    6000-7000 rw-p 00000000 00:00 0                          [heap]\n\
                    7000-9000 r-xp 00000000 fe:00 9                          /usr/lib/libc.so.6\n\
                    a000-b000 r-xp 00000000 00:00 0                          [vdso]\n";
        assert_eq!(program_text(maps, "/usr/bin/an agent"), [Range { start: 0x2000, end: 0x5000 }]);
        assert!(program_text(maps, "/usr/bin/an").is_empty());
        assert!(program_text("not\nof this form\n", "/usr/bin/an agent").is_empty());
    }
}
