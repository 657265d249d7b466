//! Bytes that processes received from the members, as TCP counts them: including TLS, HTTP/2 and everything else above
//! TCP.

use anyhow::{Context, Result, ensure};
use lattice_lab::machine;
use lattice_lab::process::run;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// How long `ss` may take to list tens of thousands of sockets.
const LISTING_MAX: Duration = Duration::from_secs(60);

/// The program that lists sockets with the kernel's counts, if it is installed.
pub fn program() -> Option<PathBuf> {
    machine::find("ss")
}

/// The bytes that each of these processes received over its present connections to these ports.
pub fn received(ss: &PathBuf, pids: &[i32], ports: &[u16]) -> Result<BTreeMap<i32, u64>> {
    let filter = ports.iter().map(|port| format!("dport = :{port}")).collect::<Vec<_>>().join(" or ");
    let done = run(Command::new(ss).args(["-tinOHe", "state", "established"]).arg(format!("( {filter} )")), LISTING_MAX)?;
    ensure!(done.code() == 0, "`ss` ended with {}: {}", done.code(), done.err().trim());
    let of_inode: HashMap<u64, u64> = done.out().lines().filter_map(socket).collect();
    let of = |pid: &i32| Ok((*pid, inodes(*pid)?.iter().filter_map(|inode| of_inode.get(inode)).sum()));
    pids.iter().map(of).collect()
}

/// The inode of a socket, and the bytes received.
fn socket(line: &str) -> Option<(u64, u64)> {
    let field = |name: &str| line.split_ascii_whitespace().find_map(|word| word.strip_prefix(name)).and_then(|n| n.parse().ok());
    // A connection that has received nothing has no count.
    Some((field("ino:")?, field("bytes_received:").unwrap_or(0)))
}

fn inodes(pid: i32) -> Result<Vec<u64>> {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).with_context(|| format!("the open files of process {pid}"))?;
    let targets = descriptors.flatten().filter_map(|d| std::fs::read_link(d.path()).ok());
    Ok(targets.filter_map(|t| t.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_ss_has_inode_and_bytes() {
        let line = "0 0 127.0.0.1:40022 127.0.0.1:51001 uid:7 ino:81234 sk:3f cgroup:/ <-> ts sack cubic rto:204 bytes_sent:99 bytes_received:4711 segs_out:2";
        assert_eq!(socket(line), Some((81234, 4711)));
        assert_eq!(socket("0 0 127.0.0.1:40022 127.0.0.1:51001 ino:9"), Some((9, 0)));
        assert_eq!(socket("State Recv-Q"), None);
    }
}
