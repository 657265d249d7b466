//! Ports of InfiniBand and RoCE adapters (the kernel's Documentation/ABI/stable/sysfs-class-infiniband).

use super::Text;
use super::port::{Port, names};
use crate::catalogue::{Family, node as family};
use std::path::Path;

/// `port_xmit_data` and `port_rcv_data` count words.
const WORD_BYTES: u64 = 4;
/// The values of each port: file, series, its last label, and the factor.
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

pub(super) fn ports(adapter_dir: &Path, adapter: &str, text: &mut Text) -> Vec<Port> {
    let all = adapter_dir.join("ports");
    let read = |port: String| {
        let counters = all.join(&port).join("counters");
        let mut counts = Vec::new();
        for (file, metric, label, worth) in FILES {
            if let Some(count) = text.of(&counters.join(file)).ok().and_then(|count| count.trim().parse::<u64>().ok()) {
                counts.push((metric, Some(label), count.saturating_mul(worth)));
            }
        }
        Port { labels: vec![adapter.to_owned(), port], counts }
    };
    names(&all).into_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Kind, PORTS_MAX};
    use super::*;
    use crate::exposition::page;
    use crate::sample::Samples;
    use std::fs;

    #[test]
    fn ports_are_read_in_bytes_and_up_to_a_limit() {
        let root = std::env::temp_dir().join(format!("lattice-infiniband-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let mut samples = Samples::default();
        assert_eq!(Kind::Infiniband.adapters(&root).len(), 0, "there are none");
        for port in 1..=PORTS_MAX + 3 {
            let counters = Kind::Infiniband.class(&root).join("mlx5_0/ports").join(port.to_string()).join("counters");
            fs::create_dir_all(&counters).unwrap();
            fs::write(counters.join("port_xmit_data"), "25\n").unwrap();
            fs::write(counters.join("port_rcv_errors"), "3\n").unwrap();
        }
        assert_eq!(Kind::Infiniband.adapters(&root), ["mlx5_0"]);
        Kind::Infiniband.ports(&root, "mlx5_0", &mut Text::default()).iter().for_each(|port| port.write_metrics(&mut samples));
        let page = page(&samples);
        assert!(page.contains("lattice_node_infiniband_bytes_total{device=\"mlx5_0\",port=\"1\",direction=\"sent\"} 100\n"), "{page}");
        assert!(page.contains("lattice_node_infiniband_errors_total{device=\"mlx5_0\",port=\"1\",kind=\"received\"} 3\n"), "{page}");
        assert_eq!(page.matches("lattice_node_infiniband_bytes_total{").count(), PORTS_MAX);
        fs::remove_dir_all(&root).unwrap();
    }
}
