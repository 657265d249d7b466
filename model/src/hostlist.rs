//! Hostlists in the notation of other schedulers: `n[1-3,7]` for `n1 n2 n3 n7`.

use crate::ids::{IdError, NODE_NAME_BYTES_MAX, NodeId};
use std::collections::BTreeSet;
use thiserror::Error;

/// Largest number of names in a list, counting repeated ones.
pub const NAMES_MAX: usize = 100_000;

/// Why a text is not a valid hostlist.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum HostlistError {
    /// Wrong brackets or numbers.
    #[error("{0:?} is not a list of nodes: write n1,n2 or n[1-3,7]")]
    Form(String),
    /// It contains an invalid node name.
    #[error(transparent)]
    Name(#[from] IdError),
    /// More names than [`NAMES_MAX`].
    #[error("a list has at most {NAMES_MAX} names, counting repeated ones: give fewer at a time")]
    TooMany,
}

/// The nodes that a list names: `n[1-3,7],login` for `n1 n2 n3 n7 login`. Leading zeros of a
/// range's first number are kept.
///
/// # Errors
/// See [`HostlistError`].
pub fn expand(text: &str) -> Result<BTreeSet<NodeId>, HostlistError> {
    Ok(in_order(text)?.into_iter().collect())
}

/// As [`expand`], but in the written order and with repetitions.
///
/// # Errors
/// See [`HostlistError`].
pub fn in_order(text: &str) -> Result<Vec<NodeId>, HostlistError> {
    let mut nodes: Vec<NodeId> = Vec::new();
    read(text, |part| {
        match part {
            Part::Name(name) => nodes.push(name.parse()?),
            Part::Range(range) => {
                for n in range.from..=range.to {
                    if nodes.len() == NAMES_MAX {
                        return Err(HostlistError::TooMany);
                    }
                    nodes.push(range.name(n).parse()?);
                }
            }
        }
        if nodes.len() > NAMES_MAX { Err(HostlistError::TooMany) } else { Ok(()) }
    })?;
    Ok(nodes)
}

/// The number of names that [`in_order`] gives, without the memory for them.
///
/// # Errors
/// See [`HostlistError`].
pub fn count(text: &str) -> Result<usize, HostlistError> {
    let mut count: usize = 0;
    read(text, |part| {
        let more = match part {
            Part::Name(name) => {
                let _is_a_name: NodeId = name.parse()?;
                1
            }
            Part::Range(range) => {
                // All names between two valid ones are valid: they differ in digits, and are not longer.
                for n in [range.from, range.to] {
                    let _is_a_name: NodeId = range.name(n).parse()?;
                }
                usize::try_from(range.to - range.from).unwrap_or(usize::MAX).saturating_add(1)
            }
        };
        count = count.saturating_add(more);
        if count > NAMES_MAX { Err(HostlistError::TooMany) } else { Ok(()) }
    })?;
    Ok(count)
}

/// The first name that [`in_order`] gives; `None`: the text is no list.
pub fn first(text: &str) -> Option<NodeId> {
    let mut first = None;
    // The error stops the reading after the first part.
    let _refused = read(text, |part| {
        first = match part {
            Part::Name(name) => name.parse().ok(),
            Part::Range(range) => range.name(range.from).parse().ok(),
        };
        Err(HostlistError::TooMany)
    });
    first
}

/// A part of a list.
enum Part<'a> {
    Name(&'a str),
    Range(Range<'a>),
}

/// `prefix` with each number.
struct Range<'a> {
    prefix: &'a str,
    from: u64,
    to: u64,
    /// Least number of digits.
    width: usize,
}

impl Range<'_> {
    fn name(&self, n: u64) -> String {
        format!("{}{n:0width$}", self.prefix, width = self.width)
    }
}

/// Passes the parts of a list to `take` until it refuses one.
fn read(text: &str, mut take: impl FnMut(Part<'_>) -> Result<(), HostlistError>) -> Result<(), HostlistError> {
    let form = || HostlistError::Form(text.chars().take(80).collect());
    let mut rest = text;
    loop {
        let end = rest.find([',', '[', ']']).unwrap_or(rest.len());
        let (prefix, behind) = rest.split_at(end);
        let behind = if let Some(list) = behind.strip_prefix('[') {
            let (list, behind) = list.split_once(']').ok_or_else(form)?;
            for numbers in list.split(',') {
                take(Part::Range(range(prefix, numbers).ok_or_else(form)?))?;
            }
            behind
        } else {
            take(Part::Name(prefix))?;
            behind
        };
        match behind.strip_prefix(',') {
            Some(next) => rest = next,
            None if behind.is_empty() => return Ok(()),
            None => return Err(form()),
        }
    }
}

/// `prefix` with the numbers `3` or `1-3`; `None`: not a valid range.
fn range<'a>(prefix: &'a str, numbers: &str) -> Option<Range<'a>> {
    let (first, last) = numbers.split_once('-').unwrap_or((numbers, numbers));
    // A number longer than any name is refused before it is formatted, because a width has a limit.
    let is_number = |text: &str| text.len() <= NODE_NAME_BYTES_MAX && text.bytes().all(|b| b.is_ascii_digit());
    let number = |text: &str| is_number(text).then(|| text.parse::<u64>().ok()).flatten();
    let (from, to) = (number(first)?, number(last)?);
    (from <= to).then_some(Range { prefix, from, to, width: first.len() })
}

/// Folds node names that differ in one trailing number, sorted by prefix, then by the number's
/// length, then number. Numbers with different zero padding are not in one range.
pub fn fold<'a>(nodes: impl IntoIterator<Item = &'a NodeId>) -> String {
    let mut names: Vec<(&str, Option<&str>)> = nodes.into_iter().map(|n| split(n.as_str())).collect();
    names.sort_by_key(|name| sort_key(*name));
    names.dedup();
    fold_split(&names)
}

/// The nodes in the order of [`fold`]: `n2` comes before `n10`.
pub fn by_name<'a>(nodes: impl IntoIterator<Item = &'a NodeId>) -> Vec<&'a NodeId> {
    let mut nodes: Vec<&NodeId> = nodes.into_iter().collect();
    nodes.sort_by_key(|node| sort_key(split(node.as_str())));
    nodes
}

/// The length of the longest run of these nodes in `all`, in the order of their names.
pub fn longest_run<'a>(all: impl IntoIterator<Item = &'a NodeId>, nodes: &BTreeSet<&NodeId>) -> usize {
    by_name(all).split(|node| !nodes.contains(node)).map(<[&NodeId]>::len).max().unwrap_or(0)
}

/// Whether these nodes of `all` follow each other there, in the order of their names.
pub fn are_in_a_row<'a>(all: impl IntoIterator<Item = &'a NodeId>, nodes: &BTreeSet<&'a NodeId>) -> bool {
    let keys = || nodes.iter().map(|node| sort_key(split(node.as_str())));
    let (Some(first), Some(last)) = (keys().min(), keys().max()) else { return true };
    let is_between = |node: &&NodeId| (first..=last).contains(&sort_key(split(node.as_str())));
    all.into_iter().filter(is_between).count() == nodes.len()
}

/// The sort key of a split name.
fn sort_key<'n>((prefix, digits): (&'n str, Option<&'n str>)) -> (&'n str, Option<(usize, &'n str)>) {
    (prefix, digits.map(|digits| (digits.len(), digits)))
}

/// As [`fold`], but in the given order and with repetitions: [`in_order`] gives the same names.
pub fn fold_in_order<'a>(nodes: impl IntoIterator<Item = &'a NodeId>) -> String {
    fold_split(&nodes.into_iter().map(|n| split(n.as_str())).collect::<Vec<_>>())
}

/// Folds names that are split at their trailing numbers, in the given order.
fn fold_split(names: &[(&str, Option<&str>)]) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut i = 0;
    while i < names.len() {
        let (prefix, digits) = names[i];
        let Some(digits) = digits else {
            out.push(prefix.to_owned());
            i += 1;
            continue;
        };
        let mut numbers: Vec<&str> = vec![digits];
        while i + 1 < names.len() && names[i + 1].0 == prefix && names[i + 1].1.is_some() {
            i += 1;
            numbers.extend(names[i].1);
        }
        i += 1;
        let ranges = ranges(&numbers);
        if numbers.len() == 1 { out.push(format!("{prefix}{digits}")) } else { out.push(format!("{prefix}[{ranges}]")) }
    }
    out.join(",")
}

/// The name before its trailing digits, and those digits if there are any (at most 18).
fn split(name: &str) -> (&str, Option<&str>) {
    let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    if digits == 0 || digits > 18 { (name, None) } else { (&name[..name.len() - digits], Some(&name[name.len() - digits..])) }
}

fn ranges(numbers: &[&str]) -> String {
    let value = |d: &str| d.parse::<u64>().unwrap_or(0);
    let follows = |a: &str, b: &str| value(b) == value(a) + 1 && (b.len() == a.len() || (!a.starts_with('0') && !b.starts_with('0')));
    let mut out: Vec<String> = Vec::new();
    let mut start = 0;
    for i in 0..numbers.len() {
        if i + 1 < numbers.len() && follows(numbers[i], numbers[i + 1]) {
            continue;
        }
        let text = if start == i { numbers[i].to_owned() } else { format!("{}-{}", numbers[start], numbers[i]) };
        out.push(text);
        start = i + 1;
    }
    out.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn folded(names: &[&str]) -> String {
        let ids: Vec<NodeId> = names.iter().map(|n| n.parse().unwrap()).collect();
        fold(&ids)
    }

    #[test]
    fn names_fold_by_their_trailing_number() {
        assert_eq!(folded(&["n3", "n1", "n2", "n7"]), "n[1-3,7]");
        assert_eq!(folded(&["n9", "n10", "n11"]), "n[9-11]");
        assert_eq!(folded(&["n09", "n10"]), "n[09-10]");
        assert_eq!(folded(&["login", "n1"]), "login,n1");
        assert_eq!(folded(&["a1", "b1", "a2"]), "a[1-2],b1");
        assert_eq!(folded(&[]), "");
    }

    #[test]
    fn nodes_are_in_a_row_if_no_other_is_between_them_by_name() {
        let all: Vec<NodeId> = ["n10", "n9", "n2", "n1", "login"].map(|name| name.parse().unwrap()).into();
        let are = |names: &[&str]| {
            let nodes: BTreeSet<&NodeId> = all.iter().filter(|node| names.contains(&node.as_str())).collect();
            assert_eq!(are_in_a_row(&all, &nodes), longest_run(&all, &nodes) == nodes.len(), "{names:?}");
            are_in_a_row(&all, &nodes)
        };
        assert!(are(&["n9", "n10"]) && are(&["n1", "n2", "n9"]) && are(&["login", "n1"]) && are(&["n2"]) && are(&[]));
        assert!(!are(&["n1", "n10"]) && !are(&["n1", "n9"]) && !are(&["login", "n2"]));
    }

    proptest! {
        #[test]
        fn what_is_folded_in_order_is_unfolded_in_that_order(names in vec("(n|x1c|node-)?[0-9]{1,3}|[a-c]{1,2}|n[0-9]{17,20}", 1..30)) {
            let ids: Vec<NodeId> = names.iter().map(|n| n.parse().unwrap()).collect();
            let folded = fold_in_order(&ids);
            prop_assert_eq!(count(&folded), Ok(ids.len()));
            prop_assert_eq!(in_order(&folded), Ok(ids));
        }

        #[test]
        fn what_is_counted_is_what_is_listed(text in "[a-c0-9,\\[\\]-]{0,12}|n\\[[0-9]{1,5}-[0-9]{1,6}\\](,a)?") {
            let listed = in_order(&text).ok();
            prop_assert_eq!(count(&text).ok(), listed.as_ref().map(Vec::len), "{}", &text);
            if let Some(listed) = listed {
                prop_assert_eq!(first(&text), listed.first().cloned(), "{}", text);
            }
        }
    }

    #[test]
    fn a_list_of_too_many_names_is_refused_before_it_is_expanded() {
        for text in ["n[0-18446744073709551615]", "a,n[0-18446744073709551615]", "n[1-90000],m[1-90000]"] {
            assert_eq!(count(text), Err(HostlistError::TooMany), "{text}");
        }
    }

    #[test]
    fn what_is_folded_is_unfolded_again() {
        let unfolded = |text: &str| expand(text).map(|nodes| nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
        assert_eq!(unfolded("n[1-3,7],login"), Ok("login n1 n2 n3 n7".into()));
        assert_eq!(unfolded("x1000c0s0b0n[08-11]"), Ok("x1000c0s0b0n08 x1000c0s0b0n09 x1000c0s0b0n10 x1000c0s0b0n11".into()));
        for names in [&["n1", "n2", "n10"][..], &["a07", "a08", "b"], &["n001", "n002", "n1"]] {
            let ids: BTreeSet<NodeId> = names.iter().map(|n| n.parse().unwrap()).collect();
            assert_eq!(expand(&fold(&ids)), Ok(ids));
        }
        let wide = format!("n[{}1]", "0".repeat(70_000));
        for bad in ["n[1", "n]1[", "n[1-3]x", "n[3-1]", "n[a-b]", "n[]", "n[1--2]", &wide] {
            assert!(matches!(expand(bad), Err(HostlistError::Form(_))), "{bad:?}: {:?}", expand(bad));
        }
        for bad in ["", "n1,,n2", "n1 n2"] {
            assert!(matches!(expand(bad), Err(HostlistError::Name(_))), "{bad:?}: {:?}", expand(bad));
        }
        assert_eq!(expand("n[1-999999999999]"), Err(HostlistError::TooMany));
    }
}
