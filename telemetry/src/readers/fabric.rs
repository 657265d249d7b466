//! Ports of InfiniBand and RoCE adapters, from `/sys/class/infiniband` (the kernel's Documentation/ABI/stable/sysfs-class-infiniband).

use super::Text;
use crate::catalogue::node as family;
use crate::sample::Samples;
use std::path::Path;

/// Ports that are told.
const PORTS_MAX: usize = 32;
/// `port_xmit_data` and `port_rcv_data` count words.
const WORD_BYTES: u64 = 4;

/// Tells of all ports below this folder.
pub(super) fn ports(class: &Path, text: &mut Text, samples: &mut Samples) {
    let mut told = 0;
    for device in names(class) {
        let all = class.join(&device).join("ports");
        for port in names(&all) {
            if told == PORTS_MAX {
                return;
            }
            told += 1;
            let counters = all.join(&port).join("counters");
            let mut count = |file: &str| text.of(&counters.join(file)).ok()?.trim().parse::<u64>().ok();
            let bytes = [("received", "port_rcv_data"), ("sent", "port_xmit_data")];
            let packets = [("received", "port_rcv_packets"), ("sent", "port_xmit_packets")];
            let errors = [
                ("received", "port_rcv_errors"),
                ("discarded", "port_xmit_discards"),
                ("symbol", "symbol_error"),
                ("link_downed", "link_downed"),
            ];
            for (direction, file) in bytes {
                if let Some(words) = count(file) {
                    samples.count(&family::FABRIC_BYTES, &[&device, &port, direction], words.saturating_mul(WORD_BYTES));
                }
            }
            for (direction, file) in packets {
                if let Some(packets) = count(file) {
                    samples.count(&family::FABRIC_PACKETS, &[&device, &port, direction], packets);
                }
            }
            for (kind, file) in errors {
                if let Some(errors) = count(file) {
                    samples.count(&family::FABRIC_ERRORS, &[&device, &port, kind], errors);
                }
            }
        }
    }
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
        ports(&class, &mut Text::default(), &mut samples);
        assert_eq!(samples.families().count(), 0, "there are none");
        for port in 1..=PORTS_MAX + 3 {
            let counters = class.join("mlx5_0/ports").join(port.to_string()).join("counters");
            fs::create_dir_all(&counters).unwrap();
            fs::write(counters.join("port_xmit_data"), "25\n").unwrap();
            fs::write(counters.join("port_rcv_errors"), "3\n").unwrap();
        }
        ports(&class, &mut Text::default(), &mut samples);
        let page = page(&samples);
        assert!(page.contains("lattice_node_infiniband_bytes_total{device=\"mlx5_0\",port=\"1\",direction=\"sent\"} 100\n"), "{page}");
        assert!(page.contains("lattice_node_infiniband_errors_total{device=\"mlx5_0\",port=\"1\",kind=\"received\"} 3\n"), "{page}");
        assert_eq!(page.matches("lattice_node_infiniband_bytes_total{").count(), PORTS_MAX);
        fs::remove_dir_all(&class).unwrap();
    }
}
