//! The node's network interfaces, and the state of the work's connections.

use super::fact::{fact, text_of};
use super::processes::Listed;
use lattice_machine::adapters::ask;
use lattice_mesh::diagnosis::WireFact;
use lattice_model::Timestamp;
use lattice_model::resources::bytes_text;
use lattice_telemetry::catalogue::node as family;
use lattice_telemetry::readers::fabric::Kind;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How many interfaces, fabric ports and network namespaces are reported.
const INTERFACES_MAX: usize = 64;
const PORTS_MAX: usize = 64;
const NAMESPACES_MAX: usize = 8;
/// Timeout of one Slingshot adapter, and the time after which no further one is queried. With these,
/// the diagnosis ends in time even if mounts do not answer either.
const ADAPTER_TIMEOUT: Duration = Duration::from_secs(1);
const ADAPTERS_TIMEOUT: Duration = Duration::from_secs(2);
/// The share of retransmitted segments above which a network counts as bad.
const RETRANSMITTED_BAD: f64 = 0.01;

fn names(dir: &str, most: usize) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names.truncate(most);
    names
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Every interface except loopback.
pub fn interfaces() -> Vec<WireFact> {
    let of = |name: String| {
        let at = PathBuf::from("/sys/class/net").join(&name);
        let count = |what: &str| number(&at.join("statistics").join(what)).unwrap_or(0);
        let state = fs::read_to_string(at.join("operstate")).unwrap_or_default().trim().to_owned();
        let (errors, dropped) = (count("rx_errors") + count("tx_errors"), count("rx_dropped") + count("tx_dropped"));
        let speed = fs::read_to_string(at.join("speed")).ok().and_then(|text| text.trim().parse::<i64>().ok()).filter(|mbits| *mbits > 0);
        let speed = speed.map(|mbits| format!(", {mbits} Mbit/s")).unwrap_or_default();
        let text = format!(
            "{state}{speed}; since the start {} in, {} out, {errors} errors, {dropped} dropped",
            bytes_text(count("rx_bytes")),
            bytes_text(count("tx_bytes"))
        );
        fact("network", &format!("interface {name}"), "sysfs", text, errors > 0)
    };
    names("/sys/class/net", INTERFACES_MAX).into_iter().filter(|name| name != "lo").map(of).collect()
}

/// Every port of an InfiniBand or Slingshot (CXI) device.
pub fn fabrics() -> Vec<WireFact> {
    let mut facts = Vec::new();
    for device in names("/sys/class/infiniband", PORTS_MAX) {
        let ports = format!("/sys/class/infiniband/{device}/ports");
        for port in names(&ports, PORTS_MAX) {
            let at = Path::new(&ports).join(&port);
            let state = fs::read_to_string(at.join("state")).unwrap_or_default().trim().to_owned();
            let counters = ["symbol_error", "link_downed", "port_rcv_errors", "port_xmit_discards"];
            let counted: Vec<_> = counters.iter().filter_map(|name| Some((*name, number(&at.join("counters").join(name))?))).collect();
            let wrong = counted.iter().any(|(_, count)| *count > 0) || !state.contains("ACTIVE");
            let counted: Vec<String> = counted.iter().map(|(name, count)| format!("{name} {count}")).collect();
            facts.push(fact("network", &format!("{device} port {port}"), "sysfs", format!("{state}; {}", counted.join(", ")), wrong));
        }
    }
    let (root, until) = (Path::new("/"), Instant::now() + ADAPTERS_TIMEOUT);
    facts.extend(Kind::Cxi.adapters(root).into_iter().map(|device| cassini(root, device, until)));
    facts.truncate(PORTS_MAX);
    facts
}

/// A Slingshot adapter below `root`, queried only before `until`. Its link file reads 1 or `up`
/// while the link is up.
fn cassini(root: &Path, device: String, until: Instant) -> WireFact {
    if Instant::now() >= until {
        return fact("network", &device, "sysfs", "not asked: the adapters before it took too long".to_owned(), true);
    }
    let properties = Kind::Cxi.class(root).join(&device).join("device/properties");
    let link = fs::read_to_string(properties.join("link")).ok().map(|text| text.trim().to_owned());
    let (link, is_down) = match link.as_deref() {
        Some("1" | "up") => ("link up".to_owned(), false),
        Some("0") => ("link down".to_owned(), true),
        Some(other) => (format!("link {other}"), true),
        None => ("its link is unknown".to_owned(), false),
    };
    let Some(ports) = ask(Kind::Cxi, root.to_owned(), device.clone(), ADAPTER_TIMEOUT) else {
        return fact("network", &device, "sysfs", format!("{link}; its counters do not answer"), true);
    };
    let of = |metric| ports.iter().flat_map(move |port| port.of(metric)).collect::<Vec<_>>();
    let errors = of(&family::CXI_ERRORS);
    let is_wrong = is_down || errors.iter().any(|(kind, count)| *count > 0 && *kind != "replayed");
    let mut parts = vec![link];
    let bytes = of(&family::CXI_BYTES);
    parts.extend(bytes.iter().map(|(direction, count)| format!("{direction} {}", bytes_text(*count))));
    parts.extend(errors.iter().map(|(kind, count)| format!("{kind} {count}")));
    let restarted = of(&family::CXI_RESTARTED).first().map(|(_, at)| Timestamp(at.saturating_mul(1000)));
    parts.extend(restarted.map(|at| format!("the link last came up again at {at}")));
    fact("network", &device, "sysfs", parts.join(", "), is_wrong)
}

/// The TCP counters of each network namespace of the work. In the node's own namespace they count
/// the whole node.
pub fn tcp(listed: &[Listed]) -> Vec<WireFact> {
    let own = fs::read_link("/proc/self/ns/net").ok();
    let mut seen = BTreeSet::new();
    let mut facts = Vec::new();
    for Listed { pid, .. } in listed {
        let Ok(namespace) = fs::read_link(format!("/proc/{pid}/ns/net")) else { continue };
        if seen.len() >= NAMESPACES_MAX || !seen.insert(namespace.clone()) {
            continue;
        }
        let (Some(snmp), Some(netstat)) = (text_of(&format!("/proc/{pid}/net/snmp")), text_of(&format!("/proc/{pid}/net/netstat"))) else {
            continue;
        };
        let tcp = |name| column(&snmp, "Tcp:", name).unwrap_or(0);
        let (sent, again) = (tcp("OutSegs"), tcp("RetransSegs"));
        let timeouts = column(&netstat, "TcpExt:", "TCPTimeouts").unwrap_or(0);
        let share = if sent == 0 { 0.0 } else { again as f64 / sent as f64 };
        let whose = if Some(&namespace) == own.as_ref() { "TCP of the node" } else { "TCP of the work's own network" };
        let text = format!(
            "{sent} segments sent, {again} of them again ({:.3} %), {timeouts} timeouts, {} connections reset",
            share * 100.0,
            tcp("EstabResets")
        );
        facts.push(fact("network", whose, "procfs", text, share > RETRANSMITTED_BAD));
    }
    facts
}

/// A value from a table whose first line has the names.
fn column(text: &str, table: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(table));
    let (names, values) = (lines.next()?, lines.next()?);
    let at = names.split_ascii_whitespace().position(|column| column == name)?;
    values.split_ascii_whitespace().nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_found_by_the_names_in_the_first_line() {
        let snmp = "Ip: Forwarding\nIp: 1\nTcp: RtoAlgorithm MaxConn OutSegs RetransSegs\nTcp: 1 -1 100 7\n";
        assert_eq!(column(snmp, "Tcp:", "RetransSegs"), Some(7));
        assert_eq!(column(snmp, "Tcp:", "MaxConn"), None);
        assert_eq!(column(snmp, "Udp:", "OutSegs"), None);
    }

    #[test]
    fn a_slingshot_adapter_is_reported_with_its_faults() {
        let root = std::env::temp_dir().join(format!("lattice-diag-cxi-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let device = Kind::Cxi.class(&root).join("cxi0/device");
        for (name, text) in [
            ("properties/link", "1\n"),
            ("telemetry/hni_sts_tx_ok_octets", "4096@1.000000001\n"),
            ("telemetry/hni_llr_tx_replay_event", "3@1.000000001\n"),
            ("telemetry/hni_pcs_uncorrected_cw", "0@1.000000001\n"),
            ("link_restarts/time_0", "1753430400\n"),
        ] {
            fs::create_dir_all(device.join(name).parent().unwrap()).unwrap();
            fs::write(device.join(name), text).unwrap();
        }
        let look = || cassini(&root, "cxi0".to_owned(), Instant::now() + Duration::from_secs(60));
        let well = look();
        assert!(!well.problem && well.text.starts_with("link up, sent 4"), "{}", well.text);
        assert!(well.text.contains("replayed 3, uncorrected 0") && well.text.contains("came up again at 2025-07-25T"), "{}", well.text);
        fs::write(device.join("telemetry/hni_pcs_uncorrected_cw"), "1@1.000000001\n").unwrap();
        assert!(look().problem);
        fs::write(device.join("telemetry/hni_pcs_uncorrected_cw"), "0@1.000000001\n").unwrap();
        fs::write(device.join("properties/link"), "0\n").unwrap();
        let down = look();
        assert!(down.problem && down.text.starts_with("link down"), "{}", down.text);
        let late = cassini(&root, "cxi0".to_owned(), Instant::now());
        assert!(late.problem && late.text.starts_with("not asked"), "{}", late.text);
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn the_network_of_this_process_is_reported() {
        let me = Listed { pid: i32::try_from(std::process::id()).unwrap(), launch: None };
        let facts = tcp(&[me, me]);
        assert_eq!(facts.len(), 1);
        assert!(facts[0].subject == "TCP of the node" && facts[0].text.contains("segments sent"), "{facts:?}");
    }
}
