//! Standard input of a launch's ranks here: a pipe for each, and a buffer of the bytes that some pipe has not accepted.
//!
//! Each byte is accepted once, by its position, so an agent may send anything again. The buffer holds no more than the
//! sender's window: a rank that does not read stops the input and nothing else. A rank that ended, or closed its end,
//! is no longer waited for.

use crate::shim_log::log_line;
use lattice_model::Principal;
use lattice_model::input::{Taken, WINDOW_BYTES};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::unistd::{Gid, Uid, fchown, pipe2, write};
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;

/// Progress is reported after this many bytes while more waits to be read.
const REPORT_STEP_BYTES: u64 = 128 * 1024;

/// A pipe: our non-blocking end, and the rank's end, owned by its user.
pub fn pipe(owner: &Principal) -> nix::Result<(OwnedFd, OwnedFd)> {
    let (theirs, ours) = pipe2(OFlag::O_CLOEXEC)?;
    fcntl(&ours, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    fchown(&theirs, Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)))?;
    Ok((ours, theirs))
}

/// The standard input of all local ranks; see the module.
#[derive(Default)]
pub struct RankInput {
    /// The reading ranks, by local rank.
    readers: BTreeMap<u32, Reader>,
    /// Bytes that the pipe of at least one reader has not accepted.
    pending: VecDeque<u8>,
    /// Number of bytes before `pending`.
    before: u64,
    /// Whether the end of the input was received.
    last: bool,
    /// The progress that was last reported.
    reported: Option<Taken>,
}

struct Reader {
    pipe: OwnedFd,
    /// Number of bytes that its pipe has accepted.
    at: u64,
    waits_to_write: bool,
    /// Its token in `epoll` events.
    token: u64,
}

impl RankInput {
    /// Adds a rank that reads; its pipe has `token` in `epoll`.
    pub fn add(&mut self, local: u32, pipe: OwnedFd, token: u64, epoll: &Epoll) {
        // No flags: epoll reports a closed other end even if it was not requested.
        match epoll.add(&pipe, EpollEvent::new(EpollFlags::empty(), token)) {
            Ok(()) => drop(self.readers.insert(local, Reader { pipe, at: 0, waits_to_write: false, token })),
            Err(errno) => log_line(&format!("standard input of a rank cannot be watched, so the rank gets none: {}", errno.desc())),
        }
    }

    /// Accepts a piece of input.
    pub fn take(&mut self, offset: u64, bytes: &[u8], last: bool, epoll: &Epoll) {
        let end = self.before + self.pending.len() as u64;
        let known = end.checked_sub(offset).and_then(|known| usize::try_from(known).ok());
        // A piece with a gap before it is ignored: the shim requests the missing bytes where needed, and the sender
        // repeats them.
        let Some(new) = known.and_then(|known| bytes.get(known..)).filter(|_| !self.last) else { return };
        if self.readers.is_empty() || self.pending.len() + new.len() > WINDOW_BYTES {
            return;
        }
        self.pending.extend(new);
        self.last = last;
        for local in self.readers.keys().copied().collect::<Vec<_>>() {
            self.write_to_rank(local, epoll);
        }
    }

    /// Handles a rank's pipe that is writable, or that has no reader any more.
    pub fn handle_ready(&mut self, local: u32, flags: EpollFlags, epoll: &Epoll) {
        if flags.intersects(EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP) {
            self.remove(local, epoll);
        } else {
            self.write_to_rank(local, epoll);
        }
    }

    /// Removes a rank that no longer reads.
    pub fn remove(&mut self, local: u32, epoll: &Epoll) {
        if let Some(reader) = self.readers.remove(&local) {
            // Removed explicitly: a child between clone and exec may hold a copy, so closing alone would leave it
            // registered.
            let _ = epoll.delete(&reader.pipe);
        }
        self.drop_consumed();
    }

    /// How many bytes the pipes of all reading ranks have accepted.
    pub fn taken(&self) -> Taken {
        self.readers.values().map(|reader| Taken::UpTo(reader.at)).min().unwrap_or(Taken::Closed)
    }

    /// The progress, if it should be reported now: small steps are not reported.
    pub fn progress_to_report(&mut self) -> Option<Taken> {
        let now = self.taken();
        let far = match (self.reported, now) {
            (Some(Taken::UpTo(reported)), Taken::UpTo(now)) => {
                now - reported >= REPORT_STEP_BYTES || (self.pending.is_empty() && now > reported)
            }
            (Some(Taken::Closed), _) => false,
            (None, _) | (Some(Taken::UpTo(_)), Taken::Closed) => true,
        };
        far.then(|| *self.reported.insert(now))
    }

    fn write_to_rank(&mut self, local: u32, epoll: &Epoll) {
        let Some(reader) = self.readers.get_mut(&local) else { return };
        let end = self.before + self.pending.len() as u64;
        while reader.at < end {
            let (front, back) = self.pending.as_slices();
            // `pending` has every byte that a reader still needs, so `at` is not below `before`.
            let skip = usize::try_from(reader.at - self.before).unwrap_or(usize::MAX);
            let rest = front.get(skip..).filter(|rest| !rest.is_empty()).or_else(|| back.get(skip.saturating_sub(front.len())..));
            match write(&reader.pipe, rest.unwrap_or_default()) {
                Ok(n) => reader.at += n as u64,
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => break,
                Err(_) => return self.remove(local, epoll),
            }
        }
        if reader.at == end && self.last {
            return self.remove(local, epoll);
        }
        let waits = reader.at < end;
        if waits != reader.waits_to_write {
            let flags = if waits { EpollFlags::EPOLLOUT } else { EpollFlags::empty() };
            if epoll.modify(&reader.pipe, &mut EpollEvent::new(flags, reader.token)).is_ok() {
                reader.waits_to_write = waits;
            }
        }
        self.drop_consumed();
    }

    fn drop_consumed(&mut self) {
        match self.taken() {
            Taken::UpTo(bytes) => {
                let over = usize::try_from(bytes - self.before).unwrap_or(usize::MAX).min(self.pending.len());
                self.pending.drain(..over);
                self.before += over as u64;
            }
            Taken::Closed => self.pending = VecDeque::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::epoll::EpollCreateFlags;
    use std::fs::File;
    use std::io::Read;

    fn me() -> Principal {
        let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        Principal { name: "me".into(), uid, gid, groups: vec![] }
    }

    struct Bed {
        epoll: Epoll,
        input: RankInput,
        ends: Vec<File>,
    }

    fn bed(ranks: u32) -> Bed {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        let mut input = RankInput::default();
        let ends = (0..ranks).map(|local| {
            let (ours, theirs) = pipe(&me()).unwrap();
            input.add(local, ours, local.into(), &epoll);
            File::from(theirs)
        });
        let ends = ends.collect();
        Bed { epoll, input, ends }
    }

    #[test]
    fn a_repeated_piece_is_accepted_once_and_a_piece_after_a_gap_is_ignored() {
        let Bed { epoll, mut input, mut ends } = bed(2);
        assert_eq!(input.progress_to_report(), Some(Taken::UpTo(0)));
        for (offset, bytes, last) in
            [(0, "abc", false), (0, "abc", false), (2, "cde", false), (9, "x", false), (5, "f", true), (6, "g", false)]
        {
            input.take(offset, bytes.as_bytes(), last, &epoll);
        }
        assert_eq!((input.progress_to_report(), input.progress_to_report()), (Some(Taken::Closed), None));
        for end in &mut ends {
            let mut text = String::new();
            end.read_to_string(&mut text).unwrap();
            assert_eq!(text, "abcdef");
        }
    }

    #[test]
    fn the_slowest_reader_holds_up_the_input_until_it_is_gone() {
        let Bed { epoll, mut input, mut ends } = bed(2);
        let much: Vec<u8> = (0..WINDOW_BYTES).map(|i| (i % 251) as u8).collect();
        input.take(0, &much, false, &epoll);
        let Taken::UpTo(at_first) = input.taken() else { panic!("both read") };
        assert!(at_first > 0 && at_first < much.len() as u64, "a pipe holds {at_first}");
        // There is only space for one window.
        input.take(much.len() as u64, &vec![1; at_first as usize + 1], false, &epoll);
        assert_eq!(input.pending.len(), WINDOW_BYTES - at_first as usize);
        let mut received = vec![0; much.len()];
        let mut at = 0;
        while at < received.len() {
            at += ends[0].read(&mut received[at..]).unwrap();
            input.handle_ready(0, EpollFlags::EPOLLOUT, &epoll);
        }
        assert!(received == much);
        assert_eq!(input.taken(), Taken::UpTo(at_first), "the other one took nothing more");
        drop(ends.pop());
        let mut events = [EpollEvent::empty(); 4];
        let n = epoll.wait(&mut events, 1000u16).unwrap();
        let gone = events[..n].iter().find(|event| event.data() == 1).expect("its end is reported");
        input.handle_ready(1, gone.events(), &epoll);
        assert_eq!((input.taken(), input.pending.len()), (Taken::UpTo(much.len() as u64), 0));
        input.remove(0, &epoll);
        assert_eq!(input.taken(), Taken::Closed);
    }
}
