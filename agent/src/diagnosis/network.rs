//! The node's interfaces, and how the work's connections fare.

use super::processes::Listed;
use super::{fact, text_of};
use crate::mesh::diagnosis::WireFact;
use lattice_model::resources::bytes_text;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Interfaces, ports of fabrics, and network namespaces that are told of.
const INTERFACES_MAX: usize = 64;
const PORTS_MAX: usize = 64;
const NAMESPACES_MAX: usize = 8;
/// More segments than this share sent again are a bad network.
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

/// Each interface but loopback.
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

/// Each port of an InfiniBand or Slingshot (CXI) device.
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
    for device in names("/sys/class/cxi", PORTS_MAX) {
        let at = PathBuf::from("/sys/class/cxi").join(&device).join("device/properties");
        let link = fs::read_to_string(at.join("link")).ok().map(|text| text.trim().to_owned());
        let text = link.clone().unwrap_or_else(|| "its link cannot be told".to_owned());
        facts.push(fact("network", &device, "sysfs", text, link.is_some_and(|link| link != "1" && link != "up")));
    }
    facts.truncate(PORTS_MAX);
    facts
}

/// TCP of each network namespace that the work is in. Where it is the node's, so are the counts.
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

/// A number of a table whose first line has the names.
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
    fn tables_of_counts_are_read_by_their_names() {
        let snmp = "Ip: Forwarding\nIp: 1\nTcp: RtoAlgorithm MaxConn OutSegs RetransSegs\nTcp: 1 -1 100 7\n";
        assert_eq!(column(snmp, "Tcp:", "RetransSegs"), Some(7));
        assert_eq!(column(snmp, "Tcp:", "MaxConn"), None);
        assert_eq!(column(snmp, "Udp:", "OutSegs"), None);
    }

    #[test]
    fn the_network_of_this_process_is_told_of() {
        let me = Listed { pid: i32::try_from(std::process::id()).unwrap(), launch: None };
        let facts = tcp(&[me, me]);
        assert_eq!(facts.len(), 1);
        assert!(facts[0].about == "TCP of the node" && facts[0].text.contains("segments sent"), "{facts:?}");
    }
}
