//! Conformance: which software and firmware must be the same on all nodes that work spans, and how
//! nodes drift from it.
//!
//! Nodes with the same fingerprint form a conformance group. The first report of a node is the
//! expected state. Any other report is drift, until the node matches the expected state again or an
//! operator accepts the new state.

use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use thiserror::Error;

/// Largest number of components of one node.
pub const COMPONENTS_MAX: usize = 32;
/// Largest size of a component's name, in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Largest size of a component's value, in bytes: the quorum stores the value for every node.
pub const VALUE_BYTES_MAX: usize = 160;
/// Number of hexadecimal digits of a fingerprint in messages.
const FINGERPRINT_DIGITS_SHOWN: usize = 12;
/// Largest number of changes that a message lists.
const CHANGES_LISTED_MAX: usize = 4;

/// A node's components, value by name. A component that the node lacks is left out, not stored as
/// an empty value.
pub type Components = BTreeMap<String, String>;

/// SHA-256 over all components in the order of their names, 64 hexadecimal digits. Each name and
/// each value is preceded by its length (eight bytes, little-endian), so that two different lists
/// never give the same input.
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

/// Components beyond the limits on their number or lengths.
#[derive(Debug, Error)]
#[error("1 to {COMPONENTS_MAX} components, their names of 1 to {NAME_BYTES_MAX} and their values of 1 to {VALUE_BYTES_MAX} bytes")]
pub struct BadComponents;

/// Checks the number of components and their lengths.
pub fn check(components: &Components) -> Result<(), BadComponents> {
    let fits = |text: &str, most| (1..=most).contains(&text.len()) && !text.chars().any(char::is_control);
    let fine = components.iter().all(|(name, value)| fits(name, NAME_BYTES_MAX) && fits(value, VALUE_BYTES_MAX));
    if components.is_empty() || components.len() > COMPONENTS_MAX || !fine {
        return Err(BadComponents);
    }
    Ok(())
}

/// The differences between `before` and `after`, for people: `kernel: 6.1 -> 6.6, bmc: absent ->
/// 2.0`.
pub fn changes(before: &Components, after: &Components) -> String {
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).filter(|name| before.get(*name) != after.get(*name)).collect();
    let of = |components: &Components, name: &String| components.get(name).map_or("absent", String::as_str).to_owned();
    let mut listed: Vec<String> =
        names.iter().take(CHANGES_LISTED_MAX).map(|name| format!("{name}: {} -> {}", of(before, name), of(after, name))).collect();
    if names.len() > CHANGES_LISTED_MAX {
        listed.push(format!("and {} more", names.len() - CHANGES_LISTED_MAX));
    }
    listed.join(", ")
}

/// The first digits of a fingerprint.
pub fn short(fingerprint: &str) -> &str {
    fingerprint.get(..FINGERPRINT_DIGITS_SHOWN).unwrap_or(fingerprint)
}

/// The latest conformance report of a node, and its drift.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conformance {
    /// The reported components.
    pub components: Components,
    /// [`fingerprint`] of these.
    pub fingerprint: String,
    /// Set if the components differ from the expected ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<Drift>,
    /// Whether the agent has been unable to examine the node for too long, so that its current
    /// components are unknown.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stale: bool,
}

/// A deviation from a node's expected components.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drift {
    /// When the drift began.
    pub since: Timestamp,
    /// The expected components.
    pub expected: Components,
    /// Whether the node ran sensitive work since then, which shortens the time for repair.
    pub sensitive: bool,
    /// Whether the time for repair has passed.
    pub overdue: bool,
}

impl Conformance {
    /// The first report of a node.
    pub fn first(components: Components) -> Self {
        Self { fingerprint: fingerprint(&components), components, drift: None, stale: false }
    }

    /// Its conformance group; `None`: it belongs to no group.
    pub fn group(&self) -> Option<&str> {
        if self.stale { None } else { Some(&self.fingerprint) }
    }

    /// The node's expected components.
    pub fn expected(&self) -> &Components {
        self.drift.as_ref().map_or(&self.components, |drift| &drift.expected)
    }

    /// The state after the node reported `components` at `at`.
    #[must_use]
    pub fn then(&self, components: Components, at: Timestamp, sensitive: bool) -> Self {
        let expected = self.expected();
        let drift = (components != *expected).then(|| {
            let (since, was_sensitive, overdue) = self.drift.as_ref().map_or((at, false, false), |d| (d.since, d.sensitive, d.overdue));
            Drift { since, expected: expected.clone(), sensitive: was_sensitive || sensitive, overdue }
        });
        Self { drift, ..Self::first(components) }
    }

    /// The differences from the expected components, if the node has drifted.
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
    fn drift_begins_with_a_change_and_ends_at_the_expected_components() {
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
    fn empty_and_too_long_components_are_refused() {
        assert!(check(&components(&[("a", "b")])).is_ok());
        for bad in [components(&[]), components(&[("a", "")]), components(&[("", "b")]), components(&[("a", "b\n")])] {
            assert!(check(&bad).is_err(), "{bad:?}");
        }
        assert!(check(&components(&[("a", &"x".repeat(VALUE_BYTES_MAX + 1))])).is_err());
    }
}
