//! The kernel's files about processes, as in proc_pid_stat(5) and its neighbours.

use std::fs;
use std::sync::OnceLock;

/// `USER_HZ`, which is fixed in all interfaces of Linux.
pub const TICKS_PER_SECOND: f64 = 100.0;

/// The fields of `/proc/<pid>/stat` that are measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    pub parent: i32,
    pub minor_faults: u64,
    /// Of the children that it has waited for, and of those that they had waited for.
    pub children_minor_faults: u64,
    pub major_faults: u64,
    pub children_major_faults: u64,
    pub user_ticks: u64,
    pub system_ticks: u64,
    pub children_user_ticks: u64,
    pub children_system_ticks: u64,
    pub threads: u64,
    /// Since boot.
    pub started_ticks: u64,
    pub virtual_bytes: u64,
    pub resident_pages: u64,
}

impl Stat {
    /// Parses a line. The program's name in it may contain spaces and parentheses, and need not be UTF-8.
    pub fn parse(line: &[u8]) -> Option<Self> {
        let name_ends = line.iter().rposition(|byte| *byte == b')')?;
        let behind = std::str::from_utf8(&line[name_ends + 1..]).ok()?;
        // The manual numbers fields from 1; the third is the first one here.
        let mut fields = [0u64; 25];
        let mut parent = 0;
        let mut seen = 0;
        for (number, field) in (3..).zip(behind.split_ascii_whitespace()).take(22) {
            if number == 4 {
                parent = field.parse().ok()?;
            } else if matches!(number, 10..=17 | 20 | 22..=24) {
                // The times of children and the resident size are signed, and can be negative.
                fields[number] = u64::try_from(field.parse::<i128>().ok()?).unwrap_or(0);
            }
            seen = number;
        }
        (seen == 24).then_some(Self {
            parent,
            minor_faults: fields[10],
            children_minor_faults: fields[11],
            major_faults: fields[12],
            children_major_faults: fields[13],
            user_ticks: fields[14],
            system_ticks: fields[15],
            children_user_ticks: fields[16],
            children_system_ticks: fields[17],
            threads: fields[20],
            started_ticks: fields[22],
            virtual_bytes: fields[23],
            resident_pages: fields[24],
        })
    }
}

/// The number after a name, as in `/proc/<pid>/io`, `memory.stat` or `cpu.stat`; the name without its colon.
pub fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once([' ', ':'])?;
        if key == name { value.split_ascii_whitespace().next()?.parse().ok() } else { None }
    })
}

/// Microseconds that some, or all, processes waited: the totals of a PSI file.
pub fn pressure_totals(text: &str) -> (Option<u64>, Option<u64>) {
    let total = |kind: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
        line.split_ascii_whitespace().find_map(|word| word.strip_prefix("total="))?.parse().ok()
    };
    (total("some "), total("full "))
}

/// The page size in bytes, which the kernel passes to each process at its start (getauxval(3), `AT_PAGESZ`).
pub fn page_bytes() -> u64 {
    const AT_PAGESZ: u64 = 6;
    static PAGE: OnceLock<u64> = OnceLock::new();
    *PAGE.get_or_init(|| {
        let auxv = fs::read("/proc/self/auxv").unwrap_or_default();
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
        auxv.chunks_exact(16).find(|pair| word(&pair[..8]) == AT_PAGESZ).map_or(4096, |pair| word(&pair[8..]))
    })
}

/// Boot time of the machine, in seconds since 1970.
pub fn boot_time_seconds() -> Option<f64> {
    static BOOTED: OnceLock<f64> = OnceLock::new();
    if let Some(seconds) = BOOTED.get() {
        return Some(*seconds);
    }
    let seconds = field(&fs::read_to_string("/proc/stat").ok()?, "btime")? as f64;
    Some(*BOOTED.get_or_init(|| seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let text = "42 (a) b (c) R 7 42 42 0 -1 4194560 11 12 13 14 15 16 17 18 20 0 3 0 9000 8192 2 18446744073709551615 1 1";
        let stat = Stat::parse(text.as_bytes()).unwrap();
        let expected = Stat {
            parent: 7,
            minor_faults: 11,
            children_minor_faults: 12,
            major_faults: 13,
            children_major_faults: 14,
            user_ticks: 15,
            system_ticks: 16,
            children_user_ticks: 17,
            children_system_ticks: 18,
            threads: 3,
            started_ticks: 9000,
            virtual_bytes: 8192,
            resident_pages: 2,
        };
        assert_eq!(stat, expected);
        let no_text = [b"42 (\xff\xfe) ", &text.as_bytes()[text.rfind("R 7").unwrap()..]].concat();
        assert_eq!(Stat::parse(&no_text), Some(expected));
        assert_eq!(Stat::parse(b"42 (a) R 7 42"), None);
        assert_eq!(Stat::parse(b"no line of it"), None);
    }

    #[test]
    fn this_process_is_read() {
        let stat = Stat::parse(&fs::read("/proc/self/stat").unwrap()).unwrap();
        assert!(stat.threads >= 1 && stat.resident_pages > 0 && stat.started_ticks > 0, "{stat:?}");
        assert!(page_bytes().is_power_of_two() && boot_time_seconds().unwrap() > 1e9);
    }

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let stat = "pgfault 10\npgmajfault 3\nusage_usec 5\n";
        assert_eq!((field(stat, "pgfault"), field(stat, "pgmajfault"), field(stat, "usage")), (Some(10), Some(3), None));
        assert_eq!(field("rchar: 7\nread_bytes: 4096\n", "read_bytes"), Some(4096));
        let psi = "some avg10=0.00 avg60=0.00 avg300=0.00 total=12\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5\n";
        assert_eq!((pressure_totals(psi), pressure_totals("")), ((Some(12), Some(5)), (None, None)));
    }
}
