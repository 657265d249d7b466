//! Features of nodes, and whether a node has one.

/// Largest number of features of one node, and in one request.
pub const FEATURES_MAX: usize = 32;
/// Largest size of a feature, in bytes.
pub const FEATURE_BYTES_MAX: usize = 96;

/// Whether a text is a valid feature: a word of ASCII letters, digits, `_`, `-`, `.`; or
/// `word=text`.
pub fn is_feature(text: &str) -> bool {
    let (word, value) = text.split_once('=').map_or((text, None), |(word, value)| (word, Some(value)));
    let is_word = !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
    let is_value = value.is_none_or(|v| !v.is_empty() && v.bytes().all(|b| (0x20..0x7f).contains(&b) && !b",:".contains(&b)));
    is_word && is_value && text.len() <= FEATURE_BYTES_MAX
}

/// Whether a node with these features has the wanted one. A word must match completely; in
/// `key=text` the text only needs to be contained in the value: `gpu_type=GH200` matches
/// `gpu_type=NVIDIA GH200 480GB`. Case is ignored.
pub fn has(features: &[String], wanted: &str) -> bool {
    match wanted.split_once('=') {
        None => features.iter().any(|f| f.eq_ignore_ascii_case(wanted)),
        Some((key, part)) => features
            .iter()
            .filter_map(|f| f.split_once('='))
            .any(|(k, value)| k.eq_ignore_ascii_case(key) && value.to_ascii_lowercase().contains(&part.to_ascii_lowercase())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_words_or_parts_of_values() {
        let node: Vec<String> = ["nvme_scratch", "gpu_type=NVIDIA GH200 480GB", "rack=7"].map(str::to_owned).into();
        for wanted in ["nvme_scratch", "NVME_SCRATCH", "gpu_type=GH200", "gpu_type=gh200 480", "rack=7"] {
            assert!(has(&node, wanted), "{wanted}");
        }
        for wanted in ["nvme", "gpu_type", "gpu_type=A100", "rack=8", "row=7"] {
            assert!(!has(&node, wanted), "{wanted}");
        }
        for good in ["nvme_scratch", "a", "gpu_type=NVIDIA GH200 480GB", "x-1.2"] {
            assert!(is_feature(good), "{good}");
        }
        for bad in ["", "=a", "a=", "a b", "ä", "a=b,c", "a\n", &"x".repeat(FEATURE_BYTES_MAX + 1)] {
            assert!(!is_feature(bad), "{bad}");
        }
    }
}
