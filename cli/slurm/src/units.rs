//! Amounts, names and lists as Slurm's commands write them.

use lattice_model::{NodeId, hostlist};

/// Shown for a text that is not set.
pub const NULL: &str = "(null)";

/// A text, or `(null)` if it is empty.
pub fn or_null(text: &str) -> String {
    if text.is_empty() { NULL.to_owned() } else { text.to_owned() }
}

/// A text without line breaks, which commands and paths may have: a row is a line.
pub fn one_line(text: String) -> String {
    if text.contains(char::is_control) { text.replace(char::is_control, " ") } else { text }
}

/// Mebibytes with a unit: `500M`, `4G`, `1.50G`, `0`.
pub fn memory_text(bytes: u64) -> String {
    let mut number = bytes >> 20;
    if number == 0 {
        return "0".to_owned();
    }
    let mut fraction = 0;
    let mut unit = 'M';
    for larger in ['G', 'T', 'P'] {
        if number < 1024 {
            break;
        }
        (fraction, number, unit) = ((number % 1024) * 100 / 1024, number / 1024, larger);
    }
    if fraction == 0 { format!("{number}{unit}") } else { format!("{number}.{fraction:02}{unit}") }
}

/// Whole kibibytes: `52480K`.
pub fn kibibytes_text(bytes: u64) -> String {
    format!("{}K", bytes.div_ceil(1024))
}

/// Node names as a hostlist, in their order by name; unchanged if one of them is no valid name.
pub fn folded<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    let names: Vec<&String> = names.into_iter().collect();
    match names.iter().map(|name| name.parse::<NodeId>()).collect::<Result<Vec<_>, _>>() {
        Ok(ids) => hostlist::fold(&ids),
        Err(_) => names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(","),
    }
}

/// The parts of a list with commas, without empty ones.
pub fn listed(texts: &[String]) -> Vec<String> {
    texts.iter().flat_map(|text| text.split(',')).map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_and_lists_are_short() {
        assert_eq!([0, 500 << 20, 4 << 30, 1536 << 20, 2 << 40].map(memory_text), ["0", "500M", "4G", "1.50G", "2T"]);
        assert_eq!(kibibytes_text(53_739_520), "52480K");
        assert_eq!(folded(&["n2".to_owned(), "n1".to_owned()]), "n[1-2]");
        assert_eq!(folded(&["a b".to_owned()]), "a b");
        assert_eq!((one_line("a\nb".to_owned()), one_line("a|b".to_owned())), ("a b".to_owned(), "a|b".to_owned()));
        assert_eq!(listed(&["a,b".to_owned(), "c,,".to_owned()]), ["a", "b", "c"]);
    }
}
