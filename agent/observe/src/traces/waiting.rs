//! Which lines of an audit wait for the disk, and when they are written ([`Pending`]).

use super::Traces;
use super::pending::{MARKS_BYTES_MAX, PENDING_BYTES_MAX, Pending};
use super::recorder::{Recorder, Recording};
use crate::kernel_counts::Key;
use lattice_model::{NodeId, TelemetryMode};
use std::io;

/// Events are dropped earlier than marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Weight {
    Event,
    Mark,
}

impl Recorder {
    /// Records complete lines with this number of events. Lines that cannot be written now wait in
    /// memory and are written first later. `false`: too many wait already, and these are lost.
    pub fn take_lines(&mut self, key: Key, at_ms: u64, events: u64, lines: Vec<u8>) -> bool {
        self.add(key, at_ms, Pending { lines, events }, Weight::Event)
    }

    /// The same for a line that says when an audit began, paused or ended: it is accepted even if
    /// too many events wait.
    pub fn take_mark(&mut self, key: Key, at_ms: u64, line: Vec<u8>) -> bool {
        self.add(key, at_ms, Pending { lines: line, events: 1 }, Weight::Mark)
    }

    /// Tries again to write the lines that wait.
    pub fn retry(&mut self, at_ms: u64) {
        let keys: Vec<Key> = self.recordings.iter().filter(|(_, recording)| !recording.pending.is_empty()).map(|(key, _)| *key).collect();
        for key in keys {
            self.write_pending(key, at_ms);
        }
        for (key, mut recording) in std::mem::take(&mut self.unfinished) {
            match recording.write_pending(&self.traces, self.mode, &self.me, key, at_ms) {
                Ok(()) => recording.close(&self.traces),
                Err(_) => self.unfinished.push((key, recording)),
            }
        }
        if !self.has_pending() && self.wanted().next().is_none() {
            self.end_trouble();
        }
    }

    /// Whether any lines wait.
    pub fn has_pending(&self) -> bool {
        !self.unfinished.is_empty() || self.recordings.values().any(|recording| !recording.pending.is_empty())
    }

    /// Whether lines of this recording wait: its record is not complete yet.
    pub fn is_behind(&self, key: Key) -> bool {
        self.recordings.get(&key).is_some_and(|recording| !recording.pending.is_empty())
    }

    /// The number of events that wait: they are lost if the agent ends now.
    pub fn events_pending(&self) -> u64 {
        let all = self.recordings.values().chain(self.unfinished.iter().map(|(_, recording)| recording));
        all.map(|recording| recording.pending.events).sum()
    }

    fn add(&mut self, key: Key, at_ms: u64, new: Pending, weight: Weight) -> bool {
        let waiting = self.recordings.values().chain(self.unfinished.iter().map(|(_, recording)| recording));
        let bytes = waiting.map(|recording| recording.pending.lines.len()).sum::<usize>() + new.lines.len();
        let Some(recording) = self.recordings.get_mut(&key).filter(|recording| !recording.over) else { return false };
        let bytes_max = PENDING_BYTES_MAX + if weight == Weight::Mark { MARKS_BYTES_MAX } else { 0 };
        if bytes > bytes_max {
            self.traces.lost(self.mode, key, new.events);
            if !self.dropping {
                self.dropping = true;
                tracing::warn!(allocation = %key.0, "audited events are lost: too many wait for the disk");
            }
            return false;
        }
        recording.pending.lines.extend(new.lines);
        recording.pending.events += new.events;
        self.write_pending(key, at_ms);
        true
    }

    fn write_pending(&mut self, key: Key, at_ms: u64) {
        let Some(recording) = self.recordings.get_mut(&key) else { return };
        match recording.write_pending(&self.traces, self.mode, &self.me, key, at_ms) {
            Ok(()) => {
                if recording.over {
                    recording.close(&self.traces);
                }
                self.dropping = false;
                self.end_trouble();
            }
            Err(error) => self.begin_trouble(&error),
        }
    }
}

impl Recording {
    fn write_pending(&mut self, traces: &Traces, mode: TelemetryMode, me: &NodeId, key: Key, at_ms: u64) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let Pending { lines, events } = std::mem::take(&mut self.pending);
        let written = self.chunk(traces, mode, me, key, at_ms).and_then(|chunk| chunk.append(&lines));
        match written {
            Ok(()) => {
                self.close_if_large(traces);
                traces.of(mode).wrote(key, events);
                Ok(())
            }
            Err(error) => {
                self.pending = Pending { lines, events };
                Err(error)
            }
        }
    }
}
