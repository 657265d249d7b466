//! Where a launch's fences meet: the head gathers every node's contribution and hands out the merge.
//!
//! A hub holds no truth of its own. After a crash of its agent it is built anew, empty, and every server replays its
//! contributions to its last completed and its pending fence. The parts are then at most one fence apart: that
//! somebody completed fence k means that everybody contributed to k. So some replay k−1 and k, others k and
//! k+1; k is merged once more (the same bytes, for those who did not get it), then k+1. What the parts ahead lack
//! (k−1) nobody needs any more.
//!
//! ```text
//!   part 0:  k−1  k            ─┐
//!   part 1:       k  k+1        ├─▶ k ─▶ k+1
//!   part 2:       k  k+1       ─┘
//! ```

use crate::blob::{self, BLOB_BYTES_MAX, CorruptBlob};
use std::collections::BTreeMap;
use std::sync::Arc;
use thiserror::Error;

/// A complete fence: every part's pairs, joined in the order of the parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceMerged {
    /// Which fence, from 1.
    pub number: u32,
    /// The pairs, for [`Event::FenceDone`](crate::Event::FenceDone).
    pub blob: Arc<[u8]>,
}

/// A contribution that was not taken. The hub is as before; the launch cannot go on and is to be aborted.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FenceRefused {
    #[error("part {part} is none of the launch's {parts}")]
    UnknownPart { part: usize, parts: usize },
    #[error("part {part} came to fence {number}, while the launch is at fence {open}")]
    OutOfStep { part: usize, number: u32, open: u32 },
    #[error("part {part} came to fence {number} twice, with different data")]
    Changed { part: usize, number: u32 },
    #[error("part {part}'s data for fence {number} cannot be read")]
    Corrupt {
        part: usize,
        number: u32,
        #[source]
        source: CorruptBlob,
    },
    #[error("fence {number} would carry {bytes} bytes, more than the {BLOB_BYTES_MAX} allowed: the ranks put too much")]
    TooLarge { number: u32, bytes: usize },
}

/// A fence to which some parts have come.
#[derive(Debug)]
struct Gathering {
    blobs: Vec<Option<Vec<u8>>>,
    bytes: usize,
}

impl Gathering {
    fn missing(&self) -> impl Iterator<Item = usize> {
        self.blobs.iter().enumerate().filter(|(_, blob)| blob.is_none()).map(|(part, _)| part)
    }
}

/// Merges the contributions of a launch's nodes; `part` is a node's place in `LaunchSpec::nodes`. Holds the merge of the
/// last complete fence and the contributions to at most two more.
#[derive(Debug)]
pub struct FenceHub {
    parts: usize,
    last: Option<FenceMerged>,
    /// The newest fence that anybody came to, and the one before it where it is incomplete.
    gatherings: BTreeMap<u32, Gathering>,
}

impl FenceHub {
    /// A hub that knows of no fence yet; `parts` nodes take part.
    pub fn new(parts: usize) -> Self {
        Self { parts, last: None, gatherings: BTreeMap::new() }
    }

    /// Takes a part's contribution. `Some`: the fence is complete, and the merge goes to **every** part. Repeated and
    /// outdated contributions are taken and do nothing.
    pub fn contribute(&mut self, part: usize, number: u32, blob: Vec<u8>) -> Result<Option<FenceMerged>, FenceRefused> {
        if part >= self.parts {
            return Err(FenceRefused::UnknownPart { part, parts: self.parts });
        }
        let last = self.last.as_ref().map(|merged| merged.number);
        let newest = self.gatherings.keys().next_back().copied().max(last);
        // Parts are at most one fence apart; a hub that knows nothing takes any number as where the launch is.
        let in_step = newest.is_none_or(|newest| number <= newest.saturating_add(1));
        if number == 0 || !in_step {
            return Err(FenceRefused::OutOfStep { part, number, open: newest.unwrap_or(0) });
        }
        let outdated = last.is_some_and(|last| number <= last) || newest.is_some_and(|newest| number.saturating_add(1) < newest);
        if outdated {
            return Ok(None);
        }
        let gathered = self.gatherings.get(&number);
        if let Some(held) = gathered.and_then(|gathering| gathering.blobs[part].as_ref()) {
            return if *held == blob { Ok(None) } else { Err(FenceRefused::Changed { part, number }) };
        }
        blob::check(&blob).map_err(|source| FenceRefused::Corrupt { part, number, source })?;
        let bytes = gathered.map_or(0, |gathering| gathering.bytes) + blob.len();
        if bytes > BLOB_BYTES_MAX {
            return Err(FenceRefused::TooLarge { number, bytes });
        }

        let gathering = self.gatherings.entry(number).or_insert_with(|| Gathering { blobs: vec![None; self.parts], bytes: 0 });
        gathering.blobs[part] = Some(blob);
        gathering.bytes = bytes;
        let complete = gathering.missing().next().is_none();
        if !complete {
            // Who came to a fence has seen the end of the one before it, so nobody waits for the one before that.
            self.gatherings.retain(|held, _| held.saturating_add(1) >= newest.unwrap_or(0).max(number));
            return Ok(None);
        }
        let blobs: Vec<Vec<u8>> = gathering.blobs.iter_mut().filter_map(Option::take).collect();
        let merged = FenceMerged { number, blob: blobs.concat().into() };
        self.gatherings.retain(|held, _| *held > number);
        self.last = Some(merged.clone());
        Ok(Some(merged))
    }

    /// What a part that reconnects may have missed: the last complete fence. To be sent after its replay was taken.
    /// `None` where this hub has completed none, or there is no such part.
    pub fn resume(&self, part: usize) -> Option<&FenceMerged> {
        self.last.as_ref().filter(|_| part < self.parts)
    }

    /// The open fence and the parts that did not come to it. When all ranks of one of those have ended, it will
    /// never come: abort the launch. A new hub may name a part that is only yet to reconnect.
    pub fn waiting_for(&self) -> Option<(u32, Vec<usize>)> {
        let beyond = |part: usize, number: u32| self.gatherings.range(number..).skip(1).any(|(_, later)| later.blobs[part].is_some());
        self.gatherings.iter().find_map(|(&number, gathering)| {
            let missing: Vec<usize> = gathering.missing().filter(|&part| !beyond(part, number)).collect();
            (!missing.is_empty()).then_some((number, missing))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_holds_two_open_fences_at_most() {
        let mut hub = FenceHub::new(2);
        for number in 1..10 {
            assert_eq!(hub.contribute(0, number, Vec::new()), Ok(None));
            assert!(hub.gatherings.keys().copied().eq((number - 1).max(1)..=number));
        }
    }
}
