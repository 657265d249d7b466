//! Free ports on loopback.

use anyhow::{Result, bail};
use std::collections::HashSet;
use std::net::{TcpListener, UdpSocket};
use std::sync::{LazyLock, Mutex, PoisonError};

/// Ports that this process has assigned to any lab: between the choice of a port and its daemon's start, another lab of
/// this process must not find it free.
static ASSIGNED_PORTS: LazyLock<Mutex<HashSet<u16>>> = LazyLock::new(Mutex::default);

/// Assigns unused ports, each once in a process. They are below the range that the kernel uses for outgoing
/// connections: a killed daemon must find its port free when it is restarted.
pub struct Ports {
    next: u16,
    low: u16,
    high: u16,
}

impl Ports {
    /// `seed` chooses where the search begins, so that two labs that start at once rarely collide.
    pub fn new(seed: u64) -> Self {
        let ephemeral_low = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
            .ok()
            .and_then(|t| t.split_ascii_whitespace().next()?.parse::<u16>().ok())
            .unwrap_or(32_768);
        let high = ephemeral_low.max(12_000);
        let low = high.saturating_sub(20_000).max(10_000);
        let next = low + u16::try_from(seed % u64::from(high - low)).unwrap_or(0);
        Self { next, low, high }
    }

    /// One port that is free for TCP and UDP on 127.0.0.1 at this moment.
    pub fn take(&mut self) -> Result<u16> {
        for _ in self.low..self.high {
            let port = self.next;
            self.next = if port + 1 >= self.high { self.low } else { port + 1 };
            let mut given = ASSIGNED_PORTS.lock().unwrap_or_else(PoisonError::into_inner);
            if !given.contains(&port) && TcpListener::bind(("127.0.0.1", port)).is_ok() && UdpSocket::bind(("127.0.0.1", port)).is_ok() {
                given.insert(port);
                return Ok(port);
            }
        }
        bail!("no free port between {} and {} on 127.0.0.1", self.low, self.high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_twice_nor_one_in_use() {
        let mut ports = Ports::new(7);
        let first = ports.take().unwrap();
        let _used = TcpListener::bind(("127.0.0.1", first + 1));
        let more: Vec<u16> = (0..20).map(|_| ports.take().unwrap()).collect();
        assert!(!more.contains(&first) && !more.contains(&(first + 1)), "{first} {more:?}");
        assert_eq!(more.iter().collect::<HashSet<_>>().len(), 20);
    }
}
