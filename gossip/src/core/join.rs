//! How the core joins a cluster, and how it comes back after other nodes have declared it Down.

use super::progress::JoinAddress;
use super::{Core, News, Output, Pending, Stage};
use crate::view::Liveness;
use crate::wire::{KIND_FOCA, announce_to_anyone};
use rand_foca::RngExt;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

/// How many addresses of [`Event::Join`] are stored; a further one replaces the oldest.
const JOIN_ADDRESSES_MAX: usize = 64;
/// The longest pause between two rejoins.
const REJOIN_PAUSE_MS_MAX: u64 = 30_000;
/// A node that was not declared Down for this long rejoins without a pause the next time.
const REJOIN_CALM_MS: u64 = 60_000;

impl Core {
    pub(super) fn add_join_address(&mut self, addr: SocketAddr) {
        if addr == self.me.addr || self.join_addresses.iter().any(|known| known.addr == addr) {
            return;
        }
        if self.join_addresses.len() == JOIN_ADDRESSES_MAX {
            self.join_addresses.remove(0);
        }
        self.join_addresses.push(JoinAddress { addr, seen: None });
        self.announce(addr);
    }

    pub(super) fn announce(&mut self, to: SocketAddr) {
        self.send(to, KIND_FOCA, announce_to_anyone(&self.me));
    }

    /// The join addresses that no member has.
    pub(super) fn silent_addresses(&mut self) -> BTreeSet<SocketAddr> {
        let view = &self.view;
        let is_there = |join: &JoinAddress| {
            let member = join.seen.and_then(|key| view.of(key));
            member.is_some_and(|(peer, entry)| peer.addr == join.addr && entry.liveness != Liveness::Down)
        };
        if !self.join_addresses.iter().all(is_there) {
            for (peer, _) in view.others().filter(|(_, entry)| entry.liveness != Liveness::Down) {
                if let Some(join) = self.join_addresses.iter_mut().find(|join| join.addr == peer.addr) {
                    join.seen = Some(peer.key);
                }
            }
        }
        self.join_addresses.iter().filter(|join| !is_there(join)).map(|join| join.addr).collect()
    }

    pub(super) fn announce_to_some(&mut self, addresses: &BTreeSet<SocketAddr>, at_once: usize) {
        for addr in addresses.iter().cycle().skip(self.join_cursor % addresses.len().max(1)).take(at_once.min(addresses.len())) {
            self.announce(*addr);
        }
        self.join_cursor = self.join_cursor.wrapping_add(at_once);
    }

    pub(super) fn handle_defunct(&mut self, now_ms: u64, sender: Option<SocketAddr>, out: &mut Vec<Output>) {
        // Every node that considers us Down notifies us, and foca reports each notice: one rejoin is
        // enough.
        if let Stage::Defunct = self.stage {
            return;
        }
        self.stage = Stage::Defunct;
        let calm = self.rejoined_ms.is_none_or(|last| now_ms.saturating_sub(last) >= REJOIN_CALM_MS);
        self.rejoin_pause_ms = if calm { 0 } else { (self.rejoin_pause_ms * 2).clamp(self.config.probe_period_ms, REJOIN_PAUSE_MS_MAX) };
        match self.rejoin_pause_ms {
            0 => self.rejoin(now_ms, sender, out),
            pause_ms => self.arm(now_ms, pause_ms, Pending::Rejoin, out),
        }
    }

    /// Comes back under a renewed identity: at once the first time, then after growing pauses,
    /// because two machines that claim one name would otherwise evict each other as fast as the
    /// network allows.
    pub(super) fn rejoin(&mut self, now_ms: u64, sender: Option<SocketAddr>, out: &mut Vec<Output>) {
        // Pending datagrams are sent first: they are sealed under the old identity.
        self.output_datagrams(out);
        self.me = self.next_identity();
        self.sealer.restart(&self.me, self.rng.random());
        let fact = self.fact();
        self.facts.book().set_life(self.me.key, self.me.incarnation);
        if let Some(fact) = fact {
            self.publish_fact(&fact);
        }
        // foca counts from 0 again in its new identity; the first header that it writes will have
        // the count.
        self.refuted.store(0, Ordering::Relaxed);
        // Cannot fail: the renewed identity differs and fits into a datagram.
        let _ = self.foca.change_identity(self.me.clone(), &mut self.requests);
        self.stage = Stage::Apart;
        self.rejoined_ms = Some(now_ms);
        self.counters.rejoins += 1;
        self.view.set_me(&self.me, Liveness::Alive);
        for key in self.suspicions.restart(now_ms) {
            self.arm_suspicion_check(now_ms, key, out);
        }
        // The node that notified us may be on the other side of a partition that has just healed.
        if let Some(addr) = sender {
            self.announce(addr);
        }
        out.push(Output::News(News::Rejoined));
    }
}
