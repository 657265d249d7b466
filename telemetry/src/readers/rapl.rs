//! Energy of processors and memory, from the kernel's powercap files (Documentation/power/powercap/powercap.rst).
//!
//! A zone `intel-rapl:N` is a package (AMD's as well); `intel-rapl:N:M` is a part of it. `energy_uj` counts up to
//! `max_energy_range_uj` and then restarts. Only root may read it, because it reveals what others compute.

use super::Text;
use std::path::{Path, PathBuf};

/// The kernel's directory, below the root.
const ZONES: &str = "sys/class/powercap";
/// Largest number of zones that are read.
const ZONES_MAX: usize = 64;

/// One zone's reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// `package-0`, or `package-0/dram`.
    pub name: String,
    /// The counter in millionths of a joule, and the value at which it restarts.
    pub microjoules: u64,
    pub range_microjoules: u64,
    /// Whether it counts in the node's total: a package, or memory beside it; not a part of a package.
    pub adds: bool,
}

/// The zones of a machine.
#[derive(Debug)]
pub struct Rapl {
    zones: Vec<(String, PathBuf, u64, bool)>,
    absent: Option<String>,
    refused: Option<String>,
}

impl Rapl {
    /// Finds the zones below this root directory.
    pub fn below(root: &Path) -> Self {
        let dir = root.join(ZONES);
        let mut text = Text::default();
        let names = std::fs::read_dir(&dir).into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names.filter(|name| name.starts_with("intel-rapl:")).collect();
        names.sort();
        let (mut zones, mut refused): (Vec<(String, PathBuf, u64, bool)>, _) = (Vec::new(), None);
        for zone in names.iter().take(ZONES_MAX) {
            let at = dir.join(zone);
            let Some(own) = text.of(&at.join("name")).ok().map(|name| name.trim().to_owned()) else { continue };
            let range = text.of(&at.join("max_energy_range_uj")).ok().and_then(|range| range.trim().parse::<u64>().ok()).unwrap_or(0);
            if let Err(error) = text.of(&at.join("energy_uj")) {
                // The zone is kept: its meter may become readable later.
                refused = Some(format!("{}: {error}", at.join("energy_uj").display()));
            }
            let parent = zone.rsplit_once(':').filter(|(parent, _)| *parent != "intel-rapl").map(|(parent, _)| parent);
            let parent = parent.and_then(|parent| Some(text.of(&dir.join(parent).join("name")).ok()?.trim().to_owned()));
            // `psys` is the whole machine, including its packages.
            let adds = if parent.is_some() { own == "dram" } else { own.starts_with("package") || own.starts_with("dram") };
            let name = parent.map_or(own.clone(), |parent| format!("{parent}/{own}"));
            if zones.iter().all(|(known, ..)| *known != name) {
                zones.push((name, at.join("energy_uj"), range, adds));
            }
        }
        let absent = || format!("{} has no intel-rapl: the processor has no meter, or a hypervisor or container hides it", dir.display());
        Self { absent: zones.is_empty().then(absent), zones, refused }
    }

    /// Why there is no meter.
    pub fn absent(&self) -> Option<&str> {
        self.absent.as_deref()
    }

    /// Why an existing meter could not be read.
    pub fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// The existing meters.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.zones.iter().map(|(name, ..)| name.as_str())
    }

    /// All values that can be read now.
    pub fn read(&self, text: &mut Text) -> Vec<Domain> {
        let read = self.zones.iter().filter_map(|(name, path, range, adds)| {
            let microjoules = text.of(path).ok()?.trim().parse().ok()?;
            Some(Domain { name: name.clone(), microjoules, range_microjoules: *range, adds: *adds })
        });
        read.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn packages_and_memory_add_up_and_parts_of_a_package_do_not() {
        let root = std::env::temp_dir().join(format!("lattice-rapl-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        assert!(Rapl::below(&root).absent().is_some_and(|why| why.contains("no intel-rapl")));
        let zones = [
            ("intel-rapl:0", "package-0", 262_143_328_850u64, 1_000_000u64),
            ("intel-rapl:0:0", "core", 262_143_328_850, 400_000),
            ("intel-rapl:0:1", "dram", 65_712_999_613, 50_000),
            ("intel-rapl:1", "package-1", 262_143_328_850, 7),
            ("intel-rapl:2", "psys", 262_143_328_850, 9),
            ("intel-rapl-mmio:0", "package-0", 262_143_328_850, 1_000_000),
        ];
        for (zone, name, range, energy) in zones {
            let dir = root.join(ZONES).join(zone);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("name"), format!("{name}\n")).unwrap();
            fs::write(dir.join("max_energy_range_uj"), format!("{range}\n")).unwrap();
            fs::write(dir.join("energy_uj"), format!("{energy}\n")).unwrap();
        }
        let rapl = Rapl::below(&root);
        assert_eq!((rapl.absent(), rapl.refused()), (None, None));
        let read = rapl.read(&mut Text::default());
        let domains: Vec<_> = read.iter().map(|d| (d.name.as_str(), d.microjoules, d.adds)).collect();
        let expected = [
            ("package-0", 1_000_000, true),
            ("package-0/core", 400_000, false),
            ("package-0/dram", 50_000, true),
            ("package-1", 7, true),
            ("psys", 9, false),
        ];
        assert_eq!(domains, expected);
        assert_eq!(read[2].range_microjoules, 65_712_999_613);
        // An unreadable meter still counts as present, and is read once it is readable.
        let meter = root.join(ZONES).join("intel-rapl:1/energy_uj");
        fs::remove_file(&meter).unwrap();
        fs::create_dir(&meter).unwrap();
        let rapl = Rapl::below(&root);
        assert!(rapl.absent().is_none() && rapl.refused().is_some_and(|why| why.contains("intel-rapl:1/energy_uj")));
        assert_eq!((rapl.names().count(), rapl.read(&mut Text::default()).len()), (5, 4));
        fs::remove_dir(&meter).unwrap();
        fs::write(&meter, "8\n").unwrap();
        assert_eq!(rapl.read(&mut Text::default()).len(), 5);
        fs::remove_dir_all(&root).unwrap();
    }
}
