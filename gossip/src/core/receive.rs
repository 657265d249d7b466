//! Handling of foca's messages from other nodes, and which of them foca does not need.

use super::{Core, Stage};
use crate::counters::Refusal;
use crate::wire::{KIND_FOCA, NewInMessage, ack, only_new};
use foca::{Message, State};

impl Core {
    /// `sealed_by`: the node and the life that sealed the message, which must be its sender.
    pub(super) fn handle_foca_message(&mut self, now_ms: u64, sealed_by: (u64, u64), body: &[u8]) -> Result<(), Refusal> {
        let newest_life = self.newest_life(now_ms);
        let (view, touched, me) = (&self.view, &mut self.requests.touched, &self.me);
        let (mut claims, mut refused) = (None, 0);
        // Newcomers that this node accepts and does not pass on: see
        // [`FEW_CHANGES_MAX`](super::FEW_CHANGES_MAX).
        let (many_changes, mut newcomers) = (self.many_changes, Vec::new());
        let message = only_new(body, &self.me, &self.known, |header, update| {
            if update.id().outranks_own(me) {
                claims = claims.max(Some(update.id().incarnation));
                return false;
            }
            if !view.is_news(update) {
                return false;
            }
            if view.is_ahead(update.id(), newest_life) {
                refused += 1;
                return false;
            }
            touched.insert(update.id().key);
            let is_newcomer = update.state() == State::Alive && view.of(update.id().key).is_none();
            let is_not_passed_on = many_changes && is_newcomer && header.dst == self.me && view.is_active(&header.src);
            if is_not_passed_on {
                newcomers.push(update.clone());
            }
            !is_not_passed_on
        });
        let message = message.map_err(|_| Refusal::Undecodable)?;
        self.check_sender(sealed_by, &message.header.src)?;
        self.counters.claims_refused += refused;
        if message.header.dst.outranks_own(&self.me) {
            claims = claims.max(Some(message.header.dst.incarnation));
        }
        let done = if self.handle_without_foca(&message) { Ok(()) } else { self.foca.handle_data(&message.body, &mut self.requests) };
        // Other nodes get these newcomers when they compare views with us.
        self.catch_up.done &= newcomers.is_empty();
        // Only encoding could fail, and these newcomers are not encoded because they are not passed
        // on.
        let _ = self.foca.apply_many(newcomers.into_iter(), false, &mut self.requests);
        if let Some(life) = claims {
            self.handle_contradiction(now_ms, life);
        }
        done.map_err(|error| match error {
            foca::Error::DataFromOurselves => Refusal::FromOurselves,
            foca::Error::DataTooBig => Refusal::TooLong,
            _ => Refusal::Undecodable,
        })
    }

    /// Handles a message with nothing new exactly as foca would: with no output, or with the same
    /// answer to a ping. foca would first search its whole list for the sender, and most messages
    /// are of this kind.
    pub(super) fn handle_without_foca(&mut self, message: &NewInMessage<'_>) -> bool {
        let (Stage::Joined, Some(items), header) = (&self.stage, message.items, &message.header) else { return false };
        let is_ours_to_judge = header.dst == self.me && header.src.key != self.me.key && self.view.is_active(&header.src);
        if !is_ours_to_judge || message.is_new {
            return false;
        }
        match header.message {
            Message::Gossip | Message::Feed => self.facts.book().knows_all(items),
            Message::Ping(number) => {
                let has_updates = self.foca.updates_backlog() + self.foca.custom_broadcast_backlog() > 0;
                let done = !has_updates && self.facts.book().knows_all(items);
                if done {
                    self.send(header.src.addr, KIND_FOCA, ack(&self.me, self.incarnation(), header, number));
                }
                done
            }
            Message::Ack(_)
            | Message::PingReq { .. }
            | Message::IndirectPing { .. }
            | Message::IndirectAck { .. }
            | Message::ForwardedAck { .. }
            | Message::Announce
            | Message::Broadcast
            | Message::TurnUndead => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keyring::{Key, Keyring};
    use crate::{Config, Event, Identity, Output, Token};
    use bytes::BufMut;
    use foca::{Codec, Header};
    use std::net::SocketAddr;

    fn addr(n: usize) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, n as u8 + 1], 7))
    }

    /// Two nodes that know each other and have no updates left to send.
    fn two_at_rest() -> [Core; 2] {
        let mut cores = ["a", "b"].map(|name| {
            let n = usize::from(name == "b");
            let me = Identity { node: name.parse().unwrap(), addr: addr(n), mesh: addr(n), incarnation: 1 };
            Core::new(me, Config::default(), &Keyring::configured(Key::from_bytes([7; 32])), "lab", n as u64)
        });
        let mut now_ms = 0;
        let mut timers: Vec<(u64, usize, Token)> = Vec::new();
        let mut out: Vec<(usize, Output)> = Vec::new();
        let handle = |cores: &mut [Core; 2], now_ms, n: usize, event: Event<'_>, out: &mut Vec<(usize, Output)>| {
            let mut outputs = Vec::new();
            cores[n].handle(now_ms, event, &mut outputs);
            out.extend(outputs.into_iter().map(|output| (n, output)));
        };
        handle(&mut cores, 0, 0, Event::Join(addr(1)), &mut out);
        handle(&mut cores, 0, 1, Event::Join(addr(0)), &mut out);
        while now_ms < 20_000 {
            for (n, output) in std::mem::take(&mut out) {
                match output {
                    Output::Datagram { to, bytes } if to == addr(1 - n) => {
                        handle(&mut cores, now_ms, 1 - n, Event::Datagram { from: addr(n), bytes: &bytes }, &mut out);
                    }
                    Output::Timer { after_ms, token } => timers.push((now_ms + after_ms, n, token)),
                    Output::Datagram { .. } | Output::News(_) => {}
                }
            }
            if out.is_empty() {
                let next = (0..timers.len()).min_by_key(|at| timers[*at]).expect("a core always waits for something");
                let (due_ms, n, token) = timers.swap_remove(next);
                now_ms = due_ms;
                handle(&mut cores, now_ms, n, Event::Timer(token), &mut out);
            }
        }
        cores
    }

    #[test]
    fn an_answer_to_a_ping_has_the_bytes_of_foca() {
        let [mut a, b] = two_at_rest();
        assert!(a.is_joined() && a.foca.updates_backlog() + a.foca.custom_broadcast_backlog() == 0);
        let mut ping = Vec::new();
        let header = Header { src: b.me.clone(), src_incarnation: 0, dst: a.me.clone(), message: Message::Ping(7) };
        crate::wire::Wire::new(b.me.clone(), b.known.clone(), b.refuted.clone()).encode_header(&header, &mut ping).unwrap();
        ping.put_u16(0);
        let message = only_new(&ping, &a.me, &a.known, |_, update| a.view.is_news(update)).unwrap();
        assert!(a.handle_without_foca(&message));
        let ours = std::mem::take(&mut a.requests.sends);
        a.foca.handle_data(&ping, &mut a.requests).unwrap();
        assert_eq!((ours.len(), ours), (1, std::mem::take(&mut a.requests.sends)));

        // foca must handle a sender that has something new, or whose identity is new.
        let refuting = Header { src_incarnation: 1, ..header.clone() };
        let renewed = Header { src: b.me.renewed(), ..header };
        for header in [refuting, renewed] {
            let mut ping = Vec::new();
            crate::wire::Wire::new(b.me.clone(), b.known.clone(), b.refuted.clone()).encode_header(&header, &mut ping).unwrap();
            ping.put_u16(0);
            let message = only_new(&ping, &a.me, &a.known, |_, update| a.view.is_news(update)).unwrap();
            assert!(!a.handle_without_foca(&message));
        }
    }
}
