//! What `--constraint` requires of nodes.

use crate::UsageError;
use crate::flags::SubmitFlags;
use std::collections::{BTreeMap, HashMap};

/// Slurm's characters for alternatives and counts of features.
const FEATURE_OPERATORS: [char; 7] = ['|', '[', ']', '(', ')', '*', '!'];

/// Constraints whose value is the least amount that a node must have.
const AMOUNT_CONSTRAINTS: [&str; 2] = ["gpu_count", "memory_gb"];

/// Parses `gpu_type=GH200,memory_gb>=512,nvme_scratch` into a map from key to value. `:` may replace `=`, and `&` the
/// comma, as in Slurm.
pub(crate) fn constraints(flags: &SubmitFlags) -> Result<HashMap<String, String>, UsageError> {
    let mut asked = HashMap::new();
    for list in flags.constraints() {
        if let Some(mark) = list.chars().find(|c| FEATURE_OPERATORS.contains(c)) {
            return Err(UsageError::new(format!(
                "--constraint {list}: {mark:?} is not supported: a node must have all features of the list"
            ))
            .with_hint("name the features with & or commas between them, as in -C 'gpu&nvme_scratch'"));
        }
        let mut of_list = BTreeMap::new();
        for part in list.split([',', '&']).map(str::trim).filter(|part| !part.is_empty()) {
            let halves = part.split_once(">=").or_else(|| part.split_once(['=', ':']));
            let (key, value) = halves.map_or((part, ""), |(key, value)| (key.trim(), value.trim()));
            let is_amount = AMOUNT_CONSTRAINTS.contains(&key);
            if part.contains(['<', '>']) && !(is_amount && part.contains(">=")) {
                return Err(UsageError::new(format!(
                    "--constraint {part}: only {} can be compared, and only by >=",
                    AMOUNT_CONSTRAINTS.join(" and ")
                ))
                .with_hint("a feature is named whole: nvme_scratch, or gpu_type=GH200"));
            }
            if let Some(before) = of_list.insert(key, value).filter(|before| *before != value) {
                let why = format!("--constraint {list}: {key} is given twice, as {before:?} and as {value:?}");
                return Err(UsageError::new(why).with_hint("give it once"));
            }
        }
        // A later option wins: one on the command line over a script's.
        asked.extend(of_list.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())));
    }
    Ok(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_features_is_parsed_and_alternatives_are_refused() {
        let flags = SubmitFlags { constraint: vec!["a&b,gpu_type=GH200".into()], ..Default::default() };
        let mut asked: Vec<_> = constraints(&flags).unwrap().into_iter().collect();
        asked.sort();
        assert_eq!(asked, [("a".into(), String::new()), ("b".into(), String::new()), ("gpu_type".into(), "GH200".into())]);
        let flags = SubmitFlags { constraint: vec!["rack=a,gpu_count=1".into(), "gpu_count=2".into()], ..Default::default() };
        let asked = constraints(&flags).unwrap();
        assert_eq!((asked["rack"].as_str(), asked["gpu_count"].as_str()), ("a", "2"), "the later option wins");
        let refused = |wrong: &str| {
            let flags = SubmitFlags { constraint: vec![wrong.into()], ..Default::default() };
            let error = constraints(&flags).unwrap_err();
            format!("{error} | {}", error.hint.as_deref().unwrap_or_default())
        };
        for wrong in ["x>=3", "x>3", "memory_gb<4", "gpu_count=1&gpu_count=2", "rack=a,rack=b"] {
            refused(wrong);
        }
        let refused = refused("a|b");
        assert!(refused.contains("'|' is not supported") && refused.contains("&"), "{refused}");
    }
}
