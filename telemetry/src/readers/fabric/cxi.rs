//! HPE Slingshot's Cassini adapters; each device is one port.
//!
//! The form of the files in `device/telemetry` (number, `@`, time of reading) and of `device/link_restarts` (times of
//! the last ten restarts of the link) is in its driver's docs/ABI/testing/sysfs-class-cxi; the counters' names are
//! those of its cassini-telemetry-sysfs-defs.h (github.com/HewlettPackard, shs-cxi-driver and shs-cassini-headers).
//! There are some thousand counters; these are of the whole port, at its link (HNI). They differ by chip, and a missing
//! one is absent.

use super::Text;
use super::port::{Count, Port, names};
use crate::catalogue::{Family, node as family};
use std::path::Path;

/// The values: files that are added up, the series, and its last label. Packets are counted in Ethernet's form and in
/// Slingshot's own; discarded packets are counted for each of eight traffic classes.
const FILES: [(&[&str], &Family, &str); 8] = [
    (&["hni_sts_rx_ok_octets"], &family::CXI_BYTES, "received"),
    (&["hni_sts_tx_ok_octets"], &family::CXI_BYTES, "sent"),
    (&["hni_rx_ok_ieee", "hni_rx_ok_opt"], &family::CXI_PACKETS, "received"),
    (&["hni_tx_ok_ieee", "hni_tx_ok_opt"], &family::CXI_PACKETS, "sent"),
    (&["hni_rx_bad_ieee", "hni_rx_bad_opt"], &family::CXI_ERRORS, "received"),
    (
        &[
            "hni_discard_cntr_0",
            "hni_discard_cntr_1",
            "hni_discard_cntr_2",
            "hni_discard_cntr_3",
            "hni_discard_cntr_4",
            "hni_discard_cntr_5",
            "hni_discard_cntr_6",
            "hni_discard_cntr_7",
        ],
        &family::CXI_ERRORS,
        "discarded",
    ),
    (&["hni_llr_tx_replay_event"], &family::CXI_ERRORS, "replayed"),
    (&["hni_pcs_uncorrected_cw"], &family::CXI_ERRORS, "uncorrected"),
];

pub(super) fn port(adapter_dir: &Path, adapter: &str, text: &mut Text) -> Port {
    let telemetry = adapter_dir.join("device/telemetry");
    let mut counts: Vec<Count> = Vec::new();
    for (files, metric, label) in FILES {
        // A sum without one of its parts would seem to fall.
        let parts = files.iter().map(|file| text.of(&telemetry.join(file)).ok().and_then(number));
        if let Some(parts) = parts.collect::<Option<Vec<u64>>>() {
            counts.push((metric, Some(label), parts.into_iter().fold(0, u64::saturating_add)));
        }
    }
    let restarts = adapter_dir.join("device/link_restarts");
    let times = names(&restarts).into_iter().filter_map(|name| text.of(&restarts.join(name)).ok()?.trim().parse::<u64>().ok());
    // An unused entry is 0.
    if let Some(last) = times.max().filter(|last| *last > 0) {
        counts.push((&family::CXI_RESTARTED, None, last));
    }
    Port { labels: vec![adapter.to_owned()], counts }
}

/// The number before `@` and the time of reading.
fn number(text: &str) -> Option<u64> {
    let (number, _at) = text.trim().split_once('@')?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;
    use crate::exposition::page;
    use crate::sample::Samples;
    use std::fs;

    #[test]
    fn a_device_is_read_as_its_driver_counts_and_no_sum_lacks_a_part() {
        let root = std::env::temp_dir().join(format!("lattice-cxi-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        assert_eq!(Kind::Cxi.adapters(&root).len(), 0, "there are none");
        let device = Kind::Cxi.class(&root).join("cxi0/device");
        let put = |name: &str, text: &str| {
            let path = device.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("telemetry/hni_sts_rx_ok_octets", "4503599627370495@1753430401.000000042\n");
        put("telemetry/hni_sts_tx_ok_octets", "no number@1753430401.000000042\n");
        put("telemetry/hni_rx_ok_ieee", "5@1753430401.000000042\n");
        put("telemetry/hni_rx_ok_opt", "37@1753430401.000000042\n");
        put("telemetry/hni_tx_ok_ieee", "5@1753430401.000000042\n");
        (0..8).for_each(|class| put(&format!("telemetry/hni_discard_cntr_{class}"), "2@1753430401.000000042\n"));
        put("telemetry/hni_pcs_uncorrected_cw", "7\n");
        put("telemetry/ALL-in-binary", "\u{1}@\n");
        for (n, time) in [0, 1_753_430_000, 1_753_430_400, 0].into_iter().enumerate() {
            put(&format!("link_restarts/time_{n}"), &format!("{time}\n"));
        }
        assert_eq!(Kind::Cxi.adapters(&root), ["cxi0"]);
        let ports = Kind::Cxi.ports(&root, "cxi0", &mut Text::default());
        assert_eq!(ports[0].of(&family::CXI_ERRORS).collect::<Vec<_>>(), [("discarded", 16)]);
        let mut samples = Samples::default();
        ports.iter().for_each(|port| port.write_metrics(&mut samples));
        let page = page(&samples);
        for line in [
            "lattice_node_cxi_bytes_total{device=\"cxi0\",direction=\"received\"} 4503599627370495\n",
            "lattice_node_cxi_packets_total{device=\"cxi0\",direction=\"received\"} 42\n",
            "lattice_node_cxi_errors_total{device=\"cxi0\",kind=\"discarded\"} 16\n",
            "lattice_node_cxi_link_restarted_timestamp_seconds{device=\"cxi0\"} 1753430400\n",
        ] {
            assert!(page.contains(line), "{line}{page}");
        }
        for absent in ["direction=\"sent\"", "kind=\"uncorrected\"", "kind=\"replayed\""] {
            assert!(!page.contains(absent), "{absent}: {page}");
        }
        fs::remove_dir_all(&root).unwrap();
    }
}
