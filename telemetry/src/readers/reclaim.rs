//! The number of pages that the kernel scanned to reclaim memory.

use super::Text;
use super::polled_file::PolledFile;

/// `/proc/vmstat`.
pub struct Reclaim(PolledFile);

impl Default for Reclaim {
    fn default() -> Self {
        Self(PolledFile::new("/proc/vmstat".into()))
    }
}

impl Reclaim {
    /// Pages scanned since boot. Some are counted more than once, but the sum rises with each. `None`: this kernel does
    /// not count them.
    pub fn scanned(&mut self, text: &mut Text) -> Option<u64> {
        scanned(self.0.read(text)?)
    }
}

fn scanned(vmstat: &str) -> Option<u64> {
    let counts = vmstat.lines().filter_map(|line| line.strip_prefix("pgscan_")?.split_once(' ')?.1.trim().parse::<u64>().ok());
    counts.reduce(u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_scans_are_in_the_sum_and_without_any_it_is_unknown() {
        let text = "nr_free_pages 7\npgscan_kswapd 10\npgscan_direct 3\npgscan_anon 4\npgscan_file 9\npgsteal_kswapd 99\n";
        assert_eq!((scanned(text), scanned("nr_free_pages 7\n")), (Some(26), None));
        assert!(Reclaim::default().scanned(&mut Text::default()).is_some(), "this kernel's");
    }
}
