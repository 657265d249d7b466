//! A watch that survives the loss of its streams: regardless of the member, each change is
//! delivered once, in order, and the changes of one entry together.
//!
//! ```text
//!            ┌────────── Resync: the known place is compacted ──────────┐
//!            ▼                                                              │
//!   nothing ─▶ List ─▶ Changes ─▶ Changes ─▶ stream lost ─▶ since the place of the last ─▶ Changes …
//! ```

use crate::wire::{Change, WatchCursor, WatchMessage, WatchRequest};
use crate::{CallError, QuorumClient, WatchStream};
use futures::FutureExt;
use futures::future::BoxFuture;
use lattice_model::Revision;

/// What the watch delivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The complete list, which replaces everything known before.
    List { revision: Revision, all: Vec<Change> },
    /// The changes of the entries up to this revision.
    Changes { revision: Revision, changes: Vec<Change> },
    /// Changes were dropped before they could be delivered, for this reason: a list follows.
    Resync { why: String },
}

/// The watch.
#[derive(Debug)]
pub struct Following {
    client: QuorumClient,
    request: WatchRequest,
    stream: Option<(WatchStream, Reading)>,
    /// The newest known place: nothing older is accepted from a member that lags behind.
    known: WatchCursor,
}

impl Following {
    /// Creates a watch for `request`, starting at its place if it has one. Sends nothing yet.
    pub fn new(client: QuorumClient, request: WatchRequest) -> Self {
        let known = request.since.unwrap_or_default();
        Self { client, request, stream: None, known }
    }

    /// The place from which another watch of the same things could continue; `None`: it must start
    /// with a list.
    pub fn place(&self) -> Option<WatchCursor> {
        self.request.since
    }

    /// Makes the next delivery a list, because earlier deliveries do not fit the watcher's records.
    pub fn start_again(&mut self) {
        self.stream = None;
        self.request.since = None;
    }

    /// The next delivery. An error says why there is none now; the next call retries with another
    /// member, and continues at the same place. Cancel-safe.
    #[expect(clippy::should_implement_trait, reason = "an iterator cannot await")]
    pub fn next(&mut self) -> BoxFuture<'_, Result<News, CallError>> {
        self.next_news().boxed()
    }

    async fn next_news(&mut self) -> Result<News, CallError> {
        loop {
            let (stream, reading) = match &mut self.stream {
                Some(stream) => stream,
                none => {
                    let stream = self.client.watch(&self.request).await?;
                    none.insert((stream, Reading::since(self.request.since)))
                }
            };
            let message = match stream.next().await {
                Ok(message) => message,
                Err(error) => {
                    self.stream = None;
                    return Err(error);
                }
            };
            let began = reading.within;
            let taken = reading.take(message, self.known);
            let member = stream.member();
            match (began, reading.within) {
                (Within::Start, Within::Changes) => {
                    tracing::info!(member, since = self.known.revision.0, "a watch continues where it was");
                }
                (Within::Start, Within::List) => {
                    tracing::info!(member, revision = reading.place.revision.0, "a watch begins with a list");
                }
                (Within::Start, Within::Start) | (Within::List | Within::Changes, _) => {}
            }
            match taken {
                Taken::Nothing => {}
                Taken::News(news) => {
                    self.known = reading.place;
                    self.request.since = Some(reading.place);
                    return Ok(news);
                }
                Taken::Resync(why) => {
                    tracing::info!(member, why, "a watch starts again");
                    self.start_again();
                    return Ok(News::Resync { why });
                }
                Taken::Behind => {
                    let why = format!("{member}: its state is older than what this watch has received");
                    self.client.leave(member);
                    self.stream = None;
                    return Err(CallError::Unavailable { why });
                }
            }
        }
    }
}

/// The progress of one stream.
#[derive(Debug)]
struct Reading {
    place: WatchCursor,
    within: Within,
    /// Parts of an incomplete list or entry.
    parts: Vec<Change>,
}

/// What the next parts belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Within {
    /// Nothing was received yet.
    Start,
    List,
    Changes,
}

#[derive(Debug, PartialEq, Eq)]
enum Taken {
    Nothing,
    News(News),
    Resync(String),
    /// The member's list is older than the known place.
    Behind,
}

impl Reading {
    fn since(since: Option<WatchCursor>) -> Self {
        Self { place: since.unwrap_or_default(), within: Within::Start, parts: Vec::new() }
    }

    fn take(&mut self, message: WatchMessage, known: WatchCursor) -> Taken {
        match message {
            WatchMessage::Start { generation, revision } => {
                self.place = WatchCursor { generation, revision };
                if self.place < known {
                    return Taken::Behind;
                }
                self.within = Within::List;
                Taken::Nothing
            }
            WatchMessage::Changes { revision, changes, complete } => {
                if self.within == Within::Start {
                    self.within = Within::Changes;
                }
                self.parts.extend(changes);
                if !complete {
                    return Taken::Nothing;
                }
                self.place.revision = revision;
                let whole = std::mem::take(&mut self.parts);
                let is_list = self.within == Within::List;
                self.within = Within::Changes;
                Taken::News(if is_list { News::List { revision, all: whole } } else { News::Changes { revision, changes: whole } })
            }
            WatchMessage::Resync { why } => Taken::Resync(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lattice_model::Generation;

    fn place(revision: u64) -> WatchCursor {
        WatchCursor { generation: Generation(1), revision: Revision(revision) }
    }

    fn ended(name: &str) -> Change {
        Change::LeaseEnded(name.into())
    }

    fn part(revision: u64, changes: Vec<Change>, complete: bool) -> WatchMessage {
        WatchMessage::Changes { revision: Revision(revision), changes, complete }
    }

    fn start(revision: u64) -> WatchMessage {
        WatchMessage::Start { generation: Generation(1), revision: Revision(revision) }
    }

    #[test]
    fn the_parts_of_an_entry_are_delivered_together() {
        let mut reading = Reading::since(None);
        assert_eq!(reading.take(start(7), place(0)), Taken::Nothing);
        assert_eq!(reading.take(part(7, vec![ended("a")], false), place(0)), Taken::Nothing);
        let list = News::List { revision: Revision(7), all: vec![ended("a"), ended("b")] };
        assert_eq!(reading.take(part(7, vec![ended("b")], true), place(0)), Taken::News(list));
        assert_eq!((reading.place, reading.within), (place(7), Within::Changes));
        assert_eq!(reading.take(part(9, vec![ended("c")], false), place(7)), Taken::Nothing);
        assert_eq!(reading.place, place(7), "half an entry is not known");
        let changes = News::Changes { revision: Revision(9), changes: vec![ended("c")] };
        assert_eq!(reading.take(part(9, vec![], true), place(7)), Taken::News(changes));
        assert_eq!(reading.take(WatchMessage::Resync { why: "w".into() }, place(9)), Taken::Resync("w".into()));
    }

    #[test]
    fn a_list_older_than_the_known_place_is_refused() {
        let mut reading = Reading::since(Some(place(5)));
        assert_eq!(reading.take(start(4), place(5)), Taken::Behind);
        let mut reading = Reading::since(Some(place(5)));
        assert_eq!(reading.take(start(6), place(5)), Taken::Nothing);
        assert_eq!((reading.place, reading.within), (place(6), Within::List));
    }
}
