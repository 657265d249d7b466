//! Numbers with their nouns, for people.

/// `1 node`, `3 nodes`, `0 nodes`.
pub fn counted(number: impl TryInto<u64>, noun: &str) -> String {
    let number = number.try_into().unwrap_or(u64::MAX);
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// The verb that goes with a number: `is` or `are`.
pub fn is_or_are(number: impl TryInto<u64>) -> &'static str {
    if number.try_into().unwrap_or(u64::MAX) == 1 { "is" } else { "are" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_no_plural() {
        assert_eq!([counted(0_u32, "node"), counted(1_usize, "node"), counted(2_u64, "GPU")], ["0 nodes", "1 node", "2 GPUs"]);
        assert_eq!([is_or_are(0_u32), is_or_are(1_u32), is_or_are(2_u32)], ["are", "is", "are"]);
    }
}
