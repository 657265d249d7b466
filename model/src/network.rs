//! Network domains: names shared by allocations of one tenant, each with a number (a VNI) from a
//! pool. And the ports that work exposes as services.

use crate::spec_error::SpecError;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;
use thiserror::Error;

/// The VNIs that a pool may contain: lower ones are reserved, 1 for management and 2 for telemetry.
/// A VNI has 16 bits.
pub const VNIS: RangeInclusive<u32> = 1000..=65_535;
/// Longest grace period of a domain without work.
const GRACE_MAX: Duration = Duration::from_secs(7 * 86_400);
/// Largest number of domains of one tenant at a time.
pub const DOMAINS_PER_TENANT_MAX: u32 = 50;
/// Largest size of a domain's name, in bytes.
const DOMAIN_BYTES_MAX: usize = 128;
/// Largest number of ports that one allocation may expose.
const EXPOSED_MAX: usize = 16;
/// Largest size of a service's name and of a protocol's name, in bytes.
const SERVICE_BYTES_MAX: usize = 128;
const PROTOCOL_BYTES_MAX: usize = 16;
/// The protocol of an exposed port if the submission names none.
pub const PROTOCOL_DEFAULT: &str = "tcp";

/// Labels of protocols that do not run over TCP: nothing shows whether such a port is served.
const NOT_OVER_TCP: [&str; 3] = ["udp", "quic", "sctp"];

/// The network domain of an allocation, and the services that it exposes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Connectivity {
    /// The domain that it shares with other allocations of its tenant; empty: none.
    pub network_domain: String,
    /// The ports that it exposes while it runs.
    pub expose: Vec<Exposed>,
}

/// A port exposed under a service name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Exposed {
    /// The name for lookups: visible characters except `:` and `/`.
    pub name: String,
    /// The port on each of its nodes, at least 1.
    pub port: u16,
    /// A label for the protocol.
    pub protocol: String,
}

impl Exposed {
    /// Whether a TCP connection shows that the port is served. It is assumed for unknown labels.
    pub fn is_over_tcp(&self) -> bool {
        !NOT_OVER_TCP.contains(&self.protocol.as_str())
    }
}

impl Connectivity {
    /// Checks the range and syntax of all fields.
    pub fn validate(&self) -> Result<(), SpecError> {
        let invalid = |field, why: String| Err(SpecError::Invalid { field, why });
        let domain = &self.network_domain;
        if domain.len() > DOMAIN_BYTES_MAX || domain.chars().any(char::is_control) {
            return invalid("network-domain", format!("at most {DOMAIN_BYTES_MAX} bytes without control characters"));
        }
        if self.expose.len() > EXPOSED_MAX {
            return invalid("expose", format!("{} ports given; at most {EXPOSED_MAX} are possible", self.expose.len()));
        }
        for (index, exposed) in self.expose.iter().enumerate() {
            let Exposed { name, port, protocol } = exposed;
            let visible = name.chars().all(|c| !c.is_control() && !c.is_whitespace() && !matches!(c, ':' | '/'));
            if name.is_empty() || name.len() > SERVICE_BYTES_MAX || !visible {
                let why =
                    format!("{name:?} is not a service name (no blanks, no : and /, at most {SERVICE_BYTES_MAX} bytes): write NAME:PORT");
                return invalid("expose", why);
            }
            if *port == 0 {
                return invalid("expose", format!("{name}: a port from 1 to 65535 is needed"));
            }
            let is_allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
            if protocol.is_empty() || protocol.len() > PROTOCOL_BYTES_MAX || !protocol.bytes().all(is_allowed) {
                return invalid("expose", format!("{name}: {protocol:?} is not a protocol such as tcp or http"));
            }
            if self.expose[..index].iter().any(|other| other.name == *name && other.port == *port) {
                return invalid("expose", format!("{name}:{port} is given twice"));
            }
        }
        Ok(())
    }

    /// Approximate number of bytes of its strings.
    pub fn bytes(&self) -> usize {
        self.network_domain.len() + self.expose.iter().map(|e| e.name.len() + e.protocol.len() + 8).sum::<usize>()
    }
}

/// The pool of VNIs for domains, and how long domains keep theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VniPool {
    /// The first number, in [`VNIS`].
    pub start: u32,
    /// The last one, in [`VNIS`], not below `start`.
    pub end: u32,
    /// How long a domain keeps its VNI after its last allocation lost its nodes, in milliseconds:
    /// at most a week.
    pub grace_ms: u64,
}

impl Default for VniPool {
    fn default() -> Self {
        Self { start: 1000, end: 4095, grace_ms: 300_000 }
    }
}

/// An invalid pool.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidPool {
    #[error("a pool of VNIs lies within {} to {} and begins before it ends, not {start} to {end}: 1 to {} are reserved", VNIS.start(), VNIS.end(), VNIS.start() - 1)]
    Range { start: u32, end: u32 },
    #[error("a domain keeps its VNI for at most {} days, not {grace_ms} ms", GRACE_MAX.as_secs() / 86_400)]
    Grace { grace_ms: u64 },
}

impl VniPool {
    /// Checks all ranges.
    pub fn validate(&self) -> Result<(), InvalidPool> {
        let Self { start, end, grace_ms } = *self;
        if !VNIS.contains(&start) || !VNIS.contains(&end) || start > end {
            return Err(InvalidPool::Range { start, end });
        }
        if Duration::from_millis(grace_ms) > GRACE_MAX {
            return Err(InvalidPool::Grace { grace_ms });
        }
        Ok(())
    }

    /// All VNIs in ascending order, which is the order of assignment.
    pub fn numbers(&self) -> RangeInclusive<u32> {
        self.start..=self.end
    }

    /// Number of VNIs.
    pub fn size(&self) -> u32 {
        (self.end + 1).saturating_sub(self.start)
    }

    /// Why a domain without a VNI cannot get one now; `None`: it can. `used`: VNIs of the pool that
    /// are in use; `of_tenant`: domains of the tenant.
    pub fn obstacle(&self, domain: &str, used: u32, of_tenant: u32) -> Option<NoVni> {
        let domain = domain.to_owned();
        if of_tenant >= DOMAINS_PER_TENANT_MAX {
            return Some(NoVni::TooManyDomains { domain, most: DOMAINS_PER_TENANT_MAX });
        }
        (used >= self.size()).then(|| NoVni::Exhausted { domain, used, size: self.size() })
    }
}

/// Why a domain cannot get a VNI now.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
pub enum NoVni {
    #[error("vni_pool_exhausted: cannot create network domain {domain:?}: VNI pool exhausted ({used}/{size} in use)")]
    Exhausted { domain: String, used: u32, size: u32 },
    #[error("max_domains: cannot create network domain {domain:?}: its tenant already has {most}, the maximum")]
    TooManyDomains { domain: String, most: u32 },
}

impl NoVni {
    /// What the user can do about it.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Exhausted { .. } => "wait for running allocations to complete, or contact your system admin",
            Self::TooManyDomains { .. } => "let allocations share a domain, or wait until one of them is released: `lattice network list`",
        }
    }
}

/// The state of a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DomainState {
    /// At least one allocation of it has nodes.
    Active,
    /// No allocation of it has nodes. It keeps its VNI for this time, and an allocation that joins
    /// it meanwhile gets the same VNI.
    Grace { left_ms: u64 },
    /// The grace period has passed; not all nodes have reported that the domain's work is gone.
    Leaving,
}

impl fmt::Display for DomainState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Active => "active",
            Self::Grace { .. } => "grace",
            Self::Leaving => "leaving",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http(name: &str, port: u16) -> Exposed {
        Exposed { name: name.into(), port, protocol: "http".into() }
    }

    #[test]
    fn each_range_is_kept() {
        let good = Connectivity { network_domain: "ml workspace".into(), expose: vec![http("api", 80), http("api", 81)] };
        assert_eq!(good.validate(), Ok(()));
        type Change = fn(&mut Connectivity);
        let changes: [(&str, Change); 8] = [
            ("network-domain", |c| c.network_domain = "x".repeat(129)),
            ("network-domain", |c| c.network_domain = "a\nb".into()),
            ("expose", |c| c.expose = (1..=17).map(|port| http("a", port)).collect()),
            ("expose", |c| c.expose[0].name = "a:b".into()),
            ("expose", |c| c.expose[0].name = "a b".into()),
            ("expose", |c| c.expose[0].port = 0),
            ("expose", |c| c.expose[0].protocol = "HTTP".into()),
            ("expose", |c| c.expose[1].port = 80),
        ];
        for (named, change) in changes {
            let mut changed = good.clone();
            change(&mut changed);
            assert!(matches!(changed.validate(), Err(SpecError::Invalid { field, .. }) if field == named), "{changed:?}");
        }
    }

    #[test]
    fn a_pool_excludes_reserved_vnis_and_is_exhausted_at_its_size() {
        let pool = VniPool::default();
        assert_eq!((pool.size(), pool.validate()), (3096, Ok(())));
        for (start, end) in [(999, 4095), (2000, 1999), (1000, 65_536)] {
            assert_eq!(VniPool { start, end, ..pool }.validate(), Err(InvalidPool::Range { start, end }));
        }
        assert!(VniPool { grace_ms: u64::MAX, ..pool }.validate().is_err());
        assert_eq!(pool.obstacle("ml", 3095, 49), None);
        let message = pool.obstacle("ml", 3096, 0).unwrap().to_string();
        assert_eq!(message, "vni_pool_exhausted: cannot create network domain \"ml\": VNI pool exhausted (3096/3096 in use)");
        assert!(matches!(pool.obstacle("ml", 0, 50), Some(NoVni::TooManyDomains { .. })));
    }
}
