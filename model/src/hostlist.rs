//! Hostlists: `n[1-3,7]` for `n1 n2 n3 n7`, as every scheduler of the field folds them.

use crate::ids::NodeId;

/// Folds node names that differ in one trailing number. The order is by prefix, then number; zero padding is kept apart.
pub fn fold<'a>(nodes: impl IntoIterator<Item = &'a NodeId>) -> String {
    let mut names: Vec<(&str, Option<&str>)> = nodes.into_iter().map(|n| split(n.as_str())).collect();
    names.sort_by(|a, b| (a.0, a.1.map(|d| (d.len(), d))).cmp(&(b.0, b.1.map(|d| (d.len(), d)))));
    names.dedup();
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

/// The name before its trailing digits, and those digits where there are some (at most 18).
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
}
