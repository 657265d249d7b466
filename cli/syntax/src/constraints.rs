//! What `--constraint` requires of nodes.

use crate::UsageError;
use crate::flags::SubmitFlags;
use lattice_model::feature_choice::OPERATORS;
use lattice_model::feature_expression::{self, ExpressionError};
use std::collections::{BTreeMap, HashMap};

/// Constraints whose value is the least amount that a node must have.
const AMOUNT_CONSTRAINTS: [&str; 4] = ["core_count", "socket_count", "gpu_count", "memory_gb"];

/// What the options ask of nodes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// From key to value. A feature has no value.
    pub values: HashMap<String, String>,
    /// Further features, as an expression: alternatives and numbers of nodes.
    pub features: String,
}

/// Parses `gpu_type=GH200,memory_gb>=512,nvme_scratch` into a map from key to value. `:` may replace `=`, and `&` the
/// comma, as in Slurm. Parts with alternatives or numbers of nodes are an expression.
pub(crate) fn constraints(flags: &SubmitFlags) -> Result<Asked, UsageError> {
    let mut asked = Asked::default();
    for list in flags.constraints() {
        let (mut of_list, mut parts) = (BTreeMap::new(), Vec::new());
        for (start, part) in terms(list) {
            if part.contains(OPERATORS) {
                check(list, start, part)?;
                parts.push((start, part));
                continue;
            }
            let halves = part.split_once(">=").or_else(|| part.split_once(['=', ':']));
            let (key, value) = halves.map_or((part, ""), |(key, value)| (key.trim(), value.trim()));
            let is_amount = AMOUNT_CONSTRAINTS.contains(&key);
            if part.contains(['<', '>']) && !(is_amount && part.contains(">=")) {
                let [rest @ .., last] = &AMOUNT_CONSTRAINTS;
                return Err(UsageError::new(format!(
                    "--constraint {part}: only {} and {last} can be compared, and only by >=",
                    rest.join(", ")
                ))
                .with_hint("a feature is named whole: nvme_scratch, or gpu_type=GH200"));
            }
            if let Some(before) = of_list.insert(key, value).filter(|before| *before != value) {
                let why = format!("--constraint {list}: {key} is given twice, as {before:?} and as {value:?}");
                return Err(UsageError::new(why).with_hint("give it once"));
            }
        }
        // A later option wins: one on the command line over a script's.
        asked.values.extend(of_list.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())));
        if !parts.is_empty() {
            asked.features = parts.iter().map(|(_, part)| *part).collect::<Vec<_>>().join("&");
            check_together(list, &parts, &asked.features)?;
        }
    }
    Ok(asked)
}

/// The parts of a list that all must be met, each with the number of characters before it. A list with alternatives
/// outside of parentheses is one part.
fn terms(list: &str) -> Vec<(usize, &str)> {
    let (mut terms, mut depth, mut start, mut start_chars) = (Vec::new(), 0_usize, 0, 0);
    for (chars, (at, c)) in list.char_indices().enumerate() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            '|' if depth == 0 => return vec![(0, list)],
            '&' | ',' if depth == 0 => {
                terms.push((start_chars, &list[start..at]));
                (start, start_chars) = (at + 1, chars + 1);
            }
            _ => {}
        }
    }
    terms.push((start_chars, &list[start..]));
    let trimmed = terms.into_iter().map(|(start, term)| (start + term.len() - term.trim_start().len(), term.trim()));
    trimmed.filter(|(_, term)| !term.is_empty()).collect()
}

/// Checks a part of the list that begins after `start` characters.
fn check(list: &str, start: usize, part: &str) -> Result<(), UsageError> {
    feature_expression::parse(part).map(drop).map_err(|error| refused(list, error.at + start, error))
}

/// Checks these parts of the list, each with the number of characters before it, joined by `&`. An error is at the
/// operator before a part of the list.
fn check_together(list: &str, parts: &[(usize, &str)], joined: &str) -> Result<(), UsageError> {
    let Err(error) = feature_expression::parse(joined) else { return Ok(()) };
    let mut start_in_joined = 1;
    let mut at = error.at;
    for (start, part) in parts {
        if error.at + 1 >= start_in_joined {
            at = (error.at + start + 1).saturating_sub(start_in_joined);
        }
        start_in_joined += part.chars().count() + 1;
    }
    Err(refused(list, at, error))
}

fn refused(list: &str, at: usize, error: ExpressionError) -> UsageError {
    let error = ExpressionError { at, ..error };
    UsageError::new(format!("--constraint {list}: {error}")).with_hint("quote the whole in a shell, as in -C '(a|b)&c'")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(lists: &[&str]) -> Result<Asked, UsageError> {
        constraints(&SubmitFlags { constraint: lists.iter().map(|list| (*list).to_owned()).collect(), ..Default::default() })
    }

    fn refused(wrong: &str) -> String {
        let error = asked(&[wrong]).unwrap_err();
        format!("{error} | {}", error.hint.as_deref().unwrap_or_default())
    }

    #[test]
    fn a_list_of_features_is_parsed() {
        let all: BTreeMap<String, String> = asked(&["a&b,gpu_type=GH200"]).unwrap().values.into_iter().collect();
        let all: Vec<(&str, &str)> = all.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(all, [("a", ""), ("b", ""), ("gpu_type", "GH200")]);
        let asked = asked(&["rack=a,gpu_count=1", "gpu_count=2"]).unwrap();
        assert_eq!((asked.values["rack"].as_str(), asked.values["gpu_count"].as_str()), ("a", "2"), "the later option wins");
        for wrong in ["x>=3", "x>3", "memory_gb<4", "gpu_count=1&gpu_count=2", "rack=a,rack=b"] {
            refused(wrong);
        }
        assert!(refused("x>3").starts_with("--constraint x>3: only core_count, socket_count, gpu_count and memory_gb can be compared"));
    }

    #[test]
    fn alternatives_and_numbers_of_nodes_are_an_expression() {
        let of = |lists: &[&str]| {
            let Asked { values, features } = asked(lists).unwrap();
            let values: BTreeMap<String, String> = values.into_iter().collect();
            (values.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" "), features)
        };
        let both = |values: &str, features: &str| (values.to_owned(), features.to_owned());
        assert_eq!(of(&["a|b"]), both("", "a|b"));
        assert_eq!(of(&["(a|b)&c,memory_gb>=512"]), both("c= memory_gb=512", "(a|b)"));
        assert_eq!(of(&["[a*2&b*4]"]), both("", "[a*2&b*4]"));
        assert_eq!(of(&["a*2 & b*4 & c"]), both("c=", "a*2&b*4"));
        assert_eq!(of(&["a|b", "[c|d]"]), both("", "[c|d]"), "the later option wins");
        assert_eq!(of(&["a|b", "gpu"]), both("gpu=", "a|b"));
    }

    #[test]
    fn what_is_wrong_is_shown_at_its_place_in_the_list() {
        for (wrong, why) in [
            ("a|b&c", "--constraint a|b&c: at character 4: & after | can mean two things: write a|(b&c), or (a|b)&c"),
            ("gpu,!slow", "--constraint gpu,!slow: at character 5: ! is not supported: name the features that are wanted, and leave"),
            ("x&(a|memory_gb>=5)", "--constraint x&(a|memory_gb>=5): at character 6: memory_gb>=5 is not a feature: join it with"),
            ("a&(b|c", "--constraint a&(b|c: at character 3: this '(' is never closed"),
            ("[a|b]&c*2", "--constraint [a|b]&c*2: at character 6: numbers of nodes and [a|b] are not possible together"),
            ("gpu,[a|b]&c*2", "--constraint gpu,[a|b]&c*2: at character 10: numbers of nodes and [a|b] are not possible together"),
            ("[a|b]&gpu&c*2", "--constraint [a|b]&gpu&c*2: at character 10: numbers of nodes and [a|b] are not possible together"),
        ] {
            let refused = refused(wrong);
            assert!(refused.starts_with(why) && refused.contains("-C '(a|b)&c'"), "{wrong}: {refused}");
        }
    }
}
