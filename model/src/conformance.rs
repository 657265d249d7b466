//! What of a node's software and firmware must be the same wherever work spans nodes, and how it drifts.
//!
//! Nodes with one fingerprint are one conformance group. What a node told first is what is expected of it; anything else is drift,
//! until it is as expected again or an operator accepts what it is.

use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Components of one node.
pub const COMPONENTS_MAX: usize = 32;
/// Bytes of a component's name.
pub const NAME_BYTES_MAX: usize = 64;
/// Bytes of what a component is: the quorum keeps it of every node.
pub const VALUE_BYTES_MAX: usize = 160;
/// Hexadecimal digits of a fingerprint that people are shown.
const SHORT: usize = 12;
/// Changes that are told one by one.
const CHANGES_TOLD_MAX: usize = 4;

/// What a node is made of, by name. What it lacks is not among them, so that nothing empty looks as if it were there.
pub type Components = BTreeMap<String, String>;

/// SHA-256 over all of them in the order of their names, 64 hexadecimal digits. Each name and each value has its length in front
/// (eight bytes, the lowest first), so that no two lists are one text.
pub fn fingerprint(components: &Components) -> String {
    let mut hash = Sha256::new();
    for part in components.iter().flat_map(|(name, value)| [name, value]) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().iter().fold(String::with_capacity(64), |mut hex, byte| {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// Checks how many there are, and how long.
///
/// # Errors
/// What would be right.
pub fn check(components: &Components) -> Result<(), String> {
    let fits = |text: &str, most| (1..=most).contains(&text.len()) && !text.chars().any(char::is_control);
    let fine = components.iter().all(|(name, value)| fits(name, NAME_BYTES_MAX) && fits(value, VALUE_BYTES_MAX));
    if components.is_empty() || components.len() > COMPONENTS_MAX || !fine {
        return Err(format!(
            "1 to {COMPONENTS_MAX} components, their names of 1 to {NAME_BYTES_MAX} and their values of 1 to {VALUE_BYTES_MAX} bytes"
        ));
    }
    Ok(())
}

/// What of `before` is another one in `after`, for people: `kernel: 6.1 -> 6.6, bmc: absent -> 2.0`.
pub fn changes(before: &Components, after: &Components) -> String {
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).filter(|name| before.get(*name) != after.get(*name)).collect();
    let of = |components: &Components, name: &String| components.get(name).map_or("absent", String::as_str).to_owned();
    let mut told: Vec<String> =
        names.iter().take(CHANGES_TOLD_MAX).map(|name| format!("{name}: {} -> {}", of(before, name), of(after, name))).collect();
    if names.len() > CHANGES_TOLD_MAX {
        told.push(format!("and {} more", names.len() - CHANGES_TOLD_MAX));
    }
    told.join(", ")
}

/// The first digits of a fingerprint.
pub fn short(fingerprint: &str) -> &str {
    fingerprint.get(..SHORT).unwrap_or(fingerprint)
}

/// What a node told last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conformance {
    /// What it is made of.
    pub components: Components,
    /// [`fingerprint`] of these.
    pub fingerprint: String,
    /// Where that is not what is expected of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<Drift>,
    /// Whether its agent could not look for too long: what it is made of is not known any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stale: bool,
}

/// That a node is not as it is expected to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drift {
    /// Since when.
    pub since: Timestamp,
    /// What is expected.
    pub expected: Components,
    /// Whether it had sensitive work meanwhile: there is less time to mend it then.
    pub sensitive: bool,
    /// Whether the time to mend it is over.
    pub over: bool,
}

impl Conformance {
    /// The first that is heard of a node.
    pub fn first(components: Components) -> Self {
        Self { fingerprint: fingerprint(&components), components, drift: None, stale: false }
    }

    /// Its conformance group; `None`: it is one of its own.
    pub fn group(&self) -> Option<&str> {
        if self.stale { None } else { Some(&self.fingerprint) }
    }

    /// What is expected of the node.
    pub fn expected(&self) -> &Components {
        self.drift.as_ref().map_or(&self.components, |drift| &drift.expected)
    }

    /// It told this at `at`.
    #[must_use]
    pub fn then(&self, components: Components, at: Timestamp, sensitive: bool) -> Self {
        let expected = self.expected();
        let drift = (components != *expected).then(|| {
            let (since, was_sensitive, over) = self.drift.as_ref().map_or((at, false, false), |d| (d.since, d.sensitive, d.over));
            Drift { since, expected: expected.clone(), sensitive: was_sensitive || sensitive, over }
        });
        Self { drift, ..Self::first(components) }
    }

    /// Where it drifted: from what to what.
    pub fn drifted(&self) -> Option<String> {
        self.drift.as_ref().map(|drift| changes(&drift.expected, &self.components))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn components(of: &[(&str, &str)]) -> Components {
        of.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn no_two_lists_have_one_fingerprint() {
        let one = components(&[("kernel", "6.1"), ("bmc", "2")]);
        assert_eq!(fingerprint(&one), fingerprint(&components(&[("bmc", "2"), ("kernel", "6.1")])));
        for other in [
            components(&[("kernel", "6.1")]),
            components(&[("kernel6", ".1"), ("bmc", "2")]),
            components(&[("bmc", "2kernel"), ("6", ".1")]),
            components(&[("bmc", "26"), ("kernel", ".1")]),
        ] {
            assert_ne!(fingerprint(&one), fingerprint(&other), "{other:?}");
        }
        // SHA-256 of eight bytes of length and of text, four times.
        let digits = fingerprint(&components(&[("a", "b")]));
        assert_eq!(digits.len(), 64);
        assert_eq!(short(&digits), &digits[..12]);
    }

    #[test]
    fn drift_begins_with_the_first_change_and_ends_where_it_began() {
        let (was, now, last) = (components(&[("k", "1")]), components(&[("k", "2")]), components(&[("k", "2"), ("b", "9")]));
        let first = Conformance::first(was.clone());
        assert_eq!(first.then(was.clone(), Timestamp(5), true), first);
        let drifted = first.then(now, Timestamp(5), false);
        assert_eq!(drifted.drifted().unwrap(), "k: 1 -> 2");
        let further = drifted.then(last, Timestamp(7), true);
        assert_eq!(further.drifted().unwrap(), "b: absent -> 9, k: 1 -> 2");
        let drift = further.drift.as_ref().unwrap();
        assert_eq!((drift.since, drift.sensitive, &drift.expected), (Timestamp(5), true, &was));
        assert_eq!(further.then(was, Timestamp(9), false), first);
    }

    #[test]
    fn what_is_empty_or_too_long_is_none() {
        assert!(check(&components(&[("a", "b")])).is_ok());
        for bad in [components(&[]), components(&[("a", "")]), components(&[("", "b")]), components(&[("a", "b\n")])] {
            assert!(check(&bad).is_err(), "{bad:?}");
        }
        assert!(check(&components(&[("a", &"x".repeat(VALUE_BYTES_MAX + 1))])).is_err());
    }
}
