//! Limits the number of connections: of all together, and of those from one source.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

/// Where a connection comes from: an IPv4 address, or an IPv6 /64, because one machine may have all
/// of its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Source(IpAddr);

impl Source {
    pub(super) fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => Self(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into()),
            address @ IpAddr::V4(_) => Self(address),
        }
    }
}

/// The places for connections. All clones share them.
#[derive(Clone)]
pub(super) struct Places(Arc<Inner>);

struct Inner {
    all_max: usize,
    source_max: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    by_source: HashMap<Source, usize>,
}

impl Places {
    /// `all_max` places. One source may take at most `source_max` of them.
    pub(super) fn new(all_max: usize, source_max: usize) -> Self {
        Self(Arc::new(Inner { all_max, source_max, taken: Mutex::default() }))
    }

    /// Takes a place; `None`: all places are taken, or this source has its maximum.
    pub(super) fn take(&self, source: Source) -> Option<Place> {
        let mut taken = self.0.taken.lock();
        let of_source = taken.by_source.get(&source).copied().unwrap_or(0);
        if taken.all >= self.0.all_max || of_source >= self.0.source_max {
            return None;
        }
        taken.all += 1;
        taken.by_source.insert(source, of_source + 1);
        Some(Place { source, places: self.clone() })
    }
}

/// A taken place, which is released when it is dropped.
pub(super) struct Place {
    source: Source,
    places: Places,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.0.taken.lock();
        taken.all -= 1;
        if let Some(of_source) = taken.by_source.get_mut(&self.source) {
            *of_source -= 1;
            if *of_source == 0 {
                taken.by_source.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source::of(text.parse().unwrap())
    }

    #[test]
    fn places_are_counted_for_all_and_for_each_source() {
        let places = Places::new(3, 2);
        let [one, two] = [source("10.0.0.1"), source("10.0.0.2")];
        let held = [places.take(one).unwrap(), places.take(one).unwrap()];
        assert!(places.take(one).is_none());
        let other = places.take(two).unwrap();
        assert!(places.take(two).is_none(), "all are taken");
        drop(held);
        assert!(places.take(two).is_some());
        drop(other);
        assert!(places.0.taken.lock().by_source.is_empty(), "no entry without a place");
    }

    #[test]
    fn a_network_of_64_bits_is_one_source() {
        assert_eq!(source("2001:db8::1"), source("2001:db8::ffff:0:0:1"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
        assert_eq!(source("::ffff:10.0.0.1"), source("10.0.0.1"));
    }
}
