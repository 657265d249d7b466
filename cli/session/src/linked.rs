//! The wire-up that a program needs, from its ELF file: the libraries that it is linked with, and whether it loads
//! others or starts other programs at run time.

use lattice_model::launch::Pmi;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Program headers that are read: programs have about a dozen.
const PROGRAM_HEADERS_MAX: u64 = 128;
/// Bytes of a dynamic section, and of its strings, that are read.
const SECTION_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// The libraries of Open MPI from version 2 on, and of PMIx. (`libmpi.so.12` is MPICH's ABI.)
const OPEN_MPI: [&str; 12] = [
    "libmpi.so.20",
    "libmpi.so.40",
    "libmpi_cxx.so.",
    "libmpi_mpifh.so.",
    "libmpi_usempi",
    "libmpi_java.so.",
    "liboshmem.so.",
    "libopen-rte.so.",
    "libopen-pal.so.",
    "libopen_pal.so.",
    "libpmix.so.",
    "libmpi_ibm.so.",
];
/// The libraries of MPICH and its relatives, and of PMI.
const PMI: [&str; 7] = ["libmpich", "libmpi.so.12", "libmpicxx.so.12", "libmpifort.so.12", "libmpi_cray.so.", "libpmi.so.", "libpmi2.so."];
/// Libraries that load no MPI.
const LIBRARIES_WITHOUT_MPI: [&str; 11] = [
    "libc.so.",
    "libm.so.",
    "libmvec.so.",
    "libpthread.so.",
    "librt.so.",
    "libdl.so.",
    "libgcc_s.so.",
    "libstdc++.so.",
    "libgomp.so.",
    "ld-linux",
    "linux-vdso.so.",
];
/// Symbols of a program that loads libraries or starts programs at run time. A name that ends in one of them counts
/// too, because linkers merge names with equal ends.
const RUNTIME_LOADING_SYMBOLS: [&str; 14] = [
    "dlopen",
    "dlmopen",
    "execl",
    "execlp",
    "execle",
    "execv",
    "execve",
    "execvp",
    "execvpe",
    "fexecve",
    "posix_spawn",
    "posix_spawnp",
    "system",
    "popen",
];

/// The wire-up of this program's ranks if no option chooses it: [`Pmi::AutoPmix`] if it is linked with Open MPI or
/// PMIx, [`Pmi::AutoPmi`] if it can use only PMI, [`Pmi::Auto`] if that is unknown.
pub fn wireup(program: &str, dir: &Path, env: &HashMap<String, String>) -> Pmi {
    let names = find_program(program, dir, env).and_then(|path| Linked::read(&path));
    names.map_or(Pmi::Auto, |linked| linked.wireup())
}

/// Whether a program is linked with an MPI.
pub fn is_mpi(program: &str, dir: &Path, env: &HashMap<String, String>) -> bool {
    find_program(program, dir, env).and_then(|path| Linked::read(&path)).is_some_and(|linked| linked.is_mpi())
}

/// The wire-up of a launch of several programs: one that works for all of them.
pub fn combine(programs: impl Iterator<Item = Pmi>) -> Pmi {
    let all: Vec<Pmi> = programs.collect();
    let one = |wanted| all.iter().all(|pmi| *pmi == wanted);
    if all.contains(&Pmi::AutoPmix) {
        Pmi::AutoPmix
    } else if one(Pmi::AutoPmi) {
        Pmi::AutoPmi
    } else {
        Pmi::Auto
    }
}

/// The file that a rank would run.
fn find_program(program: &str, dir: &Path, env: &HashMap<String, String>) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(dir.join(program));
    }
    let path = env.get("PATH")?;
    path.split(':').map(|folder| dir.join(folder).join(program)).find(|file| file.is_file())
}

/// The entries of a program's dynamic section.
#[derive(Debug, Default, PartialEq, Eq)]
struct Linked {
    libraries: Vec<String>,
    /// Whether it loads libraries or starts programs at run time.
    loads_at_runtime: bool,
}

impl Linked {
    fn has_any(&self, families: &[&str]) -> bool {
        self.libraries.iter().any(|name| families.iter().any(|family| name.starts_with(family)))
    }

    fn is_mpi(&self) -> bool {
        self.has_any(&OPEN_MPI) || self.has_any(&PMI)
    }

    fn wireup(&self) -> Pmi {
        let all_plain = self.libraries.iter().all(|name| LIBRARIES_WITHOUT_MPI.iter().any(|plain| name.starts_with(plain)));
        match (self.has_any(&OPEN_MPI), self.has_any(&PMI)) {
            (true, false) => Pmi::AutoPmix,
            (false, true) => Pmi::AutoPmi,
            (false, false) if all_plain && !self.loads_at_runtime => Pmi::AutoPmi,
            (true, true) | (false, false) => Pmi::Auto,
        }
    }

    /// Reads a dynamically linked program for 64-bit machines of this byte order; `None` for anything else.
    fn read(path: &Path) -> Option<Self> {
        // Non-blocking: opening a pipe would wait for its writer.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path).ok()?;
        if !file.metadata().ok()?.is_file() {
            return None;
        }
        let head = bytes(&file, 0, 64)?;
        if !head.starts_with(b"\x7fELF\x02\x01") || cfg!(target_endian = "big") {
            return None;
        }
        let (offset, size, count) = (u64_at(&head, 32)?, u64::from(u16_at(&head, 54)?), u64::from(u16_at(&head, 56)?));
        if size != 56 || count > PROGRAM_HEADERS_MAX {
            return None;
        }
        let headers = bytes(&file, offset, size * count)?;
        let segments: Vec<Segment> = headers.chunks_exact(56).map(Segment::of).collect::<Option<_>>()?;
        let dynamic = segments.iter().find(|segment| segment.kind == 2)?;
        let entries = bytes(&file, dynamic.offset, dynamic.size)?;
        let entries: Vec<(u64, u64)> = entries.chunks_exact(16).map(|e| Some((u64_at(e, 0)?, u64_at(e, 8)?))).collect::<Option<_>>()?;
        let value = |tag| entries.iter().find(|entry| entry.0 == tag).map(|entry| entry.1);
        let (at, length) = (value(5)?, value(10)?);
        // The strings are given by their address in memory, in one of the loaded segments.
        let loaded = segments.iter().find(|s| s.kind == 1 && at >= s.address && at - s.address < s.size)?;
        let strings = bytes(&file, loaded.offset.checked_add(at - loaded.address)?, length)?;
        let name = |offset: u64| {
            let rest = strings.get(usize::try_from(offset).ok()?..)?;
            Some(String::from_utf8_lossy(rest.split(|byte| *byte == 0).next()?).into_owned())
        };
        let libraries = entries.iter().filter(|entry| entry.0 == 1).map(|entry| name(entry.1)).collect::<Option<_>>()?;
        let loads_at_runtime =
            strings.split(|byte| *byte == 0).any(|symbol| RUNTIME_LOADING_SYMBOLS.iter().any(|name| symbol.ends_with(name.as_bytes())));
        Some(Self { libraries, loads_at_runtime })
    }
}

struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    size: u64,
}

impl Segment {
    fn of(header: &[u8]) -> Option<Self> {
        let kind = u32::from_le_bytes(header.get(..4)?.try_into().ok()?);
        Some(Self { kind, offset: u64_at(header, 8)?, address: u64_at(header, 16)?, size: u64_at(header, 32)? })
    }
}

fn bytes(file: &File, offset: u64, length: u64) -> Option<Vec<u8>> {
    if length > SECTION_BYTES_MAX {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linked(libraries: &[&str], loads_at_runtime: bool) -> Pmi {
        Linked { libraries: libraries.iter().map(|name| (*name).to_owned()).collect(), loads_at_runtime }.wireup()
    }

    #[test]
    fn libraries_say_what_a_program_needs() {
        assert_eq!(linked(&["libmpi.so.40", "libc.so.6"], false), Pmi::AutoPmix);
        assert_eq!(linked(&["libpmix.so.2", "libc.so.6"], true), Pmi::AutoPmix);
        assert_eq!(linked(&["libmpich.so.12", "libc.so.6"], true), Pmi::AutoPmi);
        assert_eq!(linked(&["libmpich.so.12", "libpmix.so.2"], false), Pmi::Auto, "either may be what it is wired up by");
        assert_eq!(linked(&["libc.so.6"], false), Pmi::AutoPmi);
        assert_eq!(linked(&["libc.so.6"], true), Pmi::Auto, "a shell starts programs");
        assert_eq!(linked(&["libc.so.6", "libhdf5_openmpi.so.103"], false), Pmi::Auto);
    }

    #[test]
    fn a_program_is_mpi_by_its_libraries() {
        let linked = |library: &str| Linked { libraries: vec!["libc.so.6".to_owned(), library.to_owned()], loads_at_runtime: false };
        let found = ["libmpi.so.40", "libmpich.so.12", "libm.so.6"].map(|library| linked(library).is_mpi());
        assert_eq!(found, [true, true, false]);
        assert!(!is_mpi("/bin/true", Path::new("/"), &HashMap::new()));
    }

    #[test]
    fn the_wireup_of_several_programs_works_for_all_of_them() {
        let all = |programs: &[Pmi]| combine(programs.iter().copied());
        assert_eq!(all(&[Pmi::AutoPmi, Pmi::Auto, Pmi::AutoPmix]), Pmi::AutoPmix);
        assert_eq!((all(&[Pmi::AutoPmi, Pmi::Auto]), all(&[Pmi::AutoPmi, Pmi::AutoPmi])), (Pmi::Auto, Pmi::AutoPmi));
    }

    #[test]
    fn programs_of_this_machine_are_examined_and_other_files_are_unknown() {
        let env: HashMap<String, String> = [("PATH".to_owned(), "/nowhere:/usr/bin:/bin".to_owned())].into();
        let of = |program: &str| wireup(program, Path::new("/"), &env);
        assert_eq!((of("true"), of("/bin/true"), of("bin/true")), (Pmi::AutoPmi, Pmi::AutoPmi, Pmi::AutoPmi));
        assert_eq!((of("sh"), of("/bin/bash"), of("env")), (Pmi::Auto, Pmi::Auto, Pmi::Auto));
        assert_eq!((of("no-such-program"), of("/etc/passwd"), of("/dev/zero"), of("/")), (Pmi::Auto, Pmi::Auto, Pmi::Auto, Pmi::Auto));
    }

    #[test]
    fn a_truncated_or_damaged_program_does_not_panic() {
        let whole = std::fs::read("/bin/true").unwrap();
        let file = std::env::temp_dir().join(format!("lattice-linked-{}", std::process::id()));
        let mut random = 1u64;
        for round in 0..2_000usize {
            let mut bytes = whole[..if round % 4 == 0 { round * whole.len() / 2_000 } else { whole.len() }].to_vec();
            for _ in 0..3 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = (random >> 33) as usize % 1_024;
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = (random >> 20) as u8;
                }
            }
            std::fs::write(&file, &bytes).unwrap();
            let _ = Linked::read(&file);
        }
        std::fs::remove_file(&file).unwrap();
    }
}
