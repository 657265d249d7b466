//! Splits a line into words, with a shell's quoting.

use thiserror::Error;

/// A quote is not closed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("a {0} is not closed")]
pub struct UnclosedQuote(char);

/// Splits at blanks. Quotes of both kinds protect blanks, a backslash protects the next character (not between single
/// quotes); a word that begins with `#` ends the line.
pub fn split_words(line: &str) -> Result<Vec<String>, UnclosedQuote> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            ' ' | '\t' => words.extend(word.take()),
            '#' if word.is_none() => break,
            '\'' | '"' => {
                let quoted = word.get_or_insert_default();
                loop {
                    match chars.next() {
                        None => return Err(UnclosedQuote(c)),
                        Some(end) if end == c => break,
                        Some('\\') if c == '"' => quoted.extend(chars.next()),
                        Some(inner) => quoted.push(inner),
                    }
                }
            }
            '\\' => word.get_or_insert_default().extend(chars.next()),
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_split_and_quotes_keep() {
        let split = |line: &str| split_words(line).unwrap();
        assert_eq!(split(" -N 4\t--name=\"my job\" # four"), ["-N", "4", "--name=my job"]);
        assert_eq!(split("--name='a \\ b'\\ c a#b ''"), ["--name=a \\ b c", "a#b", ""]);
        assert!(split("  # nothing").is_empty());
        assert!(split_words("--name='open").is_err());
    }
}
