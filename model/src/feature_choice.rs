//! Features beyond those that each node must have: alternatives, and features of a number of nodes. People write them as
//! an expression: see [`crate::feature_expression`].

use crate::feature::{FEATURE_BYTES_MAX, FEATURES_MAX, has, is_feature};
use crate::matching::{Supply, assign};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use thiserror::Error;

/// The most alternatives of one request, and the most sets of features with a number of nodes.
pub const ALTERNATIVES_MAX: usize = 32;
/// Characters with a meaning in an expression: the features in it cannot contain them.
pub const OPERATORS: [char; 9] = ['&', ',', '|', '(', ')', '[', ']', '*', '!'];

/// Features that a node must have, all of them.
pub type FeatureSet = BTreeSet<String>;

/// What an allocation asks of its nodes beside the features that each must have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FeatureChoice {
    /// Each node must have one of these sets; empty: no such requirement.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub any_of: Vec<FeatureSet>,
    /// What the nodes must have together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub together: Option<Together>,
}

/// What the nodes of an allocation must have together.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Together {
    /// All nodes have the same one of these sets.
    Same(Vec<FeatureSet>),
    /// A number of nodes for each set. A node counts for one set; further nodes may have any features.
    Counted(Vec<FeatureCount>),
}

/// A number of nodes with these features.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FeatureCount {
    /// How many nodes; at least 1.
    pub nodes: u32,
    /// What each of them has.
    pub features: FeatureSet,
}

/// The choice is not possible.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum InvalidChoice {
    /// Too many sets.
    #[error("{0} alternatives; at most {ALTERNATIVES_MAX} are possible")]
    TooMany(usize),
    /// One alternative has too many features.
    #[error("an alternative has {0} features; at most {FEATURES_MAX} are possible")]
    TooManyFeatures(usize),
    /// A set without features or without nodes, or no sets.
    #[error("an alternative has no features, or no nodes")]
    Empty,
    /// A text that is not a feature.
    #[error("{0:?} is not a feature that an alternative can have: give a word such as nvme_scratch")]
    Feature(String),
}

/// Whether a node with these features has all of the set.
pub fn has_all(features: &[String], set: &FeatureSet) -> bool {
    set.iter().all(|wanted| has(features, wanted))
}

impl FeatureChoice {
    /// Why a node with these features can be none of the allocation's nodes; for people.
    pub fn lacked_by(&self, features: &[String]) -> Option<String> {
        let lacks = |sets: &[FeatureSet]| !sets.is_empty() && !sets.iter().any(|set| has_all(features, set));
        let none_of = |sets: &[FeatureSet]| Some(format!("has none of the alternatives {}", alternatives(sets)));
        if lacks(&self.any_of) {
            return none_of(&self.any_of);
        }
        match &self.together {
            Some(Together::Same(sets)) if lacks(sets) => none_of(sets),
            Some(Together::Same(_) | Together::Counted(_)) | None => None,
        }
    }

    /// Checks the bounds and each feature.
    ///
    /// # Errors
    /// What is not possible.
    pub fn validate(&self) -> Result<(), InvalidChoice> {
        validate_sets(self.any_of.iter())?;
        let Some(together) = &self.together else { return Ok(()) };
        validate_sets(together.sets())?;
        let has_none = match together {
            Together::Same(sets) => sets.is_empty(),
            Together::Counted(counts) => counts.is_empty() || counts.iter().any(|count| count.nodes == 0),
        };
        if has_none { Err(InvalidChoice::Empty) } else { Ok(()) }
    }

    /// Approximate number of bytes of its strings.
    pub fn bytes(&self) -> usize {
        self.sets().flatten().map(|feature| feature.len() + 4).sum()
    }

    /// All sets of features, of any kind.
    pub fn sets(&self) -> impl Iterator<Item = &FeatureSet> {
        self.any_of.iter().chain(self.together.iter().flat_map(Together::sets))
    }
}

fn validate_sets<'s>(sets: impl Iterator<Item = &'s FeatureSet> + Clone) -> Result<(), InvalidChoice> {
    let count = sets.clone().count();
    if count > ALTERNATIVES_MAX {
        return Err(InvalidChoice::TooMany(count));
    }
    for set in sets {
        if set.is_empty() {
            return Err(InvalidChoice::Empty);
        }
        if set.len() > FEATURES_MAX {
            return Err(InvalidChoice::TooManyFeatures(set.len()));
        }
        if let Some(bad) = set.iter().find(|feature| !is_feature(feature) || feature.contains(OPERATORS)) {
            return Err(InvalidChoice::Feature(bad.chars().take(FEATURE_BYTES_MAX).collect()));
        }
    }
    Ok(())
}

impl Together {
    /// Its sets of features, in the order of the bits of [`Self::met_by`].
    pub fn sets(&self) -> impl Iterator<Item = &FeatureSet> + Clone {
        let (same, counted): (&[FeatureSet], &[FeatureCount]) = match self {
            Self::Same(sets) => (sets, &[]),
            Self::Counted(counts) => (&[], counts),
        };
        same.iter().chain(counted.iter().map(|count| &count.features))
    }

    /// Which of the sets a node with these features has: a bit for each.
    pub fn met_by(&self, features: &[String]) -> u32 {
        self.sets().zip(0_u32..).filter(|(set, _)| has_all(features, set)).fold(0, |met, (_, at)| met | 1_u32.checked_shl(at).unwrap_or(0))
    }

    /// The sum of all numbers of nodes; 0: it has no numbers.
    pub fn counted_nodes(&self) -> u32 {
        match self {
            Self::Same(_) => 0,
            Self::Counted(counts) => counts.iter().fold(0, |sum, count| sum.saturating_add(count.nodes)),
        }
    }

    /// How many nodes of each kind are needed for the numbers: `nodes` has the number of nodes for each value of
    /// [`Self::met_by`]. If the sum is less than [`Self::counted_nodes`], nodes are missing.
    pub fn needed(&self, nodes: &BTreeMap<u32, usize>) -> BTreeMap<u32, usize> {
        let Self::Counted(counts) = self else { return BTreeMap::new() };
        let demands: Vec<usize> = counts.iter().map(|count| count.nodes as usize).collect();
        let supplies: Vec<Supply> = nodes.iter().map(|(serves, count)| Supply { serves: *serves, count: *count }).collect();
        nodes.keys().copied().zip(assign(&demands, &supplies)).collect()
    }

    /// How many of these nodes could serve one allocation together: the most that have the same alternative; or, with
    /// numbers, all if the numbers are reached, and otherwise those that count towards them.
    pub fn serving<'n>(&self, nodes: impl Iterator<Item = &'n [String]>) -> usize {
        let met: Vec<u32> = nodes.map(|features| self.met_by(features)).collect();
        match self {
            Self::Same(sets) => {
                let have = |at: u32| met.iter().filter(|met| 1_u32.checked_shl(at).is_some_and(|bit| **met & bit != 0)).count();
                (0_u32..).zip(sets).map(|(at, _)| have(at)).max().unwrap_or(0)
            }
            Self::Counted(_) => {
                let needed: usize = self.needed(&counts_of(&met)).into_values().sum();
                if needed < self.counted_nodes() as usize { needed } else { met.len() }
            }
        }
    }

    /// Why nodes with these features cannot be all nodes of an allocation; for people.
    pub fn unmet_by<'n>(&self, nodes: impl Iterator<Item = &'n [String]>) -> Option<String> {
        let met: Vec<u32> = nodes.map(|features| self.met_by(features)).collect();
        match self {
            Self::Same(sets) => {
                let common = met.iter().fold(u32::MAX, |common, met| common & met);
                let is_met = common.trailing_zeros() < u32::try_from(sets.len()).unwrap_or(u32::MAX);
                (!is_met).then(|| format!("and the others have none of {} in common", alternatives(sets)))
            }
            Self::Counted(_) => {
                let needed: usize = self.needed(&counts_of(&met)).into_values().sum();
                (needed < self.counted_nodes() as usize).then(|| format!("and the others are not {self}"))
            }
        }
    }
}

fn counts_of(met: &[u32]) -> BTreeMap<u32, usize> {
    let mut counts = BTreeMap::new();
    met.iter().for_each(|met| *counts.entry(*met).or_insert(0) += 1);
    counts
}

/// `a`, or `(a&b)`.
fn set_text(set: &FeatureSet) -> String {
    let all: Vec<&str> = set.iter().map(String::as_str).collect();
    if all.len() == 1 { all.concat() } else { format!("({})", all.join("&")) }
}

/// `a|(b&c)`.
fn alternatives(sets: &[FeatureSet]) -> String {
    sets.iter().map(set_text).collect::<Vec<_>>().join("|")
}

/// For people: `all with the same of a|b`, `2 with a and 4 with b`.
impl fmt::Display for Together {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same(sets) => write!(f, "all with the same of {}", alternatives(sets)),
            Self::Counted(counts) => {
                let all: Vec<String> = counts.iter().map(|count| format!("{} with {}", count.nodes, set_text(&count.features))).collect();
                f.write_str(&all.join(" and "))
            }
        }
    }
}

/// The expression.
impl fmt::Display for FeatureChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let any_of = match (self.any_of.is_empty(), &self.together) {
            (true, _) => None,
            (false, None) => Some(alternatives(&self.any_of)),
            (false, Some(_)) => Some(format!("({})", alternatives(&self.any_of))),
        };
        let together = self.together.as_ref().map(|together| match together {
            Together::Same(sets) => format!("[{}]", alternatives(sets)),
            Together::Counted(counts) => {
                let all: Vec<String> = counts.iter().map(|count| format!("{}*{}", set_text(&count.features), count.nodes)).collect();
                format!("[{}]", all.join("&"))
            }
        });
        let parts: Vec<String> = any_of.into_iter().chain(together).collect();
        f.write_str(&parts.join("&"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feature_expression::parse;

    fn choice(text: &str) -> FeatureChoice {
        parse(text).unwrap().choice.unwrap()
    }

    fn node(features: &str) -> Vec<String> {
        features.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn a_node_serves_with_one_alternative() {
        let either = choice("(a&b)|gpu_type=GH200");
        for good in ["a b", "gpu_type=GH200-480GB", "b c a"] {
            assert_eq!(either.lacked_by(&node(good)), None, "{good}");
        }
        assert_eq!(either.lacked_by(&node("a c")).as_deref(), Some("has none of the alternatives (a&b)|gpu_type=GH200"));
        assert_eq!(choice("[a|b]").lacked_by(&node("c")).as_deref(), Some("has none of the alternatives a|b"));
        assert_eq!(choice("[a*2&b*4]").lacked_by(&node("c")), None, "further nodes may have any features");
    }

    #[test]
    fn nodes_have_the_same_alternative_or_are_as_many_as_was_asked_for() {
        let unmet = |text: &str, nodes: &[&str]| {
            let nodes: Vec<Vec<String>> = nodes.iter().map(|features| node(features)).collect();
            let together = choice(text).together.unwrap();
            let features = || nodes.iter().map(Vec::as_slice);
            (together.unmet_by(features()), together.serving(features()))
        };
        assert_eq!(unmet("[a|b]", &["a", "a b"]), (None, 2));
        assert_eq!(unmet("[a|b]", &["a", "b", "a"]), (Some("and the others have none of a|b in common".to_owned()), 2));
        assert_eq!(unmet("[a*1&b*2]", &["a b", "b", "a b", "c"]), (None, 4));
        assert_eq!(unmet("[a*2&b*2]", &["a b", "b", "b", "c"]), (Some("and the others are not 2 with a and 2 with b".to_owned()), 3));
    }

    #[test]
    fn bounds_are_checked() {
        let set = |feature: &str| FeatureSet::from([feature.to_owned()]);
        let any_of = |any_of: Vec<FeatureSet>| FeatureChoice { any_of, together: None }.validate();
        assert_eq!(any_of(vec![set("a"); ALTERNATIVES_MAX]), Ok(()));
        assert_eq!(any_of(vec![set("a"); ALTERNATIVES_MAX + 1]), Err(InvalidChoice::TooMany(33)));
        assert_eq!(any_of(vec![set("a"), FeatureSet::new()]), Err(InvalidChoice::Empty));
        assert_eq!(any_of(vec![set("a|b")]), Err(InvalidChoice::Feature("a|b".to_owned())));
        let none = FeatureCount { nodes: 0, features: set("a") };
        let counted = FeatureChoice { any_of: vec![], together: Some(Together::Counted(vec![none])) };
        assert_eq!(counted.validate(), Err(InvalidChoice::Empty));
    }
}
