//! Merging of fences: each agent in a launch's tree collects the contributions of its subtree and
//! sends the merge up; the head sends the complete merge down to all.
//!
//! A hub has no state that cannot be rebuilt. After a crash of its agent, a new, empty hub is
//! created, and all parts below it replay their contributions to their last completed fence and to
//! their pending fence. The parts are then at most one fence apart: if one part has completed fence
//! k, all parts have contributed to k. So some replay k−1 and k, others k and k+1. Fence k is
//! merged again (the same bytes, for the parts that did not receive it), then k+1. The
//! contributions to k−1 that are missing from the parts ahead are not needed any more.
//!
//! ```text
//!   part 0:  k−1  k            ─┐
//!   part 1:       k  k+1        ├─▶ k ─▶ k+1
//!   part 2:       k  k+1       ─┘
//! ```
//!
//! A part that contributes again to a completed fence has not received the result, so it is sent
//! again ([`Contributed::Before`]). The hub does not inspect blobs; the servers that merge their
//! pairs check them.

use crate::blob::BLOB_BYTES_MAX;
use crate::tree::Subtree;
use std::collections::BTreeMap;

/// All pairs of a subtree for one fence, concatenated in the order of the parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceMerged {
    /// The fence's number, from 1.
    pub number: u32,
    /// The pairs; once the merge covers the whole launch, they go into
    /// [`Event::FenceDone`](crate::Event::FenceDone).
    pub blob: Vec<u8>,
}

/// The result of a contribution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contributed {
    /// Other parts have not contributed yet.
    Waits,
    /// All parts have contributed: send the merge up, or from the head down to **every** part.
    Whole(FenceMerged),
    /// This hub has merged that fence before. If the fence is also complete, the contributor has
    /// not received the result.
    Before,
}

/// A refused contribution. The hub is unchanged, but the launch cannot continue and must be
/// aborted. `from` is the contributing subtree; any of its parts may be the cause. For a message
/// with node names instead of parts, use [`Self::describe`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FenceRefused {
    /// These parts do not belong to this hub.
    UnknownParts { from: Subtree },
    /// Their fence number does not match the state of the launch.
    OutOfStep { from: Subtree, number: u32, open: u32 },
    /// They contributed again, with different content.
    Changed { from: Subtree, number: u32 },
    /// The contributions are too large together.
    TooLarge { number: u32, bytes: usize },
}

impl FenceRefused {
    /// The message for people; `named` translates parts into node names.
    pub fn describe(&self, named: impl Fn(Subtree) -> String) -> String {
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

/// A fence to which some parts have contributed.
#[derive(Debug, Default)]
struct Gathering {
    /// The contributions by first part: subtree and blob.
    blobs: BTreeMap<u32, (Subtree, Vec<u8>)>,
}

impl Gathering {
    /// The contribution of these parts, or of a larger subtree that contains them.
    fn given(&self, from: Subtree) -> Option<&(Subtree, Vec<u8>)> {
        self.blobs.range(..=from.first).next_back().map(|(_, given)| given).filter(|(by, _)| by.contains(from))
    }

    fn missing(&self, of: Subtree) -> impl Iterator<Item = u32> {
        of.parts().filter(|part| self.given(Subtree::single(*part)).is_none())
    }

    fn is_whole(&self, of: Subtree) -> bool {
        let reached = self.blobs.values().try_fold(of.first, |next, (by, _)| (by.first == next).then_some(by.end));
        reached == Some(of.end)
    }
}

/// Merges the contributions of a subtree. Stores the contributions to at most two fences, and no
/// merge.
#[derive(Debug)]
pub struct FenceHub {
    subtree: Subtree,
    /// Whether the launch's head, part 0, has no rank that could come to a fence.
    is_head_excused: bool,
    /// The last fence that was complete here.
    last: Option<u32>,
    /// The newest fence with a contribution, and the one before it if that is incomplete.
    gatherings: BTreeMap<u32, Gathering>,
}

impl FenceHub {
    /// A hub without any fences.
    pub fn new(subtree: Subtree) -> Self {
        Self { subtree, is_head_excused: false, last: None, gatherings: BTreeMap::new() }
    }

    /// No fence waits for part 0: it has no ranks. To be called before the first contribution.
    pub fn excuse_head(&mut self) {
        self.is_head_excused = self.subtree.contains(Subtree::single(0));
    }

    /// Adds the contribution of some parts. The grouping may change between fences: a part that
    /// contributed together with the parts below it may contribute alone the next time.
    pub fn contribute(&mut self, from: Subtree, number: u32, blob: Vec<u8>) -> Result<Contributed, FenceRefused> {
        if from.is_empty() || !self.subtree.contains(from) {
            return Err(FenceRefused::UnknownParts { from });
        }
        let newest = self.gatherings.keys().next_back().copied().max(self.last);
        // Parts are at most one fence apart; a new hub accepts any number as the current one.
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
        if self.is_head_excused {
            gathering.blobs.entry(0).or_insert((Subtree::single(0), Vec::new()));
        }
        if !gathering.is_whole(self.subtree) {
            // A contributor to a fence has received the result of the previous one, so nobody waits
            // for the one before that.
            self.gatherings.retain(|held, _| held.saturating_add(1) >= newest.unwrap_or(0).max(number));
            return Ok(Contributed::Waits);
        }
        let gathered = std::mem::take(&mut gathering.blobs);
        self.gatherings.retain(|held, _| *held > number);
        self.last = Some(number);
        Ok(Contributed::Whole(FenceMerged { number, blob: joined(gathered, bytes) }))
    }

    /// The open fence and the parts that have not contributed. If all ranks of such a part have
    /// ended, its contribution will never come: abort the launch. A new hub may name a part that
    /// has only not reconnected yet.
    pub fn waiting_for(&self) -> Option<(u32, Vec<u32>)> {
        let beyond =
            |part: u32, number: u32| self.gatherings.range(number..).skip(1).any(|(_, later)| later.given(Subtree::single(part)).is_some());
        self.gatherings.iter().find_map(|(&number, gathering)| {
            let missing: Vec<u32> = gathering.missing(self.subtree).filter(|&part| !beyond(part, number)).collect();
            (!missing.is_empty()).then_some((number, missing))
        })
    }

    /// Whether no part waits in a fence.
    pub fn is_at_rest(&self) -> bool {
        self.gatherings.is_empty()
    }

    /// Whether any contribution to this fence contains data.
    pub fn carries(&self, number: u32) -> bool {
        self.gatherings.get(&number).is_some_and(|gathering| gathering.blobs.values().any(|(_, blob)| !blob.is_empty()))
    }
}

/// All blobs in the order of the parts. A single blob is not copied.
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
    fn no_fence_waits_for_a_head_without_ranks() {
        let mut hub = FenceHub::new(Subtree::whole(3));
        hub.excuse_head();
        for number in 1..4 {
            assert_eq!(hub.contribute(Subtree::single(2), number, vec![2]), Ok(Contributed::Waits));
            assert_eq!(hub.waiting_for(), Some((number, vec![1])));
            let whole = FenceMerged { number, blob: vec![1, 2] };
            assert_eq!(hub.contribute(Subtree::single(1), number, vec![1]), Ok(Contributed::Whole(whole)));
        }
        let mut below = FenceHub::new(Subtree { first: 1, end: 3 });
        below.excuse_head();
        assert_eq!(below.contribute(Subtree::single(1), 1, vec![1]), Ok(Contributed::Waits));
        let whole = FenceMerged { number: 1, blob: vec![1, 2] };
        assert_eq!(below.contribute(Subtree::single(2), 1, vec![2]), Ok(Contributed::Whole(whole)));
    }

    #[test]
    fn a_hub_holds_two_open_fences_at_most() {
        let mut hub = FenceHub::new(Subtree::whole(2));
        for number in 1..10 {
            assert_eq!(hub.contribute(Subtree::single(0), number, Vec::new()), Ok(Contributed::Waits));
            assert!(hub.gatherings.keys().copied().eq((number - 1).max(1)..=number));
        }
    }
}
