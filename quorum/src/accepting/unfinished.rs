//! Unfinished handshakes: their limits, and which one is closed for a new one.

use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct HandshakeLimits {
    /// For all known addresses together.
    pub known_max: usize,
    /// For all other addresses together.
    pub strangers_max: usize,
    /// For one address.
    pub of_address_max: usize,
    /// An unfinished handshake younger than this is not closed for another: if many honest peers
    /// connect at once, each has at least this long to finish. A new connection waits meanwhile.
    pub age_min: Duration,
}

/// Whether the first record has arrived, then the order of arrival: the lowest is closed first.
type Age = (bool, u64);

struct Waiting {
    since: Instant,
    needed: CancellationToken,
}

#[derive(Default)]
struct Class {
    addresses: BTreeMap<IpAddr, BTreeMap<Age, Waiting>>,
    all: usize,
}

impl Class {
    /// The handshake to close if a limit is reached: one of address `of` if that has reached its own
    /// limit, else one of the address with the most. It is that address's one with the lowest [`Age`].
    fn handshake_to_close(&self, of: IpAddr, all_max: usize, of_address_max: usize) -> Option<(IpAddr, Age, Instant)> {
        let own = self.addresses.get(&of).filter(|own| own.len() >= of_address_max).map(|own| (&of, own));
        let most = || self.addresses.iter().max_by_key(|(_, waiting)| (waiting.len(), std::cmp::Reverse(waiting.keys().next().copied())));
        let (address, waiting) = own.or_else(|| most().filter(|_| self.all >= all_max))?;
        let (age, first) = waiting.first_key_value()?;
        Some((*address, *age, first.since))
    }

    fn remove(&mut self, address: IpAddr, age: Age) -> Option<Waiting> {
        let waiting = self.addresses.get_mut(&address)?;
        let removed = waiting.remove(&age);
        if waiting.is_empty() {
            self.addresses.remove(&address);
        }
        self.all -= usize::from(removed.is_some());
        removed
    }
}

#[derive(Default)]
struct State {
    last: u64,
    known: Class,
    strangers: Class,
}

impl State {
    fn class(&mut self, is_known: bool) -> &mut Class {
        if is_known { &mut self.known } else { &mut self.strangers }
    }
}

/// The unfinished handshakes of one port.
#[derive(Clone)]
pub(super) struct Unfinished {
    limits: HandshakeLimits,
    state: Arc<Mutex<State>>,
    left: Arc<Notify>,
}

impl Unfinished {
    /// An empty set.
    pub(super) fn new(limits: HandshakeLimits) -> Self {
        Self { limits, state: Arc::default(), left: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Enters a connection from this address. If a limit is reached, closes another connection. If that
    /// one is younger than [`HandshakeLimits::age_min`], first waits until it is old enough, or any
    /// connection has ended.
    pub(super) async fn enter(&self, address: IpAddr, is_known: bool) -> HandshakePermit {
        let HandshakeLimits { known_max, strangers_max, of_address_max, age_min } = self.limits;
        let all_max = if is_known { known_max } else { strangers_max };
        loop {
            let left = self.left.notified();
            let ripe = {
                let mut state = self.state();
                let class = state.class(is_known);
                match class.handshake_to_close(address, all_max, of_address_max) {
                    Some((_, _, since)) if since.elapsed() < age_min => since + age_min,
                    over => {
                        if let Some(other) = over.and_then(|(of, age, _)| class.remove(of, age)) {
                            other.needed.cancel();
                        }
                        return self.take(&mut state, address, is_known);
                    }
                }
            };
            let _either = tokio::time::timeout_at(ripe, left).await;
        }
    }

    fn take(&self, state: &mut State, address: IpAddr, is_known: bool) -> HandshakePermit {
        state.last += 1;
        let (number, needed) = (state.last, CancellationToken::new());
        let waiting = Waiting { since: Instant::now(), needed: needed.clone() };
        let class = state.class(is_known);
        class.addresses.entry(address).or_default().insert((false, number), waiting);
        class.all += 1;
        HandshakePermit { of: self.clone(), address, is_known, number, needed }
    }
}

/// The entry of one connection, which is removed when this is dropped.
pub(super) struct HandshakePermit {
    of: Unfinished,
    address: IpAddr,
    is_known: bool,
    number: u64,
    needed: CancellationToken,
}

impl HandshakePermit {
    /// Returns when this connection must be closed for another one.
    pub(super) async fn needed_by_another(&self) {
        self.needed.cancelled().await;
    }

    /// Its first record has arrived.
    pub(super) fn record_hello(&self) {
        let mut state = self.of.state();
        let class = state.class(self.is_known);
        if let Some(waiting) = class.addresses.get_mut(&self.address).and_then(|all| {
            let waiting = all.remove(&(false, self.number))?;
            Some((all, waiting))
        }) {
            waiting.0.insert((true, self.number), waiting.1);
        }
    }
}

impl Drop for HandshakePermit {
    fn drop(&mut self) {
        let mut state = self.of.state();
        let class = state.class(self.is_known);
        for has_hello in [false, true] {
            class.remove(self.address, (has_hello, self.number));
        }
        drop(state);
        self.of.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const LIMITS: HandshakeLimits = HandshakeLimits { known_max: 6, strangers_max: 4, of_address_max: 3, age_min: Duration::ZERO };

    fn at(last: u8) -> IpAddr {
        Ipv4Addr::new(127, 0, 0, last).into()
    }

    fn closed(permits: &[HandshakePermit]) -> Vec<usize> {
        (0..permits.len()).filter(|number| permits[*number].needed.is_cancelled()).collect()
    }

    #[tokio::test]
    async fn within_one_address_the_oldest_without_a_first_record_is_closed_first() {
        let unfinished = Unfinished::new(LIMITS);
        let mut all = Vec::new();
        for number in 0..5 {
            all.push(unfinished.enter(at(1), false).await);
            if number == 0 {
                all[0].record_hello();
            }
        }
        assert_eq!(closed(&all), [1, 2]);
        all[3].record_hello();
        all[4].record_hello();
        all.push(unfinished.enter(at(1), false).await);
        assert_eq!(closed(&all), [0, 1, 2], "all have said hello: the oldest");
        // Finished handshakes leave the set.
        drop(all);
        let state = unfinished.state();
        assert_eq!((state.strangers.all, state.strangers.addresses.len()), (0, 0));
    }

    #[tokio::test]
    async fn the_address_with_most_handshakes_loses_one_and_strangers_displace_no_known_address() {
        let unfinished = Unfinished::new(LIMITS);
        let mut all = Vec::new();
        for last in [1, 1, 1, 2, 3, 4] {
            all.push(unfinished.enter(at(last), false).await);
        }
        assert_eq!(closed(&all), [0, 1]);
        for last in [5, 6] {
            all.push(unfinished.enter(at(last), true).await);
        }
        assert_eq!(closed(&all), [0, 1], "the known have limits of their own");
        for last in 10..200 {
            all.push(unfinished.enter(at(last), false).await);
        }
        assert!(!closed(&all).contains(&6) && !closed(&all).contains(&7));
        let state = unfinished.state();
        assert_eq!((state.strangers.all, state.known.all), (4, 2));
    }

    #[tokio::test]
    async fn each_of_many_handshakes_at_once_has_the_minimum_age_to_finish() {
        let three = async |age_min| {
            let unfinished = Unfinished::new(HandshakeLimits { age_min, ..LIMITS });
            let mut all = Vec::new();
            for _ in 0..3 {
                all.push(unfinished.enter(at(1), false).await);
            }
            (unfinished, all)
        };
        let age_min = Duration::from_secs(600);
        let began = Instant::now();
        let (unfinished, mut all) = three(age_min).await;
        // One finishes meanwhile, so none is closed.
        let first = all.remove(0);
        let (permit, ()) = tokio::join!(unfinished.enter(at(1), false), async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            drop(first);
        });
        all.push(permit);
        assert!(closed(&all).is_empty() && began.elapsed() < age_min);
        // None finishes: the oldest is closed when it has had its minimum time.
        let age_min = Duration::from_millis(500);
        let began = Instant::now();
        let (unfinished, mut all) = three(age_min).await;
        all.push(unfinished.enter(at(1), false).await);
        assert_eq!(closed(&all), [0]);
        assert!(began.elapsed() >= age_min);
    }
}
