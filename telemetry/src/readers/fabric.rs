//! Ports of InfiniBand and RoCE adapters, from `/sys/class/infiniband` (the kernel's Documentation/ABI/stable/sysfs-class-infiniband).
//!
//! Each of these files is a question to the adapter's firmware, and one whose firmware hangs does not answer for a minute or more: who
//! asks does it beside everything else, each adapter for itself.

use super::Text;
use crate::catalogue::{Family, node as family};
use crate::sample::Samples;
use std::path::Path;

/// Ports that are told.
pub const PORTS_MAX: usize = 32;
/// `port_xmit_data` and `port_rcv_data` count words.
const WORD_BYTES: u64 = 4;
/// What is read of each port: the file, the series, its last label, and what one is worth.
const FILES: [(&str, &Family, &str, u64); 8] = [
    ("port_rcv_data", &family::FABRIC_BYTES, "received", WORD_BYTES),
    ("port_xmit_data", &family::FABRIC_BYTES, "sent", WORD_BYTES),
    ("port_rcv_packets", &family::FABRIC_PACKETS, "received", 1),
    ("port_xmit_packets", &family::FABRIC_PACKETS, "sent", 1),
    ("port_rcv_errors", &family::FABRIC_ERRORS, "received", 1),
    ("port_xmit_discards", &family::FABRIC_ERRORS, "discarded", 1),
    ("symbol_error", &family::FABRIC_ERRORS, "symbol", 1),
    ("link_downed", &family::FABRIC_ERRORS, "link_downed", 1),
];

/// What one port has counted.
#[derive(Clone, Debug)]
pub struct Port {
    device: String,
    port: String,
    counts: Vec<(&'static Family, &'static str, u64)>,
}

impl Port {
    /// Tells what was read.
    pub fn tell(&self, samples: &mut Samples) {
        for (metric, label, count) in &self.counts {
            samples.count(metric, &[&self.device, &self.port, label], *count);
        }
    }
}

/// The adapters below this folder.
pub fn adapters(class: &Path) -> Vec<String> {
    names(class)
}

/// Asks one adapter for all its ports. It may wait for long.
pub fn ports(class: &Path, adapter: &str, text: &mut Text) -> Vec<Port> {
    let all = class.join(adapter).join("ports");
    let read = |port: String| {
        let counters = all.join(&port).join("counters");
        let mut counts = Vec::new();
        for (file, metric, label, worth) in FILES {
            if let Some(count) = text.of(&counters.join(file)).ok().and_then(|count| count.trim().parse::<u64>().ok()) {
                counts.push((metric, label, count.saturating_mul(worth)));
            }
        }
        Port { device: adapter.to_owned(), port, counts }
    };
    names(&all).into_iter().take(PORTS_MAX).map(read).collect()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exposition::page;
    use std::fs;

    #[test]
    fn ports_are_told_in_bytes_and_not_without_end() {
        let class = std::env::temp_dir().join(format!("lattice-infiniband-{}", std::process::id()));
        let _ = fs::remove_dir_all(&class);
        let mut samples = Samples::default();
        assert_eq!(adapters(&class).len(), 0, "there are none");
        for port in 1..=PORTS_MAX + 3 {
            let counters = class.join("mlx5_0/ports").join(port.to_string()).join("counters");
            fs::create_dir_all(&counters).unwrap();
            fs::write(counters.join("port_xmit_data"), "25\n").unwrap();
            fs::write(counters.join("port_rcv_errors"), "3\n").unwrap();
        }
        assert_eq!(adapters(&class), ["mlx5_0"]);
        ports(&class, "mlx5_0", &mut Text::default()).iter().for_each(|port| port.tell(&mut samples));
        let page = page(&samples);
        assert!(page.contains("lattice_node_infiniband_bytes_total{device=\"mlx5_0\",port=\"1\",direction=\"sent\"} 100\n"), "{page}");
        assert!(page.contains("lattice_node_infiniband_errors_total{device=\"mlx5_0\",port=\"1\",kind=\"received\"} 3\n"), "{page}");
        assert_eq!(page.matches("lattice_node_infiniband_bytes_total{").count(), PORTS_MAX);
        fs::remove_dir_all(&class).unwrap();
    }
}
