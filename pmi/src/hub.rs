//! Where fences meet: each agent of a launch's tree gathers the contributions of its subtree and passes their merge up;
//! what the head has merged goes down to all.
//!
//! A hub holds no truth of its own. After a crash of its agent it is built anew, empty, and everything below it replays
//! its contributions to its last completed and its pending fence. The parts are then at most one fence apart: that
//! somebody completed fence k means that everybody contributed to k. So some replay k−1 and k, others k and
//! k+1; k is merged once more (the same bytes, for those who did not get it), then k+1. What the parts ahead lack
//! (k−1) nobody needs any more.
//!
//! ```text
//!   part 0:  k−1  k            ─┐
//!   part 1:       k  k+1        ├─▶ k ─▶ k+1
//!   part 2:       k  k+1       ─┘
//! ```
//!
//! Whoever comes again to a fence that is done has not heard so: it is told again ([`Contributed::Before`]). Blobs are not
//! looked into here; who merges their pairs checks them.

use crate::blob::BLOB_BYTES_MAX;
use crate::tree::Subtree;
use std::collections::BTreeMap;

/// All pairs of a subtree for one fence, joined in the order of the parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceMerged {
    /// Which fence, from 1.
    pub number: u32,
    /// The pairs, for [`Event::FenceDone`](crate::Event::FenceDone) once it is the whole launch's.
    pub blob: Vec<u8>,
}

/// What a contribution brought about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contributed {
    /// Others have not come yet.
    Waits,
    /// Everybody has come: the merge goes up, or at the head down to **every** part.
    Whole(FenceMerged),
    /// That fence was merged before. Where it is also done, whoever came to it has not heard so.
    Before,
}

/// A contribution that was not taken. The hub is as before; the launch cannot go on and is to be aborted. `from`: who contributed, of
/// which any may be the cause. People know nodes and no parts: [`Self::told`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FenceRefused {
    /// They do not meet here.
    UnknownParts { from: Subtree },
    /// They are not where the launch is.
    OutOfStep { from: Subtree, number: u32, open: u32 },
    /// They came again with something else.
    Changed { from: Subtree, number: u32 },
    /// All together put too much.
    TooLarge { number: u32, bytes: usize },
}

impl FenceRefused {
    /// For people; `named` says who parts are.
    pub fn told(&self, named: impl Fn(Subtree) -> String) -> String {
        match self {
            Self::UnknownParts { from } => format!("{} came to a fence that is not theirs", named(*from)),
            Self::OutOfStep { from, number, open } => {
                format!("{} came to fence {number}, while the launch is at fence {open}", named(*from))
            }
            Self::Changed { from, number } => format!("{} came to fence {number} twice, with different data", named(*from)),
            Self::TooLarge { number, bytes } => {
                format!("fence {number} would carry {bytes} bytes, more than the {BLOB_BYTES_MAX} allowed: the ranks put too much")
            }
        }
    }
}

/// A fence to which some parts have come.
#[derive(Debug, Default)]
struct Gathering {
    /// By their first part: who came, with what.
    blobs: BTreeMap<u32, (Subtree, Vec<u8>)>,
}

impl Gathering {
    /// What was given by these parts, or by more with them.
    fn given(&self, from: Subtree) -> Option<&(Subtree, Vec<u8>)> {
        self.blobs.range(..=from.first).next_back().map(|(_, given)| given).filter(|(by, _)| by.contains(from))
    }

    fn missing(&self, of: Subtree) -> impl Iterator<Item = u32> {
        of.parts().filter(|part| self.given(Subtree::single(*part)).is_none())
    }

    fn whole(&self, of: Subtree) -> bool {
        let reached = self.blobs.values().try_fold(of.first, |next, (by, _)| (by.first == next).then_some(by.end));
        reached == Some(of.end)
    }
}

/// Merges the contributions of a subtree. Holds those to at most two fences, and no merge.
#[derive(Debug)]
pub struct FenceHub {
    subtree: Subtree,
    /// The last fence that was whole here.
    last: Option<u32>,
    /// The newest fence that anybody came to, and the one before it where it is incomplete.
    gatherings: BTreeMap<u32, Gathering>,
}

impl FenceHub {
    /// A hub that knows of no fence yet.
    pub fn new(subtree: Subtree) -> Self {
        Self { subtree, last: None, gatherings: BTreeMap::new() }
    }

    /// Takes the contribution of some parts. Who contributes may change between two of them: one part that contributed with those
    /// below it may do so alone the next time.
    pub fn contribute(&mut self, from: Subtree, number: u32, blob: Vec<u8>) -> Result<Contributed, FenceRefused> {
        if from.is_empty() || !self.subtree.contains(from) {
            return Err(FenceRefused::UnknownParts { from });
        }
        let newest = self.gatherings.keys().next_back().copied().max(self.last);
        // Parts are at most one fence apart; a hub that knows nothing takes any number as where the launch is.
        let in_step = newest.is_none_or(|newest| number <= newest.saturating_add(1));
        if number == 0 || !in_step {
            return Err(FenceRefused::OutOfStep { from, number, open: newest.unwrap_or(0) });
        }
        if self.last.is_some_and(|last| number <= last) {
            return Ok(Contributed::Before);
        }
        if newest.is_some_and(|newest| number.saturating_add(1) < newest) {
            return Ok(Contributed::Waits);
        }
        let gathered = self.gatherings.get(&number);
        if let Some((by, held)) = gathered.and_then(|gathering| gathering.given(from)) {
            let changed = *by == from && *held != blob;
            return if changed { Err(FenceRefused::Changed { from, number }) } else { Ok(Contributed::Waits) };
        }
        let others = gathered.into_iter().flat_map(|gathering| gathering.blobs.values()).filter(|(by, _)| !from.contains(*by));
        let bytes = blob.len() + others.map(|(_, blob)| blob.len()).sum::<usize>();
        if bytes > BLOB_BYTES_MAX {
            return Err(FenceRefused::TooLarge { number, bytes });
        }

        let gathering = self.gatherings.entry(number).or_default();
        gathering.blobs.retain(|_, (by, _)| !from.contains(*by));
        gathering.blobs.insert(from.first, (from, blob));
        if !gathering.whole(self.subtree) {
            // Who came to a fence has seen the end of the one before it, so nobody waits for the one before that.
            self.gatherings.retain(|held, _| held.saturating_add(1) >= newest.unwrap_or(0).max(number));
            return Ok(Contributed::Waits);
        }
        let gathered = std::mem::take(&mut gathering.blobs);
        self.gatherings.retain(|held, _| *held > number);
        self.last = Some(number);
        Ok(Contributed::Whole(FenceMerged { number, blob: joined(gathered, bytes) }))
    }

    /// The open fence and the parts that did not come to it. When all ranks of one of those have ended, it will
    /// never come: abort the launch. A new hub may name a part that is only yet to reconnect.
    pub fn waiting_for(&self) -> Option<(u32, Vec<u32>)> {
        let beyond =
            |part: u32, number: u32| self.gatherings.range(number..).skip(1).any(|(_, later)| later.given(Subtree::single(part)).is_some());
        self.gatherings.iter().find_map(|(&number, gathering)| {
            let missing: Vec<u32> = gathering.missing(self.subtree).filter(|&part| !beyond(part, number)).collect();
            (!missing.is_empty()).then_some((number, missing))
        })
    }

    /// Whether nobody waits in a fence.
    pub fn is_at_rest(&self) -> bool {
        self.gatherings.is_empty()
    }

    /// Whether anybody who came to this fence brought something for the others.
    pub fn carries(&self, number: u32) -> bool {
        self.gatherings.get(&number).is_some_and(|gathering| gathering.blobs.values().any(|(_, blob)| !blob.is_empty()))
    }
}

/// All blobs in the order of the parts. What one alone gave is not copied.
fn joined(gathered: BTreeMap<u32, (Subtree, Vec<u8>)>, bytes: usize) -> Vec<u8> {
    let mut blobs = gathered.into_values().map(|(_, blob)| blob).filter(|blob| !blob.is_empty());
    let mut all = blobs.next().unwrap_or_default();
    all.reserve_exact(bytes - all.len());
    blobs.for_each(|blob| all.extend_from_slice(&blob));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_holds_two_open_fences_at_most() {
        let mut hub = FenceHub::new(Subtree::whole(2));
        for number in 1..10 {
            assert_eq!(hub.contribute(Subtree::single(0), number, Vec::new()), Ok(Contributed::Waits));
            assert!(hub.gatherings.keys().copied().eq((number - 1).max(1)..=number));
        }
    }
}
