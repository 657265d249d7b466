//! `lattice status --watch` on a terminal: one screen, which is redrawn.
//!
//! Each frame begins at the upper left corner and clears what it does not overwrite. No mode of the terminal is changed,
//! so nothing has to be restored when the user ends the command.

use super::{Watched, append_part};
use crate::failure::{Exit, Failure};
use crate::output::{TableSize, print};
use crate::retries::Retries;
use crate::session::{Session, now};
use crate::shown::{allocations_table, count_by_state, live_first};
use crate::terminal;
use lattice_api::allocation::state_from_name;
use lattice_api::client::Client;
use lattice_api::v1;
use lattice_api::v1::watch_request::What;
use lattice_model::AllocationState;
use lattice_model::time::Timestamp;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// The least time between two frames.
const FRAME_INTERVAL: Duration = Duration::from_millis(250);
/// A frame is drawn after this time even without a change: elapsed times move on.
const FRAME_AGE_MAX: Duration = Duration::from_secs(1);
/// The most allocations that have ended since the beginning, and stay on the screen.
const ENDED_MAX: usize = 1000;
/// The size of a terminal that does not report one.
const SIZE_DEFAULT: (u32, u32) = (24, 80);

/// Shows the allocations until the user ends the command.
pub async fn run(session: &Session, what: What, watched: Watched, owners: bool) -> Result<(), Failure> {
    let request = v1::WatchRequest { what: Some(what), since: None };
    let retries = Retries::default();
    let mut screen = Screen { session, request, watched, owners, known: BTreeMap::new(), retries, is_changed: false, drawn: None };
    let mut client = session.connect().await?;
    loop {
        match screen.follow(&client).await {
            Ok(never) => match never {},
            Err(failure) if screen.retries.should_retry(&failure) => client = screen.retries.reconnect(session, failure).await?,
            Err(failure) => return Err(failure),
        }
    }
}

/// State that is kept over connections.
struct Screen<'a> {
    session: &'a Session,
    request: v1::WatchRequest,
    watched: Watched,
    owners: bool,
    /// The allocations that have not ended, or that have ended since the beginning.
    known: BTreeMap<String, v1::Allocation>,
    retries: Retries,
    /// Whether the last frame is out of date.
    is_changed: bool,
    /// When the last frame was drawn.
    drawn: Option<Instant>,
}

impl Screen<'_> {
    /// Follows changes on one connection.
    async fn follow(&mut self, client: &Client) -> Result<Infallible, Failure> {
        let mut stream = client.watches().watch(self.request.clone()).await?.into_inner();
        let mut whole = v1::WatchEvent::default();
        let mut frames = interval(FRAME_INTERVAL);
        frames.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                part = stream.message() => {
                    let closed = || Failure::new(Exit::Unavailable, "the agent stopped sending changes");
                    let part = part?.ok_or_else(closed)?;
                    self.retries.record_progress();
                    if !part.resync_reason.is_empty() {
                        self.request.since = None;
                        continue;
                    }
                    let more = part.more;
                    append_part(&mut whole, part);
                    if !more {
                        self.apply(std::mem::take(&mut whole));
                    }
                }
                _ = frames.tick() => self.draw_if_due()?,
            }
        }
    }

    fn apply(&mut self, event: v1::WatchEvent) {
        self.request.since = event.cursor;
        if event.list {
            // The list has all allocations that have not ended.
            self.known.retain(|_, a| has_ended(a));
        }
        let watched = &self.watched;
        self.known.extend(event.allocations.into_iter().filter(|a| watched.matches_fixed_part(a)).map(|a| (a.id.clone(), a)));
        forget_first_ended(&mut self.known, ENDED_MAX);
        self.is_changed = true;
    }

    fn draw_if_due(&mut self) -> Result<(), Failure> {
        // Before the first list there is nothing to draw.
        let is_old = self.drawn.is_some_and(|at| at.elapsed() >= FRAME_AGE_MAX);
        if !self.is_changed && !is_old {
            return Ok(());
        }
        let is_shown = |a: &&v1::Allocation| self.watched.matches_changing_part(a, state_from_name(&a.state).ok());
        let mut shown: Vec<v1::Allocation> = self.known.values().filter(is_shown).cloned().collect();
        live_first(&mut shown);
        let (rows, columns) = terminal::size().unwrap_or(SIZE_DEFAULT);
        let size = TableSize { columns: Some(columns as usize), ..self.session.table_size() };
        let text = text(&shown, now(), self.owners, size, rows as usize);
        print(&frame(&text, self.drawn.is_none()))?;
        self.is_changed = false;
        self.drawn = Some(Instant::now());
        Ok(())
    }
}

fn has_ended(a: &v1::Allocation) -> bool {
    state_from_name(&a.state).is_ok_and(AllocationState::is_terminal)
}

/// Keeps at most this many ended allocations, the last to end.
fn forget_first_ended(known: &mut BTreeMap<String, v1::Allocation>, most: usize) {
    let mut ended: Vec<(u64, String)> = known.values().filter(|a| has_ended(a)).map(|a| (a.ended_at_ms, a.id.clone())).collect();
    ended.sort_unstable();
    for (_, id) in ended.iter().take(ended.len().saturating_sub(most)) {
        known.remove(id);
    }
}

/// A screen of fewer than this many rows: the time, how many there are in each state, and as many of the list as fit.
fn text(shown: &[v1::Allocation], now: Timestamp, owners: bool, size: TableSize, rows: usize) -> String {
    let counts: Vec<String> = count_by_state(shown).iter().map(|count| format!("{} {}", count.allocations, count.state)).collect();
    let counts = if counts.is_empty() { "nothing".to_owned() } else { counts.join(", ") };
    let time: String = now.to_string().chars().take("2026-03-05T10:00:12".len()).collect();
    let head = crate::table::shortened(&format!("{time}Z  {counts}"), size.columns.unwrap_or(usize::MAX));
    // The heading of the screen, a line that says how many are missing, and the cursor.
    let most = rows.saturating_sub(3);
    let mut fitting = shown.len().min(most);
    loop {
        let table = allocations_table(&shown[..fitting], now, owners, size);
        if fitting == 0 || table.lines().count() <= most {
            let missing = shown.len() - fitting;
            let more = if missing == 0 { String::new() } else { format!("… and {missing} more\n") };
            return format!("{head}\n{table}{more}");
        }
        fitting -= 1;
    }
}

/// The text from the upper left corner on, without anything else on the terminal.
fn frame(text: &str, is_first: bool) -> String {
    let begin = if is_first { "\u{1b}[2J\u{1b}[H" } else { "\u{1b}[H" };
    let lines: String = text.lines().map(|line| format!("{line}\u{1b}[K\n")).collect();
    format!("{begin}{lines}\u{1b}[J")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Width;

    fn allocation(id: &str, state: &str, ended_at_ms: u64) -> v1::Allocation {
        let (name, nodes_requested, walltime_seconds) = ("a".into(), 1, 60);
        v1::Allocation { id: id.into(), state: state.into(), ended_at_ms, name, nodes_requested, walltime_seconds, ..Default::default() }
    }

    #[test]
    fn a_screen_has_counts_and_as_much_of_the_list_as_fits() {
        let size = TableSize { width: Width::Terse, columns: Some(80) };
        let all: Vec<v1::Allocation> = (0..9).map(|n| allocation(&format!("1000000{n}"), "Pending", 0)).collect();
        let want = "\
2026-03-05T10:00:12Z  9 Pending
ID        NAME  STATE    NODES  WALLTIME  ELAPSED  LEFT      VCLUSTER
10000000  a     Pending  1      00:01:00  —        00:01:00  default
10000001  a     Pending  1      00:01:00  —        00:01:00  default
… and 7 more
";
        let now = Timestamp(1_772_704_812_034);
        assert_eq!(text(&all, now, false, size, 6), want);
        assert_eq!(text(&all, now, false, size, 24).lines().count(), 11);
        assert!(text(&[], now, false, size, 24).starts_with("2026-03-05T10:00:12Z  nothing\nID  NAME"));
    }

    #[test]
    fn a_frame_overwrites_the_one_before_it() {
        assert_eq!(frame("a\nb\n", true), "\u{1b}[2J\u{1b}[Ha\u{1b}[K\nb\u{1b}[K\n\u{1b}[J");
        assert_eq!(frame("a\n", false), "\u{1b}[Ha\u{1b}[K\n\u{1b}[J");
    }

    #[test]
    fn the_last_ended_ones_stay() {
        let all = [allocation("a", "Failed", 3), allocation("b", "Running", 0), allocation("c", "Completed", 1)];
        let mut known: BTreeMap<_, _> = all.into_iter().map(|a| (a.id.clone(), a)).collect();
        forget_first_ended(&mut known, 1);
        assert_eq!(known.keys().collect::<Vec<_>>(), ["a", "b"]);
    }
}
